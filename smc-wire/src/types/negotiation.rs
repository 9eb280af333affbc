//! Versions and capabilities that the handshake negotiates.

use core::fmt;

use bitflags::bitflags;

use crate::codes::{known_values, nibble};

/// Version nibble of a CLC header.
///
/// Everything from 2 up is processed as version 2 ([`is_v2`](Self::is_v2)): the lower common
/// version is used, and there is none above 2 yet. Zero is never legal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Version(u8);

impl Version {
    /// Version 1 (RFC 7609).
    pub const V1: Self = Self(1);
    /// Version 2.
    pub const V2: Self = Self(2);

    /// `None` for zero and for what does not fit into four bits.
    #[must_use]
    pub const fn new(version: u8) -> Option<Self> {
        if version == 0 || version > 0x0f {
            None
        } else {
            Some(Self(version))
        }
    }

    /// The number, 1..=15.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// True for 2 and everything above, which is processed as 2.
    #[must_use]
    pub const fn is_v2(self) -> bool {
        self.0 >= 2
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}", self.0)
    }
}

nibble! {
    /// Release of version 2 (4 bits): 0 is v2.0, 1 is v2.1.
    Release, get
}

impl Release {
    /// v2.0.
    pub const V2_0: Self = Self(0);
    /// v2.1.
    pub const V2_1: Self = Self(1);
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v2.{}", self.0)
    }
}

nibble! {
    /// Operating system of a peer (4 bits), informational.
    OsType, code
}

known_values!(OsType {
    /// Not given: the nibble is zero in version 1.
    NONE = 0 "not given",
    /// z/OS.
    ZOS = 1 "z/OS",
    /// Linux.
    LINUX = 2 "Linux",
    /// AIX.
    AIX = 3 "AIX",
    /// Explicitly unknown.
    UNKNOWN = 15 "unknown",
});

impl fmt::Display for OsType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "OS type {}", self.0),
        }
    }
}

bitflags! {
    /// Optional abilities negotiated since v2.1 (16 bits); unknown bits are kept.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
    pub struct FeatureMask: u16 {
        /// Emulated ISM (128-bit GIDs, CHID `0xFF00..=0xFFFF`) is understood.
        const EMULATED_ISM = 0x0001;
        const _ = !0;
    }
}

impl fmt::Display for FeatureMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x}", self.bits())
    }
}

/// What a PROPOSAL offers for one version (2 bits on the wire: R, D, none, both).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(
    clippy::exhaustive_enums,
    reason = "two bits on the wire, all four values assigned"
)]
pub enum OfferedTypes {
    /// SMC-R (code 0).
    R,
    /// SMC-D (code 1).
    D,
    /// Neither (code 2).
    Neither,
    /// Both (code 3).
    Both,
}

impl OfferedTypes {
    /// From the two low bits of a byte.
    #[must_use]
    pub const fn from_low_bits(byte: u8) -> Self {
        match byte & 0x03 {
            0 => Self::R,
            1 => Self::D,
            2 => Self::Neither,
            _ => Self::Both,
        }
    }

    /// The offer of exactly these.
    #[must_use]
    pub const fn of(smc_r: bool, smc_d: bool) -> Self {
        match (smc_r, smc_d) {
            (true, false) => Self::R,
            (false, true) => Self::D,
            (false, false) => Self::Neither,
            (true, true) => Self::Both,
        }
    }

    /// The two-bit code.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::R => 0,
            Self::D => 1,
            Self::Neither => 2,
            Self::Both => 3,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::R => "SMC-R",
            Self::D => "SMC-D",
            Self::Neither => "none",
            Self::Both => "SMC-R and SMC-D",
        }
    }

    /// True if SMC-R is offered.
    #[must_use]
    pub const fn has_r(self) -> bool {
        matches!(self, Self::R | Self::Both)
    }

    /// True if SMC-D is offered.
    #[must_use]
    pub const fn has_d(self) -> bool {
        matches!(self, Self::D | Self::Both)
    }

    /// True if nothing is offered.
    #[must_use]
    pub const fn is_neither(self) -> bool {
        matches!(self, Self::Neither)
    }
}

impl fmt::Display for OfferedTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
