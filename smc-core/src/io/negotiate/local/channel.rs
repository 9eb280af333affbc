//! A client's channel to one listener.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use rustix::io::Errno;

use super::board::{Announcement, Board, CARDS, Card, State, Turn, Voice};
use super::directory::Entry;
use super::message::{ToClient, ToListener};
use super::netns::NetNs;
use super::packet::{MANY, Received, connect, receive, send};
use super::{Local, is_own, lock};
use crate::io::negotiate::Credentials;
use crate::io::negotiate::passed::PeerSocket;
use crate::io::runtime::{Runtime, Watch};

/// A channel. Many connections use it at a time, each with an id of its own.
#[derive(Debug)]
pub(super) struct Channel {
    fd: PeerSocket,
    entry: Arc<Entry>,
    /// The listener belongs to another user.
    foreign: bool,
    board: Board,
    cards: Mutex<Cards>,
    next_id: AtomicU64,
    dead: AtomicBool,
    inbox: Mutex<Inbox>,
    waiters: Arc<Waiters>,
    /// Wakes all waiters. Always the same one, so that reactors see that nothing has changed.
    waker: Waker,
}

#[derive(Debug)]
struct Inbox {
    watch: Box<dyn Watch>,
    /// There was more than was read at once.
    unread: bool,
    /// What came for whom, until they fetch it.
    news: HashMap<u64, ToClient>,
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

/// Everybody who waits for news, by id.
#[derive(Debug, Default)]
struct Waiters(Mutex<HashMap<u64, Option<Waker>>>);

impl Channel {
    /// Connects to a listener and introduces this process.
    pub(super) fn open(
        config: &Local,
        runtime: &dyn Runtime,
        dir: &Path,
        entry: &Arc<Entry>,
        netns: NetNs,
    ) -> io::Result<Self> {
        let fd = connect(dir, &entry.to_string())?;
        let uid = Credentials::of_peer(&fd)?.uid;
        if !config.allows(uid) {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let (board, file) = Board::create()?;
        let hello = ToListener::Hello { netns }.encode();
        send(fd.as_fd(), &hello, Some(file.as_fd()))?;
        let watch = runtime.watch(fd.as_fd())?;
        let waiters = Arc::new(Waiters::default());
        Ok(Self {
            fd,
            entry: entry.clone(),
            foreign: !is_own(uid),
            board,
            cards: Mutex::new(Cards {
                fresh: 0,
                free: Vec::new(),
                left: VecDeque::new(),
            }),
            next_id: AtomicU64::new(u64::from(CARDS)),
            dead: AtomicBool::new(false),
            inbox: Mutex::new(Inbox {
                watch,
                unread: false,
                news: HashMap::new(),
            }),
            waker: waiters.clone().into(),
            waiters,
        })
    }

    pub(super) fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Whether the listener is known to be gone.
    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed) || self.board.is_closed()
    }

    /// Whether the listener belongs to another user.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign
    }

    /// Tells the listener something, if there is room for it now.
    pub(super) fn send(&self, message: ToListener) -> Result<(), Errno> {
        let sent = send(self.fd.as_fd(), &message.encode(), None);
        if matches!(sent, Err(Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN)) {
            self.dead.store(true, Ordering::Relaxed);
        }
        sent
    }

    /// Announces a connection; `None` if too many are under way.
    pub(super) fn announce(
        self: &Arc<Self>,
        announcement: Announcement,
        proposal: &[u8],
    ) -> Option<Announced> {
        let card = lock(&self.cards).take(&self.board)?;
        let announced = Announced {
            port: announcement.from.port(),
            turn: card.offer(announcement, proposal),
            conversation: Conversation::with_id(Arc::clone(self), u64::from(card.number())),
            card: card.clone(),
            back: GivenBack {
                channel: Arc::clone(self),
                card,
                taken: false,
            },
        };
        let turn = announced.turn?;
        if self.board.enter(announced.port, announced.card.number()) {
            Some(announced)
        } else {
            announced.card.void(turn);
            None
        }
    }

    /// Takes in what has come, and adds who waits for that to `wakers`; whether that was all.
    fn drain(&self, inbox: &mut Inbox, wakers: &mut Vec<Waker>) -> bool {
        let mut buf = [0; 64];
        for count in 0..PACKETS {
            let message = match receive(self.fd.as_fd(), &mut buf) {
                Received::Packet(packet, _) => ToClient::parse(packet),
                Received::Empty => {
                    if count >= MANY {
                        wakers.append(&mut self.waiters.take_all());
                    }
                    return true;
                }
                Received::End => None,
            };
            let Some(message) = message else {
                self.end(wakers);
                return true;
            };
            // News for those who are not interested any more are dropped.
            let mut waiters = lock(&self.waiters.0);
            let Some(waker) = waiters.get_mut(&message.id()) else {
                continue;
            };
            inbox.news.insert(message.id(), message);
            wakers.extend(waker.take());
        }
        wakers.append(&mut self.waiters.take_all());
        false
    }

    fn end(&self, wakers: &mut Vec<Waker>) {
        self.dead.store(true, Ordering::Relaxed);
        wakers.append(&mut self.waiters.take_all());
    }
}

/// Packets that are read before other tasks run.
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
        lock(&channel.waiters.0).insert(id, None);
        Self { channel, id }
    }

    /// Waits for what the listener says; `None` if it is gone. Keeps one waker.
    pub(super) fn poll_news(&self, cx: &mut Context<'_>) -> Poll<Option<ToClient>> {
        // Called without a lock: a waker may run its task at once.
        let mut wakers = Vec::new();
        let news = self.poll_inbox(cx, &mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        news
    }

    fn poll_inbox(&self, cx: &mut Context<'_>, wakers: &mut Vec<Waker>) -> Poll<Option<ToClient>> {
        let channel = &*self.channel;
        // Dropped after the locks: that may drop a task with conversations of its own.
        let _old;
        let mut inbox = lock(&channel.inbox);
        _old = lock(&channel.waiters.0).insert(self.id, Some(cx.waker().clone()));
        loop {
            if let Some(news) = inbox.news.remove(&self.id) {
                return Poll::Ready(Some(news));
            }
            if channel.is_dead() {
                return Poll::Ready(None);
            }
            // Nothing is read unless there is something.
            if !inbox.unread {
                let woken = &mut Context::from_waker(&channel.waker);
                match inbox.watch.poll_readable(woken) {
                    Poll::Ready(Ok(())) => {}
                    Poll::Ready(Err(_)) => channel.end(wakers),
                    Poll::Pending => return Poll::Pending,
                }
            }
            inbox.unread = !channel.is_dead() && !channel.drain(&mut inbox, wakers);
            if inbox.unread && !inbox.news.contains_key(&self.id) {
                wakers.push(cx.waker().clone());
                return Poll::Pending;
            }
        }
    }

    pub(super) async fn news(&self) -> Option<ToClient> {
        poll_fn(|cx| self.poll_news(cx)).await
    }
}

impl Drop for Conversation {
    fn drop(&mut self) {
        // The waker is dropped after the lock: that may drop a task with other conversations.
        let _waker = lock(&self.channel.waiters.0).remove(&self.id);
        lock(&self.channel.inbox).news.remove(&self.id);
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
    /// The listener may still look at it.
    taken: bool,
}

impl Announced {
    pub(super) fn state(&self) -> State {
        self.turn.map_or(State::Void, |turn| self.card.state(turn))
    }

    /// Takes the offer back; whether it was still there.
    pub(super) fn withdraw(&self) -> bool {
        self.turn.is_some_and(|turn| self.card.void(turn))
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
        let taken = self.state() == State::Taken;
        self.card.hang_up(Voice::Client);
        if taken {
            self.ring();
        }
        self.back.taken = taken;
    }
}

impl Drop for GivenBack {
    fn drop(&mut self) {
        let mut cards = lock(&self.channel.cards);
        match self.taken {
            true => cards.left.push_back(self.card.clone()),
            false => cards.free.push(self.card.clone()),
        }
    }
}

impl Cards {
    /// A card that nobody uses.
    fn take(&mut self, board: &Board) -> Option<Card> {
        while let Some(card) = self.left.pop_front() {
            if card.is_hung_up(Voice::Listener) {
                self.free.push(card);
            } else {
                self.left.push_front(card);
                break;
            }
        }
        if let Some(card) = self.free.pop() {
            return Some(card);
        }
        let card = board.card(self.fresh)?;
        self.fresh += 1;
        Some(card)
    }
}

impl Waiters {
    fn wake_all(&self) {
        self.take_all().into_iter().for_each(Waker::wake);
    }

    fn take_all(&self) -> Vec<Waker> {
        let mut waiters = lock(&self.0);
        waiters.values_mut().filter_map(Option::take).collect()
    }
}

impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        self.wake_all();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.wake_all();
    }
}
