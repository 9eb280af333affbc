//! The files of a directory: memory, sockets, lock.

use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, FlockOperation, Mode, OFlags, Stat, fallocate, flock, fstat,
    openat, renameat, unlinkat,
};
use rustix::io::Errno;
use smc_core::device::DeviceError;
use smc_core::mem::{Region, check_file_size};
use smc_ipc::passed::PeerSocket;
use smc_ipc::runtime_dir::{OpenDir, Publication};
use smc_ipc::{DirectoryProblem, Domain, is_ambiguous_user, is_own_user};

use crate::region::{map, os_at};
use crate::shared::{FabricMemory, FabricOptions};

/// An open directory.
#[derive(Debug)]
pub(super) struct Files(OpenDir);

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
        let opened = Domain::existing(path).open(path);
        opened.map(Self).map_err(|error| match error.problem {
            DirectoryProblem::Os(error) => DeviceError::Os(error.at(path)),
            DirectoryProblem::NotDirectory => os_at("open directory", path, Errno::NOTDIR),
            problem => not_permitted(path, problem),
        })
    }

    /// Prevents other devices from joining until the result is dropped.
    pub(super) fn lock(&self) -> Result<OwnedFd, DeviceError> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = openat(&self.0, LOCK, flags, Mode::RUSR | Mode::WUSR);
        let path = self.0.path().join(LOCK);
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
        let _ = unlinkat(&self.0, MEMORY_FILE, AtFlags::empty());
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
            let domain = Domain::existing(self.0.path());
            let publication =
                Publication::with_companion(domain, socket_name(slot), MEMORY_FILE)
                    .map_err(|error| DeviceError::os_at("listen in", self.0.path(), &error))?;
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
        self.0.connect(&socket_name(slot))
    }

    /// Removes the socket of a slot.
    pub(super) fn remove_socket(&self, slot: u16) {
        let _ = unlinkat(&self.0, socket_name(slot), AtFlags::empty());
    }

    /// Whether any process has a device in this directory.
    fn is_in_use(&self) -> bool {
        let Ok(entries) = std::fs::read_dir(self.0.path()) else {
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
        let file = openat(&self.0, MEMORY_FILE, flags, Mode::empty());
        let path = self.0.path().join(MEMORY_FILE);
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
        let (what, path) = ("make the fabric's memory in", self.0.path());
        let failed = |error| os_at(what, path, error);
        let bytes = u64::try_from(len).map_err(|_| DeviceError::NoMemory)?;
        if bytes == 0 {
            return Err(DeviceError::Invalid("the fabric's memory is too small"));
        }
        check_file_size(bytes).map_err(|error| DeviceError::os_at(what, path, &error))?;
        let remove_draft = || {
            let _ = unlinkat(&self.0, DRAFT, AtFlags::empty());
        };
        remove_draft();
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = openat(&self.0, DRAFT, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let fill = || {
            // A page that cannot be allocated on first access would kill the process.
            fallocate(&file, FallocateFlags::empty(), 0, bytes).map_err(failed)?;
            let memory = FabricMemory::create(map(&file, 0, len)?, options)?;
            renameat(&self.0, DRAFT, &self.0, MEMORY_FILE).map_err(failed)?;
            Ok(memory)
        };
        fill().inspect_err(|_| remove_draft())
    }

    pub(super) fn socket_path(&self, slot: u16) -> PathBuf {
        self.0.path().join(socket_name(slot))
    }
}

fn check_owner(stat: &Stat, path: &Path) -> Result<(), DeviceError> {
    let (uid, mode) = (stat.st_uid, stat.st_mode & 0o7777);
    if !is_own_user(uid) || is_ambiguous_user(uid) {
        Err(not_permitted(path, DirectoryProblem::Owner { uid }))
    } else if mode & 0o022 != 0 {
        Err(not_permitted(path, DirectoryProblem::Writable { mode }))
    } else {
        Ok(())
    }
}

fn not_permitted(path: &Path, problem: DirectoryProblem) -> DeviceError {
    DeviceError::NotPermitted(format!("{} {problem}", path.display()).into())
}

fn socket_name(slot: u16) -> String {
    format!("{slot}{SOCKET}")
}

const LOCK: &str = "lock";
const MEMORY_FILE: &str = "memory";
const DRAFT: &str = "memory.new";
const SOCKET: &str = ".sock";
/// Joining takes some milliseconds, mostly for allocating memory.
const LOCK_TRIES: u32 = 5000;
const LOCK_WAIT: Duration = Duration::from_millis(1);
