//! What an ivshmem server and its clients say: numbers of 64 bits, little-endian, some of them with
//! a descriptor.
//!
//! ```text
//! version 0 | own id | -1 + memory | for every other: id + eventfd | own id + own eventfd
//! later:  id + eventfd   somebody came
//!         id             somebody went
//! ```

use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use smc_core::io::negotiate::passed::{self, Passed, PeerSocket};

/// The version of the protocol; there is no other.
pub(super) const VERSION: i64 = 0;
/// Instead of an id, with the memory.
pub(super) const MEMORY: i64 = -1;

/// Sends a number, without waiting; `AGAIN` if there is no room.
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
            // What is left of a number cannot be said later.
            Ok(_) => return Err(Errno::AGAIN),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Puts numbers together out of what comes.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bytes: [u8; LEN],
    have: usize,
    descriptor: Option<OwnedFd>,
}

/// What a connection had to give.
#[derive(Debug)]
pub(super) enum Heard {
    Number(i64, Option<OwnedFd>),
    /// Nothing now.
    Nothing,
    Closed,
}

impl Reader {
    /// Receives a number without waiting.
    pub(super) fn receive(&mut self, socket: &PeerSocket) -> Heard {
        loop {
            let packet = match passed::receive(socket, &mut self.bytes[self.have..]) {
                Ok(packet) if packet.is_overloaded(1) => return Heard::Closed,
                Ok(packet) => packet,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Heard::Nothing,
                Err(_) => return Heard::Closed,
            };
            for passed in packet.passed {
                if let Passed::File(file) = passed {
                    self.descriptor = Some(file);
                }
            }
            if packet.len == 0 {
                return Heard::Closed;
            }
            self.have += packet.len;
            if self.have >= LEN {
                self.have = 0;
                let number = i64::from_le_bytes(self.bytes);
                return Heard::Number(number, self.descriptor.take());
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
        let (talker, listener) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let listener = PeerSocket::from(listener);
        let eventfd = new_eventfd().unwrap();
        let mut reader = Reader::default();
        assert!(matches!(reader.receive(&listener), Heard::Nothing));
        send(&talker, VERSION, None).unwrap();
        send(&talker, 7, Some(eventfd.as_fd())).unwrap();
        send(&talker, 7, None).unwrap();
        // Half of a number.
        let half = rustix::net::send(&talker, &MEMORY.to_le_bytes()[..3], SendFlags::empty());
        assert_eq!(half, Ok(3));
        assert!(matches!(reader.receive(&listener), Heard::Number(0, None)));
        assert!(matches!(
            reader.receive(&listener),
            Heard::Number(7, Some(_))
        ));
        assert!(matches!(reader.receive(&listener), Heard::Number(7, None)));
        assert!(matches!(reader.receive(&listener), Heard::Nothing));
        rustix::net::send(&talker, &MEMORY.to_le_bytes()[3..], SendFlags::empty()).unwrap();
        assert!(matches!(
            reader.receive(&listener),
            Heard::Number(MEMORY, None)
        ));
        drop(talker);
        assert!(matches!(reader.receive(&listener), Heard::Closed));
    }
}
