//! Identifiers of SMC-D devices and their buffers.

use core::fmt;
use core::num::ParseIntError;
use core::str::FromStr;

use super::wire_id::wire_number;

wire_number! {
    /// 64-bit GID of an ISM device, as the fields of CLC messages carry it.
    ///
    /// Opaque. For an emulated device it is one half of a [`Gid`]. Prints as 16 hex digits.
    IsmGid(u64), "{:016x}"
}

impl IsmGid {
    /// Not given.
    pub const ZERO: Self = Self(0);
}

/// GID of an SMC-D device: 64 bits for a native ISM device, 128 bits for an emulated one.
///
/// `hi` travels in the GID field of a message, `lo` in the extended GID field or in a second list
/// entry (docs/spec/identifiers.md#ism-gid-and-chid). A native GID has `lo` zero. Prints as 16 hex
/// digits when `lo` is zero, as 32 otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Gid {
    hi: u64,
    lo: u64,
}

impl Gid {
    /// Not given.
    pub const ZERO: Self = Self { hi: 0, lo: 0 };

    /// From both halves; `lo` is zero for native devices.
    #[must_use]
    pub const fn new(hi: u64, lo: u64) -> Self {
        Self { hi, lo }
    }

    /// The GID of a native ISM device.
    #[must_use]
    pub const fn native(gid: u64) -> Self {
        Self { hi: gid, lo: 0 }
    }

    /// The 128-bit GID of an emulated ISM device, most significant half first on the wire.
    #[must_use]
    pub const fn emulated(gid: u128) -> Self {
        let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = gid.to_be_bytes();
        Self {
            hi: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            lo: u64::from_be_bytes([i, j, k, l, m, n, o, p]),
        }
    }

    /// The half that travels in the GID field.
    #[must_use]
    pub const fn hi(self) -> IsmGid {
        IsmGid(self.hi)
    }

    /// The extended half; zero for native devices.
    #[must_use]
    pub const fn lo(self) -> IsmGid {
        IsmGid(self.lo)
    }

    /// Both halves as one number.
    #[must_use]
    pub fn to_u128(self) -> u128 {
        u128::from(self.hi) << 64 | u128::from(self.lo)
    }

    /// True for all zero, which means "not given".
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.hi == 0 && self.lo == 0
    }
}

impl From<IsmGid> for Gid {
    fn from(gid: IsmGid) -> Self {
        Self::native(gid.0)
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lo {
            0 => write!(f, "{:016x}", self.hi),
            lo => write!(f, "{:016x}{lo:016x}", self.hi),
        }
    }
}

impl FromStr for Gid {
    type Err = ParseIntError;

    /// Reads what `Display` shows: the 16 hex digits of a native GID, or both halves.
    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let half = |digits| u64::from_str_radix(digits, 16);
        match text.split_at_checked(16) {
            Some((hi, lo)) if !lo.is_empty() => Ok(Self::new(half(hi)?, half(lo)?)),
            _ => half(text).map(Self::native),
        }
    }
}

wire_number! {
    /// Fabric identifier of an SMC-D device ("channel ID", 16 bits).
    ///
    /// Two devices can exchange data only if their CHIDs are equal. 0 means "none",
    /// `0xFF00..=0xFFFF` is emulated ISM, `0xFFFF` the loopback device.
    Chid(u16), "{:#06x}"
}

impl Chid {
    /// No device.
    pub const NONE: Self = Self(0);
    /// The loopback device: both ends are on one host.
    pub const LOOPBACK: Self = Self(0xffff);
    /// The first CHID of emulated devices.
    pub const EMULATED_FIRST: Self = Self(0xff00);

    /// True if GIDs on this fabric have 128 bits (`0xFF00..=0xFFFF`).
    #[must_use]
    pub const fn is_emulated(self) -> bool {
        self.0 >= Self::EMULATED_FIRST.0
    }

    /// True for 0, "no device".
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

wire_number! {
    /// Names a DMB (the receive buffer of SMC-D); chosen by the device that registered it.
    DmbToken(u64), "{:#018x}"
}
