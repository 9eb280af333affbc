//! `UnixStream` and its halves.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, IoSlice};
use std::ops::Deref;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, Interest, ReadBuf, Ready};
use ::tokio::net::unix::SocketAddr;

use super::endpoint;
use super::stream_types::{buf_read, peek, read, stream_types, wrapper, write};
use crate::address::UnixAddr;
use crate::stream::{self, Stream};
use crate::unix::PeerCred;

/// A UNIX stream that is SMC where both ends can, in place of `tokio::net::UnixStream`.
///
/// What differs from that is a table in the [manual](crate::manual::differences). By reference it
/// has the methods of [`Stream`], whose documentation says how it ends and what is cancel safe.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> std::io::Result<()> {
/// use smc::tokio::UnixStream;
/// use tokio::io::AsyncWriteExt;
///
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.sock");
/// # let listener = smc::tokio::UnixListener::bind(&path)?;
/// let mut stream = UnixStream::connect(&path).await?;
/// stream.write_all(b"hello").await?;
/// println!("user {}", stream.peer_cred()?.uid());
/// if let Some(reason) = stream.fallback_reason() {
///     println!("plain UNIX socket: {reason}");
/// }
/// # Ok(()) }
/// ```
pub struct UnixStream(Stream);

impl UnixStream {
    /// Connects with the [default endpoint](super::endpoint) to a path, or to an abstract name
    /// behind a zero byte. Dropping the future cancels the attempt.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::connect_unix`](crate::Endpoint::connect_unix); `InvalidInput` outside of a
    /// tokio runtime.
    ///
    /// # Panics
    ///
    /// On a tokio runtime without `enable_io` or `enable_time`.
    pub async fn connect<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Ok(Self(endpoint()?.connect_unix(path).await?))
    }

    /// As [`UnixStream::connect`] to an address in tokio's form.
    ///
    /// # Errors
    ///
    /// As [`UnixStream::connect`].
    pub async fn connect_addr(addr: &SocketAddr) -> io::Result<Self> {
        Self::connect(path_of(addr)).await
    }

    /// Two connected streams of the default endpoint, which are plain UNIX sockets.
    /// [`Stream::pair`] makes a pair that is SMC.
    ///
    /// # Errors
    ///
    /// As `socketpair(2)`; `InvalidInput` outside of a tokio runtime.
    pub fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = endpoint()?.unix_pair()?;
        Ok((Self(one), Self(other)))
    }

    /// As [`Stream::local_unix_addr`], in tokio's form.
    ///
    /// # Errors
    ///
    /// As [`Stream::local_unix_addr`].
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        tokio_addr(&self.0.local_unix_addr()?)
    }

    /// As [`Stream::peer_unix_addr`], in tokio's form.
    ///
    /// # Errors
    ///
    /// As [`Stream::peer_unix_addr`].
    pub fn peer_addr(&self) -> io::Result<SocketAddr> {
        tokio_addr(&self.0.peer_unix_addr()?)
    }

    /// As [`Stream::peer_cred`].
    ///
    /// # Errors
    ///
    /// As [`Stream::peer_cred`].
    pub fn peer_cred(&self) -> io::Result<PeerCred> {
        self.0.peer_cred()
    }
}

/// An address in tokio's form.
pub(super) fn tokio_addr(addr: &UnixAddr) -> io::Result<SocketAddr> {
    Ok(std::os::unix::net::SocketAddr::try_from(addr)?.into())
}

/// The same as a path, which has a zero byte before an abstract name.
pub(super) fn path_of(addr: &SocketAddr) -> PathBuf {
    match (addr.as_pathname(), addr.as_abstract_name()) {
        (Some(path), _) => path.to_owned(),
        (None, Some(name)) => OsString::from_vec([&[0], name].concat()).into(),
        (None, None) => PathBuf::new(),
    }
}

stream_types!(UnixStream);

macro_rules! addresses {
    ($($half:ty),+) => {$(
        impl $half {
            /// The address of this end.
            ///
            /// # Errors
            ///
            /// As [`UnixStream::local_addr`].
            pub fn local_addr(&self) -> io::Result<SocketAddr> {
                tokio_addr(&self.0.local_unix_addr()?)
            }

            /// The address of the other end.
            ///
            /// # Errors
            ///
            /// As [`UnixStream::peer_addr`].
            pub fn peer_addr(&self) -> io::Result<SocketAddr> {
                tokio_addr(&self.0.peer_unix_addr()?)
            }
        }
    )+};
}

addresses!(ReadHalf<'_>, WriteHalf<'_>, OwnedReadHalf, OwnedWriteHalf);
