//! Which way long data goes into the peer's memory.

use std::time::{Duration, Instant};

use crate::mem::{CopyMode, HAS_NON_TEMPORAL};

/// Copies through the caches of this processor or past them, whichever is faster at the time.
///
/// Where both ends run on processors with a cache in common, a line is found there: nothing is faster.
/// Where they do not, each line that is written is first taken away from the other processor, and
/// each one that is read is fetched from it again, at a fraction of what memory gives. Which of the
/// two it is changes whenever the scheduler moves one of them, so it is measured: some copies are
/// timed, and while they are slow, or past the caches, a few go the other way now and then.
#[derive(Debug)]
pub(crate) struct CopyModeSelector {
    mode: CopyMode,
    /// Long copies since the latest trial.
    copies: u32,
    /// What they come to this way, in bytes a nanosecond.
    average: f32,
    /// Copies of a trial that are left, and what those before add up to.
    trial: Option<(u32, f32)>,
    /// Trials in a row that changed nothing.
    failed_trials: u32,
    is_enabled: bool,
}

impl CopyModeSelector {
    /// For memory that is ours to write, or that a device writes as it likes.
    pub(crate) fn new(is_mapped: bool) -> Self {
        Self {
            mode: CopyMode::Temporal,
            copies: 0,
            average: RATE_GOOD,
            trial: None,
            failed_trials: 0,
            is_enabled: is_mapped && HAS_NON_TEMPORAL,
        }
    }

    /// Makes a copy of `len` bytes.
    #[inline(always)]
    pub(crate) fn copy<E>(
        &mut self,
        len: usize,
        copy: impl FnOnce(CopyMode) -> Result<(), E>,
    ) -> Result<(), E> {
        if len < LONG_COPY_MIN || !self.is_enabled {
            return copy(CopyMode::Temporal);
        }
        self.copy_long(len, copy)
    }

    /// The same for as many bytes as are worth a choice.
    #[inline(never)]
    fn copy_long<E>(
        &mut self,
        len: usize,
        copy: impl FnOnce(CopyMode) -> Result<(), E>,
    ) -> Result<(), E> {
        let (mode, is_timed) = self.next();
        if !is_timed {
            return copy(mode);
        }
        let start = Instant::now();
        copy(mode)?;
        self.handle_sample(len, start.elapsed());
        Ok(())
    }

    /// How the next long copy goes, and whether to tell how long it handle_sample.
    fn next(&mut self) -> (CopyMode, bool) {
        if self.trial.is_some() {
            return (self.other(), true);
        }
        self.copies = self.copies.wrapping_add(1);
        (self.mode, self.copies % SAMPLE_INTERVAL == 0)
    }

    /// The copy handle_sample so long.
    fn handle_sample(&mut self, len: usize, time: Duration) {
        let rate = len as f32 / time.as_nanos().max(1) as f32;
        match self.trial.take() {
            None => {
                self.average += (rate - self.average) / AVERAGE_WINDOW;
                let is_slow = self.mode == CopyMode::Temporal && self.average < RATE_GOOD;
                let interval = if is_slow {
                    TRIAL_INTERVAL_SLOW
                } else {
                    TRIAL_INTERVAL_NON_TEMPORAL
                };
                if self.copies >= interval << self.failed_trials
                    && (is_slow || self.mode == CopyMode::NonTemporal)
                {
                    self.trial = Some((TRIAL_COPIES, 0.0));
                }
            }
            Some((1, sum)) => self.decide((sum + rate) / TRIAL_COPIES as f32),
            Some((left, sum)) => self.trial = Some((left - 1, sum + rate)),
        }
    }

    /// A trial of the other way came to `rate`.
    fn decide(&mut self, rate: f32) {
        self.copies = 0;
        // Past the caches a copy ends when memory has been told, not when the peer could read it.
        let is_better = match self.mode {
            CopyMode::Temporal => rate > self.average * NON_TEMPORAL_FACTOR,
            CopyMode::NonTemporal => rate * NON_TEMPORAL_FACTOR > self.average,
        };
        if is_better {
            self.mode = self.other();
            self.average = rate;
            self.failed_trials = 0;
        } else {
            self.failed_trials = (self.failed_trials + 1).min(FAILED_TRIALS_MAX);
        }
    }

    fn other(&self) -> CopyMode {
        match self.mode {
            CopyMode::Temporal => CopyMode::NonTemporal,
            CopyMode::NonTemporal => CopyMode::Temporal,
        }
    }
}

/// From this length on, in bytes, a copy past the caches is worth its fence.
const LONG_COPY_MIN: usize = 16 * 1024;

/// One of so many long copies is timed.
const SAMPLE_INTERVAL: u32 = 8;

/// How many timed copies the average is of, about.
const AVERAGE_WINDOW: f32 = 8.0;

/// Copies of a trial.
const TRIAL_COPIES: u32 = 8;

/// Copies before another trial, when those through the caches are slow.
const TRIAL_INTERVAL_SLOW: u32 = 256;

/// Copies before another trial, when those past the caches are average: the trial is slow then.
const TRIAL_INTERVAL_NON_TEMPORAL: u32 = 2048;

/// Each trial in failed_trials doubles the copies before the next one, so often at most.
const FAILED_TRIALS_MAX: u32 = 5;

/// Bytes a nanosecond that leave nothing to be wished for, as memory does not give more.
const RATE_GOOD: f32 = 12.0;

/// A copy past the caches looks so much faster than it is, at least: 24 bytes a nanosecond were seen
/// where the peer got 11, and 3 to 6 through the caches where they were slow.
const NON_TEMPORAL_FACTOR: f32 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes long copies at these rates, in bytes a nanosecond. Returns how many went past the caches.
    fn run(copy_mode: &mut CopyModeSelector, copies: u32, temporal: u64, non_temporal: u64) -> u32 {
        let mut past = 0;
        for _ in 0..copies {
            let (mode, is_timed) = copy_mode.next();
            let rate = match mode {
                CopyMode::Temporal => temporal,
                CopyMode::NonTemporal => {
                    past += 1;
                    non_temporal
                }
            };
            if is_timed {
                copy_mode.handle_sample(64_000, Duration::from_nanos(64_000 / rate));
            }
        }
        past
    }

    #[test]
    fn with_a_cache_in_common_nothing_is_tried() {
        assert_eq!(run(&mut CopyModeSelector::new(true), 100_000, 30, 24), 0);
    }

    #[test]
    fn far_from_each_other_data_goes_past_the_caches() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 1000, 4, 20);
        assert_eq!(copy_mode.mode, CopyMode::NonTemporal);
        let past = run(&mut copy_mode, 100_000, 4, 20);
        assert!(past > 99_000, "{past}");
    }

    #[test]
    fn moved_together_they_use_their_cache_again() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 1000, 4, 20);
        run(&mut copy_mode, 3000, 30, 24);
        assert_eq!(copy_mode.mode, CopyMode::Temporal);
        assert_eq!(run(&mut copy_mode, 100_000, 30, 24), 0);
    }

    #[test]
    fn a_slow_machine_stays_with_its_caches() {
        let mut copy_mode = CopyModeSelector::new(true);
        let past = run(&mut copy_mode, 100_000, 5, 10);
        assert_eq!(copy_mode.mode, CopyMode::Temporal);
        assert!(past < 5_000, "{past}");
    }

    #[test]
    fn a_copy_that_was_interrupted_changes_nothing() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 1000, 30, 24);
        copy_mode.handle_sample(64_000, Duration::from_millis(4));
        assert_eq!(run(&mut copy_mode, 100_000, 30, 24), 0);
    }

    #[test]
    fn trials_in_vain_get_rare_and_never_end() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 100_000, 5, 10);
        let past = run(&mut copy_mode, 1_000_000, 5, 10);
        assert!(
            past > 0
                && past <= 1_000_000 * TRIAL_COPIES / (TRIAL_INTERVAL_SLOW << FAILED_TRIALS_MAX),
            "{past}"
        );
        run(&mut copy_mode, 20_000, 4, 20);
        assert_eq!(copy_mode.mode, CopyMode::NonTemporal);
    }

    #[test]
    fn copies_that_were_fast_for_ever_are_still_timed() {
        let mut copy_mode = CopyModeSelector::new(true);
        copy_mode.copies = u32::MAX - 20;
        run(&mut copy_mode, 1000, 4, 20);
        assert_eq!(copy_mode.mode, CopyMode::NonTemporal);
    }

    #[test]
    fn short_copies_and_those_of_a_device_are_not_looked_at() {
        for (mut copy_mode, len) in [
            (CopyModeSelector::new(true), LONG_COPY_MIN - 1),
            (CopyModeSelector::new(false), LONG_COPY_MIN),
        ] {
            for _ in 0..10_000 {
                let copied = copy_mode.copy(len, |mode| match mode {
                    CopyMode::Temporal => Ok(()),
                    CopyMode::NonTemporal => Err(()),
                });
                assert_eq!(copied, Ok(()));
            }
            assert_eq!(copy_mode.copies, 0);
        }
    }
}
