//! What every CLC message begins and ends with.

use core::fmt;

use zerocopy::FromBytes;

use super::raw;
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

/// Type byte of a CLC message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(
    clippy::exhaustive_enums,
    reason = "other types are fatal for the handshake"
)]
pub enum ClcType {
    /// 1: first message of a client.
    Proposal,
    /// 2: answer of a server.
    Accept,
    /// 3: second message of a client.
    Confirm,
    /// 4: no SMC, may replace any other.
    Decline,
}

impl ClcType {
    /// `None` for anything but 1 to 4.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Proposal),
            2 => Some(Self::Accept),
            3 => Some(Self::Confirm),
            4 => Some(Self::Decline),
            _ => None,
        }
    }

    /// The byte on the wire.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Proposal => 1,
            Self::Accept => 2,
            Self::Confirm => 3,
            Self::Decline => 4,
        }
    }

    /// The same message in the vocabulary of errors.
    #[must_use]
    pub const fn kind(self) -> MessageKind {
        match self {
            Self::Proposal => MessageKind::Proposal,
            Self::Accept => MessageKind::Accept,
            Self::Confirm => MessageKind::Confirm,
            Self::Decline => MessageKind::Decline,
        }
    }
}

impl fmt::Display for ClcType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())
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
        let fail =
            |field, offset, kind| DecodeError::new(MessageKind::ClcHeader, field, offset, kind);
        let mut got = [0; 4];
        for (to, from) in got.iter_mut().zip(bytes) {
            *to = *from;
        }
        let smcr = Eyecatcher::Smcr.to_bytes();
        let smcd = Eyecatcher::Smcd.to_bytes();
        // Judge what has arrived of the eyecatcher, so that plain TCP data is recognised early.
        let seen = bytes.get(..4).unwrap_or(bytes);
        if !smcr.starts_with(seen) && !smcd.starts_with(seen) {
            return Err(fail("eyecatcher", 0, DecodeErrorKind::Eyecatcher { got }));
        }
        let truncated = DecodeErrorKind::Truncated {
            needed: HEADER_LEN,
            got: bytes.len(),
        };
        let Ok((raw, _)) = raw::Header::ref_from_prefix(bytes) else {
            return Err(fail("header", 0, truncated));
        };
        let Some(eyecatcher) = Eyecatcher::from_bytes(raw.eyecatcher) else {
            return Err(fail("eyecatcher", 0, DecodeErrorKind::Eyecatcher { got }));
        };
        let Some(kind) = ClcType::from_code(raw.kind) else {
            let kind = DecodeErrorKind::Value {
                expected: "1 to 4",
                got: raw.kind.into(),
            };
            return Err(fail("type", 4, kind));
        };
        let Some(version) = Version::new(raw.flags >> 4) else {
            let kind = DecodeErrorKind::Value {
                expected: "1 or above",
                got: 0,
            };
            return Err(fail("version", 7, kind));
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
    match Eyecatcher::from_bytes(got) {
        Some(_) => Ok(()),
        None => Err(DecodeError::new(
            kind,
            "trailer",
            offset,
            DecodeErrorKind::Trailer { got },
        )),
    }
}
