//! The LLC messages that two kernels exchanged, once more with one of them replaced by a
//! `LinkGroup`: what it sends has to be what the kernel sent.
//!
//! Known differences:
//!
//! * The library registers an RMB once per device, the kernel once per link: in ADD LINK for the
//!   same device its new key and address are the old ones.
//! * Once DELETE LINK for all links was sent, the library sends nothing more, because the peer's
//!   queue pair is gone. The kernel ends its side of the group with one more of them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

#[path = "../../../smc-wire/tests/capture/mod.rs"]
mod capture;

use std::time::{Duration, Instant};

use smc_core::device::{LinkAddress, RdmaAddress, RoceKind, Route};
use smc_core::proto::Role;
use smc_core::proto::group::{DeviceIndex, GroupId};
use smc_core::proto::links::{
    FirstLinkError, LinkGroup, LinkGroupOutput, LinkId, LlcConfig, LlcTerms, PeerRmb,
    PortCandidate, RmbId, RmbKey,
};
use smc_wire::clc::{AcceptConfirm, Body, RdmaEnd};
use smc_wire::llc::{AddLink, AddLinkClass, Class, Message, RkeyClass};
use smc_wire::types::Rkey;

use self::capture::{Capture, captures};

/// One link group of a capture.
struct Exchange {
    name: &'static str,
    server: RdmaEnd,
    client: RdmaEnd,
    /// The sender of each message.
    messages: Vec<(Role, Vec<u8>)>,
}

impl Exchange {
    /// The only link group of a capture; `None` for captures with none or with several.
    fn of(capture: &Capture) -> Option<Self> {
        let end = |kind: u8| {
            let mut found = capture.clc.iter().filter(|found| found.bytes[4] == kind);
            let message = AcceptConfirm::parse(&found.next()?.bytes).ok()?;
            match message.body {
                Body::R(end) => Some(end),
                _ => None,
            }
        };
        let (server, client) = (end(2)?, end(3)?);
        let is_first = |bytes: &[u8]| bytes[0] & 0xf == 1 && bytes[3] & 0x80 == 0;
        let mut firsts = capture.llc.iter().filter(|found| is_first(&found.bytes));
        let first = firsts.next()?;
        if firsts.next().is_some() {
            return None;
        }
        let messages = capture.llc.iter().map(|found| {
            let role = match found.src == first.src {
                true => Role::Server,
                false => Role::Client,
            };
            (role, found.bytes.clone())
        });
        Some(Self {
            name: capture.name,
            server,
            client,
            messages: messages.collect(),
        })
    }
}

/// The side of the library.
struct Replay<'a> {
    of: &'a Exchange,
    now: Instant,
    group: LinkGroup,
    link: LinkId,
    /// What the library has sent and the kernel has not (yet).
    sent: Vec<Vec<u8>>,
    rmbs: Vec<(Rkey, RmbId)>,
    /// What the second link would be, from the recorded offer.
    second: Option<LinkAddress>,
    has_ended: bool,
    compared: usize,
}

const DEVICE: DeviceIndex = DeviceIndex(0);

impl<'a> Replay<'a> {
    fn new(of: &'a Exchange, us: Role) -> Self {
        let (ours, theirs) = match us {
            Role::Server => (&of.server, &of.client),
            Role::Client => (&of.client, &of.server),
        };
        // Terms and the name of our group are in CONFIRM LINK.
        let mut mine = of.messages.iter().filter(|(role, _)| *role == us);
        let first = mine.find_map(|(_, bytes)| match parsed(bytes) {
            Message::ConfirmLink(message) => Some(message),
            _ => None,
        });
        let (server, _) = (parsed(&of.messages[0].1), ());
        let Message::ConfirmLink(request) = server else {
            panic!("{}: CONFIRM LINK comes first", of.name);
        };
        let terms = LlcTerms {
            dialect: request.dialect,
            max_links: request.max_links,
            max_connections: request.max_connections,
            confirms_rkeys: true,
            is_linux: false,
            keeps_rkeys: false,
            authenticates: false,
            has_credits: false,
        };
        let id = first.map_or([0; 4], |first| {
            (first.user_id.0 - u32::from(first.link.0)).to_be_bytes()
        });
        let now = Instant::now();
        let mut group = LinkGroup::new(us, GroupId(id), LlcConfig::default());
        let local = address(ours);
        let link = group.first_link(now, DEVICE, local);
        let kind = match terms.dialect.is_v2() {
            true => RoceKind::V2,
            false => RoceKind::V1,
        };
        let port = RdmaAddress::new(local.gid, kind, local.mac, local.mtu);
        let candidate = PortCandidate {
            device: DEVICE,
            address: port,
        };
        group.handle_candidates(now, vec![candidate]);
        let key = RmbKey {
            device: DEVICE,
            rkey: ours.rkey,
            addr: ours.rmb_addr,
        };
        group.add_rmb(RmbId(0), &[key]);
        group.first_peer(address(theirs), Route::SameSubnet, terms, [0; 8]);
        group.add_rtoken(link, &named(theirs)).unwrap();
        let second = of
            .messages
            .iter()
            .find_map(|(_, bytes)| match parsed(bytes) {
                Message::AddLink(offer) if offer.class == AddLinkClass::Request => {
                    Some(end_of(&offer))
                }
                _ => None,
            });
        if us == Role::Client {
            group.confirm_link(now);
        }
        Self {
            of,
            now,
            group,
            link,
            sent: Vec::new(),
            rmbs: vec![(ours.rkey, RmbId(0))],
            second,
            has_ended: false,
            compared: 0,
        }
    }

    fn run(mut self, us: Role) -> usize {
        for (role, bytes) in &self.of.messages {
            if *role == us {
                self.expect(bytes);
            } else {
                self.has_ended |= is_all(bytes);
                self.group.handle_message(self.now, self.link, bytes);
                self.drain();
            }
        }
        let name = &self.of.name;
        assert_eq!(self.sent, [[]; 0], "{name}: the kernel did not send that");
        self.compared
    }

    /// The kernel sent this. Requests have causes outside of the link group.
    fn expect(&mut self, bytes: &[u8]) {
        let (now, link) = (self.now, self.link);
        match parsed(bytes) {
            Message::ConfirmLink(message) if message.class == Class::Request => {
                self.group.confirm_link(now);
            }
            Message::AddLink(message) if message.class == AddLinkClass::Request => {
                self.group.establish(now);
            }
            Message::ConfirmRkey(message) if message.class == RkeyClass::Request => {
                let rmb = RmbId(u64::try_from(self.rmbs.len()).unwrap());
                self.rmbs.push((message.rkey, rmb));
                let key = RmbKey {
                    device: DEVICE,
                    rkey: message.rkey,
                    addr: message.address,
                };
                self.group.confirm_rkey(now, rmb, link, &[key]);
            }
            Message::DeleteRkey(message) if message.class == Class::Request => {
                let rkey = Rkey::from(message.rkeys[0]);
                let at = self.rmbs.iter().rposition(|(key, _)| *key == rkey);
                self.group.delete_rkey(now, self.rmbs[at.unwrap()].1);
            }
            Message::TestLink(message) if message.class == Class::Request => self.pass_time(),
            Message::DeleteLink(message) if is_all(bytes) => {
                if std::mem::replace(&mut self.has_ended, true) {
                    // The answer of a server, or one more than ours.
                    let at = self.sent.iter().position(|sent| sent == bytes);
                    self.compared += usize::from(at.is_some());
                    self.sent.retain(|sent| sent != bytes);
                    return;
                }
                if !message.orderly && self.of.name.starts_with("f7") {
                    // It has waited for CONFIRM LINK.
                    self.pass_time();
                }
                self.group.end(now, message.orderly, message.reason);
            }
            _ => {}
        }
        self.drain();
        let mut wanted = bytes.to_vec();
        if wanted[0] == 0x22 && wanted.len() == 88 {
            wanted.copy_within(72..76, 76);
            let own = self.sent.iter().find(|sent| sent.len() == 88);
            wanted[80..88].copy_from_slice(&own.unwrap()[80..88]);
        }
        let at = self.sent.iter().position(|sent| *sent == wanted);
        let at = at.unwrap_or_else(|| {
            panic!(
                "{}: the kernel sent\n{wanted:02x?}\nand we\n{:02x?}",
                self.of.name, self.sent
            )
        });
        self.sent.remove(at);
        self.compared += 1;
    }

    fn pass_time(&mut self) {
        let due = self.group.poll_timeout().unwrap();
        assert!(due - self.now <= Duration::from_secs(30));
        self.now = due;
        self.group.handle_timeout(due);
    }

    fn drain(&mut self) {
        while let Some(output) = self.group.poll_output() {
            match output {
                LinkGroupOutput::Send { link, message, tag } => {
                    self.sent.push(message);
                    self.group.handle_completed(self.now, link, tag);
                }
                LinkGroupOutput::Open { link, .. } => {
                    let second = self.second.unwrap();
                    self.group.handle_opened(self.now, link, Ok(second));
                }
                LinkGroupOutput::FirstLink(Err(FirstLinkError::TimedOut)) => {
                    assert!(self.of.name.starts_with("f7"));
                }
                LinkGroupOutput::FirstLink(Err(error)) => panic!("{}: {error}", self.of.name),
                LinkGroupOutput::RkeyConfirmed { result, .. } => {
                    assert_eq!(result, Ok(()), "{}", self.of.name);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn a_server_of_ours_says_what_the_kernel_said() {
    replay_all(Role::Server, &[]);
}

#[test]
fn a_client_of_ours_says_what_the_kernel_said() {
    // There, some of what the server sent did not reach the client.
    let lost = ["f7-confirm-link-lost", "j2-test-link-unanswered"];
    replay_all(Role::Client, &lost);
}

fn replay_all(us: Role, except: &[&str]) {
    let all: Vec<_> = captures().iter().filter_map(Exchange::of).collect();
    let mut compared = 0;
    for exchange in &all {
        if !except.contains(&exchange.name) {
            compared += Replay::new(exchange, us).run(us);
        }
    }
    println!("{} link groups, {compared} messages", all.len());
    assert!(all.len() > 25 && compared > 150, "{} {compared}", all.len());
}

fn parsed(bytes: &[u8]) -> Message<'_> {
    Message::parse(bytes).unwrap()
}

/// DELETE LINK for all links.
fn is_all(bytes: &[u8]) -> bool {
    matches!(parsed(bytes), Message::DeleteLink(message) if message.all)
}

fn named(end: &RdmaEnd) -> PeerRmb {
    PeerRmb {
        rkey: end.rkey,
        addr: end.rmb_addr,
        index: end.rmbe_index,
        size: end.size,
        token: end.token,
        authentication: None,
    }
}

fn address(end: &RdmaEnd) -> LinkAddress {
    LinkAddress {
        gid: end.gid,
        mac: end.mac,
        qpn: end.qpn,
        psn: end.psn,
        mtu: end.mtu,
    }
}

fn end_of(offer: &AddLink<'_>) -> LinkAddress {
    LinkAddress {
        gid: offer.gid,
        mac: offer.mac,
        qpn: offer.qpn,
        psn: offer.psn,
        mtu: offer.mtu,
    }
}
