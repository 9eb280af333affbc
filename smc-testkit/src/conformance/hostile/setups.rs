//! Set-ups that are abandoned, or go on with what belongs to others.

use smc_core::wire::cdc::{CdcD, ProducerWord};
use smc_core::wire::clc::{AcceptConfirm, AcceptKind, Message};
use smc_core::wire::cursor::Cursor;
use smc_core::wire::size::SizeCode;
use smc_wire::types::{Chid, DmbToken, Gid};

use super::super::fixture::{OrFail, Stop, Verdict};
use super::attacker::{Accepted, Attacker};
use super::memory::UNKNOWN;
use crate::world::messages::{bytes, direct};
use crate::world::{answer_from, proposal_from};

pub(super) fn connections_without_a_proposal(attacker: &mut Attacker<'_>) -> Verdict {
    let mut held = Vec::new();
    for round in 0..SETUPS {
        let tcp = attacker.connect()?;
        // Some are silent for a while.
        if round % 32 == 0 {
            held.push(tcp);
        }
    }
    Ok(())
}

pub(super) fn proposals_in_part(attacker: &mut Attacker<'_>) -> Verdict {
    let proposal = proposal_from(attacker.direct()?);
    let mut held = Vec::new();
    for len in (1..proposal.len()).cycle().take(SETUPS) {
        let mut tcp = attacker.connect()?;
        tcp.send(&proposal[..len]).ok();
        if len % 32 == 0 {
            held.push(tcp);
        }
    }
    Ok(())
}

pub(super) fn proposals_that_are_left(attacker: &mut Attacker<'_>) -> Verdict {
    let proposal = proposal_from(attacker.direct()?);
    for _ in 0..SETUPS {
        attacker.connect()?.send(&proposal).ok();
    }
    Ok(())
}

pub(super) fn accepts_without_a_confirm(attacker: &mut Attacker<'_>) -> Verdict {
    let mut held = Vec::new();
    for round in 0..SETUPS {
        let accepted = attacker.propose()?;
        if round % 32 == 0 {
            held.push(accepted);
        }
    }
    Ok(())
}

pub(super) fn confirms_in_part(attacker: &mut Attacker<'_>) -> Verdict {
    for round in 1..SETUPS {
        let mut accepted = attacker.propose()?;
        let own = attacker.register(accepted.end.gid)?;
        let confirm = bytes(&accepted.confirmation(attacker, own.token())?);
        let len = round % confirm.len();
        accepted.tcp.send(&confirm[..len]).ok();
    }
    Ok(())
}

pub(super) fn connections_that_end_at_once(attacker: &mut Attacker<'_>) -> Verdict {
    for _ in 0..SETUPS {
        drop(attacker.open()?);
    }
    Ok(())
}

pub(super) fn proposals_of_others(attacker: &mut Attacker<'_>) -> Verdict {
    let own = attacker.direct()?.gid();
    let others = attacker.others().iter().map(|(gid, _)| *gid);
    for gid in others.chain([UNKNOWN]).collect::<Vec<_>>() {
        let proposal = replaced(&proposal_from(attacker.direct()?), own, gid);
        let mut tcp = attacker.connect()?;
        tcp.send(&proposal).ok();
        let message = tcp.message().or_fail("answer to a PROPOSAL")?;
        let Ok(Message::Accept(mut accept)) = Message::parse(&message) else {
            continue;
        };
        // A buffer that is made for the device of another is no use.
        let end = *direct(&mut accept);
        attacker.expect_refused((end.gid, end.dmb))?;
        // Nor is a guess.
        let guessed = DmbToken(attacker.rng.bits());
        let accepted = Accepted {
            tcp,
            terms: accept.terms,
            end,
        };
        let mut confirm = accepted.confirmation(attacker, guessed)?;
        direct(&mut confirm).gid = gid;
        let mut tcp = accepted.tcp;
        tcp.send(&bytes(&confirm)).or_fail("CONFIRM")?;
        tcp.await_answer();
    }
    Ok(())
}

/// A message with another GID.
fn replaced(message: &[u8], gid: Gid, by: Gid) -> Vec<u8> {
    let mut changed = message.to_vec();
    let [from, to] = [gid, by].map(|gid| gid.to_u128().to_be_bytes());
    for half in [0..8, 8..16] {
        let from = &from[half.clone()];
        let found = changed.windows(8).position(|window| window == from);
        if let Some(at) = found {
            changed[at..at + 8].copy_from_slice(&to[half]);
        }
    }
    changed
}

/// Makes one thing of a message wrong, by a number; false if there is no such thing.
fn forge(attacker: &mut Attacker<'_>, message: &mut AcceptConfirm, number: usize) -> bool {
    let (end, random) = (direct(message), attacker.rng.bits());
    match number {
        0 => end.dmb = DmbToken(random),
        1 => end.size = SizeCode::MAX,
        2 => end.gid = UNKNOWN,
        3 => end.chid = Chid(0xff77),
        4 => end.dmbe_index = 0xff,
        _ => {
            let Some((gid, token)) = attacker.others().get((number - 5) / 2) else {
                return false;
            };
            // Not both: a peer that knows a token can name it
            // (SECURITY.md#early-data-over-smc-d), and none can guess one.
            match number % 2 {
                0 => end.dmb = *token,
                _ => (end.gid, end.dmb) = (*gid, DmbToken(random)),
            }
        }
    }
    true
}

pub(super) fn forged_confirms(attacker: &mut Attacker<'_>) -> Verdict {
    for number in 0.. {
        let mut accepted = attacker.propose()?;
        let own = attacker.register(accepted.end.gid)?;
        let mut confirm = accepted.confirmation(attacker, own.token())?;
        if !forge(attacker, &mut confirm, number) {
            break;
        }
        accepted.tcp.send(&bytes(&confirm)).or_fail("CONFIRM")?;
        // If the victim believes it, it sends back what is sent here.
        let (buffer, ring) = (accepted.buffer(), accepted.end.size.ring_d());
        attacker.put(buffer, CdcD::LEN, &[0xee; 100])?.ok();
        let word = ProducerWord {
            cursor: ring.advance(Cursor::START, 100),
        };
        let word = word.to_ne().to_ne_bytes();
        attacker.put(buffer, ProducerWord::OFFSET, &word)?.ok();
        accepted.tcp.await_answer();
    }
    Ok(())
}

pub(super) fn missing_accepts(attacker: &mut Attacker<'_>) -> Verdict {
    // None at all, to the victim that has connected; then a part of one.
    drop(attacker.invite()?);
    let mut tcp = attacker.invite()?;
    let _proposal = tcp.message().or_fail("PROPOSAL")?;
    tcp.send(&bytes(&accept(attacker, DmbToken(1))?)[..20]).ok();
    Ok(())
}

pub(super) fn forged_accepts(attacker: &mut Attacker<'_>) -> Verdict {
    for number in 0.. {
        let own = attacker.register(attacker.victim())?;
        let mut message = accept(attacker, own.token())?;
        if !forge(attacker, &mut message, number) {
            break;
        }
        let mut tcp = attacker.invite()?;
        let _proposal = tcp.message().or_fail("PROPOSAL")?;
        tcp.send(&bytes(&message)).or_fail("ACCEPT")?;
        tcp.await_answer();
    }
    Ok(())
}

/// An ACCEPT with this buffer.
fn accept(attacker: &Attacker<'_>, dmb: DmbToken) -> Result<AcceptConfirm, Stop> {
    let device = attacker.direct()?;
    Ok(answer_from(device, AcceptKind::Accept, dmb, SizeCode::MIN))
}

/// Set-ups of a pass.
const SETUPS: usize = 256;
