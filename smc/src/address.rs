//! Addresses of stream sockets: of TCP and UNIX.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net;
use std::path::Path;
use std::sync::Arc;

use crate::runtime::Socket;
use crate::unix::names;

/// The address of a listener, or of an end of a stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "streams are over TCP or UNIX sockets"
)]
pub enum Address {
    /// Of TCP.
    Tcp(SocketAddr),
    /// Of a UNIX socket.
    Unix(UnixAddr),
}

impl Address {
    /// The address, if it is one of TCP.
    #[must_use]
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(addr) => Some(*addr),
            Self::Unix(_) => None,
        }
    }
}

impl Address {
    /// # Errors
    ///
    /// `Unsupported` if it is one of a UNIX socket.
    pub(crate) fn require_tcp(self) -> io::Result<SocketAddr> {
        let why = "the stream is over a UNIX socket, which has no address of TCP";
        self.tcp()
            .ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, why))
    }

    /// # Errors
    ///
    /// `Unsupported` if it is one of TCP.
    pub(crate) fn require_unix(self) -> io::Result<UnixAddr> {
        match self {
            Self::Unix(addr) => Ok(addr),
            Self::Tcp(_) => {
                let why = "the stream is over TCP, and not over a UNIX socket";
                Err(io::Error::new(io::ErrorKind::Unsupported, why))
            }
        }
    }
}

/// The local address of a socket.
///
/// # Errors
///
/// As `getsockname(2)`.
pub(crate) fn local(socket: &dyn Socket) -> io::Result<Address> {
    match (socket.local_addr(), socket.fd()) {
        (Ok(addr), _) => Ok(addr.into()),
        (Err(_), Some(fd)) => Ok(names::shown(&unix_socket(fd)?.local_addr()?).into()),
        (Err(error), None) => Err(error),
    }
}

/// The address of a socket's peer.
///
/// # Errors
///
/// As `getpeername(2)`.
pub(crate) fn peer(socket: &dyn Socket) -> io::Result<Address> {
    match (socket.peer_addr(), socket.fd()) {
        (Ok(addr), _) => Ok(addr.into()),
        (Err(error), Some(fd)) => {
            let Ok(socket) = unix_socket(fd) else {
                return Err(error);
            };
            let peer = socket.peer_addr().map_err(|_| error)?;
            let is_client = names::is_client(&socket.local_addr()?);
            Ok(match is_client {
                true => names::shown(&peer).into(),
                false => names::shown_client(&peer).into(),
            })
        }
        (Err(error), None) => Err(error),
    }
}

/// Another descriptor of a socket, for the addresses of std: those of other crates cannot be a path
/// that fills all of the space.
fn unix_socket(fd: BorrowedFd<'_>) -> io::Result<net::UnixStream> {
    Ok(fd.try_clone_to_owned()?.into())
}

impl From<SocketAddr> for Address {
    fn from(addr: SocketAddr) -> Self {
        Self::Tcp(addr)
    }
}

impl From<UnixAddr> for Address {
    fn from(addr: UnixAddr) -> Self {
        Self::Unix(addr)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(addr) => addr.fmt(f),
        }
    }
}

/// The address of a UNIX socket: a path, an abstract name, or none.
///
/// `Display` gives the path, the name behind `@`, or `*`, as `ss` does; bytes that are no text are
/// escaped. It converts from and to the address type of std.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct UnixAddr(
    /// As `sun_path` of `unix(7)`: a path without its zero byte, or an abstract name behind one.
    Arc<[u8]>,
);

impl UnixAddr {
    /// The address of a socket that is not bound.
    #[must_use]
    pub fn unnamed() -> Self {
        Self(Arc::default())
    }

    /// A path. As with the types of tokio and smol, one that begins with a zero byte is the
    /// abstract name behind that.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it is empty, has 108 bytes or more, or contains a zero byte elsewhere.
    pub fn from_path(path: impl AsRef<Path>) -> io::Result<Self> {
        let bytes = path.as_ref().as_os_str().as_bytes();
        match bytes.split_first() {
            None => Err(invalid("the path of a UNIX socket is empty")),
            Some((0, name)) => Self::from_abstract_name(name),
            Some(_) => Ok(Self::from(&net::SocketAddr::from_pathname(path)?)),
        }
    }

    /// A name of the abstract namespace.
    ///
    /// # Errors
    ///
    /// `InvalidInput` if it has 108 bytes or more.
    pub fn from_abstract_name(name: impl AsRef<[u8]>) -> io::Result<Self> {
        let addr = net::SocketAddr::from_abstract_name(name.as_ref())?;
        Ok(Self::from(&addr))
    }

    /// The path, if it is one.
    #[must_use]
    pub fn as_path(&self) -> Option<&Path> {
        match self.0.first() {
            None | Some(0) => None,
            Some(_) => Some(Path::new(OsStr::from_bytes(&self.0))),
        }
    }

    /// The name in the abstract namespace, if it is one.
    #[must_use]
    pub fn as_abstract_name(&self) -> Option<&[u8]> {
        match self.0.split_first() {
            Some((0, name)) => Some(name),
            _ => None,
        }
    }

    /// Whether the socket is not bound.
    #[must_use]
    pub fn is_unnamed(&self) -> bool {
        self.0.is_empty()
    }
}

/// A path without space for a zero byte, which a socket can have and no program of std can connect
/// to, is as none.
impl From<&net::SocketAddr> for UnixAddr {
    fn from(addr: &net::SocketAddr) -> Self {
        Self(match (addr.as_pathname(), addr.as_abstract_name()) {
            (Some(path), _) if path.as_os_str().len() >= SUN_PATH_LEN => Arc::default(),
            (Some(path), _) => path.as_os_str().as_bytes().into(),
            (None, Some(name)) => [&[0], name].concat().into(),
            (None, None) => Arc::default(),
        })
    }
}

impl TryFrom<&UnixAddr> for net::SocketAddr {
    type Error = io::Error;

    fn try_from(addr: &UnixAddr) -> io::Result<Self> {
        match (addr.as_path(), addr.as_abstract_name()) {
            (Some(path), _) => Self::from_pathname(path),
            (None, Some(name)) => Self::from_abstract_name(name),
            (None, None) => Self::from_pathname(""),
        }
    }
}

impl fmt::Display for UnixAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.as_path(), self.as_abstract_name()) {
            (Some(path), _) => path.as_os_str().as_bytes().escape_ascii().fmt(f),
            (None, Some(name)) => write!(f, "@{}", name.escape_ascii()),
            (None, None) => f.write_str("*"),
        }
    }
}

impl fmt::Debug for UnixAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The space for a path (`unix(7)`).
const SUN_PATH_LEN: usize = 108;

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_the_form_of_ss_and_is_the_same_by_way_of_std() {
        for (path, shown) in [
            ("/run/app.sock", "/run/app.sock"),
            ("app.sock", "app.sock"),
            ("\0app", "@app"),
            ("\0", "@"),
            ("/run/\u{e4}\n", r"/run/\xc3\xa4\n"),
        ] {
            let addr = UnixAddr::from_path(path).unwrap();
            assert_eq!(addr.to_string(), shown);
            let std = net::SocketAddr::try_from(&addr).unwrap();
            assert_eq!(UnixAddr::from(&std), addr);
            assert_eq!(addr.as_path().is_some(), !path.starts_with('\0'));
            assert!(!addr.is_unnamed());
        }
        assert_eq!(UnixAddr::unnamed().to_string(), "*");
        let std = net::SocketAddr::try_from(&UnixAddr::unnamed()).unwrap();
        assert!(std.is_unnamed());
        assert!(UnixAddr::from(&std).is_unnamed());
    }

    #[test]
    fn a_path_that_no_socket_can_have_is_refused() {
        let long = "x".repeat(108);
        for path in ["", "a\0b", &long, &format!("\0{long}")] {
            let error = UnixAddr::from_path(path).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{path:?}");
        }
    }
}
