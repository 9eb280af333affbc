use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// Who is at the other end of a connected UNIX socket (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// Effective user when the connection was made.
    pub uid: u32,
    /// The process; 0 if it has no number in our PID namespace, as in another container.
    pub pid: i32,
}

impl Credentials {
    /// Of the process that connected, or that listened on what we connected to.
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`.
    pub fn of_peer(socket: &impl AsFd) -> io::Result<Self> {
        // Not rustix's: it has no way to say that there is no process number.
        let peer = getsockopt(socket, PeerCredentials)?;
        Ok(Self {
            uid: peer.uid(),
            pid: peer.pid(),
        })
    }

    /// Whether both may be the same process; across PID namespaces only the user can be compared.
    #[must_use]
    pub fn is_same_process(self, other: Self) -> bool {
        self.uid == other.uid && (self.pid == other.pid || self.pid == 0 || other.pid == 0)
    }
}
