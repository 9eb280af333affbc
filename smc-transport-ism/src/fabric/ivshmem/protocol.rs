//! The protocol of an ivshmem server: numbers of 64 bits, little-endian, some of them with a
//! descriptor.
//!
//! ```text
//! version 0 | own id | -1 + memory | for every other: id + eventfd | own id + own eventfd
//! later:  id + eventfd   a client has joined
//!         id             a client has left
//! ```

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use smc_ipc::channel;
use smc_ipc::passed::{Passed, PeerFile, PeerSocket};

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
    match channel::send(socket, &number.to_le_bytes(), descriptor.as_slice())? {
        LEN => Ok(()),
        // The rest of a number cannot be sent later.
        _ => Err(Errno::AGAIN),
    }
}

/// Assembles numbers from received bytes.
#[derive(Debug, Default)]
pub(super) struct Reader {
    bytes: [u8; LEN],
    have: usize,
    descriptor: Option<PeerFile>,
}

/// The result of a receive.
#[derive(Debug)]
pub(super) enum ReceivedNumber {
    Number(i64, Option<PeerFile>),
    /// No complete number yet.
    Nothing,
    Closed,
}

impl Reader {
    /// Receives a number without blocking.
    pub(super) fn receive(&mut self, socket: &PeerSocket) -> ReceivedNumber {
        loop {
            let rest = &mut self.bytes[self.have..];
            match channel::receive(socket, rest, 1) {
                channel::Received::Packet(bytes, passed) => {
                    self.have += bytes.len();
                    for passed in passed {
                        if let Passed::File(file) = passed {
                            self.descriptor = Some(file);
                        }
                    }
                }
                channel::Received::Nothing => return ReceivedNumber::Nothing,
                channel::Received::Closed | channel::Received::Invalid => {
                    return ReceivedNumber::Closed;
                }
            }
            if self.have >= LEN {
                self.have = 0;
                let number = i64::from_le_bytes(self.bytes);
                return ReceivedNumber::Number(number, self.descriptor.take());
            }
        }
    }
}

const LEN: usize = 8;

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
    use smc_ipc::doorbell::new_eventfd;

    use super::*;

    #[test]
    fn numbers_arrive_with_their_descriptors() {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (sender, receiver) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let receiver = PeerSocket::from(receiver);
        let eventfd = new_eventfd().unwrap();
        let mut reader = Reader::default();
        assert!(matches!(reader.receive(&receiver), ReceivedNumber::Nothing));
        send(&sender, VERSION, None).unwrap();
        send(&sender, 7, Some(eventfd.as_fd())).unwrap();
        send(&sender, 7, None).unwrap();
        // Half of a number.
        let half = rustix::net::send(&sender, &MEMORY.to_le_bytes()[..3], SendFlags::empty());
        assert_eq!(half, Ok(3));
        assert!(matches!(
            reader.receive(&receiver),
            ReceivedNumber::Number(0, None)
        ));
        assert!(matches!(
            reader.receive(&receiver),
            ReceivedNumber::Number(7, Some(_))
        ));
        assert!(matches!(
            reader.receive(&receiver),
            ReceivedNumber::Number(7, None)
        ));
        assert!(matches!(reader.receive(&receiver), ReceivedNumber::Nothing));
        rustix::net::send(&sender, &MEMORY.to_le_bytes()[3..], SendFlags::empty()).unwrap();
        assert!(matches!(
            reader.receive(&receiver),
            ReceivedNumber::Number(MEMORY, None)
        ));
        drop(sender);
        assert!(matches!(reader.receive(&receiver), ReceivedNumber::Closed));
    }
}
