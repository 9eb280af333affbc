//! One SMC connection as its two halves, the driver and tools share it.

use std::fmt;
use std::io::IoSlice;
use std::net::{Shutdown, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use event_listener::{Event, EventListener};
use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::types::DmbToken;

use super::driver::Slot;
use super::groups::Membership;
use super::mode::Mode;
use super::runtime::Socket;
use crate::device::{Attachment, Dmb, Fabric, Signal, SubmitError};
use crate::error::{Error, How, PeerMisbehaved};
use crate::mem::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::mem::{Element, HEADER_LEN};
use crate::proto::conn::{Closing, ReadEnd, State, WriteEnd};
use crate::proto::group::GroupId;

/// The shared part of a connection.
///
/// Both halves read what the peer says in [`Conn::local`]. What we say to the peer is two words:
/// the producer word belongs to the writing half alone; the consumer word is put together by both
/// halves and by closing, see [`Conn::say`].
pub(crate) struct Conn {
    /// Our element, written by the peer.
    pub(crate) local: Element,
    local_ring: Ring,
    pub(crate) mode: Mode,
    pub(crate) peer_addr: SocketAddr,
    pub(crate) socket: Arc<dyn Socket>,
    /// Both ends are ours, so that nobody cares how TCP is closed.
    same_host: bool,
    dmb: Arc<dyn Dmb>,
    peer: PeerElement,
    /// The last producer word that was moved.
    producer: AtomicU64,
    /// Not zero: the device was too busy for it, and the driver tries again.
    producer_owed: AtomicU32,
    consumer: Mutex<Consumer>,
    /// Waits at the TCP socket until then.
    rouse: OnceLock<Waker>,
    /// The peer has written something to our element.
    spoken: AtomicBool,
    /// Some end has come; details in `closing`. Checked on each call, so kept apart.
    ended: AtomicBool,
    closing: Mutex<Closing>,
    failure: OnceLock<Error>,
    /// Where the reading half stopped when it was dropped.
    read_until: AtomicU64,
    linger: Mutex<Option<Duration>>,
    reader: AtomicWaker,
    writer: AtomicWaker,
    changed: Event,
    slot: Arc<Slot>,
    group: GroupId,
    /// Leaves the link group when the connection has ended.
    membership: Mutex<Option<Membership>>,
}

/// What the peer should see as consumer word.
#[derive(Default)]
struct Consumer {
    word: ConsumerWord,
    /// The device was too busy for it, and the driver tries again.
    is_owed: bool,
}

/// The peer's element, which we write.
pub(crate) enum PeerElement {
    /// Mapped: we write it ourselves.
    Mapped {
        /// The memory.
        element: Element,
        /// Keeps it mapped and tells the peer.
        attachment: Arc<dyn Attachment>,
        /// Its payload part.
        ring: Ring,
    },
    /// The device moves data there.
    Moved {
        /// What the peer calls it.
        token: DmbToken,
        /// Start of the element in the peer's buffer, in bytes.
        base: u32,
        /// Its payload part.
        ring: Ring,
    },
}

/// What a connection is made of when set-up has ended.
pub(crate) struct Parts {
    pub(crate) local: Element,
    pub(crate) local_ring: Ring,
    pub(crate) dmb: Arc<dyn Dmb>,
    pub(crate) peer: PeerElement,
    pub(crate) mode: Mode,
    pub(crate) peer_addr: SocketAddr,
    pub(crate) socket: Arc<dyn Socket>,
    pub(crate) slot: Arc<Slot>,
    pub(crate) membership: Membership,
    pub(crate) same_host: bool,
}

impl Conn {
    pub(crate) fn new(parts: Parts) -> Arc<Self> {
        let Parts {
            local,
            local_ring,
            dmb,
            peer,
            mode,
            peer_addr,
            socket,
            slot,
            membership,
            same_host,
        } = parts;
        Arc::new(Self {
            local,
            local_ring,
            mode,
            peer_addr,
            socket,
            same_host,
            dmb,
            peer,
            producer: AtomicU64::new(0),
            producer_owed: AtomicU32::new(0),
            consumer: Mutex::default(),
            rouse: OnceLock::new(),
            spoken: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            closing: Mutex::new(Closing::new()),
            failure: OnceLock::new(),
            read_until: AtomicU64::new(NOT_DROPPED),
            linger: Mutex::new(None),
            reader: AtomicWaker::new(),
            writer: AtomicWaker::new(),
            changed: Event::new(),
            slot,
            group: membership.seat().group(),
            membership: Mutex::new(Some(membership)),
        })
    }

    pub(crate) fn token(&self) -> DmbToken {
        self.dmb.token()
    }

    pub(crate) fn is_released(&self) -> bool {
        self.closing().is_released()
    }

    pub(crate) fn group(&self) -> GroupId {
        self.group
    }

    pub(crate) fn local_ring(&self) -> Ring {
        self.local_ring
    }

    pub(crate) fn peer_ring(&self) -> Ring {
        match &self.peer {
            PeerElement::Mapped { ring, .. } | PeerElement::Moved { ring, .. } => *ring,
        }
    }

    pub(crate) fn state(&self) -> State {
        self.closing().state()
    }

    // ---- What we say to the peer ---------------------------------------------------------------

    /// Copies payload into the peer's ring at `at`; the caller knows that it fits.
    pub(crate) fn put(&self, at: u32, data: &[u8]) -> Result<(), SubmitError> {
        match &self.peer {
            PeerElement::Mapped { element, .. } => element
                .write(len_usize(at), data)
                .map_err(|_| SubmitError::OutOfBounds),
            PeerElement::Moved { token, base, ring } => {
                let until_end = len_usize(ring.size().saturating_sub(at)).min(data.len());
                let (first, second) = data.split_at(until_end);
                let start = base.saturating_add(len_u32(HEADER_LEN));
                self.move_data(*token, start.saturating_add(at), first, Signal::No)?;
                if second.is_empty() {
                    return Ok(());
                }
                self.move_data(*token, start, second, Signal::No)
            }
        }
    }

    /// Shows the peer how far we have written, and tells it. Only the writing half does.
    pub(crate) fn say_producer(&self, cursor: Cursor) {
        let word = ProducerWord { cursor }.to_ne();
        let said = match &self.peer {
            PeerElement::Mapped {
                element,
                attachment,
                ..
            } => {
                element.producer().store(word, Ordering::Release);
                attachment.signal()
            }
            PeerElement::Moved { token, base, .. } => {
                self.producer.store(word, Ordering::SeqCst);
                if self.is_left_to_driver() {
                    return;
                }
                self.move_word(*token, *base, PRODUCER_AT, word)
            }
        };
        match said {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => {
                self.producer_owed.store(1, Ordering::SeqCst);
                self.slot.owe(self.token());
            }
            Err(error) => self.submit_failed(error),
        }
    }

    /// Shows the peer how far we have read, and tells it.
    pub(crate) fn say_consumer(&self, cursor: Cursor) {
        self.say(true, |word| word.cursor = cursor);
    }

    /// Sets or clears the flag for a writer that waits for space; the next signal tells of it.
    pub(crate) fn say_blocked(&self, blocked: bool) {
        self.say(false, |word| {
            word.producer_flags
                .set(ProducerFlags::WRITER_BLOCKED, blocked);
        });
    }

    fn say_flags(&self, flags: StateFlags) {
        self.say(true, |word| word.state_flags.insert(flags));
    }

    /// Changes the consumer word and stores it at the peer, not before the producer word.
    ///
    /// Both halves and closing do so, each for a part of the word, and the peer must never see an
    /// older word after a newer one: that takes a lock. It is held for one store, and only when
    /// the window is updated, the ring is full, or something ends.
    fn say(&self, signal: bool, change: impl Fn(&mut ConsumerWord)) {
        let said = {
            let mut consumer = self.consumer();
            change(&mut consumer.word);
            if consumer.is_owed || self.producer_owed.load(Ordering::SeqCst) > 0 {
                consumer.is_owed = true;
                return;
            }
            let said = self.store_consumer(consumer.word);
            consumer.is_owed = said == Err(SubmitError::WouldBlock);
            said
        };
        let said = match (said, &self.peer) {
            (Ok(()), PeerElement::Mapped { attachment, .. }) if signal => attachment.signal(),
            (said, _) => said,
        };
        match said {
            Ok(()) => {}
            Err(SubmitError::WouldBlock) => {
                self.consumer().is_owed = true;
                self.slot.owe(self.token());
            }
            Err(error) => self.submit_failed(error),
        }
    }

    fn store_consumer(&self, word: ConsumerWord) -> Result<(), SubmitError> {
        let word = word.to_ne();
        match &self.peer {
            PeerElement::Mapped { element, .. } => {
                element.consumer().store(word, Ordering::Release);
                Ok(())
            }
            PeerElement::Moved { token, base, .. } => {
                self.move_word(*token, *base, CONSUMER_AT, word)
            }
        }
    }

    fn move_word(&self, token: DmbToken, base: u32, at: u32, word: u64) -> Result<(), SubmitError> {
        self.move_data(
            token,
            base.saturating_add(at),
            &word.to_ne_bytes(),
            Signal::Yes,
        )
    }

    fn move_data(
        &self,
        token: DmbToken,
        at: u32,
        data: &[u8],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let Fabric::Direct(direct) = self.slot.device().fabric();
        direct.move_data(token, at, &[IoSlice::new(data)], signal)
    }

    /// The device would not take data: the connection is over, unless the peer ended it before.
    pub(crate) fn submit_failed(&self, error: SubmitError) {
        self.note_peer();
        let cause = match error {
            SubmitError::Device(error) => Error::Device(error),
            _ => Error::Closed(How::Aborted),
        };
        self.kill(cause);
    }

    /// The driver owes the peer an older producer word. It stores the newest it finds, and is told
    /// of this one by the count.
    fn is_left_to_driver(&self) -> bool {
        let counted = |owed: u32| (owed > 0).then(|| owed.wrapping_add(1).max(1));
        self.producer_owed
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, counted)
            .is_ok()
    }

    fn is_owing(&self) -> bool {
        self.producer_owed.load(Ordering::SeqCst) > 0 || self.consumer().is_owed
    }

    /// For the driver: stores the words that the device was too busy for, in their order, and
    /// lets the writer try again. Returns whether something is still owed.
    pub(crate) fn say_again(&self) -> bool {
        self.writer.wake();
        match self.try_say_again() {
            Ok(()) => self.finish_if_over(),
            Err(SubmitError::WouldBlock) => return true,
            Err(error) => {
                self.producer_owed.store(0, Ordering::SeqCst);
                self.consumer().is_owed = false;
                self.submit_failed(error);
                self.finish_if_over();
            }
        }
        false
    }

    /// The device was too busy for data: the driver wakes the writer when it may try again.
    pub(crate) fn ask_again(&self) {
        self.slot.owe(self.token());
    }

    fn try_say_again(&self) -> Result<(), SubmitError> {
        loop {
            let owed = self.producer_owed.load(Ordering::SeqCst);
            if owed == 0 {
                break;
            }
            let word = self.producer.load(Ordering::SeqCst);
            match &self.peer {
                PeerElement::Mapped { attachment, .. } => attachment.signal()?,
                PeerElement::Moved { token, base, .. } => {
                    self.move_word(*token, *base, PRODUCER_AT, word)?;
                }
            }
            let none =
                self.producer_owed
                    .compare_exchange(owed, 0, Ordering::SeqCst, Ordering::SeqCst);
            if none.is_ok() {
                break;
            }
        }
        {
            let mut consumer = self.consumer();
            if !consumer.is_owed {
                return Ok(());
            }
            self.store_consumer(consumer.word)?;
            consumer.is_owed = false;
        }
        match &self.peer {
            PeerElement::Mapped { attachment, .. } => attachment
                .signal()
                .inspect_err(|_| self.consumer().is_owed = true),
            PeerElement::Moved { .. } => Ok(()),
        }
    }

    // ---- What the peer says --------------------------------------------------------------------

    /// Looks at the peer's flags. Returns whether the connection has come to some end.
    pub(crate) fn note_peer(&self) -> bool {
        let word = ConsumerWord::from_ne(self.local.consumer().load(Ordering::Acquire));
        if !word.state_flags.is_empty() {
            let news = self.closing().handle_peer(word.state_flags);
            if news {
                self.ended.store(true, Ordering::Release);
                self.wake();
                self.finish_if_over();
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
            ReadEnd::Reset => Some(Err(Error::Closed(How::Reset))),
            ReadEnd::Aborted => Some(Err(self.failure())),
        }
    }

    /// What writing comes to.
    pub(crate) fn write_end(&self) -> Result<(), Error> {
        match self.closing().write_end() {
            WriteEnd::Open => Ok(()),
            WriteEnd::Shut => Err(Error::Closed(How::Local)),
            WriteEnd::Reset => Err(Error::Closed(How::Reset)),
            WriteEnd::Aborted => Err(self.failure()),
        }
    }

    fn failure(&self) -> Error {
        self.failure
            .get()
            .cloned()
            .unwrap_or(Error::Closed(How::Aborted))
    }

    /// The last asynchronous error.
    pub(crate) fn take_error(&self) -> Option<Error> {
        self.failure.get().cloned()
    }

    // ---- Waiting -------------------------------------------------------------------------------

    pub(crate) fn register_reader(&self, waker: &Waker) {
        self.reader.register(waker);
    }

    pub(crate) fn register_writer(&self, waker: &Waker) {
        self.writer.register(waker);
    }

    /// For any number of tasks that wait for a change.
    pub(crate) fn listen(&self) -> EventListener {
        self.changed.listen()
    }

    /// Asks the device to report the next write of the peer. Look again afterwards.
    pub(crate) fn arm(&self) {
        self.dmb.arm();
    }

    /// The peer signalled, or something else changed.
    pub(crate) fn wake(&self) {
        self.reader.wake();
        self.writer.wake();
        self.changed.notify(usize::MAX);
    }

    /// For the driver: the peer signalled.
    pub(crate) fn signalled(self: &Arc<Self>) {
        if self.closing().is_released() {
            self.note_peer();
            self.arm();
            self.watch_set_up();
            self.note_peer();
        } else {
            self.wake();
        }
    }

    /// Until the peer has said anything, only the TCP connection tells whether set-up has ended
    /// well at its end too: it may have failed there after our last message. To be called before
    /// sleeping.
    pub(crate) fn watch_set_up(self: &Arc<Self>) {
        if !self.is_silent() {
            return;
        }
        // Always the same one: a socket may wake a waker that is replaced by another.
        let rouse = || Waker::from(Arc::new(Rouse(Arc::downgrade(self))));
        let waker = self.rouse.get_or_init(rouse);
        let ended = self
            .socket
            .poll_readable(&mut Context::from_waker(waker))
            .is_ready();
        // A peer that closes speaks before its TCP connection ends.
        if ended && self.is_silent() {
            self.kill(Error::Closed(How::Aborted));
        }
    }

    fn is_silent(&self) -> bool {
        if self.spoken.load(Ordering::Relaxed) {
            return false;
        }
        let words = [self.local.producer(), self.local.consumer()];
        let spoken = words.iter().any(|word| word.load(Ordering::Acquire) != 0);
        self.spoken.store(spoken, Ordering::Relaxed);
        !spoken
    }

    // ---- Ending --------------------------------------------------------------------------------

    /// Shuts down writing; everything written is in the peer's memory already.
    pub(crate) fn shutdown_write(&self) {
        let flags = self.closing().shutdown_write();
        if let Some(flags) = flags {
            self.ended.store(true, Ordering::Release);
            self.say_flags(flags);
            self.wake();
        }
    }

    /// The reading half is going away having read up to `cursor`.
    pub(crate) fn stop_reading(&self, cursor: Cursor) {
        self.read_until
            .store(ProducerWord { cursor }.to_ne(), Ordering::Release);
    }

    /// The application has let go of the stream.
    ///
    /// Whatever was written is in the peer's memory, so nothing has to be waited for. The record
    /// stays in the driver's table until the peer has said its last word too.
    pub(crate) fn close(self: &Arc<Self>) {
        let unread = {
            let written = ProducerWord::from_ne(self.local.producer().load(Ordering::Acquire));
            let read = ProducerWord::from_ne(self.read_until.load(Ordering::Acquire));
            written.cursor != read.cursor
        };
        let zero_linger = self.linger() == Some(Duration::ZERO);
        self.note_peer();
        let flags = self.closing().close(unread || zero_linger);
        self.ended.store(true, Ordering::Release);
        if let Some(flags) = flags {
            self.say_flags(flags);
        }
        self.finish_if_over();
        if !self.closing().is_finished() {
            self.arm();
            self.watch_set_up();
            self.note_peer();
            self.slot.linger(self);
        }
    }

    /// Nobody is left at the other end, or it cannot be trusted to go on.
    pub(crate) fn kill(&self, cause: Error) {
        let flags = self.closing().kill();
        // Set once; a later cause says less than the first.
        let _later = self.failure.set(cause);
        self.ended.store(true, Ordering::Release);
        if let Some(flags) = flags {
            self.say_flags(flags);
        }
        self.wake();
        self.finish_if_over();
    }

    /// The peer broke the rules of the data path; only this connection ends.
    pub(crate) fn misbehaved(&self, what: PeerMisbehaved) -> Error {
        self.kill(Error::PeerMisbehaved(what));
        self.failure()
    }

    /// The peer's device went away. What it said before it went still counts.
    pub(crate) fn peer_gone(&self) {
        self.note_peer();
        self.kill(Error::Closed(How::Aborted));
    }

    /// Lets go of everything that belongs to others once both sides have said their last word.
    fn finish_if_over(&self) {
        // The peer has not seen our last word as long as a busy device owes it.
        let is_owing = self.is_owing() && !self.slot.is_gone();
        if !self.closing().is_finished() || is_owing {
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
        if self.same_host {
            // Both ends are ours and read nothing more: no need to keep the port in TIME_WAIT.
            let _best_effort = self.socket.set_linger(Some(Duration::ZERO));
        } else {
            let _best_effort = self.socket.shutdown(Shutdown::Both);
        }
        self.slot.forget(self.token());
    }

    pub(crate) fn linger(&self) -> Option<Duration> {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_linger(&self, linger: Option<Duration>) {
        *self.linger.lock().unwrap_or_else(PoisonError::into_inner) = linger;
    }

    fn consumer(&self) -> MutexGuard<'_, Consumer> {
        self.consumer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closing(&self) -> MutexGuard<'_, Closing> {
        self.closing.lock().unwrap_or_else(PoisonError::into_inner)
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
struct Rouse(Weak<Conn>);

impl Wake for Rouse {
    fn wake(self: Arc<Self>) {
        let Some(conn) = self.0.upgrade() else { return };
        if conn.is_released() {
            // Not here and now: whoever wakes may be in the middle of polling that socket.
            conn.slot.look_at(&conn);
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

/// Where the words are in an element, in bytes.
const PRODUCER_AT: u32 = 8;
const CONSUMER_AT: u32 = 16;

/// Differs from every position: no cursor has count 0xFFFFFFFF.
const NOT_DROPPED: u64 = u64::MAX;
