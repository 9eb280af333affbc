//! The memory in which a client announces its connections to one listener.
//!
//! The client makes it and passes it with HELLO. A connection has a *card* of it, which is found
//! by the client's port:
//!
//! ```text
//! 0x00000  index   8192 words: port << 32 | number of the card + 1, in one of eight places from port
//! 0x10000  cards, 2 KiB each:
//!    +0    state       turn << 8 | what; the client offers, the listener takes
//!    +8    heard       listener waits for words of the client:  listener 1, client 0 when it rings
//!    +16   asked       bytes that the client has written; the top bit: no more will come
//!    +24   early       length of the expected ACCEPT | length of the early CONFIRM << 8; or 0
//!    +64   waits       client waits for words of the listener:  client 1, listener 0 when it rings
//!    +72   answered    bytes that the listener has written; the top bit: no more will come
//!    +80   refusal     why the listener refused the offer, or 0
//!    +128  cookie of the client's socket, client address 24, server address 24
//!    +192  the client's messages, 1088 bytes
//!    +1280 the ACCEPT that the client expects, 128 bytes, and its CONFIRM in that case, 128 bytes
//!    +1536 the listener's, 512 bytes
//! 0x210000 closed    1 if the listener takes nothing any more
//! 0x210008 beat      goes up while the listener works, whatever it works on
//! ```
//!
//! The state of a card:
//!
//! ```text
//!              listener accepts           listener answers
//!   OFFERED --------------------> CLAIMED ----------------> TAKEN
//!      |                             |
//!      | client or listener          | client
//!      v                             v
//!    VOID                        WITHDRAWN
//! ```
//!
//! Each change is one compare-and-exchange, and the right to decide exists once: an offer is taken
//! by the answer, after the bytes of the answer are on the card, or it is taken back or refused. So
//! taking an offer back needs no help, and a listener that is busy or stopped, before it accepts or
//! between that and its answer, does not hold a client up.
//!
//! Either side can write anything anywhere. Each believes only what it has copied out, within
//! bounds that it knows by itself; a client that scribbles spoils its own connections, and so does
//! a listener. A card serves its next connection only when the listener has let go of it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::Refusal;
use crate::io::negotiate::EarlyConfirm;
use crate::mem::sync::{AtomicU64, Ordering, fence};
use crate::mem::{MemoryError, Region};

/// The board of one channel, as either side maps it.
#[derive(Clone, Debug)]
pub(super) struct Board(Region);

/// A connection that is announced, or was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announcement {
    /// `SO_COOKIE` of the client's socket, if the listener wants to compare it; else 0.
    pub(super) cookie: u64,
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
}

impl Board {
    /// A fresh one, and the file to be passed.
    pub(super) fn create() -> io::Result<(Self, OwnedFd)> {
        let (region, file) = Region::shared("smc-board", LEN)?;
        Ok((Self(region), file))
    }

    /// One that a client has passed.
    pub(super) fn adopt(file: BorrowedFd<'_>) -> Result<Self, MemoryError> {
        Region::adopt(file, LEN).map(Self)
    }

    /// The card of this number; none beyond [`CARDS`].
    pub(super) fn card(&self, number: u32) -> Option<Card> {
        if number >= CARDS {
            return None;
        }
        let at = INDEX_LEN + number as usize * CARD_LEN;
        let region = self.0.part(at, CARD_LEN).ok()?;
        Some(Card { region, number })
    }

    /// Client: lets the listener find a card by a port. False if there is no place for it.
    pub(super) fn enter(&self, port: u16, number: u32) -> bool {
        let word = entry(port, number);
        places(port).any(|place| {
            let word_at = self.index(place);
            word_at.load(Ordering::Relaxed) == 0 && {
                word_at.store(word, Ordering::Release);
                true
            }
        })
    }

    /// Client: the port does not lead to the card any more.
    pub(super) fn leave(&self, port: u16, number: u32) {
        let word = entry(port, number);
        for place in places(port) {
            let word_at = self.index(place);
            if word_at.load(Ordering::Relaxed) == word {
                word_at.store(0, Ordering::Release);
            }
        }
    }

    /// Listener: the cards that a port leads to.
    pub(super) fn find(&self, port: u16) -> impl Iterator<Item = Card> {
        places(port).filter_map(move |place| {
            let word = self.index(place).load(Ordering::Acquire);
            let number = u32::try_from(word & 0xffff_ffff).ok()?.checked_sub(1)?;
            (word >> 32 == u64::from(port)).then(|| self.card(number))?
        })
    }

    /// Listener: no offer will be taken any more.
    pub(super) fn close(&self) {
        self.closed().store(1, Ordering::Release);
    }

    /// Whether the listener has said that it takes nothing any more.
    pub(super) fn is_closed(&self) -> bool {
        self.closed().load(Ordering::Acquire) != 0
    }

    /// Listener: shows that it works.
    pub(super) fn beat(&self) {
        self.beats_word().fetch_add(1, Ordering::Relaxed);
    }

    /// How often the listener has shown that it works.
    pub(super) fn beats(&self) -> u64 {
        self.beats_word().load(Ordering::Relaxed)
    }

    fn beats_word(&self) -> &AtomicU64 {
        let word = self.0.word(BEAT);
        word.expect("boards have one length")
    }

    fn closed(&self) -> &AtomicU64 {
        let word = self.0.word(CLOSED);
        word.expect("boards have one length")
    }

    fn index(&self, place: usize) -> &AtomicU64 {
        let word = self.0.word(place * 8);
        word.expect("places are within the index, and boards have one length")
    }
}

/// One connection's part of a board.
#[derive(Clone, Debug)]
pub(super) struct Card {
    region: Region,
    number: u32,
}

/// What has become of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Offered,
    /// The listener has accepted the connection and works on its answer.
    Claimed,
    /// The listener has answered.
    Taken,
    /// Refused by the listener, or taken back before the listener accepted.
    Void,
    /// Taken back by the client while the listener worked on its answer.
    Withdrawn,
}

/// One use of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turn(u64);

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Voice {
    Client,
    Listener,
}

impl Card {
    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Client: makes an offer, with its first message and perhaps the last one.
    pub(super) fn offer(
        &self,
        announcement: Announcement,
        message: &[u8],
        early: Option<&EarlyConfirm>,
    ) -> Option<Turn> {
        let turn = Turn((self.word(STATE).load(Ordering::Relaxed) >> 8).wrapping_add(1) & TURNS);
        for at in [HEARD, ASKED, WAITS, ANSWERED, REFUSAL] {
            self.word(at).store(0, Ordering::Relaxed);
        }
        let cookie = announcement.cookie.to_ne_bytes();
        self.region.copy_in(COOKIE, &cookie).ok()?;
        let from = encode(announcement.from);
        self.region.copy_in(FROM, &from).ok()?;
        let to = encode(announcement.to);
        self.region.copy_in(TO, &to).ok()?;
        self.say(Voice::Client, message).ok()?;
        self.say_early(early)?;
        self.word(STATE)
            .store(turn.word(OFFERED), Ordering::Release);
        Some(turn)
    }

    fn say_early(&self, early: Option<&EarlyConfirm>) -> Option<()> {
        let lengths = match early {
            Some(early) => {
                for (at, message) in [(EARLY, &early.accept), (EARLY_CONFIRM, &early.confirm)] {
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

    /// Listener: what the client has said early, if it has.
    pub(super) fn early(&self) -> Option<EarlyConfirm> {
        let lengths = self.word(EARLY_LEN).load(Ordering::Relaxed);
        let read = |at, len: u64| {
            let mut message = vec![0; usize::try_from(len & 0xff).ok()?.min(EARLY_MAX)];
            self.region.copy_out(at, &mut message).ok()?;
            Some(message)
        };
        (lengths != 0).then_some(EarlyConfirm {
            accept: read(EARLY, lengths)?,
            confirm: read(EARLY_CONFIRM, lengths >> 8)?,
        })
    }

    /// What is offered now, and in which turn.
    pub(super) fn offered(&self) -> Option<(Turn, Announcement)> {
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
        Some((Turn(state >> 8), announcement))
    }

    /// Listener: has accepted the connection that is offered; whether the offer was still there.
    pub(super) fn claim(&self, turn: Turn) -> bool {
        self.change(turn, OFFERED, CLAIMED)
    }

    /// Listener: takes an offer that it has claimed, after its answer was [written](Self::say).
    /// Whether the client has not taken it back.
    pub(super) fn take(&self, turn: Turn) -> bool {
        self.change(turn, CLAIMED, TAKEN)
    }

    /// Listener: refuses an offer that was not claimed. Whether it was still there.
    pub(super) fn refuse(&self, turn: Turn, why: Refusal) -> bool {
        let why = match why {
            Refusal::Policy => REFUSED_BY_POLICY,
            Refusal::Identity => REFUSED_IDENTITY,
            _ => 0,
        };
        self.word(REFUSAL).store(why, Ordering::Relaxed);
        self.change(turn, OFFERED, VOID)
    }

    /// Client: why the listener has refused the offer.
    pub(super) fn refusal(&self) -> Refusal {
        match self.word(REFUSAL).load(Ordering::Relaxed) {
            REFUSED_BY_POLICY => Refusal::Policy,
            REFUSED_IDENTITY => Refusal::Identity,
            _ => Refusal::Unknown,
        }
    }

    /// Client: takes its offer back; false after the listener has answered or refused.
    pub(super) fn withdraw(&self, turn: Turn) -> bool {
        self.change(turn, OFFERED, VOID) || self.change(turn, CLAIMED, WITHDRAWN)
    }

    fn change(&self, turn: Turn, from: u64, to: u64) -> bool {
        let state = self.word(STATE);
        let (from, to) = (turn.word(from), turn.word(to));
        state
            .compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok()
    }

    /// What has become of the offer of this turn.
    pub(super) fn state(&self, turn: Turn) -> State {
        match self.word(STATE).load(Ordering::Acquire) {
            state if state == turn.word(OFFERED) => State::Offered,
            state if state == turn.word(CLAIMED) => State::Claimed,
            state if state == turn.word(TAKEN) => State::Taken,
            state if state == turn.word(WITHDRAWN) => State::Withdrawn,
            _ => State::Void,
        }
    }

    /// Adds a message for the other side; it has to be [rung](Self::must_ring) afterwards.
    pub(super) fn say(&self, voice: Voice, message: &[u8]) -> io::Result<()> {
        let (said, start, room) = voice.place();
        let before = self.word(said).load(Ordering::Relaxed);
        let at = usize::try_from(before).unwrap_or(room);
        if at.saturating_add(message.len()) > room {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let copied = self.region.copy_in(start + at, message);
        copied.map_err(|_| io::ErrorKind::StorageFull)?;
        let after = before + message.len() as u64;
        self.word(said).store(after, Ordering::Release);
        Ok(())
    }

    /// Nothing more will come from this side.
    pub(super) fn hang_up(&self, voice: Voice) {
        let (said, ..) = voice.place();
        self.word(said).fetch_or(END, Ordering::SeqCst);
    }

    /// Whether this side has hung up.
    pub(super) fn is_hung_up(&self, voice: Voice) -> bool {
        let (said, ..) = voice.place();
        self.word(said).load(Ordering::Acquire) & END != 0
    }

    /// Copies what a side has said from byte `at` on: `None` if that is nothing, 0 if it has
    /// hung up.
    pub(super) fn hear(&self, voice: Voice, at: usize, buf: &mut [u8]) -> Option<usize> {
        let (said, start, room) = voice.place();
        let word = self.word(said).load(Ordering::Acquire);
        let there = usize::try_from(word & !END).unwrap_or(room).min(room);
        let count = there.saturating_sub(at).min(buf.len());
        if count == 0 {
            return (word & END != 0).then_some(0);
        }
        let part = buf.get_mut(..count)?;
        self.region.copy_out(start + at, part).ok()?;
        Some(count)
    }

    /// Asks to be rung when the other side says something. A look has to follow.
    pub(super) fn wait_for(&self, voice: Voice) {
        self.word(voice.bell()).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// After this side has said something: whether the other one has to be rung.
    pub(super) fn must_ring(&self, voice: Voice) -> bool {
        fence(Ordering::SeqCst);
        let bell = self.word(voice.bell());
        bell.load(Ordering::Relaxed) != 0 && bell.swap(0, Ordering::SeqCst) != 0
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        let word = self.region.word(at);
        word.expect("words are within a card, and cards have one length")
    }
}

impl Turn {
    fn word(self, what: u64) -> u64 {
        self.0 << 8 | what
    }
}

impl Voice {
    /// The word that counts what this side has said, where that is, and how much can be.
    fn place(self) -> (usize, usize, usize) {
        match self {
            Self::Client => (ASKED, CLIENT, EARLY - CLIENT),
            Self::Listener => (ANSWERED, LISTENER, CARD_LEN - LISTENER),
        }
    }

    /// The word by which the other side asks to be rung when this one speaks.
    fn bell(self) -> usize {
        match self {
            Self::Client => HEARD,
            Self::Listener => WAITS,
        }
    }
}

fn entry(port: u16, number: u32) -> u64 {
    u64::from(port) << 32 | u64::from(number + 1)
}

fn places(port: u16) -> impl Iterator<Item = usize> {
    (0..PROBES).map(move |probe| (usize::from(port) + probe as usize) % INDEX)
}

/// 4 or 6, then the port, then the address.
fn encode(addr: SocketAddr) -> [u8; ADDR_LEN] {
    let mut out = [0; ADDR_LEN];
    let (family, ip) = match addr.ip() {
        IpAddr::V4(ip) => (4, ip.to_ipv6_mapped()),
        IpAddr::V6(ip) => (6, ip),
    };
    let parts = [&[family, 0][..], &addr.port().to_ne_bytes(), &ip.octets()];
    for (to, from) in out.iter_mut().zip(parts.concat()) {
        *to = from;
    }
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

/// Cards of a board: connections that a client may have under way with one listener.
pub(super) const CARDS: u32 = 1024;

/// Longest first message of a client.
pub(super) const MAX_PROPOSAL: usize = 832;

const INDEX: usize = 8192;
const INDEX_LEN: usize = INDEX * 8;
/// Places of the index that are looked at for a port.
pub(super) const PROBES: u32 = 8;

const CARD_LEN: usize = 2048;
const STATE: usize = 0;
const HEARD: usize = 8;
const ASKED: usize = 16;
const EARLY_LEN: usize = 24;
const WAITS: usize = 64;
const ANSWERED: usize = 72;
const REFUSAL: usize = 80;
const COOKIE: usize = 128;
const FROM: usize = 136;
const TO: usize = 160;
const ADDR_LEN: usize = 24;
const CLIENT: usize = 192;
const EARLY: usize = 1280;
const EARLY_CONFIRM: usize = EARLY + EARLY_MAX;
/// Longest message that can be said early, or expected.
const EARLY_MAX: usize = 128;
const LISTENER: usize = 1536;

const CLOSED: usize = INDEX_LEN + CARDS as usize * CARD_LEN;
const BEAT: usize = CLOSED + 8;
const LEN: usize = CLOSED + 64;

/// What the state of a card says; 0 is that of one that was never used.
const OFFERED: u64 = 1;
const TAKEN: u64 = 2;
const VOID: u64 = 3;
const CLAIMED: u64 = 4;
const WITHDRAWN: u64 = 5;

/// What a refusal says; 0 is that of one without a reason.
const REFUSED_BY_POLICY: u64 = 1;
const REFUSED_IDENTITY: u64 = 2;

/// Turns are counted in the upper seven bytes.
const TURNS: u64 = u64::MAX >> 8;

/// No more will come.
const END: u64 = 1 << 63;

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Board, Board) {
        use std::os::fd::AsFd as _;
        let (client, file) = Board::create().unwrap();
        (client, Board::adopt(file.as_fd()).unwrap())
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
        let card = client.card(3).unwrap();
        let turn = card.offer(announcement(), b"proposal", None).unwrap();
        assert!(client.enter(40_000, 3));
        assert_eq!(listener.find(40_001).count(), 0);
        let found = listener.find(40_000).next().unwrap();
        assert_eq!(found.offered(), Some((turn, announcement())));
        assert!(found.claim(turn));
        assert!(!found.claim(turn) && !found.refuse(turn, Refusal::Policy));
        assert_eq!(card.state(turn), State::Claimed);
        assert!(found.take(turn));
        assert!(!found.take(turn) && !card.withdraw(turn));
        assert_eq!(card.state(turn), State::Taken);
        let mut buf = [0; 64];
        assert_eq!(found.hear(Voice::Client, 0, &mut buf), Some(8));
        assert_eq!(&buf[..8], b"proposal");
        client.leave(40_000, 3);
        assert_eq!(listener.find(40_000).count(), 0);
    }

    #[test]
    fn an_offer_that_was_taken_back_cannot_be_taken() {
        let (client, listener) = pair();
        let card = client.card(0).unwrap();
        let turn = card.offer(announcement(), b"", None).unwrap();
        assert!(card.withdraw(turn) && !card.withdraw(turn));
        let found = listener.card(0).unwrap();
        assert!(found.offered().is_none() && !found.claim(turn));
        let next = card.offer(announcement(), b"", None).unwrap();
        assert!(!found.claim(turn), "the turn before");
        assert!(found.claim(next));
        assert_eq!(found.state(turn), State::Void);
    }

    #[test]
    fn an_offer_can_be_taken_back_until_it_is_answered() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.card(0).unwrap(), listener.card(0).unwrap());
        let turn = ours.offer(announcement(), b"", None).unwrap();
        assert!(theirs.claim(turn));
        assert!(ours.withdraw(turn));
        assert!(!theirs.take(turn), "the answer comes too late");
        assert_eq!(ours.state(turn), State::Withdrawn);
    }

    #[test]
    fn a_refusal_says_why_once() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.card(0).unwrap(), listener.card(0).unwrap());
        let turn = ours.offer(announcement(), b"", None).unwrap();
        assert!(theirs.refuse(turn, Refusal::Policy));
        assert_eq!(
            (ours.state(turn), ours.refusal()),
            (State::Void, Refusal::Policy)
        );
        ours.offer(announcement(), b"", None).unwrap();
        assert_eq!(ours.refusal(), Refusal::Unknown);
    }

    #[test]
    fn messages_follow_each_other_and_end() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.card(1).unwrap(), listener.card(1).unwrap());
        ours.offer(announcement(), b"one", None).unwrap();
        let mut buf = [0; 2];
        assert_eq!(theirs.hear(Voice::Client, 0, &mut buf), Some(2));
        assert_eq!(theirs.hear(Voice::Client, 2, &mut buf), Some(1));
        assert_eq!(theirs.hear(Voice::Client, 3, &mut buf), None);
        theirs.wait_for(Voice::Client);
        ours.say(Voice::Client, b"two").unwrap();
        assert!(ours.must_ring(Voice::Client) && !ours.must_ring(Voice::Client));
        ours.hang_up(Voice::Client);
        assert_eq!(theirs.hear(Voice::Client, 3, &mut buf), Some(2));
        assert_eq!(theirs.hear(Voice::Client, 5, &mut buf), Some(1));
        assert_eq!(theirs.hear(Voice::Client, 6, &mut buf), Some(0));
        assert!(ours.say(Voice::Listener, &[0; 4096]).is_err());
    }

    #[test]
    fn what_is_said_early_is_for_one_turn_and_one_length() {
        let (client, listener) = pair();
        let (ours, theirs) = (client.card(2).unwrap(), listener.card(2).unwrap());
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
    fn whatever_is_written_there_is_borne() {
        let (client, listener) = pair();
        let card = client.card(9).unwrap();
        let turn = card.offer(announcement(), b"abc", None).unwrap();
        let found = listener.card(9).unwrap();
        card.word(ASKED).store(u64::MAX >> 2, Ordering::Relaxed);
        let mut buf = [0; 4096];
        assert_eq!(found.hear(Voice::Client, 0, &mut buf), Some(EARLY - CLIENT));
        assert!(found.say(Voice::Client, b"x").is_err());
        card.region.copy_in(FROM, &[9; ADDR_LEN]).unwrap();
        assert_eq!(found.offered(), None);
        assert!(found.claim(turn));
        client.index(50).store(u64::MAX, Ordering::Relaxed);
        client.index(51).store(50 << 32 | 5000, Ordering::Relaxed);
        client.index(52).store(50 << 32, Ordering::Relaxed);
        assert_eq!(listener.find(50).count(), 0);
    }

    #[test]
    fn an_index_that_is_full_says_so() {
        let (client, _) = pair();
        assert!((0..8).all(|number| client.enter(100, number)));
        assert!(!client.enter(100, 8));
        client.leave(100, 4);
        assert!(client.enter(100, 8));
    }
}
