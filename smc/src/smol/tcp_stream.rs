//! `TcpStream`.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::smol::net::{AsyncToSocketAddrs, resolve};
use futures_io::{AsyncRead, AsyncWrite};

use super::endpoint;
use crate::stream::Stream;

/// A TCP stream that is SMC where both ends can, in place of `smol::net::TcpStream`.
///
/// Clones are the same stream. Reading and writing by clones takes a lock for each operation; of
/// the tasks that wait for the same direction the last one is woken. By reference it has the
/// methods of [`Stream`].
///
/// ```
/// use smc::smol::TcpStream;
/// use smol::io::AsyncWriteExt;
///
/// # fn main() -> std::io::Result<()> {
/// # smol::block_on(async {
/// # let listener = smc::smol::TcpListener::bind("127.0.0.1:0").await?;
/// # let addr = listener.local_addr()?;
/// let mut stream = TcpStream::connect(addr).await?;
/// stream.write_all(b"hello").await?;
/// if let Some(reason) = stream.fallback_reason() {
///     println!("plain TCP: {reason}");
/// }
/// # Ok(()) })
/// # }
/// ```
#[derive(Clone)]
pub struct TcpStream(Arc<Stream>);

impl TcpStream {
    /// Connects with the [default endpoint](super::endpoint). Several addresses are tried in
    /// order, until one succeeds. Dropping the future cancels the attempt.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect`](crate::Endpoint::connect); `InvalidInput` for a name without an
    /// address.
    pub async fn connect<A: AsyncToSocketAddrs>(addr: A) -> io::Result<Self> {
        let stream = endpoint()?.connect(resolve(addr).await?).await?;
        Ok(stream.into())
    }

    /// As [`Stream::shutdown_how`].
    ///
    /// # Errors
    ///
    /// As [`Stream::shutdown_how`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.0.shutdown_how(how)
    }

    /// The stream, if this is its only clone; otherwise this clone.
    ///
    /// # Errors
    ///
    /// This clone.
    pub fn try_into_stream(self) -> Result<Stream, Self> {
        Arc::try_unwrap(self.0).map_err(Self)
    }
}

impl From<Stream> for TcpStream {
    fn from(stream: Stream) -> Self {
        Self(Arc::new(stream))
    }
}

impl Deref for TcpStream {
    type Target = Stream;

    fn deref(&self) -> &Stream {
        &self.0
    }
}

impl fmt::Debug for TcpStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl AsyncRead for TcpStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_read(cx, buf)
    }

    fn poll_read_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &mut [IoSliceMut<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_read_vectored(cx, bufs)
    }
}

impl AsyncWrite for TcpStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut &*self.0).poll_write_vectored(cx, bufs)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut &*self.0).poll_close(cx)
    }
}
