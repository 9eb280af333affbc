//! Memory files and eventfds that this process shares with peers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::fcntl_get_seals;

use super::closing::{Content, Share, close_elsewhere};
use super::{PeerSocket, is_eventfd};

/// A memory file or an eventfd that a peer has as well: one that it has passed, or that is passed to it.
///
/// Dropping it never waits. A memory file is closed at once; an eventfd by another thread, and until then
/// it counts to the user of the peer.
#[derive(Debug)]
pub struct PeerFile {
    /// Taken when dropped.
    fd: Option<OwnedFd>,
    /// By whose threads it is closed; `None` for a memory file.
    closed_for: Option<Share>,
}

impl PeerFile {
    /// A descriptor of one of these kinds that the peer at the other end of a socket is to have as
    /// well. To be called after [`PeerSocket::set_allowed`].
    #[must_use]
    pub fn shared(fd: OwnedFd, peer: &PeerSocket) -> Self {
        Self::new(fd, peer.share())
    }

    /// A descriptor that was received; returns it if it is of another kind.
    pub(super) fn received(fd: OwnedFd, share: Share) -> Result<Self, OwnedFd> {
        let file = Self::new(fd, share);
        match file.closed_for {
            Some(_) if !is_eventfd(file.as_fd()) => Err(file.into_fd()),
            _ => Ok(file),
        }
    }

    fn new(fd: OwnedFd, share: Share) -> Self {
        // Only memory files have seals. They cannot be watched by epoll.
        let is_memory = fcntl_get_seals(&fd).is_ok();
        Self {
            fd: Some(fd),
            closed_for: (!is_memory).then_some(share),
        }
    }

    fn into_fd(mut self) -> OwnedFd {
        self.fd.take().expect("taken by `drop` otherwise")
    }
}

impl AsFd for PeerFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let fd = self.fd.as_ref().expect("taken by `drop` alone");
        fd.as_fd()
    }
}

impl Drop for PeerFile {
    fn drop(&mut self) {
        match (self.fd.take(), self.closed_for) {
            (Some(eventfd), Some(share)) => close_elsewhere(Content::Eventfd(eventfd), share),
            (memory, _) => drop(memory),
        }
    }
}
