//! TCP ports that a test can come back to.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// A TCP port that the kernel gives to no other socket while this lives.
///
/// A test that lets go of a port and binds it again, or that expects nothing to listen at it, races
/// with every process of the machine that binds port 0 or connects. This holds the port by a socket
/// that is bound and does not listen:
///
/// - the kernel picks the port for no `bind` to port 0 and for no `connect`;
/// - a connection to it is refused;
/// - a socket with `SO_REUSEADDR`, as [`std::net::TcpListener`] and the listeners of `smc` set
///   it, can be bound to exactly this port, listen, be closed, and be bound again.
///
/// Linux only: elsewhere `SO_REUSEADDR` means other things.
#[derive(Debug)]
pub struct HeldPort {
    _socket: OwnedFd,
    addr: SocketAddr,
}

impl HeldPort {
    /// Holds a port of this address of the host.
    ///
    /// # Errors
    ///
    /// As `socket(2)` and `bind(2)`; `AddrInUse` if no port is free.
    pub fn of(ip: impl Into<IpAddr>) -> io::Result<Self> {
        let ip = ip.into();
        let family = match ip {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        rustix::net::bind(&socket, &SocketAddr::new(ip, 0))?;
        let addr = rustix::net::getsockname(&socket)?.try_into()?;
        Ok(Self {
            _socket: socket,
            addr,
        })
    }

    /// The address with the port that is held.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use super::*;

    #[test]
    fn a_held_port_refuses_connections_and_has_one_listener_after_another() {
        let port = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
        for _ in 0..3 {
            let refused = TcpStream::connect(port.addr()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
            let listener = TcpListener::bind(port.addr()).unwrap();
            let client = TcpStream::connect(port.addr()).unwrap();
            let (server, _) = listener.accept().unwrap();
            drop((server, client));
        }
    }
}
