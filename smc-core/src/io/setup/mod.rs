//! From a TCP connection to a stream: drives the handshake and executes its work.

mod connect;
mod work;

pub(crate) use connect::connect;
pub(super) use work::{HandshakeResources, driver};

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::build_conn::{direct_connection, rdma_connection};
use super::builder::recv_buffer_size;
use super::carrier::Carrier;
use super::deadlines::Deadline;
use super::endpoint::EndpointInner;
use super::negotiate::SideChannel;
use super::runtime::Socket;
use super::stream::Stream;
use crate::error::{CloseReason, Error, FallbackCause, FallbackReason, Phase};
use crate::proto::handshake::{
    CrossingDecline, Established, Fallback, HandshakeConfig, HandshakeOutput, Machine, Server,
    TcpPath, Transport,
};
use work::{WorkResult, execute};

/// A stream that is plain TCP without a handshake.
pub(crate) fn plain(socket: Arc<dyn Socket>, cause: FallbackCause) -> Stream {
    Stream::tcp(socket, Vec::new(), cause.into())
}

/// Waits for the first byte of a client that is known to send CLC on TCP. Clients send PROPOSAL as
/// soon as they are connected, so the timeout is much shorter than that of the handshake.
pub(crate) async fn await_first_byte(
    endpoint: &EndpointInner,
    socket: &dyn Socket,
) -> Result<(), Error> {
    let wait = FIRST_BYTE_WAIT.min(endpoint.handshake.timeouts.message);
    let mut timer = pin!(endpoint.deadlines.at(endpoint.runtime.now() + wait));
    poll_fn(|cx| match socket.poll_readable(cx) {
        Poll::Ready(readable) => Poll::Ready(readable.map_err(Error::from)),
        Poll::Pending => timer
            .as_mut()
            .poll(cx)
            .map(|()| Err(Error::TimedOut(Phase::Proposal))),
    })
    .await
}

/// Sets up the stream on an accepted connection.
pub(crate) async fn accept(
    endpoint: &Arc<EndpointInner>,
    socket: Arc<dyn Socket>,
    peer: SocketAddr,
    side_channel: Option<Box<dyn SideChannel>>,
) -> Result<Stream, Error> {
    let now = endpoint.runtime.now();
    let config = handshake_config(endpoint, None)?;
    let path = path(endpoint, &config, &*socket, peer, side_channel.is_some());
    let machine = Server::new(now, config, path);
    match side_channel {
        Some(mut side_channel) => {
            let mut carrier = Carrier::server(endpoint, &mut *side_channel);
            let resources = HandshakeResources::default();
            let smc = Arc::clone(&socket);
            let outcome =
                run_handshake(endpoint, &mut carrier, smc, peer, machine, resources).await;
            match outcome {
                Err(_) if side_channel.is_withdrawn() => {
                    Ok(plain(socket, FallbackCause::Withdrawn))
                }
                outcome => outcome,
            }
        }
        None => run_handshake_on_tcp(endpoint, socket, peer, machine).await,
    }
}

/// Receives the PROPOSAL of a client and declines it: the policy for this connection is TCP.
pub(crate) async fn decline_all(
    endpoint: &Arc<EndpointInner>,
    socket: Arc<dyn Socket>,
    side_channel: Option<Box<dyn SideChannel>>,
) -> Result<Stream, Error> {
    // Without any device, so that it can only end in a DECLINE.
    let mut config = HandshakeConfig::new(Vec::new());
    (config.host, config.timeouts) = (endpoint.handshake.host, endpoint.handshake.timeouts);
    let mut machine = Server::new(endpoint.runtime.now(), Arc::new(config), TcpPath::default());
    let mut side_channel = side_channel;
    let mut carrier = match &mut side_channel {
        Some(side_channel) => Carrier::server(endpoint, &mut **side_channel),
        None => Carrier::Tcp(&*socket),
    };
    let outcome = drive(
        endpoint,
        &mut carrier,
        &mut machine,
        &mut HandshakeResources::default(),
    )
    .await;
    match outcome {
        Ok(Outcome::Tcp(_)) => Ok(plain(socket, FallbackCause::Policy)),
        Err(_) if side_channel.is_some_and(|side_channel| side_channel.is_withdrawn()) => {
            Ok(plain(socket, FallbackCause::Policy))
        }
        Err(error) => Err(error),
        Ok(Outcome::Smc(_)) => Err(Error::Bug("a handshake without devices came to SMC")),
    }
}

/// The configuration for handshakes that begin now.
fn handshake_config(
    endpoint: &EndpointInner,
    recv_buffer: Option<usize>,
) -> Result<Arc<HandshakeConfig>, Error> {
    let ports = endpoint.groups.ports();
    let config = ports.config(&*endpoint.runtime, &endpoint.drivers, &endpoint.handshake);
    let Some(len) = recv_buffer else {
        return Ok(config);
    };
    let mut config = HandshakeConfig::clone(&config);
    config.buffer = recv_buffer_size(len)?;
    config.rmb = config.buffer;
    Ok(Arc::new(config))
}

/// The path of a TCP connection, for the handshake. Only processes of one host have a side channel.
fn path(
    endpoint: &EndpointInner,
    config: &HandshakeConfig,
    socket: &dyn Socket,
    peer: SocketAddr,
    has_side_channel: bool,
) -> TcpPath {
    let mut path = match (&config.rdma, has_side_channel) {
        (None, true) => TcpPath::default(),
        (None, false) => match socket.local_addr() {
            Ok(local) => TcpPath::default().with_addresses(local.ip(), peer.ip()),
            Err(_) => TcpPath::default(),
        },
        (Some(_), _) => {
            let ports = endpoint.groups.ports();
            let local = socket.local_addr().ok();
            ports.path(&*endpoint.runtime, &endpoint.drivers, local, peer)
        }
    };
    path.same_host = has_side_channel;
    path
}

/// Runs a handshake over TCP to its end and makes a stream of its result.
async fn run_handshake_on_tcp(
    endpoint: &Arc<EndpointInner>,
    socket: Arc<dyn Socket>,
    peer: SocketAddr,
    machine: impl Machine,
) -> Result<Stream, Error> {
    let mut carrier = Carrier::Tcp(&*socket);
    let resources = HandshakeResources::default();
    let socket = Arc::clone(&socket);
    run_handshake(endpoint, &mut carrier, socket, peer, machine, resources).await
}

async fn run_handshake(
    endpoint: &Arc<EndpointInner>,
    carrier: &mut Carrier<'_>,
    socket: Arc<dyn Socket>,
    peer: SocketAddr,
    mut machine: impl Machine,
    mut resources: HandshakeResources,
) -> Result<Stream, Error> {
    let outcome = drive(endpoint, carrier, &mut machine, &mut resources).await?;
    match outcome {
        Outcome::Tcp(fallback) => {
            let (early, reason) = match &*carrier {
                Carrier::Tcp(_) if fallback.crossing_possible => {
                    let early = without_crossing_decline(endpoint, &*socket).await;
                    (early, fallback.reason)
                }
                Carrier::Tcp(_) => (Vec::new(), fallback.reason),
                Carrier::SideChannel(_) => {
                    (Vec::new(), with_local_cause(endpoint, fallback.reason))
                }
            };
            Ok(Stream::tcp(socket, early, reason))
        }
        Outcome::Smc(established) => {
            let locality = carrier.locality();
            let conn = match established.transport {
                Transport::Direct(path) => direct_connection(
                    endpoint,
                    socket,
                    peer,
                    &established,
                    path,
                    resources,
                    locality,
                )?,
                Transport::Rdma(path) => {
                    rdma_connection(endpoint, socket, peer, &established, path, resources)?
                }
            };
            Ok(Stream::smc(
                conn,
                endpoint.config.polling,
                endpoint.config.trust,
            ))
        }
    }
}

/// A peer of this host whose device was refused by a local device declines or is gone. Only this
/// side knows the cause. For handshakes on a side channel: devices of other hosts do not connect to
/// local ones.
fn with_local_cause(endpoint: &EndpointInner, reason: FallbackReason) -> FallbackReason {
    let may_be_ours = match &reason.cause {
        FallbackCause::PeerDeclined(_) => true,
        FallbackCause::Device { error, .. } => error.is_peer_gone(),
        _ => false,
    };
    if !may_be_ours {
        return reason;
    }
    let devices = endpoint
        .drivers
        .iter()
        .map(|driver| driver.device().fabric());
    let mut lacks = devices.filter_map(|fabric| fabric.direct()?.shortage());
    let cause = lacks.next().map_or(reason.cause, FallbackCause::Os);
    FallbackReason { cause, ..reason }
}

enum Outcome {
    Smc(Box<Established>),
    Tcp(Fallback),
}

async fn drive(
    endpoint: &Arc<EndpointInner>,
    carrier: &mut Carrier<'_>,
    machine: &mut impl Machine,
    resources: &mut HandshakeResources,
) -> Result<Outcome, Error> {
    let mut work: Option<Pin<Box<dyn Future<Output = WorkResult> + Send>>> = None;
    // The group whose termination was reported to the machine.
    let mut reported = None;
    loop {
        while let Some(output) = machine.poll_output() {
            match output {
                HandshakeOutput::Send(bytes) => {
                    let until = endpoint.runtime.now() + endpoint.handshake.timeouts.message;
                    if let Err(error) = carrier.send(&*endpoint.runtime, until, &bytes).await {
                        machine.handle_io_error(error.into());
                    }
                }
                HandshakeOutput::Work(asked) => {
                    let process = carrier.credentials();
                    match resources.take_early(&asked, process) {
                        Some(done) => machine.handle_done(endpoint.runtime.now(), done),
                        None => {
                            let prepared = resources.prepared.clone();
                            let endpoint = Arc::clone(endpoint);
                            work = Some(Box::pin(execute(endpoint, asked, prepared, process)));
                        }
                    }
                }
                HandshakeOutput::Discard => {
                    work = None;
                    *resources = HandshakeResources::default();
                }
                HandshakeOutput::OutOfSync(group) => endpoint.groups.out_of_sync(group),
                HandshakeOutput::Established(established) => {
                    carrier.flush();
                    return Ok(Outcome::Smc(established));
                }
                HandshakeOutput::Fallback(fallback) => {
                    carrier.flush();
                    return Ok(Outcome::Tcp(fallback));
                }
                HandshakeOutput::Abort(error) => return Err(error),
            }
        }
        carrier.flush();
        let group = resources
            .membership
            .as_ref()
            .map(|seat| seat.seat().group());
        let group = group.filter(|group| reported != Some(*group));
        let mut terminated = group.map(|_| endpoint.groups.listen_terminated());
        if group.is_some_and(|group| endpoint.groups.is_terminating(group)) {
            reported = group;
            machine.handle_terminated();
            continue;
        }
        let mut timer = machine.poll_timeout().map(|at| endpoint.deadlines.at(at));
        poll_fn(|cx| {
            let listener = terminated.as_mut();
            if listener.is_some_and(|listener| Pin::new(listener).poll(cx).is_ready()) {
                terminated = None;
                return Poll::Ready(());
            }
            let input = poll_input(
                cx, endpoint, carrier, machine, resources, &mut work, &mut timer,
            );
            if input.is_pending() && work.is_some() {
                carrier.publish_progress(cx);
            }
            input
        })
        .await;
    }
}

/// Waits for the first event and passes it to the machine.
fn poll_input(
    cx: &mut Context<'_>,
    endpoint: &EndpointInner,
    carrier: &mut Carrier<'_>,
    machine: &mut impl Machine,
    resources: &mut HandshakeResources,
    work: &mut Option<Pin<Box<dyn Future<Output = WorkResult> + Send>>>,
    timer: &mut Option<Deadline>,
) -> Poll<()> {
    if let Some(Poll::Ready((gained, done))) = work.as_mut().map(|work| work.as_mut().poll(cx)) {
        *work = None;
        resources.take(gained);
        machine.handle_done(endpoint.runtime.now(), done);
        return Poll::Ready(());
    }
    let wants = machine.wants();
    if wants > 0 {
        let mut buf = [0; READ_MAX];
        let len = wants.min(buf.len());
        let (part, _) = buf.split_at_mut(len);
        match carrier.poll_read(cx, part) {
            Poll::Ready(Ok(0)) => {
                machine.handle_closed();
                return Poll::Ready(());
            }
            Poll::Ready(Ok(count)) => {
                let (read, _) = part.split_at(count.min(len));
                machine.handle_bytes(endpoint.runtime.now(), read);
                if carrier.is_confirmed() {
                    machine.handle_confirmed();
                }
                return Poll::Ready(());
            }
            Poll::Ready(Err(error)) => {
                machine.handle_io_error(error.into());
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
    }
    match timer.as_mut().map(|timer| Pin::new(timer).poll(cx)) {
        Some(Poll::Ready(())) => {
            machine.handle_timeout(endpoint.runtime.now());
            Poll::Ready(())
        }
        _ => Poll::Pending,
    }
}

/// Removes a DECLINE that crossed the local one from the stream. Returns other data that was read.
async fn without_crossing_decline(endpoint: &EndpointInner, socket: &dyn Socket) -> Vec<u8> {
    let mut filter = CrossingDecline::new(endpoint.runtime.now());
    while let Some(until) = filter.poll_timeout() {
        let mut timer = endpoint.runtime.timer(until);
        poll_fn(|cx| {
            let mut buf = [0; READ_MAX];
            let (part, _) = buf.split_at_mut(filter.wants().min(READ_MAX));
            match socket.poll_read(cx, part) {
                Poll::Ready(Ok(0) | Err(_)) => filter.handle_closed(),
                Poll::Ready(Ok(count)) => {
                    // All of it is consumed: not more was read than wanted.
                    filter.handle_bytes(part.get(..count).unwrap_or(part));
                }
                Poll::Pending => match timer.as_mut().poll(cx) {
                    Poll::Ready(()) => filter.handle_timeout(endpoint.runtime.now()),
                    Poll::Pending => return Poll::Pending,
                },
            }
            Poll::Ready(())
        })
        .await;
    }
    filter.release().unwrap_or_default()
}

impl From<CloseReason> for Error {
    fn from(reason: CloseReason) -> Self {
        Self::Closed(reason)
    }
}

/// Timeout of the first byte of a client that announced SMC in TCP's handshake.
const FIRST_BYTE_WAIT: Duration = Duration::from_secs(1);

/// Longer than any message of the handshake.
const READ_MAX: usize = 1024;
