//! Layouts of the messages, byte for byte, without the header.
//!
//! Messages that are shorter than 44 bytes with these parts are filled up with zeros.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::layout::Show::Reserved;
use crate::layout::{DEC, HEX, layouts};

/// `length` is length and reason in v1, the unswapped length in v2.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Header {
    pub(crate) kind: u8,
    pub(crate) length: [u8; 2],
    pub(crate) flags: u8,
}

layouts! {
    /// An [`Rtoken`](super::Rtoken) in its 16 bytes of wire form, so that long lists can be
    /// borrowed.
    #[derive(PartialEq, Eq, Hash, Default)]
    pub struct WireRtoken: 16 {
        rkey: U32 => HEX,
        new_rkey: U32 => HEX,
        new_address: U64 => HEX,
    }

    /// REQUEST ADD LINK; GIDs follow.
    pub(crate) struct RequestAddLink: 24 {
        reserved_4: [u8; 20] => Reserved,
        gid_count: u8 => DEC,
        reserved_25: [u8; 3] => Reserved,
    }

    /// DELETE RKEY in v1; up to eight rkeys follow.
    pub(crate) struct DeleteRkeyV1: 4 {
        rkey_count: u8 => DEC,
        unknown_rkey_mask: u8 => HEX,
        reserved_6: [u8; 2] => Reserved,
    }

    /// DELETE RKEY in v2; up to 255 rkeys follow.
    pub(crate) struct DeleteRkey: 4 {
        rkey_count: u8 => DEC,
        unknown_rkey_count: u8 => DEC,
        reserved_6: [u8; 2] => Reserved,
    }

    /// An [`Rkey`](crate::types::Rkey) in its four bytes of wire form, so that long lists can be
    /// borrowed.
    #[derive(PartialEq, Eq, Hash, Default)]
    pub struct WireRkey: 4 {
        rkey: U32 => HEX,
    }
}

/// Up to `count` items at the start of `bytes`, fewer if there is no space for more.
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
