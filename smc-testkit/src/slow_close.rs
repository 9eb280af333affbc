//! Descriptors whose closing waits, as a hostile peer can pass them.

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;

use crate::unix;

/// A UNIX socket, and a TCP connection: until that is dropped, the last close of the socket waits.
///
/// In the queue of the socket is the other end of the connection, which lingers: the data that it
/// has sent is not read.
///
/// # Panics
///
/// When a call that makes a socket fails.
#[must_use]
pub fn slow_to_close() -> (OwnedFd, TcpStream) {
    let (near, far) = unix::lingering(LINGER);
    let (inside, outside) = unix::pair();
    unix::send(&inside, b"x", &[near.as_fd()]);
    (outside, far)
}

/// Passes descriptors whose closing waits to all closing threads of the own user. They wait until
/// the result is dropped.
///
/// # Panics
///
/// When a call that makes a socket fails.
#[must_use]
pub fn block_closing_threads() -> Vec<TcpStream> {
    let block = |_| {
        let (peer, ours) = unix::pair();
        let (slow, far) = slow_to_close();
        send(&peer, b"x", &[slow.as_fd()]).expect("a socket that is open");
        drop(slow);
        let (ours, mut buf) = (PeerSocket::from(ours), [0; 1]);
        let is_refused = matches!(receive(&ours, &mut buf, 1), Received::Invalid);
        assert!(is_refused, "only a refused descriptor is closed there");
        far
    };
    (0..CLOSING_THREADS).map(block).collect()
}

/// Closing threads of a user.
const CLOSING_THREADS: usize = 4;

/// Longer than any test takes.
const LINGER: Duration = Duration::from_secs(600);
