use std::future::poll_fn;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_io::{AsyncBufRead, AsyncRead, AsyncWrite};
use rustix::net::sockopt;

use super::conn::{Conn, Handle};
use super::halves::{LockedSide, ReadSide, WriteSide};
use super::in_place::{ReadGuard, Reservation};
use super::mode::Mode;
use super::readiness::{Interest, Readiness};
use super::recv::Receiver;
use super::runtime::Socket;
use super::send::Sender;
use super::split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, WriteHalf};
use super::tcp::{TcpReader, TcpWriter};
use crate::error::{Error, FallbackReason};
use crate::mem::TrustPeers;
use crate::mem::sync::Ordering;
use crate::proto::conn::ConnState;

/// A byte stream over SMC, or over plain TCP where SMC is not possible.
///
/// Methods have the names and the semantics of tokio's `TcpStream`. The traits of `futures-io` are
/// always implemented, those of tokio with feature `tokio`.
///
/// **Cancellation.** A read that is dropped before it is ready has taken nothing. A write that is
/// dropped before it is ready has written nothing; `write_all` and the like may have written a
/// part, as always.
///
/// **End of stream.** A read returns 0 only after the peer shut down writing or closed in order.
/// After an abort of the peer it returns `ConnectionReset`, after the loss of the peer
/// `ConnectionAborted`, both after the data that was written before.
///
/// **Drop.** Dropping closes in order, and does not wait. Over SMC-D everything written is in the
/// peer's memory already. Over SMC-R the send buffer is sent in the background as long as the
/// runtime runs, and for the close timeout at most: a process that ends before loses up to
/// [`Builder::send_buffer`](super::Builder::send_buffer) bytes of the end, and the peer sees an
/// abort then. `close` (tokio: `shutdown`) of the stream waits for all of that, as does
/// [`Endpoint::close`](super::Endpoint::close) for all streams that were dropped. If received data
/// was not read, the peer sees a reset, as with TCP.
///
/// How a stream ends is in docs/spec/closing.md, as a table in [`ConnState`] and in RFC 7609 section 4.
#[derive(Debug)]
pub struct Stream {
    // The sides are dropped first, so that the reading one has stored its position when the handle
    // closes.
    read: LockedSide<ReadSide>,
    write: LockedSide<WriteSide>,
    shared: Arc<Shared>,
}

/// The shared part of both halves of a stream.
#[derive(Debug)]
pub(crate) struct Shared {
    mode: Mode,
    socket: Arc<dyn Socket>,
    smc: Option<Handle>,
}

impl Stream {
    pub(crate) fn smc(conn: Arc<Conn>, polling: Duration, trust: Option<TrustPeers>) -> Self {
        let shared = Shared {
            mode: conn.mode.clone(),
            socket: Arc::clone(&conn.socket),
            smc: Some(Handle(Arc::clone(&conn))),
        };
        Self {
            read: LockedSide::new(ReadSide::Smc(Receiver::new(
                Arc::clone(&conn),
                polling,
                trust,
            ))),
            write: LockedSide::new(WriteSide::Smc(Sender::new(conn, polling, trust))),
            shared: Arc::new(shared),
        }
    }

    /// `early` are bytes of the application stream that set-up has read already.
    pub(crate) fn tcp(socket: Arc<dyn Socket>, early: Vec<u8>, reason: FallbackReason) -> Self {
        let mode = Mode::Tcp { reason };
        Self {
            read: LockedSide::new(ReadSide::Tcp(TcpReader::new(Arc::clone(&socket), early))),
            write: LockedSide::new(WriteSide::Tcp(TcpWriter::new(Arc::clone(&socket)))),
            shared: Arc::new(Shared {
                mode,
                socket,
                smc: None,
            }),
        }
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn read_side_mut(&mut self) -> &mut LockedSide<ReadSide> {
        &mut self.read
    }

    pub(crate) fn from_halves(
        read: LockedSide<ReadSide>,
        write: LockedSide<WriteSide>,
        shared: Arc<Shared>,
    ) -> Self {
        Self {
            read,
            write,
            shared,
        }
    }

    /// The mode of the stream, with the reason if it is TCP.
    #[must_use]
    pub fn mode(&self) -> &Mode {
        &self.shared.mode
    }

    /// Why the stream is TCP; `None` when it is SMC.
    #[must_use]
    pub fn fallback_reason(&self) -> Option<FallbackReason> {
        self.shared.mode.fallback_reason()
    }

    /// The state of an SMC connection as smcss names it; `None` for TCP.
    #[must_use]
    pub fn state(&self) -> Option<ConnState> {
        self.shared.smc.as_ref().map(|handle| handle.0.state())
    }

    /// The local address of the TCP connection, which stays open as long as the stream.
    ///
    /// # Errors
    ///
    /// As `getsockname(2)`.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.shared.socket.local_addr()
    }

    /// The peer's address of the TCP connection.
    ///
    /// # Errors
    ///
    /// As `getpeername(2)`; not for SMC streams.
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        self.shared.peer_addr()
    }

    /// Size in bytes of the local ring, which the peer writes: the requested size or less.
    ///
    /// `None` for TCP, where the system decides.
    #[must_use]
    pub fn recv_buffer_size(&self) -> Option<usize> {
        self.shared
            .smc
            .as_ref()
            .map(|handle| handle.0.local.ring_len())
    }

    /// Size in bytes of the peer's ring, which this side writes: the peer's choice. `None` for TCP.
    #[must_use]
    pub fn send_buffer_size(&self) -> Option<usize> {
        let ring = self.shared.smc.as_ref()?.0.peer_ring();
        usize::try_from(ring.size()).ok()
    }

    /// The descriptor of the TCP socket, for reading its options. Data does not pass there when the
    /// stream is SMC.
    #[must_use]
    pub fn tcp_fd(&self) -> Option<BorrowedFd<'_>> {
        self.shared.socket.fd()
    }

    /// Splits into halves that borrow the stream, for use in one task. No lock is shared.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        (
            ReadHalf::new(&mut self.read, &self.shared),
            WriteHalf::new(&mut self.write, &self.shared),
        )
    }

    /// Splits into halves that can move to different tasks. No lock is shared.
    ///
    /// Dropping the writing half shuts writing down, unless it was forgotten.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        (
            OwnedReadHalf::new(self.read, Arc::clone(&self.shared)),
            OwnedWriteHalf::new(self.write, self.shared),
        )
    }

    /// Reads into `buf` without taking the bytes away; waits until there are some.
    ///
    /// Returns 0 at end of stream. Any number of tasks may wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// As reading.
    pub async fn peek(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.read.peek(buf).await
    }

    /// As [`Stream::peek`] for use in a poll function; stores one waker, that of the last call of
    /// this or of [`Stream::poll_read_ready`].
    ///
    /// # Errors
    ///
    /// As reading.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.read
            .poll_shared(cx, |side, cx| side.poll_peek(cx, buf))
    }

    /// Reads up to `max` bytes as a guard, which can be retained and passed on while
    /// reading continues; waits until there are some.
    ///
    /// A guard is contiguous, and may be shorter than the available data, and is empty at end of
    /// stream. See [`ReadGuard`] for where its bytes are and the cost of retaining it. Cancel safe.
    ///
    /// # Errors
    ///
    /// As reading.
    pub async fn read_guard(&mut self, max: usize) -> io::Result<ReadGuard> {
        poll_fn(|cx| self.poll_read_guard(cx, max)).await
    }

    /// As `read_guard` for use in a poll function.
    ///
    /// # Errors
    ///
    /// As reading.
    pub fn poll_read_guard(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<ReadGuard>> {
        self.read.as_mut().poll_read_guard(cx, max)
    }

    /// Reserves memory for the next bytes, at most `max` and at least one unless `max` is 0; waits
    /// until there is space.
    ///
    /// [`Reservation::commit`] sends the bytes; see [`Reservation`] for where they are until
    /// then. Cancel safe.
    ///
    /// # Errors
    ///
    /// As writing. On TCP they come with the commit.
    pub async fn reserve(&mut self, max: usize) -> io::Result<Reservation<'_>> {
        Reservation::wait(self.write.as_mut(), max.min(1), max).await
    }

    /// As `reserve` for use in a poll function.
    ///
    /// # Errors
    ///
    /// As writing.
    pub fn poll_reserve(
        &mut self,
        cx: &mut Context<'_>,
        max: usize,
    ) -> Poll<io::Result<Reservation<'_>>> {
        Reservation::poll(self.write.as_mut(), cx, max.min(1), max)
    }

    /// Reserves memory for exactly the next `len` bytes; waits until there is space for them.
    ///
    /// As [`Stream::reserve_at_least`] with both bounds the same.
    ///
    /// # Errors
    ///
    /// As [`Stream::reserve_at_least`].
    pub async fn reserve_exact(&mut self, len: usize) -> io::Result<Reservation<'_>> {
        Reservation::wait(self.write.as_mut(), len, len).await
    }

    /// As `reserve_exact` for use in a poll function.
    ///
    /// # Errors
    ///
    /// As `reserve_exact`.
    pub fn poll_reserve_exact(
        &mut self,
        cx: &mut Context<'_>,
        len: usize,
    ) -> Poll<io::Result<Reservation<'_>>> {
        Reservation::poll(self.write.as_mut(), cx, len, len)
    }

    /// Reserves memory for at least `min` and at most `max` of the next bytes, at least one unless
    /// `max` is 0; waits until there is space for `min`.
    ///
    /// It is in the peer's memory as far as `reserve` would be, if that is enough for `min`, and
    /// otherwise a private buffer. Space comes back as the peer reads: while the peer does not read,
    /// or holds a [`ReadGuard`], this waits, and for more space than `reserve` would. On TCP it does
    /// not wait. [`Reservation::commit`] sends the bytes. Cancel safe.
    ///
    /// # Errors
    ///
    /// [`Error::Misuse`] (`InvalidInput`) if `min` is more than `max`, or if there can never be space for
    /// it: more than the peer's buffer over SMC-D ([`Stream::send_buffer_size`]), than the own send
    /// buffer over SMC-R ([`Builder::send_buffer`](super::Builder::send_buffer)), or than 512 MiB on
    /// TCP. Otherwise as writing; on TCP errors of the socket come with the commit.
    pub async fn reserve_at_least(
        &mut self,
        min: usize,
        max: usize,
    ) -> io::Result<Reservation<'_>> {
        Reservation::wait(self.write.as_mut(), min, max).await
    }

    /// As `reserve_at_least` for use in a poll function.
    ///
    /// # Errors
    ///
    /// As `reserve_at_least`.
    pub fn poll_reserve_at_least(
        &mut self,
        cx: &mut Context<'_>,
        min: usize,
        max: usize,
    ) -> Poll<io::Result<Reservation<'_>>> {
        Reservation::poll(self.write.as_mut(), cx, min, max)
    }

    /// Waits until reading or writing, whichever is of interest, would not wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub async fn ready(&self, interest: Interest) -> io::Result<Readiness> {
        super::readiness::wait(interest, &self.read, &self.write).await
    }

    /// Waits until a read would not wait, because there is data, the end, or an error. Any number
    /// of tasks may wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub async fn readable(&self) -> io::Result<()> {
        self.read.ready().await
    }

    /// Waits until a write would not wait. Any number of tasks may wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub async fn writable(&self) -> io::Result<()> {
        self.write.ready().await
    }

    /// Waits until a read would not wait; stores one waker, that of the last call of this or of
    /// [`Stream::poll_peek`].
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.read.poll_shared(cx, |side, cx| side.poll_ready(cx))
    }

    /// Waits until a write would not wait; stores one waker, that of the last call.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.poll_shared(cx, |side, cx| side.poll_ready(cx))
    }

    /// Reads what is there now, without waiting.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if nothing is; otherwise as reading.
    pub fn try_read(&self, buf: &mut [u8]) -> io::Result<usize> {
        self.read.lock().try_read(buf)
    }

    /// As [`Stream::try_read`] into several buffers, one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::try_read`].
    pub fn try_read_vectored(&self, bufs: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.read.lock().try_read_vectored(bufs)
    }

    /// As [`Stream::try_read`], appending to `buf`; at most `limit` bytes.
    ///
    /// # Errors
    ///
    /// As [`Stream::try_read`]; `buf` is unchanged then.
    pub fn try_read_buf(&self, buf: &mut Vec<u8>, limit: usize) -> io::Result<usize> {
        try_read_buf(&mut self.read.lock(), buf, limit)
    }

    /// Writes what there is space for now, without waiting.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is none; otherwise as writing.
    pub fn try_write(&self, buf: &[u8]) -> io::Result<usize> {
        self.write.lock().try_write(&[IoSlice::new(buf)])
    }

    /// As [`Stream::try_write`] from several buffers, one after the other.
    ///
    /// # Errors
    ///
    /// As [`Stream::try_write`].
    pub fn try_write_vectored(&self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write.lock().try_write(bufs)
    }

    /// Shuts directions down, at once. Shutting down twice is no error.
    ///
    /// Not called `shutdown`, which is a method of tokio's `AsyncWriteExt`.
    ///
    /// After writing was shut down the peer reads to the end and then gets 0; it may still write.
    /// Local writes return `BrokenPipe`. After reading was shut down, local reads return 0. Over
    /// SMC-R this does not wait for what is in the send buffer; closing the stream does.
    ///
    /// # Errors
    ///
    /// As `shutdown(2)`, for TCP.
    pub fn shutdown_how(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.read.lock().shutdown()?;
        }
        if matches!(how, Shutdown::Write | Shutdown::Both) {
            self.write.lock().shutdown()?;
        }
        Ok(())
    }

    /// Whether small writes are sent at once. SMC does not delay them, so there the setting is
    /// stored and has no effect.
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`, for TCP.
    pub fn nodelay(&self) -> io::Result<bool> {
        match &self.shared.smc {
            Some(handle) => Ok(handle.0.nodelay.load(Ordering::Relaxed)),
            None => self.shared.socket.nodelay(),
        }
    }

    /// Sets `TCP_NODELAY`; see [`Stream::nodelay`].
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`, for TCP.
    pub fn set_nodelay(&self, on: bool) -> io::Result<()> {
        match &self.shared.smc {
            Some(handle) => {
                handle.0.nodelay.store(on, Ordering::Relaxed);
                Ok(())
            }
            None => self.shared.socket.set_nodelay(on),
        }
    }

    /// The setting of [`Stream::set_linger`].
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`.
    pub fn linger(&self) -> io::Result<Option<Duration>> {
        match &self.shared.smc {
            Some(handle) => Ok(handle.0.linger()),
            None => self.shared.socket.linger(),
        }
    }

    /// Bounds how long closing may take; zero means that dropping the stream resets it.
    ///
    /// SMC-D does not wait when it closes, so only zero has an effect there.
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`.
    pub fn set_linger(&self, linger: Option<Duration>) -> io::Result<()> {
        match &self.shared.smc {
            Some(handle) => {
                handle.0.set_linger(linger);
                Ok(())
            }
            None => self.shared.socket.set_linger(linger),
        }
    }

    /// As [`Stream::set_linger`] with zero: dropping the stream resets it.
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`.
    pub fn set_zero_linger(&self) -> io::Result<()> {
        self.set_linger(Some(Duration::ZERO))
    }

    /// `SO_KEEPALIVE` of the TCP socket.
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`.
    pub fn set_keepalive(&self, on: bool) -> io::Result<()> {
        self.shared.socket.set_keepalive(on)
    }

    /// Whether `SO_KEEPALIVE` of the TCP socket is set.
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`; `Unsupported` with a runtime that has no sockets of the system.
    pub fn keepalive(&self) -> io::Result<bool> {
        Ok(sockopt::socket_keepalive(self.shared.tcp()?)?)
    }

    /// `IP_TTL` of the TCP socket. Data of an SMC stream does not pass there.
    ///
    /// # Errors
    ///
    /// As [`Stream::keepalive`].
    pub fn ttl(&self) -> io::Result<u32> {
        Ok(sockopt::ip_ttl(self.shared.tcp()?)?)
    }

    /// Sets [`Stream::ttl`].
    ///
    /// # Errors
    ///
    /// As `setsockopt(2)`; `Unsupported` with a runtime that has no sockets of the system.
    pub fn set_ttl(&self, ttl: u32) -> io::Result<()> {
        Ok(sockopt::set_ip_ttl(self.shared.tcp()?, ttl)?)
    }

    /// Takes the error that ended the stream, if one did: `SO_ERROR`. Each later call returns
    /// `None`. Over SMC that has no effect on reading and writing, which fail as before.
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`.
    pub fn take_error(&self) -> io::Result<Option<io::Error>> {
        match &self.shared.smc {
            Some(handle) => Ok(handle.0.take_error().map(Error::into)),
            None => self.shared.socket.take_error(),
        }
    }
}

impl Shared {
    pub(crate) fn peer_addr(&self) -> io::Result<SocketAddr> {
        match &self.smc {
            Some(handle) => Ok(handle.0.peer_addr),
            None => self.socket.peer_addr(),
        }
    }

    pub(crate) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn tcp(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket
            .fd()
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
    }

    pub(crate) fn mode(&self) -> &Mode {
        &self.mode
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().read.as_mut().poll_read(cx, buf)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().read.as_mut().poll_read_vectored(cx, bufs)
    }
}

impl AsyncBufRead for Stream {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        self.get_mut().read.as_mut().poll_fill_buf(cx)
    }

    fn consume(self: Pin<&mut Self>, amt: usize) {
        self.get_mut().read.as_mut().consume_filled(amt);
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut()
            .write
            .as_mut()
            .poll_write(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write.as_mut().poll_write(cx, bufs)
    }

    /// Ready at once, as with TCP: written data is sent without a flush.
    ///
    /// Over SMC-D it is in the peer's memory. Over SMC-R it may still be in the send buffer
    /// ([`Builder::send_buffer`](super::Builder::send_buffer)), because the peer's buffer is full or
    /// earlier data is on its way; closing waits for that.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    /// Shuts writing down, as [`Stream::shutdown_how`], and waits until what was written gets to
    /// the peer whatever becomes of this process.
    ///
    /// Over SMC-D that is so when a busy device has taken everything, mostly at once. Over SMC-R the
    /// send buffer is written out first, and the peer has to have acknowledged it: this waits while
    /// the peer's buffer is full, for at most
    /// [`Builder::close_timeout`](super::Builder::close_timeout). Two peers that both wait for this
    /// before they read, with more under way than fits the buffers, wait for each other;
    /// [`Stream::shutdown_how`] does not wait.
    /// On TCP it does not wait either, as the system delivers. Writing is shut down from the first
    /// poll on, and the time runs from there, also if the future is dropped
    /// (docs/spec/closing.md#waiting-for-delivery): closing again waits for what is left of it, and
    /// from its beginning once it was over.
    ///
    /// # Errors
    ///
    /// If the peer has closed and not read everything (`ConnectionReset`), the connection ended
    /// otherwise before the peer had it, or the time is over (`TimedOut`): what was written still
    /// goes out then, and closing may be called again to go on waiting.
    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().write.as_mut().poll_shutdown(cx)
    }
}

/// Appends received data to `buf`.
pub(crate) fn try_read_buf(
    side: &mut ReadSide,
    buf: &mut Vec<u8>,
    limit: usize,
) -> io::Result<usize> {
    let before = buf.len();
    // One byte at least: an empty read would not report a lack of data.
    let space = side.available(limit).max(limit.min(1));
    buf.resize(before + space, 0);
    let read = side.try_read(&mut buf[before..]);
    buf.truncate(before + *read.as_ref().unwrap_or(&0));
    read
}
