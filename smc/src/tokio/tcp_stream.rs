//! `TcpStream` and its halves.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use ::tokio::net::{ToSocketAddrs, lookup_host};

use super::endpoint;
use crate::stream::{self, Stream};

/// A TCP stream that is SMC where both ends can, in place of `tokio::net::TcpStream`.
///
/// What differs from that is a table in the [manual](crate::manual::differences). By reference it
/// has the methods of [`Stream`], whose documentation says how it ends and what is cancel safe.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use smc::tokio::TcpStream;
/// use tokio::io::AsyncWriteExt;
///
/// # let listener = smc::tokio::TcpListener::bind("127.0.0.1:0").await?;
/// # let addr = listener.local_addr()?;
/// let mut stream = TcpStream::connect(addr).await?;
/// stream.set_nodelay(true)?;
/// stream.write_all(b"hello").await?;
/// if let Some(reason) = stream.fallback_reason() {
///     println!("plain TCP: {reason}");
/// }
/// # Ok(()) }
/// ```
pub struct TcpStream(Stream);

impl TcpStream {
    /// Connects with the [default endpoint](super::endpoint). Several addresses are tried in
    /// order, until one succeeds. Dropping the future cancels the attempt.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`](crate::Endpoint::connect); `InvalidInput` for a name without an
    /// address, and outside of a tokio runtime.
    pub async fn connect<A: ToSocketAddrs>(addr: A) -> io::Result<Self> {
        let endpoint = endpoint()?;
        let addresses: Vec<_> = lookup_host(addr).await?.collect();
        Ok(Self(endpoint.connect(addresses).await?))
    }

    /// Waits until reading or writing, whichever is of interest, would not wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// When the runtime's reactor is gone.
    pub async fn ready(&self, interest: Interest) -> io::Result<Ready> {
        let wanted = match (interest.is_readable(), interest.is_writable()) {
            (true, true) => stream::Interest::READABLE | stream::Interest::WRITABLE,
            (false, true) => stream::Interest::WRITABLE,
            _ => stream::Interest::READABLE,
        };
        let found = self.0.ready(wanted).await?;
        let mut ready = Ready::EMPTY;
        if found.readable {
            ready |= Ready::READABLE;
        }
        if found.writable {
            ready |= Ready::WRITABLE;
        }
        Ok(ready)
    }

    /// As [`Stream::poll_peek`].
    ///
    /// # Errors
    ///
    /// As reading.
    pub fn poll_peek(
        &self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<usize>> {
        let count = ready!(self.0.poll_peek(cx, buf.initialize_unfilled()))?;
        buf.advance(count);
        Poll::Ready(Ok(count))
    }

    /// Splits into halves that borrow the stream, for use in one task.
    pub fn split(&mut self) -> (ReadHalf<'_>, WriteHalf<'_>) {
        let (read, write) = self.0.split();
        (ReadHalf(read), WriteHalf(write))
    }

    /// Splits into halves that can move to different tasks. Dropping the writing half shuts writing
    /// down, unless it was forgotten.
    #[must_use]
    pub fn into_split(self) -> (OwnedReadHalf, OwnedWriteHalf) {
        let (read, write) = self.0.into_split();
        (OwnedReadHalf(read), OwnedWriteHalf(write))
    }
}

impl From<TcpStream> for Stream {
    fn from(stream: TcpStream) -> Self {
        stream.0
    }
}

/// The reading half of [`TcpStream::split`].
pub struct ReadHalf<'a>(stream::ReadHalf<'a>);

/// The writing half of [`TcpStream::split`].
pub struct WriteHalf<'a>(stream::WriteHalf<'a>);

/// The reading half of [`TcpStream::into_split`].
pub struct OwnedReadHalf(stream::OwnedReadHalf);

/// The writing half of [`TcpStream::into_split`]. Dropping it shuts writing down.
pub struct OwnedWriteHalf(stream::OwnedWriteHalf);

macro_rules! peek {
    ($($half:ty),+) => {$(
        impl $half {
            /// As [`Stream::peek`].
            ///
            /// # Errors
            ///
            /// As reading.
            pub async fn peek(&mut self, buf: &mut [u8]) -> io::Result<usize> {
                self.0.peek(buf).await
            }

            /// As `peek` for use in a poll function.
            ///
            /// # Errors
            ///
            /// As reading.
            pub fn poll_peek(
                &mut self,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<usize>> {
                let count = ready!(self.0.poll_peek(cx, buf.initialize_unfilled()))?;
                buf.advance(count);
                Poll::Ready(Ok(count))
            }
        }
    )+};
}

peek!(ReadHalf<'_>, OwnedReadHalf);

impl OwnedReadHalf {
    /// Puts the halves of one stream together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] with both halves when they are of different streams.
    pub fn reunite(self, write: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
        reunite(self, write)
    }
}

impl OwnedWriteHalf {
    /// Puts the halves of one stream together again.
    ///
    /// # Errors
    ///
    /// [`ReuniteError`] with both halves when they are of different streams.
    pub fn reunite(self, read: OwnedReadHalf) -> Result<TcpStream, ReuniteError> {
        reunite(read, self)
    }

    /// Drops the half without shutting writing down.
    pub fn forget(self) {
        self.0.forget();
    }
}

fn reunite(read: OwnedReadHalf, write: OwnedWriteHalf) -> Result<TcpStream, ReuniteError> {
    match read.0.reunite(write.0) {
        Ok(stream) => Ok(TcpStream(stream)),
        Err(stream::ReuniteError(read, write)) => {
            Err(ReuniteError(OwnedReadHalf(read), OwnedWriteHalf(write)))
        }
    }
}

/// The halves are not of one stream; both are returned.
#[derive(Debug, thiserror::Error)]
#[error("tried to reunite halves that are not from the same socket")]
#[expect(
    clippy::exhaustive_structs,
    reason = "tokio's error has these two fields as well"
)]
pub struct ReuniteError(pub OwnedReadHalf, pub OwnedWriteHalf);

/// Types with tokio's traits alone, of those that have the traits of futures-io, too.
macro_rules! wrapper {
    ($($type:ident $(<$lifetime:lifetime>)?: $inner:ty;)+) => {$(
        impl $(<$lifetime>)? Deref for $type $(<$lifetime>)? {
            type Target = $inner;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl $(<$lifetime>)? From<$inner> for $type $(<$lifetime>)? {
            fn from(inner: $inner) -> Self {
                Self(inner)
            }
        }

        impl $(<$lifetime>)? fmt::Debug for $type $(<$lifetime>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

macro_rules! read {
    ($($type:ty),+) => {$(
        impl AsyncRead for $type {
            fn poll_read(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                AsyncRead::poll_read(Pin::new(&mut self.get_mut().0), cx, buf)
            }
        }
    )+};
}

/// Not for [`TcpStream`]: `split` would be that of tokio's `AsyncBufReadExt`, where it is in scope.
macro_rules! buf_read {
    ($($type:ty),+) => {$(
        impl AsyncBufRead for $type {
            fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
                AsyncBufRead::poll_fill_buf(Pin::new(&mut self.get_mut().0), cx)
            }

            fn consume(self: Pin<&mut Self>, amt: usize) {
                AsyncBufRead::consume(Pin::new(&mut self.get_mut().0), amt);
            }
        }
    )+};
}

macro_rules! write {
    ($($type:ty),+) => {$(
        impl AsyncWrite for $type {
            fn poll_write(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                buf: &[u8],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write(Pin::new(&mut self.get_mut().0), cx, buf)
            }

            fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_flush(Pin::new(&mut self.get_mut().0), cx)
            }

            fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
                AsyncWrite::poll_shutdown(Pin::new(&mut self.get_mut().0), cx)
            }

            fn poll_write_vectored(
                self: Pin<&mut Self>,
                cx: &mut Context<'_>,
                bufs: &[IoSlice<'_>],
            ) -> Poll<io::Result<usize>> {
                AsyncWrite::poll_write_vectored(Pin::new(&mut self.get_mut().0), cx, bufs)
            }

            fn is_write_vectored(&self) -> bool {
                self.0.is_write_vectored()
            }
        }
    )+};
}

wrapper! {
    TcpStream: Stream;
    ReadHalf<'a>: stream::ReadHalf<'a>;
    WriteHalf<'a>: stream::WriteHalf<'a>;
    OwnedReadHalf: stream::OwnedReadHalf;
    OwnedWriteHalf: stream::OwnedWriteHalf;
}
read!(TcpStream, ReadHalf<'_>, OwnedReadHalf);
buf_read!(ReadHalf<'_>, OwnedReadHalf);
write!(TcpStream, WriteHalf<'_>, OwnedWriteHalf);
