//! Words of the CDC block that no peer sends, or not at that time.

use smc_core::wire::cdc::{ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_core::wire::cursor::Cursor;

use super::super::fixture::Verdict;
use super::attacker::Attacker;

pub(super) fn producer_cursors_outside_of_the_ring(attacker: &mut Attacker<'_>) -> Verdict {
    for beyond in [0, 1, 1 << 20, u32::MAX] {
        let connection = attacker.open()?;
        let count = connection.ring.size().saturating_add(beyond);
        connection.store_producer(attacker, Cursor { wrap: 0, count })?;
        connection.await_end(attacker)?;
    }
    Ok(())
}

pub(super) fn producer_cursors_that_go_back(attacker: &mut Attacker<'_>) -> Verdict {
    for count in [0, 50, 99] {
        let mut connection = attacker.open()?;
        connection.exchange(attacker, 100)?;
        connection.store_producer(attacker, Cursor { wrap: 0, count })?;
        connection.await_end(attacker)?;
    }
    Ok(())
}

pub(super) fn producer_cursors_past_the_free_space(attacker: &mut Attacker<'_>) -> Verdict {
    let mut connection = attacker.open()?;
    connection.exchange(attacker, 100)?;
    // One byte more than a ring from what the victim has published to have read.
    let Cursor { wrap, count } = connection.peer_consumer()?;
    let (wrap, count) = (wrap + 1, count + 1);
    connection.store_producer(attacker, Cursor { wrap, count })?;
    connection.await_end(attacker)
}

pub(super) fn wrap_counts_that_jump(attacker: &mut Attacker<'_>) -> Verdict {
    for (wrap, count) in [(7, 0), (5, 100), (0x8000, 1), (u16::MAX, 0)] {
        let connection = attacker.open()?;
        connection.store_producer(attacker, Cursor { wrap, count })?;
        connection.await_end(attacker)?;
    }
    Ok(())
}

pub(super) fn consumer_cursors_that_cannot_be(attacker: &mut Attacker<'_>) -> Verdict {
    for (wrap, count) in [(0, 101), (1, 0), (0, u32::MAX), (9, 9), (u16::MAX, 0)] {
        let mut connection = attacker.open()?;
        connection.exchange(attacker, 100)?;
        let cursor = Cursor { wrap, count };
        connection.store_consumer(attacker, ConsumerWord { cursor, ..IDLE })?;
        // Its writer looks when it is to write.
        connection.send(attacker, 100)?;
        connection.await_end(attacker)?;
    }
    Ok(())
}

pub(super) fn all_flags_at_once(attacker: &mut Attacker<'_>) -> Verdict {
    let mut connection = attacker.open()?;
    connection.exchange(attacker, 100)?;
    let flags = ConsumerWord {
        producer_flags: ProducerFlags::all(),
        state_flags: StateFlags::all(),
        ..IDLE
    };
    connection.store_consumer(attacker, flags)?;
    connection.await_end(attacker)?;
    // Those that end nothing.
    let mut connection = attacker.open()?;
    let producer_flags = ProducerFlags::all();
    connection.store_consumer(
        attacker,
        ConsumerWord {
            producer_flags,
            ..IDLE
        },
    )?;
    connection.exchange(attacker, 100)
}

pub(super) fn flags_of_an_end_before_any_data(attacker: &mut Attacker<'_>) -> Verdict {
    let ends = [
        StateFlags::CLOSED,
        StateFlags::ABORTED,
        StateFlags::SENDING_DONE,
    ];
    for state_flags in ends {
        let word = ConsumerWord {
            state_flags,
            ..IDLE
        };
        let connection = attacker.open()?;
        connection.store_consumer(attacker, word)?;
        connection.await_end(attacker)?;
        // And before the connection is complete.
        let accepted = attacker.propose()?;
        let bytes = word.to_ne().to_ne_bytes();
        attacker
            .put(accepted.buffer(), ConsumerWord::OFFSET, &bytes)?
            .ok();
        accepted.confirm(attacker)?.await_end(attacker)?;
    }
    Ok(())
}

pub(super) fn random_blocks(attacker: &mut Attacker<'_>) -> Verdict {
    for _ in 0..8 {
        let mut block = [0; 44];
        // Before the connection is complete, and in it.
        let accepted = attacker.propose()?;
        attacker.rng.fill(&mut block);
        attacker.put(accepted.buffer(), 0, &block)?.ok();
        drop(accepted.confirm(attacker)?);
        let connection = attacker.open()?;
        for _ in 0..8 {
            attacker.rng.fill(&mut block);
            connection.store(attacker, 0, &block)?;
        }
    }
    Ok(())
}

pub(super) fn words_that_change_all_the_time(attacker: &mut Attacker<'_>) -> Verdict {
    // Any words, for a victim that reads them twice.
    let connection = attacker.open()?;
    for _ in 0..STORES {
        let words = [attacker.rng.bits(), attacker.rng.bits()].map(u64::to_ne_bytes);
        connection.store(attacker, ProducerWord::OFFSET, words.as_flattened())?;
    }
    connection.await_end(attacker)?;
    // Words of which each could be.
    let connection = attacker.open()?;
    let size = connection.ring.size() as usize;
    for _ in 0..STORES {
        let count = u32::try_from(attacker.rng.below(size)).unwrap_or(0);
        connection.store_producer(attacker, Cursor { wrap: 0, count })?;
        let cursor = Cursor {
            wrap: 0,
            count: count / 2,
        };
        connection.store_consumer(attacker, ConsumerWord { cursor, ..IDLE })?;
    }
    connection.await_end(attacker)
}

/// A word with nothing in it.
pub(super) const IDLE: ConsumerWord = ConsumerWord {
    cursor: Cursor::START,
    producer_flags: ProducerFlags::empty(),
    state_flags: StateFlags::empty(),
};

/// Stores of a pass.
const STORES: usize = 2048;
