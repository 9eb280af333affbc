//! What all LLC messages begin with, and the byte order of the fields that Linux does not swap: the
//! v2 length and the rtoken count.
//!
//! Both are big-endian according to the v2 documents. Linux stores them as its CPU does, so
//! that the order is a property of the peer. Everything else in LLC is big-endian.

use core::fmt;

use zerocopy::FromBytes;

use super::{MESSAGE_LEN, RejectReason};
use crate::cdc::ByteOrder;
use crate::codes::message_types;
use crate::layout::{Bits, Layout};
use crate::pretty::Value;
use crate::writer::{Writer, wire_length};
use crate::{DecodeError, EmitError, MessageKind};

/// Type, length (in v1 one byte, then the reject reason) and flags.
pub(super) const HEADER_LEN: usize = 4;

/// Version nibble of v2 messages.
pub(crate) const V2_NIBBLE: u8 = 0x2;

// The flag byte (offset 3).

/// Response rather than request.
pub(crate) const RESPONSE: Bits = Bits::flag("response", 0x80);
/// ADD LINK and REQUEST ADD LINK response: rejected.
pub(crate) const REJECTED: Bits = Bits::flag("rejected", 0x40);
/// DELETE LINK: all links.
pub(crate) const ALL_LINKS: Bits = Bits::flag("all_links", 0x40);
/// DELETE LINK: orderly.
pub(crate) const ORDERLY: Bits = Bits::flag("orderly", 0x20);
/// CONFIRM RKEY and DELETE RKEY response: negative.
pub(crate) const NEGATIVE: Bits = Bits::flag("negative", 0x20);
/// CONFIRM RKEY response: negative, but worth another try.
pub(crate) const RETRY: Bits = Bits::flag("retry", 0x10);
/// CONFIRM LINK: no RMBE eyecatcher.
pub(crate) const NO_EYECATCHER: Bits = Bits::new("no_rmbe_eyecatcher", 0x03, |bits| Value::Hex {
    value: bits.into(),
    digits: 2,
});
/// ADD LINK: reject reason, in v2 in the flag byte, in v1 in byte 2.
pub(crate) const REASON: Bits = Bits::new("reject_reason", 0x0f, |code| Value::Code {
    value: code.into(),
    digits: 2,
    name: RejectReason::from_low_nibble(code).name(),
});

message_types! {
    /// The LLC messages by their type byte: version in the high nibble, message in the low one.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    #[non_exhaustive]
    pub enum MessageType, from_byte, byte {
        /// CONFIRM LINK.
        ConfirmLink = 0x01 | 0x21,
        /// ADD LINK.
        AddLink = 0x02 | 0x22,
        /// ADD LINK CONT, v1 only.
        AddLinkCont = 0x03,
        /// DELETE LINK.
        DeleteLink = 0x04 | 0x24,
        /// REQUEST ADD LINK, v2 only.
        RequestAddLink = 0x25,
        /// CONFIRM RKEY.
        ConfirmRkey = 0x06 | 0x26,
        /// TEST LINK.
        TestLink = 0x07 | 0x27,
        /// CONFIRM RKEY CONT, v1 only.
        ConfirmRkeyCont = 0x08,
        /// DELETE RKEY.
        DeleteRkey = 0x09 | 0x29,
        /// ANNOUNCE CREDITS, an extension of v2.
        AnnounceCredits = 0x2a,
    }
}

impl MessageType {
    /// The flags besides [`RESPONSE`] and [`REASON`].
    pub(crate) const fn flags(self) -> &'static [Bits] {
        match self {
            Self::AddLink | Self::RequestAddLink => &[REJECTED],
            Self::DeleteLink => &[ALL_LINKS, ORDERLY],
            Self::ConfirmRkey | Self::ConfirmRkeyCont => &[NEGATIVE, RETRY],
            Self::DeleteRkey => &[NEGATIVE],
            Self::ConfirmLink => &[NO_EYECATCHER],
            Self::AddLinkCont | Self::TestLink | Self::AnnounceCredits => &[],
        }
    }
}

/// Which LLC a link group uses: version, and for v2 the byte order of the unswapped fields.
///
/// A link group made by a v1 handshake uses v1, one made by a v2 handshake v2. CDC is the same
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

/// The class of a message: request or response (flag bit 0x80).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "one bit on the wire")]
pub enum Class {
    /// Starts an exchange.
    Request,
    /// Ends an exchange.
    Response,
}

impl Class {
    /// The flag bit.
    pub(super) const fn flag(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Response => RESPONSE.mask,
        }
    }
}

impl fmt::Display for Class {
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
        const MESSAGE: MessageKind = MessageKind::LlcHeader;
        let Some([kind, high, low, flags, ..]) = bytes.first_chunk::<MESSAGE_LEN>().copied() else {
            return Err(MESSAGE.truncated("message", MESSAGE_LEN, bytes.len()));
        };
        if kind >> 4 == 0 && usize::from(high) != MESSAGE_LEN {
            return Err(MESSAGE.bad_length("length", 1, MESSAGE_LEN, high));
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

    /// The bits of a flag that are set.
    pub(super) const fn flags(&self, flag: Bits) -> u8 {
        self.flags & flag.mask
    }

    /// Request or response.
    #[must_use]
    pub const fn class(&self) -> Class {
        if self.has(RESPONSE) {
            Class::Response
        } else {
            Class::Request
        }
    }

    /// True if the length field gives the received size; worth a log line if not.
    #[must_use]
    pub fn length_agrees(&self) -> bool {
        let [first, _] = self.length;
        let stated = match self.dialect() {
            Dialect::V1 => first.into(),
            Dialect::V2(order) => order.u16(self.length),
        };
        usize::from(stated) == self.size
    }

    /// True if a flag is set.
    pub(super) const fn has(&self, flag: Bits) -> bool {
        self.flags(flag) != 0
    }

    /// The reject reason: in v1 the low nibble of byte 2, in v2 that of the flag byte.
    pub(super) const fn reason(&self) -> RejectReason {
        let [_, second] = self.length;
        RejectReason::from_low_nibble(if self.dialect().is_v2() {
            self.flags
        } else {
            second
        })
    }

    /// The fixed part of the body, and what follows it.
    pub(super) fn body<'a, T: Layout>(
        &self,
        bytes: &'a [u8],
    ) -> Result<(&'a T::Raw, &'a [u8]), DecodeError> {
        let body = bytes.get(HEADER_LEN..).unwrap_or_default();
        T::Raw::ref_from_prefix(body).map_err(|_| {
            let kind = self
                .message_type()
                .map_or(MessageKind::LlcHeader, MessageType::kind);
            let needed = HEADER_LEN.saturating_add(T::LEN);
            kind.truncated("message", needed, bytes.len())
        })
    }
}

/// Finds the byte order of a peer from the first v2 message it sent in a link group.
///
/// `message` is what the receive completion delivered: the length field has to give its size in
/// one order only. `None` if it does so in both orders or in neither, and for v1 messages and
/// anything too short. Messages that echo a request (a TEST LINK response) carry the order of the
/// *requester*; the first message of a link group never is one.
///
/// Use the result for what is sent to this peer. What to use before anything arrived is for the
/// caller to choose (docs/spec/llc.md#byte-order).
///
/// ```
/// use smc_wire::llc::{ByteOrder, detect_order};
///
/// let mut message = [0; 44];
/// message[..4].copy_from_slice(&[0x21, 0x2C, 0x00, 0x03]);
/// assert_eq!(detect_order(&message), Some(ByteOrder::Little));
/// ```
#[must_use]
pub fn detect_order(message: &[u8]) -> Option<ByteOrder> {
    let [kind, high, low, ..] = *message else {
        return None;
    };
    if kind >> 4 != V2_NIBBLE {
        return None;
    }
    order_of_length([high, low], message.len())
}

/// The only order in which `field` reads as `size`.
fn order_of_length(field: [u8; 2], size: usize) -> Option<ByteOrder> {
    let fits = |order: ByteOrder| usize::from(order.u16(field)) == size;
    match (fits(ByteOrder::Big), fits(ByteOrder::Little)) {
        (true, false) => Some(ByteOrder::Big),
        (false, true) => Some(ByteOrder::Little),
        _ => None,
    }
}

/// Writes a message: header, body, and zeros up to the least size.
pub(super) fn emit(
    kind: MessageType,
    dialect: Dialect,
    flags: u8,
    body: &[&[u8]],
    buffer: &mut [u8],
) -> Result<usize, EmitError> {
    emit_reason(kind, dialect, (flags, RejectReason::NONE), body, buffer)
}

/// As [`emit`], with a reject reason.
pub(super) fn emit_reason(
    kind: MessageType,
    dialect: Dialect,
    (flags, reason): (u8, RejectReason),
    body: &[&[u8]],
    buffer: &mut [u8],
) -> Result<usize, EmitError> {
    let len = body
        .iter()
        .fold(HEADER_LEN, |sum, part| sum.saturating_add(part.len()))
        .max(MESSAGE_LEN);
    let mut out = Writer::new(kind.kind(), len, buffer)?;
    let length = wire_length(len);
    out.put(&match dialect {
        Dialect::V1 => {
            let [_, length] = length.to_be_bytes();
            [kind.byte(), length, reason.code(), flags]
        }
        Dialect::V2(order) => {
            let [first, second] = order.u16_bytes(length);
            let kind = V2_NIBBLE << 4 | kind.byte();
            [kind, first, second, flags | reason.code()]
        }
    })?;
    for part in body {
        out.put(*part)?;
    }
    out.pad();
    Ok(len)
}
