//! Looking names up without the lock of their directory, which other users can hold.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, ResolveFlags, fstatfs, openat, openat2};
use rustix::io::Errno;

/// Opens a name in a directory.
///
/// A name that the kernel has in its cache is found without the lock of the directory. A file
/// system in memory has all of its names there, so one that is not found does not exist. Elsewhere
/// the look-up takes the lock.
pub(super) fn open_name(dir: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    for _ in 0..TRIES {
        match open_cached(dir, name, flags) {
            Err(Errno::AGAIN) => {}
            // Before Linux 5.12, or in a container that does not permit it.
            Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => return open_locked(dir, name, flags),
            opened => return opened,
        }
    }
    match has_all_names_cached(dir) {
        true => Err(Errno::NOENT),
        false => open_locked(dir, name, flags),
    }
}

/// Fails with `AGAIN` where that would take a lock.
fn open_cached(dir: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    openat2(dir, name, flags, Mode::empty(), ResolveFlags::CACHED)
}

fn open_locked(dir: BorrowedFd<'_>, name: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    #[cfg(test)]
    LOCKED.set(LOCKED.get() + 1);
    openat(dir, name, flags, Mode::empty())
}

fn has_all_names_cached(dir: BorrowedFd<'_>) -> bool {
    let is_in_memory = fstatfs(dir).is_ok_and(|stat| i128::from(stat.f_type) == TMPFS);
    // A security module may prevent look-ups in the cache.
    let itself = || open_cached(dir, Path::new("."), OFlags::PATH | OFlags::CLOEXEC);
    is_in_memory && itself().is_ok()
}

/// Look-ups in the cache fail while a directory changes.
const TRIES: usize = 3;

/// `TMPFS_MAGIC`
const TMPFS: i128 = 0x0102_1994;

#[cfg(test)]
thread_local! {
    /// Look-ups of this thread that may have taken the lock of a directory.
    pub(super) static LOCKED: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
