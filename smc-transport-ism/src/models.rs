//! Buffers that go away while a peer writes them, under loom: every order of steps, every value that
//! a load may see. Each model is run again with memory that does less than the code asks for, and
//! has to fail then.

use std::sync::Arc;

use loom::thread;
use smc_core::device::SubmitError;
use smc_core::mem::Region;
use smc_core::mem::sync::model::{Mutation, check, with};
use smc_wire::types::{DmbToken, Gid};

use crate::shared::{Place, Plan, Room, Tag, join};

#[test]
fn memory_is_used_again_only_when_a_move_is_over() {
    uses(None, None, &[Room::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_turn_that_is_taken_out_of_order_is_overlooked() {
    uses(Some(Mutation::NoSeqCst), None, &[Room::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_that_withdraws_out_of_order_overlooks_a_turn() {
    uses(None, Some(Mutation::NoSeqCst), &[Room::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_turn_that_ends_without_release_may_go_on() {
    uses(Some(Mutation::NoRelease), None, &[Room::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn an_owner_without_acquire_does_not_see_that_a_turn_is_over() {
    uses(None, Some(Mutation::NoAcquire), &[Room::moves]);
}

#[test]
fn memory_is_used_again_only_when_a_longer_use_is_over() {
    uses(None, None, &[Room::stays]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_use_that_begins_out_of_order_is_overlooked() {
    uses(Some(Mutation::NoSeqCst), None, &[Room::stays]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_use_that_ends_without_release_may_go_on() {
    uses(Some(Mutation::NoRelease), None, &[Room::stays]);
}

#[test]
fn memory_is_used_again_only_when_two_moves_are_over() {
    uses(None, None, &[Room::moves, Room::moves]);
}

#[test]
#[should_panic(expected = "Causality violation")]
fn of_two_moves_one_that_begins_out_of_order_is_overlooked() {
    uses(Some(Mutation::NoSeqCst), None, &[Room::moves, Room::moves]);
}

/// One way to write a byte of a buffer.
type Write = fn(&Room, DmbToken, Tag, Place, usize) -> Result<(), SubmitError>;

impl Room {
    fn moves(&self, token: DmbToken, writer: Tag, _: Place, at: usize) -> Result<(), SubmitError> {
        self.using(token, writer, |turn| {
            self.copy_in(turn.target.place, at, &[1])
        })
    }

    fn stays(
        &self,
        token: DmbToken,
        writer: Tag,
        place: Place,
        at: usize,
    ) -> Result<(), SubmitError> {
        let target = self.begin_use(token, writer)?;
        self.copy_in(target.place, at, &[1])?;
        self.end_use(place.first, writer);
        Ok(())
    }
}

/// The owner takes a buffer back, and writes there itself once it may, while threads of a peer
/// write it.
fn uses(using: Option<Mutation>, owning: Option<Mutation>, writes: &'static [Write]) {
    check(move || {
        let room = Arc::new(Room::make(Region::anonymous(LEN), PLAN).unwrap());
        let [owner, writer] = [0, 1].map(|n| join(&room, n, Gid::new(7, n.into())).unwrap());
        let place = room.take(owner, 0).unwrap();
        let token = room.offer(place, writer).unwrap();
        // Has all words and bytes touched before threads share them.
        for at in 0..writes.len() {
            for write in [Room::moves, Room::stays] {
                write(&room, token, writer, place, at).unwrap();
            }
        }
        assert!(!room.is_used(place.first));

        let writers: Vec<_> = (writes.iter().enumerate())
            .map(|(at, write)| {
                let room = Arc::clone(&room);
                thread::spawn(move || {
                    with(using, || match write(&room, token, writer, place, at) {
                        Ok(()) | Err(SubmitError::UnknownToken) => {}
                        Err(error) => panic!("{error}"),
                    });
                })
            })
            .collect();
        with(owning, || {
            room.withdraw(place);
            if !room.is_used(place.first) {
                room.copy_in(place, 0, &[2; 2][..writes.len()]).unwrap();
            }
        });
        for writer in writers {
            writer.join().unwrap();
        }
        assert!(!room.is_used(place.first), "a use that does not end");
    });
}

const LEN: usize = 160 << 10;
const PLAN: Plan = Plan {
    slots: 2,
    nocopy: false,
};
