//! Opening and making the directories of a domain.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, chmod, fstat, mkdirat, openat, statat};
use rustix::io::Errno;

use super::domain::{Domain, Locations, check_mode, in_session, own, system, user_session};
use super::error::{DirectoryProblem, RuntimeDirError};
use super::lookup::open_name;
use super::socket::by_fd;
use super::user_dir::UserDirs;
use crate::thread::lock;

/// A directory that was opened and checked.
#[derive(Debug)]
pub struct OpenDir {
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    /// Under a random name, as another user has taken the usual one.
    pub(super) is_alternate: bool,
    mode: u32,
}

/// From where a directory is opened.
pub(super) struct Origin<'a> {
    /// The directory of a shared domain.
    base: Option<OwnedFd>,
    /// The rest of the path.
    name: &'a Path,
}

impl Origin<'_> {
    fn fd(&self) -> BorrowedFd<'_> {
        self.base.as_ref().map_or(CWD, AsFd::as_fd)
    }
}

impl OpenDir {
    /// Its path when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// For its files. It cannot be read.
impl AsFd for OpenDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Domain {
    /// Whether the files of the directory `path` may be used.
    ///
    /// # Errors
    ///
    /// When its path is not absolute, it does not exist, is not a directory, belongs to another
    /// user than the one whose it is to be, or others may write to it.
    pub fn check(&self, path: &Path) -> Result<Metadata, RuntimeDirError> {
        if let Locations::Shared(base) = &*self.locations {
            let found = std::fs::metadata(base);
            let found = found.map_err(|error| inspect_failed(base, &error))?;
            self.check_base(base, found.uid(), found.mode())?;
        }
        self.inspect(path)
    }

    /// As [`Domain::check`], without the directory of a shared domain.
    pub(super) fn inspect(&self, path: &Path) -> Result<Metadata, RuntimeDirError> {
        self.check_absolute(path)?;
        let found = match *self.locations {
            Locations::One {
                must_exist: false, ..
            } => std::fs::metadata(path),
            _ => std::fs::symlink_metadata(path),
        };
        let found = found.map_err(|error| inspect_failed(path, &error))?;
        self.check_own(path, found.uid(), found.mode())?;
        Ok(found)
    }

    /// Refuses a path that leads elsewhere in a process with another working directory, unless the
    /// directory has to be there.
    fn check_absolute(&self, path: &Path) -> Result<(), RuntimeDirError> {
        match *self.locations {
            Locations::One {
                must_exist: true, ..
            } => Ok(()),
            _ if path.is_absolute() => Ok(()),
            _ => Err(RuntimeDirError::new(path, DirectoryProblem::Relative)),
        }
    }

    /// Opens a directory that is there and may be used.
    ///
    /// # Errors
    ///
    /// As [`Domain::check`].
    pub fn open(&self, path: &Path) -> Result<OpenDir, RuntimeDirError> {
        self.open_at(&self.origin(path)?, path)
    }

    pub(super) fn origin<'a>(&self, path: &'a Path) -> Result<Origin<'a>, RuntimeDirError> {
        self.check_absolute(path)?;
        let Locations::Shared(base) = &*self.locations else {
            return Ok(Origin {
                base: None,
                name: path,
            });
        };
        let failed = |operation| move |errno| RuntimeDirError::os(base, operation, errno);
        let fd = match openat(CWD, base, DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR) => {
                let problem = DirectoryProblem::NotDirectory;
                return Err(RuntimeDirError::new(base, problem));
            }
            opened => opened.map_err(failed("open"))?,
        };
        let stat = fstat(&fd).map_err(failed("inspect"))?;
        self.check_base(base, stat.st_uid, stat.st_mode)?;
        Ok(Origin {
            base: Some(fd),
            name: path.file_name().map_or(path, Path::new),
        })
    }

    pub(super) fn open_at(
        &self,
        origin: &Origin<'_>,
        path: &Path,
    ) -> Result<OpenDir, RuntimeDirError> {
        let flags = match *self.locations {
            // One that was given may be a link.
            Locations::One {
                must_exist: false, ..
            } => DIRECTORY,
            // Others can make links in /tmp, in a shared directory, and perhaps above one that is
            // to be there.
            _ => DIRECTORY | OFlags::NOFOLLOW,
        };
        let failed = |operation| move |errno| RuntimeDirError::os(path, operation, errno);
        let opened = match &origin.base {
            Some(base) => open_name(base.as_fd(), origin.name, flags),
            None => openat(CWD, origin.name, flags, Mode::empty()),
        };
        let fd = match opened {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                // With the owner of the file or link, if that is another user.
                let found = statat(origin.fd(), origin.name, AtFlags::SYMLINK_NOFOLLOW);
                let found = found.map_err(failed("inspect"))?;
                self.check_own(path, found.st_uid, found.st_mode)?;
                let problem = DirectoryProblem::NotDirectory;
                return Err(RuntimeDirError::new(path, problem));
            }
            Err(errno) => return Err(failed("open")(errno)),
        };
        let stat = fstat(&fd).map_err(failed("inspect"))?;
        self.check_own(path, stat.st_uid, stat.st_mode)?;
        Ok(OpenDir {
            path: path.to_owned(),
            fd,
            is_alternate: false,
            mode: stat.st_mode,
        })
    }

    /// The directories of the own user that are there and may be used.
    pub(super) fn own_directories(&self) -> impl Iterator<Item = OpenDir> {
        let opened = self
            .search_paths_of(own())
            .into_iter()
            .map(|path| self.open(&path));
        opened.filter_map(Result::ok)
    }

    /// Makes and opens the directories to publish in; at least one.
    pub(super) fn open_to_publish(
        &self,
        alternate: Option<&Path>,
    ) -> Result<Vec<OpenDir>, RuntimeDirError> {
        match &*self.locations {
            Locations::One {
                path,
                must_exist: true,
            } => Ok(vec![self.open(path)?]),
            Locations::One { path, .. } => Ok(vec![self.make_and_open(path)?]),
            Locations::Shared(base) => Ok(vec![
                self.open_user_dir(UserDirs::in_shared(base), alternate)?,
            ]),
            Locations::Standard { session, run, tmp } => {
                let user_dir = || self.open_user_dir(UserDirs::in_tmp(tmp), alternate);
                self.open_standard(session.as_deref(), run, user_dir)
            }
        }
    }

    fn open_standard(
        &self,
        session: Option<&Path>,
        run: &Path,
        open_user_dir: impl FnOnce() -> Result<OpenDir, RuntimeDirError>,
    ) -> Result<Vec<OpenDir>, RuntimeDirError> {
        if let Ok(dir) = self.open_system(run) {
            return Ok(vec![dir]);
        }
        let mut dirs = Vec::new();
        if let Some(session) = session {
            dirs.extend(self.open_in_session(&in_session(session)));
        }
        let user_session = user_session(run);
        if dirs.iter().any(|dir: &OpenDir| dir.path == user_session) {
            return Ok(dirs);
        }
        match self.open_in_session(&user_session) {
            Ok(dir) => dirs.push(dir),
            Err(_) => match open_user_dir() {
                Ok(dir) => dirs.push(dir),
                Err(error) if dirs.is_empty() => return Err(error),
                Err(_) => {}
            },
        }
        Ok(dirs)
    }

    fn open_system(&self, run: &Path) -> Result<OpenDir, RuntimeDirError> {
        let found = std::fs::symlink_metadata(run);
        let found = found.map_err(|error| inspect_failed(run, &error))?;
        check_mode(run, found.uid(), found.mode(), found.uid() == 0, false)?;
        let path = system(run);
        // Others may not make it, and an attempt takes the lock of the directory all the same.
        match own() {
            0 => self.make_and_open(&path),
            _ => self.open(&path),
        }
    }

    fn open_in_session(&self, path: &Path) -> Result<OpenDir, RuntimeDirError> {
        // The session of another user may have been inherited, through `sudo` and the like.
        self.open(path.parent().unwrap_or(path))?;
        self.make_and_open(path)
    }

    /// The own directory in one that others can write to.
    ///
    /// `alternate`: the directory with a random name that is used already and need not be searched.
    fn open_user_dir(
        &self,
        user_dirs: UserDirs<'_>,
        alternate: Option<&Path>,
    ) -> Result<OpenDir, RuntimeDirError> {
        let taken = match self.make_and_open(&user_dirs.path(own())) {
            Ok(dir) => return Ok(dir),
            // Others would not search another one.
            Err(error) if matches!(error.problem, DirectoryProblem::Closed { .. }) => {
                return Err(error);
            }
            Err(error) => error,
        };
        let used = alternate.and_then(|path| self.open(path).ok());
        let existing = used.or_else(|| {
            let alternates = self.find_alternates(user_dirs, |uid| uid == own());
            let mut opened = alternates
                .iter()
                .filter_map(|(_, path)| self.open(path).ok());
            opened.next()
        });
        let alternate = existing.or_else(|| {
            *lock(&self.alternates) = None;
            self.make_and_open(&user_dirs.new_alternate(own())?).ok()
        });
        let alternate = alternate.map(|dir| OpenDir {
            is_alternate: true,
            ..dir
        });
        // With the owner of the existing directory, which an administrator can change.
        alternate.ok_or(taken)
    }

    /// Directories above it are not made: their mode and owner are for the user to decide, and a
    /// path that was misspelt is an error.
    ///
    /// What is there is opened without an attempt to make it: that takes the lock of the directory
    /// above, which any user who may read that one can hold without end.
    fn make_and_open(&self, path: &Path) -> Result<OpenDir, RuntimeDirError> {
        let origin = self.origin(path)?;
        let dir = match self.open_at(&origin, path) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                #[cfg(test)]
                ATTEMPTS.lock().unwrap().push(path.to_owned());
                let mode = match *self.locations {
                    Locations::Shared(_) => Mode::RWXU.union(MADE_HERE),
                    _ => Mode::RWXU,
                };
                match mkdirat(origin.fd(), origin.name, mode) {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(RuntimeDirError::os(path, "make", errno)),
                }
                self.open_at(&origin, path)?
            }
            opened => opened?,
        };
        if self.has_others() && dir.mode & OTHERS == 0 {
            if !Mode::from_raw_mode(dir.mode).contains(MADE_HERE) {
                let mode = dir.mode & 0o7777;
                return Err(RuntimeDirError::new(
                    path,
                    DirectoryProblem::Closed { mode },
                ));
            }
            // Not by `mkdirat`, which the umask of the process concerns.
            chmod(by_fd(&dir.fd), FOR_OTHERS)
                .map_err(|errno| RuntimeDirError::os(path, "open to others", errno))?;
        }
        Ok(dir)
    }
}

/// Attempts to make a directory.
#[cfg(test)]
pub(super) static ATTEMPTS: std::sync::Mutex<Vec<PathBuf>> = std::sync::Mutex::new(Vec::new());

fn inspect_failed(path: &Path, error: &std::io::Error) -> RuntimeDirError {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    RuntimeDirError::os(path, "inspect", errno)
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// What a mode allows to group and others.
const OTHERS: u32 = 0o077;

/// Marks a directory that was made here, and is not opened to others yet. The owner of the shared
/// directory can put another one of this user in its place at any time, by `rename(2)`, and no call
/// makes a directory and opens it. The umask does not take this bit away.
const MADE_HERE: Mode = Mode::SVTX;

/// Of a directory in which other users search sockets.
const FOR_OTHERS: Mode = Mode::from_raw_mode(0o755);
