//! The network namespace of a thread.

use std::io;

use nix::libc;
use nix::sys::socket::getsockopt;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use crate::OsError;

/// The number of the network namespace in which this thread makes sockets. No other one of this
/// host has it meanwhile.
///
/// It is that of a socket (`SO_NETNS_COOKIE`), so no path is looked up: any user can hold the locks
/// of directories in `/proc`. Before Linux 5.14 it is read there.
///
/// # Errors
///
/// When there is no descriptor left, or `/proc` is not mounted.
pub fn current() -> Result<u64, OsError> {
    let failed = |error: io::Error| OsError::new("look up the network namespace", &error);
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None);
    let socket = socket.map_err(|errno| failed(errno.into()))?;
    match getsockopt(&socket, NetNsCookie) {
        Ok(cookie) => Ok(cookie),
        Err(nix::errno::Errno::ENOPROTOOPT) => read().map_err(|error| failed(error).at(LINK)),
        Err(errno) => Err(failed(errno.into())),
    }
}

fn read() -> io::Result<u64> {
    let target = rustix::fs::readlink(LINK, Vec::new())?;
    let number = target.to_str().ok().and_then(parse);
    number.ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// `net:[4026531840]`
fn parse(target: &str) -> Option<u64> {
    let number = target.strip_prefix("net:[")?.strip_suffix(']')?;
    number.parse().ok()
}

#[derive(Clone, Copy, Debug)]
struct NetNsCookie;

nix::getsockopt_impl!(
    NetNsCookie,
    libc::SOL_SOCKET,
    libc::SO_NETNS_COOKIE,
    u64,
    nix::sys::socket::sockopt::GetStruct<u64>
);

const LINK: &str = "/proc/thread-self/ns/net";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_in_proc_is_that_of_the_namespace() {
        let stat = rustix::fs::stat("/proc/self/ns/net").unwrap();
        assert_eq!(read().unwrap(), stat.st_ino);
        assert_eq!(parse("net:[1x]"), None);
        assert_eq!(parse("mnt:[1]"), None);
    }
}
