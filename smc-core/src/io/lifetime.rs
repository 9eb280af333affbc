//! Until when an endpoint makes streams.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::OnceLock;
use std::task::Poll;

use event_listener::{Event, EventListener};

use crate::error::Error;

/// Whether an endpoint makes streams, and why it does not any more.
#[derive(Debug, Default)]
pub(crate) struct Lifetime {
    end: OnceLock<Error>,
    ended: Event,
}

impl Lifetime {
    /// From now on nothing is set up, and what is being set up fails. The first cause stays.
    pub(crate) fn end(&self, why: Error) {
        let _later = self.end.set(why);
        self.ended.notify(usize::MAX);
    }

    /// # Errors
    ///
    /// Why nothing is set up any more.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.end.get().map_or(Ok(()), |why| Err(why.clone()))
    }

    /// Does something that may wait, until the end at most.
    ///
    /// # Errors
    ///
    /// Why nothing is set up any more; `work` is not polled again then.
    pub(crate) async fn until_end<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = pin!(work);
        let mut ended: Option<EventListener> = None;
        poll_fn(|cx| {
            if self.end.get().is_none() {
                if let Poll::Ready(done) = work.as_mut().poll(cx) {
                    return Poll::Ready(Ok(done));
                }
                let ended = ended.get_or_insert_with(|| self.ended.listen());
                // What it tells is looked at below, because the end may have come before it.
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

/// Nothing runs the tasks that an endpoint needs.
pub(crate) const RUNTIME_ENDED: Error = Error::misuse("the runtime of the endpoint has ended");

/// By [`Endpoint::close`](super::Endpoint::close).
pub(crate) const ENDPOINT_CLOSED: Error = Error::misuse("the endpoint is closed");
