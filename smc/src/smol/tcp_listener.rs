//! `TcpListener`.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::Deref;
use std::sync::Arc;

use ::smol::net::{AsyncToSocketAddrs, resolve};

use super::{Incoming, TcpStream, endpoint};
use crate::listener::Listener;

/// A TCP listener whose streams are SMC with clients that can, in place of
/// `smol::net::TcpListener`. Clones are the same listener.
///
/// By reference it has the methods of [`Listener`], whose documentation says which clients it
/// returns.
///
/// ```no_run
/// # async fn serve() -> std::io::Result<()> {
/// use smc::smol::TcpListener;
/// use smol::stream::StreamExt;
///
/// let listener = TcpListener::bind("127.0.0.1:7878").await?;
/// let mut incoming = listener.incoming();
/// while let Some(stream) = incoming.next().await {
///     println!("connected over {}", stream?.mode());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct TcpListener(Arc<Listener>);

impl TcpListener {
    /// Listens with the [default endpoint](super::endpoint). Several addresses are tried in order,
    /// until one succeeds.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind`](crate::Endpoint::bind); `InvalidInput` for a name without an address.
    pub async fn bind<A: AsyncToSocketAddrs>(addr: A) -> io::Result<Self> {
        let listener = endpoint()?.bind(resolve(addr).await?).await?;
        Ok(listener.into())
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

    /// The streams that are accepted.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_> {
        Incoming::new(&self.0)
    }
}

/// Accepts streams from a socket that listens already, as
/// [`Endpoint::listen_on`](crate::Endpoint::listen_on).
impl TryFrom<std::net::TcpListener> for TcpListener {
    type Error = io::Error;

    fn try_from(listener: std::net::TcpListener) -> io::Result<Self> {
        Ok(endpoint()?.listen_on(listener)?.into())
    }
}

impl From<Listener> for TcpListener {
    fn from(listener: Listener) -> Self {
        Self(Arc::new(listener))
    }
}

impl Deref for TcpListener {
    type Target = Listener;

    fn deref(&self) -> &Listener {
        &self.0
    }
}

impl fmt::Debug for TcpListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
