//! `SOCK_SEQPACKET` sockets between client and listener.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::io::negotiate::passed::{self, Passed, PeerSocket};

/// Sends a packet and perhaps a descriptor, if there is space for it now.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    packet: &[u8],
    passed: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    let Some(passed) = passed else {
        return rustix::net::send(fd, packet, flags).map(drop);
    };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [passed];
    if !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return Err(Errno::NOBUFS);
    }
    rustix::net::sendmsg(fd, &[IoSlice::new(packet)], &mut control, flags).map(drop)
}

/// The result of a receive call.
#[derive(Debug)]
pub(super) enum Received<'a> {
    Packet(&'a [u8], Option<OwnedFd>),
    /// Nothing now.
    Empty,
    /// The end of the connection, or an invalid packet.
    End,
}

/// Receives a packet, if there is one now. A descriptor that cannot be a mailbox is the end.
pub(super) fn receive<'a>(socket: &PeerSocket, buf: &'a mut [u8]) -> Received<'a> {
    let packet = match passed::receive(socket, buf) {
        Ok(packet) if packet.is_overloaded(1) => return Received::End,
        Ok(packet) => packet,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Empty,
        Err(_) => return Received::End,
    };
    let last = packet.passed.into_iter().next_back();
    let passed = last.and_then(|passed| match passed {
        Passed::File(file) => Some(file),
        Passed::Unsuitable | Passed::Lost => None,
    });
    match buf.get(..packet.len) {
        Some(bytes) if packet.len > 0 && !packet.is_cut => Received::Packet(bytes, passed),
        _ => Received::End,
    }
}

/// Packets that were there together, so that the queue may have been full, which loses
/// notifications: all waiting tasks are woken then. A queue holds several times as many.
pub(super) const MANY: usize = 16;
