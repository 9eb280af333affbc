//! One SMC-R link group: its links, its connections, and the outputs of its state machine.

mod announce;
mod events;
mod outputs;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::poll_fn;
use std::mem;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Instant;

use atomic_waker::AtomicWaker;
use hashbrown::HashMap;
use smc_wire::clc::Authentication;
use smc_wire::size::SizeCode;
use smc_wire::types::{AlertToken, GroupId, PnetId, Rkey, RmbAddr, RoceGid};

use super::super::conn::{RdmaConn, RdmaConnHandle};
use super::super::device_driver::DeviceDriver;
use super::super::groups::Groups;
use super::super::oneshot::Oneshot;
use super::buffer_pool::{Domains, RdmaBuffer, RdmaBufferPool};
use super::link_sender::LinkSender;
use crate::device::{
    Access, DeviceError, LinkAddress, PendingLink, ProtectionDomain, RdmaAddress, Route,
};
use crate::log::{GroupLog, Span};
use crate::mem::sync::{AtomicBool, AtomicU64, Ordering};
use crate::mutex::Mutex;
use crate::proto::Role;
use crate::proto::group::DeviceIndex;
use crate::proto::handshake::RefusedEarly;
use crate::proto::links::{
    self, Authentications, EarlyDataHash, FirstLinkError, GroupType, HandshakeHash, LinkChoice,
    LinkGroup, LinkGroupOutput, LinkId, LinkInfo, LinkState, LlcConfig, PeerRmb, RkeyError, RmbId,
    RmbKey, RtokenId,
};
use crate::random;
use crate::stats::LinkQueueInfo;
use events::GroupTask;

/// A link group of SMC-R.
///
/// The state machine is behind a short lock. Its outputs are applied in order, outside of that
/// lock, by one thread at a time; other threads only queue theirs.
pub(crate) struct RdmaLinkGroup {
    pub(crate) id: GroupId,
    role: Role,
    pub(crate) groups: Arc<Groups>,
    state: Mutex<RdmaGroupState>,
    pub(crate) pool: RdmaBufferPool,
    next_rmb: AtomicU64,
    /// An RMB is being announced that no connection uses yet.
    is_announcing: AtomicBool,
    has_ended: AtomicBool,
    /// [`LinkGroup::revocations`], readable without a lock.
    revocations: AtomicU64,
    /// The group's task has ended: with the group, or with the runtime.
    has_task_ended: AtomicBool,
    /// Connections have moved from one link to another.
    has_moved: AtomicBool,
    task: AtomicWaker,
    pub(crate) log: GroupLog,
}

struct RdmaGroupState {
    machine: LinkGroup,
    outputs: VecDeque<LinkGroupOutput>,
    /// A thread is applying outputs.
    is_applying: bool,
    /// Address of the first link, and the peer's: other links have to be on the same network.
    first_address: Option<RdmaAddress>,
    /// The physical network of the first address: its port may be down when another one is needed.
    pnet_id: Option<PnetId>,
    first_peer: Option<RoceGid>,
    /// Protection domains, which separate this group's memory from the peers of other groups, on
    /// each device.
    domains: BTreeMap<DeviceIndex, Arc<dyn ProtectionDomain>>,
    /// Queue pairs that are not connected.
    pending: BTreeMap<LinkId, (DeviceIndex, Box<dyn PendingLink>)>,
    senders: BTreeMap<LinkId, Arc<LinkSender>>,
    members: HashMap<AlertToken, Arc<RdmaConn>>,
    /// RMBs that the peer may still write, with the number of bytes to be zeroed.
    retiring: BTreeMap<RmbId, Retiring>,
    first_link: Oneshot<Result<(), FirstLinkError>>,
    rkeys: BTreeMap<RmbId, Oneshot<Result<(), RkeyError>>>,
}

impl RdmaLinkGroup {
    /// Creates the group for a set-up, and starts its task.
    pub(crate) fn start(
        id: GroupId,
        role: Role,
        groups: &Arc<Groups>,
        config: LlcConfig,
        span: Span,
    ) -> Arc<Self> {
        let group = Arc::new(Self {
            id,
            role,
            groups: Arc::clone(groups),
            state: Mutex::new(RdmaGroupState {
                machine: LinkGroup::new(role, id, config),
                outputs: VecDeque::new(),
                is_applying: false,
                first_address: None,
                pnet_id: None,
                first_peer: None,
                domains: BTreeMap::new(),
                pending: BTreeMap::new(),
                senders: BTreeMap::new(),
                members: HashMap::new(),
                retiring: BTreeMap::new(),
                first_link: Oneshot::default(),
                rkeys: BTreeMap::new(),
            }),
            pool: RdmaBufferPool::new(groups.memory.clone()),
            next_rmb: AtomicU64::new(1),
            is_announcing: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            revocations: AtomicU64::new(0),
            has_task_ended: AtomicBool::new(false),
            has_moved: AtomicBool::new(false),
            task: AtomicWaker::new(),
            log: GroupLog::new(span),
        });
        let task = GroupTask(Arc::downgrade(&group));
        groups.runtime.spawn(Box::pin(task.run_timers()));
        group
    }

    pub(crate) fn now(&self) -> Instant {
        self.groups.runtime.now()
    }

    /// Wakes the group's task: a timeout is earlier than its timer.
    pub(crate) fn wake(&self) {
        self.task.wake();
    }

    /// Whether the group has ended: nothing can be sent any more.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// For tools.
    pub(crate) fn snapshot(&self) -> RdmaGroupInfo {
        let state = self.state.lock();
        // The machine has the order.
        let senders = state
            .machine
            .links()
            .filter_map(|link| state.senders.get(&link.id));
        let queues = senders.map(|sender| sender.info()).collect();
        RdmaGroupInfo {
            id: self.id,
            role: self.role,
            kind: state.machine.group_type(),
            links: state.machine.links().collect(),
            queues,
            connections: state.members.len(),
            rtokens: state.machine.rtokens(),
            retiring: state.retiring.len(),
            kept: self.pool.announced(),
        }
    }

    /// Whether ended connections are completely removed: no close of this side and no DELETE RKEY
    /// of the peer is outstanding.
    pub(crate) fn has_completed_closes(&self) -> bool {
        let members = self.members();
        !members.iter().any(|conn| conn.is_stream_dropped())
            && !self.state.lock().machine.awaits_deletions()
    }

    fn links(&self) -> Vec<LinkInfo> {
        self.state.lock().machine.links().collect()
    }

    /// How often the peer has revoked an RMB.
    pub(crate) fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }

    pub(crate) fn rtoken(&self, id: RtokenId, link: LinkId) -> Option<(Rkey, RmbAddr)> {
        self.state.lock().machine.rtoken(id, link)
    }

    /// The devices of all links.
    pub(crate) fn devices(&self) -> BTreeSet<DeviceIndex> {
        self.links().iter().map(|link| link.device).collect()
    }

    /// Whether nothing runs the group's timers any more.
    pub(crate) fn has_task_ended(&self) -> bool {
        self.has_task_ended.load(Ordering::SeqCst)
    }

    /// Drops links and connections, which refer to the group, without notifying the peer.
    pub(crate) fn abandon(&self) {
        self.has_ended.store(true, Ordering::Release);
        // Dropped after the lock.
        let _abandoned = {
            let mut state = self.state.lock();
            let RdmaGroupState {
                outputs,
                pending,
                senders,
                members,
                retiring,
                ..
            } = &mut *state;
            (
                mem::take(outputs),
                mem::take(pending),
                mem::take(senders),
                mem::take(members),
                mem::take(retiring),
            )
        };
    }

    // ---- First contact -------------------------------------------------------------------------

    /// Makes the queue pair of the first link.
    pub(crate) async fn open_first(
        self: &Arc<Self>,
        device: DeviceIndex,
        address: &RdmaAddress,
    ) -> Result<LinkAddress, DeviceError> {
        let pending = match self.take_spare(device, address) {
            Some(pending) => pending,
            None => self.open(device, address).await?,
        };
        let local = pending.local();
        if self.has_ended() {
            return Err(NO_LINK);
        }
        let pnet_id = self.groups.pnet_id_of(address);
        self.step(|state, now| {
            let link = state.machine.first_link(now, device, local);
            state.pending.insert(link, (device, pending));
            state.first_address = Some(address.clone());
            state.pnet_id = pnet_id;
        });
        Ok(local)
    }

    /// The queue pair of a spare, whose domain and buffers become those of the group.
    fn take_spare(
        &self,
        device: DeviceIndex,
        address: &RdmaAddress,
    ) -> Option<Box<dyn PendingLink>> {
        let spare = self.groups.spares.take(device, address)?;
        let domains = &mut self.state.lock().domains;
        domains.insert(device, spare.domain);
        for buffer in spare.buffers {
            self.pool.put(buffer, 0);
        }
        Some(spare.link)
    }

    /// Connects the first link.
    pub(crate) async fn connect_first(
        self: &Arc<Self>,
        peer: LinkAddress,
        route: Route,
        terms: links::LlcTerms,
    ) -> Result<(), DeviceError> {
        let mut key_share = [0; 8];
        if terms.authenticates {
            let random = random::bytes();
            key_share = random.map_err(|error| DeviceError::os("get random bytes", &error))?;
        }
        let link = self.step(|state, _| {
            state.machine.first_peer(peer, route, terms, key_share);
            state.first_peer = Some(peer.gid);
            state.pending.keys().next().copied()
        });
        self.addresses_changed();
        let link = link.ok_or(NO_LINK)?;
        self.connect(link, peer, route).await?;
        let sender = self.sender(link).ok_or(NO_LINK)?;
        for conn in self.members() {
            conn.set_sender(&sender);
        }
        Ok(())
    }

    /// Exchanges CONFIRM LINK on the first link.
    pub(crate) async fn confirm_first(
        self: &Arc<Self>,
        messages: Option<HandshakeHash>,
    ) -> Result<(), FirstLinkError> {
        self.step(|state, now| {
            if let Some(messages) = messages {
                state.machine.first_handshake(messages);
            }
            state.machine.confirm_link(now);
        });
        poll_fn(|cx| self.state.lock().first_link.poll(cx)).await
    }

    /// First contact has succeeded. The next group can expect the same.
    pub(crate) fn establish(self: &Arc<Self>) {
        self.step(|state, now| state.machine.establish(now));
        let address = self.state.lock().first_address.clone();
        let device = self.links().first().map(|link| link.device);
        let sizes = self
            .members()
            .first()
            .map(|conn| [conn.rmb.size, conn.staging.size]);
        if let (Some(address), Some(device), Some(sizes)) = (address, device, sizes) {
            self.groups.make_spare(device, address, sizes);
        }
    }

    // ---- Connections ---------------------------------------------------------------------------

    /// The link for a connection that is being set up.
    pub(crate) fn link_for(&self, choice: LinkChoice) -> Option<LinkInfo> {
        let state = self.state.lock();
        state.machine.link_for(choice, state.members.len())
    }

    pub(crate) fn link(&self, id: LinkId) -> Option<LinkInfo> {
        self.state.lock().machine.link(id)
    }

    /// Buffers for a connection, registered with all devices of the group. The staging ring is a
    /// smaller one if there is not enough memory.
    pub(crate) async fn prepare(
        self: &Arc<Self>,
        link: LinkId,
        size: SizeCode,
        staging: SizeCode,
    ) -> Result<(RdmaConnHandle, Vec<RmbKey>), DeviceError> {
        match self.try_prepare(link, size, staging).await {
            Err(error)
                if (error.is_lack_of_memory() || matches!(error, DeviceError::Exhausted))
                    && self.groups.spares.clear() =>
            {
                self.try_prepare(link, size, staging).await
            }
            prepared => prepared,
        }
    }

    async fn try_prepare(
        self: &Arc<Self>,
        link: LinkId,
        size: SizeCode,
        staging: SizeCode,
    ) -> Result<(RdmaConnHandle, Vec<RmbKey>), DeviceError> {
        if self.has_ended() {
            return Err(NO_LINK);
        }
        let domains = self.domains().await?;
        let rmb = self.pool.take_rmb(size)?;
        let keys = rmb.buffer().register_all(&domains).await?;
        let staging = self.staging(staging, &domains).await?;
        let token = self.groups.take_token()?;
        let (rmb, id) = rmb.used();
        let id = id.unwrap_or_else(|| self.new_rmb_id());
        let sender = self.sender(link);
        let conn = RdmaConn::new(Arc::clone(self), token, (id, rmb), staging, sender);
        let conn = Arc::new(conn);
        self.state.lock().members.insert(token, Arc::clone(&conn));
        let handle = RdmaConnHandle(conn);
        // From here on it is moved when the link fails, but not if the link had failed before.
        let is_usable = |link: LinkInfo| link.state.is_usable();
        if self.link(link).is_some_and(is_usable) {
            Ok((handle, keys))
        } else {
            Err(NO_LINK)
        }
    }

    /// The protection domains of all devices of the group.
    async fn domains(&self) -> Result<Domains, DeviceError> {
        let devices = self.state.lock().machine.devices();
        let mut domains = Vec::new();
        for device in devices {
            domains.push((device, self.domain(device).await?));
        }
        Ok(domains)
    }

    /// A staging ring of at most this size that is registered in all of the domains.
    async fn staging(
        &self,
        mut size: SizeCode,
        domains: &Domains,
    ) -> Result<Arc<RdmaBuffer>, DeviceError> {
        loop {
            match self.staging_of(size, domains).await {
                Err(error) if error.is_lack_of_memory() && self.groups.spares.clear() => {}
                Err(error) if error.is_lack_of_memory() => {
                    size = size.smaller().ok_or(error)?;
                }
                made => return made,
            }
        }
    }

    async fn staging_of(
        &self,
        size: SizeCode,
        domains: &Domains,
    ) -> Result<Arc<RdmaBuffer>, DeviceError> {
        let staging = self.pool.take(size, Access::Local)?;
        staging.register_all(domains).await?;
        Ok(staging)
    }

    /// Adds the RMB of the first connection, which the handshake sends to the peer.
    pub(crate) fn add_rmb(self: &Arc<Self>, conn: &RdmaConn, keys: &[RmbKey]) {
        self.step(|state, _| state.machine.add_rmb(conn.rmb_id, keys));
    }

    /// Authenticates the message of the handshake that names this RMB to the peer, if the group has
    /// a key. `early` is the number of the early CONFIRM in the PROPOSAL, for ACCEPT.
    pub(crate) fn authenticate(&self, rmb: &PeerRmb, early: u64) -> Option<Authentications> {
        self.state.lock().machine.authenticate(rmb, early)
    }

    /// The same for an early CONFIRM.
    pub(crate) fn authenticate_early(
        &self,
        rmb: &PeerRmb,
        data: EarlyDataHash,
    ) -> Option<Authentication> {
        self.state.lock().machine.authenticate_early(rmb, data)
    }

    /// Announces the RMB of a further connection to the peer (CONFIRM RKEY).
    pub(crate) async fn confirm_rkey(
        self: &Arc<Self>,
        rmb: RmbId,
        link: LinkId,
        keys: &[RmbKey],
    ) -> Result<(), RkeyError> {
        self.step(|state, now| {
            state.rkeys.insert(rmb, Oneshot::default());
            state.machine.confirm_rkey(now, rmb, link, keys);
        });
        let guard = RemoveAnswer(self, rmb);
        poll_fn(|cx| match guard.0.state.lock().rkeys.get_mut(&rmb) {
            Some(answer) => answer.poll(cx),
            None => Poll::Ready(Err(RkeyError::Ended)),
        })
        .await
    }

    /// Enters the peer's RMB in the table, which begins with this number of bytes that were sent
    /// with the PROPOSAL. If that fails, received data can be read, and nothing can be sent.
    pub(crate) fn bind(
        self: &Arc<Self>,
        conn: &Arc<RdmaConn>,
        link: LinkId,
        peer: &PeerRmb,
        sent: u32,
    ) -> Result<(), links::RtokenError> {
        match self.enter(conn, link, peer) {
            Ok(rtoken) => {
                conn.bind(peer, rtoken, sent);
                if self.can_move() {
                    conn.reserve_byte();
                }
                Ok(())
            }
            Err(error) => {
                conn.bind_for_reading(peer);
                Err(error)
            }
        }
    }

    /// An early CONFIRM that a server has not taken.
    pub(crate) fn refuse_early(&self, early: &RefusedEarly) {
        let RefusedEarly { gid, qpn, rmb } = early;
        self.state.lock().machine.refuse_early(*gid, *qpn, rmb);
    }

    fn enter(
        self: &Arc<Self>,
        conn: &RdmaConn,
        link: LinkId,
        peer: &PeerRmb,
    ) -> Result<RtokenId, links::RtokenError> {
        if self.has_ended() {
            return Err(links::RtokenError::Ended);
        }
        let now_on = conn.link();
        let rtoken = self.step(|state, _| {
            let rtoken = state.machine.add_rtoken(link, peer)?;
            // The link of the handshake may have failed. Then the peer should have sent RKEYs of
            // others.
            let is_told = |on| state.machine.rtoken(rtoken, on).is_some();
            if now_on.is_none_or(is_told) {
                return Ok(rtoken);
            }
            state.machine.release_rtoken(rtoken);
            Err(links::RtokenError::NotAnnounced)
        })?;
        if self.has_other_writer(rtoken) {
            self.step(|state, _| state.machine.release_rtoken(rtoken));
            return Err(links::RtokenError::InUse);
        }
        Ok(rtoken)
    }

    /// Whether another connection may still write to an RMB of the peer that is for one at a time.
    /// One that has published the end of its data writes no more: the peer may know that, and give
    /// an RMB that stays announced to its next connection.
    fn has_other_writer(&self, rtoken: RtokenId) -> bool {
        let (users, members) = {
            let state = self.state.lock();
            let users = state.machine.rtoken_users(rtoken);
            if users <= 1 || !state.machine.has_one_user() {
                return false;
            }
            let members: Vec<_> = state.members.values().cloned().collect();
            (users, members)
        };
        let has_ended = |member: &&Arc<RdmaConn>| member.has_published_end(rtoken);
        let ended = members.iter().filter(has_ended).count();
        users > ended.saturating_add(1)
    }

    /// Whether there is more than one link for connections.
    pub(super) fn can_move(&self) -> bool {
        let links = self.links();
        let active = links.iter().filter(|link| link.state == LinkState::Active);
        active.count() > 1
    }

    /// Removes a connection that is released and has nothing to send any more. Its RMB stays
    /// announced, if the ends have agreed on that; otherwise its RKEYs are deleted, and it is free
    /// when the peer has confirmed that.
    pub(crate) fn try_retire(self: &Arc<Self>, conn: &Arc<RdmaConn>) {
        if !conn.can_retire() {
            return;
        }
        let rtoken = conn.rtoken();
        {
            // In one step, so that `has_completed_closes` does not return true in between.
            let mut state = self.state.lock();
            if state.members.remove(&conn.token).is_none() {
                return;
            }
            if let Some(rtoken) = rtoken {
                state.machine.release_rtoken(rtoken);
            }
        }
        conn.leave_link();
        self.pool.put(Arc::clone(&conn.staging), 0);
        let (buffer, dirty) = (Arc::clone(&conn.rmb), conn.dirty());
        if conn.has_peer_ended() && self.state.lock().machine.keep_rmb(conn.rmb_id) {
            self.pool.put_announced(buffer, dirty, conn.rmb_id);
        } else {
            // The peer may not have received the message that names it, which another process may
            // hold back: such a key is never announced again.
            let dirty = conn.has_peer_ended().then_some(dirty);
            self.retire(buffer, dirty, conn.rmb_id);
        }
        self.groups.notify_ended();
    }

    /// `dirty` is `None` if the RMB is not to be used again.
    fn retire(self: &Arc<Self>, buffer: Arc<RdmaBuffer>, dirty: Option<usize>, rmb: RmbId) {
        let retiring = Retiring { buffer, dirty };
        self.state.lock().retiring.insert(rmb, retiring);
        self.step(|state, now| state.machine.delete_rkey(now, rmb));
    }

    /// Frees the buffers of the pool; of RMBs that the peer knows the RKEYs are deleted first.
    pub(crate) fn trim(self: &Arc<Self>) {
        for buffer in self.pool.take_all() {
            if let Some(rmb) = buffer.take_announced() {
                self.retire(buffer, None, rmb);
            }
        }
    }

    // ---- Parts ---------------------------------------------------------------------------------

    /// The driver of a device that works.
    pub(crate) fn driver(&self, device: DeviceIndex) -> Option<Arc<DeviceDriver>> {
        self.groups
            .driver(device)
            .filter(|driver| !driver.is_gone())
    }

    /// The links, which the group drops at its end.
    pub(crate) fn senders(&self) -> Vec<Weak<LinkSender>> {
        let state = self.state.lock();
        state.senders.values().map(Arc::downgrade).collect()
    }

    pub(crate) fn sender(&self, link: LinkId) -> Option<Arc<LinkSender>> {
        self.state.lock().senders.get(&link).cloned()
    }

    /// The connections and set-ups, in the order in which they came.
    fn members(&self) -> Vec<Arc<RdmaConn>> {
        let mut members: Vec<_> = self.state.lock().members.values().cloned().collect();
        members.sort_unstable_by_key(|conn| conn.rmb_id);
        members
    }

    fn member(&self, token: AlertToken) -> Option<Arc<RdmaConn>> {
        self.state.lock().members.get(&token).cloned()
    }
}

/// An RMB whose RKEYs are being deleted.
struct Retiring {
    buffer: Arc<RdmaBuffer>,
    /// The bytes at its start that the peer may have written, if it is for further connections.
    dirty: Option<usize>,
}

/// Information on an SMC-R link group, for tools.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RdmaGroupInfo {
    /// The local identifier of the group (LG-ID).
    pub id: GroupId,
    /// The local role.
    pub role: Role,
    /// The type of redundancy of the links.
    pub kind: GroupType,
    /// All links, the oldest first.
    pub links: Vec<LinkInfo>,
    /// The queues of those links that are connected, in the same order.
    pub queues: Vec<LinkQueueInfo>,
    /// Connections, including set-ups and those whose close is not acknowledged.
    pub connections: usize,
    /// Known RMBs of the peer.
    pub rtokens: usize,
    /// Unused local RMBs whose deletion the peer has not confirmed yet.
    pub retiring: usize,
    /// Unused local RMBs that stay announced, for further connections: among the peer's `rtokens`.
    pub kept: usize,
}

/// Removes the answer when a set-up stops waiting.
struct RemoveAnswer<'a>(&'a Arc<RdmaLinkGroup>, RmbId);

impl Drop for RemoveAnswer<'_> {
    fn drop(&mut self) {
        self.0.state.lock().rkeys.remove(&self.1);
    }
}

const NO_LINK: DeviceError = DeviceError::Invalid("link group has no such link");
