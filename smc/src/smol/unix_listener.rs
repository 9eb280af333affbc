//! `UnixListener`.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::unix::net;
use std::path::Path;
use std::sync::Arc;

use super::{Incoming, UnixStream, endpoint};
use crate::unix;

/// A UNIX listener whose streams are SMC with clients that can, in place of
/// `smol::net::unix::UnixListener`. Clones are the same listener.
///
/// By reference it has the methods of [`smc::UnixListener`](unix::UnixListener).
///
/// ```no_run
/// # async fn serve() -> std::io::Result<()> {
/// use smc::smol::UnixListener;
/// use smol::stream::StreamExt;
///
/// let listener = UnixListener::bind("/run/app/app.sock")?;
/// let mut incoming = listener.incoming();
/// while let Some(stream) = incoming.next().await {
///     println!("connected over {}", stream?.mode());
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct UnixListener(Arc<unix::UnixListener>);

impl UnixListener {
    /// Listens with the [default endpoint](super::endpoint) at a path, which must not exist, or at
    /// an abstract name behind a zero byte.
    ///
    /// # Errors
    ///
    /// As [`Endpoint::bind_unix`](crate::Endpoint::bind_unix).
    pub fn bind<P: AsRef<Path>>(path: P) -> io::Result<Self> {
        Ok(endpoint()?.bind_unix(path)?.into())
    }

    /// As [`smc::UnixListener::accept`](unix::UnixListener::accept).
    ///
    /// # Errors
    ///
    /// As there.
    pub async fn accept(&self) -> io::Result<(UnixStream, net::SocketAddr)> {
        let (stream, peer) = self.0.accept().await?;
        Ok((stream.into(), (&peer).try_into()?))
    }

    /// The address listened on.
    ///
    /// # Errors
    ///
    /// None; it is a `Result` because smol's is.
    pub fn local_addr(&self) -> io::Result<net::SocketAddr> {
        (&self.0.local_addr()?).try_into()
    }

    /// The streams that are accepted.
    #[must_use]
    pub fn incoming(&self) -> Incoming<'_, UnixStream> {
        Incoming::new(self.0.inner())
    }
}

/// Accepts streams from a socket that listens already, as
/// [`Endpoint::listen_on_unix`](crate::Endpoint::listen_on_unix).
impl TryFrom<net::UnixListener> for UnixListener {
    type Error = io::Error;

    fn try_from(listener: net::UnixListener) -> io::Result<Self> {
        Ok(endpoint()?.listen_on_unix(listener)?.into())
    }
}

impl From<unix::UnixListener> for UnixListener {
    fn from(listener: unix::UnixListener) -> Self {
        Self(Arc::new(listener))
    }
}

impl Deref for UnixListener {
    type Target = unix::UnixListener;

    fn deref(&self) -> &unix::UnixListener {
        &self.0
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
