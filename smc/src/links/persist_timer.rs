//! The persist timer of a moved connection: probes make the peer send corked data.

use std::time::{Duration, Instant};

/// The timer of probes ([`Transmit::probe`]), as TCP's persist timer of zero-window probes.
///
/// A Linux peer corks new data while a CDC of the connection is in flight
/// (docs/spec/data-path.md#corking). If that CDC is on a link whose failure its device does not
/// report, each write is corked, and is sent only with the next reason to push. This side cannot
/// detect that, so it probes: soon after data was sent in either direction, and with exponential
/// backoff while none is.
///
/// [`Transmit::probe`]: crate::proto::conn::rdma::Transmit::probe
pub(crate) struct PersistTimer {
    pub(crate) at: Instant,
    interval: Duration,
}

impl PersistTimer {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            at: now + INTERVAL_MIN,
            interval: INTERVAL_MIN,
        }
    }

    /// Whether a probe is due. If so, the next one backs off if the peer has sent no data
    /// meanwhile.
    pub(crate) fn take_due(&mut self, now: Instant, has_data: bool) -> bool {
        let is_due = self.at <= now;
        if is_due {
            self.interval = match has_data {
                true => INTERVAL_MIN,
                false => INTERVAL_MAX.min(self.interval * 2),
            };
            self.at = now + self.interval;
        }
        is_due
    }

    /// Restarts the timer after a write that may have an answer. Returns whether the next probe is
    /// earlier now.
    pub(crate) fn restart(&mut self, now: Instant) -> bool {
        let soon = now + INTERVAL_MIN;
        let is_sooner = soon < self.at;
        if is_sooner {
            *self = Self::new(now);
        }
        is_sooner
    }
}

const INTERVAL_MIN: Duration = Duration::from_millis(50);
const INTERVAL_MAX: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_backs_off_for_a_silent_peer_and_restarts_with_data() {
        let start = Instant::now();
        let mut persist_timer = PersistTimer::new(start);
        assert!(!persist_timer.take_due(start, true));
        let mut at = start;
        for interval in [50, 100, 200, 400, 800, 1600, 2000, 2000] {
            assert_eq!(persist_timer.at - at, Duration::from_millis(interval));
            at = persist_timer.at;
            assert!(persist_timer.take_due(at, false));
        }
        assert!(persist_timer.restart(at));
        assert!(!persist_timer.restart(at), "not postponed by every write");
        assert_eq!(persist_timer.at - at, INTERVAL_MIN);
        assert!(persist_timer.take_due(persist_timer.at, false));
        assert!(persist_timer.take_due(persist_timer.at, true));
        assert_eq!(persist_timer.interval, INTERVAL_MIN);
    }
}
