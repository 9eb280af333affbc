//! Going to sleep while the peer writes: the write is seen, or it wakes.

use std::sync::Arc;

use loom::thread;
use smc_core::device::Dmb;
use smc_core::mem::sync::model::{Mutation, check, with};
use smc_core::mem::sync::{AtomicBool, Ordering};

use super::Sides;

#[test]
fn a_driver_that_sleeps_is_notified() {
    driver(None, None);
}

#[test]
#[should_panic(expected = "neither reported nor notified")]
fn a_writer_without_one_order_does_not_see_that_the_driver_sleeps() {
    driver(Some(Mutation::NoSeqCst), None);
}

#[test]
#[should_panic(expected = "neither reported nor notified")]
fn a_driver_that_sleeps_without_one_order_does_not_see_what_was_reported() {
    driver(None, Some(Mutation::NoSeqCst));
}

#[test]
fn a_driver_and_its_writer_do_without_fences() {
    let both = Some(Mutation::NoFence);
    driver(both, both);
}

#[test]
fn a_sleeping_side_is_woken() {
    all(1, None, None, POLLS_AGAIN);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn without_fences_of_the_writer_sleep_may_be_for_good() {
    all(1, Some(Mutation::NoFence), None, POLLS_AGAIN);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn without_fences_of_the_sleepers_sleep_may_be_for_good() {
    all(1, None, Some(Mutation::NoFence), POLLS_AGAIN);
}

#[test]
fn a_side_that_sleeps_again_is_woken_again() {
    all(2, IN_ORDER, IN_ORDER, POLLS_AGAIN);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn a_reader_has_to_poll_again() {
    let final_poll = FinalPoll {
        reader_polls_again: false,
        ..POLLS_AGAIN
    };
    all(2, IN_ORDER, IN_ORDER, final_poll);
}

#[test]
#[should_panic(expected = "lost wake-up")]
fn a_driver_has_to_poll_again() {
    let final_poll = FinalPoll {
        driver_polls_again: false,
        ..POLLS_AGAIN
    };
    all(2, IN_ORDER, IN_ORDER, final_poll);
}

/// The driver collects, requests the doorbell, and collects again, while the peer signals once.
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
            assert_eq!(sides.doorbell_count(), 1, "neither reported nor notified");
            sides.active.add(&sides.peer);
            assert!(sides.collect(), "notified without an event");
        }
        assert!(sides.reader().poll(), "reported before it was written");
    });
}

/// Reader and driver each in a thread of its own, and a peer that writes some times.
fn all(times: u8, writing: Option<Mutation>, sleeping: Option<Mutation>, final_poll: FinalPoll) {
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
                        final_poll.driver_polls_again && sides.collect()
                    } {
                        waker.wake();
                    }
                });
            })
        };
        let seen = with(sleeping, || {
            let mut reader = sides.reader();
            while reader.poll() || {
                waker.register();
                sides.dmb.arm();
                final_poll.reader_polls_again && reader.poll()
            } {}
            reader.seen
        });
        let _attached = writes.join().unwrap();
        drives.join().unwrap();
        if seen < times.into() && !waker.was_woken() {
            assert!(sides.doorbell_count() > 0, "lost wake-up");
            sides.active.add(&sides.peer);
            assert!(sides.collect(), "notified without an event");
        }
    });
}

/// Whether each side polls once more after it has requested a wake-up.
#[derive(Clone, Copy)]
struct FinalPoll {
    reader_polls_again: bool,
    driver_polls_again: bool,
}

const POLLS_AGAIN: FinalPoll = FinalPoll {
    reader_polls_again: true,
    driver_polls_again: true,
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
