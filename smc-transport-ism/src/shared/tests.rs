use std::collections::HashSet;
use std::io::IoSlice;

use smc_core::device::SubmitError;
use smc_wire::types::{DmbToken, Gid};

use super::layout::{granule, slot};
use super::*;
use crate::region::{adopt, memory_file};

const LEN: usize = 1 << 20;
const OPTIONS: FabricOptions = FabricOptions {
    slots: 8,
    nocopy: false,
};

pub(super) fn memory() -> FabricMemory {
    let file = memory_file(LEN).unwrap();
    FabricMemory::create(adopt(file).unwrap(), OPTIONS).unwrap()
}

fn gid(n: u64) -> Gid {
    Gid::new(7, n)
}

pub(crate) fn join(memory: &FabricMemory, slot: u16, gid: Gid) -> Result<Tag, DeviceError> {
    memory.join(slot, gid, 0, false)
}

/// Two views of one memory, the second after `change`.
fn find_after(change: impl FnOnce(&Region)) -> Result<FabricMemory, DeviceError> {
    let file = memory_file(LEN).unwrap();
    let all = adopt(file).unwrap();
    FabricMemory::create(all.clone(), OPTIONS).unwrap();
    change(&all);
    FabricMemory::open(all)
}

#[test]
fn created_memory_can_be_opened() {
    let file = memory_file(LEN).unwrap();
    let all = adopt(file).unwrap();
    let made = FabricMemory::create(all.clone(), OPTIONS).unwrap();
    let found = FabricMemory::open(all).unwrap();
    assert_eq!(found.fabric, made.fabric);
    assert_eq!(found.layout, made.layout);
    assert_eq!((found.chid(), found.nocopy), (made.chid(), false));
    assert!(made.chid().is_emulated() && made.chid() != Chid::LOOPBACK);
}

#[test]
fn an_invalid_header_is_an_error_that_names_the_field() {
    let set = |at: usize, value: u64| {
        move |all: &Region| all.store(at, value, Ordering::Relaxed).unwrap()
    };
    let why = |result: Result<FabricMemory, DeviceError>| match result {
        Err(DeviceError::Invalid(why)) => why,
        other => panic!("{other:?}"),
    };
    let cases = [
        (header::MAGIC, 0, "laid out"),
        (header::MAGIC, 0x1234, "not the memory of a fabric"),
        (header::VERSION, 1, "another version"),
        (header::VERSION, 3, "another version"),
        (header::LEN, 2 << 20, "shorter than its header states"),
        (header::LEN, 4096, "too small"),
        (header::LEN, u64::MAX, "shorter than its header states"),
        (header::SLOTS, 0, "number of devices"),
        (header::SLOTS, u64::MAX, "number of devices"),
        (header::SLOTS, 200, "contradicts itself"),
        (header::GRANULES, 3, "contradicts itself"),
        (header::FLAGS, 6, "unknown flags"),
    ];
    for (at, value, expected) in cases {
        let error = why(find_after(set(at, value)));
        assert!(error.contains(expected), "{at:#x} = {value}: {error}");
    }
}

#[test]
fn a_slot_has_a_new_generation_each_time() {
    let memory = memory();
    let first = join(&memory, 3, gid(1)).unwrap();
    assert_eq!(memory.by_gid(gid(1)), Some(first));
    let second = join(&memory, 3, gid(2)).unwrap();
    assert_ne!(first.generation, second.generation);
    assert!(memory.is_dead(first) && memory.is_live(second));
    assert_eq!(memory.by_gid(gid(1)), None);
    assert!(!memory.mark_dead(first), "another device has the slot");
    assert!(memory.mark_dead(second));
    assert_eq!(memory.live().count(), 0);
    assert!(join(&memory, OPTIONS.slots, gid(3)).is_err());
}

#[test]
fn a_device_in_a_slot_that_does_not_exist_is_dead_and_marking_it_changes_nothing() {
    let memory = memory();
    let words = |memory: &FabricMemory| -> Vec<u64> {
        let all = (0..memory.all.len()).step_by(8);
        all.map(|at| memory.word(at).load(Ordering::Relaxed))
            .collect()
    };
    // Each word of the memory is the state of a live device, if a slot is there.
    for at in (memory.layout.granule(0)..memory.all.len()).step_by(8) {
        memory
            .word(at)
            .store(1 << 32 | Phase::Live as u64, Ordering::Relaxed);
    }
    let before = words(&memory);
    for slot in OPTIONS.slots..=u16::MAX {
        let tag = Tag {
            slot,
            generation: 1,
        };
        assert!(!memory.mark_dead(tag), "slot {slot}");
        assert!(memory.is_dead(tag) && !memory.is_live(tag), "slot {slot}");
    }
    assert!(words(&memory) == before, "words were changed");
}

#[test]
fn a_second_device_with_the_same_gid_is_rejected() {
    let memory = memory();
    let first = join(&memory, 0, gid(1)).unwrap();
    match join(&memory, 1, gid(1)) {
        Err(DeviceError::NotPermitted(_)) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(memory.by_gid(gid(1)), Some(first));
    memory.mark_dead(first);
    join(&memory, 1, gid(1)).unwrap();
}

#[test]
fn runs_are_aligned_and_do_not_overlap() {
    let memory = memory();
    let owner = join(&memory, 0, gid(1)).unwrap();
    let mut seen = HashSet::new();
    let mut runs = Vec::new();
    for order in [0, 1, 2, 3, 0, 2, 1, 0] {
        let run = memory.allocate(owner, order).unwrap();
        assert_eq!(run.first % (1 << order), 0);
        for index in run.first..run.first + (1 << order) {
            assert!(seen.insert(index), "{index} is given out twice");
        }
        runs.push(run);
    }
    while let Some(run) = memory.allocate(owner, 0) {
        assert!(seen.insert(run.first));
        runs.push(run);
    }
    assert_eq!(seen.len(), memory.granules() as usize);
    for run in runs {
        memory.release(owner, run);
    }
    assert!(memory.allocate(owner, 4).is_some(), "all is free again");
}

#[test]
fn reused_memory_is_zeroed() {
    let memory = memory();
    let owner = join(&memory, 0, gid(1)).unwrap();
    let run = memory.allocate(owner, 1).unwrap();
    memory
        .write(run, (GRANULE - 4) as u32, &[IoSlice::new(&[0xff; 8])])
        .unwrap();
    memory.release(owner, run);
    let again = memory.allocate(owner, 1).unwrap();
    assert_eq!(again, run);
    let mut bytes = vec![1; again.len()];
    let region = memory.region_of(again, ()).unwrap();
    region.copy_out(0, &mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0));
}

#[test]
fn threads_never_get_the_same_memory() {
    let memory = memory();
    std::thread::scope(|scope| {
        for slot in 0..4_u16 {
            let memory = &memory;
            scope.spawn(move || {
                let owner = join(memory, slot, gid(slot.into())).unwrap();
                let mark = [u8::try_from(slot).unwrap() + 1; 64];
                for round in 0..2000_u32 {
                    let order = u8::try_from(round % 3).unwrap();
                    let Some(run) = memory.allocate(owner, order) else {
                        continue;
                    };
                    let region = memory.region_of(run, ()).unwrap();
                    let mut seen = [1; 64];
                    region.copy_out(0, &mut seen).unwrap();
                    assert_eq!(seen, [0; 64], "memory that is not zeroed");
                    region.copy_in(0, &mark).unwrap();
                    std::thread::yield_now();
                    region.copy_out(0, &mut seen).unwrap();
                    assert_eq!(seen, mark, "memory that two have");
                    let token = memory.offer(run, owner).unwrap();
                    let target = memory.begin_use(token, owner).unwrap();
                    memory.end_use(run.first, owner);
                    assert_eq!(
                        (target.run, target.owner),
                        (run, owner),
                        "a claim was stolen"
                    );
                    memory.withdraw(run);
                    memory.release(owner, run);
                }
            });
        }
    });
}

#[test]
fn only_the_writer_that_was_named_may_write() {
    let memory = memory();
    let [owner, writer, other] =
        [0, 1, 2].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
    let run = memory.allocate(owner, 0).unwrap();
    let token = memory.offer(run, writer).unwrap();
    let unknown = Err(SubmitError::UnknownToken);
    assert_eq!(memory.begin_use(token, other), unknown);
    assert_eq!(memory.begin_use(token, owner), unknown);
    assert_eq!(
        memory.begin_use(DmbToken(token.0 ^ 1 << 30), writer),
        unknown
    );
    assert_eq!(memory.begin_use(DmbToken(0), writer), unknown);
    let target = memory.begin_use(token, writer).unwrap();
    assert_eq!((target.run, target.owner), (run, owner));
    assert!(memory.is_used(run.first));
    memory.withdraw(run);
    assert!(memory.is_used(run.first), "a use lasts until it is ended");
    assert_eq!(memory.begin_use(token, writer), unknown);
    memory.end_use(run.first, writer);
    assert!(!memory.is_used(run.first));
    // Once more than it was begun.
    memory.end_use(run.first, writer);
    assert!(!memory.is_used(run.first));
}

#[test]
fn a_writer_of_an_earlier_generation_may_not_write() {
    let memory = memory();
    let owner = join(&memory, 0, gid(1)).unwrap();
    let before = join(&memory, 1, gid(2)).unwrap();
    let run = memory.allocate(owner, 0).unwrap();
    let token = memory.offer(run, before).unwrap();
    let after = join(&memory, 1, gid(3)).unwrap();
    assert_eq!(
        memory.begin_use(token, after),
        Err(SubmitError::UnknownToken)
    );
}

#[test]
fn memory_of_a_dead_device_is_reclaimed_when_its_last_use_ends() {
    let memory = memory();
    let [owner, writer, third] =
        [0, 1, 2].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
    let mut tokens = Vec::new();
    while let Some(run) = memory.allocate(owner, 0) {
        tokens.push(memory.offer(run, writer).unwrap());
    }
    let used = memory.begin_use(tokens[0], writer).unwrap();
    memory.mark_dead(owner);
    assert_eq!(
        memory.begin_use(tokens[1], writer),
        Err(SubmitError::PeerGone)
    );
    assert_eq!(memory.allocate(third, 0), None);

    let all = || 0..memory.granules();
    let is_known_dead = |_| false;
    let freed = memory.sweep(all(), third, is_known_dead);
    assert_eq!(freed, memory.granules() - 1);
    assert!(memory.is_used(used.run.first));
    memory.end_use(used.run.first, writer);
    assert_eq!(memory.sweep(all(), third, is_known_dead), 1);
    assert_eq!(memory.sweep(all(), third, is_known_dead), 0);
    assert!(memory.allocate(third, 4).is_some());
}

#[test]
fn a_sweep_asks_once_about_each_slot_however_many_owners_the_memory_names() {
    const TAKEN: u64 = 2;
    let memory = memory();
    let [sweeper, owner, used_by] =
        [0, 1, 2].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
    for index in 0..memory.granules() {
        let generation = match index % 2 {
            0 => owner.generation,
            _ => index.saturating_add(100),
        };
        let claimed = Tag {
            generation,
            ..owner
        };
        let word = |field| memory.word(memory.layout.granule(index) + 8 * field);
        word(granule::CLAIM).store(claimed.bits() | TAKEN, Ordering::SeqCst);
        word(granule::USERS).store(used_by.bits() | 1, Ordering::SeqCst);
    }
    let mut asked = Vec::new();
    let freed = memory.sweep(0..memory.granules(), sweeper, |device| {
        asked.push(device);
        true
    });
    assert_eq!((asked, freed), (vec![owner], 0));

    // Without a user they are reclaimed, in the part that is swept.
    memory.mark_dead(used_by);
    let half = memory.granules() / 2;
    assert_eq!(memory.sweep(0..half, sweeper, |_| true), half);
    assert_eq!(memory.sweep(0..half, sweeper, |_| true), 0);
    let rest = memory.granules() - half;
    assert_eq!(
        memory.sweep(half..memory.granules(), sweeper, |_| true),
        rest
    );
}

#[test]
fn a_dead_writer_uses_nothing() {
    let memory = memory();
    let [owner, writer] = [0, 1].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
    let run = memory.allocate(owner, 0).unwrap();
    let token = memory.offer(run, writer).unwrap();
    memory.begin_use(token, writer).unwrap();
    assert!(memory.is_used(run.first));
    memory.mark_dead(writer);
    assert!(!memory.is_used(run.first));
    // Its words do not disturb the next writer.
    let next = join(&memory, 1, gid(5)).unwrap();
    let token = memory.offer(run, next).unwrap();
    memory.begin_use(token, next).unwrap();
    memory.end_use(run.first, next);
    assert!(!memory.is_used(run.first));
}

#[test]
fn of_two_moves_at_the_same_time_the_second_is_counted() {
    let memory = memory();
    let [owner, writer] = [0, 1].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
    let run = memory.allocate(owner, 0).unwrap();
    let token = memory.offer(run, writer).unwrap();
    let is_used = || memory.is_used(run.first);
    let moved = memory.with_access(token, writer, |_, _| {
        memory.with_access(token, writer, |target, _| {
            assert_eq!((target.run, target.owner), (run, owner));
            Ok(())
        })?;
        assert!(is_used(), "the first move is not over");
        memory.withdraw(run);
        assert!(is_used(), "a move lasts until it is ended");
        let late = memory.with_access(token, writer, |_, _| Ok(()));
        assert_eq!(late, Err(SubmitError::UnknownToken));
        assert!(is_used(), "the first move is not over");
        Ok(())
    });
    assert_eq!(moved, Ok(()));
    assert!(!is_used());
    assert_eq!(
        memory.with_access(token, writer, |_, _| Ok(())),
        Err(SubmitError::UnknownToken)
    );
}

#[test]
fn a_move_after_the_end_of_the_owner_leaves_no_user() {
    let memory = memory();
    let [owner, writer] = [0, 1].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
    let run = memory.allocate(owner, 0).unwrap();
    let token = memory.offer(run, writer).unwrap();
    memory.mark_dead(owner);
    let late = memory.with_access(token, writer, |_, _| Ok(()));
    assert_eq!(late, Err(SubmitError::PeerGone));
    assert!(!memory.is_used(run.first));
}

#[test]
fn the_write_lock_of_an_earlier_writer_is_taken_over_only_when_that_is_dead() {
    let memory = memory();
    let [owner, before, writer] =
        [0, 1, 2].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
    let run = memory.allocate(owner, 0).unwrap();
    let token = memory.offer(run, writer).unwrap();
    let lock = || memory.word(memory.layout.granule(run.first) + 8 * granule::WRITE_LOCK);
    lock().store(before.bits() | 1, Ordering::SeqCst);
    assert!(memory.is_used(run.first));
    // Counted instead.
    memory.with_access(token, writer, |_, _| Ok(())).unwrap();
    assert_eq!(lock().load(Ordering::SeqCst), before.bits() | 1);
    assert!(memory.is_used(run.first));
    memory.mark_dead(before);
    assert!(!memory.is_used(run.first), "the dead use nothing");
    memory.with_access(token, writer, |_, _| Ok(())).unwrap();
    assert_eq!(
        lock().load(Ordering::SeqCst),
        0,
        "the write lock is free again"
    );
}

#[test]
fn ready_bits_and_events_arrive_once() {
    let memory = memory();
    for granule in [0, 1, memory.granules() - 1] {
        memory.set_ready(2, granule);
    }
    let ready = |slot| {
        let mut seen = Vec::new();
        memory.take_ready(slot, usize::MAX, |granule| seen.push(granule));
        seen
    };
    assert_eq!(ready(1), [0_u32; 0]);
    assert_eq!(ready(2), [0, 1, memory.granules() - 1]);
    assert_eq!(ready(2), [0_u32; 0]);
    memory.post(2, 5, 1);
    memory.post(2, 5, 4);
    let mut seen = Vec::new();
    memory.take_events(2, |from, events| seen.push((from, events)));
    memory.take_events(2, |from, events| seen.push((from, events)));
    assert_eq!(seen, [(5, 5)]);
}

/// With any contents of the memory, calls return, and nothing outside is accessed.
#[test]
fn random_words_in_the_memory_cause_no_panic_and_no_wait() {
    let mut random = 0x5eed_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..200 {
        let memory = memory();
        let [owner, writer] = [0, 1].map(|slot| join(&memory, slot, gid(slot.into())).unwrap());
        let run = memory.allocate(owner, 1).unwrap();
        let token = memory.offer(run, writer).unwrap();
        let target = memory.begin_use(token, writer).unwrap();
        // All words in front of the data, or a few of them.
        let words = memory.layout.data(0) / 8;
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
            memory.word(at * 8).store(value, Ordering::Relaxed);
        }
        for slot in 0..memory.slots() {
            memory.device_of_slot(slot);
            memory.take_ready(slot, usize::MAX, |granule| {
                assert!(granule < memory.granules())
            });
            memory.take_events(slot, |from, _| assert!(from < memory.slots()));
            memory.take_peers_changed(slot);
            memory.must_notify(slot);
            memory.sleep_of(slot);
        }
        let live: Vec<_> = memory.live().collect();
        for tag in live {
            memory.gid(tag);
        }
        memory.must_signal(run.first);
        memory
            .write(target.run, 0, &[IoSlice::new(&[1; 100])])
            .unwrap();
        memory.end_use(run.first, writer);
        let _ = memory.begin_use(token, writer);
        for token in std::iter::once(token).chain((0..20).map(|_| DmbToken(next()))) {
            let _ = memory.begin_use(token, writer);
            if let Some(target) = memory.withdrawn(token, writer) {
                memory.set_ready(target.owner.slot, target.run.first);
            }
            let _ = memory.with_access(token, writer, |target, wake_flag| {
                let _ = wake_flag.must_wake();
                memory.write(target.run, 0, &[IoSlice::new(&[1; 100])])
            });
        }
        for index in 0..memory.granules() {
            memory.is_used(index);
        }
        memory.sweep(0..memory.granules(), owner, |tag| memory.is_dead(tag));
        for order in 0..16 {
            memory.allocate(owner, order);
        }
        memory.release(owner, run);
        let _ = join(&memory, 2, gid(9));
    }
}

/// The fields of slots and granules are in order and do not overlap.
#[test]
fn fields_do_not_overlap() {
    let fields = [
        slot::STATE,
        slot::GID_HI,
        slot::GID_LO,
        slot::HEARTBEAT,
        slot::PORT,
        slot::SLEEPING,
        slot::PEERS_CHANGED,
        slot::MAILBOX_SUMMARY,
    ];
    assert!(fields.windows(2).all(|two| two[0] + 8 <= two[1]));
    let fields = [
        granule::CLAIM,
        granule::WRITER,
        granule::USERS,
        granule::TOKEN,
        granule::WRITE_LOCK,
        granule::ARMED,
    ];
    assert!(fields.windows(2).all(|two| two[0] < two[1]));
}
