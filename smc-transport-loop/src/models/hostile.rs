//! A peer that stores anything in the shared words, at any step of this side: no panic, no index
//! out of range, and an end of each call.

use std::io::IoSlice;

use loom::thread;
use smc_core::device::{Attachment, Dmb};
use smc_core::mem::HEADER_LEN;
use smc_core::mem::sync::Ordering;
use smc_core::mem::sync::model::check;

use super::{DATA, LEN, Sides};

/// The peer writes the words of the buffers that this side owns.
#[test]
fn an_owner_tolerates_a_writer_that_stores_anything() {
    for words in [
        [READY_SUMMARY, READY],
        [SLEEPING, SCAN_REQUESTED],
        [ARMED, USERS],
    ] {
        hostile(words, |sides| {
            sides.drive();
            sides.dmb.arm();
            let Sides {
                peer, permits, dmb, ..
            } = sides;
            // Its memory is used again, if the peer's words allow it.
            drop(dmb);
            let (next, _) = peer.local.register(LEN, permits.take().unwrap()).unwrap();
            let mut found = *DATA;
            next.region().copy_out(HEADER_LEN, &mut found).unwrap();
            assert_eq!(found, [0; DATA.len()], "a new buffer is empty");
        });
    }
}

/// The peer owns the buffers that this side writes.
#[test]
fn a_writer_tolerates_an_owner_that_stores_anything() {
    for words in [
        [CHANGED_SUMMARY, CHANGED],
        [REGISTRATION, TOKEN],
        [MEMORY, ARMED],
        [USERS, SLEEPING],
    ] {
        hostile(words, |mut sides| {
            sides.buffers.scan(usize::MAX);
            let _ended = sides.target.write(HEADER_LEN, &[IoSlice::new(DATA)]);
            if let Ok(attachment) = sides.target.attach() {
                attachment.signal().unwrap();
            }
            sides.target.is_registered();
            drop(sides.buffers);
        });
    }
}

/// The peer stores a value in two words, one after the other, while this side does its steps.
fn hostile(words: [usize; 2], steps: fn(Sides)) {
    for value in [0, 1, u64::MAX] {
        check(move || {
            let sides = Sides::new();
            let memory = sides.memory.clone();
            let peer = thread::spawn(move || {
                for at in words {
                    memory.store(at, value, Ordering::Release).unwrap();
                }
            });
            steps(sides);
            peer.join().unwrap();
        });
    }
}

// As in `signal_page`; the slot is that of the buffer.
const SLEEPING: usize = 0x0000;
const SCAN_REQUESTED: usize = 0x0040;
const READY_SUMMARY: usize = 0x0080;
const CHANGED_SUMMARY: usize = 0x00c0;
const READY: usize = 0x1000;
const CHANGED: usize = 0x1800;
const ARMED: usize = 0x2000;
const USERS: usize = 0x2008;
const REGISTRATION: usize = 0x2010;
const TOKEN: usize = 0x2018;
const MEMORY: usize = 0x2020;
