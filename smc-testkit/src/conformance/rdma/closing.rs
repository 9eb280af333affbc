//! Links that end.

use smc_core::device::{LinkFailure, OpId, SubmitError, Write};
use smc_wire::types::{Qpn, Rkey};

use super::Verdict;
use super::ends::{LEN, LinkEnd, is_about, numbered, write};
use crate::conformance::fixture::{Fixture, ensure, fail};
use crate::conformance::node::Node;

pub(super) fn a_closed_link_is_silent(fixture: &mut Fixture<'_>) -> Verdict {
    expect_silence_after(fixture, |local| {
        local.link.close();
        Some(local)
    })
}

pub(super) fn a_dropped_link_is_silent(fixture: &mut Fixture<'_>) -> Verdict {
    expect_silence_after(fixture, |_| None)
}

/// Ends links with more and less under way. What is left of the link goes afterwards.
fn expect_silence_after(
    fixture: &Fixture<'_>,
    end: impl for<'b> Fn(LinkEnd<'b>) -> Option<LinkEnd<'b>>,
) -> Verdict {
    let others = fixture.link()?;
    for round in 0..ROUNDS {
        let (local, peer) = fixture.link()?;
        fixture.local().forget()?;
        load(&local, &peer, round)?;
        let qpn = local.qpn();
        let left = end(local);
        expect_silence(fixture, fixture.local(), qpn)?;
        drop(left);
        drop(peer);
        check_alive(&others)?;
    }
    Ok(())
}

pub(super) fn a_closed_link_takes_no_posts(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, peer) = fixture.link()?;
    local.link.close();
    for _ in 0..3 {
        expect_gone(&local)?;
    }
    // Closing twice is harmless.
    local.link.close();
    fixture.idle()?;
    ensure!(
        peer.try_message().is_none(),
        "a message of a closed link arrived"
    );
    Ok(())
}

pub(super) fn the_peer_of_a_closed_link_gets_no_answer(fixture: &mut Fixture<'_>) -> Verdict {
    for is_dropped in [false, true] {
        let (local, peer) = fixture.link()?;
        local.deliver(1, &[], &peer)?;
        local.link.close();
        let local = (!is_dropped).then_some(local);
        match peer.try_post(2, &[], &numbered(2))? {
            // It has been notified.
            Ok(()) | Err(SubmitError::PeerGone) => {}
            Err(error) => return fail(format!("post to a closed link: {error}")),
        }
        let cause = peer.down()?;
        ensure!(
            matches!(cause, LinkFailure::RetryExceeded | LinkFailure::Flushed),
            "the peer of a closed link goes down, but: {cause}"
        );
        drop(local);
    }
    Ok(())
}

pub(super) fn a_failed_link_is_reported_once(fixture: &mut Fixture<'_>) -> Verdict {
    let (local, _peer) = fixture.link()?;
    let (from, to) = fixture.memories()?;
    let bad = Write {
        rkey: Rkey(to.rkey().0 ^ 1),
        ..write(&*from, &*to, 0, 8)
    };
    local.post(1, &[bad], &numbered(1))?;
    for name in 2..6 {
        // These may still be taken.
        let _ = local.try_post(name, &[], &numbered(name))?;
    }
    local.down()?;
    fixture.idle()?;
    ensure!(
        local.reports() == 0,
        "something is reported of a link that is down"
    );
    expect_gone(&local)
}

pub(super) fn things_can_be_dropped_in_any_order(fixture: &mut Fixture<'_>) -> Verdict {
    for order in 0..ORDERS {
        let (local, peer) = fixture.link()?;
        let (from, to) = fixture.memories()?;
        let [pending, other] = fixture.pending()?;
        local.post(1, &[write(&*from, &*to, 0, LEN)], &numbered(1))?;
        let is_sent = order % 2 == 0;
        if is_sent {
            local.expect_sent(1)?;
        }
        let mut things: Vec<Box<dyn FnOnce() + '_>> = vec![
            Box::new(|| drop(local)),
            Box::new(|| drop(peer)),
            Box::new(|| drop(pending)),
            Box::new(|| drop(other)),
            Box::new(|| drop(to)),
        ];
        // Memory that is under way goes after its link.
        let kept = if is_sent {
            things.push(Box::new(|| drop(from)));
            None
        } else {
            Some(from)
        };
        let first = order / 4 % things.len();
        things.rotate_left(first);
        if order / 2 % 2 == 1 {
            things.reverse();
        }
        for release in things {
            release();
            fixture.drain_all()?;
        }
        drop(kept);
        fixture.local().forget()?;
        fixture.peer().forget()?;
    }
    // All is as before.
    check_alive(&fixture.link()?)
}

/// Posts in both directions and drains nothing.
fn load(local: &LinkEnd<'_>, peer: &LinkEnd<'_>, round: u64) -> Verdict {
    for name in 0..round % 5 {
        for end in [local, peer] {
            let posted = end.link.post(OpId(name), &[], &numbered(name));
            posted.or_else(|error| fail(format!("post: {error}")))?;
        }
    }
    Ok(())
}

/// Drains for a while: nothing may be reported of the link.
fn expect_silence(fixture: &Fixture<'_>, node: &Node, qpn: Qpn) -> Verdict {
    fixture.idle()?;
    let count = node.count_if(|event| is_about(event, qpn));
    ensure!(count == 0, "{count} events of a link that was closed");
    Ok(())
}

fn expect_gone(end: &LinkEnd<'_>) -> Verdict {
    match end.link.post(OpId(9), &[], &numbered(9)) {
        Err(SubmitError::PeerGone) => Ok(()),
        Err(error) => fail(format!("expected `PeerGone`, got: {error}")),
        Ok(()) => fail("a link that is down takes a post"),
    }
}

fn check_alive((local, peer): &(LinkEnd<'_>, LinkEnd<'_>)) -> Verdict {
    local.deliver(77, &[], peer)?;
    local.expect_sent(77)
}

/// Rounds of closing with more and less under way.
const ROUNDS: u64 = 10;

/// Orders of dropping things.
const ORDERS: usize = 24;
