//! Sockets with names in runtime directories.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, chmod, fchmod, fstat, openat, renameat,
    renameat_with, statat, unlink, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use rustix::process::geteuid;

use super::domain::own;
use super::lookup::open_name;

use super::{Domain, OpenDir, RuntimeDirError};
use crate::passed::{Listener, PeerSocket};
use crate::thread::{self, Answer, JOB_TIMEOUT, Lock};

/// A listening socket and the name that was given to it.
#[derive(Debug)]
pub(super) struct NamedSocket {
    pub(super) socket: Listener,
    pub(super) entry: NameEntry,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NameEntry {
    pub(super) dir: PathBuf,
    pub(super) is_alternate: bool,
    /// Device and number of the inode, which no other one gets while the socket is open.
    inode: (u64, u64),
}

impl NamedSocket {
    /// Makes a socket that listens under this name. It has its mode before it has the name, and
    /// takes the name when it listens, so that a socket that refuses connections is a dead one.
    pub(super) fn bind(dir: &OpenDir, name: &str, for_all: bool) -> Result<Self, Errno> {
        let draft = format!("{DRAFT}{name}");
        let socket = new_socket(SocketType::SEQPACKET)?;
        let mode = if for_all { 0o666 } else { 0o600 };
        let bind = || bind_with_mode(&socket, &by_fd(&dir.fd).join(&draft), mode);
        let named = || {
            let file = match bind() {
                Err(Errno::ADDRINUSE) if dir.remove_if_stale(&draft) == Stale::Removed => bind()?,
                result => result?,
            };
            rustix::net::listen(&socket, BACKLOG)?;
            let stat = fstat(&file)?;
            dir.rename_new(&draft, name)?;
            Ok((stat.st_dev, stat.st_ino))
        };
        match named() {
            Ok(inode) => Ok(Self {
                socket: Listener::new(socket, for_all),
                entry: NameEntry {
                    dir: dir.path.clone(),
                    is_alternate: dir.is_alternate,
                    inode,
                },
            }),
            // Of another process that is publishing under this name.
            Err(Errno::ADDRINUSE) => Err(Errno::ADDRINUSE),
            Err(errno) => {
                let _ = unlinkat(&dir.fd, &draft, AtFlags::empty());
                Err(errno)
            }
        }
    }
}

impl NameEntry {
    /// Whether the name in this directory is that of this socket.
    pub(super) fn has_name(&self, dir: &OpenDir, name: &str) -> bool {
        dir.inode(name) == Ok(self.inode)
    }

    /// Removes the name, unless another socket has it by now.
    pub(super) fn remove(&self, domain: &Domain, name: &str) {
        let Ok(dir) = domain.open(&self.dir) else {
            return;
        };
        if self.has_name(&dir, name) {
            let _ = unlinkat(&dir.fd, name, AtFlags::empty());
        }
        if self.is_alternate {
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
    /// Connects to the socket of this name, without waiting for its process. Other users who may
    /// read the directory can hold its lock, see [`Domain::connect_in`].
    ///
    /// # Errors
    ///
    /// As [`Domain::connect`].
    pub fn connect(&self, name: &str) -> Result<PeerSocket, Errno> {
        let socket = new_socket(SocketType::SEQPACKET)?;
        self.connect_to(&socket, name)?;
        Ok(socket.into())
    }

    fn connect_to(&self, socket: impl AsFd, name: &str) -> Result<(), Errno> {
        let file = open_name(self.fd.as_fd(), Path::new(name), FILE)?;
        let file = check_socket(file)?;
        rustix::net::connect(socket, &SocketAddrUnix::new(by_fd(&file))?)
    }

    pub(super) fn inode(&self, name: &str) -> Result<(u64, u64), Errno> {
        let stat = statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// Gives a socket a name that no other one has.
    fn rename_new(&self, from: &str, to: &str) -> Result<(), Errno> {
        let rename = || match renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            // A file system without this flag.
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
        let file = open_name(self.fd.as_fd(), Path::new(name), FILE);
        let stat = match file.and_then(fstat) {
            Ok(stat) => stat,
            // Nothing is known of it.
            Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Stale::Alive,
            Err(_) => return Stale::Absent,
        };
        let probe = || {
            let probe = new_socket(SocketType::DGRAM)?;
            self.connect_to(&probe, name)
        };
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        if is_socket && probe() == Err(Errno::CONNREFUSED) {
            let _ = unlinkat(&self.fd, name, AtFlags::empty());
            return Stale::Removed;
        }
        Stale::Alive
    }
}

/// What became of a connection.
#[derive(Debug)]
#[non_exhaustive]
pub struct Connected {
    /// The path of the name; without a directory if it is in none.
    pub path: PathBuf,
    /// The connection, or why there is none.
    pub socket: Result<PeerSocket, Errno>,
}

/// How long a task waits for connections, whatever their number: 200 ms.
#[derive(Debug)]
pub struct ConnectTime(Duration);

impl Default for ConnectTime {
    fn default() -> Self {
        Self(JOB_TIMEOUT)
    }
}

impl Domain {
    /// Connects to the socket of this name in a directory of the own user. Waits for a thread that
    /// looks the name up, for 200 ms at most.
    ///
    /// # Errors
    ///
    /// `TIMEDOUT` if another user holds the lock of a directory. As `connect(2)`: `NOENT` if there
    /// is none, `CONNREFUSED` if its process has ended, `AGAIN` if it has too many connections to
    /// accept. `LOOP` if the name is a symbolic link, which is not followed. As `open(2)` when this
    /// process has no descriptor left.
    pub fn connect(&self, name: &str) -> Result<PeerSocket, Errno> {
        self.connect_to(own(), name)
    }

    /// As [`Domain::connect`], in a directory of this user, who has to be one of the domain. Users
    /// make any name in their directories, so a name identifies a socket only together with the
    /// user.
    ///
    /// # Errors
    ///
    /// As [`Domain::connect`].
    pub fn connect_to(&self, user: u32, name: &str) -> Result<PeerSocket, Errno> {
        self.begin_connect(user, name).wait(JOB_TIMEOUT)?.socket
    }

    /// As [`Domain::connect_to`], for a caller that does not wait. The thread of the user makes one
    /// connection after the other, and none whose answer was dropped.
    pub fn begin_connect(&self, user: u32, name: &str) -> Answer<Connected> {
        let failed = |errno| {
            Answer::ready(Connected {
                path: name.into(),
                socket: Err(errno),
            })
        };
        // Without a thread: peers name any user.
        if !self.allows(user) {
            return failed(Errno::NOENT);
        }
        let (domain, wanted) = (self.clone(), name.to_owned());
        let connect = move || domain.connect_at_once(user, &wanted);
        thread::spawn(Lock::DirectoriesOf(user), connect)
            .unwrap_or_else(|_| failed(Errno::TIMEDOUT))
    }

    /// As [`Domain::connect_to`], in this directory, on the thread of the user whose it is to be.
    /// Waits for the time that is left of a [`ConnectTime`] at most.
    ///
    /// # Errors
    ///
    /// When the directory cannot be used.
    pub fn connect_in(
        &self,
        dir: &Path,
        name: &str,
        time: &mut ConnectTime,
    ) -> Result<Connected, RuntimeDirError> {
        let (domain, dir, name) = (self.clone(), dir.to_owned(), name.to_owned());
        let path = dir.join(&name);
        let lock = Lock::DirectoriesOf(self.owner(&dir).unwrap_or_else(own));
        let connect = move || Ok(domain.open(&dir)?.connect(&name));
        let spawned = thread::spawn(lock, connect);
        let begin = Instant::now();
        let answered = spawned.map_or(Err(Errno::TIMEDOUT), |answer| answer.wait(time.0));
        time.0 = time.0.saturating_sub(begin.elapsed());
        let socket = answered.unwrap_or_else(|errno| Ok(Err(errno)))?;
        Ok(Connected { path, socket })
    }

    fn connect_at_once(&self, user: u32, name: &str) -> Connected {
        let mut failed = Connected {
            path: name.into(),
            socket: Err(Errno::NOENT),
        };
        for path in self.search_paths_of(user) {
            let socket = match self.open(&path) {
                Ok(dir) => dir.connect(name),
                // In a directory that cannot be used there is no socket.
                Err(error) => Err(error.lack().unwrap_or(Errno::NOENT)),
            };
            let path = path.join(name);
            match socket {
                Ok(_) => return Connected { path, socket },
                Err(Errno::NOENT) => {}
                Err(_) if matches!(failed.socket, Err(Errno::NOENT)) => {
                    failed = Connected { path, socket };
                }
                Err(_) => {}
            }
        }
        failed
    }

    /// Has this name removed where its process has ended, by a thread. Names of other users are
    /// left to them.
    pub fn remove_if_stale(&self, name: &str) {
        let (domain, name) = (self.clone(), name.to_owned());
        self.start(move || {
            for dir in domain.own_directories() {
                dir.remove_if_stale(&name);
            }
        });
    }

    /// Has the names removed that killed processes of the own user have left behind, of those that
    /// `is_ours` knows. A thread does so, before it publishes what is published later. It reads
    /// 4096 names of a directory.
    pub fn sweep(&self, is_ours: impl Fn(&str) -> bool + Send + 'static) {
        let domain = self.clone();
        self.start(move || {
            for dir in domain.own_directories() {
                for name in names(&dir.path).into_iter().flatten() {
                    if is_ours(name.strip_prefix(DRAFT).unwrap_or(&name)) {
                        dir.remove_if_stale(&name);
                    }
                }
            }
        });
    }

    /// Has a thread change names. If it cannot, stale ones stay until another process finds them.
    fn start(&self, job: impl FnOnce() + Send + 'static) {
        let _ = thread::start(self.names_lock(), job);
    }
}

/// Names in a directory, 4096 at most.
///
/// # Errors
///
/// As `opendir(3)`.
pub fn names(dir: &Path) -> io::Result<impl Iterator<Item = String>> {
    let entries = std::fs::read_dir(dir)?.flatten().take(MAX_NAMES);
    Ok(entries.filter_map(|entry| entry.file_name().into_string().ok()))
}

/// Binds a UNIX socket to a path, with this mode. Of what others may do with it, the umask of the
/// process takes nothing away. Returns the new file.
///
/// No other file gets the mode: the owner of the directory may put a link or another file in the
/// place of the name at any time, so the mode is changed by way of a descriptor, and only if that
/// is the socket's.
///
/// # Errors
///
/// As `bind(2)`, `open(2)` and `chmod(2)`; `STALE` if another file has the name already. When a
/// descriptor or memory is lacking, the name is removed.
pub fn bind_with_mode(socket: impl AsFd, path: &Path, mode: u32) -> Result<OwnedFd, Errno> {
    let mode = Mode::from_raw_mode(mode);
    // An umask that removes access of the owner is intended; and each change of a file wakes the
    // processes that watch the directory.
    let is_private = !mode.intersects(Mode::RWXG | Mode::RWXO);
    let first = match is_private {
        true => mode,
        false => Mode::RUSR | Mode::WUSR | UNFINISHED,
    };
    fchmod(&socket, first)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    let file = match openat(CWD, path, FILE, Mode::empty()).and_then(check_socket) {
        // Of what has the name, nothing else is known than that `bind` made it a moment ago.
        Err(errno @ (Errno::MFILE | Errno::NFILE | Errno::NOMEM)) => {
            let _ = unlink(path);
            return Err(errno);
        }
        file => file?,
    };
    if is_private {
        return Ok(file);
    }
    let stat = fstat(&file)?;
    let is_unfinished = Mode::from_raw_mode(stat.st_mode).contains(UNFINISHED);
    if !is_unfinished || stat.st_uid != geteuid().as_raw() {
        return Err(Errno::STALE);
    }
    chmod(by_fd(&file), mode)?;
    Ok(file)
}

fn check_socket(file: OwnedFd) -> Result<OwnedFd, Errno> {
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::Socket => Ok(file),
        FileType::Symlink => Err(Errno::LOOP),
        // As `connect` has it.
        _ => Err(Errno::CONNREFUSED),
    }
}

/// The path of an open file, which leads to it whatever its name is now, and is shorter than the
/// 107 bytes that an address holds.
#[must_use]
pub fn by_fd(file: &OwnedFd) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

fn new_socket(kind: SocketType) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, kind, flags, None)
}

/// For opening a file as it is.
const FILE: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Of a socket's file that has not got its mode yet. No umask takes this bit away, and sockets that
/// are in use do not have it, so none of those is mistaken for the file.
const UNFINISHED: Mode = Mode::SVTX;

/// Before the name of a socket that does not listen yet.
const DRAFT: &str = ".";

/// Names read from a directory. More are not expected, and reading must end.
const MAX_NAMES: usize = 4096;

/// Connections that may wait to be accepted: one per process at most, so this is plenty.
const BACKLOG: i32 = 4096;
