//! What another thread may see of a move while it happens.

use std::hint;
use std::panic::resume_unwind;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use smc_core::device::{Dmb, Signal};
use smc_core::mem::sync::Ordering;

use super::fixture::{Fixture, Stop, Verdict, bytes, ensure, load};

pub(super) fn words_are_not_torn(fixture: &mut Fixture<'_>) -> Verdict {
    watch_blocks(fixture, |words| {
        for word in words {
            ensure!(is_whole(word), "a reader saw half of a word: {word:#018x}");
        }
        Ok(())
    })
}

pub(super) fn words_arrive_in_ascending_order(fixture: &mut Fixture<'_>) -> Verdict {
    watch_blocks(fixture, |words| {
        let counts = words.map(|word| word >> 32);
        // Loaded from the last word to the first, so each must be at least as new as the next.
        let ascending = counts.windows(2).all(|two| two[0] >= two[1]);
        ensure!(
            ascending,
            "a reader saw a later word of a block before an earlier: {counts:?}"
        );
        Ok(())
    })
}

pub(super) fn data_arrives_before_the_header(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let rounds = fixture.effort().rounds;
    let read = AtomicU32::new(0);
    let (local, timeout) = (fixture.local(), fixture.timeout());
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Verdict {
            for round in 1..=rounds {
                await_round(timeout, "the reader", || {
                    Ok(read.load(Ordering::Acquire) + 1 >= round)
                })?;
                // Odd places and lengths: not the words of a block.
                let data = vec![mark(round); 1 + round as usize % 3000];
                fixture.put(dmb.token(), 33, &data, Signal::No)?;
                fixture.put(dmb.token(), 8, &u64::from(round).to_ne_bytes(), Signal::No)?;
            }
            Ok(())
        });
        for round in 1..=rounds {
            await_round(timeout, "the header", || {
                if load(&*dmb, 8)? >= u64::from(round) {
                    return Ok(true);
                }
                local.drain()?;
                Ok(false)
            })?;
            let data = bytes(dmb.region(), 33, 1 + round as usize % 3000)?;
            let late = data.iter().position(|byte| *byte != mark(round));
            if let Some(at) = late {
                read.store(u32::MAX - 1, Ordering::Release);
                ensure!(
                    false,
                    "round {round}: header is there, byte {at} before it is not"
                );
            }
            read.store(round, Ordering::Release);
        }
        writer.join().unwrap_or_else(|panic| resume_unwind(panic))
    })
}

/// Has one thread write blocks of 32 bytes as fast as it can while another checks the words, last
/// word first.
fn watch_blocks(fixture: &Fixture<'_>, check: impl Fn([u64; 4]) -> Verdict + Sync) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let rounds = u64::from(fixture.effort().rounds) * 8;
    let (local, timeout) = (fixture.local(), fixture.timeout());
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Verdict {
            for count in 1..=rounds {
                let word = whole(count).to_ne_bytes();
                fixture.put(dmb.token(), 0, &[word; 4].concat(), Signal::No)?;
            }
            Ok(())
        });
        let deadline = Instant::now() + timeout;
        while !writer.is_finished() {
            check(words(&*dmb)?)?;
            ensure!(Instant::now() < deadline, "moves of 32 bytes take too long");
            local.drain()?;
        }
        writer.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        await_round(timeout, "the last block", || {
            let words = words(&*dmb)?;
            check(words)?;
            local.drain()?;
            Ok(words[3] == whole(rounds))
        })
    })
}

/// The words of the first block, the last one loaded first.
fn words(dmb: &dyn Dmb) -> Result<[u64; 4], Stop> {
    let mut words = [0; 4];
    for (index, word) in words.iter_mut().enumerate().rev() {
        *word = load(dmb, index * 8)?;
    }
    Ok(words)
}

/// A word that shows if only a part of it arrived: a count and a mix of the count.
fn whole(count: u64) -> u64 {
    count << 32 | mix(count)
}

fn is_whole(word: u64) -> bool {
    word == 0 || word & 0xffff_ffff == mix(word >> 32)
}

fn mix(count: u64) -> u64 {
    count.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32
}

fn mark(round: u32) -> u8 {
    (round % 251 + 1) as u8
}

/// Spins for a short time, then lets others run, until the condition holds.
pub(super) fn await_round(
    timeout: Duration,
    what: &str,
    mut condition: impl FnMut() -> Result<bool, Stop>,
) -> Verdict {
    let deadline = Instant::now() + timeout;
    loop {
        for _ in 0..64 {
            if condition()? {
                return Ok(());
            }
            hint::spin_loop();
        }
        ensure!(Instant::now() < deadline, "{what} does not come");
        thread::yield_now();
    }
}
