//! One SMC connection as its two halves, the driver and tools share it.

mod publish;

use publish::Consumer;
pub(crate) use publish::{PeerElement, RetryResult};

use std::fmt;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use event_listener::{Event, EventListener};
use smc_wire::cdc::{ConsumerWord, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::{AlertToken, DmbToken};

use super::deadlines::Deadline;
use super::device_driver::DeviceDriver;
use super::groups::Membership;
use super::memory::PeerCharge;
use super::mode::Mode;
use super::rdma::{RdmaConn, RdmaConnHandle};
use super::runtime::Socket;
use crate::device::Dmb;
use crate::error::{CloseReason, Error, PeerMisbehaved};
use crate::mem::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::mem::{Element, HEADER_LEN};
use crate::proto::conn::staged::Delivery;
use crate::proto::conn::{Closing, ReadEnd, State, WriteEnd};
use crate::proto::group::GroupId;
use crate::proto::handshake::Role;

/// The shared part of a connection.
///
/// Both halves read what the peer says in [`Conn::local`]. What we say to the peer is two words:
/// the producer word belongs to the writing half alone; the consumer word is put together by both
/// halves and by closing; [`publish`] has both.
pub(crate) struct Conn {
    /// Our element, written by the peer.
    pub(crate) local: Element,
    local_ring: Ring,
    pub(crate) mode: Mode,
    pub(crate) peer_addr: SocketAddr,
    pub(crate) socket: Arc<dyn Socket>,
    /// Says how TCP is closed, and whether it is looked at.
    locality: PeerLocality,
    /// Nothing is wrong with TCP yet, as far as anybody has looked.
    tcp_watch_deferred: AtomicBool,
    buffer: LocalBuffer,
    peer: PeerElement,
    /// The last producer word that was moved.
    producer: AtomicU64,
    /// Not zero: the device was too busy for it, and the driver tries again.
    producer_pending: AtomicU32,
    /// How often the driver has asked a device again that was busy.
    retries: AtomicU32,
    consumer: Mutex<Consumer>,
    /// Waits at the TCP socket until then.
    tcp_waker: OnceLock<Waker>,
    /// The peer has written something to our element.
    has_peer_sent: AtomicBool,
    /// SMC-R: TCP has ended, and the peer has not said anything.
    half_open: AtomicBool,
    /// Some end has come; details in `closing`. Checked on each call, so kept apart.
    ended: AtomicBool,
    closing: Mutex<Closing>,
    failure: OnceLock<Error>,
    /// The application has asked for the error that ended the connection, and has it.
    is_error_taken: AtomicBool,
    /// Where the reading half stopped when it was dropped.
    read_until: AtomicU64,
    /// Bytes from the start of our ring that the reading half may have read; all, before it was
    /// dropped.
    high_water: AtomicU32,
    linger: Mutex<Option<Duration>>,
    /// What the application wants of `TCP_NODELAY`.
    pub(crate) nodelay: AtomicBool,
    reader: AtomicWaker,
    writer: AtomicWaker,
    changed: Event,
    driver: Arc<DeviceDriver>,
    group: GroupId,
    /// Leaves the link group when the connection has ended.
    membership: Mutex<Option<Membership>>,
    /// For the peer's buffer, with SMC-D.
    _charge: Option<PeerCharge>,
}

/// Our receive buffer.
pub(crate) enum LocalBuffer {
    /// SMC-D: the device's.
    Dmb(Arc<dyn Dmb>),
    /// SMC-R: with everything else that the connection has in its link group.
    Rmb(Arc<RdmaConnHandle>),
}

/// Whether the peer is a process of this host, by a handshake that only those can make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerLocality {
    /// On this host; the role is that of this side.
    SameHost(Role),
    /// Not known.
    Unknown,
}

/// Names a connection among those of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ConnKey(u64);

impl ConnKey {
    /// SMC-D: what signals name.
    pub(crate) fn direct(token: DmbToken) -> Self {
        Self(token.0)
    }

    /// SMC-R: what CDC messages name. A device is for either, so the two never meet.
    pub(crate) fn rdma(token: AlertToken) -> Self {
        Self(token.get().into())
    }
}

/// What a connection is made of when set-up has ended.
pub(crate) struct Parts {
    pub(crate) local: Element,
    pub(crate) local_ring: Ring,
    pub(crate) buffer: LocalBuffer,
    pub(crate) peer: PeerElement,
    pub(crate) mode: Mode,
    pub(crate) peer_addr: SocketAddr,
    pub(crate) socket: Arc<dyn Socket>,
    pub(crate) driver: Arc<DeviceDriver>,
    pub(crate) membership: Membership,
    pub(crate) locality: PeerLocality,
    /// For the peer's buffer, with SMC-D.
    pub(crate) charge: Option<PeerCharge>,
}

impl Conn {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            local,
            local_ring,
            buffer,
            peer,
            mode,
            peer_addr,
            socket,
            driver,
            membership,
            locality,
            charge,
        } = parts;
        if locality == PeerLocality::SameHost(Role::Client) {
            // Nobody reads from TCP any more: no need to keep the port in TIME_WAIT, also if this
            // process is killed. One end that closes hard is enough.
            let _best_effort = socket.set_linger(Some(Duration::ZERO));
        }
        Arc::new(Self {
            local,
            local_ring,
            mode,
            peer_addr,
            socket,
            locality,
            tcp_watch_deferred: AtomicBool::new(locality != PeerLocality::Unknown),
            buffer,
            peer,
            producer: AtomicU64::new(0),
            producer_pending: AtomicU32::new(0),
            retries: AtomicU32::new(0),
            consumer: Mutex::default(),
            tcp_waker: OnceLock::new(),
            has_peer_sent: AtomicBool::new(false),
            half_open: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            closing: Mutex::new(Closing::new()),
            failure: OnceLock::new(),
            is_error_taken: AtomicBool::new(false),
            read_until: AtomicU64::new(NOT_DROPPED),
            high_water: AtomicU32::new(u32::MAX),
            linger: Mutex::new(None),
            nodelay: AtomicBool::new(false),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            changed: Event::new(),
            driver,
            group: membership.seat().group(),
            membership: Mutex::new(Some(membership)),
            _charge: charge,
        })
    }

    pub(crate) fn key(&self) -> ConnKey {
        match &self.buffer {
            LocalBuffer::Dmb(dmb) => ConnKey::direct(dmb.token()),
            LocalBuffer::Rmb(handle) => ConnKey::rdma(handle.rdma_conn().token()),
        }
    }

    /// Our receive buffer, if this is SMC-D.
    pub(crate) fn dmb(&self) -> Option<Arc<dyn Dmb>> {
        match &self.buffer {
            LocalBuffer::Dmb(dmb) => Some(Arc::clone(dmb)),
            LocalBuffer::Rmb(_) => None,
        }
    }

    /// What is rdma on its way to the peer, if this is SMC-R.
    pub(crate) fn rdma(&self) -> Option<&Arc<RdmaConn>> {
        match &self.buffer {
            LocalBuffer::Dmb(_) => None,
            LocalBuffer::Rmb(handle) => Some(handle.rdma_conn()),
        }
    }

    pub(crate) fn is_released(&self) -> bool {
        self.closing().is_released()
    }

    /// Whether the application has said all that it has to say: the stream was dropped, or shut down
    /// for writing.
    pub(crate) fn is_write_closed(&self) -> bool {
        let closing = self.closing();
        closing.is_released() || closing.is_shut()
    }

    /// Whether everything that was written, and that the stream has ended, is in the peer's memory,
    /// or never will be. If it is not, the driver is told when it may be.
    pub(crate) fn await_delivery(&self) -> bool {
        match self.rdma() {
            Some(rdma) if self.is_released() => rdma.await_delivery(),
            // What it still reads has this side send, too.
            Some(rdma) => {
                rdma.await_sent();
                self.delivery() != Delivery::Pending
            }
            None => self.driver.is_gone() || self.delivery() != Delivery::Pending,
        }
    }

    /// What became of everything written and of the shutdown behind it.
    pub(crate) fn delivery(&self) -> Delivery {
        match self.rdma() {
            Some(rdma) => rdma.delivery(),
            None if !self.has_pending() => Delivery::Done,
            None => {
                self.handle_peer_flags();
                // The device may be gone too, and the driver with it: no later event ends the wait.
                match self.closing().is_aborted_by_peer() {
                    true => Delivery::Lost,
                    false => Delivery::Pending,
                }
            }
        }
    }

    /// How long a closing stream waits for delivery.
    pub(crate) fn close_deadline(&self) -> Deadline {
        self.driver.close_deadline()
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    pub(crate) fn local_ring(&self) -> Ring {
        self.local_ring
    }

    /// The ring that we write at the peer.
    pub(crate) fn peer_ring(&self) -> Ring {
        match &self.peer {
            PeerElement::Mapped { ring, .. }
            | PeerElement::Moved { ring, .. }
            | PeerElement::Lost { ring } => *ring,
            PeerElement::Rdma(rdma) => rdma.peer_ring(),
        }
    }

    pub(crate) fn peer(&self) -> &PeerElement {
        &self.peer
    }

    pub(crate) fn state(&self) -> State {
        self.closing().state()
    }

    // ---- What the peer says --------------------------------------------------------------------

    /// Looks at the peer's flags. Returns whether the connection has come to some end.
    pub(crate) fn handle_peer_flags(&self) -> bool {
        let word = ConsumerWord::from_ne(self.local.consumer().load(Ordering::Acquire));
        if !word.state_flags.is_empty() {
            let news = self.closing().handle_peer(word.state_flags);
            if news {
                self.ended.store(true, Ordering::Release);
                self.wake();
                self.release_if_closed();
            }
        }
        self.ended()
    }

    pub(crate) fn ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// What reading comes to when no data is left: `None` while more may come.
    pub(crate) fn read_end(&self) -> Option<Result<(), Error>> {
        match self.closing().read_end() {
            ReadEnd::Open => None,
            ReadEnd::Eof => Some(Ok(())),
            ReadEnd::Reset => Some(Err(Error::Closed(CloseReason::Reset))),
            ReadEnd::Aborted => Some(Err(self.failure())),
        }
    }

    /// What writing comes to.
    #[cold]
    pub(crate) fn write_end(&self) -> Result<(), Error> {
        match self.closing().write_end() {
            WriteEnd::Open => Ok(()),
            WriteEnd::Shut => Err(Error::Closed(CloseReason::Local)),
            WriteEnd::Reset => Err(Error::Closed(CloseReason::Reset)),
            WriteEnd::Aborted => Err(self.failure()),
        }
    }

    /// Why the connection was ended by this side, if it was.
    pub(crate) fn abort_cause(&self) -> Option<Error> {
        self.closing().is_killed().then(|| self.failure())
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
        let is_reset = self.closing().is_aborted_by_peer();
        let reset = is_reset.then_some(Error::Closed(CloseReason::Reset));
        let error = self.failure.get().cloned().or(reset)?;
        let is_taken = self.is_error_taken.swap(true, Ordering::Relaxed);
        (!is_taken).then_some(error)
    }

    // ---- Waiting -------------------------------------------------------------------------------

    pub(crate) fn register_reader(&self, waker: &Waker) {
        self.reader.register(waker);
    }

    pub(crate) fn register_writer(&self, waker: &Waker) {
        self.writer.register(waker);
    }

    /// Whether there will be a report of what a task waits for; to be asked when it is registered.
    ///
    /// # Errors
    ///
    /// [`CloseReason::Runtime`] when there will be none.
    pub(crate) fn check_can_wait(&self) -> Result<(), Error> {
        self.publish_without_driver();
        match self.driver.is_stopped() {
            true => Err(Error::Closed(CloseReason::Runtime)),
            false => Ok(()),
        }
    }

    /// For any number of tasks that wait for a change.
    pub(crate) fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// Asks the device to report the next write of the peer. Look again afterwards.
    pub(crate) fn arm(&self) {
        match &self.buffer {
            LocalBuffer::Dmb(dmb) => dmb.arm(),
            // Every message is reported.
            LocalBuffer::Rmb(handle) => handle.rdma_conn().arm(),
        }
    }

    /// Whether the peer waits to hear that everything was read; asked when it was.
    pub(crate) fn take_update_wanted(&self) -> bool {
        match &self.buffer {
            LocalBuffer::Dmb(_) => false,
            LocalBuffer::Rmb(handle) => handle.rdma_conn().take_update_wanted(),
        }
    }

    /// The wish is still open.
    pub(crate) fn want_update(&self) {
        if let LocalBuffer::Rmb(handle) = &self.buffer {
            handle.rdma_conn().want_update();
        }
    }

    /// Sees whether the device has news: on links they do not show in memory by themselves.
    pub(crate) fn poll_device(&self) {
        if let LocalBuffer::Rmb(handle) = &self.buffer {
            handle.rdma_conn().poll_device(&self.driver);
        }
    }

    /// The peer signalled, or something else changed.
    pub(crate) fn wake(&self) {
        self.reader.wake();
        self.writer.wake();
        self.changed.notify(usize::MAX);
    }

    /// For the driver: a message of ours has arrived, which made room.
    pub(crate) fn handle_sent(&self) {
        let (is_released, is_shut) = {
            let closing = self.closing();
            (closing.is_released(), closing.is_shut())
        };
        if is_released {
            self.release_if_closed();
        } else {
            self.writer.wake();
            self.changed.notify(usize::MAX);
        }
        if is_released || is_shut {
            self.driver.note_delivery();
        }
    }

    /// For the driver: the peer signalled.
    pub(crate) fn handle_signal(self: &Arc<Self>) {
        if self.closing().is_released() {
            self.handle_peer_flags();
            self.arm();
            self.watch_tcp();
            self.handle_peer_flags();
            self.discard_arrivals();
            // What the peer has made room for was posted, and its completion is awaited.
            self.await_delivery();
        } else {
            self.wake();
        }
    }

    /// SMC-R, when the application has let go: what still arrives must not keep the peer waiting
    /// for space, because what we have to send may wait for the peer in the same way.
    fn discard_arrivals(&self) {
        let LocalBuffer::Rmb(handle) = &self.buffer else {
            return;
        };
        let word = self.local.producer().load(Ordering::Acquire);
        let before = self.read_until.swap(word, Ordering::AcqRel);
        if word != before {
            handle
                .rdma_conn()
                .discard(ProducerWord::from_ne(word).cursor);
        }
    }

    /// Until the peer has said anything, only the TCP connection tells whether set-up has ended
    /// well at its end too: it may have failed there after our last message. To be called before
    /// sleeping.
    pub(crate) fn watch_tcp(self: &Arc<Self>) {
        // Without its runtime a socket tells nothing.
        if !self.is_peer_silent() || self.is_tcp_watch_deferred() || self.driver.is_stopped() {
            return;
        }
        // Always the same one: a socket may wake a waker that is replaced by another.
        let tcp_waker = || Waker::from(Arc::new(TcpEventWaker(Arc::downgrade(self))));
        let waker = self.tcp_waker.get_or_init(tcp_waker);
        let ended = self
            .socket
            .poll_readable(&mut Context::from_waker(waker))
            .is_ready();
        if !ended || !self.is_peer_silent() {
            return;
        }
        match &self.buffer {
            // A peer that closes speaks before its TCP connection ends.
            LocalBuffer::Dmb(_) => self.abort(Error::Closed(CloseReason::Aborted)),
            // There is nothing to say on TCP any more but that set-up has failed.
            LocalBuffer::Rmb(_) if self.has_tcp_data(waker) => {
                self.abort(Error::Closed(CloseReason::Aborted));
            }
            // Here the end of TCP may overtake what the peer says on the link.
            LocalBuffer::Rmb(_) => {
                if !self.half_open.swap(true, Ordering::AcqRel) {
                    self.driver.start_half_open_timeout(self);
                }
            }
        }
    }

    /// Whether nobody should look at TCP yet.
    pub(crate) fn is_tcp_watch_deferred(&self) -> bool {
        self.tcp_watch_deferred.load(Ordering::Relaxed)
    }

    /// For the driver: from now on TCP is looked at, as long as the peer is silent.
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

    /// Whether the peer has not said anything yet.
    pub(crate) fn is_peer_silent(&self) -> bool {
        if self.has_peer_sent.load(Ordering::Relaxed) {
            return false;
        }
        let has_peer_sent = match &self.buffer {
            LocalBuffer::Dmb(_) => {
                let words = [self.local.producer(), self.local.consumer()];
                words.iter().any(|word| word.load(Ordering::Acquire) != 0)
            }
            LocalBuffer::Rmb(handle) => handle.rdma_conn().has_received(),
        };
        self.has_peer_sent.store(has_peer_sent, Ordering::Relaxed);
        !has_peer_sent
    }

    // ---- Ending --------------------------------------------------------------------------------

    /// Shuts down writing; everything written is in the peer's memory already.
    pub(crate) fn shutdown_write(&self) {
        let flags = self.closing().shutdown_write();
        if let Some(flags) = flags {
            self.ended.store(true, Ordering::Release);
            self.publish_flags(flags);
            self.wake();
        }
    }

    /// The reading half is going away having read up to `cursor`, and never more than the first
    /// `high_water` bytes of the ring.
    pub(crate) fn stop_reading(&self, cursor: Cursor, high_water: u32) {
        self.high_water.store(high_water, Ordering::Release);
        self.read_until
            .store(ProducerWord { cursor }.to_ne(), Ordering::Release);
    }

    /// The application has let go of the stream.
    ///
    /// Whatever was written is in the peer's memory, so nothing has to be waited for. The record
    /// stays in the driver's table until the peer has said its last word too.
    pub(crate) fn close(self: &Arc<Self>) {
        let written = ProducerWord::from_ne(self.local.producer().load(Ordering::Acquire));
        let read = ProducerWord::from_ne(self.read_until.load(Ordering::Acquire));
        let unread = written.cursor != read.cursor;
        let zero_linger = self.linger() == Some(Duration::ZERO);
        self.handle_peer_flags();
        let flags = self.closing().close(unread || zero_linger);
        self.ended.store(true, Ordering::Release);
        match (flags, self.rdma()) {
            // A peer that closes as well knows by this that it was read, however little that is.
            (Some(flags), Some(rdma)) if !unread => rdma.publish_close(read.cursor, flags),
            (Some(flags), _) => self.publish_flags(flags),
            (None, _) => {}
        }
        self.release_if_closed();
        if !self.closing().is_finished() {
            self.arm();
            self.watch_tcp();
            self.handle_peer_flags();
            self.driver.linger(self);
        }
    }

    /// Nobody is left at the other end, or it cannot be trusted to go on.
    pub(crate) fn abort(&self, cause: Error) {
        self.terminate(cause, Closing::kill);
    }

    /// Its endpoint ends. What was shut down for writing, and delivered, is closed in order.
    pub(crate) fn end_with_endpoint(&self) {
        let stop = match self.delivery() {
            Delivery::Done => Closing::end,
            Delivery::Pending | Delivery::Lost => Closing::kill,
        };
        self.terminate(Error::Closed(CloseReason::Endpoint), stop);
    }

    fn terminate(&self, cause: Error, stop: impl FnOnce(&mut Closing) -> Option<StateFlags>) {
        let flags = stop(&mut self.closing());
        // Set once; a later cause says less than the first.
        let _later = self.failure.set(cause);
        self.ended.store(true, Ordering::Release);
        match (flags, self.rdma()) {
            (Some(flags), _) => self.publish_flags(flags),
            // Our last word may still wait behind data that cannot go.
            (None, Some(rdma)) if rdma.has_pending() => {
                rdma.publish_flags(StateFlags::ABORTED);
            }
            (None, _) => {}
        }
        self.wake();
        self.release_if_closed();
    }

    /// The peer broke the rules of the data path; only this connection ends.
    #[cold]
    pub(crate) fn misbehaved(&self, what: PeerMisbehaved) -> Error {
        self.abort(Error::PeerMisbehaved(what));
        self.failure()
    }

    /// The peer's device went away. What it said before it went still counts.
    pub(crate) fn handle_peer_gone(&self) {
        self.abort_unreachable(Error::Closed(CloseReason::Aborted));
    }

    /// The peer cannot be told anything any more. What it has said until now counts.
    pub(crate) fn abort_unreachable(&self, cause: Error) {
        self.handle_peer_flags();
        self.abort(cause);
    }

    /// Lets go of everything that belongs to others once both sides have said their last word.
    fn release_if_closed(&self) {
        // The peer has not seen our last word as long as a busy device, or a link, owes it, and the
        // driver tries again.
        let is_gone = self.driver.is_gone() && self.rdma().is_none();
        let is_lost = is_gone || self.driver.is_stopped();
        let has_pending = self.has_pending() && !is_lost;
        if !self.closing().is_finished() || has_pending {
            return;
        }
        let membership = self
            .membership
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if membership.is_none() {
            return;
        }
        drop(membership);
        if self.locality == PeerLocality::Unknown {
            let _best_effort = self.socket.shutdown(Shutdown::Both);
        }
        self.driver.remove(self.key());
    }

    pub(crate) fn linger(&self) -> Option<Duration> {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner) = linger;
    }

    fn closing(&self) -> MutexGuard<'_, Closing> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        let LocalBuffer::Dmb(dmb) = &self.buffer else {
            return;
        };
        let written = ProducerWord::from_ne(self.local.producer().load(Ordering::Acquire)).cursor;
        if written.wrap != 0 {
            return;
        }
        // The peer can take its word back, and reading has made pages resident: the word can only
        // add to what was read.
        let read = self.high_water.load(Ordering::Acquire);
        let used = read.max(written.count).min(self.local_ring.size());
        dmb.set_used(HEADER_LEN.saturating_add(len_usize(used)));
    }
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn")
            .field("mode", &self.mode)
            .field("state", &self.state().name())
            .field("peer", &self.peer_addr)
            .finish_non_exhaustive()
    }
}

/// Rouses a connection when something happens on its TCP socket.
struct TcpEventWaker(Weak<Conn>);

impl Wake for TcpEventWaker {
    fn wake(self: Arc<Self>) {
        let Some(conn) = self.0.upgrade() else { return };
        if conn.is_released() {
            // Not here and now: whoever wakes may be in the middle of polling that socket.
            conn.driver.note_tcp_event(&conn);
        } else {
            conn.wake();
        }
    }
}

/// The application's hold on a connection; the last one dropped closes it.
#[derive(Debug)]
pub(crate) struct Handle(pub(crate) Arc<Conn>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Ring sizes and positions are at most 512 MiB, so this never saturates.
pub(crate) fn len_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// `usize` has at least 32 bits wherever there is memory to share.
pub(crate) fn len_usize(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Differs from every position: no cursor has count 0xFFFFFFFF.
const NOT_DROPPED: u64 = u64::MAX;
