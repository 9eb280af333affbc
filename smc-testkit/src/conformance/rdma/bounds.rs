//! Writes that the peer has to refuse.

use smc_core::device::{Access, LinkFailure, Mr, Write};
use smc_core::mem::Region;
use smc_wire::types::Rkey;

use super::Verdict;
use super::ends::{LEN, numbered, write};
use super::posts::fill;
use crate::conformance::fixture::{Fixture, OrFail, content, ensure};

pub(super) fn unknown_keys_cost_the_link(fixture: &mut Fixture<'_>) -> Verdict {
    let (from, to) = fixture.memories()?;
    for key in [to.rkey().0 ^ 1, to.rkey().0 ^ 0x8000_0000, 0, u32::MAX] {
        let bad = Write {
            rkey: Rkey(key),
            ..write(&*from, &*to, 0, 64)
        };
        expect_refusal(fixture, &*from, &bad, &[&*to])?;
    }
    Ok(())
}

pub(super) fn writes_outside_of_the_memory_cost_the_link(fixture: &mut Fixture<'_>) -> Verdict {
    let (from, to) = fixture.memories()?;
    // Perhaps right behind it.
    let next = fixture.memory(fixture.peer(), LEN, Access::RemoteWrite)?;
    let start = to.addr().0;
    let end = start + LEN as u64;
    for (addr, len) in [
        (end, 64),
        (end - 63, 64),
        (end - 1, LEN),
        (start.wrapping_sub(1), 64),
        (start.wrapping_sub(64), 64),
        (start.wrapping_sub(64), LEN),
        (u64::MAX - 31, 32),
    ] {
        let mut bad = write(&*from, &*to, 0, len);
        bad.to.0 = addr;
        expect_refusal(fixture, &*from, &bad, &[&*to, &*next])?;
    }
    Ok(())
}

pub(super) fn local_memory_is_no_target(fixture: &mut Fixture<'_>) -> Verdict {
    let from = fixture.memory(fixture.local(), LEN, Access::Local)?;
    let to = fixture.memory(fixture.peer(), LEN, Access::Local)?;
    expect_refusal(fixture, &*from, &write(&*from, &*to, 0, 64), &[&*to])
}

pub(super) fn memory_of_another_domain_is_no_target(fixture: &mut Fixture<'_>) -> Verdict {
    let from = fixture.memory(fixture.local(), LEN, Access::Local)?;
    let other = fixture.new_domain(fixture.peer())?;
    let region = Region::anonymous(LEN);
    let to = fixture.wait("register", other.register(&region, Access::RemoteWrite))?;
    let to = to.or_fail("register in another domain")?;
    expect_refusal(fixture, &*from, &write(&*from, &*to, 0, 64), &[&*to])
}

pub(super) fn memory_of_another_domain_is_no_source(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let to = fixture.memory(fixture.peer(), LEN, Access::RemoteWrite)?;
    let other = fixture.new_domain(fixture.local())?;
    let region = Region::anonymous(LEN);
    let from = fixture.wait("register", other.register(&region, Access::Local))?;
    let from = from.or_fail("register in another domain")?;
    let posted = local.try_post(1, &[write(&*from, &*to, 0, 64)], &numbered(1))?;
    ensure!(
        posted.is_err(),
        "a link writes from memory of another protection domain"
    );
    // Nothing was sent, and the link goes on.
    local.deliver(2, &[], &peer)
}

pub(super) fn dropped_registrations_are_no_target(fixture: &mut Fixture<'_>) -> Verdict {
    let (from, to) = fixture.memories()?;
    let other = fixture.memory(fixture.peer(), LEN, Access::RemoteWrite)?;
    let (local, peer) = fixture.link()?;
    fill(&*from, 0, &[0; LEN])?;
    local.deliver(1, &[write(&*from, &*to, 0, 64)], &peer)?;
    local.expect_sent(1)?;
    let region = to.region().clone();
    let bad = write(&*from, &*to, 0, 64);
    drop(to);
    expect_refusal(fixture, &*from, &bad, &[&*other])?;
    let is_zero = content(&region)?.iter().all(|byte| *byte == 0);
    ensure!(is_zero, "memory was written after its registration");
    Ok(())
}

pub(super) fn other_links_survive(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    let bad = Write {
        rkey: Rkey(to.rkey().0 ^ 1),
        ..write(&*from, &*to, 0, 64)
    };
    expect_refusal(fixture, &*from, &bad, &[&*to])?;
    for round in 1..10_u8 {
        let number = u64::from(round);
        fill(&*from, 0, &[round; 64])?;
        local.deliver(number, &[write(&*from, &*to, 0, 64)], &peer)?;
        ensure!(
            content(to.region())?[..64] == [round; 64],
            "the other link does not write any more"
        );
        local.expect_sent(number)?;
        peer.deliver(number, &[], &local)?;
    }
    Ok(())
}

/// Posts a write on a link of its own: the link goes down, and none of the memory changes.
fn expect_refusal(
    fixture: &Fixture<'_>,
    from: &dyn Mr,
    bad: &Write<'_>,
    untouched: &[&dyn Mr],
) -> Verdict {
    let (local, peer) = fixture.link()?;
    fill(from, 0, &[0xee; LEN])?;
    let before: Vec<_> = untouched
        .iter()
        .map(|mr| content(mr.region()))
        .collect::<Result<_, _>>()?;
    local.post(1, &[*bad], &numbered(1))?;
    local.expect_down(LinkFailure::RemoteAccess)?;
    ensure!(
        local.try_sent().is_none(),
        "a post that was refused is reported as sent"
    );
    ensure!(
        peer.try_message().is_none(),
        "a message arrived behind a write that was refused"
    );
    for (mr, before) in untouched.iter().zip(before) {
        ensure!(
            content(mr.region())? == before,
            "a write that was refused changed memory"
        );
    }
    Ok(())
}
