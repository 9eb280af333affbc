//! A client's channel to one listener.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker, ready};

use atomic_waker::AtomicWaker;
use hashbrown::HashMap;
use rustix::io::Errno;
use smc_core::error::{FallbackCause, Limit, OsError, Refusal};
use smc_core::mem::sync::{AtomicBool, AtomicU64, Ordering};
use smc_core::mutex::Mutex;
use smc_core::negotiate::Credentials;
use smc_core::quota::{Permit, mappings};
use smc_core::reactor_turns::ReactorTurns;
use smc_core::runtime::{Runtime, Timer, Watch};
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;
use smc_ipc::runtime_dir::Connected;
use smc_ipc::{Domain, is_own_user};

use super::backoff::Backoff;
use crate::directory::ListenerEntry;
use crate::early::{CachedHandshake, EarlyConfirm};
use crate::mailbox::{
    Announcement, Direction, Generation, Mailbox, OfferState, PROBES, SLOTS, Slot,
};
use crate::message::{MANY, MAX_LEN, ToClient, ToListener};
use crate::netns::NetNs;
use crate::sock_diag::SocketInfo;

/// The client's end of a channel. Many connections use it at a time, each with an id of its own.
#[derive(Debug)]
pub(crate) struct ClientChannel {
    fd: Arc<PeerSocket>,
    pub(super) entry: Arc<ListenerEntry>,
    /// The process that announces the listener.
    pub(super) process: Credentials,
    /// The listener belongs to another user.
    pub(super) foreign: bool,
    /// For `fd`, if it does.
    _permit: Option<Permit>,
    mailbox: Mailbox,
    slots: Mutex<FreeSlots>,
    next_id: AtomicU64,
    has_ended: AtomicBool,
    /// The exchanges that wait for messages, by id.
    waiters: Mutex<HashMap<u64, Waiter>>,
    cached_handshake: Mutex<Option<CachedHandshake>>,
    /// The backoff after a missing answer of the listener.
    pub(super) backoff: Arc<Backoff>,
    /// Why the listener has ended the channel, if it has sent a reason.
    refusal: OnceLock<Refusal>,
    /// The task that reads the channel.
    reader: AtomicWaker,
    runtime: Arc<dyn Runtime>,
}

#[derive(Debug, Default)]
struct Waiter {
    /// The last message, until it is taken.
    message: Option<ToClient>,
    waker: Option<Waker>,
}

/// The slots that are not in use.
#[derive(Debug, Default)]
struct FreeSlots {
    /// Slots from this number on were never used.
    fresh: u32,
    free: Vec<Slot>,
    /// Released by the client; the listener may still read them.
    released: VecDeque<Slot>,
}

impl ClientChannel {
    /// Sends HELLO on a connection to a listener, if [`Self::announces`] succeeds.
    pub(super) fn open(
        domain: &Domain,
        runtime: &Arc<dyn Runtime>,
        (connected, permit): (Connected, Option<Permit>),
        entry: &Arc<ListenerEntry>,
        netns: NetNs,
        backoff: Arc<Backoff>,
        target: Option<SocketInfo>,
    ) -> Result<Arc<Self>, FallbackCause> {
        let Connected { path, socket, .. } = connected;
        let failed = |operation| {
            let path = path.clone();
            move |error: io::Error| OsError::new(operation, &error).at(path)
        };
        let socket = socket.map_err(io::Error::from);
        let mut fd = socket.map_err(failed("connect to the listener's socket"))?;
        let process = Credentials::of_peer(&fd);
        let process = process.map_err(failed("look up the owner of the listener's socket"))?;
        let uid = process.uid;
        if !domain.allows(uid) {
            return Err(FallbackCause::User { uid });
        }
        fd.set_allowed();
        let foreign = !is_own_user(uid);
        check_owner(uid, foreign, target.map(|target| target.uid))?;
        let permit_of_mailbox = mappings::take(uid).map_err(FallbackCause::Full)?;
        let (mailbox, file) = Mailbox::create(permit_of_mailbox)
            .map_err(|error| OsError::new("create memory for the listener", &error))?;
        let mailbox = match foreign {
            true => mailbox.shared_with(uid),
            false => mailbox,
        };
        let hello = ToListener::Hello { netns }.encode();
        match send(&fd, &hello, &[file.as_fd()]) {
            Ok(_) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(read_refusal(&fd)),
            Err(error) => return Err(failed("send to the listener's socket")(error.into()).into()),
        }
        let watch = runtime.watch(fd.as_fd());
        let watch = watch.map_err(failed("watch the listener's socket"))?;
        let fd = Arc::new(fd);
        let watched = WatchedSocket {
            watch,
            _socket: Arc::clone(&fd),
        };
        let channel = Arc::new(Self {
            fd,
            entry: entry.clone(),
            process,
            foreign,
            _permit: permit,
            mailbox,
            slots: Mutex::default(),
            next_id: AtomicU64::new(u64::from(SLOTS)),
            has_ended: AtomicBool::new(false),
            waiters: Mutex::default(),
            cached_handshake: Mutex::default(),
            backoff,
            refusal: OnceLock::new(),
            reader: AtomicWaker::new(),
            runtime: Arc::clone(runtime),
        });
        runtime.spawn(Box::pin(read(Arc::downgrade(&channel), watched)));
        Ok(channel)
    }

    /// Whether the listener has ended, as far as is known.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed) || self.mailbox.is_closed()
    }

    /// Checks that this is the channel of the listening socket that gets the connections, as far as
    /// users can be distinguished. The name of the listener contains the socket, but is no proof.
    /// Without a report of the kernel other users are not trusted.
    ///
    /// # Errors
    ///
    /// The socket belongs to another user, or its owner is not known.
    pub(super) fn announces(&self, target: Option<SocketInfo>) -> Result<(), FallbackCause> {
        check_owner(
            self.process.uid,
            self.foreign,
            target.map(|target| target.uid),
        )
    }

    /// Why the listener does not answer any more.
    pub(super) fn end_cause(&self) -> FallbackCause {
        match self.refusal.get() {
            Some(refusal) => FallbackCause::Refused(*refusal),
            None => FallbackCause::ListenerGone,
        }
    }

    pub(super) fn cached_handshake(&self) -> Option<CachedHandshake> {
        self.cached_handshake.lock().clone()
    }

    pub(super) fn set_cached_handshake(&self, cached_handshake: Option<CachedHandshake>) {
        *self.cached_handshake.lock() = cached_handshake;
    }

    /// Sends a message to the listener, if there is space for it now.
    /// The end of the channel is left to its reader, which finds out why.
    pub(crate) fn send(&self, message: ToListener) -> Result<(), Errno> {
        send(&self.fd, &message.encode(), &[]).map(drop)
    }

    /// Announces a connection.
    ///
    /// # Errors
    ///
    /// Too many are under way.
    pub(super) fn announce(
        self: &Arc<Self>,
        announcement: Announcement,
        proposal: &[u8],
        early: Option<&EarlyConfirm>,
    ) -> Result<SlotOffer, FallbackCause> {
        let full = |what, limit: u32| FallbackCause::Full(Limit::new(what, limit.into()));
        let slot = self.slots.lock().take(&self.mailbox);
        let slot = slot.ok_or_else(|| full("limit of connections under way", SLOTS))?;
        let slot_guard = SlotGuard {
            channel: Arc::clone(self),
            slot: slot.clone(),
            claimed: false,
        };
        let of_port = "limit of connections under way with ports like this";
        let not_entered = || full(of_port, PROBES);
        let generation = slot.offer(announcement, proposal, early);
        let made = SlotOffer {
            port: announcement.from.port(),
            generation: generation.ok_or_else(not_entered)?,
            exchange: Exchange::with_id(Arc::clone(self), u64::from(slot.number())),
            slot,
            slot_guard,
        };
        match self.mailbox.insert(made.port, made.slot.number()) {
            true => Ok(made),
            false => Err(not_entered()),
        }
    }

    /// Receives all messages that are there, up to a limit; false at the limit.
    fn drain(&self) -> bool {
        let mut buf = [0; MAX_LEN];
        for count in 0..PACKETS_BEFORE_WAKE {
            let message = match receive(&self.fd, &mut buf, 1) {
                Received::Packet(packet, _) => ToClient::parse(packet),
                Received::Nothing => {
                    if count >= MANY {
                        self.wake_all();
                    }
                    return true;
                }
                Received::Closed | Received::Invalid => None,
            };
            let id = match message {
                Some(ToClient::Close { refusal }) => {
                    let _first = self.refusal.set(refusal);
                    None
                }
                message => message.and_then(ToClient::id),
            };
            let (Some(message), Some(id)) = (message, id) else {
                self.end();
                return true;
            };
            let waker = {
                let mut waiters = self.waiters.lock();
                // Messages for an exchange that has ended are dropped.
                waiters.get_mut(&id).and_then(|waiter| {
                    waiter.message = Some(message);
                    waiter.waker.take()
                })
            };
            waker.into_iter().for_each(Waker::wake);
        }
        self.wake_all();
        false
    }

    fn end(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
        self.wake_all();
    }

    fn wake_all(&self) {
        let wakers: Vec<_> = {
            let mut waiters = self.waiters.lock();
            let all = waiters.values_mut();
            all.filter_map(|waiter| waiter.waker.take()).collect()
        };
        // Without the lock: a waker may run its task at once.
        wakers.into_iter().for_each(Waker::wake);
    }
}

fn check_owner(uid: u32, is_foreign: bool, owner: Option<u32>) -> Result<(), FallbackCause> {
    match owner.map_or(!is_foreign, |owner| owner == uid) {
        true => Ok(()),
        false => Err(FallbackCause::NotOwner { uid, owner }),
    }
}

/// Why a listener has ended a channel before it got HELLO.
fn read_refusal(fd: &PeerSocket) -> FallbackCause {
    let mut buf = [0; MAX_LEN];
    let message = match receive(fd, &mut buf, 1) {
        Received::Packet(packet, _) => ToClient::parse(packet),
        _ => None,
    };
    match message {
        Some(ToClient::Close { refusal }) => FallbackCause::Refused(refusal),
        _ => FallbackCause::ListenerGone,
    }
}

impl Drop for ClientChannel {
    fn drop(&mut self) {
        self.reader.wake();
    }
}

/// Keeps the socket open for longer than the duplicate that the runtime watches: closing the last
/// descriptor also closes what was not read, which may block.
struct WatchedSocket {
    // Dropped first.
    watch: Box<dyn Watch>,
    _socket: Arc<PeerSocket>,
}

/// Reads a channel for all its exchanges, until it ends or is no longer used.
async fn read(channel: Weak<ClientChannel>, watched: WatchedSocket) {
    let mut unread = false;
    let mut turns = ReactorTurns::default();
    let mut turn: Option<Timer> = None;
    poll_fn(|cx| {
        let Some(channel) = channel.upgrade() else {
            return Poll::Ready(());
        };
        channel.reader.register(cx.waker());
        while !channel.has_ended() {
            if let Some(turn) = &mut turn {
                ready!(turn.as_mut().poll(cx));
            }
            turn = None;
            // Nothing is read unless there is something.
            if !unread {
                match watched.watch.poll_readable(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => channel.end(),
                    Poll::Pending => {
                        turns.note_wait();
                        return Poll::Pending;
                    }
                }
            }
            unread = !channel.drain();
            if unread {
                // Other tasks have to run as well, and the reactor for timers and I/O.
                turn = turns.due(&*channel.runtime);
                if turn.is_none() {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
            }
        }
        channel.wake_all();
        Poll::Ready(())
    })
    .await;
}

/// Released slots that are checked for each slot that is taken.
const SLOT_CHECKS: usize = 8;

/// Packets after which all exchanges are woken, as notifications may have been lost.
const PACKETS_BEFORE_WAKE: usize = 64;

/// One exchange on a channel, with a unique id.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(super) channel: Arc<ClientChannel>,
    pub(crate) id: u64,
}

impl Exchange {
    pub(crate) fn new(channel: Arc<ClientChannel>) -> Self {
        let id = channel.next_id.fetch_add(1, Ordering::Relaxed);
        Self::with_id(channel, id)
    }

    fn with_id(channel: Arc<ClientChannel>, id: u64) -> Self {
        channel.waiters.lock().insert(id, Waiter::default());
        Self { channel, id }
    }

    /// Waits for a message of the listener; `None` if it has ended. Keeps one waker.
    pub(super) fn poll_message(&self, cx: &mut Context<'_>) -> Poll<Option<ToClient>> {
        let waker = cx.waker().clone();
        // Dropped after the lock: that may drop a task with conversations of its own.
        let _old;
        let mut waiters = self.channel.waiters.lock();
        let waiter = waiters.entry(self.id).or_default();
        if let Some(message) = waiter.message.take() {
            return Poll::Ready(Some(message));
        }
        _old = waiter.waker.replace(waker);
        drop(waiters);
        // The end of the channel wakes all exchanges afterwards.
        match self.channel.has_ended() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    pub(crate) async fn next_message(&self) -> Option<ToClient> {
        poll_fn(|cx| self.poll_message(cx)).await
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        // The waker is dropped after the lock: that may drop a task with other conversations.
        let _waiter = self.channel.waiters.lock().remove(&self.id);
    }
}

/// An offer of a connection, in the slot of one channel. Dropping it withdraws the offer unless it
/// was taken.
#[derive(Debug)]
pub(super) struct SlotOffer {
    pub(super) exchange: Exchange,
    pub(super) slot: Slot,
    generation: Generation,
    port: u16,
    // Last: the next exchange about the slot has the same id.
    slot_guard: SlotGuard,
}

#[derive(Debug)]
struct SlotGuard {
    channel: Arc<ClientChannel>,
    slot: Slot,
    /// The listener may still write to it.
    claimed: bool,
}

impl SlotOffer {
    pub(super) fn state(&self) -> OfferState {
        self.slot.state(self.generation)
    }

    /// Withdraws the offer; false after the listener has answered or refused.
    pub(super) fn withdraw(&self) -> bool {
        self.slot.withdraw(self.generation)
    }

    /// A number that changes as long as the listener works.
    pub(super) fn progress(&self) -> u64 {
        let claimed = u64::from(self.state() != OfferState::Offered);
        let heartbeats = self.exchange.channel.mailbox.heartbeats();
        heartbeats.wrapping_add(claimed)
    }

    /// Notifies the listener of a write, if it has requested that.
    pub(super) fn notify(&self) {
        if self.slot.needs_wake(Direction::FromClient) {
            let slot = u64::from(self.slot.number());
            // Not needed by a listener that has ended or is behind.
            let _ = self.exchange.channel.send(ToListener::Notify { slot });
        }
    }
}

impl Drop for SlotOffer {
    fn drop(&mut self) {
        let channel = &self.exchange.channel;
        self.withdraw();
        channel.mailbox.remove(self.port, self.slot.number());
        let claimed = matches!(self.state(), OfferState::Taken | OfferState::Withdrawn);
        self.slot.close(Direction::FromClient);
        if claimed {
            self.notify();
        }
        self.slot_guard.claimed = claimed;
    }
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        let mut slots = self.channel.slots.lock();
        match self.claimed {
            true => slots.released.push_back(self.slot.clone()),
            false => slots.free.push(self.slot.clone()),
        }
    }
}

impl FreeSlots {
    /// A slot that is not in use.
    fn take(&mut self, mailbox: &Mailbox) -> Option<Slot> {
        // The listener may be stopped while it uses some of them, and have closed those behind.
        for _ in 0..SLOT_CHECKS {
            if let Some(slot) = self.free.pop() {
                return Some(slot);
            }
            match self.released.pop_front() {
                Some(slot) if slot.is_closed(Direction::FromListener) => return Some(slot),
                Some(slot) => self.released.push_back(slot),
                None => break,
            }
        }
        let slot = mailbox.slot(self.fresh)?;
        self.fresh += 1;
        Some(slot)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use smc_testkit::unix::{is_closed, pair};

    use super::*;

    /// A watch with a descriptor of its own.
    #[derive(Debug)]
    struct OwnDescriptor {
        fd: Option<OwnedFd>,
        peer: OwnedFd,
    }

    impl Watch for OwnDescriptor {
        fn poll_readable(&self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Pending
        }
    }

    impl Drop for OwnDescriptor {
        fn drop(&mut self) {
            self.fd = None;
            assert!(!is_closed(&self.peer), "the watch closed the socket");
        }
    }

    #[test]
    fn the_watch_of_a_channel_is_dropped_before_its_socket() {
        let (socket, peer) = pair();
        let watch = Box::new(OwnDescriptor {
            fd: Some(socket.try_clone().unwrap()),
            peer,
        });
        let watched = WatchedSocket {
            watch,
            _socket: Arc::new(PeerSocket::from(socket)),
        };
        let is_dropped = Weak::new();
        futures_lite::future::block_on(read(is_dropped, watched));
    }

    #[test]
    fn where_the_owner_is_not_known_only_the_own_user_is_trusted() {
        let refused = |uid, owner| Err(FallbackCause::NotOwner { uid, owner });
        for (uid, is_foreign, owner, expected) in [
            (990, false, None, Ok(())),
            (991, true, None, refused(991, None)),
            (990, false, Some(990), Ok(())),
            (991, true, Some(991), Ok(())),
            (990, false, Some(991), refused(990, Some(991))),
            (991, true, Some(990), refused(991, Some(990))),
            (991, true, Some(0), refused(991, Some(0))),
        ] {
            assert_eq!(check_owner(uid, is_foreign, owner), expected);
        }
    }
}
