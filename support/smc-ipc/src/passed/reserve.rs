//! Accepting connections when there may be no descriptor left for them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};

use super::PeerSocket;

/// A spare descriptor, released to close a connection without a descriptor (`EMFILE`, `ENFILE`).
///
/// A listening socket stays readable while a connection waits. A connection that can be neither
/// accepted nor closed would wake the listener's task again and again.
#[derive(Debug)]
pub struct Reserve(Option<OwnedFd>);

/// Why a connection was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NotAccepted {
    /// As `accept(2)`; `AGAIN` if there is none.
    pub errno: Errno,
    /// It still waits, and the listening socket stays readable: poll it later again. Else a
    /// connection for which there was no descriptor is closed, and there may be another one.
    pub is_waiting: bool,
}

impl Reserve {
    /// Takes a descriptor.
    ///
    /// # Errors
    ///
    /// When there is none left, as `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Some(take()?)))
    }

    /// Accepts a connection of a nonblocking UNIX socket. Does not wait. `allows` decides which
    /// users may be peers: see [`PeerSocket::set_allowed`]. To others another thread sends a
    /// `refusal`, if that is not empty, and ends their connections.
    ///
    /// # Errors
    ///
    /// [`NotAccepted`]. With `CONNABORTED` one is ended, as also of a user who may not be a peer,
    /// or of whom too many descriptors [wait to be closed](super::receive), and there may be
    /// another one. With `MFILE` and `NFILE` the peer sees the end of its connection, unless that
    /// still waits: another thread or process may take the released descriptor first, or the limit
    /// may be lowered.
    pub fn accept(
        &mut self,
        listener: impl AsFd,
        allows: impl FnOnce(u32) -> bool,
        refusal: impl FnOnce(u32) -> Vec<u8>,
    ) -> Result<PeerSocket, NotAccepted> {
        let errno = match accept(&listener) {
            Ok(mut socket) => {
                self.restore();
                let user = socket.user();
                if !allows(user) {
                    socket.refuse(refusal(user));
                } else {
                    socket.set_allowed();
                    if !socket.is_of_no_use() {
                        return Ok(socket);
                    }
                    drop(socket);
                }
                Errno::CONNABORTED
            }
            Err(errno) => errno,
        };
        let (errno, is_waiting) = match errno {
            Errno::AGAIN | Errno::INTR | Errno::CONNABORTED => (errno, false),
            // Without a descriptor the system does not report whether there is a connection.
            Errno::MFILE | Errno::NFILE => match self.close_next(&listener) {
                Ok(()) => (errno, self.0.is_none()),
                Err(Errno::AGAIN) => (Errno::AGAIN, false),
                Err(_) => (errno, true),
            },
            _ => (errno, true),
        };
        Err(NotAccepted { errno, is_waiting })
    }

    /// Closes the next connection in place of the reserve.
    fn close_next(&mut self, listener: impl AsFd) -> Result<(), Errno> {
        self.0 = None;
        let closed = accept(listener).map(drop);
        self.restore();
        closed
    }

    fn restore(&mut self) {
        if self.0.is_none() {
            self.0 = take().ok();
        }
    }
}

/// Accepts a connection of a UNIX socket.
///
/// # Errors
///
/// As `accept(2)`.
pub fn accept(listener: impl AsFd) -> Result<PeerSocket, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    accept_with(listener, flags).map(PeerSocket::from)
}

fn take() -> Result<OwnedFd, Errno> {
    eventfd(0, EventfdFlags::CLOEXEC)
}
