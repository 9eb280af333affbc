//! The CDC message of SMC-R.

use core::fmt;

use zerocopy::network_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::flags::{ProducerFlags, StateFlags};
use crate::cursor::Cursor;
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::llc::MESSAGE_LEN;
use crate::types::AlertToken;

/// CDC message of SMC-R, 44 bytes (docs/spec/cdc.md#cdc-message; RFC 7609 appendix A.4).
///
/// Emitting writes zeros into the reserved fields.
///
/// ```
/// use smc_wire::cdc::CdcR;
/// use smc_wire::cursor::Cursor;
/// use smc_wire::types::AlertToken;
///
/// let cdc = CdcR {
///     producer: Cursor { wrap: 0, count: 1000 },
///     ..CdcR::new(1, AlertToken::new(7).unwrap())
/// };
/// assert_eq!(CdcR::parse(&cdc.to_bytes()), Ok(cdc));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CdcR {
    /// Counts the messages of a connection in one direction: 1 first, 65535 is followed by 0.
    pub sequence: u16,
    /// The token that the receiver of this message announced for the connection.
    pub token: AlertToken,
    /// How far the sender has written into the receiver's RMB element (ring: the receiver's).
    pub producer: Cursor,
    /// How far the sender has read in its own RMB element (ring: the sender's).
    pub consumer: Cursor,
    /// Byte 24.
    pub producer_flags: ProducerFlags,
    /// Byte 25.
    pub state_flags: StateFlags,
}

impl CdcR {
    /// Bytes on the wire: as many as an LLC message has.
    pub const LEN: usize = MESSAGE_LEN;
    /// The leading bytes that mean something; a receiver drops anything shorter.
    pub const SIGNIFICANT_LEN: usize = 26;
    /// The first byte, which tells a CDC from LLC messages on the same queue pair.
    pub const TYPE: u8 = 0xfe;

    /// A message with both cursors at the start and no flags.
    #[must_use]
    pub const fn new(sequence: u16, token: AlertToken) -> Self {
        Self {
            sequence,
            token,
            producer: Cursor::START,
            consumer: Cursor::START,
            producer_flags: ProducerFlags::empty(),
            state_flags: StateFlags::empty(),
        }
    }

    /// A failover validation: only sequence number and token are filled.
    ///
    /// `sequence` is that of the last CDC whose transmission completed on the old link; Linux says
    /// one less.
    #[must_use]
    pub const fn failover(sequence: u16, token: AlertToken) -> Self {
        Self {
            producer_flags: ProducerFlags::FAILOVER_VALIDATION,
            ..Self::new(sequence, token)
        }
    }

    /// Reads a received message. Shorthand for [`CdcRView::parse`] and [`CdcRView::to_repr`].
    ///
    /// # Errors
    ///
    /// As [`CdcRView::parse`].
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        CdcRView::parse(bytes).map(|view| view.to_repr())
    }

    /// The 44 bytes of the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(self.to_raw())
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let got = buffer.len();
        self.to_raw()
            .write_to_prefix(buffer)
            .map_err(|_| EmitError::BufferTooSmall {
                message: MessageKind::CdcR,
                needed: Self::LEN,
                got,
            })?;
        Ok(Self::LEN)
    }

    fn to_raw(self) -> Raw {
        Raw {
            head: RawHead {
                kind: Self::TYPE,
                length: RawHead::LENGTH,
                sequence: self.sequence.into(),
                token: self.token.get().into(),
                producer: RawCursor::new(self.producer),
                consumer: RawCursor::new(self.consumer),
                producer_flags: self.producer_flags.bits(),
                state_flags: self.state_flags.bits(),
            },
            reserved: [0; 18],
        }
    }
}

impl fmt::Display for CdcR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CDC seq {} token {} prod {} cons {} flags {} {}",
            self.sequence,
            self.token,
            self.producer,
            self.consumer,
            self.producer_flags,
            self.state_flags
        )
    }
}

/// A received CDC message, checked once; reserved bytes stay visible through
/// [`as_bytes`](Self::as_bytes).
#[derive(Debug, Clone, Copy)]
pub struct CdcRView<'a> {
    bytes: &'a [u8],
    head: &'a RawHead,
}

impl<'a> CdcRView<'a> {
    /// Checks the type byte, the length byte and that the 26 significant bytes are there.
    ///
    /// Cursors are not checked: their ring is not known here, see
    /// [`Ring::check`](crate::cursor::Ring::check).
    ///
    /// # Errors
    ///
    /// [`DecodeError`] for anything a receiver has to drop: fewer than 26 bytes, a type other than
    /// `0xFE`, a length byte other than 44.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let fail = |field, offset, kind| DecodeError::new(MessageKind::CdcR, field, offset, kind);
        let Ok((head, _)) = RawHead::ref_from_prefix(bytes) else {
            let kind = DecodeErrorKind::Truncated {
                needed: CdcR::SIGNIFICANT_LEN,
                got: bytes.len(),
            };
            return Err(fail("message", 0, kind));
        };
        if head.kind != CdcR::TYPE {
            let kind = DecodeErrorKind::Value {
                expected: "0xfe",
                got: head.kind.into(),
            };
            return Err(fail("type", 0, kind));
        }
        if head.length != RawHead::LENGTH {
            let kind = DecodeErrorKind::Length {
                expected: CdcR::LEN,
                got: head.length.into(),
            };
            return Err(fail("length", 1, kind));
        }
        Ok(Self { bytes, head })
    }

    /// The bytes this view was made from.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The contents without reserved fields.
    #[must_use]
    pub fn to_repr(&self) -> CdcR {
        CdcR {
            sequence: self.head.sequence.get(),
            token: AlertToken::from_wire(self.head.token.get()),
            producer: self.head.producer.get(),
            consumer: self.head.consumer.get(),
            producer_flags: ProducerFlags::from_bits_retain(self.head.producer_flags),
            state_flags: StateFlags::from_bits_retain(self.head.state_flags),
        }
    }
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct Raw {
    head: RawHead,
    reserved: [u8; 18],
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHead {
    kind: u8,
    length: u8,
    sequence: U16,
    token: U32,
    producer: RawCursor,
    consumer: RawCursor,
    producer_flags: u8,
    state_flags: u8,
}

impl RawHead {
    /// The value of the length byte.
    const LENGTH: u8 = 44;
}

#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawCursor {
    reserved: [u8; 2],
    wrap: U16,
    count: U32,
}

impl RawCursor {
    fn new(cursor: Cursor) -> Self {
        Self {
            reserved: [0; 2],
            wrap: cursor.wrap.into(),
            count: cursor.count.into(),
        }
    }

    fn get(&self) -> Cursor {
        Cursor {
            wrap: self.wrap.get(),
            count: self.count.get(),
        }
    }
}

const _: () = assert!(size_of::<Raw>() == CdcR::LEN);
const _: () = assert!(size_of::<RawHead>() == CdcR::SIGNIFICANT_LEN);
