//! The reading half of a stream.

use std::io::{self, IoSliceMut};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{BufMut, Bytes};
use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord};
use smc_wire::cursor::Cursor;

use super::super::busy_poll::BusyPoll;
use super::super::conn::{
    Conn, ConnCounters, DirectConn, HalfCounters, RdmaConn, TransportOps, len_u32, len_usize,
};
use super::in_place::{GuardedRing, ReadGuard};
use super::tcp::TcpReader;
use super::wait::{Ready, StreamHalf, delegate, now_or_never, poll_until};
use crate::error::{Error, PeerMisbehaved};
use crate::mem::TrustPeers;
use crate::mem::sync::Ordering;
use crate::proto::conn::RecvCursors;

/// The reading half of a stream: SMC-D, SMC-R or TCP.
pub(crate) enum Reader {
    Direct(SmcReader<DirectConn>),
    Rdma(SmcReader<RdmaConn>),
    Tcp(TcpReader),
}

impl Reader {
    delegate! {
        pub(crate) fn poll_read(
            &mut self,
            cx: &mut Context<'_>,
            buf: &mut [u8]
        ) -> Poll<io::Result<usize>>;

        pub(crate) fn poll_read_vectored(
            &mut self,
            cx: &mut Context<'_>,
            bufs: &mut [IoSliceMut<'_>]
        ) -> Poll<io::Result<usize>>;

        pub(crate) fn poll_peek(
            &mut self,
            cx: &mut Context<'_>,
            buf: &mut [u8]
        ) -> Poll<io::Result<usize>>;

        pub(crate) fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>>;

        pub(crate) fn poll_read_guard(
            &mut self,
            cx: &mut Context<'_>,
            max: usize
        ) -> Poll<io::Result<ReadGuard>>;

        pub(crate) fn consume_filled(&mut self, count: usize) -> ();

        /// Bytes that a read of `wanted` would return now, or the expected number where that is not
        /// known: an upper bound for a temporary buffer.
        pub(crate) fn available(&mut self, wanted: usize) -> usize;

        pub(crate) fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize>;

        pub(crate) fn try_read_vectored(
            &mut self,
            bufs: &mut [IoSliceMut<'_>]
        ) -> io::Result<usize>;

        /// As [`Reader::poll_peek`] without waiting, for SMC.
        pub(super) fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<usize>;

        pub(crate) fn shutdown(&mut self) -> io::Result<()>;

        /// As [`Stream::recv_queue_len`](super::Stream::recv_queue_len).
        pub(super) fn queue_len(&mut self) -> io::Result<usize>;

        /// How far an SMC stream was read.
        pub(super) fn position(&mut self) -> Option<Cursor>;
    }

    /// As [`Reader::try_read`], appending to the next chunk of `buf`.
    pub(crate) fn try_read_buf(&mut self, buf: &mut impl BufMut) -> io::Result<usize> {
        let space = buf.chunk_mut().len();
        if space == 0 {
            return Ok(0);
        }
        // One byte at least: an empty read would not report a lack of data.
        let wanted = self.available(space).max(1);
        // The chunk may be uninitialised, which takes a copy.
        let (mut short, mut long) = ([0; SHORT_COPY], Vec::new());
        let copy = match short.get_mut(..wanted) {
            Some(copy) => copy,
            None => {
                long.resize(wanted.min(FILL_BUF_MAX), 0);
                &mut long
            }
        };
        let mut done = 0;
        loop {
            let part = copy.len().min(wanted - done);
            match self.try_read(&mut copy[..part]) {
                Ok(count) => {
                    buf.put_slice(&copy[..count]);
                    done += count;
                    // An error of a socket is reported once, so that nothing may follow data.
                    if count < part || done == wanted || matches!(self, Self::Tcp(_)) {
                        return Ok(done);
                    }
                }
                // An error of SMC is reported again by the next read.
                Err(_) if done > 0 => return Ok(done),
                Err(error) => return Err(error),
            }
        }
    }
}

impl Ready for Reader {
    delegate! {
        fn conn(&mut self) -> Option<Arc<Conn>>;
        fn is_ready(&mut self) -> bool;
        fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;
    }
}

/// Reads from the local element, which the peer writes.
pub(crate) struct SmcReader<P: TransportOps> {
    conn: Arc<Conn>,
    transport: Arc<P>,
    cursors: RecvCursors,
    /// The producer word as of the last read.
    producer_seen: u64,
    /// The consumer word as of the last read.
    consumer_seen: u64,
    /// The peer has requested an update.
    is_update_requested: bool,
    /// The application has shut reading down.
    shut: bool,
    busy_poll: BusyPoll,
    counters: Arc<ConnCounters>,
    /// Copies of the next bytes in the ring, for `fill_buf`; the ring still has them.
    fill_copy: Vec<u8>,
    /// Bytes that `fill_buf` has returned and that were not consumed since: of the copies, the
    /// last.
    shown: usize,
    trust: Option<TrustPeers>,
    /// The shared state of guards in place; created for the first one.
    guarded: Option<Arc<GuardedRing>>,
    /// Guards retain ranges, so that `guarded` has the retained window.
    has_guards: bool,
}

impl<P: TransportOps> SmcReader<P> {
    pub(super) fn new(
        transport: Arc<P>,
        conn: &Arc<Conn>,
        polling: Duration,
        trust: Option<TrustPeers>,
    ) -> Self {
        Self {
            cursors: RecvCursors::new(conn.local_ring).with_rewind(transport.allows_rewind()),
            transport,
            producer_seen: 0,
            consumer_seen: 0,
            is_update_requested: false,
            shut: false,
            busy_poll: BusyPoll::new(polling, &conn.driver.pollers),
            counters: Arc::clone(&conn.counters),
            fill_copy: Vec::new(),
            shown: 0,
            trust,
            guarded: None,
            has_guards: false,
            conn: Arc::clone(conn),
        }
    }

    /// Reads received data: `None` if there is none now, 0 at end of stream.
    #[inline(always)]
    fn read_now(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        if buf.is_empty() {
            return Ok(Some(0));
        }
        let Some(readable) = self.read_available(buf.len())? else {
            return Ok(None);
        };
        if readable == 0 {
            return Ok(Some(0));
        }
        let count = readable.min(buf.len());
        self.copy_out(0, &mut buf[..count])?;
        self.discard_fill_copy();
        self.consume(count);
        Ok(Some(count))
    }

    /// As [`SmcReader::read_now`] into several buffers.
    fn read_vectored_now(&mut self, bufs: &mut [IoSliceMut<'_>]) -> Result<Option<usize>, Error> {
        let wanted = bufs.iter().map(|buf| buf.len()).sum();
        if wanted == 0 {
            return Ok(Some(0));
        }
        let Some(readable) = self.read_available(wanted)? else {
            return Ok(None);
        };
        let mut done = 0;
        for buf in bufs {
            let count = buf.len().min(readable - done);
            self.copy_out(done, &mut buf[..count])?;
            done += count;
        }
        self.discard_fill_copy();
        self.consume(done);
        Ok(Some(done))
    }

    /// Copies received data without consuming it.
    fn peek_now(&mut self, buf: &mut [u8]) -> Result<Option<usize>, Error> {
        let Some(readable) = self.read_available(buf.len())? else {
            return Ok(None);
        };
        let count = readable.min(buf.len());
        self.copy_out(0, &mut buf[..count])?;
        Ok(Some(count))
    }

    #[inline]
    fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        now_or_never(self.read_now(buf))
    }

    fn try_read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        now_or_never(self.read_vectored_now(bufs))
    }

    fn try_peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        now_or_never(self.peek_now(buf))
    }

    #[inline]
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        poll_until(self, cx, |half| half.read_now(buf))
    }

    fn poll_read_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        poll_until(self, cx, |half| half.read_vectored_now(bufs))
    }

    fn poll_peek(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        poll_until(self, cx, |half| half.peek_now(buf))
    }

    /// Waits until there is data to read or the stream has ended.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        poll_until(self, cx, |half| Ok(half.is_ready().then_some(())))
    }

    fn conn(&self) -> Option<Arc<Conn>> {
        Some(Arc::clone(&self.conn))
    }

    /// Bytes that a read of `wanted` would return now.
    fn available(&mut self, wanted: usize) -> usize {
        match self.read_available(wanted) {
            Ok(readable) => readable.unwrap_or(0).min(wanted),
            Err(_) => 0,
        }
    }

    /// Whether a read would not wait; also true when it would fail.
    fn is_ready(&mut self) -> bool {
        !matches!(self.read_available(1), Ok(None))
    }

    /// The next bytes, as a private copy, or in place if peers are trusted.
    fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.shown > 0 && !self.fill_copy.is_empty() {
            return Poll::Ready(Ok(&self.fill_copy[self.fill_copy.len() - self.shown..]));
        }
        let readable = match poll_until(self, cx, |half| half.read_available(FILL_BUF_MAX)) {
            Poll::Ready(Ok(readable)) => readable,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        if let Some(trust) = self.trust {
            let at = len_usize(self.cursors.at());
            let slice = self.conn.local.slice(at, readable, trust);
            self.shown = slice.as_ref().map_or(0, |slice| slice.len());
            return Poll::Ready(slice.map_err(|_| OUTSIDE.into()));
        }
        let mut fill_copy = std::mem::take(&mut self.fill_copy);
        fill_copy.resize(readable.min(FILL_BUF_MAX), 0);
        let copied = self.copy_out(0, &mut fill_copy);
        self.fill_copy = fill_copy;
        self.shown = self.fill_copy.len();
        copied?;
        Poll::Ready(Ok(self.fill_copy.as_slice()))
    }

    /// Consumes `count` bytes of the slice that `poll_fill_buf` returned, at most all of it.
    fn consume_filled(&mut self, count: usize) {
        let count = count.min(self.shown);
        self.shown -= count;
        self.consume(count);
    }

    /// Reads up to `max` contiguous bytes, as a guard.
    fn poll_read_guard(&mut self, cx: &mut Context<'_>, max: usize) -> Poll<io::Result<ReadGuard>> {
        poll_until(self, cx, |half| half.try_read_guard(max))
    }

    fn try_read_guard(&mut self, max: usize) -> Result<Option<ReadGuard>, Error> {
        let readable = match max {
            0 => 0,
            _ => match self.read_available(max)? {
                Some(readable) => readable,
                None => return Ok(None),
            },
        };
        if readable == 0 {
            return Ok(Some(ReadGuard::private(Bytes::new())));
        }
        let count = readable.min(max);
        if self.guarded.is_none() {
            self.guarded = GuardedRing::new(&self.conn, self.trust);
        }
        let Some(guarded) = &self.guarded else {
            let mut copy = vec![0; count];
            self.copy_out(0, &mut copy)?;
            self.discard_fill_copy();
            self.consume(count);
            return Ok(Some(ReadGuard::private(copy.into())));
        };
        if !self.has_guards {
            guarded.begin(self.cursors.confirmed(), self.cursors.unconfirmed());
            self.has_guards = true;
        }
        let at = self.cursors.at();
        let [until_end, _] = self.cursors.ring().spans(at, len_u32(count));
        self.cursors.consume(until_end.len);
        self.counters.received.add_request(len_usize(until_end.len));
        let guard = guarded.retain(len_usize(at), len_usize(until_end.len));
        self.discard_fill_copy();
        Ok(Some(guard))
    }

    fn queue_len(&mut self) -> io::Result<usize> {
        self.read_producer()?;
        Ok(len_usize(self.cursors.readable()))
    }

    /// How far the ring was read.
    fn position(&self) -> Option<Cursor> {
        Some(self.cursors.consumer())
    }

    /// Shuts reading down; data that the peer still sends counts as unread.
    fn shutdown(&mut self) -> io::Result<()> {
        self.shut = true;
        self.conn.wake();
        Ok(())
    }

    /// Bytes to read: `None` if there are none now, 0 at end of stream.
    ///
    /// Reads the peer's cursor only if less than `wanted` is known to be available.
    fn read_available(&mut self, wanted: usize) -> Result<Option<usize>, Error> {
        if self.shut {
            return Ok(Some(0));
        }
        if len_usize(self.cursors.readable()) < wanted || self.cursors.readable() == 0 {
            self.read_producer()?;
        }
        if self.cursors.readable() > 0 {
            return Ok(Some(len_usize(self.cursors.readable())));
        }
        self.publish_all_read();
        self.read_flags();
        if !self.conn.has_ended() {
            return Ok(None);
        }
        // The peer stores its producer word before the flags of its end: all data before the end
        // that is known now is visible now. A later end has its own data before it.
        let end = self.conn.read_end();
        self.read_producer()?;
        if self.cursors.readable() > 0 {
            return Ok(Some(len_usize(self.cursors.readable())));
        }
        match end {
            None => Ok(None),
            Some(Ok(())) => Ok(Some(0)),
            Some(Err(error)) => Err(error),
        }
    }

    /// Publishes that everything was read, however little that is, if the peer requested it.
    fn publish_all_read(&mut self) {
        if self.cursors.readable() > 0 || !self.transport.take_update_request() {
            return;
        }
        // The request covers all data that had arrived with it.
        if self.conn.local.producer().load(Ordering::Acquire) != self.producer_seen {
            self.transport.restore_update_request();
        } else if self.cursors.unconfirmed() > 0 {
            self.publish_consumer();
        }
    }

    #[inline(always)]
    fn read_producer(&mut self) -> Result<(), Error> {
        let word = self.conn.local.producer().load(Ordering::Acquire);
        if word == self.producer_seen {
            return Ok(());
        }
        self.handle_producer_word(word)
    }

    fn handle_producer_word(&mut self, word: u64) -> Result<(), Error> {
        if self.has_guards {
            // After the read of the word: the peer may have written to space that was published
            // meanwhile.
            self.reclaim_retained();
        }
        let read = self.guarded.as_ref().map(|_| self.cursors.consumer());
        match self
            .cursors
            .handle_producer(ProducerWord::from_ne(word).cursor)
        {
            Ok(_arrived) => self.producer_seen = word,
            Err(what) => return Err(self.misbehaved(what)),
        }
        if let (Some(guarded), Some(read)) = (&self.guarded, read) {
            let start = self.cursors.consumer();
            if start != read {
                guarded.rewind(start);
            }
        }
        Ok(())
    }

    fn read_flags(&mut self) {
        let raw = self.conn.local.consumer().load(Ordering::Acquire);
        if raw != self.consumer_seen {
            self.handle_flags(raw);
        }
        if self.is_update_requested {
            self.publish_all();
        }
    }

    fn handle_flags(&mut self, raw: u64) {
        self.consumer_seen = raw;
        let word = ConsumerWord::from_ne(raw);
        self.is_update_requested = self.transport.is_update_requested(word.producer_flags);
        if !word.state_flags.is_empty() {
            self.conn.handle_peer_flags();
        }
    }

    /// Publishes that everything was read, however little that is.
    #[cold]
    fn publish_all(&mut self) {
        if self.has_guards {
            // A waiting peer gets an update as far as possible.
            self.free_unguarded(0);
        } else if self.cursors.unconfirmed() > 0 {
            self.publish_consumer();
        }
    }

    fn publish_consumer(&mut self) {
        let cursor = self.cursors.confirm();
        self.transport.publish_consumer(&self.conn, cursor);
    }

    /// Copies the bytes `skip` behind the read position; they have arrived.
    #[inline(always)]
    fn copy_out(&self, skip: usize, to: &mut [u8]) -> Result<(), Error> {
        let at = match skip {
            0 => self.cursors.at(),
            _ => {
                self.cursors
                    .ring()
                    .advance(self.cursors.consumer(), len_u32(skip))
                    .count
            }
        };
        let read = self.conn.local.read(len_usize(at), to);
        read.map_err(|_| OUTSIDE)
    }

    /// Discards the copies for `fill_buf`, because the ring is read past them.
    fn discard_fill_copy(&mut self) {
        self.fill_copy.clear();
        self.shown = 0;
    }

    fn consume(&mut self, count: usize) {
        let count = self.cursors.consume(len_u32(count));
        self.counters.received.add_request(len_usize(count));
        if self.has_guards {
            return self.free_unguarded(count);
        }
        self.publish_all_read();
        let is_all_read = self.cursors.readable() == 0;
        if !is_all_read && !self.cursors.may_need_update() {
            return;
        }
        let word = ConsumerWord::from_ne(self.conn.local.consumer().load(Ordering::Relaxed));
        let flags = word.producer_flags;
        let is_requested = is_all_read && self.transport.is_update_requested(flags);
        let is_blocked = flags.contains(ProducerFlags::WRITER_BLOCKED);
        let is_due = is_requested && self.cursors.unconfirmed() > 0;
        if is_due || self.cursors.is_update_due(is_blocked) {
            self.publish_consumer();
        }
    }

    /// Frees `count` bytes that no guard retains, while there are guards.
    #[cold]
    fn free_unguarded(&mut self, count: u32) {
        if let Some(guarded) = &self.guarded {
            guarded.free_unguarded(count);
        }
        self.reclaim_retained();
    }

    /// Takes over the updates that guards have published, and takes the retained window back
    /// if no guard is left.
    #[cold]
    fn reclaim_retained(&mut self) {
        if let Some(guarded) = &self.guarded {
            let (confirmed, is_window_back) = guarded.take_confirmed();
            self.cursors.confirm_retained(confirmed);
            self.has_guards = !is_window_back;
        }
    }

    fn misbehaved(&self, what: PeerMisbehaved) -> Error {
        self.conn.misbehaved(what)
    }
}

impl<P: TransportOps> StreamHalf for SmcReader<P> {
    fn conn(&self) -> &Arc<Conn> {
        &self.conn
    }

    fn busy_poll(&mut self) -> &mut BusyPoll {
        &mut self.busy_poll
    }

    fn counters(&self) -> &HalfCounters {
        &self.counters.received
    }

    fn register(&self, waker: &Waker) {
        self.conn.reader.register(waker);
    }

    fn arm(&self) {
        self.transport.arm();
    }

    fn poll_device(&self) -> bool {
        self.transport.poll_device(&self.conn.driver)
    }
}

impl<P: TransportOps> Drop for SmcReader<P> {
    fn drop(&mut self) {
        if let Some(guarded) = &self.guarded {
            guarded.stop();
        }
        self.conn
            .stop_reading(self.cursors.consumer(), self.cursors.high_water());
    }
}

/// Maximum that `fill_buf` copies at a time: fits a second-level cache together with the
/// destination.
const FILL_BUF_MAX: usize = 64 * 1024;

/// Maximum of a copy on the stack.
const SHORT_COPY: usize = 2048;

/// The reading half reads only what has arrived.
const OUTSIDE: Error = Error::Bug("read cursor outside of the ring");
