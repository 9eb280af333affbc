//! CLC messages.

use super::llc::mtu;
use super::walk::{Walker, be};
use super::{Problem, Value};
use crate::clc::{ClcType, Eyecatcher, HEADER_LEN, Message, TRAILER_LEN};
use crate::size::SizeCode;
use crate::types::{Chid, DeclineCode, Offer, OsType};

pub(super) fn walk(w: &mut Walker<'_, '_>) {
    let mut head = None;
    let _ = w.group("header", |w| {
        head = Some(header(w)?);
        Some(())
    });
    let Some(head) = head else {
        return w.verdict(Message::parse(w.bytes()));
    };
    let trailer_at = head.length.saturating_sub(TRAILER_LEN).max(HEADER_LEN);
    w.limit(trailer_at);
    let complete = match head.kind {
        Some(ClcType::Proposal) => proposal(w, &head),
        Some(ClcType::Accept | ClcType::Confirm) => accept_confirm(w, &head),
        Some(ClcType::Decline) => decline(w, &head),
        None => None,
    };
    if complete.is_some() {
        let unknown = w.left();
        let _ = w.note("no meaning known").raw("unknown_bytes", unknown);
    }
    let len = w.bytes().len();
    w.limit(len);
    let has_trailer = head.length >= HEADER_LEN.saturating_add(TRAILER_LEN);
    if has_trailer && (complete.is_some() || len >= head.length) {
        w.seek(trailer_at);
        let _ = eyecatcher(w, "trailer");
    }
    match w.bytes().get(..head.length) {
        Some(message) => {
            let excess = len.saturating_sub(head.length);
            if excess > 0 {
                w.problem(Problem::Excess {
                    offset: head.length,
                    len: excess,
                });
            }
            w.verdict(Message::parse(message));
        }
        None => w.verdict(Message::parse(w.bytes())),
    }
}

/// What the header decides about the body.
struct Head {
    kind: Option<ClcType>,
    length: usize,
    v2: bool,
    /// Low nibble of byte 7.
    flags: u8,
}

fn header(w: &mut Walker<'_, '_>) -> Option<Head> {
    eyecatcher(w, "eyecatcher")?;
    let mut kind = None;
    w.number::<1>("type", |value| {
        kind = u8::try_from(value).ok().and_then(ClcType::from_code);
        Value::Code {
            value,
            digits: 2,
            name: kind.map(|kind| kind.kind().name()),
        }
    })?;
    let length = usize::try_from(w.unsigned::<2>("length")?).ok()?;
    let [byte] = w.array("version_and_flags")?;
    let version = w.bits("version", byte, 0xF0, |version| {
        Value::Unsigned(version.into())
    });
    let v2 = version >= 2;
    match kind {
        Some(ClcType::Proposal) => {
            if v2 {
                w.bits("v2_type", byte, 0x0C, offer);
            } else {
                w.reserved_bits("reserved_flags", byte, 0x0C);
            }
            w.bits("v1_type", byte, 0x03, offer);
        }
        Some(ClcType::Accept | ClcType::Confirm) => {
            w.flag("first_contact", byte, 0x08);
            w.reserved_bits("reserved_flags", byte, 0x04);
            w.bits("connection_type", byte, 0x03, |code| Value::Code {
                value: code.into(),
                digits: 1,
                name: match code {
                    0 => Some("SMC-R"),
                    1 => Some("SMC-D"),
                    _ => None,
                },
            });
        }
        Some(ClcType::Decline) => {
            w.flag("out_of_sync", byte, 0x08);
            w.reserved_bits("reserved_flags", byte, 0x07);
        }
        None => {
            w.bits("flags", byte, 0x0F, |flags| Value::Hex {
                value: flags.into(),
                digits: 1,
            });
        }
    }
    Some(Head {
        kind,
        length,
        v2,
        flags: byte & 0x0F,
    })
}

fn eyecatcher(w: &mut Walker<'_, '_>, name: &'static str) -> Option<()> {
    w.with(name, |bytes: [u8; 4]| Value::Code {
        value: be(bytes),
        digits: 8,
        name: Eyecatcher::from_bytes(bytes).map(|eyecatcher| match eyecatcher {
            Eyecatcher::Smcr => "SMCR",
            Eyecatcher::Smcd => "SMCD",
        }),
    })
    .map(drop)
}

fn offer<'a>(code: u8) -> Value<'a> {
    let name = match Offer::from_low_bits(code) {
        Offer::R => "SMC-R",
        Offer::D => "SMC-D",
        Offer::Neither => "none",
        Offer::Both => "SMC-R and SMC-D",
    };
    Value::Code {
        value: code.into(),
        digits: 1,
        name: Some(name),
    }
}

/// End of the base, from which the IP area offset counts.
const AFTER_BASE: usize = 40;
/// End of the v2 extension offset, from which it counts.
const AFTER_V2_OFFSET: usize = 52;
/// End of the SMC-D v2 offset in the v2 extension, from which it counts.
const AFTER_DIRECT_OFFSET: usize = 8;

fn proposal(w: &mut Walker<'_, '_>, head: &Head) -> Option<()> {
    let v1 = Offer::from_low_bits(head.flags);
    let v2 = if head.v2 {
        Offer::from_low_bits(head.flags.wrapping_shr(2))
    } else {
        Offer::Neither
    };
    w.peer_id("peer_id")?;
    w.gid("gid")?;
    w.mac("mac")?;
    let ip_offset = usize::try_from(w.unsigned::<2>("ip_area_offset")?).ok()?;
    let mut ext_offset = 0;
    if head.v2 {
        w.group("smcd_area", |w| {
            w.hex::<8>("ism_gid")?;
            chid(w, "ism_chid")?;
            ext_offset = usize::try_from(w.unsigned::<2>("v2_extension_offset")?).ok()?;
            w.raw("vendor_oui", 3)?;
            w.raw("vendor_options", 5)?;
            w.reserved("reserved_60", 20)
        })?;
    } else if ip_offset == AFTER_BASE {
        w.group("smcd_area", |w| {
            w.hex::<8>("ism_gid")?;
            w.reserved("reserved_48", 32)
        })?;
    } else {
        w.raw("unknown_area", ip_offset)?;
    }
    if !v1.is_neither() || !head.v2 {
        w.seek(AFTER_BASE.saturating_add(ip_offset));
        w.group("ip_area", ip_area)?;
    }
    if v2.is_neither() || ext_offset == 0 {
        return Some(());
    }
    let start = AFTER_V2_OFFSET.saturating_add(ext_offset);
    w.seek(start);
    let mut direct = None;
    w.group("v2_extension", |w| {
        direct = Some(v2_extension(w)?);
        Some(())
    })?;
    match direct {
        Some((offset, entries)) if v2.has_d() && offset > 0 => {
            w.seek(
                start
                    .saturating_add(AFTER_DIRECT_OFFSET)
                    .saturating_add(offset),
            );
            w.group("smcd_v2_extension", |w| direct_extension(w, entries))
        }
        _ => Some(()),
    }
}

fn ip_area(w: &mut Walker<'_, '_>) -> Option<()> {
    w.ipv4("ipv4_subnet")?;
    w.unsigned::<1>("ipv4_prefix_length")?;
    w.reserved("reserved_5", 2)?;
    let count = usize::try_from(w.unsigned::<1>("ipv6_prefix_count")?).ok()?;
    for index in 0..count {
        w.element(index).group("ipv6_prefixes", |w| {
            w.ipv6("prefix")?;
            w.unsigned::<1>("prefix_length").map(drop)
        })?;
    }
    Some(())
}

/// The v2 extension; returns the SMC-D v2 offset and the number of GID entries.
fn v2_extension(w: &mut Walker<'_, '_>) -> Option<(usize, usize)> {
    let ueids = usize::try_from(w.unsigned::<1>("ueid_count")?).ok()?;
    let entries = usize::try_from(w.unsigned::<1>("gid_entry_count")?).ok()?;
    w.reserved("reserved_2", 1)?;
    let [byte] = w.array("release_and_seid")?;
    w.bits("release", byte, 0xF0, |release| {
        Value::Unsigned(release.into())
    });
    w.reserved_bits("reserved_3", byte, 0x0E);
    w.flag("seid_present", byte, 0x01);
    w.reserved("reserved_4", 2)?;
    let offset = usize::try_from(w.unsigned::<2>("smcd_v2_offset")?).ok()?;
    w.gid("rocev2_gid")?;
    w.unsigned::<1>("max_connections")?;
    w.unsigned::<1>("max_links")?;
    w.hex::<2>("feature_mask")?;
    w.reserved("reserved_28", 12)?;
    for index in 0..ueids {
        w.element(index).eid("ueids")?;
    }
    Some((offset, entries))
}

fn direct_extension(w: &mut Walker<'_, '_>, entries: usize) -> Option<()> {
    w.eid("seid")?;
    w.reserved("reserved_32", 16)?;
    for index in 0..entries {
        w.element(index).group("gid_entries", |w| {
            w.hex::<8>("gid")?;
            chid(w, "chid")
        })?;
    }
    Some(())
}

fn chid(w: &mut Walker<'_, '_>, name: &'static str) -> Option<()> {
    w.with(name, |bytes: [u8; 2]| {
        let chid = Chid(u16::from_be_bytes(bytes));
        let name = match chid {
            Chid::NONE => Some("none"),
            Chid::LOOPBACK => Some("loopback"),
            _ if chid.is_emulated() => Some("emulated"),
            _ => None,
        };
        Value::Code {
            value: chid.0.into(),
            digits: 4,
            name,
        }
    })
    .map(drop)
}

fn accept_confirm(w: &mut Walker<'_, '_>, head: &Head) -> Option<()> {
    let is_rdma = match head.flags & 0x03 {
        0 => true,
        1 => false,
        _ => return w.raw("body", w.left()),
    };
    if is_rdma {
        rdma_end(w)?
    } else {
        direct_end(w)?
    }
    match (is_rdma, head.v2) {
        (true, false) => return Some(()),
        (false, false) => return w.reserved("reserved_32", 12),
        (true, true) => {
            w.eid("eid")?;
            w.reserved("reserved_96", 8)?;
        }
        (false, true) => {
            chid(w, "chid")?;
            w.eid("eid")?;
            w.hex::<8>("extended_gid")?;
        }
    }
    if head.flags & 0x08 == 0 {
        return Some(());
    }
    w.group("first_contact_parts", |w| first_contact(w, is_rdma))?;
    if is_rdma && head.kind == Some(ClcType::Confirm) {
        w.group("gid_list", |w| {
            let count = usize::try_from(w.unsigned::<1>("gid_count")?).ok()?;
            w.reserved("reserved_1", 3)?;
            (0..count).try_for_each(|index| w.element(index).gid("gids").map(drop))
        })?;
    }
    Some(())
}

fn rdma_end(w: &mut Walker<'_, '_>) -> Option<()> {
    w.peer_id("peer_id")?;
    w.gid("gid")?;
    w.mac("mac")?;
    w.hex::<3>("qp_number")?;
    w.hex::<4>("rmb_rkey")?;
    w.unsigned::<1>("rmbe_index")?;
    w.hex::<4>("alert_token")?;
    let [byte] = w.array("rmbe_size")?;
    size(w, "rmbe_size", byte);
    mtu(w, byte);
    w.reserved("reserved_51", 1)?;
    w.hex::<8>("rmb_address")?;
    w.reserved("reserved_60", 1)?;
    w.hex::<3>("initial_psn").map(drop)
}

fn direct_end(w: &mut Walker<'_, '_>) -> Option<()> {
    w.hex::<8>("gid")?;
    w.hex::<8>("dmb_token")?;
    w.unsigned::<1>("dmbe_index")?;
    let [byte] = w.array("dmbe_size")?;
    size(w, "dmbe_size", byte);
    w.reserved_bits("reserved_25", byte, 0x0F);
    w.reserved("reserved_26", 2)?;
    w.hex::<4>("link_id").map(drop)
}

/// The size code in the high nibble of the byte just taken.
fn size(w: &mut Walker<'_, '_>, name: &'static str, byte: u8) {
    w.bits(name, byte, 0xF0, |code| Value::Size {
        code,
        bytes: SizeCode::from_high_nibble(byte).bytes().into(),
    });
}

fn first_contact(w: &mut Walker<'_, '_>, is_rdma: bool) -> Option<()> {
    let [byte] = w.array("flags")?;
    if is_rdma {
        w.flag("v2_direct", byte, 0x80);
        w.reserved_bits("reserved_flags", byte, 0x7F);
    } else {
        w.reserved_bits("reserved_flags", byte, 0xFF);
    }
    let [byte] = w.array("os_and_release")?;
    os_type(w, byte);
    let release = w.bits("release", byte, 0x0F, |release| {
        Value::Unsigned(release.into())
    });
    w.reserved("reserved_2", 2)?;
    w.text("host_name", 32)?;
    if !is_rdma && release == 0 {
        return Some(());
    }
    w.unsigned::<1>("max_connections")?;
    w.unsigned::<1>("max_links")?;
    w.hex::<2>("feature_mask")?;
    w.hex::<4>("vendor_options")?;
    w.reserved("reserved_44", 8)
}

/// The OS type in the high nibble of the byte just taken.
fn os_type(w: &mut Walker<'_, '_>, byte: u8) {
    w.bits("os_type", byte, 0xF0, |code| Value::Code {
        value: code.into(),
        digits: 1,
        name: OsType::from_high_nibble(byte).name(),
    });
}

fn decline(w: &mut Walker<'_, '_>, head: &Head) -> Option<()> {
    const WITH_EXTRA: usize = 44;
    w.peer_id("peer_id")?;
    w.number::<4>("diagnosis", |value| Value::Code {
        value,
        digits: 8,
        name: u32::try_from(value)
            .ok()
            .and_then(|code| DeclineCode(code).name()),
    })?;
    let [byte] = w.array("os_type")?;
    os_type(w, byte);
    w.reserved_bits("reserved_20", byte, 0x0F);
    w.reserved("reserved_21", 3)?;
    if head.length < WITH_EXTRA {
        return Some(());
    }
    (0..4).try_for_each(|index| w.element(index).hex::<4>("extra_diagnoses").map(drop))
}
