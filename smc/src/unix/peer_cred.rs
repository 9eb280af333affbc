//! The process at the other end of a UNIX socket.

use std::io;
use std::os::fd::BorrowedFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// The process at the other end of a UNIX socket, as the system reports it (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCred {
    uid: u32,
    gid: u32,
    pid: Option<i32>,
}

impl PeerCred {
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let peer = getsockopt(&socket, PeerCredentials)?;
        Ok(Self {
            uid: peer.uid(),
            gid: peer.gid(),
            pid: Some(peer.pid()).filter(|pid| *pid != 0),
        })
    }

    /// The effective user.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The effective group.
    #[must_use]
    pub fn gid(&self) -> u32 {
        self.gid
    }

    /// The process; `None` if it has no number in this PID namespace.
    #[must_use]
    pub fn pid(&self) -> Option<i32> {
        self.pid
    }
}
