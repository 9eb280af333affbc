//! Whether the environment is that of a less privileged user.

use std::io;

use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::capabilities;

/// Whether this program has rights that the user who started it has not (`AT_SECURE`): that it is
/// set-user-ID or set-group-ID, or has capabilities of its own. The environment is that user's.
pub fn is_elevated() -> bool {
    match std::fs::read("/proc/self/auxv") {
        Ok(auxv) => value_of(AT_SECURE, &auxv) != Some(0),
        // The user who starts a program may leave it no descriptor.
        Err(error) if is_lack(&error) => true,
        // It may not be read by a process that may not be traced. Such programs are among those.
        Err(_) => {
            let has_rights = || capabilities(None).map_or(true, |own| !own.permitted.is_empty());
            getuid() != geteuid() || getgid() != getegid() || !geteuid().is_root() && has_rights()
        }
    }
}

fn is_lack(error: &io::Error) -> bool {
    let lacks = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| lacks.contains(&errno))
}

/// From pairs of words.
fn value_of(key: usize, auxv: &[u8]) -> Option<usize> {
    let mut words = auxv
        .chunks_exact(size_of::<usize>())
        .filter_map(|word| word.try_into().ok().map(usize::from_ne_bytes));
    while let (Some(found), Some(value)) = (words.next(), words.next()) {
        if found == key {
            return Some(value);
        }
    }
    None
}

const AT_SECURE: usize = 23;
