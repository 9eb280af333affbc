//! The directory in which listeners make themselves known, and its names.
//!
//! `l-<port>-<address>-<namespace>-<cookie>-<random>.sock`, numbers but the port in hexadecimal:
//! all that a client needs to know to choose is in the name, and no name is used twice. Listeners
//! that may share their port with others have an `s` instead of the `l`.

use std::ffi::OsStr;
use std::fmt::{self, Display};
use std::fs::{self, Metadata};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use rustix::process::geteuid;

use super::netns::NetNs;

/// The directory in which this process keeps its sockets for other processes of the user.
///
/// `$SMC_RUNTIME_DIR`; without that the first of `$XDG_RUNTIME_DIR/smc`, `/run/user/<uid>/smc`, of
/// which the parent exists and is the user's, and `/tmp/smc-<uid>`. It is created if missing, with
/// mode 0700.
///
/// # Errors
///
/// When it cannot be created, is not a directory, belongs to somebody else, or others may write
/// to it.
pub fn runtime_dir() -> io::Result<PathBuf> {
    let path = candidates()
        .into_iter()
        .next()
        .ok_or(io::ErrorKind::NotFound)?;
    match rustix::fs::mkdir(&path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    let owner = geteuid().as_raw();
    if is_trusted(&fs::symlink_metadata(&path)?, |uid| uid == owner) {
        return Ok(path);
    }
    let why = format!(
        "{} is not a directory that only this user can write",
        path.display()
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// The directories in which other processes of the user may keep theirs, which need not exist.
///
/// More than one, because not every process of a user has the same environment: a service may
/// have been started before the session's directory existed.
#[must_use]
pub fn runtime_dirs() -> Vec<PathBuf> {
    candidates()
}

fn candidates() -> Vec<PathBuf> {
    let set = |name| {
        std::env::var_os(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    if let Some(path) = set("SMC_RUNTIME_DIR") {
        return vec![path];
    }
    let uid = geteuid().as_raw();
    let session = set("XDG_RUNTIME_DIR").into_iter();
    let mut all = Vec::new();
    for parent in session.chain([PathBuf::from(format!("/run/user/{uid}"))]) {
        let path = parent.join("smc");
        // A session of somebody else may have been inherited through `sudo` and the like.
        if fs::symlink_metadata(&parent).is_ok_and(|is| is_trusted(&is, |owner| owner == uid))
            && !all.contains(&path)
        {
            all.push(path);
        }
    }
    all.push(PathBuf::from(format!("/tmp/smc-{uid}")));
    all
}

/// The listeners of one directory, read again only when it has changed.
#[derive(Debug)]
pub(super) struct Directory {
    path: Arc<Path>,
    read: Option<Read>,
}

#[derive(Debug)]
struct Read {
    ino: u64,
    modified: SystemTime,
    /// Whether the directory had been left alone long enough when it was read: two changes may
    /// get the same time.
    settled: bool,
    entries: Vec<Arc<Entry>>,
}

impl Directory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path: path.into(),
            read: None,
        }
    }

    pub(super) fn path(&self) -> &Arc<Path> {
        &self.path
    }

    /// The listeners now. None if the directory is not there, or `may_own` refuses its owner, or
    /// others may write to it.
    pub(super) fn entries(&mut self, may_own: impl Fn(u32) -> bool) -> &[Arc<Entry>] {
        match fs::symlink_metadata(&self.path) {
            Ok(found) if is_trusted(&found, may_own) => self.refresh(&found),
            _ => self.read = None,
        }
        self.read.as_ref().map_or(&[], |read| &read.entries)
    }

    fn refresh(&mut self, found: &Metadata) {
        // What this means when it fails does not matter: it will differ from what it was.
        let modified = found.modified().unwrap_or_else(|_| SystemTime::now());
        let is_fresh =
            |read: &Read| read.settled && (read.ino, read.modified) == (found.ino(), modified);
        if self.read.as_ref().is_some_and(is_fresh) {
            return;
        }
        let since = SystemTime::now().duration_since(modified);
        let settled = since.is_ok_and(|since| since > SETTLED_AFTER);
        let entries = names(&self.path)
            .filter_map(|name| Entry::parse(&name))
            .map(Arc::new);
        let entries = entries.collect();
        self.read = Some(Read {
            ino: found.ino(),
            modified,
            settled,
            entries,
        });
    }
}

/// A listener as its name tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// `SO_REUSEPORT`: of connections to one address, some may go to other listeners.
    pub(super) shared: bool,
    pub(super) port: u16,
    pub(super) scope: Scope,
    pub(super) netns: NetNs,
    /// `SO_COOKIE` of the listening TCP socket.
    pub(super) cookie: u64,
    /// Makes the name unique for ever.
    pub(super) salt: u32,
}

impl Entry {
    fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_suffix(".sock")?.split('-');
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let shared = match parts.next()? {
            "l" => false,
            "s" => true,
            _ => return None,
        };
        let entry = Self {
            shared,
            port: parts.next()?.parse().ok()?,
            scope: Scope::parse(parts.next()?)?,
            netns: NetNs(hex(parts.next()?)?),
            cookie: hex(parts.next()?)?,
            salt: u32::try_from(hex(parts.next()?)?).ok()?,
        };
        (entry.to_string() == name).then_some(entry)
    }
}

impl Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            shared,
            port,
            scope,
            netns,
            cookie,
            salt,
        } = self;
        write!(
            f,
            "{}-{port}-{scope}-{:x}-{cookie:x}-{salt:08x}.sock",
            if *shared { 's' } else { 'l' },
            netns.0
        )
    }
}

/// The addresses that a listener listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All addresses of both families.
    Any,
    AnyV4,
    AnyV6,
    One(IpAddr),
}

impl Scope {
    /// Of a socket bound to `at`.
    pub(super) fn of(at: SocketAddr, only_v6: bool) -> Self {
        match at.ip().to_canonical() {
            IpAddr::V4(ip) if ip.is_unspecified() => Self::AnyV4,
            IpAddr::V6(ip) if ip.is_unspecified() && only_v6 => Self::AnyV6,
            IpAddr::V6(ip) if ip.is_unspecified() => Self::Any,
            ip => Self::One(ip),
        }
    }

    /// Whether connections to this canonical address can get to it.
    pub(super) fn covers(self, ip: IpAddr) -> bool {
        match self {
            Self::Any => true,
            Self::AnyV4 => ip.is_ipv4(),
            Self::AnyV6 => ip.is_ipv6(),
            Self::One(one) => one == ip,
        }
    }

    fn parse(text: &str) -> Option<Self> {
        Some(match (text, text.len()) {
            ("any", _) => Self::Any,
            ("any4", _) => Self::AnyV4,
            ("any6", _) => Self::AnyV6,
            (_, 8) => Self::One(IpAddr::V4(u32::from_str_radix(text, 16).ok()?.into())),
            (_, 32) => Self::One(IpAddr::V6(u128::from_str_radix(text, 16).ok()?.into())),
            _ => return None,
        })
    }
}

impl Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::AnyV4 => f.write_str("any4"),
            Self::AnyV6 => f.write_str("any6"),
            Self::One(IpAddr::V4(ip)) => write!(f, "{:08x}", ip.to_bits()),
            Self::One(IpAddr::V6(ip)) => write!(f, "{:032x}", ip.to_bits()),
        }
    }
}

/// Calls `f` with the address of a socket in a directory.
pub(super) fn with_address<T>(
    dir: &Path,
    name: &str,
    f: impl FnOnce(&SocketAddrUnix) -> io::Result<T>,
) -> io::Result<T> {
    match SocketAddrUnix::new(dir.join(name)) {
        Ok(address) => f(&address),
        // An address holds 107 bytes. The directory's descriptor makes a shorter path.
        Err(Errno::NAMETOOLONG) => {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = rustix::fs::open(dir, flags, Mode::empty())?;
            let path = format!("/proc/self/fd/{}/{name}", dir.as_raw_fd());
            f(&SocketAddrUnix::new(path)?)
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes a name if no socket has it any more.
///
/// A socket of another kind cannot connect, but the kernel says different things about a socket
/// that is there, listening or about to listen, and one that is not.
pub(super) fn sweep(dir: &Path, name: &str) {
    let dead = with_address(dir, name, |address| {
        let probe = rustix::net::socket(AddressFamily::UNIX, SocketType::DGRAM, None)?;
        Ok(rustix::net::connect(&probe, address))
    });
    if matches!(dead, Ok(Err(Errno::CONNREFUSED))) {
        // Names are not used twice, so nobody else can have it by now.
        let _ = fs::remove_file(dir.join(name));
    }
}

/// Removes all names that no socket has any more.
pub(super) fn sweep_all(dir: &Path) {
    for name in names(dir).filter(|name| Entry::parse(name).is_some()) {
        sweep(dir, &name);
    }
}

fn names(dir: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .take(MAX_NAMES);
    entries.filter_map(|entry| OsStr::to_str(&entry.file_name()).map(str::to_owned))
}

/// A directory, not a link, of a good owner, that nobody else can write to.
fn is_trusted(found: &Metadata, may_own: impl Fn(u32) -> bool) -> bool {
    found.is_dir() && may_own(found.uid()) && found.mode() & WRITABLE_BY_OTHERS == 0
}

/// After this time a further change is certain to get another time: file systems use a clock that
/// ticks every 10 ms or faster.
const SETTLED_AFTER: Duration = Duration::from_millis(50);

/// Group and others.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Names read from a directory. More are not expected, and reading must end.
const MAX_NAMES: usize = 4096;

#[cfg(test)]
mod tests;
