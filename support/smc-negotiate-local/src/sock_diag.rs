//! Queries of the kernel for the socket with given addresses (`sock_diag(7)`).
//!
//! The answer contains the socket's cookie, a number that no other socket of this boot has, and its
//! owner. A listener verifies that a connection comes from exactly the socket that was announced. A
//! client finds out which of several listeners will get its connection, and its owner. Exact
//! queries cost the same however many sockets there are, and need no privilege.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrAny, SocketFlags, SocketType, connect, recv,
    send, socket_with,
};

/// A netlink socket, for the network namespace in which it was opened.
#[derive(Debug)]
pub(super) struct SockDiag {
    fd: OwnedFd,
    sequence: u32,
}

/// The kernel's report of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SocketInfo {
    pub(super) cookie: u64,
    pub(super) uid: u32,
    /// One of `TCP_*`.
    pub(super) state: u8,
    /// Of the socket's file; 0 when its process has closed it.
    pub(super) inode: u32,
}

impl SocketInfo {
    pub(super) fn is_listening(&self) -> bool {
        self.state == TCP_LISTEN
    }

    /// Whether another socket has answered it, or has connected to it, and not ended since.
    pub(super) fn has_peer(&self) -> bool {
        !matches!(self.state, TCP_LISTEN | TCP_SYN_SENT | TCP_CLOSE) && !self.is_time_wait()
    }

    /// Whether it is what the kernel keeps of a connection that has ended. A new connection between
    /// the same addresses replaces it.
    pub(super) fn is_time_wait(&self) -> bool {
        self.state == TCP_TIME_WAIT || self.state == TCP_FIN_WAIT2 && self.is_closed()
    }

    pub(super) fn is_established(&self) -> bool {
        self.state == TCP_ESTABLISHED
    }

    /// Whether no process has it open. The kernel may have forgotten cookie and owner (TIME-WAIT).
    pub(super) fn is_closed(&self) -> bool {
        self.inode == 0
    }
}

impl SockDiag {
    pub(super) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let protocol = Some(netlink::SOCK_DIAG);
        let fd = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, protocol)?;
        // From then on only messages of the kernel are received.
        connect(&fd, &SocketAddrNetlink::new(0, 0))?;
        Ok(Self { fd, sequence: 0 })
    }

    /// The TCP socket at `local` that is connected to `peer`, else the listening socket that a
    /// connection from `peer` to `local` would go to.
    ///
    /// # Errors
    ///
    /// When the kernel does not report it.
    pub(super) fn find(
        &mut self,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> io::Result<Option<SocketInfo>> {
        self.sequence = self.sequence.wrapping_add(1);
        let request = request(self.sequence, local, peer);
        send(&self.fd, &request, SendFlags::empty())?;
        // The kernel answers before `send` returns. The answer to an earlier query that failed half
        // way may be in front.
        for _ in 0..4 {
            let mut answer = [0; 512];
            let (len, _) = recv(&self.fd, &mut answer[..], RecvFlags::DONTWAIT)?;
            let answer = answer.get(..len).unwrap_or_default();
            if number(answer, 8) == Some(self.sequence) {
                return parse(answer);
            }
        }
        Err(io::ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
impl SockDiag {
    /// The number of queries so far.
    pub(super) fn queries(&self) -> u32 {
        self.sequence
    }
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
fn request(sequence: u32, local: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let family = SocketAddrAny::from(local).address_family();
    let [family, _] = family.as_raw().to_le_bytes();
    [
        &72_u32.to_ne_bytes()[..],
        &SOCK_DIAG_BY_FAMILY.to_ne_bytes(),
        &NLM_F_REQUEST.to_ne_bytes(),
        &sequence.to_ne_bytes(),
        &[0; 4],
        &[family, IPPROTO_TCP, 0, 0],
        &u32::MAX.to_ne_bytes(), // any state
        &local.port().to_be_bytes(),
        &peer.port().to_be_bytes(),
        &padded(local.ip()),
        &padded(peer.ip()),
        &[0; 4],    // any interface
        &[0xff; 8], // any cookie
    ]
    .concat()
}

fn padded(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => {
            let [a, b, c, d] = ip.octets();
            [a, b, c, d, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
        }
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// `struct nlmsghdr` and `struct inet_diag_msg`, or an error number.
fn parse(answer: &[u8]) -> io::Result<Option<SocketInfo>> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = answer
        .get(4..)
        .and_then(<[u8]>::first_chunk)
        .ok_or_else(invalid)?;
    if u16::from_ne_bytes(*kind) == NLMSG_ERROR {
        let code = number(answer, 16).ok_or_else(invalid)?.wrapping_neg();
        let error = io::Error::from_raw_os_error(i32::try_from(code).map_err(|_| invalid())?);
        return match error.kind() {
            io::ErrorKind::NotFound => Ok(None),
            _ => Err(error),
        };
    }
    let field = |at| number(answer, at).ok_or_else(invalid);
    let (low, high) = (field(16 + 44)?, field(16 + 48)?);
    let [_, state, _, _] = field(16)?.to_ne_bytes();
    Ok(Some(SocketInfo {
        cookie: u64::from(high) << 32 | u64::from(low),
        uid: field(16 + 64)?,
        state,
        inode: field(16 + 68)?,
    }))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..)?
        .first_chunk()
        .copied()
        .map(u32::from_ne_bytes)
}

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
const TCP_SYN_SENT: u8 = 2;
const TCP_FIN_WAIT2: u8 = 5;
const TCP_TIME_WAIT: u8 = 6;
const TCP_CLOSE: u8 = 7;
pub(super) const TCP_LISTEN: u8 = 10;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};

    use rustix::io::Errno;
    use rustix::net::sockopt::socket_cookie;
    use rustix::net::{getsockname, sendto};
    use smc_testkit::port::HeldPort;

    use super::*;

    #[test]
    fn nothing_but_the_kernel_answers() {
        let diag = SockDiag::open().unwrap();
        let own: SocketAddrNetlink = getsockname(&diag.fd).unwrap().try_into().unwrap();
        let other = socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        );
        let sent = sendto(other.unwrap(), b"forged", SendFlags::empty(), &own);
        if sent == Err(Errno::PERM) {
            return println!("skipped: why: needs CAP_NET_ADMIN to send to another process");
        }
        assert_eq!(sent, Err(Errno::CONNREFUSED));
    }

    #[test]
    fn both_ends_and_the_listener_are_found() {
        for ip in [
            Ipv4Addr::LOCALHOST.into(),
            IpAddr::from(Ipv6Addr::LOCALHOST),
        ] {
            let mut diag = SockDiag::open().unwrap();
            // Held, so that nothing else listens there when the listener is gone.
            let port = HeldPort::of(ip).unwrap();
            let to = port.addr();
            let listener = TcpListener::bind(to).unwrap();
            let from: SocketAddr = SocketAddr::new(to.ip(), 1);
            let found = match diag.find(to, from) {
                Ok(found) => found.unwrap(),
                Err(error) => return println!("skipped: why: no sock_diag here: {error}"),
            };
            assert_eq!(found.state, TCP_LISTEN);
            assert_eq!(found.cookie, socket_cookie(&listener).unwrap());

            let client = TcpStream::connect(to).unwrap();
            let from = client.local_addr().unwrap();
            let found = diag.find(from, to).unwrap().unwrap();
            assert_eq!(found.state, TCP_ESTABLISHED);
            assert_eq!(found.cookie, socket_cookie(&client).unwrap());
            assert_eq!(found.uid, rustix::process::geteuid().as_raw());

            let (server, _) = listener.accept().unwrap();
            let found = diag.find(to, from).unwrap().unwrap();
            assert_eq!(found.cookie, socket_cookie(&server).unwrap());

            drop((client, server, listener));
            assert_eq!(diag.find(to, SocketAddr::new(to.ip(), 1)).unwrap(), None);
        }
    }
}
