//! The data path of SMC-D in one direction, with rewinds and with bytes that stay in use after they
//! were read: each byte arrives once and in order, and none is overwritten that is in use. Cursors
//! of a peer that breaks the rules change nothing beyond the ring.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_core::proto::conn::{RecvCursors, RetainedWindow, SendCursors};
use smc_fuzz::Input;
use smc_wire::cursor::{Cursor, Ring};

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let has_rewind = input.flag();
    // Rewinds begin at 32 KiB.
    let size = match has_rewind {
        true => (33 << 10) + 256 * u32::from(input.byte()),
        false => 1 + u32::from(input.byte()),
    };
    let ring = Ring::new(size).expect("not zero");
    let mut stream = Stream {
        memory: vec![0; size as usize],
        send: SendCursors::new(ring).with_rewind(has_rewind),
        recv: RecvCursors::new(ring).with_rewind(has_rewind),
        retained: RetainedWindow::new(ring).with_rewind(has_rewind),
        producer: Cursor::START,
        written: 0,
        read: 0,
        in_use: Vec::new(),
    };
    while !input.is_empty() {
        if !stream.step(&mut input) {
            return stream.check();
        }
        stream.check();
    }
    stream.finish();
});

struct Stream {
    memory: Vec<u8>,
    send: SendCursors,
    recv: RecvCursors,
    retained: RetainedWindow,
    /// What the receiver has not been told yet.
    producer: Cursor,
    written: u64,
    read: u64,
    /// Ranges that were read and are in use: position in the window, in the ring, in the stream.
    in_use: Vec<Range>,
}

#[derive(Clone, Copy)]
struct Range {
    start: u64,
    at: u32,
    position: u64,
    len: u32,
}

impl Stream {
    /// False when the peer has broken the rules, so that the connection ends.
    fn step(&mut self, input: &mut Input<'_>) -> bool {
        let step = input.byte();
        match step & 7 {
            0 | 1 => self.write(input.u16().into()),
            2 => self.receive(),
            3 | 4 => self.read(input.u16().into(), step & 8 != 0),
            5 if !self.in_use.is_empty() => {
                let range = self.in_use.swap_remove(input.below(self.in_use.len()));
                self.release(range);
            }
            6 => {
                let is_blocked = step & 8 != 0;
                if self.retained.is_update_due(is_blocked, self.producer) || step & 16 != 0 {
                    self.confirm();
                }
            }
            7 if step & 0xf8 == 0xf8 => {
                let cursor = Cursor {
                    wrap: input.u16(),
                    count: input.u32(),
                };
                let _ = self.recv.handle_producer(cursor);
                let _ = self.send.handle_consumer(cursor);
                return false;
            }
            _ => {}
        }
        true
    }

    fn write(&mut self, count: u32) {
        let count = count.min(self.send.space());
        let (start, size) = (self.send.at(), self.send.ring().size());
        for offset in 0..count {
            self.memory[((start + offset) % size) as usize] = byte(self.written);
            self.written += 1;
        }
        self.producer = self.send.commit(count);
    }

    fn receive(&mut self) {
        self.recv.confirm_retained(self.retained.take_confirmed());
        let before = self.recv.consumer();
        let arrived = self.recv.handle_producer(self.producer);
        arrived.expect("an honest peer");
        if self.recv.consumer() != before {
            self.retained.rewind(self.recv.consumer());
        }
        assert_eq!(u64::from(self.recv.readable()), self.written - self.read);
    }

    fn read(&mut self, most: u32, is_retained: bool) {
        let len = self.recv.readable().min(most);
        let range = Range {
            start: self.retained.retain(len),
            at: self.recv.at(),
            position: self.read,
            len,
        };
        assert_eq!(self.recv.consume(len), len);
        self.read += u64::from(len);
        match is_retained && self.in_use.len() < 16 {
            true => self.in_use.push(range),
            false => self.release(range),
        }
    }

    /// The bytes are still those that were written.
    fn release(&mut self, range: Range) {
        let size = self.recv.ring().size();
        for offset in 0..range.len {
            let found = self.memory[((range.at + offset) % size) as usize];
            assert_eq!(found, byte(range.position + u64::from(offset)));
        }
        self.retained.release(range.start, range.len);
    }

    fn confirm(&mut self) {
        let freed = self.send.handle_consumer(self.retained.confirm());
        freed.expect("an honest peer");
        self.send.rewind();
    }

    fn check(&self) {
        let size = self.recv.ring().size();
        assert!(self.send.space() <= size && self.send.at() < size);
        assert!(self.recv.readable() + self.recv.unconfirmed() <= size);
        assert!(self.recv.at() < size && self.recv.high_water() <= size);
    }

    fn finish(&mut self) {
        self.receive();
        self.read(u32::MAX, false);
        for range in std::mem::take(&mut self.in_use) {
            self.release(range);
        }
        assert!(self.retained.is_empty());
        assert_eq!(self.read, self.written, "bytes are lost");
        self.confirm();
        assert_eq!(self.send.space(), self.send.ring().size(), "space is lost");
        self.recv.confirm_retained(self.retained.take_confirmed());
        assert_eq!(self.recv.unconfirmed(), 0);
    }
}

/// The byte of the stream at a position.
fn byte(position: u64) -> u8 {
    (position + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .to_be_bytes()[0]
}
