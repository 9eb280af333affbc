//! Received data that is held after it was read.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bytes::Bytes;
use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord};
use smc_wire::cursor::Cursor;

use super::super::conn::{Conn, len_u32};
use crate::device::Dmb;
use crate::mem::sync::Ordering;
use crate::mem::{Element, TrustPeers};
use crate::proto::conn::Held;

/// A piece of received data, which may be held, sent to other tasks and released in any order.
///
/// [`Stream::read_guard`](super::super::Stream::read_guard) makes them. The stream has read past a
/// guard when it gives it, so reading goes on behind it, by guards or otherwise.
///
/// **Where the bytes are.** If the endpoint trusts its peers
/// ([`TrustPeers`]) and the stream is SMC-D, a guard is the peer's bytes where the
/// peer has written them: nothing is copied. Otherwise it is a private copy with the same
/// interface, because memory that a peer can change at any time must not be looked at as `&[u8]`.
/// [`ReadGuard::is_in_place`] tells.
///
/// **What holding costs.** A ring is freed from one end. The peer gets the space of guards in place
/// back as soon as they are dropped, but only as far as the oldest one that is still held. So while
/// a guard is held, the peer can send at most the rest of the ring
/// ([`Stream::recv_buffer_size`](super::super::Stream::recv_buffer_size) bytes from the start of
/// the oldest guard), and then waits. *Do not wait for more than that before dropping the guard*:
/// it would be for ever. What has to stay longer is copied by [`ReadGuard::detach`]. Private
/// guards hold nothing back.
///
/// **After the end.** A guard stays valid when the stream is dropped, when the peer is gone, and
/// when its endpoint is dropped. It keeps the receive buffer from being given back or used again.
pub struct ReadGuard(Inner);

enum Inner {
    Private(Bytes),
    InPlace(Part),
}

/// A part of the ring that is not given back.
struct Part {
    retained: Arc<RetainedRanges>,
    /// Offset in the ring.
    at: usize,
    /// Position as [`Held`] counts.
    start: u64,
    len: usize,
}

impl ReadGuard {
    pub(crate) fn private(bytes: Bytes) -> Self {
        Self(Inner::Private(bytes))
    }

    /// Length in bytes; 0 at end of stream.
    #[must_use]
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Private(bytes) => bytes.len(),
            Inner::InPlace(part) => part.len,
        }
    }

    /// Whether there are no bytes: the stream has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether these are the peer's bytes where it wrote them, rather than a copy.
    #[must_use]
    pub fn is_in_place(&self) -> bool {
        matches!(self.0, Inner::InPlace(_))
    }

    /// Takes the first `at` bytes off, as a guard of their own; this one keeps the rest.
    ///
    /// Each gives its own part of the ring back.
    ///
    /// # Panics
    ///
    /// If `at` is more than [`ReadGuard::len`].
    #[must_use = "what is taken off is released when it is dropped"]
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len(), "{at} bytes of {}", self.len());
        match &mut self.0 {
            Inner::Private(bytes) => Self::private(bytes.split_to(at)),
            Inner::InPlace(part) => Self(Inner::InPlace(part.split_to(at))),
        }
    }

    /// The same bytes in private memory, with their part of the ring given back.
    ///
    /// Copies, unless they are private already.
    #[must_use]
    pub fn detach(self) -> Self {
        match &self.0 {
            Inner::Private(_) => self,
            Inner::InPlace(part) => Self::private(Bytes::copy_from_slice(part.bytes())),
        }
    }

    /// Passes the guard on as [`Bytes`], without a copy. The last clone or slice of them that is
    /// dropped releases all of it.
    #[must_use]
    pub fn into_bytes(self) -> Bytes {
        match self.0 {
            Inner::Private(bytes) => bytes,
            Inner::InPlace(_) => Bytes::from_owner(self),
        }
    }
}

impl Deref for ReadGuard {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Private(bytes) => bytes,
            Inner::InPlace(part) => part.bytes(),
        }
    }
}

impl AsRef<[u8]> for ReadGuard {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<ReadGuard> for Bytes {
    fn from(guard: ReadGuard) -> Self {
        guard.into_bytes()
    }
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadGuard")
            .field("len", &self.len())
            .field("is_in_place", &self.is_in_place())
            .finish()
    }
}

impl Part {
    fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        self.retained
            .element
            .slice(self.at, self.len, self.retained.trust)
            .expect("guards are made inside of the ring and only split")
    }

    fn split_to(&mut self, len: usize) -> Self {
        let first = Self {
            retained: Arc::clone(&self.retained),
            at: self.at,
            start: self.start,
            len,
        };
        self.at += len;
        self.start += u64::from(len_u32(len));
        self.len -= len;
        first
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.retained.release(self.start, len_u32(self.len));
    }
}

/// What all guards of a connection and its reading half have in common.
///
/// While anything is held, it is this that tells the peer what is free, and not the reading half:
/// whoever drops a guard does so. One at a time, and never under the lock, since telling the peer
/// may wake others and thereby drop guards.
pub(crate) struct RetainedRanges {
    element: Element,
    trust: TrustPeers,
    /// A buffer that was dropped would be used for another connection.
    _buffer: Arc<dyn Dmb>,
    /// Does not keep it: its socket goes when the stream does.
    conn: Weak<Conn>,
    state: Mutex<State>,
}

struct State {
    held: Held,
    /// Somebody tells the peer, and will look again afterwards.
    is_publishing: bool,
    /// The reading half is gone: nobody wants more.
    is_over: bool,
}

impl RetainedRanges {
    /// For a connection whose ring can be looked at; `None` if guards have to be copies.
    pub(crate) fn new(conn: &Arc<Conn>, trust: Option<TrustPeers>) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            element: conn.local.clone(),
            trust: trust?,
            _buffer: conn.dmb()?,
            conn: Arc::downgrade(conn),
            state: Mutex::new(State {
                held: Held::new(conn.local_ring()),
                is_publishing: false,
                is_over: false,
            }),
        }))
    }

    /// The reading half hands the window over; nothing is held now.
    pub(crate) fn begin(&self, shown: Cursor, unconfirmed: u32) {
        self.state().held.begin(shown, unconfirmed);
    }

    /// `len` bytes at offset `at` of the ring were read, and are held from now on.
    pub(crate) fn retain(self: &Arc<Self>, at: usize, len: usize) -> ReadGuard {
        let start = self.state().held.hold(len_u32(len));
        self.publish();
        ReadGuard(Inner::InPlace(Part {
            retained: Arc::clone(self),
            at,
            start,
            len,
        }))
    }

    /// `len` bytes were read and are not needed any more.
    pub(crate) fn pass(&self, len: u32) {
        self.state().held.pass(len);
        self.publish();
    }

    /// How many bytes the peer was shown since the last call, and whether the reading half has the
    /// window back.
    pub(crate) fn take_shown(&self) -> (u32, bool) {
        let mut state = self.state();
        let shown = state.held.take_shown();
        (shown, state.held.is_empty() && !state.is_publishing)
    }

    /// The reading half goes: the connection may end at any time from now on.
    pub(crate) fn stop(&self) {
        self.state().is_over = true;
    }

    fn release(&self, start: u64, len: u32) {
        let freed = self.state().held.let_go(start, len);
        if freed > 0 {
            self.publish();
        }
    }

    /// Tells the peer what is free, if that is due.
    fn publish(&self) {
        let Some(conn) = self.conn.upgrade() else {
            return;
        };
        while let Some(cursor) = self.begin_publish(&conn) {
            conn.publish_consumer(cursor);
            self.state().is_publishing = false;
        }
    }

    fn begin_publish(&self, conn: &Conn) -> Option<Cursor> {
        let mut state = self.state();
        if state.is_over || state.is_publishing {
            return None;
        }
        let word = ConsumerWord::from_ne(conn.local.consumer().load(Ordering::Acquire));
        let is_blocked = word.producer_flags.contains(ProducerFlags::WRITER_BLOCKED);
        let producer = ProducerWord::from_ne(conn.local.producer().load(Ordering::Acquire));
        if !state.held.is_update_due(is_blocked, producer.cursor) {
            return None;
        }
        state.is_publishing = true;
        Some(state.held.show())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RetainedRanges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetainedRanges").finish_non_exhaustive()
    }
}
