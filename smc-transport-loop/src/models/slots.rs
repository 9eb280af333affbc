//! Buffers that are dropped while the peer writes them, and slot states that the peer reads.

use std::io::IoSlice;
use std::sync::Arc;

use loom::thread;
use smc_core::device::{Attachment, Dmb, SubmitError};
use smc_core::mem::HEADER_LEN;
use smc_core::mem::sync::model::{Mutation, check, with};

use super::{DATA, LEN, Sides};
use crate::region::RESIDENT_LEN;
use crate::signal_page::{SignalPage, SlotState};

#[test]
fn memory_is_used_again_only_when_the_peer_is_done_with_it() {
    writes(None, None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_use_that_begins_out_of_order_is_missed() {
    writes(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_that_withdraws_out_of_order_misses_a_use() {
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
fn an_attachment_made_out_of_order_is_missed() {
    attachments(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_that_withdraws_out_of_order_misses_an_attachment() {
    attachments(None, Some(Mutation::NoSeqCst));
}

#[test]
fn used_memory_is_dropped_by_the_last_release() {
    releases(None, None);
}

#[test]
#[should_panic(expected = "memory is never released")]
fn an_attachment_that_ends_without_fence_does_not_see_that_it_is_awaited() {
    releases(Some(Mutation::NoFence), None);
}

#[test]
#[should_panic(expected = "memory is never released")]
fn an_owner_that_waits_without_fence_misses_that_an_attachment_ended() {
    releases(None, Some(Mutation::NoFence));
}

#[test]
fn a_slot_state_is_read_in_one_piece() {
    slot_states(None, None);
}

#[test]
#[should_panic(expected = "a state of two registrations")]
fn an_owner_without_fence_mixes_slot_states() {
    slot_states(Some(Mutation::NoFence), None);
}

#[test]
#[should_panic(expected = "a state of two registrations")]
fn an_owner_without_release_mixes_slot_states() {
    slot_states(Some(Mutation::NoRelease), None);
}

#[test]
#[should_panic(expected = "a state of two registrations")]
fn a_writer_without_fence_mixes_slot_states() {
    slot_states(None, Some(Mutation::NoFence));
}

#[test]
#[should_panic(expected = "a state of two registrations")]
fn a_writer_without_acquire_mixes_slot_states() {
    slot_states(None, Some(Mutation::NoAcquire));
}

#[test]
fn a_slot_that_changed_is_seen_or_announced() {
    changes(None, None);
}

#[test]
#[should_panic(expected = "neither seen nor announced")]
fn an_owner_out_of_order_does_not_see_that_the_writer_has_scanned() {
    changes(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "neither seen nor announced")]
fn a_writer_that_scans_out_of_order_does_not_see_what_changed() {
    changes(None, Some(Mutation::NoSeqCst));
}

#[test]
fn bits_of_several_writers_are_each_taken_once() {
    check(|| {
        let sides = Arc::new(Sides::new());
        let notifiers = [1, 2].map(|index| {
            let sides = Arc::clone(&sides);
            thread::spawn(move || sides.signal_page.set_ready(index))
        });
        let mut taken = Vec::new();
        sides.signal_page.take_ready(|index| taken.push(index));
        for notifier in notifiers {
            assert!(!notifier.join().unwrap(), "the owner is awake");
        }
        sides.signal_page.take_ready(|index| taken.push(index));
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
        let notifier = thread::spawn(move || with(using, uses));
        let Sides {
            peer, permits, dmb, ..
        } = sides;
        // Else the memory is not used again.
        dmb.set_used(RESIDENT_LEN);
        let (next, new) = with(owning, || {
            drop(dmb);
            peer.local.register(LEN, permits.take().unwrap()).unwrap()
        });
        let mut found = *DATA;
        next.region().copy_out(HEADER_LEN, &mut found).unwrap();
        assert_eq!(found, [0; 3], "a new buffer is empty");
        notifier.join().unwrap();
        next.region().copy_out(HEADER_LEN, &mut found).unwrap();
        assert_eq!(found, [0; 3], "written under the old token");
        drop(new);
    });
}

/// The owner drops its buffer while the peer releases it, and then does what its driver does.
fn releases(using: Option<Mutation>, owning: Option<Mutation>) {
    check(move || {
        let sides = Sides::new();
        let attachment = sides.target.attach().unwrap();
        let Sides { peer, dmb, .. } = sides;
        let user = thread::spawn(move || with(using, || drop(attachment)));
        with(owning, || drop(dmb));
        user.join().unwrap();
        peer.local.collect(&mut Vec::new());
        assert!(!peer.local.has_dirty(), "memory is never released");
    });
}

/// The owner withdraws a slot and publishes it again while the writer reads it.
fn slot_states(owning: Option<Mutation>, reading: Option<Mutation>) {
    check(move || {
        let sides = Sides::new();
        let [owned, written] = [(); 2].map(|()| sides.signal_page.slot(1).unwrap());
        let [first, second] = [1, 2].map(|number| SlotState {
            registration: number,
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
        if let Some(state) = with(reading, || written.state()) {
            let is_whole = state == first || state == second || state.registration == 0;
            assert!(is_whole, "a state of two registrations: {state:?}");
        }
        owner.join().unwrap();
    });
}

/// The writer scans on a request while the owner marks another slot.
fn changes(owning: Option<Mutation>, scanning: Option<Mutation>) {
    check(move || {
        let Sides {
            signal_page, dmb, ..
        } = Sides::new();
        // Else the end of the memory requests a scan.
        dmb.set_used(RESIDENT_LEN);
        drop(dmb);
        let signal_page: Arc<SignalPage> = Arc::new(signal_page);
        assert!(
            signal_page.request_scan(),
            "the notifier has scan_requested before"
        );
        let owner = {
            let signal_page = Arc::clone(&signal_page);
            thread::spawn(move || {
                with(owning, || {
                    signal_page.set_changed(1);
                    signal_page.request_scan()
                })
            })
        };
        let mut seen = false;
        with(scanning, || {
            signal_page.take_changed(usize::MAX, |_| seen = true)
        });
        let announced = owner.join().unwrap();
        assert!(seen || announced, "neither seen nor announced");
    });
}
