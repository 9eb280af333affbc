//! Sockets with names in runtime directories.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, RenameFlags, chmodat, fchmod, renameat, renameat_with, statat,
    unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::{OpenDir, RuntimeDirs};
use crate::io::negotiate::passed::PeerSocket;

/// A listening socket and the name that was given to it.
#[derive(Debug)]
pub(super) struct Named {
    pub(super) socket: OwnedFd,
    /// The directory.
    pub(super) dir: PathBuf,
    pub(super) is_spare: bool,
    /// Device and number of the inode, which no other one gets while the socket is open.
    inode: (u64, u64),
}

impl Named {
    /// Makes a socket that listens under this name. It has its mode before it has the name, and
    /// takes the name when it listens, so that a socket that refuses connections is a dead one.
    pub(super) fn bind(dir: &OpenDir, name: &str, for_all: bool) -> Result<Self, Errno> {
        let draft = format!("{DRAFT}{name}");
        let socket = seqpacket()?;
        let mode = Mode::from_raw_mode(if for_all { 0o666 } else { 0o600 });
        fchmod(&socket, mode)?;
        let address = address(dir, &draft)?;
        match rustix::net::bind(&socket, &address) {
            Err(Errno::ADDRINUSE) if dir.remove_if_stale(&draft) == Stale::Removed => {
                rustix::net::bind(&socket, &address)?;
            }
            result => result?,
        }
        let named = || {
            if for_all {
                // The process's umask may have taken something away.
                chmodat(&dir.fd, &draft, mode, AtFlags::empty())?;
            }
            rustix::net::listen(&socket, BACKLOG)?;
            let inode = dir.inode(&draft)?;
            dir.rename_new(&draft, name)?;
            Ok(inode)
        };
        match named() {
            Ok(inode) => Ok(Self {
                socket,
                dir: dir.path.clone(),
                is_spare: dir.is_spare,
                inode,
            }),
            Err(errno) => {
                let _ = unlinkat(&dir.fd, &draft, AtFlags::empty());
                Err(errno)
            }
        }
    }

    /// Whether the name in this directory is that of this socket.
    pub(super) fn has_name(&self, dir: &OpenDir, name: &str) -> bool {
        dir.inode(name) == Ok(self.inode)
    }

    /// Removes the name, unless another socket has it by now.
    pub(super) fn remove(&self, dirs: &RuntimeDirs, name: &str) {
        let Ok(dir) = dirs.open(&self.dir) else {
            return;
        };
        if self.has_name(&dir, name) {
            let _ = unlinkat(&dir.fd, name, AtFlags::empty());
        }
        if self.is_spare {
            // Not while another socket is in it.
            let _ = rustix::fs::rmdir(&self.dir);
        }
    }
}

/// What became of a name that might be stale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stale {
    Removed,
    Absent,
    Alive,
}

impl OpenDir {
    pub(super) fn inode(&self, name: &str) -> Result<(u64, u64), Errno> {
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Gives a socket a name that no other one has.
    fn rename_new(&self, from: &str, to: &str) -> Result<(), Errno> {
        let rename = || match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // A file system that cannot say it.
            Err(Errno::INVAL | Errno::NOSYS) => match self.inode(to) {
                Err(Errno::NOENT) => renameat(&self.fd, from, &self.fd, to),
                Ok(_) => Err(Errno::EXIST),
                Err(errno) => Err(errno),
            },
            result => result,
        };
        match rename() {
            Err(Errno::EXIST) if self.remove_if_stale(to) != Stale::Alive => rename(),
            result => result,
        }
    }

    /// Removes a name that no socket has any more.
    ///
    /// The kernel refuses a connection to it as such. To a socket that is there it refuses the
    /// connection of a socket of another type because of the type, which its owner does not notice.
    fn remove_if_stale(&self, name: &str) -> Stale {
        let Ok(stat) = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Stale::Absent;
        };
        let probe = || -> Result<(), Errno> {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let probe = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
            rustix::net::connect(probe, &address(self, name)?)
        };
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if is_socket && probe() == Err(Errno::CONNREFUSED) {
            let _ = unlinkat(&self.fd, name, AtFlags::empty());
            return Stale::Removed;
        }
        Stale::Alive
    }
}

impl RuntimeDirs {
    /// Connects to the socket of this name, without waiting.
    ///
    /// # Errors
    ///
    /// As `connect(2)`: `NOENT` if there is none, `CONNREFUSED` if its process has ended, `AGAIN`
    /// if it has too many connections to accept.
    pub fn connect(&self, name: &str) -> Result<PeerSocket, Errno> {
        let mut failed = Errno::NOENT;
        for path in self.to_search() {
            let Ok(dir) = self.open(&path) else { continue };
            let socket = PeerSocket::from(seqpacket()?);
            let connected =
                address(&dir, name).and_then(|address| rustix::net::connect(&socket, &address));
            match connected {
                Ok(()) => return Ok(socket),
                Err(Errno::NOENT) => {}
                Err(errno) if failed == Errno::NOENT => failed = errno,
                Err(_) => {}
            }
        }
        Err(failed)
    }

    /// Removes this name where its process has ended; false if a process has it.
    pub fn remove_if_stale(&self, name: &str) -> bool {
        let dirs = self.to_search();
        let dirs = dirs.iter().filter_map(|path| self.open(path).ok());
        let alive = dirs.filter(|dir| dir.remove_if_stale(name) == Stale::Alive);
        alive.count() == 0
    }

    /// Removes the names that processes have left behind when they were killed, of those that
    /// `is_ours` knows. Looks at 4096 names of a directory.
    pub fn sweep(&self, is_ours: impl Fn(&str) -> bool) {
        for path in self.to_search() {
            let Ok(dir) = self.open(&path) else { continue };
            for name in names(&path) {
                if is_ours(name.strip_prefix(DRAFT).unwrap_or(&name)) {
                    dir.remove_if_stale(&name);
                }
            }
        }
    }
}

/// Names in a directory.
pub(in crate::io::negotiate) fn names(dir: &Path) -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let names = entries.take(MAX_NAMES);
    names.filter_map(|entry| entry.file_name().into_string().ok())
}

/// Connects to the socket of this name in a directory, without waiting.
pub(in crate::io::negotiate) fn connect_in(dir: &Path, name: &str) -> std::io::Result<PeerSocket> {
    let socket = PeerSocket::from(seqpacket()?);
    let connect = |address| rustix::net::connect(&socket, &address);
    match SocketAddrUnix::new(dir.join(name)) {
        Err(Errno::NAMETOOLONG) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::open(dir, flags, Mode::empty())?;
            connect(address_by_fd(&dir, name)?)?;
        }
        address => connect(address?)?,
    }
    Ok(socket)
}

/// By the path of the directory, or by way of its descriptor where that is too long: an address
/// holds 107 bytes.
fn address(dir: &OpenDir, name: &str) -> Result<SocketAddrUnix, Errno> {
    match SocketAddrUnix::new(dir.path.join(name)) {
        Err(Errno::NAMETOOLONG) => address_by_fd(&dir.fd, name),
        result => result,
    }
}

fn address_by_fd(dir: &OwnedFd, name: &str) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()))
}

fn seqpacket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Before the name of a socket that does not listen yet.
const DRAFT: &str = ".";

/// Names read from a directory. More are not expected, and reading must end.
const MAX_NAMES: usize = 4096;

/// Connections that may wait to be accepted: one per process at most, so this is plenty.
const BACKLOG: i32 = 4096;
