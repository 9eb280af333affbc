//! Guards that other threads drop, under loom: every order of steps, every value that a load may
//! see. The shadow of the memory finds a byte that the peer writes while a guard may read it.

use std::sync::Arc;

use loom::thread;
use smc_wire::cursor::Ring;
use smc_wire::types::DmbToken;

use super::*;
use crate::mem::sync::model::{Mutation, check, trust_peers, with};
use crate::mem::{HEADER_LEN, Region};
use crate::proto::conn::{RecvCursors, SendCursors};

#[test]
fn the_space_of_guards_is_free_when_both_are_dropped() {
    two_guards(None, None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_guard_that_frees_without_release_is_written_over() {
    two_guards(Some(Mutation::NoRelease), None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_peer_that_writes_without_acquire_writes_over_a_guard() {
    two_guards(None, Some(Mutation::NoAcquire));
}

/// Two guards, each dropped by a thread of its own, while the peer writes where it may.
fn two_guards(dropping: Option<Mutation>, writing: Option<Mutation>) {
    check(move || {
        let (mut reader, mut peer) = full_ring();
        let droppers = [&DATA[..2], &DATA[2..]].map(|data| {
            let guard = reader.guard(2);
            thread::spawn(move || {
                with(dropping, || {
                    assert_eq!(*guard, *data, "written over");
                    drop(guard);
                });
            })
        });
        with(writing, || peer.write());
        for dropper in droppers {
            dropper.join().unwrap();
        }
        peer.write();
        assert_eq!(peer.written, 2 * DATA.len(), "space that is never free");
        assert!(reader.reclaim(), "the reading half waits for the window");
    });
}

/// The reading half reads on behind a guard, with the window or without, while another thread
/// drops the guard.
#[test]
fn a_cursor_of_a_guard_never_comes_behind_one_of_the_reading_half() {
    check(|| {
        let (mut reader, mut peer) = full_ring();
        let guard = reader.guard(2);
        let dropper = thread::spawn(move || drop(guard));
        let has_window = reader.reclaim();
        reader.half.consume(2);
        match has_window {
            true => reader.conn.publish_consumer(reader.half.confirm()),
            false => reader.guarded.free_unguarded(2),
        }
        dropper.join().unwrap();
        assert!(has_window || reader.reclaim(), "the window is lost");
        assert_eq!(reader.half.unconfirmed(), 0);
        peer.write();
        assert_eq!(peer.written, 2 * DATA.len(), "space that is never free");
    });
}

/// The reading half is dropped while another thread drops its last guard.
#[test]
fn a_guard_outlives_the_reading_half() {
    check(|| {
        let (mut reader, mut peer) = full_ring();
        let guard = reader.guard(DATA.len());
        let dropper = thread::spawn(move || {
            assert_eq!(*guard, *DATA, "written over");
            drop(guard);
        });
        reader.guarded.stop();
        drop(reader);
        peer.write();
        dropper.join().unwrap();
        let buffer = Arc::clone(&peer.buffer);
        drop(peer);
        assert_eq!(
            Arc::strong_count(&buffer),
            1,
            "the buffer is never released"
        );
    });
}

/// The calls of the reading half.
struct Reader {
    half: RecvCursors,
    guarded: Arc<GuardedRing>,
    conn: Arc<Connection>,
}

impl Reader {
    fn guard(&mut self, len: usize) -> ReadGuard {
        let at = self.half.at();
        self.half.consume(len_u32(len));
        self.guarded.retain(usize::try_from(at).unwrap(), len)
    }

    /// Whether it has the window back.
    fn reclaim(&mut self) -> bool {
        let (confirmed, is_window_back) = self.guarded.take_confirmed();
        self.half.confirm_retained(confirmed);
        is_window_back
    }
}

/// The peer's writing half, which waits for space.
struct Peer {
    half: SendCursors,
    /// The element that it writes, and the one that has its words.
    ring: Element,
    words: Element,
    written: usize,
    buffer: Arc<dyn Dmb>,
}

impl Peer {
    /// Writes as much as there is space for.
    fn write(&mut self) {
        let word = ConsumerWord::from_ne(self.words.consumer().load(Ordering::Acquire));
        let freed = self.half.handle_consumer(word.cursor);
        freed.expect("the cursor of a guard is not in order");
        let space = self.half.space();
        let (at, count) = [self.half.at(), space]
            .map(|len| usize::try_from(len).unwrap())
            .into();
        if count > 0 {
            self.ring.write(at, &[0; DATA.len()][..count]).unwrap();
            self.half.commit(space);
            self.written += count;
        }
    }
}

/// A ring that the peer has filled, and that the reading half has lent to guards.
fn full_ring() -> (Reader, Peer) {
    let [ring, words] = [(); 2].map(|()| {
        let element = Element::new(Region::anonymous(HEADER_LEN + DATA.len())).unwrap();
        element.reset();
        element
    });
    let size = Ring::new(len_u32(DATA.len())).unwrap();
    let (mut recv, mut send) = (RecvCursors::new(size), SendCursors::new(size));
    ring.write(0, DATA).unwrap();
    let cursor = send.commit(len_u32(DATA.len()));
    recv.handle_producer(cursor).unwrap();
    let producer = ProducerWord { cursor }.to_ne();
    ring.producer().store(producer, Ordering::Release);
    let blocked = ConsumerWord {
        producer_flags: ProducerFlags::WRITER_BLOCKED,
        ..ConsumerWord::default()
    };
    ring.consumer().store(blocked.to_ne(), Ordering::Release);

    let buffer: Arc<dyn Dmb> = Arc::new(Buffer(ring.region().clone()));
    let conn = Arc::new(Connection(words.clone()));
    let weak: Weak<Connection> = Arc::downgrade(&conn);
    let retained = RetainedWindow::new(size);
    let guarded = GuardedRing::of(
        ring.clone(),
        retained,
        Arc::clone(&buffer),
        weak,
        trust_peers(),
    );
    guarded.begin(recv.confirmed(), recv.unconfirmed());
    let reader = Reader {
        half: recv,
        guarded,
        conn,
    };
    let peer = Peer {
        half: send,
        ring,
        words,
        written: DATA.len(),
        buffer,
    };
    (reader, peer)
}

/// Publishes to the peer's element.
struct Connection(Element);

impl PublishConsumer for Connection {
    fn publish_consumer(&self, cursor: Cursor) {
        let word = ConsumerWord {
            cursor,
            ..ConsumerWord::default()
        };
        self.0.consumer().store(word.to_ne(), Ordering::Release);
    }
}

#[derive(Debug)]
struct Buffer(Region);

impl Dmb for Buffer {
    fn token(&self) -> DmbToken {
        DmbToken(1)
    }

    fn region(&self) -> &Region {
        &self.0
    }
}

const DATA: &[u8; 4] = b"abcd";
