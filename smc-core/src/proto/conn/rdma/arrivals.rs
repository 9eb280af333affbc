//! Checks of received CDC messages: their order, and failover validation.

use smc_wire::cdc::{CdcR, ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};

use super::super::UPDATE_FLAGS;
use super::position::newer;
use crate::error::PeerMisbehaved;

/// The receiving side of one SMC-R connection: finds out which parts of a received CDC are new.
///
/// When a connection moves between links, a CDC may arrive twice, late or not at all. Sequence
/// number and cursors are therefore compared with the known values
/// (docs/spec/data-path.md#receiving).
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// The local element, in which the peer's producer cursor counts.
    local: Ring,
    /// The peer's element, in which its consumer cursor counts.
    peer: Ring,
    /// Sequence number of the last accepted CDC, 0 if there was none.
    pub(super) sequence: u16,
    pub(super) producer: Cursor,
    pub(super) consumer: Cursor,
    state: StateFlags,
    gap: Gap,
}

/// Whether a CDC is missing that the peer knows to have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gap {
    None,
    /// The sequence number of the last one.
    Missing(u16),
    Lost,
}

/// Result of a received CDC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// Older than a CDC that was received before: no action.
    Stale,
    /// The peer moved the connection to the link on which this CDC arrived, and no CDC is missing:
    /// no action.
    Validated,
    /// The peer moved the connection, and a CDC whose transmission was acknowledged has not
    /// arrived.
    ///
    /// The CDC may still be among the events of another device: a caller that uses several devices
    /// drains their events, and if the CDC is still [missing](Arrivals::missing) then, calls
    /// [`Arrivals::give_up`] and aborts the connection.
    Missed {
        /// Sequence number of the last CDC received.
        received: u16,
        /// Sequence number of the last CDC that was acknowledged to the peer.
        acknowledged: u16,
    },
    /// A CDC before this one is missing: no action. Repeat the call when none is
    /// [missing](Arrivals::missing) any more.
    Held,
    /// The CDC is accepted, and its values may be new.
    Update(CdcUpdate),
}

/// Values of an accepted CDC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CdcUpdate {
    /// Store this word first.
    pub producer: ProducerWord,
    /// Store this word second. Pass its cursor to
    /// [`Transmit::handle_peer`](super::Transmit::handle_peer).
    pub consumer: ConsumerWord,
    /// Bytes that arrived.
    pub arrived: u32,
    /// Bytes that the peer has read.
    pub freed: u32,
    /// State flags that were not set before.
    pub state: StateFlags,
    /// Corked data should be posted now ([`Transmit::uncork`](super::Transmit::uncork)).
    pub uncork: bool,
    /// The peer has urgent data or requests an update: after everything is read, the consumer
    /// cursor has to be sent, however little was read.
    pub requests_update: bool,
}

impl Arrivals {
    /// A connection on which nothing was received. `local` is the ring in the local RMB, `peer` the
    /// ring in the peer's RMB.
    #[must_use]
    pub fn new(local: Ring, peer: Ring) -> Self {
        Self {
            local,
            peer,
            sequence: 0,
            producer: Cursor::START,
            consumer: Cursor::START,
            state: StateFlags::empty(),
            gap: Gap::None,
        }
    }

    /// As [`Arrivals::new`], where `early` bytes at the start of the local ring were received with
    /// the handshake: fewer than the ring has.
    #[must_use]
    pub fn behind(self, early: u32) -> Self {
        Self {
            producer: self.local.advance(Cursor::START, early),
            ..self
        }
    }

    /// A CDC with the token of this connection was received, on any of the links.
    ///
    /// # Errors
    ///
    /// When a cursor is outside its ring or jumps: the connection has to be aborted. Nothing is
    /// changed then. [`RecvCursors`](crate::proto::conn::RecvCursors) checks whether the producer
    /// cursor passes the free space, and [`Transmit`](super::Transmit) whether the consumer cursor
    /// passes the data written.
    pub fn handle(&mut self, cdc: &CdcR) -> Result<Arrival, PeerMisbehaved> {
        let flags = cdc.producer_flags;
        let is_validation = flags.contains(ProducerFlags::FAILOVER_VALIDATION);
        let kept;
        let cdc = match self.gap {
            Gap::Missing(missing) if is_validation || is_before(missing, cdc.sequence) => {
                return Ok(Arrival::Held);
            }
            Gap::Lost if is_validation => return Ok(Arrival::Stale),
            // Data behind the lost one must not be read, but the peer's close counts.
            Gap::Lost => {
                kept = CdcR {
                    producer: self.producer,
                    consumer: self.consumer,
                    producer_flags: ProducerFlags::empty(),
                    ..*cdc
                };
                &kept
            }
            Gap::None | Gap::Missing(_) => cdc,
        };
        if is_validation && is_before(self.sequence, cdc.sequence) {
            self.gap = Gap::Missing(cdc.sequence);
            return Ok(Arrival::Missed {
                received: self.sequence,
                acknowledged: cdc.sequence,
            });
        }
        if is_validation {
            return Ok(Arrival::Validated);
        }
        if is_before(cdc.sequence, self.sequence) {
            return Ok(Arrival::Stale);
        }
        let (producer, arrived) = newer(self.local, self.producer, cdc.producer)?;
        let (consumer, freed) = newer(self.peer, self.consumer, cdc.consumer)?;
        let state = cdc.state_flags.difference(self.state);
        self.sequence = cdc.sequence;
        self.producer = producer;
        self.consumer = consumer;
        self.state.insert(cdc.state_flags);
        let is_missing = |missing| is_before(self.sequence, missing);
        if self.missing().is_some_and(|missing| !is_missing(missing)) {
            self.gap = Gap::None;
        }
        let has = |flags| cdc.producer_flags.intersects(flags);
        Ok(Arrival::Update(CdcUpdate {
            producer: ProducerWord { cursor: producer },
            consumer: ConsumerWord {
                cursor: consumer,
                producer_flags: cdc.producer_flags,
                state_flags: cdc.state_flags,
            },
            arrived,
            freed,
            state,
            uncork: freed > 0
                || has(ProducerFlags::UPDATE_REQUESTED | ProducerFlags::URGENT_PENDING),
            requests_update: has(UPDATE_FLAGS),
        }))
    }

    /// The peer's producer cursor.
    #[must_use]
    pub const fn producer(&self) -> Cursor {
        self.producer
    }

    /// Sequence number of the CDC that is missing: from [`Arrival::Missed`] on, until it has
    /// arrived, or [`Arrivals::give_up`] was called.
    #[must_use]
    pub fn missing(&self) -> Option<u16> {
        match self.gap {
            Gap::Missing(missing) => Some(missing),
            Gap::None | Gap::Lost => None,
        }
    }

    /// The missing CDC does not arrive any more, and the connection is aborted. From now on only
    /// the state flags of the peer count.
    pub fn give_up(&mut self) {
        self.gap = Gap::Lost;
    }
}

/// Whether `a` comes before `b`; sequence numbers wrap around.
fn is_before(a: u16, b: u16) -> bool {
    a.wrapping_sub(b) >= 0x8000
}
