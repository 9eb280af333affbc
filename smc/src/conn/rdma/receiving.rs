//! The receiving side of an SMC-R connection: CDC messages of the peer, in the order in which they
//! count.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use smc_wire::cdc::{CdcR, ProducerFlags, ProducerWord, StateFlags};

use super::super::super::device_driver::AfterDrain;
use super::super::len_u32;
use super::RdmaConn;
use crate::error::{CloseReason, Error, PeerMisbehaved};
use crate::mem::sync::Ordering;
use crate::proto::conn::rdma::{Arrival, Arrivals, CdcUpdate};
use crate::proto::group::DeviceIndex;
use crate::proto::links::LinkId;

/// The receiving state.
#[derive(Default)]
pub(super) struct Rx {
    /// None while the peer's ring is not known.
    pub(super) arrivals: Option<Arrivals>,
    /// Messages that came too early: before the peer's ring is known, or while an earlier message
    /// is missing.
    held: VecDeque<ReceivedCdc>,
    /// The devices are being drained for the message with this sequence number.
    searched: Option<u16>,
}

/// A CDC message, and the link on which it was received.
#[derive(Clone, Copy)]
pub(crate) struct ReceivedCdc {
    pub(crate) cdc: CdcR,
    pub(crate) link: LinkId,
}

/// A handled message: its meaning, and the link on which it was received.
struct Handled {
    link: LinkId,
    arrival: Result<Arrival, PeerMisbehaved>,
    /// Messages that were held follow.
    has_next: bool,
}

/// The search for a message that the peer knows to have arrived: it may be among the events of
/// these devices.
pub(crate) struct MessageSearch {
    conn: Weak<RdmaConn>,
    devices: BTreeSet<DeviceIndex>,
}

impl RdmaConn {
    /// Handles a CDC message of the peer for this connection.
    pub(crate) fn handle_cdc(self: &Arc<Self>, received: ReceivedCdc) {
        let handled = self.take(|rx| rx.receive(received));
        self.react_to_all(handled);
    }

    /// Stores the first bytes of the stream, which were received with the PROPOSAL, as if the peer
    /// had written them. It writes behind them, and not before it has received ACCEPT.
    pub(crate) fn store_early(&self, bytes: &[u8]) -> Result<(), Error> {
        let mut rx = self.rx.lock();
        let len = len_u32(bytes.len());
        let (Some(arrivals), true) = (rx.arrivals.take(), len < self.rmb.size.ring_r().size())
        else {
            return Err(Error::Bug("early data without a place for it"));
        };
        let arrivals = rx.arrivals.insert(arrivals.behind(len));
        let element = &self.rmb.element;
        element
            .write(0, bytes)
            .map_err(|_| Error::Bug("early data is longer than the buffer"))?;
        let producer = ProducerWord {
            cursor: arrivals.producer(),
        };
        element
            .producer()
            .store(producer.to_ne(), Ordering::Release);
        // It has not received a message over the link: that the client has gone shows on TCP.
        self.dirty.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    /// Handles messages that were held.
    pub(super) fn handle_held(self: &Arc<Self>) {
        let handled = self.take(Rx::next_held);
        self.react_to_all(handled);
    }

    fn take(&self, next: impl FnOnce(&mut Rx) -> Option<Handled>) -> Option<Handled> {
        let mut rx = self.rx.lock();
        let held_before = rx.held.len();
        let handled = next(&mut rx);
        let held = rx.held.len();
        if let Some(Arrival::Update(update)) =
            handled.as_ref().and_then(|it| it.arrival.as_ref().ok())
        {
            self.store(update);
        }
        drop(rx);
        if held > held_before {
            self.note_held(held);
        }
        handled
    }

    /// So many messages are held now.
    #[cold]
    fn note_held(&self, count: usize) {
        let sender = self.link().and_then(|link| self.group.sender(link));
        if let Some(sender) = sender {
            sender.note_held(count);
        }
    }

    fn react_to_all(self: &Arc<Self>, mut next: Option<Handled>) {
        while let Some(handled) = next {
            self.react(handled.link, handled.arrival);
            next = match handled.has_next {
                true => self.take(Rx::next_held),
                false => None,
            };
        }
    }

    fn react(self: &Arc<Self>, link: LinkId, arrival: Result<Arrival, PeerMisbehaved>) {
        match arrival {
            Ok(Arrival::Update(update)) => {
                self.handle_update(&update);
                if self.is_peer_move_pending.load(Ordering::Relaxed) {
                    self.peer_is_on(link);
                }
            }
            Ok(Arrival::Validated) => self.peer_is_on(link),
            Ok(Arrival::Missed { .. }) => self.search(),
            Ok(Arrival::Stale | Arrival::Held) => {}
            Err(what) => self.fail(Error::PeerMisbehaved(what)),
        }
    }

    /// Stores the peer's words where the reading half reads them; under the lock, so that they
    /// never go back.
    fn store(&self, update: &CdcUpdate) {
        let element = &self.rmb.element;
        element
            .producer()
            .store(update.producer.to_ne(), Ordering::Release);
        element
            .consumer()
            .store(update.consumer.to_ne(), Ordering::Release);
        let cursor = update.producer.cursor;
        let reach = match cursor.wrap {
            0 => cursor.count,
            _ => self.rmb.size.ring_r().size(),
        };
        self.dirty.fetch_max(reach, Ordering::AcqRel);
        self.received.store(true, Ordering::Release);
        self.has_new_data
            .fetch_or(update.arrived > 0, Ordering::Relaxed);
        self.has_peer_ended
            .fetch_or(!update.state.is_empty(), Ordering::Relaxed);
        if update.requests_update {
            self.update_requested.store(true, Ordering::Release);
        }
    }

    fn handle_update(&self, update: &CdcUpdate) {
        let is_closed = update
            .state
            .intersects(StateFlags::CLOSED | StateFlags::ABORTED);
        if update.freed > 0 || update.uncork || is_closed {
            let mut tx = self.tx.lock();
            if let Some(bound) = &mut tx.bound {
                let freed = bound.transmit.handle_peer(update.consumer.cursor);
                if let Err(what) = freed {
                    drop(tx);
                    return self.fail(Error::PeerMisbehaved(what));
                }
                if update.uncork {
                    bound.transmit.uncork();
                }
                if is_closed {
                    // The peer's buffer may soon be reused.
                    bound.transmit.handle_peer_closed();
                }
                self.push(tx, false);
            }
        }
        if let Some(conn) = self.conn() {
            if !update.state.is_empty() {
                conn.handle_peer_flags();
            }
            conn.handle_signal();
        }
    }

    /// The peer uses this link for the connection, before or after this side.
    fn peer_is_on(&self, link: LinkId) {
        let mut tx = self.tx.lock();
        tx.peer_on = Some(link);
        if tx.sender.as_ref().is_none_or(|sender| sender.id != link) {
            return;
        }
        self.is_peer_move_pending.store(false, Ordering::Relaxed);
        if let Some(bound) = &mut tx.bound {
            bound.transmit.handle_peer_moved();
            self.push(tx, false);
        }
    }

    // ---- Missing messages ----------------------------------------------------------------------

    /// Searches for the missing message. There is one search at a time: that bounds what a peer can
    /// cause by messages that never come.
    fn search(self: &Arc<Self>) {
        let is_new = self.rx.lock().start_search();
        if is_new {
            let search = MessageSearch {
                conn: Arc::downgrade(self),
                devices: self.group.devices(),
            };
            search.proceed();
        }
    }

    /// All devices were drained since the search was started.
    fn end_search(self: &Arc<Self>) {
        let is_lost = self.rx.lock().end_search();
        if is_lost {
            self.fail(Error::Closed(CloseReason::Aborted));
            // Among them may be the peer's close.
            self.handle_held();
            self.group.try_retire(self);
        } else {
            // Meanwhile the message has come, and another may be missing.
            self.search();
        }
    }
}

impl MessageSearch {
    /// Continues behind the events that the next device has now.
    pub(crate) fn proceed(mut self) {
        let Some(conn) = self.conn.upgrade() else {
            return;
        };
        while let Some(device) = self.devices.pop_first() {
            if let Some(driver) = conn.group.driver(device) {
                let search = AfterDrain::MessageSearch {
                    search: self,
                    _driver: Arc::clone(&driver),
                };
                return driver.after_drain(search);
            }
        }
        conn.end_search();
    }
}

impl Rx {
    /// A message was received.
    fn receive(&mut self, received: ReceivedCdc) -> Option<Handled> {
        let is_missing = |arrivals: &Arrivals| arrivals.missing().is_some();
        let is_next = self.held.is_empty() || self.arrivals.as_ref().is_some_and(is_missing);
        match is_next {
            true => self.handle(received),
            // Behind those that another thread is about to handle.
            false => {
                self.hold(received);
                None
            }
        }
    }

    /// The oldest message that was held, if none is missing any more.
    fn next_held(&mut self) -> Option<Handled> {
        let is_open = |arrivals: &Arrivals| arrivals.missing().is_none();
        let is_open = self.arrivals.as_ref().is_some_and(is_open);
        let received = is_open.then(|| self.held.pop_front()).flatten()?;
        self.handle(received)
    }

    fn handle(&mut self, received: ReceivedCdc) -> Option<Handled> {
        let arrival = match &mut self.arrivals {
            Some(arrivals) => arrivals.handle(&received.cdc),
            None => Ok(Arrival::Held),
        };
        match arrival {
            Ok(Arrival::Held) => {
                self.hold(received);
                return None;
            }
            // It counts when the missing message has come.
            Ok(Arrival::Missed { .. }) => self.held.push_front(received),
            _ => {}
        }
        Some(Handled {
            link: received.link,
            arrival,
            has_next: !self.held.is_empty(),
        })
    }

    fn hold(&mut self, received: ReceivedCdc) {
        let is_validation = |received: &ReceivedCdc| {
            let flags = received.cdc.producer_flags;
            flags.contains(ProducerFlags::FAILOVER_VALIDATION)
        };
        if self.held.len() >= HELD_MAX {
            // Each message includes the state of those before it. A validation has none, and asks
            // for the last one that has.
            let last = self.held.pop_back();
            if let Some(last) = last.filter(|last| is_validation(&received) && !is_validation(last))
            {
                self.held.pop_back();
                self.held.push_back(last);
            }
        }
        self.held.push_back(received);
    }

    fn missing(&self) -> Option<u16> {
        self.arrivals.as_ref().and_then(Arrivals::missing)
    }

    /// Whether a message is missing, and none is searched for.
    fn start_search(&mut self) -> bool {
        let is_new = self.searched.is_none();
        if is_new {
            self.searched = self.missing();
        }
        is_new && self.searched.is_some()
    }

    /// Whether the message that was searched for is lost.
    fn end_search(&mut self) -> bool {
        let searched = self.searched.take();
        let is_lost = searched.is_some() && searched == self.missing();
        if let (true, Some(arrivals)) = (is_lost, &mut self.arrivals) {
            arrivals.give_up();
        }
        is_lost
    }
}

/// Maximum of messages that are held. A peer that follows the protocol sends fewer during the
/// set-up of a connection, or until the devices are drained for a message of it.
const HELD_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use smc_wire::cursor::Ring;
    use smc_wire::types::AlertToken;

    use super::*;

    #[test]
    fn few_messages_are_held_behind_a_missing_one() {
        let token = AlertToken::new(7).expect("a token there is");
        let received = |cdc| ReceivedCdc {
            cdc,
            link: LinkId(1),
        };
        let ring = Ring::new(1000).expect("a size there is");
        let mut rx = Rx {
            arrivals: Some(Arrivals::new(ring, ring)),
            ..Rx::default()
        };
        let first = rx.receive(received(CdcR::failover(1, token)));
        let first = first.expect("it counts as missed");
        assert!(matches!(first.arrival, Ok(Arrival::Missed { .. })));
        assert!(rx.start_search());
        for sequence in 2..1000 {
            assert!(rx.receive(received(CdcR::new(sequence, token))).is_none());
            let validation = CdcR::failover(sequence, token);
            assert!(rx.receive(received(validation)).is_none());
            assert!(!rx.start_search(), "there is one");
            assert!(rx.held.len() <= HELD_MAX);
        }
        // The newest is kept: it includes the state of all before it.
        rx.receive(received(CdcR::new(1000, token)));
        let missing = rx.receive(received(CdcR::new(1, token)));
        assert!(missing.expect("it is next").has_next);
        let mut last = None;
        while let Some(next) = rx.next_held() {
            last = Some(next.arrival);
        }
        assert!(matches!(last, Some(Ok(Arrival::Update(_)))));
        assert!(!rx.end_search(), "it has come");
    }

    #[test]
    fn a_validation_takes_no_place_of_the_message_that_it_asks_for() {
        let token = AlertToken::new(7).expect("a token there is");
        let ring = Ring::new(1000).expect("a size there is");
        let mut rx = Rx {
            arrivals: Some(Arrivals::new(ring, ring)),
            ..Rx::default()
        };
        let mut receive = |cdc| {
            let link = LinkId(1);
            rx.receive(ReceivedCdc { cdc, link }).is_some()
        };
        assert!(receive(CdcR::failover(1, token)), "it counts as missed");
        // More than are held. The peer moves to another link, and to yet another one.
        for sequence in 2..100 {
            assert!(!receive(CdcR::new(sequence, token)));
        }
        for _ in 0..2 {
            assert!(!receive(CdcR::failover(99, token)));
        }
        assert!(receive(CdcR::new(1, token)));
        let mut last = None;
        while let Some(next) = rx.next_held() {
            assert!(!matches!(next.arrival, Ok(Arrival::Missed { .. })));
            last = Some(next.arrival);
        }
        assert!(matches!(last, Some(Ok(Arrival::Validated))));
    }
}
