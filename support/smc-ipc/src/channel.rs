//! Packets between two processes, with the descriptors that they pass. Nothing here waits.

use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use crate::passed::{self, Passed, PeerSocket};

/// Sends a packet, and some descriptors with it, if there is space now. Returns its length;
/// of a stream socket fewer bytes may be sent.
///
/// # Errors
///
/// As `sendmsg(2)`; `AGAIN` if there is no space, `INVAL` if there are more descriptors than any
/// protocol here passes.
pub fn send(
    socket: impl AsFd,
    packet: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> Result<usize, Errno> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    if descriptors.is_empty() {
        return retry_on_intr(|| rustix::net::send(&socket, packet, flags));
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL);
    }
    let packet = [IoSlice::new(packet)];
    retry_on_intr(|| sendmsg(&socket, &packet, &mut control, flags))
}

/// What was received.
#[derive(Debug)]
#[expect(
    clippy::exhaustive_enums,
    reason = "each receiver has to handle all of them"
)]
pub enum Received<'a> {
    /// A packet that is not empty, and the descriptors that came with it, in order.
    Packet(&'a [u8], Vec<Passed>),
    /// Nothing now.
    Nothing,
    /// The end of the connection: the other side has closed it, its process has ended, or nothing
    /// more is [received](passed::receive) from its user.
    Closed,
    /// A packet that is longer than the buffer, or came with too many descriptors or with one of
    /// another kind than any protocol here passes.
    Invalid,
}

/// Receives a packet with at most so many descriptors, or bytes of a stream. The connection has to
/// be ended after [`Received::Closed`] and [`Received::Invalid`].
pub fn receive<'a>(
    socket: &PeerSocket,
    buf: &'a mut [u8],
    most_descriptors: usize,
) -> Received<'a> {
    let packet = match passed::receive(socket, buf) {
        Ok(packet) => packet,
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Received::Nothing,
        Err(_) => return Received::Closed,
    };
    match buf.get(..packet.len) {
        _ if packet.is_overloaded(most_descriptors) || packet.is_cut => Received::Invalid,
        Some(bytes) if !bytes.is_empty() => Received::Packet(bytes, packet.passed),
        _ => Received::Closed,
    }
}

/// Space for descriptors, more than any protocol here passes.
const MAX_DESCRIPTORS: usize = 4;

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::doorbell::new_eventfd;

    fn pair() -> (OwnedFd, PeerSocket) {
        let (sender, receiver) = smc_testkit::unix::pair();
        (sender, receiver.into())
    }

    #[test]
    fn packets_arrive_whole_and_in_order_with_their_descriptors() {
        let (sender, receiver) = pair();
        let eventfd = new_eventfd().unwrap();
        let two = [eventfd.as_fd(); 2];
        for (packet, descriptors) in [("first", &two[..]), ("second", &[]), ("third", &two[..1])] {
            assert_eq!(
                send(&sender, packet.as_bytes(), descriptors),
                Ok(packet.len())
            );
        }
        let mut buf = [0; 16];
        for (packet, count) in [("first", 2), ("second", 0), ("third", 1)] {
            match receive(&receiver, &mut buf, 2) {
                Received::Packet(bytes, passed) => {
                    assert_eq!((bytes, passed.len()), (packet.as_bytes(), count));
                    assert!(passed.iter().all(|it| matches!(it, Passed::File(_))));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(receive(&receiver, &mut buf, 2), Received::Nothing));
        drop(sender);
        assert!(matches!(receive(&receiver, &mut buf, 2), Received::Closed));
    }

    #[test]
    fn packets_of_a_peer_that_closes_with_unread_ones_are_received() {
        let (sender, receiver) = pair();
        send(&receiver, b"unread", &[]).unwrap();
        send(&sender, b"last", &[]).unwrap();
        drop(sender);
        let mut buf = [0; 16];
        let received = receive(&receiver, &mut buf, 0);
        assert!(
            matches!(received, Received::Packet(b"last", _)),
            "{received:?}"
        );
        assert!(matches!(receive(&receiver, &mut buf, 0), Received::Closed));
    }

    #[test]
    fn packets_that_no_protocol_has_are_invalid() {
        let (sender, receiver) = pair();
        let eventfd = new_eventfd().unwrap();
        let mut buf = [0; 4];
        let mut is_invalid = |packet: &[u8], descriptors: &[BorrowedFd<'_>], most| {
            send(&sender, packet, descriptors).unwrap();
            matches!(receive(&receiver, &mut buf, most), Received::Invalid)
        };
        assert!(is_invalid(b"long!", &[], 0));
        assert!(is_invalid(b"x", &[eventfd.as_fd()], 0));
        assert!(is_invalid(b"x", &[eventfd.as_fd(); 2], 1));
        assert!(is_invalid(b"x", &[sender.as_fd()], 1), "another kind");
        assert!(!is_invalid(b"four", &[eventfd.as_fd()], 1));
        assert_eq!(
            send(&sender, b"x", &[eventfd.as_fd(); 16]),
            Err(Errno::INVAL)
        );
    }
}
