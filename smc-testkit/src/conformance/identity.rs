//! The identity of a device, and which devices it reaches.

use smc_core::device::DeviceError;
use smc_wire::types::Gid;

use super::fixture::{Fixture, SMALL, Verdict, ensure, fail};
use crate::Rng;

pub(super) fn a_device_has_a_name(fixture: &mut Fixture<'_>) -> Verdict {
    for node in [fixture.local(), fixture.peer()] {
        let before = node.device().identity().clone();
        ensure!(!before.name.is_empty(), "the name is empty");
        let dmb = fixture.local_buffer()?;
        ensure!(
            *node.device().identity() == before,
            "the identity of {} changes",
            before.name
        );
        drop(dmb);
    }
    Ok(())
}

pub(super) fn limits_allow_at_least_one_buffer(fixture: &mut Fixture<'_>) -> Verdict {
    for node in [fixture.local(), fixture.peer()] {
        let limits = node.device().limits();
        ensure!(limits.max_dmbs >= 1, "max_dmbs is 0");
        ensure!(
            limits.max_dmb_len >= SMALL,
            "max_dmb_len is {}",
            limits.max_dmb_len
        );
    }
    Ok(())
}

pub(super) fn chid_and_gid_agree(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = (fixture.local().direct(), fixture.peer().direct());
    ensure!(
        local.chid() == peer.chid(),
        "CHIDs differ: {} and {}",
        local.chid(),
        peer.chid()
    );
    ensure!(
        !local.chid().is_none(),
        "CHID 0 means that there is no device"
    );
    for direct in [local, peer] {
        let (chid, gid) = (direct.chid(), direct.gid());
        let has_two_halves = gid.lo().0 != 0;
        ensure!(
            has_two_halves == chid.is_emulated(),
            "GID {gid} does not go with CHID {chid}: emulated is {}",
            chid.is_emulated()
        );
    }
    Ok(())
}

pub(super) fn gids_do_not_change(fixture: &mut Fixture<'_>) -> Verdict {
    for node in [fixture.local(), fixture.peer()] {
        let before = node.gid();
        ensure!(!before.is_zero(), "the GID is zero");
        let dmb = fixture.local_buffer()?;
        ensure!(
            node.gid() == before,
            "the GID changed from {before} to {}",
            node.gid()
        );
        drop(dmb);
    }
    Ok(())
}

pub(super) fn the_peer_can_be_reached(fixture: &mut Fixture<'_>) -> Verdict {
    for (from, to) in [
        (fixture.local(), fixture.peer()),
        (fixture.peer(), fixture.local()),
    ] {
        // Twice: the second time there may be something left of the first.
        for _ in 0..2 {
            if let Err(error) = fixture.reach(from, to.gid())? {
                return fail(format!("{} cannot be reached: {error}", to.gid()));
            }
        }
    }
    Ok(())
}

pub(super) fn unknown_devices_are_unreachable(fixture: &mut Fixture<'_>) -> Verdict {
    let mut rng = Rng::new(0x6e6f_6e65);
    for _ in 0..4 {
        let gid = unknown_gid(fixture, &mut rng);
        match fixture.reach(fixture.local(), gid)? {
            Err(DeviceError::Unreachable { peer, .. }) if peer == gid => {}
            Err(DeviceError::Unreachable { peer, .. }) => {
                return fail(format!("asked for {gid}, the error is about {peer}"));
            }
            Err(error) => return fail(format!("expected `Unreachable`, got: {error}")),
            Ok(()) => return fail(format!("{gid} does not exist and was reached")),
        }
    }
    Ok(())
}

pub(super) fn reaching_oneself_ends(fixture: &mut Fixture<'_>) -> Verdict {
    let own = fixture.local().gid();
    match fixture.reach(fixture.local(), own)? {
        Ok(()) | Err(DeviceError::Unreachable { .. } | DeviceError::NotPermitted(_)) => Ok(()),
        Err(error) => fail(format!("expected success or `Unreachable`, got: {error}")),
    }
}

/// A GID of the right kind that no device has.
pub(super) fn unknown_gid(fixture: &Fixture<'_>, rng: &mut Rng) -> Gid {
    if fixture.local().direct().chid().is_emulated() {
        Gid::new(rng.bits(), rng.bits() | 1)
    } else {
        Gid::native(rng.bits())
    }
}
