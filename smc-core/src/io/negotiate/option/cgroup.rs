//! Where the cgroups of version 2 are.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::fstatfs;

use super::error::SetupError;

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
        if fstatfs(&directory).is_ok_and(|fs| fs.f_type == CGROUP2_MAGIC) {
            let path = path.to_owned();
            Ok(Self { path, directory })
        } else {
            let path = path.to_owned();
            Err(SetupError::NotCgroup2 { path })
        }
    }

    /// The one that this process is in. Sockets belong to the cgroup they were made in.
    pub(super) fn own() -> Result<Self, SetupError> {
        let mount = Mount::find()?;
        let own = read("/proc/self/cgroup")?;
        let path = own.lines().find_map(|line| line.strip_prefix("0::"));
        let path = path.and_then(|path| mount.path_of(path));
        let mounted = mount.at;
        Self::open(&path.ok_or(SetupError::NoOwnCgroup { mounted })?)
    }

    /// The uppermost one that is visible.
    pub(super) fn root() -> Result<Self, SetupError> {
        Self::open(&Mount::find()?.at)
    }

    /// The number by which the kernel names it.
    pub(super) fn id(&self) -> io::Result<u64> {
        Ok(self.directory.metadata()?.ino())
    }

    /// The path of a cgroup by its number, if it is visible.
    pub(super) fn find(id: u64) -> Option<PathBuf> {
        let mut to_visit = vec![Mount::find().ok()?.at];
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

/// A mounted hierarchy, or a part of one.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// The cgroup that is mounted.
    root: PathBuf,
    at: PathBuf,
}

impl Mount {
    fn find() -> Result<Self, SetupError> {
        let mounts = read("/proc/self/mountinfo")?;
        let mut found: Vec<_> = mounts.lines().filter_map(Self::parse).collect();
        // The one that shows most.
        found.sort_by_key(|mount| mount.root.as_os_str().len());
        found.into_iter().next().ok_or(SetupError::NoCgroup2)
    }

    /// A line of `/proc/self/mountinfo`, if it is about cgroups of version 2.
    fn parse(line: &str) -> Option<Self> {
        let (mount, device) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3).map(unescape);
        let (root, at) = (mount.next()?, mount.next()?);
        device.starts_with("cgroup2 ").then_some(Self {
            root: root.into(),
            at: at.into(),
        })
    }

    /// Where a cgroup of the hierarchy is to be seen.
    fn path_of(&self, cgroup: &str) -> Option<PathBuf> {
        let cgroup = Path::new(cgroup).strip_prefix(&self.root).ok()?;
        let is_below = !cgroup.starts_with("..");
        is_below.then(|| self.at.join(cgroup))
    }
}

/// Blanks and the like are `\` and three octal digits in there.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_at_checked(3).unwrap_or(("", part));
        if let Ok(byte) = u8::from_str_radix(code, 8) {
            plain.push(byte.into());
        }
        plain.push_str(rest);
    }
    plain
}

fn read(path: &str) -> Result<String, SetupError> {
    fs::read_to_string(path).map_err(SetupError::file("read", Path::new(path)))
}

const CGROUP2_MAGIC: rustix::fs::FsWord = 0x6367_7270;

/// Cgroups looked at to find one by its number; far more than a host has.
const VISITED_MAX: usize = 100_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_version_2_are_found() {
        let line = r"31 25 0:27 / /sys/fs/cgroup/uni\040fied rw,nosuid shared:9 - cgroup2 none rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.at, Path::new("/sys/fs/cgroup/uni fied"));
        assert_eq!(mount.path_of("/").unwrap(), mount.at.join(""));
        assert_eq!(mount.path_of("/a/b").unwrap(), mount.at.join("a/b"));
        assert_eq!(mount.path_of("/../a"), None);
        let v1 = "32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(Mount::parse(v1), None);
        assert_eq!(Mount::parse(""), None);
    }

    #[test]
    fn a_part_of_the_hierarchy_may_be_mounted() {
        let line = "31 25 0:27 /pod/7 /sys/fs/cgroup rw - cgroup2 none rw";
        let mount = Mount::parse(line).unwrap();
        let inside = mount.path_of("/pod/7/app").unwrap();
        assert_eq!(inside, Path::new("/sys/fs/cgroup/app"));
        assert_eq!(mount.path_of("/pod/8"), None);
    }
}
