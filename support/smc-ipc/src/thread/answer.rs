//! What a job of another thread returns, for a task or a thread that waits for it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::task::{Context, Poll};
use std::time::Duration;

use atomic_waker::AtomicWaker;
use rustix::io::Errno;

/// The result of a job.
///
/// As a future it completes with the result, or with `CANCELED` if the job ended without one.
#[derive(Debug)]
#[must_use]
pub struct Answer<T> {
    result: Receiver<T>,
    waker: Arc<AtomicWaker>,
}

/// Where the job puts its result.
#[derive(Debug)]
pub struct Completer<T> {
    // Dropped first: without it there is no result any more.
    result: Sender<T>,
    waker: WakeWhenDropped,
}

#[derive(Debug)]
struct WakeWhenDropped(Arc<AtomicWaker>);

/// Both ends of a job. Each can be dropped at any time.
pub fn completer<T>() -> (Completer<T>, Answer<T>) {
    let (sender, result) = mpsc::channel();
    let waker = Arc::new(AtomicWaker::new());
    let completer = Completer {
        result: sender,
        waker: WakeWhenDropped(Arc::clone(&waker)),
    };
    (completer, Answer { result, waker })
}

impl<T> Answer<T> {
    /// One that is there already.
    pub(crate) fn ready(value: T) -> Self {
        let (completer, answer) = completer();
        completer.complete(value);
        answer
    }

    /// Waits for the result, no longer than `limit`.
    ///
    /// # Errors
    ///
    /// `TIMEDOUT` if it is not there yet, `CANCELED` if there is none.
    pub fn wait(&self, limit: Duration) -> Result<T, Errno> {
        self.result
            .recv_timeout(limit)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => Errno::TIMEDOUT,
                RecvTimeoutError::Disconnected => Errno::CANCELED,
            })
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, Errno>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.waker.register(cx.waker());
        match self.result.try_recv() {
            Ok(value) => Poll::Ready(Ok(value)),
            Err(TryRecvError::Disconnected) => Poll::Ready(Err(Errno::CANCELED)),
            Err(TryRecvError::Empty) => Poll::Pending,
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        // The job may be held in the kernel, and keeps what it has until then.
        drop(self.waker.take());
    }
}

impl<T> Completer<T> {
    /// Whether the answer was not dropped.
    pub(super) fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.waker.0) > 1
    }

    /// Drops the value if the answer was dropped.
    pub fn complete(self, value: T) {
        let _unwanted = self.result.send(value);
    }
}

impl Drop for WakeWhenDropped {
    fn drop(&mut self) {
        self.0.wake();
    }
}
