//! Credentials of the process at the other end of a socket.

use std::fs::read_to_string;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;

/// The process at the other end of a connected UNIX socket (`SO_PEERCRED`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credentials {
    /// Effective user when the connection was made.
    pub uid: u32,
    /// The process; 0 if it has no number in this PID namespace, as in another container.
    pub pid: i32,
}

impl Credentials {
    /// Of the process that connected, or that listened on what this process connected to.
    ///
    /// # Errors
    ///
    /// As `getsockopt(2)`; `PermissionDenied` if the user has no number in this user namespace, so
    /// that it cannot be distinguished from others.
    pub fn of_peer(socket: &impl AsFd) -> io::Result<Self> {
        // Not rustix's, which cannot represent a missing process number.
        let peer = getsockopt(socket, PeerCredentials)?;
        if is_ambiguous_user(peer.uid()) {
            let why = "the user has no number in this user namespace";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        Ok(Self {
            uid: peer.uid(),
            pid: peer.pid(),
        })
    }

    /// Of this process, as other processes see them when it connects or listens now.
    #[must_use]
    pub fn own() -> Self {
        let pid = rustix::process::getpid();
        Self {
            uid: rustix::process::geteuid().as_raw(),
            pid: pid.as_raw_nonzero().get(),
        }
    }

    /// Whether both may be the same process; across PID namespaces only the user can be compared.
    #[must_use]
    pub fn is_same_process(self, other: Self) -> bool {
        self.uid == other.uid && (self.pid == other.pid || self.pid == 0 || other.pid == 0)
    }
}

/// Whether this is the effective user of this process.
#[must_use]
pub fn is_own_user(uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw()
}

/// Whether this can be the overflow UID (`/proc/sys/kernel/overflowuid`), which a user namespace
/// reports for each user that it does not map, also as owner of files.
///
/// A process reads its user namespace once, as any user can have a reader of `/proc` wait. It
/// enters a namespace before it has threads. Process 1 reads it each time: its child can be
/// number 1 of another namespace.
#[must_use]
pub fn is_ambiguous_user(uid: u32) -> bool {
    /// The process that has read, and the UID.
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let pid = u64::from(pid.unsigned_abs());
    let known = KNOWN.load(Ordering::Relaxed);
    if known >> 32 == pid && pid != 1 {
        return u64::from(uid) == known & u64::from(u32::MAX);
    }
    let Ok(map) = read_to_string("/proc/self/uid_map") else {
        return uid == DEFAULT_OVERFLOW_UID;
    };
    let ambiguous = if has_all_users(&map) {
        NO_UID
    } else {
        overflow_uid()
    };
    KNOWN.store(pid << 32 | u64::from(ambiguous), Ordering::Relaxed);
    uid == ambiguous
}

fn overflow_uid() -> u32 {
    let set = read_to_string("/proc/sys/kernel/overflowuid").ok();
    set.and_then(|uid| uid.trim().parse().ok())
        .unwrap_or(DEFAULT_OVERFLOW_UID)
}

/// Whether all users have numbers in a user namespace with this map.
fn has_all_users(map: &str) -> bool {
    let length = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(length).sum::<u64>() >= u32::MAX.into()
}

const DEFAULT_OVERFLOW_UID: u32 = 65_534;

/// -1, which no user has.
const NO_UID: u32 = u32::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_of_all_users_leaves_no_ambiguous_one() {
        assert!(has_all_users("         0          0 4294967295\n"));
        assert!(has_all_users("0 0 1000\n1000 1000 4294966295\n"));
        assert!(!has_all_users("         0       1000          1\n"));
        assert!(!has_all_users(""));
    }
}
