//! `TcpListener`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::task::{Context, Poll};

use ::tokio::net::{ToSocketAddrs, lookup_host};

use super::{TcpStream, endpoint};
use crate::incoming::Incoming;
use crate::listener::Listener;

/// A TCP listener whose streams are SMC with clients that can, in place of
/// `tokio::net::TcpListener`.
///
/// What differs from that is a table in the [manual](crate::manual::differences). By reference it
/// has the methods of [`Listener`], whose documentation says which clients it returns.
///
/// ```no_run
/// # async fn serve() -> std::io::Result<()> {
/// use smc::tokio::TcpListener;
///
/// let listener = TcpListener::bind("127.0.0.1:7878").await?;
/// loop {
///     let (stream, peer) = listener.accept().await?;
///     println!("{peer} is connected over {}", stream.mode());
/// }
/// # }
/// ```
pub struct TcpListener(Listener);

impl TcpListener {
    /// Listens with the [default endpoint](super::endpoint). Several addresses are tried in order,
    /// until one succeeds.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind`](crate::Endpoint::bind); `InvalidInput` for a name without an address,
    /// and outside of a tokio runtime.
    ///
    /// # Panics
    ///
    /// On a tokio runtime without `enable_io` or `enable_time`.
    pub async fn bind<A: ToSocketAddrs>(addr: A) -> io::Result<Self> {
        let endpoint = endpoint()?;
        let addresses: Vec<_> = lookup_host(addr).await?.collect();
        Ok(Self(endpoint.bind(addresses).await?))
    }

    /// Accepts streams from a socket that listens already, as
    /// [`Endpoint::listen_on`](crate::Endpoint::listen_on). Unlike tokio's it may be blocking.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::listen_on`](crate::Endpoint::listen_on); `InvalidInput` outside of a tokio
    /// runtime.
    pub fn from_std(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(Self(endpoint()?.listen_on(listener)?))
    }

    /// As [`Listener::accept`].
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`].
    pub async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((stream.into(), peer))
    }

    /// As [`Listener::poll_accept`].
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>> {
        let accepted = self.0.poll_accept(cx);
        accepted.map_ok(|(stream, peer)| (stream.into(), peer))
    }

    /// The address listened on.
    ///
    /// # Errors
    ///
    /// None; it is a `Result` because tokio's is.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// The streams that are accepted: for frameworks that take a stream of them.
    #[must_use]
    pub fn into_incoming(self) -> Incoming<TcpStream> {
        Incoming::new(self.0)
    }
}

impl TryFrom<std::net::TcpListener> for TcpListener {
    type Error = io::Error;

    /// As [`TcpListener::from_std`].
    fn try_from(listener: std::net::TcpListener) -> io::Result<Self> {
        Self::from_std(listener)
    }
}

impl Deref for TcpListener {
    type Target = Listener;

    fn deref(&self) -> &Listener {
        &self.0
    }
}

impl From<Listener> for TcpListener {
    fn from(listener: Listener) -> Self {
        Self(listener)
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        listener.0
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
