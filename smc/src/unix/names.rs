//! Names of UNIX sockets that show that an end supports SMC.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::SocketAddr;
use std::path::PathBuf;

use crate::address::UnixAddr;
use crate::random;

/// A name for a client that is going to send a PROPOSAL: new each time, so that it is free.
///
/// # Errors
///
/// When the system has no random numbers.
pub(super) fn client() -> io::Result<SocketAddr> {
    let number = u64::from_ne_bytes(random::bytes()?);
    SocketAddr::from_abstract_name([CLIENT, format!("{number:016x}").as_bytes()].concat())
}

/// Whether a client is bound to a name of [`client`].
pub(crate) fn is_client(addr: &SocketAddr) -> bool {
    let number = addr
        .as_abstract_name()
        .and_then(|name| name.strip_prefix(CLIENT));
    number.is_some_and(|number| number.len() == 16 && number.iter().all(u8::is_ascii_hexdigit))
}

/// The name that a listener at this address is bound to, so that clients see that it supports SMC:
/// another spelling of a path; for an abstract name that of its second socket.
///
/// # Errors
///
/// `InvalidInput` if it is too long for a socket.
pub(super) fn of_listener(addr: &UnixAddr) -> io::Result<SocketAddr> {
    if let Some(name) = addr.as_abstract_name() {
        return SocketAddr::from_abstract_name([name, SUFFIX].concat());
    }
    let path = addr.as_path().ok_or(io::ErrorKind::InvalidInput)?;
    let path = path.as_os_str().as_bytes();
    let (directory, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..slash], &path[slash + 1..]),
        None => (CURRENT, path),
    };
    let spelling = [directory, SPELLING, name].concat();
    SocketAddr::from_pathname(OsStr::from_bytes(&spelling))
}

/// Whether a name is one of [`of_listener`].
pub(super) fn is_listener(addr: &SocketAddr) -> bool {
    match (addr.as_pathname(), addr.as_abstract_name()) {
        (Some(path), _) => position(path.as_os_str().as_bytes()).is_some(),
        (None, Some(name)) => name.ends_with(SUFFIX),
        (None, None) => false,
    }
}

/// The address of a client as users know it. No other name is changed: a client can have any.
pub(crate) fn shown_client(addr: &SocketAddr) -> UnixAddr {
    match is_client(addr) {
        true => UnixAddr::unnamed(),
        false => UnixAddr::from(addr),
    }
}

/// The address as users know it, of this process or of a listener, which may be bound to a name of
/// this module.
pub(crate) fn shown(addr: &SocketAddr) -> UnixAddr {
    if is_client(addr) {
        return UnixAddr::unnamed();
    }
    let unchanged = UnixAddr::from(addr);
    if let Some(name) = addr.as_abstract_name() {
        let Some(name) = name.strip_suffix(SUFFIX) else {
            return unchanged;
        };
        return UnixAddr::from_abstract_name(name).unwrap_or(unchanged);
    }
    let Some(path) = addr.as_pathname() else {
        return unchanged;
    };
    let path = path.as_os_str().as_bytes();
    let Some(at) = position(path) else {
        return unchanged;
    };
    let name = path.get(at + SPELLING.len()..).unwrap_or_default();
    let path = match path.get(..at).unwrap_or_default() {
        CURRENT => name.to_vec(),
        directory => [directory, b"/", name].concat(),
    };
    UnixAddr::from_path(PathBuf::from(OsStr::from_bytes(&path))).unwrap_or(unchanged)
}

/// Where the last component of a path, with [`SPELLING`] before it, begins.
fn position(path: &[u8]) -> Option<usize> {
    let slash = path.iter().rposition(|byte| *byte == b'/')?;
    let begin = (slash + 1).checked_sub(SPELLING.len())?;
    path.get(begin..=slash).filter(|it| *it == SPELLING)?;
    Some(begin)
}

/// The directory of a path without one.
const CURRENT: &[u8] = b"./.";

/// With a zero byte, which no text has.
const CLIENT: &[u8] = b"smc-client\0";

/// What an abstract name ends with at the socket for clients with SMC.
const SUFFIX: &[u8] = b"\0smc";

/// In place of the last slash of a path: the same directory, in a spelling that no program uses.
const SPELLING: &[u8] = b"/././/./";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_listener_is_recognized_and_shown_as_it_was_given() {
        for path in [
            "/run/app.sock",
            "/app",
            "app.sock",
            "./app",
            "a/b",
            "\0app",
            "\0",
        ] {
            let addr = UnixAddr::from_path(path).unwrap();
            let bound = of_listener(&addr).unwrap();
            assert!(is_listener(&bound), "{bound:?}");
            assert_eq!(shown(&bound), addr);
            let plain = SocketAddr::try_from(&addr).unwrap();
            assert!(!is_listener(&plain) && !is_client(&plain));
            assert_eq!(shown(&plain), addr);
        }
    }

    #[test]
    fn a_path_that_is_too_long_for_the_other_spelling_is_refused() {
        let path = format!("/{}", "x".repeat(100));
        let addr = UnixAddr::from_path(&path).unwrap();
        let error = of_listener(&addr).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }

    #[test]
    fn names_of_clients_differ_and_are_shown_as_none() {
        let [one, other] = [(); 2].map(|()| client().unwrap());
        assert_ne!(one.as_abstract_name(), other.as_abstract_name());
        assert!(is_client(&one));
        assert!(!is_listener(&one));
        assert!(shown(&one).is_unnamed());
    }
}
