//! Buffers that go away while the peer writes them, and what the peer is told of slots.

use std::io::IoSlice;
use std::sync::Arc;

use loom::thread;
use smc_core::device::{Attachment, Dmb, SubmitError};
use smc_core::mem::HEADER_LEN;
use smc_core::mem::sync::model::{Mutation, check, with};

use super::{DATA, LEN, Sides};
use crate::bell::{Bell, Notice};

#[test]
fn memory_is_used_again_only_when_the_peer_is_done_with_it() {
    writes(None, None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_use_that_begins_out_of_order_is_overlooked() {
    writes(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_that_withdraws_out_of_order_overlooks_a_use() {
    writes(None, Some(Mutation::NoSeqCst));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_use_that_ends_without_release_may_go_on() {
    writes(Some(Mutation::NoRelease), None);
}

#[test]
fn memory_is_used_again_only_when_attachments_are_gone() {
    attachments(None, None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_attachment_made_out_of_order_is_overlooked() {
    attachments(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_that_withdraws_out_of_order_overlooks_an_attachment() {
    attachments(None, Some(Mutation::NoSeqCst));
}

#[test]
fn pages_are_given_back_by_the_last_to_let_go() {
    departures(None, None);
}

#[test]
#[should_panic(expected = "pages are kept for good")]
fn an_attachment_that_ends_without_fence_does_not_see_that_it_is_awaited() {
    departures(Some(Mutation::NoFence), None);
}

#[test]
#[should_panic(expected = "pages are kept for good")]
fn an_owner_that_waits_without_fence_overlooks_that_an_attachment_ended() {
    departures(None, Some(Mutation::NoFence));
}

#[test]
fn a_notice_is_read_in_one_piece() {
    notices(None, None);
}

#[test]
#[should_panic(expected = "a notice of two registrations")]
fn an_owner_without_fence_mixes_notices() {
    notices(Some(Mutation::NoFence), None);
}

#[test]
#[should_panic(expected = "a notice of two registrations")]
fn an_owner_without_release_mixes_notices() {
    notices(Some(Mutation::NoRelease), None);
}

#[test]
#[should_panic(expected = "a notice of two registrations")]
fn a_ringer_without_fence_mixes_notices() {
    notices(None, Some(Mutation::NoFence));
}

#[test]
#[should_panic(expected = "a notice of two registrations")]
fn a_ringer_without_acquire_mixes_notices() {
    notices(None, Some(Mutation::NoAcquire));
}

#[test]
fn a_slot_that_changed_is_seen_or_announced() {
    changes(None, None);
}

#[test]
#[should_panic(expected = "neither seen nor announced")]
fn an_owner_out_of_order_does_not_see_that_the_ringer_has_looked() {
    changes(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "neither seen nor announced")]
fn a_ringer_that_looks_out_of_order_does_not_see_what_changed() {
    changes(None, Some(Mutation::NoSeqCst));
}

#[test]
fn bits_of_several_ringers_are_each_taken_once() {
    check(|| {
        let sides = Arc::new(Sides::new());
        let ringers = [1, 2].map(|index| {
            let sides = Arc::clone(&sides);
            thread::spawn(move || sides.bell.set_ready(index))
        });
        let mut taken = Vec::new();
        sides.bell.take_ready(|index| taken.push(index));
        for ringer in ringers {
            assert!(!ringer.join().unwrap(), "nobody sleeps");
        }
        sides.bell.take_ready(|index| taken.push(index));
        taken.sort_unstable();
        assert_eq!(taken, [1, 2]);
    });
}

/// The owner drops its buffer and makes another one while the peer writes the first by copying.
fn writes(using: Option<Mutation>, owning: Option<Mutation>) {
    reuse(using, owning, |sides| {
        let target = Arc::clone(&sides.target);
        Box::new(
            move || match target.write(HEADER_LEN, &[IoSlice::new(DATA)]) {
                Ok(()) | Err(SubmitError::UnknownToken) => {}
                Err(error) => panic!("{error}"),
            },
        )
    });
}

/// The same with a peer that attaches the buffer and writes through its mapping.
fn attachments(using: Option<Mutation>, owning: Option<Mutation>) {
    reuse(using, owning, |sides| {
        let target = Arc::clone(&sides.target);
        Box::new(move || {
            if let Ok(attachment) = target.attach() {
                attachment.region().copy_in(HEADER_LEN, DATA).unwrap();
            }
        })
    });
}

fn reuse(
    using: Option<Mutation>,
    owning: Option<Mutation>,
    user: impl Fn(&Sides) -> Box<dyn FnOnce()> + Send + Sync + 'static,
) {
    check(move || {
        let sides = Sides::new();
        let uses = user(&sides);
        let ringer = thread::spawn(move || with(using, uses));
        let Sides {
            peer, permits, dmb, ..
        } = sides;
        let (next, new) = with(owning, || {
            drop(dmb);
            peer.owner.register(LEN, permits.take().unwrap()).unwrap()
        });
        let mut found = *DATA;
        next.region().copy_out(HEADER_LEN, &mut found).unwrap();
        assert_eq!(found, [0; 3], "a new buffer is empty");
        ringer.join().unwrap();
        next.region().copy_out(HEADER_LEN, &mut found).unwrap();
        assert_eq!(found, [0; 3], "written under the old token");
        drop(new);
    });
}

/// The owner drops its buffer while the peer lets go of it, and then does what its driver does.
fn departures(using: Option<Mutation>, owning: Option<Mutation>) {
    check(move || {
        let sides = Sides::new();
        let attachment = sides.target.attach().unwrap();
        let Sides { peer, dmb, .. } = sides;
        let user = thread::spawn(move || with(using, || drop(attachment)));
        with(owning, || drop(dmb));
        user.join().unwrap();
        peer.collect(&mut Vec::new());
        assert!(!peer.owner.has_dirty(), "pages are kept for good");
    });
}

/// The owner takes a slot back and offers it again while the ringer reads what it says.
fn notices(owning: Option<Mutation>, reading: Option<Mutation>) {
    check(move || {
        let sides = Sides::new();
        let [owned, rung] = [(); 2].map(|()| sides.bell.slot(1).unwrap());
        let [first, second] = [1, 2].map(|number| Notice {
            live: number,
            token: 10 + number,
            memory: 20 + number,
        });
        owned.publish(first);
        let owner = thread::spawn(move || {
            with(owning, || {
                owned.withdraw();
                owned.publish(second);
            });
        });
        if let Some(notice) = with(reading, || rung.notice()) {
            let is_whole = notice == first || notice == second || notice.live == 0;
            assert!(is_whole, "a notice of two registrations: {notice:?}");
        }
        owner.join().unwrap();
    });
}

/// The ringer, told to look, does so while the owner marks another slot.
fn changes(owning: Option<Mutation>, looking: Option<Mutation>) {
    check(move || {
        let Sides { bell, .. } = Sides::new();
        let bell: Arc<Bell> = Arc::new(bell);
        assert!(bell.ask_to_look(), "the ringer has looked before");
        let owner = {
            let bell = Arc::clone(&bell);
            thread::spawn(move || {
                with(owning, || {
                    bell.set_fresh(1);
                    bell.ask_to_look()
                })
            })
        };
        let mut seen = false;
        with(looking, || bell.take_fresh(|_| seen = true));
        let announced = owner.join().unwrap();
        assert!(seen || announced, "neither seen nor announced");
    });
}
