//! Listening at a UNIX socket.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use rustix::net::{AddressFamily, SocketFlags, SocketType};
use smc_ipc::passed::refuse_descriptors;

use super::connect::rustix_addr;
use super::names;
use crate::address::UnixAddr;
use crate::error::{FallbackCause, OsError};
use crate::incoming::Incoming;
use crate::listener::{Listener, Refused};
use crate::runtime::{Runtime, Socket, SocketOptions, UnixAcceptor};
use crate::stream::Stream;

/// Accepts streams at a UNIX socket, SMC from clients that support it and plain from all others.
///
/// All that [`Listener`] says of handshakes, their number and their failures holds here. Who may
/// connect is what the system says: the mode of the path and of its directory. Dropping the
/// listener leaves the path, as dropping std's does.
///
/// ```
/// # #[cfg(feature = "smol")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
///
/// # smol::block_on(async {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("app.sock");
/// let endpoint = smc::smol()?.build()?;
/// let listener = endpoint.bind_unix(&path)?;
/// let mut client = endpoint.connect_unix(&path).await?;
/// client.write_all(b"hello").await?;
/// drop(client);
/// let (mut stream, _client) = listener.accept().await?;
/// let mut read = String::new();
/// stream.read_to_string(&mut read).await?;
/// assert_eq!(read, "hello");
/// println!("user {} over {}", stream.peer_cred()?.uid(), stream.mode());
/// # Ok(())
/// # })
/// # }
/// # #[cfg(not(feature = "smol"))]
/// # fn main() {}
/// ```
pub struct UnixListener(Listener);

impl UnixListener {
    pub(crate) fn new(listener: Listener) -> Self {
        Self(listener)
    }

    /// Takes the next stream with the client's address, which most clients do not have. Any number
    /// of tasks may wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`].
    pub async fn accept(&self) -> io::Result<(Stream, UnixAddr)> {
        let (stream, peer) = self.0.accept_any().await?;
        Ok((stream, peer.require_unix()?))
    }

    /// As [`UnixListener::accept`] for use in a poll function; stores one waker, that of the last
    /// call.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, UnixAddr)>> {
        let accepted = self.0.poll_accept_any(cx);
        accepted.map(|accepted| {
            let (stream, peer) = accepted?;
            Ok((stream, peer.require_unix()?))
        })
    }

    /// The streams that are accepted: for frameworks that take a stream of them.
    #[must_use]
    pub fn into_incoming(self) -> Incoming {
        Incoming::new(self.0)
    }

    #[cfg(any(feature = "smol", feature = "axum08"))]
    pub(crate) fn inner(&self) -> &Listener {
        &self.0
    }

    #[cfg(feature = "tokio")]
    pub(crate) fn into_listener(self) -> Listener {
        self.0
    }

    /// The address listened on.
    ///
    /// # Errors
    ///
    /// None; it is a `Result` because that of std's listeners is.
    pub fn local_addr(&self) -> io::Result<UnixAddr> {
        self.0.local_address().clone().require_unix()
    }

    /// The descriptor of the listening socket: of an abstract name that for clients without SMC.
    #[must_use]
    pub fn unix_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.unix_socket().map(|socket| socket.fd())
    }

    /// As [`Listener::refused`].
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.0.refused()
    }

    /// Why clients cannot see that the listener supports SMC, so that their streams are plain.
    #[must_use]
    pub fn unpublished(&self) -> Option<&FallbackCause> {
        self.0.unpublished()
    }
}

impl fmt::Debug for UnixListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnixListener")
            .field(self.0.local_address())
            .finish()
    }
}

/// The sockets of a listener.
#[derive(Debug)]
pub(crate) struct ListeningUnix {
    acceptor: Arc<dyn UnixAcceptor>,
    /// The second one of an abstract name, for clients with SMC.
    second: Option<Arc<dyn UnixAcceptor>>,
    /// Whether the second one is asked first, which changes each time.
    second_first: AtomicBool,
    local: UnixAddr,
    /// Why clients cannot see that it supports SMC.
    unmarked: Option<FallbackCause>,
}

impl ListeningUnix {
    pub(crate) fn local(&self) -> &UnixAddr {
        &self.local
    }

    pub(crate) fn unmarked(&self) -> Option<&FallbackCause> {
        self.unmarked.as_ref()
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.acceptor.fd()
    }

    /// The next connection, with the name that the client is bound to.
    pub(crate) fn poll_accept(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(Arc<dyn Socket>, net::SocketAddr)>> {
        let Some(second) = &self.second else {
            return self.acceptor.poll_accept(cx);
        };
        // So that clients at one do not keep those at the other waiting.
        let second_first = !self.second_first.fetch_xor(true, Ordering::Relaxed);
        let (one, other) = match second_first {
            true => (second, &self.acceptor),
            false => (&self.acceptor, second),
        };
        match one.poll_accept(cx) {
            Poll::Pending => other.poll_accept(cx),
            ready => ready,
        }
    }
}

/// Listens at an address. A path must not exist.
///
/// # Errors
///
/// As `bind(2)` and `listen(2)`, or what the hook returns.
pub(crate) fn listen(
    runtime: &dyn Runtime,
    at: &UnixAddr,
    backlog: u32,
    options: &SocketOptions,
) -> io::Result<ListeningUnix> {
    let plain = net::SocketAddr::try_from(at)?;
    let marked = names::of_listener(at);
    let unmarked = |error: &io::Error| {
        FallbackCause::Os(OsError::new(
            "bind a UNIX socket for clients with SMC",
            error,
        ))
    };
    let socket = |at: &net::SocketAddr| {
        let socket = bound(at, backlog, options)?;
        runtime.unix_acceptor(socket)
    };
    if at.as_abstract_name().is_none() {
        let (acceptor, unmarked) = match marked {
            Ok(marked) => (socket(&marked)?, None),
            Err(error) => (socket(&plain)?, Some(unmarked(&error))),
        };
        return Ok(ListeningUnix::new(acceptor, None, at.clone(), unmarked));
    }
    let acceptor = socket(&plain)?;
    let (second, unmarked) = match marked.and_then(|marked| socket(&marked)) {
        Ok(second) => (Some(second), None),
        Err(error) => (None, Some(unmarked(&error))),
    };
    Ok(ListeningUnix::new(acceptor, second, at.clone(), unmarked))
}

/// Takes over a socket that listens already.
pub(crate) fn listen_on(
    runtime: &dyn Runtime,
    listener: net::UnixListener,
) -> io::Result<ListeningUnix> {
    let bound = listener.local_addr()?;
    let unmarked = (!names::is_listener(&bound)).then(FallbackCause::not_announced);
    let _refused = refuse_descriptors(&listener);
    let acceptor = runtime.unix_acceptor(listener)?;
    Ok(ListeningUnix::new(
        acceptor,
        None,
        names::shown(&bound),
        unmarked,
    ))
}

impl ListeningUnix {
    fn new(
        acceptor: Arc<dyn UnixAcceptor>,
        second: Option<Arc<dyn UnixAcceptor>>,
        local: UnixAddr,
        unmarked: Option<FallbackCause>,
    ) -> Self {
        Self {
            acceptor,
            second,
            second_first: AtomicBool::new(false),
            local,
            unmarked,
        }
    }
}

fn bound(
    at: &net::SocketAddr,
    backlog: u32,
    options: &SocketOptions,
) -> io::Result<net::UnixListener> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Sockets that are accepted inherit it.
    let _refused = refuse_descriptors(&fd);
    options.call_hook(fd.as_fd())?;
    rustix::net::bind(&fd, &rustix_addr(at)?)?;
    rustix::net::listen(&fd, i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(fd.into())
}
