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
use crate::proto::links::{FirstLinkError, RkeyError};

/// Why a stream stays TCP: the codes that smc-tools show, and the cause.
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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackCause {
    /// A rule of the handshake with a code of its own.
    Code(DeclineCode),
    /// The peer declined with this diagnosis.
    PeerDeclined(DeclineCode),
    /// `Policy::Never` applies to the address.
    Policy,
    /// The endpoint has no negotiation (`Builder::negotiation`).
    NoNegotiation,
    /// The endpoint has no working device.
    NoDevice,
    /// The endpoint has only devices for peers of its own host, and the peer is on another host.
    OtherHost,
    /// The ends have no EID in common.
    NoCommonEid,
    /// No SMC listener is announced at the address: a plain TCP server.
    NotAnnounced {
        /// The searched runtime directories; none where listeners are found otherwise.
        searched: Arc<[PathBuf]>,
    },
    /// The peer's SYN or SYN-ACK did not have the SMC option.
    NoSynOption,
    /// Listener: the client has made no offer for this connection: a plain TCP client.
    NotOffered,
    /// The listener has not answered within this time.
    NoAnswer {
        /// The time without an answer.
        within: Duration,
    },
    /// Back-off: the listener has not answered an earlier connection, and gets no offers for a
    /// short time.
    BackOff,
    /// The server has sent data instead of an answer: another server has got the connection.
    PlainServer,
    /// The listener has ended before it answered.
    ListenerGone,
    /// The listener has refused the offer.
    Refused(Refusal),
    /// Listener: the client has withdrawn its offer, as there was no answer in time.
    Withdrawn,
    /// Processes of this user are not permitted.
    User {
        /// Effective user of the other process.
        uid: u32,
    },
    /// The listening socket is not known to belong to the user whose process announces it.
    NotOwner {
        /// Effective user of the process that announces it.
        uid: u32,
        /// The owner of the socket, where the kernel reports it.
        owner: Option<u32>,
    },
    /// A limit is reached.
    Full(Limit),
    /// A runtime directory cannot be used.
    Directory(RuntimeDirError),
    /// The address is not proven to reach the listener, which is in another network namespace or
    /// belongs to another user.
    NotProven,
    /// The operating system has refused a step of the negotiation.
    Os(OsError),
    /// A device has failed.
    Device {
        /// The step that failed.
        step: SetupStep,
        /// Why.
        error: DeviceError,
    },
    /// A step has taken too long.
    TimedOut(SetupStep),
    /// The link group has no place for the connection.
    NoGroup(NoGroup),
    /// The link group was terminated during the handshake.
    GroupTerminated,
    /// SMC-R: the peer does not know the keys of the local receive buffer.
    Rkey(RkeyError),
    /// SMC-R: the first link of the group was not confirmed.
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

impl From<OsError> for FallbackCause {
    fn from(error: OsError) -> Self {
        Self::Os(error)
    }
}

impl From<RuntimeDirError> for FallbackCause {
    fn from(error: RuntimeDirError) -> Self {
        Self::Directory(error)
    }
}

impl fmt::Display for FallbackCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => f.write_str(&described(*code)),
            Self::PeerDeclined(code) => match described(*code) {
                text if text.is_empty() => f.write_str("peer declined"),
                text => write!(f, "peer declined: {text}"),
            },
            Self::Policy => f.write_str("policy is to use TCP"),
            Self::NoNegotiation => {
                f.write_str("endpoint has no negotiation to find out whether peers support SMC")
            }
            Self::NoDevice => f.write_str("endpoint has no device that works"),
            Self::OtherHost => f.write_str("endpoint has no device for peers of other hosts"),
            Self::NoCommonEid => f.write_str("no EID in common"),
            Self::NotAnnounced { searched } => {
                f.write_str("no SMC listener is announced at this address")?;
                for (at, path) in searched.iter().enumerate() {
                    let before = if at == 0 { " in" } else { "," };
                    write!(f, "{before} {}", path.display())?;
                }
                Ok(())
            }
            Self::NoSynOption => f.write_str("peer does not support SMC: no option in its SYN"),
            Self::NotOffered => f.write_str("client made no offer for this connection"),
            Self::NoAnswer { within } => write!(f, "listener has not answered within {within:?}"),
            Self::BackOff => f.write_str("listener has not answered lately"),
            Self::PlainServer => {
                f.write_str("peer does not support SMC: data instead of an answer")
            }
            Self::ListenerGone => f.write_str("listener has ended before it answered"),
            Self::Refused(refusal) => write!(f, "listener refused the offer: {refusal}"),
            Self::Withdrawn => f.write_str("client has withdrawn its offer"),
            Self::User { uid } => write!(f, "user {uid} is not allowed"),
            Self::NotOwner {
                uid,
                owner: Some(owner),
            } => write!(
                f,
                "listening socket belongs to user {owner} and is announced by user {uid}"
            ),
            Self::NotOwner { uid, owner: None } => write!(
                f,
                "listening socket is announced by user {uid}, and its owner is not known"
            ),
            Self::Full(limit) => write!(f, "no place left: {limit}"),
            Self::Directory(error) => error.fmt(f),
            Self::NotProven => f.write_str("address is not proven to lead to the listener"),
            Self::Os(error) => error.fmt(f),
            Self::Device { step, error } => write!(f, "{step}: {error}"),
            Self::TimedOut(step) => write!(f, "{step}: timed out"),
            Self::NoGroup(why) => why.fmt(f),
            Self::GroupTerminated => f.write_str("link group was terminated"),
            Self::Rkey(failure) => failure.fmt(f),
            Self::ConfirmLink(failure) => failure.fmt(f),
        }
    }
}

/// The description of a code, as a clause.
fn described(code: DeclineCode) -> String {
    code.description().map(clause).unwrap_or_default()
}

/// Why a listener has refused an offer, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// No reason was given.
    Unknown,
    /// The listener's policy for this client is TCP.
    Policy,
    /// This user is not permitted.
    User {
        /// Effective user of this process.
        uid: u32,
    },
    /// The listener has its maximum of clients.
    Full,
    /// The listener has no descriptor left.
    Descriptors,
    /// The connection is not the one that was announced.
    Identity,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown => f.write_str("no reason given"),
            Self::Policy => f.write_str("policy is to use TCP"),
            Self::User { uid } => write!(f, "user {uid} is not allowed"),
            Self::Full => f.write_str("no place for another client"),
            Self::Descriptors => f.write_str("no descriptor left"),
            Self::Identity => f.write_str("connection is not the one that was announced"),
        }
    }
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
