//! The accept task of a listener, and what becomes of a client.

use std::future::{Future, poll_fn};
use std::io;
use std::net::Ipv4Addr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use smc_wire::clc::{ClcType, HEADER_LEN, Header};

use super::admission::{AdmissionControl, AdmissionPermit};
use super::queue::Queue;
use super::socket::{Accepted, ListeningKind, ListeningSocket};
use crate::address::Address;
use crate::config::Policy;
use crate::conn::NextUser;
use crate::endpoint::EndpointInner;
use crate::error::{CloseReason, Error, FallbackCause, Limit, Phase, Refusal};
use crate::handshake::{self, ClcPeer, ClientPath};
use crate::info::ListenerInfo;
use crate::lifetime::TASKS_ENDED;
use crate::log::{Destination, Span};
use crate::negotiate::{Credentials, Negotiated};
use crate::peer_descriptors::{ClientDescriptor, Source};
use crate::proto::Role;
use crate::proto::handshake::EarlyDataPolicy;
use crate::reactor_turns::ReactorTurns;
use crate::runtime::{Runtime, Socket, Task};
use crate::stream::Stream;
use crate::unix::{Expiry, KeptSockets, KnownClient, is_out_of_descriptors};

/// The resources of a listener. Only the listener owns them, so that dropping it closes the socket
/// and withdraws the name at once, or when its task, if that is just accepting on another thread,
/// has done so.
pub(crate) struct ListenerService {
    /// Weak, as streams in it own the endpoint.
    queue: Weak<Queue>,
    pub(super) socket: ListeningSocket,
    admission: Arc<AdmissionControl>,
    early_data: Option<Arc<EarlyDataPolicy>>,
    pub(super) endpoint: Arc<EndpointInner>,
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
    /// Starts the accept task.
    pub(super) fn start(
        endpoint: Arc<EndpointInner>,
        socket: ListeningSocket,
        queue: &Arc<Queue>,
        max_waiting: usize,
        early_data: usize,
    ) -> Arc<Self> {
        let runtime = Arc::clone(&endpoint.runtime);
        let service = Arc::new(Self {
            queue: Arc::downgrade(queue),
            socket,
            admission: AdmissionControl::new(endpoint.config.max_handshakes, max_waiting),
            early_data: (early_data > 0).then(|| Arc::new(EarlyDataPolicy::new(early_data))),
            endpoint,
        });
        service.endpoint.add_listener(&service);
        let accept_task = AcceptTask(Arc::clone(queue));
        let accepting_all = accept_loop(
            Arc::clone(queue),
            Arc::downgrade(&service),
            Arc::clone(&runtime),
        );
        runtime.spawn(Box::pin(accept_task.run(accepting_all)));
        service
    }

    /// `None` for a listener that was dropped, whose task may have this for a moment longer.
    pub(crate) fn info(&self) -> Option<ListenerInfo> {
        let queue = self.queue.upgrade();
        let end = queue
            .as_ref()
            .and_then(|queue| queue.own_lifetime.check().err());
        if matches!(end, Some(Error::Closed(CloseReason::Local))) {
            return None;
        }
        let (ready, refused) = queue.map_or_else(Default::default, |queue| queue.counts());
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

    /// Whether a plain client of a listener with fast open has sent a PROPOSAL in its SYN: the SMC
    /// option of that was lost on the way.
    fn begins_with_proposal(&self, accepted: &Accepted) -> bool {
        let is_tcp = matches!(self.socket.kind, ListeningKind::Tcp { .. });
        if !self.endpoint.config.fast_open || !is_tcp {
            return false;
        }
        let mut first = [0; HEADER_LEN];
        // What comes later waits for nothing here: a server may have to write first.
        let mut cx = Context::from_waker(Waker::noop());
        match accepted.socket.poll_peek(&mut cx, &mut first) {
            Poll::Ready(Ok(len)) if len == first.len() => {
                Header::parse(&first).is_ok_and(|header| header.kind == ClcType::Proposal)
            }
            _ => false,
        }
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
        if matches!(verdict, Negotiated::Plain(_)) && self.begins_with_proposal(&accepted) {
            // Its application is not to get what was meant for SMC.
            let why = "a PROPOSAL in a SYN without the SMC option";
            let why = io::Error::new(io::ErrorKind::ConnectionAborted, why).into();
            set_up_failed(&self.endpoint, &accepted.peer, &*accepted.socket, &why);
            return None;
        }
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
            let tcp = Arc::clone(&socket);
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
                reset(&*tcp);
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
                Err(error) => set_up_failed(&endpoint, &peer, &*tcp, &error),
            });
        }))
    }
}

/// The set-up with a client has failed, of which the application is not told.
fn set_up_failed(endpoint: &EndpointInner, peer: &Address, socket: &dyn Socket, why: &Error) {
    reset(socket);
    endpoint.setups.add_error(Role::Server);
    let client = Destination::client(peer);
    endpoint.warned.failed("accept", client, why);
}

/// Lets the end of a TCP connection whose set-up has failed be a reset: a client that has declined
/// meanwhile goes on with TCP, and would take it for the end of the stream.
fn reset(socket: &dyn Socket) {
    let _best_effort = socket.set_linger(Some(Duration::ZERO));
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
