//! `TcpStream` and its halves.

use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use ::tokio::net::{ToSocketAddrs, lookup_host};

use super::endpoint;
use super::stream_types::{buf_read, peek, read, stream_types, wrapper, write};
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
    ///
    /// # Panics
    ///
    /// On a tokio runtime without `enable_io` or `enable_time`.
    pub async fn connect<A: ToSocketAddrs>(addr: A) -> io::Result<Self> {
        let endpoint = endpoint()?;
        let addresses: Vec<_> = lookup_host(addr).await?.collect();
        Ok(Self(endpoint.connect(addresses).await?))
    }
}

stream_types!(TcpStream);
