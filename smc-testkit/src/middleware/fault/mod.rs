//! Devices that fail on purpose.

mod direct;
mod rdma;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use smc_core::device::{
    Device, DeviceError, Dmb, Doorbell, Event, Link, LinkFailure, SENDS_MAX, SubmitError,
};
use smc_wire::types::{DmbToken, Gid, Qpn};

use super::delegate_device;
use crate::Rng;
use crate::memory_rdma::link_of;

/// Makes a device slow, busy and unreliable, within the rules: everything it does is something
/// that a correct device may do.
///
/// Signals, messages and completions are delayed, never lost, and those of a link stay in order.
/// What costs a link of SMC-R is for its network to do: see
/// [`RdmaNetwork`](crate::memory_rdma::RdmaNetwork). Delays need a [`Doorbell::Waker`], since the
/// middleware has to ring the doorbell itself; devices with another doorbell report in time. Clones
/// are the same device.
#[derive(Clone, Debug)]
pub struct Fault {
    inner: Arc<dyn Device>,
    state: Arc<Mutex<FaultState>>,
}

/// What goes wrong, and in how many of a thousand cases. Nothing does by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Signals, messages and completions that are reported some drains later.
    pub delayed: u16,
    /// Drains that report a local buffer that was not written.
    pub spurious: u16,
    /// Moves and attachment signals that are refused with [`SubmitError::WouldBlock`], and posts
    /// for which a link need not have capacity.
    pub busy: u16,
    /// Calls of [`Direct::reach`](smc_core::device::Direct::reach) that find no device, and of
    /// [`PendingLink::connect`](smc_core::device::PendingLink::connect) that fail.
    pub unreachable: u16,
    /// Registrations that find no buffer left, or no memory, and links that find no queue pair.
    pub exhausted: u16,
    /// Calls of [`Nocopy::attach`](smc_core::device::Nocopy::attach) that fail.
    pub unattachable: u16,
    /// All peers are reported gone at this move, attachment signal or post, counted from 1.
    pub peers_gone_at: Option<u64>,
}

setters! {
    Faults {
        /// Sets how many signals, messages and completions are delayed.
        fn with_delayed(delayed: u16);
        /// Sets how many drains report a buffer without cause.
        fn with_spurious(spurious: u16);
        /// Sets how many moves, signals and posts find the device busy.
        fn with_busy(busy: u16);
        /// Sets how many look-ups find no device, and how many links cannot be connected.
        fn with_unreachable(unreachable: u16);
        /// Sets how many registrations and links fail for want of buffers, memory or queue pairs.
        fn with_exhausted(exhausted: u16);
        /// Sets how many attachments fail.
        fn with_unattachable(unattachable: u16);
    }
}

impl Faults {
    /// Reports all peers gone at the given move, attachment signal or post.
    #[must_use]
    pub fn with_peers_gone_at(mut self, operation: u64) -> Self {
        self.peers_gone_at = Some(operation);
        self
    }
}

impl Fault {
    /// A device with faults that follow from `seed`.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, seed: u64, faults: Faults) -> Arc<Self> {
        let state = FaultState {
            faults,
            rng: Rng::new(seed),
            held: Vec::new(),
            own: Vec::new(),
            peers: BTreeSet::new(),
            ended: BTreeSet::new(),
            links: BTreeMap::new(),
            operations: 0,
            allocation: None,
        };
        Arc::new(Self {
            inner,
            state: Arc::new(Mutex::new(state)),
        })
    }

    /// Other faults from now on.
    pub fn set(&self, faults: Faults) {
        self.state().faults = faults;
    }

    /// Lets allocations fail: after `after` more, the next `count`. An allocation is a call that
    /// registers or attaches a buffer, registers memory, or makes a protection domain, a queue pair
    /// or its connection.
    pub fn fail_allocations(&self, after: usize, count: usize, error: DeviceError) {
        self.state().allocation = Some(FailingAllocation {
            after,
            count,
            error,
        });
    }

    /// Ends all peers seen so far: they are reported gone, or their links down, and nothing
    /// reaches them any more.
    pub fn lose_peers(&self) {
        self.state().lose_peers();
        self.ring();
    }

    /// Counts a move, signal or post; returns why it fails.
    fn submit<T>(
        &self,
        count: impl FnOnce(&mut FaultState) -> Result<T, SubmitError>,
    ) -> Result<T, SubmitError> {
        let result = count(&mut self.state());
        if result.is_err() {
            // An event for tasks that have to try again, or to detect the death.
            self.ring();
        }
        result
    }

    fn ring(&self) {
        if let Doorbell::Waker(wake_signal) = self.inner.doorbell() {
            wake_signal.wake();
        }
    }

    fn state(&self) -> MutexGuard<'_, FaultState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug)]
struct FaultState {
    faults: Faults,
    rng: Rng,
    /// Events with the number of drains that they still miss.
    held: Vec<(u8, Event)>,
    /// Local buffers, and those that were dropped since [`FaultState::own`] was called.
    own: Vec<(DmbToken, Weak<dyn Dmb>)>,
    /// Devices of peers that were used.
    peers: BTreeSet<Gid>,
    /// The devices among them that a fault has ended.
    ended: BTreeSet<Gid>,
    /// Links that are not down.
    links: BTreeMap<Qpn, Held>,
    operations: u64,
    allocation: Option<FailingAllocation>,
}

/// The allocations that fail.
#[derive(Debug)]
struct FailingAllocation {
    after: usize,
    count: usize,
    error: DeviceError,
}

/// A local link.
#[derive(Debug)]
struct Held {
    link: Weak<dyn Link>,
    /// Posts that were not reported as sent.
    outstanding: usize,
}

impl FaultState {
    /// Counts a move or signal; returns why it fails.
    fn submit(&mut self) -> Result<(), SubmitError> {
        self.count();
        if !self.ended.is_empty() {
            return Err(SubmitError::PeerGone);
        }
        if self.rng.chance(self.faults.busy) {
            return Err(SubmitError::WouldBlock);
        }
        Ok(())
    }

    /// Counts a post; returns why it fails.
    fn submit_post(&mut self, qpn: Qpn) -> Result<(), SubmitError> {
        self.count();
        let held = self.links.get(&qpn).ok_or(SubmitError::PeerGone)?;
        if held.outstanding >= SENDS_MAX && self.rng.chance(self.faults.busy) {
            return Err(SubmitError::WouldBlock);
        }
        Ok(())
    }

    fn count(&mut self) {
        self.operations += 1;
        if self.faults.peers_gone_at == Some(self.operations) {
            self.lose_peers();
        }
    }

    /// Whether a call about a peer fails, permanently or by this fault.
    fn reach(&mut self, peer: Gid, fault: fn(&Faults) -> u16) -> Result<(), DeviceError> {
        let why = "injected fault";
        if self.ended.contains(&peer) {
            return Err(DeviceError::PeerGone);
        }
        match self.has(fault) {
            true => Err(DeviceError::Unreachable { peer, why }),
            false => Ok(()),
        }
    }

    /// Counts an allocation; returns why it fails.
    fn allocate(&mut self) -> Result<(), DeviceError> {
        let Some(failing) = &mut self.allocation else {
            return Ok(());
        };
        if let Some(after) = failing.after.checked_sub(1) {
            failing.after = after;
            return Ok(());
        }
        if let Some(count) = failing.count.checked_sub(1) {
            failing.count = count;
            return Err(failing.error.clone());
        }
        self.allocation = None;
        Ok(())
    }

    /// Whether a registration finds nothing left.
    fn exhaust(&mut self) -> Result<(), DeviceError> {
        self.allocate()?;
        match self.has(|faults| faults.exhausted) {
            false => Ok(()),
            true if self.rng.chance(500) => Err(DeviceError::Exhausted),
            true => Err(DeviceError::NoMemory),
        }
    }

    /// Local buffers that are still there.
    fn own(&mut self) -> &mut Vec<(DmbToken, Weak<dyn Dmb>)> {
        self.own.retain(|(_, dmb)| dmb.strong_count() > 0);
        &mut self.own
    }

    fn has(&mut self, fault: fn(&Faults) -> u16) -> bool {
        self.rng.chance(fault(&self.faults))
    }

    fn lose_peers(&mut self) {
        for (link, held) in std::mem::take(&mut self.links) {
            if let Some(inner) = held.link.upgrade() {
                inner.close();
                let cause = LinkFailure::RetryExceeded;
                self.held.push((0, Event::LinkDown { link, cause }));
            }
        }
        for gid in std::mem::take(&mut self.peers) {
            if self.ended.insert(gid) {
                self.held.push((0, Event::PeerGone(gid)));
            }
        }
    }

    /// What is to be reported now, of what came now and what was held back.
    fn filter_events(&mut self, came: Vec<Event>, can_hold: bool) -> Vec<Event> {
        let mut out = Vec::new();
        // Links with events that are held back: later ones wait behind them.
        let mut waiting = BTreeSet::new();
        let held = std::mem::take(&mut self.held);
        let held = held
            .into_iter()
            .map(|(drains, event)| (Some(drains), event));
        for (drains, event) in held.chain(came.into_iter().map(|event| (None, event))) {
            let left = match drains {
                Some(drains) => drains.checked_sub(1),
                None => self.delay(&event),
            };
            let link = link_of(&event);
            let is_behind = link.is_some_and(|link| waiting.contains(&link));
            match left.or_else(|| is_behind.then_some(0)).filter(|_| can_hold) {
                Some(left) => {
                    self.held.push((left, event));
                    waiting.extend(link);
                }
                None => out.extend(self.release(event, drains.is_some())),
            }
        }
        if self.rng.chance(self.faults.spurious) {
            let count = self.own().len();
            let own = self.own.get(self.rng.below(count));
            out.extend(own.map(|(token, _)| Event::Signalled(*token)));
        }
        out
    }

    /// For how many drains an event is held back, if it is.
    fn delay(&mut self, event: &Event) -> Option<u8> {
        let can_wait = matches!(
            event,
            Event::Signalled(_) | Event::Received { .. } | Event::Completed { .. }
        );
        let is_delayed = can_wait && self.rng.chance(self.faults.delayed);
        is_delayed.then(|| u8::try_from(self.rng.below(4)).unwrap_or(0))
    }

    /// Records the reports; no more of peers that are gone.
    fn release(&mut self, event: Event, is_own: bool) -> Option<Event> {
        match &event {
            Event::PeerGone(gid) if !is_own && self.ended.contains(gid) => return None,
            Event::Completed { link, .. } => {
                if let Some(held) = self.links.get_mut(link) {
                    held.outstanding = held.outstanding.saturating_sub(1);
                }
            }
            Event::LinkDown { link, .. } => {
                self.links.remove(link);
            }
            _ => {}
        }
        Some(event)
    }

    /// Nothing more is reported of a link.
    fn silence(&mut self, qpn: Qpn) {
        self.links.remove(&qpn);
        self.held.retain(|(_, event)| link_of(event) != Some(qpn));
    }
}

impl Device for Fault {
    delegate_device!();

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        loop {
            let mut came = Vec::new();
            let result = self.inner.drain(&mut |event| came.push(event));
            let can_hold = matches!(self.inner.doorbell(), Doorbell::Waker(_));
            let may_be_disarmed = !came.is_empty();
            let (out, is_holding) = {
                let mut state = self.state();
                (state.filter_events(came, can_hold), !state.held.is_empty())
            };
            if is_holding {
                // The driver has registered its waker: it comes again for what is held back.
                self.ring();
            }
            let is_silent = out.is_empty() && !is_holding;
            out.into_iter().for_each(&mut *sink);
            if result.is_err() || !(is_silent && may_be_disarmed) {
                return result;
            }
            // A drain that hands out nothing leaves the device armed.
            self.inner.arm()?;
        }
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.inner.arm()
    }
}
