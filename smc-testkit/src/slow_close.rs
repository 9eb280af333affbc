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
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;

use crate::unix;

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

/// Passes descriptors whose closing waits to all closing threads of the own user. They wait until the
/// result is dropped.
///
/// # Panics
///
/// When a call that makes a socket fails.
#[must_use]
pub fn block_closing_threads() -> Vec<TcpStream> {
    let block = |_| {
        let (peer, ours) = unix::pair();
        let (slow, far) = slow_to_close().expect("sockets");
        send(&peer, b"x", &[slow.as_fd()]).expect("a socket that is open");
        drop(slow);
        let (ours, mut buf) = (PeerSocket::from(ours), [0; 1]);
        let is_refused = matches!(receive(&ours, &mut buf, 1), Received::Invalid);
        assert!(is_refused, "only a refused descriptor is closed there");
        far
    };
    (0..CLOSING_THREADS).map(block).collect()
}

/// Closing threads of a user.
const CLOSING_THREADS: usize = 4;

/// Longer than any test takes.
const LINGER: Duration = Duration::from_secs(600);
