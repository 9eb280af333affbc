//! Link groups: what connections with one peer share, with SMC-D between the same two devices, with
//! SMC-R over the same links.
//!
//! A link group is created by the first connection to a peer ("first contact") and removed some
//! time after the last one. The [`Registry`] contains the groups of an endpoint. For each
//! connection set-up it decides whether the set-up joins a group, creates one, or waits for another
//! set-up that is creating one. No lock is held during a set-up, and no wait is unlimited:
//!
//! * A usable group is joined at once.
//! * SMC-D: if there is none, the set-up of a server creates one. A client whose server reuses a
//!   group waits for a set-up that is creating one, which may be about to open it.
//! * SMC-R, where a group uses queue pairs: the first set-up with a key becomes the creator; later
//!   ones wait for its outcome. If it succeeds, all of them join; if it fails, the next one becomes
//!   creator.
//! * If a creator takes longer than [`CREATOR_TIMEOUT`], the first waiting set-up becomes a creator
//!   too, and the others wait for that one.
//! * A server has at most [`FIRST_CONTACTS_MAX`] first contacts of SMC-R in progress with clients
//!   of one address, and at most [`ALL_FIRST_CONTACTS_MAX`] in total.
//! * So there may be several groups with one peer, also because both ends may create one at the
//!   same time.
//! * A connection counts as a member from the moment of joining, so that a limit is never exceeded.
//!
//! ```text
//!             enter          established          last member left       expired,
//!   (nothing) -----> PENDING ----------> ACTIVE ------------------> IDLE --------> (nothing)
//!                     |   |                |    <------------------      terminated
//!        creator left |   | terminated     | terminated    joined
//!                     v   |                v
//!             (nothing)   `----------> TERMINATING -----------------> (nothing)
//!                                                   last member left
//! ```
//!
//! An idle group expires after [`GroupKey::idle_lifetime`], or earlier
//! ([`GroupEndCause::Idle`], [`GroupEndCause::OutOfSync`]).
//!
//! The registry is sans-I/O like all of [`proto`](crate::proto): it returns values, and its caller
//! resumes the set-ups named in [`RegistryOutput::Ready`].

mod registry;

pub use registry::{
    ALL_FIRST_CONTACTS_MAX, CLIENT_IDLE_LIFETIME, CREATOR_TIMEOUT, FIRST_CONTACTS_MAX, GroupState,
    IDLE_LIFETIME, Registry,
};

use core::net::IpAddr;
use std::fmt;
use std::time::Duration;

use smc_wire::llc::DeleteLinkReason;
pub use smc_wire::types::GroupId;
use smc_wire::types::{
    Eid, Features, Gid, HostName, Mac, OsType, PeerId, Qpn, Release, RoceGid, Version,
};

use crate::device::{LinkAddress, LinkFailure};
use crate::proto::Role;
use crate::quota::source;

/// Index of a device in the list of an endpoint, in the order in which devices were added. That of
/// a removed device is not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceIndex(pub usize);

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Identifies the link group of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupKey {
    /// SMC-D: the local device and the peer's. The roles do not matter: connections in both
    /// directions share a group.
    Direct {
        /// The local device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
    /// SMC-R: the peer's end of a link. A group with several links has several keys
    /// ([`Registry::set_links`]).
    Rdma {
        /// The local role. Groups of the client role and of the server role are never the same.
        role: Role,
        /// Version of the handshake, 1 or 2.
        version: Version,
        /// The peer's instance (peer ID).
        peer: PeerId,
        /// The peer's GID.
        gid: RoceGid,
        /// The peer's MAC, used in version 1 only.
        mac: Option<Mac>,
        /// VLAN of the connection; 0 for a client, whose groups are distinguished by `qpn`.
        vlan: u16,
        /// Server: the client's address of the TCP connection, the only part of the key that the
        /// client cannot choose. `None` for a client, because one server may have several
        /// addresses.
        client: Option<IpAddr>,
        /// Server: whether ACCEPT and CONFIRM of further connections are authenticated, on which
        /// PROPOSAL and configuration decide, so that no client gets into a group without a key
        /// that can have one. `false` for a client, whose groups are distinguished by `qpn`.
        authenticates: bool,
        /// Client: the queue pair of the server. `None` for a server, which chooses the link
        /// itself.
        qpn: Option<Qpn>,
    },
}

impl GroupKey {
    /// The local device, if it is an SMC-D group; the links of an SMC-R group may be on several
    /// devices.
    #[must_use]
    pub const fn device(&self) -> Option<DeviceIndex> {
        match self {
            Self::Direct { device, .. } => Some(*device),
            Self::Rdma { .. } => None,
        }
    }

    /// The GID of the peer's device, if it is an SMC-D group.
    #[must_use]
    pub const fn peer(&self) -> Option<Gid> {
        match self {
            Self::Direct { peer, .. } => Some(*peer),
            Self::Rdma { .. } => None,
        }
    }

    /// The same by another link, if it is an SMC-R group.
    fn with_link(mut self, end: &LinkAddress) -> Self {
        if let Self::Rdma {
            role,
            version,
            gid,
            mac,
            qpn,
            ..
        } = &mut self
        {
            *gid = end.gid;
            *mac = (!version.is_v2()).then_some(end.mac);
            *qpn = (*role == Role::Client).then_some(end.qpn);
        }
        self
    }

    /// The source address of the client, for an SMC-R group of a server.
    fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Rdma { client, .. } => client.map(source),
            Self::Direct { .. } => None,
        }
    }

    /// Lifetime of a group without connections.
    #[must_use]
    pub const fn idle_lifetime(&self) -> Duration {
        match self {
            Self::Rdma {
                role: Role::Client, ..
            } => CLIENT_IDLE_LIFETIME,
            _ => IDLE_LIFETIME,
        }
    }
}

/// Values negotiated at first contact, valid for all connections of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GroupTerms {
    /// Version of the handshake.
    pub version: Version,
    /// Negotiated release; v2.0 in a version-1 group.
    pub release: Release,
    /// Negotiated EID; none in version 1.
    pub eid: Option<Eid>,
    /// Operating system of the peer, if it was stated.
    pub os: OsType,
    /// Name of the peer's host, blank if it was not stated.
    pub host: HostName,
    /// Most connections that a server adds to the group; none for SMC-D.
    pub max_connections: Option<u32>,
    /// Features beyond the released protocol that both sides have.
    pub vendor_features: Features,
}

/// How a set-up intends to enter a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Intent {
    /// A server: join if possible, else create; with SMC-R after set-ups that are creating one.
    JoinOrCreate,
    /// A client whose server reuses a group: it must exist.
    Join,
    /// A client whose server created a group: always a new one.
    Create,
}

/// A member of a group: a set-up, then its connection. It counts until [`Registry::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Member {
    /// In a group that another set-up created.
    Joined {
        /// The group.
        group: GroupId,
        /// The negotiated values.
        terms: GroupTerms,
    },
    /// In a new group, which becomes usable with [`Registry::establish`].
    Created(GroupId),
}

impl Member {
    /// The group.
    #[must_use]
    pub const fn group(&self) -> GroupId {
        match self {
            Self::Joined { group, .. } | Self::Created(group) => *group,
        }
    }

    /// Whether this is the first contact.
    #[must_use]
    pub const fn is_first_contact(&self) -> bool {
        matches!(self, Self::Created(_))
    }
}

/// Result of [`Registry::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnterResult {
    /// The decision.
    Now(Result<Member, NoGroup>),
    /// Another set-up is creating the group; [`RegistryOutput::Ready`] follows.
    Wait(Waiter),
}

/// Why a set-up did not become a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGroup {
    /// There is no group to join ([`Intent::Join`]): client and server are out of sync.
    #[error("no link group to join")]
    Missing,
    /// A server has [`FIRST_CONTACTS_MAX`] in progress with clients of this address, or so many in
    /// total ([`ALL_FIRST_CONTACTS_MAX`]) that this address gets no more.
    #[error("too many first contacts under way")]
    Full,
}

/// The group was terminated meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("link group was terminated")]
pub struct Terminated;

/// A set-up that waits for the creator of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waiter(u64);

/// Actions of the registry's caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryOutput {
    /// Resume this set-up.
    Ready {
        /// The set-up that waited.
        waiter: Waiter,
        /// The result.
        result: Result<Member, NoGroup>,
    },
    /// End all connections of the group, and all set-ups that are members of it. Each of them still
    /// has to leave.
    Terminate {
        /// The group.
        group: GroupId,
        /// The key for which it was created.
        key: GroupKey,
        /// Reason.
        cause: GroupEndCause,
    },
    /// The group is removed.
    Removed {
        /// The group.
        group: GroupId,
        /// The key for which it was created.
        key: GroupKey,
        /// Reason.
        cause: GroupEndCause,
    },
    /// Notify the peer's device ([`PeerEvent::Shutdown`](crate::device::PeerEvent::Shutdown)), if
    /// the fabric can, that no SMC-D group with it exists any more.
    ///
    /// The event names no group, and ends everything that the peer has with the local device.
    /// Therefore it follows the removal of the last group, also of one that was only being created,
    /// if any of them was ended by this side.
    NotifyPeer {
        /// The local device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
}

/// Why a link group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GroupEndCause {
    /// No connection used it for its whole idle lifetime, or until another group with the peer took
    /// its place, or its links were needed for another peer.
    #[error("unused, for its idle lifetime or until another group took its place")]
    Idle,
    /// Its first connection failed.
    #[error("first connection failed")]
    FirstContactFailed,
    /// The peer states that it does not have the group.
    #[error("peer does not have the group")]
    OutOfSync,
    /// The peer's device is gone.
    #[error("peer's device is gone")]
    PeerGone,
    /// The local device is gone.
    #[error("local device is gone")]
    DeviceGone,
    /// SMC-R: the last link is lost.
    #[error("last link is lost: {0}")]
    LinksLost(LinkFailure),
    /// SMC-R: the peer deleted all links.
    #[error("peer deleted all links: {0}")]
    LinksDeleted(DeleteLinkReason),
    /// The endpoint shuts down.
    #[error("endpoint shuts down")]
    Shutdown,
}

impl GroupEndCause {
    /// Whether the peer has to be notified, because it cannot detect the end.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Idle | Self::Shutdown)
    }

    /// Whether DELETE LINK for all links of an SMC-R group is orderly, and its reason.
    #[must_use]
    pub const fn delete_link(self) -> (bool, DeleteLinkReason) {
        match self {
            Self::Idle => (true, DeleteLinkReason::PROGRAM),
            Self::Shutdown => (false, DeleteLinkReason::OPERATOR),
            _ => (false, DeleteLinkReason::PROGRAM),
        }
    }
}

/// The state of the links of an SMC-R group, as far as the registry has to know it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupLinks {
    /// The peer's ends of the active links, the oldest first.
    pub ends: Vec<LinkAddress>,
    /// No further connection fits: the table of the peer's RMBs is full, or there are too many
    /// local ones.
    pub is_full: bool,
    /// The peer has not confirmed the deletion of many local RMBs, which stay registered. So the
    /// group ends with its last connection.
    pub is_unresponsive: bool,
}

/// A link group as shown by diagnostic tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkGroupInfo {
    /// Local identifier of the group (LG-ID).
    pub id: GroupId,
    /// The key for which it was created.
    pub key: GroupKey,
    /// Its state.
    pub state: GroupState,
    /// Number of connections, including set-ups.
    pub connections: usize,
    /// The negotiated values; none before the first connection is established.
    pub terms: Option<GroupTerms>,
}

#[cfg(test)]
mod tests;
