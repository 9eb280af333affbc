//! How long callers may wait for the lock of nested epoll sets, together.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::thread::LIMIT;

/// The time that callers of this process have waited, less a tenth of the time since then. A user
/// who lets go of the lock in time, again and again, has each caller wait.
#[derive(Debug)]
struct WaitBudget {
    used: Duration,
    at: Option<Instant>,
}

/// Calls with the time that a caller may wait now, and counts how long it does.
pub(super) fn wait<T>(call: impl FnOnce(Duration) -> T) -> T {
    let lock = || BUDGET.lock().unwrap_or_else(PoisonError::into_inner);
    let begin = Instant::now();
    let limit = lock().limit(begin);
    let result = call(limit);
    let waited = begin.elapsed();
    lock().used += waited;
    result
}

impl WaitBudget {
    fn limit(&mut self, now: Instant) -> Duration {
        let since = self
            .at
            .replace(now)
            .map(|at| now.saturating_duration_since(at));
        self.used = self.used.saturating_sub(since.unwrap_or_default() / 10);
        match self.used < MAX_USED {
            true => LIMIT,
            false => SHORT_LIMIT,
        }
    }
}

static BUDGET: Mutex<WaitBudget> = Mutex::new(WaitBudget {
    used: Duration::ZERO,
    at: None,
});

/// Much more than a busy machine takes for the first channels of many peers.
const MAX_USED: Duration = Duration::from_secs(1);

/// When that is used up. Enough where the lock is free and the machine has time.
const SHORT_LIMIT: Duration = Duration::from_millis(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_wait_a_tenth_of_the_time_at_most() {
        let mut budget = WaitBudget {
            used: Duration::ZERO,
            at: None,
        };
        let begin = Instant::now();
        let (mut now, mut waited) = (begin, Duration::ZERO);
        for _ in 0..1000 {
            // The lock is held until just before the limit.
            let limit = budget.limit(now);
            budget.used += limit;
            waited += limit;
            now += limit + Duration::from_millis(10);
        }
        let total = now - begin;
        let share = waited.checked_sub(MAX_USED).unwrap().as_secs_f64() / total.as_secs_f64();
        assert!(share < 0.15, "{share}");
        now += 10 * MAX_USED;
        assert_eq!(budget.limit(now), LIMIT, "it is not used up for good");
    }
}
