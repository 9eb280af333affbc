//! Link groups: what all connections between the same two devices share.
//!
//! A link group comes into being with the first connection to a peer ("first contact") and ends
//! some time after the last one. The [`Registry`] knows the groups of an endpoint and decides, for
//! each set-up, whether it joins a group, creates one, or waits for another set-up that is just
//! creating one. There is no lock over a set-up and no wait without an end:
//!
//! * A usable group is joined at once.
//! * SMC-D: if there is none, a server's set-up creates one. A client whose server reuses a group
//!   waits for a set-up that is creating one, which may be about to open it.
//! * SMC-R, where a group takes queue pairs: the first set-up of a key becomes the creator; those
//!   that come while it is at work wait for its outcome. Success lets all of them in, failure makes
//!   the next one creator.
//! * A creator that takes longer than [`CREATOR_PATIENCE`] is no longer waited for: the first of
//!   those that wait becomes a creator too, and the others wait for that one.
//! * A server has no more than [`MAX_FIRST_CONTACTS`] of SMC-R under way with clients of one address,
//!   and no more than [`MAX_ALL_FIRST_CONTACTS`] in all.
//! * So there may be several groups with one peer, also because both ends may create one at the
//!   same time.
//! * A connection counts from the moment of joining, so a limit is never overshot.
//!
//! ```text
//!                 enter            established
//!   (nothing) -----------> PENDING -----------> ACTIVE <------- IDLE ---> (nothing)
//!                             |                   |  ---------->   600 s
//!                             | creator left      | terminated
//!                             v                   v
//!                         (nothing)          TERMINATING ---> (nothing)
//! ```
//!
//! The registry is sans-I/O like everything in [`proto`](crate::proto): it returns values, and
//! whoever drives it wakes the set-ups named in [`Output::Ready`].

mod registry;

pub use registry::{
    CLIENT_IDLE_LIFETIME, CREATOR_PATIENCE, IDLE_LIFETIME, MAX_ALL_FIRST_CONTACTS,
    MAX_FIRST_CONTACTS, Registry,
};

use core::net::IpAddr;
use std::fmt;
use std::time::Duration;

pub use smc_wire::types::GroupId;
use smc_wire::types::{Eid, Gid, HostName, Mac, OsType, PeerId, Qpn, Release, RoceGid, Version};

use crate::proto::handshake::Role;
use crate::proto::table::transitions;
use crate::source::source;

/// Index of a device in the list an endpoint was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "a plain index")]
pub struct DeviceIndex(pub usize);

impl fmt::Display for DeviceIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What makes two connections belong to the same link group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Key {
    /// SMC-D: our device and the peer's. The roles do not matter: connections in both directions
    /// share a group.
    Direct {
        /// Our device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
    /// SMC-R: the peer's end of a link. A group with several links has several keys
    /// ([`Registry::set_keys`]).
    Rdma {
        /// Our side. Groups in which we are client and server are never the same.
        role: Role,
        /// Version of the handshake, 1 or 2.
        version: Version,
        /// The peer's instance.
        peer: PeerId,
        /// The peer's GID.
        gid: RoceGid,
        /// The peer's MAC, which counts in version 1 only.
        mac: Option<Mac>,
        /// VLAN of the connection; 0 for a client, whose groups are told apart by `qpn`.
        vlan: u16,
        /// A server's group: the client's address of the TCP connection, which is all of this that a
        /// client cannot choose. None for a client: one server may have several addresses.
        client: Option<IpAddr>,
        /// A client's group: the queue pair of the server. None for a server, which chooses the
        /// link itself.
        qpn: Option<Qpn>,
    },
}

impl Key {
    /// Our device, if it is an SMC-D group; the links of an SMC-R group may be on several.
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

    /// Where the client of a server's SMC-R group comes from.
    fn source(&self) -> Option<IpAddr> {
        match self {
            Self::Rdma { client, .. } => client.map(source),
            Self::Direct { .. } => None,
        }
    }

    /// How long a group is kept without connections.
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

transitions! {
    /// States of a link group.
    #[non_exhaustive]
    pub enum State {
        /// Its first connection is being set up; nobody else may use it.
        Pending = "PENDING",
        /// It has connections.
        Active = "ACTIVE",
        /// The last connection has left; a new one may still come.
        Idle = "IDLE",
        /// It was ended from outside; its connections are on their way out.
        Terminating = "TERMINATING",
        /// It is no more.
        Gone = "GONE",
    }

    /// The first connection is established, and with it the group.
    establish(Pending => Active);
    /// Another connection comes.
    join(Active | Idle => Active);
    /// The last connection leaves.
    empty(Pending | Terminating => Gone, Active => Idle);
    /// Nobody came for the whole lifetime of an idle group.
    expire(Idle => Gone);
    /// The peer went away, or the endpoint ends.
    terminate(Pending | Active => Terminating, Idle => Gone);
}

/// What was agreed at first contact and holds for all connections of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Terms {
    /// Version of the handshake.
    pub version: Version,
    /// Negotiated release; v2.0 in a version-1 group.
    pub release: Release,
    /// Negotiated EID; none in version 1.
    pub eid: Option<Eid>,
    /// Operating system of the peer, if it said so.
    pub os: OsType,
    /// Name of the peer's host, blank if it gave none.
    pub host: HostName,
    /// Most connections a server puts into the group; none for SMC-D.
    pub max_connections: Option<u32>,
}

impl Terms {
    /// Terms without knowledge about the peer.
    #[must_use]
    pub const fn new(version: Version, release: Release, eid: Option<Eid>) -> Self {
        Self {
            version,
            release,
            eid,
            os: OsType::NONE,
            host: HostName::BLANK,
            max_connections: None,
        }
    }

    /// Adds what the peer told about itself.
    #[must_use]
    pub const fn with_peer(mut self, os: OsType, host: HostName) -> Self {
        self.os = os;
        self.host = host;
        self
    }
}

/// How a set-up wants to get into a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Intent {
    /// A server: join if possible, else create; with SMC-R after those that are creating one.
    JoinOrCreate,
    /// A client whose server reuses a group: it must exist.
    Join,
    /// A client whose server made a new group: always a new one.
    Create,
}

/// A place in a group. It counts as a connection until [`Registry::leave`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Seat {
    /// In a group that others created.
    Joined {
        /// The group.
        group: GroupId,
        /// What holds for it.
        terms: Terms,
    },
    /// In a new group that becomes usable with [`Registry::establish`].
    Created(GroupId),
}

impl Seat {
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

/// Answer of [`Registry::enter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "there is an answer or there is none yet"
)]
pub enum Admission {
    /// Decided.
    Now(Result<Seat, NoGroup>),
    /// Another set-up is creating the group; [`Output::Ready`] follows.
    Wait(Waiter),
}

/// Why there is no seat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoGroup {
    /// There is no group to join ([`Intent::Join`]): client and server are out of sync.
    #[error("no link group to join")]
    Missing,
    /// A server has [`MAX_FIRST_CONTACTS`] under way with clients of this address, or so many with all
    /// ([`MAX_ALL_FIRST_CONTACTS`]) that this address gets no more.
    #[error("too many first contacts under way")]
    Full,
}

/// The group was terminated meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("link group was terminated")]
#[non_exhaustive]
pub struct Terminated;

/// A set-up that waits for the creator of its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Waiter(u64);

/// What there is to do after something happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output {
    /// Let this set-up go on.
    Ready {
        /// Who waited.
        waiter: Waiter,
        /// What came of it.
        seat: Result<Seat, NoGroup>,
    },
    /// End every connection of the group, and every set-up that has a seat in it. Each of them
    /// still has to leave.
    Terminate {
        /// The group.
        group: GroupId,
        /// Between which devices.
        key: Key,
        /// Why.
        cause: Cause,
    },
    /// The group is no more.
    Removed {
        /// The group.
        group: GroupId,
        /// Between which devices.
        key: Key,
        /// Why.
        cause: Cause,
    },
    /// Tell the peer's device ([`PeerEvent::Shutdown`](crate::device::PeerEvent::Shutdown)), where
    /// the fabric can, that there is no SMC-D group with it any more.
    ///
    /// The event names no group, and ends all that the peer has with our device. So it follows the
    /// last of them, be it one that was only being created, if any ended by our decision.
    TellPeer {
        /// Our device.
        device: DeviceIndex,
        /// The peer's device.
        peer: Gid,
    },
}

/// Why a link group ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// Unused for its whole idle lifetime.
    Idle,
    /// Its first connection did not come about.
    FirstContactFailed,
    /// The peer says that it does not have the group.
    OutOfSync,
    /// The peer's device went away.
    PeerGone,
    /// Our device went away.
    DeviceGone,
    /// No link of the group is left, or the peer deleted them all.
    LinksDown,
    /// The endpoint ends.
    Shutdown,
}

impl Cause {
    /// Whether the peer has to be told, because it cannot know.
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::Idle | Self::Shutdown)
    }
}

/// A link group as tools see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Our identifier of the group (LG-ID).
    pub id: GroupId,
    /// Between which devices.
    pub key: Key,
    /// Where it is in its life.
    pub state: State,
    /// Connections, set-ups included.
    pub connections: usize,
    /// What was agreed; none before the first connection is established.
    pub terms: Option<Terms>,
}

#[cfg(test)]
mod tests;
