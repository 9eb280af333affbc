//! One SMC-R connection between its halves and the link that it is bound to.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use smc_wire::cdc::{CdcR, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::{AlertToken, Rkey, RmbAddr};

use super::super::conn::{Conn, len_u32, len_usize};
use super::group::RdmaGroup;
use super::memory::Buffer;
use super::wire::{Taken, Wire};
use crate::device::{Mr, Write};
use crate::error::{Error, How};
use crate::mem::sync::{AtomicBool, AtomicU32, Ordering};
use crate::proto::conn::staged::{
    Arrival, Arrivals, News, PeerWrite, PostId, Transmit, TransmitConfig,
};
use crate::proto::handshake::PeerRmb;
use crate::proto::links::{LinkId, RmbId, RtokenId};

/// What a connection has in its link group: our RMB, the staging ring, and what is on its way.
///
/// It is there before the connection: from the moment the peer may know the token, its messages
/// count.
pub(crate) struct Staged {
    group: Arc<RdmaGroup>,
    token: AlertToken,
    rmb: Arc<Buffer>,
    rmb_id: RmbId,
    staging: Arc<Buffer>,
    rx: Mutex<Rx>,
    tx: Mutex<Tx>,
    peer_ring: OnceLock<Ring>,
    /// Space in the staging ring, for a look without a lock.
    space: AtomicU32,
    /// The peer wants to hear when everything is read.
    update_wanted: AtomicBool,
    conn: OnceLock<Weak<Conn>>,
    /// Nobody uses the connection any more; it lives on until nothing is outstanding.
    released: AtomicBool,
}

/// What the peer said.
enum Rx {
    /// The peer's ring is not known yet.
    Early(VecDeque<CdcR>),
    Open(Arrivals),
}

/// What we say.
struct Tx {
    /// The link that the connection uses; none before the first one of a group is connected.
    wire: Option<Arc<Wire>>,
    bound: Option<Bound>,
}

/// What is known once the peer's RMB is.
struct Bound {
    transmit: Transmit,
    rtoken: RtokenId,
    /// Registration of the staging ring with the link's device.
    from: Option<Arc<dyn Mr>>,
    /// The peer's RMB on this link.
    to: Option<(Rkey, RmbAddr)>,
    /// Posted on this link and not completed, the oldest first.
    posted: VecDeque<PostId>,
}

impl Staged {
    pub(super) fn new(
        group: Arc<RdmaGroup>,
        token: AlertToken,
        (rmb_id, rmb): (RmbId, Arc<Buffer>),
        staging: Arc<Buffer>,
        wire: Option<Arc<Wire>>,
    ) -> Self {
        Self {
            group,
            token,
            rmb,
            rmb_id,
            space: AtomicU32::new(0),
            staging,
            rx: Mutex::new(Rx::Early(VecDeque::new())),
            tx: Mutex::new(Tx { wire, bound: None }),
            peer_ring: OnceLock::new(),
            update_wanted: AtomicBool::new(false),
            conn: OnceLock::new(),
            released: AtomicBool::new(false),
        }
    }

    pub(crate) fn token(&self) -> AlertToken {
        self.token
    }

    pub(crate) fn rmb(&self) -> &Arc<Buffer> {
        &self.rmb
    }

    pub(super) fn rmb_id(&self) -> RmbId {
        self.rmb_id
    }

    pub(super) fn staging(&self) -> &Arc<Buffer> {
        &self.staging
    }

    pub(crate) fn group(&self) -> &Arc<RdmaGroup> {
        &self.group
    }

    /// The peer's ring; an empty one, of a byte, as long as it is not known.
    pub(crate) fn peer_ring(&self) -> Ring {
        let unknown = || self.rmb.size().ring_r();
        self.peer_ring.get().copied().unwrap_or_else(unknown)
    }

    /// The connection came about; what the peer has said so far is in the RMB already.
    pub(crate) fn adopt(&self, conn: &Arc<Conn>) {
        // A connection is made once.
        let _first = self.conn.set(Arc::downgrade(conn));
    }

    // ---- Set-up --------------------------------------------------------------------------------

    /// The link, when the group's first one is connected after the RMB was made.
    pub(super) fn set_wire(&self, wire: &Arc<Wire>) {
        self.tx().wire = Some(Arc::clone(wire));
    }

    /// The peer's RMB is known. What came before counts from now on.
    pub(super) fn bind(&self, peer: &PeerRmb, rtoken: RtokenId, autocork: TransmitConfig) {
        let ring = peer.size.ring_r();
        let staging = self.staging.size().ring_r();
        let transmit = Transmit::new(staging, ring, peer.token, peer.offset(), autocork);
        self.space.store(transmit.space(), Ordering::Release);
        // A handshake binds once.
        let _first = self.peer_ring.set(ring);
        self.tx().bound = Some(Bound {
            transmit,
            rtoken,
            from: None,
            to: None,
            posted: VecDeque::new(),
        });
        let early = {
            let mut rx = self.rx();
            let open = Rx::Open(Arrivals::new(self.rmb.size().ring_r(), ring));
            match std::mem::replace(&mut *rx, open) {
                Rx::Early(early) => early,
                Rx::Open(_) => VecDeque::new(),
            }
        };
        for cdc in early {
            self.arrived(&cdc);
        }
    }

    pub(super) fn rtoken(&self) -> Option<RtokenId> {
        self.tx().bound.as_ref().map(|bound| bound.rtoken)
    }

    // ---- Receiving -----------------------------------------------------------------------------

    /// The peer sent a message about this connection.
    pub(super) fn arrived(&self, cdc: &CdcR) {
        for last in [false, true] {
            let arrival = {
                let mut rx = self.rx();
                match &mut *rx {
                    Rx::Early(early) => {
                        if early.len() >= EARLY_MAX {
                            // Each says everything that those before it said.
                            early.pop_back();
                        }
                        early.push_back(*cdc);
                        return;
                    }
                    Rx::Open(arrivals) => {
                        let arrival = arrivals.handle(cdc);
                        if let Ok(Arrival::News(news)) = &arrival {
                            self.store(news);
                        }
                        arrival
                    }
                }
            };
            match arrival {
                Ok(Arrival::News(news)) => return self.heard(&news),
                // What is missing may be among the events of another device.
                Ok(Arrival::Missed { .. }) if !last => self.group.look_around(),
                Ok(Arrival::Missed { .. }) => return self.fail(Error::Closed(How::Aborted)),
                Ok(Arrival::Stale | Arrival::Validated) => return,
                Err(what) => return self.fail(Error::PeerMisbehaved(what)),
            }
        }
    }

    /// Puts the peer's words where the reading half looks for them; under the lock, so that they
    /// never go back.
    fn store(&self, news: &News) {
        let element = self.rmb.element();
        element
            .producer()
            .store(news.producer.to_ne(), Ordering::Release);
        element
            .consumer()
            .store(news.consumer.to_ne(), Ordering::Release);
        if news.wants_update {
            self.update_wanted.store(true, Ordering::Release);
        }
    }

    fn heard(&self, news: &News) {
        let closed = news.state.intersects(StateFlags::CLOSED | StateFlags::ABORTED);
        if news.freed > 0 || news.wants_push || closed {
            let mut tx = self.tx();
            if let Some(bound) = &mut tx.bound {
                let freed = bound.transmit.handle_peer(news.consumer.cursor);
                if let Err(what) = freed {
                    drop(tx);
                    return self.fail(Error::PeerMisbehaved(what));
                }
                if news.wants_push {
                    bound.transmit.uncork();
                }
                if closed {
                    // Nobody reads any more: our last word need not wait for space.
                    bound.transmit.handle_peer_closed();
                }
                self.push(&mut tx, false);
            }
        }
        if let Some(conn) = self.conn() {
            conn.signalled();
        }
    }

    /// Whether the peer waits to hear that everything was read; asked when it was.
    pub(crate) fn take_update_wanted(&self) -> bool {
        self.update_wanted.load(Ordering::Relaxed)
            && self.update_wanted.swap(false, Ordering::AcqRel)
    }

    // ---- Sending -------------------------------------------------------------------------------

    /// Bytes that can be written now.
    pub(crate) fn space(&self) -> u32 {
        self.space.load(Ordering::Acquire)
    }

    /// Takes what there is space for. Returns how many bytes that were.
    pub(crate) fn write(&self, bufs: &[IoSlice<'_>]) -> usize {
        let mut tx = self.tx();
        let Some(bound) = &mut tx.bound else { return 0 };
        let transmit = &mut bound.transmit;
        let element = self.staging.element();
        let mut done = 0;
        for buf in bufs {
            let part = &buf[..buf.len().min(len_usize(transmit.space()))];
            if part.is_empty() {
                continue;
            }
            // The ring has the size that the machine knows.
            if element.write(len_usize(transmit.at()), part).is_err() {
                break;
            }
            let taken = len_usize(transmit.stage(len_u32(part.len())));
            done += taken;
            if taken < part.len() {
                break;
            }
        }
        self.push(&mut tx, false);
        done
    }

    pub(crate) fn say_consumer(&self, cursor: Cursor) {
        let mut tx = self.tx();
        if let Some(bound) = &mut tx.bound {
            bound.transmit.set_consumer(cursor);
            self.push(&mut tx, false);
        }
    }

    pub(crate) fn say_flags(&self, flags: StateFlags) {
        let mut tx = self.tx();
        if let Some(bound) = &mut tx.bound {
            bound.transmit.set_flags(flags);
            self.push(&mut tx, false);
        }
    }

    /// Whether the peer has not been told everything yet and still can be.
    pub(crate) fn is_owing(&self) -> bool {
        let tx = self.tx();
        match &tx.bound {
            Some(bound) => !bound.transmit.is_flushed() && !self.group.is_over(),
            None => false,
        }
    }

    /// It is our turn on the link: one message.
    pub(super) fn take_turn(&self) {
        let mut tx = self.tx();
        self.push(&mut tx, true);
    }

    /// A message of ours was completed on this link.
    pub(super) fn sent(&self, link: LinkId) {
        {
            let mut tx = self.tx();
            if tx.wire.as_ref().is_none_or(|wire| wire.id() != link) {
                return;
            }
            let Some(bound) = &mut tx.bound else { return };
            let Some(post) = bound.posted.pop_front() else {
                return;
            };
            bound.transmit.handle_sent(post);
            self.push(&mut tx, false);
        }
        if let Some(conn) = self.conn() {
            conn.sent();
        }
    }

    /// The group moves the connection to another link.
    pub(super) fn move_to(&self, from: LinkId, to: &Arc<Wire>) {
        let mut tx = self.tx();
        match &tx.wire {
            Some(wire) if wire.id() == from => wire.forget(self.token),
            _ => return,
        }
        tx.wire = Some(Arc::clone(to));
        if let Some(bound) = &mut tx.bound {
            bound.from = None;
            bound.to = None;
            bound.posted.clear();
            bound.transmit.failover();
        }
        self.push(&mut tx, false);
    }

    /// Posts what there is to post, as far as there is room.
    fn push(&self, tx: &mut Tx, in_turn: bool) {
        let Tx {
            wire: Some(wire),
            bound: Some(bound),
        } = tx
        else {
            return;
        };
        if bound.to.is_none() {
            bound.to = self.group.rtoken(bound.rtoken, wire.id());
            bound.from = self.staging.mr(wire.device());
        }
        let now = self.group.now();
        loop {
            let more = wire.post(now, self.token, in_turn, |post_on_wire| {
                let Some(post) = bound.transmit.poll_post() else {
                    return false;
                };
                let taken = match (&bound.from, bound.to) {
                    (Some(from), Some(to)) => {
                        let writes = post.spans.map(|span| write(&span, &**from, to));
                        let count = post.writes().count();
                        post_on_wire(&writes[..count], &post.cdc.to_bytes())
                    }
                    // The peer has not told where its RMB is on this link; then nothing can be
                    // written, but an end can be told.
                    _ if post.payload() == 0 => post_on_wire(&[], &post.cdc.to_bytes()),
                    _ => Taken::Never,
                };
                match taken {
                    Taken::Yes => bound.posted.push_back(post.id),
                    Taken::Later | Taken::Never => bound.transmit.unpost(),
                }
                taken == Taken::Yes
            });
            match more {
                Some(true) if in_turn => {
                    wire.wait(self.token);
                    break;
                }
                Some(true) => {}
                Some(false) | None => break,
            }
        }
        self.space.store(bound.transmit.space(), Ordering::Release);
    }

    // ---- Ending --------------------------------------------------------------------------------

    fn fail(&self, cause: Error) {
        if let Some(conn) = self.conn() {
            conn.kill(cause);
        }
    }

    /// The link group ended.
    pub(super) fn kill(&self, cause: Error) {
        self.fail(cause);
    }

    /// Nobody uses the connection any more. Returns whether it can go now.
    pub(super) fn release(&self) -> bool {
        self.released.store(true, Ordering::Release);
        self.can_go()
    }

    /// Whether nobody uses the connection and nothing of it is outstanding.
    pub(super) fn can_go(&self) -> bool {
        if !self.released.load(Ordering::Acquire) {
            return false;
        }
        let tx = self.tx();
        let is_down = tx.wire.as_ref().is_none_or(|wire| wire.is_down());
        let is_free = tx
            .bound
            .as_ref()
            .is_none_or(|bound| bound.posted.is_empty());
        is_down || is_free
    }

    /// Takes the connection off its link for good.
    pub(super) fn leave_wire(&self) {
        if let Some(wire) = &self.tx().wire {
            wire.forget(self.token);
        }
    }

    fn conn(&self) -> Option<Arc<Conn>> {
        self.conn.get().and_then(Weak::upgrade)
    }

    fn rx(&self) -> MutexGuard<'_, Rx> {
        self.rx.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tx(&self) -> MutexGuard<'_, Tx> {
        self.tx.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Staged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staged")
            .field("token", &self.token)
            .field("space", &self.space())
            .finish_non_exhaustive()
    }
}

/// The hold on a [`Staged`]; dropping it gives the RMB back once the peer has let go of it.
#[derive(Debug)]
pub(crate) struct StagedHandle(Arc<Staged>);

impl StagedHandle {
    pub(super) fn new(staged: Arc<Staged>) -> Self {
        Self(staged)
    }

    pub(crate) fn staged(&self) -> &Arc<Staged> {
        &self.0
    }
}

impl Drop for StagedHandle {
    fn drop(&mut self) {
        self.0.group.let_go(&self.0);
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

/// Messages kept for a connection whose handshake has not come to the peer's RMB yet.
const EARLY_MAX: usize = 64;
