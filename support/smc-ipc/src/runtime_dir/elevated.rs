//! Whether the environment is that of a less privileged user.

use rustix::process::{getegid, geteuid, getgid, getuid};
use rustix::thread::capabilities;

use crate::OsError;

/// Whether this program has rights that the user who started it has not (`AT_SECURE`): that it is
/// set-user-ID or set-group-ID, or has capabilities of its own. The environment is that user's.
///
/// # Errors
///
/// For lack of descriptors or memory: the user who starts a program may leave it none.
pub fn is_elevated() -> Result<bool, OsError> {
    let error = match std::fs::read("/proc/self/auxv") {
        Ok(auxv) => return Ok(value_of(AT_SECURE, &auxv) != Some(0)),
        Err(error) => OsError::new("read", &error).at("/proc/self/auxv"),
    };
    if error.is_lack() {
        return Err(error);
    }
    // It may not be read by a process that may not be traced. Such programs are among those.
    let has_rights = || capabilities(None).map_or(true, |own| !own.permitted.is_empty());
    Ok(getuid() != geteuid() || getgid() != getegid() || !geteuid().is_root() && has_rights())
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
