use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;

use crate::OsError;

/// A runtime directory that cannot be used, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
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

impl fmt::Display for RuntimeDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "runtime directory {} {}",
            self.path.display(),
            self.problem
        )
    }
}

impl std::error::Error for RuntimeDirError {}

impl From<RuntimeDirError> for io::Error {
    fn from(error: RuntimeDirError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// Why a runtime directory cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectoryProblem {
    /// The operating system refused its use.
    Os(OsError),
    /// The path is not a directory, or is a symbolic link.
    NotDirectory,
    /// Its owner is not trusted.
    Owner {
        /// Its owner.
        uid: u32,
    },
    /// Users other than its owner can write to it.
    Writable {
        /// Its permission bits.
        mode: u32,
    },
}

impl fmt::Display for DirectoryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Os(error) => write!(f, "cannot be used: {error}"),
            Self::NotDirectory => f.write_str("is not a directory"),
            Self::Owner { uid } => write!(f, "belongs to user {uid}"),
            Self::Writable { mode } => write!(f, "can be changed by other users: mode {mode:04o}"),
        }
    }
}
