//! The flag by which a side that sleeps is woken.

use super::sync::{AtomicU64, Ordering, fence};

/// A shared word by which a side that is about to sleep requests to be woken.
///
/// ```text
/// sleeper: arm, look once more, sleep          writer: write, must_wake, wake
/// ```
///
/// Each side stores its word and then loads that of the other, with a sequentially consistent fence
/// between the two. So at least one of them sees what the other has stored: the sleeper finds what
/// was written, or the writer finds the flag.
///
/// Of several writers one finds the flag. Either side can store any value at any time. The only
/// effect of a wrong value is a wake-up too many, or a missing one.
#[derive(Clone, Copy, Debug)]
pub struct WakeFlag<'a>(&'a AtomicU64);

impl<'a> WakeFlag<'a> {
    /// The flag in this word, where 0 means that no wake-up is requested.
    #[must_use]
    pub fn new(word: &'a AtomicU64) -> Self {
        Self(word)
    }

    /// Requests a wake-up after the next write. The sleeper has to look once more before it sleeps.
    #[inline]
    pub fn arm(self) {
        self.0.store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request, for the next use of what the flag belongs to.
    #[inline]
    pub fn clear(self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// After a write: whether the sleeper has to be woken. Takes the request.
    #[inline]
    #[must_use]
    pub fn must_wake(self) -> bool {
        self.is_armed() && self.0.swap(0, Ordering::SeqCst) != 0
    }

    /// After a write: whether a wake-up is requested. Leaves the request as it is.
    #[inline]
    #[must_use]
    pub fn is_armed(self) -> bool {
        fence(Ordering::SeqCst);
        self.0.load(Ordering::Relaxed) != 0
    }
}

#[cfg(all(test, smc_loom))]
mod models {
    use std::sync::Arc;

    use loom::thread;

    use super::*;
    use crate::mem::sync::model::{Mutation, check, with};

    #[test]
    fn a_side_that_sleeps_is_woken() {
        sleeps(1, None, None, true);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn a_writer_without_fence_does_not_see_the_request() {
        sleeps(1, Some(Mutation::NoFence), None, true);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn a_sleeper_without_fence_does_not_see_what_was_written() {
        sleeps(1, None, Some(Mutation::NoFence), true);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn a_writer_out_of_order_does_not_see_the_request() {
        sleeps(1, Some(Mutation::NoSeqCst), None, true);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn a_sleeper_out_of_order_does_not_see_what_was_written() {
        sleeps(1, None, Some(Mutation::NoSeqCst), true);
    }

    #[test]
    #[should_panic(expected = "lost wake-up")]
    fn a_sleeper_has_to_look_once_more() {
        sleeps(1, None, None, false);
    }

    #[test]
    fn a_side_that_sleeps_is_woken_by_one_of_two_writers() {
        sleeps(2, None, None, true);
    }

    /// Writers that write once each, and a side that looks, requests a wake-up, and looks again.
    fn sleeps(
        writers: u64,
        writing: Option<Mutation>,
        sleeping: Option<Mutation>,
        looks_again: bool,
    ) {
        check(move || {
            let [flag, written] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
            let writers: Vec<_> = (0..writers)
                .map(|_| {
                    let (flag, written) = (Arc::clone(&flag), Arc::clone(&written));
                    thread::spawn(move || {
                        with(writing, || {
                            written.fetch_add(1, Ordering::Release);
                            WakeFlag::new(&flag).must_wake()
                        })
                    })
                })
                .collect();
            let all = writers.len() as u64;
            let has_all = || written.load(Ordering::Acquire) == all;
            let seen = with(sleeping, || {
                has_all() || {
                    WakeFlag::new(&flag).arm();
                    looks_again && has_all()
                }
            });
            let woken = writers.into_iter().map(|it| it.join().unwrap());
            let woken = woken.filter(|woken| *woken).count();
            assert!(woken <= 1, "woken twice");
            assert!(seen || woken == 1, "lost wake-up");
        });
    }
}
