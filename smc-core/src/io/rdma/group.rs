//! One SMC-R link group: its links, its connections, and what its machine wants done.

use std::collections::{BTreeMap, VecDeque};
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
    self, FirstLinkError, GroupType, LinkGroup, LinkId, LinkInfo, LinkState, LlcConfig, OpTag,
    Output, Posted, RkeyError, RmbId, RmbKey, RtokenId,
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
    wires: Mutex<BTreeMap<LinkId, Arc<Wire>>>,
    members: Mutex<HashMap<AlertToken, Arc<Staged>>>,
    /// RMBs that the peer may still write.
    retiring: Mutex<BTreeMap<RmbId, (Arc<Buffer>, usize)>>,
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
    pending: BTreeMap<LinkId, (DeviceIndex, Box<dyn PendingLink>)>,
    first_link: Answer<Result<(), FirstLinkError>>,
    rkeys: BTreeMap<RmbId, Answer<Result<(), RkeyError>>>,
    /// A client's: the peer's ends of links that are active or were, the oldest first. A server
    /// that has not noticed that a link failed may still name it; that has to be told from a server
    /// whose group we do not know, with whom the whole group would end.
    named: VecDeque<LinkAddress>,
    /// Links whose connections move to another one as soon as they are closed.
    moving: Vec<(LinkId, LinkId)>,
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
    /// Returns who waits for it. The first answer counts.
    fn give(&mut self, value: T) -> Option<Waker> {
        match self {
            Self::Given(_) => None,
            Self::Open(waker) => {
                let waker = waker.take();
                *self = Self::Given(value);
                waker
            }
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
                pending: BTreeMap::new(),
                first_link: Answer::default(),
                rkeys: BTreeMap::new(),
                named: VecDeque::new(),
                moving: Vec::new(),
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

    pub(super) fn now(&self) -> Instant {
        self.groups.runtime().now()
    }

    /// Whether nothing can be said any more.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// For tools.
    pub(crate) fn snapshot(&self) -> RdmaGroupInfo {
        let connections = self.lock_members().len();
        let retiring = self.lock_retiring().len();
        let state = self.lock();
        RdmaGroupInfo {
            id: self.id,
            role: self.role,
            kind: state.machine.group_type(),
            links: state.machine.links().collect(),
            connections,
            rtokens: state.machine.rtokens(),
            retiring,
        }
    }

    fn links(&self) -> Vec<LinkInfo> {
        self.lock().machine.links().collect()
    }

    pub(super) fn rtoken(&self, id: RtokenId, link: LinkId) -> Option<(Rkey, RmbAddr)> {
        self.lock().machine.rtoken(id, link)
    }

    /// Sees what the devices of the other links have, for somebody who misses something.
    pub(super) fn look_around_patiently(&self, here: DeviceIndex) {
        let mut devices: Vec<_> = self.links().iter().map(|link| link.device).collect();
        devices.sort_unstable();
        devices.dedup();
        devices.retain(|device| *device != here);
        for slot in devices.into_iter().filter_map(|at| self.slot(at)) {
            slot.look_around_patiently();
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
        if self.is_over() {
            return Err(NO_LINK);
        }
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

    pub(super) fn link(&self, id: LinkId) -> Option<LinkInfo> {
        self.lock().machine.link(id)
    }

    /// The link that is just being made, at first contact.
    pub(super) fn first_link(&self) -> Option<LinkInfo> {
        self.lock().machine.links().next()
    }

    /// Buffers for a connection, registered with all devices of the group.
    pub(super) async fn prepare(
        self: &Arc<Self>,
        link: LinkId,
        size: SizeCode,
        staging: SizeCode,
    ) -> Result<(StagedHandle, Vec<RmbKey>), DeviceError> {
        if self.is_over() {
            return Err(NO_LINK);
        }
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
        let handle = StagedHandle::new(staged);
        // From here on it is moved when the link fails, but not if it had failed before.
        let is_usable = |link: LinkInfo| link.state.is_usable();
        if self.link(link).is_some_and(is_usable) {
            Ok((handle, keys))
        } else {
            Err(NO_LINK)
        }
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
        if self.is_over() {
            return Err(links::TableFull);
        }
        let now_on = staged.link();
        let rtoken = self.step(|state| {
            let rtoken = state.machine.add_rtoken(link, peer.rkey, peer.addr)?;
            // The link of the handshake may have failed. Then the peer should have told of others.
            let is_told = |on| state.machine.rtoken(rtoken, on).is_some();
            if now_on.is_none_or(is_told) {
                return Ok(rtoken);
            }
            state.machine.release_rtoken(rtoken);
            Err(links::TableFull)
        })?;
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
        self.pool.give_back(Arc::clone(staged.staging()), 0);
        let rmb = staged.rmb_id();
        let retiring = (Arc::clone(staged.rmb()), staged.dirty());
        self.lock_retiring().insert(rmb, retiring);
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

    /// A link of this device has received a message.
    pub(crate) fn received(self: &Arc<Self>, here: DeviceIndex, link: LinkId, message: &Inbound) {
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
                staged.arrived(&cdc, here);
                if staged.can_go() {
                    self.retire(&staged);
                }
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
    }

    fn llc_sent(self: &Arc<Self>, link: LinkId, tag: OpTag) {
        let now = self.now();
        self.step(|state| state.machine.handle_sent(now, link, tag));
    }

    /// The device says so: the queue pair sends and receives nothing any more.
    pub(crate) fn link_down(self: &Arc<Self>, link: LinkId, cause: LinkFailure) {
        if let Some(wire) = self.wire(link) {
            wire.set_closed();
        }
        self.give_up(link, cause);
        self.closed(link);
    }

    fn give_up(self: &Arc<Self>, link: LinkId, cause: LinkFailure) {
        if let Some(wire) = self.wire(link) {
            wire.fail();
        }
        let now = self.now();
        self.step(|state| state.machine.handle_link_down(now, link, cause));
    }

    /// A link is closed now: what was moved away from it goes on elsewhere.
    pub(crate) fn closed(self: &Arc<Self>, link: LinkId) {
        let to = {
            let mut state = self.lock();
            let at = state.moving.iter().position(|(from, _)| *from == link);
            at.map(|at| state.moving.swap_remove(at).1)
        };
        if let Some(to) = to {
            self.move_members(link, to);
        }
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
            Cause::Idle => state.machine.shutdown(now, DeleteLinkReason::PROGRAM),
            Cause::Shutdown => state.machine.terminate(now, DeleteLinkReason::OPERATOR),
            _ => state.machine.terminate(now, DeleteLinkReason::PROGRAM),
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
            Output::Move { from, to } => self.start_move(from, to),
            Output::Close(link) => self.close(link),
            Output::FirstLink(result) => {
                let waker = self.lock().first_link.give(result);
                waker.into_iter().for_each(Waker::wake);
            }
            Output::RkeyConfirmed { rmb, result } => {
                let mut state = self.lock();
                let answer = state.rkeys.get_mut(&rmb);
                let waker = answer.and_then(|answer| answer.give(result));
                drop(state);
                waker.into_iter().for_each(Waker::wake);
            }
            // Else the peer may still write: it stays registered, and unused.
            Output::RkeyDeleted { rmb, is_answered } => {
                let retired = self.lock_retired_if(rmb, is_answered);
                if let Some((buffer, dirty)) = retired {
                    self.pool.give_back(buffer, dirty);
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
                let waker = state.first_link.give(Err(FirstLinkError::LinkDown));
                let answers = state.rkeys.values_mut();
                let wakers = answers.filter_map(|answer| answer.give(Err(RkeyError::Ended)));
                let wakers: Vec<_> = wakers.chain(waker).collect();
                state.moving.clear();
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
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
            return self.give_up(link, LinkFailure::Device("too many messages wait"));
        }
        self.pump(&wire);
    }

    /// Lets those post that wait, as far as there is room.
    fn pump(self: &Arc<Self>, wire: &Arc<Wire>) {
        while let Some(token) = wire.next_turn(self.now()) {
            let staged = self.lock_members().get(&token).cloned();
            if staged.is_some_and(|staged| !staged.take_turn()) {
                break;
            }
        }
    }

    fn open_later(self: &Arc<Self>, link: LinkId, device: DeviceIndex, address: RdmaAddress) {
        self.spawn(async move |group| {
            let opened = group.open(device, &address).await;
            let now = group.now();
            let unwanted = group.step(|state| {
                let mut unwanted = None;
                let result = opened.map(|pending| {
                    let local = pending.local();
                    if state.machine.link(link).is_some() {
                        state.pending.insert(link, (device, pending));
                    } else {
                        unwanted = Some(pending);
                    }
                    local
                });
                state.machine.handle_opened(now, link, result);
                unwanted
            });
            drop(unwanted);
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
                let Some(slot) = group.slot(device) else {
                    break;
                };
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
                if self.link(link).is_none() {
                    // Nobody wants it any more, and nobody knew that it was there.
                    self.close(link);
                    return Err(NO_LINK);
                }
                Ok(())
            }
            Err(error) => {
                slot.remove_link(qpn);
                Err(error)
            }
        }
    }

    fn close(self: &Arc<Self>, link: LinkId) {
        let pending = self.lock().pending.remove(&link);
        drop(pending);
        let wire = self.lock_wires().remove(&link);
        if let Some(wire) = wire {
            wire.fail();
            self.close_wire(wire);
        }
    }

    fn close_wire(self: &Arc<Self>, wire: Arc<Wire>) {
        match self.groups.slot(wire.device()) {
            Some(slot) => slot.close_link(wire, self),
            // The endpoint is gone, and nobody hands anything out any more.
            None => {
                wire.link().close();
                self.closed(wire.id());
            }
        }
    }

    /// The connections of a link have to go to another one.
    fn start_move(self: &Arc<Self>, from: LinkId, to: LinkId) {
        let wire = self.wire(from);
        match wire.filter(|wire| !wire.is_closed()) {
            None => self.move_members(from, to),
            Some(wire) => {
                wire.fail();
                self.lock().moving.push((from, to));
                self.close_wire(wire);
            }
        }
    }

    fn move_members(self: &Arc<Self>, from: LinkId, to: LinkId) {
        let target = self.wire(to).filter(|wire| !wire.is_down());
        let target = target.or_else(|| {
            // That one has failed meanwhile.
            let mut links = self.links().into_iter();
            let other = links.find(|link| link.state == LinkState::Active && link.id != from)?;
            self.wire(other.id)
        });
        if let Some(target) = target {
            for staged in self.members() {
                staged.move_to(from, &target);
            }
            self.pump(&target);
        }
        let now = self.now();
        self.step(|state| state.machine.handle_moved(now, from));
        self.retire_finished();
    }

    /// Tells the registry under which links the group can be found.
    fn publish_links(&self) {
        let ends: Vec<_> = {
            let mut state = self.lock();
            let active = state.machine.links();
            let active = active.filter(|link| link.state == LinkState::Active);
            let mut ends: Vec<_> = active.filter_map(|link| link.peer).collect();
            if self.role == Role::Client && !ends.is_empty() {
                let named = &mut state.named;
                named.retain(|end| !ends.contains(end));
                named.extend(&ends);
                while named.len() > NAMED_MAX {
                    named.pop_front();
                }
                ends = named.iter().copied().collect();
            }
            ends
        };
        let keys = ends.iter().filter_map(|end| link_key(&self.key, end));
        self.groups.set_keys(self.id, keys.collect());
    }

    fn slot(&self, device: DeviceIndex) -> Option<Arc<Slot>> {
        self.groups.slot(device).filter(|slot| !slot.is_gone())
    }

    fn wire(&self, link: LinkId) -> Option<Arc<Wire>> {
        self.lock_wires().get(&link).cloned()
    }

    /// The connections and set-ups, in the order in which they came.
    fn members(&self) -> Vec<Arc<Staged>> {
        let mut members: Vec<_> = self.lock_members().values().cloned().collect();
        members.sort_unstable_by_key(|staged| staged.token());
        members
    }

    /// Does what is due. Returns when something will be.
    fn handle_timeouts(self: &Arc<Self>) -> Option<Instant> {
        let now = self.now();
        let wires: Vec<_> = self.lock_wires().values().cloned().collect();
        let mut next = None;
        for wire in wires {
            match wire.poll_timeout() {
                Some(at) if at <= now => {
                    self.give_up(wire.id(), LinkFailure::Device("posts are not completed"));
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

    fn lock_wires(&self) -> MutexGuard<'_, BTreeMap<LinkId, Arc<Wire>>> {
        self.wires.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_members(&self) -> MutexGuard<'_, HashMap<AlertToken, Arc<Staged>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_retired_if(&self, rmb: RmbId, is_free: bool) -> Option<(Arc<Buffer>, usize)> {
        is_free.then(|| self.lock_retiring().remove(&rmb)).flatten()
    }

    fn lock_retiring(&self) -> MutexGuard<'_, BTreeMap<RmbId, (Arc<Buffer>, usize)>> {
        self.retiring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A link group of SMC-R as tools see it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaGroupInfo {
    /// Our identifier of the group (LG-ID).
    pub id: GroupId,
    /// Our side.
    pub role: Role,
    /// What the links have in common.
    pub kind: GroupType,
    /// All links, the oldest first.
    pub links: Vec<LinkInfo>,
    /// Connections, with set-ups and those whose last word is not acknowledged.
    pub connections: usize,
    /// Buffers of the peer that we know.
    pub rtokens: usize,
    /// Buffers of ours that no connection uses, and that the peer has not forgotten yet.
    pub retiring: usize,
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

/// Links by which a server may call a group, those included that have failed.
const NAMED_MAX: usize = 4;

const NO_LINK: DeviceError = DeviceError::Invalid("link group has no such link");
const NO_DEVICE: DeviceError = DeviceError::Gone("device was removed");
