//! Compares two wire images message by message.

use std::fmt;
use std::iter;
use std::net::IpAddr;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;
use smc_wire::clc::{self, SmcdArea};
use smc_wire::types::Features;

use super::form;
use super::segment::Segment;

/// What one end has sent.
#[derive(Clone, Debug, Default)]
pub(super) struct WireImage {
    pub(super) segments: Vec<Segment>,
    pub(super) messages: Vec<Message>,
}

/// A message as `smc dissect --json --hex` prints it.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Message {
    frame: u64,
    src: String,
    dst: String,
    family: Family,
    #[serde(rename = "type")]
    kind: String,
    retransmission: bool,
    hex: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Family {
    TcpOption,
    Clc,
    Llc,
    Cdc,
}

impl Message {
    pub(super) fn of_json(line: &str) -> Result<Self> {
        serde_json::from_str(line).with_context(|| format!("not understood: {line}"))
    }

    /// The address before a port or a queue pair.
    pub(super) fn sender(&self) -> Option<IpAddr> {
        self.src.split([':', ' ']).next()?.parse().ok()
    }

    fn bytes(&self) -> Result<Vec<u8>> {
        let digits = self.hex.as_bytes().chunks(2);
        digits
            .map(|digits| Ok(u8::from_str_radix(std::str::from_utf8(digits)?, 16)?))
            .collect()
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in frame {}", self.kind, self.frame)
    }
}

/// The result of a comparison.
pub(super) struct Compared {
    /// What was compared.
    pub(super) summary: String,
    pub(super) violations: Vec<String>,
}

/// Compares what one end has sent without features and with these.
pub(super) fn compare(without: &WireImage, with: &WireImage, features: Features) -> Compared {
    let mut violations = Vec::new();
    let [mut without, mut with] = [
        ("without features", without, Features::empty()),
        ("with features", with, features),
    ]
    .map(|(which, image, stated)| {
        let (normal, wrong) = Normal::of(image, stated);
        violations.extend(wrong.iter().map(|wrong| format!("{which}: {wrong}")));
        normal
    });
    let summary = format!(
        "equal: {} SYN, {} CLC and {} LLC messages; canonical: {} and {} CDC messages",
        with.syns.len(),
        with.clc.len(),
        with.llc.len(),
        without.cdc,
        with.cdc
    );
    violations.extend(differences(&without.syns, &with.syns));
    violations.extend(differences(&without.clc, &with.clc));
    // Requests of both ends may cross, so their order is not always the same.
    remove_common(&mut without.llc, &mut with.llc);
    violations.extend(differences(&without.llc, &with.llc));
    Compared {
        summary,
        violations,
    }
}

/// What is compared of a wire image.
#[derive(Default)]
struct Normal {
    syns: Vec<Form>,
    clc: Vec<Form>,
    llc: Vec<Form>,
    cdc: usize,
    first_contacts: usize,
    further: usize,
}

/// The normal form of a message, or of the options of a SYN.
struct Form {
    name: String,
    bytes: Vec<u8>,
}

impl Normal {
    /// With what is wrong whatever the other image is.
    fn of(image: &WireImage, stated: Features) -> (Self, Vec<String>) {
        let mut normal = Self::default();
        let mut wrong = Vec::new();
        let mut note = |name: &str, result: Result<()>| {
            wrong.extend(result.err().map(|error| format!("{name}: {error:#}")));
        };
        for (index, syn) in image.segments.iter().enumerate() {
            let is_of = |other: &&Segment| (other.from, other.to) == (syn.from, syn.to);
            if syn.is_syn && !image.segments.iter().take(index).any(|other| is_of(&other)) {
                let name = format!("SYN from {} to {}", syn.from, syn.to);
                note(&name, syn.check_syn());
                let segments = image.segments.iter().filter(is_of);
                note(&name, has_only_clc(syn, segments, &image.messages));
                let bytes = syn.normal_options();
                normal.syns.push(Form { name, bytes });
            }
        }
        let messages = image.messages.iter();
        let messages = messages.filter(|message| !message.retransmission);
        for (number, message) in (1..).zip(messages) {
            let name = format!("message {number}, {message}");
            note(&name, normal.message(&name, message, stated));
        }
        let Self {
            first_contacts,
            further,
            cdc,
            ..
        } = normal;
        if first_contacts != 1 || further < 2 || normal.llc.is_empty() || cdc == 0 {
            wrong.push(format!(
                "{first_contacts} first contacts, {further} further connections, {} LLC and {cdc} \
                 CDC messages",
                normal.llc.len()
            ));
        }
        (normal, wrong)
    }

    fn message(&mut self, name: &str, message: &Message, stated: Features) -> Result<()> {
        let name = name.to_owned();
        let sent = message.bytes()?;
        match message.family {
            Family::TcpOption => Ok(()),
            Family::Clc => {
                let parsed = clc::Message::parse(&sent)?;
                let forms = form::of_clc(&parsed)?;
                let bytes = forms.normal;
                self.clc.push(Form { name, bytes });
                match &parsed {
                    clc::Message::Proposal(proposal) => states(proposal.smcd, stated)?,
                    clc::Message::Accept(end) | clc::Message::Confirm(end) => {
                        self.first_contacts += usize::from(end.is_first_contact());
                        self.further += usize::from(!end.is_first_contact());
                    }
                    clc::Message::Decline(_) => {}
                }
                equal(&sent, &forms.canonical).context("sent, and canonical")
            }
            Family::Llc => {
                let forms = form::of_llc(&sent)?;
                let bytes = forms.normal;
                // How many of these are sent depends on time.
                let is_repeated = message.kind == "DELETE_LINK"
                    && self.llc.iter().any(|other| other.bytes == bytes);
                if message.kind != "TEST_LINK" && !is_repeated {
                    self.llc.push(Form { name, bytes });
                }
                equal(&sent, &forms.canonical).context("sent, and canonical")
            }
            Family::Cdc => {
                self.cdc += 1;
                equal(&sent, &form::of_cdc(&sent)?).context("sent, and canonical")
            }
        }
    }
}

/// Whether the vendor fields of a PROPOSAL state these features, and nothing else.
fn states(area: Option<SmcdArea>, stated: Features) -> Result<()> {
    let fields = |area: SmcdArea| (area.vendor_oui, area.vendor_options);
    let sent = area.map(fields);
    let expected = fields(SmcdArea::default().with_vendor_features(stated));
    ensure!(
        sent == Some(expected),
        "vendor OUI and options are {sent:02x?}, and not {expected:02x?} for {stated}"
    );
    Ok(())
}

/// Whether all that an end sends behind its SYN is CLC messages.
fn has_only_clc<'a>(
    syn: &Segment,
    segments: impl Iterator<Item = &'a Segment>,
    messages: &[Message],
) -> Result<()> {
    let ends = segments.filter(|segment| segment.len > 0);
    let ends = ends.filter_map(|segment| {
        let start = segment.sequence.wrapping_sub(syn.sequence);
        let start = usize::try_from(start).ok()?.checked_sub(1)?;
        Some(start + segment.len)
    });
    let sent = ends.max().unwrap_or(0);
    let (from, to) = (syn.from.to_string(), syn.to.to_string());
    let messages = messages.iter().filter(|message| {
        let is_of = message.src == from && message.dst == to;
        is_of && message.family == Family::Clc && !message.retransmission
    });
    let in_messages: usize = messages.map(|message| message.hex.len() / 2).sum();
    ensure!(
        sent == in_messages,
        "{sent} bytes of data, of which {in_messages} are CLC messages"
    );
    Ok(())
}

/// Removes what is in both, as often as it is.
fn remove_common(left: &mut Vec<Form>, right: &mut Vec<Form>) {
    left.retain(|form| {
        let place = right.iter().position(|other| other.bytes == form.bytes);
        place.map(|place| right.remove(place)).is_none()
    });
}

/// How two sequences differ.
fn differences(without: &[Form], with: &[Form]) -> Vec<String> {
    let only = |which, form: &Form| format!("{}: only {which}\n{}", form.name, hex(&form.bytes));
    let of = |index: usize| match (without.get(index), with.get(index)) {
        (Some(without), Some(with)) => {
            let differ = equal(&without.bytes, &with.bytes).err()?;
            let (without, with) = (&without.name, &with.name);
            Some(format!("{without}, and with features {with}: {differ}"))
        }
        (Some(without), None) => Some(only("without features", without)),
        (None, Some(with)) => Some(only("with features", with)),
        (None, None) => None,
    };
    let count = without.len().max(with.len());
    (0..count).filter_map(of).collect()
}

/// The error has both, and where they differ first.
fn equal(left: &[u8], right: &[u8]) -> Result<()> {
    let differs = |(left, right): (&u8, &u8)| left != right;
    let shorter = left.len().min(right.len());
    let at = iter::zip(left, right).position(differs).unwrap_or(shorter);
    ensure!(
        left == right,
        "differ at offset {at}:\n{}\n{}",
        hex(left),
        hex(right)
    );
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    format!("    {}", digits.collect::<String>())
}

#[cfg(test)]
mod tests {
    use smc_wire::cdc::CdcR;
    use smc_wire::clc::{
        AcceptConfirm, AcceptKind, Body, Extensions, FirstContact, Proposal, RdmaEnd, Terms,
    };
    use smc_wire::llc::{AnnounceCredits, ByteOrder, ConfirmRkey, Dialect, RkeyClass};
    use smc_wire::types::{
        AlertToken, Eid, HostName, Mac, MtuCode, OfferedTypes, OsType, PeerId, Psn, Qpn, Release,
        Rkey, RmbAddr, RoceGid, Version,
    };
    use smc_wire::{Bounded, size::SizeCode};

    use super::*;
    use crate::wire_image::segment::{FAST_OPEN, TIMESTAMPS};

    /// Three connections of a client, with numbers that depend on the run.
    fn client(run: u16, stated: Features) -> WireImage {
        let mut image = WireImage::default();
        for index in 0..3 {
            let confirm = confirm(run, index == 0, Features::empty());
            connection(&mut image, run + index, &proposal(stated), &confirm);
        }
        let rkey = ConfirmRkey {
            dialect: Dialect::V2(ByteOrder::Little),
            class: RkeyClass::Request,
            further_links: 0,
            rkey: Rkey(run.into()),
            address: RmbAddr(run.into()),
            further: Bounded::new(),
        };
        let mut bytes = [0; 44];
        rkey.emit(&mut bytes).unwrap();
        add(&mut image, "llc", "CONFIRM_RKEY", 4, &bytes);
        add(&mut image, "cdc", "CDC", 4, &cdc());
        image
    }

    fn proposal(stated: Features) -> Proposal {
        Proposal {
            version: Version::V2,
            v1: OfferedTypes::Neither,
            v2: OfferedTypes::Neither,
            peer_id: PeerId::ZERO,
            gid: RoceGid::ZERO,
            mac: Mac::ZERO,
            smcd: Some(SmcdArea::default().with_vendor_features(stated)),
            ip: None,
            ext: None,
        }
    }

    fn confirm(run: u16, is_first: bool, stated: Features) -> AcceptConfirm {
        let first = FirstContact::new(Release::V2_1, OsType::LINUX, HostName::new("host"));
        let number = u32::from(run);
        AcceptConfirm {
            kind: AcceptKind::Confirm,
            terms: Terms::V2 {
                eid: Eid::ZERO,
                first_contact: is_first.then(|| first.with_vendor_features(stated)),
            },
            body: Body::R(RdmaEnd {
                size: SizeCode::LINUX_DEFAULT,
                mtu: MtuCode::MTU_1024,
                peer_id: PeerId::new(run, Mac::ZERO),
                gid: RoceGid::ZERO,
                mac: Mac::ZERO,
                qpn: Qpn::new(number).unwrap(),
                rkey: Rkey(number),
                rmbe_index: 1,
                token: AlertToken::from_wire(number),
                rmb_addr: RmbAddr(run.into()),
                psn: Psn::new(number).unwrap(),
            }),
        }
    }

    fn cdc() -> [u8; 44] {
        CdcR::new(1, AlertToken::from_wire(7)).to_bytes()
    }

    fn emitted(message: &Proposal, extensions: &Extensions<'_>) -> Vec<u8> {
        let mut bytes = vec![0; Proposal::MAX_EXTENDED_LEN];
        let len = message.emit_extended(extensions, &mut bytes).unwrap();
        bytes.truncate(len);
        bytes
    }

    fn connection(image: &mut WireImage, port: u16, proposal: &Proposal, confirm: &AcceptConfirm) {
        let proposal = emitted(proposal, &Extensions::default());
        let mut bytes = vec![0; AcceptConfirm::MAX_LEN];
        let len = confirm.emit(&mut bytes).unwrap();
        let mut syn = Segment {
            from: ([10, 9, 0, 1], port).into(),
            to: ([10, 9, 0, 2], 4000).into(),
            sequence: u32::MAX,
            is_syn: true,
            options: [
                &[TIMESTAMPS, 4, port.to_le_bytes()[0], 0],
                &smc_wire::option::ALIGNED[..],
            ]
            .concat(),
            len: 0,
        };
        image.segments.push(syn.clone());
        syn.is_syn = false;
        syn.sequence = 0;
        syn.len = proposal.len() + len;
        image.segments.push(syn);
        add(image, "clc", "PROPOSAL", port, &proposal);
        add(image, "clc", "CONFIRM", port, &bytes[..len]);
    }

    fn add(image: &mut WireImage, family: &str, kind: &str, port: u16, bytes: &[u8]) {
        let frame = image.messages.len();
        let line = serde_json::json!({
            "frame": frame,
            "src": format!("10.9.0.1:{port}"),
            "dst": "10.9.0.2:4000",
            "family": family,
            "type": kind,
            "retransmission": false,
            "hex": hex(bytes).trim(),
        });
        image
            .messages
            .push(Message::of_json(&line.to_string()).unwrap());
    }

    /// Replaces the bytes of a message.
    fn replace(image: &mut WireImage, index: usize, bytes: &[u8]) {
        image.messages[index].hex = hex(bytes).trim().to_owned();
    }

    const STATED: Features = Features::EARLY_DATA;

    fn violations(with: &WireImage) -> Vec<String> {
        compare(&client(100, Features::empty()), with, STATED).violations
    }

    /// The one violation of an image that was changed.
    fn violation(change: impl FnOnce(&mut WireImage)) -> String {
        let mut image = client(200, STATED);
        change(&mut image);
        let violations = violations(&image);
        let [violation] = &*violations else {
            panic!("{violations:?}");
        };
        violation.clone()
    }

    #[test]
    fn what_differs_from_run_to_run_is_no_violation() {
        assert_eq!(violations(&client(200, STATED)), [""; 0]);
    }

    #[test]
    fn features_are_stated_in_the_proposal_and_nowhere_else() {
        let found = violations(&client(200, Features::empty()));
        assert_eq!(found.len(), 3, "{found:?}");
        let found = violation(|image| {
            let mut bytes = vec![0; AcceptConfirm::MAX_LEN];
            let len = confirm(200, true, STATED).emit(&mut bytes).unwrap();
            replace(image, 1, &bytes[..len]);
        });
        // The vendor options of the first-contact parts.
        assert!(found.contains("differ at offset 144:\n    e2d4"), "{found}");
        assert!(found.contains("CONFIRM in frame 1,"), "{found}");
    }

    #[test]
    fn extensions_are_a_violation() {
        let extensions = Extensions {
            early_data: Some(b"GET /".as_slice().into()),
            ..Extensions::default()
        };
        let mut image = client(200, STATED);
        let bytes = emitted(&proposal(STATED), &extensions);
        replace(&mut image, 2, &bytes);
        let found = violations(&image).join("\n");
        assert!(found.contains("PROPOSAL in frame 2: "), "{found}");
    }

    #[test]
    fn bytes_that_are_reserved_are_a_violation() {
        let found = violation(|image| {
            let mut bytes = cdc();
            CdcR::set_credits(&mut bytes, 20);
            replace(image, 7, &bytes);
        });
        assert!(found.contains("CDC in frame 7"), "{found}");
        assert!(found.contains("differ at offset 26"), "{found}");
    }

    #[test]
    fn another_message_is_a_violation() {
        let found = violation(|image| {
            let order = ByteOrder::Little;
            let mut bytes = [0; 44];
            let message = AnnounceCredits { order, credits: 20 };
            message.emit(&mut bytes).unwrap();
            add(image, "llc", "ANNOUNCE_CREDITS", 4, &bytes);
        });
        assert!(found.contains("8: only with features\n    2a2c"), "{found}");
    }

    #[test]
    fn data_or_fast_open_in_a_syn_is_a_violation() {
        let found = violation(|image| image.segments[0].len = 264);
        assert!(found.ends_with("264 bytes of data"), "{found}");
        let mut image = client(200, STATED);
        image.segments[0].options.extend([FAST_OPEN, 2]);
        let found = violations(&image).join("\n");
        assert!(found.contains("TCP Fast Open"), "{found}");
    }

    #[test]
    fn other_bytes_of_the_stream_are_a_violation() {
        let found = violation(|image| image.segments[1].len += 5);
        assert!(found.contains("bytes of data, of which"), "{found}");
    }
}
