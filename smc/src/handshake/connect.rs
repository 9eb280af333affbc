//! The client's side: the PROPOSAL, its offer before the TCP connection, and the handshake.

use std::future::poll_fn;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_io::AsyncWrite;

use smc_wire::types::{DmbToken, Features};

use super::carrier::{Carrier, ClcPeer, OfferOnTcp, OfferState};
use super::early::{self, EarlyWork};
use super::work::HandshakeResources;
use super::{
    fallback_stream, handshake_config, path, run_handshake, run_handshake_on_socket, same_host,
};
use crate::address::{Address, UnixAddr};
use crate::config::Policy;
use crate::conn::NextUser;
use crate::connect_options::ConnectOptions;
use crate::endpoint::EndpointInner;
use crate::error::{Error, FallbackCause, FallbackReason};
use crate::log::{self, HandshakeLog};
use crate::negotiate::{Candidate, Delivery, Offer, OfferResult, Withdrawn};
use crate::precedents::Precedent;
use crate::proto::Role;
use crate::proto::handshake::{
    ClientProposal, Handshake, HandshakeConfig, HandshakeOutput, TcpPath,
};
use crate::runtime::{BeforeConnect, Socket, SocketOptions, Unconnected};
use crate::stats::SetupTiming;
use crate::stream::Stream;
use crate::unix::{self, ConnectedSocket, Destination, is_out_of_descriptors};

/// Connects and sets the stream up.
pub(crate) async fn connect(
    endpoint: &Arc<EndpointInner>,
    to: &Address,
    options: &ConnectOptions,
) -> Result<Stream, Failed> {
    let policy = options
        .policy
        .unwrap_or_else(|| endpoint.config.policy.of_destination(to));
    let span = span!("smc.connect", peer = to, policy = policy.name());
    // Pinned here: a future that is passed on by value is copied, and this one is large.
    let connecting = pin!(connect_by(endpoint, to, options, policy));
    let result = span.instrument(connecting).await;
    span.in_scope(|| match &result {
        Ok(stream) => debug!("connected", mode = stream.mode()),
        Err(Failed { error, .. }) => {
            endpoint
                .warned
                .failed("connect", log::Destination::server(to), error);
        }
    });
    result
}

async fn connect_by(
    endpoint: &Arc<EndpointInner>,
    to: &Address,
    options: &ConnectOptions,
    policy: Policy,
) -> Result<Stream, Failed> {
    let early_data = options.early_data.as_ref();
    if early_data.is_some_and(|data| data.len() > ConnectOptions::MAX_EARLY_DATA) {
        return Err(Error::misuse("more than 16352 bytes of early data").into());
    }
    let config = handshake_config(endpoint, to, options.recv_buffer)?;
    let attempt = ConnectAttempt {
        endpoint,
        to,
        options,
        config: &config,
        has_sent_data: AtomicBool::new(false),
    };
    let stream = match to {
        Address::Tcp(at) => attempt.over_tcp(*at, policy).await,
        // Boxed: a future has the space of the largest of its branches.
        Address::Unix(at) => Box::pin(attempt.over_unix(at, policy)).await,
    };
    let stream = stream.inspect_err(|_| endpoint.setups.add_error(Role::Client))?;
    let reason = stream.fallback_reason();
    if let Some(reason) = &reason {
        endpoint
            .warned
            .fallback(log::Destination::server(to), reason);
    }
    match (reason, early_data) {
        (Some(reason), _) if policy == Policy::Require => Err(Failed {
            has_sent_data: attempt.has_sent_data.load(Ordering::Relaxed),
            ..Failed::from(Error::Declined(reason))
        }),
        (_, Some(data)) if !stream.early_data_accepted() => {
            let written = write_all(&stream, data).await;
            written.map_err(|error| Failed {
                has_sent_data: true,
                ..Failed::from(error)
            })?;
            Ok(stream)
        }
        _ => Ok(stream),
    }
}

/// Whether a handshake on a UNIX socket has failed for want of an answer in time.
fn is_late(error: &Error) -> bool {
    match error {
        Error::TimedOut(_) => true,
        Error::Io(error) => error.kind() == io::ErrorKind::TimedOut,
        _ => false,
    }
}

/// There is no listener.
const REFUSED: io::ErrorKind = io::ErrorKind::ConnectionRefused;

/// Writes the early data that was not taken.
async fn write_all(mut stream: &Stream, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        let written = poll_fn(|cx| Pin::new(&mut stream).poll_write(cx, data)).await?;
        data = data.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// The plan of a connect, as far as it is known before the TCP connection exists.
enum Plan {
    /// Make no offer.
    Tcp(FallbackReason),
    /// A listener is known, but there is nothing to offer: the DECLINE takes the place of the
    /// PROPOSAL. Without it a server that waits for CLC on TCP would misread the application's
    /// data.
    Decline(Candidate, Vec<u8>, FallbackReason),
    Propose(Candidate, Arc<ClientProposal>, Option<EarlyWork>),
}

impl Plan {
    async fn new(endpoint: &EndpointInner, config: &Arc<HandshakeConfig>, to: SocketAddr) -> Self {
        let proposal = proposal_of(endpoint, config);
        let begin = endpoint.runtime.now();
        let candidate = endpoint.negotiation.look_up(&endpoint.runtime, to).await;
        let time = endpoint.runtime.now().saturating_duration_since(begin);
        endpoint.setups.add_timing(SetupTiming::LookUp, time);
        match (candidate, proposal) {
            (Ok(candidate), Ok(proposal)) => {
                // On a side channel there is no early data.
                let expected = candidate.expected_handshake();
                let precedent = expected.map(Precedent::Direct);
                let early = EarlyWork::prepare(endpoint, config, precedent, None).await;
                Self::Propose(candidate, proposal, early)
            }
            (Ok(candidate), Err(reason)) => {
                let now = endpoint.runtime.now();
                let failed = Err(reason.clone());
                let mut machine = Handshake::client_with(now, Arc::clone(config), failed);
                match machine.poll_output() {
                    Some(HandshakeOutput::Send(decline)) => {
                        Self::Decline(candidate, decline, reason)
                    }
                    _ => Self::Tcp(reason),
                }
            }
            (Err(cause), Ok(_)) => Self::Tcp(cause.into()),
            (Err(cause), Err(reason)) => Self::Tcp(unannounced_reason(config, reason, cause)),
        }
    }
}

/// The reason for TCP when there was nothing to offer and, as `cause` says, no server that expects
/// an offer. Whether an RDMA port fits is known only once the connection exists.
fn unannounced_reason(
    config: &HandshakeConfig,
    nothing_to_offer: FallbackReason,
    cause: FallbackCause,
) -> FallbackReason {
    match (config.rdma.is_some(), cause) {
        // It says why there is no device.
        (_, cause @ FallbackCause::NoDefaultDevice(_)) | (true, cause) => cause.into(),
        (false, _) => nothing_to_offer,
    }
}

/// The PROPOSAL, cached while the configuration is the same.
fn proposal_of(
    endpoint: &EndpointInner,
    config: &Arc<HandshakeConfig>,
) -> Result<Arc<ClientProposal>, FallbackReason> {
    let mut latest = endpoint.proposal.lock();
    match &*latest {
        Some((from, proposal)) if Arc::ptr_eq(from, config) => Ok(Arc::clone(proposal)),
        _ => {
            let proposal = Arc::new(ClientProposal::new(config, &TcpPath::default())?);
            *latest = Some((Arc::clone(config), Arc::clone(&proposal)));
            Ok(proposal)
        }
    }
}

/// Attempts to connect.
struct ConnectAttempt<'a> {
    endpoint: &'a Arc<EndpointInner>,
    to: &'a Address,
    options: &'a ConnectOptions,
    config: &'a Arc<HandshakeConfig>,
    /// The last PROPOSAL had early data.
    has_sent_data: AtomicBool,
}

/// Why connecting failed.
pub(crate) struct Failed {
    pub(crate) error: Error,
    /// The early CONFIRM could not be fulfilled. A new attempt without it may still succeed.
    early_confirm_failed: bool,
    /// The server may have early data, so that there must be no other attempt.
    pub(crate) has_sent_data: bool,
}

/// How the offer goes on, once the TCP connection exists.
enum Offered {
    /// The message has to be sent on TCP.
    OnTcp(OfferOnTcp),
    /// The message was delivered on a side channel.
    Delivered(Box<dyn Offer>),
    /// The server does not support SMC.
    Plain(FallbackCause),
}

/// Forgets the precedent when it is dropped: the attempt has failed, or is cancelled, as one may be
/// in a network that drops what only an attempt with a precedent sends.
struct PrecedentInUse<'a>(&'a ConnectAttempt<'a>);

impl Drop for PrecedentInUse<'_> {
    fn drop(&mut self) {
        self.0.endpoint.precedents.forget(self.0.to);
    }
}

impl ConnectAttempt<'_> {
    async fn over_tcp(&self, to: SocketAddr, policy: Policy) -> Result<Stream, Failed> {
        let mut plan = match policy {
            Policy::Never => Plan::Tcp(FallbackCause::Policy.into()),
            _ => Plan::new(self.endpoint, self.config, to).await,
        };
        let now = self.endpoint.runtime.now();
        let precedent = match policy {
            Policy::Never => None,
            _ => self.endpoint.precedents.get(now, self.to),
        };
        let in_use = precedent.map(|_| PrecedentInUse(self));
        let result = self.run(to, &mut plan, precedent).await;
        let is_smc = |stream: &Stream| stream.fallback_reason().is_none();
        match result.as_ref().is_ok_and(is_smc) {
            true => mem::forget(in_use),
            false => drop(in_use),
        }
        match result {
            // The first attempt has used the early work: this one has no early CONFIRM.
            Err(failed) if failed.early_confirm_failed => {
                self.has_sent_data.store(false, Ordering::Relaxed);
                self.run(to, &mut plan, None).await
            }
            result => result,
        }
    }

    /// Connects to a UNIX socket, with the handshake on the socket. Where that fails there is
    /// another connection without one, as the listener may be able to serve that.
    async fn over_unix(&self, to: &UnixAddr, policy: Policy) -> Result<Stream, Failed> {
        let endpoint = self.endpoint;
        let connect = async |with_smc| {
            let mut options = SocketOptions::default();
            options.hook.clone_from(&self.options.socket);
            let begin = endpoint.runtime.now();
            let mut connected = unix::connect(&*endpoint.runtime, to, &options, with_smc).await;
            let lacks = |error: &io::Error| is_out_of_descriptors(error);
            if connected.as_ref().is_err_and(lacks) && endpoint.idle_sockets.close_all() {
                connected = unix::connect(&*endpoint.runtime, to, &options, with_smc).await;
            }
            let connected = connected?;
            let time = endpoint.runtime.now().saturating_duration_since(begin);
            endpoint.setups.add_timing(SetupTiming::TcpConnect, time);
            Ok::<_, io::Error>(connected)
        };
        let proposal = match policy {
            Policy::Never => Err(FallbackCause::Policy.into()),
            _ => proposal_of(endpoint, self.config),
        };
        // A socket with options of the application is for one connection; and early data that may
        // have been delivered could not be sent again on another socket.
        let may_reuse = self.config.vendor_features.contains(Features::SOCKET_REUSE)
            && self.options.socket.is_none()
            && self.options.early_data.is_none();
        let reason = match proposal {
            Err(reason) => reason,
            Ok(proposal) => {
                let has_default = self.config.has_default_proposal(&same_host());
                let now = endpoint.runtime.now();
                let mut precedent = endpoint.precedents.get(now, self.to);
                let mut idle = may_reuse.then(|| self.idle_socket(to)).flatten();
                let error = loop {
                    let reused = idle.take();
                    let is_reused = reused.is_some();
                    let (socket, connected) = match reused {
                        Some(reused) => reused,
                        None => {
                            let destination = may_reuse.then(|| Destination::of(to)).flatten();
                            let unix::Connected { socket, listener } = connect(true).await?;
                            let Some(listener) = listener else {
                                return Ok(self.tcp(socket, FallbackCause::not_announced().into()));
                            };
                            let to = to.clone();
                            (
                                socket,
                                ConnectedSocket {
                                    to,
                                    listener,
                                    since: endpoint.runtime.now(),
                                    destination,
                                },
                            )
                        }
                    };
                    let listener = connected.listener;
                    // Another process may listen there now. Those of another PID namespace have no
                    // number here by which to tell.
                    let is_same = listener.pid != 0
                        && matches!(precedent, Some(Precedent::Direct(expected)) if expected.process == Some(listener));
                    let expected = precedent.filter(|_| is_same && has_default);
                    if !is_reused {
                        precedent = None;
                    }
                    let data = self.options.early_data.as_ref();
                    let early = EarlyWork::prepare(endpoint, self.config, expected, data).await;
                    let offered = Ok(Arc::clone(&proposal));
                    // A listener that has stopped is not to be waited for: another process may
                    // accept at the address.
                    let answer_within = is_reused.then_some(endpoint.config.answer_timeout);
                    let other = ClcPeer {
                        process: Some(listener),
                        answer_within,
                        ..ClcPeer::default()
                    };
                    let run = self.run_on_socket(socket, other, offered, early, None);
                    match run.await {
                        Ok(stream) => {
                            if is_reused {
                                endpoint.setups.add_socket_reuse(Role::Client);
                            }
                            match stream.conn() {
                                Some(conn) => conn.set_next_user(NextUser::Client(
                                    Arc::downgrade(&endpoint.idle_sockets),
                                    connected,
                                )),
                                None => endpoint.precedents.forget(self.to),
                            }
                            return Ok(stream);
                        }
                        // The listener does not go on, or may have closed it. Nothing of the
                        // application was sent.
                        Err(failed) if is_reused && is_late(&failed.error) => {
                            endpoint.idle_sockets.avoid(to);
                        }
                        Err(_) if is_reused => endpoint.idle_sockets.forget(to),
                        // This attempt has used the early work: the next one has none.
                        Err(failed) if failed.early_confirm_failed => {
                            endpoint.precedents.forget(self.to);
                        }
                        Err(failed) if failed.has_sent_data => {
                            endpoint.precedents.forget(self.to);
                            return Err(failed);
                        }
                        Err(failed) => break failed.error,
                    }
                };
                match error {
                    error if policy == Policy::Require => return Err(error.into()),
                    Error::TimedOut(_) => {
                        let within = endpoint.base_config().timeouts.message;
                        FallbackCause::NoAnswer { within }.into()
                    }
                    // Whatever has answered is not known to be able to speak CLC.
                    Error::Malformed(_) | Error::PeerMisbehaved(_) => {
                        FallbackCause::PlainServer.into()
                    }
                    Error::Io(_) | Error::Closed(_) => FallbackCause::ListenerGone.into(),
                    error => return Err(error.into()),
                }
            }
        };
        let unix::Connected { socket, .. } = connect(false).await?;
        Ok(self.tcp(socket, reason))
    }

    /// A socket of an earlier connection to the address.
    fn idle_socket(&self, to: &UnixAddr) -> Option<(Arc<dyn Socket>, ConnectedSocket)> {
        let endpoint = self.endpoint;
        let now = endpoint.runtime.now();
        for driver in endpoint.drivers.iter() {
            driver.look_for_closes(now);
        }
        endpoint.idle_sockets.take(to)
    }

    async fn run(
        &self,
        to: SocketAddr,
        plan: &mut Plan,
        precedent: Option<Precedent>,
    ) -> Result<Stream, Failed> {
        let fast_open = precedent
            .is_some_and(|precedent| early::has_fast_open(self.endpoint, self.config, precedent));
        match plan {
            Plan::Tcp(reason) => {
                let socket = self.open(to, true, false, &mut |_| Ok(())).await?;
                Ok(self.tcp(socket, reason.clone()))
            }
            Plan::Decline(candidate, decline, reason) => {
                let offered = self.offer(to, candidate, decline, None, fast_open);
                let (socket, offered) = offered.await?;
                let reason = reason.clone();
                let reason = match offered {
                    // There may be something to offer on this connection.
                    Offered::OnTcp(offer) => {
                        return self.run_on_tcp(socket, Err(reason), precedent, offer).await;
                    }
                    Offered::Delivered(_) => reason,
                    Offered::Plain(cause) => unannounced_reason(self.config, reason, cause),
                };
                Ok(self.tcp(socket, reason))
            }
            Plan::Propose(candidate, proposal, early) => {
                let early = early.take();
                let buffer = early.as_ref().and_then(EarlyWork::buffer);
                let offered = self.offer(to, candidate, proposal.bytes(), buffer, fast_open);
                let (socket, offered) = offered.await?;
                let proposal = Arc::clone(proposal);
                match offered {
                    Offered::OnTcp(offer) => {
                        self.run_on_tcp(socket, Ok(proposal), precedent, offer)
                            .await
                    }
                    Offered::Delivered(offer) => {
                        self.await_answer(socket, proposal, offer, early).await
                    }
                    Offered::Plain(cause) => Ok(self.tcp(socket, cause.into())),
                }
            }
        }
    }

    /// Runs the handshake on TCP, with an early CONFIRM if the precedent is of use for that.
    async fn run_on_tcp(
        &self,
        socket: Arc<dyn Socket>,
        default: Result<Arc<ClientProposal>, FallbackReason>,
        precedent: Option<Precedent>,
        mut offer: OfferOnTcp,
    ) -> Result<Stream, Failed> {
        let data = self.options.early_data.as_ref();
        let early = EarlyWork::prepare(self.endpoint, self.config, precedent, data).await;
        let other = ClcPeer::default();
        self.run_on_socket(socket, other, default, early, Some(&mut offer))
            .await
    }

    /// A stream that is TCP.
    fn tcp(&self, socket: Arc<dyn Socket>, reason: FallbackReason) -> Stream {
        let unread = Vec::new();
        fallback_stream(self.endpoint, Role::Client, socket, self.to, unread, reason)
    }

    /// Opens the TCP connection. The offer is made before the socket is connected, and after it is
    /// bound if the candidate needs its address.
    async fn offer(
        &self,
        to: SocketAddr,
        candidate: &Candidate,
        message: &[u8],
        buffer: Option<DmbToken>,
        fast_open: bool,
    ) -> Result<(Arc<dyn Socket>, Offered), Failed> {
        // Replaced before the socket is connected.
        let fast_open = fast_open && !candidate.is_same_host();
        let mut offer: OfferResult = Err(FallbackCause::not_announced());
        let mut is_buffer_taken = false;
        let mut make_offer = |socket: &Unconnected<'_>| {
            let is_taken = |offer: &mut Box<dyn Offer>| offer.withdraw() == Withdrawn::Taken;
            if buffer.is_some() && offer.as_mut().is_ok_and(is_taken) {
                // Another process's connection has the port, and the listener has the buffer for
                // that one.
                is_buffer_taken = true;
                return Err(io::ErrorKind::AddrInUse.into());
            }
            offer = candidate.offer(socket, message, buffer);
            Ok(())
        };
        let socket = self
            .open(to, !candidate.needs_address(), fast_open, &mut make_offer)
            .await;
        let socket = socket.map_err(|error| Failed {
            early_confirm_failed: is_buffer_taken,
            ..Failed::from(error)
        })?;
        // It is connected when data is written.
        let is_deferred = fast_open && socket.peer_addr().is_err();
        let offered = match offer {
            Ok(offer) if is_deferred => Offered::OnTcp(OfferOnTcp::unproven(offer)),
            Ok(mut offer) => match offer.connected(&*socket) {
                Delivery::OnTcp => Offered::OnTcp(OfferOnTcp::proven(offer)),
                Delivery::Delivered => {
                    HandshakeLog::sends(message);
                    Offered::Delivered(offer)
                }
                Delivery::Plain => Offered::Plain(offer.cause()),
            },
            Err(_) if is_deferred => return Err(Failed::of_fast_open()),
            Err(cause) => Offered::Plain(cause),
        };
        Ok((socket, offered))
    }

    async fn open(
        &self,
        to: SocketAddr,
        unbound: bool,
        fast_open: bool,
        before: &mut BeforeConnect<'_>,
    ) -> io::Result<Arc<dyn Socket>> {
        let mut options = SocketOptions::default();
        options.local = self.options.local;
        options.unbound = unbound;
        options.fast_open = fast_open;
        options.hook.clone_from(&self.options.socket);
        let EndpointInner {
            runtime, setups, ..
        } = &**self.endpoint;
        let begin = runtime.now();
        let socket = runtime.connect(to, &options, before).await?;
        let time = runtime.now().saturating_duration_since(begin);
        setups.add_timing(SetupTiming::TcpConnect, time);
        Ok(socket)
    }

    /// Runs the handshake on the connection itself. `other` has the listener of a UNIX socket.
    /// `default` is the PROPOSAL that was made without the connection, or why there is none. It is
    /// used if the PROPOSAL does not depend on the connection, and has an early CONFIRM then if
    /// there is `early` work.
    async fn run_on_socket(
        &self,
        socket: Arc<dyn Socket>,
        other: ClcPeer,
        default: Result<Arc<ClientProposal>, FallbackReason>,
        early: Option<EarlyWork>,
        mut offer: Option<&mut OfferOnTcp>,
    ) -> Result<Stream, Failed> {
        let (endpoint, config) = (self.endpoint, self.config);
        let process = other.process;
        let path = path(endpoint, config, &*socket, self.to, false);
        let is_default = config.has_default_proposal(&path);
        let proposal = match is_default {
            true => default,
            false => ClientProposal::new(config, &path).map(Arc::new),
        };
        let is_unproven = |offer: &&mut OfferOnTcp| offer.state() == OfferState::Unproven;
        if proposal.is_err() && offer.as_ref().is_some_and(is_unproven) {
            return Err(Failed::of_fast_open());
        }
        // Of an early CONFIRM that the PROPOSAL does not go with nothing is used.
        let confirm_of = |early: &EarlyWork| {
            let confirm = early.confirm(config)?;
            let goes_with = |proposal: &Arc<ClientProposal>| proposal.goes_with(&confirm);
            proposal.as_ref().is_ok_and(goes_with).then_some(confirm)
        };
        let confirm = early.as_ref().and_then(confirm_of);
        let early = early.filter(|_| confirm.is_some());
        let data = early.as_ref().and_then(EarlyWork::data).cloned();
        let (now, config) = (endpoint.runtime.now(), Arc::clone(config));
        let mut machine = match (proposal, confirm) {
            (Ok(proposal), Some(confirm)) => {
                Handshake::client_with_early_confirm(now, config, proposal, confirm, data.as_ref())
            }
            (proposal, _) => Handshake::client_with(now, config, proposal),
        };
        let resources = &mut HandshakeResources::with(early);
        // Boxed, as it is rare and large.
        let run = Box::pin(run_handshake_on_socket(
            endpoint,
            &socket,
            self.to,
            (other, offer.as_deref_mut()),
            &mut machine,
            resources,
        ));
        let result = run.await;
        let state = offer.map_or(OfferState::Smc, |offer| offer.state());
        if state == OfferState::Plain {
            // Its application is not to answer what was not meant for it.
            let _best_effort = socket.set_linger(Some(Duration::ZERO));
        }
        let has_sent_data = machine.has_sent_early_data();
        self.has_sent_data.store(has_sent_data, Ordering::Relaxed);
        result.map_err(|error| {
            let has_confirm = confirm.is_some();
            let (early_confirm_failed, has_sent_data) = match (state, &error) {
                // The server may have delivered it: a further attempt could deliver it again. So
                // may one that seems to be without SMC: its option may have been lost on the way.
                // A refused SYN looks like a server that resets, and whose SYN-ACK was lost.
                _ if has_sent_data => (false, true),
                (OfferState::Plain, _) => (true, false),
                // There is no listener.
                (OfferState::Unproven, Error::Io(error)) if error.kind() == REFUSED => {
                    (false, false)
                }
                _ if machine.is_early_taken() => (true, false),
                (_, Error::Malformed(_) | Error::PeerMisbehaved(_)) => (has_confirm, false),
                // A server that does not know the extension closes, as Linux does. The listener of
                // a UNIX socket that does not answer this one does not answer another one.
                (_, Error::Io(_) | Error::Closed(_)) => {
                    let is_new = has_confirm || state == OfferState::Unproven;
                    (is_new && process.is_none(), false)
                }
                _ => (false, false),
            };
            Failed {
                error,
                early_confirm_failed,
                has_sent_data,
            }
        })
    }

    /// Continues after the PROPOSAL was delivered on a side channel.
    ///
    /// The connection may have reached another server, which does not know the offer. So nothing is
    /// sent on TCP, and until the offer is accepted the stream can still become plain TCP.
    async fn await_answer(
        &self,
        socket: Arc<dyn Socket>,
        proposal: Arc<ClientProposal>,
        mut offer: Box<dyn Offer>,
        early: Option<EarlyWork>,
    ) -> Result<Stream, Failed> {
        let endpoint = self.endpoint;
        let Some(side_channel) = offer.side_channel() else {
            let why = "a PROPOSAL was delivered, with no way for the answer";
            return Err(Error::Bug(why).into());
        };
        let (now, config) = (endpoint.runtime.now(), Arc::clone(self.config));
        let mut machine = Handshake::client_delivered(now, config, proposal);
        let mut carrier = Carrier::client(endpoint, side_channel, &*socket);
        let mut resources = HandshakeResources::with(early);
        let outcome = run_handshake(
            endpoint,
            &mut carrier,
            &socket,
            self.to,
            &mut machine,
            &mut resources,
        );
        match outcome.await {
            Err(error) if offer.withdraw() == Withdrawn::Free => {
                let within = match error {
                    Error::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
                        Some(endpoint.config.answer_timeout)
                    }
                    Error::TimedOut(_) => Some(endpoint.base_config().timeouts.message),
                    _ => None,
                };
                let cause = within.map(|within| FallbackCause::NoAnswer { within });
                Ok(self.tcp(socket, cause.unwrap_or_else(|| offer.cause()).into()))
            }
            outcome => outcome.map_err(|error| Failed {
                early_confirm_failed: offer
                    .side_channel()
                    .is_some_and(|side_channel| side_channel.is_confirmed()),
                ..Failed::from(error)
            }),
        }
    }
}

impl Failed {
    /// A connection with fast open has nothing to send first: another one is without.
    fn of_fast_open() -> Self {
        Self {
            early_confirm_failed: true,
            ..Self::from(io::Error::from(io::ErrorKind::NotConnected))
        }
    }
}

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Self {
        Self {
            error: error.into(),
            early_confirm_failed: false,
            has_sent_data: false,
        }
    }
}
