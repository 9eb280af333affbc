//! First-contact parts of version-2 ACCEPT and CONFIRM.

use core::mem::offset_of;

use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::accept::AcceptKind;
use crate::bounded::Bounded;
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::layout::Show::{self, Reserved};
use crate::layout::{Bits, DEC, Layout, OS_BITS, Raw, layouts, part, release_bits};
use crate::types::{FeatureMask, Features, HostName, OsType, Release, RoceGid};
use crate::writer::{Writer, invalid, wire_count};

/// RoCEv2 GIDs that a client can use for further links, the one of this link first.
pub type GidList = Bounded<RoceGid, 8>;

part! {
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
    }
    52 bytes {
        given flags: u8 => FLAGS,
        given os_and_release: u8 => OS_AND_RELEASE,
        zero reserved_2: [u8; 2],
        /// Host name of the sender.
        pub host as "host_name": HostName,
        /// SMC-R from release 1 on: connections per link group. Zero otherwise.
        pub max_conns as "max_connections": u8,
        /// SMC-R from release 1 on: links per link group. Zero otherwise.
        pub max_links: u8,
        /// From release 1 on: abilities. Zero otherwise.
        pub features as "feature_mask": FeatureMask,
        /// From release 1 on: vendor experimental options; Linux sends zero.
        pub vendor_options: u32,
        zero reserved_44: [u8; 8],
    }
    then {
        /// GID list, in an SMC-R CONFIRM only. Linux always sends one there, with one or two GIDs.
        pub gids: Option<GidList>,
    }
}

/// SMC-D reserves all flags.
const FLAGS: Show = Show::Bits(&[V2_DIRECT, Bits::reserved("reserved_flags", !V2_DIRECT.mask)]);
const V2_DIRECT: Bits = Bits::flag("v2_direct", 0x80);
const OS_AND_RELEASE: Show = Show::Bits(&[OS_BITS, release_bits(0x0f)]);

/// Length of what release 0 has.
const V2_0_LEN: usize = offset_of!(Raw<FirstContact>, max_conns);

layouts! {
    /// Head of the GID list of an SMC-R CONFIRM; GIDs follow.
    pub(crate) struct GidListHead: 4 {
        gid_count: u8 => DEC,
        reserved_1: [u8; 3] => Reserved,
    }
}

impl FirstContact {
    /// Length of the longest form in bytes.
    pub(super) const MAX_LEN: usize =
        Self::LEN + GidListHead::LEN + GidList::CAPACITY * size_of::<RoceGid>();

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

    /// The features in the vendor options (docs/spec/extensions.md#features). None if the options
    /// are zero or of another vendor.
    #[must_use]
    pub const fn vendor_features(&self) -> Features {
        Features::from_vendor_options(self.vendor_options)
    }

    /// The same parts with vendor options that state these features; zero if there are none.
    #[must_use]
    pub const fn with_vendor_features(self, features: Features) -> Self {
        Self {
            vendor_options: features.to_vendor_options(),
            ..self
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
        let Some(&[flags, os_and_release, ..]) = bytes.first_chunk::<V2_0_LEN>() else {
            return Err(short(Release::V2_0));
        };
        let release = Release::from_low_nibble(os_and_release);
        let Some((fixed, rest)) = bytes.split_at_checked(fixed_len(is_rdma, release)) else {
            return Err(short(release));
        };
        let mut raw = Raw::<Self>::new_zeroed();
        let bytes_of_release = match release {
            // SMC-R has the other bytes too, but they are reserved.
            Release::V2_0 => V2_0_LEN,
            _ => Self::LEN,
        };
        let from = fixed.iter().take(bytes_of_release);
        for (to, from) in raw.as_mut_bytes().iter_mut().zip(from) {
            *to = *from;
        }
        let os = OsType::from_high_nibble(os_and_release);
        let mut parts = Self::from_raw(&raw, V2_DIRECT.is_set(flags), os, release, None);
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
    pub(super) fn check(&self, kind: AcceptKind, is_rdma: bool) -> Result<(), EmitError> {
        let fail = |field, reason| Err(invalid(kind.message_kind(), field, reason));
        let late = self.max_conns != 0
            || self.max_links != 0
            || !self.features.is_empty()
            || self.vendor_options != 0;
        if self.release == Release::V2_0 && late {
            return fail("first-contact parts", "fields of v2.1 with release v2.0");
        }
        if self.gids.is_some() && !(is_rdma && kind == AcceptKind::Confirm) {
            return fail("GID list", "only possible in an SMC-R CONFIRM");
        }
        Ok(())
    }

    pub(super) fn emit(&self, out: &mut Writer<'_>, is_rdma: bool) -> Result<(), EmitError> {
        let os_and_release = self.os.code() << 4 | self.release.get();
        let raw = self.raw(V2_DIRECT.when(self.v2_direct), os_and_release);
        let len = fixed_len(is_rdma, self.release);
        out.put(raw.as_bytes().get(..len).unwrap_or_default())?;
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

/// Length without GID list: 52 bytes, or 36 for SMC-D of release 0.
pub(crate) fn fixed_len(is_rdma: bool, release: Release) -> usize {
    if is_rdma || release > Release::V2_0 {
        FirstContact::LEN
    } else {
        V2_0_LEN
    }
}
