//! Where the cgroups of version 2 are.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::fstatfs;
use smc_ipc::cgroup::{Hierarchy, Mount};

use crate::error::SetupError;

/// The directory of a cgroup.
#[derive(Debug)]
pub(super) struct Cgroup {
    pub(super) path: PathBuf,
    directory: File,
}

impl Cgroup {
    /// The one in this directory.
    pub(super) fn open(path: &Path) -> Result<Self, SetupError> {
        let failed = SetupError::file("open the cgroup", path);
        let directory = File::open(path).map_err(failed)?;
        let path = path.to_owned();
        match fstatfs(&directory).is_ok_and(|fs| fs.f_type == CGROUP2_MAGIC) {
            true => Ok(Self { path, directory }),
            false => Err(SetupError::NotCgroup2 { path }),
        }
    }

    /// The one that this process is in. Sockets belong to the cgroup they were made in.
    pub(super) fn own() -> Result<Self, SetupError> {
        let mount = mount()?;
        let own = read("/proc/self/cgroup")?;
        let path = Hierarchy::V2.own(&own);
        let path = path.and_then(|path| mount.path_of(path));
        let mounted = mount.at;
        Self::open(&path.ok_or(SetupError::NoOwnCgroup { mounted })?)
    }

    /// The uppermost one that is visible.
    pub(super) fn root() -> Result<Self, SetupError> {
        Self::open(&mount()?.at)
    }

    /// The number by which the kernel names it.
    pub(super) fn id(&self) -> io::Result<u64> {
        Ok(self.directory.metadata()?.ino())
    }

    /// The path of a cgroup by its number, if it is visible.
    pub(super) fn find(id: u64) -> Option<PathBuf> {
        let mut to_visit = vec![mount().ok()?.at];
        for _ in 0..VISITED_MAX {
            let path = to_visit.pop()?;
            if fs::metadata(&path).is_ok_and(|found| found.ino() == id) {
                return Some(path);
            }
            let entries = fs::read_dir(&path).into_iter().flatten().flatten();
            let below = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            to_visit.extend(below.map(|entry| entry.path()));
        }
        None
    }
}

impl AsFd for Cgroup {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// The mount of version 2 that shows most.
fn mount() -> Result<Mount, SetupError> {
    let mounts = read("/proc/self/mountinfo")?;
    Mount::find(&mounts, Hierarchy::V2).ok_or(SetupError::NoCgroup2)
}

fn read(path: &str) -> Result<String, SetupError> {
    fs::read_to_string(path).map_err(SetupError::file("read", Path::new(path)))
}

const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// Cgroups searched for one by its number; far more than a host has.
const VISITED_MAX: usize = 100_000;
