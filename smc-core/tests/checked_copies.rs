//! What was copied out of memory that a peer writes stays as it was checked.
//!
//! A compiler that takes the memory for its own may leave the copy out, and read the memory again
//! where the copy is used. It does so only in code as optimised as users have it:
//! `./test.sh release`.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use smc_core::mem::{Element, HEADER_LEN, Region};

/// A message that passes the check if each of its bytes is small.
type Message = [u8; 64];

#[test]
fn what_was_checked_is_what_is_used() {
    if cfg!(debug_assertions) {
        println!("skipped: only optimised code reads memory twice; see `./test.sh release`");
        return;
    }
    let region = Region::anonymous(HEADER_LEN + size_of::<Message>());
    let element = Element::new(region.clone()).unwrap();
    while_a_peer_writes(&region, |to| take_from_region(&region, to));
    while_a_peer_writes(&region, |to| take_from_ring(&element, to));
}

#[inline(never)]
fn take_from_region(region: &Region, to: &mut Message) -> bool {
    let mut copy = [0; size_of::<Message>()];
    region.copy_out(HEADER_LEN, &mut copy).unwrap();
    let is_good = is_good(&copy);
    if is_good {
        *to = copy;
    }
    is_good
}

#[inline(never)]
fn take_from_ring(element: &Element, to: &mut Message) -> bool {
    let mut copy = [0; size_of::<Message>()];
    element.read(0, &mut copy).unwrap();
    let is_good = is_good(&copy);
    if is_good {
        *to = copy;
    }
    is_good
}

/// Takes messages while another thread changes them, until enough of its changes were seen.
fn while_a_peer_writes(region: &Region, take: impl Fn(&mut Message) -> bool) {
    let enough = AtomicBool::new(false);
    let changed = thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                for byte in [1, 0xFF] {
                    let message = [byte; size_of::<Message>()];
                    region.copy_in(HEADER_LEN, &message).unwrap();
                    // The reader may wait for this CPU.
                    thread::yield_now();
                }
            }
        });
        let mut to = [0; size_of::<Message>()];
        let (mut was_good, mut turned_bad, mut changed) = (false, 0, 0);
        while turned_bad < 20 {
            let is_good = take(black_box(&mut to));
            turned_bad += u32::from(was_good && !is_good);
            changed += u32::from(is_good && !are_small(black_box(&to)));
            was_good = is_good;
        }
        enough.store(true, Ordering::Relaxed);
        changed
    });
    assert_eq!(changed, 0, "messages were not what was checked");
}

/// Looks at the bytes so often that the other thread changes them during the check if it runs only
/// now and then.
fn is_good(message: &Message) -> bool {
    let bytes = message.iter().cycle().take(200 * size_of::<Message>());
    let digest = bytes.fold(1_u64, |digest, byte| {
        digest.wrapping_mul(31).wrapping_add(u64::from(*byte))
    });
    are_small(message) && digest != 0
}

fn are_small(message: &Message) -> bool {
    message.iter().all(|byte| *byte < 16)
}
