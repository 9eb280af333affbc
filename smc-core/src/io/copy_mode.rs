//! The copy mode of long data: temporal or non-temporal (streaming) stores.

use std::time::{Duration, Instant};

use crate::mem::{CopyMode, HAS_NON_TEMPORAL};

/// Copies by temporal or non-temporal stores, whichever is faster at the time.
///
/// If both ends run on processors with a shared cache, temporal stores are fastest: the reader
/// finds the line there. If not, each written line is first invalidated in the other processor's
/// cache, and each line that is read is fetched from it again, at a fraction of the memory
/// bandwidth. The scheduler can move either end at any time, so the mode is measured: some copies
/// are timed, and while they are slow, or non-temporal, a few trial copies use the other mode now
/// and then.
#[derive(Debug)]
pub(crate) struct CopyModeSelector {
    mode: CopyMode,
    /// Long copies since the last trial.
    copies: u32,
    /// Moving average of their rate in this mode, in bytes per nanosecond.
    average: f32,
    /// Remaining copies of a trial, and the sum of the rates so far.
    trial: Option<(u32, f32)>,
    /// Consecutive trials that changed nothing.
    failed_trials: u32,
    is_enabled: bool,
}

impl CopyModeSelector {
    /// `is_mapped`: the memory is written by this process, and not by a device.
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

    /// As [`Self::copy`] for long data.
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

    /// The mode of the next long copy, and whether to time it.
    fn next(&mut self) -> (CopyMode, bool) {
        if self.trial.is_some() {
            return (self.other(), true);
        }
        self.copies = self.copies.wrapping_add(1);
        (self.mode, self.copies % SAMPLE_INTERVAL == 0)
    }

    /// Handles the duration of a timed copy.
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

    /// Ends a trial of the other mode with this average rate.
    fn decide(&mut self, rate: f32) {
        self.copies = 0;
        // A non-temporal copy ends when its stores are issued, not when the peer could read the
        // data.
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

/// From this length on, in bytes, a non-temporal copy outweighs its fence.
const LONG_COPY_MIN: usize = 16 * 1024;

/// Of this many long copies one is timed.
const SAMPLE_INTERVAL: u32 = 8;

/// Timed copies in the moving average, about.
const AVERAGE_WINDOW: f32 = 8.0;

/// Copies of a trial.
const TRIAL_COPIES: u32 = 8;

/// Copies before another trial, while temporal copies are slow.
const TRIAL_INTERVAL_SLOW: u32 = 256;

/// Copies before another trial, while the mode is non-temporal: the trial is slow then.
const TRIAL_INTERVAL_NON_TEMPORAL: u32 = 2048;

/// Each failed trial doubles the copies before the next one, this often at most.
const FAILED_TRIALS_MAX: u32 = 5;

/// Rate, in bytes per nanosecond, that needs no trial, as memory is not faster.
const RATE_GOOD: f32 = 12.0;

/// Least factor by which a non-temporal copy appears faster than it is: measured were 24 bytes per
/// nanosecond where the peer got 11, and 3 to 6 by temporal stores where they were slow.
const NON_TEMPORAL_FACTOR: f32 = 3.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes long copies at these rates, in bytes per nanosecond. Returns how many were
    /// non-temporal.
    fn run(copy_mode: &mut CopyModeSelector, copies: u32, temporal: u64, non_temporal: u64) -> u32 {
        let mut non_temporal_copies = 0;
        for _ in 0..copies {
            let (mode, is_timed) = copy_mode.next();
            let rate = match mode {
                CopyMode::Temporal => temporal,
                CopyMode::NonTemporal => {
                    non_temporal_copies += 1;
                    non_temporal
                }
            };
            if is_timed {
                copy_mode.handle_sample(64_000, Duration::from_nanos(64_000 / rate));
            }
        }
        non_temporal_copies
    }

    #[test]
    fn with_a_shared_cache_there_are_no_trials() {
        assert_eq!(run(&mut CopyModeSelector::new(true), 100_000, 30, 24), 0);
    }

    #[test]
    fn without_a_shared_cache_copies_are_non_temporal() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 1000, 4, 20);
        assert_eq!(copy_mode.mode, CopyMode::NonTemporal);
        let non_temporal_copies = run(&mut copy_mode, 100_000, 4, 20);
        assert!(non_temporal_copies > 99_000, "{non_temporal_copies}");
    }

    #[test]
    fn copies_are_temporal_again_once_a_cache_is_shared() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 1000, 4, 20);
        run(&mut copy_mode, 3000, 30, 24);
        assert_eq!(copy_mode.mode, CopyMode::Temporal);
        assert_eq!(run(&mut copy_mode, 100_000, 30, 24), 0);
    }

    #[test]
    fn a_slow_machine_keeps_temporal_copies() {
        let mut copy_mode = CopyModeSelector::new(true);
        let non_temporal_copies = run(&mut copy_mode, 100_000, 5, 10);
        assert_eq!(copy_mode.mode, CopyMode::Temporal);
        assert!(non_temporal_copies < 5_000, "{non_temporal_copies}");
    }

    #[test]
    fn a_copy_that_was_interrupted_changes_nothing() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 1000, 30, 24);
        copy_mode.handle_sample(64_000, Duration::from_millis(4));
        assert_eq!(run(&mut copy_mode, 100_000, 30, 24), 0);
    }

    #[test]
    fn failed_trials_get_rare_and_never_end() {
        let mut copy_mode = CopyModeSelector::new(true);
        run(&mut copy_mode, 100_000, 5, 10);
        let non_temporal_copies = run(&mut copy_mode, 1_000_000, 5, 10);
        assert!(
            non_temporal_copies > 0
                && non_temporal_copies
                    <= 1_000_000 * TRIAL_COPIES / (TRIAL_INTERVAL_SLOW << FAILED_TRIALS_MAX),
            "{non_temporal_copies}"
        );
        run(&mut copy_mode, 20_000, 4, 20);
        assert_eq!(copy_mode.mode, CopyMode::NonTemporal);
    }

    #[test]
    fn timing_continues_when_the_count_wraps() {
        let mut copy_mode = CopyModeSelector::new(true);
        copy_mode.copies = u32::MAX - 20;
        run(&mut copy_mode, 1000, 4, 20);
        assert_eq!(copy_mode.mode, CopyMode::NonTemporal);
    }

    #[test]
    fn short_copies_and_those_of_a_device_are_not_timed() {
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
