//! Loom models of the ring: every order of steps, every value that a load may return.
//!
//! Writer and reader are short versions of the stream halves: they access the two elements, and
//! their cursors, in the same order.

use loom::thread::{self, yield_now};
use smc_wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::cursor::Ring;

use super::sync::Ordering;
use super::sync::model::{Mutation, check, with};
use super::*;
use crate::error::PeerMisbehaved;
use crate::proto::conn::{RecvCursors, SendCursors};

#[test]
fn what_is_read_is_what_was_written() {
    ring(None, None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_producer_word_without_release_shows_bytes_too_early() {
    ring(Some(Mutation::NoRelease), None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_producer_word_read_without_acquire_shows_bytes_too_early() {
    ring(None, Some(Mutation::NoAcquire));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_consumer_word_without_release_frees_bytes_too_early() {
    ring(None, Some(Mutation::NoRelease));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_consumer_word_read_without_acquire_frees_bytes_too_early() {
    ring(Some(Mutation::NoAcquire), None);
}

#[test]
fn the_end_comes_behind_all_data() {
    end(None, None);
}

#[test]
#[should_panic(expected = "the end came before the data")]
fn an_end_without_release_overtakes_data() {
    end(Some(Mutation::NoRelease), None);
}

#[test]
#[should_panic(expected = "the end came before the data")]
fn an_end_read_without_acquire_overtakes_data() {
    end(None, Some(Mutation::NoAcquire));
}

#[test]
fn a_reader_tolerates_a_peer_that_stores_anything() {
    hostile(|_, mut reader| {
        let mut read = Vec::new();
        for _ in 0..2 {
            let before = read.len();
            // Whatever the word is, only bytes of the ring are read, and once.
            let count = reader.read(&mut read).unwrap_or(0);
            assert!(count <= RING && read.len() == before + count);
            reader.is_at_end();
        }
    });
}

#[test]
fn a_writer_tolerates_a_peer_that_stores_anything() {
    hostile(|mut writer, _| {
        for _ in 0..2 {
            let written = writer.write(DATA);
            assert!(written.is_err() || writer.half.space() == 0, "{written:?}");
        }
    });
}

/// A peer that stores a cursor in both words of the ends, while an end does its steps.
fn hostile(steps: fn(Writer, Reader)) {
    let cursors = [RING as u64 - 1, RING as u64, 1 << 32, u64::MAX];
    for value in cursors
        .into_iter()
        .flat_map(|cursor| [cursor, cursor.swap_bytes()])
    {
        check(move || {
            let (writer, reader) = ends();
            let words = [writer.local.clone(), reader.local.clone()];
            let peer = thread::spawn(move || {
                for element in words {
                    element.producer().store(value, Ordering::Release);
                    element.consumer().store(value, Ordering::Release);
                }
            });
            steps(writer, reader);
            peer.join().unwrap();
        });
    }
}

/// Data longer than the ring passes through it in pieces, with wrap-around.
fn ring(writing: Option<Mutation>, reading: Option<Mutation>) {
    check(move || {
        let (mut writer, mut reader) = ends();
        let sender = thread::spawn(move || {
            with(writing, || {
                let mut left = DATA;
                while !left.is_empty() {
                    match writer.write(left).unwrap() {
                        0 => yield_now(),
                        count => left = &left[count..],
                    }
                }
            });
        });
        with(reading, || {
            let mut read = Vec::new();
            while read.len() < DATA.len() {
                if reader.read(&mut read).unwrap() == 0 {
                    yield_now();
                }
            }
            assert_eq!(read, DATA);
        });
        sender.join().unwrap();
    });
}

/// A reader that has seen the end-of-stream flag reads the producer word once more, and then has
/// all data.
fn end(writing: Option<Mutation>, reading: Option<Mutation>) {
    check(move || {
        let (mut writer, mut reader) = ends();
        let sender = thread::spawn(move || {
            with(writing, || {
                assert_eq!(writer.write(b"ab"), Ok(2));
                writer.finish();
            });
        });
        let mut read = Vec::new();
        with(reading, || {
            reader.read(&mut read).unwrap();
            if reader.is_at_end() {
                reader.read_producer().unwrap();
                let seen = read.len() + len(reader.half.readable());
                assert_eq!(seen, 2, "the end came before the data");
            }
        });
        sender.join().unwrap();
    });
}

struct Writer {
    half: SendCursors,
    /// The peer's element, and the local one.
    peer: Element,
    local: Element,
    seen: u64,
    word: ConsumerWord,
}

impl Writer {
    /// Writes as much as there is space for.
    fn write(&mut self, data: &[u8]) -> Result<usize, PeerMisbehaved> {
        let raw = self.local.consumer().load(Ordering::Acquire);
        if raw != self.seen {
            let word = ConsumerWord::from_ne(raw);
            self.half.handle_consumer(word.cursor)?;
            self.seen = raw;
        }
        let space = len(self.half.space());
        let count = space.min(data.len());
        if count == 0 {
            return Ok(0);
        }
        self.peer
            .write(len(self.half.at()), &data[..count])
            .unwrap();
        let blocked = ProducerFlags::WRITER_BLOCKED;
        if self.word.producer_flags.contains(blocked) != (count == space) {
            self.word.producer_flags.toggle(blocked);
            self.publish_consumer();
        }
        let cursor = self.half.commit(u32::try_from(count).unwrap());
        let word = ProducerWord { cursor }.to_ne();
        self.peer.producer().store(word, Ordering::Release);
        Ok(count)
    }

    fn finish(&mut self) {
        self.word.state_flags.insert(StateFlags::SENDING_DONE);
        self.publish_consumer();
    }

    fn publish_consumer(&self) {
        let word = self.word.to_ne();
        self.peer.consumer().store(word, Ordering::Release);
    }
}

struct Reader {
    half: RecvCursors,
    peer: Element,
    local: Element,
    seen: u64,
}

impl Reader {
    /// Reads what is there.
    fn read(&mut self, to: &mut Vec<u8>) -> Result<usize, PeerMisbehaved> {
        if self.half.readable() == 0 {
            self.read_producer()?;
        }
        let count = self.half.readable();
        if count == 0 {
            return Ok(0);
        }
        let mut bytes = vec![0; len(count)];
        self.local.read(len(self.half.at()), &mut bytes).unwrap();
        to.extend(bytes);
        self.half.consume(count);
        let word = ConsumerWord::from_ne(self.local.consumer().load(Ordering::Relaxed));
        let blocked = word.producer_flags.contains(ProducerFlags::WRITER_BLOCKED);
        if self.half.is_update_due(blocked) {
            let word = ConsumerWord {
                cursor: self.half.confirm(),
                ..ConsumerWord::default()
            };
            self.peer.consumer().store(word.to_ne(), Ordering::Release);
        }
        Ok(len(count))
    }

    fn read_producer(&mut self) -> Result<(), PeerMisbehaved> {
        let word = self.local.producer().load(Ordering::Acquire);
        if word != self.seen {
            let cursor = ProducerWord::from_ne(word).cursor;
            self.half.handle_producer(cursor)?;
            self.seen = word;
        }
        Ok(())
    }

    fn is_at_end(&self) -> bool {
        let word = ConsumerWord::from_ne(self.local.consumer().load(Ordering::Acquire));
        !word.state_flags.is_empty()
    }
}

fn ends() -> (Writer, Reader) {
    let [writers, readers] = [element(), element()];
    let size = Ring::new(u32::try_from(RING).unwrap()).unwrap();
    let writer = Writer {
        half: SendCursors::new(size),
        peer: readers.clone(),
        local: writers.clone(),
        seen: 0,
        word: ConsumerWord::default(),
    };
    let reader = Reader {
        half: RecvCursors::new(size),
        peer: writers,
        local: readers,
        seen: 0,
    };
    (writer, reader)
}

/// An element of which both words and all bytes have been touched.
fn element() -> Element {
    let element = Element::new(Region::anonymous(HEADER_LEN + RING)).unwrap();
    element.reset();
    element.write(0, &[0; RING]).unwrap();
    element
}

fn len(len: u32) -> usize {
    usize::try_from(len).unwrap()
}

const RING: usize = 3;
const DATA: &[u8] = b"seven b";
