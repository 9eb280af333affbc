//! A byte stream with its two halves: for each, SMC-D, SMC-R or TCP.

mod in_place;
mod methods;
mod mode;
mod options;
mod pair;
mod read;
mod readiness;
mod split;
mod tcp;
#[cfg(feature = "tokio-io")]
mod tokio;
mod wait;
mod write;

pub use in_place::{ReadGuard, Reservation};
pub use mode::Mode;
pub use options::TcpKeepalive;
pub use readiness::{Interest, Readiness};
pub use split::{OwnedReadHalf, OwnedWriteHalf, ReadHalf, ReuniteError, WriteHalf};

use std::fmt;
use std::io;
use std::net::Shutdown;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::conn::{Conn, Handle, TransportConn};
use super::runtime::Socket;
use crate::address::{self, Address};
use crate::mem::TrustPeers;
use crate::tcp_streams::TcpEntry;
use read::{Reader, SmcReader};
use tcp::{TcpReader, TcpWriter};
use wait::{LockedHalf, Ready as _};
use write::{DirectWriter, SmcWriter, Writer};

/// A byte stream over SMC, or over plain TCP where SMC is not possible.
///
/// Methods have the names and the semantics of tokio's `TcpStream`. The traits of `futures-io` are
/// always implemented, those of tokio with feature `tokio-io`, which `tokio` includes. Reading and
/// writing of futures-io are implemented for `&Stream` as well, so that one task can read and
/// another write without splitting.
///
/// **Cancellation.** A read that is dropped before it is ready has taken nothing. A write that is
/// dropped before it is ready has written nothing; `write_all` and the like may have written a
/// part, as always.
///
/// **End of stream.** A read returns 0 only after the peer shut down writing or closed in order.
/// After an abort of the peer it returns `ConnectionReset`, after the loss of the peer
/// `ConnectionAborted`, both after the data that was written before. A write fails likewise, and
/// with `BrokenPipe` after the peer closed in order
/// ([`CloseReason::Peer`](crate::error::CloseReason::Peer)) or this end shut writing down.
///
/// **Drop.** Dropping closes in order, and does not wait. Over SMC-D everything written is in the
/// peer's memory already. Over SMC-R the send buffer is sent in the background as long as the
/// runtime runs, and for the close timeout at most: a process that ends before loses up to
/// [`Builder::send_buffer`](super::Builder::send_buffer) bytes of the end, and the peer sees an
/// abort then. `close` (tokio: `shutdown`) of the stream waits for all of that, as does
/// [`Endpoint::close`](super::Endpoint::close) for all streams that were dropped. If received data
/// was not read, the peer sees a reset, as with TCP.
///
/// How a stream ends is in docs/spec/closing.md, as a table in
/// [`ConnState`](crate::proto::conn::ConnState) and in RFC 7609 section 4.
pub struct Stream {
    // The halves are dropped first, so that the reading half has stored its position when the
    // handle closes.
    //
    // Boxed, so that a stream is cheap to move: futures and tasks that own one are moved, too.
    read: Box<LockedHalf<Reader>>,
    write: Box<LockedHalf<Writer>>,
    shared: Arc<Shared>,
}

/// The shared part of both halves of a stream.
pub(crate) struct Shared {
    socket: Arc<dyn Socket>,
    kind: SmcOrTcp,
}

enum SmcOrTcp {
    Smc(Handle),
    Tcp {
        mode: Mode,
        /// In the endpoint's list of streams that are TCP.
        _entry: TcpEntry,
    },
}

impl Stream {
    /// The halves of a connection, by its transport.
    pub(crate) fn smc(conn: Arc<Conn>, polling: Duration, trust: Option<TrustPeers>) -> Self {
        let (read, write) = match &conn.transport {
            TransportConn::Direct(direct) => {
                let writer = DirectWriter::new(Arc::clone(direct), trust);
                (
                    Reader::Direct(SmcReader::new(Arc::clone(direct), &conn, polling, trust)),
                    Writer::Direct(SmcWriter::new(writer, &conn, polling)),
                )
            }
            TransportConn::Rdma(handle) => {
                let rdma = &handle.0;
                (
                    Reader::Rdma(SmcReader::new(Arc::clone(rdma), &conn, polling, trust)),
                    Writer::Rdma(SmcWriter::new(Arc::clone(rdma), &conn, polling)),
                )
            }
        };
        let shared = Shared {
            socket: Arc::clone(&conn.socket),
            kind: SmcOrTcp::Smc(Handle(conn)),
        };
        Self {
            read: Box::new(LockedHalf::new(read)),
            write: Box::new(LockedHalf::new(write)),
            shared: Arc::new(shared),
        }
    }

    /// `unread` are bytes of the application stream that set-up has read from the socket already.
    pub(crate) fn tcp(
        socket: Arc<dyn Socket>,
        unread: Vec<u8>,
        mode: Mode,
        entry: TcpEntry,
    ) -> Self {
        let kind = SmcOrTcp::Tcp {
            mode,
            _entry: entry,
        };
        Self {
            read: Box::new(LockedHalf::new(Reader::Tcp(TcpReader::new(
                Arc::clone(&socket),
                unread,
            )))),
            write: Box::new(LockedHalf::new(Writer::Tcp(TcpWriter::new(Arc::clone(
                &socket,
            ))))),
            shared: Arc::new(Shared { socket, kind }),
        }
    }

    /// The connection, if this is SMC.
    pub(crate) fn conn(&self) -> Option<&Conn> {
        self.shared.conn()
    }

    /// Bytes that were received and not read yet (`SIOCINQ`). Reads return as much without waiting.
    ///
    /// [Peeked](Stream::peek) data counts as not read, data of a [`ReadGuard`] as read. After
    /// reading was shut down the count is of data that the peer sent and nothing reads.
    ///
    /// # Errors
    ///
    /// As reading, when the peer has broken the protocol; for TCP as `ioctl(2)`, and `Unsupported`
    /// with a runtime that has no sockets of the system.
    pub fn recv_queue_len(&self) -> io::Result<usize> {
        self.read.lock().queue_len()
    }

    /// Bytes that were written and may not be in the peer's memory yet (`SIOCOUTQ`): with 0
    /// everything arrives even if this process ends, though the end of the stream may not.
    ///
    /// 0 over SMC-D, where a write is in the peer's memory when it returns; only while the device
    /// is busy it is what the peer is not known to have read. Over SMC-R it is what the peer has
    /// not acknowledged, at most [`Builder::send_buffer`](super::Builder::send_buffer), and what
    /// was dropped does not count. Whether the peer has read anything it does not show.
    ///
    /// # Errors
    ///
    /// `Unsupported` for TCP: use the `ioctl` on [`Stream::tcp_fd`].
    pub fn send_queue_len(&self) -> io::Result<usize> {
        self.write.lock().queue_len()
    }

    /// Splits into halves that borrow the stream, for use in one task. No lock is shared.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        let Self {
            read,
            write,
            shared,
        } = self;
        (ReadHalf { read, shared }, WriteHalf { write, shared })
    }

    /// Splits into halves that can move to different tasks. No lock is shared.
    ///
    /// Dropping the writing half shuts writing down, unless it was forgotten.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let (read, shared) = (self.read, Arc::clone(&self.shared));
        (
            OwnedReadHalf { read, shared },
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
    /// this, of [`Stream::poll_read_ready`] or of a read of `&Stream`.
    ///
    /// # Errors
    ///
    /// As reading.
    pub fn poll_peek(&self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.read
            .poll_shared(cx, |half, cx| half.poll_peek(cx, buf))
    }

    /// Waits until reading or writing, whichever is of interest, would not wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub async fn ready(&self, interest: Interest) -> io::Result<Readiness> {
        readiness::wait(interest, &self.read, &self.write).await
    }

    /// Waits until a read would not wait; stores one waker, that of the last call of this, of
    /// [`Stream::poll_peek`] or of a read of `&Stream`.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.read.poll_shared(cx, |half, cx| half.poll_ready(cx))
    }

    /// Waits until a write would not wait; stores one waker, that of the last call of this or of a
    /// write or close of `&Stream`.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub fn poll_write_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.write.poll_shared(cx, |half, cx| half.poll_ready(cx))
    }

    /// Shuts directions down, at once. Shutting down twice is no error.
    ///
    /// Not called `shutdown`, which is a method of tokio's `AsyncWriteExt`.
    ///
    /// After writing was shut down the peer reads to the end and then gets 0; it may still write.
    /// Local writes return `BrokenPipe`. After reading was shut down, local reads return 0. Over
    /// SMC-R this does not wait for what is in the send buffer; closing the stream does.
    ///
    /// Shutting down both directions of an SMC stream tells the peer what dropping it does: the
    /// peer's writes fail with `BrokenPipe`. If received data was not read, the peer's writes fail
    /// with `ConnectionReset`, and so do its reads behind the data in its memory, and what is in
    /// the send buffer of SMC-R is lost; closing the stream fails with `BrokenPipe` then. Shutting
    /// down reading alone is local.
    ///
    /// # Errors
    ///
    /// As `shutdown(2)`, for TCP.
    pub fn shutdown_how(&self, how: Shutdown) -> io::Result<()> {
        if matches!(how, Shutdown::Read | Shutdown::Both) {
            self.read.lock().shutdown()?;
        }
        let read = match how {
            Shutdown::Both => self.read.lock().position(),
            Shutdown::Read | Shutdown::Write => None,
        };
        if how != Shutdown::Read {
            // Held until the flags are out: no write comes behind them.
            let mut write = self.write.lock();
            match (self.shared.conn(), read) {
                (Some(conn), Some(read)) => conn.shutdown_both(read),
                _ => write.shutdown()?,
            }
        }
        Ok(())
    }
}

impl Shared {
    fn mode(&self) -> &Mode {
        match &self.kind {
            SmcOrTcp::Smc(handle) => &handle.0.mode,
            SmcOrTcp::Tcp { mode, .. } => mode,
        }
    }

    fn conn(&self) -> Option<&Conn> {
        match &self.kind {
            SmcOrTcp::Smc(handle) => Some(&handle.0),
            SmcOrTcp::Tcp { .. } => None,
        }
    }

    fn local_address(&self) -> io::Result<Address> {
        address::local(&*self.socket)
    }

    fn peer_address(&self) -> io::Result<Address> {
        match self.conn() {
            Some(conn) => Ok(conn.peer_addr.clone()),
            None => address::peer(&*self.socket),
        }
    }

    /// The descriptor for the application, which may keep a duplicate.
    fn exposed_fd(&self) -> Option<BorrowedFd<'_>> {
        self.note_exposed();
        self.socket.fd()
    }

    fn note_exposed(&self) {
        if let Some(conn) = self.conn() {
            conn.reuse.note_exposed();
        }
    }

    fn tcp(&self) -> io::Result<BorrowedFd<'_>> {
        self.socket
            .fd()
            .ok_or_else(|| io::ErrorKind::Unsupported.into())
    }
}

/// Such as `SMC-D v2.1, 127.0.0.1:5000 -> 127.0.0.1:80`, the local address first.
impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mode().write_short(f)?;
        for (before, addr) in [(", ", self.local_address()), (" -> ", self.peer_address())] {
            f.write_str(before)?;
            match addr {
                Ok(addr) => write!(f, "{addr}")?,
                // A TCP connection that was reset has no peer any more.
                Err(_) => f.write_str("?")?,
            }
        }
        Ok(())
    }
}
