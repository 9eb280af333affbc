//! A device with its stand-in driver: the only consumer of the device.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use smc_core::device::{
    Attachment, Device, Direct, Doorbell, Event, Operations, ProtectionDomain, Rdma, Signal,
    SubmitError,
};
use smc_wire::types::{DmbToken, Gid};

use super::fixture::{OrFail, Stop, Verdict, ensure, fail};

/// Which surface of a device is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FabricKind {
    /// SMC-D.
    Direct,
    /// SMC-R.
    Rdma,
}

/// One device and what it has reported.
#[derive(Debug)]
pub(super) struct Node {
    device: Arc<dyn Device>,
    queued: Mutex<Vec<Event>>,
    wake_signal: Arc<WakeSignal>,
    timeout: Duration,
    /// For links and memory of all checks that are not about domains.
    domain: OnceLock<Arc<dyn ProtectionDomain>>,
}

impl Node {
    pub(super) fn new(
        device: Arc<dyn Device>,
        kind: FabricKind,
        timeout: Duration,
    ) -> Result<Self, Stop> {
        match (kind, device.operations()) {
            (FabricKind::Direct, Operations::Direct(_))
            | (FabricKind::Rdma, Operations::Rdma(_)) => {}
            (FabricKind::Direct, _) => return fail("the device is not an SMC-D device"),
            (FabricKind::Rdma, _) => return fail("the device is not an SMC-R device"),
        }
        Ok(Self {
            device,
            queued: Mutex::default(),
            wake_signal: Arc::default(),
            timeout,
            domain: OnceLock::new(),
        })
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    pub(super) fn into_device(self) -> Arc<dyn Device> {
        self.device
    }

    pub(super) fn direct(&self) -> &dyn Direct {
        match self.device.operations() {
            Operations::Direct(direct) => direct,
            _ => unreachable!("checked on construction"),
        }
    }

    pub(super) fn rdma(&self) -> &dyn Rdma {
        match self.device.operations() {
            Operations::Rdma(rdma) => rdma,
            _ => unreachable!("checked on construction"),
        }
    }

    pub(super) fn domain(&self) -> &OnceLock<Arc<dyn ProtectionDomain>> {
        &self.domain
    }

    pub(super) fn gid(&self) -> Gid {
        self.direct().gid()
    }

    /// Moves data, again and again while the device is busy.
    pub(super) fn try_put(
        &self,
        owner: Gid,
        to: DmbToken,
        at: usize,
        data: &[&[u8]],
        signal: Signal,
    ) -> Result<Result<(), SubmitError>, Stop> {
        let at = u32::try_from(at).or_fail("offset of a move")?;
        let slices: Vec<_> = data.iter().map(|slice| IoSlice::new(slice)).collect();
        until_taken(self.timeout, || {
            self.direct().move_data(owner, to, at, &slices, signal)
        })
    }

    /// Moves data; anything but success fails the check.
    pub(super) fn put(
        &self,
        owner: Gid,
        to: DmbToken,
        at: usize,
        data: &[u8],
        signal: Signal,
    ) -> Verdict {
        self.try_put(owner, to, at, &[data], signal)?
            .or_fail("move_data")
    }

    /// Drains into the list; returns how many events came.
    pub(super) fn drain(&self) -> Result<usize, Stop> {
        let mut count = 0;
        let result = self.device.drain(&mut |event| {
            count += 1;
            self.queued().push(event);
        });
        result.or_fail("drain")?;
        Ok(count)
    }

    /// As [`Node::drain`], between two drains.
    pub(super) fn poll(&self) -> Verdict {
        let result = self.device.poll(&mut |event| self.queued().push(event));
        result.or_fail("poll")
    }

    /// For all events: the caller may wait for completions.
    pub(super) fn arm(&self) -> Result<(), Stop> {
        self.device.arm().or_fail("arm")?;
        match self.device.operations().rdma() {
            Some(rdma) => rdma.arm_completions().or_fail("arm for completions"),
            None => Ok(()),
        }
    }

    /// Prepares to wait for the doorbell. Comes before the first drain of a round.
    pub(super) fn listen(&self) {
        if let Doorbell::Waker(cell) = self.device.doorbell() {
            self.wake_signal.quiet();
            cell.register(&Waker::from(Arc::clone(&self.wake_signal)));
        }
    }

    /// Waits for the doorbell; false if it did not ring in time.
    pub(super) fn park(&self, time: Duration) -> Result<bool, Stop> {
        match self.device.doorbell() {
            Doorbell::Waker(_) => Ok(self.wake_signal.wait(time)),
            Doorbell::Fd(fd) => poll_readable(fd, time),
        }
    }

    /// One round of a driver: drain, arm, drain, park. False if nothing happened in time.
    pub(super) fn turn(&self, time: Duration) -> Result<bool, Stop> {
        self.turn_with(time, || {})
    }

    /// The same, with `pause` called between the steps: a driver can be held up anywhere.
    pub(super) fn turn_with(&self, time: Duration, mut pause: impl FnMut()) -> Result<bool, Stop> {
        self.listen();
        if self.drain()? > 0 {
            return Ok(true);
        }
        pause();
        self.arm()?;
        pause();
        if self.drain()? > 0 {
            return Ok(true);
        }
        pause();
        self.park(time)
    }

    /// Drives the device until it has reported `event`; false if that takes too long.
    pub(super) fn await_event(&self, event: Event) -> Result<bool, Stop> {
        let deadline = Instant::now() + self.timeout;
        loop {
            if self.queued().contains(&event) {
                return Ok(true);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            self.turn(left)?;
        }
    }

    /// Drives the device until it has reported the buffer; too long a wait fails the check.
    pub(super) fn await_report(&self, token: DmbToken) -> Verdict {
        ensure!(
            self.await_event(Event::Signalled(token))?,
            "signal to {token} is never reported"
        );
        Ok(())
    }

    /// How often a buffer was reported.
    pub(super) fn reports(&self, token: DmbToken) -> usize {
        self.count(Event::Signalled(token))
    }

    /// How often a buffer was reported since this was asked last.
    pub(super) fn take_reports(&self, token: DmbToken) -> usize {
        let mut queued = self.queued();
        let before = queued.len();
        queued.retain(|event| *event != Event::Signalled(token));
        before - queued.len()
    }

    pub(super) fn count(&self, event: Event) -> usize {
        self.count_if(|seen| *seen == event)
    }

    /// Drains what is there and forgets all reports.
    pub(super) fn forget(&self) -> Result<(), Stop> {
        while self.drain()? > 0 {}
        self.queued().clear();
        Ok(())
    }

    /// Takes the first event that `pick` makes something of.
    pub(super) fn take<T>(&self, mut pick: impl FnMut(&Event) -> Option<T>) -> Option<T> {
        let mut queued = self.queued();
        let mut events = queued.iter().enumerate();
        let (at, found) = events.find_map(|(at, event)| Some((at, pick(event)?)))?;
        queued.remove(at);
        Some(found)
    }

    /// How many events there are of a sort.
    pub(super) fn count_if(&self, is_counted: impl Fn(&Event) -> bool) -> usize {
        self.queued()
            .iter()
            .filter(|event| is_counted(event))
            .count()
    }

    fn queued(&self) -> MutexGuard<'_, Vec<Event>> {
        self.queued.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Tells the owner of an attached buffer, again and again while the device is busy.
pub(super) fn ring(attachment: &dyn Attachment, timeout: Duration) -> Verdict {
    until_taken(timeout, || attachment.signal())?.or_fail("signal of an attachment")
}

pub(super) fn until_taken(
    timeout: Duration,
    submit: impl Fn() -> Result<(), SubmitError>,
) -> Result<Result<(), SubmitError>, Stop> {
    let deadline = Instant::now() + timeout;
    loop {
        match submit() {
            Err(SubmitError::WouldBlock) if Instant::now() < deadline => thread::yield_now(),
            Err(SubmitError::WouldBlock) => return fail("the device stays busy"),
            result => return Ok(result),
        }
    }
}

/// What a waker doorbell rings.
#[derive(Debug, Default)]
struct WakeSignal {
    rung: Mutex<bool>,
    changed: Condvar,
}

impl WakeSignal {
    fn quiet(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    fn wait(&self, time: Duration) -> bool {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        let (rung, _) = self
            .changed
            .wait_timeout_while(rung, time, |rung| !*rung)
            .unwrap_or_else(PoisonError::into_inner);
        *rung
    }
}

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }
}

fn poll_readable(fd: BorrowedFd<'_>, time: Duration) -> Result<bool, Stop> {
    let time = Timespec::try_from(time).or_fail("timeout of poll")?;
    let ready = retry_on_intr(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)));
    Ok(ready.or_fail("poll of the doorbell")? > 0)
}
