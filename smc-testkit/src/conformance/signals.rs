//! Reports of signals, one step at a time.

use std::time::{Duration, Instant};

use smc_core::device::{Dmb, Signal};

use super::fixture::{Fixture, OrFail, SMALL, Verdict, bytes, content, ensure, load};
use super::node::Node;

pub(super) fn signals_are_reported(fixture: &mut Fixture<'_>) -> Verdict {
    for (owner, writer) in [
        (fixture.local(), fixture.peer()),
        (fixture.peer(), fixture.local()),
    ] {
        let dmb = fixture.buffer(owner, writer, SMALL)?;
        for round in 1..=20_u8 {
            owner.forget()?;
            dmb.arm();
            writer.put(owner.gid(), dmb.token(), 0, &[round; 3000], Signal::Yes)?;
            owner.await_report(dmb.token())?;
            let arrived = bytes(dmb.region(), 0, 3000)?
                .iter()
                .all(|byte| *byte == round);
            ensure!(arrived, "round {round}: reported before all data was there");
        }
    }
    Ok(())
}

pub(super) fn moves_without_signal_stay_silent(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let local = fixture.local();
    let mut reported = 0;
    for round in 1..=ROUNDS {
        local.forget()?;
        dmb.arm();
        fixture.put(dmb.token(), 0, &[round as u8; 32], Signal::No)?;
        local.turn(Duration::ZERO)?;
        reported += usize::from(local.reports(dmb.token()) > 0);
    }
    ensure!(
        reported <= ROUNDS / 2,
        "{reported} of {ROUNDS} moves without signal were reported"
    );
    Ok(())
}

pub(super) fn signals_name_their_buffer(fixture: &mut Fixture<'_>) -> Verdict {
    let dmbs = fixture.local_buffers(4)?;
    let local = fixture.local();
    let mut spurious = 0;
    for round in 0..ROUNDS {
        let dmb = &dmbs[round % dmbs.len()];
        local.forget()?;
        dmbs.iter().for_each(|dmb| dmb.arm());
        fixture.put(dmb.token(), 0, &[1; 32], Signal::Yes)?;
        local.await_report(dmb.token())?;
        let others = dmbs.iter().filter(|other| other.token() != dmb.token());
        spurious += others
            .filter(|other| local.reports(other.token()) > 0)
            .count();
    }
    ensure!(
        spurious <= ROUNDS / 2,
        "{spurious} reports of buffers that were not written"
    );
    Ok(())
}

pub(super) fn empty_moves_can_signal(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    for slices in [&[][..], &[&[][..]]] {
        fixture.local().forget()?;
        dmb.arm();
        let result = fixture.try_put(dmb.token(), 0, slices, Signal::Yes)?;
        result.or_fail("move without bytes")?;
        fixture.local().await_report(dmb.token())?;
    }
    ensure!(
        content(dmb.region())?.iter().all(|byte| *byte == 0),
        "an empty move wrote something"
    );
    Ok(())
}

pub(super) fn several_signals_may_be_one_but_not_none(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    for round in 0..20_usize {
        fixture.local().forget()?;
        dmb.arm();
        let count = 1 + round * 7;
        for part in 0..count {
            fixture.put(dmb.token(), 64 + part, &[round as u8 + 1], Signal::Yes)?;
        }
        fixture.local().await_report(dmb.token())?;
        // The report may belong to the first signal; the others are behind it, not lost.
        fixture.eventually("all data of several signals arrives", || {
            let data = bytes(dmb.region(), 64, count)?;
            Ok(data.iter().all(|byte| *byte == round as u8 + 1))
        })?;
    }
    Ok(())
}

/// Where a signal falls in the order *drain, arm, drain, park*.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    BeforeFirstDrain,
    BetweenDrainAndArm,
    BetweenArmAndDrain,
    AfterSecondDrain,
}

impl When {
    /// Goes through a driver's round up to where it parks, with a signal at this point.
    pub(super) fn drive(self, node: &Node, signal: impl Fn() -> Verdict) -> Verdict {
        let signal_if = |now: Self| if now == self { signal() } else { Ok(()) };
        node.listen();
        signal_if(Self::BeforeFirstDrain)?;
        node.drain()?;
        signal_if(Self::BetweenDrainAndArm)?;
        node.arm()?;
        signal_if(Self::BetweenArmAndDrain)?;
        node.drain()?;
        signal_if(Self::AfterSecondDrain)
    }
}

pub(super) fn a_signal_before_the_first_drain_is_seen(fixture: &mut Fixture<'_>) -> Verdict {
    signal_when(fixture, When::BeforeFirstDrain)
}

pub(super) fn a_signal_between_drain_and_arm_is_seen(fixture: &mut Fixture<'_>) -> Verdict {
    signal_when(fixture, When::BetweenDrainAndArm)
}

pub(super) fn a_signal_between_arm_and_drain_is_seen(fixture: &mut Fixture<'_>) -> Verdict {
    signal_when(fixture, When::BetweenArmAndDrain)
}

pub(super) fn a_signal_after_the_second_drain_rings(fixture: &mut Fixture<'_>) -> Verdict {
    signal_when(fixture, When::AfterSecondDrain)
}

fn signal_when(fixture: &Fixture<'_>, when: When) -> Verdict {
    let dmb = fixture.local_buffer()?;
    staged(fixture, &*dmb, when, || {
        fixture.put(dmb.token(), 0, &[1; 32], Signal::Yes)
    })
}

/// Gives a signal at one point of a driver's round, and checks that the driver sees it.
pub(super) fn staged(
    fixture: &Fixture<'_>,
    dmb: &dyn Dmb,
    when: When,
    signal: impl Fn() -> Verdict,
) -> Verdict {
    let local = fixture.local();
    for round in 0..ROUNDS {
        local.forget()?;
        dmb.arm();
        when.drive(local, &signal)?;
        if local.reports(dmb.token()) == 0 {
            let rung = local.park(fixture.timeout())?;
            ensure!(
                rung,
                "round {round}: neither reported nor rung; the driver would sleep on"
            );
            local.await_report(dmb.token())?;
        }
    }
    Ok(())
}

pub(super) fn a_polling_driver_sees_signals(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, dmb) = (fixture.local(), fixture.local_buffer()?);
    for round in 0..ROUNDS {
        local.forget()?;
        local.listen();
        dmb.arm();
        fixture.put(dmb.token(), 0, &[1; 32], Signal::Yes)?;
        let deadline = Instant::now() + fixture.timeout();
        while local.reports(dmb.token()) == 0 {
            ensure!(
                Instant::now() < deadline,
                "round {round}: neither polled nor rung"
            );
            local.poll()?;
            if local.park(Duration::ZERO)? {
                local.listen();
                local.drain()?;
            }
        }
    }
    Ok(())
}

pub(super) fn a_signal_after_polls_rings(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, dmb) = (fixture.local(), fixture.local_buffer()?);
    for when in [When::BeforeFirstDrain, When::AfterSecondDrain] {
        staged(fixture, &*dmb, when, || {
            fixture.put(dmb.token(), 0, &[1; 32], Signal::Yes)
        })?;
        dmb.arm();
        fixture.put(dmb.token(), 0, &[1; 32], Signal::Yes)?;
        for _ in 0..ROUNDS {
            local.poll()?;
        }
    }
    signal_when(fixture, When::AfterSecondDrain)
}

pub(super) fn a_buffer_can_be_armed_late(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, dmb) = (fixture.local(), fixture.local_buffer()?);
    for round in 1..=20_u64 {
        fixture.put(dmb.token(), 8, &round.to_ne_bytes(), Signal::Yes)?;
        // The signal may be reported or not; this poll has to find the data, unless the device
        // reports it afterwards.
        local.forget()?;
        dmb.arm();
        if load(&*dmb, 8)? != round {
            local.await_report(dmb.token())?;
            let word = load(&*dmb, 8)?;
            ensure!(word == round, "round {round}: reported without the data");
        }
        fixture.put(dmb.token(), 16, &round.to_ne_bytes(), Signal::Yes)?;
        local.await_report(dmb.token())?;
    }
    Ok(())
}

pub(super) fn an_idle_doorbell_is_quiet(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    fixture.local().forget()?;
    dmb.arm();
    expect_quiet(fixture)
}

pub(super) fn a_drained_doorbell_is_quiet(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    dmb.arm();
    fixture.local().turn(Duration::ZERO)?;
    for _ in 0..10 {
        fixture.put(dmb.token(), 0, &[1; 32], Signal::Yes)?;
    }
    fixture.local().await_report(dmb.token())?;
    expect_quiet(fixture)
}

/// Of several turns without an event, at most a few are woken.
pub(super) fn expect_quiet(fixture: &Fixture<'_>) -> Verdict {
    let mut rung = 0;
    for _ in 0..QUIET_TURNS {
        rung += usize::from(fixture.local().turn(Duration::from_millis(5))?);
    }
    ensure!(
        rung <= QUIET_TURNS / 2,
        "{rung} of {QUIET_TURNS} turns without an event were woken"
    );
    Ok(())
}

pub(super) fn signals_to_a_dropped_buffer_are_harmless(fixture: &mut Fixture<'_>) -> Verdict {
    let local = fixture.local();
    let kept = fixture.local_buffer()?;
    for _ in 0..ROUNDS {
        let dropped = fixture.local_buffer()?;
        kept.arm();
        dropped.arm();
        fixture.put(dropped.token(), 0, &[1; 32], Signal::Yes)?;
        drop(dropped);
        fixture.put(kept.token(), 0, &[2; 32], Signal::Yes)?;
        local.await_report(kept.token())?;
        local.forget()?;
    }
    Ok(())
}

/// Rounds of a check without a race in it.
const ROUNDS: usize = 64;

/// Turns for which a doorbell is listened to.
const QUIET_TURNS: usize = 10;
