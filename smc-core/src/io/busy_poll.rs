//! How long to look again before going to sleep.

use std::cell::Cell;
use std::time::{Duration, Instant};

/// Polling before sleeping, adapted to whether it pays.
///
/// A cross-CPU wake-up costs tens of microseconds, a look at a cache line almost nothing. So a
/// half that finds nothing looks again for a short while: a few times on the spot, then between
/// turns of the executor, so that other tasks run, and of the processor, so that the peer runs if
/// it has no other one. The window shrinks each time it passes in vain, down to nothing, and opens
/// again when a sleep turns out to have been short. Where there is no processor to spare, or so many
/// look that it does not pay, nobody polls for a while.
#[derive(Clone, Debug)]
pub(crate) struct Spin {
    /// Longest window; zero switches polling off.
    max: Duration,
    window: Duration,
    looks: u32,
    since: Option<Instant>,
    asleep: Option<Instant>,
    /// Finds since the executor had its last turn.
    finds: u32,
    /// The turn of the thread in which this half gave the executor its last one.
    turn: u64,
}

/// What to do after a look that found nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Look again at once.
    Again,
    /// Give the executor a turn, then look again.
    Yield,
    /// Sleep until woken.
    Park,
}

impl Spin {
    pub(crate) fn new(max: Duration) -> Self {
        Self {
            max,
            window: LEARNED.get().map_or(max, |window| window.min(max)),
            looks: 0,
            since: None,
            asleep: None,
            finds: 0,
            turn: 0,
        }
    }

    /// Whether other tasks should have a turn before the next look: a fast peer gives a task so
    /// much to do that it would never wait. The caller has to yield then.
    pub(crate) fn is_spent(&mut self) -> bool {
        if self.finds < FINDS_MAX {
            return false;
        }
        self.finds = 0;
        true
    }

    /// Something was found.
    #[inline]
    pub(crate) fn hit(&mut self) {
        self.finds += 1;
        if self.looks > 0 || self.since.is_some() || self.asleep.is_some() {
            self.hit_after_misses();
        }
    }

    fn hit_after_misses(&mut self) {
        if self.looks > 0 {
            FINDS.set(FINDS.get().saturating_add(1));
        }
        self.looks = 0;
        if let Some(asleep) = self.asleep.take() {
            if asleep.elapsed() < self.max.saturating_add(WAKE_UP) {
                self.set_window(self.max);
            }
        }
        if self.since.take().is_some() {
            self.set_window(self.max);
        }
    }

    fn set_window(&mut self, window: Duration) {
        self.window = window;
        if !self.max.is_zero() {
            LEARNED.set(Some(window));
        }
    }

    /// Nothing was found.
    pub(crate) fn miss(&mut self) -> Step {
        self.finds = 0;
        if self.window.is_zero() || self.asleep.is_some() {
            return self.park(Instant::now());
        }
        if let Some(until) = CROWDED.get() {
            let now = Instant::now();
            if now < until {
                return self.park(now);
            }
            CROWDED.set(None);
        }
        self.looks += 1;
        if self.looks < LOOKS_ON_THE_SPOT {
            std::hint::spin_loop();
            return Step::Again;
        }
        let now = Instant::now();
        let first = self.since.is_none();
        let since = *self.since.get_or_insert(now);
        let turn = TURN.get() + 1;
        TURN.set(turn);
        if !first && turn.wrapping_sub(self.turn) > COMPANY {
            // Others look as well, so the executor is busy, and will be when news comes.
            in_company(now);
            return self.park_in_vain(now);
        }
        self.turn = turn;
        if now.duration_since(since) < self.window && self.looks < LOOKS_MAX {
            if !first {
                yield_processor(now);
            }
            return Step::Yield;
        }
        self.park_in_vain(now)
    }

    /// Nothing came within the window, or looking did not pay: the next one is shorter.
    fn park_in_vain(&mut self, now: Instant) -> Step {
        self.set_window(match self.window < WINDOW_MIN {
            true => Duration::ZERO,
            false => self.window / 2,
        });
        self.park(now)
    }

    fn park(&mut self, now: Instant) -> Step {
        self.looks = 0;
        self.since = None;
        if !self.max.is_zero() {
            self.asleep.get_or_insert(now);
        }
        Step::Park
    }
}

/// Looks before the executor gets a turn: about a microsecond.
const LOOKS_ON_THE_SPOT: u32 = 24;

/// Finds in a row before others have a turn, as many as tokio's own streams have.
const FINDS_MAX: u32 = 128;

/// Bound for clocks that stand still while tasks run, as virtual ones do.
const LOOKS_MAX: u32 = 20_000;

/// What a wake-up takes: so much longer a sleep is than the time in which a look would have found
/// what ended it.
const WAKE_UP: Duration = Duration::from_micros(50);

/// Windows below this are not worth their clock.
const WINDOW_MIN: Duration = Duration::from_micros(5);

/// Another look in vain while others look as well. If that does not pay for long, nobody looks for a
/// while.
fn in_company(now: Instant) {
    let (since, vain) = VAIN.get().unwrap_or((now, 0));
    VAIN.set(Some((since, vain + 1)));
    if now.duration_since(since) < TRIAL {
        return;
    }
    VAIN.set(None);
    if FINDS.take() < vain {
        CROWDED.set(Some(now + COMPANY_LASTS));
    }
}

/// Lets others have the processor: the peer may be waiting for this very one.
fn yield_processor(now: Instant) {
    let lately = |at: Instant| now.duration_since(at) < YIELD_EVERY;
    if YIELDED.get().is_some_and(lately) {
        return;
    }
    std::thread::yield_now();
    let after = Instant::now();
    YIELDED.set(Some(after));
    if after.duration_since(now) > HOG {
        CROWDED.set(Some(after + CROWD_LASTS));
    }
}

/// Halves that look on one thread at a time. With more, each one looks seldom, and all together keep
/// the executor from sleeping.
const COMPANY: u64 = 3;

/// How long looking is tried in company. It pays only if the peer tries at the same time.
const TRIAL: Duration = Duration::from_millis(1);

/// How long nobody looks if it does not pay.
const COMPANY_LASTS: Duration = Duration::from_millis(4);

/// The processor is not offered more often than this.
const YIELD_EVERY: Duration = Duration::from_micros(2);

/// Somebody who keeps the processor for so long was not the peer.
const HOG: Duration = Duration::from_micros(500);

/// How long such company is expected to stay.
const CROWD_LASTS: Duration = Duration::from_millis(50);

thread_local! {
    /// The window that the latest half on this thread has come to: new ones begin with it.
    static LEARNED: Cell<Option<Duration>> = const { Cell::new(None) };
    /// Counts the looks of all halves between which the executor had a turn.
    static TURN: Cell<u64> = const { Cell::new(0) };
    /// When the processor was offered last.
    static YIELDED: Cell<Option<Instant>> = const { Cell::new(None) };
    /// What looks have found since the last trial ended.
    static FINDS: Cell<u32> = const { Cell::new(0) };
    /// When the trial began, and the looks in vain and in company since.
    static VAIN: Cell<Option<(Instant, u32)>> = const { Cell::new(None) };
    /// Until when nobody polls.
    static CROWDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn until_park(spin: &mut Spin) -> u32 {
        let mut yields = 0;
        loop {
            match spin.miss() {
                Step::Again => {}
                Step::Yield => yields += 1,
                Step::Park => return yields,
            }
        }
    }

    #[test]
    fn with_polling_off_the_first_miss_sleeps() {
        assert_eq!(Spin::new(Duration::ZERO).miss(), Step::Park);
    }

    #[test]
    fn looks_on_the_spot_then_yields_then_sleeps() {
        let mut spin = Spin::new(Duration::from_millis(2));
        assert_eq!(spin.miss(), Step::Again);
        assert!(until_park(&mut spin) > 0);
    }

    #[test]
    fn vain_windows_shrink_to_nothing_and_a_hit_in_time_reopens() {
        let mut spin = Spin::new(Duration::from_micros(100));
        for _ in 0..10 {
            until_park(&mut spin);
            spin.asleep = None;
        }
        assert_eq!(spin.miss(), Step::Park);
        // In time and without company, however busy this machine is.
        spin.asleep = Some(Instant::now() + Duration::from_secs(60));
        CROWDED.set(None);
        spin.hit();
        assert_eq!(spin.window, spin.max);
        assert_eq!(spin.miss(), Step::Again);
    }

    /// Two looks in vain, a trial apart.
    fn trial_in_company() {
        let start = Instant::now();
        in_company(start);
        in_company(start + TRIAL);
    }

    #[test]
    fn in_company_nobody_looks_for_a_while_if_that_does_not_pay() {
        CROWDED.set(None);
        FINDS.set(0);
        trial_in_company();
        let until = CROWDED.get().expect("looking was given up");
        // Later than this test can take.
        CROWDED.set(Some(until + Duration::from_secs(60)));
        assert_eq!(Spin::new(Duration::from_millis(2)).miss(), Step::Park);
    }

    #[test]
    fn in_company_looks_go_on_if_they_find_something() {
        CROWDED.set(None);
        FINDS.set(10);
        trial_in_company();
        assert_eq!(CROWDED.get(), None);
    }
}
