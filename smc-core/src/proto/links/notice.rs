//! Events in a link group, for logs.

use smc_wire::llc::{DeleteLinkReason, MessageType};
use smc_wire::types::LinkNumber;

use super::{LinkGroup, LinkGroupOutput, LinkId};
use crate::device::LinkFailure;
use crate::proto::table::InvalidTransition;

/// An event in a link group, for logs ([`LinkGroupOutput::Notice`]).
///
/// A peer can cause any number of those about messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// Connections can use a link from now on.
    LinkUp(LinkId),
    /// Connections leave a link, or end with it.
    LinkDown {
        /// The link.
        link: LinkId,
        /// Why.
        cause: LinkDownCause,
    },
    /// A link was not added; the group stays unchanged.
    NotAdded {
        /// The number that it would have had; 0 before there is one.
        number: LinkNumber,
        /// Why.
        why: NotAdded,
    },
    /// A message was dropped.
    Dropped {
        /// Its type, if there is such a type.
        kind: Option<MessageType>,
        /// Why.
        why: DropReason,
    },
    /// The peer has not answered this message in time.
    Unanswered(MessageType),
}

/// Why a link is no longer used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkDownCause {
    /// It failed.
    #[error(transparent)]
    Failed(LinkFailure),
    /// The peer does not answer TEST LINK.
    #[error("peer does not answer TEST LINK")]
    Silent,
    /// The peer deleted it.
    #[error("peer deleted the link: {0}")]
    Deleted(DeleteLinkReason),
    /// It shares its ports with others, and two links without a common port exist now.
    #[error("asymmetric link is no longer needed")]
    Unneeded,
}

/// Why a link was not added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdded {
    /// There is no port for it at one of the ends, or the limit of links is reached.
    #[error("no port for another link, or limit of links")]
    NoPort,
    /// The client rejected it.
    #[error("client rejected the link")]
    Rejected,
    /// The peer deleted a link meanwhile.
    #[error("peer deleted a link meanwhile")]
    Deleted,
    /// The local device failed.
    #[error("local device failed")]
    Device,
    /// The new link failed, or the one over which it was arranged.
    #[error("link failed")]
    LinkDown,
    /// The peer or the local device took too long.
    #[error("timed out")]
    TimedOut,
    /// The peer violated the rules of the exchange.
    #[error("peer violated the rules of the exchange")]
    Violation,
}

impl NotAdded {
    /// Whether it is no failure: a host with one port takes no second link to the same port of its
    /// peer.
    #[must_use]
    pub const fn is_expected(self) -> bool {
        matches!(self, Self::NoPort | Self::Rejected)
    }
}

impl From<InvalidTransition> for NotAdded {
    fn from(_: InvalidTransition) -> Self {
        Self::Violation
    }
}

/// Why a message was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum DropReason {
    /// It cannot be parsed.
    #[error("malformed")]
    Malformed,
    /// It is of the other version, or of no known type.
    #[error("other version or unknown type")]
    Unknown,
    /// The link is not in use, as after its failure.
    #[error("link is not in use")]
    LinkNotInUse,
    /// No flow waits for it.
    #[error("unexpected")]
    Unexpected,
    /// Another request waits already.
    #[error("another request waits")]
    Busy,
}

impl LinkGroup {
    pub(super) fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(LinkGroupOutput::Notice(notice));
    }

    pub(super) fn dropped(&mut self, kind: MessageType, why: DropReason) {
        let kind = Some(kind);
        self.notice(Notice::Dropped { kind, why });
    }
}
