//! The optional ability to map the peer's buffer.

use smc_core::device::{DeviceError, Signal};
use smc_core::mem::sync::Ordering;
use smc_wire::types::DmbToken;

use super::fixture::{Fixture, OrFail, SMALL, Verdict, bytes, content, ensure, fail};
use super::node::ring;
use super::signals::{When, staged};
use super::wakeups::await_rounds;
use crate::Rng;

pub(super) fn both_ends_agree_on_nocopy(fixture: &mut Fixture<'_>) -> Verdict {
    let [local, peer] =
        [fixture.local(), fixture.peer()].map(|node| node.direct().nocopy().is_some());
    ensure!(
        local == peer,
        "nocopy at the own end: {local}, at the peer's: {peer}"
    );
    Ok(())
}

pub(super) fn attached_memory_is_shared(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let attachment = fixture.attach(&*dmb)?;
    let (own, mapped) = (dmb.region(), attachment.region());
    ensure!(
        mapped.len() == own.len(),
        "{} bytes attached of {}",
        mapped.len(),
        own.len()
    );
    ensure!(
        mapped.as_ptr().as_ptr().addr() % 8 == 0,
        "attached memory is not aligned to 8"
    );

    let mut data = vec![0; SMALL];
    Rng::new(0x6d61_7070).fill(&mut data);
    mapped
        .copy_in(0, &data)
        .or_fail("write through the attachment")?;
    ensure!(
        content(own)? == data,
        "the owner does not see what was written through the attachment"
    );
    own.store(16, 0x1122_3344_5566_7788, Ordering::Release)
        .or_fail("store by the owner")?;
    let word = mapped
        .load(16, Ordering::Acquire)
        .or_fail("load through the attachment")?;
    ensure!(
        word == 0x1122_3344_5566_7788,
        "the attachment does not see the owner's store"
    );
    Ok(())
}

pub(super) fn attachments_and_moves_agree(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let attachment = fixture.attach(&*dmb)?;
    fixture.put(dmb.token(), 40, b"moved", Signal::No)?;
    fixture.eventually("moved bytes show in the attachment", || {
        Ok(bytes(attachment.region(), 40, 5)? == b"moved")
    })
}

pub(super) fn attachment_signals_are_reported(fixture: &mut Fixture<'_>) -> Verdict {
    let timeout = fixture.timeout();
    let (local, dmb) = (fixture.local(), fixture.local_buffer()?);
    let attachment = fixture.attach(&*dmb)?;
    for round in 1..=20_u8 {
        local.forget()?;
        dmb.arm();
        attachment
            .region()
            .copy_in(32, &[round; 5000])
            .or_fail("write")?;
        ring(&*attachment, timeout)?;
        local.await_report(dmb.token())?;
        let arrived = bytes(dmb.region(), 32, 5000)?
            .iter()
            .all(|byte| *byte == round);
        ensure!(arrived, "round {round}: reported before all data was there");
    }
    Ok(())
}

pub(super) fn attachment_signals_between_the_drains_are_seen(fixture: &mut Fixture<'_>) -> Verdict {
    let timeout = fixture.timeout();
    let dmb = fixture.local_buffer()?;
    let attachment = fixture.attach(&*dmb)?;
    for when in [
        When::BeforeFirstDrain,
        When::BetweenDrainAndArm,
        When::BetweenArmAndDrain,
        When::AfterSecondDrain,
    ] {
        staged(fixture, &*dmb, when, || ring(&*attachment, timeout))?;
    }
    Ok(())
}

pub(super) fn detaching_between_the_drains_loses_no_wake_up(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, timeout) = (fixture.local(), fixture.timeout());
    let dmb = fixture.local_buffer()?;
    let attachment = fixture.attach(&*dmb)?;
    for round in 1..=5 {
        // Long enough for the device to detect the last use and to release the pages.
        let len = LONG.min(local.device().limits().max_dmb_len);
        let dropped = fixture.buffer(local, fixture.peer(), len)?;
        let in_use = fixture.attach(&*dropped)?;
        drop(dropped);
        local.forget()?;
        dmb.arm();
        local.listen();
        while local.drain()? > 0 {}
        local.arm()?;
        drop(in_use);
        while local.drain()? > 0 {
            local.arm()?;
        }
        ring(&*attachment, timeout)?;
        ensure!(
            local.park(timeout)?,
            "round {round}: the signal of another attachment does not ring"
        );
        local.await_report(dmb.token())?;
    }
    Ok(())
}

pub(super) fn attachment_wake_ups_are_never_lost(fixture: &mut Fixture<'_>) -> Verdict {
    let timeout = fixture.timeout();
    let dmb = fixture.local_buffer()?;
    let attachment = fixture.attach(&*dmb)?;
    await_rounds(fixture, &*dmb, |round| {
        let store = attachment
            .region()
            .store(8, u64::from(round), Ordering::Release);
        store.or_fail("store through the attachment")?;
        ring(&*attachment, timeout)
    })
}

pub(super) fn unknown_tokens_cannot_be_attached(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let token = dmb.token().0;
    let odd = [
        token ^ 1,
        token.wrapping_add(1),
        0,
        u64::MAX,
        Rng::new(1).bits(),
    ];
    for token in odd.map(DmbToken) {
        match fixture.try_attach(fixture.peer(), fixture.local().gid(), token)? {
            Err(DeviceError::Invalid(_)) => {}
            Err(error) => return fail(format!("expected `Invalid`, got: {error}")),
            Ok(_) => return fail("an unregistered token was attached"),
        }
    }
    Ok(())
}

pub(super) fn third_devices_cannot_attach(fixture: &mut Fixture<'_>) -> Verdict {
    let third = fixture.third()?;
    let dmb = fixture.local_buffer()?;
    fixture.attach(&*dmb)?;
    // A buffer of its own, so that it knows the owner.
    let own = fixture.buffer(fixture.local(), third, SMALL)?;
    fixture
        .try_attach(third, fixture.local().gid(), own.token())?
        .or_fail("attach of the third device's own buffer")?;
    let result = fixture.try_attach(third, fixture.local().gid(), dmb.token())?;
    ensure!(
        result.is_err(),
        "a buffer of two devices was attached by a third"
    );
    Ok(())
}

pub(super) fn freed_buffers_cannot_be_attached(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    fixture.attach(&*dmb)?;
    let (token, owner) = (dmb.token(), fixture.local().gid());
    drop(dmb);
    fixture.eventually("a dropped buffer can no longer be attached", || {
        Ok(fixture.try_attach(fixture.peer(), owner, token)?.is_err())
    })
}

pub(super) fn attached_memory_outlives_the_buffer(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let attachment = fixture.attach(&*dmb)?;
    let mapped = attachment.region();
    mapped
        .copy_in(0, &[0xa5; SMALL])
        .or_fail("write through the attachment")?;
    drop(dmb);
    // New buffers must not come to lie in memory that is still attached.
    let next = [fixture.local_buffer()?, fixture.local_buffer()?];
    for dmb in &next {
        dmb.region()
            .copy_in(0, &[0x77; SMALL])
            .or_fail("write to the next buffer")?;
    }
    ensure!(
        content(mapped)?.iter().all(|byte| *byte == 0xa5),
        "attached memory changed after its owner dropped it"
    );
    mapped
        .copy_in(0, &[0x11; SMALL])
        .or_fail("write through the attachment")?;
    // Whether a peer is notified does not matter.
    let _ = attachment.signal();
    fixture.local().forget()?;
    for dmb in &next {
        ensure!(
            content(dmb.region())?.iter().all(|byte| *byte == 0x77),
            "writing to a dropped buffer changed another one"
        );
    }
    Ok(())
}

pub(super) fn buffers_outlive_their_attachments(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    for round in 1..=5_u8 {
        let attachment = fixture.attach(&*dmb)?;
        attachment
            .region()
            .copy_in(0, &[round; 100])
            .or_fail("write")?;
        drop(attachment);
        let kept = bytes(dmb.region(), 0, 100)?
            .iter()
            .all(|byte| *byte == round);
        ensure!(kept, "round {round}: the data went with the attachment");
    }
    // Copying still works without an attachment.
    fixture.put(dmb.token(), 0, &[0xff; 100], Signal::No)?;
    fixture.eventually("a move arrives after the attachment is gone", || {
        Ok(bytes(dmb.region(), 0, 100)?
            .iter()
            .all(|byte| *byte == 0xff))
    })
}

/// More than any device keeps of an unused buffer.
const LONG: usize = 1 << 18;
