//! Pinning the program for all users, and removing it again.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, fstat, open, openat, unlinkat};
use rustix::io::Errno;
use smc_ipc::runtime_dir::by_fd;

use crate::bpf::{self, LinkInfo, Map};
use crate::cgroup::Cgroup;
use crate::error::SetupError;
use crate::{SynOption, is_missing, program};

/// Lets processes without privileges send the option: what `smc setup` does.
///
/// Loads the program, attaches it to a cgroup, and leaves its map in a bpf file system, where
/// [`SynOption::pinned`] finds it. All of it lasts until [`Setup::undo`] or the next boot. It takes
/// root, or `CAP_BPF`, `CAP_NET_ADMIN` and the right to write there.
///
/// What a map may be used for is to mark one's own sockets and to read what became of them, so all
/// users may have it. They cannot freeze it (`BPF_MAP_FREEZE`): before Linux 6.5 that takes
/// `CAP_BPF`, and from 6.2 on the kernel refuses it for this map.
#[derive(Clone, Debug)]
pub struct Setup {
    cgroup: Option<PathBuf>,
    directory: PathBuf,
    mode: u32,
    group: Option<u32>,
}

impl Setup {
    /// Where it is pinned by default.
    pub const DIRECTORY: &str = "/sys/fs/bpf/smc";

    /// For all processes of all users, pinned in [`Setup::DIRECTORY`].
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// For processes of this cgroup and those below it only.
    #[must_use]
    pub fn cgroup(mut self, path: impl Into<PathBuf>) -> Self {
        self.cgroup = Some(path.into());
        self
    }

    /// Pins in this directory of a bpf file system. It is made unless it is there; it has to belong
    /// to root or to the user who installs, and no other user may write to it.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.directory = path.into();
        self
    }

    /// Sets who may use the map, 0666 by default. Users have to be able to read and write it.
    #[must_use]
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode & 0o777;
        self
    }

    /// Sets the group of the map.
    #[must_use]
    pub fn group(mut self, gid: u32) -> Self {
        self.group = Some(gid);
        self
    }

    /// Installs the program. If it is there already, only mode and group are set.
    ///
    /// # Errors
    ///
    /// What is missing, or in the way. Nothing has changed then.
    pub fn install(&self) -> Result<Installed, SetupError> {
        let cgroup = match &self.cgroup {
            Some(path) => Cgroup::open(path)?,
            None => Cgroup::root()?,
        };
        require_bpffs(&self.directory)?;
        let is_new = !self.is_there(&cgroup)?;
        if is_new {
            refuse_second(&cgroup)?;
            self.pin(&cgroup)?;
        }
        self.permit(&Directory::open(&self.directory)?)?;
        Ok(Installed {
            is_new,
            status: self.status()?,
        })
    }

    /// The status. Contains less for users who may not see the program.
    ///
    /// # Errors
    ///
    /// [`SetupError::NotInstalled`] if nothing is there, or [`SetupError::NoBpffs`] if nothing can
    /// be; if it cannot be read.
    pub fn status(&self) -> Result<Status, SetupError> {
        let map = self.map();
        let found = match fs::metadata(&map) {
            Ok(found) => found,
            Err(error) if is_missing(&error) => {
                require_bpffs(&self.directory)?;
                let directory = self.directory.clone();
                return Err(SetupError::NotInstalled { directory });
            }
            Err(error) => return Err(SetupError::file("look at", &map)(error)),
        };
        let link = match self.link() {
            Ok(link) => link.map(|(_, info)| info),
            Err(SetupError::NotPermitted { .. }) => None,
            Err(error) => return Err(error),
        };
        let cgroup = link.as_ref().and_then(|link| Cgroup::find(link.cgroup));
        let mut others = Vec::new();
        if let (Some(link), Some(path)) = (&link, &cgroup) {
            others = bpf::programs(Cgroup::open(path)?.as_fd()).unwrap_or_default();
            others.retain(|id| *id != link.program);
        }
        let effective = match SynOption::pinned_in(&self.directory) {
            Ok(option) => option.is_effective().ok().flatten(),
            Err(SetupError::NotAttached { .. }) => Some(false),
            Err(_) => None,
        };
        let is_frozen = open_map(&self.directory)
            .and_then(|map| bpf::is_frozen(&map).map_err(SetupError::file("look at", &self.map())));
        Ok(Status {
            is_frozen: is_frozen.ok(),
            mode: found.mode() & 0o777,
            uid: found.uid(),
            gid: found.gid(),
            program: link.as_ref().map(|link| link.program),
            is_attached: link.map(|link| link.cgroup != 0),
            cgroup,
            others,
            is_effective: effective,
            closed: closed_directory(&map, found.mode()),
            map,
        })
    }

    /// Ends the program and removes what is pinned. Returns whether there was anything.
    ///
    /// Connections go on as they are. Processes that use the map make plain TCP from now on.
    ///
    /// # Errors
    ///
    /// [`SetupError::Foreign`] if something else is pinned there; [`SetupError::UnsafeDirectory`];
    /// if it cannot be removed.
    pub fn undo(&self) -> Result<bool, SetupError> {
        let directory = match Directory::open(&self.directory) {
            Err(SetupError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                return Ok(false);
            }
            directory => directory?,
        };
        let link = self.link()?;
        if let Some((link, info)) = &link {
            let program = bpf::program(info.program).and_then(|fd| bpf::program_info(&fd));
            let is_ours = info.cgroup == 0 || program.is_ok_and(|it| it.is_called(program::NAME));
            if !info.is_sock_ops() || !is_ours {
                let path = self.link_path();
                return Err(SetupError::Foreign { path });
            }
            let path = self.link_path();
            bpf::detach(link).map_err(SetupError::file("detach", &path))?;
        }
        let map = directory.remove(MAP)?;
        let link = directory.remove(LINK)?;
        directory.remove_itself();
        Ok(map || link)
    }

    /// Whether it is installed for this cgroup. Clears away what is left of a broken one.
    fn is_there(&self, cgroup: &Cgroup) -> Result<bool, SetupError> {
        let map = match open_map(&self.directory) {
            // A map that is frozen is of no use any more.
            Ok(map) => Some(map).filter(|map| !bpf::is_frozen(map).unwrap_or(false)),
            Err(SetupError::NotInstalled { .. }) => None,
            Err(error) => return Err(error),
        };
        let link = self.link()?.filter(|(_, info)| info.cgroup != 0);
        let (Some(map), Some((_, info))) = (map, link) else {
            self.undo()?;
            return Ok(false);
        };
        let failed = SetupError::file("look at", &cgroup.path);
        if info.cgroup != cgroup.id().map_err(failed)? {
            let directory = self.directory.clone();
            return Err(SetupError::OtherCgroup { directory });
        }
        // Programs of the same version have the same tag.
        let pinned = bpf::program(info.program).and_then(|fd| bpf::program_info(&fd));
        let own = bpf::program_info(&load_program(&map)?);
        match (pinned, own) {
            (Ok(pinned), Ok(own)) if pinned.tag != own.tag => {
                let path = self.link_path();
                Err(SetupError::Foreign { path })
            }
            _ => Ok(true),
        }
    }

    fn pin(&self, cgroup: &Cgroup) -> Result<(), SetupError> {
        let created = DirBuilder::new()
            .recursive(true)
            .mode(0o755)
            .create(&self.directory);
        created.map_err(SetupError::file("make", &self.directory))?;
        let directory = Directory::open(&self.directory)?;
        let (map, link) = load(cgroup)?;
        // The map last: a process that finds it finds a program that runs.
        let (link_path, map_path) = (self.link_path(), self.map());
        bpf::pin(&link, &directory.by_fd(LINK)).map_err(SetupError::file("pin", &link_path))?;
        bpf::pin(&map, &directory.by_fd(MAP)).map_err(|error| {
            let _ = directory.remove(LINK);
            SetupError::file("pin", &map_path)(error)
        })
    }

    fn permit(&self, directory: &Directory<'_>) -> Result<(), SetupError> {
        let path = self.map();
        // The file that has the name now: no link is followed, neither here nor below.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let map = openat(&directory.fd, MAP, flags, Mode::empty());
        let map = map.map_err(|error| SetupError::file("open", &path)(error.into()))?;
        let map = by_fd(&map);
        if self.group.is_some() {
            let changed = std::os::unix::fs::chown(&map, None, self.group);
            changed.map_err(SetupError::file("change the group of", &path))?;
        }
        let changed = fs::set_permissions(&map, Permissions::from_mode(self.mode));
        changed.map_err(SetupError::file("change the mode of", &path))
    }

    /// The link that is pinned, if there is one.
    fn link(&self) -> Result<Option<(OwnedFd, LinkInfo)>, SetupError> {
        let path = self.link_path();
        let link = match bpf::open(&path) {
            Ok(link) => link,
            Err(error) if is_missing(&error) => return Ok(None),
            Err(error) => return Err(not_opened(&path, error)),
        };
        let info = bpf::link_info(&link).map_err(SetupError::file("look at", &path))?;
        Ok(Some((link, info)))
    }

    fn map(&self) -> PathBuf {
        self.directory.join(MAP)
    }

    fn link_path(&self) -> PathBuf {
        self.directory.join(LINK)
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            cgroup: None,
            directory: Self::DIRECTORY.into(),
            mode: 0o666,
            group: None,
        }
    }
}

/// The result of [`Setup::install`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Installed {
    /// Whether it was not there before.
    pub is_new: bool,
    /// The status now.
    pub status: Status,
}

/// What is pinned.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Status {
    /// The file that processes open.
    pub map: PathBuf,
    /// Its permissions.
    pub mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The program's number in the kernel, if this user may see it.
    pub program: Option<u32>,
    /// Whether the program is attached to a cgroup, if this user may see it.
    pub is_attached: Option<bool>,
    /// The directory of that cgroup, if it is visible.
    pub cgroup: Option<PathBuf>,
    /// Numbers of other `sock_ops` programs that run for the sockets of this cgroup.
    pub others: Vec<u32>,
    /// Whether the program runs for sockets of this process, if that can be tried.
    pub is_effective: Option<bool>,
    /// Whether the map was frozen, so that no socket can be marked, if this user may use it.
    /// [`Setup::install`] makes a new one.
    pub is_frozen: Option<bool>,
    /// A directory on the way to the map that keeps out users whom the map itself lets in.
    pub closed: Option<PathBuf>,
}

/// A directory in which only root and this user can put, rename or remove something.
struct Directory<'a> {
    path: &'a Path,
    fd: OwnedFd,
    /// The directory in which it was opened, by the last part of its path.
    above: OwnedFd,
}

impl<'a> Directory<'a> {
    fn open(path: &'a Path) -> Result<Self, SetupError> {
        let failed = |error: Errno| SetupError::file("open", path)(error.into());
        let name = path.file_name().ok_or_else(|| failed(Errno::INVAL))?;
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or_else(|| Path::new("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = open(above, flags, Mode::empty()).map_err(failed)?;
        let flags = flags | OFlags::NOFOLLOW;
        let fd = openat(&above, name, flags, Mode::empty()).map_err(failed)?;
        let found = fstat(&fd).map_err(failed)?;
        let is_own = [0, rustix::process::geteuid().as_raw()].contains(&found.st_uid);
        if !is_own || found.st_mode & 0o022 != 0 {
            return Err(SetupError::UnsafeDirectory {
                path: path.to_owned(),
                uid: found.st_uid,
                mode: found.st_mode & 0o7777,
            });
        }
        Ok(Self { path, fd, above })
    }

    /// Leads to a name in this directory, whatever its own path leads to now.
    fn by_fd(&self, name: &str) -> PathBuf {
        by_fd(&self.fd).join(name)
    }

    /// Removes it from the directory above it, whatever the path leads to now. It stays if there is
    /// something in it.
    fn remove_itself(&self) {
        if let Some(name) = self.path.file_name() {
            let _ = unlinkat(&self.above, name, AtFlags::REMOVEDIR);
        }
    }

    /// Whether there was such a name.
    fn remove(&self, name: &str) -> Result<bool, SetupError> {
        match unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => {
                let path = self.path.join(name);
                Err(SetupError::file("remove", &path)(error.into()))
            }
        }
    }
}

/// The map that is pinned in a directory.
pub(super) fn open_map(directory: &Path) -> Result<Map, SetupError> {
    let path = directory.join(MAP);
    match bpf::open_map(&path, program::NAME) {
        Ok(Some(map)) => Ok(map),
        Ok(None) => Err(SetupError::Foreign { path }),
        Err(error) if is_missing(&error) => Err(SetupError::NotInstalled {
            directory: directory.to_owned(),
        }),
        Err(error) => Err(not_opened(&path, error)),
    }
}

/// Refuses to go on if an instance runs for a cgroup already.
pub(super) fn refuse_second(cgroup: &Cgroup) -> Result<(), SetupError> {
    let ids = bpf::programs(cgroup.as_fd());
    for id in ids.map_err(SetupError::privileged("look at programs of a cgroup"))? {
        // Without permission to open it this is unknown; two instances are harmless.
        let found = bpf::program(id).and_then(|fd| bpf::program_info(&fd));
        if found.is_ok_and(|found| found.is_called(program::NAME)) {
            return Err(SetupError::AlreadyAttached {
                cgroup: cgroup.path.clone(),
                program: id,
            });
        }
    }
    Ok(())
}

/// Makes a map and a program, and attaches it.
pub(super) fn load(cgroup: &Cgroup) -> Result<(Map, OwnedFd), SetupError> {
    let map = bpf::create_map(program::NAME);
    let map = map.map_err(SetupError::privileged("make a map for sockets"))?;
    let program = load_program(&map)?;
    let link = bpf::attach(&program, cgroup.as_fd());
    let link = link.map_err(SetupError::privileged("attach a program to a cgroup"))?;
    Ok((map, link))
}

fn load_program(map: &Map) -> Result<OwnedFd, SetupError> {
    let code = program::code(map.as_fd());
    bpf::load_program(&code, program::NAME).map_err(|(error, log)| match log.is_empty() {
        true => SetupError::privileged("load a program for sockets")(error),
        false => SetupError::Rejected {
            log: last_lines(&log),
        },
    })
}

fn not_opened(path: &Path, error: io::Error) -> SetupError {
    match Errno::from_io_error(&error) {
        Some(Errno::PERM | Errno::ACCESS) => SetupError::NotPermitted {
            doing: "open what is pinned",
            needs: "its mode keeps this user out, or that of a directory on the way does",
        },
        _ => SetupError::file("open", path)(error),
    }
}

/// Objects can be pinned below the nearest directory that exists, or nowhere.
fn require_bpffs(directory: &Path) -> Result<(), SetupError> {
    let existing = directory.ancestors().find(|path| path.exists());
    let path = existing.unwrap_or(directory);
    match rustix::fs::statfs(path) {
        Ok(found) if found.f_type == BPFFS_MAGIC => Ok(()),
        _ => Err(SetupError::NoBpffs {
            path: path.to_owned(),
        }),
    }
}

/// The first directory that others cannot pass, if the file is for others.
fn closed_directory(file: &Path, mode: u32) -> Option<PathBuf> {
    let mut above: Vec<_> = file.ancestors().skip(1).collect();
    above.reverse();
    let is_closed = |path: &&Path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o001 == 0);
    let closed = above.into_iter().find(is_closed)?;
    (mode & 0o006 == 0o006).then(|| closed.to_owned())
}

/// The end of the verifier's log, where the reason is.
fn last_lines(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let from = lines.len().saturating_sub(LOG_LINES);
    lines.get(from..).unwrap_or_default().join("; ")
}

const MAP: &str = "map";
const LINK: &str = "link";

const BPFFS_MAGIC: rustix::fs::FsWord = 0xcafe_4a11;

const LOG_LINES: usize = 6;

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn no_directory_elsewhere_is_removed_when_a_user_changes_the_path_meanwhile() {
        let world = TempDir::new().unwrap();
        let at = |path: &str| world.path().join(path);
        for path in ["theirs/smc", "elsewhere/smc"] {
            let made = DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(at(path));
            made.unwrap();
        }
        let path = at("theirs/smc");
        let directory = Directory::open(&path).unwrap();
        fs::rename(at("theirs"), at("renamed")).unwrap();
        symlink(at("elsewhere"), at("theirs")).unwrap();
        directory.remove_itself();
        assert!(at("elsewhere/smc").exists());
        assert!(!at("renamed/smc").exists());
    }

    #[test]
    fn a_directory_in_which_something_else_is_pinned_is_not_removed() {
        let world = TempDir::new().unwrap();
        fs::write(world.path().join("other"), "").unwrap();
        Directory::open(world.path()).unwrap().remove_itself();
        assert!(world.path().exists());
    }
}
