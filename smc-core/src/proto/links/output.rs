//! Actions of a link group's caller, and identifiers.

use smc_wire::types::{Rkey, RmbAddr};

use super::{LinkId, Notice, RmbId};
use crate::device::{LinkAddress, RdmaAddress, Route};
use crate::proto::group::{DeviceIndex, GroupEndCause, GroupLinks};

/// Actions, to be applied in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkGroupOutput {
    /// Post this message. When it is completed, call
    /// [`handle_completed`](super::LinkGroup::handle_completed).
    Send {
        /// On this link.
        link: LinkId,
        /// The message, 44 bytes or, with a v2 peer, more.
        message: Vec<u8>,
        /// Its tag.
        tag: OpTag,
    },
    /// Create a queue pair; answer with [`handle_opened`](super::LinkGroup::handle_opened).
    Open {
        /// For this link.
        link: LinkId,
        /// On this device.
        device: DeviceIndex,
        /// At this address.
        address: RdmaAddress,
    },
    /// Connect the queue pair; answer with
    /// [`handle_connected`](super::LinkGroup::handle_connected).
    Connect {
        /// Of this link.
        link: LinkId,
        /// To the peer's.
        peer: LinkAddress,
        /// Over this route.
        route: Route,
    },
    /// Register these RMBs with a device; answer with
    /// [`handle_mapped`](super::LinkGroup::handle_mapped). RMBs that are gone meanwhile are left
    /// out of the answer.
    Map {
        /// The device.
        device: DeviceIndex,
        /// The RMBs, never none.
        rmbs: Vec<RmbId>,
    },
    /// The registry has to know this of the links
    /// ([`Registry::set_links`](crate::proto::group::Registry::set_links)). New connections use the
    /// active links.
    Links(GroupLinks),
    /// Send nothing on a link any more, and destroy its queue pair once the messages that it has
    /// received are handled: the peer knows that they arrived. Then call
    /// [`handle_stopped`](super::LinkGroup::handle_stopped).
    Stop(LinkId),
    /// Bind all connections of a link to another one and send the rest of their data there
    /// (failover), then call [`handle_moved`](super::LinkGroup::handle_moved).
    Move {
        /// From here.
        from: LinkId,
        /// To there.
        to: LinkId,
    },
    /// Destroy the queue pair; the identifier of the link becomes invalid. If the link is being
    /// created or connected, that is still answered, with any result: until then no other link is
    /// created.
    Close(LinkId),
    /// The outcome of [`confirm_link`](super::LinkGroup::confirm_link).
    FirstLink(Result<(), FirstLinkError>),
    /// The outcome of [`confirm_rkey`](super::LinkGroup::confirm_rkey). In every case the RMB still
    /// has to be [deleted](super::LinkGroup::delete_rkey).
    RkeyConfirmed {
        /// The RMB.
        rmb: RmbId,
        /// Whether the peer knows it.
        result: Result<(), RkeyError>,
    },
    /// The outcome of [`delete_rkey`](super::LinkGroup::delete_rkey). If the answer comes later, it
    /// is reported again.
    RkeyDeleted {
        /// The RMB.
        rmb: RmbId,
        /// Whether the peer has answered, and so writes no more. If not, the memory should not be
        /// reused while the links exist.
        is_answered: bool,
    },
    /// The links are lost or deleted: end the group in the registry
    /// ([`Registry::terminate`](crate::proto::group::Registry::terminate)), which ends all
    /// connections.
    Terminate(GroupEndCause),
    /// The link group is removed. All links have been closed; nothing follows.
    Ended,
    /// For logs: nothing has to be done.
    Notice(Notice),
}

/// Identifies a posted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OpTag(pub u64);

/// Why the first link was not confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FirstLinkError {
    /// The peer sent nothing in time.
    #[error("CONFIRM LINK did not come in time")]
    TimedOut,
    /// The peer requires eyecatchers in RMBs, which are no longer written.
    #[error("peer requires eyecatchers in its buffers")]
    Eyecatchers,
    /// The ends have agreed on authentication, and the peer has sent no share of the key, or has
    /// sent or received other messages of the handshake than this side: another process or host has
    /// changed them.
    #[error("CONFIRM LINK is not that of a peer with the same handshake messages")]
    NotAuthentic,
    /// The link failed, or the group was ended.
    #[error("link went down")]
    LinkDown,
}

/// Why an RMB was not announced to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RkeyError {
    /// It did not answer in time.
    #[error("peer did not confirm the rkey in time")]
    TimedOut,
    /// The peer refused it, for lack of space.
    #[error("peer refused the rkey")]
    Refused,
    /// Other requests came first for too long.
    #[error("rkey could not be announced in time")]
    NoTurn,
    /// There is no key for the link of the handshake, or that link has failed.
    #[error("link of the handshake has failed, or has no key for the RMB")]
    NoKey,
    /// Too many deletions of keys are unanswered, or wait.
    #[error("too many deletions of rkeys are unanswered or wait")]
    Undeleted,
    /// The link group has ended.
    #[error("link group has ended")]
    Ended,
}

/// A key of a local RMB with one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmbKey {
    /// The device it is registered with.
    pub device: DeviceIndex,
    /// The key.
    pub rkey: Rkey,
    /// The address of its first byte.
    pub addr: RmbAddr,
}

/// A local address at which another link could be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortCandidate {
    /// The device.
    pub device: DeviceIndex,
    /// The address, of an active port.
    pub address: RdmaAddress,
}
