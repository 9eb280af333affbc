//! Memory that this process shares with processes of other users.

use super::closing::{Content, Share, close_elsewhere};

/// Mapped memory that a process of another user has as well, or has had.
///
/// Dropping it takes no time: another thread does that. When the last mapping of a memory file
/// ends, and no process has the file open, the system reports that to all who watch the file, which
/// takes time for each epoll entry of their inotify descriptors.
#[derive(Debug)]
pub struct PeerMemory<T: Send + 'static> {
    /// Taken when dropped.
    memory: Option<T>,
    user: u32,
    is_counted: bool,
}

impl<T: Send + 'static> PeerMemory<T> {
    /// Memory for a peer of this user. While another thread drops it, it counts as a descriptor of
    /// that user that waits to be closed.
    pub fn new(memory: T, user: u32) -> Self {
        Self {
            memory: Some(memory),
            user,
            is_counted: true,
        }
    }

    /// Memory of which there is a bounded amount for each user, until it is dropped: it counts as
    /// no descriptor.
    pub fn bounded(memory: T, user: u32) -> Self {
        Self {
            memory: Some(memory),
            user,
            is_counted: false,
        }
    }
}

impl<T: Send + 'static> Drop for PeerMemory<T> {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let memory = Content::Shared(Box::new(memory), self.is_counted);
            close_elsewhere(memory, Share::User(self.user));
        }
    }
}
