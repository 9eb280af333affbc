//! Error types, and their mapping to [`io::Error`].

mod fallback;

pub use crate::proto::group::NoGroup;
pub use crate::proto::links::{FirstLinkError, RkeyError, RtokenError};
pub use fallback::{FallbackCause, FallbackReason, Refusal, SetupStep};
#[doc(inline)]
pub use smc_ipc::{DirectoryProblem, IoError, Limit, OsError, RuntimeDirError};

use std::borrow::Cow;
use std::io;

use smc_wire::cursor::CursorError;
use smc_wire::error::DecodeError;

use crate::device::DeviceError;

/// Why an operation failed.
///
/// Falling back to TCP is not an error: see `Stream::mode`. It becomes one only where
/// the policy requires SMC ([`Error::Declined`]).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer sent bytes that are no valid message.
    #[error("malformed message: {0}")]
    Malformed(#[from] DecodeError),
    /// The peer sent a well-formed message that it should not have sent.
    #[error("peer misbehaved: {0}")]
    PeerMisbehaved(#[from] PeerMisbehaved),
    /// SMC was required but is not possible.
    #[error("SMC required but declined: {0}")]
    Declined(FallbackReason),
    /// A device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The peer did not answer in time.
    #[error("timed out waiting for {0}")]
    TimedOut(Phase),
    /// The connection has ended.
    #[error("connection {0}")]
    Closed(CloseReason),
    /// The caller made an invalid request.
    #[error("misuse: {0}")]
    Misuse(Cow<'static, str>),
    /// The TCP connection failed.
    #[error("{0}")]
    Io(IoError),
    /// A defect of this library; please report it.
    #[error("bug: {0}")]
    Bug(&'static str),
}

/// A protocol violation of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerMisbehaved {
    /// A message of another type than the handshake expects at this point.
    #[error("unexpected message in the handshake")]
    UnexpectedMessage,
    /// ACCEPT names a device that was not offered.
    #[error("accepted with a device that was not offered")]
    SelectedUnofferedDevice,
    /// A cursor outside of the ring.
    #[error(transparent)]
    Cursor(#[from] CursorError),
    /// A producer cursor that passes the free space.
    #[error("producer cursor passes the free space")]
    PassedTheSpace,
    /// A consumer cursor that passes what was written.
    #[error("consumer cursor passes what was written")]
    PassedTheData,
    /// The PROPOSAL announces an area that it lacks.
    #[error("proposal lacks the area it announces")]
    MissingArea,
    /// The buffer described in the handshake cannot be used.
    #[error("buffer description makes no sense")]
    BadBuffer,
    /// The end of a link described in the handshake cannot be used.
    #[error("link description makes no sense")]
    BadLink,
}

/// The phase that timed out (docs/spec/handshake.md#timers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Phase {
    /// The connection, with its handshake.
    Connect,
    /// The client's PROPOSAL.
    Proposal,
    /// The server's ACCEPT.
    Accept,
    /// The client's CONFIRM.
    Confirm,
    /// A step of the set-up after the messages, such as entering a link group that another
    /// connection is creating.
    Group,
    /// A device operation.
    Device,
    /// Delivery of written data to the peer, when a stream is closed.
    Delivery,
}

impl std::fmt::Display for Phase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Connect => "the connection",
            Self::Proposal => "PROPOSAL",
            Self::Accept => "ACCEPT",
            Self::Confirm => "CONFIRM",
            Self::Group => "the link group",
            Self::Device => "the device",
            Self::Delivery => "the peer to have what was written",
        })
    }
}

/// Why a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CloseReason {
    /// The peer reset it: closed with unread data, or aborted.
    #[error("reset by peer")]
    Reset,
    /// The peer closed it in order, or shut both directions down, and reads no more data.
    #[error("closed by peer")]
    Peer,
    /// The peer's host, process or device went away, or the link group was terminated.
    #[error("aborted, peer is gone")]
    Aborted,
    /// This side closed it or shut writing down.
    #[error("was shut down for writing by this side")]
    Local,
    /// TCP ended during the handshake.
    #[error("closed by peer during the handshake")]
    DuringHandshake,
    /// The endpoint was shut down.
    #[error("ended with its endpoint")]
    Endpoint,
    /// The runtime of the endpoint has ended, or a task of the endpoint has panicked, so a waiting
    /// task would never be woken.
    #[error("ended with the runtime or a task of its endpoint")]
    Runtime,
}

impl From<io::Error> for Error {
    /// An [`Error`] inside of an [`io::Error`] is unwrapped.
    fn from(error: io::Error) -> Self {
        match error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<Self>())
        {
            Some(ours) => ours.clone(),
            None => Self::Io(error.into()),
        }
    }
}

impl From<Error> for io::Error {
    /// Maps to the kinds of TCP errors; the cause stays as source.
    ///
    /// | error | kind |
    /// |---|---|
    /// | `Malformed`, `PeerMisbehaved` | `InvalidData` |
    /// | `Declined` | `ConnectionRefused` |
    /// | `TimedOut` | `TimedOut` |
    /// | `Closed(Reset)`, `Closed(DuringHandshake)` | `ConnectionReset` |
    /// | `Closed(Aborted)`, `Closed(Endpoint)`, `Closed(Runtime)` | `ConnectionAborted` |
    /// | `Closed(Local)`, `Closed(Peer)` | `BrokenPipe` |
    /// | `Misuse` | `InvalidInput` |
    /// | `Device` of a device or peer that is gone | `ConnectionAborted` |
    /// | `Device` of an error of the system | its own |
    /// | other `Device`, `Bug` | `Other` |
    /// | `Io` | its own |
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Malformed(_) | Error::PeerMisbehaved(_) => io::ErrorKind::InvalidData,
            Error::Declined(_) => io::ErrorKind::ConnectionRefused,
            Error::TimedOut(_) => io::ErrorKind::TimedOut,
            Error::Closed(CloseReason::Reset | CloseReason::DuringHandshake) => {
                io::ErrorKind::ConnectionReset
            }
            Error::Closed(CloseReason::Aborted | CloseReason::Endpoint | CloseReason::Runtime) => {
                io::ErrorKind::ConnectionAborted
            }
            Error::Closed(CloseReason::Local | CloseReason::Peer) => io::ErrorKind::BrokenPipe,
            Error::Misuse(_) => io::ErrorKind::InvalidInput,
            Error::Device(DeviceError::Gone(_) | DeviceError::PeerGone) => {
                io::ErrorKind::ConnectionAborted
            }
            Error::Device(DeviceError::Os(inner)) => inner.kind(),
            Error::Device(_) | Error::Bug(_) => io::ErrorKind::Other,
            Error::Io(inner) => match inner.code() {
                Some(code) => return Self::from_raw_os_error(code),
                None => inner.kind(),
            },
        };
        Self::new(kind, error)
    }
}

impl Error {
    #[doc(hidden)]
    pub const fn misuse(what: &'static str) -> Self {
        Self::Misuse(Cow::Borrowed(what))
    }
}
