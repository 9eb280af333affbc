//! `UnixStream`.

use std::fmt;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;
use std::ops::Deref;
use std::os::unix::net;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_io::{AsyncRead, AsyncWrite};

use super::endpoint;
use super::stream_type::stream_type;
use crate::stream::Stream;

/// A UNIX stream that is SMC where both ends can, in place of `smol::net::unix::UnixStream`.
///
/// Clones are the same stream, as those of [`TcpStream`](super::TcpStream). By reference it has the
/// methods of [`Stream`].
///
/// ```
/// use smc::smol::{UnixListener, UnixStream};
/// use smol::io::AsyncWriteExt;
///
/// # fn main() -> std::io::Result<()> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.sock");
/// # smol::block_on(async {
/// let listener = UnixListener::bind(&path)?;
/// let mut stream = UnixStream::connect(&path).await?;
/// stream.write_all(b"hello").await?;
/// if let Some(reason) = stream.fallback_reason() {
///     println!("plain UNIX socket: {reason}");
/// }
/// # Ok(()) })
/// # }
/// ```
#[derive(Clone)]
pub struct UnixStream(Arc<Stream>);

impl UnixStream {
    /// Connects with the [default endpoint](super::endpoint) to a path, or to an abstract name
    /// behind a zero byte. Dropping the future cancels the attempt.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect_unix`](crate::Endpoint::connect_unix).
    pub async fn connect<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Ok(endpoint()?.connect_unix(path).await?.into())
    }

    /// Two connected streams of the default endpoint, which are plain UNIX sockets.
    /// [`Stream::pair`] makes a pair that is SMC.
    ///
    /// # Errors
    ///
    /// As `socketpair(2)`.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = endpoint()?.unix_pair()?;
        Ok((one.into(), other.into()))
    }

    /// As [`Stream::local_unix_addr`], in std's form.
    ///
    /// # Errors
    ///
    /// As [`Stream::local_unix_addr`].
    pub fn local_addr(&self) -> io::Result<net::SocketAddr> {
        net::SocketAddr::try_from(&self.0.local_unix_addr()?)
    }

    /// As [`Stream::peer_unix_addr`], in std's form.
    ///
    /// # Errors
    ///
    /// As [`Stream::peer_unix_addr`].
    pub fn peer_addr(&self) -> io::Result<net::SocketAddr> {
        net::SocketAddr::try_from(&self.0.peer_unix_addr()?)
    }
}

stream_type!(UnixStream);
