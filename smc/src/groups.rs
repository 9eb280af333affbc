//! The registry of link groups, shared by set-ups, connections and drivers.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker, ready};
use std::time::Instant;

use event_listener::{Event, EventListener};
use hashbrown::{HashMap, HashSet};
use smc_wire::types::{AlertToken, Gid};

use super::deadlines::{Deadline, Deadlines};
use super::device_driver::DeviceDriver;
use super::links::{Ports, RdmaGroup};
use super::runtime::Runtime;
use crate::device::{DeviceError, MemoryLimit, PeerEvent, RdmaAddress};
use crate::proto::group::{
    DeviceIndex, EnterResult, GroupEndCause, GroupId, GroupKey, GroupState, GroupTerms, Intent,
    LinkGroupInfo, Member, NoGroup, Registry, RegistryOutput, Terminated, Waiter,
};
use crate::proto::links::{LlcConfig, PortCandidate};

/// The link groups of an endpoint.
///
/// The lock is held for one step of the registry, never across an await.
pub(crate) struct Groups {
    inner: Mutex<Inner>,
    runtime: Arc<dyn Runtime>,
    deadlines: Arc<Deadlines>,
    drivers: OnceLock<Vec<Weak<DeviceDriver>>>,
    ports: Ports,
    llc: LlcConfig,
    /// The limit that SMC-R buffers are charged to.
    memory: MemoryLimit,
    /// The SMC-R groups, while their links exist.
    rdma: Mutex<BTreeMap<GroupId, Arc<RdmaGroup>>>,
    /// Alert tokens of SMC-R connections.
    tokens: Mutex<HashSet<AlertToken>>,
    /// Notified when a connection or an SMC-R group has ended, or written data was delivered.
    ended: Event,
    /// Notified when a group was terminated, perhaps during set-ups.
    terminated: Event,
}

struct Inner {
    registry: Registry,
    waiting: HashMap<Waiter, Waiting>,
}

enum Waiting {
    Pending(Option<Waker>),
    Ready(Result<Member, NoGroup>),
}

impl Groups {
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        deadlines: Arc<Deadlines>,
        ports: Ports,
        llc: LlcConfig,
        memory: MemoryLimit,
    ) -> Arc<Self> {
        let inner = Inner {
            registry: Registry::new(),
            waiting: HashMap::new(),
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            runtime,
            deadlines,
            drivers: OnceLock::new(),
            ports,
            llc,
            memory,
            rdma: Mutex::default(),
            tokens: Mutex::default(),
            ended: Event::new(),
            terminated: Event::new(),
        })
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        &self.runtime
    }

    pub(crate) fn deadlines(&self) -> &Arc<Deadlines> {
        &self.deadlines
    }

    pub(crate) fn memory(&self) -> &MemoryLimit {
        &self.memory
    }

    pub(crate) fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Sets the drivers of the devices, once.
    pub(crate) fn set_drivers(&self, drivers: &[Arc<DeviceDriver>]) {
        let weak = drivers.iter().map(Arc::downgrade).collect();
        // An endpoint is built once.
        let _first = self.drivers.set(weak);
    }

    /// Joins or creates a group; waits while another set-up is creating it.
    ///
    /// Dropping the future cancels the request.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: GroupKey,
        intent: Intent,
    ) -> Result<Membership, NoGroup> {
        let now = self.runtime.now();
        let admission = self.step(|inner| {
            let admission = inner.registry.enter(now, key, intent);
            if let EnterResult::Wait(waiter) = admission {
                inner.waiting.insert(waiter, Waiting::Pending(None));
            }
            admission
        });
        let member = match admission {
            EnterResult::Now(member) => member,
            EnterResult::Wait(waiter) => self.wait(waiter).await,
        };
        member.map(|member| Membership {
            groups: Arc::clone(self),
            member,
        })
    }

    /// Joins a group that is established now.
    pub(crate) fn join_now(self: &Arc<Self>, key: GroupKey) -> Option<Membership> {
        let now = self.runtime.now();
        let member = self.step(|inner| match inner.registry.enter(now, key, Intent::Join) {
            EnterResult::Now(member) => member.ok(),
            EnterResult::Wait(waiter) => {
                inner.registry.cancel(now, waiter);
                None
            }
        });
        member.map(|member| Membership {
            groups: Arc::clone(self),
            member,
        })
    }

    async fn wait(&self, waiter: Waiter) -> Result<Member, NoGroup> {
        let guard = CancelOnDrop {
            groups: self,
            waiter,
        };
        let mut timeout: Option<(Instant, Deadline)> = None;
        poll_fn(|cx| {
            loop {
                let deadline = {
                    let mut inner = self.lock();
                    match inner.waiting.get_mut(&guard.waiter) {
                        Some(Waiting::Ready(member)) => return Poll::Ready(*member),
                        Some(Waiting::Pending(waker)) => *waker = Some(cx.waker().clone()),
                        None => return Poll::Ready(Err(NoGroup::Missing)),
                    }
                    inner.registry.deadline(guard.waiter)
                };
                let Some(at) = deadline else {
                    return Poll::Pending;
                };
                // The deadline moves when another set-up starts to create the group.
                let (_, timer) = match timeout.take().filter(|(set, _)| *set == at) {
                    Some(set) => timeout.insert(set),
                    None => timeout.insert((at, self.deadlines.at(at))),
                };
                ready!(Pin::new(timer).poll(cx));
                timeout = None;
                let now = self.runtime.now();
                self.step(|inner| inner.registry.handle_timeout(now));
            }
        })
        .await
        .inspect(|_| guard.keep())
    }

    pub(crate) fn establish(&self, group: GroupId, terms: GroupTerms) -> Result<(), Terminated> {
        self.step(|inner| inner.registry.establish(group, terms))?;
        if let Some(group) = self.rdma(group) {
            group.establish();
        }
        Ok(())
    }

    pub(crate) fn out_of_sync(&self, group: GroupId) {
        self.step(|inner| inner.registry.handle_out_of_sync(group));
    }

    pub(crate) fn terminate(&self, group: GroupId, cause: GroupEndCause) {
        self.step(|inner| inner.registry.terminate(group, cause));
    }

    pub(crate) fn peer_gone(&self, device: DeviceIndex, peer: Gid) {
        self.step(|inner| inner.registry.handle_peer_gone(device, peer));
    }

    pub(crate) fn peer_shutdown(&self, device: DeviceIndex, peer: Gid) {
        self.step(|inner| inner.registry.handle_peer_shutdown(device, peer));
    }

    pub(crate) fn device_gone(&self, device: DeviceIndex) {
        self.step(|inner| inner.registry.handle_device_gone(device));
    }

    pub(crate) fn shutdown(&self) {
        self.step(|inner| inner.registry.shutdown());
    }

    // ---- SMC-R ---------------------------------------------------------------------------------

    /// Creates the [`RdmaGroup`] of a group that a set-up has just created.
    pub(crate) fn start_rdma(self: &Arc<Self>, group: GroupId) -> Option<Arc<RdmaGroup>> {
        let key = self.lock().registry.group_info(group)?.key;
        let GroupKey::Rdma { role, .. } = key else {
            return None;
        };
        let rdma = RdmaGroup::start(group, key, role, self, self.llc);
        self.rdma_groups().insert(group, Arc::clone(&rdma));
        Some(rdma)
    }

    pub(crate) fn rdma(&self, group: GroupId) -> Option<Arc<RdmaGroup>> {
        self.rdma_groups().get(&group).cloned()
    }

    /// All SMC-R groups that have links, including those that are ending.
    pub(crate) fn all_rdma(&self) -> Vec<Arc<RdmaGroup>> {
        self.rdma_groups().values().cloned().collect()
    }

    /// Removes a group whose last link is closed.
    pub(crate) fn remove_rdma(&self, group: GroupId) {
        // Dropped after the lock.
        let _group = self.rdma_groups().remove(&group);
        self.notify_ended();
    }

    /// Notifies waiters of the end of a connection or a group, or of a delivery.
    pub(crate) fn notify_ended(&self) {
        self.ended.notify(usize::MAX);
    }

    /// Waits until a condition on ended connections or groups holds, at most until the time given
    /// or the end of the runtime.
    pub(crate) async fn wait_until(&self, until: Instant, is_so: impl Fn() -> bool) {
        let mut timer = self.deadlines.at(until);
        while !is_so() {
            let mut ended = pin!(self.ended.listen());
            if is_so() {
                return;
            }
            let late = poll_fn(|cx| match ended.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(false),
                Poll::Pending => Pin::new(&mut timer).poll(cx).map(|()| true),
            });
            if late.await {
                return;
            }
        }
    }

    pub(crate) fn set_keys(&self, group: GroupId, keys: Vec<GroupKey>) {
        self.step(|inner| inner.registry.set_keys(group, keys));
    }

    pub(crate) fn set_full(&self, group: GroupId, is_full: bool) {
        self.step(|inner| inner.registry.set_full(group, is_full));
    }

    /// A token that is unique among the connections of the endpoint until it is released. It is
    /// random: a peer that knows some tokens cannot derive others.
    pub(crate) fn take_token(&self) -> Result<AlertToken, DeviceError> {
        loop {
            let random = crate::random::bytes();
            let random = random.map_err(|error| DeviceError::os("get random bytes", &error))?;
            // Not zero; a collision is very unlikely.
            let token = AlertToken::new(u32::from_ne_bytes(random));
            if let Some(token) = token.filter(|token| self.tokens().insert(*token)) {
                return Ok(token);
            }
        }
    }

    pub(crate) fn release_token(&self, token: AlertToken) {
        self.tokens().remove(&token);
    }

    fn tokens(&self) -> MutexGuard<'_, HashSet<AlertToken>> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Candidates for further links of a group.
    pub(crate) fn candidates(&self, like: &RdmaAddress) -> Vec<PortCandidate> {
        let drivers: Vec<_> = self.drivers().collect();
        self.ports.candidates(&*self.runtime, &drivers, like)
    }

    /// Handles a change of a device's addresses.
    pub(crate) fn addresses_changed(&self) {
        self.ports.refresh();
        for group in self.all_rdma() {
            group.addresses_changed();
        }
    }

    fn rdma_groups(&self) -> MutexGuard<'_, BTreeMap<GroupId, Arc<RdmaGroup>>> {
        self.rdma.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the group exists and is not terminating.
    pub(crate) fn is_usable(&self, group: GroupId) -> bool {
        let snapshot = self.lock().registry.group_info(group);
        snapshot.is_some_and(|group| group.state != GroupState::Terminating)
    }

    /// Whether an SMC-R group was terminated while a set-up is a member.
    ///
    /// Set-ups over SMC-D detect it by themselves, when the device fails or the group cannot be
    /// opened, and may still become TCP until then.
    pub(crate) fn is_terminating(&self, group: GroupId) -> bool {
        let snapshot = self.lock().registry.group_info(group);
        snapshot.is_some_and(|group| {
            group.state == GroupState::Terminating && matches!(group.key, GroupKey::Rdma { .. })
        })
    }

    /// A listener for the next termination of a group.
    pub(crate) fn listen_terminated(&self) -> EventListener {
        self.terminated.listen()
    }

    pub(crate) fn snapshots(&self) -> Vec<LinkGroupInfo> {
        self.lock().registry.group_infos()
    }

    /// Handles timeouts. Returns the next one.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let due = self.lock().registry.poll_timeout()?;
        if due > now {
            return Some(due);
        }
        self.step(|inner| inner.registry.handle_timeout(now));
        self.lock().registry.poll_timeout()
    }

    /// One mutation of the registry, and its outputs.
    fn step<T>(&self, mutate: impl FnOnce(&mut Inner) -> T) -> T {
        let mut woken = Vec::new();
        let mut ended = Vec::new();
        let (result, sooner) = {
            let mut inner = self.lock();
            let before = inner.registry.poll_timeout();
            let result = mutate(&mut inner);
            while let Some(output) = inner.registry.poll_output() {
                match output {
                    RegistryOutput::Ready {
                        waiter,
                        result: member,
                    } => {
                        let answer = Waiting::Ready(member);
                        if let Some(Waiting::Pending(Some(waker))) =
                            inner.waiting.insert(waiter, answer)
                        {
                            woken.push(waker);
                        }
                    }
                    output => ended.push(output),
                }
            }
            let after = inner.registry.poll_timeout();
            (
                result,
                after.is_some_and(|after| before.is_none_or(|before| after < before)),
            )
        };
        woken.into_iter().for_each(Waker::wake);
        for output in ended {
            self.end(output);
        }
        if sooner {
            for driver in self.drivers() {
                driver.wake_task();
            }
        }
        result
    }

    fn end(&self, output: RegistryOutput) {
        match output {
            RegistryOutput::Terminate { group, key, cause } => {
                match key.device() {
                    Some(device) => {
                        if let Some(driver) = self.driver(device) {
                            driver.group_ended(group, cause);
                        }
                    }
                    None => self.end_rdma(group, cause),
                }
                self.terminated.notify(usize::MAX);
            }
            RegistryOutput::Removed { group, cause, .. } => self.end_rdma(group, cause),
            RegistryOutput::NotifyPeer { device, peer } => self.notify_peer(device, peer),
            RegistryOutput::Ready { .. } => {}
        }
    }

    fn end_rdma(&self, group: GroupId, cause: GroupEndCause) {
        if let Some(group) = self.rdma(group) {
            group.removed(cause);
        }
    }

    fn notify_peer(&self, device: DeviceIndex, peer: Gid) {
        let Some(driver) = self.driver(device) else {
            return;
        };
        let direct = driver.device().fabric().direct();
        if let Some(events) = direct.and_then(|direct| direct.peer_events()) {
            // A peer that is not notified detects it when it uses the group.
            let _best_effort = events.signal_event(peer, PeerEvent::Shutdown);
        }
    }

    pub(crate) fn driver(&self, device: DeviceIndex) -> Option<Arc<DeviceDriver>> {
        self.drivers.get()?.get(device.0)?.upgrade()
    }

    fn drivers(&self) -> impl Iterator<Item = Arc<DeviceDriver>> {
        self.drivers
            .get()
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

/// A place in a link group; dropping it leaves the group.
#[derive(Debug)]
pub(crate) struct Membership {
    groups: Arc<Groups>,
    member: Member,
}

impl Membership {
    pub(crate) fn member(&self) -> Member {
        self.member
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = self.groups.runtime.now();
        let group = self.member.group();
        self.groups.step(|inner| inner.registry.leave(now, group));
    }
}

/// Cancels a request for a place when dropped.
struct CancelOnDrop<'a> {
    groups: &'a Groups,
    waiter: Waiter,
}

impl CancelOnDrop<'_> {
    /// The place was handed over.
    fn keep(&self) {
        self.groups.lock().waiting.remove(&self.waiter);
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let now = self.groups.runtime.now();
        let waiter = self.waiter;
        self.groups
            .step(|inner| match inner.waiting.remove(&waiter) {
                Some(Waiting::Ready(Ok(member))) => inner.registry.leave(now, member.group()),
                Some(_) => inner.registry.cancel(now, waiter),
                None => {}
            });
    }
}
