//! The driver's task.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Instant;

use super::{PASSES_MAX, Slot};
use crate::device::{DeviceError, Doorbell};
use crate::io::runtime::{Runtime, Timer, Watch};
use crate::mem::sync::Ordering;

/// The driver's task: drain, arm, drain, park; for as long as the endpoint or a stream lives.
pub(crate) struct Driver {
    slot: Weak<Slot>,
    runtime: Arc<dyn Runtime>,
    watch: Option<Box<dyn Watch>>,
    timer: Option<(Instant, Timer)>,
}

impl Driver {
    /// # Errors
    ///
    /// When the device's doorbell cannot be watched.
    pub(crate) fn new(slot: &Arc<Slot>, runtime: Arc<dyn Runtime>) -> std::io::Result<Self> {
        let watch = match slot.device.doorbell() {
            Doorbell::Fd(fd) => Some(runtime.watch(fd)?),
            Doorbell::Waker(_) | Doorbell::Spin => None,
        };
        Ok(Self {
            slot: Arc::downgrade(slot),
            runtime,
            watch,
            timer: None,
        })
    }

    /// One pass. Returns whether the driver may sleep.
    fn pass(&mut self, slot: &Slot, cx: &mut Context<'_>) -> Result<bool, DeviceError> {
        if let Doorbell::Waker(bell) = slot.device.doorbell() {
            bell.register(cx.waker());
        }
        // What rang until here is found by the first drain. What rings from here on wakes.
        let has_rung = self.poll_bell(cx)?;
        slot.passing.store(true, Ordering::SeqCst);
        let next = self.keep_house(slot, cx);
        let closing = std::mem::take(&mut *slot.closing());
        let drained = slot.drain();
        slot.close_all(closing);
        slot.passing.store(false, Ordering::SeqCst);
        drained?;
        slot.arm()?;
        if slot.drain()? || (has_rung && self.poll_bell(cx)?) {
            return Ok(false);
        }
        Ok(self.sleep_until(next, cx) && !matches!(slot.device.doorbell(), Doorbell::Spin))
    }

    /// Whether the doorbell has rung since this was asked last; else it wakes from now on.
    fn poll_bell(&self, cx: &mut Context<'_>) -> Result<bool, DeviceError> {
        match self.watch.as_ref().map(|watch| watch.poll_readable(cx)) {
            Some(Poll::Ready(Ok(()))) => Ok(true),
            Some(Poll::Ready(Err(_))) => Err(DeviceError::Gone("doorbell cannot be watched")),
            Some(Poll::Pending) | None => Ok(false),
        }
    }

    /// Does what has to be done besides handing out events. Returns when to come again.
    fn keep_house(&self, slot: &Slot, cx: &Context<'_>) -> Option<Instant> {
        slot.driver.register(cx.waker());
        slot.news.store(false, Ordering::Release);
        let now = self.runtime.now();
        slot.housekeeping(now)
            .into_iter()
            .chain(slot.groups.next_timeout(now))
            .min()
    }

    /// One pass without a device: connections that have moved to another one are still looked
    /// after here.
    fn pass_without_device(&mut self, slot: &Slot, cx: &mut Context<'_>) -> bool {
        let next = self.keep_house(slot, cx);
        slot.close_links();
        self.sleep_until(next, cx)
    }

    /// Sets the timer. Returns whether the time is still to come.
    ///
    /// A timer that comes too early is left as it is: setting one can cost more than waking once.
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
}

impl Drop for Driver {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.upgrade() {
            slot.abandon();
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(slot) = self.slot.upgrade() else {
            return Poll::Ready(());
        };
        let is_rdma = slot.device.fabric().rdma().is_some();
        for _ in 0..PASSES_MAX {
            let may_sleep = if is_rdma && slot.is_gone() {
                Ok(self.pass_without_device(&slot, cx))
            } else {
                self.pass(&slot, cx)
            };
            match may_sleep {
                Ok(true) => return Poll::Pending,
                Ok(false) => {}
                Err(_) => {
                    slot.device_gone();
                    if !is_rdma {
                        return Poll::Ready(());
                    }
                }
            }
        }
        // Enough for one turn: other tasks want to run as well.
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
