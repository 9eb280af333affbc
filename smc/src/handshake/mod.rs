//! From a TCP connection to a stream: the handshake, its work, and the connection of its result.
//!
//! `connect` and `accept` make the machine, and its `carrier` on a side channel;
//! `run_handshake_on_socket` makes the one on the connection itself. `drive` passes messages,
//! timeouts and the end of the link group to the machine. `work` does the work that it asks for and
//! has what that work has acquired, and `build_conn` makes a connection of it.

mod accept;
mod carrier;
mod connect;
mod early;
mod work;

pub(crate) use accept::{ClientPath, accept, decline_all};
pub(crate) use carrier::{ClcPeer, TcpHandshakes};
pub(crate) use connect::{Failed, connect};

use std::future::{Future, poll_fn};
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use event_listener::EventListener;
use smc_wire::types::Features;

use super::builder::recv_buffer_size;
use super::device_driver::DeviceDriver;
use super::endpoint::EndpointInner;
use super::runtime::Socket;
use super::stream::{Mode, Stream};
use crate::address::{self, Address};
use crate::conn::{Conn, Parts};
use crate::device::DeviceError;
use crate::error::{CloseReason, Error, FallbackCause, FallbackReason};
use crate::log::HandshakeLog;
use crate::peer_descriptors::Source;
use crate::proto::Role;
use crate::proto::group::{GroupId, GroupState};
use crate::proto::handshake::{
    CrossingDecline, Established, Fallback, Handshake, HandshakeConfig, HandshakeOutput, TcpPath,
    Transport,
};
use crate::stats::SetupTiming;
use crate::tcp_streams::TcpRecord;
use carrier::{Carrier, OfferOnTcp};
use work::{HandshakeResources, WorkResult, device_driver, execute};

/// A stream that is TCP without a handshake.
pub(crate) fn tcp_stream(
    endpoint: &EndpointInner,
    role: Role,
    socket: Arc<dyn Socket>,
    peer: &Address,
    cause: FallbackCause,
) -> Stream {
    fallback_stream(endpoint, role, socket, peer, Vec::new(), cause.into())
}

/// A stream that is TCP, for this reason. `unread` as [`Stream::tcp`] has it.
fn fallback_stream(
    endpoint: &EndpointInner,
    role: Role,
    socket: Arc<dyn Socket>,
    peer: &Address,
    unread: Vec<u8>,
    reason: FallbackReason,
) -> Stream {
    endpoint.setups.add_fallback(role, &reason);
    let entry = endpoint.tcp_streams.add(TcpRecord {
        role,
        local: address::local(&*socket).ok(),
        peer: peer.clone(),
        reason: reason.clone(),
    });
    Stream::tcp(socket, unread, Mode::without_smc(peer, reason), entry)
}

/// The configuration for handshakes that begin now. A UNIX socket leads to no other host, and so
/// RDMA devices are of no use there.
pub(crate) fn handshake_config(
    endpoint: &EndpointInner,
    peer: &Address,
    recv_buffer: Option<usize>,
) -> Result<Arc<HandshakeConfig>, Error> {
    let is_rdma = |driver: &Arc<DeviceDriver>| driver.device.operations().rdma().is_some();
    let has_rdma = peer.tcp().is_some() && endpoint.drivers.iter().any(is_rdma);
    let config = match has_rdma {
        true => endpoint.groups.with_rdma(&endpoint.base_config()),
        false => endpoint.base_config(),
    };
    let Some(len) = recv_buffer else {
        return Ok(config);
    };
    let mut config = HandshakeConfig::clone(&config);
    config.buffer = recv_buffer_size(len)?;
    config.rmb = config.buffer;
    Ok(Arc::new(config))
}

/// The path of a connection, for the handshake. Only processes of one host have a side channel or a
/// UNIX socket.
fn path(
    endpoint: &EndpointInner,
    config: &HandshakeConfig,
    socket: &dyn Socket,
    peer: &Address,
    has_side_channel: bool,
) -> TcpPath {
    let peer = match peer {
        Address::Tcp(peer) => *peer,
        Address::Unix(_) => return same_host(),
    };
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

/// The path of a UNIX socket.
fn same_host() -> TcpPath {
    TcpPath {
        same_host: true,
        ..TcpPath::default()
    }
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
    let unprotected = endpoint.runtime.unprotected_mtu(local, peer);
    unprotected.is_none_or(|unprotected| mtu < unprotected)
}

/// The length of packets over the loopback interface, where nothing has to be looked up.
const LONGEST_PACKET: u32 = 65_535;

/// Runs a handshake on the connection itself to its end and makes a stream of its result.
async fn run_handshake_on_socket(
    endpoint: &Arc<EndpointInner>,
    socket: &Arc<dyn Socket>,
    peer: &Address,
    (other, offer): (ClcPeer, Option<&mut OfferOnTcp>),
    machine: &mut Handshake,
    resources: &mut HandshakeResources,
) -> Result<Stream, Error> {
    let handshakes = &endpoint.tcp_handshakes;
    let under_way = match peer {
        Address::Tcp(peer) => {
            let local = socket.local_addr().ok();
            local.map(|local| handshakes.add(local, *peer))
        }
        Address::Unix(_) => None,
    };
    let role = machine.role();
    let under_way = under_way.as_ref();
    let mut carrier = Carrier::on_socket(endpoint, &**socket, other, role, under_way, offer);
    run_handshake(endpoint, &mut carrier, socket, peer, machine, resources).await
}

/// Machine and resources are references: the future of an `async fn` stores an argument by value
/// twice.
async fn run_handshake(
    endpoint: &Arc<EndpointInner>,
    carrier: &mut Carrier<'_>,
    socket: &Arc<dyn Socket>,
    peer: &Address,
    machine: &mut Handshake,
    resources: &mut HandshakeResources,
) -> Result<Stream, Error> {
    let begin = endpoint.runtime.now();
    let outcome = drive(endpoint, carrier, machine, resources).await?;
    let time = endpoint.runtime.now().saturating_duration_since(begin);
    endpoint.setups.add_timing(SetupTiming::Handshake, time);
    let tcp = Arc::clone(socket);
    match outcome {
        Outcome::Tcp(fallback) => {
            let (unread, reason) = match carrier {
                Carrier::Tcp(..) if fallback.crossing_possible => {
                    let unread = without_crossing_decline(endpoint, &*tcp).await;
                    (unread, fallback.reason)
                }
                Carrier::Tcp(..) | Carrier::Unix(_) => (carrier.take_unread(), fallback.reason),
                Carrier::SideChannel(_) => {
                    (Vec::new(), with_local_cause(endpoint, fallback.reason))
                }
            };
            let role = machine.role();
            Ok(fallback_stream(endpoint, role, tcp, peer, unread, reason))
        }
        Outcome::Smc(established) => {
            keep_precedent(endpoint, machine.role(), peer, &established, carrier);
            let conn = build_conn(
                endpoint,
                machine.role(),
                tcp,
                peer,
                &established,
                resources,
                carrier,
            )?;
            Ok(Stream::smc(
                conn,
                endpoint.config.polling,
                endpoint.config.trust,
            ))
        }
    }
}

/// The next handshake with a listener that takes an early CONFIRM is expected to be like this one.
/// A side channel tells of it by itself.
fn keep_precedent(
    endpoint: &EndpointInner,
    role: Role,
    peer: &Address,
    established: &Established,
    carrier: &Carrier<'_>,
) {
    let process = match carrier {
        _ if role == Role::Server => return,
        Carrier::SideChannel(_) => return,
        // That an endpoint is at both ends shows only while both have a handshake: with an early
        // CONFIRM that of the server has ended before the client checks it.
        Carrier::Tcp(..) if carrier.credentials().is_some() => return,
        Carrier::Tcp(..) | Carrier::Unix(_) => carrier.credentials(),
    };
    match early::precedent(endpoint, established, process) {
        Some(precedent) => {
            let now = endpoint.runtime.now();
            endpoint.precedents.keep(now, peer, precedent);
        }
        None => endpoint.precedents.forget(peer),
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
    let devices = endpoint
        .drivers
        .iter()
        .map(|driver| driver.device.operations());
    let mut lacks = devices.filter_map(|operations| operations.direct()?.shortage());
    if let Some(error) = lacks.next() {
        reason.cause = FallbackCause::Os(error);
    }
    reason
}

/// Builds a connection and hands it to the driver of its device. A connection that was lost before
/// ends behind the data that its peer has written.
fn build_conn(
    endpoint: &EndpointInner,
    role: Role,
    socket: Arc<dyn Socket>,
    peer_addr: &Address,
    established: &Established,
    resources: &mut HandshakeResources,
    carrier: &Carrier<'_>,
) -> Result<Arc<Conn>, Error> {
    let (parts, lost) = match established.transport {
        Transport::Direct(params) => {
            let driver = device_driver(endpoint, params.device)?;
            let buffers = std::mem::take(&mut resources.direct);
            let (locality, process) = (carrier.locality(), carrier.credentials());
            Parts::direct(driver, established, params, buffers, locality, process)?
        }
        Transport::Rdma(params) => {
            // Its device may be gone: then the group fails over to another one, or ends the
            // connection.
            let driver = endpoint
                .drivers
                .get(params.device.0)
                .ok_or(NO_SUCH_DEVICE)?;
            let handle = resources.prepared.take().ok_or(NO_RESOURCE)?.handle;
            Parts::rdma(driver, &endpoint.drivers, established, params, handle)
        }
    };
    let membership = resources.membership.take().ok_or(NO_RESOURCE)?;
    let warned = Arc::clone(&endpoint.warned);
    let source = Source::of_peer(carrier.credentials(), peer_addr);
    let peer = (peer_addr.clone(), source);
    let conn = Conn::new(parts, role, socket, peer, membership, warned);
    let features = established.group_features;
    if features.contains(Features::SOCKET_REUSE) && carrier.is_unix_without_unread() {
        conn.reuse.agree();
    }
    if let Some(rdma) = conn.rdma() {
        rdma.set_conn(&conn);
    }
    let size = match conn.rdma() {
        None => endpoint.config.recv_buffer,
        Some(_) => endpoint.config.rmb,
    };
    conn.count(established.version, size.byte_len());
    conn.driver.add_conn(&conn);
    conn.span
        .in_scope(|| debug!("connection is established", mode = conn.mode));
    // The group may have ended before the driver knew of the connection.
    let state = endpoint.groups.info(conn.group).map(|group| group.state);
    let has_ended = state.is_none_or(|state| state == GroupState::Terminating);
    let lost = lost.or_else(|| has_ended.then_some(Error::Closed(CloseReason::Aborted)));
    if let Some(why) = lost {
        // Notifies a peer that still exists.
        let _best_effort = conn.socket.shutdown(Shutdown::Both);
        conn.abort_unreachable(why);
    }
    Ok(conn)
}

/// How a handshake ended.
enum Outcome {
    Smc(Box<Established>),
    Tcp(Fallback),
}

async fn drive(
    endpoint: &Arc<EndpointInner>,
    carrier: &mut Carrier<'_>,
    machine: &mut Handshake,
    resources: &mut HandshakeResources,
) -> Result<Outcome, Error> {
    let mut work: Option<Pin<Box<dyn Future<Output = WorkResult> + Send>>> = None;
    // The group whose termination was reported to the machine.
    let mut reported = None;
    let mut terminated = None;
    let mut log = HandshakeLog::default();
    // Of the last wait: what is there without waiting takes no time worth a look at the clock.
    let mut now = endpoint.runtime.now();
    loop {
        while let Some(output) = machine.poll_output() {
            match output {
                HandshakeOutput::Send(bytes) => {
                    HandshakeLog::sends(&bytes);
                    let until = now + endpoint.base_config().timeouts.message;
                    if let Err(error) = carrier.send(&*endpoint.runtime, until, &bytes).await {
                        machine.handle_io_error(error.into());
                    }
                }
                HandshakeOutput::Work(requested) => {
                    let process = carrier.credentials();
                    let is_taken = machine.is_early_taken();
                    match resources.take_early(&requested, process, is_taken) {
                        Some(done) => {
                            HandshakeLog::ends_work(machine, &done);
                            machine.handle_done(now, done);
                        }
                        None => {
                            HandshakeLog::begins_work(machine);
                            let prepared = resources.prepared.clone();
                            let endpoint = Arc::clone(endpoint);
                            work = Some(Box::pin(execute(endpoint, requested, prepared, process)));
                        }
                    }
                }
                HandshakeOutput::EarlyData(bytes) => {
                    resources.store_early(&bytes)?;
                }
                HandshakeOutput::RefuseEarly(early) => {
                    for group in endpoint.groups.all_rdma() {
                        group.refuse_early(&early);
                    }
                }
                HandshakeOutput::Discard => {
                    work = None;
                    *resources = HandshakeResources::default();
                }
                HandshakeOutput::OutOfSync(group) => {
                    let groups = &endpoint.groups;
                    groups.update(|registry| registry.handle_out_of_sync(group));
                }
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
        log.waits(machine, work.is_some());
        let group = resources
            .membership
            .as_ref()
            .map(|membership| membership.member.group());
        let group = group.filter(|group| reported != Some(*group));
        let timeout = machine.poll_timeout();
        // Most handshakes wait for nothing, and need no timer.
        let mut timer = None;
        let mut has_waited = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut has_waited, true) {
                now = endpoint.runtime.now();
            }
            // First: the peer may have declined. A DECLINE of this side behind that would be data
            // to the peer, and a connection that is established does not read the peer's any more.
            if poll_message(cx, now, carrier, machine).is_ready() {
                return Poll::Ready(());
            }
            if group.is_some_and(|group| endpoint.groups.is_terminating(group)) {
                reported = group;
                machine.handle_terminated();
                return Poll::Ready(());
            }
            if let Some(Poll::Ready((acquired, done))) =
                work.as_mut().map(|work| work.as_mut().poll(cx))
            {
                work = None;
                resources.add(acquired);
                HandshakeLog::ends_work(machine, &done);
                machine.handle_done(now, done);
                return Poll::Ready(());
            }
            if let Some(at) = timeout {
                let timer = timer.get_or_insert_with(|| endpoint.groups.deadlines.at(at));
                if Pin::new(timer).poll(cx).is_ready() {
                    machine.handle_timeout(endpoint.runtime.now());
                    return Poll::Ready(());
                }
            }
            if work.is_some() {
                carrier.publish_progress(cx);
            }
            match group {
                Some(group) => poll_terminated(cx, endpoint, group, &mut terminated),
                None => Poll::Pending,
            }
        })
        .await;
    }
}

/// Waits until this group or another one may be terminating. Most handshakes have no need to: the
/// listener is created when one has to wait, and serves it until it was notified.
fn poll_terminated(
    cx: &mut Context<'_>,
    endpoint: &EndpointInner,
    group: GroupId,
    listener: &mut Option<EventListener>,
) -> Poll<()> {
    let listening = match listener {
        Some(listening) => listening,
        None => {
            let listening = listener.insert(endpoint.groups.terminated.listen());
            // Before there was a listener.
            if endpoint.groups.is_terminating(group) {
                return Poll::Ready(());
            }
            listening
        }
    };
    let is_notified = Pin::new(listening).poll(cx);
    if is_notified.is_ready() {
        *listener = None;
    }
    is_notified
}

/// Passes what was received to the machine. `now` is the time of the last wait.
fn poll_message(
    cx: &mut Context<'_>,
    now: Instant,
    carrier: &mut Carrier<'_>,
    machine: &mut Handshake,
) -> Poll<()> {
    let needed = machine.bytes_needed();
    if needed > 0 {
        let mut buf = [0; READ_MAX];
        let len = needed.min(buf.len());
        let (part, _) = buf.split_at_mut(len);
        match carrier.poll_read(cx, part) {
            Poll::Ready(Ok(0)) => {
                machine.handle_closed();
                return Poll::Ready(());
            }
            Poll::Ready(Ok(count)) => {
                let (read, _) = part.split_at(count.min(len));
                machine.handle_bytes(now, read);
                HandshakeLog::received(machine);
                if carrier.is_confirmed() {
                    machine.handle_confirmed();
                }
                return Poll::Ready(());
            }
            Poll::Ready(Err(error)) => {
                machine.handle_read_error(error.into());
                return Poll::Ready(());
            }
            Poll::Pending => {}
        }
    }
    Poll::Pending
}

/// Removes a DECLINE that crossed the local one from the stream. Returns other data that was read.
async fn without_crossing_decline(endpoint: &EndpointInner, socket: &dyn Socket) -> Vec<u8> {
    let mut filter = CrossingDecline::new(endpoint.runtime.now());
    while let Some(until) = filter.poll_timeout() {
        let mut timer = endpoint.runtime.timer(until);
        poll_fn(|cx| {
            let mut buf = [0; READ_MAX];
            let (part, _) = buf.split_at_mut(filter.bytes_needed().min(READ_MAX));
            match socket.poll_read(cx, part) {
                Poll::Ready(Ok(0) | Err(_)) => filter.handle_closed(),
                Poll::Ready(Ok(count)) => {
                    // All of it is consumed: not more was read than needed.
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

/// Bytes of one read. Every message that is known today fits; ACCEPT and CONFIRM may be longer, and
/// are read in several parts then.
const READ_MAX: usize = 1024;

const NO_RESOURCE: Error = Error::Bug("handshake ended without a link group");
const NO_SUCH_DEVICE: DeviceError = DeviceError::Invalid("endpoint has no such device");
