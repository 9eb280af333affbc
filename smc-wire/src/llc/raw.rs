//! Layouts of the messages, byte for byte.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{WireRkey, WireRtoken};
use crate::types::{Mac, RoceGid};

/// Declares wire structs and proves their sizes.
macro_rules! wire {
    ($($(#[$doc:meta])* $name:ident: $size:literal { $($field:ident: $type:ty,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub(super) struct $name { $(pub(super) $field: $type,)+ }

        const _: () = assert!(size_of::<$name>() == $size);
    )+};
}

wire! {
    /// `length` is length and reason in v1, the unswapped length in v2.
    Header: 4 {
        kind: u8,
        length: [u8; 2],
        flags: u8,
    }

    /// CONFIRM LINK.
    ConfirmLink: 44 {
        header: Header,
        mac: Mac,
        gid: RoceGid,
        qpn: [u8; 3],
        link: u8,
        user_id: U32,
        max_links: u8,
        max_connections: u8,
        reserved: [u8; 8],
    }

    /// ADD LINK, the part common to v1 and v2.
    AddLink: 44 {
        header: Header,
        mac: Mac,
        reserved: [u8; 2],
        gid: RoceGid,
        qpn: [u8; 3],
        link: u8,
        mtu: u8,
        psn: [u8; 3],
        reserved2: [u8; 8],
    }

    /// ADD LINK, what follows in v2.
    AddLinkExtension: 28 {
        flags: u8,
        reserved: u8,
        client_target_gid: RoceGid,
        reserved2: [u8; 8],
        count: [u8; 2],
    }

    /// ADD LINK CONT.
    AddLinkCont: 44 {
        header: Header,
        link: u8,
        left: u8,
        reserved: [u8; 2],
        rtokens: [WireRtoken; 2],
        reserved2: [u8; 4],
    }

    /// DELETE LINK.
    DeleteLink: 44 {
        header: Header,
        link: u8,
        reason: U32,
        reserved: [u8; 35],
    }

    /// REQUEST ADD LINK, up to the GIDs.
    RequestAddLink: 28 {
        header: Header,
        reserved: [u8; 20],
        count: u8,
        reserved2: [u8; 3],
    }

    /// An rtoken on a further link.
    LinkRtoken: 13 {
        link: u8,
        rkey: U32,
        address: U64,
    }

    /// CONFIRM RKEY.
    ConfirmRkey: 44 {
        header: Header,
        count: u8,
        rkey: U32,
        address: U64,
        further: [LinkRtoken; 2],
        reserved: u8,
    }

    /// CONFIRM RKEY CONT.
    ConfirmRkeyCont: 44 {
        header: Header,
        left: u8,
        rtokens: [LinkRtoken; 3],
    }

    /// TEST LINK.
    TestLink: 44 {
        header: Header,
        user_data: [u8; 16],
        reserved: [u8; 24],
    }

    /// DELETE RKEY.
    DeleteRkey: 44 {
        header: Header,
        count: u8,
        errors: u8,
        reserved: [u8; 2],
        rkeys: [WireRkey; 8],
        reserved2: [u8; 4],
    }
}

/// The message at the start of `bytes`, or `None` if there are too few.
pub(super) fn prefix<T>(bytes: &[u8]) -> Option<&T>
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    T::ref_from_prefix(bytes).ok().map(|(message, _)| message)
}

/// Up to `count` items at the start of `bytes`, fewer if there is no room for more.
pub(super) fn list<T>(bytes: &[u8], count: usize) -> &[T]
where
    T: FromBytes + Immutable + KnownLayout + Unaligned,
{
    let fit = bytes.len().checked_div(size_of::<T>()).unwrap_or(0);
    match <[T]>::ref_from_prefix_with_elems(bytes, count.min(fit)) {
        Ok((items, _)) => items,
        Err(_) => &[],
    }
}
