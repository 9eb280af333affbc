//! Sockets of a client whose connection has ended in order, for its next connections.
//!
//! A listener keeps its end as long as that: [`super::kept`].

use std::io;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::fs::{Access, AtFlags, CWD, Mode, accessat, stat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use super::kept::sockets_max;
use crate::address::UnixAddr;
use crate::mutex::Mutex;
use crate::negotiate::Credentials;
use crate::runtime::{Runtime, Socket};

/// The idle sockets of an endpoint, by the address that they are connected to.
pub(crate) struct IdleSockets {
    runtime: Arc<dyn Runtime>,
    state: Mutex<IdleState>,
    max: usize,
}

#[derive(Default)]
struct IdleState {
    /// The oldest of an address first.
    sockets: HashMap<UnixAddr, Vec<IdleSocket>>,
    count: usize,
    /// A task closes those that are not used in time.
    has_task: bool,
    has_ended: bool,
}

struct IdleSocket {
    socket: Arc<dyn Socket>,
    connected: ConnectedSocket,
    until: Instant,
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
            max: sockets_max(),
        })
    }

    /// Keeps a socket for a while. Of too many to one address the oldest is closed; of too many to
    /// others this one is not kept, which returns false.
    pub(crate) fn add(
        self: &Arc<Self>,
        socket: Arc<dyn Socket>,
        connected: ConnectedSocket,
    ) -> bool {
        let now = self.runtime.now();
        let until = (now + IDLE_MAX).min(connected.since + AGE_MAX);
        let mut state = self.state.lock();
        let is_full = state.count >= self.max;
        if connected.destination.is_none() || until <= now || state.has_ended {
            return false;
        }
        if is_full && !state.sockets.contains_key(&connected.to) {
            return false;
        }
        let of_address = state.sockets.entry(connected.to.clone()).or_default();
        let oldest = is_full.then(|| of_address.remove(0));
        of_address.push(IdleSocket {
            socket,
            connected,
            until,
        });
        state.count += usize::from(oldest.is_none());
        let needs_task = !std::mem::replace(&mut state.has_task, true);
        drop(state);
        drop(oldest);
        if needs_task {
            let task = ExpiryTask(Arc::downgrade(self));
            self.runtime
                .spawn(Box::pin(task.run(Arc::clone(&self.runtime))));
        }
        true
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
        state.count -= 1;
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
        state.count -= closed.len();
        drop(state);
        // Without the lock, here and below: a socket may have the waker of a task that owns
        // streams.
        drop(closed);
    }

    /// Closes all, for lack of descriptors. Returns whether there were any.
    pub(crate) fn close_all(&self) -> bool {
        let mut state = self.state.lock();
        state.count = 0;
        let closed = std::mem::take(&mut state.sockets);
        drop(state);
        !closed.is_empty()
    }

    /// Closes all, and keeps no more.
    pub(crate) fn end(&self) {
        self.state.lock().has_ended = true;
        self.close_all();
    }

    /// Closes those that were not used in time. Returns whether others are left.
    fn expire(&self) -> bool {
        let now = self.runtime.now();
        let mut expired = Vec::new();
        let mut state = self.state.lock();
        state.sockets.retain(|_, sockets| {
            let all = std::mem::take(sockets).into_iter();
            let (left, late): (Vec<_>, Vec<_>) = all.partition(|idle| now < idle.until);
            *sockets = left;
            expired.extend(late);
            !sockets.is_empty()
        });
        state.count -= expired.len();
        state.has_task = state.count > 0;
        state.has_task
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
    async fn run(self, runtime: Arc<dyn Runtime>) {
        loop {
            runtime.timer(runtime.now() + IDLE_MAX).await;
            let Some(idle) = self.0.upgrade() else { break };
            if !idle.expire() {
                break;
            }
        }
        // There is nothing to end.
        std::mem::forget(self);
    }
}

impl Drop for ExpiryTask {
    fn drop(&mut self) {
        if let Some(idle) = self.0.upgrade() {
            idle.end();
        }
    }
}

/// How long a socket is kept without a connection.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// How long a socket is used: another one passes `accept(2)`, where processes share a listening
/// socket, and is checked by all that can permit to connect.
const AGE_MAX: Duration = Duration::from_secs(1);

/// The network namespace of the thread, in which abstract names are.
const NAMESPACE: &str = "/proc/thread-self/ns/net";
