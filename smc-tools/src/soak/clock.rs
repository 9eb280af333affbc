//! Steps of the system's clock (CLOCK_REALTIME).

use anyhow::{Context as _, Result};
use nix::sys::time::{TimeSpec, TimeValLike as _};
use nix::time::{ClockId, clock_gettime, clock_settime};

/// The clock, which is set right when this is dropped.
pub(super) struct Clock {
    /// Seconds that it is fast.
    fast: i64,
}

impl Clock {
    /// Fails where this process may not set it.
    pub(super) fn open() -> Result<Self> {
        let mut clock = Self { fast: 0 };
        clock.step_to(0)?;
        Ok(clock)
    }

    /// Makes it up to a day fast or slow.
    pub(super) fn step(&mut self, rng: &mut fastrand::Rng) -> Result<()> {
        let most = STEPS[rng.usize(0..STEPS.len())];
        self.step_to(rng.i64(-most..=most))
    }

    fn step_to(&mut self, fast: i64) -> Result<()> {
        let now = clock_gettime(ClockId::CLOCK_REALTIME)?;
        let time = now + TimeSpec::seconds(fast - self.fast);
        clock_settime(ClockId::CLOCK_REALTIME, time).context("cannot set the clock")?;
        self.fast = fast;
        Ok(())
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        // It could be set before.
        let _right = self.step_to(0);
    }
}

/// Seconds.
const STEPS: [i64; 3] = [2, 3600, 24 * 3600];
