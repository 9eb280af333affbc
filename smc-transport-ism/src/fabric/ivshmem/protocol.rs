//! The protocol of an ivshmem server: numbers of 64 bits, little-endian, some of them with a
//! descriptor.
//!
//! ```text
//! version 0 | own id | -1 + memory | for every other: id + eventfd | own id + own eventfd
//! later:  id + eventfd   a client has joined
//!         id             a client has left
//! ```

use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use smc_core::io::negotiate::passed::{self, Passed, PeerSocket};

/// The only version of the protocol.
pub(super) const VERSION: i64 = 0;
/// Instead of an id, with the memory.
pub(super) const MEMORY: i64 = -1;

/// Sends a number, without blocking; `AGAIN` if the socket has no space.
pub(super) fn send(
    socket: impl AsFd,
    number: i64,
    descriptor: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let descriptor = descriptor.as_slice();
    if !descriptor.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptor)) {
        return Err(Errno::INVAL);
    }
    let bytes = number.to_le_bytes();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    loop {
        match sendmsg(&socket, &[IoSlice::new(&bytes)], &mut ancillary, flags) {
            Ok(LEN) => return Ok(()),
            // The rest of a number cannot be sent later.
            Ok(_) => return Err(Errno::AGAIN),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Assembles numbers from received bytes.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bytes: [u8; LEN],
    have: usize,
    descriptor: Option<OwnedFd>,
}

/// The result of a receive.
#[derive(Debug)]
pub(super) enum Received {
    Number(i64, Option<OwnedFd>),
    /// No complete number yet.
    Nothing,
    Closed,
}

impl Reader {
    /// Receives a number without blocking.
    pub(super) fn receive(&mut self, socket: &PeerSocket) -> Received {
        loop {
            let packet = match passed::receive(socket, &mut self.bytes[self.have..]) {
                Ok(packet) if packet.is_overloaded(1) => return Received::Closed,
                Ok(packet) => packet,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::Nothing,
                Err(_) => return Received::Closed,
            };
            for passed in packet.passed {
                if let Passed::File(file) = passed {
                    self.descriptor = Some(file);
                }
            }
            if packet.len == 0 {
                return Received::Closed;
            }
            self.have += packet.len;
            if self.have >= LEN {
                self.have = 0;
                let number = i64::from_le_bytes(self.bytes);
                return Received::Number(number, self.descriptor.take());
            }
        }
    }
}

const LEN: usize = 8;

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    use super::*;
    use crate::fabric::doorbell::new_eventfd;

    #[test]
    fn numbers_arrive_with_their_descriptors() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (sender, receiver) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let receiver = PeerSocket::from(receiver);
        let eventfd = new_eventfd().unwrap();
        let mut reader = Reader::default();
        assert!(matches!(reader.receive(&receiver), Received::Nothing));
        send(&sender, VERSION, None).unwrap();
        send(&sender, 7, Some(eventfd.as_fd())).unwrap();
        send(&sender, 7, None).unwrap();
        // Half of a number.
        let half = rustix::net::send(&sender, &MEMORY.to_le_bytes()[..3], SendFlags::empty());
        assert_eq!(half, Ok(3));
        assert!(matches!(
            reader.receive(&receiver),
            Received::Number(0, None)
        ));
        assert!(matches!(
            reader.receive(&receiver),
            Received::Number(7, Some(_))
        ));
        assert!(matches!(
            reader.receive(&receiver),
            Received::Number(7, None)
        ));
        assert!(matches!(reader.receive(&receiver), Received::Nothing));
        rustix::net::send(&sender, &MEMORY.to_le_bytes()[3..], SendFlags::empty()).unwrap();
        assert!(matches!(
            reader.receive(&receiver),
            Received::Number(MEMORY, None)
        ));
        drop(sender);
        assert!(matches!(reader.receive(&receiver), Received::Closed));
    }
}
