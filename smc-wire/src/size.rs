//! Buffer sizes as they travel: a 4-bit code for a power of two.

use core::fmt;

use crate::cdc::CdcD;
use crate::codes::nibble;
use crate::cursor::Ring;

nibble! {
    /// Size of an RMB or DMB element: 2^(code + 14) bytes, 16 KiB to 512 MiB.
    ///
    /// See docs/spec/cdc.md#size-code. All sixteen codes are legal to receive; what to send is
    /// limited by [`RFC_MAX_R`](Self::RFC_MAX_R) and [`LINUX_MAX_D`](Self::LINUX_MAX_D).
    ///
    /// ```
    /// use smc_wire::size::SizeCode;
    ///
    /// let code = SizeCode::for_len(65_536).unwrap();
    /// assert_eq!((code.code(), code.bytes()), (2, 65_536));
    /// assert_eq!(code.smaller(), SizeCode::for_len(32_768));
    /// assert_eq!(SizeCode::MIN.smaller(), None);
    /// assert_eq!(code.ring_r().size(), 65_536);
    /// assert_eq!(code.ring_d().size(), 65_536 - 32);
    /// ```
    SizeCode, code
}

impl SizeCode {
    /// 16 KiB, the smallest.
    pub const MIN: Self = Self(0);
    /// 512 MiB, the largest that four bits can express. Linux accepts it for both kinds.
    pub const MAX: Self = Self(15);
    /// 512 KiB, the largest that RFC 7609 defines for SMC-R.
    pub const RFC_MAX_R: Self = Self(5);
    /// 1 MiB, the largest DMB that Linux makes for SMC-D.
    pub const LINUX_MAX_D: Self = Self(6);
    /// 64 KiB, what Linux uses by default.
    pub const LINUX_DEFAULT: Self = Self(2);

    /// The smallest size that has space for `len` bytes, or `None` above 512 MiB.
    #[must_use]
    pub fn for_len(len: usize) -> Option<Self> {
        let len = u32::try_from(len).ok()?;
        (Self::MIN.0..=Self::MAX.0)
            .map(Self)
            .find(|code| code.bytes() >= len)
    }

    /// Half of this size, or `None` for the smallest.
    #[must_use]
    pub fn smaller(self) -> Option<Self> {
        self.0.checked_sub(1).map(Self)
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        0x4000 << self.0
    }

    /// The size in bytes, as lengths in memory are counted.
    #[must_use]
    pub const fn byte_len(self) -> usize {
        0x4000 << self.0
    }

    /// The ring in an RMB element: all of it.
    #[must_use]
    pub fn ring_r(self) -> Ring {
        Ring::from_size_code(self.bytes())
    }

    /// The ring in a DMB element: all but the CDC block.
    #[must_use]
    pub fn ring_d(self) -> Ring {
        let ring = self.byte_len().saturating_sub(CdcD::LEN);
        Ring::from_size_code(u32::try_from(ring).unwrap_or(u32::MAX))
    }
}

impl fmt::Display for SizeCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kib = self.bytes() >> 10;
        match kib {
            0..1024 => write!(f, "{kib} KiB"),
            _ => write!(f, "{} MiB", kib >> 10),
        }
    }
}

#[cfg(test)]
mod tests;
