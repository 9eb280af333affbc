//! The variable parts of a received PROPOSAL.

use core::net::Ipv4Addr;

use super::regions::{Regions, bad_value, check_count};
use super::repr::{DirectExtension, GidEntry, IpArea, Ipv6Prefix, V2Extension};
use crate::bounded::Bounded;
use crate::clc::{Device, Devices, raw};
use crate::error::DecodeError;
use crate::types::{Chid, Eid, FeatureMask, IsmGid, Offer, Release, RoceGid};

/// Base of the v2 extension offset.
const AFTER_V2_OFFSET: usize = 52;
/// Base of the SMC-D v2 offset within the v2 extension.
const AFTER_DIRECT_OFFSET: usize = 8;
/// The largest v2 extension offset: 28 and an IP area with eight prefixes.
const MAX_V2_OFFSET: usize = 172;
/// The largest SMC-D v2 offset: 32 and eight UEIDs.
const MAX_DIRECT_OFFSET: usize = 288;
/// Bit of the release byte: a SEID is present.
const SEID_FLAG: u8 = 0x01;

/// The IP area of a received PROPOSAL.
#[derive(Debug, Clone, Copy)]
pub struct IpAreaView<'a> {
    head: &'a raw::IpArea,
    prefixes: &'a [raw::Ipv6Prefix],
}

impl<'a> IpAreaView<'a> {
    pub(super) fn new(body: &Regions<'a>, start: usize, count: usize) -> Result<Self, DecodeError> {
        let (head, rest) = body.at("IP area", start)?;
        let prefixes = body.list("IPv6 prefixes", rest, count)?;
        Ok(Self { head, prefixes })
    }

    /// IPv4 network address, unspecified on IPv6 connections.
    #[must_use]
    pub fn subnet(&self) -> Ipv4Addr {
        self.head.subnet.into()
    }

    /// Significant bits of the network address. Not checked to be at most 32.
    #[must_use]
    pub const fn prefix_len(&self) -> u8 {
        self.head.prefix_len
    }

    /// The IPv6 prefixes, at most eight, none on IPv4 connections.
    pub fn prefixes(&self) -> impl ExactSizeIterator<Item = Ipv6Prefix> + Clone + use<'a> {
        self.prefixes.iter().map(|raw| Ipv6Prefix {
            prefix: raw.prefix.into(),
            prefix_len: raw.prefix_len,
        })
    }

    pub(super) fn to_repr(self) -> IpArea {
        IpArea {
            subnet: self.subnet(),
            prefix_len: self.prefix_len(),
            prefixes: Bounded::from_iter_lossy(self.prefixes()),
        }
    }
}

/// The v2 extension of a received PROPOSAL.
#[derive(Debug, Clone, Copy)]
pub struct V2ExtensionView<'a> {
    head: &'a raw::V2Extension,
    ueids: &'a [Eid],
    direct: Option<DirectExtensionView<'a>>,
}

impl<'a> V2ExtensionView<'a> {
    pub(super) fn new(
        body: &Regions<'a>,
        ext: &ExtensionHead<'a>,
        v2: Offer,
    ) -> Result<Self, DecodeError> {
        let head = ext.raw;
        let ueids = body.list("UEIDs", ext.rest, head.ueid_count.into())?;
        let offset = usize::from(head.direct_offset.get());
        let direct = if v2.has_d() && (1..=MAX_DIRECT_OFFSET).contains(&offset) {
            let start = ext
                .start
                .saturating_add(AFTER_DIRECT_OFFSET)
                .saturating_add(offset);
            let (direct, rest) = body.at("SMC-D v2 extension", start)?;
            let entries = body.list("GID entries", rest, head.gid_count.into())?;
            Some(DirectExtensionView {
                head: direct,
                entries,
            })
        } else {
            None
        };
        Ok(Self {
            head,
            ueids,
            direct,
        })
    }

    /// Highest release the client supports.
    #[must_use]
    pub const fn release(&self) -> Release {
        Release::from_low_nibble(self.head.release_seid >> 4)
    }

    /// The SEID flag.
    #[must_use]
    pub const fn has_seid(&self) -> bool {
        self.head.release_seid & SEID_FLAG != 0
    }

    /// The client's RoCEv2 GID, zero unless v2 SMC-R is offered.
    #[must_use]
    pub const fn gid(&self) -> RoceGid {
        self.head.gid
    }

    /// Connections per link group (v2.1, SMC-R).
    #[must_use]
    pub const fn max_conns(&self) -> u8 {
        self.head.max_conns
    }

    /// Links per link group (v2.1, SMC-R).
    #[must_use]
    pub const fn max_links(&self) -> u8 {
        self.head.max_links
    }

    /// Abilities of the client (v2.1).
    #[must_use]
    pub fn features(&self) -> FeatureMask {
        FeatureMask::from_bits_retain(self.head.features.get())
    }

    /// The client's UEIDs, at most eight, most preferred first.
    #[must_use]
    pub const fn ueids(&self) -> &'a [Eid] {
        self.ueids
    }

    /// Offset field of the SMC-D v2 extension, in bytes from offset 8 of this extension.
    #[must_use]
    pub const fn direct_offset(&self) -> u16 {
        self.head.direct_offset.get()
    }

    /// The SMC-D v2 extension.
    ///
    /// `None` if v2 SMC-D is not offered, or if it is and the offset is 0 or above 288. A server
    /// strikes v2 SMC-D from the offer in the latter case
    /// ([`NOV2DEXT`](crate::types::DeclineCode::NOV2DEXT)).
    #[must_use]
    pub const fn direct(&self) -> Option<DirectExtensionView<'a>> {
        self.direct
    }

    pub(super) fn to_repr(self) -> V2Extension {
        V2Extension {
            release: self.release(),
            has_seid: self.has_seid(),
            gid: self.gid(),
            max_conns: self.max_conns(),
            max_links: self.max_links(),
            features: self.features(),
            ueids: Bounded::from_iter_lossy(self.ueids.iter().copied()),
            direct: self.direct.map(|direct| direct.to_repr()),
        }
    }
}

/// The SMC-D v2 extension of a received PROPOSAL.
#[derive(Debug, Clone, Copy)]
pub struct DirectExtensionView<'a> {
    head: &'a raw::DirectExtension,
    entries: &'a [raw::GidEntry],
}

impl<'a> DirectExtensionView<'a> {
    /// SEID of the client's system; means nothing unless [`V2ExtensionView::has_seid`].
    #[must_use]
    pub const fn seid(&self) -> Eid {
        self.head.seid
    }

    /// The GID list as it is, at most eight entries.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = GidEntry> + Clone + use<'a> {
        self.entries.iter().map(|raw| GidEntry {
            gid: IsmGid(raw.gid.get()),
            chid: Chid(raw.chid.get()),
        })
    }

    /// The devices of the GID list, emulated ones put together from two entries.
    pub fn devices(&self) -> impl Iterator<Item = Device> + Clone + use<'a> {
        Devices::new(self.entries())
    }

    pub(super) fn to_repr(self) -> DirectExtension {
        DirectExtension {
            seid: self.seid(),
            entries: Bounded::from_iter_lossy(self.entries()),
        }
    }
}

/// The head of the v2 extension, before its lists are known to be there.
#[derive(Clone, Copy)]
pub(super) struct ExtensionHead<'a> {
    start: usize,
    raw: &'a raw::V2Extension,
    rest: &'a [u8],
}

impl<'a> ExtensionHead<'a> {
    pub(super) fn new(body: &Regions<'a>, offset: usize, v2: Offer) -> Result<Self, DecodeError> {
        if !(1..=MAX_V2_OFFSET).contains(&offset) {
            return Err(bad_value("v2 extension offset", 50, "1 to 172", offset));
        }
        let start = AFTER_V2_OFFSET.saturating_add(offset);
        let (raw, rest) = body.at::<raw::V2Extension>("v2 extension", start)?;
        check_count("UEID count", start, raw.ueid_count)?;
        if v2.has_d() {
            check_count("GID entry count", start.saturating_add(1), raw.gid_count)?;
        }
        Ok(Self { start, raw, rest })
    }

    /// Bytes that the extension, and the SMC-D v2 extension with it, add to the message.
    pub(super) fn encoded_len(&self, v2: Offer) -> usize {
        let ueids = usize::from(self.raw.ueid_count).saturating_mul(Eid::LEN);
        let direct = if v2.has_d() {
            usize::from(self.raw.gid_count)
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
