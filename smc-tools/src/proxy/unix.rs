//! UNIX sockets. With a path one that a process has left behind is replaced.
//!
//! The other end can pass descriptors whose closing does not end. A call that receives without
//! space for them closes them, as does closing the socket. So the kernel is to refuse them (Linux
//! 6.16). Where it does not, they are received, closed by threads, and end the connection.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use anyhow::{Context as _, Result, bail};
use nix::sys::socket::{MsgFlags, Shutdown, send, shutdown};
use smc_ipc::Credentials;
use smc_ipc::passed::{self, PeerSocket, refuse_descriptors};
use smc_ipc::runtime_dir::bind_with_mode;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// A connection.
pub(super) struct Connection(AsyncFd<Watched<PeerSocket>>);

impl Connection {
    /// Connects without waiting.
    pub(super) fn connect(to: &SockAddr) -> io::Result<Self> {
        let socket = stream()?;
        let refuses_descriptors = refuse_descriptors(&socket);
        socket.connect(to)?;
        Self::new(OwnedFd::from(socket).into(), refuses_descriptors)
    }

    fn new(mut socket: PeerSocket, refuses_descriptors: bool) -> io::Result<Self> {
        // The mode of the socket decides who may connect.
        socket.set_allowed();
        if refuses_descriptors {
            socket.set_refuses_descriptors();
        }
        Ok(Self(watched(socket)?))
    }

    /// The process at the other end.
    pub(super) fn peer(&self) -> io::Result<Credentials> {
        Credentials::of_peer(&self.0.get_ref().0)
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(cx))?;
            let unfilled = buf.initialize_unfilled();
            let received = ready.try_io(|socket| passed::receive(&socket.get_ref().0, unfilled));
            let Ok(received) = received else {
                continue;
            };
            let received = received?;
            if !received.passed.is_empty() {
                let why = "a descriptor was passed, which a proxy does not carry";
                return Poll::Ready(Err(io::Error::new(ErrorKind::InvalidData, why)));
            }
            buf.advance(received.len);
            return Poll::Ready(Ok(()));
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            let mut ready = ready!(self.0.poll_write_ready(cx))?;
            let sent = ready.try_io(|socket| Ok(send(socket.as_raw_fd(), buf, flags)?));
            if let Ok(sent) = sent {
                return Poll::Ready(sent);
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(shutdown(self.0.as_raw_fd(), Shutdown::Write)?))
    }
}

/// A listening socket.
pub(super) struct Listener {
    socket: AsyncFd<Watched<passed::Listener>>,
    refuses_descriptors: bool,
}

impl Listener {
    /// Has a bound socket listen. Others may be able to open its file if it `is_public`.
    fn listen(socket: Socket, is_public: bool) -> io::Result<Self> {
        let refuses_descriptors = refuse_descriptors(&socket);
        socket.listen(BACKLOG)?;
        let socket = passed::Listener::new(socket.into(), is_public);
        Ok(Self {
            socket: watched(socket)?,
            refuses_descriptors,
        })
    }

    /// The next connection. Cancel safe.
    pub(super) async fn accept(&self) -> io::Result<Connection> {
        loop {
            let mut ready = self.socket.readable().await?;
            let accepted = ready.try_io(|socket| Ok(passed::accept(&socket.get_ref().0)?));
            if let Ok(accepted) = accepted {
                return Connection::new(accepted?, self.refuses_descriptors);
            }
        }
    }
}

/// What tokio watches.
struct Watched<T>(T);

impl<T: AsFd> AsRawFd for Watched<T> {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

fn watched<T: AsFd>(socket: T) -> io::Result<AsyncFd<Watched<T>>> {
    #[allow(
        deprecated,
        reason = "the successor is unsafe, for types that change their descriptor"
    )]
    AsyncFd::new(Watched(socket))
}

/// A name in the abstract namespace.
pub(super) fn abstract_address(name: &str) -> io::Result<SockAddr> {
    SockAddr::unix(format!("\0{name}"))
}

/// Listens at a name in the abstract namespace.
pub(super) fn listen_abstract(name: &str) -> io::Result<Listener> {
    let socket = stream()?;
    socket.bind(&abstract_address(name)?)?;
    Listener::listen(socket, false)
}

/// The path of a listening socket, which is removed with this.
#[derive(Debug)]
pub(super) struct BoundPath {
    path: PathBuf,
    /// Device and number of the inode, which are not reused while the socket is open.
    inode: (u64, u64),
}

impl Drop for BoundPath {
    fn drop(&mut self) {
        // Another process may have replaced it.
        if inode(&self.path).is_ok_and(|found| found == self.inode) {
            let _ = fs_err::remove_file(&self.path);
        }
    }
}

/// Listens at a path, with this mode of the socket from the beginning.
pub(super) fn listen(path: &Path, mode: u32) -> Result<(Listener, BoundPath)> {
    let shown = path.display();
    remove_stale(path)?;
    let socket = stream()?;
    // Connections are refused before it listens.
    match bind_with_mode(&socket, path, mode).map_err(io::Error::from) {
        Err(error) if error.kind() == ErrorKind::AddrInUse => bail!(
            "another process has made {shown} at this moment; end it, or listen at another path"
        ),
        bound => bound.with_context(|| format!("cannot make the socket {shown}"))?,
    };
    let bound = BoundPath {
        path: path.to_owned(),
        inode: inode(path)?,
    };
    let listener = Listener::listen(socket, mode & 0o077 != 0)
        .with_context(|| format!("cannot listen at {shown}"))?;
    Ok((listener, bound))
}

/// Removes a socket without a process. One with a process, and any other file, is an error.
fn remove_stale(path: &Path) -> Result<()> {
    let shown = path.display();
    match fs_err::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error.into()),
        Ok(found) if !found.file_type().is_socket() => {
            bail!("{shown} exists and is no socket; remove it, or listen at another path")
        }
        Ok(_) => {}
    }
    let address = SockAddr::unix(path).with_context(|| format!("cannot use the path {shown}"))?;
    match stream()?.connect(&address) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            fs_err::remove_file(path)?;
            Ok(())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            bail!("{shown} is the socket of another user; listen at another path")
        }
        // A full backlog and another type of socket are signs of a process, too.
        _ => bail!("{shown} is in use: a process listens there; end it, or listen at another path"),
    }
}

/// A socket that does not wait, also not for a listener with a full backlog.
fn stream() -> io::Result<Socket> {
    Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None)
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs_err::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;
    use std::thread::spawn;

    use smc_testkit::unix::{lingering, send};
    use smc_testkit::wait::{TIMEOUT, until};
    use tokio::io::AsyncReadExt as _;
    use tokio::runtime::Builder;

    use super::*;

    /// As on kernels that do not refuse descriptors.
    #[test]
    fn a_descriptor_whose_closing_lasts_ends_its_connection_and_blocks_nothing() {
        let scenario = async {
            let (mut talker, socket) = UnixStream::pair().unwrap();
            let socket = PeerSocket::from(OwnedFd::from(socket));
            let mut connection = Connection::new(socket, false).unwrap();
            talker.write_all(b"before").unwrap();
            let mut buf = [0; 16];
            assert_eq!(connection.read(&mut buf).await.unwrap(), 6);
            // One is received, and one is left in the socket.
            for _ in 0..2 {
                let (slow, _far) = lingering(10 * TIMEOUT);
                send(&talker, b"x", &[slow.as_fd()]);
            }
            let error = connection.read(&mut buf).await.unwrap_err();
            assert!(error.to_string().contains("descriptor"), "{error}");
        };
        let runtime = Builder::new_current_thread().enable_io().build().unwrap();
        let running = spawn(move || runtime.block_on(scenario));
        until(|| running.is_finished(), || "waits".to_owned());
        running.join().unwrap();
    }
}
