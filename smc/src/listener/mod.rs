//! Listeners.

mod admission;
mod options;
mod queue;
mod service;
mod socket;

pub use options::ListenOptions;
pub(crate) use service::ListenerService;
pub(crate) use socket::ListeningSocket;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Context, Poll};

use self::queue::Queue;
use self::socket::ListeningKind;
use super::endpoint::EndpointInner;
use super::incoming::Incoming;
use super::stream::Stream;
use super::unix::ListeningUnix;
use crate::address::Address;
use crate::error::{CloseReason, Error, FallbackCause, FallbackReason};

/// Clients of a listener that were closed because its policy requires SMC.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Refused {
    /// Their number.
    pub count: u64,
    /// The last of them, and the reason why it would have been TCP.
    pub last: Option<(Address, FallbackReason)>,
}

/// Accepts streams, SMC from clients that support it and TCP from all others.
///
/// Handshakes run concurrently, so a slow client delays no other. For each listener their number is
/// bounded by a setting of the endpoint, and further clients wait, bounded by the backlog:
///
/// - Clients of the listener's user with a side channel may have all handshakes and all of the
///   backlog, and a quarter is reserved for them.
/// - Of the rest one source has no more than are left free. A source is another user of this host,
///   or a source address: of IPv6 one /64 network, and all loopback addresses of IPv4 are one.
/// - Until they are accepted, the clients of one source at all listeners have an eighth of the
///   descriptors of the process (`RLIMIT_NOFILE`) at most, and those of all other users, or of all
///   addresses, a quarter.
/// - Clients beyond these limits are closed, or are TCP if they can be notified. A client that
///   announces SMC in TCP's handshake and then sends nothing within a second is closed.
///
/// [`Listener::accept`] returns
///
/// - clients without SMC, at once, however many handshakes are under way;
/// - clients that have confirmed. As with TCP, also those that have closed, or whose process has
///   ended, before the listener's set-up is complete: the stream has the data that they have
///   written, and then the end.
///
/// It never returns clients whose handshake fails. Where the policy requires SMC, clients that
/// would be TCP are closed, which [`Listener::refused`] counts. Dropping the listener resets
/// streams that were not accepted, as with TCP.
pub struct Listener {
    queue: Arc<Queue>,
    service: Arc<ListenerService>,
}

impl Listener {
    pub(crate) fn new(
        endpoint: Arc<EndpointInner>,
        socket: ListeningSocket,
        backlog: u32,
        early_data: usize,
    ) -> Self {
        let max_waiting = usize::try_from(backlog).unwrap_or(usize::MAX).max(1);
        let queue = Arc::new(Queue::new(&endpoint, max_waiting));
        let service = ListenerService::start(endpoint, socket, &queue, max_waiting, early_data);
        Self { queue, service }
    }

    /// Takes the next stream with the client's address. Any number of tasks may wait. Cancel safe.
    ///
    /// # Errors
    ///
    /// As `accept(2)`, for example when there are no descriptors left; the listener continues. It
    /// does not when the endpoint was closed, its runtime has ended, or a task of it has panicked,
    /// as when a policy ([`Builder::policy_for`](super::Builder::policy_for)) panics: then this is
    /// [`Error::Misuse`] (`InvalidInput`) each time.
    pub async fn accept(&self) -> io::Result<(Stream, SocketAddr)> {
        let (stream, peer) = self.accept_any().await?;
        Ok((stream, peer.require_tcp()?))
    }

    /// As [`Listener::accept`] for a listener of any kind.
    pub(crate) async fn accept_any(&self) -> io::Result<(Stream, Address)> {
        loop {
            if let Some(next) = self.queue.take() {
                return next;
            }
            let changed = self.queue.changed.listen();
            if let Some(next) = self.queue.take() {
                return next;
            }
            changed.await;
        }
    }

    /// As [`Listener::accept`] for use in a poll function; stores one waker, that of the last call.
    ///
    /// # Errors
    ///
    /// As [`Listener::accept`].
    pub fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<(Stream, SocketAddr)>> {
        self.poll_accept_any(cx).map(|accepted| {
            let (stream, peer) = accepted?;
            Ok((stream, peer.require_tcp()?))
        })
    }

    /// As [`Listener::poll_accept`] for a listener of any kind.
    pub(crate) fn poll_accept_any(
        &self,
        cx: &mut Context<'_>,
    ) -> Poll<io::Result<(Stream, Address)>> {
        if let Some(next) = self.queue.take() {
            return Poll::Ready(next);
        }
        self.queue.accept_waker.register(cx.waker());
        match self.queue.take() {
            Some(next) => Poll::Ready(next),
            None => Poll::Pending,
        }
    }

    /// The streams that are accepted: for frameworks that take a stream of them.
    #[must_use]
    pub fn into_incoming(self) -> Incoming {
        Incoming::new(self)
    }

    /// The address listened on.
    ///
    /// # Errors
    ///
    /// None; it is a `Result` because that of TCP listeners is.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.local_address().clone().require_tcp()
    }

    pub(crate) fn local_address(&self) -> &Address {
        &self.service.socket.local
    }

    /// The socket of a UNIX listener.
    pub(crate) fn unix_socket(&self) -> Option<&ListeningUnix> {
        match &self.service.socket.kind {
            ListeningKind::Tcp { .. } => None,
            ListeningKind::Unix(socket) => Some(socket),
        }
    }

    /// The clients that were closed because the policy requires SMC
    /// ([`Policy::Require`](crate::Policy::Require)), and why the last of them would have been TCP.
    ///
    /// [`Listener::accept`] does not return them. Useful for logs, when clients report that their
    /// connections end at once.
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.queue.counts().1
    }

    /// Why clients cannot find that the listener supports SMC, so that their streams are TCP, if
    /// that was known when it was bound.
    #[must_use]
    pub fn unpublished(&self) -> Option<&FallbackCause> {
        self.service.socket.unpublished()
    }

    #[cfg(feature = "axum08")]
    pub(crate) fn inner(&self) -> &Self {
        self
    }

    /// Warns of an error of [`Listener::accept`] that is not returned to the application.
    #[cfg(feature = "axum08")]
    pub(crate) fn warn_not_accepted(&self, error: &io::Error) {
        self.service
            .endpoint
            .warned
            .not_accepted(self.local_address(), error);
    }

    /// The descriptor of the TCP listener, where there is one.
    #[must_use]
    pub fn tcp_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.service.socket.kind {
            ListeningKind::Tcp { acceptor, .. } => acceptor.fd(),
            ListeningKind::Unix(_) => None,
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // No call of `accept` is left that could return this.
        self.queue.end(Error::Closed(CloseReason::Local));
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener")
            .field("local", self.local_address())
            .finish_non_exhaustive()
    }
}
