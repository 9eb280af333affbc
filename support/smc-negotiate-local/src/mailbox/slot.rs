//! A slot of a mailbox: the offer of one connection, and the messages about it.
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

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use smc_core::error::Refusal;
use smc_core::mem::sync::{AtomicU64, Ordering};
use smc_core::mem::{Region, WakeFlag};

use crate::early::EarlyConfirm;

/// One connection's part of a mailbox.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(super) region: Region,
    pub(super) number: u32,
}

/// A connection that is announced, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Announcement {
    /// `SO_COOKIE` of the client's socket, if the listener wants to compare it; else 0.
    pub(crate) cookie: u64,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
}

/// The state of an offer; 0 is that of a slot that was never used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferState {
    Offered = 1,
    /// The listener has answered.
    Taken = 2,
    /// Refused by the listener, or withdrawn before the listener accepted.
    Cancelled = 3,
    /// The listener has accepted the connection and works on its answer.
    Claimed = 4,
    /// Withdrawn by the client while the listener worked on its answer.
    Withdrawn = 5,
}

/// The generation of a slot: one for each connection that uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// The side that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    FromClient,
    FromListener,
}

impl Slot {
    pub(crate) fn number(&self) -> u32 {
        self.number
    }

    /// Client: makes an offer, with its first message and perhaps an early CONFIRM.
    pub(crate) fn offer(
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
            .store(generation.word(OfferState::Offered), Ordering::Release);
        Some(generation)
    }

    fn write_early(&self, early: Option<&EarlyConfirm>) -> Option<()> {
        let lengths = match early {
            Some(early) => {
                for (at, message) in [
                    (EXPECTED_ACCEPT, &early.accept),
                    (EARLY_CONFIRM, &early.confirm),
                ] {
                    if message.len() > MAX_EARLY {
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
    pub(crate) fn early(&self) -> Option<EarlyConfirm> {
        let lengths = self.word(EARLY_LEN).load(Ordering::Relaxed);
        let read = |at, len: u64| {
            let mut message = vec![0; usize::try_from(len & 0xff).ok()?.min(MAX_EARLY)];
            self.region.copy_out(at, &mut message).ok()?;
            Some(message)
        };
        (lengths != 0).then_some(EarlyConfirm {
            accept: read(EXPECTED_ACCEPT, lengths)?,
            confirm: read(EARLY_CONFIRM, lengths >> 8)?,
        })
    }

    /// The current offer and its generation.
    pub(crate) fn offered(&self) -> Option<(Generation, Announcement)> {
        let state = self.word(STATE).load(Ordering::Acquire);
        if state & 0xff != OfferState::Offered as u64 {
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
    pub(crate) fn claim(&self, generation: Generation) -> bool {
        self.transition(generation, OfferState::Offered, OfferState::Claimed)
    }

    /// Listener: takes an offer that it has claimed, after its answer was [written](Self::write).
    /// False if the client has withdrawn it.
    pub(crate) fn take(&self, generation: Generation) -> bool {
        self.transition(generation, OfferState::Claimed, OfferState::Taken)
    }

    /// Listener: refuses an offer that was not claimed; false if it was withdrawn.
    pub(crate) fn refuse(&self, generation: Generation, why: Refusal) -> bool {
        let why = match why {
            Refusal::Policy => REFUSED_BY_POLICY,
            Refusal::Identity => REFUSED_IDENTITY,
            Refusal::Full => REFUSED_FULL,
            _ => 0,
        };
        self.word(REFUSAL).store(why, Ordering::Relaxed);
        self.transition(generation, OfferState::Offered, OfferState::Cancelled)
    }

    /// Client: why the listener has refused the offer.
    pub(crate) fn refusal(&self) -> Refusal {
        match self.word(REFUSAL).load(Ordering::Relaxed) {
            REFUSED_BY_POLICY => Refusal::Policy,
            REFUSED_IDENTITY => Refusal::Identity,
            REFUSED_FULL => Refusal::Full,
            _ => Refusal::Unknown,
        }
    }

    /// Client: withdraws its offer; false after the listener has answered or refused.
    pub(crate) fn withdraw(&self, generation: Generation) -> bool {
        self.transition(generation, OfferState::Offered, OfferState::Cancelled)
            || self.transition(generation, OfferState::Claimed, OfferState::Withdrawn)
    }

    fn transition(&self, generation: Generation, from: OfferState, to: OfferState) -> bool {
        let state = self.word(STATE);
        let (from, to) = (generation.word(from), generation.word(to));
        state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// The state of the offer of this generation.
    pub(crate) fn state(&self, generation: Generation) -> OfferState {
        use OfferState::*;
        let word = self.word(STATE).load(Ordering::Acquire);
        let mut states = [Offered, Claimed, Taken, Withdrawn].into_iter();
        let state = states.find(|state| word == generation.word(*state));
        state.unwrap_or(Cancelled)
    }

    /// Adds a message for the other side. [`Self::needs_wake`] has to follow.
    pub(crate) fn write(&self, direction: Direction, message: &[u8]) -> io::Result<()> {
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
    pub(crate) fn close(&self, direction: Direction) {
        let (written, ..) = direction.layout();
        self.word(written).fetch_or(END, Ordering::SeqCst);
    }

    /// Whether this direction was closed.
    pub(crate) fn is_closed(&self, direction: Direction) -> bool {
        let (written, ..) = direction.layout();
        self.word(written).load(Ordering::Acquire) & END != 0
    }

    /// Copies what a side has written from byte `at` on: `None` if there is nothing, 0 if the
    /// direction was closed.
    pub(crate) fn read(&self, direction: Direction, at: usize, buf: &mut [u8]) -> Option<usize> {
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
    pub(crate) fn request_wake(&self, direction: Direction) {
        self.wake_flag(direction).arm();
    }

    /// After a write or close of this side: whether the other side has requested a notification.
    pub(crate) fn needs_wake(&self, direction: Direction) -> bool {
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
    fn word(self, state: OfferState) -> u64 {
        self.0 << 8 | state as u64
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

/// Longest first message of a client.
pub(crate) const MAX_PROPOSAL: usize = 832;

pub(super) const SLOT_LEN: usize = 2048;
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
const EARLY_CONFIRM: usize = EXPECTED_ACCEPT + MAX_EARLY;
/// Longest early CONFIRM, and longest expected ACCEPT.
pub(crate) const MAX_EARLY: usize = 128;
const LISTENER_DATA: usize = 1536;
/// Longest first message of a listener.
pub(crate) const MAX_ANSWER: usize = SLOT_LEN - LISTENER_DATA;

/// Codes of a refusal; 0 is without a reason.
const REFUSED_BY_POLICY: u64 = 1;
const REFUSED_IDENTITY: u64 = 2;
const REFUSED_FULL: u64 = 3;

/// The generation is in the upper seven bytes.
const GENERATION_MASK: u64 = u64::MAX >> 8;

/// No more will come.
const END: u64 = 1 << 63;

#[cfg(all(test, smc_loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mailbox::{Mailbox, own_permit};

    fn pair() -> (Mailbox, Mailbox) {
        use std::os::fd::AsFd as _;
        let (client, file) = Mailbox::create(own_permit()).unwrap();
        (client, Mailbox::adopt(file.as_fd(), own_permit()).unwrap())
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
        assert_eq!(slot.state(generation), OfferState::Claimed);
        assert!(found.take(generation));
        assert!(!found.take(generation) && !slot.withdraw(generation));
        assert_eq!(slot.state(generation), OfferState::Taken);
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
        assert_eq!(found.state(generation), OfferState::Cancelled);
    }

    #[test]
    fn an_offer_can_be_withdrawn_until_it_is_answered() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.slot(0).unwrap(), listener.slot(0).unwrap());
        let generation = ours.offer(announcement(), b"", None).unwrap();
        assert!(theirs.claim(generation));
        assert!(ours.withdraw(generation));
        assert!(!theirs.take(generation), "the answer comes too late");
        assert_eq!(ours.state(generation), OfferState::Withdrawn);
    }

    #[test]
    fn a_refusal_has_its_reason_once() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.slot(0).unwrap(), listener.slot(0).unwrap());
        let generation = ours.offer(announcement(), b"", None).unwrap();
        assert!(theirs.refuse(generation, Refusal::Policy));
        assert_eq!(
            (ours.state(generation), ours.refusal()),
            (OfferState::Cancelled, Refusal::Policy)
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
            confirm: vec![2; MAX_EARLY],
        };
        ours.offer(announcement(), b"", Some(&early)).unwrap();
        assert_eq!(theirs.early(), Some(early.clone()));
        ours.offer(announcement(), b"", None).unwrap();
        assert_eq!(theirs.early(), None);
        let long = EarlyConfirm {
            accept: vec![1; MAX_EARLY + 1],
            ..early
        };
        assert!(ours.offer(announcement(), b"", Some(&long)).is_none());
        // Whatever the client writes there later.
        ours.word(EARLY_LEN).store(u64::MAX, Ordering::Relaxed);
        assert!(theirs.early().unwrap().confirm.len() <= MAX_EARLY);
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
}
