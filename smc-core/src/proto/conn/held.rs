use std::collections::BTreeMap;

use smc_wire::cursor::{Cursor, Ring};

/// What was read out of our ring and is still looked at, given back in any order.
///
/// A ring is freed from one end only. So what is let go of behind something that is held has to
/// wait for it: the peer is shown the position of the oldest byte held, and no other.
///
/// While anything is held this stands in for the window of a [`RecvHalf`](super::RecvHalf), which
/// tells it what is read ([`Held::hold`], [`Held::pass`]) and hears of what the peer was shown
/// ([`Held::take_shown`]). Whoever lets go of something need not know the reading half.
///
/// Positions are counts of bytes since the first [`Held::begin`].
#[derive(Clone, Debug)]
pub struct Held {
    ring: Ring,
    /// What the peer was shown.
    shown: Cursor,
    /// Free behind `shown`, but not shown.
    unshown: u32,
    /// Of the oldest byte held.
    oldest: u64,
    /// Of the next byte to read.
    next: u64,
    /// Spans between the two that nobody holds: start and end, apart from each other.
    gaps: BTreeMap<u64, u64>,
    /// Bytes that the peer was shown and the reading half has not heard of.
    news: u32,
}

impl Held {
    /// Nothing is held.
    #[must_use]
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            shown: Cursor::START,
            unshown: 0,
            oldest: 0,
            next: 0,
            gaps: BTreeMap::new(),
            news: 0,
        }
    }

    /// Takes the window over: the peer was `shown` a cursor, and `unconfirmed` bytes behind it were
    /// read already. Only while nothing is held.
    pub fn begin(&mut self, shown: Cursor, unconfirmed: u32) {
        self.shown = shown;
        self.unshown = unconfirmed;
        self.oldest = self.next;
        self.gaps.clear();
        self.news = 0;
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    /// The next `len` bytes were read and are held. Returns their position.
    pub fn hold(&mut self, len: u32) -> u64 {
        let start = self.next;
        self.next = start.saturating_add(len.into());
        start
    }

    /// The next `len` bytes were read and are not needed any more.
    pub fn pass(&mut self, len: u32) {
        let start = self.hold(len);
        self.let_go(start, len);
    }

    /// Lets go of `len` bytes from `start`, a part of what was held and is only let go of once.
    /// Returns how many bytes of the ring that frees.
    pub fn let_go(&mut self, start: u64, len: u32) -> u32 {
        let end = start.saturating_add(len.into()).min(self.next);
        if start >= end {
            return 0;
        }
        if start > self.oldest {
            self.add_gap(start, end);
            return 0;
        }
        let before = self.oldest;
        self.oldest = end.max(before);
        // At most one: gaps are apart from each other.
        if let Some(end) = self.gaps.remove(&self.oldest) {
            self.oldest = end;
        }
        // All of it lies in one ring.
        let freed = u32::try_from(self.oldest.saturating_sub(before)).unwrap_or(u32::MAX);
        self.unshown = self.unshown.saturating_add(freed);
        freed
    }

    /// Free bytes that the peer was not shown.
    #[must_use]
    pub fn unshown(&self) -> u32 {
        self.unshown
    }

    /// Whether the peer should be shown what is free, given its producer cursor.
    ///
    /// As long as it is not blocked the rule is that of
    /// [`RecvHalf::is_update_due`](super::RecvHalf::is_update_due). A peer that waits is shown
    /// every byte: how much more comes depends on who holds it, and may be nothing.
    #[must_use]
    pub fn is_update_due(&self, peer_blocked: bool, peer_producer: Cursor) -> bool {
        if peer_blocked {
            return self.unshown > 0;
        }
        let size = self.ring.size();
        // A cursor that makes no sense is for the reading half to find.
        let used = self.ring.span(self.shown, peer_producer).unwrap_or(0);
        self.unshown > super::recv::least_update(size) && size.saturating_sub(used) <= size / 2
    }

    /// The peer is being shown what is free: the cursor that is returned.
    pub fn show(&mut self) -> Cursor {
        self.shown = self.ring.advance(self.shown, self.unshown);
        self.news = self.news.saturating_add(self.unshown);
        self.unshown = 0;
        self.shown
    }

    /// Bytes that the peer was shown since the last call.
    pub fn take_shown(&mut self) -> u32 {
        std::mem::take(&mut self.news)
    }

    fn add_gap(&mut self, mut start: u64, mut end: u64) {
        if let Some(after) = self.gaps.remove(&end) {
            end = after;
        }
        if let Some((&before, until)) = self.gaps.range(..start).next_back() {
            if *until == start {
                start = before;
            }
        }
        self.gaps.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::conn::{RecvHalf, SendHalf};

    const SIZE: u32 = 100;

    fn held() -> Held {
        Held::new(Ring::new(SIZE).unwrap())
    }

    #[test]
    fn what_is_let_go_of_in_order_is_free_at_once() {
        let mut held = held();
        let (one, two) = (held.hold(10), held.hold(5));
        assert_eq!(held.let_go(one, 10), 10);
        assert!(!held.is_empty());
        assert_eq!(held.let_go(two, 5), 5);
        assert!(held.is_empty());
        assert_eq!(held.show(), Cursor { wrap: 0, count: 15 });
        assert_eq!(held.take_shown(), 15);
        assert_eq!(held.take_shown(), 0);
    }

    #[test]
    fn the_oldest_holds_back_all_behind_it() {
        let mut held = held();
        let starts = [10, 20, 30].map(|len| (held.hold(len), len));
        assert_eq!(held.let_go(starts[2].0, 30), 0);
        assert_eq!(held.let_go(starts[1].0, 20), 0);
        assert_eq!(held.unshown(), 0);
        assert_eq!(held.let_go(starts[0].0, 10), 60);
        assert!(held.is_empty());
    }

    #[test]
    fn ordinary_reads_behind_something_held_wait_for_it() {
        let mut held = held();
        let first = held.hold(1);
        held.pass(40);
        held.pass(9);
        assert_eq!(held.unshown(), 0);
        assert_eq!(held.let_go(first, 1), 50);
    }

    #[test]
    fn parts_of_a_span_are_let_go_of_by_themselves() {
        let mut held = held();
        let start = held.hold(30);
        assert_eq!(held.let_go(start + 10, 10), 0);
        assert_eq!(held.let_go(start, 10), 20);
        assert!(!held.is_empty());
        assert_eq!(held.let_go(start + 20, 10), 10);
        assert!(held.is_empty());
    }

    #[test]
    fn nothing_and_what_was_never_held_free_nothing() {
        let mut held = held();
        let start = held.hold(5);
        assert_eq!(held.let_go(start, 0), 0);
        assert_eq!(held.let_go(start + 5, 7), 0);
        assert_eq!(held.let_go(start, 50), 5);
        assert_eq!(held.let_go(u64::MAX, 50), 0);
    }

    #[test]
    fn a_peer_that_waits_is_shown_every_byte_and_others_a_tenth() {
        let ring = Ring::new(100_000).unwrap();
        let mut held = Held::new(ring);
        let start = held.hold(60_000);
        let producer = ring.advance(Cursor::START, 60_000);
        held.let_go(start, 1);
        assert!(!held.is_update_due(false, producer));
        assert!(held.is_update_due(true, producer));
        held.let_go(start + 1, 20_000);
        assert!(held.is_update_due(false, producer));
        let little = ring.advance(Cursor::START, 20_001);
        assert!(!held.is_update_due(false, little), "the peer has space");
        let nonsense = Cursor {
            wrap: 7,
            count: u32::MAX,
        };
        assert!(!held.is_update_due(false, nonsense));
        held.show();
        assert!(!held.is_update_due(true, producer));
    }

    #[test]
    fn what_was_read_before_and_not_shown_is_taken_over() {
        let mut held = held();
        held.begin(Cursor { wrap: 3, count: 90 }, 7);
        assert_eq!(held.unshown(), 7);
        let start = held.hold(10);
        held.let_go(start, 10);
        assert_eq!(held.show(), Cursor { wrap: 4, count: 7 });
        assert_eq!(held.take_shown(), 17);
    }

    /// A writer that fills the ring, a reader that holds what it reads, and releases at random:
    /// the writer never gets space that is held, and gets all of it in the end.
    #[test]
    fn a_writer_never_gets_what_is_held() {
        let ring = Ring::new(SIZE).unwrap();
        let mut rng = smc_testkit::Rng::new(1);
        let (mut send, mut recv) = (SendHalf::new(ring), RecvHalf::new(ring));
        let mut held = Held::new(ring);
        // Who owns each byte of the ring: `None` if it is free for the writer.
        let mut owners = vec![None; SIZE as usize];
        let mut guards: Vec<(u64, u32, u32)> = Vec::new();
        let mut number = 0;
        for _ in 0..20_000 {
            let count = u32::try_from(rng.below(30)).unwrap().min(send.space());
            for offset in 0..count {
                let at = ((send.at() + offset) % SIZE) as usize;
                assert_eq!(owners[at], None, "written over what is held");
            }
            recv.confirm_held(held.take_shown());
            recv.handle_producer(send.commit(count)).unwrap();

            let count = u32::try_from(rng.below(30)).unwrap().min(recv.readable());
            let at = recv.at();
            if rng.chance(500) && count > 0 {
                number += 1;
                for offset in 0..count {
                    owners[((at + offset) % SIZE) as usize] = Some(number);
                }
                guards.push((held.hold(count), at, count));
            } else {
                held.pass(count);
            }
            recv.consume(count);

            while guards.len() > 4 || (!guards.is_empty() && rng.chance(300)) {
                let (start, at, count) = guards.swap_remove(rng.below(guards.len()));
                for offset in 0..count {
                    owners[((at + offset) % SIZE) as usize] = None;
                }
                held.let_go(start, count);
            }
            if held.is_update_due(rng.chance(500), recv.peer_producer()) {
                send.handle_consumer(held.show()).unwrap();
            }
        }
        for (start, _, count) in guards {
            held.let_go(start, count);
        }
        assert!(held.is_empty());
        recv.confirm_held(held.take_shown());
        assert_eq!(recv.unconfirmed(), held.unshown());
        assert_eq!(recv.consumer(), held.show());
    }
}
