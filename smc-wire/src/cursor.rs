//! Cursors: positions in a ring that both ends count the same way.
//!
//! A cursor is a count within the ring and a wrap number, so that an empty ring (same wrap, same
//! count) and a full one (same count, wraps differ) are distinct and every byte is usable
//! (docs/spec/cdc.md#cursor; RFC 7609 section 4).
//!
//! ```
//! use smc_wire::cursor::{Cursor, Ring};
//!
//! let ring = Ring::new(65_536).unwrap();
//! let consumer = Cursor::START;
//! let producer = ring.advance(consumer, 65_536);
//! assert_eq!(producer, Cursor { wrap: 1, count: 0 });
//! assert_eq!(ring.used(producer, consumer), 65_536);
//! assert_eq!(ring.free(producer, consumer), 0);
//! ```

use core::fmt;
use core::num::NonZero;

use thiserror::Error;

/// A position in a ring of known size.
///
/// As a message carries it; [`Ring::check`] checks whether it is one that the ring can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Cursor {
    /// How often the count has passed the end of the ring, modulo 65536.
    pub wrap: u16,
    /// Bytes from the start of the ring, below its size.
    pub count: u32,
}

impl Cursor {
    /// Where both cursors of a new connection are.
    pub const START: Self = Self { wrap: 0, count: 0 };

    /// True if this cursor, just received, lies behind the one already known.
    ///
    /// The rule of Linux for SMC-R: the wrap is smaller and not zero, or the wrap is equal and the
    /// count smaller. A new wrap of zero always counts as a wrap-around. A receiver keeps the
    /// known cursor in that case and uses the rest of the message.
    #[inline]
    #[must_use]
    pub const fn is_behind(self, known: Self) -> bool {
        (self.wrap < known.wrap && self.wrap != 0)
            || (self.wrap == known.wrap && self.count < known.count)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.wrap, self.count)
    }
}

/// Size of a ring in bytes, and the arithmetic of cursors in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ring(NonZero<u32>);

impl Ring {
    /// A ring of this many usable bytes; `None` for zero.
    #[must_use]
    pub const fn new(size: u32) -> Option<Self> {
        match NonZero::new(size) {
            Some(size) => Some(Self(size)),
            None => None,
        }
    }

    /// For sizes that come from a size code and hence are never zero.
    pub(crate) fn from_size_code(size: u32) -> Self {
        Self(NonZero::new(size).unwrap_or(NonZero::<u32>::MIN))
    }

    /// Usable bytes.
    #[inline]
    #[must_use]
    pub const fn size(self) -> u32 {
        self.0.get()
    }

    /// The cursor `by` bytes further on.
    ///
    /// A count that reaches the size becomes count 0 of the next wrap.
    #[inline]
    #[must_use]
    pub const fn advance(self, from: Cursor, by: u32) -> Cursor {
        let size = self.size();
        let until_end = size.saturating_sub(from.count);
        if by < until_end {
            return Cursor {
                wrap: from.wrap,
                count: from.count.wrapping_add(by),
            };
        }
        let past_end = by.wrapping_sub(until_end);
        if past_end < size {
            return Cursor {
                wrap: from.wrap.wrapping_add(1),
                count: past_end,
            };
        }
        // More than one ring: no caller does that, but the result is still right.
        let (Some(turns), Some(count)) = (past_end.checked_div(size), past_end.checked_rem(size))
        else {
            return from;
        };
        let [_, _, hi, lo] = turns.to_be_bytes();
        let wraps = u16::from_be_bytes([hi, lo]).wrapping_add(1);
        Cursor {
            wrap: from.wrap.wrapping_add(wraps),
            count,
        }
    }

    /// Where `len` bytes from offset `at` are: up to the end of the ring, and on from its start.
    ///
    /// For `at` below the size and at most one ring of bytes. The second span is empty unless they
    /// wrap around.
    ///
    /// ```
    /// let ring = smc_wire::cursor::Ring::new(10).unwrap();
    /// let [first, second] = ring.spans(8, 5);
    /// assert_eq!((first.at, first.len), (8, 2));
    /// assert_eq!((second.at, second.len), (0, 3));
    /// ```
    #[inline]
    #[must_use]
    pub const fn spans(self, at: u32, len: u32) -> [Span; 2] {
        let until_end = self.size().saturating_sub(at);
        let (first, second) = match len.checked_sub(until_end) {
            Some(rest) => (until_end, rest),
            None => (len, 0),
        };
        [Span { at, len: first }, Span { at: 0, len: second }]
    }

    /// Bytes from `consumer` to `producer`, at most the size of the ring.
    ///
    /// For cursors that are at most one ring apart, which [`span`](Self::span) verifies. Others
    /// are cut at the size, and a producer behind its consumer in the same wrap counts as 0.
    #[inline]
    #[must_use]
    pub fn used(self, producer: Cursor, consumer: Cursor) -> u32 {
        if producer.wrap == consumer.wrap {
            return producer
                .count
                .saturating_sub(consumer.count)
                .min(self.size());
        }
        let until_end = self.size().saturating_sub(consumer.count);
        until_end.saturating_add(producer.count).min(self.size())
    }

    /// Bytes that the producer may still write.
    #[inline]
    #[must_use]
    pub fn free(self, producer: Cursor, consumer: Cursor) -> u32 {
        self.size().saturating_sub(self.used(producer, consumer))
    }

    /// Accepts a cursor whose count lies inside of the ring.
    ///
    /// # Errors
    ///
    /// [`CursorError::OutsideRing`], on which a receiver aborts the connection.
    #[inline]
    pub const fn check(self, cursor: Cursor) -> Result<Cursor, CursorError> {
        if cursor.count < self.size() {
            Ok(cursor)
        } else {
            Err(CursorError::OutsideRing {
                cursor,
                size: self.size(),
            })
        }
    }

    /// Bytes from `old` to `new`, if both are in the ring and `new` is at most one ring ahead.
    ///
    /// The strict form of [`used`](Self::used) for values that a peer controls. Used with
    /// a consumer cursor as `old` and a producer cursor as `new` it yields the bytes to read.
    ///
    /// # Errors
    ///
    /// [`CursorError::OutsideRing`] for either cursor, and [`CursorError::Jump`] if `new` lies
    /// behind `old` or more than one ring ahead of it.
    #[inline]
    pub fn span(self, old: Cursor, new: Cursor) -> Result<u32, CursorError> {
        self.check(old)?;
        self.check(new)?;
        let jump = CursorError::Jump {
            from: old,
            to: new,
            size: self.size(),
        };
        match new.wrap.wrapping_sub(old.wrap) {
            0 => new.count.checked_sub(old.count).ok_or(jump),
            1 if new.count <= old.count => Ok(self.used(new, old)),
            _ => Err(jump),
        }
    }
}

/// Bytes that follow each other in a ring, without wrap-around.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// Offset of the first byte.
    pub at: u32,
    /// Number of bytes.
    pub len: u32,
}

/// A cursor that the ring cannot have; a peer that sends one gets its connection aborted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[non_exhaustive]
pub enum CursorError {
    /// The count is not below the size of the ring.
    #[error("cursor {cursor} lies outside of a ring of {size} bytes")]
    OutsideRing {
        /// The cursor.
        cursor: Cursor,
        /// Size of the ring in bytes.
        size: u32,
    },
    /// The cursor moved backwards or by more than one ring.
    #[error("cursor went from {from} to {to}, not forward within {size} bytes")]
    Jump {
        /// The cursor known before.
        from: Cursor,
        /// The new one.
        to: Cursor,
        /// Size of the ring in bytes.
        size: u32,
    },
}

#[cfg(test)]
mod tests;
