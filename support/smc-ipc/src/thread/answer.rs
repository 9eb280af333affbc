//! What a job of another thread returns, for a task or a thread that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::io::Errno;

/// The result of a job.
///
/// As a future it completes with the result, or with `CANCELED` if the job ended without one.
#[derive(Debug)]
#[must_use]
pub struct Answer<T>(Arc<Slot<T>>);

/// Where the job puts its result.
#[derive(Debug)]
pub(super) struct Promise<T>(Arc<Slot<T>>);

#[derive(Debug)]
struct Slot<T> {
    state: Mutex<State<T>>,
    is_changed: Condvar,
}

#[derive(Debug)]
struct State<T> {
    /// `None` while the job has not ended, and when the result was taken.
    result: Option<Result<T, Errno>>,
    /// No result is taken any more.
    is_cancelled: bool,
    waker: Option<Waker>,
}

pub(super) fn promise<T>() -> (Promise<T>, Answer<T>) {
    let state = State {
        result: None,
        is_cancelled: false,
        waker: None,
    };
    let slot = Arc::new(Slot {
        state: Mutex::new(state),
        is_changed: Condvar::new(),
    });
    (Promise(Arc::clone(&slot)), Answer(slot))
}

impl<T> Answer<T> {
    /// One that is there already.
    pub(crate) fn ready(value: T) -> Self {
        let (promise, answer) = promise();
        let _kept = promise.keep(value);
        answer
    }

    /// Waits for the result, no longer than `limit`.
    ///
    /// # Errors
    ///
    /// `TIMEDOUT` if it is not there yet, `CANCELED` if there is none.
    pub(crate) fn wait(&self, limit: Duration) -> Result<T, Errno> {
        let state = self.0.lock();
        let is_waiting = |state: &mut State<T>| state.result.is_none();
        let waited = (self.0.is_changed).wait_timeout_while(state, limit, is_waiting);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.result.take().unwrap_or(Err(Errno::TIMEDOUT))
    }

    /// The same. A later result goes back to the job.
    pub(super) fn wait_or_cancel(self, limit: Duration) -> Result<T, Errno> {
        match self.wait(limit) {
            Err(Errno::TIMEDOUT) => {
                let mut state = self.0.lock();
                state.is_cancelled = true;
                state.result.take().unwrap_or(Err(Errno::TIMEDOUT))
            }
            result => result,
        }
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, Errno>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut state = self.0.lock();
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                let waker = cx.waker().clone();
                // Dropped after the lock: that may drop the task.
                let _old = state.waker.replace(waker);
                drop(state);
                Poll::Pending
            }
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        // The job may be held in the kernel, and keeps what it has until then.
        let mut state = self.0.lock();
        state.is_cancelled = true;
        let waker = state.waker.take();
        drop(state);
        drop(waker);
    }
}

impl<T> Promise<T> {
    /// Whether the answer was not dropped.
    pub(super) fn is_wanted(&self) -> bool {
        !self.0.lock().is_cancelled
    }

    /// Returns the value if the answer was dropped or cancelled.
    pub(super) fn keep(self, value: T) -> Option<T> {
        self.0.set(Ok(value)).and_then(Result::ok)
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        let _cancelled = self.0.set(Err(Errno::CANCELED));
    }
}

impl<T> Slot<T> {
    /// Sets the result, unless there is one. Returns it if it is not taken any more.
    fn set(&self, result: Result<T, Errno>) -> Option<Result<T, Errno>> {
        let mut state = self.lock();
        if state.is_cancelled {
            return Some(result);
        }
        let _first = state.result.get_or_insert(result);
        let waker = state.waker.take();
        drop(state);
        self.is_changed.notify_all();
        waker.into_iter().for_each(Waker::wake);
        None
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
