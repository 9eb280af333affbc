//! First-contact parts of version-2 ACCEPT and CONFIRM.

use zerocopy::FromBytes;
use zerocopy::network_endian::{U16, U32};

use super::accept::Step;
use crate::bounded::Bounded;
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::layout::Show::{self, Reserved};
use crate::layout::{Bits, DEC, Field, HEX, Layout, OS_BITS, layouts, release_bits};
use crate::types::{FeatureMask, HostName, OsType, Release, RoceGid};
use crate::writer::{Writer, invalid, wire_count};

/// RoCEv2 GIDs that a client can use for further links, the one of this link first.
pub type GidList = Bounded<RoceGid, 8>;

/// First-contact parts: what the two ends of a new link group announce to each other (v2 only).
///
/// See docs/spec/clc.md#first-contact-parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FirstContact {
    /// SMC-R: the sender reaches the peer's GID without a gateway. False for SMC-D.
    pub v2_direct: bool,
    /// Operating system of the sender.
    pub os: OsType,
    /// Negotiated release.
    pub release: Release,
    /// Host name of the sender.
    pub host: HostName,
    /// SMC-R from release 1 on: connections per link group. Zero otherwise.
    pub max_conns: u8,
    /// SMC-R from release 1 on: links per link group. Zero otherwise.
    pub max_links: u8,
    /// From release 1 on: abilities. Zero otherwise.
    pub features: FeatureMask,
    /// From release 1 on: vendor experimental options; Linux sends zero.
    pub vendor_options: u32,
    /// GID list, in an SMC-R CONFIRM only. Linux always sends one there, with one or two GIDs.
    pub gids: Option<GidList>,
}

impl FirstContact {
    /// Parts with only the fields that every release and both kinds of SMC have.
    #[must_use]
    pub const fn new(release: Release, os: OsType, host: HostName) -> Self {
        Self {
            v2_direct: false,
            os,
            release,
            host,
            max_conns: 0,
            max_links: 0,
            features: FeatureMask::empty(),
            vendor_options: 0,
            gids: None,
        }
    }

    /// Reads the parts at the start of `bytes`, which begin at `offset` of the message and end
    /// before its trailer.
    pub(super) fn read(
        message: MessageKind,
        is_rdma: bool,
        offset: usize,
        bytes: &[u8],
    ) -> Result<Self, DecodeError> {
        let limit = offset.saturating_add(bytes.len());
        let outside = |field, at: usize, len| {
            let kind = DecodeErrorKind::OutOfBounds {
                end: at.saturating_add(len),
                limit,
            };
            DecodeError::new(message, field, at, kind)
        };
        let short = |release| outside("first-contact parts", offset, fixed_len(is_rdma, release));
        let (head, mut rest) =
            FirstPart::ref_from_prefix(bytes).map_err(|_| short(Release::V2_0))?;
        let release = Release::from_low_nibble(head.os_and_release);
        let mut parts = Self {
            v2_direct: head.flags & V2_DIRECT.mask != 0,
            ..Self::new(
                release,
                OsType::from_high_nibble(head.os_and_release),
                head.host_name,
            )
        };
        if has_second_part(is_rdma, release) {
            let second;
            (second, rest) = SecondPart::ref_from_prefix(rest).map_err(|_| short(release))?;
            // SMC-R of release 0 has the bytes, but they are reserved.
            if release > Release::V2_0 {
                parts.max_conns = second.max_connections;
                parts.max_links = second.max_links;
                parts.features = FeatureMask::from_bits_retain(second.feature_mask.get());
                parts.vendor_options = second.vendor_options.get();
            }
        }
        // Linux servers never read the list: a CONFIRM that ends before it is fine.
        if !(is_rdma && message == MessageKind::Confirm) {
            return Ok(parts);
        }
        let Ok((list, rest)) = GidListHead::ref_from_prefix(rest) else {
            return Ok(parts);
        };
        let at = offset.saturating_add(fixed_len(is_rdma, release));
        let (max, got) = (GidList::CAPACITY, usize::from(list.gid_count));
        if got > max {
            let kind = DecodeErrorKind::TooMany { max, got };
            return Err(DecodeError::new(message, "GID count", at, kind));
        }
        let Ok((gids, _)) = <[RoceGid]>::ref_from_prefix_with_elems(rest, got) else {
            let at = at.saturating_add(GidListHead::LEN);
            return Err(outside(
                "GID list",
                at,
                got.saturating_mul(size_of::<RoceGid>()),
            ));
        };
        parts.gids = GidList::from_slice(gids);
        Ok(parts)
    }

    /// Length in bytes, GID list included.
    pub(super) fn encoded_len(&self, is_rdma: bool) -> usize {
        let gids = self.gids.as_ref().map_or(0, |gids| {
            GidListHead::LEN.saturating_add(gids.len().saturating_mul(size_of::<RoceGid>()))
        });
        fixed_len(is_rdma, self.release).saturating_add(gids)
    }

    /// Whether a message of this kind can carry these fields.
    pub(super) fn check(&self, step: Step, is_rdma: bool) -> Result<(), EmitError> {
        let fail = |field, reason| Err(invalid(step.kind(), field, reason));
        let late = self.max_conns != 0
            || self.max_links != 0
            || !self.features.is_empty()
            || self.vendor_options != 0;
        if self.release == Release::V2_0 && late {
            return fail("first-contact parts", "fields of v2.1 with release v2.0");
        }
        if self.gids.is_some() && !(is_rdma && step == Step::Confirm) {
            return fail("GID list", "only possible in an SMC-R CONFIRM");
        }
        Ok(())
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>, is_rdma: bool) -> Result<(), EmitError> {
        out.put(&FirstPart {
            flags: V2_DIRECT.when(self.v2_direct),
            os_and_release: self.os.code() << 4 | self.release.get(),
            reserved_2: [0; 2],
            host_name: self.host,
        })?;
        if has_second_part(is_rdma, self.release) {
            out.put(&SecondPart {
                max_connections: self.max_conns,
                max_links: self.max_links,
                feature_mask: self.features.bits().into(),
                vendor_options: self.vendor_options.into(),
                reserved_44: [0; 8],
            })?;
        }
        if let Some(gids) = &self.gids {
            out.put(&GidListHead {
                gid_count: wire_count(gids.len()),
                reserved_1: [0; 3],
            })?;
            out.put(gids.as_slice())?;
        }
        Ok(())
    }
}

layouts! {
    /// First-contact extension, the part that all releases have. SMC-D reserves all flags.
    pub(crate) struct FirstPart: 36 {
        flags: u8 => Show::Bits(&[
            V2_DIRECT,
            Bits::reserved("reserved_flags", !V2_DIRECT.mask),
        ]),
        os_and_release: u8 => Show::Bits(&[OS_BITS, release_bits(0x0f)]),
        reserved_2: [u8; 2] => Reserved,
        host_name: HostName => HostName::SHOW,
    }

    /// Second part of the first-contact extension; SMC-D of release 0 lacks it.
    pub(crate) struct SecondPart: 16 {
        max_connections: u8 => DEC,
        max_links: u8 => DEC,
        feature_mask: U16 => HEX,
        vendor_options: U32 => HEX,
        reserved_44: [u8; 8] => Reserved,
    }

    /// Head of the GID list of an SMC-R CONFIRM; GIDs follow.
    pub(crate) struct GidListHead: 4 {
        gid_count: u8 => DEC,
        reserved_1: [u8; 3] => Reserved,
    }
}

/// The sender reaches the peer's GID without a gateway.
const V2_DIRECT: Bits = Bits::flag("v2_direct", 0x80);

/// SMC-D of release 0 ends after the host name.
fn has_second_part(is_rdma: bool, release: Release) -> bool {
    is_rdma || release > Release::V2_0
}

/// Length without GID list: 52 bytes, or 36 for SMC-D of release 0.
fn fixed_len(is_rdma: bool, release: Release) -> usize {
    if has_second_part(is_rdma, release) {
        FirstPart::LEN.saturating_add(SecondPart::LEN)
    } else {
        FirstPart::LEN
    }
}
