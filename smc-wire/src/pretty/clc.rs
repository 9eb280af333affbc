//! CLC messages.

use super::Problem;
use super::dissector::Dissector;
use crate::clc::accept::{DirectV1, DirectV2, RdmaV2};
use crate::clc::first_contact::{FirstPart, GidListHead, SecondPart};
use crate::clc::header::{self, CONNECTION_TYPE, FIRST_CONTACT, last_byte};
use crate::clc::proposal::{AFTER_BASE, AFTER_DIRECT_OFFSET, AFTER_V2_OFFSET, SmcdAreaV1};
use crate::clc::{
    ClcType, Decline, DirectEnd, DirectExtension, GidEntry, HEADER_LEN, IpArea, Ipv6Prefix,
    Message, Proposal, RdmaEnd, SmcdArea, TRAILER_LEN, V2Extension,
};
use crate::layout::{Bits, Layout};
use crate::types::{Eid, Offer, Release, RoceGid};

pub(super) fn dissect(w: &mut Dissector<'_, '_>) {
    let mut head = None;
    let _ = w.group("header", |w| {
        head = Some(common_header(w)?);
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
        let _ = w.fields::<header::Trailer>();
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

fn common_header(w: &mut Dissector<'_, '_>) -> Option<Head> {
    let raw = w.fields::<header::Head>()?;
    let kind = ClcType::from_code(raw.kind);
    let byte = w.byte("version_and_flags")?;
    let v2 = byte >> 4 >= 2;
    w.all_bits(byte, last_byte(kind, v2));
    Some(Head {
        kind,
        length: raw.length.get().into(),
        v2,
        flags: byte & 0x0f,
    })
}

fn proposal(w: &mut Dissector<'_, '_>, head: &Head) -> Option<()> {
    let v1 = Offer::from_low_bits(head.flags);
    let v2 = if head.v2 {
        Offer::from_low_bits(head.flags.wrapping_shr(2))
    } else {
        Offer::Neither
    };
    let base = w.fields::<Proposal>()?;
    let ip_offset = usize::from(base.ip_area_offset.get());
    let mut ext_offset = 0;
    if head.v2 {
        w.group("smcd_area", |w| {
            let area = w.fields::<SmcdArea>()?;
            ext_offset = usize::from(area.v2_extension_offset.get());
            Some(())
        })?;
    } else if ip_offset == SmcdAreaV1::LEN {
        w.group("smcd_area", |w| w.fields::<SmcdAreaV1>().map(drop))?;
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

fn accept_confirm(w: &mut Dissector<'_, '_>, head: &Head) -> Option<()> {
    let is_rdma = match head.flags & CONNECTION_TYPE.mask {
        0 => true,
        1 => false,
        _ => return w.raw("body", w.left()),
    };
    match (is_rdma, head.v2) {
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
    if head.flags & FIRST_CONTACT.mask == 0 {
        return Some(());
    }
    w.group("first_contact_parts", |w| first_contact(w, is_rdma))?;
    if is_rdma && head.kind == Some(ClcType::Confirm) {
        w.group("gid_list", |w| {
            let count = w.fields::<GidListHead>()?.gid_count;
            w.values::<RoceGid>("gids", count.into())
        })?;
    }
    Some(())
}

fn first_contact(w: &mut Dissector<'_, '_>, is_rdma: bool) -> Option<()> {
    let start = w.at();
    if !is_rdma {
        let flags = w.byte("flags")?;
        w.all_bits(flags, &[Bits::reserved("reserved_flags", 0xff)]);
    }
    let parts = w.fields_from::<FirstPart>(start)?;
    if !is_rdma && Release::from_low_nibble(parts.os_and_release) == Release::V2_0 {
        return Some(());
    }
    w.fields::<SecondPart>().map(drop)
}

fn decline(w: &mut Dissector<'_, '_>, head: &Head) -> Option<()> {
    w.fields::<Decline>()?;
    if head.length < Decline::LEN_V2 {
        return Some(());
    }
    w.values::<u32>("extra_diagnoses", 4)
}
