//! One link: a local queue pair connected with one of the peer.

use std::fmt;
use std::time::Instant;

use smc_wire::types::{LinkNumber, Mac, Qpn, RoceGid};

use crate::device::LinkAddress;
use crate::proto::group::DeviceIndex;
use crate::proto::table::transitions;

/// Identifies a link within its group; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

transitions! {
    /// States of a link (docs/spec/link-groups.md#link-states).
    pub enum LinkState {
        /// There is no link.
        Unused = "UNUSED",
        /// The queue pair is being created, connected and confirmed.
        Activating = "ACTIVATING",
        /// CONFIRM LINK was exchanged: the link is used by connections.
        Active = "ACTIVE",
        /// The link is being removed.
        Inactive = "INACTIVE",
    }

    /// A queue pair is requested.
    open(Unused => Activating);
    /// CONFIRM LINK was exchanged.
    confirm(Activating => Active);
    /// The link failed, or is to be deleted.
    deactivate(Activating | Active => Inactive);
    /// The queue pair is destroyed.
    clear(Activating | Active | Inactive => Unused);
}

impl LinkState {
    /// Whether messages on it are accepted.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Activating | Self::Active)
    }
}

/// A link as seen by the shell and by diagnostic tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Its local identifier in the group.
    pub id: LinkId,
    /// Its number, used by both sides; 0 until the server has stated it.
    pub number: LinkNumber,
    /// Its state.
    pub state: LinkState,
    /// The local device.
    pub device: DeviceIndex,
    /// The local end, once the queue pair exists.
    pub local: Option<LinkAddress>,
    /// The peer's end, once it is known.
    pub peer: Option<LinkAddress>,
    /// It shares a port with the other link, so it gets no new connections.
    pub is_asymmetric: bool,
}

/// Record of a link in its group.
#[derive(Clone, Debug)]
pub(super) struct LinkEntry {
    pub(super) info: LinkInfo,
    /// Messages can be posted on it, and received ones are accepted.
    pub(super) is_connected: bool,
    /// Time of the last received message.
    pub(super) last_received: Instant,
    /// Deadline for the answer to TEST LINK.
    pub(super) test_deadline: Option<Instant>,
    /// Inactive: deadline for its connections to move; none when they have moved.
    pub(super) move_deadline: Option<Instant>,
    /// Inactive: a DELETE LINK about it is in progress or pending.
    pub(super) is_delete_pending: bool,
}

impl LinkEntry {
    pub(super) const fn new(id: LinkId, device: DeviceIndex, now: Instant) -> Self {
        Self {
            info: LinkInfo {
                id,
                number: LinkNumber::NONE,
                state: LinkState::Activating,
                device,
                local: None,
                peer: None,
                is_asymmetric: false,
            },
            is_connected: false,
            last_received: now,
            test_deadline: None,
            move_deadline: None,
            is_delete_pending: false,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.info.state == LinkState::Active
    }
}

/// Relation of the links of a group (docs/spec/link-groups.md#types).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupType {
    /// No active link.
    None,
    /// One link.
    Single,
    /// Two links that share no port.
    Symmetric,
    /// Two links that share a local port.
    AsymmetricLocal,
    /// Two links that share a port of the peer.
    AsymmetricPeer,
}

impl GroupType {
    /// The name that tools show.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "NONE",
            Self::Single => "SINGLE",
            Self::Symmetric => "SYMMETRIC",
            Self::AsymmetricLocal => "ASYMMETRIC_LOCAL",
            Self::AsymmetricPeer => "ASYMMETRIC_PEER",
        }
    }

    pub(super) const fn is_asymmetric(self) -> bool {
        matches!(self, Self::AsymmetricLocal | Self::AsymmetricPeer)
    }
}

impl fmt::Display for GroupType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
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
