//! The receiving half of a connection: bytes to read, and when to update the peer.

use smc_wire::cdc::ProducerFlags;
use smc_wire::cursor::{Cursor, Ring};

use super::send::{REWIND_MIN, after_rewind, rewind_min};
use crate::error::PeerMisbehaved;

/// State of the local ring, which the peer writes.
#[derive(Clone, Debug)]
pub struct RecvCursors {
    ring: Ring,
    /// Progress, in bytes, above which an update is sent.
    least_update: u32,
    /// How far the peer has written, as its producer cursor states.
    pub(super) peer_producer: Cursor,
    consumer: Cursor,
    /// Arrived and not read yet.
    readable: u32,
    /// Bytes read for which the peer has not been sent the cursor.
    unconfirmed: u32,
    high_water: u32,
    /// Count from which the peer may leave the ring before its end, if it is empty.
    rewind_min: u32,
}

impl RecvCursors {
    /// An empty ring: the local element without its CDC block.
    #[must_use]
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            least_update: least_update(ring.size()),
            peer_producer: Cursor::START,
            consumer: Cursor::START,
            readable: 0,
            unconfirmed: 0,
            high_water: 0,
            rewind_min: u32::MAX,
        }
    }

    /// With rewinds, if the fabric allows them ([`REWIND_MIN`]).
    #[must_use]
    pub fn with_rewind(self, allowed: bool) -> Self {
        Self {
            rewind_min: rewind_min(allowed),
            ..self
        }
    }

    /// Bytes that can be read now.
    #[must_use]
    pub fn readable(&self) -> u32 {
        self.readable
    }

    /// Offset in the ring of the next byte to read.
    #[must_use]
    pub fn at(&self) -> u32 {
        self.consumer.count
    }

    /// The local ring.
    #[must_use]
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// How far the ring has been read.
    #[must_use]
    pub fn consumer(&self) -> Cursor {
        self.consumer
    }

    /// Bytes from the start of the ring that were ever readable; the whole ring after the peer has
    /// wrapped around.
    #[must_use]
    pub fn high_water(&self) -> u32 {
        self.high_water
    }

    /// A producer cursor received from the peer. Returns how many bytes arrived.
    ///
    /// # Errors
    ///
    /// When the cursor is outside the ring, goes back, or passes the space known to the peer.
    #[inline]
    pub fn handle_producer(&mut self, cursor: Cursor) -> Result<u32, PeerMisbehaved> {
        let arrived = match self.ring.span(self.peer_producer, cursor) {
            Ok(arrived) => arrived,
            Err(error) => self.handle_rewind(cursor).ok_or(error)?,
        };
        let used = self
            .readable
            .saturating_add(self.unconfirmed)
            .saturating_add(arrived);
        if used > self.ring.size() {
            return Err(PeerMisbehaved::PassedTheSpace);
        }
        self.readable = self.readable.saturating_add(arrived);
        self.high_water = match cursor.wrap == self.peer_producer.wrap {
            true => self.high_water.max(cursor.count),
            false => self.ring.size(),
        };
        self.peer_producer = cursor;
        Ok(arrived)
    }

    /// The bytes up to this producer cursor, if the peer has left the empty ring before its end.
    #[cold]
    fn handle_rewind(&mut self, cursor: Cursor) -> Option<u32> {
        let is_empty = self.readable == 0 && self.unconfirmed == 0;
        if self.rewind_min == u32::MAX || !is_empty {
            return None;
        }
        let start = after_rewind(self.peer_producer);
        let arrived = self.ring.span(start, cursor).ok()?;
        self.consumer = start;
        self.peer_producer = start;
        Some(arrived)
    }

    /// `read` bytes were taken from [`RecvCursors::at`]; a number above the readable bytes counts
    /// as all of them. Returns how many were taken.
    #[inline]
    pub fn consume(&mut self, read: u32) -> u32 {
        let read = read.min(self.readable);
        self.readable = self.readable.saturating_sub(read);
        self.unconfirmed = self.unconfirmed.saturating_add(read);
        self.consumer = self.ring.advance(self.consumer, read);
        read
    }

    /// Whether the consumer cursor should be sent to the peer now.
    ///
    /// This is so when more than a tenth of the ring was read since the last update and the peer
    /// either waits for space (`peer_blocked`) or knows of at most half of the ring as free. It is
    /// also so when everything was read, 4 KiB of it since the last update, and the peer may
    /// rewind. A peer that has requested an update, or has urgent data, gets one when everything
    /// is read as well.
    #[must_use]
    #[inline]
    pub fn is_update_due(&self, peer_blocked: bool) -> bool {
        if self.consumer.count >= self.rewind_min && self.readable == 0 {
            return self.unconfirmed >= REWIND_UPDATE_MIN;
        }
        if self.unconfirmed <= self.least_update {
            return false;
        }
        let size = self.ring.size();
        let known_free = size.saturating_sub(self.readable.saturating_add(self.unconfirmed));
        peer_blocked || known_free <= size / 2
    }

    /// Whether [`RecvCursors::is_update_due`] could be true while there is data to read; a cheap
    /// check.
    #[must_use]
    pub fn may_need_update(&self) -> bool {
        self.unconfirmed > self.least_update
    }

    /// Bytes read that the peer does not know of.
    #[must_use]
    pub fn unconfirmed(&self) -> u32 {
        self.unconfirmed
    }

    /// Returns the consumer cursor, which the caller sends to the peer.
    #[inline]
    pub fn confirm(&mut self) -> Cursor {
        self.unconfirmed = 0;
        self.consumer
    }

    /// Start of the used part of the ring, as far as the peer knows.
    #[must_use]
    pub fn confirmed(&self) -> Cursor {
        let Cursor { wrap, count } = self.consumer;
        match count.checked_sub(self.unconfirmed) {
            Some(count) => Cursor { wrap, count },
            None => Cursor {
                wrap: wrap.wrapping_sub(1),
                count: count
                    .saturating_add(self.ring.size())
                    .saturating_sub(self.unconfirmed),
            },
        }
    }

    /// [`RetainedWindow`](super::RetainedWindow) has confirmed `count` more bytes to the peer.
    pub fn confirm_retained(&mut self, count: u32) {
        self.unconfirmed = self.unconfirmed.saturating_sub(count);
    }
}

/// Bytes from the start of a ring in which there may be data of the peer, which has `written` so
/// far: at least `high_water`, and the whole ring if the peer has wrapped around since the position
/// `read`.
#[must_use]
pub fn used_length(ring: Ring, read: Cursor, high_water: u32, written: Cursor) -> u32 {
    let is_same_wrap = written.wrap == read.wrap || written.wrap == after_rewind(read).wrap;
    match is_same_wrap {
        true => high_water.max(written.count).min(ring.size()),
        false => ring.size(),
    }
}

/// Least progress, in bytes, for which the reader of an empty ring sends an update to let the peer
/// rewind: with a writer that is always ahead, few of them are useless.
pub(super) const REWIND_UPDATE_MIN: u32 = REWIND_MIN / 8;

/// Flags of a writer that needs an update when everything is read, however little that is: it has
/// requested one, or its urgent data waits for that (docs/spec/data-path.md#urgent-data).
pub const UPDATE_FLAGS: ProducerFlags = ProducerFlags::UPDATE_REQUESTED
    .union(ProducerFlags::URGENT_PENDING)
    .union(ProducerFlags::URGENT_PRESENT);

/// Progress, in bytes, above which an update is sent.
pub(super) fn least_update(size: u32) -> u32 {
    (size / 10).max(UPDATE_MIN.min(size / 2))
}

/// Least progress, in bytes, for which an update is sent (half of Linux's smallest send buffer;
/// docs/spec/data-path.md#window-update).
const UPDATE_MIN: u32 = 2304;
