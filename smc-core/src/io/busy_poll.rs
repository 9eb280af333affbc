//! How long to look again before going to sleep.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Polling before sleeping, adapted to whether it pays.
///
/// A cross-CPU wake-up costs tens of microseconds, a look at a cache line almost nothing. So a
/// half that hits nothing polls again for a short while: a few times on the spot, then between
/// turns of the executor, so that other tasks run, and of the processor, so that the peer runs if
/// it has no other one. The window shrinks each time it passes in misses, down to nothing, and opens
/// again when a sleep turns out to have been short. Where there is no processor to spare, or so many
/// look that it does not pay, nobody polls for a while.
#[derive(Clone, Debug)]
pub(crate) struct BusyPoll {
    /// Longest window; zero switches polling off.
    max: Duration,
    window: Duration,
    polls: u32,
    window_start: Option<Instant>,
    parked_at: Option<Instant>,
    /// Finds window_start the executor had its last turn.
    hits: u32,
    /// The turn of the thread in which this half gave the executor its last one.
    turn: u64,
}

/// What to do after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PollStep {
    /// Look again at once.
    Again,
    /// Give the executor a turn, then look again.
    Yield,
    /// Sleep until woken.
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

    /// Whether other tasks should have a turn before the next look: a fast peer gives a task so
    /// much to do that it would never wait. The caller has to yield then.
    pub(crate) fn is_budget_spent(&mut self) -> bool {
        if self.hits < HITS_MAX {
            return false;
        }
        self.hits = 0;
        true
    }

    /// Something was found.
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
            if parked_at.elapsed() < self.max.saturating_add(WAKE_UP_LATENCY) {
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

    /// Nothing was found.
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
            // Others look as well, so the executor is busy, and will be when news comes.
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

    /// Nothing came within the window, or looking did not pay: the next one is shorter.
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

/// Looks before the executor gets a turn: about a microsecond.
const SPINS_MAX: u32 = 24;

/// Finds in a row before others have a turn, as many as tokio's own streams have.
const HITS_MAX: u32 = 128;

/// Bound for clocks that stand still while tasks run, as virtual ones do.
const POLLS_MAX: u32 = 20_000;

/// What a wake-up takes: so much longer a sleep is than the time in which a look would have found
/// what ended it.
const WAKE_UP_LATENCY: Duration = Duration::from_micros(50);

/// Windows below this are not worth their clock.
const WINDOW_MIN: Duration = Duration::from_micros(5);

/// Another look in misses while others look as well. If that does not pay for long, nobody polls for a
/// while.
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

/// Lets others have the processor: the peer may be waiting for this very one.
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

/// Halves that look on one thread at a time. With more, each one polls seldom, and all together keep
/// the executor from sleeping.
const POLLERS_MAX: u64 = 3;

/// How long looking is tried in company. It pays only if the peer tries at the same time.
const CONTENTION_TRIAL: Duration = Duration::from_millis(1);

/// How long nobody polls if it does not pay.
const CONTENTION_PAUSE: Duration = Duration::from_millis(4);

/// The processor is not offered more often than this.
const YIELD_EVERY: Duration = Duration::from_micros(2);

/// Somebody who keeps the processor for so long was not the peer.
const YIELD_DELAY_MAX: Duration = Duration::from_micros(500);

/// How long such company is expected to stay.
const BUSY_CPU_PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    /// The window that the latest half on this thread has come to: new ones begin with it.
    static LEARNED_WINDOW: Cell<Option<Duration>> = const { Cell::new(None) };
    /// Counts the polls of all halves between which the executor had a turn.
    static TURN: Cell<u64> = const { Cell::new(0) };
    /// When the processor was offered last.
    static LAST_YIELD: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What polls have found window_start the last trial ended.
    static HITS: Cell<u32> = const { Cell::new(0) };
    /// When the trial began, and the polls in misses and in company window_start.
    static MISSES: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
    /// Until when nobody polls.
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
        // In time and without company, however busy this machine is.
        busy_poll.parked_at = Some(Instant::now() + Duration::from_secs(60));
        SUSPENDED.set(None);
        busy_poll.hit();
        assert_eq!(busy_poll.window, busy_poll.max);
        assert_eq!(busy_poll.miss(), PollStep::Again);
    }

    /// Two polls in misses, a trial apart.
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
        let until = SUSPENDED.get().expect("looking was given up");
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
