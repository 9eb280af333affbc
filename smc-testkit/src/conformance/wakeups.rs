//! The race between a driver that goes to sleep and a peer that signals.

use std::hint;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::thread;
use std::time::{Duration, Instant};

use smc_core::device::{Dmb, Signal};
use smc_core::mem::sync::Ordering;

use super::fixture::{Fixture, OrFail, SMALL, Stop, Verdict, ensure, fail, load};
use super::node::Node;
use super::order::await_round;
use crate::Rng;

pub(super) fn wake_ups_are_never_lost(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let peer = fixture.peer();
    await_rounds(fixture, &*dmb, |round| {
        put(peer, fixture.local(), &*dmb, round)
    })
}

/// Counts the rounds in a buffer, and signals.
fn put(from: &Node, owner: &Node, dmb: &dyn Dmb, round: u32) -> Verdict {
    let word = u64::from(round).to_ne_bytes();
    from.put(owner.gid(), dmb.token(), AT, &word, Signal::Yes)
}

/// Has a thread call `write` with the rounds from 1, at odd moments, while this thread waits for
/// each of them like a reader whose driver parks.
pub(super) fn await_rounds(
    fixture: &Fixture<'_>,
    dmb: &dyn Dmb,
    write: impl Fn(u32) -> Verdict + Sync,
) -> Verdict {
    let mut reader = BufferReader::new(fixture.local(), dmb, fixture.timeout());
    race(fixture, write, |round| reader.await_round(round))
}

/// Has a thread call `write` with the rounds from 1, at odd moments, each after this thread has
/// come back from `read` with the round before.
pub(super) fn race(
    fixture: &Fixture<'_>,
    write: impl Fn(u32) -> Verdict + Sync,
    mut read: impl FnMut(u32) -> Verdict,
) -> Verdict {
    let (rounds, timeout) = (fixture.effort().rounds, fixture.timeout());
    let seen = AtomicU32::new(0);
    thread::scope(|scope| {
        let writer = scope.spawn(|| write_rounds(0x6a69_7474, rounds, timeout, &seen, &write));
        let read = (1..=rounds).try_for_each(|round| {
            read(round)?;
            seen.store(round, Ordering::Release);
            Ok(())
        });
        // Lets the writer run to its end after a failure.
        seen.store(u32::MAX - 1, Ordering::Release);
        let written = writer.join().unwrap_or_else(|panic| resume_unwind(panic));
        // The cause first: what is not written is not read.
        written.and(read)
    })
}

/// Writes each round at an odd moment after the one before was seen.
fn write_rounds(
    seed: u64,
    rounds: u32,
    timeout: Duration,
    seen: &AtomicU32,
    write: impl Fn(u32) -> Verdict,
) -> Verdict {
    let mut rng = Rng::new(seed);
    for round in 1..=rounds {
        // Longer than the reader waits, so that the reader states what it waited for.
        await_round(timeout * 2, "the reader", || {
            Ok(seen.load(Ordering::Acquire) + 1 >= round)
        })?;
        linger(&mut rng);
        write(round)?;
    }
    Ok(())
}

/// Has a thread call `answer` with the rounds from 1, at odd moments, while this thread calls
/// `ask`.
pub(super) fn ask_and_answer(
    fixture: &Fixture<'_>,
    mut ask: impl FnMut(u32) -> Verdict,
    mut answer: impl FnMut(u32, &mut Rng) -> Verdict + Send,
) -> Verdict {
    let rounds = fixture.effort().rounds;
    thread::scope(|scope| {
        let echo = scope.spawn(move || {
            let mut rng = Rng::new(0x6563_686f);
            (1..=rounds).try_for_each(|round| answer(round, &mut rng))
        });
        let asked = (1..=rounds).try_for_each(&mut ask);
        let echoed = echo.join().unwrap_or_else(|panic| resume_unwind(panic));
        asked.and(echoed)
    })
}

pub(super) fn wake_ups_are_never_lost_both_ways(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer, timeout) = (fixture.local(), fixture.peer(), fixture.timeout());
    let to_local = fixture.buffer(local, peer, SMALL)?;
    let to_peer = fixture.buffer(peer, local, SMALL)?;
    let mut local_reader = BufferReader::new(local, &*to_local, timeout);
    let mut peer_reader = BufferReader::new(peer, &*to_peer, timeout * 2);
    ask_and_answer(
        fixture,
        |round| {
            put(local, peer, &*to_peer, round)?;
            local_reader.await_round(round)
        },
        |round, rng| {
            peer_reader.await_round(round)?;
            linger(rng);
            put(peer, local, &*to_local, round)
        },
    )
}

pub(super) fn wake_ups_are_never_lost_with_many_buffers(fixture: &mut Fixture<'_>) -> Verdict {
    const BUFFERS: usize = 4;
    let (local, peer, timeout) = (fixture.local(), fixture.peer(), fixture.timeout());
    let rounds = fixture.effort().rounds / 2;
    let dmbs = fixture.local_buffers(BUFFERS)?;
    let seen: Vec<_> = (0..BUFFERS).map(|_| AtomicU32::new(0)).collect();
    thread::scope(|scope| {
        let mut writers = Vec::new();
        for (index, (dmb, seen)) in dmbs.iter().zip(&seen).enumerate() {
            writers.push(scope.spawn(move || {
                let put = |round| put(peer, local, &**dmb, round);
                write_rounds(index as u64, rounds, timeout, seen, put)
            }));
        }
        let read = await_all(local, &dmbs, &seen, rounds, timeout);
        seen.iter()
            .for_each(|seen| seen.store(u32::MAX - 1, Ordering::Release));
        let written = writers
            .into_iter()
            .try_for_each(|writer| writer.join().unwrap_or_else(|panic| resume_unwind(panic)));
        // The cause first: what is not written is not read.
        written.and(read)
    })
}

/// Waits until every buffer has got to the last round, as readers of their own and one driver.
fn await_all(
    node: &Node,
    dmbs: &[Arc<dyn Dmb>],
    seen: &[AtomicU32],
    rounds: u32,
    timeout: Duration,
) -> Verdict {
    let mut rng = Rng::new(0x6472_6976);
    let mut awake = vec![true; dmbs.len()];
    loop {
        for ((dmb, seen), awake) in dmbs.iter().zip(seen).zip(&mut awake) {
            // A reader goes to sleep only after a poll behind `arm` that found nothing.
            while *awake {
                dmb.arm();
                let round = word(&**dmb)?;
                *awake = seen.swap(round, Ordering::AcqRel) != round;
            }
        }
        if seen
            .iter()
            .all(|seen| seen.load(Ordering::Acquire) >= rounds)
        {
            return Ok(());
        }
        if !node.turn_with(timeout, || spin(rng.below(60)))? {
            let asleep = dmbs.iter().zip(seen).map(|(dmb, seen)| {
                Ok(format!(
                    "{} of {}",
                    seen.load(Ordering::Acquire),
                    word(&**dmb)?
                ))
            });
            let asleep = asleep.collect::<Result<Vec<_>, Stop>>()?.join(", ");
            ensure!(
                false,
                "nothing wakes the driver; readers are at rounds {asleep}"
            );
        }
        for (dmb, awake) in dmbs.iter().zip(&mut awake) {
            *awake = node.take_reports(dmb.token()) > 0;
        }
    }
}

/// A stream that reads one buffer, with its driver.
struct BufferReader<'a> {
    node: &'a Node,
    dmb: &'a dyn Dmb,
    timeout: Duration,
    rng: Rng,
}

impl<'a> BufferReader<'a> {
    fn new(node: &'a Node, dmb: &'a dyn Dmb, timeout: Duration) -> Self {
        Self {
            node,
            dmb,
            timeout,
            rng: Rng::new(dmb.token().0),
        }
    }

    /// Waits until the word of the buffer has reached `round`.
    ///
    /// The reader arms the buffer and polls again before it sleeps; then only a report of its
    /// buffer wakes it. It is held up at random, so that the signal falls anywhere between.
    fn await_round(&mut self, round: u32) -> Verdict {
        let (node, dmb) = (self.node, self.dmb);
        linger(&mut self.rng);
        loop {
            dmb.arm();
            if word(dmb)? >= round {
                return Ok(());
            }
            let deadline = Instant::now() + self.timeout;
            while node.take_reports(dmb.token()) == 0 {
                let left = deadline.saturating_duration_since(Instant::now());
                let pause = || spin(self.rng.below(60));
                if left.is_zero() || !node.turn_with(left, pause)? {
                    return not_woken(round, word(dmb)?);
                }
            }
        }
    }
}

fn not_woken(round: u32, now: u32) -> Verdict {
    ensure!(
        now < round,
        "round {round}: the data is there, nothing wakes its reader"
    );
    fail(format!(
        "round {round}: the peer's data does not come, memory has {now}"
    ))
}

fn word(dmb: &dyn Dmb) -> Result<u32, Stop> {
    u32::try_from(load(dmb, AT)?).or_fail("a word that was not written")
}

/// Waits for a random short time, mostly about as long as a driver takes to go to sleep.
pub(super) fn linger(rng: &mut Rng) {
    match rng.below(8) {
        0 => {}
        1..=5 => spin(rng.below(300)),
        6 => spin(rng.below(3000)),
        _ => thread::yield_now(),
    }
}

pub(super) fn spin(count: usize) {
    for _ in 0..count {
        hint::spin_loop();
    }
}

/// Where the rounds are counted: the word of the producer cursor.
const AT: usize = 8;
