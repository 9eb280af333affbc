//! The directory in which listeners are announced, and its names.
//!
//! `l-<port>-<address>-<namespace>-<cookie>-<random>.sock`, numbers but the port in hexadecimal:
//! all that a client needs to know to choose is in the name, and no two listeners have the same.
//! Listeners that may share their port with others have an `s` instead of the `l`.

use std::fmt::{self, Display};
use std::fs::Metadata;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use smc_core::error::OsError;
use smc_ipc::Domain;
use smc_ipc::runtime_dir::names;

use crate::netns::NetNs;

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
    /// Whether the directory was unchanged for long enough when it was read: two changes may
    /// get the same time.
    is_stable: bool,
    entries: Vec<Arc<ListenerEntry>>,
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

    /// The listeners now. None if the directory may not be used.
    ///
    /// # Errors
    ///
    /// When this process may not read the names, or has no descriptor or memory left to read them
    /// with.
    pub(super) fn entries(&mut self, domain: &Domain) -> Result<&[Arc<ListenerEntry>], OsError> {
        match domain.check(&self.path) {
            Ok(found) => self.refresh(&found)?,
            Err(_) => self.read = None,
        }
        Ok(self.read.as_ref().map_or(&[], |read| &read.entries))
    }

    fn refresh(&mut self, found: &Metadata) -> Result<(), OsError> {
        // On failure any value works that differs from the last one.
        let modified = found.modified().unwrap_or_else(|_| SystemTime::now());
        let is_fresh =
            |read: &Read| read.is_stable && (read.ino, read.modified) == (found.ino(), modified);
        if self.read.as_ref().is_some_and(is_fresh) {
            return Ok(());
        }
        self.read = None;
        let since = SystemTime::now().duration_since(modified);
        let is_stable = since.is_ok_and(|since| since > STABLE_AFTER);
        let names = match names(&self.path) {
            Ok(names) => names,
            Err(error) => {
                let error = OsError::new("read the runtime directory", &error).at(&self.path);
                return match error.is_lack() || error.kind() == ErrorKind::PermissionDenied {
                    true => Err(error),
                    false => Ok(()),
                };
            }
        };
        let entries = names
            .filter_map(|name| ListenerEntry::parse(&name))
            .map(Arc::new);
        let entries = entries.collect();
        self.read = Some(Read {
            ino: found.ino(),
            modified,
            is_stable,
            entries,
        });
        Ok(())
    }
}

/// The properties of a listener, as in its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct ListenerEntry {
    /// `SO_REUSEPORT`: of connections to one address, some may go to other listeners.
    pub(super) shared: bool,
    pub(super) port: u16,
    pub(super) scope: Scope,
    pub(super) netns: NetNs,
    /// `SO_COOKIE` of the listening TCP socket.
    pub(super) cookie: u64,
    /// Makes the name unique over time.
    pub(super) salt: u32,
}

impl ListenerEntry {
    pub(super) fn parse(name: &str) -> Option<Self> {
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

impl Display for ListenerEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.shared { 's' } else { 'l' };
        let (port, scope, netns) = (self.port, self.scope, self.netns.0);
        let (cookie, salt) = (self.cookie, self.salt);
        write!(
            f,
            "{kind}-{port}-{scope}-{netns:x}-{cookie:x}-{salt:08x}.sock"
        )
    }
}

/// The addresses that a listener listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
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

/// After this time a further change is certain to get another time: file systems use a clock that
/// ticks every 10 ms or faster.
const STABLE_AFTER: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests;
