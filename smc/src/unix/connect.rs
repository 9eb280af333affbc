//! Connecting to a UNIX socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use smc_ipc::passed::refuse_descriptors;

use super::names;
use crate::address::UnixAddr;
use crate::negotiate::Credentials;
use crate::runtime::{Runtime, Socket, SocketOptions};

/// A connection to a listener.
pub(crate) struct Connected {
    pub(crate) socket: Arc<dyn Socket>,
    /// The listener's process, if it expects a handshake.
    pub(crate) listener: Option<Credentials>,
}

/// Connects to an address, with a handshake if `with_smc` and the listener supports it.
///
/// # Errors
///
/// As `connect(2)`, or what the hook returns. While the backlog of the listener is full this waits.
pub(crate) async fn connect(
    runtime: &dyn Runtime,
    to: &UnixAddr,
    options: &SocketOptions,
    with_smc: bool,
) -> io::Result<Connected> {
    let plain = net::SocketAddr::try_from(to)?;
    if with_smc && to.as_abstract_name().is_some() {
        // Too long a name has no second socket.
        if let Ok(second) = names::of_listener(to) {
            let (fd, is_marked) = socket(options, true)?;
            // Whatever is wrong there, as a full backlog of another user or a name that a sandbox
            // forbids, is no reason not to use the plain socket.
            if is_marked && rustix::net::connect(&fd, &rustix_addr(&second)?).is_ok() {
                if let Some(listener) = credentials(&fd).filter(is_trusted) {
                    return connected(runtime, fd, Some(listener));
                }
            }
        }
        let (fd, _) = connect_to(runtime, &plain, options, false).await?;
        return connected(runtime, fd, None);
    }
    let (fd, is_client) = connect_to(runtime, &plain, options, with_smc).await?;
    let stream = net::UnixStream::from(fd);
    let is_marked = is_client && names::is_listener(&stream.peer_addr()?);
    let fd = OwnedFd::from(stream);
    let listener = is_marked.then(|| credentials(&fd));
    match listener {
        Some(Some(listener)) => connected(runtime, fd, Some(listener)),
        // The listener expects a handshake on this one.
        Some(None) => {
            let (fd, _) = connect_to(runtime, &plain, options, false).await?;
            connected(runtime, fd, None)
        }
        None => connected(runtime, fd, None),
    }
}

fn connected(
    runtime: &dyn Runtime,
    fd: OwnedFd,
    listener: Option<Credentials>,
) -> io::Result<Connected> {
    let socket = runtime.unix_socket(fd)?;
    Ok(Connected { socket, listener })
}

fn credentials(fd: &OwnedFd) -> Option<Credentials> {
    Credentials::of_peer(fd).ok()
}

/// Whether the listener at the second socket of an abstract name belongs to the own user or to
/// root: each user can listen at a name that is free.
fn is_trusted(listener: &Credentials) -> bool {
    listener.uid == 0 || listener.uid == Credentials::own().uid
}

async fn connect_to(
    runtime: &dyn Runtime,
    to: &net::SocketAddr,
    options: &SocketOptions,
    with_smc: bool,
) -> io::Result<(OwnedFd, bool)> {
    let (fd, is_client) = socket(options, with_smc)?;
    let to = rustix_addr(to)?;
    loop {
        match rustix::net::connect(&fd, &to) {
            Ok(()) => return Ok((fd, is_client)),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => runtime.timer(runtime.now() + FULL_DELAY).await,
            Err(error) => return Err(error.into()),
        }
    }
}

/// A socket that is not connected, and whether it has the name of a client that sends a PROPOSAL.
fn socket(options: &SocketOptions, with_smc: bool) -> io::Result<(OwnedFd, bool)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Where the kernel can: closing what is passed can block.
    let _refused = refuse_descriptors(&fd);
    options.call_hook(fd.as_fd())?;
    // A hook may have bound it, or a sandbox may forbid it: it is without SMC then.
    let is_client = with_smc && rustix::net::bind(&fd, &rustix_addr(&names::client()?)?).is_ok();
    Ok((fd, is_client))
}

/// An address in the form of system calls.
pub(super) fn rustix_addr(addr: &net::SocketAddr) -> io::Result<SocketAddrUnix> {
    use std::os::linux::net::SocketAddrExt as _;
    Ok(match (addr.as_pathname(), addr.as_abstract_name()) {
        (Some(path), _) => SocketAddrUnix::new(path)?,
        (None, Some(name)) => SocketAddrUnix::new_abstract_name(name)?,
        (None, None) => SocketAddrUnix::new_unnamed(),
    })
}

/// How long a client waits before it tries again at a listener with a full backlog: the system
/// reports no end of that.
const FULL_DELAY: Duration = Duration::from_millis(1);
