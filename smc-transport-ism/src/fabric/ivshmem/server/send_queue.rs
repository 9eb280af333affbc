//! The messages that are pending for a client.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use smc_ipc::passed::{PeerFile, PeerSocket};

use super::protocol;

/// Numbers for a client, and the descriptors that belong to them.
///
/// Descriptors that were not received yet count as open ones of the server's user, in all of its
/// processes (`ETOOMANYREFS`). So a client is sent a few of them at a time, and more when it has
/// read those.
#[derive(Debug)]
pub(super) struct SendQueue {
    socket: Arc<PeerSocket>,
    queue: VecDeque<(i64, Option<Passed>)>,
    /// The socket has no space until the client reads.
    is_full: bool,
}

/// What is passed with a number.
#[derive(Debug)]
pub(super) enum Passed {
    Memory(Arc<OwnedFd>),
    Eventfd(Arc<PeerFile>),
}

impl AsFd for Passed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Memory(memory) => memory.as_fd(),
            Self::Eventfd(eventfd) => eventfd.as_fd(),
        }
    }
}

impl SendQueue {
    pub(super) fn new(socket: PeerSocket) -> Result<Self, Errno> {
        // The minimum of the system: some six numbers.
        set_socket_send_buffer_size(&socket, 1)?;
        Ok(Self {
            socket: Arc::new(socket),
            queue: VecDeque::new(),
            is_full: false,
        })
    }

    pub(super) fn socket(&self) -> &Arc<PeerSocket> {
        &self.socket
    }

    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// Adds a number. At most two are pending for each possible client.
    pub(super) fn push(&mut self, number: i64, descriptor: Option<Passed>) {
        self.queue.push_back((number, descriptor));
    }

    /// Adds that a client has left, or removes a pending announcement of that client.
    pub(super) fn push_left(&mut self, port: u16) {
        let number = i64::from(port);
        let has_come =
            |(other, descriptor): &(i64, Option<_>)| *other == number && descriptor.is_some();
        match self.queue.iter().position(has_come) {
            Some(at) => drop(self.queue.remove(at)),
            None => self.push(number, None),
        }
    }

    /// Sends as much as the socket accepts. Does not block.
    ///
    /// # Errors
    ///
    /// As `sendmsg(2)`. Unsent numbers stay in the queue.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        self.is_full = false;
        while let Some((number, descriptor)) = self.queue.front() {
            let descriptor = descriptor.as_ref().map(AsFd::as_fd);
            match protocol::send(&self.socket, *number, descriptor) {
                Ok(()) => drop(self.queue.pop_front()),
                Err(Errno::AGAIN) => {
                    self.is_full = true;
                    return Ok(());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
