//! A client's channel to one listener.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::task::{Context, Poll, Waker};

use atomic_waker::AtomicWaker;
use rustix::io::Errno;

use super::board::{Announcement, Board, CARDS, Card, PROBES, State, Turn, Voice};
use super::diag::Found;
use super::directory::Entry;
use super::message::{ToClient, ToListener};
use super::netns::NetNs;
use super::packet::{MANY, Received, receive, send};
use super::pause::Pause;
use super::{is_own, lock};
use crate::error::{FallbackCause, Limit, OsError, Refusal};
use crate::io::negotiate::passed::PeerSocket;
use crate::io::negotiate::runtime_dir::{Domain, OpenDir};
use crate::io::negotiate::{CachedHandshake, Credentials, EarlyConfirm};
use crate::io::runtime::{Runtime, Watch};

/// A channel. Many connections use it at a time, each with an id of its own.
#[derive(Debug)]
pub(super) struct Channel {
    fd: PeerSocket,
    entry: Arc<Entry>,
    /// User of the process that announces the listener.
    uid: u32,
    /// That is another user.
    foreign: bool,
    board: Board,
    cards: Mutex<Cards>,
    next_id: AtomicU64,
    dead: AtomicBool,
    inbox: Mutex<Inbox>,
    cached_handshake: Mutex<Option<CachedHandshake>>,
    pause: Arc<Pause>,
    /// Why the listener has ended the channel, if it has said so.
    refusal: OnceLock<Refusal>,
    /// The task that reads the channel.
    reader: AtomicWaker,
}

/// Everybody who may want news, by id.
#[derive(Debug, Default)]
struct Inbox(HashMap<u64, Mail>);

/// Of one conversation.
#[derive(Debug, Default)]
struct Mail {
    /// What came, until it is fetched.
    news: Option<ToClient>,
    waker: Option<Waker>,
}

/// The cards that are not in use.
#[derive(Debug)]
struct Cards {
    /// Never used are those from here on.
    fresh: u32,
    free: Vec<Card>,
    /// Done with, unless the listener still looks at them.
    left: VecDeque<Card>,
}

impl Channel {
    /// Connects to a listener and introduces this process, if [`Self::announces`] is so.
    pub(super) fn open(
        domain: &Domain,
        runtime: &dyn Runtime,
        dir: &OpenDir,
        entry: &Arc<Entry>,
        netns: NetNs,
        pause: Arc<Pause>,
        target: Option<Found>,
    ) -> Result<Arc<Self>, FallbackCause> {
        let name = entry.to_string();
        let failed = |operation| {
            let path = dir.path.join(&name);
            move |error: io::Error| OsError::new(operation, &error).at(path)
        };
        let connected = dir.connect(&name).map_err(io::Error::from);
        let fd = connected.map_err(failed("connect to the listener's socket"))?;
        let credentials = Credentials::of_peer(&fd);
        let uid = credentials
            .map_err(failed("look up the owner of the listener's socket"))?
            .uid;
        if !domain.allows(uid) {
            return Err(FallbackCause::User { uid });
        }
        let foreign = !is_own(uid);
        check_owner(uid, foreign, target.map(|target| target.uid))?;
        let (board, file) = Board::create()
            .map_err(|error| OsError::new("create memory for the listener", &error))?;
        let hello = ToListener::Hello { netns }.encode();
        match send(fd.as_fd(), &hello, Some(file.as_fd())) {
            Ok(()) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return Err(last_words(&fd)),
            Err(error) => return Err(failed("send to the listener's socket")(error.into()).into()),
        }
        let watch = runtime.watch(fd.as_fd());
        let watch = watch.map_err(failed("watch the listener's socket"))?;
        let channel = Arc::new(Self {
            fd,
            entry: entry.clone(),
            uid,
            foreign,
            board,
            cards: Mutex::new(Cards {
                fresh: 0,
                free: Vec::new(),
                left: VecDeque::new(),
            }),
            next_id: AtomicU64::new(u64::from(CARDS)),
            dead: AtomicBool::new(false),
            inbox: Mutex::default(),
            cached_handshake: Mutex::default(),
            pause,
            refusal: OnceLock::new(),
            reader: AtomicWaker::new(),
        });
        runtime.spawn(Box::pin(read(Arc::downgrade(&channel), watch)));
        Ok(channel)
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Whether the listener is known to be gone.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) || self.board.is_closed()
    }

    /// User of the process that announces the listener.
    pub(super) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether the listener belongs to another user.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Checks that this is the channel of the listening socket that gets the connections, as far as
    /// users can be told apart. The name of the listener says which socket that is, and is no proof.
    /// Without an answer of the kernel other users are not believed.
    ///
    /// # Errors
    ///
    /// The socket belongs to another user, or its owner is not known.
    pub(super) fn announces(&self, target: Option<Found>) -> Result<(), FallbackCause> {
        check_owner(self.uid, self.foreign, target.map(|target| target.uid))
    }

    /// Whether the listener was silent lately.
    pub(super) fn pause(&self) -> &Arc<Pause> {
        &self.pause
    }

    /// Why the listener does not answer any more.
    pub(super) fn end_cause(&self) -> FallbackCause {
        match self.refusal.get() {
            Some(refusal) => FallbackCause::Refused(*refusal),
            None => FallbackCause::ListenerGone,
        }
    }

    /// What the last handshake came to.
    pub(super) fn cached_handshake(&self) -> Option<CachedHandshake> {
        lock(&self.cached_handshake).clone()
    }

    pub(super) fn set_cached_handshake(&self, cached_handshake: Option<CachedHandshake>) {
        *lock(&self.cached_handshake) = cached_handshake;
    }

    /// Tells the listener something, if there is room for it now.
    pub(super) fn send(&self, message: ToListener) -> Result<(), Errno> {
        let sent = send(self.fd.as_fd(), &message.encode(), None);
        if matches!(sent, Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) {
            self.dead.store(true, Ordering::Relaxed);
        }
        sent
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
    ) -> Result<Announced, FallbackCause> {
        let full = |what, limit: u32| FallbackCause::Full(Limit::new(what, limit.into()));
        let card = lock(&self.cards).take(&self.board);
        let card = card.ok_or_else(|| full("limit of connections under way", CARDS))?;
        let announced = Announced {
            port: announcement.from.port(),
            turn: card.offer(announcement, proposal, early),
            conversation: Conversation::with_id(Arc::clone(self), u64::from(card.number())),
            card: card.clone(),
            back: GivenBack {
                channel: Arc::clone(self),
                card,
                claimed: false,
            },
        };
        let is_entered = || self.board.enter(announced.port, announced.card.number());
        match announced.turn.is_some() && is_entered() {
            true => Ok(announced),
            false => Err(full(
                "limit of connections under way with ports like this",
                PROBES,
            )),
        }
    }

    /// Takes in what has come; whether that was all.
    fn drain(&self) -> bool {
        let mut buf = [0; 64];
        for count in 0..PACKETS {
            let message = match receive(&self.fd, &mut buf) {
                Received::Packet(packet, _) => ToClient::parse(packet),
                Received::Empty => {
                    if count >= MANY {
                        self.wake_all();
                    }
                    return true;
                }
                Received::End => None,
            };
            let id = match message {
                Some(ToClient::Bye { refusal }) => {
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
                let mut inbox = lock(&self.inbox);
                // News for those who are not interested any more are dropped.
                inbox.0.get_mut(&id).and_then(|mail| {
                    mail.news = Some(message);
                    mail.waker.take()
                })
            };
            waker.into_iter().for_each(Waker::wake);
        }
        self.wake_all();
        false
    }

    fn end(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.wake_all();
    }

    fn wake_all(&self) {
        let wakers: Vec<_> = {
            let mut inbox = lock(&self.inbox);
            let mail = inbox.0.values_mut();
            mail.filter_map(|mail| mail.waker.take()).collect()
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

/// Why a listener has ended a channel on which it was told nothing.
fn last_words(fd: &PeerSocket) -> FallbackCause {
    let mut buf = [0; 64];
    match receive(fd, &mut buf) {
        Received::Packet(packet, _) => match ToClient::parse(packet) {
            Some(ToClient::Bye { refusal }) => FallbackCause::Refused(refusal),
            _ => FallbackCause::ListenerGone,
        },
        Received::Empty | Received::End => FallbackCause::ListenerGone,
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.reader.wake();
    }
}

/// Reads a channel for everybody who uses it, until it ends or nobody does.
async fn read(channel: Weak<Channel>, watch: Box<dyn Watch>) {
    let mut unread = false;
    poll_fn(|cx| {
        let Some(channel) = channel.upgrade() else {
            return Poll::Ready(());
        };
        channel.reader.register(cx.waker());
        while !channel.is_dead() {
            // Nothing is read unless there is something.
            if !unread {
                match watch.poll_readable(cx) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => channel.end(),
                    Poll::Pending => return Poll::Pending,
                }
            }
            unread = !channel.drain();
            if unread {
                // Others want to run as well.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
        channel.wake_all();
        Poll::Ready(())
    })
    .await;
}

/// Cards that are looked at, whether the listener has let go of them, for each that is taken.
const LOOKS: usize = 8;

/// Packets after which everybody looks again, as some may have been lost.
const PACKETS: usize = 64;

/// One exchange on a channel, with an id that only it has.
#[derive(Debug)]
pub(super) struct Conversation {
    pub(super) channel: Arc<Channel>,
    pub(super) id: u64,
}

impl Conversation {
    pub(super) fn new(channel: Arc<Channel>) -> Self {
        let id = channel.next_id.fetch_add(1, Ordering::Relaxed);
        Self::with_id(channel, id)
    }

    fn with_id(channel: Arc<Channel>, id: u64) -> Self {
        lock(&channel.inbox).0.insert(id, Mail::default());
        Self { channel, id }
    }

    /// Waits for what the listener says; `None` if it is gone. Keeps one waker.
    pub(super) fn poll_news(&self, cx: &mut Context<'_>) -> Poll<Option<ToClient>> {
        let waker = cx.waker().clone();
        // Dropped after the lock: that may drop a task with conversations of its own.
        let _old;
        let mut inbox = lock(&self.channel.inbox);
        let mail = inbox.0.entry(self.id).or_default();
        if let Some(news) = mail.news.take() {
            return Poll::Ready(Some(news));
        }
        _old = mail.waker.replace(waker);
        drop(inbox);
        // Whoever ends the channel wakes everybody afterwards.
        match self.channel.is_dead() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }

    pub(super) async fn news(&self) -> Option<ToClient> {
        poll_fn(|cx| self.poll_news(cx)).await
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // The waker is dropped after the lock: that may drop a task with other conversations.
        let _mail = lock(&self.channel.inbox).0.remove(&self.id);
    }
}

/// A connection that was announced on a card. Dropping it takes back what was not taken.
#[derive(Debug)]
pub(super) struct Announced {
    pub(super) conversation: Conversation,
    pub(super) card: Card,
    /// `None` if nothing could be written.
    turn: Option<Turn>,
    port: u16,
    // Last: the next conversation about the card has the same id.
    back: GivenBack,
}

/// Gives a card back when dropped.
#[derive(Debug)]
struct GivenBack {
    channel: Arc<Channel>,
    card: Card,
    /// The listener may still write to it.
    claimed: bool,
}

impl Announced {
    pub(super) fn state(&self) -> State {
        self.turn.map_or(State::Void, |turn| self.card.state(turn))
    }

    /// Takes the offer back; false after the listener has answered or refused.
    pub(super) fn withdraw(&self) -> bool {
        self.turn.is_some_and(|turn| self.card.withdraw(turn))
    }

    /// A number that changes as long as the listener works.
    pub(super) fn progress(&self) -> u64 {
        let claimed = u64::from(self.state() != State::Offered);
        self.conversation
            .channel
            .board
            .beats()
            .wrapping_add(claimed)
    }

    /// Tells the listener that something was said, if it waits for that.
    pub(super) fn ring(&self) {
        if self.card.must_ring(Voice::Client) {
            let card = u64::from(self.card.number());
            // A listener that is gone, or does not listen, does not mind.
            let _ = self.conversation.channel.send(ToListener::Look { card });
        }
    }
}

impl Drop for Announced {
    fn drop(&mut self) {
        let channel = &self.conversation.channel;
        self.withdraw();
        channel.board.leave(self.port, self.card.number());
        let claimed = matches!(self.state(), State::Taken | State::Withdrawn);
        self.card.hang_up(Voice::Client);
        if claimed {
            self.ring();
        }
        self.back.claimed = claimed;
    }
}

impl Drop for GivenBack {
    fn drop(&mut self) {
        let mut cards = lock(&self.channel.cards);
        match self.claimed {
            true => cards.left.push_back(self.card.clone()),
            false => cards.free.push(self.card.clone()),
        }
    }
}

impl Cards {
    /// A card that nobody uses.
    fn take(&mut self, board: &Board) -> Option<Card> {
        // The listener may be stopped with some of them, and be done with those behind.
        for _ in 0..LOOKS {
            if let Some(card) = self.free.pop() {
                return Some(card);
            }
            match self.left.pop_front() {
                Some(card) if card.is_hung_up(Voice::Listener) => return Some(card),
                Some(card) => self.left.push_back(card),
                None => break,
            }
        }
        let card = board.card(self.fresh)?;
        self.fresh += 1;
        Some(card)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_the_owner_is_not_known_the_own_user_alone_is_believed() {
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
