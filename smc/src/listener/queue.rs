//! The queue of streams between the end of their set-up and `accept`.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use event_listener::{Event, IntoNotification as _};

use super::Refused;
use crate::address::Address;
use crate::endpoint::EndpointInner;
use crate::error::{Error, FallbackReason};
use crate::lifetime::Lifetime;
use crate::mutex::Mutex;
use crate::peer_descriptors::ClientDescriptor;
use crate::quota;
use crate::stream::Stream;
use crate::unix::KeptSockets;

/// Streams between the end of their set-up and `accept`.
pub(super) struct Queue {
    state: Mutex<ListenerState>,
    /// Notifies tasks in `accept`.
    pub(super) changed: Event,
    /// The waker of `poll_accept`.
    pub(super) accept_waker: AtomicWaker,
    /// The waker of the accept task, which waits for capacity or the end.
    accept_task_waker: AtomicWaker,
    max_ready: usize,
    /// Sockets that clients may send the PROPOSAL of another connection on.
    pub(super) kept: Arc<KeptSockets>,
    /// Running handshakes end with it.
    pub(super) own_lifetime: Lifetime,
    /// The endpoint's lifetime. The queue ends when the accept task detects its end, and returns
    /// nothing before.
    pub(super) lifetime: Arc<Lifetime>,
}

#[derive(Default)]
struct ListenerState {
    ready: VecDeque<Ready>,
    refused: Refused,
}

/// A stream that `accept` has not returned yet, or an error.
struct Ready {
    accepted: io::Result<(Stream, Address)>,
    _descriptor: Option<ClientDescriptor>,
}

impl Queue {
    /// For so many connections that wait for a set-up.
    pub(super) fn new(endpoint: &EndpointInner, max_waiting: usize) -> Self {
        Self {
            state: Mutex::default(),
            changed: Event::new(),
            own_lifetime: Lifetime::default(),
            accept_waker: AtomicWaker::new(),
            accept_task_waker: AtomicWaker::new(),
            max_ready: max_waiting.min(ready_limit()),
            kept: KeptSockets::new(&endpoint.groups.deadlines),
            lifetime: Arc::clone(&endpoint.lifetime),
        }
    }

    pub(super) fn take(&self) -> Option<io::Result<(Stream, Address)>> {
        let mut state = self.state.lock();
        if let Err(why) = self.check() {
            return Some(Err(why.into()));
        }
        let was_full = state.ready.len() >= self.max_ready;
        let next = state.ready.pop_front()?;
        drop(state);
        if was_full {
            self.accept_task_waker.wake();
        }
        Some(next.accepted)
    }

    /// # Errors
    ///
    /// The reason of the end.
    fn check(&self) -> Result<(), Error> {
        self.own_lifetime.check()?;
        self.lifetime.check()
    }

    /// Ends the queue, with streams that were not accepted. The first cause counts.
    pub(super) fn end(&self, why: Error) {
        self.own_lifetime.end(why);
        self.kept.end();
        let unaccepted = std::mem::take(&mut self.state.lock().ready);
        for ready in unaccepted {
            reset(ready.accepted);
        }
        self.changed.notify(usize::MAX);
        self.accept_waker.wake();
        self.accept_task_waker.wake();
    }

    pub(super) fn put(
        &self,
        accepted: io::Result<(Stream, Address)>,
        descriptor: Option<ClientDescriptor>,
    ) {
        let mut state = self.state.lock();
        if self.check().is_err() {
            // Unlocked first: closing a stream may take long.
            drop(state);
            reset(accepted);
            return;
        }
        state.ready.push_back(Ready {
            accepted,
            _descriptor: descriptor,
        });
        drop(state);
        // Notifies one task more than were notified before.
        self.changed.notify(1_usize.additional());
        self.accept_waker.wake();
    }

    /// Streams that wait for `accept`, and clients that were closed.
    pub(super) fn counts(&self) -> (usize, Refused) {
        let state = self.state.lock();
        (state.ready.len(), state.refused.clone())
    }

    /// Counts a client that is closed because it would be TCP.
    pub(super) fn refuse(&self, peer: Address, why: FallbackReason) {
        let refused = &mut self.state.lock().refused;
        refused.count = refused.count.saturating_add(1);
        refused.last = Some((peer, why));
    }

    /// Waits until another connection may be accepted. `None` at the end.
    pub(super) fn poll_capacity(&self, cx: &mut Context<'_>) -> Poll<Option<()>> {
        self.accept_task_waker.register(cx.waker());
        if self.own_lifetime.check().is_err() {
            Poll::Ready(None)
        } else if self.state.lock().ready.len() < self.max_ready {
            Poll::Ready(Some(()))
        } else {
            Poll::Pending
        }
    }
}

/// Closes a stream that is not accepted: its client is not to take that for an orderly end.
fn reset(accepted: io::Result<(Stream, Address)>) {
    if let Ok((stream, _)) = accepted {
        let _best_effort = stream.set_zero_linger();
    }
}

/// Streams that may wait for `accept`: any client can have that many, and each has a descriptor at
/// least. Further connections wait in the backlog, where they take none.
fn ready_limit() -> usize {
    (quota::descriptors::limit() / READY_SHARE).max(READY_MIN)
}

/// The part of the descriptors of the process that they may take, and how many there may be in any
/// case.
const READY_SHARE: usize = 16;
const READY_MIN: usize = 16;
