//! Why a stream is TCP: code, side and cause.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use smc_ipc::error::clause;
use smc_wire::types::DeclineCode;

use super::{Limit, OsError, RuntimeDirError};
use crate::device::DeviceError;
use crate::proto::group::NoGroup;
use crate::proto::handshake::{DeclineCause, PEER_DECLINED};
use crate::proto::links::{FirstLinkError, RkeyError, RtokenError};

/// Why a stream stays TCP: the codes that `smcss` shows, and the cause.
///
/// `Display` gives smcss's form, `<local>` or `<local>/<peer>` in hex, and the cause.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FallbackReason {
    /// The local reason; [`DeclineCode::PEERDECL`] when the peer declined.
    pub local: DeclineCode,
    /// The peer's diagnosis, when it declined.
    pub peer: Option<DeclineCode>,
    /// The cause. It is never sent: the peer gets the code alone.
    pub cause: FallbackCause,
}

impl FallbackReason {
    /// A local reason without a further cause.
    #[must_use]
    pub const fn local(code: DeclineCode) -> Self {
        Self::because(code, FallbackCause::Code(code))
    }

    /// A local reason and its cause.
    #[must_use]
    pub const fn because(code: DeclineCode, cause: FallbackCause) -> Self {
        Self {
            local: code,
            peer: None,
            cause,
        }
    }

    /// The peer declined with this diagnosis.
    #[must_use]
    pub const fn peer_declined(diagnosis: DeclineCode) -> Self {
        Self {
            local: PEER_DECLINED,
            peer: Some(diagnosis),
            cause: FallbackCause::PeerDeclined(diagnosis),
        }
    }
}

impl From<DeclineCode> for FallbackReason {
    fn from(code: DeclineCode) -> Self {
        Self::local(code)
    }
}

impl From<FallbackCause> for FallbackReason {
    /// Uses the code of a cause outside of a handshake.
    fn from(cause: FallbackCause) -> Self {
        DeclineCause::NoHandshake(cause).into()
    }
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.local.0)?;
        if let Some(peer) = self.peer {
            write!(f, "/{:#010x}", peer.0)?;
        }
        let cause = self.cause.to_string();
        match cause.is_empty() {
            true => Ok(()),
            false => write!(f, " {cause}"),
        }
    }
}

/// The cause of a fallback to TCP.
///
/// `Display` is one clause in lower case, with error number, path, user and limit as far as they
/// apply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FallbackCause {
    /// A rule of the handshake with a code of its own.
    #[error("{}", described(.0))]
    Code(DeclineCode),
    /// The peer declined with this diagnosis.
    #[error("peer declined{}", after_colon(described(.0)))]
    PeerDeclined(DeclineCode),
    /// `Policy::Never` applies to the address.
    #[error("policy is to use TCP")]
    Policy,
    /// The endpoint has no negotiation (`Builder::negotiation`).
    #[error("endpoint has no negotiation to find out whether peers support SMC")]
    NoNegotiation,
    /// The default endpoint of the process could not be made with a device.
    #[error("default endpoint has no device: {0}")]
    NoDefaultDevice(Arc<super::Error>),
    /// The endpoint has no working device.
    #[error("endpoint has no device that works")]
    NoDevice,
    /// The endpoint has only devices for peers of its own host, and the peer is on another host.
    #[error("endpoint has no device for peers of other hosts")]
    OtherHost,
    /// The ends have no EID in common.
    #[error("no EID in common")]
    NoCommonEid,
    /// No SMC listener is announced at the address: a plain TCP server.
    #[error("no SMC listener is announced at this address{}", listed(.searched))]
    NotAnnounced {
        /// The searched runtime directories; none where listeners are found otherwise.
        searched: Arc<[PathBuf]>,
    },
    /// The peer's SYN or SYN-ACK did not have the SMC option.
    #[error("peer does not support SMC: no option in its SYN")]
    NoSynOption,
    /// Listener: there is no offer for this connection: a plain TCP client, or one that has
    /// withdrawn its offer before the listener accepted the connection.
    #[error("client made no offer for this connection, or withdrew it")]
    NotOffered,
    /// The listener has not answered within this time.
    #[error("listener has not answered within {within:?}")]
    NoAnswer {
        /// The time without an answer.
        within: Duration,
    },
    /// Backoff: the listener has not answered an earlier connection, and gets no offers for a
    /// short time.
    #[error("listener has not answered lately")]
    BackOff,
    /// The server has sent data instead of an answer: another server has got the connection.
    #[error("peer does not support SMC: data instead of an answer")]
    PlainServer,
    /// The listener has ended before it answered.
    #[error("listener has ended before it answered")]
    ListenerGone,
    /// The listener has refused the offer.
    #[error("listener refused the offer: {0}")]
    Refused(Refusal),
    /// Listener: the client has withdrawn its offer after the connection was accepted, as there was
    /// no answer in time.
    #[error("client has withdrawn its offer")]
    Withdrawn,
    /// Processes of this user are not permitted.
    #[error("user {uid} is not allowed")]
    User {
        /// Effective user of the other process.
        uid: u32,
    },
    /// The listening socket is not known to belong to the user whose process announces it.
    #[error("listening socket {}", announced_by(*.uid, *.owner))]
    NotOwner {
        /// Effective user of the process that announces it.
        uid: u32,
        /// The owner of the socket, where the kernel reports it.
        owner: Option<u32>,
    },
    /// A limit is reached.
    #[error("too many: {0}")]
    Full(Limit),
    /// A runtime directory cannot be used.
    #[error(transparent)]
    Directory(#[from] RuntimeDirError),
    /// The address is not proven to reach the listener, which is in another network namespace or
    /// belongs to another user.
    #[error("address is not proven to lead to the listener")]
    NotProven,
    /// The operating system has refused a step of the negotiation.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A device has failed.
    #[error("{step}: {error}")]
    Device {
        /// The step that failed.
        step: SetupStep,
        /// Why.
        error: DeviceError,
    },
    /// A step has taken too long.
    #[error("{0}: timed out")]
    TimedOut(SetupStep),
    /// The link group cannot take the connection.
    #[error(transparent)]
    NoGroup(NoGroup),
    /// The link group was terminated during the handshake.
    #[error("link group was terminated")]
    GroupTerminated,
    /// SMC-R: the peer does not know the keys of the local receive buffer.
    #[error(transparent)]
    Rkey(RkeyError),
    /// SMC-R: the peer's receive buffer cannot be used.
    #[error(transparent)]
    Rtoken(RtokenError),
    /// SMC-R: the first link of the group was not confirmed.
    #[error(transparent)]
    ConfirmLink(FirstLinkError),
}

impl FallbackCause {
    /// No listener is announced, without a search in directories.
    #[must_use]
    pub fn not_announced() -> Self {
        let searched = Arc::default();
        Self::NotAnnounced { searched }
    }
}

/// The description of a code, as a clause.
fn described(code: &DeclineCode) -> String {
    code.description().map(clause).unwrap_or_default()
}

fn after_colon(text: String) -> String {
    match text.is_empty() {
        true => text,
        false => format!(": {text}"),
    }
}

/// Where listeners were searched for.
fn listed(searched: &[PathBuf]) -> String {
    let paths: Vec<_> = searched
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    match paths.is_empty() {
        true => String::new(),
        false => format!(" in {}", paths.join(", ")),
    }
}

fn announced_by(uid: u32, owner: Option<u32>) -> String {
    match owner {
        Some(owner) => format!("belongs to user {owner} and is announced by user {uid}"),
        None => format!("is announced by user {uid}, and its owner is not known"),
    }
}

/// Why a listener has refused an offer, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No reason was given.
    #[error("no reason given")]
    Unknown,
    /// The listener's policy for this client is TCP.
    #[error("policy is to use TCP")]
    Policy,
    /// This user is not permitted.
    #[error("user {uid} is not allowed")]
    User {
        /// Effective user of this process.
        uid: u32,
    },
    /// The listener has its maximum of clients, or of handshakes.
    #[error("listener has its maximum of clients")]
    Full,
    /// The listener has no descriptor left.
    #[error("no descriptor left")]
    Descriptors,
    /// The connection is not the one that was announced.
    #[error("connection is not the one that was announced")]
    Identity,
}

/// A step of setting up an SMC connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetupStep {
    /// Reaching the peer's device.
    Reach,
    /// Joining or creating a link group.
    Enter,
    /// Registering the receive buffer.
    Register,
    /// Mapping the peer's receive buffer.
    Attach,
    /// SMC-R: making a queue pair.
    OpenLink,
    /// SMC-R: announcing the keys of the receive buffer.
    ConfirmRkey,
    /// SMC-R: storing the keys of the peer's receive buffer.
    BindPeer,
    /// SMC-R: connecting the queue pair.
    ConnectLink,
    /// SMC-R: the CONFIRM LINK exchange.
    ConfirmLink,
}

impl fmt::Display for SetupStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reach => "reach the peer's device",
            Self::Enter => "enter the link group",
            Self::Register => "register the receive buffer",
            Self::Attach => "map the peer's receive buffer",
            Self::OpenLink => "make the queue pair",
            Self::ConfirmRkey => "announce the rkey",
            Self::BindPeer => "store the peer's rkey",
            Self::ConnectLink => "connect the queue pair",
            Self::ConfirmLink => "confirm the link",
        })
    }
}

#[cfg(test)]
mod tests;
