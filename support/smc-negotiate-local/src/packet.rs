//! `SOCK_SEQPACKET` sockets between client and listener.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use smc_ipc::channel;
use smc_ipc::passed::{Passed, PeerFile, PeerSocket};

/// Sends a packet and perhaps a descriptor, if there is space for it now.
pub(super) fn send(
    fd: BorrowedFd<'_>,
    packet: &[u8],
    passed: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    channel::send(fd, packet, passed.as_slice()).map(drop)
}

/// The result of a receive call.
#[derive(Debug)]
pub(super) enum Received<'a> {
    Packet(&'a [u8], Option<PeerFile>),
    /// Nothing now.
    Empty,
    /// The end of the connection, or an invalid packet.
    End,
}

/// Receives a packet, if there is one now. A descriptor that cannot be a mailbox is the end.
pub(super) fn receive<'a>(socket: &PeerSocket, buf: &'a mut [u8]) -> Received<'a> {
    match channel::receive(socket, buf, 1) {
        channel::Received::Packet(bytes, passed) => {
            let file = passed.into_iter().find_map(|passed| match passed {
                Passed::File(file) => Some(file),
                _ => None,
            });
            Received::Packet(bytes, file)
        }
        channel::Received::Nothing => Received::Empty,
        channel::Received::Closed | channel::Received::Invalid => Received::End,
    }
}

/// Packets that were there together, so that the queue may have been full, which loses
/// notifications: all waiting tasks are woken then. A queue holds several times as many.
pub(super) const MANY: usize = 16;
