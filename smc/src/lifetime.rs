//! The lifetime of an endpoint: until when it makes streams.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::Poll;

use event_listener::{Event, EventListener};
use rustix::process::Pid;

use crate::error::Error;
use crate::process;

/// Whether an endpoint makes streams, and the reason why not.
pub(crate) struct Lifetime {
    end: OnceLock<Error>,
    ended: Event,
    /// The process that runs the tasks.
    process: Pid,
}

impl Default for Lifetime {
    fn default() -> Self {
        Self {
            end: OnceLock::new(),
            ended: Event::new(),
            process: process::current(),
        }
    }
}

impl Lifetime {
    /// Ends the lifetime: set-ups fail from now on. The first cause counts.
    pub(crate) fn end(&self, why: Error) {
        let _later = self.end.set(why);
        self.ended.notify(usize::MAX);
    }

    /// # Errors
    ///
    /// The reason of the end.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.end.get() {
            Some(why) => Err(why.clone()),
            None if self.process != process::current() => Err(FORKED),
            None => Ok(()),
        }
    }

    /// Runs `work` until the end at most.
    ///
    /// # Errors
    ///
    /// The reason of the end; `work` is not polled again then, and its result is dropped.
    pub(crate) async fn until_end<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = pin!(work);
        let mut ended: Option<EventListener> = None;
        poll_fn(|cx| {
            if self.end.get().is_none() {
                if let Poll::Ready(done) = work.as_mut().poll(cx) {
                    // The end may have come meanwhile.
                    return Poll::Ready(self.check().map(|()| done));
                }
                let ended = ended.get_or_insert_with(|| self.ended.listen());
                // The end is checked below, because it may have come before the listener was
                // created.
                let _woken = Pin::new(ended).poll(cx);
            }
            match self.check() {
                Ok(()) => Poll::Pending,
                Err(why) => Poll::Ready(Err(why)),
            }
        })
        .await
    }
}

/// A task that an endpoint needs was dropped: with its runtime, or because it has panicked.
pub(crate) const TASKS_ENDED: Error =
    Error::misuse("the runtime of the endpoint has ended, or a task of the endpoint has panicked");

/// In a child process of `fork`, which has no thread that would run the tasks.
const FORKED: Error = Error::misuse("the endpoint was made before `fork`, in another process");

/// By [`Endpoint::close`](super::Endpoint::close).
pub(crate) const ENDPOINT_CLOSED: Error = Error::misuse("the endpoint is closed");

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;

    #[test]
    fn in_a_child_process_set_ups_fail() {
        let lifetime = Lifetime {
            // Larger than any process ID.
            process: Pid::from_raw(i32::MAX).unwrap(),
            ..Lifetime::default()
        };
        let done = block_on(lifetime.until_end(std::future::pending::<()>()));
        assert!(matches!(done, Err(Error::Misuse(_))), "{done:?}");
    }

    #[test]
    fn a_result_after_the_end_is_not_returned() {
        let lifetime = Lifetime::default();
        let work = async { lifetime.end(ENDPOINT_CLOSED) };
        let done = block_on(lifetime.until_end(work));
        assert!(matches!(done, Err(Error::Misuse(_))), "{done:?}");
    }
}
