//! The driver's task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use smc_ipc::doorbell::register;

use super::{DeviceDriver, PASSES_MAX};
use crate::busy_poll::{DriverPoll, is_cpu_busy, yield_processor};
use crate::device::{DeviceError, Doorbell};
use crate::groups::Groups;
use crate::mem::sync::Ordering;
use crate::reactor_turns::ReactorTurns;
use crate::runtime::{Runtime, Timer, Watch};

/// The driver's task: drain, arm, drain, park; for as long as the endpoint or a stream lives.
pub(crate) struct DriverTask {
    driver: Weak<DeviceDriver>,
    groups: Weak<Groups>,
    runtime: Arc<dyn Runtime>,
    watch: Option<Box<dyn Watch>>,
    timer: Option<(Instant, Timer)>,
    turns: ReactorTurns,
    /// The turn of the reactor that the task waits for.
    turn: Option<Timer>,
    /// When the task polls for parked streams.
    poll: DriverPoll,
}

/// The step after a pass.
enum Next {
    /// Another pass.
    Pass,
    /// Poll, when other tasks have run.
    Poll,
    Park,
}

impl DriverTask {
    /// # Errors
    ///
    /// When the device's doorbell cannot be watched.
    pub(crate) fn new(
        driver: &Arc<DeviceDriver>,
        runtime: Arc<dyn Runtime>,
        polling: Duration,
    ) -> std::io::Result<Self> {
        let watch = match driver.device.doorbell() {
            Doorbell::Fd(fd) => {
                let watching = Arc::clone(&runtime);
                Some(register(fd, move |fd| watching.watch(fd))?)
            }
            Doorbell::Waker(_) => None,
        };
        // The task and those that it wakes may be on different threads.
        let has_several_threads =
            runtime.has_several_threads() || !Arc::ptr_eq(&runtime, &driver.stream_runtime);
        Ok(Self {
            driver: Arc::downgrade(driver),
            groups: Arc::downgrade(&driver.groups),
            runtime,
            watch,
            timer: None,
            turns: ReactorTurns::default(),
            turn: None,
            poll: DriverPoll::new(polling, has_several_threads),
        })
    }

    /// One pass.
    fn pass(&mut self, driver: &DeviceDriver, cx: &mut Context<'_>) -> Result<Next, DeviceError> {
        if let Doorbell::Waker(waker) = driver.device.doorbell() {
            waker.register(cx.waker());
        }
        // Events until here are found by the first drain. Later events wake the task.
        let has_rung = self.poll_doorbell(cx)?;
        driver.in_pass.store(true, Ordering::SeqCst);
        let next = self.handle_timeouts(driver, cx);
        let after_drain = driver.take_after_drain();
        let drained = driver.drain();
        driver.run_after_drain(after_drain);
        driver.in_pass.store(false, Ordering::SeqCst);
        let any = drained?;
        if self.goes_on_polling(driver, any) {
            return Ok(match has_rung || !self.sleep_until(next, cx) {
                true => Next::Pass,
                false => Next::Poll,
            });
        }
        driver.arm()?;
        if driver.drain()? || (has_rung && self.poll_doorbell(cx)?) {
            return Ok(Next::Pass);
        }
        Ok(self.may_park(next, cx))
    }

    fn may_park(&mut self, next: Option<Instant>, cx: &mut Context<'_>) -> Next {
        match self.sleep_until(next, cx) {
            true => Next::Park,
            false => Next::Pass,
        }
    }

    /// Polls the device for parked streams, between two passes.
    fn poll_device(
        &mut self,
        driver: &DeviceDriver,
        cx: &mut Context<'_>,
    ) -> Result<Next, DeviceError> {
        let has_work = driver.has_work.load(Ordering::Acquire) || self.poll_timer(cx).is_ready();
        if has_work || self.poll_doorbell(cx)? {
            return self.pass(driver, cx);
        }
        let any = driver.poll()?;
        match self.goes_on_polling(driver, any) {
            true => Ok(Next::Poll),
            false => self.pass(driver, cx),
        }
    }

    /// A pass has found events, or none. Returns whether the task polls again, for parked streams.
    fn goes_on_polling(&mut self, driver: &DeviceDriver, any: bool) -> bool {
        let now = Instant::now();
        if !self.poll.note_pass(now, any, &driver.pollers) {
            return false;
        }
        // Tasks and threads that wait for the CPU may be those that the streams wait for.
        let goes_on = !is_cpu_busy(now) && yield_processor(now);
        if !goes_on {
            self.poll.stop(now, &driver.pollers);
        }
        goes_on
    }

    /// Whether the doorbell has rung since the last call; otherwise registers the waker.
    fn poll_doorbell(&self, cx: &mut Context<'_>) -> Result<bool, DeviceError> {
        match self.watch.as_ref().map(|watch| watch.poll_readable(cx)) {
            Some(Poll::Ready(Ok(()))) => Ok(true),
            Some(Poll::Ready(Err(_))) => Err(DeviceError::Gone("doorbell cannot be watched")),
            Some(Poll::Pending) | None => Ok(false),
        }
    }

    /// Handles queued work and timeouts. Returns the next timeout.
    fn handle_timeouts(&self, driver: &DeviceDriver, cx: &Context<'_>) -> Option<Instant> {
        driver.task_waker.register(cx.waker());
        driver.has_work.store(false, Ordering::Release);
        let now = self.runtime.now();
        driver
            .handle_timeouts(now)
            .into_iter()
            .chain(driver.groups.next_timeout(now))
            .min()
    }

    /// One pass without a device: connections that have moved to another device are still handled
    /// here.
    fn pass_without_device(&mut self, driver: &DeviceDriver, cx: &mut Context<'_>) -> Next {
        let next = self.handle_timeouts(driver, cx);
        driver.finish_drain();
        self.may_park(next, cx)
    }

    /// Sets the timer. Returns whether it is pending.
    ///
    /// A timer that is too early stays set: setting one can cost more than a wake-up.
    fn sleep_until(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let is_late = |set: Instant| at.is_some_and(|at| at < set);
        if self.timer.as_ref().is_none_or(|(set, _)| is_late(*set)) {
            self.timer = at.map(|at| (at, self.runtime.timer(at)));
        }
        self.poll_timer(cx).is_pending()
    }

    fn poll_timer(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some((_, timer)) = &mut self.timer else {
            return Poll::Pending;
        };
        let timer = timer.as_mut().poll(cx);
        if timer.is_ready() {
            self.timer = None;
        }
        timer
    }

    /// Whether the task waits for a turn of the reactor.
    fn is_in_turn(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(turn) = &mut self.turn else {
            return false;
        };
        let is_pending = turn.as_mut().poll(cx).is_pending();
        if !is_pending {
            self.turn = None;
        }
        is_pending
    }
}

impl Drop for DriverTask {
    fn drop(&mut self) {
        if let Some(driver) = self.driver.upgrade() {
            driver.stop();
        }
    }
}

impl Future for DriverTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let Some(driver) = this.driver.upgrade() else {
            if let Some(groups) = this.groups.upgrade() {
                groups.shut_down_if_unused();
            }
            return Poll::Ready(());
        };
        if driver.is_ending.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if this.is_in_turn(cx) {
            return Poll::Pending;
        }
        let is_rdma = driver.device.operations().rdma().is_some();
        this.turns.begin(&*this.runtime);
        for _ in 0..PASSES_MAX {
            let next = if is_rdma && driver.is_gone() {
                Ok(this.pass_without_device(&driver, cx))
            } else if this.poll.is_polling() {
                this.poll_device(&driver, cx)
            } else {
                this.pass(&driver, cx)
            };
            match next {
                Ok(Next::Park) => {
                    this.turns.note_wait();
                    return Poll::Pending;
                }
                Ok(Next::Poll) => {
                    this.turns.note_wait();
                    this.runtime.yield_now(cx);
                    return Poll::Pending;
                }
                Ok(Next::Pass) => {}
                Err(error) => {
                    driver.handle_device_gone(&error);
                    if !is_rdma {
                        return Poll::Ready(());
                    }
                }
            }
            // Peers can make a pass long.
            this.turn = this.turns.due(&*this.runtime);
            // Tasks of connections that have ended run before others end.
            if this.turn.is_some() || driver.has_ending() {
                break;
            }
        }
        // The budget of one poll is spent: other tasks run now, and the reactor.
        if !this.is_in_turn(cx) {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
