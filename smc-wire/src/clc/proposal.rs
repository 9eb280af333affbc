//! PROPOSAL: what a client offers.

mod parse;
mod regions;

use core::mem::offset_of;
use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::network_endian::{U16, U64};

use crate::bounded::Bounded;
use crate::clc::header::{ClcType, Eyecatcher, HEADER_LEN, TRAILER_LEN, start};
use crate::clc::{Extensions, OfferedDevice};
use crate::error::{EmitError, MessageKind};
use crate::layout::Show::{self, Reserved};
use crate::layout::{Bits, DEC, FieldType, Layout, Raw, layouts, part, release_bits};
use crate::types::{
    Chid, Eid, FeatureMask, Features, IsmGid, Mac, OfferedTypes, PeerId, Release, RoceGid, Version,
};
use crate::writer::{Writer, invalid, wire_count, wire_length};

/// End of the base of a PROPOSAL: start of the SMC-D area, and base of the IP area offset.
pub(crate) const AFTER_BASE: usize = HEADER_LEN + Proposal::LEN;
/// End of the v2 extension offset, from which it counts.
pub(crate) const AFTER_V2_OFFSET: usize = AFTER_BASE + offset_of!(Raw<SmcdArea>, vendor_oui);
/// End of the SMC-D v2 offset in the v2 extension, from which it counts.
pub(crate) const AFTER_DIRECT_OFFSET: usize = offset_of!(Raw<V2Extension>, gid);
/// The most prefixes, UEIDs and GID entries.
const MAX_ITEMS: usize = 8;
/// The smallest v2 extension offset: the rest of the SMC-D area lies before.
const V2_OFFSET: usize = AFTER_BASE + SmcdArea::LEN - AFTER_V2_OFFSET;
/// The smallest SMC-D v2 offset: the rest of the v2 extension lies before.
const DIRECT_OFFSET: usize = V2Extension::LEN - AFTER_DIRECT_OFFSET;

part! {
    /// PROPOSAL: a client states what it can do (docs/spec/clc.md#proposal; RFC 7609 appendix A.2).
    ///
    /// [`emit`](Self::emit) writes the canonical form: every region directly behind the one before,
    /// in the order of the fields, reserved bytes zero. That is what Linux sends and the only form
    /// all of its versions accept.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct Proposal {
        /// Version of the message: 1, or 2 and above.
        pub version: Version,
        /// What is offered in version 1.
        pub v1: OfferedTypes,
        /// What is offered in version 2; [`OfferedTypes::Neither`] in a version-1 message.
        pub v2: OfferedTypes,
    }
    32 bytes {
        /// Peer ID of the client's SMC-R stack, zero unless `v1` has SMC-R. Must be the same in all
        /// PROPOSALs to one server.
        pub peer_id: PeerId,
        /// RoCEv1 GID of the client's preferred port, zero unless `v1` has SMC-R.
        pub gid: RoceGid,
        /// MAC of that port, zero unless `v1` has SMC-R.
        pub mac: Mac,
        given ip_area_offset: U16 => DEC,
    }
    then {
        /// The SMC-D area. Always there from version 2 on; in version 1 only with SMC-D.
        pub smcd: Option<SmcdArea>,
        /// The IP area: there if and only if `v1` is not [`OfferedTypes::Neither`].
        pub ip: Option<IpArea>,
        /// The v2 extension: there if and only if `v2` is not [`OfferedTypes::Neither`].
        pub ext: Option<V2Extension>,
    }
}

impl Proposal {
    /// Length of the shortest legal message in bytes: version 1, SMC-R only, IPv4.
    pub const MIN_LEN: usize = AFTER_BASE + IpArea::LEN + TRAILER_LEN;
    /// Length of the longest legal message without extensions in bytes.
    pub const MAX_LEN: usize = AFTER_BASE
        + SmcdArea::LEN
        + IpArea::len_with(MAX_ITEMS)
        + V2Extension::len_with(MAX_ITEMS, Some(MAX_ITEMS))
        + TRAILER_LEN;
    /// Length of the longest message with extensions in bytes.
    pub const MAX_EXTENDED_LEN: usize = Self::MAX_LEN + Extensions::MAX_LEN;

    /// The SEID of the client, if it has one.
    #[must_use]
    pub fn seid(&self) -> Option<Eid> {
        let ext = self.ext.as_ref().filter(|ext| ext.has_seid)?;
        ext.direct.as_ref().map(|direct| direct.seid)
    }

    /// The devices to consider for SMC-D v2, in order: the native one of the SMC-D area if its
    /// CHID is not zero, then those of the GID list.
    pub fn devices(&self) -> impl Iterator<Item = OfferedDevice> + '_ {
        let direct = self.ext.as_ref().and_then(|ext| ext.direct.as_ref());
        let native = self
            .smcd
            .filter(|area| direct.is_some() && !area.chid.is_none());
        native
            .map(|area| OfferedDevice {
                gid: area.gid.into(),
                chid: area.chid,
            })
            .into_iter()
            .chain(direct.into_iter().flat_map(DirectExtension::devices))
    }

    /// Length of the message in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let smcd = self.smcd.map_or(0, |_| SmcdArea::LEN);
        let ip = self.ip.as_ref().map_or(0, IpArea::encoded_len);
        let ext = self.ext.as_ref().map_or(0, V2Extension::encoded_len);
        AFTER_BASE
            .saturating_add(smcd)
            .saturating_add(ip)
            .saturating_add(ext)
            .saturating_add(TRAILER_LEN)
    }

    /// Length in bytes of the message with these extensions.
    #[must_use]
    pub fn extended_len(&self, extensions: &Extensions<'_>) -> usize {
        self.encoded_len().saturating_add(extensions.encoded_len())
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`], or [`EmitError::Invalid`] if a region is missing that the
    /// offers ask for, or there although they do not.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        self.emit_extended(&Extensions::default(), buffer)
    }

    /// As [`emit`](Self::emit), with extensions for a peer that has stated
    /// [`Features`] before (docs/spec/extensions.md#placement). Other peers refuse the message.
    /// Without extensions it is the same as that of `emit`.
    ///
    /// # Errors
    ///
    /// Those of `emit`, and [`EmitError::Invalid`] if the SMC-D area has no features, or for early
    /// data that is too long.
    pub fn emit_extended(
        &self,
        extensions: &Extensions<'_>,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        self.check()?;
        let area = extensions.area(MessageKind::Proposal, self.area())?;
        let length = self.extended_len(extensions);
        let v2 = if self.version.is_v2() {
            self.v2.code() << 2
        } else {
            0
        };
        let kind = (Eyecatcher::Smcr, ClcType::Proposal);
        let flags = self.v1.code() | v2;
        let mut out = start(kind, (self.version, flags), length, buffer)?;
        out.put(&self.raw(self.ip_area_offset().into()))?;
        if let Some(area) = &self.smcd {
            out.put(&area.raw(self.v2_offset().into()))?;
        }
        if let Some(ip) = &self.ip {
            ip.emit(&mut out)?;
        }
        if let Some(ext) = &self.ext {
            ext.emit(&mut out)?;
        }
        extensions.emit(&mut out)?;
        out.put(&Eyecatcher::Smcr.to_bytes())?;
        if let Some(area) = area {
            area.write(extensions, buffer);
        }
        Ok(length)
    }

    /// Whether the regions are those that the offers announce.
    fn check(&self) -> Result<(), EmitError> {
        let fail = |field, reason| Err(invalid(MessageKind::Proposal, field, reason));
        if self.ip.is_some() == self.v1.is_neither() {
            return fail("IP area", "has to be there exactly if version 1 is offered");
        }
        if !self.version.is_v2() {
            return match self {
                _ if self.v1.is_neither() => fail("v1 type", "offers nothing"),
                _ if !self.v2.is_neither() => fail("v2 type", "not possible in version 1"),
                _ if self.ext.is_some() => fail("v2 extension", "not possible in version 1"),
                _ if self.v1.has_d() && self.smcd.is_none() => fail("SMC-D area", "missing"),
                _ => Ok(()),
            };
        }
        let Some(area) = &self.smcd else {
            return fail("SMC-D area", "missing");
        };
        if self.v1.is_neither() && area.gid.0 & 0xff > 8 {
            // With no IP area, Linux takes this byte for the number of IPv6 prefixes.
            return fail("native ISM GID", "last byte above 8 without version 1");
        }
        match &self.ext {
            None if self.v2.is_neither() => Ok(()),
            Some(ext) if !self.v2.is_neither() && ext.direct.is_some() == self.v2.has_d() => Ok(()),
            Some(_) if !self.v2.is_neither() => fail(
                "SMC-D v2 extension",
                "has to be there exactly if v2 SMC-D is offered",
            ),
            _ => fail(
                "v2 extension",
                "has to be there exactly if version 2 is offered",
            ),
        }
    }

    /// Distance of the IP area from the base.
    fn ip_area_offset(&self) -> u16 {
        match (&self.ip, &self.smcd) {
            (Some(_), Some(_)) => wire_length(SmcdArea::LEN),
            _ => 0,
        }
    }

    /// Distance of the v2 extension from the field that holds it.
    fn v2_offset(&self) -> u16 {
        let ip = self.ip.as_ref().map_or(0, IpArea::encoded_len);
        match self.ext {
            Some(_) => wire_length(ip.saturating_add(V2_OFFSET)),
            None => 0,
        }
    }
}

part! {
    /// SMC-D area of a PROPOSAL (docs/spec/clc.md#smc-d-area).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SmcdArea {}
    40 bytes {
        /// GID of the native ISM device, zero unless v1 SMC-D is offered.
        pub gid as "ism_gid": IsmGid,
        /// CHID of that device; [`Chid::NONE`] if there is none. Reserved in version 1.
        pub chid as "ism_chid": Chid,
        given v2_extension_offset: U16 => DEC,
        /// Vendor OUI (v2.1); Linux sends zero.
        pub vendor_oui: [u8; 3],
        /// Vendor experimental options (v2.1); Linux sends zero.
        pub vendor_options: [u8; 5],
        zero reserved_60: [u8; 20],
    }
}

impl SmcdArea {
    /// The features in the vendor fields (docs/spec/extensions.md#features). None if the fields are
    /// zero or of another vendor. Reserved in version 1.
    #[must_use]
    pub const fn vendor_features(&self) -> Features {
        Features::from_proposal(self.vendor_oui, self.vendor_options)
    }

    /// The same area with vendor fields that state these features; zero if there are none.
    #[must_use]
    pub const fn with_vendor_features(self, features: Features) -> Self {
        let (vendor_oui, vendor_options) = features.to_proposal();
        Self {
            vendor_oui,
            vendor_options,
            ..self
        }
    }
}

layouts! {
    /// SMC-D area of a PROPOSAL in version 1.
    pub(crate) struct SmcdAreaV1: 40 {
        ism_gid: U64 => IsmGid::SHOW,
        reserved_48: [u8; 32] => Reserved,
    }
}

part! {
    /// IP area of a PROPOSAL: the subnets of the client's interface (docs/spec/clc.md#ip-area).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct IpArea {}
    8 bytes {
        /// IPv4 network address; unspecified on IPv6 connections. Old documents call it the subnet
        /// mask; compare it under `prefix_len`.
        pub subnet as "ipv4_subnet": Ipv4Addr,
        /// Significant bits of `subnet`, zero on IPv6 connections.
        pub prefix_len as "ipv4_prefix_length": u8,
        zero reserved_5: [u8; 2],
        given ipv6_prefix_count: u8 => DEC,
    }
    then {
        /// IPv6 prefixes of the interface, none on IPv4 connections.
        pub prefixes: Bounded<Ipv6Prefix, MAX_ITEMS>,
    }
}

impl IpArea {
    /// The area of an IPv4 connection.
    #[must_use]
    pub fn v4(subnet: Ipv4Addr, prefix_len: u8) -> Self {
        Self {
            subnet,
            prefix_len,
            prefixes: Bounded::new(),
        }
    }

    /// The area of an IPv6 connection.
    #[must_use]
    pub const fn v6(prefixes: Bounded<Ipv6Prefix, MAX_ITEMS>) -> Self {
        Self {
            subnet: Ipv4Addr::UNSPECIFIED,
            prefix_len: 0,
            prefixes,
        }
    }

    pub(super) fn encoded_len(&self) -> usize {
        Self::len_with(self.prefixes.len())
    }

    const fn len_with(prefixes: usize) -> usize {
        Self::LEN.saturating_add(prefixes.saturating_mul(Ipv6Prefix::LEN))
    }

    fn emit(&self, out: &mut Writer<'_>) -> Result<(), EmitError> {
        out.put(&self.raw(wire_count(self.prefixes.len())))?;
        self.prefixes
            .iter()
            .try_for_each(|prefix| out.put(&prefix.raw()))
    }
}

part! {
    /// An IPv6 prefix in an [`IpArea`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Ipv6Prefix {}
    17 bytes {
        /// The address with host bits zero.
        pub prefix: Ipv6Addr,
        /// Significant bits.
        pub prefix_len as "prefix_length": u8,
    }
}

impl Default for Ipv6Prefix {
    fn default() -> Self {
        Self {
            prefix: Ipv6Addr::UNSPECIFIED,
            prefix_len: 0,
        }
    }
}

part! {
    /// Version-2 extension of a PROPOSAL (docs/spec/clc.md#v2-extension).
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct V2Extension {
        /// Highest release the client supports.
        pub release: Release,
        /// The SEID flag: the SEID of the [`DirectExtension`] is valid.
        pub has_seid: bool,
    }
    40 bytes {
        given ueid_count: u8 => DEC,
        given gid_entry_count: u8 => DEC,
        zero reserved_2: [u8; 1],
        given release_and_seid: u8 => RELEASE_AND_SEID,
        zero reserved_4: [u8; 2],
        given smcd_v2_offset: U16 => DEC,
        /// The client's RoCEv2 GID, zero unless v2 SMC-R is offered.
        pub gid as "rocev2_gid": RoceGid,
        /// Connections per link group the client supports (16..=255), v2.1 with SMC-R, else zero.
        pub max_conns as "max_connections": u8,
        /// Links per link group the client supports, v2.1 with SMC-R, else zero.
        pub max_links: u8,
        /// Abilities of the client (v2.1).
        pub features as "feature_mask": FeatureMask,
        zero reserved_28: [u8; 12],
    }
    then {
        /// The client's UEIDs, most preferred first.
        pub ueids: Bounded<Eid, MAX_ITEMS>,
        /// SMC-D v2 extension, if v2 SMC-D is offered.
        ///
        /// `None` in a received PROPOSAL that offers v2 SMC-D means that its offset is zero or out
        /// of range, which is answered with
        /// [`NOV2DEXT`](crate::types::DeclineCode::NOV2DEXT) unless something else is offered.
        pub direct: Option<DirectExtension>,
    }
}

const SEID_PRESENT: Bits = Bits::flag("seid_present", 0x01);
const RELEASE_AND_SEID: Show = Show::Bits(&[
    release_bits(0xf0),
    Bits::reserved("reserved_3", 0x0e),
    SEID_PRESENT,
]);

impl V2Extension {
    /// With the SMC-D v2 extension.
    pub(super) fn encoded_len(&self) -> usize {
        let entries = self.direct.as_ref().map(|direct| direct.entries.len());
        Self::len_with(self.ueids.len(), entries)
    }

    /// With the SMC-D v2 extension if the number of its entries is given.
    const fn len_with(ueids: usize, entries: Option<usize>) -> usize {
        let direct = match entries {
            Some(entries) => DirectExtension::len_with(entries),
            None => 0,
        };
        Self::LEN
            .saturating_add(ueids.saturating_mul(Eid::LEN))
            .saturating_add(direct)
    }

    fn emit(&self, out: &mut Writer<'_>) -> Result<(), EmitError> {
        let direct = self.direct.as_ref();
        let offset = match direct {
            Some(_) => {
                wire_length(size_of_val(self.ueids.as_slice()).saturating_add(DIRECT_OFFSET))
            }
            None => 0,
        };
        out.put(&self.raw(
            wire_count(self.ueids.len()),
            wire_count(direct.map_or(0, |direct| direct.entries.len())),
            self.release.get() << 4 | SEID_PRESENT.when(self.has_seid),
            offset.into(),
        ))?;
        out.put(self.ueids.as_slice())?;
        match direct {
            Some(direct) => direct.emit(out),
            None => Ok(()),
        }
    }
}

part! {
    /// SMC-D v2 extension of a PROPOSAL (docs/spec/clc.md#smc-d-v2-extension).
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct DirectExtension {}
    48 bytes {
        /// SEID of the client's system; [`Eid::ZERO`] unless [`V2Extension::has_seid`].
        pub seid: Eid,
        zero reserved_32: [u8; 16],
    }
    then {
        /// ISM devices of the client; an emulated one takes two entries. See
        /// [`devices`](Self::devices).
        pub entries: Bounded<GidEntry, MAX_ITEMS>,
    }
}

impl DirectExtension {
    const fn len_with(entries: usize) -> usize {
        Self::LEN.saturating_add(entries.saturating_mul(GidEntry::LEN))
    }

    fn emit(&self, out: &mut Writer<'_>) -> Result<(), EmitError> {
        out.put(&self.raw())?;
        self.entries
            .iter()
            .try_for_each(|entry| out.put(&entry.raw()))
    }
}

part! {
    /// One entry of the GID list in a [`DirectExtension`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct GidEntry {}
    10 bytes {
        /// GID of a native device, or one half of the GID of an emulated one.
        pub gid: IsmGid,
        /// Its fabric.
        pub chid: Chid,
    }
}
