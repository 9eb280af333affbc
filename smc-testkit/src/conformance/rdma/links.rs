//! From a queue pair to a link.

use std::collections::HashSet;

use smc_core::device::LinkFailure;
use smc_wire::types::{MtuCode, Psn, RoceGid};

use super::Verdict;
use super::ends::{numbered, write};
use crate::conformance::fixture::{Fixture, OrFail, content, ensure};

pub(super) fn a_pending_link_knows_its_end(fixture: &mut Fixture<'_>) -> Verdict {
    let between = fixture.between()?;
    let pending = fixture.pending()?;
    for (pending, at) in pending.iter().zip([between.local, between.peer]) {
        let local = pending.local();
        ensure!(local.gid == at.gid, "GID {} is not the one", local.gid);
        ensure!(local.mac == at.mac, "MAC {} is not the one", local.mac);
        ensure!(local.mtu == at.mtu, "MTU {} is not the one", local.mtu);
        ensure!(local == pending.local(), "the end changes");
    }
    Ok(())
}

pub(super) fn queue_pairs_have_numbers_of_their_own(fixture: &mut Fixture<'_>) -> Verdict {
    let at = fixture.between()?.local;
    let mut seen = HashSet::new();
    let mut kept = Vec::new();
    for _ in 0..8 {
        let pending = fixture.open(fixture.local(), &at)?.or_fail("open_link")?;
        let qpn = pending.local().qpn;
        ensure!(qpn.get() > 1, "number {qpn} is reserved");
        ensure!(seen.insert(qpn), "number {qpn} is used twice");
        kept.push(pending);
    }
    let [local, peer] = fixture.pending()?;
    let (qpn, to) = (local.local().qpn, peer.local());
    let link = fixture.connect(local, to)?;
    ensure!(
        link.qpn() == qpn,
        "connecting changed the number from {qpn} to {}",
        link.qpn()
    );
    Ok(())
}

pub(super) fn messages_go_both_ways(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    for round in 0..20 {
        local.deliver(round, &[], &peer)?;
        peer.post(round, &[], &numbered(!round))?;
        local.expect_message(&numbered(!round))?;
    }
    Ok(())
}

pub(super) fn the_smaller_mtu_wins(fixture: &mut Fixture<'_>) -> Verdict {
    let (from, to) = fixture.memories()?;
    let [local, peer] = fixture.pending()?;
    let (mut at_local, mut at_peer) = (local.local(), peer.local());
    (at_local.mtu, at_peer.mtu) = (MtuCode::MTU_256, MtuCode::MTU_256);
    let local = fixture.end(fixture.local(), fixture.connect(local, at_peer)?);
    let peer = fixture.end(fixture.peer(), fixture.connect(peer, at_local)?);
    from.region()
        .copy_in(0, &[9; 5000])
        .or_fail("write to own memory")?;
    local.post(1, &[write(&*from, &*to, 0, 5000)], &[1; 3000])?;
    peer.expect_message(&[1; 3000])?;
    ensure!(
        content(to.region())?[..5000] == [9; 5000],
        "the data of the write is not all there"
    );
    Ok(())
}

pub(super) fn unreachable_ends_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let [local, peer] = fixture.pending()?;
    let mut nowhere = peer.local();
    nowhere.gid = RoceGid::ZERO;
    let route = fixture.between()?.route;
    let result = fixture.wait("connect", local.connect(nowhere, route))?;
    ensure!(result.is_err(), "a link to nowhere was made");
    Ok(())
}

pub(super) fn a_wrong_queue_pair_number_gets_no_answer(fixture: &mut Fixture<'_>) -> Verdict {
    let [local, peer] = fixture.pending()?;
    let (at_local, mut at_peer) = (local.local(), peer.local());
    // One that is free: both devices may have queue pairs of other users.
    let free = fixture.pending()?;
    at_peer.qpn = free[1].local().qpn;
    drop(free);
    let local = fixture.end(fixture.local(), fixture.connect(local, at_peer)?);
    let _peer = fixture.connect(peer, at_local)?;
    local.post(1, &[], &numbered(1))?;
    local.expect_down(LinkFailure::RetryExceeded)
}

pub(super) fn a_wrong_sequence_number_gets_no_answer(fixture: &mut Fixture<'_>) -> Verdict {
    let [local, peer] = fixture.pending()?;
    let (mut at_local, at_peer) = (local.local(), peer.local());
    // The peer misses packets; others before those it expects would count as seen.
    let earlier = at_local.psn.get().wrapping_sub(1000) & Psn::MAX.get();
    at_local.psn = Psn::new(earlier).unwrap_or_default();
    let local = fixture.end(fixture.local(), fixture.connect(local, at_peer)?);
    let peer = fixture.end(fixture.peer(), fixture.connect(peer, at_local)?);
    local.post(1, &[], &numbered(1))?;
    local.expect_down(LinkFailure::RetryExceeded)?;
    ensure!(
        peer.try_message().is_none(),
        "a message with a wrong sequence number was received"
    );
    Ok(())
}
