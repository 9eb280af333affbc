//! Backoff: listeners that did not answer get no offers for some time.

use std::time::{Duration, Instant};

use smc_core::mutex::Mutex;

/// The backoff of one listener.
///
/// A connection that gets no answer in time begins a backoff, in which other connections are plain
/// TCP at once. After it one connection makes an offer again. Each further backoff is twice as
/// long, up to a limit, until the listener answers.
#[derive(Debug, Default)]
pub(super) struct Backoff(Mutex<Option<Interval>>);

#[derive(Clone, Copy, Debug)]
struct Interval {
    noticed: Instant,
    until: Instant,
    length: Duration,
}

impl Backoff {
    /// Whether a connection that begins now makes an offer to the listener.
    pub(super) fn allows(&self, now: Instant) -> bool {
        let mut interval = self.0.lock();
        let Some(interval) = &mut *interval else {
            return true;
        };
        let has_passed = interval.until <= now;
        if has_passed {
            // One connection makes an offer; those that begin meanwhile are plain TCP.
            interval.until = now + interval.length;
        }
        has_passed
    }

    /// Whether the listener did not answer the last offer.
    pub(super) fn is_active(&self) -> bool {
        self.0.lock().is_some()
    }

    /// The listener did not answer an offer of time `since`.
    pub(super) fn extend(&self, since: Instant, now: Instant) {
        let mut interval = self.0.lock();
        let length = match *interval {
            // Another connection, which has waited at the same time, has begun it.
            Some(known) if since <= known.noticed => return,
            Some(known) => (known.length * 2).min(LONGEST),
            None => FIRST,
        };
        *interval = Some(Interval {
            noticed: now,
            until: now + length,
            length,
        });
    }

    pub(super) fn reset(&self) {
        *self.0.lock() = None;
    }
}

const FIRST: Duration = Duration::from_millis(250);

/// A listener that works again gets an offer after this time at the latest.
const LONGEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(200);

    #[test]
    fn a_backoff_is_twice_as_long_each_time_up_to_a_limit() {
        let backoff = Backoff::default();
        let mut now = Instant::now();
        assert!(backoff.allows(now) && backoff.allows(now) && !backoff.is_active());
        let mut lengths = Vec::new();
        for _ in 0..6 {
            let since = now;
            now += WAIT;
            backoff.extend(since, now);
            let mut length = 0;
            while !backoff.allows(now) {
                now += Duration::from_millis(1);
                length += 1;
            }
            assert!(!backoff.allows(now), "only one is allowed");
            lengths.push(length);
        }
        assert_eq!(lengths, [250, 500, 1000, 2000, 2000, 2000]);
        backoff.reset();
        assert!(backoff.allows(now) && !backoff.is_active());
    }

    #[test]
    fn connections_that_wait_at_the_same_time_begin_one_backoff() {
        let backoff = Backoff::default();
        let since = Instant::now();
        backoff.extend(since, since + WAIT);
        backoff.extend(since, since + WAIT);
        assert!(backoff.allows(since + WAIT + FIRST));
    }
}
