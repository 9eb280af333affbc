//! CLC messages.

use super::dissector::Dissector;
use crate::clc::accept::{DirectV1, DirectV2, RdmaV2};
use crate::clc::first_contact::{GidListHead, fixed_len};
use crate::clc::header::{self, CONNECTION_TYPE, FIRST_CONTACT, last_byte};
use crate::clc::proposal::{AFTER_BASE, AFTER_DIRECT_OFFSET, AFTER_V2_OFFSET, SmcdAreaV1};
use crate::clc::{
    ClcType, Decline, DirectEnd, DirectExtension, FirstContact, GidEntry, HEADER_LEN, IpArea,
    Ipv6Prefix, Message, Proposal, RdmaEnd, SmcdArea, TRAILER_LEN, V2Extension,
};
use crate::layout::{Bits, Layout};
use crate::types::{Eid, OfferedTypes, Release, RoceGid};

pub(super) fn dissect(w: &mut Dissector<'_, '_>) {
    let Some(header) = w.group("header", common_header) else {
        return w.verdict(Message::parse(w.bytes));
    };
    let trailer_at = header.length.saturating_sub(TRAILER_LEN).max(HEADER_LEN);
    w.limit(trailer_at);
    let complete = match header.kind {
        Some(ClcType::Proposal) => proposal(w, &header),
        Some(ClcType::Accept | ClcType::Confirm) => accept_confirm(w, &header),
        Some(ClcType::Decline) => decline(w, &header),
        None => None,
    };
    if complete.is_some() {
        let unknown = w.left();
        let _ = w.note("no meaning known").raw("unknown_bytes", unknown);
    }
    let len = w.bytes.len();
    w.limit(len);
    let has_trailer = header.length >= HEADER_LEN.saturating_add(TRAILER_LEN);
    if has_trailer && (complete.is_some() || len >= header.length) {
        w.at = trailer_at;
        let _ = w.fields::<header::Trailer>();
    }
    let bytes = w.bytes;
    let message = bytes.get(..header.length);
    if message.is_some() {
        w.at = header.length;
        w.excess();
    }
    w.verdict(Message::parse(message.unwrap_or(bytes)));
}

/// What the header decides about the body.
struct ClcHeaderFields {
    kind: Option<ClcType>,
    length: usize,
    v2: bool,
    /// Low nibble of byte 7.
    flags: u8,
}

fn common_header(w: &mut Dissector<'_, '_>) -> Option<ClcHeaderFields> {
    let raw = w.fields::<header::HeaderStart>()?;
    let kind = ClcType::from_code(raw.kind);
    let taken = w.take("version_and_flags", 1)?;
    let v2 = taken.first()? >> 4 >= 2;
    let byte = w.bits(taken, last_byte(kind, v2))?;
    Some(ClcHeaderFields {
        kind,
        length: raw.length.get().into(),
        v2,
        flags: byte & 0x0f,
    })
}

fn proposal(w: &mut Dissector<'_, '_>, header: &ClcHeaderFields) -> Option<()> {
    let v1 = OfferedTypes::from_low_bits(header.flags);
    let v2 = if header.v2 {
        OfferedTypes::from_low_bits(header.flags.wrapping_shr(2))
    } else {
        OfferedTypes::Neither
    };
    let base = w.fields::<Proposal>()?;
    let ip_offset = usize::from(base.ip_area_offset.get());
    let mut ext_offset = 0;
    if header.v2 {
        let area = w.group("smcd_area", Dissector::fields::<SmcdArea>)?;
        ext_offset = usize::from(area.v2_extension_offset.get());
    } else if ip_offset == SmcdAreaV1::LEN {
        w.group("smcd_area", Dissector::fields::<SmcdAreaV1>)?;
    } else {
        w.raw("unknown_area", ip_offset)?;
    }
    if !v1.is_neither() || !header.v2 {
        w.at = AFTER_BASE.saturating_add(ip_offset);
        w.group("ip_area", ip_area)?;
    }
    if v2.is_neither() || ext_offset == 0 {
        return Some(());
    }
    let start = AFTER_V2_OFFSET.saturating_add(ext_offset);
    w.at = start;
    let (offset, entries) = w.group("v2_extension", v2_extension)?;
    if !v2.has_d() || offset == 0 {
        return Some(());
    }
    let base = start.saturating_add(AFTER_DIRECT_OFFSET);
    w.at = base.saturating_add(offset);
    w.group("smcd_v2_extension", |w| direct_extension(w, entries))
}

fn ip_area(w: &mut Dissector<'_, '_>) -> Option<()> {
    let count = w.fields::<IpArea>()?.ipv6_prefix_count;
    w.elements::<Ipv6Prefix>("ipv6_prefixes", count.into())
}

/// The v2 extension; returns the SMC-D v2 offset and the number of GID entries.
fn v2_extension(w: &mut Dissector<'_, '_>) -> Option<(usize, usize)> {
    let extension = w.fields::<V2Extension>()?;
    w.values::<Eid>("ueids", extension.ueid_count.into())?;
    let offset = extension.smcd_v2_offset.get();
    Some((offset.into(), extension.gid_entry_count.into()))
}

fn direct_extension(w: &mut Dissector<'_, '_>, entries: usize) -> Option<()> {
    w.fields::<DirectExtension>()?;
    w.elements::<GidEntry>("gid_entries", entries)
}

fn accept_confirm(w: &mut Dissector<'_, '_>, header: &ClcHeaderFields) -> Option<()> {
    let is_rdma = match header.flags & CONNECTION_TYPE.mask {
        0 => true,
        1 => false,
        _ => return w.raw("body", w.left()),
    };
    match (is_rdma, header.v2) {
        (true, false) => return w.fields::<RdmaEnd>().map(drop),
        (false, false) => {
            w.fields::<DirectEnd>()?;
            return w.fields::<DirectV1>().map(drop);
        }
        (true, true) => {
            w.fields::<RdmaEnd>()?;
            w.fields::<RdmaV2>()?;
        }
        (false, true) => {
            w.fields::<DirectEnd>()?;
            w.fields::<DirectV2>()?;
        }
    }
    if !FIRST_CONTACT.is_set(header.flags) {
        return Some(());
    }
    w.group("first_contact_parts", |w| first_contact(w, is_rdma))?;
    if is_rdma && header.kind == Some(ClcType::Confirm) {
        w.group("gid_list", |w| {
            let count = w.fields::<GidListHead>()?.gid_count;
            w.values::<RoceGid>("gids", count.into())
        })?;
    }
    Some(())
}

fn first_contact(w: &mut Dissector<'_, '_>, is_rdma: bool) -> Option<()> {
    let start = w.at;
    if !is_rdma {
        let taken = w.take("flags", 1)?;
        w.bits(taken, &[Bits::reserved("reserved_flags", 0xff)]);
    }
    let os_and_release = w.bytes.get(start.saturating_add(1)).copied();
    let release = Release::from_low_nibble(os_and_release.unwrap_or_default());
    w.fields_until::<FirstContact>(start, fixed_len(is_rdma, release))
}

fn decline(w: &mut Dissector<'_, '_>, header: &ClcHeaderFields) -> Option<()> {
    w.fields::<Decline>()?;
    if header.length < Decline::LEN_V2 {
        return Some(());
    }
    w.values::<u32>("extra_diagnoses", 4)
}
