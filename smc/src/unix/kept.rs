//! Sockets of a listener whose connection has ended in order, on which clients send the PROPOSAL of
//! the next one.

use std::collections::BTreeMap;
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
use crate::quota;
use crate::runtime::Socket;

/// The sockets that a listener keeps.
pub(crate) struct KeptSockets {
    deadlines: Arc<Deadlines>,
    state: Mutex<KeptState>,
    /// Those that may be readable.
    woken: Mutex<Vec<u64>>,
    /// That of the task which accepts.
    task: AtomicWaker,
    max: usize,
}

#[derive(Default)]
struct KeptState {
    /// The oldest first.
    sockets: BTreeMap<u64, Kept>,
    last: u64,
    /// When the oldest is closed.
    deadline: Option<Deadline>,
    has_ended: bool,
}

struct Kept {
    socket: Arc<dyn Socket>,
    client: KnownClient,
    until: Instant,
    waker: Waker,
    _descriptor: ClientDescriptor,
}

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
            max: sockets_max(),
        })
    }

    /// Keeps a socket for a while. Returns false if it is not to be used again.
    pub(crate) fn add(self: &Arc<Self>, socket: Arc<dyn Socket>, client: KnownClient) -> bool {
        let now = self.deadlines.now();
        if now.saturating_duration_since(client.since) > AGE_MAX {
            return false;
        }
        let Ok(descriptor) = ClientDescriptor::take(client.source) else {
            return false;
        };
        let mut closed = Vec::new();
        let mut state = self.state.lock();
        if state.has_ended {
            return false;
        }
        closed.extend(state.make_space(client.source, self.max));
        state.last += 1;
        let id = state.last;
        let kept = Kept {
            socket,
            client,
            until: now + KEPT_MAX,
            waker: Waker::from(Arc::new(KeptWaker {
                all: Arc::downgrade(self),
                id,
            })),
            _descriptor: descriptor,
        };
        state.sockets.insert(id, kept);
        if state.deadline.is_none() {
            state.deadline = Some(self.deadlines.at(now + KEPT_MAX));
            // The task polls it.
            self.task.wake();
        }
        drop(state);
        // Outside of the lock: the next PROPOSAL is there already at times, and stays for the task.
        self.watch(id);
        true
    }

    /// Asks to be woken when a socket is readable.
    fn watch(&self, id: u64) {
        let Some((socket, waker)) = self.socket(id) else {
            return;
        };
        let mut cx = Context::from_waker(&waker);
        if socket.poll_peek(&mut cx, &mut [0; 1]).is_ready() {
            self.note_woken(id);
        }
    }

    /// To be polled without the lock: what is dropped in a poll, as the waker of another task, may
    /// own streams.
    fn socket(&self, id: u64) -> Option<(Arc<dyn Socket>, Waker)> {
        let state = self.state.lock();
        let kept = state.sockets.get(&id)?;
        Some((Arc::clone(&kept.socket), kept.waker.clone()))
    }

    fn note_woken(&self, id: u64) {
        let mut woken = self.woken.lock();
        woken.push(id);
        drop(woken);
        self.task.wake();
    }

    /// The next connection of a client, if there is one.
    pub(crate) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<NextConnection> {
        self.task.register(cx.waker());
        loop {
            let Some(id) = self.woken.lock().pop() else {
                self.poll_expiry(cx);
                return Poll::Pending;
            };
            if let Some(next) = self.read(id) {
                return Poll::Ready(next);
            }
        }
    }

    /// Reads what a client has sent. A socket whose other end was closed is closed, too.
    fn read(&self, id: u64) -> Option<NextConnection> {
        let mut buf = [0; READ_MAX];
        let (socket, waker) = self.socket(id)?;
        let Poll::Ready(read) = socket.poll_read(&mut Context::from_waker(&waker), &mut buf) else {
            return None;
        };
        let kept = self.state.lock().sockets.remove(&id)?;
        let received = buf.get(..read.unwrap_or(0)).unwrap_or(&buf);
        (!received.is_empty()).then(|| NextConnection {
            socket: kept.socket,
            client: kept.client,
            received: received.to_vec(),
        })
    }

    /// Closes the sockets that were not used in time.
    fn poll_expiry(&self, cx: &mut Context<'_>) {
        let mut expired = Vec::new();
        let mut state = self.state.lock();
        while let Some(deadline) = &mut state.deadline {
            if Pin::new(deadline).poll(cx).is_pending() {
                break;
            }
            let now = self.deadlines.now();
            while let Some(oldest) = state.sockets.first_entry() {
                if now < oldest.get().until {
                    break;
                }
                expired.push(oldest.remove());
            }
            let next = state.sockets.first_key_value();
            let next = next.map(|(_, oldest)| oldest.until);
            state.deadline = next.map(|until| self.deadlines.at(until));
        }
        // Before those that have expired: closing may take long.
        drop(state);
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
        let ended = (std::mem::take(&mut state.sockets), state.deadline.take());
        drop(state);
        drop(ended);
    }
}

impl KeptState {
    /// Removes the oldest one if there are too many, of a user that is not the own one or of all.
    fn make_space(&mut self, source: Option<Source>, max: usize) -> Option<Kept> {
        let of_user = |kept: &&Kept| kept.client.source == source;
        let len_of_user = |this: &Self| this.sockets.values().filter(of_user).count();
        if source.is_some() && len_of_user(self) >= max / USER_SHARE {
            let mut all = self.sockets.iter();
            let oldest = all.find(|(_, kept)| of_user(kept)).map(|(id, _)| *id)?;
            return self.sockets.remove(&oldest);
        }
        match self.sockets.len() < max {
            true => None,
            false => self.sockets.pop_first().map(|(_, kept)| kept),
        }
    }
}

/// Wakes the task that accepts when a socket is readable.
struct KeptWaker {
    all: Weak<KeptSockets>,
    id: u64,
}

impl Wake for KeptWaker {
    fn wake(self: Arc<Self>) {
        if let Some(all) = self.all.upgrade() {
            all.note_woken(self.id);
        }
    }
}

/// How many sockets without a connection a listener keeps, and a client: each is a descriptor.
pub(super) fn sockets_max() -> usize {
    (quota::descriptors::limit() / DESCRIPTORS_SHARE).min(SOCKETS_MAX)
}

const SOCKETS_MAX: usize = 512;

/// The part of the descriptors of the process that they may take.
const DESCRIPTORS_SHARE: usize = 16;

/// The part of them that the clients of another user may have.
const USER_SHARE: usize = 4;

/// How long a socket is kept without a connection: longer than clients do, which close first then.
const KEPT_MAX: Duration = Duration::from_secs(2);

/// How long after it was accepted a socket may get another connection, which is longer than clients
/// use it: what a client was allowed to do when it connected it may not be later.
const AGE_MAX: Duration = Duration::from_secs(2);

/// As much as handshakes read at a time.
const READ_MAX: usize = 1024;
