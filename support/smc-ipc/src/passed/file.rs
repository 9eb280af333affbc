//! Memory files and eventfds that this process shares with peers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, fcntl_get_seals, fstat, memfd_create};

use super::closing::{Content, Share, close_elsewhere};
use super::{PeerSocket, is_eventfd};

/// A memory file or an eventfd that a peer has as well: one that it has passed, or that is passed
/// to it.
///
/// Dropping it never waits. A file of `memfd_create(2)` of a peer of the own user is closed at
/// once. An eventfd, a memory file that has a path, or one of a peer of another user is closed by
/// another thread, and until then it counts to the user of the peer.
#[derive(Debug)]
pub struct PeerFile {
    /// Taken when dropped.
    fd: Option<OwnedFd>,
    /// To whom it counts while another thread closes it; `None` if it is closed at once.
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
        if is_memory(&fd) || is_eventfd(fd.as_fd()) {
            return Ok(Self::new(fd, share));
        }
        Err(fd)
    }

    /// Closes it at once. For a memory file that is mapped for longer than that: this is not its
    /// last close then.
    pub fn close_mapped(mut self) {
        self.fd = None;
    }

    #[cfg(test)]
    pub(super) fn is_closed_at_once(&self) -> bool {
        self.closed_for.is_none()
    }

    fn new(fd: OwnedFd, share: Share) -> Self {
        Self {
            closed_for: (!(share.is_own() && is_closed_at_once(&fd))).then_some(share),
            fd: Some(fd),
        }
    }
}

/// Whether it is a file of `memfd_create(2)`, tmpfs or hugetlbfs: no others have seals.
fn is_memory(fd: impl AsFd) -> bool {
    fcntl_get_seals(fd).is_ok()
}

/// Whether closing it waits for no process, which is so for a file of `memfd_create(2)`: it is not
/// on a mount of a user. The last file that is open on a mount can end it, and with it all mounts
/// below, a FUSE file system for one.
fn is_closed_at_once(fd: impl AsFd) -> bool {
    static DEVICE: OnceLock<u64> = OnceLock::new();
    let device = || match DEVICE.get() {
        Some(device) => Some(*device),
        None => {
            // Without a descriptor it is not known yet.
            let own = memfd_create("smc-device", MemfdFlags::CLOEXEC);
            let device = own.and_then(fstat).ok()?.st_dev;
            Some(*DEVICE.get_or_init(|| device))
        }
    };
    // The kernel keeps what it answers about memory files in memory.
    is_memory(&fd) && fstat(fd).is_ok_and(|stat| Some(stat.st_dev) == device())
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
            (Some(fd), Some(share)) => close_elsewhere(Content::Shared(Box::new(fd), true), share),
            (fd, _) => drop(fd),
        }
    }
}
