//! The work that a handshake asks for.

use std::sync::Arc;

use smc_wire::size::SizeCode;
use smc_wire::types::Gid;

use crate::device::{Attachment, Charge, DeviceError, Direct, Dmb};
use crate::io::driver::Slot;
use crate::io::endpoint::Inner;
use crate::io::groups::Membership;
use crate::io::rdma::work::{self as rdma, Prepared};
use crate::proto::group::DeviceIndex;
use crate::proto::handshake::{Done, Work};

/// What the work of a handshake has brought. Dropping it releases all of it.
#[derive(Default)]
pub(in crate::io) struct Kept {
    pub(in crate::io) attachment: Option<Arc<dyn Attachment>>,
    pub(in crate::io) dmb: Option<Arc<dyn Dmb>>,
    /// For the peer's buffer.
    pub(in crate::io) charge: Charge,
    pub(in crate::io) prepared: Option<Prepared>,
    pub(super) early: Option<EarlyBuffer>,
    // Last: with the last connection its group may end.
    pub(in crate::io) membership: Option<Membership>,
}

/// What a piece of work has brought, and what the machine has to hear of it.
pub(super) type Brought = (Kept, Done);
/// A receive buffer that was registered before it was asked for.
pub(super) struct EarlyBuffer {
    pub(super) device: DeviceIndex,
    pub(super) peer: Gid,
    pub(super) size: SizeCode,
    pub(super) peer_size: SizeCode,
    pub(super) dmb: Arc<dyn Dmb>,
    pub(super) charge: Charge,
}

impl Kept {
    /// Whether there is such a buffer already.
    pub(super) fn has_early(&self, work: &Work) -> bool {
        self.early.as_ref().is_some_and(|early| {
            let buffered = Work::Register {
                device: early.device,
                peer: early.peer,
                size: early.size,
                peer_size: early.peer_size,
            };
            buffered == *work
        })
    }

    pub(super) fn use_early(&mut self) -> Done {
        if let Some(early) = self.early.take() {
            (self.dmb, self.charge) = (Some(early.dmb), early.charge);
        }
        let gone = DeviceError::Gone("buffer was used already");
        Done::Registered(self.dmb.as_ref().map(|dmb| dmb.token()).ok_or(gone))
    }

    pub(super) fn take(&mut self, brought: Self) {
        self.attachment = brought.attachment.or_else(|| self.attachment.take());
        if brought.dmb.is_some() {
            (self.dmb, self.charge) = (brought.dmb, brought.charge);
        }
        self.prepared = brought.prepared.or_else(|| self.prepared.take());
        self.membership = brought.membership.or_else(|| self.membership.take());
    }
}

pub(super) async fn carry_out(
    endpoint: Arc<Inner>,
    work: Work,
    prepared: Option<Prepared>,
) -> Brought {
    let mut kept = Kept::default();
    let done = match work {
        Work::Reach { device, peer } => Done::Reached(match direct(&endpoint, device) {
            Ok(direct) => direct.reach(peer).await,
            Err(error) => Err(error),
        }),
        Work::Enter { key, intent } => {
            Done::Entered(endpoint.groups.enter(key, intent).await.map(|membership| {
                let seat = membership.seat();
                kept.membership = Some(membership);
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
            Done::Registered(registered.map(|(dmb, charge)| {
                let token = dmb.token();
                (kept.dmb, kept.charge) = (Some(dmb), charge);
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
            Done::Attached(attachment.map(|attachment| {
                let len = attachment.region().len();
                kept.attachment = Some(attachment);
                len
            }))
        }
        Work::Open { group, terms } => Done::Opened(endpoint.groups.establish(group, terms)),
        // Those of SMC-R are large, and SMC-D should not pay for that: they have boxes of their own.
        Work::OpenLink {
            group,
            port,
            address,
        } => Done::LinkOpened(Box::pin(rdma::open_link(&endpoint, group, port, &address)).await),
        Work::PrepareRmb { group, link, size } => {
            let rmb = Box::pin(rdma::prepare_rmb(&endpoint, group, link, size)).await;
            Done::RmbPrepared(rmb.map(|(prepared, local)| {
                kept.prepared = Some(prepared);
                local
            }))
        }
        Work::ConfirmRkey { .. } => {
            Done::RkeyConfirmed(Box::pin(rdma::confirm_rkey(prepared.as_ref())).await)
        }
        Work::BindPeer { rmb, .. } => Done::PeerBound(rdma::bind_peer(prepared.as_ref(), &rmb)),
        Work::ConnectLink {
            group,
            peer,
            route,
            terms,
        } => Done::LinkConnected(
            Box::pin(rdma::connect_link(&endpoint, group, peer, route, terms)).await,
        ),
        Work::ConfirmLink { group } => {
            Done::LinkConfirmed(Box::pin(rdma::confirm_link(&endpoint, group)).await)
        }
    };
    (kept, done)
}

/// Registers a receive buffer, if there is memory for it and for what is written to the peer's.
pub(super) async fn register(
    endpoint: &Inner,
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

pub(in crate::io) fn slot(
    endpoint: &Inner,
    device: DeviceIndex,
) -> Result<&Arc<Slot>, DeviceError> {
    match endpoint.slots.get(device.0) {
        Some(slot) if !slot.is_gone() => Ok(slot),
        _ => Err(DeviceError::Gone("device was removed")),
    }
}

pub(super) fn direct(endpoint: &Inner, device: DeviceIndex) -> Result<&dyn Direct, DeviceError> {
    let fabric = slot(endpoint, device)?.device().fabric();
    fabric.direct().ok_or(NOT_DIRECT)
}

/// A handshake names only devices of the fabric that it is about.
const NOT_DIRECT: DeviceError = DeviceError::Invalid("not an SMC-D device");
