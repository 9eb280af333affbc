//! Finding the sockets of processes, and sending them requests.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::geteuid;
use smc_ipc::channel::send;
use smc_ipc::runtime_dir::{by_fd, names};
use smc_ipc::{Credentials, Domain};

use super::{Request, is_name, wait};
use crate::record::Record;

/// The sockets of the processes of this user; for root those of all users, where their directories
/// are standard ones. With `$SMC_RUNTIME_DIR` those in that directory.
///
/// A directory that another user could have made or can change counts for root only.
#[must_use]
pub fn sockets() -> Vec<PathBuf> {
    let mut dirs = Domain::default().search_paths();
    let is_configured = std::env::var_os("SMC_RUNTIME_DIR").is_some_and(|dir| !dir.is_empty());
    if geteuid().is_root() && !is_configured {
        dirs.extend(directories_of_all());
    }
    dirs.sort_unstable();
    dirs.dedup();
    let mut found = Vec::new();
    for dir in dirs.into_iter().filter(|dir| owner(dir).is_some()) {
        let named = names(&dir).into_iter().flatten();
        let named = named.filter(|name| is_name(name)).take(SOCKETS_MAX);
        found.extend(named.map(|name| dir.join(name)));
    }
    found
}

/// The owner of a directory that no other user can change, if this user believes what is in it.
fn owner(dir: &Path) -> Option<u32> {
    let found = std::fs::symlink_metadata(dir).ok()?;
    let own = geteuid();
    let is_private = found.is_dir() && found.mode() & 0o022 == 0;
    (is_private && (own.is_root() || found.uid() == own.as_raw())).then_some(found.uid())
}

/// The standard directories of all users.
fn directories_of_all() -> Vec<PathBuf> {
    let in_dir = |dir: &str| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let entries = entries.take(DIRECTORIES_MAX);
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let is_named = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.is_some_and(|name| name.starts_with("smc-"))
    };
    let mut dirs = in_dir("/run");
    dirs.extend(in_dir("/tmp"));
    dirs.retain(is_named);
    dirs.extend(in_dir("/run/user").iter().map(|dir| dir.join("smc")));
    dirs
}

/// Sends a request to the process with this socket. Blocks, for so long at most. Number and user of
/// the process are those that the kernel reports.
///
/// # Errors
///
/// `ConnectionRefused` if the process has ended; `TimedOut` if it does not answer;
/// `PermissionDenied` if it is not of the user whose directory it is; `Unsupported` if it does not
/// know the version or a subject; `InvalidData` if it answers with anything else than records, or
/// with more than 64 MiB.
pub fn query(socket: &Path, request: &Request, timeout: Duration) -> io::Result<Vec<Record>> {
    let begin = Instant::now();
    let until = begin.checked_add(timeout.min(LONGEST)).unwrap_or(begin);
    let fd = rustix::net::socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    connect(&fd, socket)?;
    let process = Credentials::of_peer(&fd)?;
    if socket.parent().and_then(owner) != Some(process.uid) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    send(&fd, &serde_json::to_vec(request)?, &[])?;
    let mut packet = vec![0; PACKET_MAX];
    let (mut records, mut received) = (Vec::new(), 0);
    while received <= ANSWER_MAX {
        wait(&fd, PollFlags::IN, until, None)?;
        let (len, _) = match rustix::net::recv(&fd, &mut packet[..], RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => continue,
            received => received?,
        };
        received += len;
        let lines = packet.get(..len).unwrap_or_default();
        if lines.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for line in lines.split(|byte| *byte == b'\n') {
            if line.is_empty() {
                continue;
            }
            match serde_json::from_slice(line)? {
                Record::End => return Ok(records),
                Record::Error { error } => {
                    return Err(io::Error::new(io::ErrorKind::Unsupported, error));
                }
                Record::Process(mut stated) => {
                    stated.uid = process.uid;
                    // 0 in another PID namespace.
                    if let Ok(pid @ 1..) = u32::try_from(process.pid) {
                        stated.pid = pid;
                    }
                    records.push(Record::Process(stated));
                }
                record => records.push(record),
            }
        }
    }
    let text = "the answer does not end";
    Err(io::Error::new(io::ErrorKind::InvalidData, text))
}

/// Connects to a path, which may be longer than an address.
fn connect(fd: &OwnedFd, path: &Path) -> io::Result<()> {
    let flags =
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    Ok(rustix::net::connect(
        fd,
        &SocketAddrUnix::new(by_fd(&file))?,
    )?)
}

/// Longest packet that a client takes: below the default limit of a socket's send buffer.
const PACKET_MAX: usize = 200 * 1024;

/// Bytes of an answer that a client takes: those of some 50,000 connections.
const ANSWER_MAX: usize = 64 << 20;

/// Sockets of one directory, and directories, that are looked at.
const SOCKETS_MAX: usize = 1024;
const DIRECTORIES_MAX: usize = 65_536;

/// Longest timeout.
const LONGEST: Duration = Duration::from_secs(3600);
