//! The files of a directory: memory, sockets, lock.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, fallocate, flock,
    fstat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::geteuid;
use smc_core::Domain;
use smc_core::device::DeviceError;
use smc_core::io::negotiate::is_ambiguous_user;
use smc_core::io::negotiate::passed::PeerSocket;
use smc_core::io::negotiate::runtime_dir::Publication;
use smc_core::mem::{Region, check_file_size};

use crate::region::{map, os_at};
use crate::shared::{FabricMemory, FabricOptions};

/// An open directory.
#[derive(Debug)]
pub(super) struct Files {
    dir: OwnedFd,
    path: PathBuf,
}

impl Files {
    /// Opens a directory, and checks that only the own user can change it. Creates it if necessary,
    /// but not its parents.
    pub(super) fn open(path: &Path) -> Result<Self, DeviceError> {
        match DirBuilder::new().mode(0o700).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(DeviceError::os_at("make directory", path, &error));
            }
            _ => {}
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = openat(CWD, path, flags, Mode::empty());
        let dir = dir.map_err(|error| os_at("open directory", path, error))?;
        let stat = fstat(&dir).map_err(|error| os_at("inspect directory", path, error))?;
        check_owner(&stat, path)?;
        Ok(Self {
            dir,
            path: path.to_owned(),
        })
    }

    /// Prevents other devices from joining until the result is dropped.
    pub(super) fn lock(&self) -> Result<OwnedFd, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.dir, LOCK, flags, Mode::RUSR | Mode::WUSR);
        let path = self.path.join(LOCK);
        let file = file.map_err(|error| os_at("open", &path, error))?;
        for _ in 0..LOCK_TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(LOCK_WAIT),
                Err(Errno::INTR) => {}
                Err(error) => return Err(os_at("lock", &path, error)),
            }
        }
        Err(DeviceError::NotPermitted(
            "another process holds the lock of the fabric".into(),
        ))
    }

    /// The existing memory, or new memory if no process uses that. The caller has the lock.
    pub(super) fn memory(
        &self,
        len: usize,
        options: FabricOptions,
    ) -> Result<FabricMemory, DeviceError> {
        if self.is_in_use() {
            return FabricMemory::open(self.open_memory()?);
        }
        let _ = unlinkat(&self.dir, MEMORY, AtFlags::empty());
        self.make_memory(len, options)
    }

    /// A free slot, and its socket. The caller has the lock.
    ///
    /// The socket is published again if its name is removed, but not in a directory with other
    /// memory.
    pub(super) fn take_slot(&self, slots: u16) -> Result<(u16, Publication), DeviceError> {
        for slot in 0..slots {
            match self.connect(slot) {
                Err(Errno::NOENT) => {}
                Err(Errno::CONNREFUSED) => self.remove_socket(slot),
                // The process is alive, or its state is unknown.
                _ => continue,
            }
            let domain = Domain::existing(&self.path);
            let publication = Publication::with_companion(domain, socket_name(slot), MEMORY)
                .map_err(|error| DeviceError::os_at("listen in", &self.path, &error))?;
            return match publication.error() {
                None => Ok((slot, publication)),
                Some(error) => Err(error.clone().into()),
            };
        }
        Err(DeviceError::Exhausted)
    }

    /// Connects to the device of a slot.
    ///
    /// `CONNREFUSED` if its process is dead, `NOENT` if there is none, `AGAIN` if its backlog is
    /// full.
    pub(super) fn connect(&self, slot: u16) -> Result<PeerSocket, Errno> {
        let socket = PeerSocket::from(seqpacket()?);
        connect(&socket, &self.address(slot)?)?;
        Ok(socket)
    }

    /// Removes the socket of a slot.
    pub(super) fn remove_socket(&self, slot: u16) {
        let _ = unlinkat(&self.dir, socket_name(slot), AtFlags::empty());
    }

    /// Whether any process has a device in this directory.
    fn is_in_use(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(&self.path) else {
            return true;
        };
        let names = entries.flatten().map(|entry| entry.file_name());
        let slots = names.filter_map(|name| {
            let name = name.to_str()?.strip_suffix(SOCKET)?;
            name.parse().ok()
        });
        let mut in_use = false;
        for slot in slots {
            match self.connect(slot) {
                Err(Errno::CONNREFUSED | Errno::NOENT) => self.remove_socket(slot),
                _ => in_use = true,
            }
        }
        in_use
    }

    fn open_memory(&self) -> Result<Region, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.dir, MEMORY, flags, Mode::empty());
        let path = self.path.join(MEMORY);
        let file = file.map_err(|error| os_at("open", &path, error))?;
        let stat = fstat(&file).map_err(|error| os_at("inspect", &path, error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(DeviceError::Invalid("the fabric's memory is not a file"));
        }
        // A user that can write the file can truncate it, which would kill all processes that map
        // it.
        check_owner(&stat, &path)?;
        let len = usize::try_from(stat.st_size).unwrap_or(0);
        map(file, 0, len)
    }

    /// Creates the memory under another name, so that no process sees it incomplete.
    fn make_memory(&self, len: usize, options: FabricOptions) -> Result<FabricMemory, DeviceError> {
        let failed = |error| os_at("make the fabric's memory in", &self.path, error);
        let _ = unlinkat(&self.dir, DRAFT, AtFlags::empty());
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.dir, DRAFT, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let made = self.fill_memory(&file, len, options);
        if made.is_err() {
            let _ = unlinkat(&self.dir, DRAFT, AtFlags::empty());
        }
        made
    }

    fn fill_memory(
        &self,
        file: &OwnedFd,
        len: usize,
        options: FabricOptions,
    ) -> Result<FabricMemory, DeviceError> {
        let failed = |error| os_at("make the fabric's memory in", &self.path, error);
        let bytes = u64::try_from(len).map_err(|_| DeviceError::NoMemory)?;
        if bytes == 0 {
            return Err(DeviceError::Invalid("the fabric's memory is too small"));
        }
        check_file_size(bytes).map_err(|error| {
            DeviceError::os_at("make the fabric's memory in", &self.path, &error)
        })?;
        // A page that cannot be allocated on first access would kill the process.
        fallocate(file, FallocateFlags::empty(), 0, bytes).map_err(failed)?;
        let memory = FabricMemory::create(map(file, 0, len)?, options)?;
        renameat(&self.dir, DRAFT, &self.dir, MEMORY).map_err(failed)?;
        Ok(memory)
    }

    pub(super) fn socket_path(&self, slot: u16) -> PathBuf {
        self.path.join(socket_name(slot))
    }

    /// Relative to the open directory, because the length of a socket address is limited.
    fn address(&self, slot: u16) -> rustix::io::Result<SocketAddrUnix> {
        let dir = self.dir.as_raw_fd();
        SocketAddrUnix::new(format!("/proc/self/fd/{dir}/{}", socket_name(slot)))
            .or_else(|_| SocketAddrUnix::new(self.socket_path(slot)))
    }
}

fn check_owner(stat: &Stat, path: &Path) -> Result<(), DeviceError> {
    let (uid, mode) = (stat.st_uid, stat.st_mode & 0o7777);
    let path = path.display();
    let why = if uid != geteuid().as_raw() || is_ambiguous_user(uid) {
        format!("{path} belongs to user {uid}")
    } else if mode & 0o022 != 0 {
        format!("{path} can be changed by other users: mode {mode:04o}")
    } else {
        return Ok(());
    };
    Err(DeviceError::NotPermitted(why.into()))
}

fn seqpacket() -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn socket_name(slot: u16) -> String {
    format!("{slot}{SOCKET}")
}

const LOCK: &str = "lock";
const MEMORY: &str = "memory";
const DRAFT: &str = "memory.new";
const SOCKET: &str = ".sock";
/// Joining takes some milliseconds, mostly for allocating memory.
const LOCK_TRIES: u32 = 5000;
const LOCK_WAIT: Duration = Duration::from_millis(1);
