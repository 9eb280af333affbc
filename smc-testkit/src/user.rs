//! Sockets and files of another user.

use std::io;
use std::panic::resume_unwind;
use std::thread;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

/// Whether this process is root's. If not, prints that the test is skipped, and what it needs root
/// for.
#[must_use]
pub fn is_root(to: &str) -> bool {
    let is_root = geteuid().is_root();
    if !is_root {
        println!("skipped: why: needs root to {to}");
    }
    is_root
}

/// Calls `work` on a thread of its own, with this user as the real, effective and saved one, and
/// with the group of the same number.
///
/// Linux keeps users by thread: the rest of the process stays what it is, and keeps what `work`
/// returns. A socket made there belongs to that user permanently.
///
/// # Errors
///
/// As `setresuid(2)`: it takes root.
///
/// # Panics
///
/// If `work` does.
pub fn run_as<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let as_user = || {
        let gid = Gid::from_raw(uid);
        set_thread_res_gid(gid, gid, gid)?;
        let uid = Uid::from_raw(uid);
        set_thread_res_uid(uid, uid, uid)?;
        Ok(work())
    };
    let done = thread::scope(|scope| scope.spawn(as_user).join());
    done.unwrap_or_else(|panic| resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_another_user_and_the_process_has_not() {
        let own = geteuid();
        match run_as(990, geteuid) {
            Ok(uid) => assert_eq!(uid.as_raw(), 990),
            Err(error) => println!("skipped: why: cannot become another user: {error}"),
        }
        assert_eq!(geteuid(), own);
    }
}
