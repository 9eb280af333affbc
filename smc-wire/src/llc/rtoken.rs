//! RMB keys and addresses as lists in messages.

use super::raw::{WireRkey, WireRtoken};
use crate::layout::part;
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
