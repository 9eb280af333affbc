//! Credentials of the process at the other end of a socket.

use std::fs::read_to_string;
use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

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
#[must_use]
pub fn is_ambiguous_user(uid: u32) -> bool {
    static OVERFLOW: OnceLock<u32> = OnceLock::new();
    let overflow = || {
        let set = read_to_string("/proc/sys/kernel/overflowuid").ok();
        set.and_then(|uid| uid.trim().parse().ok())
            .unwrap_or(65_534)
    };
    // A process can enter a user namespace at any time; the number is that of the whole system.
    uid == *OVERFLOW.get_or_init(overflow) && !has_all_users()
}

/// Whether all users have numbers in the user namespace of this process.
fn has_all_users() -> bool {
    let map = read_to_string("/proc/self/uid_map").unwrap_or_default();
    let length = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    map.lines().filter_map(length).sum::<u64>() >= u32::MAX.into()
}
