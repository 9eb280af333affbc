//! Sockets of the kernel: AF_SMC and TCP, which differ in the family only.

use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr};

use nix::libc;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::{SetStruct, TcpFastOpenConnect};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::Carrier;
use super::connection::{Connection, Listener};
use crate::guest::smc;
use crate::protocol::SocketMode;

/// Which sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sockets {
    Smc,
    Tcp,
    /// The first data is in the SYN, once there is a cookie.
    TcpFastOpen,
}

impl Sockets {
    pub(crate) fn connect(self, to: SocketAddr) -> io::Result<KernelSocket> {
        let socket = self.socket(to)?;
        if self == Self::TcpFastOpen {
            setsockopt(&socket, TcpFastOpenConnect, &true)?;
        }
        socket.connect(&SockAddr::from(to))?;
        // Urgent data is part of the pattern.
        socket.set_out_of_band_inline(true)?;
        Ok(KernelSocket::new(socket, self))
    }

    pub(crate) fn listen(self, at: SocketAddr) -> io::Result<KernelSocket> {
        let socket = self.socket(at)?;
        socket.set_reuse_address(true)?;
        socket.bind(&SockAddr::from(at))?;
        if self == Self::TcpFastOpen {
            setsockopt(&socket, TcpFastOpen, &BACKLOG)?;
        }
        socket.listen(BACKLOG)?;
        Ok(KernelSocket::new(socket, self))
    }

    fn socket(self, addr: SocketAddr) -> io::Result<Socket> {
        match self {
            // Protocol 0 is SMC over IPv4, 1 over IPv6.
            Self::Smc => Socket::new(
                Domain::from(AF_SMC),
                Type::STREAM,
                Some(Protocol::from(i32::from(addr.is_ipv6()))),
            ),
            Self::Tcp | Self::TcpFastOpen => {
                Socket::new(Domain::for_address(addr), Type::STREAM, None)
            }
        }
    }
}

/// A connection, or a socket that listens for them.
pub(crate) struct KernelSocket {
    socket: Socket,
    family: Sockets,
}

impl KernelSocket {
    fn new(socket: Socket, family: Sockets) -> Self {
        Self { socket, family }
    }
}

impl Listener for KernelSocket {
    fn accept(&self) -> io::Result<Box<dyn Connection>> {
        let (socket, _) = self.socket.accept()?;
        socket.set_out_of_band_inline(true)?;
        Ok(Box::new(Self::new(socket, self.family)))
    }
}

impl Connection for KernelSocket {
    fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        (&self.socket).read(buf)
    }

    fn write(&self, buf: &[u8]) -> io::Result<usize> {
        (&self.socket).write(buf)
    }

    fn peek(&self) -> io::Result<()> {
        let mut byte = [std::mem::MaybeUninit::uninit()];
        self.socket.peek(&mut byte).map(drop)
    }

    fn urgent(&self, byte: u8) -> io::Result<()> {
        self.socket.send_out_of_band(&[byte]).map(drop)
    }

    fn finish(&self) -> io::Result<()> {
        self.socket.shutdown(Shutdown::Write)
    }

    fn share(&self) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(Self::new(self.socket.try_clone()?, self.family)))
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        inet(&self.socket.local_addr()?)
    }

    fn peer_addr(&self) -> io::Result<SocketAddr> {
        inet(&self.socket.peer_addr()?)
    }

    fn carrier(&self) -> io::Result<Carrier> {
        if self.family != Sockets::Smc {
            return Ok(Carrier {
                mode: SocketMode::Tcp,
                reason: 0,
                peer_reason: 0,
            });
        }
        let (local, peer) = (self.local_addr()?.port(), self.peer_addr()?.port());
        let all = smc::sockets()?;
        let found = all
            .iter()
            .find(|socket| socket.local_port == local && socket.peer_port == peer);
        let found = found.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        Ok(Carrier {
            mode: found.mode,
            reason: found.reason,
            peer_reason: found.peer_reason,
        })
    }

    fn is_broken(&self, read: &io::Result<usize>) -> bool {
        match read {
            // AF_SMC ends the stream without an error when the peer aborted.
            Ok(0) => self.family == Sockets::Smc,
            Ok(_) => false,
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted
            ),
        }
    }
}

fn inet(addr: &SockAddr) -> io::Result<SocketAddr> {
    addr.as_socket()
        .ok_or_else(|| io::Error::other("not an IP address"))
}

/// Data in the SYN for a listener.
#[derive(Clone, Copy, Debug)]
struct TcpFastOpen;

nix::setsockopt_impl!(
    TcpFastOpen,
    libc::IPPROTO_TCP,
    libc::TCP_FASTOPEN,
    libc::c_int,
    SetStruct<'_, libc::c_int>
);

const AF_SMC: i32 = 43;

const BACKLOG: i32 = 1024;
