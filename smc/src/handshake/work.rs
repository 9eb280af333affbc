//! The work that a handshake asks for, and what it has acquired.

use std::sync::Arc;
use std::time::Duration;

use smc_wire::size::SizeCode;
use smc_wire::types::{DmbToken, Gid, GroupId};

use super::early::EarlyWork;
use crate::conn::{DirectBuffers, RdmaConnHandle, len_u32};
use crate::device::{
    Access, Attachment, Charge, DeviceError, Direct, Dmb, LinkAddress, RdmaAddress, Route, Signal,
};
use crate::device_driver::DeviceDriver;
use crate::endpoint::EndpointInner;
use crate::error::Error;
use crate::groups::Membership;
use crate::negotiate::Credentials;
use crate::proto::group::{DeviceIndex, GroupKey, Intent};
use crate::proto::handshake::{LocalRmb, RmbError, Work, WorkDone};
use crate::proto::links::{
    FirstLinkError, HandshakeHash, LinkChoice, LinkId, LinkState, LlcTerms, PeerRmb, RkeyError,
    RmbKey, RtokenError,
};

/// The resources that the work of a handshake acquires. Dropping it releases them.
#[derive(Default)]
pub(super) struct HandshakeResources {
    pub(super) direct: DirectBuffers,
    pub(super) prepared: Option<Prepared>,
    pub(super) early: Option<EarlyWork>,
    // Dropped last: with the last connection its group may end.
    pub(super) membership: Option<Membership>,
}

/// The resource that one work item acquires.
pub(super) enum Acquired {
    Nothing,
    Attachment(Result<Arc<dyn Attachment>, DeviceError>),
    Buffer(Arc<dyn Dmb>, Charge),
    Prepared(Prepared),
    Membership(Membership),
}

impl HandshakeResources {
    pub(super) fn with(early: Option<EarlyWork>) -> Self {
        Self {
            early,
            ..Self::default()
        }
    }

    /// The result of a work item that was done early.
    ///
    /// `process`: at the other end of the handshake. `is_taken`: whether the server has taken the
    /// early CONFIRM.
    pub(super) fn take_early(
        &mut self,
        work: &Work,
        process: Option<Credentials>,
        is_taken: bool,
    ) -> Option<WorkDone> {
        if let (Work::Attach { .. }, Some(Ok(claimed))) = (work, &self.direct.attachment) {
            return Some(WorkDone::Attached(Ok(claimed.region().len())));
        }
        match self.early.as_mut()? {
            EarlyWork::Direct(early) => match *work {
                Work::Reach { device, peer }
                    if (early.device, early.peer, early.process) == (device, peer, process) =>
                {
                    Some(WorkDone::Reached(Ok(())))
                }
                Work::Enter {
                    key: GroupKey::Direct { device, peer },
                    intent: Intent::Join,
                } if (early.device, early.peer) == (device, peer) => {
                    let membership = early.membership.take()?;
                    Some(self.enter(membership))
                }
                Work::Register {
                    device, peer, size, ..
                } => {
                    // One of another size is of no use, and takes memory that this one may need.
                    // Nor is one that was named with early data, which is not taken: who has kept
                    // the message back could send it later.
                    let buffer = early.buffer.take();
                    let is_same = (early.device, early.peer, early.size) == (device, peer, size);
                    let is_kept = is_same && (is_taken || early.data.is_none());
                    let (dmb, charge) = buffer.filter(|_| is_kept)?;
                    let token = dmb.token();
                    (self.direct.dmb, self.direct.charge) = (Some(dmb), charge);
                    Some(WorkDone::Registered(Ok(token)))
                }
                _ => None,
            },
            EarlyWork::Rdma(early) => match *work {
                Work::Enter {
                    key,
                    intent: Intent::Join,
                } if early.key == key => {
                    let membership = early.membership.take()?;
                    Some(self.enter(membership))
                }
                Work::PrepareRmb { .. } => {
                    // One whose early CONFIRM is not taken is of no use: a process that has kept
                    // the message back could send it later.
                    let prepared = early.prepared.take();
                    let (prepared, local) = prepared.filter(|_| is_taken)?;
                    self.prepared = Some(prepared);
                    Some(WorkDone::RmbPrepared(Ok(local)))
                }
                _ => None,
            },
        }
    }

    /// Stores the first bytes of the stream in the receive buffer.
    pub(super) fn store_early(&mut self, bytes: &[u8]) -> Result<(), Error> {
        match &self.prepared {
            Some(prepared) => prepared.handle.0.store_early(bytes),
            None => self.direct.store_early(bytes),
        }
    }

    fn enter(&mut self, membership: Membership) -> WorkDone {
        let member = membership.member;
        self.membership = Some(membership);
        WorkDone::Entered(Ok(member))
    }

    pub(super) fn add(&mut self, acquired: Acquired) {
        match acquired {
            Acquired::Nothing => {}
            Acquired::Attachment(attachment) => self.direct.attachment = Some(attachment),
            Acquired::Buffer(dmb, charge) => {
                (self.direct.dmb, self.direct.charge) = (Some(dmb), charge);
            }
            Acquired::Prepared(prepared) => self.prepared = Some(prepared),
            Acquired::Membership(membership) => self.membership = Some(membership),
        }
    }
}

/// The resources of a handshake in its link group. Dropping it releases the connection's buffers.
#[derive(Clone)]
pub(super) struct Prepared {
    pub(super) handle: Arc<RdmaConnHandle>,
    pub(super) keys: Vec<RmbKey>,
    pub(super) link: LinkId,
    /// The RMB as the peer gets to know it.
    pub(super) named: PeerRmb,
}

/// The result of one work item: what it has acquired, and the input for the machine.
pub(super) type WorkResult = (Acquired, WorkDone);

pub(super) async fn execute(
    endpoint: Arc<EndpointInner>,
    work: Work,
    prepared: Option<Prepared>,
    process: Option<Credentials>,
) -> WorkResult {
    let mut acquired = Acquired::Nothing;
    let done = match work {
        Work::Reach { device, peer } => {
            WorkDone::Reached(reach(&endpoint, device, peer, process).await)
        }
        Work::Enter { key, intent } => {
            WorkDone::Entered(endpoint.groups.enter(key, intent).await.map(|membership| {
                let member = membership.member;
                acquired = Acquired::Membership(membership);
                member
            }))
        }
        Work::Register {
            device,
            peer,
            size,
            peer_size,
        } => {
            let registered = register(&endpoint, device, peer, size, peer_size).await;
            WorkDone::Registered(registered.map(|(dmb, charge)| {
                let token = dmb.token();
                acquired = Acquired::Buffer(dmb, charge);
                token
            }))
        }
        Work::Claim {
            device,
            peer,
            token,
        } => WorkDone::Claimed(
            claim(&endpoint, device, peer, token)
                .await
                .map(|attachment| {
                    acquired =
                        attachment.map_or(Acquired::Nothing, |it| Acquired::Attachment(Ok(it)));
                }),
        ),
        Work::Attach {
            device,
            peer,
            token,
        } => {
            let nocopy = direct(&endpoint, device).map(|direct| direct.nocopy());
            let attachment = match nocopy {
                Ok(Some(nocopy)) => nocopy.attach(peer, token).await,
                Ok(None) => Err(DeviceError::Invalid("device cannot attach")),
                Err(error) => Err(error),
            };
            let len = attachment.as_ref().map(|it| it.region().len());
            let done = WorkDone::Attached(len.map_err(DeviceError::clone));
            acquired = Acquired::Attachment(attachment);
            done
        }
        Work::EstablishGroup { group, terms } => {
            WorkDone::GroupEstablished(endpoint.groups.establish(group, terms))
        }
        // Futures of SMC-R are large, and are boxed separately so that SMC-D does not pay for them.
        Work::OpenLink {
            group,
            device,
            address,
        } => WorkDone::LinkOpened(Box::pin(open_link(&endpoint, group, device, &address)).await),
        Work::PrepareRmb {
            group,
            link,
            size,
            early,
        } => {
            let rmb = Box::pin(prepare_rmb(&endpoint, group, link, size, early)).await;
            WorkDone::RmbPrepared(rmb.map(|(prepared, local)| {
                acquired = Acquired::Prepared(prepared);
                local
            }))
        }
        Work::ConfirmRkey => {
            WorkDone::RkeyConfirmed(Box::pin(confirm_rkey(prepared.as_ref())).await)
        }
        Work::BindPeer { rmb, sent } => {
            WorkDone::PeerBound(bind_peer(prepared.as_ref(), &rmb, sent))
        }
        Work::ConnectLink {
            group,
            peer,
            route,
            terms,
        } => WorkDone::LinkConnected(
            Box::pin(connect_link(&endpoint, group, peer, route, terms)).await,
        ),
        Work::ConfirmLink { group, messages } => {
            WorkDone::LinkConfirmed(Box::pin(confirm_link(&endpoint, group, messages)).await)
        }
    };
    (acquired, done)
}

/// Checks that the peer's device can be reached, and belongs to the process at the other end of the
/// handshake, where both processes are known.
pub(super) async fn reach(
    endpoint: &EndpointInner,
    device: DeviceIndex,
    peer: Gid,
    process: Option<Credentials>,
) -> Result<(), DeviceError> {
    let direct = direct(endpoint, device)?;
    direct.reach(peer).await?;
    let owner = direct.process(peer)?;
    // Whichever it is.
    if owner.is_some() && owner == process {
        return Ok(());
    }
    // A process of another PID namespace has no number here; this one sees its own.
    let own = Credentials::own();
    let is_own = |process: Credentials| (process.uid, process.pid) == (own.uid, own.pid);
    match (owner, process) {
        (Some(owner), Some(process))
            if owner.is_same_process(process) && (is_own(process) || !is_own(owner)) =>
        {
            Ok(())
        }
        (Some(_), Some(_)) => Err(DeviceError::PeerMisbehaved(
            "the GID is that of another process's device",
        )),
        // Any client knows the GID, and the tokens of the buffers for it, from ACCEPTs: it could
        // connect streams of this process to each other.
        (_, process) if peer == direct.gid() && !process.is_some_and(is_own) => {
            Err(DeviceError::PeerMisbehaved(
                "the GID is that of the local device, and the process at the other end is another \
                 or not known",
            ))
        }
        _ => Ok(()),
    }
}

/// Registers a receive buffer, if the limit allows it and the peer's buffer.
pub(super) async fn register(
    endpoint: &EndpointInner,
    device: DeviceIndex,
    peer: Gid,
    size: SizeCode,
    peer_size: SizeCode,
) -> Result<(Arc<dyn Dmb>, Charge), DeviceError> {
    let (driver, direct) = (device_driver(endpoint, device)?, direct(endpoint, device)?);
    let max = endpoint.config.recv_buffer;
    let charge = endpoint.check_memory(size, max, peer_size.byte_len())?;
    let dmb = match direct.register(peer, size.byte_len()).await {
        // Connections that both ends have dropped may have theirs for a moment longer.
        Err(DeviceError::Exhausted | DeviceError::NoMemory)
            if driver.look_for_closes(endpoint.runtime.now()) =>
        {
            direct.register(peer, size.byte_len()).await?
        }
        registered => registered?,
    };
    Ok((dmb, charge))
}

/// Claims the client's buffer, which the local device maps if it can.
async fn claim(
    endpoint: &EndpointInner,
    device: DeviceIndex,
    peer: Gid,
    token: DmbToken,
) -> Result<Option<Arc<dyn Attachment>>, DeviceError> {
    let (driver, direct) = (device_driver(endpoint, device)?, direct(endpoint, device)?);
    let attachment = match direct.nocopy() {
        Some(nocopy) => Some(nocopy.attach(peer, token).await?),
        None => {
            let moved = direct.move_data(peer, token, 0, &[], Signal::No);
            moved.map_err(|_| DeviceError::Invalid("buffer cannot be written"))?;
            None
        }
    };
    // Claimed first: names of buffers that are not registered any more are forgotten, and none is
    // registered twice.
    if !driver.claim_buffer(peer, token) {
        let why = "another connection has named the buffer";
        return Err(DeviceError::Invalid(why));
    }
    match direct.is_registered(peer, token) {
        true => Ok(attachment),
        false => Err(DeviceError::Invalid("buffer is not registered")),
    }
}

impl EndpointInner {
    /// Checks whether the limit allows a local buffer of this size, where `max` is configured,
    /// and charges the peer's buffer.
    ///
    /// Called before a handshake commits to either buffer, when a smaller size or TCP is still
    /// possible. The device charges the local buffer.
    fn check_memory(
        &self,
        local: SizeCode,
        max: SizeCode,
        peer: usize,
    ) -> Result<Charge, DeviceError> {
        self.try_check_memory(local, max, peer).or_else(|_| {
            self.groups.memory.release_unneeded();
            if local == SizeCode::MIN {
                self.groups.memory.trim();
            }
            self.try_check_memory(local, max, peer)
        })
    }

    fn try_check_memory(
        &self,
        local: SizeCode,
        max: SizeCode,
        peer: usize,
    ) -> Result<Charge, DeviceError> {
        let memory = &self.groups.memory;
        let (len, available) = (local.byte_len(), memory.available());
        let is_fair = len <= largest_buffer(max.byte_len(), available, memory.limit());
        // Twice, as a device may also charge its mapping of the peer's buffer.
        let needed = peer.saturating_mul(2).saturating_add(len);
        if needed > available || !is_fair && local != SizeCode::MIN {
            return Err(memory.exceeded(needed));
        }
        memory.charge(peer)
    }
}

pub(super) fn device_driver(
    endpoint: &EndpointInner,
    device: DeviceIndex,
) -> Result<&Arc<DeviceDriver>, DeviceError> {
    match endpoint.drivers.get(device.0) {
        Some(driver) if !driver.is_gone() => Ok(driver),
        _ => Err(DeviceError::Gone("device was removed")),
    }
}

pub(super) fn direct(
    endpoint: &EndpointInner,
    device: DeviceIndex,
) -> Result<&dyn Direct, DeviceError> {
    let operations = device_driver(endpoint, device)?.device.operations();
    operations.direct().ok_or(NOT_DIRECT)
}

// ---- SMC-R -----------------------------------------------------------------------------------

async fn open_link(
    endpoint: &EndpointInner,
    group: GroupId,
    device: DeviceIndex,
    address: &RdmaAddress,
) -> Result<LinkAddress, DeviceError> {
    let groups = &endpoint.groups;
    let group = groups.start_rdma(group).ok_or(NO_GROUP)?;
    match group.open_first(device, address).await {
        // A peer without connections keeps its link for minutes, and this one needs it now.
        Err(DeviceError::Exhausted)
            if groups
                .end_longest_idle(device, idle_end_timeout(endpoint))
                .await =>
        {
            group.open_first(device, address).await
        }
        opened => opened,
    }
}

/// How long a set-up waits for the end of an idle group: the other half of the time for work is for
/// its own link.
fn idle_end_timeout(endpoint: &EndpointInner) -> Duration {
    endpoint.base_config().timeouts.work / 2
}

pub(super) async fn prepare_rmb(
    endpoint: &EndpointInner,
    group: GroupId,
    choice: LinkChoice,
    size: SizeCode,
    early: u64,
) -> Result<(Prepared, LocalRmb), RmbError> {
    let group = endpoint.groups.rdma(group).ok_or(RmbError::NoLink)?;
    let link = group.link_for(choice).ok_or(RmbError::NoLink)?;
    let address = link.local.ok_or(RmbError::NoLink)?;
    if choice != LinkChoice::First && !group.pool.has_announced(size) {
        group.announce_another(size);
    }
    // Pooled buffers are charged already, and the peer's buffer is not charged to this process.
    if !group.pool.has(size, Access::RemoteWrite) {
        drop(endpoint.check_memory(size, endpoint.config.rmb, 0)?);
    }
    let staging = endpoint.config.send_buffer;
    let (handle, keys) = group.prepare(link.id, size, staging).await?;
    let key = keys.iter().find(|key| key.device == link.device);
    let key = *key.ok_or(RmbError::NoLink)?;
    let named = PeerRmb {
        rkey: key.rkey,
        addr: key.addr,
        index: 1,
        size: handle.0.rmb.size,
        token: handle.0.token,
        authentication: None,
    };
    let authentication = match choice {
        LinkChoice::First => {
            group.add_rmb(&handle.0, &keys);
            None
        }
        LinkChoice::Assign | LinkChoice::Named { .. } => group.authenticate(&named, early),
    };
    let local = LocalRmb {
        device: link.device,
        link: address,
        rkey: named.rkey,
        addr: named.addr,
        token: named.token,
        size: named.size,
        index: named.index,
        authentication,
        peer: link.peer,
    };
    let prepared = Prepared {
        handle: Arc::new(handle),
        keys,
        link: link.id,
        named,
    };
    Ok((prepared, local))
}

pub(super) async fn confirm_rkey(prepared: Option<&Prepared>) -> Result<(), RkeyError> {
    let prepared = prepared.ok_or(RkeyError::NoKey)?;
    let conn = &prepared.handle.0;
    conn.group
        .confirm_rkey(conn.rmb_id, prepared.link, &prepared.keys)
        .await?;
    // The handshake names this link, which may have failed since. The connection may still be bound
    // to it: it moves only when the link is closed.
    let link = conn.group.link(prepared.link);
    match link.is_some_and(|link| link.state == LinkState::Active) {
        true => Ok(()),
        false => Err(RkeyError::NoKey),
    }
}

fn bind_peer(prepared: Option<&Prepared>, rmb: &PeerRmb, sent: usize) -> Result<(), RtokenError> {
    let prepared = prepared.ok_or(RtokenError::Ended)?;
    let conn = &prepared.handle.0;
    conn.group.bind(conn, prepared.link, rmb, len_u32(sent))
}

async fn connect_link(
    endpoint: &EndpointInner,
    group: GroupId,
    peer: LinkAddress,
    route: Route,
    terms: LlcTerms,
) -> Result<(), DeviceError> {
    let group = endpoint.groups.rdma(group).ok_or(NO_GROUP)?;
    group.connect_first(peer, route, terms).await
}

async fn confirm_link(
    endpoint: &EndpointInner,
    group: GroupId,
    messages: Option<HandshakeHash>,
) -> Result<(), FirstLinkError> {
    let group = endpoint.groups.rdma(group);
    let group = group.ok_or(FirstLinkError::LinkDown)?;
    group.confirm_first(messages).await
}

/// The largest buffer of the next connection, where `max` bytes are configured.
///
/// It is in proportion to the square of the share of the limit that is left, from the time when
/// that is a half. So sizes fall before memory is exhausted, and twice as many connections get
/// buffers of a quarter of the length.
fn largest_buffer(max: usize, available: usize, limit: usize) -> usize {
    let max = max.min(limit / LARGEST_BUFFERS);
    // Twice the share that is left, with 32 binary places.
    let left = (available.min(limit) as u128) << 33;
    let twice = left.checked_div(limit as u128).unwrap_or(0).min(1 << 32);
    usize::try_from((max as u128 * twice * twice) >> 64).unwrap_or(max)
}

/// A limit holds at least this number of the longest buffers.
const LARGEST_BUFFERS: usize = 64;

const NO_GROUP: DeviceError = DeviceError::Gone("link group has ended");

/// A handshake names only devices of its transport.
const NOT_DIRECT: DeviceError = DeviceError::Invalid("not an SMC-D device");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_whole_while_half_of_the_limit_is_left_and_fall_with_its_square() {
        let (most, limit) = (4 << 20, 1 << 30);
        let largest = |share| largest_buffer(most, limit / share, limit);
        let lens = [1, 2, 4, 8, 16].map(largest);
        assert_eq!(lens, [4 << 20, 4 << 20, 1 << 20, 256 << 10, 64 << 10]);
    }

    #[test]
    fn a_small_limit_leaves_space_for_several_buffers() {
        assert_eq!(largest_buffer(4 << 20, 1 << 20, 1 << 20), 1 << 14);
        assert_eq!(largest_buffer(4 << 20, 0, 0), 0);
        assert_eq!(
            largest_buffer(usize::MAX, usize::MAX, usize::MAX),
            usize::MAX / 64
        );
    }
}
