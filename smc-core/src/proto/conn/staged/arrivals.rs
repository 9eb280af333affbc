use smc_wire::cdc::{CdcR, ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};

use super::position::newer;
use crate::error::PeerMisbehaved;

/// The receiving side of one SMC-R connection: what of a CDC is news.
///
/// CDCs come twice, late or not at all when a connection moves between links, so that sequence
/// number and cursors are compared with what is known
/// (docs/spec/data-path.md#receiving).
#[derive(Clone, Debug)]
pub struct Arrivals {
    /// Our element, which the peer's producer cursor is about.
    local: Ring,
    /// The peer's element, which its consumer cursor is about.
    peer: Ring,
    sequence: u16,
    producer: Cursor,
    consumer: Cursor,
    state: StateFlags,
}

/// What a CDC comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Arrival {
    /// Older than one that was received before: nothing to do.
    Stale,
    /// The peer moved the connection to the link that this came on, and we miss nothing: nothing
    /// to do.
    Validated,
    /// The peer moved the connection, and a CDC whose transmission was acknowledged is not here.
    ///
    /// It may still be among the events of another device: a caller that uses several drains them
    /// and asks again. Otherwise the connection has to be aborted.
    Missed {
        /// Sequence number of the last CDC received.
        received: u16,
        /// That of the last one the peer says to know to have arrived.
        acknowledged: u16,
    },
    /// Something may be new.
    News(News),
}

/// What the peer says now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct News {
    /// To be stored first.
    pub producer: ProducerWord,
    /// To be stored second. Its cursor is what
    /// [`Transmit::handle_peer`](super::Transmit::handle_peer) gets.
    pub consumer: ConsumerWord,
    /// Bytes that arrived.
    pub arrived: u32,
    /// Bytes that the peer has read.
    pub freed: u32,
    /// State flags that were not set before.
    pub state: StateFlags,
    /// A reader has something to look at: data, an end, or a peer that waits for space.
    pub wakes_reader: bool,
    /// Held data should go now ([`Transmit::uncork`](super::Transmit::uncork)).
    pub wants_push: bool,
    /// The peer has urgent data or asks for an update: once everything is read, the consumer
    /// cursor has to be shown, however little was read.
    pub wants_update: bool,
}

impl Arrivals {
    /// A connection on which nothing was received. `local` is the ring in our RMB, `peer` the one
    /// in the peer's.
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

    /// A CDC with the token of this connection was received, on whatever link.
    ///
    /// # Errors
    ///
    /// When a cursor is outside its ring or jumps: the connection has to be aborted. Whether the
    /// producer cursor passes the free space is left to
    /// [`RecvHalf`](crate::proto::conn::RecvHalf), and whether the consumer cursor passes what was
    /// written to [`Transmit`](super::Transmit). Nothing is changed then.
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
        Ok(Arrival::News(News {
            producer: ProducerWord { cursor: producer },
            consumer: ConsumerWord {
                cursor: consumer,
                producer_flags: cdc.producer_flags,
                state_flags: cdc.state_flags,
            },
            arrived,
            freed,
            state,
            wakes_reader: arrived > 0 || !state.is_empty() || has(ProducerFlags::WRITER_BLOCKED),
            wants_push: freed > 0
                || has(ProducerFlags::UPDATE_REQUESTED | ProducerFlags::URGENT_PENDING),
            wants_update: has(ProducerFlags::UPDATE_REQUESTED
                | ProducerFlags::URGENT_PENDING
                | ProducerFlags::URGENT_PRESENT),
        }))
    }

    /// Sequence number of the last CDC that counted, 0 if there was none.
    #[must_use]
    pub fn sequence(&self) -> u16 {
        self.sequence
    }

    /// How far the peer says it has written.
    #[must_use]
    pub fn producer(&self) -> Cursor {
        self.producer
    }

    /// How far the peer says it has read.
    #[must_use]
    pub fn consumer(&self) -> Cursor {
        self.consumer
    }
}

/// Whether `a` comes before `b` in the order of sequence numbers, which go round.
fn is_before(a: u16, b: u16) -> bool {
    a.wrapping_sub(b) >= 0x8000
}
