//! Many buffers, and several threads at once.

use std::collections::HashSet;
use std::panic::resume_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::thread;

use smc_core::device::{DeviceError, Signal, SubmitError};
use smc_core::mem::sync::Ordering;
use smc_wire::types::DmbToken;

use super::fixture::{
    Fixture, OrFail, SMALL, Stop, Verdict, content, ensure, fail, load, run, skip,
};

pub(super) fn many_buffers_at_once(fixture: &mut Fixture<'_>) -> Verdict {
    let local = fixture.local();
    let count = local.device().limits().max_dmbs.min(MANY);
    let dmbs = fixture.local_buffers(count)?;
    local.forget()?;
    for (number, dmb) in (1_u64..).zip(&dmbs) {
        dmb.arm();
        fixture.put(dmb.token(), 8, &number.to_ne_bytes(), Signal::Yes)?;
    }
    for (number, dmb) in (1_u64..).zip(&dmbs) {
        local.await_report(dmb.token())?;
        let word = load(&**dmb, 8)?;
        ensure!(
            word == number,
            "buffer {number} of {count} has the data of buffer {word}"
        );
    }
    Ok(())
}

pub(super) fn the_limit_is_kept_and_recovers(fixture: &mut Fixture<'_>) -> Verdict {
    match fixture.with_limit(FEW) {
        Ok(few) => fill_up(&few),
        Err(Stop::Skip(_)) if fixture.local().device().limits().max_dmbs <= REACHABLE => {
            fill_up(fixture)
        }
        Err(other) => Err(other),
    }
}

fn fill_up(fixture: &Fixture<'_>) -> Verdict {
    let local = fixture.local();
    let limit = local.device().limits().max_dmbs;
    fixture
        .reach(fixture.peer(), local.gid())?
        .or_fail("reach")?;
    let register = || {
        fixture.wait(
            "register",
            local.direct().register(fixture.peer().gid(), SMALL),
        )
    };
    let mut dmbs = Vec::new();
    for count in 0..limit {
        match register()? {
            Ok(dmb) => dmbs.push(dmb),
            Err(DeviceError::Os(error)) => {
                return skip(format!(
                    "the system allows {count} of {limit} buffers: {error}"
                ));
            }
            Err(error) => return fail(format!("buffer {count} of {limit}: {error}")),
        }
    }
    for _ in 0..2 {
        match register()? {
            Err(DeviceError::Exhausted) => {}
            Err(error) => return fail(format!("expected `Exhausted` at the limit, got: {error}")),
            Ok(_) => return fail(format!("more than {limit} buffers were granted")),
        }
    }
    for _ in 0..3 {
        dmbs.pop();
        fixture.eventually(
            "dropping a buffer makes space for another",
            || match register()? {
                Ok(dmb) => {
                    dmbs.push(dmb);
                    Ok(true)
                }
                Err(DeviceError::Exhausted) => Ok(false),
                Err(error) => fail(format!("register after dropping a buffer: {error}")),
            },
        )?;
    }
    // The last one is as good as the first.
    let last = &dmbs[dmbs.len() - 1];
    last.arm();
    fixture.put(last.token(), 0, &[1; 32], Signal::Yes)?;
    local.await_report(last.token())
}

pub(super) fn threads_share_a_device(fixture: &mut Fixture<'_>) -> Verdict {
    let (provider, local, peer) = (fixture.provider, fixture.local(), fixture.peer());
    let rounds = fixture.effort().rounds / 40 + 1;
    let (tokens, timeout) = (Mutex::new(HashSet::new()), fixture.timeout());
    fixture.reach(peer, local.gid())?.or_fail("reach")?;
    fixture.on_threads(4, |thread| {
        for round in 0..rounds {
            let register = local.direct().register(peer.gid(), SMALL);
            let dmb = run(provider, register).or_fail("register from a thread")?;
            let is_new = tokens
                .lock()
                .is_ok_and(|mut tokens| tokens.insert(dmb.token()));
            ensure!(is_new, "two buffers got the token {}", dmb.token());
            let zeroed = content(dmb.region())?.iter().all(|byte| *byte == 0);
            ensure!(
                zeroed,
                "thread {thread}, round {round}: a new buffer is not zeroed"
            );
            let data = [thread + 1; SMALL];
            dmb.arm();
            fixture.put(dmb.token(), 0, &data, Signal::Yes)?;
            super::order::await_round(timeout, "a thread's move", || {
                Ok(content(dmb.region())? == data)
            })?;
        }
        Ok(())
    })
}

pub(super) fn moves_and_drops_race_safely(fixture: &mut Fixture<'_>) -> Verdict {
    let guard = fixture.local_buffer()?;
    let target = AtomicU64::new(guard.token().0);
    let is_done = AtomicBool::new(false);
    let guard_token = guard.token();
    thread::scope(|scope| {
        let writer = scope.spawn(|| -> Result<u64, Stop> {
            let mut taken = 0;
            while !is_done.load(Ordering::Acquire) {
                let token = DmbToken(target.load(Ordering::Acquire));
                if token == guard_token {
                    thread::yield_now();
                    continue;
                }
                match fixture.try_put(token, 64, &[&[0xee; 2048]], Signal::Yes)? {
                    Ok(()) => taken += 1,
                    Err(SubmitError::UnknownToken) => {}
                    Err(error) => return fail(format!("move during drop: {error}")),
                }
            }
            Ok(taken)
        });
        let owned = (0..fixture.effort().rounds / 20 + 1).try_for_each(|_| {
            let dmb = fixture.local_buffer()?;
            target.store(dmb.token().0, Ordering::Release);
            fixture.eventually("the writer hits the buffer", || {
                Ok(load(&*dmb, 64)? != 0 || writer.is_finished())
            })?;
            drop(dmb);
            fixture.local().forget()
        });
        is_done.store(true, Ordering::Release);
        let taken = writer.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        owned?;
        ensure!(taken > 0, "no move succeeded");
        Ok(())
    })?;
    let intact = content(guard.region())?.iter().all(|byte| *byte == 0);
    ensure!(intact, "moves to dropped buffers changed another one");
    Ok(())
}

/// As many buffers as a check holds at once.
const MANY: usize = 64;

/// The limit that a provider is asked for.
const FEW: usize = 4;

/// The highest limit that is tried without the provider's help.
const REACHABLE: usize = 2048;
