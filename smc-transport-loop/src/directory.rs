//! The runtime directory: where devices of one host find each other.
//!
//! Every device listens on a socket `d-<GID>.sock` in it. A device makes its socket under another
//! name and renames it once it listens, so that whoever finds a socket that refuses connections
//! knows that its process is dead, and may remove it.

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat, chmodat, fstat, openat, renameat, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use smc_core::device::DeviceError;
use smc_core::io::negotiate::passed::PeerSocket;
use smc_core::io::negotiate::{runtime_dir, runtime_dirs};
use smc_wire::types::Gid;

use crate::policy::Policy;
use crate::region::os;

/// An open runtime directory.
#[derive(Debug)]
pub(crate) struct Directory {
    fd: OwnedFd,
    path: PathBuf,
    /// Where processes of the same user may be that were started in another environment. Only
    /// looked in: whoever is found there has to prove himself like anybody else.
    elsewhere: Vec<PathBuf>,
}

impl Directory {
    /// Opens a directory, after making it if need be, and checks that only users we trust can
    /// change it.
    pub(crate) fn open(path: Option<PathBuf>, policy: &Policy) -> Result<Self, DeviceError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // The default one may be in /tmp, where anybody can make links.
        let (path, flags, mut elsewhere) = match path {
            Some(path) => (path, flags, Vec::new()),
            None => (
                default_runtime_dir()?,
                flags | OFlags::NOFOLLOW,
                runtime_dirs(),
            ),
        };
        elsewhere.retain(|other| *other != path);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.map_err(|error| DeviceError::os("make runtime directory", &error))?;
        let fd = openat(CWD, &path, flags, Mode::empty());
        let fd = fd.map_err(|error| os("open runtime directory", error))?;
        let stat = fstat(&fd).map_err(|error| os("inspect runtime directory", error))?;
        check(&stat, policy)?;
        Ok(Self {
            fd,
            path,
            elsewhere,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes the socket of a device and listens on it.
    pub(crate) fn publish(&self, gid: Gid, policy: &Policy) -> Result<OwnedFd, DeviceError> {
        let listener = seqpacket().map_err(|error| os("make socket", error))?;
        let draft = format!("{DRAFT}{:032x}", gid.to_u128());
        let published = self
            .bind_and_listen(&listener, &draft, policy)
            .and_then(|()| renameat(&self.fd, &draft, &self.fd, socket_name(gid)));
        match published {
            Ok(()) => Ok(listener),
            Err(error) => {
                let _ = unlinkat(&self.fd, &draft, AtFlags::empty());
                Err(os("listen in runtime directory", error))
            }
        }
    }

    /// Opens a channel to a device.
    ///
    /// `CONNREFUSED` if its process is dead, `NOENT` if there is none, `AGAIN` if it has too much
    /// to do.
    pub(crate) fn connect(&self, gid: Gid) -> Result<PeerSocket, Errno> {
        let channel = PeerSocket::from(seqpacket()?);
        let name = socket_name(gid);
        let mut result = connect(&channel, &self.address(&name)?);
        for path in &self.elsewhere {
            if result == Err(Errno::NOENT) {
                result = connect(&channel, &SocketAddrUnix::new(path.join(&name))?);
            }
        }
        result.map(|()| channel)
    }

    /// Removes the socket of a device of our own.
    pub(crate) fn remove(&self, gid: Gid) {
        let _ = unlinkat(&self.fd, socket_name(gid), AtFlags::empty());
    }

    /// Removes the socket of a device if its process is dead; false if somebody still listens.
    pub(crate) fn remove_if_stale(&self, gid: Gid) -> bool {
        let name = socket_name(gid);
        let mut result = self.remove_name_if_stale(name.as_ref());
        for path in &self.elsewhere {
            if result == Stale::Absent {
                let path = path.join(&name);
                result = remove_if_stale(CWD, &path, SocketAddrUnix::new(&path));
            }
        }
        result != Stale::Alive
    }

    /// Removes the sockets that dead processes left behind.
    pub(crate) fn sweep(&self) {
        let Ok(entries) = Dir::read_from(&self.fd) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name().to_bytes();
            if name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes()) {
                self.remove_name_if_stale(OsStr::from_bytes(name));
            } else if name.starts_with(DRAFT.as_bytes()) {
                self.remove_draft_if_old(OsStr::from_bytes(name));
            }
        }
    }

    fn remove_name_if_stale(&self, name: &OsStr) -> Stale {
        remove_if_stale(self.fd.as_fd(), name.as_ref(), self.address(name))
    }

    /// A draft lives for microseconds, unless its process died just then.
    fn remove_draft_if_old(&self, name: &OsStr) {
        let Ok(stat) = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return;
        };
        let changed = u64::try_from(stat.st_mtime).unwrap_or(0);
        let now = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        if now > Duration::from_secs(changed) + DRAFT_AGE {
            let _ = unlinkat(&self.fd, name, AtFlags::empty());
        }
    }

    fn bind_and_listen(
        &self,
        listener: &OwnedFd,
        name: &str,
        policy: &Policy,
    ) -> Result<(), Errno> {
        bind(listener, &self.address(name)?)?;
        // Whoever may connect is checked again when he does.
        let mode = if policy.has_others() { 0o666 } else { 0o600 };
        chmodat(&self.fd, name, Mode::from_raw_mode(mode), AtFlags::empty())?;
        listen(listener, BACKLOG)
    }

    /// Socket addresses hold about 100 bytes; longer paths go by way of the open directory.
    fn address(&self, name: impl AsRef<OsStr>) -> Result<SocketAddrUnix, Errno> {
        let name = name.as_ref();
        match SocketAddrUnix::new(self.path.join(name)) {
            Err(Errno::NAMETOOLONG) => {
                let fd = self.fd.as_fd().as_raw_fd();
                SocketAddrUnix::new(Path::new(&format!("/proc/self/fd/{fd}")).join(name))
            }
            result => result,
        }
    }
}

/// What became of a socket that might be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    Removed,
    Absent,
    Alive,
}

/// Removes a socket if nobody listens.
///
/// A dead socket refuses a connection as such, a live one refuses that of a socket of another type
/// because of its type, which its owner does not notice.
fn remove_if_stale(
    dir: BorrowedFd<'_>,
    name: &Path,
    address: Result<SocketAddrUnix, Errno>,
) -> Stale {
    let Ok(stat) = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) else {
        return Stale::Absent;
    };
    let probe = || -> Result<(), Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        connect(probe, &address?)
    };
    let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
    if is_socket && probe() == Err(Errno::CONNREFUSED) {
        let _ = unlinkat(dir, name, AtFlags::empty());
        return Stale::Removed;
    }
    Stale::Alive
}

fn default_runtime_dir() -> Result<PathBuf, DeviceError> {
    runtime_dir().map_err(|error| match error.kind() {
        io::ErrorKind::PermissionDenied => NOT_OURS,
        _ => DeviceError::os("make runtime directory", &error),
    })
}

/// Whoever can rename sockets in the directory can come between two processes.
fn check(stat: &Stat, policy: &Policy) -> Result<(), DeviceError> {
    let mode = Mode::from_raw_mode(stat.st_mode);
    if stat.st_uid != 0 && !policy.allows(stat.st_uid) {
        return Err(DeviceError::NotPermitted(
            "runtime directory belongs to another user",
        ));
    }
    if !mode.intersects(Mode::WGRP | Mode::WOTH) {
        return Ok(());
    }
    // In a sticky directory everybody can add sockets, but only remove his own.
    if policy.has_others() && mode.contains(Mode::SVTX) {
        return Ok(());
    }
    Err(NOT_OURS)
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn socket_name(gid: Gid) -> String {
    format!("{PREFIX}{:032x}{SUFFIX}", gid.to_u128())
}

const NOT_OURS: DeviceError =
    DeviceError::NotPermitted("runtime directory can be changed by other users");

const PREFIX: &str = "d-";
const SUFFIX: &str = ".sock";
/// Begins the name of a socket that does not listen yet.
const DRAFT: &str = ".n-";
const DRAFT_AGE: Duration = Duration::from_secs(60);

/// Channels that may wait to be accepted: one per process at most, so this is plenty.
const BACKLOG: i32 = 4096;

#[cfg(test)]
mod tests;
