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
    rewind_min: u32,
    /// The peer's consumer cursor at the last rewind, until it sends another one.
    before_rewind: Option<Cursor>,
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
            rewind_min: u32::MAX,
            before_rewind: None,
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

    /// With the first `early` bytes of the stream in the ring already: the peer has received them
    /// with the handshake.
    #[must_use]
    pub fn behind(mut self, early: u32) -> Self {
        self.commit(early);
        self
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
        if self.before_rewind == Some(cursor) {
            return Ok(0);
        }
        let freed = self.ring.span(self.peer_consumer, cursor)?;
        self.in_flight = self
            .in_flight
            .checked_sub(freed)
            .ok_or(PeerMisbehaved::PassedTheData)?;
        self.peer_consumer = cursor;
        self.before_rewind = None;
        Ok(freed)
    }

    /// Continues at the start of the ring, if the peer has read everything, and if enough of the
    /// ring is behind. No reservation may be in use. Returns whether it does.
    pub fn rewind(&mut self) -> bool {
        if self.in_flight > 0 || self.producer.count < self.rewind_min {
            return false;
        }
        self.before_rewind = Some(self.peer_consumer);
        self.producer = after_rewind(self.producer);
        self.peer_consumer = self.producer;
        true
    }
}

/// Count from which the writer of an empty ring continues at its start, between two ends that both
/// do so (docs/spec/data-path.md#rewind). A ring of which less is in use at a time then has no
/// more pages in memory than that.
pub const REWIND_MIN: u32 = 32 * 1024;

/// Count from which an empty ring is left before its end.
pub(super) fn rewind_min(allowed: bool) -> u32 {
    match allowed {
        true => REWIND_MIN,
        false => u32::MAX,
    }
}

/// The start of the ring after a rewind: two wraps on. By wrapping at the end of the ring the
/// producer is never that far from a consumer that has read everything.
pub(super) fn after_rewind(at: Cursor) -> Cursor {
    Cursor {
        wrap: at.wrap.wrapping_add(2),
        count: 0,
    }
}
