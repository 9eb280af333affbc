//! A peer that breaks the rules of the handshake.

use std::sync::Arc;

use smc_core::device::{Direct, Dmb};
use smc_core::proto::group::DeviceIndex;
use smc_core::proto::handshake::{
    ClientProposal, DEFAULT_SEID, DirectDevice, HandshakeConfig, TcpPath,
};
use smc_core::wire::clc::{
    AcceptConfirm, AcceptKind, Body, DirectEnd, FirstContact, Proposal, Terms,
};
use smc_core::wire::size::SizeCode;
use smc_core::wire::types::{DmbToken, FeatureMask, GroupId, HostName, OsType, Release};

use super::messages;
use crate::memory_device::MemDevice;

/// A peer that has a device and no endpoint to keep the rules.
#[derive(Clone, Debug)]
pub struct ForgedPeer {
    pub(super) device: Arc<MemDevice>,
    pub(super) dmb: Arc<dyn Dmb>,
    pub(super) size: SizeCode,
}

impl ForgedPeer {
    /// Takes its device off the fabric.
    pub fn leave(&self) {
        self.device.leave();
    }

    /// A PROPOSAL with its device and the default system EID.
    pub fn proposal(&self) -> Proposal {
        Proposal::parse(&proposal_from(&*self.device)).unwrap()
    }

    /// The bytes of that PROPOSAL.
    pub fn propose(&self) -> Vec<u8> {
        messages::proposal(&self.proposal())
    }

    /// ACCEPT at first contact, with a buffer that the host may write.
    pub fn accept(&self) -> AcceptConfirm {
        self.message(AcceptKind::Accept)
    }

    /// CONFIRM at first contact, with a buffer that the host may write.
    pub fn confirm(&self) -> AcceptConfirm {
        self.message(AcceptKind::Confirm)
    }

    fn message(&self, kind: AcceptKind) -> AcceptConfirm {
        answer_from(&*self.device, kind, self.dmb.token(), self.size)
    }
}

/// ACCEPT or CONFIRM at first contact of a peer with this device and this buffer.
pub(crate) fn answer_from(
    device: &dyn Direct,
    kind: AcceptKind,
    dmb: DmbToken,
    size: SizeCode,
) -> AcceptConfirm {
    let mut first_contact = FirstContact::new(Release::V2_1, OsType::LINUX, HostName::BLANK);
    first_contact.features = FeatureMask::EMULATED_ISM;
    AcceptConfirm {
        kind,
        terms: Terms::V2 {
            eid: DEFAULT_SEID,
            first_contact: Some(first_contact),
        },
        body: Body::D(DirectEnd {
            gid: device.gid(),
            chid: device.chid(),
            dmb,
            dmbe_index: 0,
            size,
            group: GroupId([0, 0, 1, 0]),
        }),
    }
}

/// The PROPOSAL of a client with this device.
///
/// # Panics
///
/// Never: such a client has something to offer.
pub fn proposal_from(device: &dyn Direct) -> Vec<u8> {
    let device = DirectDevice::new(DeviceIndex(0), device.gid(), device.chid());
    let offer = ClientProposal::new(&HandshakeConfig::new(vec![device]), &TcpPath::default());
    offer.unwrap().bytes().to_vec()
}
