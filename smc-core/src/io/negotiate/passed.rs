//! Descriptors that others pass over UNIX sockets, closed so that nobody waits for it.
//!
//! Closing a descriptor can take as long as whoever passed it likes, if ours is the last one: a TCP
//! socket that lingers, a file of a file system that somebody serves. That also goes for those in
//! packets that nobody read, when the socket is closed. So all that is not of a harmless kind is
//! closed by a thread of its own, and not looked at in any way that could wait.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, fcntl_get_seals, readlinkat, statx};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, recvmsg, shutdown,
    sockopt::set_socket_linger,
};

/// A UNIX socket that keeps packet boundaries, to a process that may mean harm.
///
/// Dropping it ends the connection at once, for all who share the socket, and never waits whatever
/// was passed over it and not received.
pub struct PeerSocket(Option<OwnedFd>);

impl From<OwnedFd> for PeerSocket {
    fn from(socket: OwnedFd) -> Self {
        Self(Some(socket))
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let socket = self.0.as_ref().expect("taken by `drop` alone");
        socket.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let Some(socket) = self.0.take() else { return };
        // From here on nothing can be added to what is unread.
        let ended = shutdown(&socket, Shutdown::Both);
        if ended.is_err() || !is_emptied(&socket) {
            close_elsewhere(socket);
        }
    }
}

impl fmt::Debug for PeerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerSocket").field(&self.0).finish()
    }
}

/// A packet that was received.
#[derive(Debug)]
#[non_exhaustive]
pub struct Packet {
    /// Bytes of it in the buffer; 0 also at the end of the connection.
    pub len: usize,
    /// There were more bytes than fit the buffer.
    pub is_cut: bool,
    /// Descriptors that came with it, unless this process had no room for them.
    pub passed: Vec<Passed>,
}

/// A descriptor that came with a packet.
#[derive(Debug)]
#[non_exhaustive]
pub enum Passed {
    /// Of a kind that can be closed without waiting: a memory file or an eventfd.
    File(OwnedFd),
    /// Of another kind. It is closed, or will be soon.
    Unsuitable,
}

impl Passed {
    fn new(fd: OwnedFd) -> Self {
        // Only memory files have seals.
        if fcntl_get_seals(&fd).is_ok() || is_eventfd(fd.as_fd()) {
            Self::File(fd)
        } else {
            close_elsewhere(fd);
            Self::Unsuitable
        }
    }
}

/// Receives a packet without waiting.
///
/// # Errors
///
/// As `recvmsg(2)`; [`WouldBlock`](io::ErrorKind::WouldBlock) if there is nothing now.
pub fn receive(socket: impl AsFd, buf: &mut [u8]) -> io::Result<Packet> {
    // Room for all that can be: the system closes what does not fit, and we would wait for that.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(buf)], &mut control, flags) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut passed = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            passed.extend(rights.map(Passed::new));
        }
    }
    Ok(Packet {
        len: received.bytes,
        is_cut: received.flags.contains(ReturnFlags::TRUNC),
        passed,
    })
}

/// Whether a descriptor is an eventfd; does not wait for whoever made it.
#[must_use]
pub fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = format!("/proc/self/fd/{}", fd.as_raw_fd());
    match readlinkat(CWD, link, Vec::new()) {
        Ok(name) => name.as_bytes() == b"anon_inode:[eventfd]",
        // Without /proc: nothing else than its kind has no type of file. The file system that
        // serves the file is not asked.
        Err(_) => {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            statx(fd, "", flags, StatxFlags::TYPE).is_ok_and(|stat| {
                FileType::from_raw_mode(stat.stx_mode.into()) == FileType::Unknown
            })
        }
    }
}

/// Closes a descriptor on another thread, because that may wait.
fn close_elsewhere(fd: OwnedFd) {
    let mut closers = CLOSERS.lock().unwrap_or_else(PoisonError::into_inner);
    closers.queue.push_back(fd);
    if closers.threads >= MAX_CLOSERS {
        return;
    }
    let thread = std::thread::Builder::new().name("smc-close".into());
    // Without a thread it waits for the next one that can be had.
    if thread.spawn(close_all).is_ok() {
        closers.threads += 1;
    }
}

fn close_all() {
    loop {
        let mut closers = CLOSERS.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(fd) = closers.queue.pop_front() else {
            closers.threads = closers.threads.saturating_sub(1);
            return;
        };
        drop(closers);
        // Fails for what is not a socket.
        let _ = set_socket_linger(&fd, None);
        drop(fd);
    }
}

/// Receives what is left in a socket that was shut down; whether that was all.
fn is_emptied(socket: &OwnedFd) -> bool {
    // Every packet carries a time from now on, so empty ones differ from the end.
    if setsockopt(socket, sockopt::ReceiveTimestamp, &true).is_err() {
        return false;
    }
    for _ in 0..MAX_UNREAD {
        // What is not received here stays in the queue, so nothing is closed.
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let mut nowhere = RecvAncillaryBuffer::default();
        match recvmsg(socket, &mut [], &mut nowhere, flags) {
            Ok(next) if next.bytes == 0 && !next.flags.contains(ReturnFlags::CTRUNC) => {
                return true;
            }
            Ok(_) => {}
            // The other side closed with something unread, which is said once.
            Err(Errno::INTR | Errno::CONNRESET) => continue,
            Err(Errno::NOTCONN) => return true,
            Err(_) => return false,
        }
        if receive(socket, &mut []).is_err() {
            return false;
        }
    }
    false
}

#[derive(Debug)]
struct Closers {
    queue: VecDeque<OwnedFd>,
    threads: usize,
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers {
    queue: VecDeque::new(),
    threads: 0,
});

/// Threads that close descriptors at a time; each can be held up for long.
const MAX_CLOSERS: usize = 16;

/// Descriptors that a packet can carry.
const SCM_MAX_FD: usize = 253;

/// Packets that are received to close a socket; more are left to a thread.
const MAX_UNREAD: usize = 1024;

#[cfg(test)]
mod tests;
