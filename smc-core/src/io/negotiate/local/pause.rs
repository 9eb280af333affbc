//! Which listeners are not asked for a moment, because they did not answer.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::lock;

/// What is known of the silence of one listener.
///
/// A connection that waits in vain for an answer begins a pause, in which others are plain TCP at
/// once. After it one connection asks again. Each pause that follows another is twice as long, up to
/// a limit, until the listener answers.
#[derive(Debug, Default)]
pub(super) struct Pause(Mutex<Option<Silent>>);

#[derive(Clone, Copy, Debug)]
struct Silent {
    noticed: Instant,
    until: Instant,
    length: Duration,
}

impl Pause {
    /// Whether a connection that begins now asks the listener.
    pub(super) fn may_ask(&self, now: Instant) -> bool {
        let mut silent = lock(&self.0);
        let Some(silent) = &mut *silent else {
            return true;
        };
        let is_over = silent.until <= now;
        if is_over {
            // One connection asks, and those that begin meanwhile do not wait with it.
            silent.until = now + silent.length;
        }
        is_over
    }

    /// Whether the listener was silent the last time.
    pub(super) fn is_silent(&self) -> bool {
        lock(&self.0).is_some()
    }

    /// The listener did not answer a connection that has asked at `since`.
    pub(super) fn begin(&self, since: Instant, now: Instant) {
        let mut silent = lock(&self.0);
        let length = match *silent {
            // Another one, which has waited at the same time, has noticed.
            Some(known) if since <= known.noticed => return,
            Some(known) => (known.length * 2).min(LONGEST),
            None => FIRST,
        };
        *silent = Some(Silent {
            noticed: now,
            until: now + length,
            length,
        });
    }

    /// The listener answers.
    pub(super) fn end(&self) {
        *lock(&self.0) = None;
    }
}

const FIRST: Duration = Duration::from_millis(250);

/// A listener that goes on is asked again after this time at the latest.
const LONGEST: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(200);

    #[test]
    fn a_pause_is_twice_as_long_each_time_up_to_a_limit() {
        let pause = Pause::default();
        let mut now = Instant::now();
        assert!(pause.may_ask(now) && pause.may_ask(now) && !pause.is_silent());
        let mut lengths = Vec::new();
        for _ in 0..6 {
            let since = now;
            now += WAIT;
            pause.begin(since, now);
            let mut length = 0;
            while !pause.may_ask(now) {
                now += Duration::from_millis(1);
                length += 1;
            }
            assert!(!pause.may_ask(now), "only one asks");
            lengths.push(length);
        }
        assert_eq!(lengths, [250, 500, 1000, 2000, 2000, 2000]);
        pause.end();
        assert!(pause.may_ask(now) && !pause.is_silent());
    }

    #[test]
    fn connections_that_wait_at_the_same_time_begin_one_pause() {
        let pause = Pause::default();
        let since = Instant::now();
        pause.begin(since, since + WAIT);
        pause.begin(since, since + WAIT);
        assert!(pause.may_ask(since + WAIT + FIRST));
    }
}
