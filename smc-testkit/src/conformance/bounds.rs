//! Memory that must not be written.

use smc_core::device::{Dmb, Signal, SubmitError};
use smc_wire::types::DmbToken;

use super::fixture::{Fixture, SMALL, Verdict, content, ensure, fail, skip};
use super::node::Node;
use crate::Rng;

pub(super) fn moves_past_the_end_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let neighbour = fixture.local_buffer()?;
    let long = vec![0xee; SMALL + 8];
    for (at, len) in [
        (SMALL, 1),
        (SMALL - 1, 2),
        (SMALL - 8, 16),
        (0, SMALL + 1),
        (SMALL + 8, 8),
    ] {
        let result = fixture.try_put(dmb.token(), at, &[&long[..len]], Signal::No)?;
        expect_out_of_bounds(result, at, len)?;
    }
    // The first slice alone would fit.
    let result = fixture.try_put(dmb.token(), SMALL - 8, &[&[1; 8], &[1]], Signal::No)?;
    expect_out_of_bounds(result, SMALL - 8, 9)?;
    expect_untouched(fixture, &*dmb)?;
    expect_untouched(fixture, &*neighbour)
}

pub(super) fn offsets_do_not_wrap(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let top = u32::MAX as usize;
    for (at, len) in [
        (top, 1),
        (top, 2),
        (top - 7, 8),
        (top - 7, 64),
        (1 << 31, 32),
    ] {
        let data = vec![0xee; len];
        let result = fixture.try_put(dmb.token(), at, &[&data], Signal::Yes)?;
        expect_out_of_bounds(result, at, len)?;
    }
    expect_untouched(fixture, &*dmb)
}

pub(super) fn unknown_tokens_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let token = dmb.token().0;
    let mut rng = Rng::new(0x746f_6b65);
    let near = [
        token ^ 1,
        token.wrapping_add(1),
        token.wrapping_sub(1),
        !token,
    ];
    let odd = [0, 1, u64::MAX, rng.bits(), rng.bits()];
    for token in near.into_iter().chain(odd).map(DmbToken) {
        for data in [&[0xee; 8][..], &[]] {
            let result = fixture.try_put(token, 0, &[data], Signal::Yes)?;
            expect_unknown(result, "an unregistered token")?;
        }
    }
    expect_untouched(fixture, &*dmb)
}

pub(super) fn the_owner_cannot_move_into_its_own_buffer(fixture: &mut Fixture<'_>) -> Verdict {
    if fixture.local().gid() == fixture.peer().gid() {
        return skip("both ends are one device");
    }
    let dmb = fixture.local_buffer()?;
    let result = fixture.local().try_put(
        fixture.local().gid(),
        dmb.token(),
        0,
        &[&[0xee; 32]],
        Signal::Yes,
    )?;
    expect_unknown(result, "the owner's own buffer")?;
    expect_untouched(fixture, &*dmb)
}

pub(super) fn third_devices_cannot_write(fixture: &mut Fixture<'_>) -> Verdict {
    let third = fixture.third()?;
    let dmb = fixture.local_buffer()?;
    // A buffer of its own, so that it knows the owner.
    let own = fixture.buffer(fixture.local(), third, SMALL)?;
    third.put(fixture.local().gid(), own.token(), 0, &[1], Signal::No)?;
    let result = third.try_put(
        fixture.local().gid(),
        dmb.token(),
        0,
        &[&[0xee; 32]],
        Signal::Yes,
    )?;
    expect_unknown(result, "a buffer that was registered for another device")?;
    expect_untouched(fixture, &*dmb)
}

pub(super) fn tokens_name_buffers_of_their_owner_only(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer, third) = (fixture.local(), fixture.peer(), fixture.third()?);
    // One of each, so that the peer knows both owners.
    let own = fixture.buffer(local, peer, SMALL)?;
    let other = fixture.buffer(third, peer, SMALL)?;
    peer.put(local.gid(), own.token(), 0, &[0; 32], Signal::No)?;
    peer.put(third.gid(), other.token(), 0, &[0; 32], Signal::No)?;
    for (owner, token) in [(local, other.token()), (third, own.token())] {
        let result = peer.try_put(owner.gid(), token, 0, &[&[0xee; 32]], Signal::Yes)?;
        expect_unknown(result, "a buffer that another device owns")?;
        if peer.direct().nocopy().is_some() {
            let attached = fixture.try_attach(peer, owner.gid(), token)?;
            ensure!(
                attached.is_err(),
                "a buffer that another device owns was attached"
            );
        }
    }
    third.drain()?;
    expect_untouched(fixture, &*own)?;
    expect_untouched(fixture, &*other)
}

pub(super) fn freed_tokens_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let token = dmb.token();
    fixture.put(token, 0, &[1; 64], Signal::Yes)?;
    drop(dmb);
    fixture.eventually("moves to a dropped buffer fail", || {
        match fixture.try_put(token, 0, &[&[0xee; 64]], Signal::Yes)? {
            Ok(()) => Ok(false),
            Err(SubmitError::UnknownToken) => Ok(true),
            Err(error) => fail(format!("expected `UnknownToken`, got: {error}")),
        }
    })
}

pub(super) fn freed_tokens_hit_no_other_buffer(fixture: &mut Fixture<'_>) -> Verdict {
    for _ in 0..32 {
        let freed: Vec<DmbToken> = {
            let dmbs = fixture.local_buffers(2)?;
            for dmb in &dmbs {
                fixture.put(dmb.token(), 0, &[1; 64], Signal::No)?;
            }
            dmbs.iter().map(|dmb| dmb.token()).collect()
        };
        let next = fixture.local_buffers(3)?;
        for token in freed {
            // Whether it is refused already does not matter here.
            let _ = fixture.try_put(token, 0, &[&[0xee; 4096]], Signal::Yes)?;
        }
        for dmb in &next {
            expect_untouched(fixture, &**dmb)?;
        }
    }
    Ok(())
}

fn expect_out_of_bounds(result: Result<(), SubmitError>, at: usize, len: usize) -> Verdict {
    match result {
        Err(SubmitError::OutOfBounds) => Ok(()),
        Err(error) => fail(format!(
            "{len} bytes at {at}: expected `OutOfBounds`, got: {error}"
        )),
        Ok(()) => fail(format!(
            "{len} bytes at {at} were taken by a buffer of {SMALL}"
        )),
    }
}

fn expect_unknown(result: Result<(), SubmitError>, what: &str) -> Verdict {
    match result {
        Err(SubmitError::UnknownToken) => Ok(()),
        Err(error) => fail(format!(
            "move to {what}: expected `UnknownToken`, got: {error}"
        )),
        Ok(()) => fail(format!("move to {what} was taken")),
    }
}

/// The buffer is still zero, also after anything under way has arrived.
fn expect_untouched(fixture: &Fixture<'_>, dmb: &dyn Dmb) -> Verdict {
    for node in [fixture.local(), fixture.peer()] {
        Node::drain(node)?;
    }
    let touched = content(dmb.region())?.iter().position(|byte| *byte != 0);
    ensure!(
        touched.is_none(),
        "a refused move changed the byte at {touched:?}"
    );
    Ok(())
}
