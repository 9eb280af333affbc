//! Drain, arm, drain, park.

use std::thread;
use std::time::Instant;

use smc_core::device::{LinkFailure, OpId, SubmitError, Write};
use smc_wire::types::Rkey;

use super::Verdict;
use super::ends::{LinkEnd, numbered, write};
use crate::Rng;
use crate::conformance::fixture::{Fixture, Stop, ensure, fail, skip};
use crate::conformance::signals::{When, expect_quiet};
use crate::conformance::wakeups::{ask_and_answer, linger, race, spin};

pub(super) fn a_message_before_the_first_drain_is_seen(fixture: &mut Fixture<'_>) -> Verdict {
    message_when(fixture, When::BeforeFirstDrain)
}

pub(super) fn a_message_between_drain_and_arm_is_seen(fixture: &mut Fixture<'_>) -> Verdict {
    message_when(fixture, When::BetweenDrainAndArm)
}

pub(super) fn a_message_between_arm_and_drain_is_seen(fixture: &mut Fixture<'_>) -> Verdict {
    message_when(fixture, When::BetweenArmAndDrain)
}

pub(super) fn a_message_after_the_second_drain_rings(fixture: &mut Fixture<'_>) -> Verdict {
    message_when(fixture, When::AfterSecondDrain)
}

fn message_when(fixture: &Fixture<'_>, when: When) -> Verdict {
    if fixture.is_alone() {
        return skip("needs a second device: completions would ring as well");
    }
    let (local, peer) = fixture.link()?;
    for round in 0..ROUNDS {
        staged(
            &local,
            when,
            || peer.link.post(OpId(round), &[], &numbered(round)),
            || {
                local
                    .try_message()
                    .map(|message| message == numbered(round))
            },
        )?;
        peer.expect_sent(round)?;
    }
    Ok(())
}

pub(super) fn completions_ring(fixture: &mut Fixture<'_>) -> Verdict {
    if fixture.is_alone() {
        return skip("needs a second device: messages would ring as well");
    }
    let (local, peer) = fixture.link()?;
    for round in 0..ROUNDS {
        staged(
            &local,
            When::AfterSecondDrain,
            || local.link.post(OpId(round), &[], &numbered(round)),
            || local.try_sent().map(|op| op == OpId(round)),
        )?;
        peer.expect_message(&numbered(round))?;
    }
    Ok(())
}

pub(super) fn a_lost_link_rings(fixture: &mut Fixture<'_>) -> Verdict {
    let (from, to) = fixture.memories()?;
    for _ in 0..4 {
        let (local, _peer) = fixture.link()?;
        let bad = Write {
            rkey: Rkey(to.rkey().0 ^ 1),
            ..write(&*from, &*to, 0, 8)
        };
        staged(
            &local,
            When::AfterSecondDrain,
            || local.link.post(OpId(1), &[bad], &numbered(1)),
            || {
                let cause = local.try_down()?;
                Some(cause == LinkFailure::RemoteAccess)
            },
        )?;
        fixture.idle()?;
    }
    Ok(())
}

/// Has something happen at one point of a driver's round, and checks that the driver sees it.
fn staged(
    end: &LinkEnd<'_>,
    when: When,
    cause: impl Fn() -> Result<(), SubmitError>,
    seen: impl Fn() -> Option<bool>,
) -> Verdict {
    let node = end.node;
    node.forget()?;
    when.drive(node, || {
        cause().or_else(|error| fail(format!("post: {error}")))
    })?;
    let deadline = Instant::now() + end.fixture.timeout();
    let mut is_parking = true;
    loop {
        match seen() {
            Some(true) => return Ok(()),
            Some(false) => return fail("something else is reported"),
            None => {}
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let has_news = if is_parking {
            node.park(left)?
        } else {
            node.turn(left)?
        };
        ensure!(
            has_news && !left.is_zero(),
            "neither reported nor rung; the driver would sleep on"
        );
        is_parking = false;
        node.listen();
        node.drain()?;
    }
}

pub(super) fn an_idle_doorbell_is_quiet(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    peer.deliver(1, &[], &local)?;
    fixture.idle()?;
    expect_quiet(fixture)
}

pub(super) fn wake_ups_are_never_lost(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let mut rng = Rng::new(0x7265_6164);
    race(
        fixture,
        |round| post_from_thread(fixture, &peer, round.into()),
        |round| {
            linger(&mut rng);
            let message = turn_until(&local, &mut rng, "the message", || local.try_message())?;
            let is_it = message == numbered(round.into());
            ensure!(is_it, "round {round}: another message came");
            Ok(())
        },
    )
}

pub(super) fn wake_ups_are_never_lost_both_ways(fixture: &mut Fixture<'_>) -> Verdict {
    if fixture.is_alone() {
        return skip("needs a second device");
    }
    let (local, peer) = fixture.link()?;
    let mut rng = Rng::new(0x6173_6b00);
    ask_and_answer(
        fixture,
        |round| {
            post_from_thread(fixture, &local, round.into())?;
            turn_until(&local, &mut rng, "the answer", || local.try_message()).map(drop)
        },
        |round, rng| {
            turn_until(&peer, rng, "the question", || peer.try_message())?;
            linger(rng);
            post_from_thread(fixture, &peer, round.into())
        },
    )
}

pub(super) fn completions_always_wake(fixture: &mut Fixture<'_>) -> Verdict {
    if fixture.is_alone() {
        return skip("needs a second device: messages would wake as well");
    }
    let (local, peer) = fixture.link()?;
    let mut rng = Rng::new(0x7365_6e74);
    for round in 1..=u64::from(fixture.effort().rounds) {
        linger(&mut rng);
        let posted = local.link.post(OpId(round), &[], &numbered(round));
        posted.or_else(|error| fail(format!("post: {error}")))?;
        let op = turn_until(&local, &mut rng, "the completion", || local.try_sent())?;
        ensure!(op == OpId(round), "round {round}: {op:?} is reported");
        // Frees its receive buffer.
        peer.node.forget()?;
    }
    Ok(())
}

/// Drives the device of a link, which may park, until there is something.
fn turn_until<T>(
    end: &LinkEnd<'_>,
    rng: &mut Rng,
    what: &str,
    mut found: impl FnMut() -> Option<T>,
) -> Result<T, Stop> {
    let deadline = Instant::now() + end.fixture.timeout();
    loop {
        if let Some(found) = found() {
            return Ok(found);
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let pause = || spin(rng.below(60));
        if left.is_zero() || !end.node.turn_with(left, pause)? {
            return fail(format!("nothing wakes the driver: {what} does not come"));
        }
    }
}

/// Posts from a thread that is the consumer of its device, unless there is only one.
fn post_from_thread(fixture: &Fixture<'_>, end: &LinkEnd<'_>, round: u64) -> Verdict {
    let deadline = Instant::now() + fixture.timeout();
    loop {
        if !fixture.is_alone() {
            end.node.drain()?;
            while end.try_sent().is_some() {}
        }
        match end.link.post(OpId(round), &[], &numbered(round)) {
            Ok(()) => return Ok(()),
            Err(SubmitError::WouldBlock) if Instant::now() < deadline => thread::yield_now(),
            Err(error) => return fail(format!("post: {error}")),
        }
    }
}

/// Rounds of a check without a race in it.
const ROUNDS: u64 = 32;
