//! The client's side: the PROPOSAL, its offer before the TCP connection, and the handshake.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use smc_wire::types::DmbToken;

use super::carrier::Carrier;
use super::work::{EarlyWork, HandshakeResources, reach, register};
use super::{handshake_config, path, run_handshake, run_handshake_on_tcp, tcp_stream};
use crate::config::Policy;
use crate::endpoint::{ConnectOptions, EndpointInner};
use crate::error::{Error, FallbackCause, FallbackReason};
use crate::negotiate::{self, Candidate, Delivery, ExpectedHandshake, OfferResult, Withdrawn};
use crate::proto::group::GroupKey;
use crate::proto::handshake::{
    ClientProposal, Handshake, HandshakeConfig, HandshakeOutput, TcpPath,
};
use crate::runtime::{Socket, SocketOptions, Unconnected};
use crate::stream::Stream;

/// Connects and sets the stream up.
pub(crate) async fn connect(
    endpoint: &Arc<EndpointInner>,
    to: SocketAddr,
    options: &ConnectOptions,
) -> Result<Stream, Error> {
    let policy = options
        .policy
        .unwrap_or_else(|| (endpoint.config.policy)(&to));
    let config = handshake_config(endpoint, options.recv_buffer)?;
    let proposal = match policy {
        Policy::Never => Err(FallbackCause::Policy.into()),
        _ => proposal_of(endpoint, &config),
    };
    let declined = match &proposal {
        Err(reason) if policy != Policy::Never => decline(endpoint, &config, reason.clone()),
        _ => None,
    };
    let first = match &proposal {
        Ok(proposal) => Some(proposal.bytes()),
        Err(_) => declined.as_deref(),
    };
    let candidate = match &first {
        Some(_) => endpoint.negotiation.look_up(&endpoint.runtime, to).await,
        None => Err(FallbackCause::Policy),
    };
    let early = match (&candidate, &proposal) {
        (Ok(candidate), Ok(_)) => {
            prepare_early(endpoint, &config, candidate.expected_handshake()).await
        }
        _ => None,
    };
    let attempt = ConnectAttempt {
        endpoint,
        to,
        options,
        config: &config,
        policy,
        proposal: &proposal,
        candidate: candidate.as_ref().map_err(FallbackCause::clone),
    };
    let stream = match attempt.make(first, early).await {
        Err(failed) if failed.early_confirm_failed => attempt.make(first, None).await,
        made => made,
    };
    let stream = stream.map_err(|failed| failed.error)?;
    match stream.fallback_reason() {
        Some(reason) if policy == Policy::Require => Err(Error::Declined(reason)),
        _ => Ok(stream),
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

/// One attempt to connect.
struct ConnectAttempt<'a> {
    endpoint: &'a Arc<EndpointInner>,
    to: SocketAddr,
    options: &'a ConnectOptions,
    config: &'a Arc<HandshakeConfig>,
    policy: Policy,
    proposal: &'a Result<Arc<ClientProposal>, FallbackReason>,
    candidate: Result<&'a Candidate, FallbackCause>,
}

/// Why connecting failed.
struct Failed {
    error: Error,
    /// The early CONFIRM could not be fulfilled. A new attempt without it may still succeed.
    early_confirm_failed: bool,
}

impl ConnectAttempt<'_> {
    async fn make(&self, first: Option<&[u8]>, early: Option<EarlyWork>) -> Result<Stream, Failed> {
        let Self {
            endpoint,
            to,
            config,
            ..
        } = *self;
        let buffer = early.as_ref().and_then(|early| early.buffer.as_ref());
        let buffer = buffer.map(|(dmb, _)| dmb.token());
        let (socket, mut offer) = self.open(first, buffer).await?;
        let delivery = match &mut offer {
            Ok(offer) => offer.connected(&*socket),
            Err(_) => Delivery::Plain,
        };
        let stream = match (delivery, self.proposal, offer) {
            (Delivery::OnTcp, ..) => {
                let path = path(endpoint, config, &*socket, to, false);
                let proposal = match config.has_usual_proposal(&path) {
                    true => self.proposal.clone(),
                    false => ClientProposal::new(config, &path).map(Arc::new),
                };
                let now = endpoint.runtime.now();
                let mut machine = Handshake::client_with(now, Arc::clone(config), proposal);
                // Boxed, as it is rare and large.
                let on_tcp = run_handshake_on_tcp(endpoint, &socket, to, &mut machine);
                Box::pin(on_tcp).await?
            }
            // Whether an RDMA port fits is known only once the connection exists.
            (Delivery::Plain, Err(_), offer)
                if config.rdma.is_some() && self.policy != Policy::Never =>
            {
                tcp_stream(socket, plain_cause(offer))
            }
            (_, Err(reason), _) => Stream::tcp(socket, Vec::new(), reason.clone()),
            (Delivery::Delivered, Ok(proposal), Ok(offer)) => {
                let resources = HandshakeResources {
                    early,
                    ..HandshakeResources::default()
                };
                let proposal = (Arc::clone(config), Arc::clone(proposal));
                await_answer(endpoint, socket, to, proposal, offer, resources).await?
            }
            (Delivery::Delivered | Delivery::Plain, _, offer) => {
                tcp_stream(socket, plain_cause(offer))
            }
        };
        Ok(stream)
    }

    /// Opens the TCP connection; the offer is made between bind and connect.
    async fn open(
        &self,
        first: Option<&[u8]>,
        buffer: Option<DmbToken>,
    ) -> Result<(Arc<dyn Socket>, OfferResult), Error> {
        let mut result = Err(match &self.candidate {
            Ok(_) => FallbackCause::not_announced(),
            Err(cause) => cause.clone(),
        });
        let mut options = SocketOptions::default();
        options.local = self.options.local;
        options.unbound = self
            .candidate
            .as_ref()
            .map_or(true, |candidate| !candidate.needs_address());
        let mut offer = |socket: &Unconnected<'_>| {
            if let (Some(first), Ok(candidate)) = (first, &self.candidate) {
                result = candidate.offer(socket, first, buffer);
            }
            Ok(())
        };
        let socket = self
            .endpoint
            .runtime
            .connect(self.to, &options, &mut offer)
            .await?;
        Ok((socket, result))
    }
}

impl From<Error> for Failed {
    fn from(error: Error) -> Self {
        Self {
            error,
            early_confirm_failed: false,
        }
    }
}

/// Joins the link group and registers a buffer, if the handshake is likely to be the expected one.
async fn prepare_early(
    endpoint: &EndpointInner,
    config: &HandshakeConfig,
    expected: Option<ExpectedHandshake>,
) -> Option<EarlyWork> {
    let ExpectedHandshake {
        client,
        listener: peer,
        process,
        size,
        listener_size: peer_size,
    } = expected?;
    let mut devices = config.devices.iter();
    let device = devices.find(|device| device.gid == client)?;
    if size != config.buffer.min(device.max_buffer).min(peer_size) {
        return None;
    }
    let device = device.index;
    let membership = endpoint
        .groups
        .join_now(GroupKey::Direct { device, peer })?;
    let mut registering = pin!(async {
        reach(endpoint, device, peer, process).await?;
        register(endpoint, device, peer, size, peer_size).await
    });
    // Polled once: the listener's process may be stopped, and no timeout is running yet.
    let registered = poll_fn(|cx| Poll::Ready(registering.as_mut().poll(cx))).await;
    let Poll::Ready(Ok((dmb, charge))) = registered else {
        return None;
    };
    Some(EarlyWork {
        device,
        peer,
        size,
        process,
        buffer: Some((dmb, charge)),
        membership: Some(membership),
    })
}

/// The DECLINE of a client without an offer. A server that waits for CLC on TCP needs it, or it
/// would misread the application's data.
fn decline(
    endpoint: &EndpointInner,
    config: &Arc<HandshakeConfig>,
    reason: FallbackReason,
) -> Option<Vec<u8>> {
    let now = endpoint.runtime.now();
    let mut machine = Handshake::client_with(now, Arc::clone(config), Err(reason));
    match machine.poll_output() {
        Some(HandshakeOutput::Send(decline)) => Some(decline),
        _ => None,
    }
}

/// The cause of plain TCP for a connection that was not announced to the server.
fn plain_cause(offer: OfferResult) -> FallbackCause {
    offer.map_or_else(|cause| cause, |offer| offer.cause())
}

/// Continues after the PROPOSAL was delivered on a side channel.
///
/// The connection may have reached another server, which does not know the offer. So nothing is
/// sent on TCP, and until the offer is accepted the stream can still become plain TCP.
async fn await_answer(
    endpoint: &Arc<EndpointInner>,
    socket: Arc<dyn Socket>,
    to: SocketAddr,
    (config, proposal): (Arc<HandshakeConfig>, Arc<ClientProposal>),
    mut offer: Box<dyn negotiate::Offer>,
    mut resources: HandshakeResources,
) -> Result<Stream, Failed> {
    let Some(side_channel) = offer.side_channel() else {
        let why = "a PROPOSAL was delivered, with no way for the answer";
        return Err(Error::Bug(why).into());
    };
    let mut machine = Handshake::client_delivered(endpoint.runtime.now(), config, proposal);
    let mut carrier = Carrier::side_channel(endpoint, side_channel, Some(&*socket));
    let outcome = run_handshake(
        endpoint,
        &mut carrier,
        &socket,
        to,
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
            let silent = within.map(|within| FallbackCause::NoAnswer { within });
            Ok(tcp_stream(socket, silent.unwrap_or_else(|| offer.cause())))
        }
        outcome => outcome.map_err(|error| Failed {
            error,
            early_confirm_failed: offer
                .side_channel()
                .is_some_and(|side_channel| side_channel.is_confirmed()),
        }),
    }
}
