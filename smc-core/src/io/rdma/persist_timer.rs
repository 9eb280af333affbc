//! When a peer whose link has died is asked to push what it holds back.

use std::time::{Duration, Instant};

/// The times of a moved connection's nudges ([`Transmit::nudge`]).
///
/// A Linux peer holds new data back while a CDC of the connection is in flight
/// (docs/spec/data-path.md#corking). If that CDC is on a link whose failure its device does not
/// report, each write is held back, and goes only with the next reason to push. There is no sign of
/// it, so it is asked: soon after data went either way, and ever less often while none does.
///
/// [`Transmit::nudge`]: crate::proto::conn::staged::Transmit::nudge
#[derive(Debug)]
pub(super) struct Nudges {
    at: Instant,
    wait: Duration,
}

impl Nudges {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            at: now + SHORTEST,
            wait: SHORTEST,
        }
    }

    pub(super) const fn at(&self) -> Instant {
        self.at
    }

    /// Whether it is time. If so, the next one is later if the peer has sent nothing meanwhile.
    pub(super) fn is_due(&mut self, now: Instant, has_data: bool) -> bool {
        let is_due = self.at <= now;
        if is_due {
            self.wait = match has_data {
                true => SHORTEST,
                false => LONGEST.min(self.wait * 2),
            };
            self.at = now + self.wait;
        }
        is_due
    }

    /// We have written something that may have an answer. Returns whether the next one is sooner
    /// now.
    pub(super) fn hurry(&mut self, now: Instant) -> bool {
        let soon = now + SHORTEST;
        let is_sooner = soon < self.at;
        if is_sooner {
            *self = Self::new(now);
        }
        is_sooner
    }
}

const SHORTEST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_nudged_less_and_less_until_there_is_something() {
        let start = Instant::now();
        let mut nudges = Nudges::new(start);
        assert!(!nudges.is_due(start, true));
        let mut at = start;
        for wait in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            assert_eq!(nudges.at() - at, Duration::from_millis(wait));
            at = nudges.at();
            assert!(nudges.is_due(at, false));
        }
        assert!(nudges.hurry(at));
        assert!(!nudges.hurry(at), "not put off by every write");
        assert_eq!(nudges.at() - at, SHORTEST);
        assert!(nudges.is_due(nudges.at(), false));
        assert!(nudges.is_due(nudges.at(), true));
        assert_eq!(nudges.wait, SHORTEST);
    }
}
