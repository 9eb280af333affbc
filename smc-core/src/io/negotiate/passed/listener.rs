//! Listening sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};

use super::closing::{Content, Share, close_elsewhere};
use super::reserve::accept;

/// A listening UNIX socket for untrusted processes.
///
/// Dropping it ends the connections that were not accepted, and never waits whatever was passed
/// over them.
#[derive(Debug)]
pub struct Listener {
    /// Taken when dropped.
    socket: Option<OwnedFd>,
}

impl From<OwnedFd> for Listener {
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
        }
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let socket = self.socket.as_ref().expect("taken by `drop` alone");
        socket.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let Some(socket) = self.socket.take() else {
            return;
        };
        // From here on connections are refused, and none is added to the backlog.
        let ended = shutdown(&socket, Shutdown::Both);
        if ended.is_err() || !has_closed_all(&socket) {
            close_elsewhere(Content::Passed(vec![socket]), Share::Listeners);
        }
    }
}

/// Closes the connections that wait at a socket that was shut down; whether those were all.
fn has_closed_all(socket: &OwnedFd) -> bool {
    for _ in 0..MAX_CONNECTIONS {
        match accept(socket) {
            Ok(connection) => drop(connection),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            // Of a socket that was shut down: there is none.
            Err(Errno::INVAL) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// More than wait at a socket: `listen(2)` takes 4096 by default, and one more is queued.
const MAX_CONNECTIONS: usize = 5000;
