//! Busy polling before a task parks.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Adaptive busy polling before parking.
///
/// The rule and its constants are explained in `docs/architecture.md`.
#[derive(Clone)]
pub(crate) struct BusyPoll {
    /// Longest window; zero switches polling off.
    max: Duration,
    window: Duration,
    polls: u32,
    window_start: Option<Instant>,
    parked_at: Option<Instant>,
    /// Hits since the executor last ran other tasks.
    hits: u32,
    /// The turn of the thread in which this half last yielded to the executor.
    turn: u64,
}

/// What to do after a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollStep {
    /// Poll again at once.
    Again,
    /// Yield to the executor, then poll again.
    Yield,
    /// Park until woken.
    Park,
}

impl BusyPoll {
    pub(crate) fn new(max: Duration) -> Self {
        Self {
            max,
            window: LEARNED_WINDOW.get().map_or(max, |window| window.min(max)),
            polls: 0,
            window_start: None,
            parked_at: None,
            hits: 0,
            turn: 0,
        }
    }

    /// Whether the poll budget is spent: with a fast peer a task could run without ever waiting.
    /// The caller has to yield then.
    pub(crate) fn take_spent_budget(&mut self) -> bool {
        if self.hits < HITS_MAX {
            return false;
        }
        self.hits = 0;
        true
    }

    /// A poll found data.
    #[inline]
    pub(crate) fn hit(&mut self) {
        self.hits += 1;
        if self.polls > 0 || self.window_start.is_some() || self.parked_at.is_some() {
            self.hit_after_misses();
        }
    }

    fn hit_after_misses(&mut self) {
        if self.polls > 0 {
            HITS.set(HITS.get().saturating_add(1));
        }
        self.polls = 0;
        if let Some(parked_at) = self.parked_at.take() {
            if parked_at.elapsed() < self.max.saturating_mul(2).max(SHORT_WAIT) {
                self.set_window(self.max);
            }
        }
        if self.window_start.take().is_some() {
            self.set_window(self.max);
        }
    }

    fn set_window(&mut self, window: Duration) {
        self.window = window;
        if !self.max.is_zero() {
            LEARNED_WINDOW.set(Some(window));
        }
    }

    /// A poll found nothing.
    pub(crate) fn miss(&mut self) -> PollStep {
        self.hits = 0;
        if self.window.is_zero() || self.parked_at.is_some() {
            return self.park(Instant::now());
        }
        if let Some(until) = SUSPENDED.get() {
            let now = Instant::now();
            if now < until {
                return self.park(now);
            }
            SUSPENDED.set(None);
        }
        self.polls += 1;
        if self.polls < SPINS_MAX {
            std::hint::spin_loop();
            return PollStep::Again;
        }
        let now = Instant::now();
        let first = self.window_start.is_none();
        let window_start = *self.window_start.get_or_insert(now);
        let turn = TURN.get() + 1;
        TURN.set(turn);
        if !first && turn.wrapping_sub(self.turn) > POLLERS_MAX {
            // Other halves poll as well, so the executor is busy, and will be when data arrives.
            note_contention(now);
            return self.park_after_miss(now);
        }
        self.turn = turn;
        if now.duration_since(window_start) < self.window && self.polls < POLLS_MAX {
            if !first {
                yield_processor(now);
            }
            return PollStep::Yield;
        }
        self.park_after_miss(now)
    }

    /// The window ended without a hit, or polling did not pay: the next window is shorter.
    fn park_after_miss(&mut self, now: Instant) -> PollStep {
        self.set_window(match self.window < WINDOW_MIN {
            true => Duration::ZERO,
            false => self.window / 2,
        });
        self.park(now)
    }

    fn park(&mut self, now: Instant) -> PollStep {
        self.polls = 0;
        self.window_start = None;
        if !self.max.is_zero() {
            self.parked_at.get_or_insert(now);
        }
        PollStep::Park
    }
}

/// Polls before yielding to the executor: about a microsecond.
const SPINS_MAX: u32 = 24;

/// Consecutive hits before other tasks run, as for tokio's own streams.
const HITS_MAX: u32 = 128;

/// Bound of polls for clocks that do not advance while tasks run, as virtual ones.
const POLLS_MAX: u32 = 20_000;

/// A wait that took at most this, or two windows, was short: a wake-up alone takes some ten
/// microseconds.
const SHORT_WAIT: Duration = Duration::from_micros(50);

/// Windows below this are not worth reading the clock.
const WINDOW_MIN: Duration = Duration::from_micros(5);

/// Counts a miss while other halves poll as well. If polling finds too little during a trial, it is
/// suspended for a while.
fn note_contention(now: Instant) {
    let (window_start, misses) = MISSES.get().unwrap_or((now, 0));
    MISSES.set(Some((window_start, misses + 1)));
    if now.duration_since(window_start) < CONTENTION_TRIAL {
        return;
    }
    MISSES.set(None);
    if HITS.take() < misses {
        SUSPENDED.set(Some(now + CONTENTION_PAUSE));
    }
}

/// Yields the CPU: the peer may wait for the same one.
fn yield_processor(now: Instant) {
    let lately = |at: Instant| now.duration_since(at) < YIELD_EVERY;
    if LAST_YIELD.get().is_some_and(lately) {
        return;
    }
    std::thread::yield_now();
    let after = Instant::now();
    LAST_YIELD.set(Some(after));
    if after.duration_since(now) > YIELD_DELAY_MAX {
        SUSPENDED.set(Some(after + BUSY_CPU_PAUSE));
    }
}

/// Maximum of halves that poll on one thread. With more, each one polls seldom, and all together
/// keep the executor from parking.
const POLLERS_MAX: u64 = 3;

/// Duration of a trial of contended polling. It pays only if the peer polls at the same time.
const CONTENTION_TRIAL: Duration = Duration::from_millis(1);

/// How long contended polling is suspended if it does not pay.
const CONTENTION_PAUSE: Duration = Duration::from_millis(4);

/// The CPU is not yielded more often than this.
const YIELD_EVERY: Duration = Duration::from_micros(2);

/// A thread that runs longer than this after a yield was not the peer.
const YIELD_DELAY_MAX: Duration = Duration::from_micros(500);

/// How long polling is suspended then, as the CPU is busy.
const BUSY_CPU_PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    /// The last window of a half on this thread: new ones begin with it.
    static LEARNED_WINDOW: Cell<Option<Duration>> = const { Cell::new(None) };
    /// Counts the polls of all halves after which the executor ran.
    static TURN: Cell<u64> = const { Cell::new(0) };
    /// The time of the last yield of the CPU.
    static LAST_YIELD: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Hits of polls since the last trial ended.
    static HITS: Cell<u32> = const { Cell::new(0) };
    /// Start of the trial, and the contended misses in it.
    static MISSES: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
    /// Until when polling is suspended.
    static SUSPENDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until_park(busy_poll: &mut BusyPoll) -> u32 {
        let mut yields = 0;
        loop {
            match busy_poll.miss() {
                PollStep::Again => {}
                PollStep::Yield => yields += 1,
                PollStep::Park => return yields,
            }
        }
    }

    #[test]
    fn with_polling_off_the_first_miss_parks() {
        assert_eq!(BusyPoll::new(Duration::ZERO).miss(), PollStep::Park);
    }

    #[test]
    fn polls_at_once_then_yields_then_parks() {
        let mut busy_poll = BusyPoll::new(Duration::from_millis(2));
        assert_eq!(busy_poll.miss(), PollStep::Again);
        assert!(until_park(&mut busy_poll) > 0);
    }

    #[test]
    fn missed_windows_shrink_to_zero_and_a_hit_in_time_reopens() {
        let mut busy_poll = BusyPoll::new(Duration::from_micros(100));
        for _ in 0..10 {
            until_park(&mut busy_poll);
            busy_poll.parked_at = None;
        }
        assert_eq!(busy_poll.miss(), PollStep::Park);
        // In time and without contention, however busy this machine is.
        busy_poll.parked_at = Some(Instant::now() + Duration::from_secs(60));
        SUSPENDED.set(None);
        busy_poll.hit();
        assert_eq!(busy_poll.window, busy_poll.max);
        assert_eq!(busy_poll.miss(), PollStep::Again);
    }

    /// Two contended misses, a trial apart.
    fn contention_trial() {
        let start = Instant::now();
        note_contention(start);
        note_contention(start + CONTENTION_TRIAL);
    }

    #[test]
    fn polling_is_suspended_when_contended_polls_find_nothing() {
        SUSPENDED.set(None);
        HITS.set(0);
        contention_trial();
        let until = SUSPENDED.get().expect("polling is suspended");
        // Later than this test can take.
        SUSPENDED.set(Some(until + Duration::from_secs(60)));
        assert_eq!(
            BusyPoll::new(Duration::from_millis(2)).miss(),
            PollStep::Park
        );
    }

    #[test]
    fn contended_polling_goes_on_while_it_finds_something() {
        SUSPENDED.set(None);
        HITS.set(10);
        contention_trial();
        assert_eq!(SUSPENDED.get(), None);
    }
}
