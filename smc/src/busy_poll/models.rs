//! What halves and the driver share about polling, under loom: every order of steps, every value
//! that a load may see.

use std::sync::Arc;

use loom::thread;

use super::*;
use crate::mem::sync::model::check;

#[test]
fn of_two_halves_for_the_last_place_one_polls_and_the_other_starts_the_driver() {
    check(|| {
        let pollers = pollers(POLLERS_MAX - 1);
        let halves = [(); 2].map(|()| {
            let pollers = Arc::clone(&pollers);
            thread::spawn(move || before_parking(&pollers))
        });
        let mut seen = halves.map(|half| half.join().unwrap());
        seen.sort_unstable();
        assert_eq!(seen, [Half::Polls, Half::StartsDriver]);
        assert!(pollers.is_driver_polling());
    });
}

#[test]
fn a_half_that_leaves_makes_one_place() {
    check(|| {
        let pollers = pollers(POLLERS_MAX);
        let leaves = {
            let pollers = Arc::clone(&pollers);
            thread::spawn(move || pollers.leave())
        };
        let first = before_parking(&pollers);
        leaves.join().unwrap();
        let is_free = first != Half::Polls;
        assert_eq!(pollers.enter(), is_free, "after {first:?}");
        assert!(!pollers.enter(), "more than there are places");
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Half {
    Polls,
    StartsDriver,
    Parks,
}

/// A half begins a window; without a place it does what it does before it parks.
fn before_parking(pollers: &Pollers) -> Half {
    match pollers.enter() {
        true => Half::Polls,
        false if pollers.take_request() => Half::StartsDriver,
        false => Half::Parks,
    }
}

/// With so many halves in their windows.
fn pollers(halves: u32) -> Arc<Pollers> {
    let pollers = Arc::new(Pollers::new(true, false));
    assert!((0..halves).all(|_| pollers.enter()));
    pollers
}
