//! Sockets of a client whose connection has ended in order, for its next connections.
//!
//! A listener keeps its end as long as that: [`super::kept`].

use std::future::poll_fn;
use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use hashbrown::HashMap;
use rustix::fs::{Access, AtFlags, CWD, Mode, accessat, stat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::address::UnixAddr;
use crate::mutex::Mutex;
use crate::negotiate::Credentials;
use crate::peer_descriptors::Source;
use crate::quota::Permit;
use crate::runtime::{Runtime, Socket};
use crate::unix::places;

/// The idle sockets of an endpoint, by the address that they are connected to.
pub(crate) struct IdleSockets {
    runtime: Arc<dyn Runtime>,
    state: Mutex<IdleState>,
    /// That of the task which closes those that are not used in time.
    task: AtomicWaker,
    /// Of idle sockets in this process.
    limit: usize,
}

#[derive(Default)]
struct IdleState {
    /// The oldest of an address first.
    sockets: HashMap<UnixAddr, Vec<IdleSocket>>,
    /// Addresses of listeners that have not answered in time on a socket that was used before, and
    /// until when none is kept for them.
    avoided: HashMap<UnixAddr, Instant>,
    /// When the task looks next; `None` without one.
    next_look: Option<Instant>,
    has_ended: bool,
}

struct IdleSocket {
    socket: Arc<dyn Socket>,
    connected: ConnectedSocket,
    until: Instant,
    _place: Permit,
}

/// What a socket was when it was connected.
#[derive(Clone, Debug)]
pub(crate) struct ConnectedSocket {
    pub(crate) to: UnixAddr,
    /// The process that listens.
    pub(crate) listener: Credentials,
    /// When it was connected.
    pub(crate) since: Instant,
    /// `None` where that is not known: it is used once.
    pub(crate) destination: Option<Destination>,
}

/// What `connect(2)` depends on besides the address: where that leads, and by whom it is checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Destination {
    /// Device and inode: of a path its own, of an abstract name those of the network namespace.
    inode: (u64, u64),
    user: u32,
    group: u32,
}

impl Destination {
    /// To be called before the socket is connected: if the path is replaced in between, it is not
    /// that of the socket.
    pub(crate) fn of(addr: &UnixAddr) -> Option<Self> {
        Some(Self::look(addr)?.0)
    }

    /// Whether a socket that was connected there may be used for a connection to the address now.
    fn is_still_of(&self, addr: &UnixAddr) -> bool {
        let Some((now, is_own_to_write)) = Self::look(addr) else {
            return false;
        };
        let may_write = || match addr.as_path() {
            Some(path) => accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok(),
            None => true,
        };
        now == *self && (is_own_to_write || may_write())
    }

    /// With whether the path is one that its owner may write, who asks.
    fn look(addr: &UnixAddr) -> Option<(Self, bool)> {
        let place = addr.as_path().unwrap_or_else(|| Path::new(NAMESPACE));
        let stat = stat(place).ok()?;
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        let may_owner_write = Mode::from_raw_mode(stat.st_mode).contains(Mode::WUSR);
        let found = Self {
            inode: (stat.st_dev, stat.st_ino),
            user,
            group,
        };
        Some((found, may_owner_write && stat.st_uid == user))
    }
}

impl IdleSockets {
    pub(crate) fn new(runtime: &Arc<dyn Runtime>) -> Arc<Self> {
        Arc::new(Self {
            runtime: Arc::clone(runtime),
            state: Mutex::default(),
            task: AtomicWaker::new(),
            limit: places::limit(),
        })
    }

    /// Keeps a socket until it has its age, in place of the oldest one to the same address if there
    /// are too many. Returns false if it is not kept.
    pub(crate) fn add(
        self: &Arc<Self>,
        socket: Arc<dyn Socket>,
        connected: ConnectedSocket,
    ) -> bool {
        let now = self.runtime.now();
        let until = connected.since + AGE_MAX;
        let Some(destination) = connected.destination.as_ref().filter(|_| now < until) else {
            return false;
        };
        let Some(place) = self.take_place(&connected, destination) else {
            return false;
        };
        let mut state = self.state.lock();
        let avoided_until = state.avoided.get(&connected.to);
        if state.has_ended || avoided_until.is_some_and(|until| now < *until) {
            return false;
        }
        let of_address = state.sockets.entry(connected.to.clone()).or_default();
        of_address.push(IdleSocket {
            socket,
            connected,
            until,
            _place: place,
        });
        let next_look = state.next_look;
        state.next_look = Some(next_look.map_or(until, |next| next.min(until)));
        drop(state);
        match next_look {
            None => {
                let task = ExpiryTask(Arc::downgrade(self));
                self.runtime
                    .spawn(Box::pin(task.run(Arc::clone(&self.runtime))));
            }
            Some(next) if until < next => self.task.wake(),
            Some(_) => {}
        }
        true
    }

    fn take_place(&self, connected: &ConnectedSocket, destination: &Destination) -> Option<Permit> {
        let user = connected.listener.uid;
        let source = (user != destination.user).then_some(Source::User(user));
        let take = || places::take(self.limit, source);
        take().or_else(|| {
            drop(self.remove_oldest(&connected.to)?);
            take()
        })
    }

    fn remove_oldest(&self, to: &UnixAddr) -> Option<IdleSocket> {
        let mut state = self.state.lock();
        let of_address = state.sockets.get_mut(to)?;
        let oldest = of_address.remove(0);
        if of_address.is_empty() {
            state.sockets.remove(to);
        }
        Some(oldest)
    }

    /// Takes the socket that was used last, if `connect(2)` would lead to the same listener. The
    /// listener may have closed it, which shows when a PROPOSAL is sent.
    pub(crate) fn take(&self, to: &UnixAddr) -> Option<(Arc<dyn Socket>, ConnectedSocket)> {
        let mut state = self.state.lock();
        let of_address = state.sockets.get_mut(to)?;
        let idle = of_address.pop()?;
        if of_address.is_empty() {
            state.sockets.remove(to);
        }
        drop(state);
        let destination = idle.connected.destination.as_ref();
        let leads_there = destination.is_some_and(|it| it.is_still_of(to));
        if self.runtime.now() < idle.until && leads_there {
            return Some((idle.socket, idle.connected));
        }
        // Those before are older, or lead to the same place.
        self.forget(to);
        None
    }

    /// Closes the sockets of an address.
    pub(crate) fn forget(&self, to: &UnixAddr) {
        let mut state = self.state.lock();
        let closed = state.sockets.remove(to).unwrap_or_default();
        drop(state);
        // Without the lock, here and below: a socket may have the waker of a task that owns
        // streams.
        drop(closed);
    }

    /// Closes the sockets of an address, and keeps none for a while: its listener is late, and
    /// would accept streams that the client has given up.
    pub(crate) fn avoid(&self, to: &UnixAddr) {
        let now = self.runtime.now();
        let mut state = self.state.lock();
        state.avoided.retain(|_, until| now < *until);
        state.avoided.insert(to.clone(), now + AVOIDED_TIME);
        drop(state);
        self.forget(to);
    }

    /// Closes all, for lack of descriptors. Returns whether there were any.
    pub(crate) fn close_all(&self) -> bool {
        let mut state = self.state.lock();
        let closed = std::mem::take(&mut state.sockets);
        drop(state);
        !closed.is_empty()
    }

    /// Closes all, and keeps no more.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.close_all();
    }

    /// Closes those that were not used in time. Returns when to look next.
    fn expire(&self) -> Option<Instant> {
        let now = self.runtime.now();
        let mut expired = Vec::new();
        let mut state = self.state.lock();
        let next = state.next_look?;
        // A timer that is set stays: the next connection takes its socket out and puts it back.
        if now < next {
            return Some(next);
        }
        state.sockets.retain(|_, sockets| {
            let all = std::mem::take(sockets).into_iter();
            let (left, late): (Vec<_>, Vec<_>) = all.partition(|idle| now < idle.until);
            *sockets = left;
            expired.extend(late);
            !sockets.is_empty()
        });
        let left = state.sockets.values().flatten();
        state.next_look = left.map(|idle| idle.until).min();
        state.next_look
    }
}

/// Whether an error is for lack of descriptors, which idle sockets have.
pub(crate) fn is_out_of_descriptors(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE))
}

/// The task that closes idle sockets while there are any. It is dropped earlier with its runtime.
struct ExpiryTask(Weak<IdleSockets>);

impl ExpiryTask {
    async fn run(mut self, runtime: Arc<dyn Runtime>) {
        let mut timer = None;
        poll_fn(|cx| {
            loop {
                let Some(idle) = self.0.upgrade() else {
                    return Poll::Ready(());
                };
                idle.task.register(cx.waker());
                let Some(next) = idle.expire() else {
                    return Poll::Ready(());
                };
                let timer = timer.insert(runtime.timer(next));
                if timer.as_mut().poll(cx).is_pending() {
                    return Poll::Pending;
                }
            }
        })
        .await;
        // There is nothing to end.
        self.0 = Weak::new();
    }
}

impl Drop for ExpiryTask {
    fn drop(&mut self) {
        if let Some(idle) = self.0.upgrade() {
            idle.end();
        }
    }
}

/// How long a socket is used: another one passes `accept(2)`, where processes share a listening
/// socket, and is checked by all that can permit to connect.
const AGE_MAX: Duration = Duration::from_secs(1);

/// How long no socket is kept for a listener that has not answered in time.
const AVOIDED_TIME: Duration = Duration::from_secs(10);

/// The network namespace of the thread, in which abstract names are.
const NAMESPACE: &str = "/proc/thread-self/ns/net";
