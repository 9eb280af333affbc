//! The messages that are pending for a client.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
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
    pub(super) socket: Arc<PeerSocket>,
    /// What is passed with [`protocol::MEMORY`].
    memory: Arc<OwnedFd>,
    /// Each with the eventfd that is passed with it.
    queue: VecDeque<(i64, Option<Arc<PeerFile>>)>,
    /// The socket has no space until the client reads.
    pub(super) is_full: bool,
}

impl SendQueue {
    pub(super) fn new(socket: PeerSocket, memory: &Arc<OwnedFd>) -> Result<Self, Errno> {
        // The minimum of the system: some six numbers.
        set_socket_send_buffer_size(&socket, 1)?;
        Ok(Self {
            socket: Arc::new(socket),
            memory: Arc::clone(memory),
            queue: VecDeque::new(),
            is_full: false,
        })
    }

    /// Adds a number. At most two are pending for each possible client.
    pub(super) fn push(&mut self, number: i64, eventfd: Option<&Arc<PeerFile>>) {
        self.queue.push_back((number, eventfd.cloned()));
    }

    /// Adds that a client has left, or removes a pending announcement of that client.
    pub(super) fn push_left(&mut self, port: u16) {
        let number = i64::from(port);
        let has_come = |(other, eventfd): &(i64, Option<_>)| *other == number && eventfd.is_some();
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
        while let Some((number, eventfd)) = self.queue.front() {
            let descriptor = match *number {
                protocol::MEMORY => Some(self.memory.as_fd()),
                _ => eventfd.as_ref().map(AsFd::as_fd),
            };
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
