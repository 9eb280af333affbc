//! Descriptors whose closing waits, as a hostile peer can pass them.

use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};

/// A UNIX socket, and a TCP connection: until that is dropped, the last close of the socket waits.
///
/// In the queue of the socket is the other end of the connection, which lingers: the data that it has sent
/// is not read.
///
/// # Errors
///
/// As the calls that make sockets.
pub fn slow_to_close() -> io::Result<(OwnedFd, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    near.set_nonblocking(true)?;
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false)?;
    set_socket_linger(&near, Some(LINGER))?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (inside, outside) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let near = [near.as_fd()];
    control.push(SendAncillaryMessage::ScmRights(&near));
    let flags = SendFlags::NOSIGNAL;
    sendmsg(&inside, &[IoSlice::new(b"x")], &mut control, flags)?;
    Ok((outside, far))
}

/// Longer than any test takes.
const LINGER: Duration = Duration::from_secs(600);
