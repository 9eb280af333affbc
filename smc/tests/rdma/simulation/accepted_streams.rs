//! Accepted streams, found by the address of the client.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::task::{Poll, Waker};

use smc::Stream;

/// Streams that were accepted, by the client's address.
#[derive(Debug, Default)]
pub(super) struct AcceptedStreams {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    accepted: HashMap<SocketAddr, Stream>,
    waiting: HashMap<SocketAddr, Waker>,
}

impl AcceptedStreams {
    pub(super) fn put(&self, client: SocketAddr, stream: Stream) {
        let waker = {
            let mut state = self.lock();
            state.accepted.insert(client, stream);
            state.waiting.remove(&client)
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Waits for the server's end of a stream.
    pub(super) async fn take(&self, client: SocketAddr) -> Stream {
        poll_fn(|cx| {
            let mut state = self.lock();
            if let Some(stream) = state.accepted.remove(&client) {
                return Poll::Ready(stream);
            }
            state.waiting.insert(client, cx.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// Drops streams that were not claimed.
    pub(super) fn clear(&self) {
        let accepted = std::mem::take(&mut self.lock().accepted);
        drop(accepted);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the lock is not poisoned")
    }
}

/// Wakes one task when something has changed.
#[derive(Debug, Default)]
pub(super) struct Event(Mutex<Option<Waker>>);

impl Event {
    pub(super) fn ring(&self) {
        let waker = self.lock().take();
        waker.into_iter().for_each(Waker::wake);
    }

    pub(super) async fn wait(&self, is_so: impl Fn() -> bool) {
        poll_fn(|cx| {
            if is_so() {
                return Poll::Ready(());
            }
            *self.lock() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }

    fn lock(&self) -> MutexGuard<'_, Option<Waker>> {
        self.0.lock().expect("the lock is not poisoned")
    }
}
