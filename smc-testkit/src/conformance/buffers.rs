//! Registered buffers: size, content, tokens.

use std::collections::HashSet;

use smc_core::device::{DeviceError, Signal};
use smc_core::mem::sync::Ordering;

use super::fixture::{Fixture, OrFail, SMALL, Verdict, content, ensure, fail, skip};
use super::identity::unknown_gid;
use crate::Rng;

pub(super) fn buffers_have_the_asked_length(fixture: &mut Fixture<'_>) -> Verdict {
    for owner in [fixture.local(), fixture.peer()] {
        let writer = fixture.peer();
        let writer = if std::ptr::eq(owner, writer) {
            fixture.local()
        } else {
            writer
        };
        let max = owner.device().limits().max_dmb_len.min(LARGEST);
        let mut len = SMALL;
        while len <= max {
            let dmb = fixture.buffer(owner, writer, len)?;
            let got = dmb.region().len();
            ensure!(got == len, "asked for {len} bytes, got {got}");
            ensure!(
                dmb.region().as_ptr().as_ptr().addr() % 8 == 0,
                "a buffer of {len} bytes is not aligned to 8"
            );
            dmb.region()
                .load(len - 8, Ordering::Acquire)
                .or_fail("load of the last word")?;
            len *= 2;
        }
    }
    Ok(())
}

pub(super) fn buffers_start_zeroed(fixture: &mut Fixture<'_>) -> Verdict {
    for round in 0..16_u8 {
        let dmb = fixture.local_buffer()?;
        let start = content(dmb.region())?.iter().position(|byte| *byte != 0);
        if let Some(at) = start {
            return fail(format!("buffer {round} is not zeroed at offset {at}"));
        }
        let used = vec![0xa5 ^ round; SMALL];
        fixture.put(dmb.token(), 0, &used, Signal::No)?;
        dmb.region()
            .copy_in(SMALL - 64, &[0x5a; 64])
            .or_fail("write to the own buffer")?;
    }
    Ok(())
}

pub(super) fn tokens_are_never_reused(fixture: &mut Fixture<'_>) -> Verdict {
    let mut seen = HashSet::new();
    for _ in 0..64 {
        let batch = [fixture.local_buffer()?, fixture.local_buffer()?];
        for dmb in batch {
            ensure!(
                seen.insert(dmb.token()),
                "token {} is used again",
                dmb.token()
            );
        }
    }
    Ok(())
}

pub(super) fn tokens_cannot_be_guessed(fixture: &mut Fixture<'_>) -> Verdict {
    if fixture.provider.is_trusting() {
        return skip("all devices of the fabric trust each other");
    }
    let mut tokens = Vec::new();
    for _ in 0..32 {
        tokens.push(fixture.local_buffer()?.token().0);
    }
    // Of 32 random tokens, one in a billion runs has two below 2^33.
    let small = tokens.iter().filter(|token| **token < 1 << 33).count();
    ensure!(small < 2, "{small} of 32 tokens are small numbers");
    let steps: HashSet<_> = tokens
        .windows(2)
        .map(|two| two[1].wrapping_sub(two[0]))
        .collect();
    ensure!(
        steps.len() == tokens.len() - 1,
        "the same distance lies between several tokens"
    );
    let varying = tokens
        .iter()
        .fold(0, |bits, token| bits | (token ^ tokens[0]));
    let varying = varying.count_ones();
    ensure!(varying >= 48, "only {varying} bits of the tokens vary");
    Ok(())
}

pub(super) fn too_long_buffers_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let local = fixture.local();
    let max = local.device().limits().max_dmb_len;
    for len in [max.saturating_mul(2), usize::MAX / 2 + 1] {
        if len <= max {
            continue;
        }
        let result = fixture.wait(
            "register",
            local.direct().register(fixture.peer().gid(), len),
        )?;
        ensure!(
            result.is_err(),
            "a buffer of {len} bytes was granted; the limit is {max}"
        );
    }
    // The refusal costs nothing.
    fixture.local_buffer()?;
    Ok(())
}

pub(super) fn buffers_for_unknown_peers_end(fixture: &mut Fixture<'_>) -> Verdict {
    let gid = unknown_gid(fixture, &mut Rng::new(0x7374_7261));
    match fixture.wait("register", fixture.local().direct().register(gid, SMALL))? {
        // Hardware does not ask whether the peer exists.
        Ok(dmb) => ensure!(dmb.region().len() == SMALL, "the buffer has another length"),
        Err(
            DeviceError::Unreachable { .. } | DeviceError::PeerGone | DeviceError::NotPermitted(_),
        ) => {}
        Err(error) => return fail(format!("expected `Unreachable`, got: {error}")),
    }
    Ok(())
}

pub(super) fn buffers_do_not_share_memory(fixture: &mut Fixture<'_>) -> Verdict {
    let dmbs = fixture.local_buffers(3)?;
    for (mark, dmb) in (1_u8..).zip(&dmbs) {
        dmb.region()
            .copy_in(0, &vec![mark; SMALL])
            .or_fail("write to the own buffer")?;
    }
    for (mark, dmb) in (1_u8..).zip(&dmbs) {
        let intact = content(dmb.region())?.iter().all(|byte| *byte == mark);
        ensure!(intact, "buffer {mark} shows bytes of another one");
    }
    Ok(())
}

/// The largest DMB size that the suite asks for, 2^20: what ISM hardware has.
const LARGEST: usize = 1 << 20;
