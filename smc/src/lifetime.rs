//! The lifetime of an endpoint, until when it makes streams, and deadlines on one timer.
//!
//! A set-up has a deadline for every message and meets it nearly always. A runtime timer for each
//! would cost some runtimes a system call. Deadlines of one kind are ordered by their start, so a
//! timer that is armed for an earlier deadline, even if that was dropped, serves the next one too.
//!
//! The timer task ends early if the endpoint's runtime ends. By that the end of the runtime is
//! detected, and ends the lifetime.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use event_listener::{Event, EventListener};
use rustix::process::Pid;

use super::groups::Groups;
use super::runtime::Runtime;
use crate::error::Error;
use crate::mem::sync::{AtomicBool, Ordering};
use crate::mutex::Mutex;
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

    /// Runs `work` until the end at most, and not in a child process of `fork`: what it would take
    /// there is the parent's.
    ///
    /// # Errors
    ///
    /// As of [`Lifetime::check`]; `work` is not polled again then, and its result is dropped.
    pub(crate) async fn until_end<T>(&self, work: impl Future<Output = T>) -> Result<T, Error> {
        let mut work = pin!(work);
        let mut ended: Option<EventListener> = None;
        poll_fn(|cx| {
            self.check()?;
            if let Poll::Ready(done) = work.as_mut().poll(cx) {
                // The end may have come meanwhile.
                return Poll::Ready(self.check().map(|()| done));
            }
            let ended = ended.get_or_insert_with(|| self.ended.listen());
            // The end is checked below, because it may have come before the listener was created.
            let _woken = Pin::new(ended).poll(cx);
            match self.check() {
                Ok(()) => Poll::Pending,
                Err(why) => Poll::Ready(Err(why)),
            }
        })
        .await
    }
}

/// The deadlines of an endpoint.
pub(crate) struct Deadlines {
    runtime: Arc<dyn Runtime>,
    pending: Mutex<Pending>,
    /// A deadline is earlier than the task's timer.
    is_rescheduled: AtomicBool,
    task: AtomicWaker,
    /// The link groups, if their drivers are on a thread that does not end with the runtime.
    groups: OnceLock<Weak<Groups>>,
}

#[derive(Default)]
struct Pending {
    by_time: BTreeMap<(Instant, u64), Waker>,
    last: u64,
    /// The time that the task's timer is armed for.
    armed: Option<Instant>,
    /// The task has ended with its runtime.
    has_ended: bool,
}

impl Deadlines {
    /// Starts a task on the runtime, which ends with the last reference. If the runtime ends before
    /// that, `lifetime` ends.
    pub(crate) fn new(runtime: &Arc<dyn Runtime>, lifetime: &Arc<Lifetime>) -> Arc<Self> {
        let deadlines = Arc::new(Self {
            runtime: Arc::clone(runtime),
            pending: Mutex::default(),
            is_rescheduled: AtomicBool::new(false),
            task: AtomicWaker::new(),
            groups: OnceLock::new(),
        });
        let timer_task = TimerTask {
            deadlines: Arc::downgrade(&deadlines),
            lifetime: Arc::clone(lifetime),
        };
        runtime.spawn(Box::pin(run_timer(timer_task)));
        deadlines
    }

    /// Sets the groups whose drivers are ended when the runtime ends, once.
    pub(crate) fn set_groups(&self, groups: &Arc<Groups>) {
        // An endpoint is built once.
        let _first = self.groups.set(Arc::downgrade(groups));
    }

    /// The time of the runtime.
    pub(crate) fn now(&self) -> Instant {
        self.runtime.now()
    }

    /// Completes at the time given, at once if that is in the past or the runtime has ended.
    pub(crate) fn at(self: &Arc<Self>, at: Instant) -> Deadline {
        Deadline {
            deadlines: Arc::clone(self),
            at,
            id: None,
        }
    }

    /// Returns false if the timer task has ended.
    fn wait(&self, at: Instant, id: &mut Option<u64>, waker: &Waker) -> bool {
        let mut pending = self.pending.lock();
        if pending.has_ended {
            return false;
        }
        let id = *id.get_or_insert_with(|| {
            pending.last += 1;
            pending.last
        });
        let old = pending.by_time.insert((at, id), waker.clone());
        let is_sooner = pending.armed.is_none_or(|armed| at < armed);
        drop(pending);
        // A waker may own a task, which must not be dropped with the lock held.
        drop(old);
        if is_sooner {
            self.is_rescheduled.store(true, Ordering::Release);
            self.task.wake();
        }
        true
    }

    /// Completes all deadlines, and ends drivers on a thread: the timer task has ended.
    fn end(&self) {
        let mut pending = self.pending.lock();
        pending.has_ended = true;
        let left = std::mem::take(&mut pending.by_time);
        drop(pending);
        left.into_values().for_each(Waker::wake);
        if let Some(groups) = self.groups.get().and_then(Weak::upgrade) {
            groups.end_drivers();
        }
    }

    /// Wakes the tasks whose deadline has passed. Returns the next deadline.
    fn wake_due(&self) -> Option<Instant> {
        let now = self.runtime.now();
        let mut due = Vec::new();
        let mut pending = self.pending.lock();
        while let Some(first) = pending.by_time.first_entry() {
            if first.key().0 > now {
                break;
            }
            due.push(first.remove());
        }
        let next = pending.by_time.first_key_value().map(|(key, _)| key.0);
        pending.armed = next;
        drop(pending);
        due.into_iter().for_each(Waker::wake);
        next
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        self.task.wake();
    }
}

/// The task that waits for the earliest deadline.
async fn run_timer(timer_task: TimerTask) {
    let mut timer = None;
    poll_fn(|cx| {
        loop {
            let Some(deadlines) = timer_task.deadlines.upgrade() else {
                return Poll::Ready(());
            };
            deadlines.task.register(cx.waker());
            deadlines.is_rescheduled.store(false, Ordering::Release);
            let next = deadlines.wake_due();
            timer = next.map(|at| deadlines.runtime.timer(at));
            let is_due = timer
                .as_mut()
                .is_some_and(|timer| timer.as_mut().poll(cx).is_ready());
            if !is_due && !deadlines.is_rescheduled.load(Ordering::Acquire) {
                return Poll::Pending;
            }
        }
    })
    .await;
}

/// The state of the timer task: dropped with it, also if it was never polled.
struct TimerTask {
    deadlines: Weak<Deadlines>,
    lifetime: Arc<Lifetime>,
}

impl Drop for TimerTask {
    fn drop(&mut self) {
        if let Some(deadlines) = self.deadlines.upgrade() {
            self.lifetime.end(TASKS_ENDED);
            deadlines.end();
        }
    }
}

/// One deadline. Dropping it cancels it.
pub(crate) struct Deadline {
    deadlines: Arc<Deadlines>,
    at: Instant,
    /// Set while a task waits.
    id: Option<u64>,
}

impl Deadline {
    pub(crate) fn time(&self) -> Instant {
        self.at
    }

    /// Whether it passed more than `by` ago.
    pub(crate) fn is_overdue(&self, by: Duration) -> bool {
        self.deadlines.runtime.now() > self.at + by
    }
}

impl Future for Deadline {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        if this.deadlines.runtime.now() >= this.at {
            return Poll::Ready(());
        }
        match this.deadlines.wait(this.at, &mut this.id, cx.waker()) {
            true => Poll::Pending,
            false => Poll::Ready(()),
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let waker = self.deadlines.pending.lock().by_time.remove(&(self.at, id));
            drop(waker);
        }
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
    fn in_a_child_process_setups_fail() {
        let lifetime = Lifetime {
            // Larger than any process ID.
            process: Pid::from_raw(i32::MAX).unwrap(),
            ..Lifetime::default()
        };
        let mut has_begun = false;
        let work = async { has_begun = true };
        let done = block_on(lifetime.until_end(work));
        assert!(matches!(done, Err(Error::Misuse(_))), "{done:?}");
        assert!(!has_begun, "it would have used what is the parent's");
    }

    #[test]
    fn a_result_after_the_end_is_not_returned() {
        let lifetime = Lifetime::default();
        let work = async { lifetime.end(ENDPOINT_CLOSED) };
        let done = block_on(lifetime.until_end(work));
        assert!(matches!(done, Err(Error::Misuse(_))), "{done:?}");
    }
}
