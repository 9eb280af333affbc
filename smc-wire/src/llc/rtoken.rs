//! RMB keys and addresses as lists in messages.

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use crate::layout::{FieldType, layouts, part};
use crate::types::{LinkNumber, Rkey, RmbAddr};

/// One RMB in ADD LINK and ADD LINK CONT: its key on the present link, its key and address on the
/// new one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Rtoken {
    /// The sender's RMB, as known on the link that carries the message.
    pub rkey: Rkey,
    /// The same RMB on the new link.
    pub new_rkey: Rkey,
    /// Its address on the new link.
    pub new_address: RmbAddr,
}

layouts! {
    /// An [`Rtoken`] in its 16 bytes of wire form, so that long lists can be borrowed.
    #[derive(PartialEq, Eq, Hash, Default)]
    pub struct WireRtoken: 16 {
        rkey: U32 => Rkey::SHOW,
        new_rkey: U32 => Rkey::SHOW,
        new_address: U64 => RmbAddr::SHOW,
    }

    /// An [`Rkey`] in its four bytes of wire form, so that long lists can be borrowed.
    #[derive(PartialEq, Eq, Hash, Default)]
    pub struct WireRkey: 4 {
        rkey: U32 => Rkey::SHOW,
    }
}

impl From<Rtoken> for WireRtoken {
    fn from(rtoken: Rtoken) -> Self {
        Self {
            rkey: rtoken.rkey.0.into(),
            new_rkey: rtoken.new_rkey.0.into(),
            new_address: rtoken.new_address.0.into(),
        }
    }
}

impl From<WireRtoken> for Rtoken {
    fn from(wire: WireRtoken) -> Self {
        Self {
            rkey: Rkey(wire.rkey.get()),
            new_rkey: Rkey(wire.new_rkey.get()),
            new_address: RmbAddr(wire.new_address.get()),
        }
    }
}

part! {
    /// One RMB on a further link, in CONFIRM RKEY and CONFIRM RKEY CONT.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct LinkRtoken {}
    13 bytes {
        /// The link.
        pub link as "link_number": LinkNumber,
        /// Key of the RMB there.
        pub rkey: Rkey,
        /// Address of the RMB there.
        pub address: RmbAddr,
    }
}

impl From<Rkey> for WireRkey {
    fn from(rkey: Rkey) -> Self {
        Self {
            rkey: rkey.0.into(),
        }
    }
}

impl From<WireRkey> for Rkey {
    fn from(wire: WireRkey) -> Self {
        Self(wire.rkey.get())
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
