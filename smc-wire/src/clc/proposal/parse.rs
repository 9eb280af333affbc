//! Reading a PROPOSAL.

use core::mem::offset_of;

use super::regions::{MAX_ITEMS, Regions, bad_value, check_count};
use super::{
    DIRECT_OFFSET, DirectExtension, GidEntry, IpArea, Ipv6Prefix, Proposal, SmcdArea, V2_OFFSET,
    V2Extension,
};
use crate::bounded::Bounded;
use crate::clc::frame;
use crate::clc::header::{ClcType, HEADER_LEN, Header, check_trailer};
use crate::clc::raw::{self, AFTER_BASE, AFTER_DIRECT_OFFSET, AFTER_V2_OFFSET};
use crate::error::{DecodeError, MessageKind};
use crate::types::{Chid, Eid, FeatureMask, IsmGid, Offer, Release};

/// The largest IP area offset: the SMC-D area and no more.
const MAX_IP_AREA_OFFSET: usize = size_of::<raw::SmcdArea>();
/// End of the SMC-D area.
const AFTER_SMCD_AREA: usize = AFTER_BASE + MAX_IP_AREA_OFFSET;
/// The largest v2 extension offset: an IP area with eight prefixes lies before.
const MAX_V2_OFFSET: usize =
    V2_OFFSET + size_of::<raw::IpArea>() + MAX_ITEMS * size_of::<raw::Ipv6Prefix>();
/// The largest SMC-D v2 offset: eight UEIDs lie before.
const MAX_DIRECT_OFFSET: usize = DIRECT_OFFSET + MAX_ITEMS * Eid::LEN;
/// Where the offset fields are.
const IP_AREA_OFFSET_AT: usize = HEADER_LEN + offset_of!(raw::ProposalBase, ip_area_offset);
const V2_OFFSET_AT: usize = AFTER_BASE + offset_of!(raw::SmcdArea, v2_extension_offset);

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
        Self::read(&frame::exact_of(bytes, &[ClcType::Proposal])?, bytes)
    }

    pub(in crate::clc) fn read(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let body = Regions::new(bytes);
        let (base, _) = body.at::<raw::ProposalBase>("base", HEADER_LEN)?;
        let ip_offset = usize::from(base.ip_area_offset.get());
        if ip_offset > MAX_IP_AREA_OFFSET {
            return Err(bad_ip_offset("at most 40", ip_offset));
        }
        let without_regions = Self {
            version: header.version,
            v1: header.v1_offer(),
            v2: header.v2_offer(),
            peer_id: base.peer_id,
            gid: base.gid,
            mac: base.mac,
            smcd: None,
            ip: None,
            ext: None,
        };
        let proposal = if header.version.is_v2() {
            without_regions.with_v2_regions(&body, ip_offset)?
        } else if without_regions.v1.is_neither() {
            return Err(bad_value("v1 type", 7, "an offer", header.flags.into()));
        } else {
            without_regions.with_v1_regions(&body, ip_offset)?
        };
        check_trailer(MessageKind::Proposal, bytes)?;
        Ok(proposal)
    }

    fn with_v1_regions(self, body: &Regions<'_>, ip_offset: usize) -> Result<Self, DecodeError> {
        let ip_start = AFTER_BASE.saturating_add(ip_offset);
        let count = body.prefix_count(ip_start)?;
        body.check_length(ip_start.saturating_add(ip_len(count)))?;
        let smcd = match ip_start {
            AFTER_SMCD_AREA => Some(SmcdArea::from_raw(body.at("SMC-D area", AFTER_BASE)?.0)),
            _ => None,
        };
        let ip = Some(IpArea::read(body, ip_start, count)?);
        Ok(Self { smcd, ip, ..self })
    }

    fn with_v2_regions(self, body: &Regions<'_>, ip_offset: usize) -> Result<Self, DecodeError> {
        let (v1, v2) = (self.v1, self.v2);
        let (smcd, _) = body.at::<raw::SmcdArea>("SMC-D area", AFTER_BASE)?;
        if v1.has_d() && ip_offset != MAX_IP_AREA_OFFSET {
            return Err(bad_ip_offset("40 with SMC-D", ip_offset));
        }
        let ip_start = AFTER_BASE.saturating_add(ip_offset);
        // Linux judges this byte even if nothing is offered in version 1 and no IP area exists.
        let prefix_count = body.prefix_count(ip_start)?;
        let mut length = AFTER_SMCD_AREA;
        if !v1.is_neither() {
            length = length.saturating_add(ip_len(prefix_count));
        }
        let head = match v2 {
            Offer::Neither => None,
            _ => Some(ExtensionHead::read(
                body,
                smcd.v2_extension_offset.get().into(),
                v2,
            )?),
        };
        length = length.saturating_add(head.map_or(0, |head| head.encoded_len(v2)));
        body.check_length(length)?;

        let ip = match v1 {
            Offer::Neither => None,
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

impl SmcdArea {
    fn from_raw(raw: &raw::SmcdArea) -> Self {
        Self {
            gid: IsmGid(raw.ism_gid.get()),
            chid: Chid(raw.ism_chid.get()),
            vendor_oui: raw.vendor_oui,
            vendor_options: raw.vendor_options,
        }
    }
}

impl IpArea {
    fn read(body: &Regions<'_>, start: usize, count: usize) -> Result<Self, DecodeError> {
        let (head, rest) = body.at::<raw::IpArea>("IP area", start)?;
        let prefixes = body.list::<raw::Ipv6Prefix>("IPv6 prefixes", rest, count)?;
        Ok(Self {
            subnet: head.ipv4_subnet.into(),
            prefix_len: head.ipv4_prefix_length,
            prefixes: Bounded::from_iter_lossy(prefixes.iter().map(|raw| Ipv6Prefix {
                prefix: raw.prefix.into(),
                prefix_len: raw.prefix_length,
            })),
        })
    }
}

impl V2Extension {
    fn read(body: &Regions<'_>, ext: &ExtensionHead<'_>, v2: Offer) -> Result<Self, DecodeError> {
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
        Ok(Self {
            release: Release::from_low_nibble(head.release_and_seid >> 4),
            has_seid: head.release_and_seid & raw::SEID_PRESENT != 0,
            gid: head.rocev2_gid,
            max_conns: head.max_connections,
            max_links: head.max_links,
            features: FeatureMask::from_bits_retain(head.feature_mask.get()),
            ueids: Bounded::from_iter_lossy(ueids.iter().copied()),
            direct,
        })
    }
}

impl DirectExtension {
    fn read(body: &Regions<'_>, start: usize, count: usize) -> Result<Self, DecodeError> {
        let (head, rest) = body.at::<raw::DirectExtension>("SMC-D v2 extension", start)?;
        let entries = body.list::<raw::GidEntry>("GID entries", rest, count)?;
        Ok(Self {
            seid: head.seid,
            entries: Bounded::from_iter_lossy(entries.iter().map(|raw| GidEntry {
                gid: IsmGid(raw.gid.get()),
                chid: Chid(raw.chid.get()),
            })),
        })
    }
}

/// The head of the v2 extension, before its lists are known to be there.
#[derive(Clone, Copy)]
struct ExtensionHead<'a> {
    start: usize,
    raw: &'a raw::V2Extension,
    rest: &'a [u8],
}

impl<'a> ExtensionHead<'a> {
    fn read(body: &Regions<'a>, offset: usize, v2: Offer) -> Result<Self, DecodeError> {
        if !(1..=MAX_V2_OFFSET).contains(&offset) {
            let field = "v2 extension offset";
            return Err(bad_value(field, V2_OFFSET_AT, "1 to 172", offset));
        }
        let start = AFTER_V2_OFFSET.saturating_add(offset);
        let (raw, rest) = body.at::<raw::V2Extension>("v2 extension", start)?;
        check_count("UEID count", start, raw.ueid_count)?;
        if v2.has_d() {
            let at = start.saturating_add(offset_of!(raw::V2Extension, gid_entry_count));
            check_count("GID entry count", at, raw.gid_entry_count)?;
        }
        Ok(Self { start, raw, rest })
    }

    /// Bytes that the extension, and the SMC-D v2 extension with it, add to the message.
    fn encoded_len(&self, v2: Offer) -> usize {
        let ueids = usize::from(self.raw.ueid_count).saturating_mul(Eid::LEN);
        let direct = if v2.has_d() {
            usize::from(self.raw.gid_entry_count)
                .saturating_mul(size_of::<raw::GidEntry>())
                .saturating_add(size_of::<raw::DirectExtension>())
        } else {
            0
        };
        size_of::<raw::V2Extension>()
            .saturating_add(ueids)
            .saturating_add(direct)
    }
}

fn ip_len(prefixes: usize) -> usize {
    prefixes
        .saturating_mul(size_of::<raw::Ipv6Prefix>())
        .saturating_add(size_of::<raw::IpArea>())
}

fn bad_ip_offset(expected: &'static str, got: usize) -> DecodeError {
    bad_value("IP area offset", IP_AREA_OFFSET_AT, expected, got)
}
