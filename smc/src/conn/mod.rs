//! One SMC connection, shared by its two halves, the driver and tools.

mod counters;
mod direct;
mod ending;
mod rdma;
mod reuse;

pub(crate) use counters::{ConnCounters, DeviceCounters, HalfCounters};
pub(crate) use direct::{DirectBuffers, DirectConn, PeerDmb, RetryResult};
pub(crate) use ending::Handle;
pub(crate) use rdma::{MessageSearch, RdmaConn, RdmaConnHandle, ReceivedCdc};
pub(crate) use reuse::{NextUser, SocketReuse};

use std::io::IoSlice;
use std::sync::atomic::AtomicU64 as StdAtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use event_listener::Event;
use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::{AlertToken, DmbToken, Version};

use super::append_list::AppendList;
use super::device_driver::DeviceDriver;
use super::groups::Membership;
use super::runtime::Socket;
use super::stream::Mode;
use crate::address::{self, Address};
use crate::device::{Dmb, SubmitError};
use crate::error::{CloseReason, Error};
use crate::info::{ConnectionInfo, Cursors, Flags, PublishedWords, SmcInfo};
use crate::log::{Span, Warned};
use crate::mem::Element;
use crate::mem::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::mutex::Mutex;
use crate::peer_descriptors::{ClosingDescriptor, Source};
use crate::proto::Role;
use crate::proto::conn::rdma::StreamDelivery;
use crate::proto::conn::{Closing, ConnState, ReadEnd, WriteEnd};
use crate::proto::group::GroupId;

/// The shared part of a connection.
///
/// Both halves read the peer's updates in [`Conn::local`], and publish their own by the operations
/// of the transport.
pub(crate) struct Conn {
    /// The local element, written by the peer.
    pub(crate) local: Element,
    pub(crate) local_ring: Ring,
    pub(crate) id: u64,
    pub(crate) mode: Mode,
    /// The role of this side in the handshake.
    pub(crate) role: Role,
    pub(crate) peer_addr: Address,
    pub(crate) socket: Arc<dyn Socket>,
    pub(crate) reuse: SocketReuse,
    /// The peers among which this one has a share of descriptors.
    pub(crate) source: Option<Source>,
    /// Counted from the time when the application drops the stream.
    closing_descriptor: Mutex<Option<ClosingDescriptor>>,
    /// Determines how TCP is closed, and whether it is watched.
    locality: PeerLocality,
    /// The TCP connection is not watched yet: see `TCP_WATCH_DELAY`.
    tcp_watch_deferred: AtomicBool,
    pub(crate) transport: TransportConn,
    /// Number of retries of the driver at a busy device.
    retries: AtomicU32,
    /// SMC-D: see [`Pollers::count_stream`](super::busy_poll::Pollers::count_stream).
    pub(crate) counted_in: AtomicU32,
    /// The waker is registered with the TCP socket, and there was no event since.
    is_tcp_watched: AtomicBool,
    /// The waker registered with the TCP socket.
    tcp_waker: OnceLock<Waker>,
    /// The peer has written to the local element.
    has_peer_sent: AtomicBool,
    /// SMC-R: half-open; TCP has ended, and the peer has not sent a CDC message.
    half_open: AtomicBool,
    /// The connection has ended in some direction; details in `closing`. Checked on each call, so
    /// kept apart.
    has_ended: AtomicBool,
    closing: Mutex<Closing>,
    failure: OnceLock<Error>,
    /// The application has fetched the error that ended the connection.
    is_error_taken: AtomicBool,
    /// The position of the reading half when it was dropped.
    read_until: AtomicU64,
    /// Bytes from the start of the local ring that the reading half may have read; all, until it
    /// was dropped.
    high_water: AtomicU32,
    pub(crate) linger: Mutex<Option<Duration>>,
    /// The application's setting of `TCP_NODELAY`.
    pub(crate) nodelay: AtomicBool,
    pub(crate) counters: Arc<ConnCounters>,
    pub(crate) reader: AtomicWaker,
    pub(crate) writer: AtomicWaker,
    /// Notified of changes, for any number of tasks.
    pub(crate) changed: Event,
    /// The driver of the connection's device; with SMC-R of the device of its first link.
    pub(crate) driver: Arc<DeviceDriver>,
    /// SMC-R: the drivers of all devices, as the connection may move to a link on another one, also
    /// after the endpoint was dropped.
    _drivers: Option<Arc<AppendList<Arc<DeviceDriver>>>>,
    pub(crate) group: GroupId,
    /// Dropped, to leave the link group, when the connection has ended.
    membership: Mutex<Option<Membership>>,
    pub(crate) span: Span,
    /// The warnings that the endpoint has written.
    warned: Arc<Warned>,
}

/// The buffers of a connection, and how data gets from one end to the other.
pub(crate) enum TransportConn {
    /// SMC-D: through the peer's DMB.
    Direct(Arc<DirectConn>),
    /// SMC-R: over links, from the staging ring to the peer's RMB.
    Rdma(Arc<RdmaConnHandle>),
}

/// The memory that written data is copied to: the peer's ring, or the staging ring.
pub(crate) trait SendOps {
    /// Bytes that can be written now, after reading the peer's updates.
    fn space(&mut self, conn: &Conn) -> Result<u32, Error>;

    /// Writes as much as there is `space` for, which is not 0: `None` if nothing is accepted now.
    fn write(
        &mut self,
        conn: &Conn,
        bufs: &[IoSlice<'_>],
        space: u32,
    ) -> Result<Option<usize>, Error>;

    /// Maximum of the space.
    fn capacity(&self) -> u32;

    /// Written bytes that may not be in the peer's memory yet.
    fn undelivered(&self) -> u32;

    /// How much of `space` can be reserved in the peer's memory.
    fn in_place_space(&self, space: u32) -> usize;

    /// Requests more than the `space` that the peer has published.
    fn request_space(&mut self, conn: &Conn, space: u32);

    /// Whether the device has refused data, and a retry would find the same.
    fn is_refused(&self, conn: &Conn) -> bool;

    /// Requests a report when there may be more space; as `StreamHalf::arm`.
    fn arm(&self);

    /// As [`TransportOps::poll_device`].
    fn poll_device(&self, conn: &Conn) -> bool;
}

/// The operations that SMC-D and SMC-R do in different ways.
pub(crate) trait TransportOps: Send + Sync {
    /// The peer's ring, which this side writes.
    fn peer_ring(&self) -> Ring;

    /// Whether writers rewind a ring that is empty.
    fn allows_rewind(&self) -> bool;

    /// Requests that the device reports the next write of the peer. The caller checks once more
    /// afterwards.
    fn arm(&self);

    /// Polls the device: on links, updates do not appear in memory by themselves. Returns false if
    /// there were more events than a poll takes.
    fn poll_device(&self, driver: &DeviceDriver) -> bool;

    /// SMC-D: whether a flag is set that needs an update when everything is read; it stays until it
    /// is withdrawn. SMC-R: false, as each request is an event
    /// ([`TransportOps::take_update_request`]).
    fn is_update_requested(&self, flags: ProducerFlags) -> bool;

    /// Takes the peer's request for an update when everything is read; called when it is.
    fn take_update_request(&self) -> bool;

    /// Restores the peer's request for an update.
    fn restore_update_request(&self);

    /// Publishes the consumer cursor and signals the peer.
    fn publish_consumer(&self, conn: &Conn, cursor: Cursor);

    /// Publishes flags in addition to those before.
    fn publish_flags(&self, conn: &Conn, flags: StateFlags);

    /// The words that this side has published.
    fn published_words(&self) -> PublishedWords;

    /// The peer's token, where it is known.
    fn peer_token(&self) -> Option<u64>;

    /// Whether updates are not published yet.
    fn has_pending(&self) -> bool;

    /// Publishes the words that the device was busy for, in order.
    fn publish_pending(&self) -> Result<(), SubmitError>;

    /// Drops the words that the device was busy for.
    fn clear_pending(&self);

    /// Whether the peer has published any update.
    fn has_received(&self, local: &Element) -> bool;
}

/// Whether the peer is a process of this host, as proven by a side channel or a UNIX socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerLocality {
    /// On this host; the role is that of this side.
    SameHost(Role),
    /// Not known.
    Unknown,
}

/// Identifies a connection of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ConnKey(u64);

impl ConnKey {
    /// No key is less.
    pub(crate) const FIRST: Self = Self(0);

    /// SMC-D: the token in signals.
    pub(crate) fn direct(token: DmbToken) -> Self {
        Self(token.0)
    }

    /// SMC-R: the token in CDC messages. A device is either SMC-D or SMC-R, so the two never
    /// collide.
    pub(crate) fn rdma(token: AlertToken) -> Self {
        Self(token.get().into())
    }
}

/// The parts of a connection that differ between SMC-D and SMC-R.
pub(crate) struct Parts {
    pub(crate) local: Element,
    pub(crate) local_ring: Ring,
    pub(crate) transport: TransportConn,
    pub(crate) mode: Mode,
    pub(crate) driver: Arc<DeviceDriver>,
    /// SMC-R: those of all devices.
    pub(crate) drivers: Option<Arc<AppendList<Arc<DeviceDriver>>>>,
    pub(crate) locality: PeerLocality,
}

impl Conn {
    pub(crate) fn new(
        parts: Parts,
        role: Role,
        socket: Arc<dyn Socket>,
        (peer_addr, source): (Address, Option<Source>),
        membership: Membership,
        warned: Arc<Warned>,
    ) -> Arc<Self> {
        let locality = parts.locality;
        if locality == PeerLocality::SameHost(Role::Client) && peer_addr.tcp().is_some() {
            // TCP is not read any more: a reset avoids TIME_WAIT for the port, also if this process
            // is killed. A reset by one end is enough.
            let _best_effort = socket.set_linger(Some(Duration::ZERO));
        }
        let group = membership.member.group();
        let id = next_stream_id();
        let span = root_span!(
            "smc.conn",
            group = group,
            conn = id,
            peer = peer_addr,
            mode = parts.mode,
            device = parts.driver.name,
        );
        Arc::new(Self {
            local: parts.local,
            local_ring: parts.local_ring,
            id,
            mode: parts.mode,
            role,
            peer_addr,
            socket,
            reuse: SocketReuse::default(),
            source,
            closing_descriptor: Mutex::default(),
            locality,
            tcp_watch_deferred: AtomicBool::new(locality != PeerLocality::Unknown),
            transport: parts.transport,
            retries: AtomicU32::new(0),
            counted_in: AtomicU32::new(0),
            is_tcp_watched: AtomicBool::new(false),
            tcp_waker: OnceLock::new(),
            has_peer_sent: AtomicBool::new(false),
            half_open: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            closing: Mutex::new(Closing::default()),
            failure: OnceLock::new(),
            is_error_taken: AtomicBool::new(false),
            read_until: AtomicU64::new(NOT_DROPPED),
            high_water: AtomicU32::new(u32::MAX),
            linger: Mutex::new(None),
            nodelay: AtomicBool::new(false),
            counters: Arc::default(),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            changed: Event::new(),
            driver: parts.driver,
            _drivers: parts.drivers,
            group,
            membership: Mutex::new(Some(membership)),
            span,
            warned,
        })
    }

    /// Counts the new connection, whose receive buffer has `configured` bytes unless memory is
    /// short.
    pub(crate) fn count(&self, version: Version, configured: usize) {
        let len = self.local.region().len();
        let sent = len_usize(self.peer_ring().size());
        let (is_recv_reused, is_send_reused) = match &self.transport {
            TransportConn::Direct(direct) => (direct.dmb.is_reused(), false),
            TransportConn::Rdma(handle) => (handle.0.rmb.is_reused(), handle.0.staging.is_reused()),
        };
        self.driver.counters.add_conn(&self.counters, |stats| {
            stats.add_connection(self.role, version);
            stats.received.buffer_reuses += u64::from(is_recv_reused);
            stats.sent.buffer_reuses += u64::from(is_send_reused);
            stats.received.add_buffer(len);
            stats.received.buffer_downgrades += u64::from(len < configured);
            stats.sent.add_buffer(sent);
        });
    }

    pub(crate) fn key(&self) -> ConnKey {
        match &self.transport {
            TransportConn::Direct(direct) => ConnKey::direct(direct.dmb.token()),
            TransportConn::Rdma(handle) => ConnKey::rdma(handle.0.token),
        }
    }

    /// The local receive buffer, if this is SMC-D.
    pub(crate) fn dmb(&self) -> Option<&Arc<dyn Dmb>> {
        match &self.transport {
            TransportConn::Direct(direct) => Some(&direct.dmb),
            TransportConn::Rdma(_) => None,
        }
    }

    /// The SMC-R connection in its link group, if this is SMC-R.
    pub(crate) fn rdma(&self) -> Option<&Arc<RdmaConn>> {
        match &self.transport {
            TransportConn::Direct(_) => None,
            TransportConn::Rdma(handle) => Some(&handle.0),
        }
    }

    fn ops(&self) -> &dyn TransportOps {
        match &self.transport {
            TransportConn::Direct(direct) => &**direct,
            TransportConn::Rdma(handle) => &*handle.0,
        }
    }

    /// Whether the application has dropped the stream, with data to send or without, and the peer
    /// has still to close it.
    pub(crate) fn is_closing(&self, with_unsent: bool) -> bool {
        let descriptor = self.closing_descriptor.lock();
        descriptor
            .as_ref()
            .is_some_and(|descriptor| descriptor.had_unsent == with_unsent)
    }

    pub(crate) fn is_app_closed(&self) -> bool {
        self.closing.lock().is_app_closed()
    }

    /// Whether the application writes nothing more: the stream was dropped, or shut down for
    /// writing.
    pub(crate) fn is_write_closed(&self) -> bool {
        let closing = self.closing.lock();
        closing.is_app_closed() || closing.is_shut()
    }

    /// Whether the delivery of all written data and of the close behind it has ended: they are in
    /// the peer's memory, or are lost. Otherwise the driver is notified when it may have ended.
    pub(crate) fn arm_delivery(&self) -> bool {
        match self.rdma() {
            Some(rdma) if self.is_app_closed() => rdma.arm_delivery(),
            // Reading makes this side send, too.
            Some(rdma) => {
                rdma.arm_completions();
                self.delivery() != StreamDelivery::Pending
            }
            None => self.driver.is_gone() || self.delivery() != StreamDelivery::Pending,
        }
    }

    /// The delivery state of all written data and of the shutdown behind it.
    pub(crate) fn delivery(&self) -> StreamDelivery {
        match self.rdma() {
            Some(rdma) => match rdma.delivery() {
                // No end of stream follows the data.
                StreamDelivery::Pending if self.is_shut_by_abort() => StreamDelivery::Lost,
                delivery => delivery,
            },
            None if !self.ops().has_pending() => StreamDelivery::Done,
            None => {
                self.handle_peer_flags();
                // The device and its driver may be gone too: no later event ends the wait.
                match self.closing.lock().is_aborted_by_peer() {
                    true => StreamDelivery::Lost,
                    false => StreamDelivery::Pending,
                }
            }
        }
    }

    /// Whether the application has shut down both directions with received data unread.
    pub(crate) fn is_shut_by_abort(&self) -> bool {
        self.closing.lock().is_shut_by_abort()
    }

    /// Whether writers rewind a ring that is empty.
    pub(crate) fn allows_rewind(&self) -> bool {
        self.ops().allows_rewind()
    }

    /// The peer's ring, which this side writes.
    pub(crate) fn peer_ring(&self) -> Ring {
        self.ops().peer_ring()
    }

    /// Publishes the consumer cursor and signals the peer.
    pub(crate) fn publish_consumer(&self, cursor: Cursor) {
        self.ops().publish_consumer(self, cursor);
    }

    pub(crate) fn state(&self) -> ConnState {
        self.closing.lock().state()
    }

    /// The connection for tools.
    pub(crate) fn info(&self) -> ConnectionInfo {
        let producer = ProducerWord::from_ne(self.local.producer().load(Ordering::Acquire)).cursor;
        let peer = ConsumerWord::from_ne(self.local.consumer().load(Ordering::Acquire));
        let local = self.ops().published_words();
        let rdma = self.rdma();
        let smc = SmcInfo {
            state: self.state(),
            group: self.group,
            gid: self
                .driver
                .device
                .operations()
                .direct()
                .map(|direct| direct.gid()),
            link: rdma.and_then(|rdma| rdma.link()),
            token: self.key().0,
            peer_token: self.ops().peer_token(),
            recv_buffer: self.local.region().len(),
            send_buffer: rdma.map(|rdma| len_usize(rdma.capacity())),
            peer_buffer: len_usize(self.peer_ring().size()),
            received: Cursors {
                producer,
                consumer: local.consumer,
            },
            sent: Cursors {
                producer: local.producer,
                consumer: peer.cursor,
            },
            flags: local.flags,
            peer_flags: Flags {
                producer: peer.producer_flags,
                state: peer.state_flags,
            },
            reads: self.counters.received.stats(),
            writes: self.counters.sent.stats(),
        };
        ConnectionInfo {
            id: self.id,
            role: self.role,
            mode: self.mode.clone(),
            local: address::local(&*self.socket).ok(),
            peer: self.peer_addr.clone(),
            smc: Some(smc),
        }
    }

    // ---- Updates of the peer -------------------------------------------------------------------

    /// Handles the peer's flags. Returns whether the connection has ended in some direction.
    pub(crate) fn handle_peer_flags(&self) -> bool {
        let word = ConsumerWord::from_ne(self.local.consumer().load(Ordering::Acquire));
        if !word.state_flags.is_empty() {
            let has_changed = self.closing.lock().handle_peer(word.state_flags);
            if has_changed {
                self.has_ended.store(true, Ordering::Release);
                self.wake();
                self.release_if_closed();
            }
        }
        self.has_ended()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// The result of reading when no data is left: `None` while more may arrive.
    pub(crate) fn read_end(&self) -> Option<Result<(), Error>> {
        match self.closing.lock().read_end() {
            ReadEnd::Open => None,
            ReadEnd::Eof => Some(Ok(())),
            ReadEnd::Reset => Some(Err(Error::Closed(CloseReason::Reset))),
            ReadEnd::Aborted => Some(Err(self.failure())),
        }
    }

    /// The result of writing.
    #[cold]
    pub(crate) fn write_end(&self) -> Result<(), Error> {
        match self.closing.lock().write_end() {
            WriteEnd::Open => Ok(()),
            WriteEnd::Shut => Err(Error::Closed(CloseReason::Local)),
            WriteEnd::PeerClosed => Err(Error::Closed(CloseReason::Peer)),
            WriteEnd::Reset => Err(Error::Closed(CloseReason::Reset)),
            WriteEnd::Aborted => Err(self.failure()),
        }
    }

    /// Why the connection was ended by this side, if it was.
    pub(crate) fn abort_cause(&self) -> Option<Error> {
        self.closing.lock().has_ended_here().then(|| self.failure())
    }

    fn failure(&self) -> Error {
        self.failure
            .get()
            .cloned()
            .unwrap_or(Error::Closed(CloseReason::Aborted))
    }

    /// The error that ended the connection, once.
    pub(crate) fn take_error(&self) -> Option<Error> {
        self.handle_peer_flags();
        let is_reset = self.closing.lock().is_aborted_by_peer();
        let reset = is_reset.then_some(Error::Closed(CloseReason::Reset));
        let error = self.failure.get().cloned().or(reset)?;
        let is_taken = self.is_error_taken.swap(true, Ordering::Relaxed);
        (!is_taken).then_some(error)
    }

    // ---- Waiting -------------------------------------------------------------------------------

    /// Whether a waiting task will be woken; called when its waker is registered.
    ///
    /// # Errors
    ///
    /// [`CloseReason::Runtime`] when it will not.
    pub(crate) fn check_can_wait(&self) -> Result<(), Error> {
        self.publish_without_driver();
        match self.driver.is_stopped() {
            true => Err(Error::Closed(CloseReason::Runtime)),
            false => Ok(()),
        }
    }

    /// Requests that the device reports the next write of the peer. The caller checks once more
    /// afterwards.
    pub(crate) fn arm(&self) {
        self.ops().arm();
    }

    /// Wakes all tasks: the peer signalled, or another state changed.
    pub(crate) fn wake(&self) {
        self.reader.wake();
        self.writer.wake();
        self.changed.notify(usize::MAX);
    }

    /// For the driver: a post has completed, which freed staging space.
    pub(crate) fn handle_completed(&self) {
        let (is_app_closed, is_shut) = {
            let closing = self.closing.lock();
            (closing.is_app_closed(), closing.is_shut())
        };
        if is_app_closed {
            self.release_if_closed();
        } else {
            self.writer.wake();
            self.changed.notify(usize::MAX);
        }
        if is_app_closed || is_shut {
            self.driver.groups.notify_ended();
        }
    }

    /// For the driver: the peer signalled.
    pub(crate) fn handle_signal(self: &Arc<Self>) {
        if self.closing.lock().is_app_closed() {
            self.handle_peer_flags();
            self.arm_peer_close();
            self.discard_arrivals();
            // Data for space that the peer freed was posted, and its completion is awaited.
            self.arm_delivery();
        } else {
            if self.closing.lock().has_ended_reading() {
                self.discard_arrivals();
            }
            self.wake();
        }
    }

    /// SMC-R, after the application dropped the stream or shut both directions down: data that
    /// still arrives must not leave the peer without space, because this side's unsent data may
    /// depend on the peer in the same way.
    fn discard_arrivals(&self) {
        let Some(rdma) = self.rdma() else { return };
        let word = self.local.producer().load(Ordering::Acquire);
        let before = self.read_until.swap(word, Ordering::AcqRel);
        if word != before {
            rdma.discard(ProducerWord::from_ne(word).cursor);
        }
    }

    /// Until the first CDC update of the peer, only the TCP connection shows whether set-up has
    /// succeeded at the peer too: it may have failed there after the last handshake message. See
    /// also [`Conn::ends_with_tcp`]. Called before parking.
    pub(crate) fn watch_tcp(self: &Arc<Self>) {
        // Without its runtime a socket reports no events.
        if self.is_tcp_watch_deferred() || self.driver.is_stopped() || !self.ends_with_tcp() {
            return;
        }
        if self.is_tcp_watched.swap(true, Ordering::AcqRel) && !self.is_peer_silent() {
            return;
        }
        let waker = self.tcp_waker();
        let poll = || {
            let mut cx = Context::from_waker(waker);
            self.socket.poll_readable(&mut cx).is_ready()
        };
        let Some(ended) = self.watch_socket(poll) else {
            return;
        };
        if ended {
            self.is_tcp_watched.store(false, Ordering::Release);
        }
        if !ended || !self.ends_with_tcp() {
            return;
        }
        match &self.transport {
            // A peer that closes publishes its flags before its TCP connection ends.
            TransportConn::Direct(_) => self.abort(Error::Closed(CloseReason::Aborted)),
            // Only a DECLINE can follow on TCP: set-up has failed.
            TransportConn::Rdma(_) if self.has_tcp_data(waker) => {
                self.abort(Error::Closed(CloseReason::Aborted));
            }
            // Here the end of TCP may overtake the peer's messages on the link.
            TransportConn::Rdma(_) => {
                if !self.half_open.swap(true, Ordering::AcqRel) {
                    self.driver.start_half_open_timeout(self);
                }
            }
        }
    }

    /// Always the same one: a socket may wake a replaced one.
    fn tcp_waker(self: &Arc<Self>) -> &Waker {
        let new = || Waker::from(Arc::new(TcpEventWaker(Arc::downgrade(self))));
        self.tcp_waker.get_or_init(new)
    }

    /// Whether the end of TCP ends the connection.
    ///
    /// It does while the peer is silent. With SMC-D it does until the peer closes where nothing
    /// proves that the peer has the device that it names, and whose end would be reported: after a
    /// handshake on TCP, with a device that does not know the processes of others, and with a peer
    /// in another PID namespace.
    fn ends_with_tcp(&self) -> bool {
        if self.is_peer_silent() {
            return true;
        }
        let TransportConn::Direct(direct) = &self.transport else {
            return false;
        };
        if direct.has_proven_owner && self.locality != PeerLocality::Unknown {
            return false;
        }
        let word = ConsumerWord::from_ne(self.local.consumer().load(Ordering::Acquire));
        word.state_flags.is_empty()
    }

    /// Whether the TCP watch has not started yet.
    pub(crate) fn is_tcp_watch_deferred(&self) -> bool {
        self.tcp_watch_deferred.load(Ordering::Relaxed)
    }

    /// For the driver: watches TCP from now on, while the end of TCP ends the connection.
    pub(crate) fn start_tcp_watch(self: &Arc<Self>) {
        self.tcp_watch_deferred.store(false, Ordering::Relaxed);
        self.watch_tcp();
    }

    fn has_tcp_data(&self, waker: &Waker) -> bool {
        let read = self
            .socket
            .poll_read(&mut Context::from_waker(waker), &mut [0]);
        matches!(read, Poll::Ready(Ok(1..)))
    }

    /// Whether the peer has not published any update yet.
    pub(crate) fn is_peer_silent(&self) -> bool {
        if self.has_peer_sent.load(Ordering::Relaxed) {
            return false;
        }
        let has_peer_sent = self.ops().has_received(&self.local);
        self.has_peer_sent.store(has_peer_sent, Ordering::Relaxed);
        !has_peer_sent
    }
}

/// Wakes a connection on an event of its TCP socket.
struct TcpEventWaker(Weak<Conn>);

impl Wake for TcpEventWaker {
    fn wake(self: Arc<Self>) {
        let Some(conn) = self.0.upgrade() else { return };
        conn.is_tcp_watched.store(false, Ordering::Release);
        if conn.is_app_closed() || !conn.is_peer_silent() {
            // Deferred to the driver: the caller may be polling that socket.
            conn.driver.note_tcp_event(&conn);
        } else {
            conn.wake();
        }
    }
}

/// The number of a new stream.
pub(crate) fn next_stream_id() -> u64 {
    static NEXT: StdAtomicU64 = StdAtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Ring sizes and positions are at most 512 MiB, so this never saturates.
pub(crate) fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// `usize` has at least 32 bits on all supported targets.
pub(crate) fn len_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Differs from every position: no cursor has count 0xFFFFFFFF.
const NOT_DROPPED: u64 = u64::MAX;
