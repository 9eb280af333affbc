//! The executor of a handshake's work.

use std::sync::Arc;

use smc_wire::size::SizeCode;
use smc_wire::types::Gid;

use crate::device::{Attachment, Charge, DeviceError, Direct, Dmb};
use crate::io::device_driver::DeviceDriver;
use crate::io::endpoint::EndpointInner;
use crate::io::groups::Membership;
use crate::io::negotiate::Credentials;
use crate::io::rdma::work::{self as rdma, Prepared};
use crate::proto::group::{DeviceIndex, GroupKey, Intent};
use crate::proto::handshake::{Work, WorkDone};

/// The resources that the work of a handshake acquires. Dropping it releases them.
#[derive(Default)]
pub(in crate::io) struct HandshakeResources {
    /// The peer's buffer, or why it could not be attached.
    pub(in crate::io) attachment: Option<Result<Arc<dyn Attachment>, DeviceError>>,
    pub(in crate::io) dmb: Option<Arc<dyn Dmb>>,
    /// The charge of the peer's buffer.
    pub(in crate::io) charge: Charge,
    pub(in crate::io) prepared: Option<Prepared>,
    pub(super) early: Option<EarlyWork>,
    // Dropped last: with the last connection its group may end.
    pub(in crate::io) membership: Option<Membership>,
}

/// The result of one work item: acquired resources, and the input for the machine.
pub(super) type WorkResult = (HandshakeResources, WorkDone);
/// Work that was done before the handshake requests it, so that a CONFIRM could be sent early. The
/// server may use the connection and end before its answer is read, and with it the link group: by
/// then this side has its buffer and its place.
pub(super) struct EarlyWork {
    pub(super) device: DeviceIndex,
    pub(super) peer: Gid,
    pub(super) size: SizeCode,
    /// The process whose answer is expected. The peer's device belongs to it, where that is known.
    pub(super) process: Option<Credentials>,
    /// The receive buffer, and the charge for the server's, whose size is the cached one.
    pub(super) buffer: Option<(Arc<dyn Dmb>, Charge)>,
    pub(super) membership: Option<Membership>,
}

impl HandshakeResources {
    /// The result of a work item that was done early.
    ///
    /// `process`: at the other end of the handshake.
    pub(super) fn take_early(
        &mut self,
        work: &Work,
        process: Option<Credentials>,
    ) -> Option<WorkDone> {
        let early = self.early.as_mut()?;
        match *work {
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
                let seat = membership.seat();
                self.membership = Some(membership);
                Some(WorkDone::Entered(Ok(seat)))
            }
            Work::Register {
                device, peer, size, ..
            } if (early.device, early.peer, early.size) == (device, peer, size) => {
                let (dmb, charge) = early.buffer.take()?;
                let token = dmb.token();
                (self.dmb, self.charge) = (Some(dmb), charge);
                Some(WorkDone::Registered(Ok(token)))
            }
            _ => None,
        }
    }

    pub(super) fn take(&mut self, gained: Self) {
        self.attachment = gained.attachment.or_else(|| self.attachment.take());
        if gained.dmb.is_some() {
            (self.dmb, self.charge) = (gained.dmb, gained.charge);
        }
        self.prepared = gained.prepared.or_else(|| self.prepared.take());
        self.membership = gained.membership.or_else(|| self.membership.take());
    }
}

pub(super) async fn execute(
    endpoint: Arc<EndpointInner>,
    work: Work,
    prepared: Option<Prepared>,
    process: Option<Credentials>,
) -> WorkResult {
    let mut resources = HandshakeResources::default();
    let done = match work {
        Work::Reach { device, peer } => {
            WorkDone::Reached(reach(&endpoint, device, peer, process).await)
        }
        Work::Enter { key, intent } => {
            WorkDone::Entered(endpoint.groups.enter(key, intent).await.map(|membership| {
                let seat = membership.seat();
                resources.membership = Some(membership);
                seat
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
                (resources.dmb, resources.charge) = (Some(dmb), charge);
                token
            }))
        }
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
            resources.attachment = Some(attachment);
            done
        }
        Work::Open { group, terms } => WorkDone::Opened(endpoint.groups.establish(group, terms)),
        // Futures of SMC-R are large, and are boxed separately so that SMC-D does not pay for them.
        Work::OpenLink {
            group,
            port,
            address,
        } => {
            WorkDone::LinkOpened(Box::pin(rdma::open_link(&endpoint, group, port, &address)).await)
        }
        Work::PrepareRmb { group, link, size } => {
            let rmb = Box::pin(rdma::prepare_rmb(&endpoint, group, link, size)).await;
            WorkDone::RmbPrepared(rmb.map(|(prepared, local)| {
                resources.prepared = Some(prepared);
                local
            }))
        }
        Work::ConfirmRkey { .. } => {
            WorkDone::RkeyConfirmed(Box::pin(rdma::confirm_rkey(prepared.as_ref())).await)
        }
        Work::BindPeer { rmb, .. } => WorkDone::PeerBound(rdma::bind_peer(prepared.as_ref(), &rmb)),
        Work::ConnectLink {
            group,
            peer,
            route,
            terms,
        } => WorkDone::LinkConnected(
            Box::pin(rdma::connect_link(&endpoint, group, peer, route, terms)).await,
        ),
        Work::ConfirmLink { group } => {
            WorkDone::LinkConfirmed(Box::pin(rdma::confirm_link(&endpoint, group)).await)
        }
    };
    (resources, done)
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
    match (direct.process(peer), process) {
        (Some(owner), Some(process)) if !owner.is_same_process(process) => Err(
            DeviceError::PeerMisbehaved("the GID is that of another process's device"),
        ),
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
    let direct = direct(endpoint, device)?;
    let charge = endpoint.admit(size, peer_size.byte_len())?;
    let dmb = direct.register(peer, size.byte_len()).await?;
    Ok((dmb, charge))
}

pub(in crate::io) fn driver(
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
    let fabric = driver(endpoint, device)?.device().fabric();
    fabric.direct().ok_or(NOT_DIRECT)
}

/// A handshake names only devices of its fabric.
const NOT_DIRECT: DeviceError = DeviceError::Invalid("not an SMC-D device");
