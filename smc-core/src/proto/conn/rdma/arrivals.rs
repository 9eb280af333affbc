use smc_wire::cdc::{CdcR, ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};

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
    sequence: u16,
    pub(super) producer: Cursor,
    pub(super) consumer: Cursor,
    state: StateFlags,
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
    /// drains their events and repeats the call. Otherwise the connection has to be aborted.
    Missed {
        /// Sequence number of the last CDC received.
        received: u16,
        /// Sequence number of the last CDC that was acknowledged to the peer.
        acknowledged: u16,
    },
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
        }
    }

    /// A CDC with the token of this connection was received, on any of the links.
    ///
    /// # Errors
    ///
    /// When a cursor is outside its ring or jumps: the connection has to be aborted. Nothing is
    /// changed then. [`RecvHalf`](crate::proto::conn::RecvHalf) checks whether the producer cursor
    /// passes the free space, and [`Transmit`](super::Transmit) whether the consumer cursor passes
    /// the data written.
    pub fn handle(&mut self, cdc: &CdcR) -> Result<Arrival, PeerMisbehaved> {
        let is_older = is_before(cdc.sequence, self.sequence);
        if cdc
            .producer_flags
            .contains(ProducerFlags::FAILOVER_VALIDATION)
        {
            return Ok(if is_before(self.sequence, cdc.sequence) {
                Arrival::Missed {
                    received: self.sequence,
                    acknowledged: cdc.sequence,
                }
            } else {
                Arrival::Validated
            });
        }
        if is_older {
            return Ok(Arrival::Stale);
        }
        let (producer, arrived) = newer(self.local, self.producer, cdc.producer)?;
        let (consumer, freed) = newer(self.peer, self.consumer, cdc.consumer)?;
        let state = cdc.state_flags.difference(self.state);
        self.sequence = cdc.sequence;
        self.producer = producer;
        self.consumer = consumer;
        self.state.insert(cdc.state_flags);
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
            requests_update: has(ProducerFlags::UPDATE_REQUESTED
                | ProducerFlags::URGENT_PENDING
                | ProducerFlags::URGENT_PRESENT),
        }))
    }

    /// Sequence number of the last accepted CDC, 0 if there was none.
    #[must_use]
    pub fn sequence(&self) -> u16 {
        self.sequence
    }
}

/// Whether `a` comes before `b`; sequence numbers wrap around.
fn is_before(a: u16, b: u16) -> bool {
    a.wrapping_sub(b) >= 0x8000
}
