//! From a TCP connection to a stream: the handshake, its work, and the connection of its result.
//!
//! `connect` and [`accept`] make the machine and its `carrier`, `driver` drives it, `executor` does
//! the work that it asks for and has what that work has acquired, and `build_conn` makes a
//! connection of it.

mod build_conn;
mod carrier;
mod connect;
mod driver;
mod executor;

pub(crate) use connect::connect;

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::builder::recv_buffer_size;
use super::device_driver::DeviceDriver;
use super::endpoint::EndpointInner;
use super::negotiate::SideChannel;
use super::runtime::Socket;
use super::stream::Stream;
use crate::error::{Error, FallbackCause, FallbackReason, Phase};
use crate::proto::handshake::{Handshake, HandshakeConfig, TcpPath};
use build_conn::build_conn;
use carrier::Carrier;
use driver::{Outcome, drive, without_crossing_decline};
use executor::HandshakeResources;

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
    let wait = FIRST_BYTE_WAIT.min(endpoint.handshake().timeouts.message);
    let mut timer = pin!(endpoint.groups.after(wait));
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
    let mut machine = Handshake::server(now, config, path);
    match side_channel {
        Some(mut side_channel) => {
            let mut carrier = Carrier::side_channel(endpoint, &mut *side_channel, None);
            let mut resources = HandshakeResources::default();
            let (machine, resources) = (&mut machine, &mut resources);
            let outcome =
                run_handshake(endpoint, &mut carrier, &socket, peer, machine, resources).await;
            match outcome {
                Err(_) if side_channel.is_withdrawn() => {
                    Ok(plain(socket, FallbackCause::Withdrawn))
                }
                outcome => outcome,
            }
        }
        None => run_handshake_on_tcp(endpoint, &socket, peer, &mut machine).await,
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
    let current = endpoint.handshake();
    (config.host, config.timeouts) = (current.host, current.timeouts);
    let mut machine =
        Handshake::server(endpoint.runtime.now(), Arc::new(config), TcpPath::default());
    let mut side_channel = side_channel;
    let mut carrier = match &mut side_channel {
        Some(side_channel) => Carrier::side_channel(endpoint, &mut **side_channel, None),
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
    let is_rdma = |driver: &Arc<DeviceDriver>| driver.device.fabric().rdma().is_some();
    let config = match endpoint.drivers.iter().any(is_rdma) {
        true => endpoint.groups.handshake_config(&endpoint.handshake()),
        false => endpoint.handshake(),
    };
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
            let local = socket.local_addr().ok();
            endpoint.groups.tcp_path(local, peer)
        }
    };
    path.same_host = has_side_channel;
    path.ipsec = !endpoint.config.bypass_ipsec && is_protected(endpoint, socket, peer);
    path
}

/// Whether packets of a connection are shorter than its interface permits, as those that IPsec
/// wraps are, or this cannot be told.
fn is_protected(endpoint: &EndpointInner, socket: &dyn Socket, peer: SocketAddr) -> bool {
    let Some(mtu) = socket.path_mtu().filter(|mtu| *mtu < LONGEST_PACKET) else {
        return false;
    };
    let Ok(local) = socket.local_addr() else {
        return true;
    };
    let [local, peer] = [local, peer].map(|address| address.ip().to_canonical());
    let plain = endpoint.runtime.unprotected_mtu(local, peer);
    plain.is_none_or(|plain| mtu < plain)
}

/// The length of packets over the loopback interface, where nothing has to be looked up.
const LONGEST_PACKET: u32 = 65_535;

/// Runs a handshake over TCP to its end and makes a stream of its result.
async fn run_handshake_on_tcp(
    endpoint: &Arc<EndpointInner>,
    socket: &Arc<dyn Socket>,
    peer: SocketAddr,
    machine: &mut Handshake,
) -> Result<Stream, Error> {
    let mut carrier = Carrier::Tcp(&**socket);
    let mut resources = HandshakeResources::default();
    run_handshake(
        endpoint,
        &mut carrier,
        socket,
        peer,
        machine,
        &mut resources,
    )
    .await
}

/// Machine and resources are references: arguments by value are twice in the future of a function.
async fn run_handshake(
    endpoint: &Arc<EndpointInner>,
    carrier: &mut Carrier<'_>,
    socket: &Arc<dyn Socket>,
    peer: SocketAddr,
    machine: &mut Handshake,
    resources: &mut HandshakeResources,
) -> Result<Stream, Error> {
    let outcome = drive(endpoint, carrier, machine, resources).await?;
    let tcp = Arc::clone(socket);
    match outcome {
        Outcome::Tcp(fallback) => {
            let (unread, reason) = match &*carrier {
                Carrier::Tcp(_) if fallback.crossing_possible => {
                    let unread = without_crossing_decline(endpoint, &*tcp).await;
                    (unread, fallback.reason)
                }
                Carrier::Tcp(_) => (Vec::new(), fallback.reason),
                Carrier::SideChannel(_) => {
                    (Vec::new(), with_local_cause(endpoint, fallback.reason))
                }
            };
            Ok(Stream::tcp(tcp, unread, reason))
        }
        Outcome::Smc(established) => {
            let locality = carrier.locality();
            let conn = build_conn(endpoint, tcp, peer, &established, resources, locality)?;
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
fn with_local_cause(endpoint: &EndpointInner, mut reason: FallbackReason) -> FallbackReason {
    let may_be_ours = match &reason.cause {
        FallbackCause::PeerDeclined(_) => true,
        FallbackCause::Device { error, .. } => error.is_peer_gone(),
        _ => false,
    };
    if !may_be_ours {
        return reason;
    }
    let devices = endpoint.drivers.iter().map(|driver| driver.device.fabric());
    let mut lacks = devices.filter_map(|fabric| fabric.direct()?.shortage());
    if let Some(error) = lacks.next() {
        reason.cause = FallbackCause::Os(error);
    }
    reason
}

/// Timeout of the first byte of a client that announced SMC in TCP's handshake.
const FIRST_BYTE_WAIT: Duration = Duration::from_secs(1);
