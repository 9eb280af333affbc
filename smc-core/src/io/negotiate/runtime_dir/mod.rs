//! The runtime directory, where processes of one host find each other by the names of sockets.
//!
//! Listeners and devices use the same one, by the same rule: [`RuntimeDirs`] says in which
//! directories a socket is published and in which it is looked for. [`Publication`] is a socket
//! that has its name there, again whenever the name is removed. Both need `/proc`.

mod elevated;
mod error;
mod publication;
mod socket;
mod watch;

pub use error::RuntimeDirError;
pub use publication::Publication;
pub use socket::bind_with_mode;
pub(super) use socket::names;

use std::fs::Metadata;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, Stat, fstat, openat, statat};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::is_ambiguous_user;
use crate::error::DirectoryProblem;

/// In which directories the sockets of a user's processes are.
///
/// With `$SMC_RUNTIME_DIR`, that one and no other. Without, or in a program that has rights which the
/// user who started it has not (`AT_SECURE`, as set-user-ID programs have it), which takes neither
/// this nor `$XDG_RUNTIME_DIR` from the environment:
///
/// 1. `/run/smc-<uid>`, if it is the user's. Root makes its own; for another user it is there if
///    an administrator or systemd (`RuntimeDirectory=smc-<uid>`) has made it.
/// 2. `$XDG_RUNTIME_DIR/smc` and `/run/user/<uid>/smc`, if the parent exists and is the user's.
/// 3. `/tmp/smc-<uid>`. If another user has made that, `/tmp/smc-<uid>-<random>`, with mode 0700,
///    found by its name, owner and mode.
///
/// A socket is published in the first of them that can be used; if that is `$XDG_RUNTIME_DIR`,
/// which other processes of the user may not know, also in the next. It is looked for in all. A
/// directory is used if it belongs to the user and no one else can write to it, which is checked
/// each time. What is missing is made when a socket is published, for the user alone; directories
/// above it are not.
#[derive(Clone, Debug)]
pub struct RuntimeDirs {
    /// The only one, if there is one.
    given: Option<PathBuf>,
    /// Whether it is not made where it is missing.
    must_exist: bool,
    /// `$XDG_RUNTIME_DIR`.
    session: Option<PathBuf>,
    run: PathBuf,
    tmp: PathBuf,
    own: u32,
    /// Users who may own a directory that was given, or write to it if it is sticky.
    others: Vec<u32>,
    /// Those with a random name.
    found: Arc<Mutex<Found>>,
}

/// Directories, and when they were found.
type Found = Option<(Instant, Vec<PathBuf>)>;

/// A directory that was opened and checked.
#[derive(Debug)]
pub(super) struct OpenDir {
    pub(super) path: PathBuf,
    pub(super) fd: OwnedFd,
    /// Under a random name, as another user has taken the usual one.
    pub(super) is_spare: bool,
}

impl RuntimeDirs {
    /// The directories by the environment of this process, as it is now.
    #[must_use]
    pub fn from_env() -> Self {
        if elevated::is_elevated() {
            return Self::default_places();
        }
        let set = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        Self {
            given: set("SMC_RUNTIME_DIR"),
            session: set("XDG_RUNTIME_DIR"),
            ..Self::default_places()
        }
    }

    /// Those that do not depend on the environment.
    pub(super) fn default_places() -> Self {
        Self {
            given: None,
            must_exist: false,
            session: None,
            run: "/run".into(),
            tmp: "/tmp".into(),
            own: geteuid().as_raw(),
            others: Vec::new(),
            found: Arc::default(),
        }
    }

    /// This directory alone. It may also belong to root or to a user that is allowed.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self {
            given: Some(path.into()),
            ..Self::default_places()
        }
    }

    /// As [`RuntimeDirs::at`], for a directory that is there and is not made again when it is
    /// removed.
    #[must_use]
    pub fn existing(path: impl Into<PathBuf>) -> Self {
        Self {
            must_exist: true,
            ..Self::at(path)
        }
    }

    /// Permits other users in a directory that was given: one of them may own it, and if it has the
    /// sticky bit, all may write to it.
    #[must_use]
    pub fn allow_users(mut self, uids: impl IntoIterator<Item = u32>) -> Self {
        let own = self.own;
        let uids = uids.into_iter().filter(|uid| *uid != own);
        self.others.extend(uids);
        self
    }

    /// Where to look for a socket. Not all of these exist, and they are not checked yet.
    ///
    /// Reads `/tmp` if `/tmp/smc-<uid>` is not the user's, and there is none of the directories
    /// before it that all processes of the user have in common; 65,536 entries of it at most. What
    /// that finds is remembered for a second.
    #[must_use]
    pub fn to_search(&self) -> Vec<PathBuf> {
        if let Some(given) = &self.given {
            return vec![given.clone()];
        }
        let mut paths = vec![self.system()];
        paths.extend(self.session());
        paths.extend([self.user_session(), self.temporary()]);
        paths.dedup();
        let common = [self.system(), self.user_session()];
        if self.is_taken() && !common.iter().any(|path| self.check(path).is_ok()) {
            paths.extend(self.recent_spares());
        }
        paths
    }

    /// Whether the files of the directory `path` may be used.
    ///
    /// # Errors
    ///
    /// When it does not exist, is not a directory, belongs to a user who is not permitted, or
    /// others may write to it.
    pub fn check(&self, path: &Path) -> Result<Metadata, RuntimeDirError> {
        let found = match self.given {
            Some(_) => std::fs::metadata(path),
            None => std::fs::symlink_metadata(path),
        };
        let found = found.map_err(|error| {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            RuntimeDirError::os(path, "inspect", errno)
        })?;
        self.judge(path, found.uid(), found.mode())?;
        Ok(found)
    }

    /// Why this user has no directory at all, if it is not that there is none yet.
    ///
    /// Reads `/tmp` as [`RuntimeDirs::to_search`] does.
    #[must_use]
    pub fn unusable(&self) -> Option<RuntimeDirError> {
        let paths = self.to_search();
        if paths.iter().any(|path| self.check(path).is_ok()) {
            return None;
        }
        let mut errors = paths.iter().filter_map(|path| self.check(path).err());
        let is_given = self.given.is_some();
        errors.find(|error| match &error.problem {
            DirectoryProblem::Os(error) => is_given && error.kind() != io::ErrorKind::NotFound,
            _ => true,
        })
    }

    /// Opens a directory that is there and may be used.
    pub(super) fn open(&self, path: &Path) -> Result<OpenDir, RuntimeDirError> {
        let mut flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // Others can make links in /tmp. A directory that was given may be a link.
        if self.given.is_none() {
            flags |= OFlags::NOFOLLOW;
        }
        let fd = match openat(CWD, path, flags, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOTDIR | Errno::LOOP) => {
                // With the owner of the file or link, if that is another user.
                let found = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW);
                let found = found.map_err(|errno| RuntimeDirError::os(path, "inspect", errno))?;
                self.judge(path, found.st_uid, found.st_mode)?;
                let problem = DirectoryProblem::NotDirectory;
                return Err(RuntimeDirError::new(path, problem));
            }
            Err(errno) => return Err(RuntimeDirError::os(path, "open", errno)),
        };
        let stat: Stat = fstat(&fd).map_err(|errno| RuntimeDirError::os(path, "inspect", errno))?;
        self.judge(path, stat.st_uid, stat.st_mode)?;
        Ok(OpenDir {
            path: path.to_owned(),
            fd,
            is_spare: false,
        })
    }

    /// Makes and opens the directories to publish in; at least one.
    pub(super) fn open_to_publish(
        &self,
        spare: Option<&Path>,
    ) -> Result<Vec<OpenDir>, RuntimeDirError> {
        if let (Some(given), true) = (&self.given, self.must_exist) {
            return Ok(vec![self.open(given)?]);
        }
        if let Some(given) = &self.given {
            return Ok(vec![self.make_and_open(given)?]);
        }
        if let Ok(dir) = self.open_system() {
            return Ok(vec![dir]);
        }
        let mut dirs = Vec::new();
        if let Some(session) = self.session() {
            dirs.extend(self.open_in_session(&session));
        }
        let user_session = self.user_session();
        if dirs.iter().any(|dir: &OpenDir| dir.path == user_session) {
            return Ok(dirs);
        }
        match self.open_in_session(&user_session) {
            Ok(dir) => dirs.push(dir),
            Err(_) => match self.open_temporary(spare) {
                Ok(dir) => dirs.push(dir),
                Err(error) if dirs.is_empty() => return Err(error),
                Err(_) => {}
            },
        }
        Ok(dirs)
    }

    fn open_system(&self) -> Result<OpenDir, RuntimeDirError> {
        let root = Self {
            own: 0,
            ..self.clone()
        };
        root.open(&self.run)?;
        self.make_and_open(&self.system())
    }

    fn open_in_session(&self, path: &Path) -> Result<OpenDir, RuntimeDirError> {
        // The session of another user may have been inherited, through `sudo` and the like.
        self.open(path.parent().unwrap_or(path))?;
        self.make_and_open(path)
    }

    /// `spare`: the directory with a random name that is used already, which need not be searched.
    fn open_temporary(&self, spare: Option<&Path>) -> Result<OpenDir, RuntimeDirError> {
        let taken = match self.make_and_open(&self.temporary()) {
            Ok(dir) => return Ok(dir),
            Err(error) => error,
        };
        let used = spare.and_then(|path| self.open(path).ok());
        let existing = used.or_else(|| {
            let spares = self.spares().into_iter();
            spares.filter_map(|path| self.open(&path).ok()).next()
        });
        let spare = existing.or_else(|| {
            let random = crate::random::bytes::<8>().ok()?;
            let name = format!("{}{:016x}", self.spare_prefix(), u64::from_ne_bytes(random));
            *self.found() = None;
            self.make_and_open(&self.tmp.join(name)).ok()
        });
        let spare = spare.map(|dir| OpenDir {
            is_spare: true,
            ..dir
        });
        // With the owner who is in the way, which is what can be done something about.
        spare.ok_or(taken)
    }

    /// Directories above it are not made: their mode and owner are for the user to decide, and a path
    /// that was misspelt is an error.
    fn make_and_open(&self, path: &Path) -> Result<OpenDir, RuntimeDirError> {
        match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) | Err(Errno::EXIST) => self.open(path),
            Err(errno) => self
                .open(path)
                .map_err(|_| RuntimeDirError::os(path, "make", errno)),
        }
    }

    /// A directory of a user who may own it, that no one else can change.
    fn judge(&self, path: &Path, uid: u32, mode: u32) -> Result<(), RuntimeDirError> {
        let is_given = self.given.is_some();
        let is_permitted = uid == self.own || is_given && (uid == 0 || self.others.contains(&uid));
        let problem = if !is_permitted || is_ambiguous_user(uid) {
            DirectoryProblem::Owner { uid }
        } else if FileType::from_raw_mode(mode) != FileType::Directory {
            DirectoryProblem::NotDirectory
        } else if mode & WRITABLE_BY_OTHERS != 0
            // Users who are permitted can add sockets there, and remove their own.
            && !(is_given && !self.others.is_empty() && mode & STICKY != 0)
        {
            let mode = mode & 0o7777;
            DirectoryProblem::Writable { mode }
        } else {
            return Ok(());
        };
        Err(RuntimeDirError::new(path, problem))
    }

    fn system(&self) -> PathBuf {
        self.run.join(format!("smc-{}", self.own))
    }

    fn session(&self) -> Option<PathBuf> {
        self.session.as_ref().map(|path| path.join("smc"))
    }

    fn user_session(&self) -> PathBuf {
        self.run.join(format!("user/{}/smc", self.own))
    }

    fn temporary(&self) -> PathBuf {
        self.tmp.join(format!("smc-{}", self.own))
    }

    fn spare_prefix(&self) -> String {
        format!("smc-{}-", self.own)
    }

    /// Whether something that cannot be used is in the place of the temporary directory.
    fn is_taken(&self) -> bool {
        let error = self.check(&self.temporary()).err();
        error.as_ref().is_some_and(RuntimeDirError::is_in_the_way)
    }

    /// Those that were found a moment ago, or are there now.
    fn recent_spares(&self) -> Vec<PathBuf> {
        // Locked, so that others do not search meanwhile.
        let mut found = self.found();
        match &*found {
            Some((at, spares)) if at.elapsed() < SPARES_LAST => spares.clone(),
            _ => {
                let spares = self.spares();
                *found = Some((Instant::now(), spares.clone()));
                spares
            }
        }
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Directories of this user with a random name, in the order of the names, so that processes
    /// choose the same.
    fn spares(&self) -> Vec<PathBuf> {
        let prefix = self.spare_prefix();
        let is_random = |name: &str| {
            name.strip_prefix(&prefix)
                .is_some_and(|random| random.len() == 16 && u64::from_str_radix(random, 16).is_ok())
        };
        let entries = std::fs::read_dir(&self.tmp);
        let entries = entries.into_iter().flatten().take(MAX_ENTRIES).flatten();
        let mut spares: Vec<_> = entries
            .filter(|entry| entry.file_name().to_str().is_some_and(is_random))
            .map(|entry| entry.path())
            .filter(|path| {
                self.check(path)
                    .is_ok_and(|found| found.mode() & 0o7777 == 0o700)
            })
            .collect();
        spares.sort_unstable();
        spares.truncate(MAX_SPARES);
        spares
    }
}

/// Group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Entries of `/tmp` that are read. Other users can make any number.
const MAX_ENTRIES: usize = 65_536;

/// Directories with a random name that are looked in. Processes that start at the same time may make
/// one each; others make none.
const MAX_SPARES: usize = 16;

/// How long what a search of `/tmp` has found is remembered: other users can make it a long one.
const SPARES_LAST: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
