//! Messages between two devices, over a UNIX socket that keeps message boundaries.
//!
//! A channel has one direction: the side that connected sends, the other side receives. Both run on
//! one host, so numbers are in native byte order. Every message has the same length:
//!
//! ```text
//! 0   "SMCL"    4  version    5  kind    6  0, 0    8  index (u32)    12  0 (u32)
//! 16  two words: Hello: GID high, GID low; Memory: number, length
//! ```

use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use smc_ipc::channel;
use smc_ipc::passed::{Passed, PeerSocket};
use smc_wire::types::Gid;

use crate::signal_page::SLOTS;

/// A message from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    /// First on a channel: the sender's GID. With its signal page and the eventfd that notifies it.
    Hello { gid: Gid },
    /// There is new memory behind a slot of the sender's signal page. With the memory file.
    Memory { index: u32, number: u64, len: u64 },
    /// A signal page has changed: the receiver scans the changed slots of the sender's page and the
    /// ready buffers of its own page.
    Notify,
}

/// Descriptors that came with a message, in order.
pub(crate) type Descriptors = [Option<Passed>; 2];

/// The result of a receive call.
#[derive(Debug)]
pub(crate) enum ReceivedMessage {
    Message(Message, Descriptors),
    /// Nothing now.
    Nothing,
    /// The other side has closed, or its process has ended.
    Closed,
    /// A message that this version does not have.
    Garbage,
}

/// Sends a message; `WOULDBLOCK` if there is no space now.
pub(crate) fn send(
    socket: impl AsFd,
    message: Message,
    descriptors: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    channel::send(socket, &message.to_bytes(), descriptors).map(drop)
}

/// Receives a message without waiting.
pub(crate) fn receive(socket: &PeerSocket) -> ReceivedMessage {
    let mut bytes = [0; LEN];
    match channel::receive(socket, &mut bytes, 2) {
        channel::Received::Packet(bytes, passed) => match Message::parse(bytes) {
            Some(message) => {
                let mut passed = passed.into_iter();
                ReceivedMessage::Message(message, [passed.next(), passed.next()])
            }
            None => ReceivedMessage::Garbage,
        },
        channel::Received::Nothing => ReceivedMessage::Nothing,
        channel::Received::Closed => ReceivedMessage::Closed,
        channel::Received::Invalid => ReceivedMessage::Garbage,
    }
}

impl Message {
    fn to_bytes(self) -> [u8; LEN] {
        let (kind, index, first, second) = match self {
            Self::Hello { gid } => (HELLO, SLOTS, gid.hi().0, gid.lo().0),
            Self::Memory { index, number, len } => (MEMORY, index, number, len),
            Self::Notify => (NOTIFY, 0, 0, 0),
        };
        let mut bytes = [0; LEN];
        bytes[..4].copy_from_slice(MAGIC);
        bytes[4] = VERSION;
        bytes[5] = kind;
        bytes[8..12].copy_from_slice(&index.to_ne_bytes());
        bytes[16..24].copy_from_slice(&first.to_ne_bytes());
        bytes[24..].copy_from_slice(&second.to_ne_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let (head, rest) = bytes.split_first_chunk::<8>()?;
        let (index, rest) = rest.split_first_chunk()?;
        let (first, second) = rest.split_at_checked(4)?.1.split_first_chunk()?;
        let index = u32::from_ne_bytes(*index);
        let first = u64::from_ne_bytes(*first);
        let second = u64::from_ne_bytes(second.try_into().ok()?);
        if head[..4] != *MAGIC || head[4] != VERSION {
            return None;
        }
        match head[5] {
            HELLO if index == SLOTS => Some(Self::Hello {
                gid: Gid::new(first, second),
            }),
            MEMORY if index < SLOTS => Some(Self::Memory {
                index,
                number: first,
                len: second,
            }),
            NOTIFY => Some(Self::Notify),
            _ => None,
        }
    }
}

const LEN: usize = 32;
const MAGIC: &[u8; 4] = b"SMCL";
const VERSION: u8 = 1;
const HELLO: u8 = 1;
const MEMORY: u8 = 2;
const NOTIFY: u8 = 3;

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use rustix::net::SendFlags;
    use smc_ipc::doorbell::new_eventfd;

    use super::*;

    fn pair() -> (OwnedFd, PeerSocket) {
        let (sender, receiver) = smc_testkit::unix::pair();
        (sender, receiver.into())
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let (sender, receiver) = pair();
        let eventfd = new_eventfd().unwrap();
        let gid = Gid::emulated(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        let messages = [
            Message::Hello { gid },
            Message::Memory {
                index: 3,
                number: 9,
                len: 1 << 16,
            },
        ];
        for message in messages {
            send(&sender, message, &[eventfd.as_fd()]).unwrap();
        }
        for message in messages {
            match receive(&receiver) {
                ReceivedMessage::Message(got, [Some(Passed::File(_)), None]) => {
                    assert_eq!(got, message)
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(matches!(receive(&receiver), ReceivedMessage::Nothing));
        drop(sender);
        assert!(matches!(receive(&receiver), ReceivedMessage::Closed));
    }

    #[test]
    fn nonsense_is_garbage() {
        let (sender, receiver) = pair();
        let good = Message::Memory {
            index: 0,
            number: 1,
            len: 2,
        }
        .to_bytes();
        let mut wrong_version = good;
        wrong_version[4] = 99;
        let mut wrong_index = good;
        wrong_index[8..12].copy_from_slice(&u32::MAX.to_ne_bytes());
        let mut wrong_kind = good;
        wrong_kind[5] = 77;
        let long = [good, good].concat();
        for bytes in [
            &wrong_version[..],
            &wrong_index,
            &wrong_kind,
            &good[1..],
            &long,
        ] {
            rustix::net::send(&sender, bytes, SendFlags::empty()).unwrap();
            assert!(
                matches!(receive(&receiver), ReceivedMessage::Garbage),
                "{bytes:?}"
            );
        }
        // Unexpected descriptors.
        let eventfd = new_eventfd().unwrap();
        for descriptors in [&[eventfd.as_fd(); 3][..], &[sender.as_fd()]] {
            send(&sender, Message::Notify, descriptors).unwrap();
            assert!(matches!(receive(&receiver), ReceivedMessage::Garbage));
        }
    }
}
