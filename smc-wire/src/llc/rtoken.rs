//! RMB keys and addresses as lists in messages.

use zerocopy::big_endian::{U32, U64};

use super::raw::{self, WireRkey, WireRtoken};
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

/// One RMB on a further link, in CONFIRM RKEY and CONFIRM RKEY CONT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct LinkRtoken {
    /// The link.
    pub link: LinkNumber,
    /// Key of the RMB there.
    pub rkey: Rkey,
    /// Address of the RMB there.
    pub address: RmbAddr,
}

impl LinkRtoken {
    pub(super) const fn from_raw(raw: &raw::LinkRtoken) -> Self {
        Self {
            link: LinkNumber(raw.link_number),
            rkey: Rkey(raw.rkey.get()),
            address: RmbAddr(raw.address.get()),
        }
    }

    pub(super) const fn to_raw(self) -> raw::LinkRtoken {
        raw::LinkRtoken {
            link_number: self.link.0,
            rkey: U32::new(self.rkey.0),
            address: U64::new(self.address.0),
        }
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
