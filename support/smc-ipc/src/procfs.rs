//! Files of `/proc` and `/sys`, read on a thread.
//!
//! Most of their directories may be read by any user, who can hold their locks without end (see
//! [`thread`](crate::thread)): that of `/proc/<pid>/task`, for example. A look-up of a name that
//! the kernel does not have in its cache waits for the lock.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use rustix::fs::{Mode, OFlags};

use crate::thread::{LIMIT, Lock, run};

/// Runs `job` on the thread for these files, and waits for its result for 0.2 s at most. It must
/// not depend on the calling thread, as `/proc/thread-self` does.
///
/// # Errors
///
/// `TimedOut` if the result is not there by then, or when there is no thread.
pub fn call<T: Send + 'static>(job: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    run(Lock::Proc, LIMIT, job).map_err(io::Error::from)
}

/// The contents of a file.
///
/// # Errors
///
/// As [`call`] and [`fs::read`].
pub fn read(path: impl Into<PathBuf>) -> io::Result<Vec<u8>> {
    let path = path.into();
    call(move || fs::read(path))?
}

/// The text of a file.
///
/// # Errors
///
/// As [`call`] and [`fs::read_to_string`].
pub fn read_to_string(path: impl Into<PathBuf>) -> io::Result<String> {
    let path = path.into();
    call(move || fs::read_to_string(path))?
}

/// A directory, to look up names in it.
///
/// # Errors
///
/// As [`call`] and `open(2)`.
pub fn open_dir(path: impl Into<PathBuf>) -> io::Result<OwnedFd> {
    let path = path.into();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(call(move || rustix::fs::open(path, flags, Mode::empty()))??)
}
