//! Errors of system calls, to be kept and compared.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// A failed system call: the step, the path, and the error.
///
/// `Display` is one clause, such as `create socket /run/user/0/smc/a.sock: permission denied (os
/// error 13)`. Where a limit of the process explains the error, it is named with its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OsError {
    operation: &'static str,
    path: Option<Arc<Path>>,
    limit: Option<Limit>,
    error: IoError,
}

impl OsError {
    /// An error of this step, such as `create socket`.
    #[must_use]
    pub fn new(operation: &'static str, error: &io::Error) -> Self {
        let copy = match error.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(error.kind(), error.to_string()),
        };
        Self {
            operation,
            path: None,
            limit: Limit::behind(error),
            error: copy.into(),
        }
    }

    /// Adds the path of the step.
    #[must_use]
    pub fn at(mut self, path: impl AsRef<Path>) -> Self {
        self.path = Some(path.as_ref().into());
        self
    }

    /// The step that failed.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.operation
    }

    /// The path of the step, where there is one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// The limit of the process that caused the error, where that is known.
    #[must_use]
    pub fn limit(&self) -> Option<Limit> {
        self.limit
    }

    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.error.kind()
    }

    /// The error number, where there is one.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.error.code()
    }

    /// Whether the process or the system lacks descriptors or memory. Such an error has no relation
    /// to the object of the step.
    #[must_use]
    pub fn is_lack(&self) -> bool {
        let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::NOMEM];
        self.errno().is_some_and(|errno| lacks.contains(&errno))
    }

    /// The error number as [`Errno`], where there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        Errno::from_io_error(&self.error.0)
    }
}

impl fmt::Display for OsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.operation)?;
        if let Some(path) = &self.path {
            write!(f, " {}", path.display())?;
        }
        write!(f, ": {}", clause(&self.error.to_string()))?;
        match self.limit {
            Some(limit) => write!(f, ", {limit}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for OsError {}

/// A limit and its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limit {
    /// Its name, such as `RLIMIT_NOFILE`.
    pub name: &'static str,
    /// Its value; bytes where it limits memory.
    pub value: u64,
}

impl Limit {
    /// A limit of this name and value.
    #[must_use]
    pub const fn new(name: &'static str, value: u64) -> Self {
        Self { name, value }
    }

    /// The limit of this process that an error number refers to.
    fn behind(error: &io::Error) -> Option<Self> {
        let (name, resource) = match Errno::from_io_error(error)? {
            Errno::MFILE => ("RLIMIT_NOFILE", Resource::Nofile),
            Errno::FBIG => ("RLIMIT_FSIZE", Resource::Fsize),
            _ => return None,
        };
        let value = getrlimit(resource).current?;
        Some(Self { name, value })
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is {}", self.name, self.value)
    }
}

/// An [`io::Error`] that can be cloned and compared by kind.
#[derive(Clone, Debug)]
pub struct IoError(Arc<io::Error>);

impl IoError {
    /// The kind of the error.
    #[must_use]
    pub fn kind(&self) -> io::ErrorKind {
        self.0.kind()
    }

    /// The error number, where there is one.
    #[must_use]
    pub fn code(&self) -> Option<i32> {
        self.0.raw_os_error()
    }
}

impl From<io::Error> for IoError {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl PartialEq for IoError {
    fn eq(&self, other: &Self) -> bool {
        self.kind() == other.kind() && self.code() == other.code()
    }
}

impl Eq for IoError {}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A sentence as a clause: in lower case, without a full stop.
#[must_use]
pub fn clause(sentence: &str) -> String {
    let sentence = sentence.trim_end_matches('.');
    let mut chars = sentence.chars();
    match (chars.next(), chars.clone().next()) {
        // An abbreviation stays as it is.
        (Some(first), second) if second.is_none_or(|second| !second.is_uppercase()) => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => sentence.to_owned(),
    }
}
