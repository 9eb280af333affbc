//! What the work of a handshake has acquired.

use std::sync::Arc;

use smc_wire::size::SizeCode;
use smc_wire::types::Gid;

use crate::conn::RdmaConnHandle;
use crate::device::{Attachment, Charge, DeviceError, Dmb};
use crate::groups::Membership;
use crate::links::RdmaGroup;
use crate::negotiate::Credentials;
use crate::proto::group::{DeviceIndex, GroupKey, Intent};
use crate::proto::handshake::{Work, WorkDone};
use crate::proto::links::{LinkId, RmbKey};

/// The resources that the work of a handshake acquires. Dropping it releases them.
#[derive(Default)]
pub(super) struct HandshakeResources {
    /// The peer's buffer, or why it could not be attached.
    pub(super) attachment: Option<Result<Arc<dyn Attachment>, DeviceError>>,
    pub(super) dmb: Option<Arc<dyn Dmb>>,
    /// The charge of the peer's buffer.
    pub(super) charge: Charge,
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
                let member = membership.member();
                self.membership = Some(membership);
                Some(WorkDone::Entered(Ok(member)))
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

    pub(super) fn add(&mut self, acquired: Acquired) {
        match acquired {
            Acquired::Nothing => {}
            Acquired::Attachment(attachment) => self.attachment = Some(attachment),
            Acquired::Buffer(dmb, charge) => (self.dmb, self.charge) = (Some(dmb), charge),
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
}

impl Prepared {
    pub(super) fn group(&self) -> &Arc<RdmaGroup> {
        self.handle.rdma_conn().group()
    }
}
