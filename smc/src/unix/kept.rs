//! Sockets of a listener whose connection has ended in order, on which clients send the PROPOSAL of
//! the next one.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;

use crate::address::Address;
use crate::lifetime::{Deadline, Deadlines};
use crate::mutex::Mutex;
use crate::negotiate::Credentials;
use crate::peer_descriptors::{ClientDescriptor, Source};
use crate::quota::Permit;
use crate::runtime::Socket;
use crate::unix::places;

/// The sockets that a listener keeps.
pub(crate) struct KeptSockets {
    deadlines: Arc<Deadlines>,
    state: Mutex<KeptState>,
    /// Those that may be readable.
    woken: Mutex<VecDeque<Key>>,
    /// That of the task which accepts.
    task: AtomicWaker,
    /// Of idle sockets in this process.
    limit: usize,
}

#[derive(Default)]
struct KeptState {
    sockets: BTreeMap<Key, Kept>,
    last: u64,
    /// When the task looks next for those that are to be closed: not later than for the first.
    next_look: Option<Instant>,
    has_ended: bool,
}

/// When a socket is closed, and its number.
type Key = (Instant, u64);

struct Kept {
    socket: Arc<dyn Socket>,
    client: KnownClient,
    waker: Waker,
    _place: Place,
}

/// What a socket is counted by.
type Place = (Permit, ClientDescriptor);

/// The timer of the task that accepts, for [`KeptSockets::poll_expiry`].
#[derive(Default)]
pub(crate) struct Expiry(Option<Deadline>);

/// The client at the other end of a UNIX socket.
#[derive(Clone, Debug)]
pub(crate) struct KnownClient {
    pub(crate) addr: Address,
    pub(crate) process: Credentials,
    /// The source of its descriptors.
    pub(crate) source: Option<Source>,
    /// When the socket was accepted.
    pub(crate) since: Instant,
}

/// A client that has begun another connection.
pub(crate) struct NextConnection {
    pub(crate) socket: Arc<dyn Socket>,
    pub(crate) client: KnownClient,
    pub(crate) received: Vec<u8>,
}

impl KeptSockets {
    pub(crate) fn new(deadlines: &Arc<Deadlines>) -> Arc<Self> {
        Arc::new(Self {
            deadlines: Arc::clone(deadlines),
            state: Mutex::default(),
            woken: Mutex::default(),
            task: AtomicWaker::new(),
            limit: places::limit(),
        })
    }

    /// Keeps a socket until it has its age, in place of the oldest one with the same user if that
    /// has its share. Returns false if it is not to be used again.
    pub(crate) fn add(self: &Arc<Self>, socket: Arc<dyn Socket>, client: KnownClient) -> bool {
        let until = client.since + AGE_MAX;
        if until <= self.deadlines.now() {
            return false;
        }
        let Some(place) = self.take_place(client.source) else {
            return false;
        };
        let mut state = self.state.lock();
        if state.has_ended {
            return false;
        }
        state.last += 1;
        let key = (until, state.last);
        let waker = KeptWaker {
            all: Arc::downgrade(self),
            key,
        };
        let kept = Kept {
            socket,
            client,
            waker: Waker::from(Arc::new(waker)),
            _place: place,
        };
        state.sockets.insert(key, kept);
        let is_sooner = state.next_look.is_none_or(|next| until < next);
        if is_sooner {
            state.next_look = Some(until);
        }
        drop(state);
        // Without the lock, here and below: a waker may own a task with streams, and so may a
        // socket.
        if is_sooner {
            self.task.wake();
        }
        // The next PROPOSAL is there already at times, and stays for the task.
        self.watch(key);
        true
    }

    fn take_place(&self, source: Option<Source>) -> Option<Place> {
        let take = || {
            let place = places::take(self.limit, source)?;
            Some((place, ClientDescriptor::take(source).ok()?))
        };
        take().or_else(|| {
            drop(self.remove_oldest(source)?);
            take()
        })
    }

    fn remove_oldest(&self, source: Option<Source>) -> Option<Kept> {
        let mut state = self.state.lock();
        let mut all = state.sockets.iter();
        let oldest = all.find(|(_, kept)| kept.client.source == source);
        let key = *oldest?.0;
        state.sockets.remove(&key)
    }

    /// Asks to be woken when a socket is readable.
    fn watch(&self, key: Key) {
        let Some((socket, waker)) = self.socket(key) else {
            return;
        };
        let mut cx = Context::from_waker(&waker);
        if socket.poll_peek(&mut cx, &mut [0; 1]).is_ready() {
            self.note_woken(key);
        }
    }

    fn socket(&self, key: Key) -> Option<(Arc<dyn Socket>, Waker)> {
        let state = self.state.lock();
        let kept = state.sockets.get(&key)?;
        Some((Arc::clone(&kept.socket), kept.waker.clone()))
    }

    fn note_woken(&self, key: Key) {
        self.woken.lock().push_back(key);
        self.task.wake();
    }

    /// The next connection of a client, if there is one.
    pub(crate) fn poll_next(
        &self,
        cx: &mut Context<'_>,
        expiry: &mut Expiry,
    ) -> Poll<NextConnection> {
        self.poll_expiry(cx, expiry);
        loop {
            let Some(key) = self.woken.lock().pop_front() else {
                return Poll::Pending;
            };
            if let Some(next) = self.read(key) {
                return Poll::Ready(next);
            }
        }
    }

    /// Reads what a client has sent. A socket whose other end was closed is closed, too, and one on
    /// which a client has sent something too late.
    fn read(&self, key: Key) -> Option<NextConnection> {
        let mut buf = [0; READ_MAX];
        let (socket, waker) = self.socket(key)?;
        let Poll::Ready(read) = socket.poll_read(&mut Context::from_waker(&waker), &mut buf) else {
            return None;
        };
        let kept = self.state.lock().sockets.remove(&key)?;
        let received = buf.get(..read.unwrap_or(0)).unwrap_or(&buf);
        let (until, _) = key;
        let is_taken = !received.is_empty() && self.deadlines.now() < until;
        is_taken.then(|| NextConnection {
            socket: kept.socket,
            client: kept.client,
            received: received.to_vec(),
        })
    }

    /// Closes the sockets that were not used in time. Wakes the task when there is something to do,
    /// also for [`KeptSockets::poll_next`].
    pub(crate) fn poll_expiry(&self, cx: &mut Context<'_>, expiry: &mut Expiry) {
        self.task.register(cx.waker());
        let next = self.expire();
        if expiry.0.as_ref().map(Deadline::time) != next {
            expiry.0 = next.map(|at| self.deadlines.at(at));
        }
        let deadline = expiry.0.as_mut().map(Pin::new);
        if deadline.is_some_and(|deadline| deadline.poll(cx).is_ready()) {
            // Time has passed since the look.
            cx.waker().wake_by_ref();
        }
    }

    /// Closes the sockets that were not used in time. Returns when to look next.
    fn expire(&self) -> Option<Instant> {
        let mut expired = Vec::new();
        let mut state = self.state.lock();
        let (next, now) = (state.next_look?, self.deadlines.now());
        // A timer that is set stays: the next connection takes its socket out and puts it back.
        if now < next {
            return Some(next);
        }
        while let Some(first) = state.sockets.first_entry() {
            if now < first.key().0 {
                break;
            }
            expired.push(first.remove());
        }
        state.next_look = state.sockets.keys().next().map(|(until, _)| *until);
        state.next_look
    }

    /// Closes all, for lack of descriptors.
    pub(crate) fn close_all(&self) {
        let closed = std::mem::take(&mut self.state.lock().sockets);
        drop(closed);
    }

    /// Closes all, and keeps no more.
    pub(crate) fn end(&self) {
        let mut state = self.state.lock();
        state.has_ended = true;
        let ended = std::mem::take(&mut state.sockets);
        drop(state);
        drop(ended);
    }
}

/// Wakes the task that accepts when a socket is readable.
struct KeptWaker {
    all: Weak<KeptSockets>,
    key: Key,
}

impl Wake for KeptWaker {
    fn wake(self: Arc<Self>) {
        if let Some(all) = self.all.upgrade() {
            all.note_woken(self.key);
        }
    }
}

/// How long after it was accepted a socket may get another connection, which is longer than clients
/// use it: what a client was allowed to do when it connected it may not be later.
const AGE_MAX: Duration = Duration::from_secs(2);

/// As much as handshakes read at a time.
const READ_MAX: usize = 1024;
