//! The wait loop of the two halves of an SMC stream.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::busy_poll::{BusyPoll, PollStep};
use super::conn::Conn;
use crate::error::Error;

/// A half of an SMC stream.
pub(crate) trait Half {
    fn conn(&self) -> &Arc<Conn>;
    fn busy_poll(&mut self) -> &mut BusyPoll;
    fn register(&self, waker: &Waker);

    /// Requests a report of the event that the half waits for. The caller checks once more
    /// afterwards.
    fn arm(&self) {
        self.conn().arm();
    }
}

/// Repeats `attempt` until it succeeds: first by busy polling, then parked.
///
/// Before parking the waker is registered, then the device is armed to report the next write of the
/// peer, then `attempt` is made once more: a write is either visible to that attempt or reported.
/// Without a running driver task it is an error to park.
pub(crate) fn poll_until<H: Half, T>(
    half: &mut H,
    cx: &mut Context<'_>,
    mut attempt: impl FnMut(&mut H) -> Result<Option<T>, Error>,
) -> Poll<Result<T, Error>> {
    if half.busy_poll().is_budget_spent() {
        cx.waker().wake_by_ref();
        return Poll::Pending;
    }
    let mut is_armed = false;
    loop {
        match attempt(half) {
            Ok(Some(found)) => {
                half.busy_poll().hit();
                return Poll::Ready(Ok(found));
            }
            Ok(None) if is_armed => {
                return match half.conn().check_can_wait() {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error)),
                };
            }
            Ok(None) => half.conn().poll_device(),
            Err(error) => return Poll::Ready(Err(error)),
        }
        match half.busy_poll().miss() {
            PollStep::Again => {}
            PollStep::Yield => {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            PollStep::Park => {
                half.register(cx.waker());
                half.conn().watch_tcp();
                half.arm();
                is_armed = true;
            }
        }
    }
}
