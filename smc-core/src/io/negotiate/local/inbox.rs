//! The channels of a listener, and the boards on which its clients announce connections.

use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;

use super::board::{Announcement, Board, Card, Turn, Voice};
use super::diag::Diag;
use super::directory::{Entry, Scope};
use super::is_own;
use super::message::{MAX_LEN, NONCE_LEN, ToClient, ToListener};
use super::netns::canonical;
use super::packet::{MANY, Received, receive, send};
use crate::error::{FallbackCause, OsError, Refusal};
use crate::io::negotiate::Credentials;
use crate::io::negotiate::passed::PeerSocket;
use crate::io::negotiate::runtime_dir::{Domain, Publication};
use crate::mem::sync::{AtomicBool, Ordering};
use crate::shares::Shares;

/// The channels of a listener and what came on them.
#[derive(Debug)]
pub(super) struct Inbox {
    domain: Domain,
    entry: Entry,
    /// `None` when closed.
    publication: Option<Publication>,
    /// The listener and all channels.
    all: OwnedFd,
    channels: HashMap<u64, Channel>,
    /// Channels of users other than the listener's.
    of_others: Shares<u32, MAX_OF_OTHERS, MAX_OF_ONE>,
    /// Channels on which there was no HELLO, and until when it has to come; the oldest first. Some
    /// have said it meanwhile, or have ended.
    silent: VecDeque<(u64, Instant)>,
    next_channel: u64,
    /// Channels by the time of their last connection, the latest at the end.
    recent: Vec<u64>,
    /// Why the connection that was looked for last was not claimed, if it was offered.
    cause: Option<FallbackCause>,
    /// What this process lacked when a client was not taken in, and when that was.
    shortage: Option<(Instant, OsError)>,
    /// When clients are shown next that the listener works.
    next_beat: Option<Instant>,
    /// Handshakes that wait for what a client says, by channel and card.
    waiting: HashMap<(u64, u32), Waker>,
    /// `None` where the kernel does not offer it.
    diag: Option<Diag>,
}

/// The canonical addresses of client and server.
pub(super) type Pair = (SocketAddr, SocketAddr);

#[derive(Debug)]
struct Channel {
    fd: PeerSocket,
    client: Credentials,
    /// Of the listener's user.
    own: bool,
    home: Home,
    /// From HELLO on.
    board: Option<Board>,
    proofs: u32,
    /// Set when the channel ends.
    dead: Arc<AtomicBool>,
}

/// Where the client lives.
#[derive(Debug)]
enum Home {
    /// It has not said yet.
    Unknown,
    /// In the listener's network namespace.
    Here,
    /// Elsewhere. Addresses that were proven, with the client's own there, and until when.
    Abroad(HashMap<IpAddr, (IpAddr, Instant)>),
}

/// A connection that was announced and accepted. Its client may still take the offer back.
#[derive(Debug)]
pub(super) struct Claimed {
    pub(super) channel: u64,
    pub(super) card: Card,
    pub(super) turn: Turn,
    pub(super) client: Credentials,
    pub(super) dead: Arc<AtomicBool>,
}

/// A proof that a client asked for.
#[derive(Debug)]
pub(super) struct Proof {
    pub(super) channel: u64,
    pub(super) id: u64,
    pub(super) nonce: [u8; NONCE_LEN],
    pub(super) to: IpAddr,
}

/// What came of looking at the channels.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) proofs: Vec<Proof>,
    /// Handshakes that have news.
    pub(super) wakers: Vec<Waker>,
    /// There is more to do.
    pub(super) more: bool,
    /// Packets that were read, and channels that were taken in, each as [`COST`] of them.
    spent: usize,
}

impl Inbox {
    pub(super) fn new(
        domain: Domain,
        entry: Entry,
        publication: Publication,
        at: SocketAddr,
    ) -> io::Result<Self> {
        let all = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &all,
            publication.epoll_fd(),
            LISTENER,
            epoll::EventFlags::IN,
        )?;
        // It is offered if the kernel knows at least the listener itself.
        let at = canonical(at);
        let works = |diag: &mut Diag| matches!(diag.find(at, (at.ip(), 1).into()), Ok(Some(_)));
        Ok(Self {
            domain,
            entry,
            publication: Some(publication),
            all,
            channels: HashMap::new(),
            of_others: Shares::default(),
            silent: VecDeque::new(),
            next_channel: 0,
            recent: Vec::new(),
            cause: None,
            shortage: None,
            next_beat: None,
            waiting: HashMap::new(),
            diag: Diag::open()
                .ok()
                .and_then(|mut diag| works(&mut diag).then_some(diag)),
        })
    }

    /// Readable when somebody has come or said something.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.all.as_fd()
    }

    /// Whether there is no client.
    pub(super) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// The one address that connections are made to, unless there are several.
    pub(super) fn address(&self) -> Option<SocketAddr> {
        match self.entry.scope {
            Scope::One(ip) => Some(SocketAddr::new(ip, self.entry.port)),
            _ => None,
        }
    }

    /// Takes in what has come, as far as is good for one call: see [`Collected::more`]. Costs one
    /// system call if that is nothing.
    pub(super) fn collect(&mut self) -> Collected {
        self.collect_at(Instant::now())
    }

    fn collect_at(&mut self, now: Instant) -> Collected {
        let mut collected = Collected::default();
        loop {
            let mut space = [const { MaybeUninit::uninit() }; EVENTS];
            let at_once = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let Ok((events, _)) = epoll::wait(&self.all, &mut space, Some(&at_once)) else {
                break;
            };
            // Channels that were not looked at, or that are new, come first in the next round; those
            // with more packets come last.
            let before = self.next_channel;
            let mut has_others = events.len() == EVENTS;
            for event in events {
                let data = event.data;
                if data == LISTENER {
                    self.welcome(now, &mut collected);
                } else {
                    self.read(data.u64(), &mut collected);
                }
            }
            has_others |= self.next_channel > before;
            collected.more |= has_others;
            if !has_others || collected.spent >= BUDGET {
                break;
            }
            collected.more = false;
        }
        if collected.spent > 0 {
            self.end_silent(now, &mut collected);
        }
        collected
    }

    /// Finds the announcement of a connection that was accepted, and claims it.
    pub(super) fn claim(&mut self, pair: Pair, now: Instant) -> Option<Claimed> {
        for place in (0..self.recent.len()).rev() {
            let key = *self.recent.get(place)?;
            for (card, turn, announcement) in self.offers(key, pair) {
                let is_fit = self.comes_from(key, &announcement, now) && self.is_alive(key);
                if is_fit && card.claim(turn) {
                    // Whoever comes often is found soon.
                    self.recent.remove(place);
                    self.recent.push(key);
                    // An offer before this one may have been refused.
                    self.cause = None;
                    let channel = self.channels.get(&key)?;
                    return Some(Claimed {
                        channel: key,
                        card,
                        turn,
                        client: channel.client,
                        dead: Arc::clone(&channel.dead),
                    });
                }
                self.refuse_offer(key, &card, turn, Refusal::Identity);
                self.cause = Some(FallbackCause::Refused(Refusal::Identity));
            }
        }
        None
    }

    /// Why the connection that was looked for last was not claimed, if that is known.
    pub(super) fn take_cause(&mut self) -> Option<FallbackCause> {
        let recent = |(at, _): &&(Instant, _)| at.elapsed() < SHORTAGE_LASTS;
        let shortage = || {
            let (_, error) = self.shortage.as_ref().filter(recent)?;
            Some(FallbackCause::Os(error.clone()))
        };
        let unpublished = || {
            let publication = self.publication.as_ref()?;
            publication.error().cloned().map(FallbackCause::from)
        };
        self.cause.take().or_else(shortage).or_else(unpublished)
    }

    /// Tells whoever announced this connection that it is plain by policy.
    pub(super) fn refuse(&mut self, pair: Pair) {
        for key in &self.recent {
            for (card, turn, _) in self.offers(*key, pair) {
                self.refuse_offer(*key, &card, turn, Refusal::Policy);
            }
        }
    }

    fn refuse_offer(&self, channel: u64, card: &Card, turn: Turn, why: Refusal) {
        card.refuse(turn, why);
        self.ring(channel, card);
    }

    /// Shows all clients that the listener works, unless it has done so a moment ago: those whose
    /// connections wait to be accepted see nothing else of it.
    pub(super) fn beat(&mut self, now: Instant) {
        if self.next_beat.is_some_and(|next| now < next) {
            return;
        }
        self.next_beat = Some(now + BEAT);
        let boards = self.channels.values().filter_map(|it| it.board.as_ref());
        boards.for_each(Board::beat);
    }

    /// Makes a client look at its card, if it waits for that.
    pub(super) fn ring(&self, channel: u64, card: &Card) {
        if card.must_ring(Voice::Listener) {
            let card = u64::from(card.number());
            self.tell(channel, ToClient::Look { card });
        }
    }

    /// What a client offers for a connection.
    fn offers(&self, channel: u64, (from, to): Pair) -> Vec<(Card, Turn, Announcement)> {
        let board = self.channels.get(&channel).and_then(|it| it.board.as_ref());
        let cards = board.map(|board| board.find(from.port()));
        let offered = cards.into_iter().flatten().filter_map(|card| {
            let (turn, announcement) = card.offered()?;
            let fits = (announcement.from, announcement.to) == (from, to);
            fits.then_some((card, turn, announcement))
        });
        offered.collect()
    }

    /// Whether a client is believed that this connection is its own.
    ///
    /// Those of the listener's user are: what they claim wrongly is a connection that they cannot
    /// use, because nobody else gets a byte of the handshake. Of others the socket at the other end
    /// has to be the one that was announced, and theirs, and connected: where the other end is not in
    /// this namespace, the kernel finds a listening socket that has the address.
    fn comes_from(&mut self, channel: u64, announcement: &Announcement, now: Instant) -> bool {
        let Some(channel) = self.channels.get(&channel) else {
            return false;
        };
        match &channel.home {
            Home::Unknown => false,
            Home::Abroad(proven) => proven
                .get(&announcement.to.ip())
                .is_some_and(|(from, until)| *from == announcement.from.ip() && *until > now),
            Home::Here if channel.own => true,
            Home::Here => {
                let uid = channel.client.uid;
                let diag = self.diag.as_mut();
                let found = diag.map(|diag| diag.find(announcement.from, announcement.to));
                matches!(found, Some(Ok(Some(found)))
                    if found.is_established()
                        && found.cookie == announcement.cookie
                        && found.uid == uid)
            }
        }
    }

    /// Whether a client is still there. The memory of one that died does not say so, and somebody
    /// else may have its port by now.
    fn is_alive(&self, channel: u64) -> bool {
        let Some(channel) = self.channels.get(&channel) else {
            return false;
        };
        let mut ends = [PollFd::new(&channel.fd, PollFlags::empty())];
        let at_once = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut ends, Some(&at_once)).is_ok_and(|ended| ended == 0)
    }

    /// Has a handshake woken when its client rings; `None` takes that back.
    pub(super) fn wait(&mut self, channel: u64, card: u32, waker: Option<Waker>) {
        let key = (channel, card);
        match waker {
            Some(waker) => drop(self.waiting.insert(key, waker)),
            None => drop(self.waiting.remove(&key)),
        }
    }

    /// Says something to a client, if it is still there and has room for it.
    pub(super) fn tell(&self, channel: u64, message: ToClient) {
        if let Some(channel) = self.channels.get(&channel) {
            // A client that does not listen does not mind.
            let _ = send(channel.fd.as_fd(), &message.encode(), None);
        }
    }

    /// A proof has ended.
    pub(super) fn proven(&mut self, proof: &Proof, from: Option<IpAddr>, now: Instant) {
        let Some(channel) = self.channels.get_mut(&proof.channel) else {
            return;
        };
        channel.proofs = channel.proofs.saturating_sub(1);
        let answer = match (&mut channel.home, from) {
            (Home::Abroad(proven), Some(from)) => {
                proven.retain(|_, (_, until)| *until > now);
                if proven.len() < MAX_PROVEN {
                    proven.insert(proof.to, (from, now + PROOF_LASTS));
                }
                ToClient::Proven { id: proof.id, from }
            }
            _ => ToClient::Refused { id: proof.id },
        };
        self.tell(proof.channel, answer);
    }

    /// Ends all channels; who has to be woken.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.publication = None;
        for (_, channel) in self.channels.drain() {
            channel.dead.store(true, Ordering::Release);
            channel.board.iter().for_each(Board::close);
        }
        self.of_others = Shares::default();
        self.silent.clear();
        self.recent.clear();
        self.waiting.drain().map(|(_, waker)| waker).collect()
    }

    /// Takes new channels in.
    fn welcome(&mut self, now: Instant, collected: &mut Collected) {
        if let Some(publication) = &mut self.publication {
            publication.handle_events();
        }
        while collected.spent < BUDGET {
            collected.spent += COST;
            let Some(publication) = &mut self.publication else {
                return;
            };
            let fd = match publication.accept() {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    let error = OsError::new("accept a client's channel", &error.into());
                    if !error.is_lack() {
                        return;
                    }
                    self.shortage = Some((now, error));
                    continue;
                }
            };
            let Ok(client) = Credentials::of_peer(&fd) else {
                continue;
            };
            let uid = client.uid;
            let refusal = match self.domain.allows(uid) {
                false => Some(Refusal::User { uid }),
                true if !self.has_room(uid) => Some(Refusal::Full),
                true => None,
            };
            if let Some(refusal) = refusal {
                // Its connections are plain TCP, whether it reads this or not.
                let _ = send(fd.as_fd(), &ToClient::Bye { refusal }.encode(), None);
                continue;
            }
            let key = self.next_channel;
            self.next_channel += 1;
            if epoll::add(&self.all, &fd, data(key), epoll::EventFlags::IN).is_ok() {
                let channel = Channel {
                    fd,
                    client,
                    own: is_own(uid),
                    home: Home::Unknown,
                    board: None,
                    proofs: 0,
                    dead: Arc::default(),
                };
                if !channel.own {
                    self.of_others.take(uid);
                }
                self.channels.insert(key, channel);
                self.silent.push_back((key, now + HELLO_WITHIN));
            }
        }
        // There may be others.
        collected.more = true;
    }

    /// Whether a client of this user may have a channel. Other users cannot keep out the listener's
    /// own, nor each other.
    fn has_room(&self, uid: u32) -> bool {
        self.channels.len() < MAX_CHANNELS && (is_own(uid) || self.of_others.has_capacity(&uid))
    }

    /// Ends channels on which HELLO has not come in time.
    fn end_silent(&mut self, now: Instant, collected: &mut Collected) {
        while let Some((key, until)) = self.silent.front().copied() {
            let channel = self.channels.get(&key);
            let is_silent = channel.is_some_and(|it| matches!(it.home, Home::Unknown));
            if is_silent && until > now {
                if let Some(publication) = &self.publication {
                    publication.wake_after(until - now);
                }
                return;
            }
            self.silent.pop_front();
            if is_silent {
                self.end(key, collected);
            }
        }
    }

    /// Takes in the packets of a channel.
    fn read(&mut self, key: u64, collected: &mut Collected) {
        let mut buf = [0; MAX_LEN];
        for count in 0..PACKETS {
            let Some(channel) = self.channels.get(&key) else {
                return;
            };
            collected.spent += 1;
            match receive(&channel.fd, &mut buf) {
                Received::Packet(packet, passed) => {
                    let message = ToListener::parse(packet);
                    if message
                        .and_then(|m| self.handle(key, m, passed, collected))
                        .is_none()
                    {
                        return self.end(key, collected);
                    }
                }
                Received::Empty if count < MANY => return,
                Received::Empty => return self.wake_all(key, collected),
                Received::End => return self.end(key, collected),
            }
        }
        self.wake_all(key, collected);
        collected.more = true;
    }

    /// All handshakes of a client look again.
    fn wake_all(&mut self, key: u64, collected: &mut Collected) {
        let waiting = self.waiting.extract_if(|(channel, _), _| *channel == key);
        collected.wakers.extend(waiting.map(|(_, waker)| waker));
    }

    /// `None` if the client broke the rules.
    fn handle(
        &mut self,
        key: u64,
        message: ToListener,
        passed: Option<OwnedFd>,
        collected: &mut Collected,
    ) -> Option<()> {
        let channel = self.channels.get_mut(&key)?;
        match (message, &channel.home) {
            (ToListener::Hello { netns }, Home::Unknown) => {
                let Some(passed) = passed else {
                    // This process had no room for the descriptor.
                    let refusal = Refusal::Descriptors;
                    self.tell(key, ToClient::Bye { refusal });
                    return None;
                };
                channel.board = Some(Board::adopt(passed.as_fd()).ok()?);
                channel.home = match netns == self.entry.netns {
                    true => Home::Here,
                    false if channel.own => Home::Abroad(HashMap::new()),
                    false => return None,
                };
                self.recent.push(key);
            }
            (ToListener::Hello { .. }, _) | (_, Home::Unknown) => return None,
            (ToListener::Look { card }, _) => {
                let card = u32::try_from(card).ok()?;
                collected.wakers.extend(self.waiting.remove(&(key, card)));
            }
            (ToListener::Prove { id, nonce, to }, Home::Abroad(_)) => {
                if self.entry.scope.covers(to) && channel.proofs < MAX_PROOFS {
                    channel.proofs += 1;
                    collected.proofs.push(Proof {
                        channel: key,
                        id,
                        nonce,
                        to,
                    });
                } else {
                    self.tell(key, ToClient::Refused { id });
                }
            }
            (ToListener::Prove { .. }, _) => return None,
        }
        Some(())
    }

    fn end(&mut self, key: u64, collected: &mut Collected) {
        let Some(channel) = self.channels.remove(&key) else {
            return;
        };
        channel.dead.store(true, Ordering::Release);
        if !channel.own {
            self.of_others.release(&channel.client.uid);
        }
        self.recent.retain(|recent| *recent != key);
        self.wake_all(key, collected);
    }
}

fn data(channel: u64) -> epoll::EventData {
    epoll::EventData::new_u64(channel)
}

/// Not the number of a channel.
const LISTENER: epoll::EventData = epoll::EventData::new_u64(u64::MAX);

/// Channels with news that are looked at together.
const EVENTS: usize = 64;

/// Packets of a channel that are read together. After so many all its handshakes look.
const PACKETS: usize = 2 * MANY;

/// What taking in a channel counts as, in packets.
const COST: usize = 8;

/// Packets that are read in one call: some milliseconds of work. All channels that other users can
/// have together do not send more before each was looked at.
const BUDGET: usize = PACKETS * MAX_OF_OTHERS;

/// Clients of a listener.
const MAX_CHANNELS: usize = 1024;

/// Clients of other users than the listener's, and of one of them.
const MAX_OF_OTHERS: usize = MAX_CHANNELS / 2;
const MAX_OF_ONE: usize = MAX_CHANNELS / 4;

/// How long a client may take to say HELLO, which it does in the call in which it connects.
const HELLO_WITHIN: Duration = Duration::from_secs(1);

/// For how long a channel that was not accepted may explain that a connection is not announced:
/// about as long as a set-up may take.
const SHORTAGE_LASTS: Duration = Duration::from_secs(10);

/// How often clients are shown that the listener works, while it does. Much shorter than they wait
/// for a sign of it.
pub(super) const BEAT: Duration = Duration::from_millis(20);

/// Proofs that one client may have under way.
const MAX_PROOFS: u32 = 4;

/// Proven addresses of one client.
const MAX_PROVEN: usize = 64;

/// How long a proof holds, longer than clients rely on it.
const PROOF_LASTS: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    use rustix::net::sockopt::socket_cookie;
    use smc_testkit::user::run_as;
    use tempfile::TempDir;

    use super::*;
    use crate::io::negotiate::local::netns::NetNs;

    /// A listener's inbox with nothing behind it.
    fn inbox(dir: &TempDir) -> Inbox {
        let at: SocketAddr = ([127, 0, 0, 1], 80).into();
        let entry = Entry {
            shared: false,
            port: at.port(),
            scope: Scope::One(at.ip()),
            netns: NetNs::current().unwrap(),
            cookie: 1,
            salt: 1,
        };
        let domain = domain(dir);
        let publication = Publication::new(domain.clone(), entry.to_string()).unwrap();
        Inbox::new(domain, entry, publication, at).unwrap()
    }

    /// A user who is allowed.
    const OTHER: u32 = 990;

    /// Of the user of these tests and of another one.
    fn domain(dir: &TempDir) -> Domain {
        Domain::shared(dir.path(), [0, OTHER])
    }

    /// A client that has introduced itself.
    fn client(dir: &TempDir, inbox: &Inbox) -> PeerSocket {
        let domain = domain(dir);
        let client = domain.connect(&inbox.entry.to_string()).unwrap();
        let (_board, file) = Board::create().unwrap();
        introduce(&client, inbox, &file);
        client
    }

    fn introduce(client: &PeerSocket, inbox: &Inbox, board: &OwnedFd) {
        let netns = inbox.entry.netns;
        let hello = ToListener::Hello { netns }.encode();
        send(client.as_fd(), &hello, Some(board.as_fd())).unwrap();
    }

    /// Announces a connection as a client does.
    fn announce(board: &Board, announcement: Announcement) {
        let card = board.card(0).unwrap();
        assert!(card.offer(announcement, b"PROPOSAL", None).is_some());
        assert!(board.enter(announcement.from.port(), 0));
    }

    /// Sends packets until there is no room; how many that were.
    fn fill(client: &PeerSocket) -> usize {
        let look = ToListener::Look { card: 0 }.encode();
        let mut count = 0;
        while send(client.as_fd(), &look, None).is_ok() {
            count += 1;
        }
        count
    }

    #[test]
    fn a_client_has_a_second_to_say_hello() {
        let dir = TempDir::new().unwrap();
        let mut inbox = inbox(&dir);
        let silent = domain(&dir);
        let silent = silent.connect(&inbox.entry.to_string()).unwrap();
        let _client = client(&dir, &inbox);
        let start = Instant::now();
        while inbox.collect_at(start).more {}
        assert_eq!(inbox.channels.len(), 2);
        let mut look_after = |time| {
            inbox.end_silent(start + time, &mut Collected::default());
            inbox.channels.len()
        };
        assert_eq!(look_after(HELLO_WITHIN - Duration::from_millis(1)), 2);
        assert_eq!(look_after(HELLO_WITHIN), 1);
        assert_eq!(inbox.recent.len(), 1);
        assert!(inbox.silent.is_empty());
        let mut buf = [0; MAX_LEN];
        assert!(matches!(receive(&silent, &mut buf), Received::End));
    }

    #[test]
    fn a_user_who_listens_where_a_connection_comes_from_cannot_claim_it() {
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: why: needs root to become another user");
        }
        let dir = TempDir::new().unwrap();
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(dir.path(), open).unwrap();
        let mut inbox = inbox(&dir);
        let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let to = server.local_addr().unwrap();
        let mut diag = Diag::open().unwrap();
        if let Err(error) = diag.find(to, to) {
            return println!("skipped: why: no sock_diag here: {error}");
        }
        inbox.diag = Some(diag);
        let user = run_as(OTHER, || {
            let client = domain(&dir).connect(&inbox.entry.to_string()).unwrap();
            (
                client,
                TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap(),
                TcpStream::connect(to).unwrap(),
            )
        });
        let (client, listening, connected) = user.unwrap();
        let (board, file) = Board::create().unwrap();
        introduce(&client, &inbox, &file);
        while inbox.collect().more {}
        let mut is_claimed = |from, cookie: Result<u64, Errno>| {
            let cookie = cookie.unwrap();
            announce(&board, Announcement { cookie, from, to });
            let claimed = inbox.claim((from, to), Instant::now()).is_some();
            board.leave(from.port(), 0);
            claimed
        };
        // The socket of the connection is on another host, or in another network namespace: of those
        // here it is the listening one that a packet to this address would go to.
        let from = listening.local_addr().unwrap();
        assert!(!is_claimed(from, socket_cookie(&listening)));
        let from = connected.local_addr().unwrap();
        assert!(is_claimed(from, socket_cookie(&connected)));
    }

    #[test]
    fn a_client_that_sends_without_end_costs_a_look_a_bounded_number_of_packets() {
        let dir = TempDir::new().unwrap();
        let mut inbox = inbox(&dir);
        let storming = client(&dir, &inbox);
        assert!(!inbox.collect().more);
        assert!(fill(&storming) > 4 * PACKETS);
        let collected = inbox.collect();
        assert!(collected.more);
        assert!(
            collected.spent <= PACKETS,
            "{} packets read",
            collected.spent
        );
        // What comes meanwhile from others is seen all the same.
        let _other = client(&dir, &inbox);
        fill(&storming);
        let collected = inbox.collect();
        assert!(collected.more);
        assert_eq!(inbox.recent.len(), 2);
        let most = 3 * PACKETS + 2 * COST;
        assert!(collected.spent <= most, "{} packets read", collected.spent);
        // All of it is read in time.
        while inbox.collect().more {}
        assert!(fill(&storming) > 4 * PACKETS);
    }
}
