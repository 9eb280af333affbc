//! The window of bytes that were read and are still in use.

use std::collections::BTreeMap;

use smc_wire::cursor::{Cursor, Ring};

use super::recv::REWIND_UPDATE_MIN;
use super::send::rewind_min;

/// Bytes that were read from the local ring and are still in use; they are released in any order.
///
/// A ring is freed from one end only. Bytes released behind a retained byte are therefore not free
/// until that byte is released: the cursor sent to the peer is the position of the oldest retained
/// byte.
///
/// While anything is retained, this type takes over the window of
/// [`RecvCursors`](super::RecvCursors). The receiving half reports reads to it
/// ([`RetainedWindow::retain`], [`RetainedWindow::skip`]) and collects the bytes confirmed to the
/// peer ([`RetainedWindow::take_confirmed`]). The code that releases a range needs no access to the
/// receiving half.
///
/// Positions are counts of bytes since the first [`RetainedWindow::start`].
#[derive(Clone, Debug)]
pub struct RetainedWindow {
    ring: Ring,
    /// The consumer cursor last sent to the peer.
    confirmed: Cursor,
    /// Bytes freed behind `confirmed` that were not sent to the peer yet.
    unconfirmed: u32,
    /// Position of the oldest retained byte.
    oldest: u64,
    /// Position of the next byte to read.
    next: u64,
    /// Released spans between `oldest` and `next`, as start and end. They do not touch each other.
    gaps: BTreeMap<u64, u64>,
    /// Bytes confirmed to the peer that the receiving half has not collected.
    unreported: u32,
    /// Count from which the peer may leave the ring before its end, if it is empty.
    rewind_min: u32,
}

impl RetainedWindow {
    /// A state in which nothing is retained.
    #[must_use]
    pub fn new(ring: Ring) -> Self {
        Self {
            ring,
            confirmed: Cursor::START,
            unconfirmed: 0,
            oldest: 0,
            next: 0,
            gaps: BTreeMap::new(),
            unreported: 0,
            rewind_min: u32::MAX,
        }
    }

    /// As [`RecvCursors::with_rewind`](super::RecvCursors::with_rewind).
    #[must_use]
    pub fn with_rewind(self, allowed: bool) -> Self {
        Self {
            rewind_min: rewind_min(allowed),
            ..self
        }
    }

    /// Takes over the window: `confirmed` is the cursor sent to the peer, and `unconfirmed` bytes
    /// behind it were already read. Call this only while nothing is retained.
    pub fn start(&mut self, confirmed: Cursor, unconfirmed: u32) {
        self.confirmed = confirmed;
        self.unconfirmed = unconfirmed;
        self.oldest = self.next;
        self.gaps.clear();
        self.unreported = 0;
    }

    /// The peer has left the empty ring before its end, and continues at this cursor.
    pub fn rewind(&mut self, start: Cursor) {
        self.confirmed = start;
    }

    /// Whether nothing is retained.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    /// The next `len` bytes were read and are retained. Returns their position.
    #[inline]
    pub fn retain(&mut self, len: u32) -> u64 {
        let start = self.next;
        self.next = start.saturating_add(len.into());
        start
    }

    /// The next `len` bytes were read and are not retained.
    pub fn skip(&mut self, len: u32) {
        let start = self.retain(len);
        self.release(start, len);
    }

    /// Releases `len` bytes from `start`, a part of a retained range that is released only once.
    /// Returns how many bytes of the ring this frees.
    #[inline]
    pub fn release(&mut self, start: u64, len: u32) -> u32 {
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
        // At most one gap begins here, because gaps do not touch each other.
        if let Some(end) = self.gaps.remove(&self.oldest) {
            self.oldest = end;
        }
        // All freed bytes lie in one ring, so the number fits.
        let freed = u32::try_from(self.oldest.saturating_sub(before)).unwrap_or(u32::MAX);
        self.unconfirmed = self.unconfirmed.saturating_add(freed);
        freed
    }

    /// Free bytes that the peer does not know of.
    #[must_use]
    pub fn unconfirmed(&self) -> u32 {
        self.unconfirmed
    }

    /// Whether the consumer cursor should be sent to the peer, given its producer cursor.
    ///
    /// For a peer that is not blocked, the rule is that of
    /// [`RecvCursors::is_update_due`](super::RecvCursors::is_update_due). For a blocked peer an
    /// update is due for every free byte: when more bytes become free depends on the code that
    /// retains them, and may be never.
    #[must_use]
    #[inline]
    pub fn is_update_due(&self, peer_blocked: bool, peer_producer: Cursor) -> bool {
        if peer_blocked {
            return self.unconfirmed > 0;
        }
        let size = self.ring.size();
        // An invalid cursor is reported by the receiving half.
        let used = self.ring.span(self.confirmed, peer_producer);
        if used == Ok(self.unconfirmed) && peer_producer.count >= self.rewind_min {
            return self.unconfirmed >= REWIND_UPDATE_MIN;
        }
        let used = used.unwrap_or(0);
        self.unconfirmed > super::recv::least_update(size) && size.saturating_sub(used) <= size / 2
    }

    /// Returns the consumer cursor, which the caller sends to the peer.
    #[inline]
    pub fn confirm(&mut self) -> Cursor {
        self.confirmed = self.ring.advance(self.confirmed, self.unconfirmed);
        self.unreported = self.unreported.saturating_add(self.unconfirmed);
        self.unconfirmed = 0;
        self.confirmed
    }

    /// Bytes confirmed to the peer since the last call.
    pub fn take_confirmed(&mut self) -> u32 {
        std::mem::take(&mut self.unreported)
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
    use crate::proto::conn::{RecvCursors, SendCursors};

    const SIZE: u32 = 100;

    fn retained() -> RetainedWindow {
        RetainedWindow::new(Ring::new(SIZE).unwrap())
    }

    #[test]
    fn ranges_released_in_order_are_free_at_once() {
        let mut retained = retained();
        let (one, two) = (retained.retain(10), retained.retain(5));
        assert_eq!(retained.release(one, 10), 10);
        assert!(!retained.is_empty());
        assert_eq!(retained.release(two, 5), 5);
        assert!(retained.is_empty());
        assert_eq!(retained.confirm(), Cursor { wrap: 0, count: 15 });
        assert_eq!(retained.take_confirmed(), 15);
        assert_eq!(retained.take_confirmed(), 0);
    }

    #[test]
    fn the_oldest_range_delays_all_behind_it() {
        let mut retained = retained();
        let starts = [10, 20, 30].map(|len| (retained.retain(len), len));
        assert_eq!(retained.release(starts[2].0, 30), 0);
        assert_eq!(retained.release(starts[1].0, 20), 0);
        assert_eq!(retained.unconfirmed(), 0);
        assert_eq!(retained.release(starts[0].0, 10), 60);
        assert!(retained.is_empty());
    }

    #[test]
    fn reads_behind_a_retained_range_are_freed_with_it() {
        let mut retained = retained();
        let first = retained.retain(1);
        retained.skip(40);
        retained.skip(9);
        assert_eq!(retained.unconfirmed(), 0);
        assert_eq!(retained.release(first, 1), 50);
    }

    #[test]
    fn parts_of_a_range_are_released_separately() {
        let mut retained = retained();
        let start = retained.retain(30);
        assert_eq!(retained.release(start + 10, 10), 0);
        assert_eq!(retained.release(start, 10), 20);
        assert!(!retained.is_empty());
        assert_eq!(retained.release(start + 20, 10), 10);
        assert!(retained.is_empty());
    }

    #[test]
    fn empty_and_unknown_ranges_free_nothing() {
        let mut retained = retained();
        let start = retained.retain(5);
        assert_eq!(retained.release(start, 0), 0);
        assert_eq!(retained.release(start + 5, 7), 0);
        assert_eq!(retained.release(start, 50), 5);
        assert_eq!(retained.release(u64::MAX, 50), 0);
    }

    #[test]
    fn a_blocked_peer_gets_every_byte_and_others_a_tenth() {
        let ring = Ring::new(100_000).unwrap();
        let mut retained = RetainedWindow::new(ring);
        let start = retained.retain(60_000);
        let producer = ring.advance(Cursor::START, 60_000);
        retained.release(start, 1);
        assert!(!retained.is_update_due(false, producer));
        assert!(retained.is_update_due(true, producer));
        retained.release(start + 1, 20_000);
        assert!(retained.is_update_due(false, producer));
        let little = ring.advance(Cursor::START, 20_001);
        assert!(!retained.is_update_due(false, little), "the peer has space");
        let nonsense = Cursor {
            wrap: 7,
            count: u32::MAX,
        };
        assert!(!retained.is_update_due(false, nonsense));
        retained.confirm();
        assert!(!retained.is_update_due(true, producer));
    }

    #[test]
    fn unconfirmed_reads_are_taken_over() {
        let mut retained = retained();
        retained.start(Cursor { wrap: 3, count: 90 }, 7);
        assert_eq!(retained.unconfirmed(), 7);
        let start = retained.retain(10);
        retained.release(start, 10);
        assert_eq!(retained.confirm(), Cursor { wrap: 4, count: 7 });
        assert_eq!(retained.take_confirmed(), 17);
    }

    /// A writer fills the ring; a reader retains ranges and releases them at random. The writer
    /// never gets the space of a retained range, and gets all of the space at the end.
    #[test]
    fn a_writer_never_gets_retained_space() {
        write_and_retain(Ring::new(SIZE).unwrap(), 1, false);
    }

    /// The same with rewinds, in units of 1 KiB.
    #[test]
    fn a_writer_that_rewinds_never_gets_retained_space() {
        let ring = Ring::new(SIZE * 1024).unwrap();
        let rewinds = write_and_retain(ring, 1024, true);
        assert!(rewinds > 100, "{rewinds}");
    }

    /// Returns the number of rewinds.
    fn write_and_retain(ring: Ring, unit: u32, rewind: bool) -> u32 {
        let mut rng = smc_testkit::Rng::new(1);
        let mut send = SendCursors::new(ring).with_rewind(rewind);
        let mut recv = RecvCursors::new(ring).with_rewind(rewind);
        let mut retained = RetainedWindow::new(ring).with_rewind(rewind);
        // The owner of each unit of the ring: `None` if it is free for the writer.
        let mut owners = vec![None; SIZE as usize];
        let mut guards: Vec<(u64, u32, u32)> = Vec::new();
        let (mut number, mut rewinds) = (0, 0);
        for _ in 0..20_000 {
            let most = send.space() / unit;
            let count = u32::try_from(rng.below(30)).unwrap().min(most);
            for offset in 0..count {
                let at = ((send.at() / unit + offset) % SIZE) as usize;
                assert_eq!(owners[at], None, "written over what is retained");
            }
            recv.confirm_retained(retained.take_confirmed());
            let before = recv.consumer();
            recv.handle_producer(send.commit(count * unit)).unwrap();
            if recv.consumer() != before {
                retained.rewind(recv.consumer());
                rewinds += 1;
            }

            let most = recv.readable() / unit;
            let count = u32::try_from(rng.below(30)).unwrap().min(most);
            let at = recv.at() / unit;
            if rng.chance(500) && count > 0 {
                number += 1;
                for offset in 0..count {
                    owners[((at + offset) % SIZE) as usize] = Some(number);
                }
                guards.push((retained.retain(count * unit), at, count));
            } else {
                retained.skip(count * unit);
            }
            recv.consume(count * unit);

            while guards.len() > 4 || (!guards.is_empty() && rng.chance(300)) {
                let (start, at, count) = guards.swap_remove(rng.below(guards.len()));
                for offset in 0..count {
                    owners[((at + offset) % SIZE) as usize] = None;
                }
                retained.release(start, count * unit);
            }
            if retained.is_update_due(rng.chance(500), recv.peer_producer) {
                send.handle_consumer(retained.confirm()).unwrap();
                send.rewind();
            }
        }
        for (start, _, count) in guards {
            retained.release(start, count * unit);
        }
        assert!(retained.is_empty());
        recv.confirm_retained(retained.take_confirmed());
        assert_eq!(recv.unconfirmed(), retained.unconfirmed());
        assert_eq!(recv.consumer(), retained.confirm());
        rewinds
    }
}
