use std::thread;

use super::*;

fn both_sides() -> (SignalPage, SignalPage) {
    let region = Region::anonymous(LEN);
    (
        SignalPage::new(region.clone()).unwrap(),
        SignalPage::new(region).unwrap(),
    )
}

fn taken(signal_page: &SignalPage) -> Vec<u32> {
    let mut all = Vec::new();
    signal_page.take_ready(|index| all.push(index));
    all
}

#[test]
fn ready_buffers_are_taken_once() {
    let (owner, writer) = both_sides();
    for index in [0, 63, 64, 4095, 4096, SLOTS - 1] {
        writer.set_ready(index);
        writer.set_ready(index);
    }
    assert_eq!(taken(&owner), [0, 63, 64, 4095, 4096, SLOTS - 1]);
    assert!(taken(&owner).is_empty());
    writer.set_ready(7);
    assert_eq!(taken(&owner), [7]);
}

#[test]
fn only_a_sleeping_owner_is_notified_and_only_once() {
    let (owner, writer) = both_sides();
    assert!(!writer.set_ready(1));
    owner.set_sleeping();
    assert!(writer.set_ready(2));
    assert!(!writer.set_ready(3));
    owner.set_sleeping();
    owner.clear_sleeping();
    assert!(!writer.set_ready(4));
}

#[test]
fn changed_slots_request_one_scan() {
    let (owner, writer) = both_sides();
    owner.set_changed(5);
    assert!(owner.request_scan());
    owner.set_changed(6);
    assert!(!owner.request_scan());
    let mut changed = Vec::new();
    let taken = writer.take_changed(usize::MAX, |index| changed.push(index));
    assert_eq!(taken.count, changed.len());
    assert!(taken.count > 0);
    assert_eq!(changed, [5, 6]);
    assert!(owner.request_scan());
}

#[test]
fn a_signal_is_wanted_once() {
    let (owner, writer) = both_sides();
    let (owned, written) = (owner.slot(9).unwrap(), writer.slot(9).unwrap());
    assert!(!written.must_signal());
    owned.arm();
    assert!(written.must_signal());
    assert!(!written.must_signal());
}

#[test]
fn a_use_begins_only_during_the_registration() {
    let (owner, writer) = both_sides();
    let (owned, written) = (owner.slot(9).unwrap(), writer.slot(9).unwrap());
    let state = SlotState {
        registration: 3,
        token: 33,
        memory: 2,
    };
    owned.publish(state);
    assert_eq!(written.state(), Some(state));
    assert!(!written.begin_use(2));
    assert!(!owned.is_used());
    assert!(written.begin_use(3));
    owned.withdraw();
    assert!(owned.is_used());
    assert!(!written.begin_use(3));
    written.end_use();
    assert!(!owned.is_used());
    owned.clear_memory();
    assert_eq!(
        written.state(),
        Some(SlotState {
            registration: 0,
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
    assert!(SignalPage::new(Region::anonymous(LEN - 8)).is_err());
}

/// Two threads set bits as fast as they can; no bit that was set is ever missed.
#[test]
fn bits_set_while_others_are_taken_are_not_lost() {
    let (owner, writer) = both_sides();
    const ROUNDS: u64 = 20_000;
    let done = Region::anonymous(8);
    let count = |region: &Region| region.load(0, Ordering::SeqCst).unwrap();
    let (mut seen, indices) = (0, [1, 64, 65, 4097]);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                done.store(0, round, Ordering::SeqCst).unwrap();
                for index in indices {
                    writer.set_ready(index);
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
