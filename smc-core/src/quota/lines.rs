//! The number of log lines that peers can cause in a period.

use std::time::{Duration, Instant};

/// How many lines of a kind a log gets, from all peers together. What is left out is counted.
#[derive(Debug, Default)]
pub struct LineQuota {
    /// When the first one of this period was written.
    begin: Option<Instant>,
    /// In this period.
    count: u32,
    left_out: u64,
}

/// The decision about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each caller handles all of them")]
pub enum LineVerdict {
    /// It is written, after a line about so many that were not since the one before.
    Written {
        /// Their number.
        left_out: u64,
    },
    /// It is left out, and the first one: a line that says so is written in its place.
    FirstLeftOut,
    /// It is left out.
    LeftOut,
}

impl LineQuota {
    /// Lines of a period.
    pub const MAX: u32 = 60;
    /// How long a period is.
    pub const PERIOD: Duration = Duration::from_secs(60);

    /// Takes a line.
    pub fn take(&mut self, now: Instant) -> LineVerdict {
        let has_passed = |begin: Instant| now.saturating_duration_since(begin) >= Self::PERIOD;
        if self.begin.is_none_or(has_passed) {
            (self.begin, self.count) = (Some(now), 0);
        }
        if self.count == Self::MAX {
            self.left_out = self.left_out.saturating_add(1);
            return match self.left_out {
                1 => LineVerdict::FirstLeftOut,
                _ => LineVerdict::LeftOut,
            };
        }
        self.count += 1;
        let left_out = std::mem::take(&mut self.left_out);
        LineVerdict::Written { left_out }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded_in_a_period_and_counted() {
        let mut quota = LineQuota::default();
        let begin = Instant::now();
        for _ in 0..LineQuota::MAX {
            assert_eq!(quota.take(begin), LineVerdict::Written { left_out: 0 });
        }
        let later = begin + LineQuota::PERIOD / 2;
        assert_eq!(quota.take(later), LineVerdict::FirstLeftOut);
        for _ in 0..1999 {
            assert_eq!(quota.take(later), LineVerdict::LeftOut);
        }
        let next = begin + LineQuota::PERIOD;
        assert_eq!(quota.take(next), LineVerdict::Written { left_out: 2000 });
        assert_eq!(quota.take(next), LineVerdict::Written { left_out: 0 });
    }
}
