//! Going to sleep while the peer writes: the write is seen, or it wakes.

use std::sync::Arc;

use loom::thread;
use smc_core::device::Dmb;
use smc_core::mem::sync::model::{Mutation, check, with};
use smc_core::mem::sync::{AtomicBool, Ordering};

use super::Sides;

#[test]
fn a_reader_that_sleeps_is_reported() {
    reader(None, None);
}

#[test]
#[should_panic(expected = "neither seen nor reported")]
fn a_writer_without_fence_does_not_see_that_the_reader_sleeps() {
    reader(Some(Mutation::NoFence), None);
}

#[test]
#[should_panic(expected = "neither seen nor reported")]
fn a_reader_that_sleeps_without_fence_does_not_see_what_was_written() {
    reader(None, Some(Mutation::NoFence));
}

#[test]
fn a_driver_that_sleeps_is_rung() {
    driver(None, None);
}

#[test]
#[should_panic(expected = "neither reported nor rung")]
fn a_ringer_without_one_order_does_not_see_that_the_driver_sleeps() {
    driver(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "neither reported nor rung")]
fn a_driver_that_sleeps_without_one_order_does_not_see_what_was_reported() {
    driver(None, Some(Mutation::NoSeqCst));
}

#[test]
fn a_driver_and_its_ringer_do_without_fences() {
    let both = Some(Mutation::NoFence);
    driver(both, both);
}

#[test]
fn whoever_sleeps_is_woken() {
    all(1, None, None, TAKES_CARE);
}

#[test]
#[should_panic(expected = "asleep for good")]
fn without_fences_of_the_writer_sleep_may_be_for_good() {
    all(1, Some(Mutation::NoFence), None, TAKES_CARE);
}

#[test]
#[should_panic(expected = "asleep for good")]
fn without_fences_of_the_sleepers_sleep_may_be_for_good() {
    all(1, None, Some(Mutation::NoFence), TAKES_CARE);
}

#[test]
fn whoever_sleeps_again_is_woken_again() {
    all(2, IN_ORDER, IN_ORDER, TAKES_CARE);
}

#[test]
#[should_panic(expected = "asleep for good")]
fn a_reader_has_to_look_again() {
    let care = Care {
        reader_looks_again: false,
        ..TAKES_CARE
    };
    all(2, IN_ORDER, IN_ORDER, care);
}

#[test]
#[should_panic(expected = "asleep for good")]
fn a_driver_has_to_look_again() {
    let care = Care {
        driver_looks_again: false,
        ..TAKES_CARE
    };
    all(2, IN_ORDER, IN_ORDER, care);
}

/// A reader looks, asks for a report, and looks again, while the peer writes once.
fn reader(writing: Option<Mutation>, reading: Option<Mutation>) {
    check(move || {
        let sides = Sides::new();
        let writer = sides.attach();
        let writes = thread::spawn(move || {
            with(writing, || writer.write(1));
            writer
        });
        let seen = with(reading, || {
            let mut reader = sides.reader();
            reader.look() || reader.arm_and_look()
        });
        let _attached = writes.join().unwrap();
        assert!(seen || sides.collect(), "neither seen nor reported");
        assert_eq!(sides.rung(), 0, "rung a driver that was awake");
    });
}

/// The driver collects, asks for the doorbell, and collects again, while the peer reports once.
fn driver(writing: Option<Mutation>, driving: Option<Mutation>) {
    check(move || {
        let sides = Sides::new();
        sides.dmb.arm();
        let writer = sides.attach();
        let writes = thread::spawn(move || {
            with(writing, || writer.write(1));
            writer
        });
        let reported = with(driving, || sides.drive());
        let _attached = writes.join().unwrap();
        if !reported {
            assert_eq!(sides.rung(), 1, "neither reported nor rung");
            sides.active.add(&sides.peer);
            assert!(sides.collect(), "rung for nothing");
        }
        assert!(sides.reader().look(), "reported before it was written");
    });
}

/// Reader and driver each in a thread of its own, and a peer that writes some times.
fn all(times: u8, writing: Option<Mutation>, sleeping: Option<Mutation>, care: Care) {
    check(move || {
        let sides = Arc::new(Sides::new());
        let waker = Arc::new(Waker::default());
        let writer = sides.attach();
        let writes = thread::spawn(move || {
            with(writing, || {
                (1..=times).for_each(|count| writer.write(count))
            });
            writer
        });
        let drives = {
            let (sides, waker) = (Arc::clone(&sides), Arc::clone(&waker));
            thread::spawn(move || {
                with(sleeping, || {
                    while sides.collect() || {
                        sides.active.arm();
                        care.driver_looks_again && sides.collect()
                    } {
                        waker.wake();
                    }
                });
            })
        };
        let seen = with(sleeping, || {
            let mut reader = sides.reader();
            while reader.look() || {
                waker.register();
                sides.dmb.arm();
                care.reader_looks_again && reader.look()
            } {}
            reader.seen
        });
        let _attached = writes.join().unwrap();
        drives.join().unwrap();
        if seen < times.into() && !waker.was_woken() {
            assert!(sides.rung() > 0, "asleep for good");
            sides.active.add(&sides.peer);
            assert!(sides.collect(), "rung for nothing");
        }
    });
}

/// What the sleepers do once they have asked to be woken.
#[derive(Clone, Copy)]
struct Care {
    reader_looks_again: bool,
    driver_looks_again: bool,
}

const TAKES_CARE: Care = Care {
    reader_looks_again: true,
    driver_looks_again: true,
};

const IN_ORDER: Option<Mutation> = Some(Mutation::InOrder);

/// Of the reader's task.
#[derive(Default)]
struct Waker {
    /// A waker is there.
    registered: AtomicBool,
}

impl Waker {
    fn register(&self) {
        self.registered.store(true, Ordering::Release);
    }

    fn wake(&self) {
        self.registered.swap(false, Ordering::AcqRel);
    }

    /// Since the last time that it was registered; once the driver sleeps.
    fn was_woken(&self) -> bool {
        !self.registered.load(Ordering::Acquire)
    }
}
