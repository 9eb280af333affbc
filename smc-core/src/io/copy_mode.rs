//! Which way long data goes into the peer's memory.

use std::time::{Duration, Instant};

use crate::mem::{By, CAN_CHOOSE};

/// Copies through the caches of this processor or past them, whichever is faster at the time.
///
/// Where both ends run on processors with a cache in common, a line is found there: nothing is faster.
/// Where they do not, each line that is written is first taken away from the other processor, and
/// each one that is read is fetched from it again, at a fraction of what memory gives. Which of the
/// two it is changes whenever the scheduler moves one of them, so it is measured: some copies are
/// timed, and while they are slow, or past the caches, a few go the other way now and then.
#[derive(Debug)]
pub(crate) struct Pace {
    by: By,
    /// Long copies since the latest trial.
    copies: u32,
    /// What they come to this way, in bytes a nanosecond.
    usual: f32,
    /// Copies of a trial that are left, and what those before add up to.
    trial: Option<(u32, f32)>,
    /// Trials in a row that changed nothing.
    vain: u32,
    can_choose: bool,
}

impl Pace {
    /// For memory that is ours to write, or that a device writes as it likes.
    pub(crate) fn new(is_mapped: bool) -> Self {
        Self {
            by: By::Caches,
            copies: 0,
            usual: GOOD,
            trial: None,
            vain: 0,
            can_choose: is_mapped && CAN_CHOOSE,
        }
    }

    /// Makes a copy of `len` bytes.
    #[inline(always)]
    pub(crate) fn copy<E>(
        &mut self,
        len: usize,
        copy: impl FnOnce(By) -> Result<(), E>,
    ) -> Result<(), E> {
        if len < LONG || !self.can_choose {
            return copy(By::Caches);
        }
        self.copy_long(len, copy)
    }

    /// The same for as many bytes as are worth a choice.
    #[inline(never)]
    fn copy_long<E>(
        &mut self,
        len: usize,
        copy: impl FnOnce(By) -> Result<(), E>,
    ) -> Result<(), E> {
        let (by, is_timed) = self.next();
        if !is_timed {
            return copy(by);
        }
        let start = Instant::now();
        copy(by)?;
        self.took(len, start.elapsed());
        Ok(())
    }

    /// How the next long copy goes, and whether to tell how long it took.
    fn next(&mut self) -> (By, bool) {
        if self.trial.is_some() {
            return (self.other(), true);
        }
        self.copies = self.copies.wrapping_add(1);
        (self.by, self.copies % TIMED == 0)
    }

    /// The copy took so long.
    fn took(&mut self, len: usize, time: Duration) {
        let rate = len as f32 / time.as_nanos().max(1) as f32;
        match self.trial.take() {
            None => {
                self.usual += (rate - self.usual) / SMOOTH;
                let is_slow = self.by == By::Caches && self.usual < GOOD;
                let patience = if is_slow { SLOW } else { PAST };
                if self.copies >= patience << self.vain && (is_slow || self.by == By::Memory) {
                    self.trial = Some((TRIAL, 0.0));
                }
            }
            Some((1, sum)) => self.decide((sum + rate) / TRIAL as f32),
            Some((left, sum)) => self.trial = Some((left - 1, sum + rate)),
        }
    }

    /// A trial of the other way came to `rate`.
    fn decide(&mut self, rate: f32) {
        self.copies = 0;
        // Past the caches a copy ends when memory has been told, not when the peer could read it.
        let is_better = match self.by {
            By::Caches => rate > self.usual * FACTOR,
            By::Memory => rate * FACTOR > self.usual,
        };
        if is_better {
            self.by = self.other();
            self.usual = rate;
            self.vain = 0;
        } else {
            self.vain = (self.vain + 1).min(VAIN_MAX);
        }
    }

    fn other(&self) -> By {
        match self.by {
            By::Caches => By::Memory,
            By::Memory => By::Caches,
        }
    }
}

/// From this length on, in bytes, a copy past the caches is worth its fence.
const LONG: usize = 16 * 1024;

/// One of so many long copies is timed.
const TIMED: u32 = 8;

/// How many timed copies the usual is of, about.
const SMOOTH: f32 = 8.0;

/// Copies of a trial.
const TRIAL: u32 = 8;

/// Copies before another trial, when those through the caches are slow.
const SLOW: u32 = 256;

/// Copies before another trial, when those past the caches are usual: the trial is slow then.
const PAST: u32 = 2048;

/// Each trial in vain doubles the copies before the next one, so often at most.
const VAIN_MAX: u32 = 5;

/// Bytes a nanosecond that leave nothing to be wished for, as memory does not give more.
const GOOD: f32 = 12.0;

/// A copy past the caches looks so much faster than it is, at least: 24 bytes a nanosecond were seen
/// where the peer got 11, and 3 to 6 through the caches where they were slow.
const FACTOR: f32 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes long copies at these rates, in bytes a nanosecond. Returns how many went past the caches.
    fn run(pace: &mut Pace, copies: u32, by_caches: u64, by_memory: u64) -> u32 {
        let mut past = 0;
        for _ in 0..copies {
            let (by, is_timed) = pace.next();
            let rate = match by {
                By::Caches => by_caches,
                By::Memory => {
                    past += 1;
                    by_memory
                }
            };
            if is_timed {
                pace.took(64_000, Duration::from_nanos(64_000 / rate));
            }
        }
        past
    }

    #[test]
    fn with_a_cache_in_common_nothing_is_tried() {
        assert_eq!(run(&mut Pace::new(true), 100_000, 30, 24), 0);
    }

    #[test]
    fn far_from_each_other_data_goes_past_the_caches() {
        let mut pace = Pace::new(true);
        run(&mut pace, 1000, 4, 20);
        assert_eq!(pace.by, By::Memory);
        let past = run(&mut pace, 100_000, 4, 20);
        assert!(past > 99_000, "{past}");
    }

    #[test]
    fn moved_together_they_use_their_cache_again() {
        let mut pace = Pace::new(true);
        run(&mut pace, 1000, 4, 20);
        run(&mut pace, 3000, 30, 24);
        assert_eq!(pace.by, By::Caches);
        assert_eq!(run(&mut pace, 100_000, 30, 24), 0);
    }

    #[test]
    fn a_slow_machine_stays_with_its_caches() {
        let mut pace = Pace::new(true);
        let past = run(&mut pace, 100_000, 5, 10);
        assert_eq!(pace.by, By::Caches);
        assert!(past < 5_000, "{past}");
    }

    #[test]
    fn a_copy_that_was_interrupted_changes_nothing() {
        let mut pace = Pace::new(true);
        run(&mut pace, 1000, 30, 24);
        pace.took(64_000, Duration::from_millis(4));
        assert_eq!(run(&mut pace, 100_000, 30, 24), 0);
    }

    #[test]
    fn trials_in_vain_get_rare_and_never_end() {
        let mut pace = Pace::new(true);
        run(&mut pace, 100_000, 5, 10);
        let past = run(&mut pace, 1_000_000, 5, 10);
        assert!(
            past > 0 && past <= 1_000_000 * TRIAL / (SLOW << VAIN_MAX),
            "{past}"
        );
        run(&mut pace, 20_000, 4, 20);
        assert_eq!(pace.by, By::Memory);
    }

    #[test]
    fn copies_that_were_fast_for_ever_are_still_timed() {
        let mut pace = Pace::new(true);
        pace.copies = u32::MAX - 20;
        run(&mut pace, 1000, 4, 20);
        assert_eq!(pace.by, By::Memory);
    }

    #[test]
    fn short_copies_and_those_of_a_device_are_not_looked_at() {
        for (mut pace, len) in [(Pace::new(true), LONG - 1), (Pace::new(false), LONG)] {
            for _ in 0..10_000 {
                let copied = pace.copy(len, |by| match by {
                    By::Caches => Ok(()),
                    By::Memory => Err(()),
                });
                assert_eq!(copied, Ok(()));
            }
            assert_eq!(pace.copies, 0);
        }
    }
}
