//! The optional ability to map the peer's buffer.

use smc_core::device::{DeviceError, Signal};
use smc_core::mem::sync::Ordering;
use smc_wire::types::DmbToken;

use super::bench::{Bench, OrFail, SMALL, Verdict, bytes, content, ensure, fail};
use super::node::ring;
use super::signals::{When, staged};
use super::wakeups::chase;
use crate::Rng;

pub(super) fn both_ends_agree_on_nocopy(bench: &mut Bench<'_>) -> Verdict {
    let [ours, peer] = [bench.ours(), bench.peer()].map(|node| node.direct().nocopy().is_some());
    ensure!(
        ours == peer,
        "nocopy at the own end: {ours}, at the peer's: {peer}"
    );
    Ok(())
}

pub(super) fn attached_memory_is_shared(bench: &mut Bench<'_>) -> Verdict {
    let dmb = bench.our_buffer()?;
    let attachment = bench.attach(&*dmb)?;
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

pub(super) fn attachments_and_moves_agree(bench: &mut Bench<'_>) -> Verdict {
    let dmb = bench.our_buffer()?;
    let attachment = bench.attach(&*dmb)?;
    bench.peer().put(dmb.token(), 40, b"moved", Signal::No)?;
    bench.eventually("moved bytes show in the attachment", || {
        Ok(bytes(attachment.region(), 40, 5)? == b"moved")
    })
}

pub(super) fn attachment_signals_are_reported(bench: &mut Bench<'_>) -> Verdict {
    let timeout = bench.timeout();
    let (ours, dmb) = (bench.ours(), bench.our_buffer()?);
    let attachment = bench.attach(&*dmb)?;
    for round in 1..=20_u8 {
        ours.forget()?;
        dmb.arm();
        attachment
            .region()
            .copy_in(32, &[round; 5000])
            .or_fail("write")?;
        ring(&*attachment, timeout)?;
        ours.await_report(dmb.token())?;
        let arrived = bytes(dmb.region(), 32, 5000)?
            .iter()
            .all(|byte| *byte == round);
        ensure!(arrived, "round {round}: reported before all data was there");
    }
    Ok(())
}

pub(super) fn attachment_signals_between_the_drains_are_seen(bench: &mut Bench<'_>) -> Verdict {
    let timeout = bench.timeout();
    let dmb = bench.our_buffer()?;
    let attachment = bench.attach(&*dmb)?;
    for when in [
        When::BeforeFirstDrain,
        When::BetweenDrainAndArm,
        When::BetweenArmAndDrain,
        When::AfterSecondDrain,
    ] {
        staged(bench, &*dmb, when, || ring(&*attachment, timeout))?;
    }
    Ok(())
}

pub(super) fn detaching_between_the_drains_loses_no_wake_up(bench: &mut Bench<'_>) -> Verdict {
    let (ours, timeout) = (bench.ours(), bench.timeout());
    let dmb = bench.our_buffer()?;
    let attachment = bench.attach(&*dmb)?;
    for round in 1..=5 {
        // Long enough for the device to detect the last use and to release the pages.
        let len = LONG.min(ours.device().limits().max_dmb_len);
        let dropped = bench.buffer(ours, bench.peer(), len)?;
        let in_use = bench.attach(&*dropped)?;
        drop(dropped);
        ours.forget()?;
        dmb.arm();
        ours.listen();
        while ours.drain()? > 0 {}
        ours.arm()?;
        drop(in_use);
        while ours.drain()? > 0 {
            ours.arm()?;
        }
        ring(&*attachment, timeout)?;
        ensure!(
            ours.park(timeout)?,
            "round {round}: the signal of another attachment does not ring"
        );
        ours.await_report(dmb.token())?;
    }
    Ok(())
}

pub(super) fn attachment_wake_ups_are_never_lost(bench: &mut Bench<'_>) -> Verdict {
    let timeout = bench.timeout();
    let dmb = bench.our_buffer()?;
    let attachment = bench.attach(&*dmb)?;
    chase(bench, &*dmb, |round| {
        let store = attachment
            .region()
            .store(8, u64::from(round), Ordering::Release);
        store.or_fail("store through the attachment")?;
        ring(&*attachment, timeout)
    })
}

pub(super) fn unknown_tokens_cannot_be_attached(bench: &mut Bench<'_>) -> Verdict {
    let dmb = bench.our_buffer()?;
    let token = dmb.token().0;
    let odd = [
        token ^ 1,
        token.wrapping_add(1),
        0,
        u64::MAX,
        Rng::new(1).bits(),
    ];
    for token in odd.map(DmbToken) {
        match bench.try_attach(bench.peer(), bench.ours().gid(), token)? {
            Err(DeviceError::Invalid(_)) => {}
            Err(error) => return fail(format!("expected `Invalid`, got: {error}")),
            Ok(_) => return fail("an unregistered token was attached"),
        }
    }
    Ok(())
}

pub(super) fn third_devices_cannot_attach(bench: &mut Bench<'_>) -> Verdict {
    let third = bench.third()?;
    let dmb = bench.our_buffer()?;
    bench.attach(&*dmb)?;
    // A buffer of its own, so that it knows the owner.
    let own = bench.buffer(bench.ours(), third, SMALL)?;
    bench
        .try_attach(third, bench.ours().gid(), own.token())?
        .or_fail("attach of the third device's own buffer")?;
    let result = bench.try_attach(third, bench.ours().gid(), dmb.token())?;
    ensure!(
        result.is_err(),
        "a buffer of two devices was attached by a third"
    );
    Ok(())
}

pub(super) fn freed_buffers_cannot_be_attached(bench: &mut Bench<'_>) -> Verdict {
    let dmb = bench.our_buffer()?;
    bench.attach(&*dmb)?;
    let (token, owner) = (dmb.token(), bench.ours().gid());
    drop(dmb);
    bench.eventually("a dropped buffer can no longer be attached", || {
        Ok(bench.try_attach(bench.peer(), owner, token)?.is_err())
    })
}

pub(super) fn attached_memory_outlives_the_buffer(bench: &mut Bench<'_>) -> Verdict {
    let dmb = bench.our_buffer()?;
    let attachment = bench.attach(&*dmb)?;
    let mapped = attachment.region();
    mapped
        .copy_in(0, &[0xa5; SMALL])
        .or_fail("write through the attachment")?;
    drop(dmb);
    // New buffers must not come to lie in memory that is still attached.
    let next = [bench.our_buffer()?, bench.our_buffer()?];
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
    bench.ours().forget()?;
    for dmb in &next {
        ensure!(
            content(dmb.region())?.iter().all(|byte| *byte == 0x77),
            "writing to a dropped buffer changed another one"
        );
    }
    Ok(())
}

pub(super) fn buffers_outlive_their_attachments(bench: &mut Bench<'_>) -> Verdict {
    let dmb = bench.our_buffer()?;
    for round in 1..=5_u8 {
        let attachment = bench.attach(&*dmb)?;
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
    bench.peer().put(dmb.token(), 0, &[0xff; 100], Signal::No)?;
    bench.eventually("a move arrives after the attachment is gone", || {
        Ok(bytes(dmb.region(), 0, 100)?
            .iter()
            .all(|byte| *byte == 0xff))
    })
}

/// More than any device keeps of an unused buffer.
const LONG: usize = 1 << 18;
