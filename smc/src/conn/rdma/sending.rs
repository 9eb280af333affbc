//! The sending side of an SMC-R connection: the staging ring, and what is posted from it.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use smc_wire::cdc::{ProducerFlags, StateFlags};
use smc_wire::cursor::Cursor;
use smc_wire::types::{Rkey, RmbAddr};

use super::super::super::links::{LinkSender, PersistTimer, PostResult, SendSlot};
use super::super::{Conn, SendOps, TransportOps, len_u32, len_usize};
use super::RdmaConn;
use crate::device::{Mr, Write};
use crate::error::{CloseReason, Error};
use crate::mem::sync::Ordering;
use crate::proto::conn::rdma::{PeerWrite, PostId, StreamDelivery, Transmit};
use crate::proto::links::{LinkId, RtokenId};

/// The sending state.
pub(super) struct Tx {
    /// The link of the connection; none before the first one of a group is connected.
    pub(super) sender: Option<Arc<LinkSender>>,
    pub(super) bound: Option<BoundSending>,
    /// The last link that the peer has moved the connection to.
    pub(super) peer_on: Option<LinkId>,
    /// Set once the connection has moved, until the peer has closed.
    pub(super) persist_timer: Option<PersistTimer>,
}

/// The sending state once the peer's RMB is known.
pub(super) struct BoundSending {
    pub(super) transmit: Transmit,
    pub(super) rtoken: RtokenId,
    /// Registration of the staging ring with the link's device.
    pub(super) from: Option<Arc<dyn Mr>>,
    /// The peer's RMB on this link.
    pub(super) to: Option<(Rkey, RmbAddr)>,
    /// Revocations of the peer's RMBs when that was looked up.
    pub(super) revocations: u64,
    /// Outstanding posts on this link, the oldest first, with the producer cursor of each.
    pub(super) posted: VecDeque<(PostId, Cursor)>,
    /// The producer cursor that is known to be delivered.
    pub(super) delivered: Cursor,
    /// The connection is queued for a turn on the link, which posts whatever there is by then.
    pub(super) is_queued: bool,
    /// A wake-up was requested for the completion of all posts so far.
    pub(super) is_armed: bool,
}

impl RdmaConn {
    /// Bytes that can be written now.
    pub(super) fn space(&self) -> u32 {
        self.space.load(Ordering::Acquire)
    }

    /// Requests that the completion of outstanding posts wakes the writer.
    pub(crate) fn arm_completions(&self) {
        if let Some(sender) = &self.tx.lock().sender {
            sender.arm_completions();
        }
    }

    /// Copies as many bytes as there is space for. Returns their number.
    fn write(&self, bufs: &[IoSlice<'_>]) -> usize {
        let mut tx = self.tx.lock();
        let Some(bound) = &mut tx.bound else { return 0 };
        let transmit = &mut bound.transmit;
        let staging = &self.staging;
        let (start, space) = (len_usize(transmit.at()), len_usize(transmit.space()));
        let size = len_usize(staging.size.ring_r().size());
        let mut done = 0;
        for buf in bufs {
            let part = &buf[..buf.len().min(space - done)];
            if part.is_empty() {
                continue;
            }
            // The ring has the size that the machine assumes.
            let at = (start + done) % size;
            if staging.element.write(at, part).is_err() {
                break;
            }
            done += part.len();
        }
        // At once: it is one change, whatever its parts.
        if done > 0 {
            done = len_usize(transmit.stage(len_u32(done)));
        }
        let is_sooner = |persist_timer: &mut PersistTimer| persist_timer.restart(self.group.now());
        let is_sooner = tx.persist_timer.as_mut().is_some_and(is_sooner);
        self.push(tx, false);
        if is_sooner {
            self.group.wake();
        }
        done
    }

    /// As `TransportOps::publish_flags`, with the consumer cursor. It is read under the lock, so
    /// that it is not behind that of an earlier [`RdmaConn::discard`].
    pub(crate) fn publish_close(&self, cursor: impl FnOnce() -> Cursor, flags: StateFlags) {
        self.update(|transmit| {
            transmit.set_consumer(cursor());
            transmit.set_flags(flags);
        });
    }

    /// Changes the state that the peer has to get, and sends it.
    pub(super) fn update(&self, change: impl FnOnce(&mut Transmit)) {
        let mut tx = self.tx.lock();
        if let Some(bound) = &mut tx.bound {
            change(&mut bound.transmit);
            self.push(tx, false);
        }
    }

    /// Frees unread data up to here, because the peer may have to send all of its own before it
    /// receives this side's close. That will be an abort.
    pub(crate) fn discard(&self, until: Cursor) {
        let mut tx = self.tx.lock();
        if let Some(bound) = &mut tx.bound {
            if !bound.transmit.is_flushed() {
                bound.transmit.abort_after_data();
                bound.transmit.set_consumer(until);
                self.push(tx, false);
            }
        }
    }

    /// Bytes whose delivery was not reported. If there are any, the driver reports it from now on.
    fn undelivered(&self) -> u32 {
        let tx = self.tx.lock();
        let used = |bound: &BoundSending| self.capacity().saturating_sub(bound.transmit.space());
        let undelivered = tx.bound.as_ref().map_or(0, used);
        if let (1.., Some(sender)) = (undelivered, &tx.sender) {
            sender.arm_completions();
        }
        undelivered
    }

    /// Size of the staging ring: the maximum of space.
    pub(crate) fn capacity(&self) -> u32 {
        self.staging.size.ring_r().size()
    }

    /// The delivery state of all written data and of the shutdown behind it.
    pub(crate) fn delivery(&self) -> StreamDelivery {
        let tx = self.tx.lock();
        let bound = tx.bound.as_ref();
        bound.map_or(StreamDelivery::Done, |bound| bound.transmit.delivery())
    }

    /// Posts one message in the connection's turn on the link.
    ///
    /// Returns whether the link could accept more.
    pub(crate) fn take_turn(&self) -> bool {
        self.push(self.tx.lock(), true)
    }

    /// Handles the completion of a post on this link.
    pub(crate) fn handle_completed(&self, link: LinkId) {
        {
            let mut tx = self.tx.lock();
            if tx.sender.as_ref().is_none_or(|sender| sender.id != link) {
                return;
            }
            let Some(bound) = &mut tx.bound else { return };
            let Some((post, delivered)) = bound.posted.pop_front() else {
                return;
            };
            bound.delivered = delivered;
            bound.is_armed = false;
            bound.transmit.handle_completed(post);
            self.push(tx, false);
        }
        if let Some(conn) = self.conn() {
            conn.handle_completed();
        }
    }

    /// Probes the peer if that is due. Returns the time of the next probe.
    pub(crate) fn probe_if_due(&self, now: Instant) -> Option<Instant> {
        let mut tx = self.tx.lock();
        if self.has_peer_ended() {
            tx.persist_timer = None;
        }
        let Tx {
            persist_timer,
            bound,
            ..
        } = &mut *tx;
        let (persist_timer, bound) = (persist_timer.as_mut()?, bound.as_mut()?);
        let is_due = persist_timer.take_due(now, self.has_new_data.swap(false, Ordering::Relaxed));
        let next = persist_timer.at;
        if is_due {
            bound.transmit.probe();
            self.push(tx, false);
        }
        Some(next)
    }

    /// Reserves resources for a failover: the group has another link.
    pub(crate) fn reserve_byte(&self) {
        if let Some(bound) = &mut self.tx.lock().bound {
            bound.transmit.reserve_byte();
        }
    }

    /// Moves the connection to another link.
    pub(crate) fn move_to(&self, from: LinkId, to: &Arc<LinkSender>) {
        let mut tx = self.tx.lock();
        match &tx.sender {
            Some(sender) if sender.id == from => sender.remove(self.token),
            _ => return,
        }
        tx.sender = Some(Arc::clone(to));
        self.moved.store(true, Ordering::Release);
        tx.persist_timer = Some(PersistTimer::new(self.group.now()));
        let is_peer_there = tx.peer_on == Some(to.id);
        self.is_peer_move_pending
            .store(!is_peer_there, Ordering::Relaxed);
        if let Some(bound) = &mut tx.bound {
            bound.from = None;
            bound.to = None;
            bound.posted.clear();
            bound.is_queued = false;
            bound.is_armed = false;
            bound.transmit.failover();
            if is_peer_there {
                bound.transmit.handle_peer_moved();
            }
        }
        self.push(tx, false);
        if let Some(conn) = self.conn() {
            conn.driver.counters.add_failover();
            // A writer that waits for completions waits for those of the new link now.
            conn.handle_completed();
        }
    }

    /// Posts pending messages, as far as there is send capacity. Returns whether the link could
    /// accept more.
    pub(super) fn push(&self, mut tx: MutexGuard<'_, Tx>, in_turn: bool) -> bool {
        let Tx {
            sender: Some(sender),
            bound: Some(bound),
            ..
        } = &mut *tx
        else {
            return true;
        };
        if in_turn {
            bound.is_queued = false;
            bound.is_armed = false;
        }
        let mut last = None;
        if !bound.is_queued && bound.transmit.can_post() {
            last = self.post_all(sender, bound, in_turn);
        }
        self.space.store(bound.transmit.space(), Ordering::Release);
        if !bound.is_armed && bound.transmit.has_pending_post() {
            bound.is_armed = true;
            sender.arm_completions();
        }
        if last == Some(PostResult::Unreachable) {
            // No other link can become usable either.
            if self.is_detached() {
                bound.transmit.abort();
            }
            drop(tx);
            self.fail(Error::Closed(CloseReason::Aborted));
        }
        last != Some(PostResult::Queued)
    }

    /// Posts what can be posted, or one message in a turn. Returns what became of the last post.
    fn post_all(
        &self,
        sender: &LinkSender,
        bound: &mut BoundSending,
        in_turn: bool,
    ) -> Option<PostResult> {
        let revocations = self.group.revocations();
        if bound.to.is_none() || bound.revocations != revocations {
            bound.to = self.group.rtoken(bound.rtoken, sender.id);
            bound.revocations = revocations;
        }
        if bound.from.is_none() {
            bound.from = self.staging.mr(sender.device);
        }
        let now = self.group.now();
        let mut last = None;
        while bound.transmit.can_post() {
            let Some(slot) = sender.try_reserve(now, self.token, in_turn) else {
                bound.is_queued = !sender.is_down();
                if sender.is_starved() {
                    self.group.wake();
                }
                break;
            };
            last = bound.post(slot, now);
            if last != Some(PostResult::Posted) {
                bound.is_queued = last == Some(PostResult::Queued);
                break;
            }
            bound.is_armed = false;
            if in_turn {
                if bound.transmit.can_post() {
                    sender.requeue_connection(now, self.token);
                    bound.is_queued = true;
                }
                break;
            }
        }
        last
    }
}

impl BoundSending {
    /// Makes the next post, if any.
    fn post(&mut self, slot: SendSlot<'_>, now: Instant) -> Option<PostResult> {
        let mut post = self.transmit.poll_post()?;
        let is_abort = post.cdc.state_flags.contains(StateFlags::ABORTED);
        let taken = match (&self.from, self.to) {
            (Some(from), Some(to)) => {
                let writes = post.spans.map(|span| write(&span, &**from, to));
                let count = post.writes().count();
                slot.post(now, &writes[..count], &post.cdc, post.coalesced)
            }
            _ if post.payload() == 0 => slot.post(now, &[], &post.cdc, post.coalesced),
            // Without an RKEY on this link nothing can be written, but an abort can be sent, behind
            // the delivered data.
            _ if is_abort => {
                post.cdc.producer = self.delivered;
                slot.post(now, &[], &post.cdc, post.coalesced)
            }
            _ => PostResult::Unreachable,
        };
        match taken {
            PostResult::Posted => {
                let flags = post.cdc.producer_flags;
                let is_validation = flags.contains(ProducerFlags::FAILOVER_VALIDATION);
                let stated = if is_validation {
                    self.delivered
                } else {
                    post.cdc.producer
                };
                self.posted.push_back((post.id, stated));
            }
            PostResult::Queued | PostResult::LinkDown | PostResult::Unreachable => {
                self.transmit.cancel_post()
            }
        }
        Some(taken)
    }
}

impl SendOps for Arc<RdmaConn> {
    fn space(&mut self, _conn: &Conn) -> Result<u32, Error> {
        Ok(RdmaConn::space(self))
    }

    fn write(
        &mut self,
        conn: &Conn,
        bufs: &[IoSlice<'_>],
        space: u32,
    ) -> Result<Option<usize>, Error> {
        if bufs.iter().all(|buf| buf.is_empty()) {
            return Ok(Some(0));
        }
        match RdmaConn::write(self, bufs) {
            // The peer has just closed.
            0 => conn.write_end().map(|()| None),
            count => {
                if count == len_usize(space) {
                    conn.counters.sent.add_full();
                }
                Ok(Some(count))
            }
        }
    }

    fn capacity(&self) -> u32 {
        RdmaConn::capacity(self)
    }

    fn undelivered(&self) -> u32 {
        RdmaConn::undelivered(self)
    }

    fn in_place_space(&self, _space: u32) -> usize {
        0
    }

    fn request_space(&mut self, _conn: &Conn, _space: u32) {}

    fn is_refused(&self, _conn: &Conn) -> bool {
        false
    }

    /// The completion of posts frees staging space, and is the delivery.
    fn arm(&self) {
        self.arm_completions();
    }

    fn poll_device(&self, conn: &Conn) -> bool {
        TransportOps::poll_device(&**self, &conn.driver)
    }
}

/// A write as an operation on the link.
fn write<'a>(span: &PeerWrite, from: &'a dyn Mr, (rkey, base): (Rkey, RmbAddr)) -> Write<'a> {
    let [first, second] = span.pieces;
    Write {
        from,
        first,
        second,
        rkey,
        to: RmbAddr(base.0.wrapping_add(span.at)),
    }
}
