//! A Linux peer whose window update was lost with a failed link.

use super::*;

/// Reads as Linux does, and sends updates as Linux does: after a read, never without one
/// (docs/spec/data-path.md#window-update).
struct LinuxReader {
    ring: Ring,
    producer: Cursor,
    consumer: Cursor,
    confirmed: Cursor,
    flags: ProducerFlags,
}

impl LinuxReader {
    fn new(size: u32) -> Self {
        Self {
            ring: ring(size),
            producer: Cursor::START,
            consumer: Cursor::START,
            confirmed: Cursor::START,
            flags: ProducerFlags::empty(),
        }
    }

    fn receive(&mut self, post: &Post) {
        self.producer = post.cdc.producer;
        self.flags = post.cdc.producer_flags;
    }

    /// Reads all readable bytes. Returns the cursor of the CDC that follows, if one does.
    fn read(&mut self) -> Option<Cursor> {
        if self.consumer == self.producer {
            return None;
        }
        let span = |from, to| self.ring.span(from, to).unwrap();
        let free = self.ring.size() - span(self.confirmed, self.producer);
        self.consumer = self.producer;
        let read = span(self.confirmed, self.consumer);
        let is_asked = self.flags.contains(ProducerFlags::UPDATE_REQUESTED);
        let is_much = read > self.ring.size() / 10;
        let is_short = free <= self.ring.size() / 2 || self.flags.contains(BLOCKED);
        if is_asked || (is_much && is_short) {
            self.flags.remove(ProducerFlags::UPDATE_REQUESTED);
            self.confirmed = self.consumer;
            return Some(self.consumer);
        }
        None
    }
}

/// A writer that has filled the peer's ring except for the reserved byte.
fn blocked() -> (Transmit, Post) {
    let mut transmit = transmit(2000, 600);
    transmit.reserve_byte();
    transmit.stage(2000);
    let post = only_post(&mut transmit);
    assert_eq!((post.payload(), post.cdc.producer_flags), (599, BLOCKED));
    (transmit, post)
}

#[test]
fn the_reserved_byte_requests_the_lost_update() {
    let (mut transmit, post) = blocked();
    transmit.handle_completed(post.id);
    let mut reader = LinuxReader::new(600);
    reader.receive(&post);
    assert!(reader.read().is_some(), "and it is lost");

    transmit.failover();
    let full = moved(&mut transmit, 1);
    assert_eq!((full.payload(), full.cdc.producer_flags), (0, ASKING));
    reader.receive(&full);
    assert_eq!(reader.read(), None, "there is nothing to read");
    assert_eq!(transmit.poll_post(), None);

    transmit.handle_peer_moved();
    let byte = only_post(&mut transmit);
    assert_eq!((byte.payload(), byte.cdc.producer_flags), (1, ASKING));
    assert_eq!(byte.cdc.producer, cursor(1, 0));
    reader.receive(&byte);
    let update = reader.read().expect("an answer");
    assert_eq!(transmit.handle_peer(update), Ok(600));
    let next = only_post(&mut transmit);
    assert_eq!((next.payload(), next.cdc.producer_flags), (599, BLOCKED));
}

#[test]
fn a_peer_that_has_moved_first_gets_the_request_at_once() {
    let (mut transmit, post) = blocked();
    transmit.handle_completed(post.id);
    transmit.failover();
    transmit.handle_peer_moved();
    let full = moved(&mut transmit, 1);
    assert_eq!((full.payload(), full.cdc.producer_flags), (1, ASKING));
}

#[test]
fn a_short_repeated_write_requests_an_update_too() {
    let mut transmit = transmit(2000, 600);
    transmit.reserve_byte();
    let mut reader = LinuxReader::new(600);
    let post = send(&mut transmit, 550);
    transmit.handle_completed(post.id);
    reader.receive(&post);
    assert_eq!(reader.read(), Some(cursor(0, 550)), "lost");
    transmit.stage(1000);
    let lost = only_post(&mut transmit);
    assert_eq!(lost.payload(), 49);

    transmit.failover();
    let again = moved(&mut transmit, 1);
    assert_eq!((again.payload(), again.cdc.producer_flags), (49, ASKING));
    reader.receive(&again);
    // Too little for an unrequested update. If the peer has not moved, that is lost as well.
    assert_eq!(reader.read(), Some(cursor(0, 599)));
    transmit.handle_peer_moved();
    let byte = only_post(&mut transmit);
    reader.receive(&byte);
    assert_eq!(reader.read(), Some(cursor(1, 0)));
}

#[test]
fn no_update_is_requested_from_a_peer_with_space() {
    let mut transmit = transmit(2000, 600);
    transmit.reserve_byte();
    let post = send(&mut transmit, 100);
    transmit.handle_completed(post.id);
    transmit.failover();
    transmit.handle_peer_moved();
    assert!(moved(&mut transmit, 1).cdc.producer_flags.is_empty());
    // The update may have been lost nevertheless.
    transmit.stage(1000);
    let filled = only_post(&mut transmit);
    assert_eq!((filled.payload(), filled.cdc.producer_flags), (500, ASKING));
}

#[test]
fn the_producer_never_goes_back_behind_that_byte() {
    let (mut transmit, post) = blocked();
    transmit.handle_completed(post.id);
    transmit.failover();
    moved(&mut transmit, 1);
    transmit.handle_peer_moved();
    let byte = only_post(&mut transmit);
    transmit.failover();
    let again = moved(&mut transmit, 1);
    assert_eq!(again.spans, byte.spans);
    assert_eq!(again.cdc.producer, byte.cdc.producer);
}

#[test]
fn without_another_link_the_ring_is_filled() {
    let mut transmit = transmit(2000, 600);
    assert_eq!(transmit.stage(2000), 2000);
    let post = only_post(&mut transmit);
    assert_eq!((post.payload(), post.cdc.producer_flags), (600, BLOCKED));
    // A link that is added later does not shorten the data written.
    transmit.reserve_byte();
    assert_eq!(transmit.poll_post(), None);
    transmit.handle_peer(cursor(0, 300)).unwrap();
    assert_eq!(only_post(&mut transmit).payload(), 299);
}

#[test]
fn a_probe_is_sent_with_or_without_data() {
    let mut transmit = transmit(2000, 600);
    transmit.probe();
    let bare = only_post(&mut transmit);
    let asked = ProducerFlags::UPDATE_REQUESTED;
    assert_eq!((bare.payload(), bare.cdc.producer_flags), (0, asked));

    // One at a time, and with data if there is any.
    transmit.probe();
    assert_eq!(transmit.poll_post(), None);
    transmit.stage(10);
    let both = only_post(&mut transmit);
    assert_eq!((both.payload(), both.cdc.producer_flags), (10, asked));

    // Once.
    transmit.handle_completed(both.id);
    transmit.stage(10);
    let data = only_post(&mut transmit);
    assert_eq!(data.cdc.producer_flags, ProducerFlags::empty());
}
