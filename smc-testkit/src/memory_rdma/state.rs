//! Everything of a network behind one lock, and what is done after it is released.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::mem;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use smc_core::device::{Access, DeviceError, Event, Inbound, LinkFailure, RdmaAddress};
use smc_core::mem::Region;
use smc_wire::types::{Qpn, RoceGid};

use super::device::made_up_table;
use super::options::RdmaOptions;
use super::pair::{Phase, QueuePair};
use super::{SharedNetwork, Timing};
use crate::Rng;

/// Everything of a network.
pub(super) struct NetworkState {
    pub(super) rng: Rng,
    pub(super) devices: BTreeMap<DeviceId, Member>,
    pub(super) pairs: BTreeMap<PairId, QueuePair>,
    pub(super) is_cut: bool,
    pub(super) is_paused: bool,
    next_device: u32,
    next_domain: u64,
    next_expiry: u64,
    /// Whether a queue pair has stopped to answer.
    has_lost: bool,
    after: Vec<After>,
}

/// Names a device of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct DeviceId(pub(super) u32);

/// Names a protection domain of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DomainId(u64);

/// Names a queue pair of a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PairId {
    pub(super) device: DeviceId,
    pub(super) qpn: Qpn,
}

/// A device as the network sees it.
pub(super) struct Member {
    pub(super) options: RdmaOptions,
    pub(super) wake_signal: Arc<AtomicWaker>,
    pub(super) queued: VecDeque<Event>,
    pub(super) is_armed: bool,
    /// Armed for completions, too: those ring for no other, so that a task that waits for them and
    /// does not report it is found out.
    pub(super) is_armed_for_completions: bool,
    pub(super) is_gone: bool,
    pub(super) down: BTreeSet<u8>,
    pub(super) cut: BTreeSet<u8>,
    pub(super) holds_completions: bool,
    /// The newest message of each link is reported late.
    pub(super) lags: bool,
    pub(super) memory: BTreeMap<u32, Memory>,
    /// What the next registrations end with.
    pub(super) refusals: VecDeque<DeviceError>,
    pub(super) next_addr: u64,
    pub(super) next_qpn: u32,
}

/// A registration.
pub(super) struct Memory {
    pub(super) region: Region,
    pub(super) addr: u64,
    pub(super) access: Access,
    pub(super) domain: DomainId,
}

/// What happens at a time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    /// Packets of this queue pair may arrive.
    Arrive(PairId),
    /// Acknowledgements for this queue pair may arrive.
    Complete(PairId),
    /// The queue pair gives up, if it still waits for the same answer.
    Expire(PairId, u64),
}

/// What is done without the lock.
enum After {
    Ring(Arc<AtomicWaker>),
    Schedule(Instant, Action),
}

impl NetworkState {
    pub(super) fn new(rng: Rng) -> Self {
        Self {
            rng,
            devices: BTreeMap::new(),
            pairs: BTreeMap::new(),
            is_cut: false,
            is_paused: false,
            next_device: 0,
            next_domain: 0,
            next_expiry: 0,
            has_lost: false,
            after: Vec::new(),
        }
    }

    pub(super) fn fresh_domain(&mut self) -> DomainId {
        self.next_domain += 1;
        DomainId(self.next_domain)
    }

    pub(super) fn join(
        &mut self,
        mut options: RdmaOptions,
        wake_signal: Arc<AtomicWaker>,
    ) -> DeviceId {
        let id = DeviceId(self.next_device);
        self.next_device += 1;
        if options.addresses.is_empty() {
            options.addresses = made_up_table(id);
        }
        let next_qpn = u32::try_from(self.rng.below(1 << 20)).unwrap_or(0) + 0x100;
        let next_addr = (self.rng.bits() >> 20) & !0xfff;
        let member = Member {
            options,
            wake_signal,
            queued: VecDeque::new(),
            is_armed: false,
            is_armed_for_completions: false,
            is_gone: false,
            down: BTreeSet::new(),
            cut: BTreeSet::new(),
            holds_completions: false,
            lags: false,
            memory: BTreeMap::new(),
            refusals: VecDeque::new(),
            next_addr,
            next_qpn,
        };
        self.devices.insert(id, member);
        id
    }

    /// Takes a device off the network with its memory and links.
    pub(super) fn leave(&mut self, id: DeviceId) {
        if let Some(member) = self.devices.get_mut(&id) {
            member.is_gone = true;
            member.memory.clear();
        }
        for (_, pair) in self.pairs.iter_mut().filter(|(at, _)| at.device == id) {
            pair.phase = Phase::Error;
        }
        self.has_lost = true;
    }

    /// Reports an event of a device.
    pub(super) fn report(&mut self, to: DeviceId, event: Event) {
        if let Some(member) = self.devices.get_mut(&to) {
            let armed = match event {
                Event::Completed { .. } => &mut member.is_armed_for_completions,
                _ => &mut member.is_armed,
            };
            let rings = mem::take(armed);
            member.queued.push_back(event);
            if rings {
                self.after
                    .push(After::Ring(Arc::clone(&member.wake_signal)));
            }
        }
    }

    /// Reports a message that has arrived, or the one before it if the device lags.
    pub(super) fn received(&mut self, id: PairId, message: Inbound) {
        let lags = self
            .devices
            .get(&id.device)
            .is_some_and(|member| member.lags);
        let message = match self.pairs.get_mut(&id) {
            Some(pair) if lags => pair.late.replace(message),
            _ => Some(message),
        };
        if let Some(message) = message {
            let link = id.qpn;
            self.report(id.device, Event::Received { link, message });
        }
    }

    /// Lets the messages of a device be reported late, or no longer: then those that are, are
    /// reported now.
    pub(super) fn set_lag(&mut self, id: DeviceId, lags: bool) {
        if let Some(member) = self.devices.get_mut(&id) {
            member.lags = lags;
        }
        if lags {
            return;
        }
        let pairs = self.pairs.iter_mut().filter(|(at, _)| at.device == id);
        let late = pairs.filter_map(|(at, pair)| Some((at.qpn, pair.late.take()?)));
        for (link, message) in late.collect::<Vec<_>>() {
            self.report(id, Event::Received { link, message });
        }
    }

    /// Moves a queue pair to its error state and reports it, once.
    pub(super) fn fail(&mut self, id: PairId, cause: LinkFailure) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        self.has_lost = true;
        let late = pair.late.take();
        if let Phase::Connected(_) = mem::replace(&mut pair.phase, Phase::Error) {
            let link = id.qpn;
            if let Some(message) = late {
                self.report(id.device, Event::Received { link, message });
            }
            self.report(id.device, Event::LinkDown { link, cause });
        }
    }

    /// Moves a queue pair to its error state; nothing is reported of it any more.
    pub(super) fn silence(&mut self, id: PairId) {
        self.has_lost = true;
        if let Some(pair) = self.pairs.get_mut(&id) {
            pair.phase = Phase::Error;
            pair.late = None;
        }
        if let Some(member) = self.devices.get_mut(&id.device) {
            member.queued.retain(|event| link_of(event) != Some(id.qpn));
        }
    }

    /// The queue pair of this number behind a GID.
    pub(super) fn find(&self, gid: RoceGid, qpn: Qpn) -> Option<PairId> {
        let device = self.owner(gid)?;
        let id = PairId { device, qpn };
        self.pairs.contains_key(&id).then_some(id)
    }

    /// Whose GID this is.
    pub(super) fn owner(&self, gid: RoceGid) -> Option<DeviceId> {
        let has = |member: &Member| member.options.addresses.iter().any(|at| at.gid == gid);
        let mut devices = self.devices.iter();
        let (id, _) = devices.find(|(_, member)| !member.is_gone && has(member))?;
        Some(*id)
    }

    /// A number that no queue pair of the device has.
    pub(super) fn fresh_pair(&mut self, device: DeviceId) -> Option<PairId> {
        let (member, pairs) = (self.devices.get_mut(&device)?, &self.pairs);
        (0..=Qpn::MAX.get()).find_map(|_| {
            let qpn = Qpn::new(member.next_qpn)?;
            // 0 and 1 are special.
            member.next_qpn = (qpn.get() + 1).checked_rem(Qpn::MAX.get())?.max(2);
            let id = PairId { device, qpn };
            (!pairs.contains_key(&id)).then_some(id)
        })
    }

    /// Has something done at a time.
    pub(super) fn schedule(&mut self, at: Instant, action: Action) {
        self.after.push(After::Schedule(at, action));
    }

    pub(super) fn fresh_expiry(&mut self) -> u64 {
        self.next_expiry += 1;
        self.next_expiry
    }
}

impl Member {
    /// The entries of the GID table whose ports are active.
    pub(super) fn addresses(&self) -> Vec<RdmaAddress> {
        let all = self.options.addresses.iter();
        let active = all.filter(|at| !self.is_gone && !self.down.contains(&at.port));
        active.cloned().collect()
    }
}

/// Which link an event is about.
pub(crate) fn link_of(event: &Event) -> Option<Qpn> {
    match event {
        Event::Received { link, .. }
        | Event::Completed { link, .. }
        | Event::LinkDown { link, .. } => Some(*link),
        _ => None,
    }
}

impl SharedNetwork {
    pub(super) fn lock(self: &Arc<Self>) -> Locked<'_> {
        let timing = self.timing().clone();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = timing.clock.as_ref().map(|clock| clock.now());
        Locked {
            shared: self,
            state: Some(state),
            timing,
            now,
        }
    }

    pub(super) fn timing(&self) -> MutexGuard<'_, Timing> {
        self.timing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the time of a set-up call pass.
    pub(super) async fn pass_setup_time(&self) {
        let timing = self.timing().clone();
        if let (Some(clock), false) = (&timing.clock, timing.setup.is_zero()) {
            clock.timer(clock.now() + timing.setup).await;
        }
    }
}

/// The state, locked. When it is released, doorbells ring and timers are set.
pub(super) struct Locked<'a> {
    shared: &'a Arc<SharedNetwork>,
    state: Option<MutexGuard<'a, NetworkState>>,
    pub(super) timing: Timing,
    /// Nothing takes time without a clock.
    pub(super) now: Option<Instant>,
}

impl Deref for Locked<'_> {
    type Target = NetworkState;

    fn deref(&self) -> &NetworkState {
        self.state.as_ref().expect("taken only by drop")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut NetworkState {
        self.state.as_mut().expect("taken only by drop")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        while mem::take(&mut self.has_lost) {
            self.retry_unready();
        }
        let after = mem::take(&mut self.after);
        self.state = None;
        for after in after {
            match after {
                After::Ring(wake_signal) => wake_signal.wake(),
                After::Schedule(at, action) => {
                    let Some(clock) = &self.timing.clock else {
                        continue;
                    };
                    let (timer, shared) = (clock.timer(at), Arc::downgrade(self.shared));
                    clock.spawn(Box::pin(async move {
                        timer.await;
                        if let Some(shared) = shared.upgrade() {
                            shared.lock().act(action);
                        }
                    }));
                }
            }
        }
    }
}
