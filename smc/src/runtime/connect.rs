//! Opening a TCP connection from a port that is known before the connection exists.
//!
//! Negotiation announces the client's address before it connects, so the socket has to be bound
//! first. `bind` to port 0 would suffice, but it never returns a port that is in TIME_WAIT and
//! searches longer and longer for one that is not. So ports are drawn at random: first for
//! exclusive use, then, when most of the range is in use, shared with connections to other
//! destinations, as `connect` itself does with the ports it picks.
//!
//! `bind` conflicts with what other users have at a port, TIME-WAIT included, and they could have
//! something at all of them. So shared ports are taken by `connect`, from a range that has the
//! drawn port alone (`IP_LOCAL_PORT_RANGE`, Linux 6.3). That takes no port at which any socket was
//! bound explicitly. With such sockets at nearly all ports draws do not find the others, so the
//! last attempt is `bind` to port 0, which searches the whole range. Where no address is found, the
//! socket connects without being announced, as that of any other program would.
//!
//! TCP connects a socket to itself if it is bound to the destination's own address, as can be where
//! the listener there has ended. The application would read back what it writes. Such a connect is
//! refused, unless the application has chosen the address.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use nix::libc;
use nix::sys::socket::sockopt::{
    BindToDevice, IpBindAddressNoPort, Mark, SetStruct, TcpFastOpenConnect,
};
use nix::sys::socket::{getsockopt, setsockopt};
use rustix::io::Errno;
use rustix::net::{SocketType, sockopt};

use super::net::{local_addr, socket, stream};
use super::{BeforeConnect, SocketOptions, Unconnected};

/// A socket on which `connect` was called.
#[derive(Debug)]
pub(super) enum ConnectStatus {
    /// It is connected.
    Connected(OwnedFd),
    /// It will become writable when it is connected or has failed.
    InProgress(OwnedFd),
}

/// Binds a socket, passes it to `before` and begins to connect it.
///
/// `before` is called again, with another socket, in the rare case that the first one's port
/// turned out to be taken for this destination: without an address at last.
pub(super) fn start(
    to: SocketAddr,
    options: &SocketOptions,
    before: &mut BeforeConnect<'_>,
) -> io::Result<ConnectStatus> {
    if options.unbound && options.local.is_none() {
        return start_unannounced(to, options, before);
    }
    let from = match options.local {
        Some(local) if !local.ip().is_unspecified() => local,
        Some(local) => with_port(source_with(to, options)?, local.port()),
        None => match source_with(to, options) {
            Ok(from) => from,
            // The look-up of the route takes a port of UDP, and other users may have them all.
            Err(_) => return start_unannounced(to, options, before),
        },
    };
    let mut attempts = 0;
    loop {
        attempts += 1;
        let is_last = attempts == ATTEMPTS;
        let bound = match is_last && from.port() == 0 {
            true => searched(client_stream(to, options)?, from),
            false => bound(to, from, options),
        };
        let BoundSocket {
            fd,
            local,
            may_change,
        } = match bound {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && options.local.is_none() => {
                return start_unannounced(to, options, before);
            }
            bound => bound?,
        };
        if options.local.is_none() && is_itself(local, to) {
            // A listener there would have prevented `bind`.
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        if options.local.is_some() {
            // The caller may use the address for other destinations too.
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        let socket = Unconnected::new(local, Some(fd.as_fd()));
        before(&match may_change {
            true => socket.with_port_of_connect(),
            false => socket,
        })?;
        match rustix::net::connect(&fd, &to) {
            Ok(()) => return Ok(ConnectStatus::Connected(fd)),
            Err(Errno::INPROGRESS | Errno::INTR) => {}
            Err(Errno::ADDRNOTAVAIL) if from.port() == 0 && !is_last => continue,
            Err(Errno::ADDRNOTAVAIL) if options.local.is_none() => {
                return start_unannounced(to, options, before);
            }
            Err(error) => return Err(error.into()),
        }
        return status(fd, to);
    }
}

/// Connects a socket from where the kernel chooses. `before` is called without an address, and so
/// nothing that was announced for an earlier socket is left.
fn start_unannounced(
    to: SocketAddr,
    options: &SocketOptions,
    before: &mut BeforeConnect<'_>,
) -> io::Result<ConnectStatus> {
    let fd = client_stream(to, options)?;
    let unspecified: IpAddr = match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    before(&Unconnected::new(
        SocketAddr::new(unspecified, 0),
        Some(fd.as_fd()),
    ))?;
    let status = match rustix::net::connect(&fd, &to) {
        Ok(()) => ConnectStatus::Connected(fd),
        Err(Errno::INPROGRESS | Errno::INTR) => status(fd, to)?,
        Err(error) => return Err(error.into()),
    };
    match &status {
        ConnectStatus::Connected(fd) if is_itself(local_addr(fd.as_fd())?, to) => {
            // So that no TIME-WAIT is left where a listener is to be.
            let _best_effort = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
            Err(io::ErrorKind::ConnectionRefused.into())
        }
        _ => Ok(status),
    }
}

/// Whether a socket of this address is what `to` is. The unspecified address is the socket's own.
fn is_itself(local: SocketAddr, to: SocketAddr) -> bool {
    let is_same_host = local.ip() == to.ip() || to.ip().is_unspecified();
    local.port() == to.port() && is_same_host
}

/// On this host a connection is complete, or refused, as soon as `connect` returns. A second call
/// reports which.
fn status(fd: OwnedFd, to: SocketAddr) -> io::Result<ConnectStatus> {
    match rustix::net::connect(&fd, &to) {
        Ok(()) | Err(Errno::ISCONN) => Ok(ConnectStatus::Connected(fd)),
        Err(Errno::ALREADY | Errno::INPROGRESS | Errno::INTR) => Ok(ConnectStatus::InProgress(fd)),
        Err(error) => Err(error.into()),
    }
}

/// A socket that is to be connected.
fn client_stream(to: SocketAddr, options: &SocketOptions) -> io::Result<OwnedFd> {
    let fd = stream(to, options)?;
    if options.fast_open {
        // Where the system does not permit it, the first data follows TCP's handshake.
        let _best_effort = setsockopt(&fd, TcpFastOpenConnect, &true);
    }
    Ok(fd)
}

/// The local address from which packets to `to` are sent, with port 0.
pub(super) fn source(to: SocketAddr) -> io::Result<SocketAddr> {
    source_with(to, &SocketOptions::default())
}

/// As [`source`] for a socket with these options: the route depends on its mark and its device.
fn source_with(to: SocketAddr, options: &SocketOptions) -> io::Result<SocketAddr> {
    if to.ip() == Ipv4Addr::LOCALHOST || to.ip() == Ipv6Addr::LOCALHOST {
        return Ok(SocketAddr::new(to.ip(), 0));
    }
    // Connecting a datagram socket looks up the route and sends nothing.
    let probe = socket(to, SocketType::DGRAM)?;
    if options.hook.is_some() {
        // Options of TCP would fail on a datagram socket.
        let fd = client_stream(to, options)?;
        let mark = getsockopt(&fd, Mark)?;
        if mark != 0 {
            setsockopt(&probe, Mark, &mark)?;
        }
        let device = getsockopt(&fd, BindToDevice)?;
        if !device.is_empty() {
            setsockopt(&probe, BindToDevice, &device)?;
        }
    }
    rustix::net::connect(&probe, &to)?;
    Ok(with_port(local_addr(probe.as_fd())?, 0))
}

/// A socket that is bound, or has a port that `connect` takes.
#[derive(Debug)]
struct BoundSocket {
    fd: OwnedFd,
    local: SocketAddr,
    /// `connect` takes the port. It takes another one if this is not of the range that is in force
    /// by then.
    may_change: bool,
}

impl BoundSocket {
    fn to(fd: OwnedFd, local: SocketAddr) -> Self {
        Self {
            fd,
            local,
            may_change: false,
        }
    }
}

/// A socket bound to `from`, or to a random port if that has none.
fn bound(to: SocketAddr, from: SocketAddr, options: &SocketOptions) -> io::Result<BoundSocket> {
    let fd = client_stream(to, options)?;
    if from.port() != 0 {
        if let Err(Errno::ADDRINUSE) = rustix::net::bind(&fd, &from) {
            sockopt::set_socket_reuseaddr(&fd, true)?;
            rustix::net::bind(&fd, &from)?;
        }
        let local = local_addr(fd.as_fd())?;
        return Ok(BoundSocket::to(fd, local));
    }
    for draw in 0..EXCLUSIVE_DRAWS + SHARED_DRAWS {
        let Some(local) = ports().and_then(|ports| ports.draw(from, to)) else {
            break;
        };
        if draw == EXCLUSIVE_DRAWS {
            let fd = client_stream(to, options)?;
            if set_port_range(&fd, local.port()) {
                // Without a port, which `connect` takes.
                rustix::net::bind(&fd, &from)?;
                return Ok(BoundSocket {
                    fd,
                    local,
                    may_change: true,
                });
            }
        }
        if draw >= EXCLUSIVE_DRAWS {
            sockopt::set_socket_reuseaddr(&fd, true)?;
        }
        match rustix::net::bind(&fd, &local) {
            Ok(()) => return Ok(BoundSocket::to(fd, local)),
            Err(Errno::ADDRINUSE | Errno::ACCESS) => {}
            Err(error) => return Err(error.into()),
        }
    }
    searched(fd, from)
}

/// A socket bound to any port that no other socket has, which the kernel searches.
fn searched(fd: OwnedFd, from: SocketAddr) -> io::Result<BoundSocket> {
    rustix::net::bind(&fd, &from)?;
    let local = local_addr(fd.as_fd())?;
    Ok(BoundSocket::to(fd, local))
}

/// Has `connect` take this port. Returns whether the kernel can do so.
fn set_port_range(fd: &OwnedFd, port: u16) -> bool {
    let range = u32::from(port) << 16 | u32::from(port);
    setsockopt(fd, IpBindAddressNoPort, &true).is_ok()
        && setsockopt(fd, LocalPortRange, &range).is_ok()
}

/// The first and the last port that `connect` may choose, in the lower and the upper half.
#[derive(Clone, Copy, Debug)]
struct LocalPortRange;

nix::setsockopt_impl!(
    LocalPortRange,
    libc::IPPROTO_IP,
    IP_LOCAL_PORT_RANGE,
    u32,
    SetStruct<'_, u32>
);

const IP_LOCAL_PORT_RANGE: libc::c_int = 51;

fn with_port(mut addr: SocketAddr, port: u16) -> SocketAddr {
    addr.set_port(port);
    addr
}

/// The system's range of client ports.
#[derive(Debug)]
struct Ports {
    range: RangeInclusive<u16>,
    reserved: Vec<RangeInclusive<u16>>,
}

impl Ports {
    /// `from` with a random port; `None` if that is reserved or would be the destination itself.
    fn draw(&self, from: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
        let (first, last) = (u64::from(*self.range.start()), u64::from(*self.range.end()));
        let random = u64::from_ne_bytes(crate::random::bytes().ok()?);
        let port = u16::try_from(first + random % (last + 1 - first)).ok()?;
        let local = with_port(from, port);
        let is_reserved = self.reserved.iter().any(|range| range.contains(&port));
        (!is_reserved && !is_itself(local, to)).then_some(local)
    }
}

/// The ports of the system, as they were when they could first be read; `None` while they cannot,
/// as without a descriptor.
fn ports() -> Option<&'static Ports> {
    static PORTS: OnceLock<Ports> = OnceLock::new();
    if let Some(known) = PORTS.get() {
        return Some(known);
    }
    let read = read_ports()?;
    Some(PORTS.get_or_init(|| read))
}

fn read_ports() -> Option<Ports> {
    let read = |name| std::fs::read_to_string(format!("/proc/sys/net/ipv4/{name}"));
    let range = read("ip_local_port_range").ok()?;
    let mut ends = range.split_whitespace().map(str::parse);
    let (first, last) = (ends.next()?.ok()?, ends.next()?.ok()?);
    let reserved = match read("ip_local_reserved_ports") {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return None,
        reserved => reserved.unwrap_or_default(),
    };
    let reserved = reserved.trim().split(',').filter_map(port_range).collect();
    (0 < first && first <= last).then_some(Ports {
        range: first..=last,
        reserved,
    })
}

/// `a` or `a-b`.
fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// Random ports tried for exclusive use. Nine of ten may be in use before sharing gets likely.
const EXCLUSIVE_DRAWS: u32 = 16;

/// Random ports tried for shared use (`SO_REUSEADDR`) where the kernel has no range for a socket.
/// Listeners and sockets without that option block them.
const SHARED_DRAWS: u32 = 16;

/// Ports tried in all, when shared ports turn out to have a connection to the same destination, or
/// sockets that were bound explicitly. The last one is searched.
const ATTEMPTS: u32 = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_is_drawn_that_is_neither_reserved_nor_the_destination_itself() {
        let address = |ip: [u8; 4], port| SocketAddr::from((ip, port));
        let ports = Ports {
            range: 40_000..=40_002,
            reserved: vec![40_002..=40_002],
        };
        let own = [127, 0, 0, 1];
        let drawn = |to| {
            (0..200)
                .filter_map(|_| ports.draw(address(own, 0), to))
                .collect::<Vec<_>>()
        };
        for to in [address(own, 40_000), address([0; 4], 40_000)] {
            let mut locals = drawn(to);
            locals.dedup();
            assert_eq!(locals, [address(own, 40_001)], "{to}");
        }
        let of_another_host = drawn(address([127, 0, 0, 2], 40_000));
        assert!(of_another_host.contains(&address(own, 40_000)));
    }
}
