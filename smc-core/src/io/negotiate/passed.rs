//! Descriptors that others pass over UNIX sockets, closed so that nobody waits for it.
//!
//! Closing a descriptor can take as long as whoever passed it likes, if ours is the last one: a TCP
//! socket that lingers, a file of a file system that somebody serves. That also goes for those in
//! packets that nobody read, when the socket is closed. So all that is not of a harmless kind is
//! closed by a thread of its own, and not looked at in any way that could wait.
//!
//! What waits to be closed is counted by the user who passed it. From a user of whom 64 descriptors
//! wait nothing more is received, and while 256 of all users wait no connection is accepted
//! ([`has_room`]): the process keeps descriptors for everything else.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use nix::sys::socket::{setsockopt, sockopt};
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags, fcntl_get_seals, readlinkat, statx};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, Shutdown, recvmsg, shutdown,
    sockopt::set_socket_linger,
};

use super::Credentials;

/// A UNIX socket that keeps packet boundaries, to a process that may mean harm.
///
/// Dropping it ends the connection at once, for all who share the socket, and never waits whatever
/// was passed over it and not received.
pub struct PeerSocket {
    /// Taken when dropped.
    socket: Option<OwnedFd>,
    /// Found when it is needed first: the socket may not be connected before.
    user: OnceLock<u32>,
}

impl From<OwnedFd> for PeerSocket {
    fn from(socket: OwnedFd) -> Self {
        Self {
            socket: Some(socket),
            user: OnceLock::new(),
        }
    }
}

impl PeerSocket {
    /// The user at the other end.
    fn user(&self) -> u32 {
        *self.user.get_or_init(|| user_of(self.as_fd()))
    }
}

impl AsFd for PeerSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let socket = self.socket.as_ref().expect("taken by `drop` alone");
        socket.as_fd()
    }
}

impl Drop for PeerSocket {
    fn drop(&mut self) {
        let user = self.user();
        let Some(socket) = self.socket.take() else {
            return;
        };
        // From here on nothing can be added to what is unread.
        let ended = shutdown(&socket, Shutdown::Both);
        if ended.is_err() || !is_emptied(&socket, user) {
            close_elsewhere(socket, user);
        }
    }
}

impl fmt::Debug for PeerSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PeerSocket").field(&self.socket).finish()
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
    /// Descriptors that came with it, in order.
    pub passed: Vec<Passed>,
}

impl Packet {
    /// Whether it came with more descriptors than `most`, or with one that no protocol here passes.
    /// End the connection then.
    #[must_use]
    pub fn is_overloaded(&self, most: usize) -> bool {
        let is_unsuitable = |passed: &Passed| matches!(passed, Passed::Unsuitable);
        self.passed.len() > most || self.passed.iter().any(is_unsuitable)
    }
}

/// A descriptor that came with a packet.
#[derive(Debug)]
#[non_exhaustive]
pub enum Passed {
    /// Of a kind that can be closed without waiting: a memory file or an eventfd.
    File(OwnedFd),
    /// Of another kind. It is closed, or will be soon.
    Unsuitable,
    /// One or more, the last of a packet, that the system has closed because this process has no room
    /// for them (`RLIMIT_NOFILE`).
    Lost,
}

impl Passed {
    fn new(fd: OwnedFd, user: u32) -> Self {
        // Only memory files have seals.
        if fcntl_get_seals(&fd).is_ok() || is_eventfd(fd.as_fd()) {
            Self::File(fd)
        } else {
            close_elsewhere(fd, user);
            Self::Unsuitable
        }
    }
}

/// Receives a packet without waiting.
///
/// # Errors
///
/// As `recvmsg(2)`; [`WouldBlock`](io::ErrorKind::WouldBlock) if there is nothing now. If too many
/// descriptors that this user has passed wait to be closed: the connection has to be ended then.
pub fn receive(socket: &PeerSocket, buf: &mut [u8]) -> io::Result<Packet> {
    receive_from(socket.as_fd(), socket.user(), buf)
}

fn receive_from(socket: BorrowedFd<'_>, user: u32, buf: &mut [u8]) -> io::Result<Packet> {
    if WAITING.load(Ordering::Relaxed) >= MAX_WAITING && closers().waiting_of(user) >= MAX_WAITING {
        let why =
            format!("{MAX_WAITING} descriptors that user {user} has passed are not closed yet");
        return Err(io::Error::other(why));
    }
    // Room for all that can be: the system closes what does not fit, and we would wait for that.
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(socket, &mut [IoSliceMut::new(buf)], &mut control, flags) {
            Err(Errno::INTR) => {}
            result => break result?,
        }
    };
    let mut passed = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            passed.extend(rights.map(|fd| Passed::new(fd, user)));
        }
    }
    // There was room in `space`, so it is descriptors that this process lacks.
    if received.flags.contains(ReturnFlags::CTRUNC) {
        passed.push(Passed::Lost);
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

/// Whether there are descriptors enough to accept another connection; false while very many wait to
/// be closed.
#[must_use]
pub fn has_room() -> bool {
    WAITING.load(Ordering::Relaxed) < MAX_WAITING_OF_ALL
}

/// The user at the other end; the overflow user if the system does not say.
fn user_of(socket: BorrowedFd<'_>) -> u32 {
    Credentials::of_peer(&socket).map_or(u32::MAX, |peer| peer.uid)
}

/// Closes a descriptor on another thread, because that may wait.
fn close_elsewhere(fd: OwnedFd, user: u32) {
    WAITING.fetch_add(1, Ordering::Relaxed);
    let mut closers = closers();
    let closer = closers.0.entry(user).or_default();
    closer.queue.push_back(fd);
    closer.waiting += 1;
    if closer.threads >= MAX_THREADS {
        return;
    }
    let thread = std::thread::Builder::new().name("smc-close".into());
    // Without a thread it waits for the next one that can be had.
    if thread.spawn(move || close_all(user)).is_ok() {
        closer.threads += 1;
    }
}

fn close_all(user: u32) {
    loop {
        let next = closers().next(user);
        let Some(fd) = next else { return };
        // Fails for what is not a socket.
        let _ = set_socket_linger(&fd, None);
        drop(fd);
        WAITING.fetch_sub(1, Ordering::Relaxed);
        if let Some(closer) = closers().0.get_mut(&user) {
            closer.waiting -= 1;
        }
    }
}

/// Receives what is left in a socket that was shut down; whether that was all.
fn is_emptied(socket: &OwnedFd, user: u32) -> bool {
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
        if receive_from(socket.as_fd(), user, &mut []).is_err() {
            return false;
        }
    }
    false
}

/// What waits to be closed, by user.
#[derive(Debug)]
struct Closers(BTreeMap<u32, Closer>);

#[derive(Debug, Default)]
struct Closer {
    queue: VecDeque<OwnedFd>,
    threads: usize,
    /// With those that threads are closing.
    waiting: usize,
}

impl Closers {
    fn waiting_of(&self, user: u32) -> usize {
        self.0.get(&user).map_or(0, |closer| closer.waiting)
    }

    /// The next for a thread; `None` ends it.
    fn next(&mut self, user: u32) -> Option<OwnedFd> {
        let closer = self.0.get_mut(&user)?;
        let next = closer.queue.pop_front();
        if next.is_none() {
            closer.threads -= 1;
            if closer.threads == 0 {
                self.0.remove(&user);
            }
        }
        next
    }
}

fn closers() -> MutexGuard<'static, Closers> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers(BTreeMap::new()));

/// All that waits to be closed.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Threads that close what a user has passed; each can be held up for long.
const MAX_THREADS: usize = 4;

/// Descriptors of a user that wait to be closed: nothing more is received then. What the last packet
/// brought, and a socket for each of the user's connections, may come on top.
const MAX_WAITING: usize = 64;

/// Descriptors of all users: no connection is accepted then. A quarter of what a process may have
/// open by default.
const MAX_WAITING_OF_ALL: usize = 256;

/// Descriptors that a packet can carry.
const SCM_MAX_FD: usize = 253;

/// Packets that are received to close a socket; more are left to a thread.
const MAX_UNREAD: usize = 1024;

#[cfg(test)]
mod tests;
