//! The memory in which a client announces its connections to one listener.
//!
//! The client makes the mailbox and passes it with HELLO. Each connection has one *slot* of the
//! mailbox. The index finds the slot by the client's port:
//!
//! ```text
//! 0x00000  index   8192 words: port << 32 | number of the slot + 1, at one of eight positions from
//!          port
//! 0x10000  slots, 2 KiB each:
//!    +0    state             generation << 8 | state; the client offers, the listener takes
//!    +8    listener waits    listener: 1 before it waits; client: 0 when it notifies
//!    +16   client written    bytes that the client has written; the top bit: no more will come
//!    +24   early             length of the expected ACCEPT | that of the early CONFIRM << 8, or 0
//!    +64   client waits      client: 1 before it waits; listener: 0 when it notifies
//!    +72   listener written  bytes that the listener has written; the top bit: no more will come
//!    +80   refusal           why the listener refused the offer, or 0
//!    +128  cookie of the client's socket, client address 24, server address 24
//!    +192  the client's messages, 1088 bytes
//!    +1280 the ACCEPT that the client expects, 128 bytes, and its CONFIRM in that case, 128 bytes
//!    +1536 the listener's, 512 bytes
//! 0x210000 closed     1 if the listener takes no more offers
//! 0x210008 heartbeat  the listener increments it while it works on any connection
//! ```
//!
//! The state of a slot:
//!
//! ```text
//!              listener accepts           listener answers
//!   OFFERED --------------------> CLAIMED ----------------> TAKEN
//!      |                             |
//!      | client or listener          | client
//!      v                             v
//!  CANCELLED                     WITHDRAWN
//! ```
//!
//! Each transition is one compare-and-exchange, and only one transition can end an offer: the
//! listener takes it after the bytes of its answer are in the slot, or the client withdraws it, or
//! the listener refuses it. A withdrawal needs no action of the listener. A listener that is busy
//! or stopped, before it accepts or before it answers, therefore does not block a client.
//!
//! Either side can write any bytes anywhere. Each side uses only copies, within bounds that it
//! knows by itself. A side that writes wrong bytes affects its own connections only. A slot is
//! reused for the next connection only after the listener has closed its direction.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use smc_core::error::Refusal;
use smc_core::mem::sync::{AtomicU64, Ordering};
use smc_core::mem::{MemoryError, Region, WakeFlag};

use crate::early::EarlyConfirm;

/// The mailbox of one channel, as mapped by either side.
#[derive(Clone, Debug)]
pub(super) struct Mailbox(Region);

/// A connection that is announced, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    /// `SO_COOKIE` of the client's socket, if the listener wants to compare it; else 0.
    pub(super) cookie: u64,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
}

impl Mailbox {
    /// A new mailbox, and the file to be passed.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let (region, file) = Region::shared("smc-mailbox", LEN)?;
        Ok((Self(region), file))
    }

    /// A mailbox that a client has passed.
    pub(super) fn adopt(file: BorrowedFd<'_>) -> Result<Self, MemoryError> {
        Region::adopt(file, LEN).map(Self)
    }

    /// The slot of this number; `None` from [`SLOTS`] on.
    pub(super) fn slot(&self, number: u32) -> Option<Slot> {
        if number >= SLOTS {
            return None;
        }
        let at = INDEX_LEN + number as usize * SLOT_LEN;
        let region = self.0.part(at, SLOT_LEN).ok()?;
        Some(Slot { region, number })
    }

    /// Client: adds a slot to the index under a port. False if all positions are in use.
    pub(super) fn insert(&self, port: u16, number: u32) -> bool {
        let word = entry(port, number);
        index_positions(port).any(|place| {
            let word_at = self.index(place);
            word_at.load(Ordering::Relaxed) == 0 && {
                word_at.store(word, Ordering::Release);
                true
            }
        })
    }

    /// Client: removes the slot from the index.
    pub(super) fn remove(&self, port: u16, number: u32) {
        let word = entry(port, number);
        for place in index_positions(port) {
            let word_at = self.index(place);
            if word_at.load(Ordering::Relaxed) == word {
                word_at.store(0, Ordering::Release);
            }
        }
    }

    /// Listener: the slots in the index under a port, from this position of the index on, each with
    /// the position behind it.
    pub(super) fn find_from(&self, port: u16, from: u32) -> impl Iterator<Item = (u32, Slot)> {
        (from..PROBES).filter_map(move |probe| {
            let word = self
                .index(index_position(port, probe))
                .load(Ordering::Acquire);
            let number = u32::try_from(word & 0xffff_ffff).ok()?.checked_sub(1)?;
            let slot = (word >> 32 == u64::from(port)).then(|| self.slot(number))?;
            Some((probe + 1, slot?))
        })
    }

    /// Listener: no offer will be taken any more.
    pub(super) fn close(&self) {
        self.closed().store(1, Ordering::Release);
    }

    /// Whether the listener takes no more offers.
    pub(super) fn is_closed(&self) -> bool {
        self.closed().load(Ordering::Acquire) != 0
    }

    /// Listener: increments the heartbeat counter.
    pub(super) fn heartbeat(&self) {
        self.heartbeat_word().fetch_add(1, Ordering::Relaxed);
    }

    /// The heartbeat counter of the listener.
    pub(super) fn heartbeats(&self) -> u64 {
        self.heartbeat_word().load(Ordering::Relaxed)
    }

    fn heartbeat_word(&self) -> &AtomicU64 {
        let word = self.0.word(HEARTBEAT);
        word.expect("mailboxes have one length")
    }

    fn closed(&self) -> &AtomicU64 {
        let word = self.0.word(CLOSED);
        word.expect("mailboxes have one length")
    }

    fn index(&self, place: usize) -> &AtomicU64 {
        let word = self.0.word(place * 8);
        word.expect("places are within the index, and mailboxes have one length")
    }
}

/// One connection's part of a mailbox.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    region: Region,
    number: u32,
}

/// The state of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Offered,
    /// The listener has accepted the connection and works on its answer.
    Claimed,
    /// The listener has answered.
    Taken,
    /// Refused by the listener, or withdrawn before the listener accepted.
    Cancelled,
    /// Withdrawn by the client while the listener worked on its answer.
    Withdrawn,
}

/// The generation of a slot: one for each connection that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Generation(u64);

/// The side that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    FromClient,
    FromListener,
}

impl Slot {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Client: makes an offer, with its first message and perhaps an early CONFIRM.
    pub(super) fn offer(
        &self,
        announcement: Announcement,
        message: &[u8],
        early: Option<&EarlyConfirm>,
    ) -> Option<Generation> {
        let generation = Generation(
            (self.word(STATE).load(Ordering::Relaxed) >> 8).wrapping_add(1) & GENERATION_MASK,
        );
        for at in [
            LISTENER_WAITS,
            CLIENT_WRITTEN,
            CLIENT_WAITS,
            LISTENER_WRITTEN,
            REFUSAL,
        ] {
            self.word(at).store(0, Ordering::Relaxed);
        }
        let cookie = announcement.cookie.to_ne_bytes();
        self.region.copy_in(COOKIE, &cookie).ok()?;
        let from = encode(announcement.from);
        self.region.copy_in(FROM, &from).ok()?;
        let to = encode(announcement.to);
        self.region.copy_in(TO, &to).ok()?;
        self.write(Direction::FromClient, message).ok()?;
        self.write_early(early)?;
        self.word(STATE)
            .store(generation.word(OFFERED), Ordering::Release);
        Some(generation)
    }

    fn write_early(&self, early: Option<&EarlyConfirm>) -> Option<()> {
        let lengths = match early {
            Some(early) => {
                for (at, message) in [
                    (EXPECTED_ACCEPT, &early.accept),
                    (EARLY_CONFIRM, &early.confirm),
                ] {
                    if message.len() > EARLY_MAX {
                        return None;
                    }
                    self.region.copy_in(at, message).ok()?;
                }
                early.accept.len() | early.confirm.len() << 8
            }
            None => 0,
        };
        self.word(EARLY_LEN)
            .store(lengths as u64, Ordering::Relaxed);
        Some(())
    }

    /// Listener: the early CONFIRM of the client, if there is one.
    pub(super) fn early(&self) -> Option<EarlyConfirm> {
        let lengths = self.word(EARLY_LEN).load(Ordering::Relaxed);
        let read = |at, len: u64| {
            let mut message = vec![0; usize::try_from(len & 0xff).ok()?.min(EARLY_MAX)];
            self.region.copy_out(at, &mut message).ok()?;
            Some(message)
        };
        (lengths != 0).then_some(EarlyConfirm {
            accept: read(EXPECTED_ACCEPT, lengths)?,
            confirm: read(EARLY_CONFIRM, lengths >> 8)?,
        })
    }

    /// The current offer and its generation.
    pub(super) fn offered(&self) -> Option<(Generation, Announcement)> {
        let state = self.word(STATE).load(Ordering::Acquire);
        if state & 0xff != OFFERED {
            return None;
        }
        let (mut cookie, mut from, mut to) = ([0; 8], [0; ADDR_LEN], [0; ADDR_LEN]);
        self.region.copy_out(COOKIE, &mut cookie).ok()?;
        self.region.copy_out(FROM, &mut from).ok()?;
        self.region.copy_out(TO, &mut to).ok()?;
        let announcement = Announcement {
            cookie: u64::from_ne_bytes(cookie),
            from: decode(&from)?,
            to: decode(&to)?,
        };
        Some((Generation(state >> 8), announcement))
    }

    /// Listener: claims the offer of a connection that it has accepted; false if it was withdrawn.
    pub(super) fn claim(&self, generation: Generation) -> bool {
        self.transition(generation, OFFERED, CLAIMED)
    }

    /// Listener: takes an offer that it has claimed, after its answer was [written](Self::write).
    /// False if the client has withdrawn it.
    pub(super) fn take(&self, generation: Generation) -> bool {
        self.transition(generation, CLAIMED, TAKEN)
    }

    /// Listener: refuses an offer that was not claimed; false if it was withdrawn.
    pub(super) fn refuse(&self, generation: Generation, why: Refusal) -> bool {
        let why = match why {
            Refusal::Policy => REFUSED_BY_POLICY,
            Refusal::Identity => REFUSED_IDENTITY,
            Refusal::Full => REFUSED_FULL,
            _ => 0,
        };
        self.word(REFUSAL).store(why, Ordering::Relaxed);
        self.transition(generation, OFFERED, CANCELLED)
    }

    /// Client: why the listener has refused the offer.
    pub(super) fn refusal(&self) -> Refusal {
        match self.word(REFUSAL).load(Ordering::Relaxed) {
            REFUSED_BY_POLICY => Refusal::Policy,
            REFUSED_IDENTITY => Refusal::Identity,
            REFUSED_FULL => Refusal::Full,
            _ => Refusal::Unknown,
        }
    }

    /// Client: withdraws its offer; false after the listener has answered or refused.
    pub(super) fn withdraw(&self, generation: Generation) -> bool {
        self.transition(generation, OFFERED, CANCELLED)
            || self.transition(generation, CLAIMED, WITHDRAWN)
    }

    fn transition(&self, generation: Generation, from: u64, to: u64) -> bool {
        let state = self.word(STATE);
        let (from, to) = (generation.word(from), generation.word(to));
        state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The state of the offer of this generation.
    pub(super) fn state(&self, generation: Generation) -> State {
        match self.word(STATE).load(Ordering::Acquire) {
            state if state == generation.word(OFFERED) => State::Offered,
            state if state == generation.word(CLAIMED) => State::Claimed,
            state if state == generation.word(TAKEN) => State::Taken,
            state if state == generation.word(WITHDRAWN) => State::Withdrawn,
            _ => State::Cancelled,
        }
    }

    /// Adds a message for the other side. [`Self::needs_wake`] has to follow.
    pub(super) fn write(&self, direction: Direction, message: &[u8]) -> io::Result<()> {
        let (written, start, capacity) = direction.layout();
        let before = self.word(written).load(Ordering::Relaxed);
        let at = usize::try_from(before).unwrap_or(capacity);
        if at.saturating_add(message.len()) > capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let copied = self.region.copy_in(start + at, message);
        copied.map_err(|_| io::ErrorKind::StorageFull)?;
        let after = before + message.len() as u64;
        self.word(written).store(after, Ordering::Release);
        Ok(())
    }

    /// Ends this direction.
    pub(super) fn close(&self, direction: Direction) {
        let (written, ..) = direction.layout();
        self.word(written).fetch_or(END, Ordering::SeqCst);
    }

    /// Whether this direction was ended.
    pub(super) fn is_closed(&self, direction: Direction) -> bool {
        let (written, ..) = direction.layout();
        self.word(written).load(Ordering::Acquire) & END != 0
    }

    /// Copies what a side has written from byte `at` on: `None` if there is nothing, 0 if the
    /// direction was closed.
    pub(super) fn read(&self, direction: Direction, at: usize, buf: &mut [u8]) -> Option<usize> {
        let (written, start, capacity) = direction.layout();
        let word = self.word(written).load(Ordering::Acquire);
        let there = usize::try_from(word & !END)
            .unwrap_or(capacity)
            .min(capacity);
        let count = there.saturating_sub(at).min(buf.len());
        if count == 0 {
            return (word & END != 0).then_some(0);
        }
        let part = buf.get_mut(..count)?;
        self.region.copy_out(start + at, part).ok()?;
        Some(count)
    }

    /// Requests a notification when the other side writes. A read has to follow.
    pub(super) fn request_wake(&self, direction: Direction) {
        self.wake_flag(direction).arm();
    }

    /// After a write or close of this side: whether the other side has requested a notification.
    pub(super) fn needs_wake(&self, direction: Direction) -> bool {
        self.wake_flag(direction).must_wake()
    }

    fn wake_flag(&self, direction: Direction) -> WakeFlag<'_> {
        WakeFlag::new(self.word(direction.wake_word()))
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        let word = self.region.word(at);
        word.expect("words are within a slot, and slots have one length")
    }
}

impl Generation {
    fn word(self, what: u64) -> u64 {
        self.0 << 8 | what
    }
}

impl Direction {
    /// The word that counts the bytes of this side, the offset of these bytes, and their limit.
    fn layout(self) -> (usize, usize, usize) {
        match self {
            Self::FromClient => (CLIENT_WRITTEN, CLIENT_DATA, EXPECTED_ACCEPT - CLIENT_DATA),
            Self::FromListener => (LISTENER_WRITTEN, LISTENER_DATA, MAX_ANSWER),
        }
    }

    /// The word in which the other side requests a notification of a write of this side.
    fn wake_word(self) -> usize {
        match self {
            Self::FromClient => LISTENER_WAITS,
            Self::FromListener => CLIENT_WAITS,
        }
    }
}

fn entry(port: u16, number: u32) -> u64 {
    u64::from(port) << 32 | u64::from(number + 1)
}

fn index_positions(port: u16) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |probe| index_position(port, probe))
}

fn index_position(port: u16, probe: u32) -> usize {
    (usize::from(port) + probe as usize) % INDEX
}

/// 4 or 6, then the port, then the address.
fn encode(addr: SocketAddr) -> [u8; ADDR_LEN] {
    let (family, ip) = match addr.ip() {
        IpAddr::V4(ip) => (4, ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => (6, ip),
    };
    let [high, low] = addr.port().to_ne_bytes();
    let mut out = [0; ADDR_LEN];
    let bytes = [family, 0, high, low].into_iter().chain(ip.octets());
    out.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
    out
}

fn decode(bytes: &[u8; ADDR_LEN]) -> Option<SocketAddr> {
    let [family, 0, port @ ..] = bytes else {
        return None;
    };
    let (port, rest) = port.split_first_chunk::<2>()?;
    let (ip, _) = rest.split_first_chunk::<16>()?;
    let ip = Ipv6Addr::from(*ip);
    let ip = match family {
        4 => IpAddr::V4(Ipv4Addr::from_bits(ip.to_ipv4_mapped()?.to_bits())),
        6 => IpAddr::V6(ip),
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_ne_bytes(*port)))
}

/// Slots of a mailbox: pending connections of a client with one listener.
pub(super) const SLOTS: u32 = 1024;

/// Longest first message of a client.
pub(super) const MAX_PROPOSAL: usize = 832;

const INDEX: usize = 8192;
const INDEX_LEN: usize = INDEX * 8;
/// Positions of the index that are read for a port.
pub(super) const PROBES: u32 = 8;

const SLOT_LEN: usize = 2048;
const STATE: usize = 0;
const LISTENER_WAITS: usize = 8;
const CLIENT_WRITTEN: usize = 16;
const EARLY_LEN: usize = 24;
const CLIENT_WAITS: usize = 64;
const LISTENER_WRITTEN: usize = 72;
const REFUSAL: usize = 80;
const COOKIE: usize = 128;
const FROM: usize = 136;
const TO: usize = 160;
const ADDR_LEN: usize = 24;
const CLIENT_DATA: usize = 192;
const EXPECTED_ACCEPT: usize = 1280;
const EARLY_CONFIRM: usize = EXPECTED_ACCEPT + EARLY_MAX;
/// Longest early CONFIRM, and longest expected ACCEPT.
pub(super) const EARLY_MAX: usize = 128;
const LISTENER_DATA: usize = 1536;
/// Longest first message of a listener.
pub(super) const MAX_ANSWER: usize = SLOT_LEN - LISTENER_DATA;

const CLOSED: usize = INDEX_LEN + SLOTS as usize * SLOT_LEN;
const HEARTBEAT: usize = CLOSED + 8;
const LEN: usize = CLOSED + 64;

/// States of a slot; 0 is that of a slot that was never used.
const OFFERED: u64 = 1;
const TAKEN: u64 = 2;
const CANCELLED: u64 = 3;
const CLAIMED: u64 = 4;
const WITHDRAWN: u64 = 5;

/// Codes of a refusal; 0 is without a reason.
const REFUSED_BY_POLICY: u64 = 1;
const REFUSED_IDENTITY: u64 = 2;
const REFUSED_FULL: u64 = 3;

/// The generation is in the upper seven bytes.
const GENERATION_MASK: u64 = u64::MAX >> 8;

/// No more will come.
const END: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    impl Mailbox {
        fn find(&self, port: u16) -> impl Iterator<Item = Slot> {
            self.find_from(port, 0).map(|(_, slot)| slot)
        }
    }

    fn pair() -> (Mailbox, Mailbox) {
        use std::os::fd::AsFd as _;
        let (client, file) = Mailbox::create().unwrap();
        (client, Mailbox::adopt(file.as_fd()).unwrap())
    }

    fn announcement() -> Announcement {
        Announcement {
            cookie: 7,
            from: "127.0.0.1:40000".parse().unwrap(),
            to: "[fd00::1]:80".parse().unwrap(),
        }
    }

    #[test]
    fn an_offer_is_found_by_its_port_and_taken_once() {
        let (client, listener) = pair();
        let slot = client.slot(3).unwrap();
        let generation = slot.offer(announcement(), b"proposal", None).unwrap();
        assert!(client.insert(40_000, 3));
        assert_eq!(listener.find(40_001).count(), 0);
        let found = listener.find(40_000).next().unwrap();
        assert_eq!(found.offered(), Some((generation, announcement())));
        assert!(found.claim(generation));
        assert!(!found.claim(generation) && !found.refuse(generation, Refusal::Policy));
        assert_eq!(slot.state(generation), State::Claimed);
        assert!(found.take(generation));
        assert!(!found.take(generation) && !slot.withdraw(generation));
        assert_eq!(slot.state(generation), State::Taken);
        let mut buf = [0; 64];
        assert_eq!(found.read(Direction::FromClient, 0, &mut buf), Some(8));
        assert_eq!(&buf[..8], b"proposal");
        client.remove(40_000, 3);
        assert_eq!(listener.find(40_000).count(), 0);
    }

    #[test]
    fn an_offer_that_was_withdrawn_cannot_be_taken() {
        let (client, listener) = pair();
        let slot = client.slot(0).unwrap();
        let generation = slot.offer(announcement(), b"", None).unwrap();
        assert!(slot.withdraw(generation) && !slot.withdraw(generation));
        let found = listener.slot(0).unwrap();
        assert!(found.offered().is_none() && !found.claim(generation));
        let next = slot.offer(announcement(), b"", None).unwrap();
        assert!(!found.claim(generation), "the generation before");
        assert!(found.claim(next));
        assert_eq!(found.state(generation), State::Cancelled);
    }

    #[test]
    fn an_offer_can_be_withdrawn_until_it_is_answered() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.slot(0).unwrap(), listener.slot(0).unwrap());
        let generation = ours.offer(announcement(), b"", None).unwrap();
        assert!(theirs.claim(generation));
        assert!(ours.withdraw(generation));
        assert!(!theirs.take(generation), "the answer comes too late");
        assert_eq!(ours.state(generation), State::Withdrawn);
    }

    #[test]
    fn a_refusal_has_its_reason_once() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.slot(0).unwrap(), listener.slot(0).unwrap());
        let generation = ours.offer(announcement(), b"", None).unwrap();
        assert!(theirs.refuse(generation, Refusal::Policy));
        assert_eq!(
            (ours.state(generation), ours.refusal()),
            (State::Cancelled, Refusal::Policy)
        );
        ours.offer(announcement(), b"", None).unwrap();
        assert_eq!(ours.refusal(), Refusal::Unknown);
    }

    #[test]
    fn messages_follow_each_other_and_end() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.slot(1).unwrap(), listener.slot(1).unwrap());
        ours.offer(announcement(), b"one", None).unwrap();
        let mut buf = [0; 2];
        assert_eq!(theirs.read(Direction::FromClient, 0, &mut buf), Some(2));
        assert_eq!(theirs.read(Direction::FromClient, 2, &mut buf), Some(1));
        assert_eq!(theirs.read(Direction::FromClient, 3, &mut buf), None);
        theirs.request_wake(Direction::FromClient);
        ours.write(Direction::FromClient, b"two").unwrap();
        assert!(ours.needs_wake(Direction::FromClient) && !ours.needs_wake(Direction::FromClient));
        ours.close(Direction::FromClient);
        assert_eq!(theirs.read(Direction::FromClient, 3, &mut buf), Some(2));
        assert_eq!(theirs.read(Direction::FromClient, 5, &mut buf), Some(1));
        assert_eq!(theirs.read(Direction::FromClient, 6, &mut buf), Some(0));
        assert!(ours.write(Direction::FromListener, &[0; 4096]).is_err());
    }

    #[test]
    fn an_early_confirm_has_one_generation_and_a_limited_length() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.slot(2).unwrap(), listener.slot(2).unwrap());
        let early = EarlyConfirm {
            accept: vec![1; 78],
            confirm: vec![2; EARLY_MAX],
        };
        ours.offer(announcement(), b"", Some(&early)).unwrap();
        assert_eq!(theirs.early(), Some(early.clone()));
        ours.offer(announcement(), b"", None).unwrap();
        assert_eq!(theirs.early(), None);
        let long = EarlyConfirm {
            accept: vec![1; EARLY_MAX + 1],
            ..early
        };
        assert!(ours.offer(announcement(), b"", Some(&long)).is_none());
        // Whatever the client writes there later.
        ours.word(EARLY_LEN).store(u64::MAX, Ordering::Relaxed);
        assert!(theirs.early().unwrap().confirm.len() <= EARLY_MAX);
    }

    #[test]
    fn arbitrary_content_is_tolerated() {
        let (client, listener) = pair();
        let slot = client.slot(9).unwrap();
        let generation = slot.offer(announcement(), b"abc", None).unwrap();
        let found = listener.slot(9).unwrap();
        slot.word(CLIENT_WRITTEN)
            .store(u64::MAX >> 2, Ordering::Relaxed);
        let mut buf = [0; 4096];
        assert_eq!(
            found.read(Direction::FromClient, 0, &mut buf),
            Some(EXPECTED_ACCEPT - CLIENT_DATA)
        );
        assert!(found.write(Direction::FromClient, b"x").is_err());
        slot.region.copy_in(FROM, &[9; ADDR_LEN]).unwrap();
        assert_eq!(found.offered(), None);
        assert!(found.claim(generation));
        client.index(50).store(u64::MAX, Ordering::Relaxed);
        client.index(51).store(50 << 32 | 5000, Ordering::Relaxed);
        client.index(52).store(50 << 32, Ordering::Relaxed);
        assert_eq!(listener.find(50).count(), 0);
    }

    #[test]
    fn a_full_index_refuses_a_slot() {
        let (client, _) = pair();
        assert!((0..8).all(|number| client.insert(100, number)));
        assert!(!client.insert(100, 8));
        client.remove(100, 4);
        assert!(client.insert(100, 8));
    }
}
