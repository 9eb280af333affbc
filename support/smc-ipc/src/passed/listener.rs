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
    is_public: bool,
}

impl Listener {
    /// A socket that listens. If it `is_public`, other users may open its file, and watch that:
    /// another thread closes it then, as the end of the file takes time for each epoll entry of
    /// their inotify descriptors. It refuses connections before.
    #[must_use]
    pub fn new(socket: OwnedFd, is_public: bool) -> Self {
        Self {
            socket: Some(socket),
            is_public,
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
        let is_empty = ended.is_ok() && has_closed_all(&socket);
        if self.is_public || !is_empty {
            close_elsewhere(Content::Passed(vec![socket]), Share::Listeners);
        }
    }
}

/// Closes the first connections that wait at a socket that was shut down; whether those were all.
/// The others end together, when the socket is closed.
fn has_closed_all(socket: &OwnedFd) -> bool {
    for _ in 0..=MAX_CONNECTIONS {
        match accept(socket) {
            Ok(connection) => drop(connection),
            Err(Errno::INTR | Errno::CONNABORTED) => {}
            // Of a socket that was shut down: there is none, and none comes.
            Err(Errno::INVAL | Errno::AGAIN) => return true,
            Err(_) => return false,
        }
    }
    false
}

/// Connections that are closed by the thread that drops a listener; with more, all that are left
/// are closed by another one.
const MAX_CONNECTIONS: usize = 4;

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn a_listener_without_connections_is_closed_by_the_thread_that_drops_it() {
        for is_nonblocking in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("name.sock");
            let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
            socket.set_nonblocking(is_nonblocking).unwrap();
            let client = UnixStream::connect(&path).unwrap();
            let socket = OwnedFd::from(socket);
            shutdown(&socket, Shutdown::Both).unwrap();
            assert!(has_closed_all(&socket));
            assert!(UnixStream::connect(&path).is_err());
            drop(client);
        }
    }

    #[test]
    fn a_thread_that_drops_a_listener_accepts_few_of_its_connections() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("name.sock");
        // 128 connections wait at the most.
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let socket = OwnedFd::from(socket);
        let connect = |_| UnixStream::connect(&path).unwrap();
        let clients: Vec<_> = (0..100).map(connect).collect();
        shutdown(&socket, Shutdown::Both).unwrap();
        assert!(
            !has_closed_all(&socket),
            "the rest is left to another thread"
        );
        let is_open = |client: &&UnixStream| {
            let now = Timespec::try_from(Duration::ZERO).unwrap();
            poll(&mut [PollFd::new(client, PollFlags::IN)], Some(&now)) == Ok(0)
        };
        let left = clients.iter().filter(is_open).count();
        assert!(left >= clients.len() - 8, "{left} are left");
        // All end.
        drop(Listener::new(socket, false));
        let time = Timespec::try_from(Duration::from_secs(60)).unwrap();
        for client in &clients {
            let ended = poll(&mut [PollFd::new(client, PollFlags::IN)], Some(&time));
            assert_eq!(ended, Ok(1));
        }
    }
}
