//! Reading a PROPOSAL.

use core::mem::offset_of;

use super::regions::{Regions, bad_value, check_count};
use super::{
    AFTER_BASE, AFTER_DIRECT_OFFSET, AFTER_V2_OFFSET, DIRECT_OFFSET, DirectExtension, GidEntry,
    IpArea, Ipv6Prefix, MAX_ITEMS, Proposal, SEID_PRESENT, SmcdArea, V2_OFFSET, V2Extension,
};
use crate::bounded::Bounded;
use crate::clc::frame;
use crate::clc::header::{ClcType, HEADER_LEN, Header, LAST_AT, check_trailer};
use crate::error::{DecodeError, MessageKind};
use crate::layout::{Layout, Raw};
use crate::types::{Eid, OfferedTypes, Release};

/// The largest IP area offset: the SMC-D area and no more.
const MAX_IP_AREA_OFFSET: usize = SmcdArea::LEN;
/// End of the SMC-D area.
const AFTER_SMCD_AREA: usize = AFTER_BASE + MAX_IP_AREA_OFFSET;
/// The largest v2 extension offset: an IP area with eight prefixes lies before.
const MAX_V2_OFFSET: usize = V2_OFFSET + IpArea::LEN + MAX_ITEMS * Ipv6Prefix::LEN;
/// The largest SMC-D v2 offset: eight UEIDs lie before.
const MAX_DIRECT_OFFSET: usize = DIRECT_OFFSET + MAX_ITEMS * Eid::LEN;
/// Where the offset fields are.
const IP_AREA_OFFSET_AT: usize = HEADER_LEN + offset_of!(Raw<Proposal>, ip_area_offset);
const V2_OFFSET_AT: usize = AFTER_BASE + offset_of!(Raw<SmcdArea>, v2_extension_offset);

impl Proposal {
    /// Reads a PROPOSAL that takes up all of `bytes`.
    ///
    /// Applies the length formulas of Linux exactly: the length has to be the sum of the regions
    /// that the type bits and counts announce. Beyond what Linux checks, every region has to end
    /// before the trailer. Regions may overlap, as they may for Linux. Nothing is checked that is a
    /// matter of negotiation rather than of form.
    ///
    /// [`emit`](Self::emit) gives the same bytes for what real stacks send. Reserved bits and what
    /// lies between or under the regions are not kept.
    ///
    /// # Errors
    ///
    /// A malformed header, another message, a length that disagrees with the contents, an offset
    /// or a count out of range, or a bad trailer. All of them end the handshake in Linux.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::read(&frame::exact_of(bytes, &[ClcType::Proposal])?, bytes, false)
    }

    /// With extensions the message may be longer than its regions.
    pub(in crate::clc) fn read(
        header: &Header,
        bytes: &[u8],
        has_extensions: bool,
    ) -> Result<Self, DecodeError> {
        let body = Regions::new(bytes, has_extensions);
        let (base, _) = body.at::<Raw<Self>>("base", HEADER_LEN)?;
        let ip_offset = usize::from(base.ip_area_offset.get());
        if ip_offset > MAX_IP_AREA_OFFSET {
            return Err(bad_ip_offset("at most 40", ip_offset));
        }
        let (version, v1) = (header.version, OfferedTypes::from_low_bits(header.flags));
        // In version 1 the bits are reserved.
        let v2 = match version.is_v2() {
            true => OfferedTypes::from_low_bits(header.flags >> 2),
            false => OfferedTypes::Neither,
        };
        let without_regions = Self::from_raw(base, version, v1, v2, None, None, None);
        let proposal = if version.is_v2() {
            without_regions.with_v2_regions(&body, ip_offset)?
        } else if v1.is_neither() {
            return Err(bad_value(
                "v1 type",
                LAST_AT,
                "an offer",
                header.flags.into(),
            ));
        } else {
            without_regions.with_v1_regions(&body, ip_offset)?
        };
        check_trailer(MessageKind::Proposal, bytes)?;
        Ok(proposal)
    }

    fn with_v1_regions(self, body: &Regions<'_>, ip_offset: usize) -> Result<Self, DecodeError> {
        let ip_start = AFTER_BASE.saturating_add(ip_offset);
        let count = body.prefix_count(ip_start)?;
        body.check_length(ip_start.saturating_add(IpArea::len_with(count)))?;
        let smcd = match ip_start {
            AFTER_SMCD_AREA => Some(SmcdArea::from_raw(body.at("SMC-D area", AFTER_BASE)?.0)),
            _ => None,
        };
        let ip = Some(IpArea::read(body, ip_start, count)?);
        Ok(Self { smcd, ip, ..self })
    }

    fn with_v2_regions(self, body: &Regions<'_>, ip_offset: usize) -> Result<Self, DecodeError> {
        let (v1, v2) = (self.v1, self.v2);
        let (smcd, _) = body.at::<Raw<SmcdArea>>("SMC-D area", AFTER_BASE)?;
        if v1.has_d() && ip_offset != MAX_IP_AREA_OFFSET {
            return Err(bad_ip_offset("40 with SMC-D", ip_offset));
        }
        let ip_start = AFTER_BASE.saturating_add(ip_offset);
        // Linux judges this byte even if nothing is offered in version 1 and no IP area exists.
        let prefix_count = body.prefix_count(ip_start)?;
        let mut length = AFTER_SMCD_AREA;
        if !v1.is_neither() {
            length = length.saturating_add(IpArea::len_with(prefix_count));
        }
        let head = match v2 {
            OfferedTypes::Neither => None,
            _ => Some(ExtensionHead::read(
                body,
                smcd.v2_extension_offset.get().into(),
                v2,
            )?),
        };
        length = length.saturating_add(head.map_or(0, |head| head.encoded_len(v2)));
        body.check_length(length)?;

        let ip = match v1 {
            OfferedTypes::Neither => None,
            _ => Some(IpArea::read(body, ip_start, prefix_count)?),
        };
        let ext = match head {
            Some(head) => Some(V2Extension::read(body, &head, v2)?),
            None => None,
        };
        let smcd = Some(SmcdArea::from_raw(smcd));
        Ok(Self {
            smcd,
            ip,
            ext,
            ..self
        })
    }
}

impl IpArea {
    fn read(body: &Regions<'_>, start: usize, count: usize) -> Result<Self, DecodeError> {
        let (raw, rest) = body.at::<Raw<Self>>("IP area", start)?;
        let prefixes = body.list::<Raw<Ipv6Prefix>>("IPv6 prefixes", rest, count)?;
        let prefixes = prefixes.iter().map(Ipv6Prefix::from_raw);
        Ok(Self::from_raw(raw, Bounded::from_iter_lossy(prefixes)))
    }
}

impl V2Extension {
    fn read(
        body: &Regions<'_>,
        ext: &ExtensionHead<'_>,
        v2: OfferedTypes,
    ) -> Result<Self, DecodeError> {
        let head = ext.raw;
        let ueids = body.list("UEIDs", ext.rest, head.ueid_count.into())?;
        let offset = usize::from(head.smcd_v2_offset.get());
        let direct = if v2.has_d() && (1..=MAX_DIRECT_OFFSET).contains(&offset) {
            let start = ext
                .start
                .saturating_add(AFTER_DIRECT_OFFSET)
                .saturating_add(offset);
            Some(DirectExtension::read(
                body,
                start,
                head.gid_entry_count.into(),
            )?)
        } else {
            None
        };
        let release = Release::from_high_nibble(head.release_and_seid);
        let has_seid = SEID_PRESENT.is_set(head.release_and_seid);
        let ueids = Bounded::from_iter_lossy(ueids.iter().copied());
        Ok(Self::from_raw(head, release, has_seid, ueids, direct))
    }
}

impl DirectExtension {
    fn read(body: &Regions<'_>, start: usize, count: usize) -> Result<Self, DecodeError> {
        let (raw, rest) = body.at::<Raw<Self>>("SMC-D v2 extension", start)?;
        let entries = body.list::<Raw<GidEntry>>("GID entries", rest, count)?;
        let entries = entries.iter().map(GidEntry::from_raw);
        Ok(Self::from_raw(raw, Bounded::from_iter_lossy(entries)))
    }
}

/// The head of the v2 extension, before its lists are known to be there.
#[derive(Clone, Copy)]
struct ExtensionHead<'a> {
    start: usize,
    raw: &'a Raw<V2Extension>,
    rest: &'a [u8],
}

impl<'a> ExtensionHead<'a> {
    fn read(body: &Regions<'a>, offset: usize, v2: OfferedTypes) -> Result<Self, DecodeError> {
        if !(1..=MAX_V2_OFFSET).contains(&offset) {
            let field = "v2 extension offset";
            return Err(bad_value(field, V2_OFFSET_AT, "1 to 172", offset));
        }
        let start = AFTER_V2_OFFSET.saturating_add(offset);
        let (raw, rest) = body.at::<Raw<V2Extension>>("v2 extension", start)?;
        check_count("UEID count", start, raw.ueid_count)?;
        if v2.has_d() {
            let at = start.saturating_add(offset_of!(Raw<V2Extension>, gid_entry_count));
            check_count("GID entry count", at, raw.gid_entry_count)?;
        }
        Ok(Self { start, raw, rest })
    }

    /// Bytes that the extension, and the SMC-D v2 extension with it, add to the message.
    fn encoded_len(&self, v2: OfferedTypes) -> usize {
        let entries = v2.has_d().then_some(self.raw.gid_entry_count.into());
        V2Extension::len_with(self.raw.ueid_count.into(), entries)
    }
}

fn bad_ip_offset(expected: &'static str, got: usize) -> DecodeError {
    bad_value("IP area offset", IP_AREA_OFFSET_AT, expected, got)
}
