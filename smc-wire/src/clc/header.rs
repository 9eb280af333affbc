//! What every CLC message begins and ends with.

use core::fmt;

use zerocopy::FromBytes;

use super::raw;
use crate::codes::message_types;
use crate::error::{DecodeError, DecodeErrorKind, MessageKind};
use crate::types::{Offer, Version};

/// Length of the common header in bytes.
pub const HEADER_LEN: usize = size_of::<raw::Header>();

/// Length of the trailer in bytes: an eyecatcher again.
pub const TRAILER_LEN: usize = 4;

/// The four bytes at both ends of every CLC message, a name in EBCDIC.
///
/// Receivers accept either value in any message; it is independent of the kind of SMC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "no third value is legal")]
pub enum Eyecatcher {
    /// `E2D4C3D9`, "SMCR": PROPOSAL, DECLINE, and SMC-R.
    Smcr,
    /// `E2D4C3C4`, "SMCD": ACCEPT and CONFIRM for SMC-D.
    Smcd,
}

impl Eyecatcher {
    /// `None` if the bytes are neither of the two.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 4]) -> Option<Self> {
        match bytes {
            [0xe2, 0xd4, 0xc3, 0xd9] => Some(Self::Smcr),
            [0xe2, 0xd4, 0xc3, 0xc4] => Some(Self::Smcd),
            _ => None,
        }
    }

    /// The four bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 4] {
        match self {
            Self::Smcr => [0xe2, 0xd4, 0xc3, 0xd9],
            Self::Smcd => [0xe2, 0xd4, 0xc3, 0xc4],
        }
    }

    /// The name in ASCII.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Smcr => "SMCR",
            Self::Smcd => "SMCD",
        }
    }
}

impl fmt::Display for Eyecatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

message_types! {
    /// Type byte of a CLC message.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[allow(
        clippy::exhaustive_enums,
        reason = "other types are fatal for the handshake"
    )]
    pub enum ClcType, from_code, code {
        /// First message of a client.
        Proposal = 1,
        /// Answer of a server.
        Accept = 2,
        /// Second message of a client.
        Confirm = 3,
        /// No SMC, may replace any other.
        Decline = 4,
    }
}

/// The common header of a CLC message, checked (docs/spec/clc.md#common-header; RFC 7609
/// appendix A.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Which of the two eyecatchers it begins with.
    pub eyecatcher: Eyecatcher,
    /// Type of the message.
    pub kind: ClcType,
    /// Length of the whole message in bytes, header and trailer included.
    pub length: u16,
    /// High nibble of byte 7.
    pub version: Version,
    /// Low nibble of byte 7; its meaning depends on the type.
    pub flags: u8,
}

impl Header {
    /// Flag of ACCEPT and CONFIRM: a new link group.
    pub const FIRST_CONTACT: u8 = 0x08;
    /// Flag of DECLINE: link groups are out of sync.
    pub const OUT_OF_SYNC: u8 = 0x08;

    /// Reads and checks the first eight bytes of a message.
    ///
    /// # Errors
    ///
    /// All of them end the handshake without a fallback in Linux: fewer than eight bytes, an
    /// unknown eyecatcher, a type other than 1 to 4, version 0.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        const MESSAGE: MessageKind = MessageKind::ClcHeader;
        let mut got = [0; 4];
        for (to, from) in got.iter_mut().zip(bytes) {
            *to = *from;
        }
        let kind = DecodeErrorKind::Eyecatcher { got };
        let bad_eyecatcher = DecodeError::new(MESSAGE, "eyecatcher", 0, kind);
        let smcr = Eyecatcher::Smcr.to_bytes();
        let smcd = Eyecatcher::Smcd.to_bytes();
        // Judge what has arrived of the eyecatcher, so that plain TCP data is recognised early.
        let seen = bytes.get(..4).unwrap_or(bytes);
        if !smcr.starts_with(seen) && !smcd.starts_with(seen) {
            return Err(bad_eyecatcher);
        }
        let Ok((raw, _)) = raw::Header::ref_from_prefix(bytes) else {
            return Err(MESSAGE.truncated("header", HEADER_LEN, bytes.len()));
        };
        let eyecatcher = Eyecatcher::from_bytes(raw.eyecatcher).ok_or(bad_eyecatcher)?;
        let Some(kind) = ClcType::from_code(raw.kind) else {
            return Err(MESSAGE.bad_value("type", 4, "1 to 4", raw.kind));
        };
        let Some(version) = Version::new(raw.flags >> 4) else {
            return Err(MESSAGE.bad_value("version", 7, "1 or above", 0_u8));
        };
        Ok(Self {
            eyecatcher,
            kind,
            length: raw.length.get(),
            version,
            flags: raw.flags & 0x0f,
        })
    }

    /// PROPOSAL: what is offered in version 1.
    #[must_use]
    pub const fn v1_offer(&self) -> Offer {
        Offer::from_low_bits(self.flags)
    }

    /// PROPOSAL: what is offered in version 2; nothing in a version-1 message, where the bits are
    /// reserved.
    #[must_use]
    pub const fn v2_offer(&self) -> Offer {
        if self.version.is_v2() {
            Offer::from_low_bits(self.flags >> 2)
        } else {
            Offer::Neither
        }
    }

    /// ACCEPT and CONFIRM: the first-contact flag.
    #[must_use]
    pub const fn first_contact(&self) -> bool {
        self.flags & Self::FIRST_CONTACT != 0
    }

    /// DECLINE: the out-of-sync flag.
    #[must_use]
    pub const fn out_of_sync(&self) -> bool {
        self.flags & Self::OUT_OF_SYNC != 0
    }
}

/// Builds the header of a message to be sent.
pub(super) fn raw_header(
    eyecatcher: Eyecatcher,
    kind: ClcType,
    length: u16,
    version: Version,
    flags: u8,
) -> raw::Header {
    raw::Header {
        eyecatcher: eyecatcher.to_bytes(),
        kind: kind.code(),
        length: length.into(),
        flags: (version.get() << 4) | (flags & 0x0f),
    }
}

/// Checks that a message ends with an eyecatcher.
pub(super) fn check_trailer(kind: MessageKind, bytes: &[u8]) -> Result<(), DecodeError> {
    let offset = bytes.len().saturating_sub(TRAILER_LEN);
    let got = bytes.last_chunk().copied().unwrap_or_default();
    let cause = DecodeErrorKind::Trailer { got };
    match Eyecatcher::from_bytes(got) {
        Some(_) => Ok(()),
        None => Err(DecodeError::new(kind, "trailer", offset, cause)),
    }
}
