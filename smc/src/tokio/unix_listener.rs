//! `UnixListener`.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::unix::net;
use std::path::Path;
use std::task::{Context, Poll, ready};

use ::tokio::net::unix::SocketAddr;

use super::unix_stream::{path_of, tokio_addr};
use super::{UnixStream, endpoint};
use crate::incoming::Incoming;
use crate::unix;

/// A UNIX listener whose streams are SMC with clients that can, in place of
/// `tokio::net::UnixListener`.
///
/// What differs from that is a table in the [manual](crate::manual::differences). By reference it
/// has the methods of [`smc::UnixListener`](unix::UnixListener).
///
/// ```no_run
/// # async fn serve() -> std::io::Result<()> {
/// use smc::tokio::UnixListener;
///
/// let listener = UnixListener::bind("/run/app/app.sock")?;
/// loop {
///     let (stream, _peer) = listener.accept().await?;
///     println!("user {} is connected over {}", stream.peer_cred()?.uid(), stream.mode());
/// }
/// # }
/// ```
pub struct UnixListener(unix::UnixListener);

impl UnixListener {
    /// Listens with the [default endpoint](super::endpoint) at a path, which must not exist, or at
    /// an abstract name behind a zero byte.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind_unix`](crate::Endpoint::bind_unix); `InvalidInput` outside of a tokio
    /// runtime.
    ///
    /// # Panics
    ///
    /// On a tokio runtime without `enable_io` or `enable_time`.
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Ok(Self(endpoint()?.bind_unix(path)?))
    }

    /// As [`UnixListener::bind`] at an address in tokio's form.
    ///
    /// # Errors
    ///
    /// As [`UnixListener::bind`].
    pub fn bind_addr(addr: &SocketAddr) -> io::Result<Self> {
        Self::bind(path_of(addr))
    }

    /// Accepts streams from a socket that listens already, as
    /// [`Endpoint::listen_on_unix`](crate::Endpoint::listen_on_unix). Unlike tokio's it may be
    /// blocking.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::listen_on_unix`](crate::Endpoint::listen_on_unix); `InvalidInput` outside of
    /// a tokio runtime.
    pub fn from_std(listener: net::UnixListener) -> io::Result<Self> {
        Ok(Self(endpoint()?.listen_on_unix(listener)?))
    }

    /// As [`smc::UnixListener::accept`](unix::UnixListener::accept).
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn accept(&self) -> io::Result<(UnixStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((stream.into(), tokio_addr(&peer)?))
    }

    /// As [`smc::UnixListener::poll_accept`](unix::UnixListener::poll_accept).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(UnixStream, SocketAddr)>> {
        let (stream, peer) = ready!(self.0.poll_accept(cx))?;
        Poll::Ready(Ok((stream.into(), tokio_addr(&peer)?)))
    }

    /// The address listened on.
    ///
    /// # Errors
    ///
    /// None; it is a `Result` because tokio's is.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        tokio_addr(&self.0.local_addr()?)
    }

    /// The streams that are accepted: for frameworks that take a stream of them.
    #[must_use]
    pub fn into_incoming(self) -> Incoming<UnixStream> {
        Incoming::new(self.0.into_listener())
    }
}

impl TryFrom<net::UnixListener> for UnixListener {
    type Error = io::Error;

    /// As [`UnixListener::from_std`].
    fn try_from(listener: net::UnixListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}

impl Deref for UnixListener {
    type Target = unix::UnixListener;

    fn deref(&self) -> &unix::UnixListener {
        &self.0
    }
}

impl From<unix::UnixListener> for UnixListener {
    fn from(listener: unix::UnixListener) -> Self {
        Self(listener)
    }
}

impl From<UnixListener> for unix::UnixListener {
    fn from(listener: UnixListener) -> Self {
        listener.0
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
