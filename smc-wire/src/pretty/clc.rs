//! CLC messages.

use core::mem::offset_of;

use super::dissector::Dissector;
use crate::clc::accept::{DirectV1, DirectV2, RdmaV2};
use crate::clc::extension::{
    AuthenticationRaw, EarlyDirectTail, EarlyRdmaTail, RESERVED_LEN, area, varint,
};
use crate::clc::first_contact::{GidListHead, fixed_len};
use crate::clc::header::{self, CONNECTION_TYPE, FIRST_CONTACT, last_byte};
use crate::clc::proposal::{AFTER_BASE, AFTER_DIRECT_OFFSET, AFTER_V2_OFFSET, SmcdAreaV1};
use crate::clc::{
    ClcType, Decline, DirectEnd, DirectExtension, ExtensionType, FirstContact, GidEntry,
    HEADER_LEN, Header, IpArea, Ipv6Prefix, Message, Proposal, RdmaEnd, SmcdArea, TRAILER_LEN,
    V2Extension,
};
use crate::layout::{Bits, Layout, Raw, Show};
use crate::types::features::VendorOptions;
use crate::types::{Eid, OfferedTypes, Release, RoceGid};

pub(super) fn dissect(w: &mut Dissector<'_, '_>) {
    let Some(header) = w.group("header", common_header) else {
        return w.verdict(Message::parse(w.bytes));
    };
    let trailer_at = header.length.saturating_sub(TRAILER_LEN).max(HEADER_LEN);
    w.limit(trailer_at);
    let count = Header::parse(w.bytes).map_or(0, |header| area::count(&header, w.bytes));
    let complete = match header.kind {
        Some(ClcType::Proposal) => proposal(w, &header, count),
        Some(ClcType::Accept | ClcType::Confirm) => accept_confirm(w, &header, count),
        Some(ClcType::Decline) => decline(w, &header).map(|()| 0),
        None => None,
    };
    // Those that are left when the regions have theirs.
    let complete = complete.and_then(|regions| {
        (regions..count.into()).try_for_each(|index| {
            let index = index.saturating_sub(regions);
            w.element(index).group("extensions", extension)
        })
    });
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
    w.verdict(Message::parse_extended(message.unwrap_or(bytes)));
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

/// Returns the number of headers that regions have if the message has extensions.
fn proposal(w: &mut Dissector<'_, '_>, header: &ClcHeaderFields, count: u16) -> Option<usize> {
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
        let area = w.group("smcd_area", |w| smcd_area(w, count))?;
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
        return Some(1);
    }
    let start = AFTER_V2_OFFSET.saturating_add(ext_offset);
    w.at = start;
    let (offset, entries) = w.group("v2_extension", |w| v2_extension(w, count))?;
    if v2.has_d() && offset != 0 {
        let base = start.saturating_add(AFTER_DIRECT_OFFSET);
        w.at = base.saturating_add(offset);
        w.group("smcd_v2_extension", |w| direct_extension(w, entries))?;
    }
    Some(3)
}

fn smcd_area<'a>(w: &mut Dissector<'a, '_>, count: u16) -> Option<&'a Raw<SmcdArea>> {
    let start = w.at;
    if !area::proposal_features(w.bytes).is_empty() {
        w.fields_until::<SmcdArea>(start, offset_of!(Raw<SmcdArea>, vendor_options))?;
        w.group("vendor_options", |w| {
            w.fields::<VendorOptions>()?;
            w.reserved("reserved_4", 1)
        })?;
    }
    if count > 0 {
        w.fields_until::<SmcdArea>(start, offset_of!(Raw<SmcdArea>, reserved_60))?;
        w.fields::<area::SmcdAreaEnd>()?;
    }
    w.fields_from::<SmcdArea>(start)
}

fn ip_area(w: &mut Dissector<'_, '_>) -> Option<()> {
    let count = w.fields::<IpArea>()?.ipv6_prefix_count;
    w.elements::<Ipv6Prefix>("ipv6_prefixes", count.into())
}

/// The v2 extension; returns the SMC-D v2 offset and the number of GID entries.
fn v2_extension(w: &mut Dissector<'_, '_>, count: u16) -> Option<(usize, usize)> {
    let start = w.at;
    if count > 0 {
        w.fields_until::<V2Extension>(start, offset_of!(Raw<V2Extension>, reserved_4))?;
        w.fields::<area::HeaderEnd>()?;
        w.fields_until::<V2Extension>(start, offset_of!(Raw<V2Extension>, reserved_28))?;
        w.fields::<area::V2ExtensionEnd>()?;
    }
    let extension = w.fields_from::<V2Extension>(start)?;
    w.values::<Eid>("ueids", extension.ueid_count.into())?;
    let offset = extension.smcd_v2_offset.get();
    Some((offset.into(), extension.gid_entry_count.into()))
}

fn direct_extension(w: &mut Dissector<'_, '_>, entries: usize) -> Option<()> {
    w.fields::<DirectExtension>()?;
    w.elements::<GidEntry>("gid_entries", entries)
}

/// Returns the number of headers that regions have if the message has extensions.
fn accept_confirm(
    w: &mut Dissector<'_, '_>,
    header: &ClcHeaderFields,
    count: u16,
) -> Option<usize> {
    let is_rdma = match header.flags & CONNECTION_TYPE.mask {
        0 => true,
        1 => false,
        _ => return w.raw("body", w.left()).map(|()| 0),
    };
    if !is_rdma && count > 0 {
        w.fields_until::<DirectEnd>(w.at, offset_of!(Raw<DirectEnd>, reserved_26))?;
        w.fields::<area::DirectEndReserved>()?;
    }
    match (is_rdma, header.v2) {
        (true, false) => return w.fields::<RdmaEnd>().map(|_| 0),
        (false, false) => {
            w.fields::<DirectEnd>()?;
            return w.fields::<DirectV1>().map(|_| 0);
        }
        (true, true) => {
            w.fields::<RdmaEnd>()?;
            let start = w.at;
            if count > 0 {
                w.fields_until::<RdmaV2>(start, offset_of!(RdmaV2, reserved_96))?;
                w.fields::<area::RdmaV2End>()?;
            }
            w.fields_from::<RdmaV2>(start)?;
        }
        (false, true) => {
            w.fields_from::<DirectEnd>(HEADER_LEN)?;
            w.fields::<DirectV2>()?;
        }
    }
    if !FIRST_CONTACT.is_set(header.flags) {
        return Some(0);
    }
    let has_list = is_rdma && header.kind == Some(ClcType::Confirm);
    w.group("first_contact_parts", |w| {
        first_contact(w, is_rdma, has_list, count)
    })?;
    if !has_list {
        return Some(1);
    }
    w.group("gid_list", |w| {
        let count = w.fields::<GidListHead>()?.gid_count;
        w.values::<RoceGid>("gids", count.into())
    })?;
    Some(2)
}

fn first_contact(
    w: &mut Dissector<'_, '_>,
    is_rdma: bool,
    has_list: bool,
    count: u16,
) -> Option<()> {
    let start = w.at;
    if !is_rdma {
        let taken = w.take("flags", 1)?;
        w.bits(taken, &[Bits::reserved("reserved_flags", 0xff)]);
    }
    let os_and_release = w.bytes.get(start.saturating_add(1)).copied();
    let release = Release::from_low_nibble(os_and_release.unwrap_or_default());
    if count > 0 {
        w.fields_until::<FirstContact>(start, offset_of!(Raw<FirstContact>, reserved_2))?;
        w.fields::<area::HeaderEnd>()?;
    }
    if !area::accept_features(w.bytes, is_rdma, true).is_empty() {
        w.fields_until::<FirstContact>(start, offset_of!(Raw<FirstContact>, vendor_options))?;
        w.group("vendor_options", Dissector::fields::<VendorOptions>)?;
    }
    if count > 0 && has_list {
        w.fields::<area::FirstContactEnd>()?;
    }
    w.fields_until::<FirstContact>(start, fixed_len(is_rdma, release))
}

fn extension(w: &mut Dissector<'_, '_>) -> Option<()> {
    w.reserved("reserved_0", RESERVED_LEN)?;
    let kind = integer(w, "type", &area::EXTENSION_TYPE)?;
    let len = integer(w, "length", &area::EXTENSION_LENGTH)?.into();
    match ExtensionType::new(kind) {
        ExtensionType::FEATURES if len == VendorOptions::LEN => {
            w.fields::<VendorOptions>().map(drop)
        }
        ExtensionType::EARLY_DIRECT if len == DirectEnd::LEN + EarlyDirectTail::LEN => {
            w.fields::<DirectEnd>()?;
            w.fields::<EarlyDirectTail>().map(drop)
        }
        ExtensionType::EARLY_RDMA if len == RdmaEnd::LEN + EarlyRdmaTail::LEN => {
            w.fields::<RdmaEnd>()?;
            w.fields::<EarlyRdmaTail>().map(drop)
        }
        ExtensionType::AUTHENTICATION if len == AuthenticationRaw::LEN => {
            w.fields::<AuthenticationRaw>().map(drop)
        }
        ExtensionType::PADDING => w.reserved("padding", len),
        _ => w.raw("payload", len),
    }
}

/// A variable-length integer in its form.
fn integer(w: &mut Dissector<'_, '_>, name: &'static str, show: &Show) -> Option<u16> {
    let is_long = w.bytes.get(w.at).is_some_and(|first| *first >= 0x80);
    let bytes = w.value(name, 1_usize.saturating_add(is_long.into()), show)?;
    varint::split(bytes).map(|(value, _)| value)
}

fn decline(w: &mut Dissector<'_, '_>, header: &ClcHeaderFields) -> Option<()> {
    w.fields::<Decline>()?;
    if header.length < Decline::LEN_V2 {
        return Some(());
    }
    w.values::<u32>("extra_diagnoses", 4)
}
