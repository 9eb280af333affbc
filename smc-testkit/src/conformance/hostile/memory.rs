//! Data, signals, tokens and buffers.

use std::iter;

use smc_core::device::PeerEvent;
use smc_core::wire::cdc::{CdcD, ConsumerWord};
use smc_core::wire::cursor::Cursor;
use smc_wire::types::{DmbToken, Gid};

use super::super::fixture::{SMALL, Verdict, ensure};
use super::super::node::ring;
use super::attacker::Attacker;
use super::cursors::IDLE;

pub(super) fn data_that_changes_while_it_is_read(attacker: &mut Attacker<'_>) -> Verdict {
    let mut connection = attacker.open()?;
    let part = connection.ring.size() / 4;
    let mut noise = vec![0; part as usize];
    for _ in 0..64 {
        if connection
            .ring
            .free(connection.written, connection.peer_consumer()?)
            >= part
        {
            connection.written = connection.ring.advance(connection.written, part);
            connection.store_producer(attacker, connection.written)?;
        }
        for quarter in 0..4 {
            attacker.rng.fill(&mut noise);
            connection.store(attacker, CdcD::LEN + quarter * part as usize, &noise)?;
        }
        // Reads what comes back, so that the victim goes on.
        let cursor = connection.peer_producer()?;
        connection.store_consumer(attacker, ConsumerWord { cursor, ..IDLE })?;
    }
    Ok(())
}

pub(super) fn data_that_is_not_read(attacker: &mut Attacker<'_>) -> Verdict {
    let mut connection = attacker.open()?;
    // More than the ring here takes, so that the victim's writer waits.
    for _ in 0..4 {
        let free = SMALL as u32 / 2;
        if connection.written.count + free < connection.ring.size() {
            connection.send(attacker, free)?;
        }
    }
    // And a second one, which waits for a reader that never comes.
    let waits = attacker.open()?;
    waits.store_consumer(attacker, IDLE)
}

pub(super) fn signals_without_end(attacker: &mut Attacker<'_>) -> Verdict {
    let connection = attacker.open()?;
    for _ in 0..SIGNALS {
        connection.store(attacker, 0, &[])?;
    }
    Ok(())
}

pub(super) fn signals_of_attachments_without_end(attacker: &mut Attacker<'_>) -> Verdict {
    let connection = attacker.open()?;
    let timeout = attacker.timeout();
    if let Some(attachment) = attacker.attach(connection.buffer)? {
        for _ in 0..SIGNALS {
            ring(&*attachment, timeout)?;
        }
    }
    Ok(())
}

pub(super) fn events_without_end(attacker: &mut Attacker<'_>) -> Verdict {
    let _connection = attacker.open()?;
    let victim = attacker.victim();
    let Some(events) = attacker.direct()?.peer_events() else {
        return Ok(());
    };
    let kinds = [
        PeerEvent::TestRequest,
        PeerEvent::TestResponse,
        PeerEvent::Shutdown,
    ];
    for kind in kinds.into_iter().cycle().take(SIGNALS / 8) {
        // A device that is busy takes no more.
        events.signal_event(victim, kind).ok();
    }
    attacker.node()?.forget()
}

pub(super) fn tokens_of_others(attacker: &mut Attacker<'_>) -> Verdict {
    let _connection = attacker.open()?;
    let victim = attacker.victim();
    for (owner, token) in attacker.others().to_vec() {
        // Also as one of the device that this peer does have a buffer of.
        for owner in [owner, victim] {
            attacker.expect_refused((owner, token))?;
        }
    }
    Ok(())
}

pub(super) fn guessed_tokens(attacker: &mut Attacker<'_>) -> Verdict {
    let connection = attacker.open()?;
    let (victim, own) = connection.buffer;
    let known = attacker.others().iter().map(|(_, token)| *token);
    let known: Vec<_> = known.chain([own]).collect();
    let near = known.iter().flat_map(|DmbToken(token)| {
        (0..64)
            .map(move |bit| *token ^ (1_u64 << bit))
            .chain([token.wrapping_add(1)])
    });
    let near: Vec<_> = near
        .map(DmbToken)
        .filter(|token| !known.contains(token))
        .collect();
    let rng = &mut attacker.rng;
    let random: Vec<_> = iter::repeat_with(|| DmbToken(rng.bits()))
        .take(64)
        .collect();
    for token in near.into_iter().chain(random) {
        attacker.expect_refused((victim, token))?;
    }
    Ok(())
}

pub(super) fn freed_tokens(attacker: &mut Attacker<'_>) -> Verdict {
    let connection = attacker.open()?;
    let freed = connection.buffer;
    connection.store_producer(
        attacker,
        Cursor {
            wrap: 0,
            count: u32::MAX,
        },
    )?;
    connection.await_end(attacker)?;
    drop(connection);
    attacker.eventually("the buffer of a connection that has ended is freed", || {
        Ok(attacker.put(freed, 0, &[])?.is_err())
    })?;
    for _ in 0..64 {
        attacker.expect_refused(freed)?;
    }
    Ok(())
}

pub(super) fn attachments_that_come_and_go(attacker: &mut Attacker<'_>) -> Verdict {
    let mut connection = attacker.open()?;
    for _ in 0..256 {
        if let Some(attachment) = attacker.attach(connection.buffer)? {
            // Whatever becomes of it.
            attachment.signal().ok();
        }
    }
    connection.exchange(attacker, 100)
}

pub(super) fn registrations_up_to_the_limit(attacker: &mut Attacker<'_>) -> Verdict {
    let _connection = attacker.open()?;
    let victim = attacker.victim();
    let others: Vec<_> = attacker.others().iter().map(|(gid, _)| *gid).collect();
    let limit = attacker
        .node()?
        .device()
        .limits()
        .max_dmbs
        .min(REGISTRATIONS);
    for peer in others.into_iter().chain([victim, UNKNOWN]) {
        let mut held = Vec::new();
        while held.len() < limit {
            let registered = attacker.direct()?.register(peer, SMALL);
            match attacker.wait("register", registered)? {
                Ok(dmb) => held.push(dmb),
                Err(_) => break,
            }
        }
        ensure!(
            peer != UNKNOWN || held.len() < limit,
            "an unknown peer has buffers"
        );
    }
    Ok(())
}

/// No device has it.
pub(super) const UNKNOWN: Gid = Gid::new(0x0bad, 0x0bad);

/// Signals of a pass.
const SIGNALS: usize = 8192;

/// Buffers at a time: each takes a descriptor or two, of a process that may be the victim's.
const REGISTRATIONS: usize = 128;
