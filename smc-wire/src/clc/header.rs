//! What every CLC message begins and ends with.

use core::mem::offset_of;

use zerocopy::FromBytes;
use zerocopy::network_endian::U16;

use crate::codes::message_types;
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::layout::Show::{self, Code};
use crate::layout::{Bits, DEC, Layout, layouts};
use crate::pretty::Value;
use crate::types::{OfferedTypes, Version};
use crate::writer::{Writer, wire_length};

/// Length of the common header in bytes.
pub const HEADER_LEN: usize = LAST_AT + 1;

/// Length of the trailer in bytes: an eyecatcher again.
pub const TRAILER_LEN: usize = Trailer::LEN;

layouts! {
    /// Common header without its last byte, whose bits depend on the type.
    pub(crate) struct HeaderStart: 7 {
        eyecatcher: [u8; 4] => EYECATCHER,
        kind as "type": u8 => TYPE,
        length: U16 => DEC,
    }

    /// End of a message.
    pub(crate) struct Trailer: 4 {
        trailer: [u8; 4] => EYECATCHER,
    }
}

const EYECATCHER: Show = Code(|bytes| {
    let bytes = u32::try_from(bytes).ok()?.to_be_bytes();
    Eyecatcher::from_bytes(bytes).map(Eyecatcher::name)
});
const TYPE: Show = Code(|kind| {
    let kind = ClcType::from_code(u8::try_from(kind).ok()?)?;
    Some(kind.kind().name())
});

/// Where the type is.
pub(super) const TYPE_AT: usize = offset_of!(HeaderStart, kind);
/// Where the length is.
pub(super) const LENGTH_AT: usize = offset_of!(HeaderStart, length);
/// Where version and flags are.
pub(super) const LAST_AT: usize = HeaderStart::LEN;

// The last byte of the header: version and flags.

const VERSION: Bits = Bits::new("version", 0xf0, |version| Value::Unsigned(version.into()));
/// PROPOSAL: what is offered in version 2.
const V2_TYPE: Bits = Bits::new("v2_type", 0x0c, offer);
/// PROPOSAL: what is offered in version 1.
const V1_TYPE: Bits = Bits::new("v1_type", 0x03, offer);
/// ACCEPT and CONFIRM: a new link group.
pub(crate) const FIRST_CONTACT: Bits = Bits::flag("first_contact", 0x08);
/// ACCEPT and CONFIRM: the kind of SMC.
pub(crate) const CONNECTION_TYPE: Bits = Bits::new("connection_type", 0x03, |code| {
    let name = match code {
        0 => Some("SMC-R"),
        1 => Some("SMC-D"),
        _ => None,
    };
    code_of_one_digit(code, name)
});
/// DECLINE: link groups are out of sync.
pub(crate) const OUT_OF_SYNC: Bits = Bits::flag("out_of_sync", 0x08);

/// The bits of the last byte of the header.
pub(crate) const fn last_byte(kind: Option<ClcType>, is_v2: bool) -> &'static [Bits] {
    match kind {
        Some(ClcType::Proposal) if is_v2 => &[VERSION, V2_TYPE, V1_TYPE],
        Some(ClcType::Proposal) => &[VERSION, NO_V2_TYPE, V1_TYPE],
        Some(ClcType::Accept | ClcType::Confirm) => {
            &[VERSION, FIRST_CONTACT, NO_FLAG, CONNECTION_TYPE]
        }
        Some(ClcType::Decline) => &[VERSION, OUT_OF_SYNC, NO_FLAGS],
        None => &[VERSION, UNKNOWN_FLAGS],
    }
}

const NO_V2_TYPE: Bits = Bits::reserved("reserved_flags", V2_TYPE.mask);
const NO_FLAG: Bits = Bits::reserved("reserved_flags", 0x04);
const NO_FLAGS: Bits = Bits::reserved("reserved_flags", 0x07);
const UNKNOWN_FLAGS: Bits = Bits::new("flags", 0x0f, |flags| Value::Hex {
    value: flags.into(),
    digits: 1,
});

fn offer(code: u8) -> Value<'static> {
    code_of_one_digit(code, Some(OfferedTypes::from_low_bits(code).name()))
}

fn code_of_one_digit(code: u8, name: Option<&'static str>) -> Value<'static> {
    Value::Code {
        value: code.into(),
        digits: 1,
        name,
    }
}

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
        let Ok((head, &[last, ..])) = HeaderStart::ref_from_prefix(bytes) else {
            return Err(MESSAGE.truncated("header", HEADER_LEN, bytes.len()));
        };
        let eyecatcher = Eyecatcher::from_bytes(head.eyecatcher).ok_or(bad_eyecatcher)?;
        let Some(kind) = ClcType::from_code(head.kind) else {
            return Err(MESSAGE.bad_value("type", TYPE_AT, "1 to 4", head.kind));
        };
        let Some(version) = Version::new(last >> 4) else {
            return Err(MESSAGE.bad_value("version", LAST_AT, "1 or above", 0_u8));
        };
        Ok(Self {
            eyecatcher,
            kind,
            length: head.length.get(),
            version,
            flags: last & 0x0f,
        })
    }
}

/// Starts a message: writes its header.
pub(super) fn start(
    (eyecatcher, kind): (Eyecatcher, ClcType),
    (version, flags): (Version, u8),
    length: usize,
    buffer: &mut [u8],
) -> Result<Writer<'_>, EmitError> {
    let mut out = Writer::new(kind.kind(), length, buffer)?;
    out.put(&HeaderStart {
        eyecatcher: eyecatcher.to_bytes(),
        kind: kind.code(),
        length: wire_length(length).into(),
    })?;
    out.put(&(version.get() << 4 | flags & 0x0f))?;
    Ok(out)
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
