//! What arrives of the messages of a link.

use smc_core::device::{Event, Inbound, MESSAGE_MAX, OpId, SENDS_MAX, SHORT_LEN, SubmitError};

use super::Verdict;
use super::ends::{LinkEnd, numbered};
use crate::Rng;
use crate::conformance::fixture::{Fixture, ensure, fail};

pub(super) fn messages_arrive_whole(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let mut rng = Rng::new(0x6c65_6e67);
    for len in LENGTHS {
        let mut message = vec![0; len];
        rng.fill(&mut message);
        peer.post(len as u64, &[], &message)?;
        let inbound = fixture.until("a message arrives", || {
            Ok(local.node.take(|event| match event {
                Event::Received { link, message } if *link == local.qpn() => Some(message.clone()),
                _ => None,
            }))
        })?;
        ensure!(
            inbound.as_bytes() == message,
            "a message of {len} bytes came as {} bytes, or others",
            inbound.as_bytes().len()
        );
        let is_short = matches!(inbound, Inbound::Short(_));
        ensure!(
            is_short == (len == SHORT_LEN),
            "a message of {len} bytes came as {inbound:?}"
        );
    }
    Ok(())
}

pub(super) fn messages_arrive_in_order(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    for number in 0..MANY {
        peer.post(number, &[], &numbered(number))?;
    }
    for number in 0..MANY {
        local.expect_message(&numbered(number))?;
    }
    fixture.idle()?;
    ensure!(local.reports() == 0, "more came than was posted");
    Ok(())
}

pub(super) fn messages_name_their_link(fixture: &mut Fixture<'_>) -> Verdict {
    let links = [fixture.link()?, fixture.link()?, fixture.link()?];
    for round in 0..20 {
        for (number, (_, peer)) in (round..).zip(&links) {
            peer.post(number, &[], &numbered(number))?;
        }
        for (number, (local, _)) in (round..).zip(&links) {
            local.expect_message(&numbered(number))?;
        }
    }
    Ok(())
}

pub(super) fn too_long_messages_are_refused(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    for len in [MESSAGE_MAX + 1, MESSAGE_MAX * 3] {
        match local.try_post(1, &[], &vec![1; len])? {
            Err(SubmitError::OutOfBounds) => {}
            Err(error) => return fail(format!("expected `OutOfBounds`, got: {error}")),
            Ok(()) => return fail(format!("a message of {len} bytes was taken")),
        }
    }
    // Nothing of it is under way, and the link is as good as before.
    local.deliver(2, &[], &peer)?;
    local.expect_sent(2)
}

pub(super) fn a_slow_receiver_loses_nothing(fixture: &mut Fixture<'_>) -> Verdict {
    if fixture.is_alone() {
        return crate::conformance::fixture::skip("needs a second device");
    }
    let (local, peer) = fixture.link()?;
    let mut posted = 0;
    let deadline = std::time::Instant::now() + fixture.timeout() / 4;
    // Only the sender is drained. It may come to a stop when all receive buffers are taken.
    while posted < MANY && std::time::Instant::now() < deadline {
        match local.link.post(OpId(posted), &[], &numbered(posted)) {
            Ok(()) => posted += 1,
            Err(SubmitError::WouldBlock) => {
                local.node.drain()?;
                std::thread::yield_now();
            }
            Err(error) => return fail(format!("post to a slow receiver: {error}")),
        }
    }
    ensure!(
        posted >= SENDS_MAX as u64,
        "only {posted} posts were taken while the receiver slept"
    );
    for number in 0..posted {
        peer.expect_message(&numbered(number))?;
    }
    for number in 0..posted {
        local.expect_sent(number)?;
    }
    Ok(())
}

pub(super) fn both_ends_post_at_once(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    let (mut posted, mut came) = ([0; 2], [0; 2]);
    let ends = [&local, &peer];
    fixture.eventually("all messages of both directions arrive", || {
        for (at, end) in ends.into_iter().enumerate() {
            push(end, &mut posted[at])?;
            while let Some(message) = end.try_message() {
                ensure!(
                    message == numbered(came[at]),
                    "message {} came out of order",
                    came[at]
                );
                came[at] += 1;
            }
            while end.try_sent().is_some() {}
        }
        Ok(came == [MANY; 2])
    })
}

/// Posts as many messages as there is space for.
fn push(end: &LinkEnd<'_>, posted: &mut u64) -> Verdict {
    while *posted < MANY {
        match end.link.post(OpId(*posted), &[], &numbered(*posted)) {
            Ok(()) => *posted += 1,
            Err(SubmitError::WouldBlock) => return Ok(()),
            Err(error) => return fail(format!("post: {error}")),
        }
    }
    Ok(())
}

const LENGTHS: [usize; 12] = [
    1,
    8,
    43,
    44,
    45,
    64,
    255,
    1024,
    1025,
    4096,
    MESSAGE_MAX - 1,
    MESSAGE_MAX,
];

/// More messages than any queue holds.
const MANY: u64 = 1000;
