use std::collections::BTreeSet;
use std::io::IoSlice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Fabric, Identity, Limits,
    Nocopy, PeerEvent, PeerEvents, Signal, SubmitError,
};
use smc_core::mem::Region;
use smc_wire::types::{Chid, DmbToken, Eid, Gid};

use crate::Rng;

/// Makes a device slow, busy and unreliable, within the rules: everything it does is something
/// that a correct device may do.
///
/// Signals are delayed, never lost. Delays need a [`Doorbell::Waker`], since the middleware has to
/// ring the bell itself; devices with another doorbell report in time.
#[derive(Debug)]
pub struct Fault {
    inner: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
}

/// What goes wrong, and in how many of a thousand cases. Nothing does if not told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Faults {
    /// Signals that are reported some drains later.
    pub delayed: u16,
    /// Drains that report a buffer of ours which nobody wrote.
    pub spurious: u16,
    /// Moves and attachment signals that are refused with [`SubmitError::WouldBlock`].
    pub busy: u16,
    /// Calls of [`Direct::reach`] that find nobody.
    pub unreachable: u16,
    /// Calls of [`Direct::register`] that find no buffer left, or no memory.
    pub exhausted: u16,
    /// Calls of [`Nocopy::attach`] that fail.
    pub unattachable: u16,
    /// The peer dies at this move or attachment signal, counted from 1.
    pub dies_at: Option<u64>,
}

impl Faults {
    /// Sets how many signals are delayed.
    #[must_use]
    pub fn with_delayed(mut self, per_mille: u16) -> Self {
        self.delayed = per_mille;
        self
    }

    /// Sets how many drains report a buffer without cause.
    #[must_use]
    pub fn with_spurious(mut self, per_mille: u16) -> Self {
        self.spurious = per_mille;
        self
    }

    /// Sets how many moves and signals find the device busy.
    #[must_use]
    pub fn with_busy(mut self, per_mille: u16) -> Self {
        self.busy = per_mille;
        self
    }

    /// Sets how many look-ups find nobody.
    #[must_use]
    pub fn with_unreachable(mut self, per_mille: u16) -> Self {
        self.unreachable = per_mille;
        self
    }

    /// Sets how many registrations fail for want of buffers or memory.
    #[must_use]
    pub fn with_exhausted(mut self, per_mille: u16) -> Self {
        self.exhausted = per_mille;
        self
    }

    /// Sets how many attachments fail.
    #[must_use]
    pub fn with_unattachable(mut self, per_mille: u16) -> Self {
        self.unattachable = per_mille;
        self
    }

    /// Lets the peer die at the given move or attachment signal.
    #[must_use]
    pub fn with_death_at(mut self, operation: u64) -> Self {
        self.dies_at = Some(operation);
        self
    }
}

impl Fault {
    /// A device with faults that follow from `seed`.
    #[must_use]
    pub fn new(inner: Arc<dyn Device>, seed: u64, faults: Faults) -> Arc<Self> {
        let state = State {
            faults,
            rng: Rng::new(seed),
            held: Vec::new(),
            own: BTreeSet::new(),
            peers: BTreeSet::new(),
            dead: BTreeSet::new(),
            operations: 0,
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

    /// Lets all peers seen so far die: they are reported gone, and nothing reaches them any more.
    pub fn lose_peers(&self) {
        self.state().lose_peers();
        self.ring();
    }

    /// Counts a move or signal; says why it fails.
    fn submit(&self) -> Result<(), SubmitError> {
        let result = self.state().submit();
        if result.is_err() {
            // News for whoever has to try again, or to learn of the death.
            self.ring();
        }
        result
    }

    fn ring(&self) {
        ring(&*self.inner);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

#[derive(Debug)]
struct State {
    faults: Faults,
    rng: Rng,
    /// Events with the number of drains that they still miss.
    held: Vec<(u8, Event)>,
    /// Buffers of ours.
    own: BTreeSet<DmbToken>,
    /// Devices that we have had to do with.
    peers: BTreeSet<Gid>,
    /// Those of them that died by us.
    dead: BTreeSet<Gid>,
    operations: u64,
}

impl State {
    fn submit(&mut self) -> Result<(), SubmitError> {
        self.operations += 1;
        if self.faults.dies_at == Some(self.operations) {
            self.lose_peers();
        }
        if !self.dead.is_empty() {
            return Err(SubmitError::PeerGone);
        }
        if self.rng.chance(self.faults.busy) {
            return Err(SubmitError::WouldBlock);
        }
        Ok(())
    }

    fn lose_peers(&mut self) {
        for gid in std::mem::take(&mut self.peers) {
            if self.dead.insert(gid) {
                self.held.push((0, Event::PeerGone(gid)));
            }
        }
    }

    /// What is to be reported now, of what came now and what was held back.
    fn sift(&mut self, came: Vec<Event>, can_hold: bool) -> Vec<Event> {
        let mut out = Vec::new();
        for (drains, event) in std::mem::take(&mut self.held) {
            match drains.checked_sub(1) {
                Some(left) if can_hold => self.held.push((left, event)),
                _ => out.push(event),
            }
        }
        for event in came {
            let is_signal = matches!(event, Event::Signalled(_));
            if is_signal && can_hold && self.rng.chance(self.faults.delayed) {
                let drains = u8::try_from(self.rng.below(4)).unwrap_or(0);
                self.held.push((drains, event));
            } else if !matches!(event, Event::PeerGone(gid) if self.dead.contains(&gid)) {
                out.push(event);
            }
        }
        if self.rng.chance(self.faults.spurious) {
            let index = self.rng.below(self.own.len());
            out.extend(self.own.iter().nth(index).copied().map(Event::Signalled));
        }
        out
    }
}

impl Device for Fault {
    fn identity(&self) -> &Identity {
        self.inner.identity()
    }

    fn limits(&self) -> Limits {
        self.inner.limits()
    }

    fn fabric(&self) -> Fabric<'_> {
        match self.inner.fabric() {
            Fabric::Direct(_) => Fabric::Direct(self),
            other => other,
        }
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        let mut came = Vec::new();
        let result = self.inner.drain(&mut |event| came.push(event));
        let can_hold = matches!(self.inner.doorbell(), Doorbell::Waker(_));
        let (out, is_holding) = {
            let mut state = self.state();
            (state.sift(came, can_hold), !state.held.is_empty())
        };
        if is_holding {
            // The driver has registered its waker: it comes again for what is held back.
            self.ring();
        }
        out.into_iter().for_each(sink);
        result
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.inner.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        self.inner.doorbell()
    }
}

#[async_trait]
impl Direct for Fault {
    fn gid(&self) -> Gid {
        super::direct(&*self.inner).gid()
    }

    fn chid(&self) -> Chid {
        super::direct(&*self.inner).chid()
    }

    fn seid(&self) -> Option<Eid> {
        super::direct(&*self.inner).seid()
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        {
            let mut state = self.state();
            if state.dead.contains(&peer) {
                return Err(DeviceError::PeerGone);
            }
            let chance = state.faults.unreachable;
            if state.rng.chance(chance) {
                return Err(DeviceError::Unreachable {
                    peer,
                    why: "injected fault",
                });
            }
        }
        super::direct(&*self.inner).reach(peer).await?;
        self.state().peers.insert(peer);
        Ok(())
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        {
            let mut state = self.state();
            if state.dead.contains(&peer) {
                return Err(DeviceError::PeerGone);
            }
            let chance = state.faults.exhausted;
            if state.rng.chance(chance) {
                let is_full = state.rng.chance(500);
                let error = if is_full {
                    DeviceError::Exhausted
                } else {
                    DeviceError::NoMemory
                };
                return Err(error);
            }
        }
        let inner = super::direct(&*self.inner).register(peer, len).await?;
        let mut state = self.state();
        state.peers.insert(peer);
        state.own.insert(inner.token());
        Ok(Arc::new(FaultyDmb {
            inner,
            state: Arc::clone(&self.state),
        }))
    }

    fn move_data(
        &self,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        self.submit()?;
        super::direct(&*self.inner).move_data(to, at, data, signal)
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        super::direct(&*self.inner)
            .nocopy()
            .map(|_| self as &dyn Nocopy)
    }

    fn peer_events(&self) -> Option<&dyn PeerEvents> {
        super::direct(&*self.inner)
            .peer_events()
            .map(|_| self as &dyn PeerEvents)
    }
}

#[async_trait]
impl Nocopy for Fault {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        {
            let mut state = self.state();
            if state.dead.contains(&peer) {
                return Err(DeviceError::PeerGone);
            }
            let chance = state.faults.unattachable;
            if state.rng.chance(chance) {
                return Err(DeviceError::Unreachable {
                    peer,
                    why: "injected fault",
                });
            }
        }
        let inner = super::nocopy(&*self.inner).attach(peer, token).await?;
        self.state().peers.insert(peer);
        let (device, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        Ok(Arc::new(FaultyAttachment {
            inner,
            device,
            state,
        }))
    }
}

impl PeerEvents for Fault {
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        self.submit()?;
        super::peer_events(&*self.inner).signal_event(peer, event)
    }
}

#[derive(Debug)]
struct FaultyDmb {
    inner: Arc<dyn Dmb>,
    state: Arc<Mutex<State>>,
}

impl Dmb for FaultyDmb {
    fn token(&self) -> DmbToken {
        self.inner.token()
    }

    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn arm(&self) {
        self.inner.arm();
    }
}

impl Drop for FaultyDmb {
    fn drop(&mut self) {
        lock(&self.state).own.remove(&self.inner.token());
    }
}

#[derive(Debug)]
struct FaultyAttachment {
    inner: Arc<dyn Attachment>,
    device: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
}

impl Attachment for FaultyAttachment {
    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn signal(&self) -> Result<(), SubmitError> {
        let result = lock(&self.state).submit();
        if result.is_err() {
            ring(&*self.device);
        }
        result?;
        self.inner.signal()
    }
}

fn ring(device: &dyn Device) {
    if let Doorbell::Waker(bell) = device.doorbell() {
        bell.wake();
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
