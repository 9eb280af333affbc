//! Layouts of the fixed parts of CLC messages, byte for byte, without the header.
//!
//! All fields are big-endian and unaligned, so that any byte slice of the right length is valid.

use core::mem::offset_of;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{ClcType, Eyecatcher};
use crate::layout::Show::{self, Code, Reserved};
use crate::layout::{
    BYTES, Bits, DEC, EID, Field, GID, HEX, IPV4, IPV6, MAC, MTU_BITS, OS_BITS, PEER_ID, TEXT,
    layouts, release_bits, size_bits,
};
use crate::types::{Chid, DeclineCode, Eid, HostName, Mac, PeerId, RoceGid};

/// Common header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) head: Head,
    pub(crate) flags: u8,
}

const EYECATCHER: Show = Code(|bytes| {
    let bytes = u32::try_from(bytes).ok()?.to_be_bytes();
    Eyecatcher::from_bytes(bytes).map(Eyecatcher::name)
});
const TYPE: Show = Code(|kind| {
    let kind = ClcType::from_code(u8::try_from(kind).ok()?)?;
    Some(kind.kind().name())
});

layouts! {
    /// Common header without its last byte, whose bits depend on the type.
    pub(crate) struct Head: 7 {
        eyecatcher: [u8; 4] => EYECATCHER,
        kind as "type": u8 => TYPE,
        length: U16 => DEC,
    }

    /// End of a message.
    pub(crate) struct Trailer: 4 {
        trailer: [u8; 4] => EYECATCHER,
    }

    /// Base of a PROPOSAL.
    pub(crate) struct ProposalBase: 32 {
        peer_id: PeerId => PEER_ID,
        gid: RoceGid => GID,
        mac: Mac => MAC,
        ip_area_offset: U16 => DEC,
    }

    /// SMC-D area of a PROPOSAL in version 2, behind the base.
    pub(crate) struct SmcdArea: 40 {
        ism_gid: U64 => HEX,
        ism_chid: U16 => Chid::SHOW,
        v2_extension_offset: U16 => DEC,
        vendor_oui: [u8; 3] => BYTES,
        vendor_options: [u8; 5] => BYTES,
        reserved_60: [u8; 20] => Reserved,
    }

    /// SMC-D area of a PROPOSAL in version 1.
    pub(crate) struct SmcdAreaV1: 40 {
        ism_gid: U64 => HEX,
        reserved_48: [u8; 32] => Reserved,
    }

    /// Head of the IP area of a PROPOSAL; prefixes follow.
    pub(crate) struct IpArea: 8 {
        ipv4_subnet: [u8; 4] => IPV4,
        ipv4_prefix_length: u8 => DEC,
        reserved_5: [u8; 2] => Reserved,
        ipv6_prefix_count: u8 => DEC,
    }

    /// One IPv6 prefix.
    pub(crate) struct Ipv6Prefix: 17 {
        prefix: [u8; 16] => IPV6,
        prefix_length: u8 => DEC,
    }

    /// Head of the v2 extension of a PROPOSAL; UEIDs follow.
    pub(crate) struct V2Extension: 40 {
        ueid_count: u8 => DEC,
        gid_entry_count: u8 => DEC,
        reserved_2: u8 => Reserved,
        release_and_seid: u8 => Show::Bits(&[
            release_bits(0xf0),
            Bits::reserved("reserved_3", 0x0e),
            Bits::flag("seid_present", SEID_PRESENT),
        ]),
        reserved_4: [u8; 2] => Reserved,
        smcd_v2_offset: U16 => DEC,
        rocev2_gid: RoceGid => GID,
        max_connections: u8 => DEC,
        max_links: u8 => DEC,
        feature_mask: U16 => HEX,
        reserved_28: [u8; 12] => Reserved,
    }

    /// Head of the SMC-D v2 extension of a PROPOSAL; GID entries follow.
    pub(crate) struct DirectExtension: 48 {
        seid: Eid => EID,
        reserved_32: [u8; 16] => Reserved,
    }

    /// One GID entry.
    pub(crate) struct GidEntry: 10 {
        gid: U64 => HEX,
        chid: U16 => Chid::SHOW,
    }

    /// ACCEPT and CONFIRM for SMC-R, the part that both versions have.
    pub(crate) struct Rdma: 56 {
        peer_id: PeerId => PEER_ID,
        gid: RoceGid => GID,
        mac: Mac => MAC,
        qp_number: [u8; 3] => HEX,
        rmb_rkey: U32 => HEX,
        rmbe_index: u8 => DEC,
        alert_token: U32 => HEX,
        rmbe_size: u8 => Show::Bits(&[size_bits("rmbe_size"), MTU_BITS]),
        reserved_51: u8 => Reserved,
        rmb_address: U64 => HEX,
        reserved_60: u8 => Reserved,
        initial_psn: [u8; 3] => HEX,
    }

    /// What version 2 of SMC-R has before its first-contact parts.
    pub(crate) struct RdmaV2: 40 {
        eid: Eid => EID,
        reserved_96: [u8; 8] => Reserved,
    }

    /// ACCEPT and CONFIRM for SMC-D, the part that both versions have.
    pub(crate) struct Direct: 24 {
        gid: U64 => HEX,
        dmb_token: U64 => HEX,
        dmbe_index: u8 => DEC,
        dmbe_size: u8 => Show::Bits(&[
            size_bits("dmbe_size"),
            Bits::reserved("reserved_25", 0x0f),
        ]),
        reserved_26: [u8; 2] => Reserved,
        link_id: [u8; 4] => HEX,
    }

    /// What version 1 of SMC-D has before its trailer.
    pub(crate) struct DirectV1: 12 {
        reserved_32: [u8; 12] => Reserved,
    }

    /// What version 2 of SMC-D has before its first-contact parts.
    pub(crate) struct DirectV2: 42 {
        chid: U16 => Chid::SHOW,
        eid: Eid => EID,
        extended_gid: U64 => HEX,
    }

    /// First-contact extension, the part that all releases have. SMC-D reserves all flags.
    pub(crate) struct FirstContact: 36 {
        flags: u8 => Show::Bits(&[
            Bits::flag("v2_direct", V2_DIRECT),
            Bits::reserved("reserved_flags", !V2_DIRECT),
        ]),
        os_and_release: u8 => Show::Bits(&[OS_BITS, release_bits(0x0f)]),
        reserved_2: [u8; 2] => Reserved,
        host_name: HostName => TEXT,
    }

    /// Second part of the first-contact extension; SMC-D of release 0 lacks it.
    pub(crate) struct FirstContactV21: 16 {
        max_connections: u8 => DEC,
        max_links: u8 => DEC,
        feature_mask: U16 => HEX,
        vendor_options: U32 => HEX,
        reserved_44: [u8; 8] => Reserved,
    }

    /// Head of the GID list of an SMC-R CONFIRM; GIDs follow.
    pub(crate) struct GidList: 4 {
        gid_count: u8 => DEC,
        reserved_1: [u8; 3] => Reserved,
    }

    /// DECLINE without extra diagnoses and trailer.
    pub(crate) struct Decline: 16 {
        peer_id: PeerId => PEER_ID,
        diagnosis: U32 => Code(|code| DeclineCode(u32::try_from(code).ok()?).name()),
        os_type: u8 => Show::Bits(&[OS_BITS, Bits::reserved("reserved_20", 0x0f)]),
        reserved_21: [u8; 3] => Reserved,
    }
}

/// `release_and_seid` of the v2 extension: a SEID is present.
pub(crate) const SEID_PRESENT: u8 = 0x01;
/// `flags` of the first-contact extension: no gateway.
pub(crate) const V2_DIRECT: u8 = 0x80;

/// End of the base of a PROPOSAL: start of the SMC-D area, and base of the IP area offset.
pub(crate) const AFTER_BASE: usize = size_of::<Header>() + size_of::<ProposalBase>();
/// End of the v2 extension offset, from which it counts.
pub(crate) const AFTER_V2_OFFSET: usize = AFTER_BASE + offset_of!(SmcdArea, vendor_oui);
/// End of the SMC-D v2 offset in the v2 extension, from which it counts.
pub(crate) const AFTER_DIRECT_OFFSET: usize = offset_of!(V2Extension, rocev2_gid);
