//! One SMC-R link group: its links, its connections, and what its machine wants done.

use std::collections::VecDeque;
use std::fmt;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use atomic_waker::AtomicWaker;
use hashbrown::HashMap;
use smc_wire::cdc::CdcR;
use smc_wire::llc::DeleteLinkReason;
use smc_wire::size::SizeCode;
use smc_wire::types::{AlertToken, GroupId, Rkey, RmbAddr};

use super::super::driver::Slot;
use super::super::groups::Groups;
use super::super::runtime::Timer;
use super::memory::{Buffer, Pool};
use super::staged::{Staged, StagedHandle};
use super::wire::Wire;
use crate::device::{
    Access, DeviceError, Inbound, LinkAddress, LinkFailure, OpId, PendingLink, RdmaAddress, Route,
};
use crate::error::{Error, How};
use crate::mem::sync::{AtomicBool, AtomicU32, Ordering};
use crate::proto::conn::staged::TransmitConfig;
use crate::proto::group::{Cause, DeviceIndex, Key};
use crate::proto::handshake::Role;
use crate::proto::links::{
    self, FirstLinkError, LinkGroup, LinkId, LinkState, LlcConfig, OpTag, Output,
    Posted, RkeyError, RmbId, RmbKey, RtokenId,
};

/// A link group of SMC-R.
///
/// The machine is behind a short lock. What it wants done is carried out in its order by whoever
/// comes first, outside of that lock; who comes meanwhile leaves it to them.
pub(crate) struct RdmaGroup {
    id: GroupId,
    /// The key that the group was created for; those of its links have the same peer.
    key: Key,
    role: Role,
    groups: Arc<Groups>,
    state: Mutex<State>,
    wires: Mutex<HashMap<LinkId, Arc<Wire>>>,
    members: Mutex<HashMap<AlertToken, Arc<Staged>>>,
    /// RMBs that the peer may still write.
    retiring: Mutex<HashMap<RmbId, Arc<Buffer>>>,
    pool: Pool,
    next_rmb: AtomicU32,
    over: AtomicBool,
    task: AtomicWaker,
}

struct State {
    machine: LinkGroup,
    outputs: VecDeque<Output>,
    /// Somebody is carrying outputs out.
    busy: bool,
    /// Address of the first link: others have to be on the same network.
    like: Option<RdmaAddress>,
    /// Queue pairs without a peer.
    pending: HashMap<LinkId, (DeviceIndex, Box<dyn PendingLink>)>,
    first_link: Answer<Result<(), FirstLinkError>>,
    rkeys: HashMap<RmbId, Answer<Result<(), RkeyError>>>,
    /// Links that connections were moved away from and that still have posts outstanding.
    emptying: Vec<LinkId>,
}

/// Something that a set-up waits for.
enum Answer<T> {
    Open(Option<Waker>),
    Given(T),
}

impl<T> Default for Answer<T> {
    fn default() -> Self {
        Self::Open(None)
    }
}

impl<T: Copy> Answer<T> {
    fn give(&mut self, value: T) {
        if let Self::Open(Some(waker)) = std::mem::replace(self, Self::Given(value)) {
            waker.wake();
        }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<T> {
        match self {
            Self::Given(value) => Poll::Ready(*value),
            Self::Open(waker) => {
                *waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl RdmaGroup {
    /// Makes the group that a set-up has created, and starts its task.
    pub(crate) fn start(
        id: GroupId,
        key: Key,
        role: Role,
        groups: &Arc<Groups>,
        config: LlcConfig,
    ) -> Arc<Self> {
        let group = Arc::new(Self {
            id,
            key,
            role,
            groups: Arc::clone(groups),
            state: Mutex::new(State {
                machine: LinkGroup::new(role, id, config),
                outputs: VecDeque::new(),
                busy: false,
                like: None,
                pending: HashMap::new(),
                first_link: Answer::default(),
                rkeys: HashMap::new(),
                emptying: Vec::new(),
            }),
            wires: Mutex::default(),
            members: Mutex::default(),
            retiring: Mutex::default(),
            pool: Pool::default(),
            next_rmb: AtomicU32::new(1),
            over: AtomicBool::new(false),
            task: AtomicWaker::new(),
        });
        let weak = Arc::downgrade(&group);
        groups.runtime().spawn(Box::pin(tend(weak)));
        group
    }

    pub(crate) fn id(&self) -> GroupId {
        self.id
    }

    pub(super) fn now(&self) -> Instant {
        self.groups.runtime().now()
    }

    /// Whether nothing can be said any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// The links, for tools.
    pub(crate) fn links(&self) -> Vec<links::LinkInfo> {
        self.lock().machine.links().collect()
    }

    pub(super) fn rtoken(&self, id: RtokenId, link: LinkId) -> Option<(Rkey, RmbAddr)> {
        self.lock().machine.rtoken(id, link)
    }

    /// Sees what the devices of the other links have.
    pub(super) fn look_around(&self) {
        let devices = self.lock().machine.devices();
        for slot in devices.into_iter().filter_map(|at| self.slot(at)) {
            slot.look_around();
        }
    }

    // ---- First contact -------------------------------------------------------------------------

    /// Makes the queue pair of the first link.
    pub(super) async fn open_first(
        self: &Arc<Self>,
        device: DeviceIndex,
        address: &RdmaAddress,
    ) -> Result<LinkAddress, DeviceError> {
        let pending = self.open(device, address).await?;
        let local = pending.local();
        let now = self.now();
        let candidates = self.groups.candidates(address);
        self.step(|state| {
            let link = state.machine.first_link(now, device, local);
            state.pending.insert(link, (device, pending));
            state.like = Some(address.clone());
            state.machine.handle_candidates(now, candidates);
        });
        Ok(local)
    }

    /// Connects the first link.
    pub(super) async fn connect_first(
        self: &Arc<Self>,
        peer: LinkAddress,
        route: Route,
        terms: links::Terms,
    ) -> Result<(), DeviceError> {
        let link = self.step(|state| {
            state.machine.first_peer(peer, route, terms);
            state.pending.keys().next().copied()
        });
        let link = link.ok_or(NO_LINK)?;
        self.connect(link, peer, route).await?;
        let wire = self.wire(link).ok_or(NO_LINK)?;
        for staged in self.members() {
            staged.set_wire(&wire);
        }
        Ok(())
    }

    /// Exchanges CONFIRM LINK on the first link.
    pub(super) async fn confirm_first(self: &Arc<Self>) -> Result<(), FirstLinkError> {
        let now = self.now();
        self.step(|state| state.machine.confirm_link(now));
        poll_fn(|cx| self.lock().first_link.poll(cx)).await
    }

    /// First contact has succeeded.
    pub(crate) fn establish(self: &Arc<Self>) {
        self.publish_links();
        let now = self.now();
        self.step(|state| state.machine.establish(now));
    }

    // ---- Connections ---------------------------------------------------------------------------

    /// The link for another connection, as the server assigns it.
    pub(super) fn assign(&self) -> Option<LinkId> {
        let count = self.lock_members().len();
        self.lock().machine.assign(count)
    }

    pub(super) fn find(&self, peer: links::PeerEnd) -> Option<LinkId> {
        self.lock().machine.find(peer)
    }

    pub(super) fn link(&self, id: LinkId) -> Option<links::LinkInfo> {
        self.lock().machine.link(id)
    }

    /// The link that is just being made, at first contact.
    pub(super) fn first_link(&self) -> Option<links::LinkInfo> {
        self.lock().machine.links().next()
    }

    /// Buffers for a connection, registered with all devices of the group.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        link: LinkId,
        size: SizeCode,
        staging: SizeCode,
    ) -> Result<(StagedHandle, Vec<RmbKey>), DeviceError> {
        let rmb = self.pool.take(size, Access::RemoteWrite)?;
        let staging = self.pool.take(staging, Access::Local)?;
        let mut keys = Vec::new();
        let devices = self.lock().machine.devices();
        for device in devices {
            let slot = self.slot(device).ok_or(NO_LINK)?;
            let rdma = slot.device().fabric().rdma().ok_or(NO_LINK)?;
            let mr = rmb.register(device, rdma).await?;
            staging.register(device, rdma).await?;
            keys.push(RmbKey {
                device,
                rkey: mr.rkey(),
                addr: mr.addr(),
            });
        }
        let id = RmbId(self.next_rmb.fetch_add(1, Ordering::Relaxed));
        let token = self.groups.alert_token();
        let wire = self.wire(link);
        let staged = Staged::new(Arc::clone(self), token, (id, rmb), staging, wire);
        let staged = Arc::new(staged);
        self.lock_members().insert(token, Arc::clone(&staged));
        Ok((StagedHandle::new(staged), keys))
    }

    /// The RMB of the first connection, which the handshake tells the peer.
    pub(super) fn add_rmb(self: &Arc<Self>, staged: &Staged, keys: &[RmbKey]) {
        self.step(|state| state.machine.add_rmb(staged.rmb_id(), keys));
    }

    /// Tells the peer of the RMB of a further connection.
    pub(super) async fn confirm_rkey(
        self: &Arc<Self>,
        staged: &Staged,
        link: LinkId,
        keys: &[RmbKey],
    ) -> Result<(), RkeyError> {
        let rmb = staged.rmb_id();
        let now = self.now();
        self.step(|state| {
            state.rkeys.insert(rmb, Answer::default());
            state.machine.confirm_rkey(now, rmb, link, keys);
        });
        let guard = ForgetAnswer(self, rmb);
        poll_fn(|cx| match guard.0.lock().rkeys.get_mut(&rmb) {
            Some(answer) => answer.poll(cx),
            None => Poll::Ready(Err(RkeyError::Ended)),
        })
        .await
    }

    /// Enters the peer's RMB in the table.
    pub(super) fn bind(
        self: &Arc<Self>,
        staged: &Staged,
        link: LinkId,
        peer: &crate::proto::handshake::PeerRmb,
    ) -> Result<(), links::TableFull> {
        let rtoken = self.step(|state| state.machine.add_rtoken(link, peer.rkey, peer.addr))?;
        staged.bind(peer, rtoken, TransmitConfig::default());
        Ok(())
    }

    /// Nobody uses the connection any more.
    pub(super) fn let_go(self: &Arc<Self>, staged: &Arc<Staged>) {
        if staged.release() {
            self.retire(staged);
        }
    }

    /// Takes the keys of a connection back from the peer; its RMB is free when the peer agrees.
    fn retire(self: &Arc<Self>, staged: &Arc<Staged>) {
        if self.lock_members().remove(&staged.token()).is_none() {
            return;
        }
        staged.leave_wire();
        self.pool.give_back(Arc::clone(staged.staging()));
        let rmb = staged.rmb_id();
        self.lock_retiring().insert(rmb, Arc::clone(staged.rmb()));
        let rtoken = staged.rtoken();
        let now = self.now();
        self.step(|state| {
            if let Some(rtoken) = rtoken {
                state.machine.release_rtoken(rtoken);
            }
            state.machine.delete_rkey(now, rmb);
        });
    }

    // ---- What devices report -------------------------------------------------------------------

    pub(crate) fn received(self: &Arc<Self>, link: LinkId, message: &Inbound) {
        let now = self.now();
        let bytes = message.as_bytes();
        if bytes.first() != Some(&CdcR::TYPE) {
            self.step(|state| state.machine.handle_message(now, link, bytes));
            return;
        }
        // What cannot be read is dropped, as in the kernel.
        if let Ok(cdc) = CdcR::parse(bytes) {
            let staged = self.lock_members().get(&cdc.token).cloned();
            if let Some(staged) = staged {
                staged.arrived(&cdc);
            }
        }
        if self.wire(link).is_some_and(|wire| wire.is_news(now)) {
            self.step(|state| state.machine.handle_received(now, link));
        }
    }

    pub(crate) fn sent(self: &Arc<Self>, link: LinkId, op: OpId) {
        let Some(wire) = self.wire(link) else { return };
        let now = self.now();
        for done in wire.completed(now, op) {
            match done {
                Posted::Llc(tag) => self.llc_sent(link, tag),
                Posted::Cdc(token) => {
                    let staged = self.lock_members().get(&token).cloned();
                    if let Some(staged) = staged {
                        staged.sent(link);
                        if staged.can_go() {
                            self.retire(&staged);
                        }
                    }
                }
            }
        }
        self.pump(&wire);
        self.check_emptied(&wire);
    }

    fn llc_sent(self: &Arc<Self>, link: LinkId, tag: OpTag) {
        let now = self.now();
        self.step(|state| state.machine.handle_sent(now, link, tag));
    }

    pub(crate) fn link_down(self: &Arc<Self>, link: LinkId, cause: LinkFailure) {
        if let Some(wire) = self.wire(link) {
            wire.fail();
        }
        let now = self.now();
        self.step(|state| state.machine.handle_link_down(now, link, cause));
        if let Some(wire) = self.wire(link) {
            self.check_emptied(&wire);
        }
        self.retire_finished();
    }

    /// All links of a device are down.
    pub(crate) fn device_gone(self: &Arc<Self>, device: DeviceIndex) {
        let links: Vec<_> = self
            .links()
            .into_iter()
            .filter(|link| link.device == device)
            .map(|link| link.id)
            .collect();
        for link in links {
            self.link_down(link, LinkFailure::Device("device was removed"));
        }
    }

    /// Our addresses have changed.
    pub(crate) fn addresses_changed(self: &Arc<Self>) {
        let Some(like) = self.lock().like.clone() else {
            return;
        };
        let candidates = self.groups.candidates(&like);
        let now = self.now();
        self.step(|state| state.machine.handle_candidates(now, candidates));
    }

    // ---- Ending --------------------------------------------------------------------------------

    /// The registry has no such group any more.
    pub(crate) fn removed(self: &Arc<Self>, cause: Cause) {
        let now = self.now();
        self.step(|state| match cause {
            Cause::Idle => state
                .machine
                .shutdown(now, DeleteLinkReason::PROGRAM),
            Cause::Shutdown => state
                .machine
                .shutdown(now, DeleteLinkReason::OPERATOR),
            _ => state
                .machine
                .terminate(now, DeleteLinkReason::PROGRAM),
        });
    }

    /// Ends all connections; each leaves the group by itself.
    pub(crate) fn kill_members(self: &Arc<Self>) {
        for staged in self.members() {
            staged.kill(Error::Closed(How::Aborted));
        }
    }

    fn retire_finished(self: &Arc<Self>) {
        for staged in self.members() {
            if staged.can_go() {
                self.retire(&staged);
            }
        }
    }

    // ---- The machine ---------------------------------------------------------------------------

    /// One mutation of the machine, and what comes of it.
    fn step<T>(self: &Arc<Self>, mutate: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let mut state = self.lock();
            let result = mutate(&mut state);
            while let Some(output) = state.machine.poll_output() {
                state.outputs.push_back(output);
            }
            if state.busy {
                return result;
            }
            state.busy = true;
            result
        };
        loop {
            let output = {
                let mut state = self.lock();
                match state.outputs.pop_front() {
                    Some(output) => output,
                    None => {
                        state.busy = false;
                        break;
                    }
                }
            };
            self.carry_out(output);
        }
        self.task.wake();
        result
    }

    fn carry_out(self: &Arc<Self>, output: Output) {
        match output {
            Output::Send { link, message, tag } => self.send(link, message, tag),
            Output::Open {
                link,
                device,
                address,
            } => self.open_later(link, device, address),
            Output::Connect { link, peer, route } => self.connect_later(link, peer, route),
            Output::Map { device, rmbs } => self.map_later(device, rmbs),
            Output::Activate(_) | Output::Deactivate(_) => self.publish_links(),
            Output::Move { from, to } => self.move_members(from, to),
            Output::Close(link) => self.close(link),
            Output::FirstLink(result) => self.lock().first_link.give(result),
            Output::RkeyConfirmed { rmb, result } => {
                if let Some(answer) = self.lock().rkeys.get_mut(&rmb) {
                    answer.give(result);
                }
            }
            Output::RkeyDeleted { rmb, is_answered } => {
                let buffer = self.lock_retiring().remove(&rmb);
                match buffer {
                    Some(buffer) if is_answered => self.pool.give_back(buffer),
                    // The peer may still write: it stays registered, and unused.
                    Some(buffer) => {
                        self.lock_retiring().insert(rmb, buffer);
                    }
                    None => {}
                }
            }
            Output::Full(is_full) => self.groups.set_full(self.id, is_full),
            Output::Terminate(cause) => {
                self.kill_members();
                let cause = match cause {
                    links::Cause::LinksLost(_) => Cause::LinksDown,
                    links::Cause::Peer(_) => Cause::PeerGone,
                    links::Cause::Local(_) => Cause::Shutdown,
                };
                self.groups.terminate(self.id, cause);
            }
            Output::Ended => {
                self.over.store(true, Ordering::Release);
                let mut state = self.lock();
                state.first_link.give(Err(FirstLinkError::LinkDown));
                for answer in state.rkeys.values_mut() {
                    answer.give(Err(RkeyError::Ended));
                }
                drop(state);
                self.groups.forget_rdma(self.id);
                self.kill_members();
                self.retire_finished();
            }
            Output::Notice(_) => {}
        }
    }

    fn send(self: &Arc<Self>, link: LinkId, message: Vec<u8>, tag: OpTag) {
        let Some(wire) = self.wire(link) else { return };
        if wire.queue(self.now(), tag, message).is_err() {
            return self.link_down(link, LinkFailure::Device("too many messages wait"));
        }
        self.pump(&wire);
    }

    /// Lets those post that wait, as far as there is room.
    fn pump(self: &Arc<Self>, wire: &Arc<Wire>) {
        while let Some(token) = wire.next_turn(self.now()) {
            let staged = self.lock_members().get(&token).cloned();
            if let Some(staged) = staged {
                staged.take_turn();
            }
        }
    }

    fn open_later(self: &Arc<Self>, link: LinkId, device: DeviceIndex, address: RdmaAddress) {
        self.spawn(async move |group| {
            let opened = group.open(device, &address).await;
            let now = group.now();
            group.step(|state| {
                let result = opened.map(|pending| {
                    let local = pending.local();
                    state.pending.insert(link, (device, pending));
                    local
                });
                state.machine.handle_opened(now, link, result);
            });
        });
    }

    fn connect_later(self: &Arc<Self>, link: LinkId, peer: LinkAddress, route: Route) {
        self.spawn(async move |group| {
            let result = group.connect(link, peer, route).await;
            let now = group.now();
            group.step(|state| state.machine.handle_connected(now, link, result));
        });
    }

    fn map_later(self: &Arc<Self>, device: DeviceIndex, rmbs: Vec<RmbId>) {
        self.spawn(async move |group| {
            let mut keys = Vec::new();
            for staged in group.members() {
                let id = staged.rmb_id();
                if !rmbs.contains(&id) {
                    continue;
                }
                let Some(slot) = group.slot(device) else { break };
                let Some(rdma) = slot.device().fabric().rdma() else {
                    break;
                };
                let mapped = staged.rmb().register(device, rdma).await;
                let staging = staged.staging().register(device, rdma).await;
                if let (Ok(mr), Ok(_)) = (mapped, staging) {
                    keys.push((id, mr.rkey(), mr.addr()));
                }
            }
            let now = group.now();
            group.step(|state| state.machine.handle_mapped(now, device, &keys));
        });
    }

    fn spawn<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let work = work(Arc::clone(self));
        self.groups.runtime().spawn(Box::pin(work));
    }

    async fn open(
        &self,
        device: DeviceIndex,
        address: &RdmaAddress,
    ) -> Result<Box<dyn PendingLink>, DeviceError> {
        let slot = self.slot(device).ok_or(NO_DEVICE)?;
        let rdma = slot.device().fabric().rdma().ok_or(NO_DEVICE)?;
        rdma.open_link(address).await
    }

    /// Connects a queue pair; what it receives is for us from then on.
    async fn connect(
        self: &Arc<Self>,
        link: LinkId,
        peer: LinkAddress,
        route: Route,
    ) -> Result<(), DeviceError> {
        let (device, pending) = self.lock().pending.remove(&link).ok_or(NO_LINK)?;
        let slot = self.slot(device).ok_or(NO_DEVICE)?;
        let qpn = pending.local().qpn;
        slot.add_link(qpn, self, link);
        match pending.connect(peer, route).await {
            Ok(connected) => {
                let wire = Arc::new(Wire::new(link, device, connected, self.now()));
                self.lock_wires().insert(link, wire);
                Ok(())
            }
            Err(error) => {
                slot.remove_link(qpn);
                Err(error)
            }
        }
    }

    fn close(self: &Arc<Self>, link: LinkId) {
        self.lock().pending.remove(&link);
        let wire = self.lock_wires().remove(&link);
        if let Some(wire) = wire {
            wire.fail();
            wire.link().close();
            if let Some(slot) = self.slot(wire.device()) {
                slot.remove_link(wire.link().qpn());
            }
        }
        self.retire_finished();
    }

    fn move_members(self: &Arc<Self>, from: LinkId, to: LinkId) {
        let Some(target) = self.wire(to) else { return };
        for staged in self.members() {
            staged.move_to(from, &target);
        }
        self.pump(&target);
        self.lock().emptying.push(from);
        match self.wire(from) {
            Some(wire) => self.check_emptied(&wire),
            None => self.moved(from),
        }
        self.retire_finished();
    }

    /// Says so when nothing is outstanding any more on a link that connections were moved from.
    fn check_emptied(self: &Arc<Self>, wire: &Wire) {
        let is_emptying = self.lock().emptying.contains(&wire.id());
        if is_emptying && (wire.is_down() || wire.outstanding() == 0) {
            self.moved(wire.id());
        }
    }

    fn moved(self: &Arc<Self>, from: LinkId) {
        let now = self.now();
        self.step(|state| {
            state.emptying.retain(|link| *link != from);
            state.machine.handle_moved(now, from);
        });
    }

    /// Tells the registry under which links the group can be found.
    fn publish_links(&self) {
        let links = self.links();
        let keys = links
            .iter()
            .filter(|link| link.state == LinkState::Active)
            .filter_map(|link| link_key(&self.key, &link.peer?))
            .collect();
        self.groups.set_keys(self.id, keys);
    }

    fn slot(&self, device: DeviceIndex) -> Option<Arc<Slot>> {
        self.groups.slot(device).filter(|slot| !slot.is_gone())
    }

    fn wire(&self, link: LinkId) -> Option<Arc<Wire>> {
        self.lock_wires().get(&link).cloned()
    }

    fn members(&self) -> Vec<Arc<Staged>> {
        self.lock_members().values().cloned().collect()
    }

    /// Does what is due. Returns when something will be.
    fn handle_timeouts(self: &Arc<Self>) -> Option<Instant> {
        let now = self.now();
        let wires: Vec<_> = self.lock_wires().values().cloned().collect();
        let mut next = None;
        for wire in wires {
            match wire.poll_timeout() {
                Some(at) if at <= now => {
                    self.link_down(wire.id(), LinkFailure::Device("posts are not completed"));
                }
                at => next = next.into_iter().chain(at).min(),
            }
        }
        let due = self.lock().machine.poll_timeout();
        if due.is_some_and(|at| at <= now) {
            self.step(|state| state.machine.handle_timeout(now));
        }
        next.into_iter()
            .chain(self.lock().machine.poll_timeout())
            .min()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_wires(&self) -> MutexGuard<'_, HashMap<LinkId, Arc<Wire>>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_members(&self) -> MutexGuard<'_, HashMap<AlertToken, Arc<Staged>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_retiring(&self) -> MutexGuard<'_, HashMap<RmbId, Arc<Buffer>>> {
        self.retiring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for RdmaGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaGroup")
            .field("id", &self.id)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// A set-up waits for an answer no more.
struct ForgetAnswer<'a>(&'a Arc<RdmaGroup>, RmbId);

impl Drop for ForgetAnswer<'_> {
    fn drop(&mut self) {
        self.0.lock().rkeys.remove(&self.1);
    }
}

/// The group's task: its timers, until it is over.
async fn tend(group: Weak<RdmaGroup>) {
    let mut timer: Option<(Instant, Timer)> = None;
    poll_fn(|cx| {
        let Some(group) = group.upgrade() else {
            return Poll::Ready(());
        };
        loop {
            group.task.register(cx.waker());
            if group.is_over() {
                return Poll::Ready(());
            }
            let Some(at) = group.handle_timeouts() else {
                return Poll::Pending;
            };
            if timer.as_ref().is_none_or(|(set, _)| *set != at) {
                timer = Some((at, group.groups.runtime().timer(at)));
            }
            let is_due = |(_, timer): &mut (Instant, Timer)| timer.as_mut().poll(cx).is_ready();
            if !timer.as_mut().is_some_and(is_due) {
                return Poll::Pending;
            }
            timer = None;
        }
    })
    .await;
}

/// The key under which a group is found by one of its links.
fn link_key(of: &Key, end: &LinkAddress) -> Option<Key> {
    let Key::Rdma {
        role,
        version,
        peer,
        vlan,
        ..
    } = *of
    else {
        return None;
    };
    Some(Key::Rdma {
        role,
        version,
        peer,
        gid: end.gid,
        mac: (!version.is_v2()).then_some(end.mac),
        vlan,
        qpn: (role == Role::Client).then_some(end.qpn),
    })
}

const NO_LINK: DeviceError = DeviceError::Invalid("link group has no such link");
const NO_DEVICE: DeviceError = DeviceError::Gone("device was removed");
