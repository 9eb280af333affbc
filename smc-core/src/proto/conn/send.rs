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
        let freed = self.ring.span(self.peer_consumer, cursor)?;
        self.in_flight = self
            .in_flight
            .checked_sub(freed)
            .ok_or(PeerMisbehaved::PassedTheData)?;
        self.peer_consumer = cursor;
        Ok(freed)
    }
}
