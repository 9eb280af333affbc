//! What all LLC messages begin with.

use core::fmt;

use super::order::{order_of_length, read_u16, write_u16};
use super::{MESSAGE_LEN, raw};
use crate::cdc::ByteOrder;
use crate::{DecodeError, DecodeErrorKind, EmitError, MessageKind};

/// Version nibble of v2 messages.
pub(super) const V2_NIBBLE: u8 = 0x2;

// Flag byte (offset 3).

/// Response rather than request.
pub(super) const RESPONSE: u8 = 0x80;
/// ADD LINK and REQUEST ADD LINK response: rejected.
pub(super) const REJECTED: u8 = 0x40;
/// DELETE LINK: all links.
pub(super) const ALL_LINKS: u8 = 0x40;
/// DELETE LINK: orderly.
pub(super) const ORDERLY: u8 = 0x20;
/// CONFIRM RKEY and DELETE RKEY response: negative.
pub(super) const NEGATIVE: u8 = 0x20;
/// CONFIRM RKEY response: negative, but worth another try.
pub(super) const RETRY: u8 = 0x10;
/// CONFIRM LINK: no RMBE eyecatcher.
pub(super) const NO_EYECATCHER: u8 = 0x03;
/// v2: reject reason in the flag byte; v1: reject reason in byte 2.
pub(super) const REASON: u8 = 0x0F;

/// The LLC messages by their type nibble, the same in v1 and v2.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MessageType {
    /// CONFIRM LINK (0x01, 0x21).
    ConfirmLink,
    /// ADD LINK (0x02, 0x22).
    AddLink,
    /// ADD LINK CONT (0x03, v1 only).
    AddLinkCont,
    /// DELETE LINK (0x04, 0x24).
    DeleteLink,
    /// REQUEST ADD LINK (0x25, v2 only).
    RequestAddLink,
    /// CONFIRM RKEY (0x06, 0x26).
    ConfirmRkey,
    /// TEST LINK (0x07, 0x27).
    TestLink,
    /// CONFIRM RKEY CONT (0x08, v1 only).
    ConfirmRkeyCont,
    /// DELETE RKEY (0x09, 0x29).
    DeleteRkey,
}

impl MessageType {
    /// From the first byte of a message; `None` for types that do not exist and for CDC (0xFE).
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            0x01 | 0x21 => Self::ConfirmLink,
            0x02 | 0x22 => Self::AddLink,
            0x03 => Self::AddLinkCont,
            0x04 | 0x24 => Self::DeleteLink,
            0x25 => Self::RequestAddLink,
            0x06 | 0x26 => Self::ConfirmRkey,
            0x07 | 0x27 => Self::TestLink,
            0x08 => Self::ConfirmRkeyCont,
            0x09 | 0x29 => Self::DeleteRkey,
            _ => return None,
        })
    }

    /// The type nibble.
    const fn nibble(self) -> u8 {
        match self {
            Self::ConfirmLink => 0x1,
            Self::AddLink => 0x2,
            Self::AddLinkCont => 0x3,
            Self::DeleteLink => 0x4,
            Self::RequestAddLink => 0x5,
            Self::ConfirmRkey => 0x6,
            Self::TestLink => 0x7,
            Self::ConfirmRkeyCont => 0x8,
            Self::DeleteRkey => 0x9,
        }
    }

    /// The same in the vocabulary of errors.
    #[must_use]
    pub const fn kind(self) -> MessageKind {
        match self {
            Self::ConfirmLink => MessageKind::ConfirmLink,
            Self::AddLink => MessageKind::AddLink,
            Self::AddLinkCont => MessageKind::AddLinkCont,
            Self::DeleteLink => MessageKind::DeleteLink,
            Self::RequestAddLink => MessageKind::RequestAddLink,
            Self::ConfirmRkey => MessageKind::ConfirmRkey,
            Self::TestLink => MessageKind::TestLink,
            Self::ConfirmRkeyCont => MessageKind::ConfirmRkeyCont,
            Self::DeleteRkey => MessageKind::DeleteRkey,
        }
    }
}

impl fmt::Display for MessageType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind().name())
    }
}

/// Which LLC a link group speaks: version, and for v2 the byte order of the unswapped fields.
///
/// A link group made by a v1 handshake speaks v1, one made by a v2 handshake v2. CDC is the same
/// in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(
    clippy::exhaustive_enums,
    reason = "a third version would change every message"
)]
pub enum Dialect {
    /// Version 1: every message has 44 bytes.
    V1,
    /// Version 2, with the byte order of the length field and the rtoken count.
    V2(ByteOrder),
}

impl Dialect {
    /// True for version 2.
    #[must_use]
    pub const fn is_v2(self) -> bool {
        matches!(self, Self::V2(_))
    }

    /// The byte order of the unswapped fields; big-endian in v1, which has no such field.
    #[must_use]
    pub const fn order(self) -> ByteOrder {
        match self {
            Self::V1 => ByteOrder::Big,
            Self::V2(order) => order,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_v2() { "v2" } else { "v1" })
    }
}

/// Request or response (flag bit 0x80).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "one bit on the wire")]
pub enum Step {
    /// Starts an exchange.
    Request,
    /// Ends an exchange.
    Response,
}

impl Step {
    /// The flag bit.
    pub(super) const fn flag(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => RESPONSE,
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Request => "request",
            Self::Response => "response",
        })
    }
}

/// The first four bytes of a message, together with the size it was received with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    kind: u8,
    length: [u8; 2],
    flags: u8,
    size: usize,
    order: ByteOrder,
}

impl Header {
    /// Checks what is common to all messages.
    ///
    /// `bytes` is the message as the receive completion delivered it: its length *is* the size.
    /// `peer` is the byte order known of this peer, if any; it decides only where the length field
    /// of this message does not.
    ///
    /// # Errors
    ///
    /// Fewer than 44 bytes, or a v1 message whose length byte is not 44. Both mean: drop the
    /// message and carry on. A v2 length field that gives the size in neither byte order is no
    /// error, see [`length_agrees`](Self::length_agrees).
    pub fn parse(bytes: &[u8], peer: Option<ByteOrder>) -> Result<Self, DecodeError> {
        let error = |field, offset, kind| {
            Err(DecodeError::new(
                MessageKind::LlcHeader,
                field,
                offset,
                kind,
            ))
        };
        let [kind, high, low, flags, ..] = *bytes else {
            let cause = DecodeErrorKind::Truncated {
                needed: MESSAGE_LEN,
                got: bytes.len(),
            };
            return error("message", 0, cause);
        };
        if bytes.len() < MESSAGE_LEN {
            let cause = DecodeErrorKind::Truncated {
                needed: MESSAGE_LEN,
                got: bytes.len(),
            };
            return error("message", 0, cause);
        }
        if kind >> 4 == 0 && usize::from(high) != MESSAGE_LEN {
            let got = usize::from(high);
            return error(
                "length",
                1,
                DecodeErrorKind::Length {
                    expected: MESSAGE_LEN,
                    got,
                },
            );
        }
        let length = [high, low];
        let order = order_of_length(length, bytes.len())
            .or(peer)
            .unwrap_or(ByteOrder::Big);
        Ok(Self {
            kind,
            length,
            flags,
            size: bytes.len(),
            order,
        })
    }

    /// The first byte: version nibble and type nibble.
    #[must_use]
    pub const fn type_byte(&self) -> u8 {
        self.kind
    }

    /// The type, or `None` if there is no such type.
    #[must_use]
    pub const fn message_type(&self) -> Option<MessageType> {
        MessageType::from_byte(self.kind)
    }

    /// Version and byte order.
    #[must_use]
    pub const fn dialect(&self) -> Dialect {
        if self.kind >> 4 == V2_NIBBLE {
            Dialect::V2(self.order)
        } else {
            Dialect::V1
        }
    }

    /// The flag byte, unknown bits included.
    #[must_use]
    pub const fn flags(&self) -> u8 {
        self.flags
    }

    /// Request or response.
    #[must_use]
    pub const fn step(&self) -> Step {
        if self.has(RESPONSE) {
            Step::Response
        } else {
            Step::Request
        }
    }

    /// Bytes received.
    #[must_use]
    pub const fn size(&self) -> usize {
        self.size
    }

    /// What the length field says, in the order of [`dialect`](Self::dialect).
    #[must_use]
    pub const fn stated_length(&self) -> u16 {
        match self.dialect() {
            Dialect::V1 => {
                let [length, _] = self.length;
                u16::from_be_bytes([0, length])
            }
            Dialect::V2(order) => read_u16(order, self.length),
        }
    }

    /// True if the length field gives the received size; worth a log line if not.
    #[must_use]
    pub fn length_agrees(&self) -> bool {
        usize::from(self.stated_length()) == self.size
    }

    /// True if any of the given flag bits is set.
    pub(super) const fn has(&self, bits: u8) -> bool {
        self.flags & bits != 0
    }

    /// The reject reason: in v1 the low nibble of byte 2, in v2 that of the flag byte.
    pub(super) const fn reason(&self) -> u8 {
        let [_, second] = self.length;
        let byte = if self.dialect().is_v2() {
            self.flags
        } else {
            second
        };
        byte & REASON
    }
}

/// The header bytes of a message to be sent.
pub(super) fn emit_header(
    kind: MessageType,
    dialect: Dialect,
    flags: u8,
    reason: u8,
    len: usize,
) -> Result<raw::Header, EmitError> {
    let length = u16::try_from(len).map_err(|_| EmitError::Invalid {
        message: kind.kind(),
        field: "length",
        reason: "the message does not fit into its length field",
    })?;
    let reason = reason & REASON;
    Ok(match dialect {
        Dialect::V1 => {
            let [_, length] = length.to_be_bytes();
            raw::Header {
                kind: kind.nibble(),
                length: [length, reason],
                flags,
            }
        }
        Dialect::V2(order) => raw::Header {
            kind: V2_NIBBLE << 4 | kind.nibble(),
            length: write_u16(order, length),
            flags: flags | reason,
        },
    })
}
