//! Identifiers of SMC-R links, queue pairs and buffers.

use core::fmt;

use super::wire_id::wire_number;
use crate::codes::nibble;

/// Declares a number of 24 bits.
macro_rules! be24 {
    ($(#[$meta:meta])* $type:ident) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        pub struct $type(u32);

        impl $type {
            /// The largest value.
            pub const MAX: Self = Self(0xff_ffff);

            /// `None` if the value needs more than 24 bits.
            #[must_use]
            pub const fn new(value: u32) -> Option<Self> {
                if value > Self::MAX.0 {
                    None
                } else {
                    Some(Self(value))
                }
            }

            /// From three bytes in wire order.
            #[must_use]
            pub const fn from_be_bytes([a, b, c]: [u8; 3]) -> Self {
                Self(u32::from_be_bytes([0, a, b, c]))
            }

            /// Three bytes in wire order.
            #[must_use]
            pub const fn to_be_bytes(self) -> [u8; 3] {
                let [_, a, b, c] = self.0.to_be_bytes();
                [a, b, c]
            }

            /// The number.
            #[must_use]
            pub const fn get(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#08x}", self.0)
            }
        }
    };
}

be24! {
    /// Queue pair number.
    Qpn
}

be24! {
    /// Packet sequence number.
    Psn
}

wire_number! {
    /// Remote key of an RMB on one link: the right to write into it.
    Rkey(u32), "{:#010x}"
}

wire_number! {
    /// RDMA address of byte 0 of an RMB (the buffer, not the element in it) on one link.
    RmbAddr(u64), "{:#018x}"
}

/// Names a connection in CDC messages of SMC-R; chosen by the end that receives them.
///
/// Never zero and unique in the link group. A zero that a peer sent survives decoding
/// ([`from_wire`](Self::from_wire)), matches no connection, and can be recognised with
/// [`is_zero`](Self::is_zero).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AlertToken(u32);

impl AlertToken {
    /// `None` for zero.
    #[must_use]
    pub const fn new(token: u32) -> Option<Self> {
        if token == 0 { None } else { Some(Self(token)) }
    }

    /// A token as received, which may be zero.
    #[must_use]
    pub const fn from_wire(token: u32) -> Self {
        Self(token)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// True for the value that no peer may use.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl fmt::Display for AlertToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)
    }
}

wire_number! {
    /// Number of a link in its link group, chosen by the server: 1..=255, 0 means "none" or "all".
    LinkNumber(u8), "{}"
}

impl LinkNumber {
    /// Not a link: a hint in ADD LINK, every link in DELETE LINK.
    pub const NONE: Self = Self(0);
}

wire_number! {
    /// The sender's own identifier of a link (CONFIRM LINK); informational.
    LinkUid(u32), "{:#010x}"
}

/// Link-group identifier of the sender of an SMC-D ACCEPT or CONFIRM ("link ID").
///
/// Opaque bytes: Linux copies a counter in native byte order there. Compare or display only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct GroupId(pub [u8; 4]);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", u32::from_be_bytes(self.0))
    }
}

nibble! {
    /// Path MTU of a RoCE link as a 4-bit code: 1 is 256 bytes, 5 is 4096 bytes.
    ///
    /// 0 and 6..=15 are reserved; ACCEPT carries the server's value, CONFIRM the smaller of both.
    MtuCode, code
}

impl MtuCode {
    /// 256 bytes.
    pub const MTU_256: Self = Self(1);
    /// 512 bytes.
    pub const MTU_512: Self = Self(2);
    /// 1024 bytes.
    pub const MTU_1024: Self = Self(3);
    /// 2048 bytes.
    pub const MTU_2048: Self = Self(4);
    /// 4096 bytes.
    pub const MTU_4096: Self = Self(5);

    /// The MTU in bytes, or `None` for the reserved codes 0 and 6..=15.
    #[must_use]
    pub const fn bytes(self) -> Option<u32> {
        match self.0 {
            code @ 1..=5 => Some(128 << code),
            _ => None,
        }
    }
}

impl fmt::Display for MtuCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes() {
            Some(bytes) => fmt::Display::fmt(&bytes, f),
            None => write!(f, "reserved MTU code {}", self.0),
        }
    }
}
