//! Many links, and several threads at once.

use std::sync::Mutex;

use smc_core::device::{Access, DeviceError, OpId};
use smc_core::mem::Region;

use super::Verdict;
use super::ends::{LEN, numbered};
use crate::conformance::fixture::{Fixture, OrFail, Stop, ensure, fail, run};

pub(super) fn many_links_at_once(fixture: &mut Fixture<'_>) -> Verdict {
    let mut links = Vec::new();
    for _ in 0..MANY {
        links.push(fixture.link()?);
    }
    for (number, (_, peer)) in (0..).zip(&links) {
        peer.post(number, &[], &numbered(number))?;
    }
    for (number, (local, peer)) in (0..).zip(&links) {
        local.expect_message(&numbered(number))?;
        peer.expect_sent(number)?;
    }
    // Half of them go, the others stay.
    let mut number = 0;
    links.retain(|_| {
        number += 1;
        number % 2 == 0
    });
    for (number, (local, peer)) in (0..).zip(&links) {
        local.deliver(number, &[], peer)?;
    }
    Ok(())
}

pub(super) fn links_come_and_go(fixture: &mut Fixture<'_>) -> Verdict {
    let few = match fixture.with_links(FEW) {
        Err(Stop::Skip(_)) => None,
        other => Some(other?),
    };
    let fixture = few.as_ref().unwrap_or(fixture);
    for round in 0..u64::from(fixture.effort().rounds / 40) + 4 {
        let (local, peer) = fixture.link()?;
        local.deliver(round, &[], &peer)?;
        // One that gets nowhere.
        drop(fixture.pending()?);
    }
    Ok(())
}

pub(super) fn the_limit_of_links_is_kept_and_recovers(fixture: &mut Fixture<'_>) -> Verdict {
    let fixture = fixture.with_links(FEW)?;
    let at = fixture.between()?.local;
    let open = || fixture.open(fixture.local(), &at);
    let mut kept = Vec::new();
    for _ in 0..FEW {
        kept.push(open()?.or_fail("open_link")?);
    }
    for _ in 0..3 {
        match open()? {
            Err(DeviceError::Exhausted) => {}
            Err(error) => return fail(format!("expected `Exhausted` at the limit, got: {error}")),
            Ok(_) => return fail(format!("more than {FEW} queue pairs were granted")),
        }
        kept.pop();
        kept.push(open()?.or_fail("open_link after one was dropped")?);
    }
    Ok(())
}

pub(super) fn threads_share_a_device(fixture: &mut Fixture<'_>) -> Verdict {
    let (provider, between) = (fixture.provider, fixture.between()?);
    let rounds = u64::from(fixture.effort().rounds / 200) + 1;
    let links = Mutex::new(Vec::new());
    fixture.on_threads(4, |thread| {
        let (local, peer) = (
            fixture.domain(fixture.local())?,
            fixture.domain(fixture.peer())?,
        );
        for round in 0..rounds {
            let region = Region::anonymous(LEN);
            let mr = run(provider, local.register(&region, Access::RemoteWrite));
            let mr = mr.or_fail("register from a thread")?;
            ensure!(mr.region().len() == LEN, "the memory has another length");
            let a = run(provider, local.open_link(&between.local)).or_fail("open_link")?;
            let b = run(provider, peer.open_link(&between.peer)).or_fail("open_link")?;
            let (at_a, at_b) = (a.local(), b.local());
            let a = run(provider, a.connect(at_b, between.route)).or_fail("connect")?;
            let b = run(provider, b.connect(at_a, between.route)).or_fail("connect")?;
            let number = u64::from(thread) * rounds + round;
            let posted = b.post(OpId(number), &[], &numbered(number));
            posted.or_fail("post from a thread")?;
            if let Ok(mut links) = links.lock() {
                links.push((number, a, b));
            }
        }
        Ok(())
    })?;
    let links = links.into_inner().or_fail("list of links")?;
    for (number, a, b) in links {
        let local = fixture.end(fixture.local(), a);
        local.expect_message(&numbered(number))?;
        drop(b);
    }
    Ok(())
}

/// As many links as a check holds at once.
const MANY: usize = 32;

/// The limit that a provider is asked for.
const FEW: usize = 4;
