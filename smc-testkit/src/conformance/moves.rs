//! `move_data`: the right bytes at the right place.

use smc_core::device::Signal;

use super::fixture::{Fixture, OrFail, SMALL, Verdict, content, ensure};
use crate::Rng;

pub(super) fn moves_arrive(fixture: &mut Fixture<'_>) -> Verdict {
    let mut rng = Rng::new(0x6d6f_7665);
    for (owner, writer) in [
        (fixture.local(), fixture.peer()),
        (fixture.peer(), fixture.local()),
    ] {
        let dmb = fixture.buffer(owner, writer, SMALL)?;
        let mut expected = vec![0; SMALL];
        for (at, len) in PLACES {
            let mut data = vec![0; len];
            rng.fill(&mut data);
            writer.put(owner.gid(), dmb.token(), at, &data, Signal::No)?;
            expected[at..at + len].copy_from_slice(&data);
            fixture.eventually(
                &format!("{len} bytes at {at} arrive, and nothing else"),
                || Ok(content(dmb.region())? == expected),
            )?;
        }
    }
    Ok(())
}

pub(super) fn vectored_moves_are_gathered(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    let (head, middle, tail) = (&[1; 3][..], &[2; 5000][..], &[3; 24][..]);
    let slices = [head, &[], middle, tail, &[]];
    fixture
        .try_put(dmb.token(), 101, &slices, Signal::No)?
        .or_fail("vectored move")?;
    let mut expected = vec![0; SMALL];
    let data = slices.concat();
    expected[101..101 + data.len()].copy_from_slice(&data);
    fixture.eventually("all slices arrive in a row", || {
        Ok(content(dmb.region())? == expected)
    })?;

    // Short and aligned, as a CDC block given in two parts.
    let block = [[7_u8; 8], [8; 8], [9; 8]].concat();
    let slices = [&block[..8], &block[8..]];
    fixture
        .try_put(dmb.token(), 8, &slices, Signal::No)?
        .or_fail("vectored move")?;
    expected[8..32].copy_from_slice(&block);
    fixture.eventually("a block in two parts arrives", || {
        Ok(content(dmb.region())? == expected)
    })
}

pub(super) fn empty_moves_write_nothing(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    for at in [0, 1, 32, SMALL - 1] {
        fixture
            .try_put(dmb.token(), at, &[], Signal::No)?
            .or_fail("move of no slices")?;
        fixture.put(dmb.token(), at, &[], Signal::No)?;
    }
    // Something behind them, so that they have taken effect.
    fixture.put(dmb.token(), 0, &[1], Signal::No)?;
    let mut expected = vec![0; SMALL];
    expected[0] = 1;
    fixture.eventually("only the last byte arrives", || {
        Ok(content(dmb.region())? == expected)
    })
}

pub(super) fn moves_hit_only_their_buffer(fixture: &mut Fixture<'_>) -> Verdict {
    let dmbs = fixture.local_buffers(3)?;
    for (mark, dmb) in (1_u8..).zip(&dmbs) {
        fixture.put(dmb.token(), 0, &vec![mark; SMALL], Signal::No)?;
    }
    for (mark, dmb) in (1_u8..).zip(&dmbs) {
        fixture.eventually(&format!("buffer {mark} has its own data"), || {
            Ok(content(dmb.region())?.iter().all(|byte| *byte == mark))
        })?;
    }
    Ok(())
}

pub(super) fn later_moves_overwrite_earlier_ones(fixture: &mut Fixture<'_>) -> Verdict {
    let dmb = fixture.local_buffer()?;
    for round in 0..200_u8 {
        for (at, len, value) in [(0, 4096, round), (1, 100, !round), (64, 8, round ^ 0x55)] {
            fixture.put(dmb.token(), at, &vec![value; len], Signal::No)?;
        }
        let mut expected = vec![round; 4096];
        expected[1..101].fill(!round);
        expected[64..72].fill(round ^ 0x55);
        fixture.eventually("three overlapping moves arrive in order", || {
            Ok(content(dmb.region())?[..4096] == expected)
        })?;
    }
    let untouched = content(dmb.region())?[4096..].iter().all(|byte| *byte == 0);
    ensure!(untouched, "bytes behind the moves changed");
    Ok(())
}

/// Offset and length around everything that may matter: words, blocks, pages, the end.
const PLACES: [(usize, usize); 16] = [
    (0, 1),
    (0, 8),
    (0, 32),
    (8, 24),
    (1, 7),
    (5, 31),
    (32, 33),
    (64, 64),
    (72, 65),
    (4095, 2),
    (4096, 4096),
    (100, 4097),
    (8191, 8193),
    (SMALL - 1, 1),
    (SMALL - 8, 8),
    (0, SMALL),
];
