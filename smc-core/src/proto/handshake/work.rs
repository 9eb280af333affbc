//! Work that a handshake requests from the shell, and its results.

use smc_wire::size::SizeCode;
use smc_wire::types::{AlertToken, DmbToken, Gid, Mac, Qpn, Rkey, RmbAddr, RoceGid};

use crate::device::{DeviceError, LinkAddress, RdmaAddress, Route};
use crate::proto::group::{
    DeviceIndex, GroupId, GroupKey, GroupTerms, Intent, Member, NoGroup, Terminated,
};
use crate::proto::links::{FirstLinkError, LlcTerms, RkeyError, RtokenError};

/// Work that takes time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// Ask the device whether it reaches the peer ([`Direct::reach`](crate::device::Direct)), and
    /// check that the peer's device belongs to the process at the other end of the handshake, where
    /// both processes are known. Nothing is given to the peer's device before. Answer:
    /// [`WorkDone::Reached`].
    Reach {
        /// The local device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
    /// Become a member of a link group ([`Registry::enter`](crate::proto::group::Registry::enter)).
    /// Answer: [`WorkDone::Entered`].
    Enter {
        /// Which group.
        key: GroupKey,
        /// How.
        intent: Intent,
    },
    /// Register a receive buffer that the peer may write
    /// ([`Direct::register`](crate::device::Direct)). Answer: [`WorkDone::Registered`].
    Register {
        /// The local device.
        device: DeviceIndex,
        /// The device that may write.
        peer: Gid,
        /// How large it has to be.
        size: SizeCode,
        /// The longest buffer that the peer has for this side. Its pages are charged to the process
        /// that writes them, so there has to be memory for both.
        peer_size: SizeCode,
    },
    /// Map the peer's buffer ([`Nocopy::attach`](crate::device::Nocopy)). Answer:
    /// [`WorkDone::Attached`].
    Attach {
        /// The local device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
        /// The buffer.
        token: DmbToken,
    },
    /// SMC-R, first contact: make the queue pair of the group's first link
    /// ([`ProtectionDomain::open_link`](crate::device::ProtectionDomain::open_link)). Answer:
    /// [`WorkDone::LinkOpened`].
    OpenLink {
        /// The new group.
        group: GroupId,
        /// The device.
        port: DeviceIndex,
        /// Which of its addresses.
        address: RdmaAddress,
    },
    /// SMC-R: get a receive buffer (RMB) and a staging ring, register the RMB on all links of the
    /// group, and reserve an alert token. From the answer on, messages with that token have to be
    /// taken. Answer: [`WorkDone::RmbPrepared`].
    PrepareRmb {
        /// The group.
        group: GroupId,
        /// The link that the connection will use.
        link: LinkChoice,
        /// How large it has to be.
        size: SizeCode,
    },
    /// SMC-R, reuse: announce to the peer the keys of the RMB just prepared (CONFIRM RKEY). Answer:
    /// [`WorkDone::RkeyConfirmed`].
    ConfirmRkey,
    /// SMC-R: enter the peer's RMB in the table of the group. Answer: [`WorkDone::PeerBound`].
    BindPeer(PeerRmb),
    /// SMC-R, first contact: connect the queue pair
    /// ([`PendingLink::connect`](crate::device::PendingLink)). Answer: [`WorkDone::LinkConnected`].
    ConnectLink {
        /// The new group.
        group: GroupId,
        /// The peer's end.
        peer: LinkAddress,
        /// Whether packets between the ends pass a router.
        route: Route,
        /// What the group has to keep to.
        terms: LlcTerms,
    },
    /// SMC-R, first contact: the CONFIRM LINK exchange over the new link, with its own timeout.
    /// Answer: [`WorkDone::LinkConfirmed`].
    ConfirmLink {
        /// The new group.
        group: GroupId,
    },
    /// Establish the new link group: further connections may join it from then on
    /// ([`Registry::establish`](crate::proto::group::Registry::establish)). Answer:
    /// [`WorkDone::GroupEstablished`].
    EstablishGroup {
        /// The group.
        group: GroupId,
        /// The agreed values.
        terms: GroupTerms,
    },
}

/// The result of [`Work`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkDone {
    /// Of [`Work::Reach`].
    Reached(Result<(), DeviceError>),
    /// Of [`Work::Enter`].
    Entered(Result<Member, NoGroup>),
    /// Of [`Work::Register`]: the token of the buffer.
    Registered(Result<DmbToken, DeviceError>),
    /// Of [`Work::Attach`]: the length of the mapped buffer in bytes.
    Attached(Result<usize, DeviceError>),
    /// Of [`Work::OpenLink`]: the local end.
    LinkOpened(Result<LinkAddress, DeviceError>),
    /// Of [`Work::PrepareRmb`].
    RmbPrepared(Result<LocalRmb, RmbError>),
    /// Of [`Work::ConfirmRkey`].
    RkeyConfirmed(Result<(), RkeyError>),
    /// Of [`Work::BindPeer`].
    PeerBound(Result<(), RtokenError>),
    /// Of [`Work::ConnectLink`].
    LinkConnected(Result<(), DeviceError>),
    /// Of [`Work::ConfirmLink`].
    LinkConfirmed(Result<(), FirstLinkError>),
    /// Of [`Work::EstablishGroup`].
    GroupEstablished(Result<(), Terminated>),
}

/// Which link of a group a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkChoice {
    /// The one and only link of a new group.
    First,
    /// The server's choice among the active links.
    Assign,
    /// The one that the server has named in ACCEPT by the end it has of it.
    Named {
        /// The server's queue pair.
        qpn: Qpn,
        /// Its GID.
        gid: RoceGid,
        /// Its MAC, which counts in version 1 only.
        mac: Option<Mac>,
    },
}

/// The local receive buffer of one SMC-R connection, and the link that the connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalRmb {
    /// The device of the link.
    pub device: DeviceIndex,
    /// The local end of the link.
    pub link: LinkAddress,
    /// Key of the RMB on this link.
    pub rkey: Rkey,
    /// Address of the RMB on this link.
    pub addr: RmbAddr,
    /// Names the connection in messages to this side.
    pub token: AlertToken,
    /// Size of the element, which may be less than was requested.
    pub size: SizeCode,
    /// Number of the element in the RMB, from 1.
    pub index: u8,
}

/// The peer's receive buffer of one SMC-R connection: one element of an RMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerRmb {
    /// Key of the RMB on the connection's link.
    pub rkey: Rkey,
    /// Address of the RMB on the connection's link.
    pub addr: RmbAddr,
    /// Number of the element in the RMB, from 1.
    pub index: u8,
    /// Size of the element.
    pub size: SizeCode,
    /// Names the connection in messages to the peer.
    pub token: AlertToken,
}

impl PeerRmb {
    /// Where the element begins in the RMB, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        let len = u64::try_from(self.size.byte_len()).unwrap_or(u64::MAX);
        len.saturating_mul(u64::from(self.index.saturating_sub(1)))
    }
}

/// Why there is no receive buffer for a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RmbError {
    /// The group has no active link, or not the one that the server has named.
    #[error("link group has no such active link")]
    NoLink,
    /// The device could not register the memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}
