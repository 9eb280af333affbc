//! The sending half of a connection: space in the peer's ring.

use smc_wire::cursor::{Cursor, Ring};

use crate::error::PeerMisbehaved;

/// State of the ring in the peer's memory, which this side writes.
#[derive(Clone, Debug)]
pub struct SendCursors {
    ring: Ring,
    producer: Cursor,
    peer_consumer: Cursor,
    /// Bytes written and, as far as known, not read by the peer.
    in_flight: u32,
    /// Count from which an empty ring is left before its end.
    early_wrap_min: u32,
    /// The peer's consumer cursor at the last early wrap, until it sends another one.
    left_at: Option<Cursor>,
}

impl SendCursors {
    /// An empty ring: the peer's element without its CDC block.
    #[must_use]
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            producer: Cursor::START,
            peer_consumer: Cursor::START,
            in_flight: 0,
            early_wrap_min: u32::MAX,
            left_at: None,
        }
    }

    /// With early wraps, if both ends know them ([`EARLY_WRAP_MIN`]).
    #[must_use]
    pub fn with_early_wrap(self, both_know: bool) -> Self {
        Self {
            early_wrap_min: early_wrap_min(both_know),
            ..self
        }
    }

    /// Bytes that may be written now.
    #[must_use]
    pub fn space(&self) -> u32 {
        self.ring.size().saturating_sub(self.in_flight)
    }

    /// Offset in the ring where the next byte goes.
    #[must_use]
    pub fn at(&self) -> u32 {
        self.producer.count
    }

    /// The peer's ring.
    #[must_use]
    pub fn ring(&self) -> Ring {
        self.ring
    }

    /// How far this side has written.
    #[must_use]
    pub fn producer(&self) -> Cursor {
        self.producer
    }

    /// `written` bytes were copied to [`SendCursors::at`]; a number above the space counts as the
    /// space.
    ///
    /// Returns the producer cursor to send to the peer.
    #[inline]
    pub fn commit(&mut self, written: u32) -> Cursor {
        let written = written.min(self.space());
        self.in_flight = self.in_flight.saturating_add(written);
        self.producer = self.ring.advance(self.producer, written);
        self.producer
    }

    /// A consumer cursor received from the peer. Returns how many bytes it freed.
    ///
    /// # Errors
    ///
    /// When the cursor is outside the ring, goes back, or passes what was written.
    #[inline]
    pub fn handle_consumer(&mut self, cursor: Cursor) -> Result<u32, PeerMisbehaved> {
        if self.left_at == Some(cursor) {
            return Ok(0);
        }
        let freed = self.ring.span(self.peer_consumer, cursor)?;
        self.in_flight = self
            .in_flight
            .checked_sub(freed)
            .ok_or(PeerMisbehaved::PassedTheData)?;
        self.peer_consumer = cursor;
        self.left_at = None;
        Ok(freed)
    }

    /// Continues at the start of the ring, if the peer has read everything, and if enough of the
    /// ring is behind. No reservation may be in use. Returns whether it does.
    pub fn wrap_early(&mut self) -> bool {
        if self.in_flight > 0 || self.producer.count < self.early_wrap_min {
            return false;
        }
        self.left_at = Some(self.peer_consumer);
        self.producer = after_early_wrap(self.producer);
        self.peer_consumer = self.producer;
        true
    }
}

/// Count from which the writer of an empty ring continues at its start, between two ends that both
/// do so (docs/spec/data-path.md#early-wrap). A ring of which less is in use at a time then has no
/// more pages in memory than that.
pub const EARLY_WRAP_MIN: u32 = 32 * 1024;

/// Count from which an empty ring is left before its end.
pub(super) fn early_wrap_min(both_know: bool) -> u32 {
    match both_know {
        true => EARLY_WRAP_MIN,
        false => u32::MAX,
    }
}

/// The start of the ring after an early wrap: two wraps on. By wrapping at the end of the ring the
/// producer is never that far from a consumer that has read everything.
pub(super) fn after_early_wrap(at: Cursor) -> Cursor {
    Cursor {
        wrap: at.wrap.wrapping_add(2),
        count: 0,
    }
}
