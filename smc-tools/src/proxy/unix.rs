//! UNIX sockets with a path: one that a process has left behind is replaced.

use std::io::{self, ErrorKind};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use smc_ipc::runtime_dir::bind_with_mode;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::UnixListener;

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
pub(super) fn listen(path: &Path, mode: u32) -> Result<(UnixListener, BoundPath)> {
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
    socket
        .listen(BACKLOG)
        .with_context(|| format!("cannot listen at {shown}"))?;
    Ok((UnixListener::from_std(StdListener::from(socket))?, bound))
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
fn stream() -> Result<Socket> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking().cloexec(), None);
    socket.context("cannot make a UNIX socket")
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs_err::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;
