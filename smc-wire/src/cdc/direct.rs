//! The CDC block of SMC-D and its two 64-bit words.

use core::fmt;
use core::mem::offset_of;

use super::CdcR;
use super::flags::{ProducerFlags, StateFlags};
use super::rdma::TYPE;
use crate::cursor::Cursor;
use crate::error::{DecodeError, MessageKind};
use crate::layout::Show::{Cursor as CursorField, Reserved};
use crate::layout::{FieldType, Layout, layouts};

/// Byte order of an SMC-D CDC block: that of the machine both peers run on.
///
/// Everything but tests and tools uses [`NATIVE`](Self::NATIVE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "there are no other byte orders")]
pub enum ByteOrder {
    /// Least significant byte first (x86-64, arm64).
    Little,
    /// Most significant byte first (s390x).
    Big,
}

impl ByteOrder {
    /// The order of this machine.
    pub const NATIVE: Self = if cfg!(target_endian = "big") {
        Self::Big
    } else {
        Self::Little
    };

    pub(crate) const fn u16(self, bytes: [u8; 2]) -> u16 {
        match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        }
    }

    pub(crate) const fn u16_bytes(self, value: u16) -> [u8; 2] {
        match self {
            Self::Little => value.to_le_bytes(),
            Self::Big => value.to_be_bytes(),
        }
    }

    fn u32(self, bytes: [u8; 4]) -> u32 {
        match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        }
    }

    pub(crate) fn cursor(self, bytes: [u8; 6]) -> Cursor {
        let [a, b, count @ ..] = bytes;
        Cursor {
            wrap: self.u16([a, b]),
            count: self.u32(count),
        }
    }

    pub(crate) fn cursor_bytes(self, cursor: Cursor) -> [u8; 6] {
        let (wrap, count) = match self {
            Self::Little => (cursor.wrap.to_le_bytes(), cursor.count.to_le_bytes()),
            Self::Big => (cursor.wrap.to_be_bytes(), cursor.count.to_be_bytes()),
        };
        let ([a, b], [c, d, e, f]) = (wrap, count);
        [a, b, c, d, e, f]
    }
}

/// The word at offset 8 of the CDC block: how far the writer of the block has written.
///
/// The two flag bytes that follow the cursor here are unused; only those of [`ConsumerWord`] count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ProducerWord {
    /// Position in the payload ring of this DMB element.
    pub cursor: Cursor,
}

impl ProducerWord {
    /// Offset of the word in the block, in bytes.
    pub const OFFSET: usize = offset_of!(Block, producer);

    /// From the word as a native 64-bit load yields it.
    #[inline]
    #[must_use]
    pub fn from_ne(word: u64) -> Self {
        let (cursor, _) = split(word);
        Self { cursor }
    }

    /// The word as a native 64-bit store takes it; the flag bytes are zero.
    #[inline]
    #[must_use]
    pub fn to_ne(self) -> u64 {
        join(self.cursor, [0; 2])
    }
}

/// The word at offset 16 of the CDC block: how far its writer has read, and all flags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ConsumerWord {
    /// Position in the payload ring of the writer's own DMB element.
    pub cursor: Cursor,
    /// Byte 22 of the block.
    pub producer_flags: ProducerFlags,
    /// Byte 23 of the block.
    pub state_flags: StateFlags,
}

impl ConsumerWord {
    /// Offset of the word in the block, in bytes.
    pub const OFFSET: usize = offset_of!(Block, consumer);

    /// From the word as a native 64-bit load yields it.
    #[inline]
    #[must_use]
    pub fn from_ne(word: u64) -> Self {
        let (cursor, [producer_flags, state_flags]) = split(word);
        Self {
            cursor,
            producer_flags: ProducerFlags::from_bits_retain(producer_flags),
            state_flags: StateFlags::from_bits_retain(state_flags),
        }
    }

    /// The word as a native 64-bit store takes it.
    #[inline]
    #[must_use]
    pub fn to_ne(self) -> u64 {
        let flags = [self.producer_flags.bits(), self.state_flags.bits()];
        join(self.cursor, flags)
    }
}

/// The cursor and the two flag bytes of a word.
#[inline]
fn split(word: u64) -> (Cursor, [u8; 2]) {
    let [cursor @ .., producer_flags, state_flags] = word.to_ne_bytes();
    let flags = [producer_flags, state_flags];
    (ByteOrder::NATIVE.cursor(cursor), flags)
}

/// The word with a cursor and two flag bytes.
#[inline]
fn join(cursor: Cursor, [producer_flags, state_flags]: [u8; 2]) -> u64 {
    let [a, b, c, d, e, f] = ByteOrder::NATIVE.cursor_bytes(cursor);
    u64::from_ne_bytes([a, b, c, d, e, f, producer_flags, state_flags])
}

layouts! {
    /// CDC block of SMC-D, in the byte order of the machine.
    pub(crate) struct Block: 32 {
        kind as "type": u8 => TYPE,
        reserved_1: [u8; 7] => Reserved,
        producer: [u8; 6] => CursorField,
        unused_producer_flags: u8 => Reserved,
        unused_state_flags: u8 => Reserved,
        consumer: [u8; 6] => CursorField,
        producer_flags: u8 => ProducerFlags::SHOW,
        state_flags: u8 => StateFlags::SHOW,
        reserved_24: [u8; 8] => Reserved,
    }
}

/// CDC block of SMC-D, 32 bytes at the start of a DMB element (docs/spec/cdc.md#cdc-block).
///
/// Over shared memory each word is stored with release ordering, [`ProducerWord`] behind the
/// payload, the flags of an end behind the last [`ProducerWord`]; then the peer is notified. The
/// two words are not atomic with respect to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CdcD {
    /// How far the writer of the block has written into this DMB element.
    pub producer: Cursor,
    /// How far the writer of the block has read in its own DMB element.
    pub consumer: Cursor,
    /// Byte 22. [`ProducerFlags::FAILOVER_VALIDATION`] is not used with SMC-D.
    pub producer_flags: ProducerFlags,
    /// Byte 23.
    pub state_flags: StateFlags,
}

impl CdcD {
    /// Bytes in the DMB element; payload begins behind them.
    pub const LEN: usize = Block::LEN;
    /// The first byte; written, never checked.
    pub const TYPE: u8 = CdcR::TYPE;

    /// Reads a block in the given byte order. Bytes past the 32nd are ignored.
    ///
    /// Neither the type byte nor the cursors are checked; for the latter see
    /// [`Ring::check`](crate::cursor::Ring::check).
    ///
    /// # Errors
    ///
    /// [`Truncated`](crate::DecodeErrorKind::Truncated) below 32 bytes.
    pub fn parse(bytes: &[u8], order: ByteOrder) -> Result<Self, DecodeError> {
        let Some((block, _)) = bytes.split_first_chunk::<{ Self::LEN }>() else {
            return Err(MessageKind::CdcD.truncated("block", Self::LEN, bytes.len()));
        };
        Ok(Self::from_bytes(block, order))
    }

    /// Reads a block in the given byte order.
    #[inline]
    #[must_use]
    pub fn from_bytes(block: &[u8; Self::LEN], order: ByteOrder) -> Self {
        let raw: &Block = zerocopy::transmute_ref!(block);
        Self {
            producer: order.cursor(raw.producer),
            consumer: order.cursor(raw.consumer),
            producer_flags: ProducerFlags::from_bits_retain(raw.producer_flags),
            state_flags: StateFlags::from_bits_retain(raw.state_flags),
        }
    }

    /// The whole block in the given byte order, reserved bytes zero.
    #[inline]
    #[must_use]
    pub fn to_bytes(&self, order: ByteOrder) -> [u8; Self::LEN] {
        zerocopy::transmute!(Block {
            kind: Self::TYPE,
            reserved_1: [0; 7],
            producer: order.cursor_bytes(self.producer),
            unused_producer_flags: 0,
            unused_state_flags: 0,
            consumer: order.cursor_bytes(self.consumer),
            producer_flags: self.producer_flags.bits(),
            state_flags: self.state_flags.bits(),
            reserved_24: [0; 8],
        })
    }
}

impl fmt::Display for CdcD {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CDC prod {} cons {} flags {} {}",
            self.producer, self.consumer, self.producer_flags, self.state_flags
        )
    }
}
