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
use super::stream_type::stream_type;
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
}

stream_type!(TcpStream);
