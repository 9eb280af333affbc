//! The copy mode of long data: temporal or non-temporal (streaming) stores.

use std::time::Instant;

use crate::mem::{CopyMode, HAS_NON_TEMPORAL};

/// Selects temporal or non-temporal stores, whichever moves a stream faster at the time.
///
/// The rule and its constants are explained in `docs/architecture.md`.
pub(crate) struct CopyModeSelector {
    /// Length of a rate window, in bytes: at least the ring. `None` where there is one mode.
    window_len: Option<u32>,
    /// Since the first long copy.
    rates: Option<Box<Rates>>,
}

/// The measured rates of both modes.
#[derive(Default)]
struct Rates {
    mode: CopyMode,
    /// `None` where the next one begins with its first copy: the application may pause before it.
    window: Option<RateWindow>,
    /// Rates of the latest windows in this mode, in bytes per nanosecond.
    latest: [f32; HISTORY],
    /// Windows in this mode since the last trial.
    windows: u32,
    trial: Option<Trial>,
    /// Consecutive trials that changed nothing.
    failed_trials: u32,
    /// The rate in this mode at the last of them.
    rate_at_trial: f32,
}

/// Long copies, one after the other, whose rate is measured as a whole.
struct RateWindow {
    start: Instant,
    len: u32,
    /// The ring was full at least once: the reader limited the rate.
    was_full: bool,
}

/// Some windows in the other mode.
#[derive(Default)]
struct Trial {
    windows: u32,
    best: f32,
}

impl CopyModeSelector {
    /// `is_mapped`: the memory is written by this process, and not by a device. `ring` is its
    /// length in bytes.
    pub(crate) fn new(is_mapped: bool, ring: u32) -> Self {
        let has_modes = is_mapped && HAS_NON_TEMPORAL;
        Self {
            window_len: has_modes.then_some(ring.max(WINDOW_LEN_MIN)),
            rates: None,
        }
    }

    /// The mode of a copy of at least [`LONG_COPY_MIN`] bytes. A call of [`copied`](Self::copied)
    /// has to follow it.
    #[inline(never)]
    pub(crate) fn next(&mut self) -> CopyMode {
        if self.window_len.is_none() {
            return CopyMode::Temporal;
        }
        let rates = self.rates.get_or_insert_default();
        rates.begin(Instant::now);
        rates.next()
    }

    /// Such a copy of `len` bytes was made. `fills` states whether it has filled the ring.
    #[inline(never)]
    pub(crate) fn copied(&mut self, len: usize, fills: bool) {
        if let (Some(rates), Some(window_len)) = (&mut self.rates, self.window_len) {
            rates.add(len, fills, window_len, Instant::now);
        }
    }

    /// Whether a long copy was made.
    #[cfg(test)]
    pub(crate) fn is_measured(&self) -> bool {
        self.rates.is_some()
    }
}

impl Rates {
    /// Begins a rate window, unless one is open.
    fn begin(&mut self, now: impl FnOnce() -> Instant) {
        self.window.get_or_insert_with(|| RateWindow::new(now()));
    }

    /// The mode of the next long copy.
    fn next(&self) -> CopyMode {
        match self.trial {
            Some(_) => self.other(),
            None => self.mode,
        }
    }

    /// Adds a copy to the rate window, and ends it once it is that long.
    fn add(&mut self, len: usize, fills: bool, window_len: u32, now: impl FnOnce() -> Instant) {
        let Some(window) = &mut self.window else {
            return;
        };
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        window.len = window.len.saturating_add(len);
        window.was_full |= fills;
        if window.len < window_len {
            return;
        }
        let now = now();
        let time = now.duration_since(window.start).as_nanos();
        let rate = window.len as f32 / time.max(1) as f32;
        let was_full = window.was_full;
        // The writer of a full ring waits for the reader, and does not pause.
        self.window = fills.then(|| RateWindow::new(now));
        self.end_window(rate, was_full);
    }

    fn end_window(&mut self, rate: f32, was_full: bool) {
        match &mut self.trial {
            Some(trial) => {
                // The data that the reader took in the first window was written in the other mode.
                if trial.windows > 0 {
                    trial.best = trial.best.max(rate);
                }
                trial.windows += 1;
                if trial.windows == TRIAL_WINDOWS {
                    self.end_trial();
                }
            }
            None => self.handle_rate(rate, was_full),
        }
    }

    /// Handles the rate of a window in the current mode.
    fn handle_rate(&mut self, rate: f32, was_full: bool) {
        self.latest[self.windows as usize % HISTORY] = rate;
        self.windows = self.windows.saturating_add(1);
        if was_full && self.best() < self.rate_at_trial / 2.0 {
            // One of the two has been moved to another processor.
            self.failed_trials = 0;
        }
        let is_due = self.windows >= TRIAL_INTERVAL << self.failed_trials;
        // While a reader keeps up with temporal stores, nothing is gained.
        if is_due && (was_full || self.mode == CopyMode::NonTemporal) {
            self.trial = Some(Trial::default());
        }
    }

    /// The best rate of the latest windows: interruptions only ever lower a rate.
    fn best(&self) -> f32 {
        self.latest.iter().copied().fold(0.0, f32::max)
    }

    fn end_trial(&mut self) {
        let rate = self.trial.take().map_or(0.0, |trial| trial.best);
        let is_better = match self.mode {
            CopyMode::Temporal => rate > self.best() * GAIN_TO_ENTER,
            CopyMode::NonTemporal => rate * GAIN_TO_STAY > self.best(),
        };
        if is_better {
            self.mode = self.other();
            self.latest = [rate; HISTORY];
            self.failed_trials = 0;
        } else {
            self.failed_trials = (self.failed_trials + 1).min(FAILED_TRIALS_MAX);
        }
        self.rate_at_trial = self.best();
        self.windows = 0;
    }

    fn other(&self) -> CopyMode {
        match self.mode {
            CopyMode::Temporal => CopyMode::NonTemporal,
            CopyMode::NonTemporal => CopyMode::Temporal,
        }
    }
}

impl RateWindow {
    fn new(start: Instant) -> Self {
        Self {
            start,
            len: 0,
            was_full: false,
        }
    }
}

/// From this length on, in bytes, a non-temporal copy outweighs its fence. Shorter copies are
/// temporal, and are not measured.
pub(crate) const LONG_COPY_MIN: usize = 16 * 1024;

/// Least length of a rate window, in bytes: the clock is read once or twice for it.
const WINDOW_LEN_MIN: u32 = 1 << 20;

/// Windows of which the best counts.
const HISTORY: usize = 4;

/// Windows of a trial, the first of which does not count.
const TRIAL_WINDOWS: u32 = 3;

/// Windows before the first trial.
const TRIAL_INTERVAL: u32 = 32;

/// Each failed trial doubles the windows before the next one, this often at most.
const FAILED_TRIALS_MAX: u32 = 7;

/// Gain by non-temporal stores that is worth a change of mode.
const GAIN_TO_ENTER: f32 = 1.25;

/// Gain that is worth staying. Non-temporal stores take the data out of the caches, where the
/// application may want it.
const GAIN_TO_STAY: f32 = 1.1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const RING: u32 = 1 << 20;
    const LEN: usize = 64 * 1024;
    const COPIES: u32 = RING / LEN as u32;

    /// One writer and one reader, with a clock of their own.
    struct SimulatedStream {
        measured: Rates,
        now: Instant,
        /// Bytes per nanosecond from end to end, by temporal and by non-temporal stores.
        rates: [f32; 2],
        is_full: bool,
    }

    impl SimulatedStream {
        fn new(temporal: f32, non_temporal: f32) -> Self {
            let now = Instant::now();
            Self {
                measured: Rates::default(),
                now,
                rates: [temporal, non_temporal],
                is_full: true,
            }
        }

        /// Passes on that many rings of data. Returns how many of them by non-temporal stores.
        fn run(&mut self, rings: u32) -> f32 {
            let mut non_temporal = 0;
            for _ in 0..rings * COPIES {
                self.measured.begin(|| self.now);
                let mode = self.measured.next();
                non_temporal += u32::from(mode == CopyMode::NonTemporal);
                let rate = self.rates[usize::from(mode == CopyMode::NonTemporal)];
                self.now += Duration::from_nanos((LEN as f32 / rate) as u64);
                self.measured.add(LEN, self.is_full, RING, || self.now);
            }
            non_temporal as f32 / COPIES as f32
        }
    }

    #[test]
    fn with_a_shared_cache_trials_cost_little() {
        let mut stream = SimulatedStream::new(30.0, 10.0);
        let tried = stream.run(10_000);
        assert_eq!(stream.measured.mode, CopyMode::Temporal);
        assert!(tried > 0.0 && tried < 40.0, "{tried}");
    }

    #[test]
    fn without_a_shared_cache_copies_are_non_temporal() {
        let mut stream = SimulatedStream::new(4.0, 11.0);
        stream.run(100);
        assert_eq!(stream.measured.mode, CopyMode::NonTemporal);
        assert!(stream.run(10_000) > 9_900.0);
    }

    #[test]
    fn the_mode_does_not_depend_on_how_fast_the_machine_is() {
        for scale in [0.01, 1.0, 100.0] {
            let mut stream = SimulatedStream::new(4.0 * scale, 11.0 * scale);
            stream.run(100);
            assert_eq!(stream.measured.mode, CopyMode::NonTemporal, "{scale}");
            let mut stream = SimulatedStream::new(11.0 * scale, 4.0 * scale);
            stream.run(100);
            assert_eq!(stream.measured.mode, CopyMode::Temporal, "{scale}");
        }
    }

    #[test]
    fn copies_are_temporal_again_once_a_cache_is_shared() {
        let mut stream = SimulatedStream::new(4.0, 11.0);
        stream.run(100);
        stream.rates = [30.0, 10.0];
        stream.run(10_000);
        assert_eq!(stream.measured.mode, CopyMode::Temporal);
    }

    #[test]
    fn a_rate_that_falls_is_a_reason_for_a_trial_soon() {
        let mut stream = SimulatedStream::new(30.0, 10.0);
        stream.run(10_000);
        stream.rates = [4.0, 11.0];
        stream.run(100);
        assert_eq!(stream.measured.mode, CopyMode::NonTemporal);
    }

    #[test]
    fn an_interruption_changes_nothing() {
        let mut stream = SimulatedStream::new(30.0, 10.0);
        for _ in 0..1_000 {
            stream.run(2);
            stream.now += Duration::from_millis(4);
        }
        assert_eq!(stream.measured.mode, CopyMode::Temporal);
    }

    #[test]
    fn a_gain_within_the_noise_changes_nothing() {
        let mut stream = SimulatedStream::new(10.0, 11.0);
        stream.run(10_000);
        assert_eq!(stream.measured.mode, CopyMode::Temporal);
    }

    #[test]
    fn there_is_no_trial_while_the_reader_keeps_up() {
        let mut stream = SimulatedStream::new(4.0, 11.0);
        stream.is_full = false;
        assert!(stream.run(10_000) < 1.0);
    }

    #[test]
    fn copies_of_a_device_are_not_measured() {
        let mut selector = CopyModeSelector::new(false, RING);
        for _ in 0..10_000 {
            assert_eq!(selector.next(), CopyMode::Temporal);
            selector.copied(LONG_COPY_MIN, true);
        }
        assert!(!selector.is_measured());
    }
}
