//! Devices that go away.

use std::time::Duration;

use smc_core::device::{Event, Signal, SubmitError};
use smc_wire::types::Gid;

use super::fixture::{Fixture, OrFail, SMALL, Verdict, bytes, content, ensure, fail, skip};

pub(super) fn a_dead_peer_is_reported_once(fixture: &mut Fixture<'_>) -> Verdict {
    let (to_local, to_peer) = write_both_ways(fixture)?;
    drop(to_peer);
    // As a parked driver: only the doorbell may report it.
    let local = fixture.local();
    local.forget()?;
    to_local.arm();
    local.listen();
    local.drain()?;
    local.arm()?;
    local.drain()?;
    let gid = fixture.peer().gid();
    fixture.kill_peer()?;
    let local = fixture.local();
    if local.count(Event::PeerGone(gid)) == 0 {
        ensure!(
            local.park(fixture.timeout())?,
            "nothing wakes the driver when the peer dies"
        );
    }
    expect_gone(fixture, gid)?;
    for _ in 0..10 {
        local.turn(Duration::from_millis(5))?;
    }
    let count = local.count(Event::PeerGone(gid));
    ensure!(count == 1, "`PeerGone` is reported {count} times");
    Ok(())
}

pub(super) fn moves_to_a_dead_peer_fail(fixture: &mut Fixture<'_>) -> Verdict {
    let (to_local, to_peer) = write_both_ways(fixture)?;
    let token = to_peer.token();
    drop(to_peer);
    let gid = fixture.peer().gid();
    fixture.kill_peer()?;
    expect_gone(fixture, gid)?;
    for signal in [Signal::No, Signal::Yes] {
        match fixture
            .local()
            .try_put(gid, token, 0, &[&[1; 32]], signal)?
        {
            Err(SubmitError::PeerGone | SubmitError::UnknownToken) => {}
            Err(error) => return fail(format!("expected `PeerGone`, got: {error}")),
            Ok(()) => return fail("a move to a dead peer succeeds"),
        }
    }
    drop(to_local);
    Ok(())
}

pub(super) fn a_dead_peer_is_unreachable(fixture: &mut Fixture<'_>) -> Verdict {
    let dmbs = write_both_ways(fixture)?;
    drop(dmbs);
    let gid = fixture.peer().gid();
    fixture.kill_peer()?;
    expect_gone(fixture, gid)?;
    let result = fixture.reach(fixture.local(), gid)?;
    ensure!(result.is_err(), "the dead peer {gid} is reached");
    Ok(())
}

pub(super) fn buffers_outlive_a_dead_peer(fixture: &mut Fixture<'_>) -> Verdict {
    let (to_local, to_peer) = write_both_ways(fixture)?;
    fixture.put(to_local.token(), 32, &[0xa5; 9000], Signal::No)?;
    fixture.eventually("the last data arrives", || {
        Ok(bytes(to_local.region(), 32, 9000)?
            .iter()
            .all(|byte| *byte == 0xa5))
    })?;
    drop(to_peer);
    let gid = fixture.peer().gid();
    fixture.kill_peer()?;
    expect_gone(fixture, gid)?;
    let intact = bytes(to_local.region(), 32, 9000)?
        .iter()
        .all(|byte| *byte == 0xa5);
    ensure!(intact, "data that had arrived went with the peer");
    to_local.arm();
    drop(to_local);
    fixture.local().drain()?;
    Ok(())
}

pub(super) fn attachments_outlive_a_dead_peer(fixture: &mut Fixture<'_>) -> Verdict {
    let (to_local, to_peer) = write_both_ways(fixture)?;
    let (owner, token) = (fixture.peer().gid(), to_peer.token());
    let attached = fixture
        .try_attach(fixture.local(), owner, token)?
        .or_fail("attach")?;
    attached
        .region()
        .copy_in(0, &[0x3c; SMALL])
        .or_fail("write")?;
    drop((to_local, to_peer));
    let gid = fixture.peer().gid();
    fixture.kill_peer()?;
    expect_gone(fixture, gid)?;
    let intact = content(attached.region())?.iter().all(|byte| *byte == 0x3c);
    ensure!(intact, "attached memory changed when its owner died");
    attached
        .region()
        .copy_in(0, &[0xc3; SMALL])
        .or_fail("write")?;
    // An error is right, nothing is harmless.
    let _ = attached.signal();
    drop(attached);
    fixture.local().drain()?;
    Ok(())
}

pub(super) fn others_survive_a_dead_peer(fixture: &mut Fixture<'_>) -> Verdict {
    fixture.third()?;
    let dmbs = write_both_ways(fixture)?;
    let kept = fixture.buffer(fixture.local(), fixture.third()?, SMALL)?;
    drop(dmbs);
    let gid = fixture.peer().gid();
    fixture.kill_peer()?;
    expect_gone(fixture, gid)?;
    let (local, third) = (fixture.local(), fixture.third()?);
    let gone = local.count(Event::PeerGone(third.gid()));
    ensure!(
        gone == 0,
        "the third device is reported gone with the second"
    );
    kept.arm();
    third.put(
        fixture.local().gid(),
        kept.token(),
        0,
        &[1; 32],
        Signal::Yes,
    )?;
    local.await_report(kept.token())
}

pub(super) fn a_removed_device_says_so(fixture: &mut Fixture<'_>) -> Verdict {
    let Some(remove) = fixture.extras().remove.take() else {
        return skip("the provider cannot remove a device");
    };
    let (to_local, to_peer) = write_both_ways(fixture)?;
    let (local, peer) = (fixture.local(), fixture.peer());
    fixture.remove_local(remove)?;
    to_local.arm();
    let result = fixture.wait("reach", local.direct().reach(peer.gid()))?;
    ensure!(result.is_err(), "a removed device reaches its peer");
    let result = fixture.wait("register", local.direct().register(peer.gid(), SMALL))?;
    ensure!(result.is_err(), "a removed device registers a buffer");
    let result = local.try_put(peer.gid(), to_peer.token(), 0, &[&[1; 32]], Signal::Yes)?;
    ensure!(result.is_err(), "a removed device moves data");
    Ok(())
}

type Dmbs = (
    std::sync::Arc<dyn smc_core::device::Dmb>,
    std::sync::Arc<dyn smc_core::device::Dmb>,
);

/// Writes to a buffer in each direction, after which both devices know each other.
fn write_both_ways(fixture: &Fixture<'_>) -> Result<Dmbs, super::fixture::Stop> {
    let (local, peer) = (fixture.local(), fixture.peer());
    for (from, to) in [(local, peer), (peer, local)] {
        fixture.reach(from, to.gid())?.or_fail("reach")?;
    }
    let to_local = fixture.buffer(local, peer, SMALL)?;
    let to_peer = fixture.buffer(peer, local, SMALL)?;
    fixture.put(to_local.token(), 0, &[1; 32], Signal::Yes)?;
    local.put(peer.gid(), to_peer.token(), 0, &[1; 32], Signal::Yes)?;
    Ok((to_local, to_peer))
}

fn expect_gone(fixture: &Fixture<'_>, gid: Gid) -> Verdict {
    let seen = fixture.local().await_event(Event::PeerGone(gid))?;
    ensure!(seen, "the death of {gid} is never reported");
    Ok(())
}
