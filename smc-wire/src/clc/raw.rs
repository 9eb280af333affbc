//! Layouts of the fixed parts of CLC messages, byte for byte.
//!
//! All fields are big-endian and unaligned, so that any byte slice of the right length is valid.

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::types::{Eid, HostName, Mac, PeerId, RoceGid};

/// Declares a wire struct and asserts its size.
macro_rules! raw {
    ($(#[$meta:meta])* $name:ident = $size:literal { $($field:ident: $type:ty),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type),+
        }

        const _: () = assert!(size_of::<$name>() == $size);
    };
}

raw! {
    /// Common header.
    Header = 8 {
        eyecatcher: [u8; 4],
        kind: u8,
        length: U16,
        flags: u8,
    }
}

raw! {
    /// Base of a PROPOSAL.
    ProposalBase = 40 {
        header: Header,
        peer_id: PeerId,
        gid: RoceGid,
        mac: Mac,
        ip_area_offset: U16,
    }
}

raw! {
    /// SMC-D area of a PROPOSAL, behind the base.
    SmcdArea = 40 {
        gid: U64,
        chid: U16,
        v2_offset: U16,
        vendor_oui: [u8; 3],
        vendor_options: [u8; 5],
        reserved: [u8; 20],
    }
}

raw! {
    /// Head of the IP area of a PROPOSAL; prefixes follow.
    IpArea = 8 {
        subnet: [u8; 4],
        prefix_len: u8,
        reserved: [u8; 2],
        prefix_count: u8,
    }
}

raw! {
    /// One IPv6 prefix.
    Ipv6Prefix = 17 {
        prefix: [u8; 16],
        prefix_len: u8,
    }
}

raw! {
    /// Head of the v2 extension of a PROPOSAL; UEIDs follow.
    V2Extension = 40 {
        ueid_count: u8,
        gid_count: u8,
        reserved: u8,
        release_seid: u8,
        reserved2: [u8; 2],
        direct_offset: U16,
        gid: RoceGid,
        max_conns: u8,
        max_links: u8,
        features: U16,
        reserved3: [u8; 12],
    }
}

raw! {
    /// Head of the SMC-D v2 extension of a PROPOSAL; GID entries follow.
    DirectExtension = 48 {
        seid: Eid,
        reserved: [u8; 16],
    }
}

raw! {
    /// One GID entry.
    GidEntry = 10 {
        gid: U64,
        chid: U16,
    }
}

raw! {
    /// ACCEPT and CONFIRM for SMC-R up to the version-1 trailer.
    Rdma = 64 {
        header: Header,
        peer_id: PeerId,
        gid: RoceGid,
        mac: Mac,
        qpn: [u8; 3],
        rkey: U32,
        rmbe_index: u8,
        token: U32,
        size_mtu: u8,
        reserved: u8,
        rmb_addr: U64,
        reserved2: u8,
        psn: [u8; 3],
    }
}

raw! {
    /// What version 2 of SMC-R has in place of the trailer.
    RdmaV2 = 40 {
        eid: Eid,
        reserved: [u8; 8],
    }
}

raw! {
    /// ACCEPT and CONFIRM for SMC-D, the part that both versions share.
    Direct = 32 {
        header: Header,
        gid: U64,
        dmb: U64,
        dmbe_index: u8,
        size: u8,
        reserved: [u8; 2],
        group: [u8; 4],
    }
}

raw! {
    /// What version 1 of SMC-D has before its trailer.
    DirectV1 = 12 {
        reserved: [u8; 12],
    }
}

raw! {
    /// What version 2 of SMC-D has before its first-contact parts.
    DirectV2 = 42 {
        chid: U16,
        eid: Eid,
        extended_gid: U64,
    }
}

raw! {
    /// First-contact extension, the part that all releases have.
    FirstContact = 36 {
        flags: u8,
        os_release: u8,
        reserved: [u8; 2],
        host: HostName,
    }
}

raw! {
    /// Second part of the first-contact extension; SMC-D of release 0 lacks it.
    FirstContactV21 = 16 {
        max_conns: u8,
        max_links: u8,
        features: U16,
        vendor_options: U32,
        reserved: [u8; 8],
    }
}

raw! {
    /// Head of the GID list of an SMC-R CONFIRM; GIDs follow.
    GidList = 4 {
        count: u8,
        reserved: [u8; 3],
    }
}

raw! {
    /// DECLINE without extra diagnoses and trailer.
    Decline = 24 {
        header: Header,
        peer_id: PeerId,
        diagnosis: U32,
        os: u8,
        reserved: [u8; 3],
    }
}
