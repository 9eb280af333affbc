//! The one-line form.

use core::fmt::{self, Display as _};

use super::value::HexBytes;
use super::{Family, Text};
use crate::cdc::{CdcD, CdcR};
use crate::clc::{self, AcceptConfirm, Authentication, Body, EarlyRdmaEnd, Extensions, Proposal};
use crate::llc::{
    self, AddLinkClass, Class, LinkRtoken, Message, RequestAddLinkClass, RkeyClass, Rtoken,
    WireRtoken,
};
use crate::option;
use crate::types::{Features, OfferedTypes, Rkey};
use crate::{DecodeError, DecodeErrorKind, MessageKind};

/// Shows the gist of a message in one line without a newline.
///
/// A message that a receiver would refuse shows its type, as far as that is known, its size, and
/// why it is refused.
#[must_use]
pub const fn line(family: Family, bytes: &[u8]) -> Text<'_> {
    Text::new(family, bytes, write)
}

fn write(f: &mut fmt::Formatter<'_>, family: Family, bytes: &[u8]) -> fmt::Result {
    let result = match family {
        Family::TcpOption => return tcp_option(f, bytes),
        Family::Clc => {
            clc::Message::parse_extended_prefix(bytes).map(|(message, extensions, rest)| {
                let len = bytes.len().saturating_sub(rest.len());
                match message {
                    clc::Message::Proposal(m) => proposal(f, &m, len)?,
                    clc::Message::Accept(m) | clc::Message::Confirm(m) => {
                        accept_confirm(f, &m, len)?;
                    }
                    clc::Message::Decline(m) => decline(f, &m, len)?,
                }
                write_extensions(f, &extensions)
            })
        }
        Family::Llc => Message::parse(bytes).map(|message| message.fmt(f)),
        Family::CdcR => CdcR::parse(bytes).map(|cdc| cdc.fmt(f)),
        Family::CdcD(order) => CdcD::parse(bytes, order).map(|cdc| cdc.fmt(f)),
    };
    result.unwrap_or_else(|error| malformed(f, family, bytes, error))
}

fn malformed(
    f: &mut fmt::Formatter<'_>,
    family: Family,
    bytes: &[u8],
    error: DecodeError,
) -> fmt::Result {
    let kind = match (family, bytes) {
        (Family::Clc, [_, _, _, _, kind, ..])
            if !matches!(error.kind, DecodeErrorKind::Eyecatcher { .. }) =>
        {
            clc::ClcType::from_code(*kind).map(clc::ClcType::kind)
        }
        (Family::Llc, [kind, ..]) => llc::MessageType::from_byte(*kind).map(llc::MessageType::kind),
        _ => None,
    };
    let name = kind.map_or_else(
        || match family {
            Family::TcpOption => MessageKind::TcpOption.name(),
            Family::Clc => "CLC",
            Family::Llc => "LLC",
            Family::CdcR | Family::CdcD(_) => "CDC",
        },
        MessageKind::name,
    );
    write!(f, "{name} malformed, {} bytes: {error}", bytes.len())
}

fn tcp_option(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    match option::find(bytes) {
        Some(found) => {
            write!(f, "TCP option SMCR at {}", found.offset)?;
            match found.extra() {
                [] => Ok(()),
                extra => write!(f, " extra {}", HexBytes(extra)),
            }
        }
        None => write!(f, "TCP options without SMC, {} bytes", bytes.len()),
    }
}

fn proposal(f: &mut fmt::Formatter<'_>, message: &Proposal, len: usize) -> fmt::Result {
    let Proposal {
        version,
        v1,
        v2,
        peer_id,
        gid,
        mac,
        smcd,
        ip,
        ext,
    } = message;
    match ext {
        Some(ext) => write!(f, "PROPOSAL {} len {len}", ext.release)?,
        None => write!(f, "PROPOSAL {version} len {len}")?,
    }
    let versions = |has: fn(OfferedTypes) -> bool| match (has(*v1), has(*v2)) {
        (false, false) => "-",
        (true, false) => "v1",
        (false, true) => "v2",
        (true, true) => "v1+v2",
    };
    let (d, r) = (versions(OfferedTypes::has_d), versions(OfferedTypes::has_r));
    write!(f, " D:{d} R:{r}")?;
    if let Some(ext) = ext {
        list(f, "eids", &ext.ueids)?;
        if let Some(seid) = message.seid() {
            write!(f, " seid {seid}")?;
        }
        if v2.has_r() {
            let (conns, links) = (ext.max_conns, ext.max_links);
            write!(f, " gid {} max-conns {conns} max-links {links}", ext.gid)?;
        }
        if let Some(direct) = &ext.direct {
            f.write_str(" devices [")?;
            separated(f, direct.devices(), |f, device| {
                write!(f, "{}@{}", device.gid, device.chid)
            })?;
            f.write_str("]")?;
        }
    }
    if v1.has_r() {
        write!(f, " v1-gid {gid} mac {mac}")?;
    }
    if let Some(smcd) = smcd.filter(|smcd| v1.has_d() || !smcd.chid.is_none()) {
        write!(f, " ism {}@{}", smcd.gid, smcd.chid)?;
    }
    if let Some(ip) = ip {
        if ip.prefixes.is_empty() {
            write!(f, " net {}/{}", ip.subnet, ip.prefix_len)?;
        } else {
            f.write_str(" nets [")?;
            separated(f, ip.prefixes.iter(), |f, net| {
                write!(f, "{}/{}", net.prefix, net.prefix_len)
            })?;
            f.write_str("]")?;
        }
    }
    if !peer_id.is_zero() {
        write!(f, " peer {peer_id}")?;
    }
    match smcd {
        Some(smcd) if version.is_v2() => write_features(f, smcd.vendor_features()),
        _ => Ok(()),
    }
}

fn accept_confirm(f: &mut fmt::Formatter<'_>, message: &AcceptConfirm, len: usize) -> fmt::Result {
    let (kind, parts) = (message.kind, message.first_contact());
    match parts {
        Some(parts) => write!(f, "{kind} {} len {len}", parts.release)?,
        None => write!(f, "{kind} {} len {len}", message.version())?,
    }
    let first = if message.is_first_contact() {
        " first-contact"
    } else {
        ""
    };
    match &message.body {
        Body::R(end) => {
            write!(f, " SMC-R{first} peer {} gid {}", end.peer_id, end.gid)?;
            write!(f, " mac {} qp {} psn {}", end.mac, end.qpn, end.psn)?;
            write!(f, " mtu {} rkey {}", end.mtu, end.rkey)?;
            write!(f, " rmb {}#{}", end.rmb_addr, end.rmbe_index)?;
            write!(f, " size {} token {}", end.size.bytes(), end.token)?;
        }
        Body::D(end) => {
            write!(f, " SMC-D{first} gid {} chid {}", end.gid, end.chid)?;
            write!(f, " dmb {}#{}", end.dmb, end.dmbe_index)?;
            write!(f, " size {} group {}", end.size.bytes(), end.group)?;
        }
    }
    if let Some(eid) = message.eid() {
        write!(f, " eid {eid}")?;
    }
    let Some(parts) = parts else {
        return Ok(());
    };
    write!(f, " os {} host \"{}\"", parts.os, parts.host)?;
    if message.body.is_rdma() {
        let direct = if parts.v2_direct { "" } else { " indirect" };
        let (conns, links) = (parts.max_conns, parts.max_links);
        write!(f, " max-conns {conns} max-links {links}{direct}")?;
    }
    if let Some(gids) = &parts.gids {
        list(f, "gids", gids)?;
    }
    write_features(f, parts.vendor_features())
}

fn write_features(f: &mut fmt::Formatter<'_>, features: Features) -> fmt::Result {
    match features.is_empty() {
        true => Ok(()),
        false => write!(f, " features [{features}]"),
    }
}

fn write_extensions(f: &mut fmt::Formatter<'_>, extensions: &Extensions<'_>) -> fmt::Result {
    let Extensions {
        features,
        direct,
        rdma,
        nonce,
        authentication,
        early_data,
    } = extensions;
    if let Some(features) = features {
        write!(f, " in-use [{features}]")?;
    }
    if let Some(end) = direct {
        write!(f, " early-dmb {}#{}", end.dmb, end.dmbe_index)?;
    }
    if let Some(EarlyRdmaEnd { end, link }) = rdma {
        write!(
            f,
            " early-rmb {}#{} link {link}",
            end.rmb_addr, end.rmbe_index
        )?;
    }
    if let Some(nonce) = nonce {
        write!(f, " nonce {nonce}")?;
    }
    if let Some(Authentication { number, code }) = authentication {
        write!(f, " authentication {number} {code}")?;
    }
    match early_data {
        Some(data) => write!(f, " early-data {}", data.len()),
        None => Ok(()),
    }
}

fn decline(f: &mut fmt::Formatter<'_>, message: &clc::Decline, len: usize) -> fmt::Result {
    let (version, diagnosis) = (message.version, message.diagnosis);
    write!(f, "DECLINE {version} len {len} {diagnosis}")?;
    if message.out_of_sync {
        f.write_str(" out-of-sync")?;
    }
    write!(f, " peer {}", message.peer_id)?;
    if message.version.is_v2() {
        write!(f, " os {}", message.os)?;
    }
    Ok(())
}

impl fmt::Display for Message<'_> {
    /// The line that [`line()`] shows for this message.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ConfirmLink(m) => {
                write!(f, "CONFIRM LINK {} {} link {}", m.dialect, m.class, m.link)?;
                write!(f, " qp {} gid {} mac {}", m.qpn, m.gid, m.mac)?;
                write!(f, " uid {} max-links {}", m.user_id, m.max_links)?;
                write!(f, " max-conns {}", m.max_connections)?;
                match m.authentication.is_zero() {
                    true => Ok(()),
                    false => f.write_str(" authenticated"),
                }
            }
            Self::AddLink(m) => {
                let class = match m.class {
                    AddLinkClass::Request => "request",
                    AddLinkClass::Accepted => "accepted",
                    AddLinkClass::Rejected(_) => "rejected",
                };
                write!(f, "ADD LINK {} {class} link {}", m.dialect, m.link)?;
                if let AddLinkClass::Rejected(reason) = m.class {
                    write!(f, " reason {reason}")?;
                }
                write!(f, " qp {} psn {} mtu {}", m.qpn, m.psn, m.mtu)?;
                write!(f, " gid {} mac {}", m.gid, m.mac)?;
                match m.extension {
                    Some(more) => {
                        write!(f, " rtokens {}/{}", more.rtokens.len(), more.stated_count)
                    }
                    None => Ok(()),
                }
            }
            Self::AddLinkCont(m) => {
                write!(f, "ADD LINK CONT v1 {}", m.class)?;
                write!(f, " link {} left {}", m.link, m.left)?;
                list(f, "rtokens", &m.rtokens)
            }
            Self::DeleteLink(m) => {
                write!(f, "DELETE LINK {} {}", m.dialect, m.class)?;
                if m.all {
                    f.write_str(" all")?;
                } else {
                    write!(f, " link {}", m.link)?;
                }
                let orderly = if m.orderly { " orderly" } else { "" };
                write!(f, "{orderly} reason {}", m.reason)
            }
            Self::RequestAddLink(m) => match &m.class {
                RequestAddLinkClass::Request { gids } => {
                    f.write_str("REQUEST ADD LINK v2 request")?;
                    list(f, "gids", gids)
                }
                RequestAddLinkClass::Response { rejected, reason } => {
                    let rejected = if *rejected { " rejected" } else { "" };
                    write!(f, "REQUEST ADD LINK v2 response{rejected} reason {reason}")
                }
            },
            Self::ConfirmRkey(m) => {
                write!(f, "CONFIRM RKEY {} {}", m.dialect, rkey_class(m.class))?;
                write!(f, " rkey {} addr {}", m.rkey, m.address)?;
                write!(f, " further-links {}", m.further_links)
            }
            Self::ConfirmRkeyCont(m) => {
                let (class, left) = (rkey_class(m.class), m.left);
                write!(f, "CONFIRM RKEY CONT v1 {class} left {left}")?;
                list(f, "rtokens", &m.rtokens)
            }
            Self::TestLink(m) => {
                let data = HexBytes(&m.user_data);
                write!(f, "TEST LINK {} {} data {data}", m.dialect, m.class)
            }
            Self::DeleteRkey(m) => {
                write!(f, "DELETE RKEY {} {}", m.dialect, m.class)?;
                if m.class == Class::Response {
                    write!(f, " unknown {}", m.errors.count())?;
                }
                f.write_str(" rkeys [")?;
                separated(f, m.rkeys.iter(), |f, rkey| {
                    write!(f, "{}", Rkey::from(*rkey))
                })?;
                f.write_str("]")
            }
            Self::AnnounceCredits(m) => write!(f, "ANNOUNCE CREDITS v2 credits {}", m.credits),
            Self::Unknown(bytes) => {
                let kind = bytes.first().copied().unwrap_or_default();
                write!(f, "LLC type {kind:#04x}, {} bytes", bytes.len())
            }
        }
    }
}

impl fmt::Display for WireRtoken {
    /// The key on the present link, then key and address on the new one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = Rtoken::from(*self);
        write!(f, "{}:{}@{}", token.rkey, token.new_rkey, token.new_address)
    }
}

impl fmt::Display for LinkRtoken {
    /// The link, then key and address on it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}@{}", self.link, self.rkey, self.address)
    }
}

const fn rkey_class(class: RkeyClass) -> &'static str {
    match class {
        RkeyClass::Request => "request",
        RkeyClass::Accepted => "accepted",
        RkeyClass::Rejected { retry: false } => "rejected",
        RkeyClass::Rejected { retry: true } => "rejected, retry",
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, name: &str, items: &[T]) -> fmt::Result {
    write!(f, " {name} [")?;
    separated(f, items.iter(), |f, item| write!(f, "{item}"))?;
    f.write_str("]")
}

/// Items with a blank between them.
fn separated<T>(
    f: &mut fmt::Formatter<'_>,
    items: impl Iterator<Item = T>,
    write: impl Fn(&mut fmt::Formatter<'_>, T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.enumerate() {
        if index > 0 {
            f.write_str(" ")?;
        }
        write(f, item)?;
    }
    Ok(())
}
