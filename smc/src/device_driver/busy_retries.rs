//! Retries at busy devices, with exponential backoff.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::conn::{ConnKey, RetryResult};

/// Connections that wait for a busy device.
///
/// Retries back off exponentially. After [`BUSY_TIMEOUT`] the connection is aborted: a hostile peer
/// may keep the device busy. From then on only the abort flag is retried, at longer intervals, for
/// [`ABORT_TIMEOUT`].
#[derive(Default)]
pub(super) struct BusyRetries(HashMap<ConnKey, Backoff>);

struct Backoff {
    /// The sum of pauses since the device last accepted something of the connection. Time without
    /// retries, as while the process was stopped, does not count.
    elapsed: Duration,
    has_timed_out: bool,
    /// The write position of the connection then.
    written: u64,
    pause: Duration,
    /// The time of the next retry, if `is_scheduled`.
    at: Instant,
    is_scheduled: bool,
}

impl Backoff {
    fn new(written: u64, now: Instant) -> Self {
        Self {
            elapsed: Duration::ZERO,
            has_timed_out: false,
            written,
            pause: BACKOFF_MIN,
            at: now + BACKOFF_MIN,
            is_scheduled: true,
        }
    }

    fn next(&mut self, now: Instant) -> Due {
        self.elapsed += self.pause;
        let (due, longest) = match (self.has_timed_out, self.elapsed) {
            (false, elapsed) if elapsed < BUSY_TIMEOUT => (Due::Retry, BACKOFF_MAX),
            (false, _) => {
                self.has_timed_out = true;
                self.elapsed = Duration::ZERO;
                (Due::TimedOut, BACKOFF_MAX)
            }
            (true, elapsed) if elapsed < ABORT_TIMEOUT => (Due::Retry, ABORT_BACKOFF_MAX),
            (true, _) => (Due::Drop, BACKOFF_MAX),
        };
        self.is_scheduled = due == Due::TimedOut;
        self.pause = (self.pause * 2).min(longest);
        self.at = now + self.pause;
        due
    }

    /// Whether the entry is still relevant to the connection.
    fn is_recent(&self, now: Instant) -> bool {
        self.is_scheduled || now <= self.at + BACKOFF_RESET
    }
}

/// The action that is due for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// Retry at the device.
    Retry,
    /// The device was busy for [`BUSY_TIMEOUT`].
    TimedOut,
    /// The abort flag could not be published for [`ABORT_TIMEOUT`].
    Drop,
}

impl BusyRetries {
    /// Adds a connection, which has `written` up to there: the device was busy.
    pub(super) fn add(&mut self, key: ConnKey, written: u64, now: Instant) {
        match self.0.get_mut(&key) {
            Some(backoff) if backoff.has_timed_out => backoff.is_scheduled = true,
            Some(backoff) if backoff.written == written && backoff.is_recent(now) => {
                backoff.is_scheduled = true
            }
            _ => {
                self.0.insert(key, Backoff::new(written, now));
            }
        }
    }

    /// Takes up to `most` connections with a due action, those that have waited longest.
    pub(super) fn due(&mut self, now: Instant, most: usize) -> Vec<(ConnKey, Due)> {
        let mut due = Vec::new();
        self.0.retain(|key, backoff| {
            if backoff.is_scheduled && backoff.at <= now {
                due.push((backoff.at, *key));
            }
            backoff.is_recent(now)
        });
        due.sort_unstable();
        due.truncate(most);
        let next = |(_, key)| Some((key, self.0.get_mut(&key)?.next(now)));
        due.into_iter().filter_map(next).collect()
    }

    /// Handles the result of a retry.
    pub(super) fn handle_result(&mut self, key: ConnKey, result: RetryResult, now: Instant) {
        let Some(backoff) = self.0.get_mut(&key) else {
            return;
        };
        match result {
            // The writer may have scheduled a retry meanwhile.
            RetryResult::Accepted => {
                let is_scheduled = backoff.is_scheduled;
                *backoff = Backoff::new(backoff.written, now);
                backoff.is_scheduled = is_scheduled;
            }
            RetryResult::Busy => backoff.is_scheduled = true,
            RetryResult::Nothing => {}
        }
    }

    pub(super) fn remove(&mut self, key: ConnKey) {
        self.0.remove(&key);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The time of the next retry.
    pub(super) fn next(&self) -> Option<Instant> {
        let open = self.0.values().filter(|backoff| backoff.is_scheduled);
        open.map(|backoff| backoff.at).min()
    }
}

/// Bounds of the backoff.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(64);
/// How long a device may accept nothing of a connection. Known devices are busy for less than a
/// second, and a paused guest is declared dead after 15.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the abort flag is retried then, and the maximum backoff.
const ABORT_TIMEOUT: Duration = Duration::from_secs(600);
const ABORT_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// An entry without a retry for this long starts over.
const BACKOFF_RESET: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use smc_wire::types::DmbToken;

    use super::*;

    #[test]
    fn retries_that_are_due_are_taken_few_at_a_time_the_oldest_first() {
        let (mut retries, start) = (BusyRetries::default(), Instant::now());
        let keys: Vec<_> = (0..100).map(|n| ConnKey::direct(DmbToken(n))).collect();
        for (key, later) in keys.iter().zip(0..) {
            retries.add(*key, 0, start + Duration::from_micros(later));
        }
        let now = start + Duration::from_secs(1) / 2;
        for some in keys.chunks(32) {
            assert!(retries.next().is_some_and(|next| next <= now));
            let due = retries.due(now, 32).into_iter().map(|(key, _)| key);
            assert_eq!(due.collect::<Vec<_>>(), some);
        }
        assert!(retries.due(now, 32).is_empty());
    }
}
