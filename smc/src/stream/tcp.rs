//! The two halves of a stream after a fallback to TCP.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use smc_wire::cursor::Cursor;
use smc_wire::size::SizeCode;

use super::super::busy_poll::HITS_MAX;
use super::super::conn::Conn;
use super::super::runtime::Socket;
use super::in_place::{ReadGuard, ReservedSpace};
use super::write::never_fits;

/// Reads from the TCP socket, after the bytes that set-up has read already.
pub(crate) struct TcpReader {
    socket: Arc<dyn Socket>,
    /// Bytes read from the socket that the application has not read yet.
    buffer: Vec<u8>,
    at: usize,
    /// Expected length of the next read, estimated from earlier ones.
    expected: Expected,
    shut: bool,
    budget: Budget,
}

impl TcpReader {
    /// `unread` are bytes of the application stream that set-up has read from the socket.
    pub(crate) fn new(socket: Arc<dyn Socket>, unread: Vec<u8>) -> Self {
        Self {
            socket,
            buffer: unread,
            at: 0,
            expected: Expected(EXPECTED_MIN),
            shut: false,
            budget: Budget::default(),
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(count) = self.read_buffered(buf) {
            return Poll::Ready(Ok(count));
        }
        ready!(self.budget.poll_proceed(cx));
        let count = ready!(self.socket.poll_read(cx, buf))?;
        self.expected.learn(count, buf.len());
        Poll::Ready(Ok(count))
    }

    /// Fills the first buffer that is not empty: sockets here have no scattered read.
    pub(crate) fn poll_read_vectored(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        match bufs.iter_mut().find(|buf| !buf.is_empty()) {
            Some(buf) => self.poll_read(cx, buf),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// Bytes that a read of `wanted` is expected to return.
    pub(crate) fn available(&self, wanted: usize) -> usize {
        self.expected().min(wanted)
    }

    pub(crate) fn is_ready(&self) -> bool {
        true
    }

    pub(crate) fn conn(&self) -> Option<Arc<Conn>> {
        None
    }

    pub(crate) fn try_read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        if let Some(count) = self.read_buffered(buf) {
            return Ok(count);
        }
        let count = self.socket.try_read(buf)?;
        self.expected.learn(count, buf.len());
        Ok(count)
    }

    pub(crate) fn try_read_vectored(&mut self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        match bufs.iter_mut().find(|buf| !buf.is_empty()) {
            Some(buf) => self.try_read(buf),
            None => Ok(0),
        }
    }

    /// A socket is polled with a waker.
    pub(crate) fn try_peek(&self, _buf: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    pub(crate) fn poll_peek(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.shut {
            return Poll::Ready(Ok(0));
        }
        if self.buffered().is_empty() {
            ready!(self.budget.poll_proceed(cx));
            return self.socket.poll_peek(cx, buf);
        }
        let buffered = self.buffered();
        let count = buffered.len().min(buf.len());
        buf[..count].copy_from_slice(&buffered[..count]);
        Poll::Ready(Ok(count))
    }

    pub(crate) fn poll_fill_buf(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.shut {
            return Poll::Ready(Ok(&[]));
        }
        if self.buffered().is_empty() {
            ready!(self.budget.poll_proceed(cx));
            self.at = 0;
            self.buffer.resize(TCP_FILL_BUF_MAX, 0);
            let read = self.socket.poll_read(cx, &mut self.buffer);
            self.buffer.truncate(match &read {
                Poll::Ready(Ok(count)) => *count,
                _ => 0,
            });
            match read {
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(self.buffered()))
    }

    pub(crate) fn consume_filled(&mut self, count: usize) {
        self.at += count.min(self.buffered().len());
    }

    /// A copy: there is no ring.
    pub(crate) fn poll_read_guard(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<ReadGuard>> {
        if max == 0 {
            return Poll::Ready(Ok(ReadGuard::private(Bytes::new())));
        }
        let bytes = ready!(self.poll_fill_buf(cx))?;
        let copy = Bytes::copy_from_slice(&bytes[..bytes.len().min(max)]);
        self.consume_filled(copy.len());
        Poll::Ready(Ok(ReadGuard::private(copy)))
    }

    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.shut || !self.buffered().is_empty() {
            return Poll::Ready(Ok(()));
        }
        ready!(self.budget.poll_proceed(cx));
        self.socket.poll_readable(cx)
    }

    pub(crate) fn queue_len(&self) -> io::Result<usize> {
        let fd = self.socket.fd().ok_or(io::ErrorKind::Unsupported)?;
        let in_socket = rustix::io::ioctl_fionread(fd)?;
        let in_socket = usize::try_from(in_socket).unwrap_or(usize::MAX);
        Ok(in_socket.saturating_add(self.buffered().len()))
    }

    pub(crate) fn position(&self) -> Option<Cursor> {
        None
    }

    pub(crate) fn shutdown(&mut self) -> io::Result<()> {
        self.shut = true;
        self.socket.shutdown(Shutdown::Read)
    }

    /// Expected length of the next read; the exact one for buffered bytes.
    pub(crate) fn expected(&self) -> usize {
        match self.buffered().len() {
            0 => self.expected.0,
            buffered => buffered,
        }
    }

    fn read_buffered(&mut self, buf: &mut [u8]) -> Option<usize> {
        if self.shut {
            return Some(0);
        }
        if self.at == self.buffer.len() {
            return None;
        }
        let count = buf.len().min(self.buffer.len() - self.at);
        buf[..count].copy_from_slice(&self.buffer[self.at..self.at + count]);
        self.at += count;
        if self.at == self.buffer.len() {
            self.buffer = Vec::new();
            self.at = 0;
        }
        Some(count)
    }

    fn buffered(&self) -> &[u8] {
        &self.buffer[self.at..]
    }
}

/// Writes to the TCP socket.
pub(crate) struct TcpWriter {
    socket: Arc<dyn Socket>,
    /// A buffer for reservations.
    scratch: Box<[u8]>,
    budget: Budget,
}

impl TcpWriter {
    pub(crate) fn new(socket: Arc<dyn Socket>) -> Self {
        Self {
            socket,
            scratch: Box::default(),
            budget: Budget::default(),
        }
    }

    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.budget.poll_proceed(cx));
        self.socket.poll_write(cx, bufs)
    }

    pub(crate) fn try_write(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.socket.try_write(bufs)
    }

    pub(crate) fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.budget.poll_proceed(cx));
        self.socket.poll_writable(cx)
    }

    pub(crate) fn is_ready(&self) -> bool {
        true
    }

    pub(crate) fn conn(&self) -> Option<Arc<Conn>> {
        None
    }

    /// The call of the system is unsafe, and this crate makes none.
    pub(crate) fn queue_len(&self) -> io::Result<usize> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// A private buffer: without a ring, the maximum ring size bounds it.
    pub(crate) fn poll_reserve(
        &self,
        _cx: &mut Context<'_>,
        min: usize,
        max: usize,
    ) -> Poll<io::Result<ReservedSpace>> {
        let limit = SizeCode::MAX.byte_len();
        if min > limit {
            return Poll::Ready(Err(never_fits(min, limit).into()));
        }
        Poll::Ready(Ok(ReservedSpace::private(max, min, max)))
    }

    pub(crate) fn scratch(&mut self) -> &mut Box<[u8]> {
        &mut self.scratch
    }

    /// The system delivers.
    pub(crate) fn poll_shutdown(&self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.shutdown())
    }

    pub(crate) fn shutdown(&self) -> io::Result<()> {
        match self.socket.shutdown(Shutdown::Write) {
            // The peer has closed before; writing has ended for this side too.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(()),
            done => done,
        }
    }
}

/// The calls of a task that may go on without a turn of the executor for other tasks. As long as
/// no call has to wait, the socket is not registered with the reactor, which has a budget on tokio.
#[derive(Default)]
struct Budget(u32);

impl Budget {
    /// Pending once in so many calls; the task is woken then.
    fn poll_proceed(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.0 < HITS_MAX {
            self.0 += 1;
            return Poll::Ready(());
        }
        self.0 = 0;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// Expected length of a read, estimated from earlier ones.
struct Expected(usize);

impl Expected {
    /// Handles a read of `wanted` that returned `count`.
    fn learn(&mut self, count: usize, wanted: usize) {
        if count == wanted && wanted >= self.0 {
            self.0 = wanted.saturating_mul(2);
        } else if count < wanted && count < self.0 / 4 {
            self.0 = (self.0 / 2).max(EXPECTED_MIN);
        }
    }
}

/// Minimum of the estimate.
const EXPECTED_MIN: usize = 8 * 1024;

/// Most bytes that `fill_buf` reads at a time.
const TCP_FILL_BUF_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_reads_lead_to_longer_ones_and_short_ones_back() {
        let mut expected = Expected(EXPECTED_MIN);
        for _ in 0..5 {
            expected.learn(expected.0, expected.0);
        }
        assert_eq!(expected.0, 32 * EXPECTED_MIN);
        for _ in 0..10 {
            expected.learn(100, expected.0);
        }
        assert_eq!(expected.0, EXPECTED_MIN);
    }

    #[test]
    fn a_short_read_of_the_requested_length_changes_nothing() {
        let mut expected = Expected(32 * EXPECTED_MIN);
        for _ in 0..10 {
            expected.learn(9, 9);
        }
        assert_eq!(expected.0, 32 * EXPECTED_MIN);
    }
}
