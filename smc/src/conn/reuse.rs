//! The UNIX socket of a connection, which serves another one when this has ended in order.

use std::net::Shutdown;
use std::sync::{Arc, Weak};
use std::task::Context;

use super::Conn;
use crate::mem::sync::{AtomicBool, AtomicU32, Ordering};
use crate::mutex::Mutex;
use crate::runtime::Socket;
use crate::unix::{ConnectedSocket, IdleSockets, KeptSockets, KnownClient};

/// Whether and for whom the socket of a connection is used again.
#[derive(Default)]
pub(crate) struct SocketReuse {
    /// Both ends have said so, and nothing but the handshake was received.
    is_agreed: AtomicBool,
    /// Until the connection has ended.
    next: Mutex<Option<NextUser>>,
    /// The application has had access to the descriptor: it may have changed or duplicated it.
    is_exposed: AtomicBool,
    /// The flags of this side that close the connection are where the peer sees them.
    is_close_published: AtomicBool,
    /// How many threads register the connection's waker with the socket, until that is no longer
    /// the connection's ([`LEFT`]).
    watches: AtomicU32,
}

/// Who gets the socket.
pub(crate) enum NextUser {
    Client(Weak<IdleSockets>, ConnectedSocket),
    Listener(Weak<KeptSockets>, KnownClient),
}

impl SocketReuse {
    pub(crate) fn agree(&self) {
        self.is_agreed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn note_exposed(&self) {
        self.is_exposed.store(true, Ordering::Release);
    }

    pub(super) fn note_close_published(&self) {
        self.is_close_published.store(true, Ordering::Release);
    }

    /// Runs what registers a waker with the socket, which would take the place of that of the next
    /// user: not once the socket was passed on.
    fn watch<T>(&self, register: impl FnOnce() -> T) -> Option<T> {
        let before = self.watches.fetch_add(1, Ordering::AcqRel);
        let registered = (before < LEFT).then(register);
        self.watches.fetch_sub(1, Ordering::AcqRel);
        registered
    }

    /// Whether a client can send its next PROPOSAL on the socket.
    fn awaits_proposal(&self) -> bool {
        matches!(*self.next.lock(), Some(NextUser::Listener(..)))
    }

    /// Who gets the socket, once: at once if it is not to be used again, otherwise while it is not
    /// watched. Where this returns `None` because it is, this is to be called again afterwards.
    fn take_next(&self, is_reusable: bool) -> Option<NextUser> {
        let mut next = self.next.lock();
        // Under the lock: one of two threads finds that it was the last.
        let is_taken = next.is_some() && (!is_reusable || self.leave());
        is_taken.then(|| next.take()).flatten()
    }

    /// Ends [`SocketReuse::watch`]. Returns false if that is running.
    fn leave(&self) -> bool {
        let none = self
            .watches
            .compare_exchange(0, LEFT, Ordering::AcqRel, Ordering::Acquire);
        none.is_ok()
    }
}

/// Of the number of watches: the socket was passed on.
const LEFT: u32 = 1 << 31;

impl Conn {
    /// Sets who gets the socket, before the application has the stream.
    pub(crate) fn set_next_user(&self, next: NextUser) {
        if self.reuse.is_agreed.load(Ordering::Relaxed) {
            *self.reuse.next.lock() = Some(next);
        }
    }

    /// After the application dropped the stream: has the driver look for the peer's close when the
    /// next PROPOSAL arrives. A client sends it when it has closed, which signals nothing.
    pub(crate) fn watch_for_proposal(self: &Arc<Self>) {
        if !self.reuse.awaits_proposal() || self.driver.is_stopped() {
            return;
        }
        let mut cx = Context::from_waker(self.tcp_waker());
        let poll = || self.socket.poll_readable(&mut cx).is_ready();
        if self.watch_socket(poll) == Some(true) {
            self.handle_peer_flags();
        }
    }

    /// [`SocketReuse::watch`]. Another thread may have ended the connection meanwhile.
    pub(super) fn watch_socket<T>(&self, register: impl FnOnce() -> T) -> Option<T> {
        let registered = self.reuse.watch(register);
        self.pass_socket_on();
        registered
    }

    /// Passes the socket on once both ends have closed the connection and this side's flags are
    /// published: a peer that has seen them expects nothing of this connection any more. Otherwise
    /// the socket ends, also where the application has a duplicate: the other end may send the next
    /// PROPOSAL on it. Flags that the device was busy for are not awaited.
    ///
    /// To be called when the connection was released, and again when the flags are published, or a
    /// watch has ended.
    pub(super) fn pass_socket_on(&self) {
        let reuse = &self.reuse;
        let has_left = self.membership.lock().is_none();
        if !has_left || !reuse.is_close_published.load(Ordering::Acquire) {
            return;
        }
        let is_reusable = self.failure.get().is_none()
            && self.closing.lock().has_ended_in_order()
            && !self.ops().has_pending()
            && !reuse.is_exposed.load(Ordering::Acquire);
        let Some(next) = reuse.take_next(is_reusable) else {
            return;
        };
        let is_passed_on = is_reusable && next.take(Arc::clone(&self.socket));
        if !is_passed_on {
            let _best_effort = self.socket.shutdown(Shutdown::Both);
        }
    }
}

impl NextUser {
    /// Returns false if the socket is not used again.
    fn take(self, socket: Arc<dyn Socket>) -> bool {
        match self {
            Self::Client(idle, connected) => {
                let idle = idle.upgrade();
                idle.is_some_and(|idle| idle.add(socket, connected))
            }
            Self::Listener(kept, client) => {
                let kept = kept.upgrade();
                kept.is_some_and(|kept| kept.add(socket, client))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::address::UnixAddr;
    use crate::negotiate::Credentials;

    #[test]
    fn a_socket_that_is_watched_is_passed_on_afterwards_and_not_watched_any_more() {
        let reuse = SocketReuse::default();
        let client = KnownClient {
            addr: UnixAddr::unnamed().into(),
            process: Credentials::own(),
            source: None,
            since: Instant::now(),
        };
        *reuse.next.lock() = Some(NextUser::Listener(Weak::new(), client));
        let taken = reuse.watch(|| reuse.take_next(true).is_some());
        assert_eq!(taken, Some(false));
        assert!(reuse.take_next(true).is_some());
        assert!(reuse.take_next(true).is_none());
        for _ in 0..2 {
            assert_eq!(reuse.watch(|| ()), None);
        }
    }
}
