use smc_wire::size::SizeCode;
use smc_wire::types::{
    AlertToken, DmbToken, Gid, Mac, Qpn, Release, Rkey, RmbAddr, RoceGid, Version,
};

use crate::device::{DeviceError, LinkAddress, RdmaAddress, Route};
use crate::proto::group::{
    DeviceIndex, GroupId, GroupKey, GroupTerms, Intent, Member, NoGroup, Terminated,
};

/// Work that takes time.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Work {
    /// Ask the device whether it reaches the peer ([`Direct::reach`](crate::device::Direct)), and
    /// check that the peer's device belongs to the process at the other end of the handshake, where
    /// both processes are known. Nothing is given to the peer's device before. Answer:
    /// [`WorkDone::Reached`].
    Reach {
        /// Our device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
    /// Get a seat in a link group ([`Registry::enter`](crate::proto::group::Registry::enter)).
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
        /// Our device.
        device: DeviceIndex,
        /// Who may write.
        peer: Gid,
        /// How large it has to be.
        size: SizeCode,
        /// The longest buffer that the peer has for us. Its pages are charged to the process that
        /// writes them, so there has to be memory for both.
        peer_size: SizeCode,
    },
    /// Map the peer's buffer ([`Nocopy::attach`](crate::device::Nocopy)). Answer:
    /// [`WorkDone::Attached`].
    Attach {
        /// Our device.
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
    /// SMC-R, reuse: tell the peer the keys of the RMB just prepared (CONFIRM RKEY). Answer:
    /// [`WorkDone::RkeyConfirmed`].
    ConfirmRkey {
        /// The group.
        group: GroupId,
    },
    /// SMC-R: enter the peer's RMB in the group's table. Answer: [`WorkDone::PeerBound`].
    BindPeer {
        /// The group.
        group: GroupId,
        /// The peer's RMB.
        rmb: PeerRmb,
    },
    /// SMC-R, first contact: connect the queue pair
    /// ([`PendingLink::connect`](crate::device::PendingLink)). Answer: [`WorkDone::LinkConnected`].
    ConnectLink {
        /// The new group.
        group: GroupId,
        /// The peer's end.
        peer: LinkAddress,
        /// Whether a router stands between.
        route: Route,
        /// What the group has to keep to.
        terms: LinkTerms,
    },
    /// SMC-R, first contact: the CONFIRM LINK exchange over the new link, with its own time-out.
    /// Answer: [`WorkDone::LinkConfirmed`].
    ConfirmLink {
        /// The new group.
        group: GroupId,
    },
    /// Open the new link group to others
    /// ([`Registry::establish`](crate::proto::group::Registry::establish)). Answer:
    /// [`WorkDone::Opened`].
    Open {
        /// The group.
        group: GroupId,
        /// What was agreed.
        terms: GroupTerms,
    },
}

/// What came of [`Work`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WorkDone {
    /// Of [`Work::Reach`].
    Reached(Result<(), DeviceError>),
    /// Of [`Work::Enter`].
    Entered(Result<Member, NoGroup>),
    /// Of [`Work::Register`]: the token of the buffer.
    Registered(Result<DmbToken, DeviceError>),
    /// Of [`Work::Attach`]: the length of the mapped buffer in bytes.
    Attached(Result<usize, DeviceError>),
    /// Of [`Work::OpenLink`]: our end.
    LinkOpened(Result<LinkAddress, DeviceError>),
    /// Of [`Work::PrepareRmb`].
    RmbPrepared(Result<LocalRmb, RmbError>),
    /// Of [`Work::ConfirmRkey`].
    RkeyConfirmed(Result<(), RkeyFailure>),
    /// Of [`Work::BindPeer`].
    PeerBound(Result<(), TableFull>),
    /// Of [`Work::ConnectLink`].
    LinkConnected(Result<(), DeviceError>),
    /// Of [`Work::ConfirmLink`].
    LinkConfirmed(Result<(), ConfirmFailure>),
    /// Of [`Work::Open`].
    Opened(Result<(), Terminated>),
}

/// Which link of a group a connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
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

/// Our receive buffer of one SMC-R connection, and the link that the connection uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "what one CLC message says")]
pub struct LocalRmb {
    /// The device of the link.
    pub device: DeviceIndex,
    /// Our end of the link.
    pub link: LinkAddress,
    /// GroupKey of the RMB on this link.
    pub rkey: Rkey,
    /// Address of the RMB on this link.
    pub addr: RmbAddr,
    /// Names the connection in messages to us.
    pub token: AlertToken,
    /// Size of the element, which may be less than was asked for.
    pub size: SizeCode,
    /// Number of the element in the RMB, from 1.
    pub index: u8,
}

/// The peer's receive buffer of one SMC-R connection: one element of an RMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "what one CLC message says")]
pub struct PeerRmb {
    /// GroupKey of the RMB on the connection's link.
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

/// What was negotiated for the links of a new group (docs/spec/handshake.md#negotiation).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_structs, reason = "what v2.1 negotiates")]
pub struct LinkTerms {
    /// Version, which decides on the dialect of LLC messages.
    pub version: Version,
    /// Release within version 2; v2.0 in version 1.
    pub release: Release,
    /// Connections that the group may have.
    pub max_conns: u8,
    /// Regular links that the group may have.
    pub max_links: u8,
}

impl LinkTerms {
    /// What holds where nothing is negotiated: version 1, and release v2.0.
    #[must_use]
    pub const fn fixed(version: Version) -> Self {
        Self {
            version,
            release: Release::V2_0,
            max_conns: 255,
            max_links: 2,
        }
    }

    /// Connections and links as first-contact parts state them; before v2.1 they do not.
    pub(super) fn stated(&self) -> (u8, u8) {
        if self.release >= Release::V2_1 {
            (self.max_conns, self.max_links)
        } else {
            (0, 0)
        }
    }
}

/// Why there is no receive buffer for a connection.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RmbError {
    /// The group has no active link, or not the one that the server has named.
    #[error("link group has no such active link")]
    NoLink,
    /// The device could not register the memory.
    #[error(transparent)]
    Device(#[from] DeviceError),
}

/// Why the peer does not know the keys of our RMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RkeyFailure {
    /// It did not answer in time.
    #[error("peer did not confirm the rkey in time")]
    TimedOut,
    /// It does not take it.
    #[error("peer refused the rkey")]
    Refused,
    /// No link is left to tell it over.
    #[error("link went down")]
    LinkDown,
}

/// The peer has as many RMBs as the group's table has places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("no place for another buffer of the peer")]
#[non_exhaustive]
pub struct TableFull;

impl TableFull {
    /// The error.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

/// Why the first link of a group was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfirmFailure {
    /// Nothing came in time.
    #[error("CONFIRM LINK did not come in time")]
    TimedOut,
    /// The peer wants eyecatchers in buffers, which are no longer written.
    #[error("peer wants eyecatchers in its buffers")]
    Eyecatchers,
    /// The link went down.
    #[error("link went down")]
    LinkDown,
}
