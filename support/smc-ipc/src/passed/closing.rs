//! Threads that close what peers have passed, as that may block.
//!
//! A blocked thread holds one descriptor at most, that of a connection. Fewer descriptors wait if
//! more are closed by one call: a socket together with all that was passed over it and not
//! received, and sockets that came in one packet. What was not received is not received here
//! either: a peek would take descriptors, and TCP sockets that were passed can block any call on
//! them. TCP sockets that were received do not linger.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketFlags,
    SocketType, send, sendmsg, shutdown, socketpair,
};
use rustix::process::{Resource, getrlimit};

use super::SCM_MAX_FD;
use crate::is_own_user;
use crate::thread::lock;

/// Whose descriptors wait together, and are closed by threads of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Share {
    /// A user who may be a peer.
    User(u32),
    /// All other users together: a user can have many numbers, in a user namespace.
    NotAllowed,
    /// Listening sockets of this process, with connections of several users.
    Listeners,
}

impl Share {
    /// Whether it is the share of the own user.
    pub(super) fn is_own(self) -> bool {
        matches!(self, Self::User(user) if is_own_user(user))
    }
}

/// What is to be closed.
#[derive(Debug)]
pub(super) enum Content {
    /// A socket that was shut down and that no other process has, and what was passed over it.
    Unread(OwnedFd),
    /// A connection that is refused, what was passed over it, and what is sent before it ends.
    Refused(OwnedFd, Vec<u8>),
    /// What came with a packet.
    Passed(Vec<OwnedFd>),
    /// A file or memory that a peer has as well, or had, and whether it counts.
    Shared(Box<dyn Any + Send>, bool),
}

/// Whether there are descriptors enough to accept another connection; false while so many wait to
/// be closed that it is half of those that the process may have (`RLIMIT_NOFILE`).
#[must_use]
pub fn has_descriptors() -> bool {
    if WAITING.load(Ordering::Relaxed) < MAX_WAITING {
        return true;
    }
    // In a child process it is counted anew.
    drop(closers());
    let waiting = WAITING.load(Ordering::Relaxed);
    getrlimit(Resource::Nofile)
        .current
        .is_none_or(|limit| u64::try_from(waiting).is_ok_and(|waiting| waiting < limit / 2))
}

/// Whether so many descriptors of a share wait to be closed that nothing more is received for it.
///
/// Of files that were shared these are more: many are closed at once when many peers end at once,
/// and the connections of other peers must not end with them.
pub(super) fn is_full(share: impl FnOnce() -> Share) -> bool {
    if WAITING.load(Ordering::Relaxed) < MAX_WAITING {
        return false;
    }
    let share = share();
    let closers = closers();
    let closer = closers.of_shares.get(&closers.counted(share));
    closer
        .is_some_and(|closer| closer.waiting >= MAX_WAITING || closer.files >= max_waiting_files())
}

fn max_waiting_files() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let quarter = usize::try_from(limit / 4).unwrap_or(usize::MAX);
    quarter.max(MAX_WAITING)
}

/// Whether the threads are behind with what users who are not allowed have left unread.
#[must_use]
pub fn is_behind() -> bool {
    is_full(|| Share::NotAllowed)
}

/// Closes on another thread what was passed.
pub(super) fn close_elsewhere(content: Content, share: Share) {
    let mut closers = closers();
    let share = closers.counted(share);
    let closer = closers.of_shares.entry(share).or_default();
    let (waiting, files) = content.counts();
    WAITING.fetch_add(waiting + files, Ordering::Relaxed);
    closer.waiting += waiting;
    closer.files += files;
    closer.queue.push_back(content);
    if closer.threads < MAX_THREADS {
        closer.start_thread(share);
    }
}

fn close_all(share: Share) {
    while let Some(content) = next(share) {
        match content {
            Content::Unread(socket) => {
                forget(share, 1, 0);
                drop(socket);
            }
            Content::Refused(socket, refusal) => {
                refuse(&socket, &refusal);
                forget(share, 1, 0);
                drop(socket);
            }
            Content::Passed(passed) => close_passed(passed, share),
            Content::Shared(shared, is_counted) => {
                forget(share, 0, usize::from(is_counted));
                drop(shared);
            }
        }
    }
}

fn refuse(socket: &OwnedFd, refusal: &[u8]) {
    if !refusal.is_empty() {
        // It ends, whether this is read or not.
        let _ = send(socket, refusal, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }
    let _ = shutdown(socket, Shutdown::Both);
}

fn close_passed(passed: Vec<OwnedFd>, share: Share) {
    // Also fails for what is not a socket.
    let (sockets, mut files): (Vec<_>, Vec<_>) = passed
        .into_iter()
        .partition(|fd| set_socket_linger(fd, None).is_ok());
    if !sockets.is_empty() && !files.is_empty() {
        let files = std::mem::take(&mut files);
        forget(share, files.len(), 0);
        close_elsewhere(Content::Passed(files), share);
    }
    for file in files {
        forget(share, 1, 0);
        drop(file);
    }
    if sockets.is_empty() {
        return;
    }
    let len = sockets.len();
    // The packet is the last that has them. So when it is closed all of them are.
    let packet = in_packet(&sockets);
    drop(sockets);
    forget(share, len, 0);
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

fn next(share: Share) -> Option<Content> {
    let mut closers = closers();
    let closer = closers.of_shares.get_mut(&share)?;
    if let Some(content) = closer.queue.pop_front() {
        return Some(content);
    }
    closer.threads -= 1;
    if closer.threads == 0 {
        closers.of_shares.remove(&share);
    }
    None
}

/// Descriptors, and shared files, are closed by now, or will be as the first thing.
fn forget(share: Share, waiting: usize, files: usize) {
    let mut closers = closers();
    WAITING.fetch_sub(waiting + files, Ordering::Relaxed);
    if let Some(closer) = closers.of_shares.get_mut(&share) {
        closer.waiting -= waiting;
        closer.files -= files;
    }
}

#[derive(Debug)]
struct Closers {
    /// The process whose threads these are.
    process: u32,
    of_shares: BTreeMap<Share, Closer>,
}

impl Closers {
    /// Takes over what the parent of this child process had in its queues, and counts it. Its
    /// threads are not here, nor what they were about to close.
    fn take_over(&mut self, process: u32) -> usize {
        self.process = process;
        let mut all = 0;
        for (share, closer) in &mut self.of_shares {
            closer.threads = 0;
            let counts = closer.queue.iter().map(Content::counts);
            (closer.waiting, closer.files) = counts
                .fold((0, 0), |(waiting, files), (more, new)| {
                    (waiting + more, files + new)
                });
            all += closer.waiting + closer.files;
            closer.start_thread(*share);
        }
        all
    }

    /// The share that this one counts to: above a number of users, that of users who are not
    /// allowed. So the number of threads is bounded also where a file mode decides who may connect.
    fn counted(&self, share: Share) -> Share {
        let is_user = |share: &&Share| matches!(share, Share::User(_));
        match share {
            Share::User(_) if self.of_shares.contains_key(&share) => share,
            Share::User(_) if self.of_shares.keys().filter(is_user).count() >= MAX_USERS => {
                Share::NotAllowed
            }
            _ => share,
        }
    }
}

#[derive(Debug, Default)]
struct Closer {
    queue: VecDeque<Content>,
    threads: usize,
    /// Descriptors in the queue and those that threads have not begun to close, without files.
    waiting: usize,
    /// [Files and memory](Content::Shared) that count, in the queue.
    files: usize,
}

impl Closer {
    /// Without a thread what waits does so for the next one that can be had.
    fn start_thread(&mut self, share: Share) {
        let thread = std::thread::Builder::new().name("smc-close".into());
        if thread.spawn(move || close_all(share)).is_ok() {
            self.threads += 1;
        }
    }
}

impl Content {
    /// How many descriptors it counts for, and how many shared files.
    fn counts(&self) -> (usize, usize) {
        match self {
            Self::Unread(_) | Self::Refused(..) => (1, 0),
            Self::Passed(passed) => (passed.len(), 0),
            Self::Shared(_, is_counted) => (0, usize::from(*is_counted)),
        }
    }
}

fn closers() -> MutexGuard<'static, Closers> {
    let mut closers = lock(&CLOSERS);
    let process = std::process::id();
    if closers.process != process {
        WAITING.store(closers.take_over(process), Ordering::Relaxed);
    }
    closers
}

static CLOSERS: Mutex<Closers> = Mutex::new(Closers {
    process: 0,
    of_shares: BTreeMap::new(),
});

/// Descriptors of all users that wait to be closed.
static WAITING: AtomicUsize = AtomicUsize::new(0);

/// Threads of a share; each can be blocked for long.
const MAX_THREADS: usize = 4;

/// Users with shares of their own at a time.
const MAX_USERS: usize = 16;

/// Descriptors of a share that wait to be closed: nothing more is received then, and connections
/// are refused. What the last packet brought, and a socket for each connection, may come on top.
pub(super) const MAX_WAITING: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_process_counts_neither_the_threads_of_its_parent_nor_what_they_had() {
        let (one, two) = std::os::unix::net::UnixStream::pair().unwrap();
        // Four threads are blocked, and had a descriptor each.
        let closer = Closer {
            queue: [one, two].map(|fd| Content::Unread(fd.into())).into(),
            threads: MAX_THREADS,
            waiting: 2 + MAX_THREADS,
            files: 1,
        };
        let mut closers = Closers {
            process: 1,
            of_shares: BTreeMap::from([(Share::NotAllowed, closer)]),
        };
        assert_eq!(closers.take_over(2), 2);
        let closer = &closers.of_shares[&Share::NotAllowed];
        assert_eq!((closer.waiting, closer.files), (2, 0));
        assert!(closer.threads <= 1, "only one of its own");
        assert_eq!(closers.process, 2);
    }
}
