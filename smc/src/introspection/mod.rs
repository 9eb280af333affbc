//! Read-only requests from other processes: what `smc ss`, `smc groups`, `smc devices` and
//! `smc stats` show of a process.
//!
//! A process with an endpoint has a socket in the [standard runtime directory](crate::Domain) of
//! its user, unless [`Builder::introspection`](crate::Builder::introspection) has switched that off
//! for all of its endpoints. A thread of its own answers there, so that a program whose runtime is
//! blocked is seen as well.
//!
//! # Format
//!
//! The socket is a UNIX socket of the type `SOCK_SEQPACKET`, with the mode 0600 and a name
//! `i-<pid>-<16 hexadecimal digits>.sock`. Only processes of the same user, and of root, are
//! accepted. A client sends one packet with a [`Request`] in JSON, of 4 KiB at most:
//!
//! ```json
//! {"version": 1, "what": ["connections", "listeners"]}
//! ```
//!
//! The answer is a sequence of packets. Each has one or more
//! [`Record`](crate::record::Record)s in JSON, one a line, whose kind is the member `record`. The
//! first is of the kind `process`, and the last one `end`; without it the answer is incomplete. A
//! request that is refused gets one record of the kind `error`. Times have the members `secs` and
//! `nanos`. Then the connection is closed. A request changes nothing.
//!
//! One request is answered after the other. A client that does not send its request within 0.2
//! seconds, or has not received the answer within 5 seconds, is disconnected.

mod client;
mod server;

pub use client::{Directory, Search, directories, query};
pub(crate) use server::{register, unregister};

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// Version of the format.
pub const VERSION: u32 = 1;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Request {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// The subjects to be reported.
    pub what: Vec<Subject>,
}

/// A subject that can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Subject {
    /// Endpoints with their settings.
    Endpoints,
    /// Streams.
    Connections,
    /// Listeners.
    Listeners,
    /// Link groups with their links.
    Groups,
    /// Devices.
    Devices,
    /// Statistics.
    Stats,
}

impl Request {
    /// Requests these.
    #[must_use]
    pub fn new(what: &[Subject]) -> Self {
        Self {
            version: VERSION,
            what: what.to_vec(),
        }
    }
}

/// Waits until a socket is ready; `Interrupted` when `stop` is readable, if there is one.
fn wait(fd: impl AsFd, flags: PollFlags, until: Instant, stop: Option<&OwnedFd>) -> io::Result<()> {
    let mut fds = vec![PollFd::new(&fd, flags)];
    fds.extend(stop.map(|stop| PollFd::new(stop, PollFlags::IN)));
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).unwrap_or_default();
        match poll(&mut fds, Some(&left)) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) if fds.get(1).is_some_and(|stop| !stop.revents().is_empty()) => {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether it is the name of a socket for requests.
fn is_name(name: &str) -> bool {
    let inner = name
        .strip_prefix("i-")
        .and_then(|name| name.strip_suffix(".sock"));
    let parts = inner.and_then(|inner| inner.split_once('-'));
    parts.is_some_and(|(pid, random)| {
        pid.parse::<u32>().is_ok()
            && random.len() == 16
            && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sockets_are_told_from_others() {
        assert!(is_name("i-1-0123456789abcdef.sock"));
        for other in [
            "d-0123456789abcdef.sock",
            "i-1-0123456789abcde.sock",
            "i--0123456789abcdef.sock",
            "i-1-0123456789abcdef",
            "i-x-0123456789abcdef.sock",
        ] {
            assert!(!is_name(other), "{other}");
        }
    }
}
