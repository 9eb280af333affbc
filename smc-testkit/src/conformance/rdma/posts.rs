//! Writes, the messages behind them and their completions.

use smc_core::device::{MESSAGE_MAX, Mr, OpId, Piece, SENDS_MAX, SubmitError, Write};

use super::Verdict;
use super::ends::{LEN, numbered, piece, write};
use crate::Rng;
use crate::conformance::fixture::{Fixture, OrFail, bytes, content, ensure, fail, skip};

pub(super) fn writes_arrive(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    let mut rng = Rng::new(0x7772_6974);
    let mut expected = vec![0; LEN];
    for (at, len) in PLACES {
        let mut data = vec![0; len];
        rng.fill(&mut data);
        fill(&*from, at, &data)?;
        local.deliver(1, &[write(&*from, &*to, at, len)], &peer)?;
        expected[at..at + len].copy_from_slice(&data);
        ensure!(
            content(to.region())? == expected,
            "{len} bytes at {at} did not arrive, or something else did"
        );
    }
    Ok(())
}

pub(super) fn two_pieces_become_one_span(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    let mut data = vec![0; LEN];
    Rng::new(0x7069_6563).fill(&mut data);
    fill(&*from, 0, &data)?;
    let mut expected = vec![0; LEN];
    for [first, second] in [
        [piece(LEN - 100, 100), piece(0, 300)],
        [piece(LEN - 1, 1), piece(0, 1)],
        [piece(5000, 4097), piece(0, 5000)],
        [piece(40, 24), Piece::default()],
    ] {
        let write = Write {
            first,
            second,
            ..write(&*from, &*to, 77, 0)
        };
        local.deliver(1, &[write], &peer)?;
        let span: Vec<u8> = [first, second]
            .iter()
            .flat_map(|piece| &data[piece.at as usize..][..piece.len as usize])
            .copied()
            .collect();
        expected[77..77 + span.len()].copy_from_slice(&span);
        ensure!(
            content(to.region())? == expected,
            "pieces of {} and {} bytes did not become one span",
            first.len,
            second.len
        );
    }
    Ok(())
}

pub(super) fn two_writes_take_effect_in_order(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    for round in 1..=50_u8 {
        fill(&*from, 0, &[round; 3000])?;
        fill(&*from, 4000, &[!round; 100])?;
        let second = Write {
            first: piece(4000, 100),
            ..write(&*from, &*to, 50, 0)
        };
        let writes = [write(&*from, &*to, 0, 3000), second];
        local.post(u64::from(round), &writes, &numbered(1))?;
        peer.expect_message(&numbered(1))?;
        let mut expected = [round; 3000];
        expected[50..150].fill(!round);
        ensure!(
            bytes(to.region(), 0, 3000)? == expected,
            "round {round}: two writes did not take effect in order"
        );
        local.expect_sent(u64::from(round))?;
    }
    Ok(())
}

pub(super) fn the_message_comes_after_the_data(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    let rounds = u64::from(fixture.effort().rounds / 4 + 1);
    let half = LEN / 2;
    for round in 1..=rounds {
        let mark = (round % 251 + 1) as u8;
        // By turns in both halves, so that the next post does not disturb the check of this one.
        let (at, len) = (
            if round % 2 == 0 { 0 } else { half },
            1 + (round as usize * 37) % half,
        );
        fill(&*from, at, &vec![mark; len])?;
        local.deliver(round, &[write(&*from, &*to, at, len)], &peer)?;
        let late = bytes(to.region(), at, len)?
            .iter()
            .position(|byte| *byte != mark);
        if let Some(late) = late {
            return fail(format!(
                "round {round}: the message is there, byte {late} before it is not"
            ));
        }
        local.expect_sent(round)?;
    }
    Ok(())
}

pub(super) fn sent_comes_in_order(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    let mut rng = Rng::new(0x6f72_6465);
    let names: Vec<u64> = (0..200).map(|_| rng.bits()).collect();
    for (index, name) in names.iter().enumerate() {
        let writes = [write(&*from, &*to, 0, 1 + rng.below(LEN))];
        // Posts with much and with little to do.
        local.post(*name, &writes[..index % 2], &numbered(*name))?;
    }
    for name in &names {
        local.expect_sent(*name)?;
        peer.expect_message(&numbered(*name))?;
    }
    fixture.idle()?;
    ensure!(local.reports() == 0, "a post is reported twice");
    Ok(())
}

pub(super) fn sent_means_arrived(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    for round in 1..=100_u8 {
        fill(&*from, 0, &[round; LEN])?;
        let name = u64::from(round);
        local.post(name, &[write(&*from, &*to, 0, LEN)], &numbered(name))?;
        local.expect_sent(name)?;
        let late = content(to.region())?.iter().any(|byte| *byte != round);
        ensure!(!late, "round {round}: sent before the data has arrived");
        // Local memory again: nothing of this may be sent any more.
        fill(&*from, 0, &[0; LEN])?;
        peer.expect_message(&numbered(name))?;
        let late = content(to.region())?.iter().any(|byte| *byte != round);
        ensure!(!late, "round {round}: memory was read after it was sent");
    }
    Ok(())
}

pub(super) fn a_link_takes_its_posts(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    let all = [
        write(&*from, &*to, 0, LEN / 2),
        write(&*from, &*to, LEN / 2, LEN / 2),
    ];
    for round in 0..3 {
        for name in 0..SENDS_MAX as u64 {
            let long = [7; MESSAGE_MAX];
            let short = numbered(name);
            let message = if name == 9 { &long[..] } else { &short };
            // Not drained meanwhile: whether the first have completed or not does not matter.
            let result = local.link.post(OpId(name), &all, message);
            result.or_fail(&format!("round {round}, post {name}"))?;
        }
        for name in 0..SENDS_MAX as u64 {
            local.expect_sent(name)?;
            let message = peer.message()?;
            let expected = if name == 9 { MESSAGE_MAX } else { 44 };
            ensure!(
                message.len() == expected,
                "message {name} of a full link has {} bytes",
                message.len()
            );
        }
    }
    Ok(())
}

pub(super) fn a_full_link_recovers(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    for _ in 0..5 {
        let mut taken = 0;
        loop {
            let writes = [write(&*from, &*to, 0, LEN)];
            match local.link.post(OpId(taken), &writes, &numbered(taken)) {
                Ok(()) => taken += 1,
                Err(SubmitError::WouldBlock) => break,
                Err(error) => return fail(format!("post {taken}: {error}")),
            }
            if taken > ENDLESS {
                return skip("the link never has enough");
            }
        }
        ensure!(taken > 0, "no space, though all posts were reported");
        for name in 0..taken {
            local.expect_sent(name)?;
            peer.expect_message(&numbered(name))?;
        }
    }
    Ok(())
}

pub(super) fn pieces_outside_of_their_memory_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    fill(&*from, 0, &[1; LEN])?;
    for [first, second] in [
        [piece(LEN - 3, 4), Piece::default()],
        [piece(LEN, 1), Piece::default()],
        [piece(0, 8), piece(LEN - 7, 8)],
        [
            Piece {
                at: u32::MAX,
                len: 2,
            },
            Piece::default(),
        ],
        [
            Piece {
                at: 8,
                len: u32::MAX - 3,
            },
            Piece::default(),
        ],
    ] {
        let bad = Write {
            first,
            second,
            ..write(&*from, &*to, 0, 0)
        };
        let writes = [write(&*from, &*to, 100, 8), bad];
        match local.try_post(1, &writes, &numbered(1))? {
            Err(SubmitError::OutOfBounds) => {}
            Err(error) => return fail(format!("expected `OutOfBounds`, got: {error}")),
            Ok(()) => return fail("a write from outside of its memory was taken"),
        }
    }
    local.deliver(2, &[], &peer)?;
    let is_untouched = content(to.region())?.iter().all(|byte| *byte == 0);
    ensure!(is_untouched, "a refused post wrote something");
    Ok(())
}

pub(super) fn fill(mr: &dyn Mr, at: usize, data: &[u8]) -> Verdict {
    mr.region().copy_in(at, data).or_fail("write to own memory")
}

/// Offset and length around everything that may matter: words, packets, pages, the end.
const PLACES: [(usize, usize); 12] = [
    (0, 1),
    (0, 8),
    (1, 7),
    (63, 2),
    (1023, 2),
    (0, 1024),
    (4095, 4097),
    (100, 4096),
    (8191, 8193),
    (LEN - 1, 1),
    (LEN - 8, 8),
    (0, LEN),
];

/// More posts than any send queue holds.
const ENDLESS: u64 = 20_000;
