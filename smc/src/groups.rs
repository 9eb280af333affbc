//! The registry of link groups, shared by set-ups, connections and drivers.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::{Poll, Waker, ready};
use std::time::{Duration, Instant};

use event_listener::Event;
use hashbrown::{HashMap, HashSet};
use smc_wire::types::{AlertToken, Gid};

use super::append_list::AppendList;
use super::device_driver::DeviceDriver;
use super::lifetime::{Deadline, Deadlines};
use super::links::{LinkSender, RdmaLinkGroup, RdmaPorts, Spares};
use super::oneshot::Oneshot;
use super::runtime::Runtime;
use crate::device::{DeviceError, MemoryLimit, PeerEvent};
use crate::log::group_span;
use crate::mutex::Mutex;
use crate::proto::group::{
    DeviceIndex, EnterResult, GroupEndCause, GroupId, GroupKey, GroupState, GroupTerms, Intent,
    LinkGroupInfo, Member, NoGroup, Registry, RegistryOutput, Terminated, Waiter,
};
use crate::proto::links::LlcConfig;

/// The link groups of an endpoint.
///
/// The lock is held for one step of the registry, never across an await.
pub(crate) struct Groups {
    shared: Mutex<SharedRegistry>,
    /// The runtime of drivers and link groups, which may have a thread of its own.
    pub(crate) runtime: Arc<dyn Runtime>,
    pub(crate) deadlines: Arc<Deadlines>,
    drivers: AppendList<Weak<DeviceDriver>>,
    pub(crate) ports: RdmaPorts,
    /// Prepared links and buffers, with which the next SMC-R groups begin.
    pub(crate) spares: Spares,
    llc: LlcConfig,
    /// The limit that buffers are charged to.
    pub(crate) memory: MemoryLimit,
    /// Notified when a connection, a link or an SMC-R group has ended, or written data was
    /// delivered.
    ended: Event,
    /// Notified when a group was terminated, perhaps during set-ups.
    pub(crate) terminated: Event,
}

/// The state that the lock of [`Groups`] protects.
struct SharedRegistry {
    registry: Registry,
    /// The answers that set-ups wait for.
    answers: HashMap<Waiter, Oneshot<Result<Member, NoGroup>>>,
    /// The SMC-R groups, while their links exist.
    rdma: BTreeMap<GroupId, Arc<RdmaLinkGroup>>,
    /// Alert tokens of SMC-R connections.
    tokens: HashSet<AlertToken>,
}

impl Groups {
    pub(crate) fn new(
        runtime: Arc<dyn Runtime>,
        deadlines: Arc<Deadlines>,
        ports: RdmaPorts,
        llc: LlcConfig,
        memory: MemoryLimit,
    ) -> Arc<Self> {
        let shared = SharedRegistry {
            registry: Registry::default(),
            answers: HashMap::new(),
            rdma: BTreeMap::new(),
            tokens: HashSet::new(),
        };
        Arc::new(Self {
            shared: Mutex::new(shared),
            runtime,
            deadlines,
            drivers: AppendList::default(),
            ports,
            spares: Spares::default(),
            llc,
            memory,
            ended: Event::new(),
            terminated: Event::new(),
        })
    }

    /// The deadline after this time from now on.
    pub(crate) fn after(&self, time: Duration) -> Deadline {
        self.deadlines.at(self.runtime.now() + time)
    }

    /// Adds the driver of the next device.
    pub(crate) fn add_driver(&self, driver: &Arc<DeviceDriver>) {
        self.drivers.push(Arc::downgrade(driver));
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
        let result = self.step(|shared| {
            let result = shared.registry.enter(now, key, intent);
            if let EnterResult::Wait(waiter) = result {
                shared.answers.insert(waiter, Oneshot::default());
            }
            result
        });
        let member = match result {
            EnterResult::Now(member) => member,
            EnterResult::Wait(waiter) => self.wait(waiter).await,
        };
        Ok(self.membership(member?))
    }

    /// Joins a group that is established now.
    pub(crate) fn join_now(self: &Arc<Self>, key: GroupKey) -> Option<Membership> {
        let now = self.runtime.now();
        let member = self.update(|registry| match registry.enter(now, key, Intent::Join) {
            EnterResult::Now(member) => member.ok(),
            EnterResult::Wait(waiter) => {
                registry.cancel(waiter);
                None
            }
        });
        member.map(|member| self.membership(member))
    }

    /// The values negotiated for the group that could be joined now.
    pub(crate) fn terms(&self, key: GroupKey) -> Option<GroupTerms> {
        self.shared.lock().registry.terms(key)
    }

    fn membership(self: &Arc<Self>, member: Member) -> Membership {
        Membership {
            groups: Arc::clone(self),
            member,
        }
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
                    let mut shared = self.shared.lock();
                    let answer = shared.answers.get_mut(&guard.waiter);
                    let missing = Poll::Ready(Err(NoGroup::Missing));
                    let answer = answer.map_or(missing, |answer| answer.poll(cx));
                    if answer.is_ready() {
                        return answer;
                    }
                    shared.registry.deadline(guard.waiter)
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
                self.update(|registry| registry.handle_timeout(now));
            }
        })
        .await
        .inspect(|_| guard.keep())
    }

    pub(crate) fn establish(&self, group: GroupId, terms: GroupTerms) -> Result<(), Terminated> {
        self.update(|registry| registry.establish(group, terms))?;
        self.log(group, None, || info!("link group is created"));
        if let Some(group) = self.rdma(group) {
            group.establish();
        }
        Ok(())
    }

    // ---- SMC-R ---------------------------------------------------------------------------------

    /// Creates the [`RdmaLinkGroup`] of a group that a set-up has just created.
    pub(crate) fn start_rdma(self: &Arc<Self>, group: GroupId) -> Option<Arc<RdmaLinkGroup>> {
        let key = self.info(group)?.key;
        let GroupKey::Rdma { role, .. } = key else {
            return None;
        };
        let span = group_span(group, &key);
        let rdma = RdmaLinkGroup::start(group, role, self, self.llc, span);
        self.shared.lock().rdma.insert(group, Arc::clone(&rdma));
        Some(rdma)
    }

    pub(crate) fn rdma(&self, group: GroupId) -> Option<Arc<RdmaLinkGroup>> {
        self.shared.lock().rdma.get(&group).cloned()
    }

    /// All SMC-R groups that have links, including those that are ending.
    pub(crate) fn all_rdma(&self) -> Vec<Arc<RdmaLinkGroup>> {
        self.shared.lock().rdma.values().cloned().collect()
    }

    /// Removes a group whose last link is closed.
    pub(crate) fn remove_rdma(&self, group: GroupId) {
        self.forget_rdma(group);
        self.update(|registry| registry.links_closed(group));
        self.notify_ended();
    }

    /// Ends the tasks of the drivers: the runtime of the endpoint has ended.
    pub(crate) fn end_drivers(&self) {
        for (_, driver) in self.drivers() {
            driver.end_task();
        }
    }

    /// Ends all groups if no driver is left: the endpoint, its listeners and its streams were
    /// dropped. Idle SMC-R groups would keep their links otherwise, and each other.
    pub(crate) fn shut_down_if_unused(&self) {
        if self.drivers().next().is_none() {
            self.update(Registry::shutdown);
        }
    }

    /// Drops the SMC-R groups that nothing can end in order: their tasks have ended with the
    /// runtime, and no driver is left. Peers are not notified.
    pub(crate) fn abandon_if_unused(&self) {
        if self.drivers().next().is_none() {
            let all = self.all_rdma().into_iter();
            let abandoned = all.filter(|group| group.has_task_ended());
            abandoned.for_each(|group| {
                group.abandon();
                self.forget_rdma(group.id);
            });
        }
    }

    fn forget_rdma(&self, group: GroupId) {
        let (forgotten, is_last) = {
            let rdma = &mut self.shared.lock().rdma;
            (rdma.remove(&group), rdma.is_empty())
        };
        // After the lock.
        drop(forgotten);
        if is_last {
            self.spares.clear();
        }
    }

    /// Ends the group that is idle for longest, of those with a link on this device, and waits
    /// until its links are closed, at most for the time given. Returns whether there was one.
    pub(crate) async fn end_longest_idle(&self, device: DeviceIndex, wait: Duration) -> bool {
        let links: BTreeMap<GroupId, Vec<Weak<LinkSender>>> = {
            let all = self.all_rdma().into_iter();
            let on_device = all.filter(|group| group.devices().contains(&device));
            on_device.map(|group| (group.id, group.senders())).collect()
        };
        let ended = self
            .update(|registry| registry.expire_longest_idle(|group| links.contains_key(&group)));
        let Some(links) = ended.and_then(|group| links.get(&group)) else {
            return false;
        };
        let until = self.runtime.now() + wait;
        let is_closed = |link: &Weak<LinkSender>| link.strong_count() == 0;
        self.wait_until(until, || links.iter().all(is_closed)).await;
        true
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

    /// A token that is unique among the connections of the endpoint until it is released. It is
    /// random: a peer that knows some tokens cannot derive others.
    pub(crate) fn take_token(&self) -> Result<AlertToken, DeviceError> {
        loop {
            let random = crate::random::bytes();
            let random = random.map_err(|error| DeviceError::os("get random bytes", &error))?;
            // Not zero; a collision is very unlikely.
            let token = AlertToken::new(u32::from_ne_bytes(random));
            if let Some(token) = token.filter(|token| self.shared.lock().tokens.insert(*token)) {
                return Ok(token);
            }
        }
    }

    pub(crate) fn release_token(&self, token: AlertToken) {
        self.shared.lock().tokens.remove(&token);
    }

    /// Handles a change of a device's addresses.
    pub(crate) fn addresses_changed(&self) {
        self.ports.refresh();
        self.spares.clear();
        for group in self.all_rdma() {
            group.addresses_changed();
        }
    }

    /// One group; `None` after its end.
    pub(crate) fn info(&self, group: GroupId) -> Option<LinkGroupInfo> {
        self.shared.lock().registry.group_info(group)
    }

    /// Whether an SMC-R group was terminated while a set-up is a member.
    ///
    /// Set-ups over SMC-D detect it by themselves, when the device fails or the group cannot be
    /// opened, and may still become TCP until then.
    pub(crate) fn is_terminating(&self, group: GroupId) -> bool {
        self.info(group).is_some_and(|group| {
            group.state == GroupState::Terminating && matches!(group.key, GroupKey::Rdma { .. })
        })
    }

    pub(crate) fn infos(&self) -> Vec<LinkGroupInfo> {
        self.shared.lock().registry.group_infos()
    }

    /// Handles timeouts. Returns the next one.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let due = self.shared.lock().registry.poll_timeout()?;
        if due > now {
            return Some(due);
        }
        self.update(|registry| registry.handle_timeout(now));
        self.shared.lock().registry.poll_timeout()
    }

    /// One mutation of the registry, and its outputs.
    pub(crate) fn update<T>(&self, mutate: impl FnOnce(&mut Registry) -> T) -> T {
        self.step(|shared| mutate(&mut shared.registry))
    }

    fn step<T>(&self, mutate: impl FnOnce(&mut SharedRegistry) -> T) -> T {
        let mut wakers = Vec::new();
        let mut outputs = Vec::new();
        let (result, is_sooner) = {
            let mut shared = self.shared.lock();
            let before = shared.registry.poll_timeout();
            let result = mutate(&mut shared);
            while let Some(output) = shared.registry.poll_output() {
                match output {
                    RegistryOutput::Ready { waiter, result } => {
                        let answer = shared.answers.get_mut(&waiter);
                        wakers.extend(answer.and_then(|answer| answer.set(result)));
                    }
                    output => outputs.push(output),
                }
            }
            let after = shared.registry.poll_timeout();
            let is_sooner = |after| before.is_none_or(|before| after < before);
            (result, after.is_some_and(is_sooner))
        };
        wakers.into_iter().for_each(Waker::wake);
        for output in outputs {
            self.apply_output(output);
        }
        if is_sooner {
            for (_, driver) in self.drivers() {
                driver.wake_task();
            }
        }
        result
    }

    /// The end of a group has this one path, whichever side or component has decided on it.
    fn apply_output(&self, output: RegistryOutput) {
        match output {
            RegistryOutput::Terminate { group, key, cause } => {
                self.log(group, Some(key), || {
                    debug!("connections of the link group end", cause = cause);
                });
                if let Some(driver) = key.device().and_then(|device| self.driver(device)) {
                    driver.end_group(group, cause);
                }
                if let Some(rdma) = self.rdma(group) {
                    rdma.end(cause);
                }
                self.terminated.notify(usize::MAX);
            }
            RegistryOutput::Removed { group, key, cause } => {
                self.log(group, Some(key), || match cause {
                    // It was not reported as created.
                    GroupEndCause::FirstContactFailed => {
                        debug!("link group has ended", cause = cause);
                    }
                    _ => info!("link group has ended", cause = cause),
                });
                match self.rdma(group) {
                    Some(rdma) => rdma.end(cause),
                    None => self.update(|registry| registry.links_closed(group)),
                }
            }
            RegistryOutput::NotifyPeer { device, peer } => self.notify_peer(device, peer),
            RegistryOutput::Ready { .. } => {}
        }
    }

    /// Logs an event in the span of a group.
    fn log(&self, group: GroupId, key: Option<GroupKey>, event: impl FnOnce()) {
        if !cfg!(feature = "tracing") {
            return;
        }
        let key = key.or_else(|| Some(self.info(group)?.key));
        match (self.rdma(group), key) {
            (Some(rdma), _) => rdma.log.span.in_scope(event),
            (None, Some(key)) => group_span(group, &key).in_scope(event),
            (None, None) => event(),
        }
    }

    fn notify_peer(&self, device: DeviceIndex, peer: Gid) {
        let Some(driver) = self.driver(device) else {
            return;
        };
        let direct = driver.device.operations().direct();
        if let Some(events) = direct.and_then(|direct| direct.peer_events()) {
            // A peer that is not notified detects it when it uses the group.
            let _best_effort = events.signal_event(peer, PeerEvent::Shutdown);
        }
    }

    pub(crate) fn driver(&self, device: DeviceIndex) -> Option<Arc<DeviceDriver>> {
        self.drivers.get(device.0)?.upgrade()
    }

    pub(crate) fn drivers(&self) -> impl Iterator<Item = (DeviceIndex, Arc<DeviceDriver>)> {
        let drivers = self.drivers.iter().enumerate();
        drivers.filter_map(|(index, driver)| Some((DeviceIndex(index), driver.upgrade()?)))
    }
}

/// A member of a link group; dropping it leaves the group.
pub(crate) struct Membership {
    groups: Arc<Groups>,
    pub(crate) member: Member,
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = self.groups.runtime.now();
        let group = self.member.group();
        self.groups.update(|registry| registry.leave(now, group));
    }
}

/// Cancels the wait of a set-up when dropped.
struct CancelOnDrop<'a> {
    groups: &'a Groups,
    waiter: Waiter,
}

impl CancelOnDrop<'_> {
    /// The set-up is a member, or was refused.
    fn keep(&self) {
        self.groups.shared.lock().answers.remove(&self.waiter);
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let now = self.groups.runtime.now();
        let waiter = self.waiter;
        self.groups
            .step(|shared| match shared.answers.remove(&waiter) {
                Some(Oneshot::Ready(Ok(member))) => shared.registry.leave(now, member.group()),
                Some(_) => shared.registry.cancel(waiter),
                None => {}
            });
    }
}
