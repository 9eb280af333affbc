//! Listeners: the accept task, its queue, and what becomes of a client.

mod admission;

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use event_listener::{Event, IntoNotification as _};

use self::admission::{AdmissionControl, AdmissionPermit};
use super::endpoint::EndpointInner;
use super::handshake::{self, ClcPeer, ClientPath};
use super::incoming::Incoming;
use super::lifetime::{Lifetime, TASKS_ENDED};
use super::negotiate::{Credentials, Negotiated, Published};
use super::runtime::{Acceptor, Runtime, Socket, SocketHook, Task};
use super::stream::Stream;
use super::unix::{
    Expiry, KeptSockets, KnownClient, ListeningUnix, NextConnection, is_out_of_descriptors, names,
};
use crate::address::Address;
use crate::config::Policy;
use crate::conn::NextUser;
use crate::error::{CloseReason, Error, FallbackCause, FallbackReason, Limit, Phase, Refusal};
use crate::info::ListenerInfo;
use crate::log::{Destination, Span};
use crate::mutex::Mutex;
use crate::peer_descriptors::{ClientDescriptor, Source};
use crate::proto::Role;
use crate::proto::handshake::EarlyDataPolicy;
use crate::quota;
use crate::reactor_turns::ReactorTurns;

/// Options of a listener that differ from one to the next.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct ListenOptions {
    /// TCP connections that may wait to be accepted, and streams that may wait for `accept`; 1024
    /// if not given. A socket that listens already keeps the length of its backlog then. Of
    /// streams there are at most a sixteenth of the descriptors that the process may have
    /// (`RLIMIT_NOFILE`); further connections wait in the backlog.
    pub backlog: Option<u32>,
    /// `SO_REUSEPORT`.
    pub reuse_port: bool,
    /// `IPV6_V6ONLY` on an IPv6 listener; the system's default if not given.
    pub only_v6: Option<bool>,
    /// Called with the socket before it is bound; see [`ListenOptions::socket`].
    pub socket: Option<SocketHook>,
    /// The most bytes of early data to take; see [`ListenOptions::max_early_data`].
    pub max_early_data: usize,
}

impl ListenOptions {
    /// Options that change nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many TCP connections, and how many streams, may wait to be accepted.
    #[must_use]
    pub fn backlog(mut self, len: u32) -> Self {
        self.backlog = Some(len);
        self
    }

    /// Sets `SO_REUSEPORT`, with which several listeners can have one address. `SO_REUSEADDR` is
    /// set on every listener.
    #[must_use]
    pub fn reuse_port(mut self, on: bool) -> Self {
        self.reuse_port = on;
        self
    }

    /// Sets `IPV6_V6ONLY`, without which a listener at `[::]` has clients of IPv4 too. No effect on
    /// a listener of IPv4.
    #[must_use]
    pub fn only_v6(mut self, on: bool) -> Self {
        self.only_v6 = Some(on);
        self
    }

    /// Takes early data of at most this length, such as 4096, from PROPOSALs: the first bytes of
    /// streams, which clients send with [`ConnectOptions::early_data`]. Clients have 16,352 bytes
    /// at most. Longer data than this comes behind the handshake, as all does without this.
    ///
    /// [`Listener::accept`] returns a stream with early data like any other, and the data is the
    /// first that is read. The client may not have received an answer yet, and may never do so: a
    /// client that repeats a connect that has failed sends its request twice. So allow this for
    /// services whose requests may be repeated; or refuse, by an answer of the service, those that
    /// may not on a stream that [is early](Stream::is_early).
    ///
    /// A PROPOSAL that comes twice is taken once: the listener stores what identifies the last
    /// 4096; over SMC-R each is authenticated with a number that the link group takes once, and
    /// over SMC-D it names a buffer of the client that the endpoint takes once. Data that another
    /// process has changed is not taken over SMC-R. Over SMC-D with the handshake on TCP that
    /// cannot be told.
    ///
    /// [`ConnectOptions::early_data`]: crate::ConnectOptions::early_data
    #[must_use]
    pub fn max_early_data(mut self, max: usize) -> Self {
        self.max_early_data = max;
        self
    }

    /// Sets a function that gets the socket after it was made and before it is bound, for options
    /// that have no method here, such as `SO_BINDTODEVICE` or `SO_RCVBUF`. Accepted connections
    /// inherit most of them. The option `SO_REUSEADDR` and those of this type are set afterwards.
    ///
    /// An error of the function is that of [`Endpoint::bind_with`]. It is not called by a runtime
    /// without sockets of the system.
    ///
    /// [`Endpoint::bind_with`]: crate::Endpoint::bind_with
    #[must_use]
    pub fn socket(
        mut self,
        hook: impl Fn(BorrowedFd<'_>) -> io::Result<()> + Send + Sync + 'static,
    ) -> Self {
        self.socket = Some(SocketHook::new(hook));
        self
    }
}

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
/// would be TCP are closed, which [`Listener::refused`] counts. Dropping the listener closes
/// streams that were not accepted.
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
        let max_ready = max_waiting.min(ready_limit());
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            changed: Event::new(),
            own_lifetime: Lifetime::default(),
            accept_waker: AtomicWaker::new(),
            accept_task_waker: AtomicWaker::new(),
            max_ready,
            kept: KeptSockets::new(&endpoint.groups.deadlines),
            lifetime: Arc::clone(&endpoint.lifetime),
        });
        let runtime = Arc::clone(&endpoint.runtime);
        let service = Arc::new(ListenerService {
            queue: Arc::downgrade(&queue),
            socket,
            admission: AdmissionControl::new(endpoint.config.max_handshakes, max_waiting),
            early_data: (early_data > 0).then(|| Arc::new(EarlyDataPolicy::new(early_data))),
            endpoint,
        });
        service.endpoint.add_listener(&service);
        let accept_task = AcceptTask(Arc::clone(&queue));
        let accepting_all = accept_loop(
            Arc::clone(&queue),
            Arc::downgrade(&service),
            Arc::clone(&runtime),
        );
        runtime.spawn(Box::pin(accept_task.run(accepting_all)));
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
    /// ([`Policy::Require`]), and why the last of them would have been TCP.
    ///
    /// [`Listener::accept`] does not return them. Useful for logs, when clients report that their
    /// connections end at once.
    #[must_use]
    pub fn refused(&self) -> Refused {
        self.queue.state.lock().refused.clone()
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

/// Streams between the end of their set-up and `accept`.
struct Queue {
    state: Mutex<ListenerState>,
    /// Notifies tasks in `accept`.
    changed: Event,
    /// The waker of `poll_accept`.
    accept_waker: AtomicWaker,
    /// The waker of the accept task, which waits for capacity or the end.
    accept_task_waker: AtomicWaker,
    max_ready: usize,
    /// Sockets that clients may send the PROPOSAL of another connection on.
    kept: Arc<KeptSockets>,
    /// Running handshakes end with it.
    own_lifetime: Lifetime,
    /// The endpoint's lifetime. The queue ends when the accept task detects its end, and returns
    /// nothing before.
    lifetime: Arc<Lifetime>,
}

#[derive(Default)]
struct ListenerState {
    ready: VecDeque<Ready>,
    refused: Refused,
}

/// A stream that `accept` has not returned yet, or an error.
struct Ready {
    accepted: io::Result<(Stream, Address)>,
    _descriptor: Option<ClientDescriptor>,
}

impl Queue {
    fn take(&self) -> Option<io::Result<(Stream, Address)>> {
        let mut state = self.state.lock();
        if let Err(why) = self.check() {
            return Some(Err(why.into()));
        }
        let was_full = state.ready.len() >= self.max_ready;
        let next = state.ready.pop_front()?;
        drop(state);
        if was_full {
            self.accept_task_waker.wake();
        }
        Some(next.accepted)
    }

    /// # Errors
    ///
    /// The reason of the end.
    fn check(&self) -> Result<(), Error> {
        self.own_lifetime.check()?;
        self.lifetime.check()
    }

    /// Ends the queue, with streams that were not accepted. The first cause counts.
    fn end(&self, why: Error) {
        self.own_lifetime.end(why);
        self.kept.end();
        let unaccepted = std::mem::take(&mut self.state.lock().ready);
        drop(unaccepted);
        self.changed.notify(usize::MAX);
        self.accept_waker.wake();
        self.accept_task_waker.wake();
    }

    fn put(&self, accepted: io::Result<(Stream, Address)>, descriptor: Option<ClientDescriptor>) {
        let mut state = self.state.lock();
        if self.check().is_err() {
            // Unlocked first: closing a stream may take long.
            drop(state);
            return;
        }
        state.ready.push_back(Ready {
            accepted,
            _descriptor: descriptor,
        });
        drop(state);
        // Notifies one task more than were notified before.
        self.changed.notify(1_usize.additional());
        self.accept_waker.wake();
    }

    /// Counts a client that is closed because it would be TCP.
    fn refuse(&self, peer: Address, why: FallbackReason) {
        let refused = &mut self.state.lock().refused;
        refused.count = refused.count.saturating_add(1);
        refused.last = Some((peer, why));
    }

    /// Waits until another connection may be accepted. `None` at the end.
    fn poll_capacity(&self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        self.accept_task_waker.register(cx.waker());
        if self.own_lifetime.check().is_err() {
            Poll::Ready(None)
        } else if self.state.lock().ready.len() < self.max_ready {
            Poll::Ready(Some(()))
        } else {
            Poll::Pending
        }
    }
}

/// The resources of a listener. Only the listener owns them, so that dropping it closes the socket
/// and withdraws the name at once, or when its task, if that is just accepting on another thread,
/// has done so.
pub(crate) struct ListenerService {
    /// Weak, as streams in it own the endpoint.
    queue: Weak<Queue>,
    socket: ListeningSocket,
    admission: Arc<AdmissionControl>,
    early_data: Option<Arc<EarlyDataPolicy>>,
    endpoint: Arc<EndpointInner>,
}

/// What a listener listens at.
pub(crate) struct ListeningSocket {
    local: Address,
    kind: ListeningKind,
}

enum ListeningKind {
    Tcp {
        acceptor: Arc<dyn Acceptor>,
        /// The publication, or why clients cannot find the listener.
        published: Result<Arc<dyn Published>, FallbackCause>,
    },
    Unix(ListeningUnix),
}

impl ListeningSocket {
    pub(crate) fn tcp(
        acceptor: Arc<dyn Acceptor>,
        published: Result<Arc<dyn Published>, FallbackCause>,
    ) -> io::Result<Self> {
        Ok(Self {
            local: acceptor.local_addr()?.into(),
            kind: ListeningKind::Tcp {
                acceptor,
                published,
            },
        })
    }

    pub(crate) fn unix(socket: ListeningUnix) -> Self {
        Self {
            local: socket.local().clone().into(),
            kind: ListeningKind::Unix(socket),
        }
    }

    fn unpublished(&self) -> Option<&FallbackCause> {
        match &self.kind {
            ListeningKind::Tcp { published, .. } => published.as_ref().err(),
            ListeningKind::Unix(socket) => socket.unmarked(),
        }
    }

    fn poll_accept(&self, cx: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match &self.kind {
            ListeningKind::Tcp { acceptor, .. } => acceptor.poll_accept(cx).map_ok(|accepted| {
                let (socket, peer) = accepted;
                Accepted {
                    socket,
                    peer: peer.into(),
                    sends_clc: false,
                    before: None,
                }
            }),
            ListeningKind::Unix(unix) => unix.poll_accept(cx).map_ok(|(socket, peer)| Accepted {
                socket,
                peer: names::shown_client(&peer).into(),
                sends_clc: names::is_client(&peer),
                before: None,
            }),
        }
    }

    /// How a connection that was just accepted continues, where the policy permits SMC and there is
    /// capacity.
    fn negotiated(&self, accepted: &Accepted) -> Negotiated {
        match (&self.kind, &accepted.peer) {
            (ListeningKind::Tcp { published, .. }, Address::Tcp(peer)) => match published {
                Ok(published) => published.negotiated(&*accepted.socket, *peer),
                Err(cause) => Negotiated::Plain(cause.clone()),
            },
            _ => self.negotiated_unix(accepted, FallbackCause::NotOffered),
        }
    }

    /// The same where the connection is plain in any case.
    fn dismiss(&self, accepted: &Accepted, why: Refusal, plain: FallbackCause) -> Negotiated {
        match (&self.kind, &accepted.peer) {
            (ListeningKind::Tcp { published, .. }, Address::Tcp(peer)) => match published {
                Ok(published) => match published.dismiss(&*accepted.socket, *peer, why) {
                    Negotiated::Plain(_) if why == Refusal::Full => Negotiated::Plain(plain),
                    dismissed => dismissed,
                },
                Err(cause) if why == Refusal::Full => Negotiated::Plain(cause.clone()),
                Err(_) => Negotiated::Plain(plain),
            },
            _ => self.negotiated_unix(accepted, plain),
        }
    }

    /// A client of a UNIX socket that sends CLC expects an answer in CLC. It sends nothing but the
    /// application's data if this socket has no mark.
    fn negotiated_unix(&self, accepted: &Accepted, plain: FallbackCause) -> Negotiated {
        match (self.unpublished(), accepted.sends_clc) {
            (None, true) => Negotiated::Clc,
            (None, false) => Negotiated::Plain(plain),
            (Some(cause), _) => Negotiated::Plain(cause.clone()),
        }
    }
}

/// A connection that was accepted.
struct Accepted {
    socket: Arc<dyn Socket>,
    peer: Address,
    /// Whether the client of a UNIX socket sends a PROPOSAL.
    sends_clc: bool,
    /// Of a UNIX socket that has served another connection before: its client, and what that has
    /// sent since.
    before: Option<(KnownClient, Vec<u8>)>,
}

impl From<NextConnection> for Accepted {
    fn from(next: NextConnection) -> Self {
        Self {
            socket: next.socket,
            peer: next.client.addr.clone(),
            sends_clc: true,
            before: Some((next.client, next.received)),
        }
    }
}

/// The guard of the accept task: dropped with it, also if it was never polled; ends the queue.
struct AcceptTask(Arc<Queue>);

impl AcceptTask {
    async fn run(self, work: impl Future<Output = ()>) {
        let _why = self.0.lifetime.until_end(work).await;
    }
}

impl Drop for AcceptTask {
    fn drop(&mut self) {
        let why = self.0.lifetime.check().err();
        self.0.end(why.unwrap_or(TASKS_ENDED));
    }
}

/// What the task that accepts has for the sockets that are kept.
#[derive(Default)]
struct KeptReader {
    expiry: Expiry,
    /// The connections on them, one after the other.
    reuses: u32,
}

/// The task that accepts TCP connections, while the listener exists.
async fn accept_loop(queue: Arc<Queue>, service: Weak<ListenerService>, runtime: Arc<dyn Runtime>) {
    let mut turns = ReactorTurns::default();
    let mut kept = KeptReader::default();
    loop {
        let capacity = poll_fn(|cx| {
            let capacity = queue.poll_capacity(cx);
            if capacity.is_pending() {
                queue.kept.poll_expiry(cx, &mut kept.expiry);
            }
            capacity
        });
        if capacity.await.is_none() {
            return;
        }
        if let Some(turn) = turns.due(&*runtime) {
            turn.await;
        }
        let mut has_waited = false;
        let next = poll_fn(|cx| {
            let open = !matches!(queue.poll_capacity(cx), Poll::Ready(None));
            match service.upgrade().filter(|_| open) {
                None => Poll::Ready(None),
                Some(service) => {
                    let next = service.poll_next(cx, &queue.kept, &mut kept);
                    has_waited |= next.is_pending();
                    next.map(|next| Some((service, next)))
                }
            }
        });
        let next = next.await;
        if has_waited {
            turns.note_wait();
        }
        match next {
            None => return,
            Some((service, Ok(accepted))) => {
                let setup = service.start_setup(&queue, accepted);
                drop(service);
                if let Some(mut setup) = setup {
                    // Many complete at once, and need no task.
                    if poll_fn(|cx| Poll::Ready(setup.as_mut().poll(cx)))
                        .await
                        .is_pending()
                    {
                        runtime.spawn(setup);
                    }
                }
            }
            Some((service, Err(error))) => {
                drop(service);
                if is_out_of_descriptors(&error) {
                    queue.kept.close_all();
                }
                queue.put(Err(error), None);
                runtime.timer(runtime.now() + ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

impl ListenerService {
    /// `None` for a listener that was dropped, whose task may have this for a moment longer.
    pub(crate) fn info(&self) -> Option<ListenerInfo> {
        let queue = self.queue.upgrade();
        let end = queue
            .as_ref()
            .and_then(|queue| queue.own_lifetime.check().err());
        if matches!(end, Some(Error::Closed(CloseReason::Local))) {
            return None;
        }
        let (ready, refused) = queue.map_or_else(Default::default, |queue| {
            let state = queue.state.lock();
            (state.ready.len(), state.refused.clone())
        });
        Some(ListenerInfo {
            local: self.socket.local.clone(),
            unpublished: self.socket.unpublished().cloned(),
            ready,
            refused,
        })
    }

    /// The next connection: one that was accepted, or the next one on a socket that is kept.
    fn poll_next(
        &self,
        cx: &mut Context<'_>,
        kept: &KeptSockets,
        reader: &mut KeptReader,
    ) -> Poll<io::Result<Accepted>> {
        if matches!(self.socket.kind, ListeningKind::Tcp { .. }) {
            return self.socket.poll_accept(cx);
        }
        reader.reuses += 1;
        let is_turn = reader.reuses < REUSES_MAX;
        if is_turn {
            if let Poll::Ready(next) = kept.poll_next(cx, &mut reader.expiry) {
                return Poll::Ready(Ok(next.into()));
            }
        }
        reader.reuses = 0;
        match self.socket.poll_accept(cx) {
            Poll::Pending if !is_turn => {
                let next = kept.poll_next(cx, &mut reader.expiry);
                next.map(|next| Ok(next.into()))
            }
            accepted => accepted,
        }
    }

    fn full(&self) -> FallbackCause {
        let limit = u64::try_from(self.admission.max_waiting).unwrap_or(u64::MAX);
        FallbackCause::Full(Limit::new("limit of handshakes that wait", limit))
    }

    /// Starts the set-up of a connection. Returns the rest of it, if any, as a task.
    fn start_setup(&self, queue: &Arc<Queue>, accepted: Accepted) -> Option<Task> {
        let span = span!("smc.accept", peer = accepted.peer);
        span.in_scope(|| self.start_setup_in(&span, queue, accepted))
    }

    fn start_setup_in(&self, span: &Span, queue: &Arc<Queue>, accepted: Accepted) -> Option<Task> {
        let policy = self.endpoint.config.policy.of_client(&accepted.peer);
        let is_open = self.admission.is_open();
        let verdict = match policy {
            // A client that waits for an answer has to be notified.
            Policy::Never => {
                let plain = FallbackCause::Policy;
                self.socket.dismiss(&accepted, Refusal::Policy, plain)
            }
            _ if is_open => self.socket.negotiated(&accepted),
            _ => match self.socket.dismiss(&accepted, Refusal::Full, self.full()) {
                Negotiated::Plain(cause) => Negotiated::Plain(cause),
                // The client expects an answer that would have to wait.
                Negotiated::Clc | Negotiated::SideChannel(_) => {
                    self.endpoint.warned.full(&accepted.peer);
                    return None;
                }
            },
        };
        let Accepted {
            socket,
            peer,
            before,
            ..
        } = accepted;
        let side_channel = match (verdict, policy) {
            (Negotiated::Clc, _) => None,
            (Negotiated::SideChannel(side_channel), _) => Some(side_channel),
            (Negotiated::Plain(cause), Policy::Require) => {
                let why = cause.into();
                self.endpoint.warned.refused(&peer, &why);
                queue.refuse(peer, why);
                return None;
            }
            (Negotiated::Plain(cause), _) => {
                let role = Role::Server;
                let stream = handshake::tcp_stream(&self.endpoint, role, socket, &peer, cause);
                log_accepted(&self.endpoint, &peer, &stream);
                queue.put(Ok((stream, peer)), None);
                return None;
            }
        };
        let is_reused = before.is_some();
        let (mut known, received) = before.unzip();
        let source = match &side_channel {
            None => match &peer {
                Address::Tcp(peer) => Some(Source::of_address(peer.ip())),
                Address::Unix(_) => {
                    known = known.or_else(|| {
                        let process = Credentials::of_peer(&socket.fd()?).ok()?;
                        Some(KnownClient {
                            addr: peer.clone(),
                            process,
                            source: Source::of_unix(process),
                            since: self.endpoint.runtime.now(),
                        })
                    });
                    let Some(client) = &known else {
                        let why = Error::misuse("the user of a client is not known");
                        let client = Destination::client(&peer);
                        self.endpoint.warned.failed("accept", client, &why);
                        return None;
                    };
                    client.source
                }
            },
            Some(side_channel) => {
                let is_own = side_channel.is_own_user();
                let ip = peer
                    .tcp()
                    .map_or_else(|| Ipv4Addr::LOCALHOST.into(), |peer| peer.ip());
                Source::of_client(side_channel.credentials(), is_own, ip)
            }
        };
        let descriptor = ClientDescriptor::take(source);
        let permit = self.admission.enter(source);
        let (Ok(descriptor), Some(mut permit)) = (descriptor, permit) else {
            self.endpoint.warned.full(&peer);
            return None;
        };
        let span = span.clone();
        let queue = Arc::clone(queue);
        let endpoint = Arc::clone(&self.endpoint);
        let early_data = self.early_data.clone();
        let process = known.as_ref().map(|client| client.process);
        Some(Box::pin(async move {
            let client = peer.clone();
            // Pinned here: a future that is passed on by value is copied, and this one is large.
            let setup = pin!(async {
                let (path, longest) = match side_channel {
                    Some(side_channel) => (ClientPath::SideChannel(side_channel), None),
                    None => {
                        let peer = match (process, received) {
                            (Some(process), Some(received)) => ClcPeer::after(process, received),
                            _ => ClcPeer::after_first_byte(&endpoint, &*socket, process).await?,
                        };
                        // Such a client does not wait longer for an answer.
                        let longest = endpoint.base_config().timeouts.message;
                        (ClientPath::Clc(peer), Some(longest))
                    }
                };
                wait_for_place(&endpoint, &mut permit, longest).await?;
                match policy {
                    Policy::Never => handshake::decline_all(&endpoint, socket, &client, path).await,
                    _ => handshake::accept(&endpoint, socket, &client, path, early_data).await,
                }
            });
            let setup = span.instrument(setup);
            // As in the kernel: failed set-ups are not reported to the application.
            let Ok(result) = queue.own_lifetime.until_end(setup).await else {
                return;
            };
            span.in_scope(|| match result {
                Ok(stream) => match (policy, stream.fallback_reason()) {
                    (Policy::Require, Some(why)) => {
                        endpoint.warned.refused(&peer, &why);
                        queue.refuse(peer, why);
                    }
                    _ => {
                        if let (Some(conn), Some(client)) = (stream.conn(), known) {
                            let kept = Arc::downgrade(&queue.kept);
                            conn.set_next_user(NextUser::Listener(kept, client));
                            if is_reused {
                                endpoint.setups.add_socket_reuse(Role::Server);
                            }
                        }
                        log_accepted(&endpoint, &peer, &stream);
                        queue.put(Ok((stream, peer)), Some(descriptor));
                    }
                },
                Err(error) => {
                    let client = Destination::client(&peer);
                    endpoint.setups.add_error(Role::Server);
                    endpoint.warned.failed("accept", client, &error);
                }
            });
        }))
    }
}

/// # Errors
///
/// [`Error::TimedOut`] after this time, if there is one.
async fn wait_for_place(
    endpoint: &EndpointInner,
    permit: &mut AdmissionPermit,
    longest: Option<Duration>,
) -> Result<(), Error> {
    let mut place = pin!(permit.wait_for_place());
    // Most have a place at once.
    let mut timer = None;
    poll_fn(|cx| {
        if place.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Ok(()));
        }
        let Some(longest) = longest else {
            return Poll::Pending;
        };
        let timer = timer.get_or_insert_with(|| endpoint.groups.after(longest));
        let late = Pin::new(timer).poll(cx);
        late.map(|()| Err(Error::TimedOut(Phase::Proposal)))
    })
    .await
}

fn log_accepted(endpoint: &EndpointInner, peer: &Address, stream: &Stream) {
    debug!("accepted", mode = stream.mode());
    if let Some(reason) = stream.mode().fallback_reason() {
        let client = Destination::client(peer);
        endpoint.warned.fallback(client, &reason);
    }
}

/// Connections on sockets that are kept, one after the other, before one is accepted.
const REUSES_MAX: u32 = 16;

/// Delay after an error of `accept(2)`, most often a lack of descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(20);

/// Streams that may wait for `accept`: any client can have that many, and each has a descriptor at
/// least. Further connections wait in the backlog, where they take none.
fn ready_limit() -> usize {
    (quota::descriptors::limit() / READY_SHARE).max(READY_MIN)
}

/// The part of the descriptors of the process that they may take, and how many there may be in any
/// case.
const READY_SHARE: usize = 16;
const READY_MIN: usize = 16;
