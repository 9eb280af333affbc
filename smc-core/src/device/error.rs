//! Errors of devices, and of writes to a peer's buffer.

use std::borrow::Cow;
use std::io;
use std::path::Path;

use rustix::io::Errno;
use smc_ipc::RuntimeDirError;
use smc_wire::types::Gid;

use crate::error::{Limit, OsError};
use crate::mem::MemoryError;

/// Why an operation of a device failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// A limit of the device is reached, such as that on registered buffers. `decline_code` has
    /// the code of the DECLINE.
    #[error("no buffer left on the device")]
    Exhausted,
    /// Not enough memory for a buffer of this size; a smaller one may do.
    #[error("not enough memory for the buffer")]
    NoMemory,
    /// No device with this GID is on the fabric, or it refuses this device.
    #[error("device {peer} cannot be reached: {why}")]
    Unreachable {
        /// The requested device.
        peer: Gid,
        /// The obstacle.
        why: &'static str,
    },
    /// The peer's device went away.
    #[error("peer device is gone")]
    PeerGone,
    /// The peer may not be served, by configuration or by its identity.
    #[error("not permitted: {0}")]
    NotPermitted(Cow<'static, str>),
    /// The device itself can no longer work.
    #[error("device is gone: {0}")]
    Gone(&'static str),
    /// An argument is invalid for this device.
    #[error("invalid argument: {0}")]
    Invalid(&'static str),
    /// The peer broke the rules between devices.
    #[error("peer device misbehaved: {0}")]
    PeerMisbehaved(&'static str),
    /// The runtime directory cannot be used, so that no peer finds the device.
    #[error(transparent)]
    RuntimeDir(#[from] RuntimeDirError),
    /// The operating system refused a step.
    #[error(transparent)]
    Os(#[from] OsError),
    /// A limit does not allow so much memory; with a smaller buffer it may.
    #[error("{needed} bytes are needed and {left} are left: {limit}")]
    OverLimit {
        /// The needed memory in bytes. Before a handshake commits to buffers it is the local buffer
        /// and twice the peer's, as a device may also charge its mapping of the peer's buffer.
        needed: usize,
        /// The rest of the limit in bytes.
        left: usize,
        /// The limit.
        limit: Limit,
    },
}

impl DeviceError {
    /// For a failed attach: whether the peer's device is gone, or has no such buffer (any more), so
    /// that a retry is useless.
    #[doc(hidden)]
    pub fn is_peer_gone(&self) -> bool {
        matches!(
            self,
            Self::PeerGone | Self::Invalid(_) | Self::PeerMisbehaved(_)
        )
    }

    /// An operating system error with the step that failed.
    #[must_use]
    pub fn os(operation: &'static str, error: &io::Error) -> Self {
        Self::Os(OsError::new(operation, error))
    }

    /// An operating system error with the step that failed and its path.
    #[must_use]
    pub fn os_at(operation: &'static str, path: impl AsRef<Path>, error: &io::Error) -> Self {
        Self::Os(OsError::new(operation, error).at(path))
    }

    /// Whether it is a lack of memory, so that a smaller buffer may do.
    #[must_use]
    pub fn is_lack_of_memory(&self) -> bool {
        match self {
            Self::NoMemory | Self::OverLimit { .. } => true,
            Self::Os(error) => matches!(
                error.errno(),
                Some(Errno::NOMEM | Errno::NOSPC | Errno::FBIG)
            ),
            _ => false,
        }
    }
}

impl From<DeviceError> for io::Error {
    /// An error of the system keeps its kind; others get the closest one. The cause stays as
    /// source.
    fn from(error: DeviceError) -> Self {
        let kind = match &error {
            DeviceError::Os(error) => error.kind(),
            DeviceError::RuntimeDir(error) => error.kind(),
            DeviceError::NotPermitted(_) => io::ErrorKind::PermissionDenied,
            DeviceError::NoMemory | DeviceError::OverLimit { .. } => io::ErrorKind::OutOfMemory,
            DeviceError::Invalid(_) => io::ErrorKind::InvalidInput,
            DeviceError::PeerMisbehaved(_) => io::ErrorKind::InvalidData,
            DeviceError::Gone(_) | DeviceError::PeerGone => io::ErrorKind::ConnectionAborted,
            DeviceError::Unreachable { .. } | DeviceError::Exhausted => io::ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

impl From<MemoryError> for DeviceError {
    fn from(error: MemoryError) -> Self {
        match error {
            MemoryError::Unsafe(why) => Self::PeerMisbehaved(why),
            MemoryError::Os { what, error } => Self::os(what, &error),
        }
    }
}

/// Why a write or a signal was not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// No capacity now; try again later. A connection is aborted if the device accepts nothing from
    /// it for 20 seconds.
    #[error("device is busy")]
    WouldBlock,
    /// The token names no buffer that this process may write.
    #[error("unknown buffer token")]
    UnknownToken,
    /// The write does not fit the buffer.
    #[error("write passes the end of the buffer")]
    OutOfBounds,
    /// The peer's device went away.
    #[error("peer device is gone")]
    PeerGone,
    /// The device failed. Boxed, so that the result of a write stays small.
    #[error(transparent)]
    Device(Box<DeviceError>),
}

impl From<DeviceError> for SubmitError {
    #[cold]
    fn from(error: DeviceError) -> Self {
        Self::Device(Box::new(error))
    }
}
