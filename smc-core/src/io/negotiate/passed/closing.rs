//! Threads that close what peers have passed, as that may block.
//!
//! A blocked thread holds one descriptor at most, that of a connection. Fewer descriptors wait if
//! more are closed by one call: a socket together with all that was passed over it and not
//! received, and sockets that came in one packet. TCP sockets do not linger; but UNIX sockets may
//! have some in their queues that do.

use std::collections::{BTreeMap, VecDeque};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Resource, getrlimit};

use super::{MAX_UNREAD, SCM_MAX_FD, TIME_SPACE, UNREAD_LEN, has_more};

/// What is to be closed.
#[derive(Debug)]
pub(super) enum Content {
    /// A socket that was shut down and that no other process has, and what was passed over it.
    Unread(OwnedFd),
    /// What came with a packet.
    Passed(Vec<OwnedFd>),
}

/// Whether there are descriptors enough to accept another connection; false while so many wait to
/// be closed that it is half of those that the process may have (`RLIMIT_NOFILE`).
#[must_use]
pub fn has_descriptors() -> bool {
    let waiting = WAITING.load(Ordering::Relaxed);
    waiting < MAX_WAITING
        || getrlimit(Resource::Nofile)
            .current
            .is_none_or(|limit| u64::try_from(waiting).is_ok_and(|waiting| waiting < limit / 2))
}

/// Whether so many descriptors of a user wait to be closed that nothing more is received from them.
pub(super) fn is_full(user: u32) -> bool {
    let waiting = || closers().0.get(&user).map_or(0, |closer| closer.waiting);
    WAITING.load(Ordering::Relaxed) >= MAX_WAITING && waiting() >= MAX_WAITING
}

/// Closes on another thread what a user has passed.
pub(super) fn close_elsewhere(content: Content, user: u32) {
    let mut closers = closers();
    let closer = closers.0.entry(user).or_default();
    WAITING.fetch_add(content.len(), Ordering::Relaxed);
    closer.waiting += content.len();
    closer.queue.push_back(content);
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
    while let Some((content, looking)) = next(user) {
        match content {
            Content::Unread(socket) => {
                close_unread(&socket, &looking);
                forget(user, 1);
                drop(socket);
            }
            Content::Passed(passed) => close_passed(passed, user),
        }
    }
}

/// Takes packets out of a socket and closes what came with them, in one go for each packet.
fn close_unread(socket: &OwnedFd, looking: &Mutex<()>) {
    for _ in 0..MAX_UNREAD {
        let mut bytes = [0; UNREAD_LEN];
        let len = {
            let _alone = looking.lock().unwrap_or_else(PoisonError::into_inner);
            end_lingering(socket, &mut bytes)
        };
        let Some(len) = len else { return };
        if len == 0 && !has_more(socket) {
            return;
        }
        // Without control space, so the system closes the descriptors.
        if recv(socket, &mut bytes[..len], RecvFlags::DONTWAIT).is_err() {
            return;
        }
    }
}

/// Has no TCP socket linger that came with the next packet, which stays in the queue. Returns the
/// number of bytes.
fn end_lingering(socket: &OwnedFd, bytes: &mut [u8]) -> Option<usize> {
    let mut space = [MaybeUninit::uninit(); SPACE];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK | RecvFlags::CMSG_CLOEXEC;
    let next = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags).ok()?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            for fd in rights {
                match set_socket_linger(&fd, None) {
                    Ok(()) => drop(fd),
                    Err(_) => files.push(fd),
                }
            }
        }
    }
    Some(next.bytes)
}

fn close_passed(passed: Vec<OwnedFd>, user: u32) {
    // Also fails for what is not a socket.
    let (sockets, mut files): (Vec<_>, Vec<_>) = passed
        .into_iter()
        .partition(|fd| set_socket_linger(fd, None).is_ok());
    if !sockets.is_empty() && !files.is_empty() {
        let files = Content::Passed(std::mem::take(&mut files));
        forget(user, files.len());
        close_elsewhere(files, user);
    }
    for file in files {
        forget(user, 1);
        drop(file);
    }
    if sockets.is_empty() {
        return;
    }
    let len = sockets.len();
    // The packet is the last that has them. So when it is closed all of them are.
    let packet = in_packet(&sockets);
    drop(sockets);
    forget(user, len);
    drop(packet);
}

/// A socket in whose queue these are.
fn in_packet(sockets: &[OwnedFd]) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let sockets: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_MAX_FD))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&sockets));
    sendmsg(
        &near,
        &[IoSlice::new(&[0])],
        &mut control,
        SendFlags::NOSIGNAL,
    )
    .ok()?;
    Some(far)
}

fn next(user: u32) -> Option<(Content, Arc<Mutex<()>>)> {
    let mut closers = closers();
    let closer = closers.0.get_mut(&user)?;
    if let Some(content) = closer.queue.pop_front() {
        return Some((content, Arc::clone(&closer.looking)));
    }
    closer.threads -= 1;
    if closer.threads == 0 {
        closers.0.remove(&user);
    }
    None
}

/// Descriptors are closed by now, or will be as the first thing.
fn forget(user: u32, count: usize) {
    WAITING.fetch_sub(count, Ordering::Relaxed);
    if let Some(closer) = closers().0.get_mut(&user) {
        closer.waiting -= count;
    }
}

/// By user.
#[derive(Debug)]
struct Closers(BTreeMap<u32, Closer>);

#[derive(Debug, Default)]
struct Closer {
    queue: VecDeque<Content>,
    threads: usize,
    /// Descriptors in the queue and those that threads have not begun to close.
    waiting: usize,
    /// Locked by a thread while it has descriptors of a packet that it only peeks at.
    looking: Arc<Mutex<()>>,
}

impl Content {
    fn len(&self) -> usize {
        match self {
            Self::Unread(_) => 1,
            Self::Passed(passed) => passed.len(),
        }
    }
}

fn closers() -> MutexGuard<'static, Closers> {
    CLOSERS.lock().unwrap_or_else(PoisonError::into_inner)
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers(BTreeMap::new()));

/// Descriptors of all users that wait to be closed.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Threads that close what a user has passed; each can be held up for long.
const MAX_THREADS: usize = 4;

/// Descriptors of a user that wait to be closed: nothing more is received then, and connections are
/// refused. What the last packet brought, and a socket for each of the user's connections, may come
/// on top.
pub(super) const MAX_WAITING: usize = 64;

/// Control space for a time and as many descriptors as there can be.
const SPACE: usize = TIME_SPACE + rustix::cmsg_space!(ScmRights(SCM_MAX_FD));
