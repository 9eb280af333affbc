use std::thread;

use super::*;

fn both_sides() -> (Bell, Bell) {
    let region = Region::anonymous(LEN);
    (
        Bell::new(region.clone()).unwrap(),
        Bell::new(region).unwrap(),
    )
}

fn taken(bell: &Bell) -> Vec<u32> {
    let mut all = Vec::new();
    bell.take_ready(|index| all.push(index));
    all
}

#[test]
fn ready_buffers_are_taken_once() {
    let (owner, ringer) = both_sides();
    for index in [0, 63, 64, 4095, 4096, SLOTS - 1] {
        ringer.set_ready(index);
        ringer.set_ready(index);
    }
    assert_eq!(taken(&owner), [0, 63, 64, 4095, 4096, SLOTS - 1]);
    assert!(taken(&owner).is_empty());
    ringer.set_ready(7);
    assert_eq!(taken(&owner), [7]);
}

#[test]
fn only_a_sleeper_is_rung_and_only_once() {
    let (owner, ringer) = both_sides();
    assert!(!ringer.set_ready(1));
    owner.sleep();
    assert!(ringer.set_ready(2));
    assert!(!ringer.set_ready(3));
    owner.sleep();
    owner.wake();
    assert!(!ringer.set_ready(4));
}

#[test]
fn fresh_slots_are_asked_about_once() {
    let (owner, ringer) = both_sides();
    owner.set_fresh(5);
    assert!(owner.ask_to_look());
    owner.set_fresh(6);
    assert!(!owner.ask_to_look());
    let mut fresh = Vec::new();
    assert!(ringer.take_fresh(|index| fresh.push(index)));
    assert_eq!(fresh, [5, 6]);
    assert!(owner.ask_to_look());
}

#[test]
fn a_signal_is_wanted_once() {
    let (owner, ringer) = both_sides();
    let (owned, rung) = (owner.slot(9).unwrap(), ringer.slot(9).unwrap());
    assert!(!rung.must_signal());
    owned.arm();
    assert!(rung.must_signal());
    assert!(!rung.must_signal());
}

#[test]
fn a_use_begins_only_while_the_registration_lives() {
    let (owner, ringer) = both_sides();
    let (owned, rung) = (owner.slot(9).unwrap(), ringer.slot(9).unwrap());
    let notice = Notice {
        live: 3,
        token: 33,
        memory: 2,
    };
    owned.publish(notice);
    assert_eq!(rung.notice(), Some(notice));
    assert!(!rung.begin_use(2));
    assert!(!owned.is_used());
    assert!(rung.begin_use(3));
    owned.withdraw();
    assert!(owned.is_used());
    assert!(!rung.begin_use(3));
    rung.end_use();
    assert!(!owned.is_used());
    owned.retire();
    assert_eq!(
        rung.notice(),
        Some(Notice {
            live: 0,
            token: 33,
            memory: 0
        })
    );
}

#[test]
fn slots_out_of_range_are_refused() {
    let (owner, _) = both_sides();
    assert!(owner.slot(SLOTS - 1).is_ok());
    assert!(owner.slot(SLOTS).is_err());
    assert!(owner.slot(u32::MAX).is_err());
    assert!(Bell::new(Region::anonymous(LEN - 8)).is_err());
}

/// Two threads set bits as fast as they can; no bit that was set is ever missed.
#[test]
fn bits_set_while_others_are_taken_are_not_lost() {
    let (owner, ringer) = both_sides();
    const ROUNDS: u64 = 20_000;
    let done = Region::anonymous(8);
    let count = |region: &Region| region.load(0, Ordering::SeqCst).unwrap();
    let (mut seen, indices) = (0, [1, 64, 65, 4097]);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                done.store(0, round, Ordering::SeqCst).unwrap();
                for index in indices {
                    ringer.set_ready(index);
                }
                // The next round waits for all of this one.
                while count(&done) == round {
                    thread::yield_now();
                }
            }
        });
        for round in 1..=ROUNDS {
            while seen < indices.len() {
                owner.take_ready(|index| {
                    assert!(indices.contains(&index));
                    seen += 1;
                });
                thread::yield_now();
            }
            assert_eq!((seen, count(&done)), (indices.len(), round));
            seen = 0;
            done.store(0, 0, Ordering::SeqCst).unwrap();
        }
    });
}
