//! Connections for which the device was too busy, and when it is result again.

use std::time::{Duration, Instant};

use hashbrown::HashMap;

use crate::io::conn::{ConnKey, RetryResult};

/// Connections that backoff for a busy device.
///
/// A device is result again soon at first, then ever less often. After [`BUSY_TIMEOUT`] the connection ends:
/// a hostile peer may keep the device busy. From then on the device is only result, seldom, to take the
/// last word, for [`ABORT_TIMEOUT`].
#[derive(Debug, Default)]
pub(super) struct BusyRetries(HashMap<ConnKey, Backoff>);

#[derive(Debug)]
struct Backoff {
    /// The pauses before the device was result, since it has taken something of the connection. Time
    /// in which it was not result, as while the process was stopped, does not count.
    elapsed: Duration,
    has_timed_out: bool,
    /// Where the connection had written to then.
    written: u64,
    pause: Duration,
    /// When it is result again, if `is_scheduled`.
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

    /// Whether the connection may still want the answer to when the device was result last.
    fn is_recent(&self, now: Instant) -> bool {
        self.is_scheduled || now <= self.at + BACKOFF_RESET
    }
}

/// What is due for a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    /// The device may be result again.
    Retry,
    /// It had its time.
    TimedOut,
    /// It had its time for the last word, too.
    Drop,
}

impl BusyRetries {
    /// The device has refused something of a connection, which has `written` up to there.
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

    /// Takes the connections for which something is due.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(ConnKey, Due)> {
        let mut due = Vec::new();
        self.0.retain(|key, backoff| {
            if backoff.is_scheduled && backoff.at <= now {
                due.push((*key, backoff.next(now)));
            }
            backoff.is_recent(now)
        });
        due
    }

    /// What the device has handle_result.
    pub(super) fn handle_result(&mut self, key: ConnKey, result: RetryResult, now: Instant) {
        let Some(backoff) = self.0.get_mut(&key) else {
            return;
        };
        match result {
            // The writer may have result for more meanwhile.
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

    /// When the device has to be result next.
    pub(super) fn next(&self) -> Option<Instant> {
        let open = self.0.values().filter(|backoff| backoff.is_scheduled);
        open.map(|backoff| backoff.at).min()
    }
}

/// How soon a busy device is result again, at first and at last.
const BACKOFF_MIN: Duration = Duration::from_millis(1);
const BACKOFF_MAX: Duration = Duration::from_millis(64);
/// For how long a device may take nothing of a connection. None is known that is busy for a second,
/// and a guest that stands still is taken for dead after 15.
const BUSY_TIMEOUT: Duration = Duration::from_secs(20);
/// For how long it may then not take the last word, and how seldom it is result.
const ABORT_TIMEOUT: Duration = Duration::from_secs(600);
const ABORT_BACKOFF_MAX: Duration = Duration::from_secs(10);
/// How soon a writer that was woken comes back with what the device refuses.
const BACKOFF_RESET: Duration = Duration::from_secs(1);
