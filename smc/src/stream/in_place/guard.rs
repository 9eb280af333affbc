//! Received data that is retained after it was read.

use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord};
use smc_wire::cursor::Cursor;

use crate::conn::{Conn, len_u32};
use crate::device::Dmb;
use crate::mem::sync::{Mutex, Ordering};
use crate::mem::{Element, TrustPeers};
use crate::proto::conn::RetainedWindow;

/// A piece of received data, which may be retained, sent to other tasks and released in any order.
///
/// [`Stream::read_guard`](super::super::Stream::read_guard) makes them. The stream has read past a
/// guard when it returns it, so reading continues behind it, by guards or otherwise.
///
/// **Where the bytes are.** If the endpoint trusts its peers ([`TrustPeers`]) and the stream is
/// SMC-D, a guard borrows the bytes where the peer has written them: nothing is copied. Otherwise
/// it is a private copy with the same interface, because memory that a peer can change at any time
/// must not be borrowed as `&[u8]`. [`ReadGuard::is_in_place`] reports which.
///
/// **What retaining costs.** A ring is freed in order. The space of dropped guards in place is
/// returned to the peer only up to the oldest guard that is still alive. So while a guard is alive,
/// the peer can send at most the rest of the ring
/// ([`Stream::recv_buffer_size`](super::super::Stream::recv_buffer_size) bytes from the start of
/// the oldest guard), and then waits. *Do not wait for more than that before dropping the guard*:
/// that is a deadlock. [`ReadGuard::detach`] copies data that has to stay longer. Private guards
/// retain no space.
///
/// **After the end.** A guard stays valid when the stream is dropped, when the peer is gone, and
/// when its endpoint is dropped. It prevents the receive buffer from being released or reused.
///
/// ```
/// # async fn receive(stream: &mut smc::Stream) -> std::io::Result<()> {
/// let mut lines = 0;
/// loop {
///     let guard = stream.read_guard(64 * 1024).await?;
///     if guard.is_empty() {
///         break; // end of stream
///     }
///     lines += guard.iter().filter(|byte| **byte == b'\n').count();
/// }
/// println!("{lines} lines");
/// # Ok(()) }
/// ```
pub struct ReadGuard(Inner);

enum Inner {
    Private(Bytes),
    InPlace(Part),
}

/// A part of the ring that is retained.
struct Part {
    guarded: Arc<GuardedRing>,
    /// Offset in the ring.
    at: usize,
    /// Position in the stream, as counted by [`RetainedWindow`].
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

    /// Splits the first `at` bytes off as a separate guard; this one keeps the rest.
    ///
    /// Each releases its own part of the ring.
    ///
    /// # Panics
    ///
    /// If `at` is more than [`ReadGuard::len`].
    #[must_use = "the bytes that are split off are released when the guard is dropped"]
    pub fn split_to(&mut self, at: usize) -> Self {
        assert!(at <= self.len(), "{at} bytes of {}", self.len());
        match &mut self.0 {
            Inner::Private(bytes) => Self::private(bytes.split_to(at)),
            Inner::InPlace(part) => Self(Inner::InPlace(part.split_to(at))),
        }
    }

    /// The same bytes in private memory; their part of the ring is released.
    ///
    /// Copies, unless they are private already.
    #[must_use]
    pub fn detach(self) -> Self {
        match &self.0 {
            Inner::Private(_) => self,
            Inner::InPlace(part) => Self::private(Bytes::copy_from_slice(part.bytes())),
        }
    }

    /// Converts the guard to [`Bytes`], without a copy. Dropping the last clone or slice of them
    /// releases all of it.
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
        self.guarded
            .element
            .slice(self.at, self.len, self.guarded.trust)
            .expect("guards are made inside of the ring and only split")
    }

    fn split_to(&mut self, len: usize) -> Self {
        let first = Self {
            guarded: Arc::clone(&self.guarded),
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
        self.guarded.release(self.start, len_u32(self.len));
    }
}

/// The ranges of the ring that guards retain, shared by the guards of a connection and its reading
/// half.
///
/// While a range is retained, this object publishes the consumer cursor, and not the reading half:
/// in the drop of a guard. One thread at a time, and never under the lock, since publishing may
/// wake tasks and thereby drop guards.
pub(crate) struct GuardedRing {
    element: Element,
    trust: TrustPeers,
    /// Keeps the buffer from being reused for another connection.
    _buffer: Arc<dyn Dmb>,
    /// Weak: the socket is closed with the stream.
    conn: Weak<dyn PublishConsumer>,
    state: Mutex<GuardState>,
}

/// The connection of a ring.
pub(crate) trait PublishConsumer: Send + Sync {
    /// Publishes the consumer cursor and signals the peer.
    fn publish_consumer(&self, cursor: Cursor);
}

impl PublishConsumer for Conn {
    fn publish_consumer(&self, cursor: Cursor) {
        Self::publish_consumer(self, cursor);
    }
}

struct GuardState {
    retained: RetainedWindow,
    /// The reading half has lent the window. A guard of no bytes can live longer than that.
    is_lent: bool,
    /// A thread is publishing, and checks for updates again afterwards.
    is_publishing: bool,
    /// The reading half is dropped: no more updates are published.
    is_reader_dropped: bool,
}

impl GuardedRing {
    /// For a connection whose ring can be borrowed; `None` if guards have to be copies.
    pub(crate) fn new(conn: &Arc<Conn>, trust: Option<TrustPeers>) -> Option<Arc<Self>> {
        let retained = RetainedWindow::new(conn.local_ring).with_rewind(conn.allows_rewind());
        let (trust, buffer) = (trust?, Arc::clone(conn.dmb()?));
        let weak: Weak<Conn> = Arc::downgrade(conn);
        Some(Self::of(conn.local.clone(), retained, buffer, weak, trust))
    }

    /// For this element, which is in the buffer; nothing is retained yet.
    fn of(
        element: Element,
        retained: RetainedWindow,
        buffer: Arc<dyn Dmb>,
        conn: Weak<dyn PublishConsumer>,
        trust: TrustPeers,
    ) -> Arc<Self> {
        Arc::new(Self {
            element,
            trust,
            _buffer: buffer,
            conn,
            state: Mutex::new(GuardState {
                retained,
                is_lent: false,
                is_publishing: false,
                is_reader_dropped: false,
            }),
        })
    }

    /// Takes the retained window over from the reading half; no range is retained yet.
    pub(crate) fn begin(&self, confirmed: Cursor, unconfirmed: u32) {
        let mut state = self.state.lock();
        state.retained.start(confirmed, unconfirmed);
        state.is_lent = true;
    }

    /// Retains `len` bytes at offset `at` of the ring, which were read.
    pub(crate) fn retain(self: &Arc<Self>, at: usize, len: usize) -> ReadGuard {
        // This frees nothing: only a peer that waits for space has to know of what was free before.
        let retain =
            |retained: &mut RetainedWindow| (retained.retain(len_u32(len)), self.is_peer_blocked());
        let start = self.update(retain);
        ReadGuard(Inner::InPlace(Part {
            guarded: Arc::clone(self),
            at,
            start,
            len,
        }))
    }

    /// Frees `len` bytes that were read and that no guard retains.
    pub(crate) fn free_unguarded(&self, len: u32) {
        self.update(|retained| (retained.skip(len), true));
    }

    /// The peer has left the empty ring before its end.
    pub(crate) fn rewind(&self, start: Cursor) {
        self.state.lock().retained.rewind(start);
    }

    /// The number of bytes published since the last call, and whether the reading half has the
    /// retained window back.
    pub(crate) fn take_confirmed(&self) -> (u32, bool) {
        let mut state = self.state.lock();
        let confirmed = state.retained.take_confirmed();
        state.is_lent = !state.retained.is_empty() || state.is_publishing;
        (confirmed, !state.is_lent)
    }

    /// The reading half is dropped: the connection may end at any time.
    pub(crate) fn stop(&self) {
        self.state.lock().is_reader_dropped = true;
    }

    fn release(&self, start: u64, len: u32) {
        self.update(|retained| ((), retained.release(start, len) > 0));
    }

    /// Changes the window. Publishes the consumer cursor if `change` says that the peer may have to
    /// know it, and an update is due.
    #[inline]
    fn update<T>(&self, change: impl FnOnce(&mut RetainedWindow) -> (T, bool)) -> T {
        let mut state = self.state.lock();
        let (changed, may_publish) = change(&mut state.retained);
        let due = match may_publish {
            true => self.begin_publish(&mut state),
            false => None,
        };
        drop(state);
        if let Some(cursor) = due {
            self.publish(cursor);
        }
        changed
    }

    fn publish(&self, cursor: Cursor) {
        let (conn, mut due) = (self.conn.upgrade(), Some(cursor));
        while let Some(cursor) = due {
            if let Some(conn) = &conn {
                conn.publish_consumer(cursor);
            }
            let mut state = self.state.lock();
            state.is_publishing = false;
            due = self.begin_publish(&mut state);
        }
    }

    /// The cursor to be published, if that is due and no thread does so.
    #[inline]
    fn begin_publish(&self, state: &mut GuardState) -> Option<Cursor> {
        if !state.is_lent || state.is_reader_dropped || state.is_publishing {
            return None;
        }
        let is_blocked = self.is_peer_blocked();
        let producer = ProducerWord::from_ne(self.element.producer().load(Ordering::Acquire));
        if !state.retained.is_update_due(is_blocked, producer.cursor) {
            return None;
        }
        state.is_publishing = true;
        Some(state.retained.confirm())
    }

    fn is_peer_blocked(&self) -> bool {
        let word = ConsumerWord::from_ne(self.element.consumer().load(Ordering::Acquire));
        word.producer_flags.contains(ProducerFlags::WRITER_BLOCKED)
    }
}

#[cfg(all(test, smc_loom))]
mod models;
