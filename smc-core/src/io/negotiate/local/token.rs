//! Who may decide about an announcement: the right to do so exists once.
//!
//! An announcement travels with a descriptor that holds one token, an `eventfd` with the value 1.
//! The listener that wants to answer takes it, the client that does not want to wait any longer
//! takes it, and the kernel lets only one of them have it. So taking an announcement back needs
//! nobody's help, a listener that is busy or stopped does not hold a client up, and of several
//! listeners that got an announcement only one can answer.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, ReadWriteFlags};

/// One announcement's token, or what is left of it.
#[derive(Debug)]
pub(super) struct Token(OwnedFd);

impl Token {
    /// A new one, not taken.
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(eventfd(
            1,
            EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
        )?))
    }

    /// One that came with an announcement.
    pub(super) fn received(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Takes it; whether it was still there.
    ///
    /// Never waits, whatever the descriptor really is: a sender cannot switch that off. Kernels
    /// before 5.8 cannot read an `eventfd` like that; there nobody ever takes a token.
    pub(super) fn take(&self) -> bool {
        let mut value = [0; 8];
        let at_position = u64::MAX;
        loop {
            let buf = &mut [IoSliceMut::new(&mut value)];
            match rustix::io::preadv2(&self.0, buf, at_position, ReadWriteFlags::NOWAIT) {
                Err(Errno::INTR) => {}
                result => return result == Ok(8) && u64::from_ne_bytes(value) == 1,
            }
        }
    }
}

impl AsFd for Token {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_two_gets_it() {
        let client = Token::new().unwrap();
        let listener = Token::received(client.as_fd().try_clone_to_owned().unwrap());
        assert!(listener.take());
        assert!(!client.take());
        assert!(!listener.take());
    }

    #[test]
    fn a_false_token_does_not_block() {
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        assert!(!Token::received(socket.into()).take());
        let blocking = eventfd(0, EventfdFlags::empty()).unwrap();
        assert!(!Token::received(blocking).take());
    }
}
