//! The channels of a listener, and the mailboxes in which its clients announce connections.

mod claim;

pub(super) use claim::{Claimed, Pair};

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use smc_core::error::{FallbackCause, OsError, Refusal};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::negotiate::Credentials;
use smc_core::quota::{FairShares, Permit, descriptors, mappings};
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::doorbell::WatchSet;
use smc_ipc::is_own_user;
use smc_ipc::passed::{Passed, PeerSocket};
use smc_ipc::runtime_dir::Publication;
use smc_ipc::shortage::Shortage;

use crate::directory::{ListenerEntry, Scope};
use crate::mailbox::{Direction, Mailbox, Slot};
use crate::message::{MANY, MAX_LEN, NONCE_LEN, ToClient, ToListener};
use crate::netns::canonical;
use crate::sock_diag::SockDiag;

/// The channels of a listener and their state.
#[derive(Debug)]
pub(super) struct ListenerChannels {
    entry: ListenerEntry,
    /// `None` when closed.
    publication: Option<Publication>,
    /// The listener and all channels.
    watched: WatchSet,
    channels: HashMap<u64, ListenerChannel>,
    /// Channels of users other than the listener's.
    of_others: FairShares<u32>,
    /// Channels without HELLO and the time limits for it; the oldest first. Some have sent it
    /// meanwhile, or have ended.
    awaiting_hello: VecDeque<(u64, Instant)>,
    next_channel: u64,
    /// Channels by the time of their last connection, the latest at the end.
    recent: Vec<u64>,
    /// Why the last connection that was searched was not claimed, if it was offered.
    cause: Option<FallbackCause>,
    /// The resource that was exhausted when a client was not accepted.
    shortage: Shortage,
    /// Time of the next heartbeat.
    next_heartbeat: Option<Instant>,
    /// Handshakes that wait for messages of a client, by channel and slot.
    waiting: HashMap<(u64, u32), Waker>,
    /// `None` where the kernel does not offer it.
    diag: Option<SockDiag>,
}

/// The listener's end of a channel.
#[derive(Debug)]
struct ListenerChannel {
    fd: Arc<PeerSocket>,
    client: Credentials,
    /// Of the listener's user.
    own: bool,
    /// For `fd`, unless the user is the listener's.
    _permit: Option<Permit>,
    netns: ClientNetns,
    /// From HELLO on.
    mailbox: Option<Mailbox>,
    probes: u32,
    /// Set when the channel ends.
    has_ended: Arc<AtomicBool>,
}

/// The network namespace of a client.
#[derive(Debug)]
enum ClientNetns {
    /// HELLO has not come yet.
    Unknown,
    /// The listener's network namespace.
    Same,
    /// Another one. Proven addresses, with the client's address for each and its time limit.
    Other(HashMap<IpAddr, (IpAddr, Instant)>),
}

/// A reachability probe that a client has requested.
#[derive(Debug)]
pub(super) struct ProbeRequest {
    pub(super) channel: u64,
    pub(super) id: u64,
    pub(super) nonce: [u8; NONCE_LEN],
    pub(super) to: IpAddr,
}

/// The result of a poll of the channels.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) probes: Vec<ProbeRequest>,
    /// Tasks of handshakes with new messages.
    pub(super) wakers: Vec<Waker>,
    /// There is more to do.
    pub(super) more: bool,
    /// Packets that were read.
    read: usize,
    /// Connections that were accepted, or could not be.
    accepted: usize,
}

impl ListenerChannels {
    pub(super) fn new(
        entry: ListenerEntry,
        mut publication: Publication,
        at: SocketAddr,
    ) -> Result<Self, OsError> {
        publication.set_refusal(|uid| {
            let refusal = Refusal::User { uid };
            ToClient::Close { refusal }.encode()
        });
        let watched = WatchSet::new()?;
        watched.watch(publication.epoll_fd(), LISTENER)?;
        // It is offered if the kernel knows at least the listener itself.
        let at = canonical(at);
        let works = |diag: &mut SockDiag| matches!(diag.find(at, (at.ip(), 1).into()), Ok(Some(_)));
        Ok(Self {
            entry,
            publication: Some(publication),
            watched,
            channels: HashMap::new(),
            of_others: FairShares::new(MAX_OF_OTHERS, MAX_OF_ONE),
            awaiting_hello: VecDeque::new(),
            next_channel: 0,
            recent: Vec::new(),
            cause: None,
            shortage: Shortage::default(),
            next_heartbeat: None,
            waiting: HashMap::new(),
            diag: SockDiag::open()
                .ok()
                .and_then(|mut diag| works(&mut diag).then_some(diag)),
        })
    }

    /// Readable when a client has connected or sent a message.
    pub(super) fn epoll_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
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

    /// Accepts channels and receives messages, up to a limit: see [`Collected::more`]. Costs one
    /// system call if there is nothing.
    pub(super) fn collect(&mut self) -> Collected {
        self.collect_at(Instant::now())
    }

    fn collect_at(&mut self, now: Instant) -> Collected {
        let mut collected = Collected::default();
        loop {
            let mut space = [const { MaybeUninit::uninit() }; EVENTS];
            let Ok((events, _)) =
                epoll::wait(&self.watched, &mut space, Some(&Timespec::default()))
            else {
                break;
            };
            // Channels that were not polled, or that are new, come first in the next round; those
            // with more packets come last.
            let before = self.next_channel;
            let mut has_others = events.len() == EVENTS;
            let packets = (PACKETS_A_ROUND / events.len().max(1)).min(PACKETS);
            for event in events {
                let data = event.data.u64();
                if data == LISTENER {
                    self.accept_clients(now, &mut collected);
                } else {
                    self.read(data, packets, &mut collected);
                }
            }
            has_others |= self.next_channel > before;
            collected.more |= has_others;
            if !has_others || collected.read >= MAX_PACKETS {
                break;
            }
            collected.more = false;
        }
        if collected.read + collected.accepted > 0 {
            self.end_without_hello(now, &mut collected);
        }
        collected
    }

    /// Increments the heartbeat counter of all clients, unless that was done a moment ago: clients
    /// whose connections wait to be accepted get no other information.
    pub(super) fn heartbeat(&mut self, now: Instant) {
        if self.next_heartbeat.is_some_and(|next| now < next) {
            return;
        }
        self.next_heartbeat = Some(now + HEARTBEAT_INTERVAL);
        let mailboxes = self.channels.values().filter_map(|it| it.mailbox.as_ref());
        mailboxes.for_each(Mailbox::heartbeat);
    }

    /// Notifies a client of a change of its slot, if it has requested that.
    pub(super) fn notify(&self, channel: u64, slot: &Slot) {
        if slot.needs_wake(Direction::FromListener) {
            let slot = u64::from(slot.number());
            self.send(channel, ToClient::Notify { slot });
        }
    }

    /// Sets the waker for notifications of a slot; `None` removes it.
    pub(super) fn wait(&mut self, channel: u64, slot: u32, waker: Option<Waker>) {
        let key = (channel, slot);
        match waker {
            Some(waker) => drop(self.waiting.insert(key, waker)),
            None => drop(self.waiting.remove(&key)),
        }
    }

    /// Sends a message to a client, if its channel is open and has space.
    pub(super) fn send(&self, channel: u64, message: ToClient) {
        if let Some(channel) = self.channels.get(&channel) {
            // Not needed by a client that is behind.
            let _ = send(&channel.fd, &message.encode(), &[]);
        }
    }

    /// A probe has ended.
    pub(super) fn end_probe(&mut self, probe: &ProbeRequest, from: Option<IpAddr>, now: Instant) {
        let Some(channel) = self.channels.get_mut(&probe.channel) else {
            return;
        };
        channel.probes = channel.probes.saturating_sub(1);
        let answer = match (&mut channel.netns, from) {
            (ClientNetns::Other(proven), Some(from)) => {
                proven.retain(|_, (_, until)| *until > now);
                if proven.len() < MAX_PROVEN {
                    proven.insert(probe.to, (from, now + PROBE_LIFETIME));
                }
                ToClient::Proven { id: probe.id, from }
            }
            _ => ToClient::Refused { id: probe.id },
        };
        self.send(probe.channel, answer);
    }

    /// Ends all channels; returns the tasks to be woken.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        self.publication = None;
        for (_, channel) in self.channels.drain() {
            channel.has_ended.store(true, Ordering::Release);
            channel.mailbox.iter().for_each(Mailbox::close);
        }
        self.of_others = FairShares::new(MAX_OF_OTHERS, MAX_OF_ONE);
        self.awaiting_hello.clear();
        self.recent.clear();
        self.waiting.drain().map(|(_, waker)| waker).collect()
    }

    /// Accepts new channels.
    fn accept_clients(&mut self, now: Instant, collected: &mut Collected) {
        if let Some(publication) = &mut self.publication {
            publication.handle_events();
        }
        while collected.accepted < MAX_ACCEPTS {
            collected.accepted += 1;
            let Some(publication) = &mut self.publication else {
                return;
            };
            let fd = match publication.accept() {
                Ok(fd) => fd,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    let error = OsError::new("accept a client's channel", &error.into());
                    if !self.shortage.record(&error) {
                        return;
                    }
                    continue;
                }
            };
            let Ok(client) = Credentials::of_peer(&fd) else {
                continue;
            };
            let uid = client.uid;
            let own = is_own_user(uid);
            let permit = (!own).then(|| descriptors::take(uid, 1)).transpose();
            let (true, Ok(permit)) = (self.has_capacity(uid), permit) else {
                // Its connections are plain TCP, whether it reads this or not.
                let refusal = Refusal::Full;
                let _ = send(&fd, &ToClient::Close { refusal }.encode(), &[]);
                continue;
            };
            let key = self.next_channel;
            self.next_channel += 1;
            let fd = Arc::new(fd);
            if self.watched.watch(&fd, key).is_err() {
                // It may have waited.
                break;
            }
            let channel = ListenerChannel {
                fd,
                client,
                own,
                _permit: permit,
                netns: ClientNetns::Unknown,
                mailbox: None,
                probes: 0,
                has_ended: Arc::default(),
            };
            if !channel.own {
                self.of_others.take(uid);
            }
            self.channels.insert(key, channel);
            self.awaiting_hello.push_back((key, now + HELLO_WITHIN));
        }
        // There may be others.
        collected.more = true;
    }

    /// Whether this listener has capacity for a client of this user. Other users cannot exhaust the
    /// channels of the listener's user, nor of each other.
    fn has_capacity(&self, uid: u32) -> bool {
        self.channels.len() < MAX_CHANNELS
            && (is_own_user(uid) || self.of_others.has_capacity(&uid))
    }

    /// Ends channels on which HELLO has not come in time.
    fn end_without_hello(&mut self, now: Instant, collected: &mut Collected) {
        while let Some((key, until)) = self.awaiting_hello.front().copied() {
            let channel = self.channels.get(&key);
            let is_silent = channel.is_some_and(|it| matches!(it.netns, ClientNetns::Unknown));
            if is_silent && until > now {
                if let Some(publication) = &self.publication {
                    publication.wake_after(until - now);
                }
                return;
            }
            self.awaiting_hello.pop_front();
            if is_silent {
                self.end(key, collected);
            }
        }
    }

    /// Receives packets of a channel, up to this number.
    fn read(&mut self, key: u64, packets: usize, collected: &mut Collected) {
        let mut buf = [0; MAX_LEN];
        for count in 0..packets {
            // Invalid packets and ends of channels count as well: each event uses up the limit.
            collected.read += 1;
            let Some(channel) = self.channels.get(&key) else {
                return;
            };
            match receive(&channel.fd, &mut buf, 1) {
                Received::Packet(packet, passed) => {
                    let message = ToListener::parse(packet);
                    if message
                        .and_then(|m| self.handle(key, m, passed, collected))
                        .is_none()
                    {
                        return self.end(key, collected);
                    }
                }
                Received::Nothing if count < MANY => return,
                Received::Nothing => return self.wake_all(key, collected),
                Received::Closed | Received::Invalid => return self.end(key, collected),
            }
        }
        self.wake_all(key, collected);
        collected.more = true;
    }

    /// Wakes all handshakes of a client.
    fn wake_all(&mut self, key: u64, collected: &mut Collected) {
        let waiting = self.waiting.extract_if(|(channel, _), _| *channel == key);
        collected.wakers.extend(waiting.map(|(_, waker)| waker));
    }

    /// `None` if the client broke the rules.
    fn handle(
        &mut self,
        key: u64,
        message: ToListener,
        passed: Vec<Passed>,
        collected: &mut Collected,
    ) -> Option<()> {
        let channel = self.channels.get_mut(&key)?;
        match (message, &channel.netns) {
            (ToListener::Hello { netns }, ClientNetns::Unknown) => {
                let Some(Passed::File(file)) = passed.into_iter().next() else {
                    // This process had no descriptor left.
                    let refusal = Refusal::Descriptors;
                    self.send(key, ToClient::Close { refusal });
                    return None;
                };
                let Ok(permit) = mappings::take(channel.client.uid) else {
                    let refusal = Refusal::Full;
                    self.send(key, ToClient::Close { refusal });
                    return None;
                };
                let mailbox = Mailbox::adopt(file.as_fd(), permit).ok()?;
                channel.mailbox = Some(match channel.own {
                    true => mailbox,
                    false => mailbox.shared_with(channel.client.uid),
                });
                channel.netns = match netns == self.entry.netns {
                    true => ClientNetns::Same,
                    false if channel.own => ClientNetns::Other(HashMap::new()),
                    false => return None,
                };
                self.recent.push(key);
            }
            (ToListener::Hello { .. }, _) | (_, ClientNetns::Unknown) => return None,
            (ToListener::Notify { slot }, _) => {
                let slot = u32::try_from(slot).ok()?;
                collected.wakers.extend(self.waiting.remove(&(key, slot)));
            }
            (ToListener::Prove { id, nonce, to }, ClientNetns::Other(_)) => {
                if self.entry.scope.covers(to) && channel.probes < MAX_PROBES {
                    channel.probes += 1;
                    collected.probes.push(ProbeRequest {
                        channel: key,
                        id,
                        nonce,
                        to,
                    });
                } else {
                    self.send(key, ToClient::Refused { id });
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
        // It can outlive this: unread packets are closed on another thread.
        self.watched.unwatch(&channel.fd);
        channel.has_ended.store(true, Ordering::Release);
        if !channel.own {
            self.of_others.release(&channel.client.uid);
        }
        self.recent.retain(|recent| *recent != key);
        self.wake_all(key, collected);
    }
}

/// Not the number of a channel.
const LISTENER: u64 = u64::MAX;

/// Channels with events that are polled together.
const EVENTS: usize = 64;

/// Packets of a channel that are read together. After so many all its handshakes are woken.
const PACKETS: usize = 2 * MANY;

/// Packets of all channels that are polled together: at least two of each.
const PACKETS_A_ROUND: usize = 2 * EVENTS;

/// Packets that are read in one call, after which no channels are polled any more: about a
/// millisecond of work. All channels that other users can have together do not send more before
/// each was polled.
const MAX_PACKETS: usize = 2 * MAX_OF_OTHERS;

/// Connections that are accepted in one call, each at the cost of about ten packets.
const MAX_ACCEPTS: usize = 32;

/// Clients of a listener. Those of other users take up descriptors of the process as well
/// ([`descriptors`]), and can be fewer for that.
const MAX_CHANNELS: usize = 1024;

/// Clients of other users than the listener's, and of one of them.
const MAX_OF_OTHERS: usize = MAX_CHANNELS / 2;
const MAX_OF_ONE: usize = MAX_CHANNELS / 4;

/// Time limit for HELLO, which a client sends in the call in which it connects.
const HELLO_WITHIN: Duration = Duration::from_secs(1);

/// Interval of the heartbeat while the listener works. Much shorter than the answer timeout of
/// clients.
pub(super) const HEARTBEAT_INTERVAL: Duration = Duration::from_millis(20);

/// Concurrent probes of one client.
const MAX_PROBES: u32 = 4;

/// Proven addresses of one client.
const MAX_PROVEN: usize = 64;

/// How long a probe is valid, longer than clients use it.
const PROBE_LIFETIME: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests;
