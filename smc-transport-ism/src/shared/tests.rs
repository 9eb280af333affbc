use std::collections::HashSet;

use smc_core::device::SubmitError;
use smc_wire::types::{DmbToken, Gid};

use super::layout::{granule, slot};
use super::*;
use crate::region::{adopt, memory_file};

const LEN: usize = 1 << 20;
const PLAN: Plan = Plan {
    slots: 8,
    nocopy: false,
};

pub(super) fn room() -> Room {
    let file = memory_file(LEN).unwrap();
    Room::make(adopt(file).unwrap(), PLAN).unwrap()
}

fn gid(n: u64) -> Gid {
    Gid::new(7, n)
}

pub(crate) fn join(room: &Room, slot: u16, gid: Gid) -> Result<Tag, DeviceError> {
    room.join(Newcomer {
        slot,
        port: 0,
        beats: false,
        gid,
    })
}

/// Two views of one memory, the second after `change`.
fn find_after(change: impl FnOnce(&Region)) -> Result<Room, DeviceError> {
    let file = memory_file(LEN).unwrap();
    let all = adopt(file).unwrap();
    Room::make(all.clone(), PLAN).unwrap();
    change(&all);
    Room::find(all)
}

#[test]
fn what_was_made_is_found() {
    let file = memory_file(LEN).unwrap();
    let all = adopt(file).unwrap();
    let made = Room::make(all.clone(), PLAN).unwrap();
    let found = Room::find(all).unwrap();
    assert_eq!(found.fabric(), made.fabric());
    assert_eq!(found.layout, made.layout);
    assert_eq!((found.chid(), found.nocopy()), (made.chid(), false));
    assert!(made.chid().is_emulated() && made.chid() != Chid::LOOPBACK);
}

#[test]
fn a_header_that_is_wrong_says_so() {
    let set = |at: usize, value: u64| {
        move |all: &Region| all.store(at, value, Ordering::Relaxed).unwrap()
    };
    let why = |result: Result<Room, DeviceError>| match result {
        Err(DeviceError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    };
    let cases = [
        (header::MAGIC, 0, "laid out"),
        (header::MAGIC, 0x1234, "not the memory of a fabric"),
        (header::VERSION, 1, "another version"),
        (header::VERSION, 3, "another version"),
        (header::LEN, 2 << 20, "shorter than it says"),
        (header::LEN, 4096, "too small"),
        (header::LEN, u64::MAX, "shorter than it says"),
        (header::SLOTS, 0, "number of devices"),
        (header::SLOTS, u64::MAX, "number of devices"),
        (header::SLOTS, 200, "contradicts itself"),
        (header::GRANULES, 3, "contradicts itself"),
        (header::FLAGS, 6, "something unknown"),
    ];
    for (at, value, expected) in cases {
        let said = why(find_after(set(at, value)));
        assert!(said.contains(expected), "{at:#x} = {value}: {said}");
    }
}

#[test]
fn a_slot_has_a_new_generation_each_time() {
    let room = room();
    let first = join(&room, 3, gid(1)).unwrap();
    assert_eq!(room.by_gid(gid(1)), Some(first));
    let second = join(&room, 3, gid(2)).unwrap();
    assert_ne!(first.generation, second.generation);
    assert!(room.is_dead(first) && room.is_live(second));
    assert_eq!(room.by_gid(gid(1)), None);
    assert!(!room.bury(first), "another device has the slot");
    assert!(room.bury(second));
    assert_eq!(room.live().count(), 0);
    assert!(join(&room, PLAN.slots, gid(3)).is_err());
}

#[test]
fn two_devices_with_one_gid_are_one_too_many() {
    let room = room();
    let first = join(&room, 0, gid(1)).unwrap();
    match join(&room, 1, gid(1)) {
        Err(DeviceError::NotPermitted(_)) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(room.by_gid(gid(1)), Some(first));
    room.bury(first);
    join(&room, 1, gid(1)).unwrap();
}

#[test]
fn runs_are_aligned_and_do_not_overlap() {
    let room = room();
    let owner = join(&room, 0, gid(1)).unwrap();
    let mut seen = HashSet::new();
    let mut places = Vec::new();
    for order in [0, 1, 2, 3, 0, 2, 1, 0] {
        let place = room.take(owner, order).unwrap();
        assert_eq!(place.first % (1 << order), 0);
        for index in place.first..place.first + (1 << order) {
            assert!(seen.insert(index), "{index} is given out twice");
        }
        places.push(place);
    }
    while let Some(place) = room.take(owner, 0) {
        assert!(seen.insert(place.first));
        places.push(place);
    }
    assert_eq!(seen.len(), room.granules() as usize);
    for place in places {
        room.give_back(owner, place);
    }
    assert!(room.take(owner, 4).is_some(), "all is free again");
}

#[test]
fn what_was_used_is_zeroed() {
    let room = room();
    let owner = join(&room, 0, gid(1)).unwrap();
    let place = room.take(owner, 1).unwrap();
    room.copy_in(place, GRANULE - 4, &[0xff; 8]).unwrap();
    room.give_back(owner, place);
    let again = room.take(owner, 1).unwrap();
    assert_eq!(again, place);
    let mut bytes = vec![1; again.len()];
    let region = room.lend(again, ()).unwrap();
    region.copy_out(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn threads_never_get_the_same_memory() {
    let room = room();
    std::thread::scope(|scope| {
        for slot in 0..4_u16 {
            let room = &room;
            scope.spawn(move || {
                let owner = join(room, slot, gid(slot.into())).unwrap();
                let mark = [u8::try_from(slot).unwrap() + 1; 64];
                for round in 0..2000_u32 {
                    let order = u8::try_from(round % 3).unwrap();
                    let Some(place) = room.take(owner, order) else {
                        continue;
                    };
                    let region = room.lend(place, ()).unwrap();
                    let mut seen = [1; 64];
                    region.copy_out(0, &mut seen).unwrap();
                    assert_eq!(seen, [0; 64], "memory that is not zeroed");
                    region.copy_in(0, &mark).unwrap();
                    std::thread::yield_now();
                    region.copy_out(0, &mut seen).unwrap();
                    assert_eq!(seen, mark, "memory that two have");
                    let token = room.offer(place, owner).unwrap();
                    let target = room.begin_use(token, owner).unwrap();
                    room.end_use(place.first, owner);
                    assert_eq!(
                        (target.place, target.owner),
                        (place, owner),
                        "a claim was stolen"
                    );
                    room.withdraw(place);
                    room.give_back(owner, place);
                }
            });
        }
    });
}

#[test]
fn only_the_writer_that_was_named_may_write() {
    let room = room();
    let [owner, writer, other] = [0, 1, 2].map(|slot| join(&room, slot, gid(slot.into())).unwrap());
    let place = room.take(owner, 0).unwrap();
    let token = room.offer(place, writer).unwrap();
    let unknown = Err(SubmitError::UnknownToken);
    assert_eq!(room.begin_use(token, other), unknown);
    assert_eq!(room.begin_use(token, owner), unknown);
    assert_eq!(room.begin_use(DmbToken(token.0 ^ 1 << 30), writer), unknown);
    assert_eq!(room.begin_use(DmbToken(0), writer), unknown);
    let target = room.begin_use(token, writer).unwrap();
    assert_eq!((target.place, target.owner), (place, owner));
    assert!(room.is_used(place.first));
    room.withdraw(place);
    assert!(room.is_used(place.first), "a use lasts until it is ended");
    assert_eq!(room.begin_use(token, writer), unknown);
    room.end_use(place.first, writer);
    assert!(!room.is_used(place.first));
    // Once more than it was begun.
    room.end_use(place.first, writer);
    assert!(!room.is_used(place.first));
}

#[test]
fn a_writer_of_an_earlier_generation_may_not_write() {
    let room = room();
    let owner = join(&room, 0, gid(1)).unwrap();
    let before = join(&room, 1, gid(2)).unwrap();
    let place = room.take(owner, 0).unwrap();
    let token = room.offer(place, before).unwrap();
    let after = join(&room, 1, gid(3)).unwrap();
    assert_eq!(room.begin_use(token, after), Err(SubmitError::UnknownToken));
}

#[test]
fn the_dead_leave_their_memory_to_others_when_nobody_uses_it() {
    let room = room();
    let [owner, writer, heir] = [0, 1, 2].map(|slot| join(&room, slot, gid(slot.into())).unwrap());
    let mut tokens = Vec::new();
    while let Some(place) = room.take(owner, 0) {
        tokens.push(room.offer(place, writer).unwrap());
    }
    let used = room.begin_use(tokens[0], writer).unwrap();
    room.bury(owner);
    assert_eq!(
        room.begin_use(tokens[1], writer),
        Err(SubmitError::PeerGone)
    );
    assert_eq!(room.take(heir, 0), None);

    let is_dead = |tag| room.is_dead(tag);
    assert_eq!(room.sweep(is_dead), room.granules() - 1);
    assert!(room.is_used(used.place.first));
    room.end_use(used.place.first, writer);
    assert_eq!(room.sweep(is_dead), 1);
    assert_eq!(room.sweep(is_dead), 0);
    assert!(room.take(heir, 4).is_some());
}

#[test]
fn a_dead_writer_uses_nothing() {
    let room = room();
    let [owner, writer] = [0, 1].map(|slot| join(&room, slot, gid(slot.into())).unwrap());
    let place = room.take(owner, 0).unwrap();
    let token = room.offer(place, writer).unwrap();
    room.begin_use(token, writer).unwrap();
    assert!(room.is_used(place.first));
    room.bury(writer);
    assert!(!room.is_used(place.first));
    // Its traces do not disturb the next writer.
    let next = join(&room, 1, gid(5)).unwrap();
    let token = room.offer(place, next).unwrap();
    room.begin_use(token, next).unwrap();
    room.end_use(place.first, next);
    assert!(!room.is_used(place.first));
}

#[test]
fn of_two_moves_at_the_same_time_the_second_is_counted() {
    let room = room();
    let [owner, writer] = [0, 1].map(|slot| join(&room, slot, gid(slot.into())).unwrap());
    let place = room.take(owner, 0).unwrap();
    let token = room.offer(place, writer).unwrap();
    let is_used = || room.is_used(place.first);
    let moved = room.using(token, writer, |_| {
        room.using(token, writer, |turn| {
            assert_eq!((turn.target.place, turn.target.owner), (place, owner));
            Ok(())
        })?;
        assert!(is_used(), "the first move is not over");
        room.withdraw(place);
        assert!(is_used(), "a move lasts until it is ended");
        let late = room.using(token, writer, |_| Ok(()));
        assert_eq!(late, Err(SubmitError::UnknownToken));
        assert!(is_used(), "the first move is not over");
        Ok(())
    });
    assert_eq!(moved, Ok(()));
    assert!(!is_used());
    assert_eq!(
        room.using(token, writer, |_| Ok(())),
        Err(SubmitError::UnknownToken)
    );
}

#[test]
fn a_move_that_comes_too_late_leaves_no_trace() {
    let room = room();
    let [owner, writer] = [0, 1].map(|slot| join(&room, slot, gid(slot.into())).unwrap());
    let place = room.take(owner, 0).unwrap();
    let token = room.offer(place, writer).unwrap();
    room.bury(owner);
    let late = room.using(token, writer, |_| Ok(()));
    assert_eq!(late, Err(SubmitError::PeerGone));
    assert!(!room.is_used(place.first));
}

#[test]
fn who_was_in_a_move_before_disturbs_the_next_writer_as_long_as_it_lives() {
    let room = room();
    let [owner, before, writer] =
        [0, 1, 2].map(|slot| join(&room, slot, gid(slot.into())).unwrap());
    let place = room.take(owner, 0).unwrap();
    let token = room.offer(place, writer).unwrap();
    let turn = || room.word(room.layout.granule(place.first) + 8 * granule::TURN);
    turn().store(before.bits() | 1, Ordering::SeqCst);
    assert!(room.is_used(place.first));
    // Counted instead.
    room.using(token, writer, |_| Ok(())).unwrap();
    assert_eq!(turn().load(Ordering::SeqCst), before.bits() | 1);
    assert!(room.is_used(place.first));
    room.bury(before);
    assert!(!room.is_used(place.first), "the dead use nothing");
    room.using(token, writer, |_| Ok(())).unwrap();
    assert_eq!(turn().load(Ordering::SeqCst), 0, "the turn is free again");
}

#[test]
fn bits_and_mail_arrive_once() {
    let room = room();
    for granule in [0, 1, room.granules() - 1] {
        room.set_ready(2, granule);
    }
    let ready = |slot| {
        let mut seen = Vec::new();
        room.take_ready(slot, |granule| seen.push(granule));
        seen
    };
    assert_eq!(ready(1), []);
    assert_eq!(ready(2), [0, 1, room.granules() - 1]);
    assert_eq!(ready(2), []);
    room.post(2, 5, 1);
    room.post(2, 5, 4);
    let mut mail = Vec::new();
    room.take_mail(2, |from, events| mail.push((from, events)));
    room.take_mail(2, |from, events| mail.push((from, events)));
    assert_eq!(mail, [(5, 5)]);
}

/// Whatever is in the memory, calls end, and nothing outside is touched.
#[test]
fn nonsense_in_the_memory_is_survived() {
    let mut random = 0x5eed_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..200 {
        let room = room();
        let [owner, writer] = [0, 1].map(|slot| join(&room, slot, gid(slot.into())).unwrap());
        let place = room.take(owner, 1).unwrap();
        let token = room.offer(place, writer).unwrap();
        let target = room.begin_use(token, writer).unwrap();
        // All words in front of the data, or a few of them.
        let words = room.layout.data(0) / 8;
        let count = if round % 2 == 0 { words } else { 40 };
        for index in 0..count {
            let at = if count == words {
                index
            } else {
                next() as usize % words
            };
            let value = match next() % 4 {
                0 => 0,
                1 => u64::MAX,
                2 => next() & 0xff,
                _ => next(),
            };
            room.word(at * 8).store(value, Ordering::Relaxed);
        }
        for slot in 0..room.slots() {
            room.occupant(slot);
            room.take_ready(slot, |granule| assert!(granule < room.granules()));
            room.take_mail(slot, |from, _| assert!(from < room.slots()));
            room.take_look(slot);
            room.must_ring(slot);
            room.sleep_of(slot);
        }
        let live: Vec<_> = room.live().collect();
        for tag in live {
            room.gid(tag);
        }
        room.must_signal(place.first);
        room.copy_in(target.place, 0, &[1; 100]).unwrap();
        room.end_use(place.first, writer);
        let _ = room.begin_use(token, writer);
        for token in std::iter::once(token).chain((0..20).map(|_| DmbToken(next()))) {
            let _ = room.begin_use(token, writer);
            if let Some(target) = room.withdrawn(token, writer) {
                room.set_ready(target.owner.slot, target.place.first);
            }
            let _ = room.using(token, writer, |turn| {
                turn.must_signal();
                room.copy_in(turn.target.place, 0, &[1; 100])
            });
        }
        for index in 0..room.granules() {
            room.is_used(index);
        }
        room.sweep(|tag| room.is_dead(tag));
        for order in 0..16 {
            room.take(owner, order);
        }
        room.give_back(owner, place);
        let _ = join(&room, 2, gid(9));
    }
}

/// Offsets that this test and its neighbours name are those of the layout.
#[test]
fn fields_do_not_overlap() {
    let fields = [
        slot::STATE,
        slot::GID_HI,
        slot::GID_LO,
        slot::BEAT,
        slot::PORT,
        slot::SLEEPING,
        slot::LOOK,
        slot::MAIL_SUMMARY,
    ];
    assert!(fields.windows(2).all(|two| two[0] + 8 <= two[1]));
    let fields = [
        granule::CLAIM,
        granule::WRITER,
        granule::USERS,
        granule::TOKEN,
        granule::TURN,
        granule::WANT,
    ];
    assert!(fields.windows(2).all(|two| two[0] < two[1]));
}
