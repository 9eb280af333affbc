//! Announcements that have come and connections that have not.

use std::collections::HashMap;
use std::collections::hash_map;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::diag::Diag;
use super::directory::Entry;
use super::message::{Announce, MAX_LEN, NONCE_LEN, ToClient, ToListener};
use super::netns::canonical;
use super::packet::{Received, accept, receive, send};
use super::token::Token;
use super::{Local, is_own};
use crate::io::negotiate::Credentials;
use crate::io::negotiate::passed::PeerSocket;

/// The channels of a listener and what came on them.
#[derive(Debug)]
pub(super) struct Inbox {
    config: Local,
    entry: Entry,
    /// `None` when closed.
    listener: Option<OwnedFd>,
    /// Everything, looked at whenever a connection was accepted.
    all: OwnedFd,
    /// What needs an answer while none is: new channels, until they say where they come from, and
    /// those of clients in other namespaces.
    urgent: OwnedFd,
    channels: HashMap<u64, Channel>,
    next_channel: u64,
    announced: HashMap<Pair, Vec<Announced>>,
    count: usize,
    /// `None` where the kernel does not offer it.
    diag: Option<Diag>,
}

/// The canonical addresses of client and server.
pub(super) type Pair = (SocketAddr, SocketAddr);

#[derive(Debug)]
struct Channel {
    fd: PeerSocket,
    uid: u32,
    home: Home,
    announced: HashMap<u64, Pair>,
    proofs: u32,
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

#[derive(Debug)]
struct Announced {
    channel: u64,
    id: u64,
    cookie: u64,
    token: Token,
    proposal: Vec<u8>,
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
    /// No descriptor was left for a new channel.
    pub(super) exhausted: bool,
    /// There is more to do.
    pub(super) more: bool,
}

impl Inbox {
    pub(super) fn new(
        config: Local,
        entry: Entry,
        listener: OwnedFd,
        at: SocketAddr,
    ) -> io::Result<Self> {
        let [all, urgent] = [epoll_set()?, epoll_set()?];
        for set in [&all, &urgent] {
            epoll::add(set, &listener, LISTENER, epoll::EventFlags::IN)?;
        }
        // It is offered if the kernel knows at least the listener itself.
        let at = canonical(at);
        let works = |diag: &mut Diag| matches!(diag.find(at, (at.ip(), 1).into()), Ok(Some(_)));
        Ok(Self {
            config,
            entry,
            listener: Some(listener),
            all,
            urgent,
            channels: HashMap::new(),
            next_channel: 0,
            announced: HashMap::new(),
            count: 0,
            diag: Diag::open()
                .ok()
                .and_then(|mut diag| works(&mut diag).then_some(diag)),
        })
    }

    /// Readable when somebody needs an answer.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.urgent.as_fd()
    }

    /// Whether no connection is announced.
    pub(super) fn is_empty(&self) -> bool {
        self.announced.is_empty()
    }

    /// Takes in what has come. Costs one system call if that is nothing.
    pub(super) fn collect(&mut self, now: Instant) -> Collected {
        let mut collected = Collected::default();
        for _ in 0..ROUNDS {
            let mut space = [const { MaybeUninit::uninit() }; EVENTS];
            let at_once = Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            };
            let Ok((events, _)) = epoll::wait(&self.all, &mut space, Some(&at_once)) else {
                break;
            };
            collected.more = events.len() == EVENTS;
            for event in events {
                let data = event.data;
                if data == LISTENER {
                    self.welcome(&mut collected);
                } else {
                    self.read(data.u64(), now, &mut collected);
                }
            }
            if !collected.more || collected.exhausted {
                break;
            }
        }
        collected
    }

    /// Finds the announcement of a connection that was accepted, and takes it; its PROPOSAL.
    pub(super) fn claim(&mut self, pair: Pair) -> Option<Vec<u8>> {
        let mut claimed = None;
        for announced in self.take_out(pair).into_iter().rev() {
            if claimed.is_none() && self.comes_from(pair, &announced) && announced.token.take() {
                claimed = Some(announced.proposal);
            } else {
                self.tell(announced.channel, ToClient::Refused { id: announced.id });
            }
        }
        claimed
    }

    /// Tells whoever announced this connection that it is plain.
    pub(super) fn refuse(&mut self, pair: Pair) {
        for announced in self.take_out(pair) {
            self.tell(announced.channel, ToClient::Refused { id: announced.id });
        }
    }

    fn take_out(&mut self, pair: Pair) -> Vec<Announced> {
        let all = self.announced.remove(&pair).unwrap_or_default();
        self.count = self.count.saturating_sub(all.len());
        for announced in &all {
            if let Some(channel) = self.channels.get_mut(&announced.channel) {
                channel.announced.remove(&announced.id);
            }
        }
        all
    }

    /// Whether the socket at the other end is the one that was announced.
    fn comes_from(&mut self, (peer, local): Pair, announced: &Announced) -> bool {
        let Some(channel) = self.channels.get(&announced.channel) else {
            return false;
        };
        match channel.home {
            Home::Unknown => false,
            // Was proven when it was announced.
            Home::Abroad(_) => true,
            Home::Here => match self.diag.as_mut().map(|diag| diag.find(peer, local)) {
                Some(Ok(Some(found))) => {
                    found.cookie == announced.cookie
                        && (found.uid == channel.uid || is_own(channel.uid))
                }
                Some(Ok(None)) => false,
                Some(Err(_)) | None => is_own(channel.uid),
            },
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

    /// Ends all channels.
    pub(super) fn close(&mut self) {
        self.listener = None;
        self.channels.clear();
        self.announced.clear();
    }

    /// Takes new channels in.
    fn welcome(&mut self, collected: &mut Collected) {
        for _ in 0..MAX_CHANNELS {
            let Some(listener) = &self.listener else {
                return;
            };
            let fd = match accept(listener.as_fd()) {
                Ok(fd) => fd,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    collected.exhausted = true;
                    return;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return,
            };
            // Those that are not let in find their channel closed, and connect as plain TCP.
            let Ok(Credentials { uid, .. }) = Credentials::of_peer(&fd) else {
                continue;
            };
            if !self.config.allows(uid) || self.channels.len() >= share(uid, MAX_CHANNELS) {
                continue;
            }
            let key = self.next_channel;
            self.next_channel += 1;
            let add = |set| epoll::add(set, &fd, data(key), epoll::EventFlags::IN);
            if add(&self.all).and_then(|()| add(&self.urgent)).is_ok() {
                let channel = Channel {
                    fd,
                    uid,
                    home: Home::Unknown,
                    announced: HashMap::new(),
                    proofs: 0,
                };
                self.channels.insert(key, channel);
                // It may already have said something.
                collected.more = true;
            }
        }
    }

    /// Takes in the packets of a channel.
    fn read(&mut self, key: u64, now: Instant, collected: &mut Collected) {
        let mut buf = [0; MAX_LEN];
        for _ in 0..PACKETS {
            let Some(channel) = self.channels.get(&key) else {
                return;
            };
            match receive(channel.fd.as_fd(), &mut buf) {
                Received::Packet(packet, passed) => {
                    let message = ToListener::parse(packet);
                    if message
                        .and_then(|m| self.handle(key, m, passed, now, collected))
                        .is_none()
                    {
                        return self.end(key);
                    }
                }
                Received::Empty => return,
                Received::End => return self.end(key),
            }
        }
        collected.more = true;
    }

    /// `None` if the client broke the rules.
    fn handle(
        &mut self,
        key: u64,
        message: ToListener<'_>,
        passed: Option<OwnedFd>,
        now: Instant,
        collected: &mut Collected,
    ) -> Option<()> {
        let channel = self.channels.get_mut(&key)?;
        match (message, &channel.home) {
            (ToListener::Hello { netns }, Home::Unknown) if netns == self.entry.netns => {
                epoll::delete(&self.urgent, &channel.fd).ok()?;
                channel.home = Home::Here;
            }
            (ToListener::Hello { .. }, Home::Unknown) => {
                channel.home = Home::Abroad(HashMap::new());
            }
            (ToListener::Hello { .. }, _) | (_, Home::Unknown) => return None,
            (ToListener::Announce(announce), _) => {
                if !self.announce(key, announce, passed, now)? {
                    self.tell(key, ToClient::Refused { id: announce.id });
                }
            }
            (ToListener::Withdraw { id }, _) => {
                if let Some(pair) = channel.announced.remove(&id) {
                    self.forget(key, pair, |announced| announced.id == id);
                }
            }
            (ToListener::Prove { id, nonce, to }, Home::Abroad(_)) => {
                let is_covered = self.entry.scope.covers(to) && is_own(channel.uid);
                if is_covered && channel.proofs < MAX_PROOFS {
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

    /// Whether the announcement is kept; `None` if the client broke the rules.
    fn announce(
        &mut self,
        key: u64,
        announce: Announce<'_>,
        passed: Option<OwnedFd>,
        now: Instant,
    ) -> Option<bool> {
        let channel = self.channels.get_mut(&key)?;
        let pair = (canonical(announce.from), canonical(announce.to));
        let believed = match &channel.home {
            Home::Unknown => false,
            Home::Here => true,
            Home::Abroad(proven) => proven
                .get(&pair.1.ip())
                .is_some_and(|(from, until)| *from == pair.0.ip() && *until > now),
        };
        let fits = pair.1.port() == self.entry.port && self.entry.scope.covers(pair.1.ip());
        let room = channel.announced.len() < MAX_PER_CHANNEL
            && self.count < share(channel.uid, MAX_ANNOUNCED);
        // Without a descriptor: this process had no room for one.
        let Some(token) = passed.filter(|_| believed && fits && room) else {
            return Some(false);
        };
        let hash_map::Entry::Vacant(slot) = channel.announced.entry(announce.id) else {
            return None;
        };
        slot.insert(pair);
        self.count += 1;
        self.announced.entry(pair).or_default().push(Announced {
            channel: key,
            id: announce.id,
            cookie: announce.cookie,
            token: Token::received(token),
            proposal: announce.proposal.to_vec(),
        });
        Some(true)
    }

    fn end(&mut self, key: u64) {
        if let Some(channel) = self.channels.remove(&key) {
            for pair in channel.announced.into_values() {
                self.forget(key, pair, |_| true);
            }
        }
    }

    fn forget(&mut self, key: u64, pair: Pair, which: impl Fn(&Announced) -> bool) {
        let hash_map::Entry::Occupied(mut list) = self.announced.entry(pair) else {
            return;
        };
        let before = list.get().len();
        list.get_mut()
            .retain(|announced| announced.channel != key || !which(announced));
        self.count = self.count.saturating_sub(before - list.get().len());
        if list.get().is_empty() {
            list.remove();
        }
    }
}

/// How much of what there is a user may fill. Guests cannot crowd out the listener's own user.
fn share(uid: u32, of: usize) -> usize {
    if is_own(uid) { of } else { of / 4 }
}

fn epoll_set() -> io::Result<OwnedFd> {
    Ok(epoll::create(epoll::CreateFlags::CLOEXEC)?)
}

fn data(channel: u64) -> epoll::EventData {
    epoll::EventData::new_u64(channel)
}

/// Not the number of a channel.
const LISTENER: epoll::EventData = epoll::EventData::new_u64(u64::MAX);

/// Channels with news that are looked at together.
const EVENTS: usize = 64;

/// How often they are looked at in one go.
const ROUNDS: usize = 16;

/// Packets of a channel that are read together, at least as many as fit its queue.
const PACKETS: usize = 512;

/// Clients of a listener.
const MAX_CHANNELS: usize = 1024;

/// Connections that one client may have announced and not made.
const MAX_PER_CHANNEL: usize = 512;

/// Connections that all clients may have announced and not made; each holds a descriptor.
const MAX_ANNOUNCED: usize = 1024;

/// Proofs that one client may have under way.
const MAX_PROOFS: u32 = 4;

/// Proven addresses of one client.
const MAX_PROVEN: usize = 64;

/// How long a proof holds, longer than clients rely on it.
const PROOF_LASTS: Duration = Duration::from_secs(60);
