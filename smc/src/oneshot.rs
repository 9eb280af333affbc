//! A result that one task waits for.

use std::task::{Context, Poll, Waker};

/// The result, or the waker of the task that waits for it.
pub(crate) enum Oneshot<T> {
    Pending(Option<Waker>),
    Ready(T),
}

impl<T> Default for Oneshot<T> {
    fn default() -> Self {
        Self::Pending(None)
    }
}

impl<T: Copy> Oneshot<T> {
    /// Sets the result; the first one counts. Returns the waker of the waiting task.
    pub(crate) fn set(&mut self, value: T) -> Option<Waker> {
        match self {
            Self::Ready(_) => None,
            Self::Pending(waker) => {
                let waker = waker.take();
                *self = Self::Ready(value);
                waker
            }
        }
    }

    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<T> {
        match self {
            Self::Ready(value) => Poll::Ready(*value),
            Self::Pending(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}
