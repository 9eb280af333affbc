//! Registered memory.

use std::collections::HashSet;

use smc_core::device::{Access, DeviceError};
use smc_core::mem::Region;

use super::Verdict;
use super::ends::{LEN, write};
use super::posts::fill;
use crate::conformance::fixture::{Fixture, OrFail, Stop, bytes, content, ensure, fail, skip};

pub(super) fn registered_memory_is_the_memory(fixture: &mut Fixture<'_>) -> Verdict {
    let mut keys = HashSet::new();
    let mut kept = Vec::new();
    for len in [LEN, 1 << 16, 1 << 18] {
        let region = Region::anonymous(len);
        let mr = fixture.try_register(fixture.local(), &region, Access::RemoteWrite)?;
        let mr = mr.or_fail("register")?;
        ensure!(
            mr.region().len() == len && mr.region().as_ptr() == region.as_ptr(),
            "{} bytes are shown of a region of {len}",
            mr.region().len()
        );
        ensure!(keys.insert(mr.rkey()), "two registrations have one key");
        kept.push(mr);
    }
    Ok(())
}

pub(super) fn all_of_the_memory_can_be_written(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    for len in [LEN, 1 << 18] {
        let from = fixture.memory(fixture.local(), len, Access::Local)?;
        let to = fixture.memory(fixture.peer(), len, Access::RemoteWrite)?;
        for at in [0, len - 1] {
            fill(&*from, at, &[0xab])?;
            local.deliver(1, &[write(&*from, &*to, at, 1)], &peer)?;
            ensure!(
                bytes(to.region(), at, 1)? == [0xab],
                "byte {at} of {len} was not written"
            );
        }
    }
    Ok(())
}

pub(super) fn parts_can_be_registered(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let from = fixture.memory(fixture.local(), LEN, Access::Local)?;
    fill(&*from, 0, &[0x77; LEN])?;
    let whole = Region::anonymous(3 * LEN);
    let part = whole.part(LEN + 32, 8192).or_fail("part of a region")?;
    let to = fixture.try_register(fixture.peer(), &part, Access::RemoteWrite)?;
    let to = to.or_fail("register a part")?;
    local.deliver(1, &[write(&*from, &*to, 0, 8192)], &peer)?;
    let mut expected = vec![0; 3 * LEN];
    expected[LEN + 32..][..8192].fill(0x77);
    ensure!(
        content(&whole)? == expected,
        "something else than the part was written"
    );
    Ok(())
}

pub(super) fn memory_can_be_registered_twice(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, first) = fixture.memories()?;
    let region = first.region().clone();
    let second = fixture.try_register(fixture.peer(), &region, Access::RemoteWrite)?;
    let second = second.or_fail("register again")?;
    fill(&*from, 0, &[5; 16])?;
    local.deliver(1, &[write(&*from, &*first, 0, 8)], &peer)?;
    drop(first);
    local.deliver(2, &[write(&*from, &*second, 8, 8)], &peer)?;
    ensure!(
        bytes(&region, 0, 16)? == [5; 16],
        "one of two registrations does not work"
    );
    Ok(())
}

pub(super) fn memory_lives_as_long_as_its_registration(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    // The regions are dropped at once.
    let (from, to) = fixture.memories()?;
    let churn: Vec<_> = (0..16).map(|_| Region::anonymous(LEN)).collect();
    fill(&*from, 0, &[0xcd; LEN])?;
    local.deliver(1, &[write(&*from, &*to, 0, LEN)], &peer)?;
    let is_there = content(to.region())?.iter().all(|byte| *byte == 0xcd);
    ensure!(is_there, "the memory of a registration is not there");
    for region in churn {
        let is_zero = content(&region)?.iter().all(|byte| *byte == 0);
        ensure!(is_zero, "a write hit memory of another peer");
    }
    Ok(())
}

pub(super) fn registrations_come_and_go(fixture: &mut Fixture<'_>) -> Verdict {
    let few = match fixture.with_limit(FEW) {
        Err(Stop::Skip(_)) => None,
        other => Some(other?),
    };
    let fixture = few.as_ref().unwrap_or(fixture);
    for round in 0..fixture.effort().rounds / 8 {
        let mr = fixture.memory(fixture.local(), 1 << 16, Access::RemoteWrite);
        drop(mr.or_else(|stop| match stop {
            Stop::Fail(why) => fail(format!("round {round}: {why}")),
            other => Err(other),
        })?);
    }
    Ok(())
}

pub(super) fn the_limit_is_kept_and_recovers(fixture: &mut Fixture<'_>) -> Verdict {
    let fixture = fixture.with_limit(FEW)?;
    let local = fixture.local();
    let limit = local.device().limits().max_dmbs;
    let register = || fixture.try_register(local, &Region::anonymous(LEN), Access::RemoteWrite);
    let mut kept = Vec::new();
    for count in 0..limit {
        match register()? {
            Ok(mr) => kept.push(mr),
            Err(DeviceError::Os(error)) => {
                return skip(format!("the system allows {count} of {limit}: {error}"));
            }
            Err(error) => return fail(format!("registration {count} of {limit}: {error}")),
        }
    }
    for _ in 0..3 {
        match register()? {
            Err(DeviceError::Exhausted) => {}
            Err(error) => return fail(format!("expected `Exhausted` at the limit, got: {error}")),
            Ok(_) => return fail(format!("more than {limit} registrations were granted")),
        }
        kept.pop();
        kept.push(register()?.or_fail("register after one was dropped")?);
    }
    Ok(())
}

/// The limit that a provider is asked for.
const FEW: usize = 4;
