//! The driver's task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use smc_ipc::doorbell::register;

use super::{DeviceDriver, PASSES_MAX};
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
}

impl DriverTask {
    /// # Errors
    ///
    /// When the device's doorbell cannot be watched.
    pub(crate) fn new(
        driver: &Arc<DeviceDriver>,
        runtime: Arc<dyn Runtime>,
    ) -> std::io::Result<Self> {
        let watch = match driver.device.doorbell() {
            Doorbell::Fd(fd) => {
                let watching = Arc::clone(&runtime);
                Some(register(fd, move |fd| watching.watch(fd))?)
            }
            Doorbell::Waker(_) => None,
        };
        Ok(Self {
            driver: Arc::downgrade(driver),
            groups: Arc::downgrade(&driver.groups),
            runtime,
            watch,
            timer: None,
            turns: ReactorTurns::default(),
            turn: None,
        })
    }

    /// One pass. Returns whether the task may park.
    fn pass(&mut self, driver: &DeviceDriver, cx: &mut Context<'_>) -> Result<bool, DeviceError> {
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
        drained?;
        driver.arm()?;
        if driver.drain()? || (has_rung && self.poll_doorbell(cx)?) {
            return Ok(false);
        }
        Ok(self.sleep_until(next, cx))
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
    fn pass_without_device(&mut self, driver: &DeviceDriver, cx: &mut Context<'_>) -> bool {
        let next = self.handle_timeouts(driver, cx);
        driver.finish_drain();
        self.sleep_until(next, cx)
    }

    /// Sets the timer. Returns whether it is pending.
    ///
    /// A timer that is too early stays set: setting one can cost more than a wake-up.
    fn sleep_until(&mut self, at: Option<Instant>, cx: &mut Context<'_>) -> bool {
        let is_late = |set: Instant| at.is_some_and(|at| at < set);
        if self.timer.as_ref().is_none_or(|(set, _)| is_late(*set)) {
            self.timer = at.map(|at| (at, self.runtime.timer(at)));
        }
        let Some((_, timer)) = &mut self.timer else {
            return true;
        };
        if timer.as_mut().poll(cx).is_ready() {
            self.timer = None;
            return false;
        }
        true
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
        let is_rdma = driver.device.fabric().rdma().is_some();
        for _ in 0..PASSES_MAX {
            let may_sleep = if is_rdma && driver.is_gone() {
                Ok(this.pass_without_device(&driver, cx))
            } else {
                this.pass(&driver, cx)
            };
            match may_sleep {
                Ok(true) => {
                    this.turns.note_wait();
                    return Poll::Pending;
                }
                Ok(false) => {}
                Err(_) => {
                    driver.handle_device_gone();
                    if !is_rdma {
                        return Poll::Ready(());
                    }
                }
            }
            // Peers can make a pass long.
            this.turn = this.turns.due(&*this.runtime);
            if this.turn.is_some() {
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
