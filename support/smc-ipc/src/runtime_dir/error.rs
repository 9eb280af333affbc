//! Errors of runtime directories.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use crate::OsError;

/// A runtime directory that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("runtime directory {} {problem}", .path.display())]
#[non_exhaustive]
pub struct RuntimeDirError {
    /// The directory, or what is at its path.
    pub path: Arc<Path>,
    /// What is wrong with it.
    pub problem: DirectoryProblem,
}

impl RuntimeDirError {
    pub(super) fn new(path: &Path, problem: DirectoryProblem) -> Self {
        Self {
            path: path.into(),
            problem,
        }
    }

    pub(super) fn os(path: &Path, operation: &'static str, errno: Errno) -> Self {
        let error = OsError::new(operation, &errno.into());
        Self::new(path, DirectoryProblem::Os(error))
    }

    /// The kind of failure, as of an error of the system.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        match &self.problem {
            DirectoryProblem::Os(error) => error.kind(),
            DirectoryProblem::Relative => io::ErrorKind::InvalidInput,
            _ => io::ErrorKind::PermissionDenied,
        }
    }

    /// The error number where it is a lack of descriptors or memory, which does not concern the
    /// directory.
    pub(super) fn lack(&self) -> Option<Errno> {
        match &self.problem {
            DirectoryProblem::Os(error) if error.is_lack() => error.errno(),
            _ => None,
        }
    }

    /// Whether something is there that cannot be used.
    pub(super) fn is_in_the_way(&self) -> bool {
        !matches!(self.problem, DirectoryProblem::Os(_))
    }
}

impl From<RuntimeDirError> for io::Error {
    fn from(error: RuntimeDirError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// Why a runtime directory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryProblem {
    /// The operating system refused its use.
    #[error("cannot be used: {0}")]
    Os(OsError),
    /// The path is not a directory, or is a symbolic link.
    #[error("is not a directory")]
    NotDirectory,
    /// The path is not absolute: where it leads depends on the process.
    #[error("is not an absolute path")]
    Relative,
    /// Its owner is not trusted.
    #[error("belongs to user {uid}")]
    Owner {
        /// Its owner.
        uid: u32,
    },
    /// Users other than its owner can write to it.
    #[error("can be changed by other users: mode {mode:04o}")]
    Writable {
        /// Its permission bits.
        mode: u32,
    },
    /// The other users of the domain cannot search it, and it is not for this process to open it to
    /// them.
    #[error("is closed to the other users of the domain: mode {mode:04o}")]
    Closed {
        /// Its permission bits.
        mode: u32,
    },
}
