//! One link: a queue pair of ours that is connected with one of the peer's.

use std::fmt;
use std::time::Instant;

use smc_wire::types::LinkNumber;

use crate::device::LinkAddress;
use crate::proto::group::DeviceIndex;
use crate::proto::table::transitions;

/// Names a link within its group; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(clippy::exhaustive_structs, reason = "a plain number")]
pub struct LinkId(pub u32);

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

transitions! {
    /// States of a link (docs/spec/link-groups.md#link-states).
    #[non_exhaustive]
    pub enum LinkState {
        /// Nothing is there.
        Unused = "UNUSED",
        /// The queue pair is being made, connected and confirmed.
        Activating = "ACTIVATING",
        /// CONFIRM LINK was exchanged: it carries connections.
        Active = "ACTIVE",
        /// It is on its way out.
        Inactive = "INACTIVE",
    }

    /// A queue pair is wanted.
    open(Unused => Activating);
    /// CONFIRM LINK went both ways.
    confirm(Activating => Active);
    /// It failed, or it is to be deleted.
    deactivate(Activating | Active => Inactive);
    /// The queue pair is destroyed.
    clear(Activating | Active | Inactive => Unused);
}

impl LinkState {
    /// Whether messages on it count.
    #[must_use]
    pub const fn is_usable(self) -> bool {
        matches!(self, Self::Activating | Self::Active)
    }
}

/// A link as the shell and tools see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkInfo {
    /// Its name in our group.
    pub id: LinkId,
    /// Its number, which both sides use; 0 until the server has told it.
    pub number: LinkNumber,
    /// Where it is in its life.
    pub state: LinkState,
    /// Our device.
    pub device: DeviceIndex,
    /// Our end, once the queue pair is there.
    pub local: Option<LinkAddress>,
    /// The peer's end, once we know it.
    pub peer: Option<LinkAddress>,
    /// It shares a port with the other link, hence gets no new connections.
    pub is_asymmetric: bool,
}

/// What the group knows of a link.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) info: LinkInfo,
    /// Messages can be posted on it, and what comes counts.
    pub(super) is_connected: bool,
    /// When the last message came.
    pub(super) heard: Instant,
    /// Until when TEST LINK has to be answered.
    pub(super) tested: Option<Instant>,
    /// Inactive: until when its connections may take to leave; none when they have left.
    pub(super) leaving: Option<Instant>,
    /// Inactive: a DELETE LINK about it is under way or to be sent.
    pub(super) is_named: bool,
}

impl Link {
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
            heard: now,
            tested: None,
            leaving: None,
            is_named: false,
        }
    }

    pub(super) fn is_active(&self) -> bool {
        self.info.state == LinkState::Active
    }
}

/// What the links of a group have in common (docs/spec/link-groups.md#types).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum GroupType {
    /// No active link.
    None,
    /// One link.
    Single,
    /// Two links that share no port.
    Symmetric,
    /// Two links that share a port of ours.
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
