//! Domains: the directories and the users of processes that may reach each other.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

use super::elevated;
use super::error::{DirectoryProblem, RuntimeDirError};
use super::user_dir::UserDirs;
use crate::is_ambiguous_user;
use crate::thread::{self, Lock, lock};

/// Which processes of a host reach each other: in which directories they publish their sockets, and
/// of which users they are.
///
/// Negotiation (`smc_negotiate_local::Local::in_domain`) and devices take the same value.
/// Processes with different domains are TCP to each other.
///
/// ```
/// use smc_core::Domain;
///
/// // Processes of this user.
/// let own = Domain::default();
/// // Processes of this user that are configured with a directory.
/// let service = Domain::directory("/run/service/smc");
/// // Processes of this user and of two others, or of containers that share the directory.
/// let users = Domain::shared("/run/smc", [1001, 1002]);
/// ```
///
/// A directory is checked each time it is used: its owner has to be the expected user, and no
/// other user can write to it. A user is the effective one of the process at that time.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(super) locations: Arc<Locations>,
    /// Whether the program has not configured one.
    pub(super) is_default: bool,
    /// Users who are allowed, in order; the own one always is.
    others: Arc<[u32]>,
    /// Directories with a random name.
    pub(super) alternates: Arc<Mutex<Alternates>>,
}

/// Where the directories are.
#[derive(Debug)]
pub(super) enum Locations {
    /// The standard directories of the own user.
    Standard {
        /// `$XDG_RUNTIME_DIR`.
        session: Option<PathBuf>,
        run: PathBuf,
        tmp: PathBuf,
    },
    /// One, of the own user.
    One {
        path: PathBuf,
        /// It is not made where it is missing.
        must_exist: bool,
    },
    /// One of each user, in this directory.
    Shared(PathBuf),
}

/// Directories that a search has found, and until when they are not searched again.
type Alternates = Option<(Instant, Arc<[Alternate]>)>;

/// An alternate directory: one with a random name, and its user.
pub(super) type Alternate = (u32, PathBuf);

impl Default for Domain {
    /// The processes of this user.
    ///
    /// They use `$SMC_RUNTIME_DIR`, and no other directory. Without it, or in a program that has
    /// rights which the user who started it has not (`AT_SECURE`, as set-user-ID programs have it),
    /// which takes neither this nor `$XDG_RUNTIME_DIR` from the environment:
    ///
    /// 1. `/run/smc-<uid>`, if it is the user's. Root makes its own; for another user it is there
    ///    if an administrator or systemd (`RuntimeDirectory=smc-<uid>`) has made it.
    /// 2. `$XDG_RUNTIME_DIR/smc` and `/run/user/<uid>/smc`, if the parent exists and is the user's.
    /// 3. `/tmp/smc-<uid>`. If another user has made that, `/tmp/smc-<uid>-<random>`, with mode
    ///    0700, found by its name, owner and mode.
    ///
    /// A socket is published in the first of them that can be used; if that is `$XDG_RUNTIME_DIR`,
    /// which other processes of the user may not know, also in the next. It is searched in all.
    /// What is missing is made when a socket is published, for the user alone; directories above it
    /// are not. Where none can be used, streams are TCP and report why.
    fn default() -> Self {
        let locations = match elevated::is_elevated().unwrap_or(true) {
            true => Locations::standard(None),
            false => Locations::of_environment(),
        };
        Self {
            is_default: true,
            ..Self::at(locations)
        }
    }
}

impl Locations {
    /// The locations that do not depend on the environment.
    pub(super) fn standard(session: Option<PathBuf>) -> Self {
        Self::Standard {
            session,
            run: "/run".into(),
            tmp: "/tmp".into(),
        }
    }

    fn of_environment() -> Self {
        let set = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        match set("SMC_RUNTIME_DIR") {
            Some(path) => Self::One {
                path,
                must_exist: false,
            },
            None => Self::standard(set("XDG_RUNTIME_DIR")),
        }
    }
}

impl Domain {
    /// Processes of this user that use this directory.
    ///
    /// It is made if need be, for the user alone; directories above it are not. It may be a
    /// symbolic link. It has to be on a local file system, and its path absolute.
    #[must_use]
    pub fn directory(path: impl Into<PathBuf>) -> Self {
        Self::at(Locations::One {
            path: path.into(),
            must_exist: false,
        })
    }

    /// As [`Domain::directory`], for a directory that is there and is not made again when it is
    /// removed. It is no symbolic link.
    #[must_use]
    pub fn existing(path: impl Into<PathBuf>) -> Self {
        Self::at(Locations::One {
            path: path.into(),
            must_exist: true,
        })
    }

    /// Processes of this user and of `users`, by number, that use this directory: those of several
    /// users, or of containers that share a volume. All of them may make the same call. A user that
    /// others have not listed is TCP to them.
    ///
    /// An administrator makes the directory, on a local file system. It belongs to root or to one
    /// of these users; if others than its owner can write to it, it needs the sticky bit (mode
    /// 1777, or 1770 with a group). In it each user has a directory `<base>/<uid>`, which the
    /// library makes (mode 0755; 1700 if no other user is listed), and which another user can
    /// neither own nor write to. If another user has taken the name, it is `<base>/<uid>-<random>`,
    /// found by its name and owner. One that the library has not made keeps its mode, and is not
    /// used if that is closed to all other users: what is private is not opened to others because
    /// it has this name. The order of the users does not matter.
    ///
    /// Processes of users that have no number here, such as those of a container with a user
    /// namespace of its own, cannot be listed. Between different users a connection within one
    /// network namespace can be SMC; others are TCP, because the kernel does not report whose
    /// listening socket it is, and only the directory of that user is searched for the listener.
    #[must_use]
    pub fn shared(path: impl Into<PathBuf>, users: impl IntoIterator<Item = u32>) -> Self {
        Self {
            others: users
                .into_iter()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect(),
            ..Self::at(Locations::Shared(path.into()))
        }
    }

    pub(super) fn at(locations: Locations) -> Self {
        Self {
            locations: Arc::new(locations),
            is_default: false,
            others: Arc::default(),
            alternates: Arc::default(),
        }
    }

    /// Whether processes of this user may be peers.
    #[must_use]
    pub fn allows(&self, uid: u32) -> bool {
        uid == own() || self.others.binary_search(&uid).is_ok()
    }

    /// Whether this is [`Domain::default`], whatever the environment contains. If another one
    /// cannot be used, the program has named a wrong directory, which is an error.
    #[must_use]
    pub fn is_default(&self) -> bool {
        self.is_default
    }

    /// Whether processes of other users may be peers.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.others().next().is_some()
    }

    /// Users who are allowed beside the own one.
    fn others(&self) -> impl Iterator<Item = u32> {
        let own = own();
        self.others.iter().copied().filter(move |uid| *uid != own)
    }

    /// The directories in which a socket is searched. Not all of them exist, and they are not
    /// checked yet.
    ///
    /// Reads `/tmp`, or the directory of a shared domain, if there is something at the path of a
    /// user's directory that cannot be used; `/tmp` only if there is none of the directories before
    /// it that all processes of the user have in common. At most 65,536 entries are read. The
    /// result is cached for nine times the CPU time of the search.
    #[must_use]
    pub fn search_paths(&self) -> Vec<PathBuf> {
        let mut paths = match &*self.locations {
            Locations::One { path, .. } => return vec![path.clone()],
            Locations::Shared(_) => Vec::new(),
            Locations::Standard { session, run, .. } => {
                let session = session.as_deref().map(in_session);
                let paths = [Some(system(run)), session, Some(user_session(run))];
                paths.into_iter().flatten().collect()
            }
        };
        let users = std::iter::once(own()).chain(self.others());
        let user_dirs: Vec<_> = self.user_dirs().map_or_else(Vec::new, |user_dirs| {
            users.map(|uid| user_dirs.path(uid)).collect()
        });
        let is_any_taken = user_dirs.iter().any(|path| self.is_taken(path));
        paths.extend(user_dirs);
        paths.dedup();
        if is_any_taken && !self.has_common() {
            paths.extend(
                self.recent_alternates()
                    .iter()
                    .map(|(_, path)| path.clone()),
            );
        }
        paths
    }

    /// The [search paths](Domain::search_paths) that belong to this user, without a look at those
    /// of others.
    #[must_use]
    pub fn search_paths_of(&self, user: u32) -> Vec<PathBuf> {
        match &*self.locations {
            Locations::Shared(base) if self.allows(user) => {
                let user_dir = UserDirs::in_shared(base).path(user);
                let is_taken = self.is_taken(&user_dir);
                let mut paths = vec![user_dir];
                if is_taken {
                    let alternates = self.recent_alternates();
                    let of_user = alternates.iter().filter(|(uid, _)| *uid == user);
                    paths.extend(of_user.map(|(_, path)| path.clone()));
                }
                paths
            }
            Locations::Shared(_) => Vec::new(),
            _ if user == own() => self.search_paths(),
            _ => Vec::new(),
        }
    }

    /// Whether one of the usual directories is there that all processes of the user find and no
    /// other user can take.
    fn has_common(&self) -> bool {
        let Locations::Standard { run, .. } = &*self.locations else {
            return false;
        };
        let common = [system(run), user_session(run)];
        common.iter().any(|path| self.check(path).is_ok())
    }

    /// Why this user has no directory at all, if it is not that there is none yet.
    ///
    /// Reads directories as [`Domain::search_paths_of`] does.
    #[must_use]
    pub fn unusable_of(&self, user: u32) -> Option<RuntimeDirError> {
        let paths = self.search_paths_of(user);
        if paths.iter().any(|path| self.check(path).is_ok()) {
            return None;
        }
        let is_relevant = |error: &RuntimeDirError| match (&error.problem, &*self.locations) {
            (DirectoryProblem::Os(_), Locations::Standard { .. }) => false,
            (DirectoryProblem::Os(_), Locations::Shared(base)) if *error.path == **base => true,
            (DirectoryProblem::Os(error), _) => error.kind() != io::ErrorKind::NotFound,
            _ => true,
        };
        let mut errors = paths.iter().filter_map(|path| self.check(path).err());
        errors.find(is_relevant)
    }

    /// The directories that have another name if another user has taken theirs.
    fn user_dirs(&self) -> Option<UserDirs<'_>> {
        match &*self.locations {
            Locations::One { .. } => None,
            Locations::Standard { tmp, .. } => Some(UserDirs::in_tmp(tmp)),
            Locations::Shared(base) => Some(UserDirs::in_shared(base)),
        }
    }

    /// The directory of a shared domain, whose owner can rename and remove what is in it.
    pub(super) fn check_base(
        &self,
        base: &Path,
        uid: u32,
        mode: u32,
    ) -> Result<(), RuntimeDirError> {
        let is_permitted = uid == 0 || self.allows(uid);
        check_mode(base, uid, mode, is_permitted, mode & STICKY != 0)
    }

    /// A directory of the user whose it is to be.
    pub(super) fn check_own(
        &self,
        path: &Path,
        uid: u32,
        mode: u32,
    ) -> Result<(), RuntimeDirError> {
        check_mode(path, uid, mode, Some(uid) == self.owner(path), false)
    }

    /// The user whose directory is to be at this path.
    pub(super) fn owner(&self, path: &Path) -> Option<u32> {
        match &*self.locations {
            Locations::Shared(base) => {
                let user = UserDirs::in_shared(base).user(path);
                user.filter(|uid| self.allows(*uid))
            }
            _ => Some(own()),
        }
    }

    /// Whether something that cannot be used is at the path of a directory.
    fn is_taken(&self, path: &Path) -> bool {
        let error = match *self.locations {
            // One that is missing is looked up in a directory whose lock others can hold.
            Locations::Shared(_) => {
                let origin = self.origin(path).ok();
                origin.and_then(|origin| self.open_at(&origin, path).err())
            }
            _ => self.inspect(path).err(),
        };
        error.as_ref().is_some_and(RuntimeDirError::is_in_the_way)
    }

    /// The alternate directories that were found a moment ago, or are there now.
    fn recent_alternates(&self) -> Arc<[Alternate]> {
        self.cached_alternates().unwrap_or_else(|| {
            let domain = self.clone();
            let search = move || domain.search_alternates();
            let found = thread::run(self.names_lock(), thread::JOB_TIMEOUT, search);
            found.unwrap_or_else(|_| self.cache(Arc::default(), thread::JOB_TIMEOUT))
        })
    }

    fn cached_alternates(&self) -> Option<Arc<[Alternate]>> {
        let found = lock(&self.alternates);
        let (until, alternates) = found.as_ref()?;
        (Instant::now() < *until).then(|| Arc::clone(alternates))
    }

    /// On the thread of the lock, so that two tasks do not search at the same time.
    fn search_alternates(&self) -> Arc<[Alternate]> {
        self.cached_alternates().unwrap_or_else(|| {
            let since = cpu_time();
            let found = self.user_dirs().map_or_else(Vec::new, |user_dirs| {
                self.find_alternates(user_dirs, |uid| self.allows(uid))
            });
            self.cache(found.into(), cpu_time().saturating_sub(since))
        })
    }

    /// Keeps what a search has found for so long that searches take a tenth of the time at most.
    pub(super) fn cache(&self, alternates: Arc<[Alternate]>, took: Duration) -> Arc<[Alternate]> {
        *lock(&self.alternates) = Some((Instant::now() + took * REST, Arc::clone(&alternates)));
        alternates
    }

    /// The directory that others can make names in, or the only one.
    pub(super) fn dir(&self) -> &Path {
        match &*self.locations {
            Locations::One { path, .. } => path,
            Locations::Standard { tmp, .. } => tmp,
            Locations::Shared(base) => base,
        }
    }

    /// The lock that is taken where names are made and removed.
    pub(super) fn names_lock(&self) -> Lock {
        Lock::DirectoriesBelow(self.dir().to_owned())
    }

    /// Directories with a random name of the users who are wanted, user by user, in the order of
    /// the names, so that processes choose the same.
    pub(super) fn find_alternates(
        &self,
        user_dirs: UserDirs<'_>,
        is_wanted: impl Fn(u32) -> bool,
    ) -> Vec<Alternate> {
        let entries = std::fs::read_dir(user_dirs.parent);
        let entries = entries.into_iter().flatten().take(MAX_ENTRIES).flatten();
        let named = entries.filter_map(|entry| {
            let uid = user_dirs.user_of_alternate(entry.file_name().to_str()?)?;
            is_wanted(uid).then(|| (uid, entry.path()))
        });
        let mut found: Vec<_> = named.filter(|(_, path)| self.is_alternate(path)).collect();
        found.sort_unstable();
        let by_user = found.chunk_by(|(uid, _), (next, _)| uid == next);
        by_user
            .flat_map(|of_user| of_user.iter().take(MAX_ALTERNATES).cloned())
            .collect()
    }

    /// Whether it may be used, and has the mode of a directory with a random name.
    fn is_alternate(&self, path: &Path) -> bool {
        let is_shared = matches!(*self.locations, Locations::Shared(_));
        let found = self.inspect(path);
        found.is_ok_and(|found| is_shared || found.mode() & 0o7777 == 0o700)
    }
}

/// Checks the owner and mode of a directory: no other user can change it.
pub(super) fn check_mode(
    path: &Path,
    uid: u32,
    mode: u32,
    is_permitted: bool,
    may_be_writable: bool,
) -> Result<(), RuntimeDirError> {
    let problem = if !is_permitted || is_ambiguous_user(uid) {
        DirectoryProblem::Owner { uid }
    } else if FileType::from_raw_mode(mode) != FileType::Directory {
        DirectoryProblem::NotDirectory
    } else if mode & WRITABLE_BY_OTHERS != 0 && !may_be_writable {
        let mode = mode & 0o7777;
        DirectoryProblem::Writable { mode }
    } else {
        return Ok(());
    };
    Err(RuntimeDirError::new(path, problem))
}

pub(super) fn own() -> u32 {
    geteuid().as_raw()
}

pub(super) fn system(run: &Path) -> PathBuf {
    run.join(format!("smc-{}", own()))
}

pub(super) fn user_session(run: &Path) -> PathBuf {
    run.join(format!("user/{}/smc", own()))
}

pub(super) fn in_session(session: &Path) -> PathBuf {
    session.join("smc")
}

/// Group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Entries of a directory that are read. Other users can make any number.
const MAX_ENTRIES: usize = 65_536;

/// Directories with a random name that are searched, of a user. Processes that start at the same
/// time may make one each; others make none.
const MAX_ALTERNATES: usize = 16;

/// How many times as long as a search takes the next one is put off. Other users can make it a long
/// one, of as many entries as may be read, so there is no upper limit of its own. What it takes is
/// CPU time: with the lock of the directory they can make it last, which costs nothing.
const REST: u32 = 9;

/// CPU time that this thread has had.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
