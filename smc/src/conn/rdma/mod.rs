//! One SMC-R connection between its halves and the link that it is bound to.

mod receiving;
mod sending;

pub(crate) use receiving::{MessageSearch, ReceivedCdc};

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock, Weak};

use smc_wire::cdc::{ProducerFlags, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::AlertToken;

use super::super::append_list::AppendList;
use super::super::device_driver::DeviceDriver;
use super::super::links::{LinkSender, RdmaBuffer, RdmaLinkGroup};
use super::super::stream::Mode;
use super::{Conn, Parts, PeerLocality, TransportConn, TransportOps, len_usize};
use crate::device::SubmitError;
use crate::error::{CloseReason, Error};
use crate::info::{Flags, PublishedWords};
use crate::mem::Element;
use crate::mem::sync::{AtomicBool, AtomicU32, Ordering};
use crate::mutex::Mutex;
use crate::proto::conn::rdma::{AUTOCORK, Arrivals, Transmit};
use crate::proto::group::GroupEndCause;
use crate::proto::handshake::{Established, RdmaParams};
use crate::proto::links::{LinkId, PeerRmb, RmbId, RtokenId};
use receiving::Rx;
use sending::{BoundSending, Tx};

/// The resources of a connection in its link group: the local RMB, the staging ring, and
/// outstanding posts.
///
/// It exists before the connection: once the peer may know the token, its messages count.
pub(crate) struct RdmaConn {
    pub(crate) group: Arc<RdmaLinkGroup>,
    pub(crate) token: AlertToken,
    pub(crate) rmb: Arc<RdmaBuffer>,
    pub(crate) rmb_id: RmbId,
    pub(crate) staging: Arc<RdmaBuffer>,
    rx: Mutex<Rx>,
    tx: Mutex<Tx>,
    peer_ring: OnceLock<Ring>,
    /// Space in the staging ring, readable without a lock.
    space: AtomicU32,
    /// The peer has requested an update when everything is read.
    update_requested: AtomicBool,
    /// The connection was moved to another link. From then on the peer gets an update each time
    /// everything is read: its outstanding posts on the old link may never complete, and a Linux
    /// peer corks its last data behind them until the consumer cursor of this side moves.
    moved: AtomicBool,
    /// The peer has not sent anything over the new link yet.
    is_peer_move_pending: AtomicBool,
    /// The peer has sent a CDC message.
    received: AtomicBool,
    /// The peer has sent data since the last probe.
    has_new_data: AtomicBool,
    /// The peer has published the end of its data.
    has_peer_ended: AtomicBool,
    /// Bytes at the start of the RMB that the peer may have written.
    dirty: AtomicU32,
    conn: OnceLock<Weak<Conn>>,
    /// Detached from its stream; it exists until no post is outstanding.
    detached: AtomicBool,
}

impl Parts {
    /// The parts of an SMC-R connection, and why it was lost. CDC messages that arrived since the
    /// peer knows the token are in the RMB already.
    pub(crate) fn rdma(
        driver: &Arc<DeviceDriver>,
        drivers: &Arc<AppendList<Arc<DeviceDriver>>>,
        established: &Established,
        params: RdmaParams,
        handle: Arc<RdmaConnHandle>,
    ) -> (Self, Option<Error>) {
        let lost = (!handle.0.is_bound()).then_some(Error::Closed(CloseReason::Aborted));
        let mode = Mode::SmcR {
            version: established.version,
            release: established.release,
            device: Arc::clone(&driver.name),
            local: params.link.gid,
            peer: params.peer.gid,
            eid: established.eid,
            vendor_features: established.vendor_features,
        };
        let parts = Self {
            local: handle.0.rmb.element.clone(),
            local_ring: handle.0.rmb.size.ring_r(),
            transport: TransportConn::Rdma(handle),
            mode,
            driver: Arc::clone(driver),
            drivers: Some(Arc::clone(drivers)),
            locality: PeerLocality::Unknown,
        };
        (parts, lost)
    }
}

impl RdmaConn {
    pub(crate) fn new(
        group: Arc<RdmaLinkGroup>,
        token: AlertToken,
        (rmb_id, rmb): (RmbId, Arc<RdmaBuffer>),
        staging: Arc<RdmaBuffer>,
        sender: Option<Arc<LinkSender>>,
    ) -> Self {
        Self {
            group,
            token,
            rmb,
            rmb_id,
            space: AtomicU32::new(0),
            staging,
            rx: Mutex::default(),
            tx: Mutex::new(Tx {
                sender,
                bound: None,
                peer_on: None,
                persist_timer: None,
            }),
            peer_ring: OnceLock::new(),
            update_requested: AtomicBool::new(false),
            moved: AtomicBool::new(false),
            is_peer_move_pending: AtomicBool::new(false),
            received: AtomicBool::new(false),
            has_new_data: AtomicBool::new(false),
            has_peer_ended: AtomicBool::new(false),
            dirty: AtomicU32::new(0),
            conn: OnceLock::new(),
            detached: AtomicBool::new(false),
        }
    }

    /// Sets the connection; earlier updates of the peer are in the RMB already.
    pub(crate) fn set_conn(&self, conn: &Arc<Conn>) {
        // A connection is made once.
        let _first = self.conn.set(Arc::downgrade(conn));
        conn.handle_peer_flags();
    }

    /// Bytes of the RMB that have to be zeroed before it is reused.
    pub(crate) fn dirty(&self) -> usize {
        len_usize(self.dirty.load(Ordering::Acquire))
    }

    // ---- Set-up --------------------------------------------------------------------------------

    /// Sets the link, when the group's first one is connected after the RMB was made.
    pub(crate) fn set_sender(&self, sender: &Arc<LinkSender>) {
        self.tx.lock().sender = Some(Arc::clone(sender));
    }

    /// Sets the peer's RMB, which begins with this number of bytes that were sent with the
    /// PROPOSAL, and handles early messages.
    pub(crate) fn bind(self: &Arc<Self>, peer: &PeerRmb, rtoken: RtokenId, sent: u32) {
        let ring = peer.size.ring_r();
        let staging = self.staging.size.ring_r();
        let transmit = Transmit::new(staging, ring, peer.token, peer.offset(), AUTOCORK);
        let transmit = transmit.behind(sent);
        let delivered = transmit.producer();
        self.space.store(transmit.space(), Ordering::Release);
        self.tx.lock().bound = Some(BoundSending {
            transmit,
            rtoken,
            from: None,
            to: None,
            revocations: 0,
            posted: VecDeque::new(),
            delivered,
            is_queued: false,
            is_armed: false,
        });
        self.bind_for_reading(peer);
    }

    /// Sets the peer's RMB for receiving only, and handles early messages.
    pub(crate) fn bind_for_reading(self: &Arc<Self>, peer: &PeerRmb) {
        let ring = peer.size.ring_r();
        // A handshake binds once.
        let _first = self.peer_ring.set(ring);
        let arrivals = Arrivals::new(self.rmb.size.ring_r(), ring);
        self.rx.lock().arrivals = Some(arrivals);
        self.handle_held();
    }

    /// Whether data can be sent to the peer.
    pub(crate) fn is_bound(&self) -> bool {
        self.tx.lock().bound.is_some()
    }

    /// The link of the connection.
    pub(crate) fn link(&self) -> Option<LinkId> {
        self.tx.lock().sender.as_ref().map(|sender| sender.id)
    }

    pub(crate) fn rtoken(&self) -> Option<RtokenId> {
        self.tx.lock().bound.as_ref().map(|bound| bound.rtoken)
    }

    /// Whether it uses this RMB of the peer, and has published the end of its data, behind which it
    /// writes no more.
    pub(crate) fn has_published_end(&self, rtoken: RtokenId) -> bool {
        let tx = self.tx.lock();
        let bound = tx.bound.as_ref().filter(|bound| bound.rtoken == rtoken);
        bound.is_some_and(|bound| {
            let (_, _, flags) = bound.transmit.published_words();
            !flags.is_empty()
        })
    }

    // ---- Ending --------------------------------------------------------------------------------

    fn fail(&self, cause: Error) {
        if let Some(conn) = self.conn() {
            conn.abort(cause);
        }
    }

    /// The link group has ended.
    pub(crate) fn handle_group_end(&self, cause: GroupEndCause) {
        if let Some(conn) = self.conn() {
            conn.handle_group_end(cause);
        }
    }

    /// Detaches the connection from its stream: it is removed when it can retire.
    pub(crate) fn detach(self: &Arc<Self>) {
        self.detached.store(true, Ordering::Release);
        match self.can_retire() {
            true => self.group.try_retire(self),
            false => self.arm_completions(),
        }
    }

    /// Whether the peer has published the end of its data, so that it writes the RMB no more.
    pub(crate) fn has_peer_ended(&self) -> bool {
        self.has_peer_ended.load(Ordering::Relaxed)
    }

    /// Whether it was detached from its stream.
    pub(crate) fn is_detached(&self) -> bool {
        self.detached.load(Ordering::Acquire)
    }

    /// Whether the application has dropped the stream, also before the connection is detached.
    pub(crate) fn is_stream_dropped(&self) -> bool {
        let is_stream_dropped =
            |conn: &Weak<Conn>| conn.upgrade().is_none_or(|conn| conn.is_app_closed());
        self.is_detached() || self.conn.get().is_some_and(is_stream_dropped)
    }

    /// Whether the connection is detached, everything is sent, and no post is outstanding.
    pub(crate) fn can_retire(&self) -> bool {
        self.is_detached() && self.is_delivered()
    }

    /// As [`Conn::arm_delivery`].
    pub(crate) fn arm_delivery(&self) -> bool {
        // The completion of a post may not be reported without a request, and may come before it.
        self.is_delivered() || {
            self.arm_completions();
            self.is_delivered()
        }
    }

    /// Whether everything was sent and delivered, or never will be.
    fn is_delivered(&self) -> bool {
        if self.group.has_ended() {
            return true;
        }
        let tx = self.tx.lock();
        let is_idle = |bound: &BoundSending| bound.posted.is_empty() && bound.transmit.is_idle();
        tx.sender.is_none() || tx.bound.as_ref().is_none_or(is_idle)
    }

    /// Removes the connection from its link.
    pub(crate) fn leave_link(&self) {
        if let Some(sender) = &self.tx.lock().sender {
            sender.remove(self.token);
        }
    }

    fn conn(&self) -> Option<Arc<Conn>> {
        self.conn.get().and_then(Weak::upgrade)
    }
}

impl TransportOps for RdmaConn {
    fn published_words(&self) -> PublishedWords {
        let tx = self.tx.lock();
        let transmit = tx.bound.as_ref().map(|bound| &bound.transmit);
        let producer = transmit.map_or(Cursor::START, Transmit::producer);
        let (consumer, producer_flags, state_flags) = match transmit {
            Some(transmit) => transmit.published_words(),
            None => (Cursor::START, ProducerFlags::empty(), StateFlags::empty()),
        };
        let flags = Flags {
            producer: producer_flags,
            state: state_flags,
        };
        PublishedWords {
            producer,
            consumer,
            flags,
        }
    }

    fn peer_token(&self) -> Option<u64> {
        let tx = self.tx.lock();
        let token = tx.bound.as_ref()?.transmit.token();
        Some(token.get().into())
    }

    fn allows_rewind(&self) -> bool {
        false
    }

    /// A placeholder while it is not known.
    fn peer_ring(&self) -> Ring {
        let unknown = || self.rmb.size.ring_r();
        self.peer_ring.get().copied().unwrap_or_else(unknown)
    }

    /// Every message is reported; without space, the completion of outstanding posts has to wake
    /// the writer.
    fn arm(&self) {
        if self.space() == 0 {
            self.arm_completions();
        }
    }

    fn poll_device(&self, driver: &DeviceDriver) -> bool {
        driver.is_gone() || driver.poll_device()
    }

    fn is_update_requested(&self, _flags: ProducerFlags) -> bool {
        false
    }

    fn take_update_request(&self) -> bool {
        if self.moved.load(Ordering::Relaxed) {
            return true;
        }
        self.update_requested.load(Ordering::Relaxed)
            && self.update_requested.swap(false, Ordering::AcqRel)
    }

    fn restore_update_request(&self) {
        self.update_requested.store(true, Ordering::Release);
    }

    fn publish_consumer(&self, _conn: &Conn, cursor: Cursor) {
        self.update(|transmit| transmit.set_consumer(cursor));
    }

    fn publish_flags(&self, _conn: &Conn, flags: StateFlags) {
        self.update(|transmit| transmit.set_flags(flags));
    }

    /// Only updates that can still be sent are pending.
    fn has_pending(&self) -> bool {
        let tx = self.tx.lock();
        match &tx.bound {
            Some(bound) => !bound.transmit.is_flushed() && !self.group.has_ended(),
            None => false,
        }
    }

    /// Posts are retried in the turns of a link.
    fn publish_pending(&self) -> Result<(), SubmitError> {
        Ok(())
    }

    fn clear_pending(&self) {}

    fn has_received(&self, _local: &Element) -> bool {
        self.received.load(Ordering::Acquire)
    }
}

/// The handle of an [`RdmaConn`]; dropping it releases the RMB once the peer has confirmed that.
pub(crate) struct RdmaConnHandle(pub(crate) Arc<RdmaConn>);

impl Drop for RdmaConn {
    fn drop(&mut self) {
        self.group.groups.release_token(self.token);
    }
}

impl Drop for RdmaConnHandle {
    fn drop(&mut self) {
        self.0.detach();
    }
}
