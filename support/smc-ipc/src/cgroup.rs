//! The cgroups of this process, and their memory limits.

use std::fs;
use std::path::{Path, PathBuf};

use crate::OsError;

/// A mounted hierarchy of cgroups, or a part of one.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// Which one.
    pub hierarchy: Hierarchy,
    /// The cgroup that is mounted.
    root: PathBuf,
    /// Its mount point.
    pub at: PathBuf,
}

/// Which hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hierarchy {
    /// The one of version 2.
    V2,
    /// The one of the memory controller of version 1.
    V1Memory,
}

impl Mount {
    /// The mount of a hierarchy with the shortest root, by the text of `/proc/self/mountinfo`.
    #[must_use]
    pub fn find(mounts: &str, hierarchy: Hierarchy) -> Option<Self> {
        let mounts = mounts.lines().filter_map(Self::parse);
        mounts
            .filter(|mount| mount.hierarchy == hierarchy)
            .min_by_key(|mount| mount.root.as_os_str().len())
    }

    fn parse(line: &str) -> Option<Self> {
        let (mount, device) = line.split_once(" - ")?;
        let mut mount = mount.split(' ').skip(3).map(unescape);
        let (root, at) = (mount.next()?, mount.next()?);
        let mut device = device.split(' ');
        let hierarchy = match (device.next()?, device.nth(1)) {
            ("cgroup2", _) => Hierarchy::V2,
            ("cgroup", Some(options)) if options.split(',').any(|it| it == "memory") => {
                Hierarchy::V1Memory
            }
            _ => return None,
        };
        Some(Self {
            hierarchy,
            root: root.into(),
            at: at.into(),
        })
    }

    /// The path of a cgroup of the hierarchy.
    #[must_use]
    pub fn path_of(&self, cgroup: &str) -> Option<PathBuf> {
        let cgroup = Path::new(cgroup).strip_prefix(&self.root).ok()?;
        let is_below = !cgroup.starts_with("..");
        is_below.then(|| self.at.join(cgroup))
    }
}

impl Hierarchy {
    /// The cgroup of this process, by the text of `/proc/self/cgroup`.
    #[must_use]
    pub fn own(self, cgroups: &str) -> Option<&str> {
        cgroups.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(':')?;
            let is_ours = match self {
                Self::V2 => controllers.is_empty(),
                Self::V1Memory => controllers.split(',').any(|it| it == "memory"),
            };
            is_ours.then_some(path)
        })
    }

    /// The file with the limit on memory.
    fn limit_file(self) -> &'static str {
        match self {
            Self::V2 => "memory.max",
            Self::V1Memory => "memory.limit_in_bytes",
        }
    }
}

/// The memory in bytes that this process may use at most: that of the machine, or the lowest limit
/// of its cgroups. `None` if neither can be read.
///
/// `root` is the root of the file system: `/` except in tests.
///
/// # Errors
///
/// For lack of descriptors or memory, which passes.
pub fn memory(root: &Path) -> Result<Option<u64>, OsError> {
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let (mounts, cgroups) = (
        read(&below(Path::new("/proc/self/mountinfo")))?,
        read(&below(Path::new("/proc/self/cgroup")))?,
    );
    let mut least = machine(&read(&below(Path::new("/proc/meminfo")))?);
    for hierarchy in [Hierarchy::V2, Hierarchy::V1Memory] {
        let Some(mount) = Mount::find(&mounts, hierarchy) else {
            continue;
        };
        let own = hierarchy.own(&cgroups).and_then(|own| mount.path_of(own));
        // A container may see its own cgroup as the root of the mount, by another path.
        let own = own.filter(|own| below(own).is_dir());
        let own = own.unwrap_or_else(|| mount.at.clone());
        for cgroup in own.ancestors() {
            if !cgroup.starts_with(&mount.at) {
                break;
            }
            let limit = read(&below(cgroup).join(hierarchy.limit_file()))?;
            // `max` is no number.
            least = least.into_iter().chain(limit.trim().parse().ok()).min();
        }
    }
    Ok(least)
}

/// The text of a file; none if it cannot be read.
fn read(path: &Path) -> Result<String, OsError> {
    fs::read_to_string(path).or_else(|error| {
        let error = OsError::new("read", &error).at(path);
        match error.is_lack() {
            true => Err(error),
            false => Ok(String::new()),
        }
    })
}

/// The memory of the machine, by the text of `/proc/meminfo`.
fn machine(meminfo: &str) -> Option<u64> {
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// Decodes blanks and other special characters, which are `\` and three octal digits.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_of_version_2_are_found() {
        let line = r"31 25 0:27 / /sys/fs/cgroup/uni\040fied rw,nosuid shared:9 - cgroup2 none rw";
        let mount = Mount::parse(line).unwrap();
        assert_eq!(mount.hierarchy, Hierarchy::V2);
        assert_eq!(mount.at, Path::new("/sys/fs/cgroup/uni fied"));
        assert_eq!(mount.path_of("/").unwrap(), mount.at.join(""));
        assert_eq!(mount.path_of("/a/b").unwrap(), mount.at.join("a/b"));
        assert_eq!(mount.path_of("/../a"), None);
        let other = "32 25 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu";
        assert_eq!(Mount::parse(other), None);
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

    /// A file system with these files.
    fn files(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const MACHINE: (&str, &str) = ("proc/meminfo", "MemTotal:        1000 kB\nMemFree: 1 kB\n");
    const V2: &str = "31 25 0:27 / /sys/fs/cgroup rw - cgroup2 none rw\n";
    const V1: &str = "32 25 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n";

    #[test]
    fn without_cgroups_the_machine_is_the_limit() {
        assert_eq!(memory(files(&[MACHINE]).path()).unwrap(), Some(1_024_000));
        assert_eq!(memory(files(&[]).path()).unwrap(), None);
    }

    #[test]
    fn the_least_limit_of_a_cgroup_and_those_above_counts() {
        let own = ("proc/self/cgroup", "0::/pod/app\n");
        let mounts = ("proc/self/mountinfo", V2);
        let with = |pod, app| {
            let files = files(&[
                MACHINE,
                own,
                mounts,
                ("sys/fs/cgroup/pod/memory.max", pod),
                ("sys/fs/cgroup/pod/app/memory.max", app),
            ]);
            memory(files.path()).unwrap()
        };
        assert_eq!(with("max\n", "500\n"), Some(500));
        assert_eq!(with("400\n", "500\n"), Some(400));
        assert_eq!(with("max\n", "max\n"), Some(1_024_000));
        assert_eq!(with("9999999999\n", "max\n"), Some(1_024_000));
    }

    #[test]
    fn limits_of_version_1_count_where_it_is_mounted() {
        let files = files(&[
            MACHINE,
            ("proc/self/cgroup", "4:memory:/app\n3:cpu,cpuacct:/\n0::/\n"),
            ("proc/self/mountinfo", &(V2.to_owned() + V1)),
            (
                "sys/fs/cgroup/memory/memory.limit_in_bytes",
                "9223372036854771712\n",
            ),
            ("sys/fs/cgroup/memory/app/memory.limit_in_bytes", "700\n"),
        ]);
        assert_eq!(memory(files.path()).unwrap(), Some(700));
    }

    #[test]
    fn the_root_of_the_mount_counts_where_the_own_path_is_not_visible() {
        let files = files(&[
            MACHINE,
            ("proc/self/cgroup", "0::/docker/0123\n"),
            ("proc/self/mountinfo", V2),
            ("sys/fs/cgroup/memory.max", "600\n"),
        ]);
        assert_eq!(memory(files.path()).unwrap(), Some(600));
    }
}
