//! Busy polling before a task parks.

use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mem::sync::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// How a half of a stream polls its own memory, and a handshake its side channel or UNIX socket,
/// before it parks.
///
/// The rule and its constants are explained in `docs/architecture.md`.
pub(crate) struct BusyPoll {
    window: PollWindow,
    polls: u32,
    /// Hits since the executor last ran other tasks.
    hits: u32,
    long_look: LongLook,
    pollers: Arc<Pollers>,
}

/// The step after a miss.
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
    pub(crate) fn new(max: Duration, pollers: &Arc<Pollers>) -> Self {
        Self {
            window: PollWindow::new(max, pollers.learned(max)),
            polls: 0,
            hits: 0,
            long_look: LongLook::default(),
            pollers: Arc::clone(pollers),
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

    /// A poll found data. Returns whether there were polls before that found none, and no wait in
    /// the parked state.
    #[inline]
    pub(crate) fn hit(&mut self) -> bool {
        self.hits += 1;
        if self.polls > 0 || self.window.is_waiting() {
            return self.hit_after_misses();
        }
        false
    }

    fn hit_after_misses(&mut self) -> bool {
        let was_parked = self.window.parked_at.is_some();
        self.polls = 0;
        self.long_look.hit();
        self.leave();
        if self.window.is_waiting() {
            self.window.hit(Instant::now());
            self.pollers.learn(&self.window);
        }
        !was_parked
    }

    /// The task returns to its executor, which runs others. Not each miss does: a peer can time its
    /// writes so that the next look finds them.
    pub(crate) fn end_turn(&mut self) {
        self.hits = 0;
    }

    /// A poll found nothing.
    pub(crate) fn miss(&mut self) -> PollStep {
        if self.pollers.is_driver_polling() {
            self.leave();
            self.window.polling_since = None;
            self.polls = 0;
            return PollStep::Park;
        }
        if !self.window.may_poll() {
            return self.park(Instant::now());
        }
        self.polls += 1;
        if self.polls < SPINS_MAX {
            std::hint::spin_loop();
            return PollStep::Again;
        }
        let now = Instant::now();
        let is_first = !self.window.is_polling();
        if is_first && (is_cpu_busy(now) || !self.pollers.enter()) {
            return self.park(now);
        }
        if !self.window.miss(now) {
            self.pollers.leave();
            self.pollers.learn(&self.window);
            return self.park(now);
        }
        if !is_first && !yield_processor(now) {
            return self.park(now);
        }
        if self.pollers.is_alone_on_several_threads() && self.long_look.goes_on(is_first, now) {
            self.polls = 0;
            return PollStep::Again;
        }
        PollStep::Yield
    }

    /// The same for a poll that is a system call: it takes longer than the pauses of those that
    /// look at memory.
    pub(crate) fn miss_of_call(&mut self) -> PollStep {
        self.polls = SPINS_MAX;
        self.miss()
    }

    fn park(&mut self, now: Instant) -> PollStep {
        self.leave();
        self.polls = 0;
        self.window.park(now);
        PollStep::Park
    }

    /// Ends the window in the shared count.
    fn leave(&mut self) {
        if self.window.is_polling() {
            self.pollers.leave();
        }
    }
}

impl Drop for BusyPoll {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Looks of the only half that polls on several threads, before its task first yields. A thread
/// that has nothing else to run then wakes another one, which can take the CPU from the peer.
///
/// A task that is woken meanwhile waits, and it may be the one whose request the peer waits for. So
/// after a long look that finds nothing there is none for some windows: twice as many each time.
#[derive(Debug, Default)]
struct LongLook {
    since: Option<Instant>,
    /// Windows without one after the latest that found nothing, and what is left of them.
    pause: u32,
    left: u32,
}

impl LongLook {
    /// A miss, the first of its window or a further one. Returns whether to look again, and not to
    /// yield.
    fn goes_on(&mut self, is_first: bool, now: Instant) -> bool {
        if is_first {
            let is_due = self.left == 0;
            self.left = self.left.saturating_sub(1);
            self.since = is_due.then_some(now);
            return is_due;
        }
        let Some(since) = self.since else {
            return false;
        };
        if now.duration_since(since) < LONG_LOOK {
            return true;
        }
        self.since = None;
        self.pause = (self.pause * 2).clamp(LONG_LOOK_PAUSE_MIN, LONG_LOOK_PAUSE_MAX);
        self.left = self.pause;
        false
    }

    /// An arrival.
    fn hit(&mut self) {
        if self.since.take().is_some() {
            self.pause = 0;
        }
    }
}

/// The length of time in which polling for an arrival pays, learned from the arrivals so far.
///
/// A window that ends without an arrival is halved for the next time. It is the longest again after
/// an arrival in it, and after a wait in the parked state that was so short that the longest window
/// would have spared it.
#[derive(Debug)]
struct PollWindow {
    /// Zero switches polling off.
    max: Duration,
    len: Duration,
    polls: u32,
    polling_since: Option<Instant>,
    parked_at: Option<Instant>,
}

impl PollWindow {
    fn new(max: Duration, len: Duration) -> Self {
        Self {
            max,
            len: len.min(max),
            polls: 0,
            polling_since: None,
            parked_at: None,
        }
    }

    /// Whether the next miss may begin a window, or is in one.
    fn may_poll(&self) -> bool {
        !self.len.is_zero() && self.parked_at.is_none()
    }

    /// Whether a window has begun.
    fn is_polling(&self) -> bool {
        self.polling_since.is_some()
    }

    /// Whether there was a miss since the last arrival.
    fn is_waiting(&self) -> bool {
        self.polling_since.is_some() || self.parked_at.is_some()
    }

    /// An arrival.
    fn hit(&mut self, now: Instant) {
        let parked = self.parked_at.take();
        let was_short = |at| now.duration_since(at) < self.max.saturating_mul(2).max(SHORT_WAIT);
        if self.polling_since.take().is_some() || parked.is_some_and(was_short) {
            self.len = self.max;
        }
        self.polls = 0;
    }

    /// No arrival. Returns whether to poll again, and not to park.
    fn miss(&mut self, now: Instant) -> bool {
        let since = *self.polling_since.get_or_insert(now);
        self.polls += 1;
        if now.duration_since(since) < self.len && self.polls < POLLS_MAX {
            return true;
        }
        self.len = match self.len < WINDOW_MIN {
            true => Duration::ZERO,
            false => self.len / 2,
        };
        self.park(now);
        false
    }

    /// The caller parks, whether or not the window has ended.
    fn park(&mut self, now: Instant) {
        self.polling_since = None;
        self.polls = 0;
        if !self.max.is_zero() {
            self.parked_at.get_or_insert(now);
        }
    }
}

/// The polling of a driver for parked streams, which share one window.
///
/// On a runtime with several threads a turn of the driver wakes one of them. With many streams it
/// sleeps there: one wake-up then delivers the events of several. With few it stops, if halves poll
/// on several threads as well.
#[derive(Debug)]
pub(crate) struct DriverPoll {
    window: PollWindow,
    has_several_threads: bool,
    /// Since when streams with events are counted.
    period_start: Option<Instant>,
    sleeps: bool,
}

impl DriverPoll {
    pub(crate) fn new(max: Duration, has_several_threads: bool) -> Self {
        Self {
            window: PollWindow::new(max, max),
            has_several_threads,
            period_start: None,
            sleeps: false,
        }
    }

    /// Whether the driver is polling, so that its next pass need not look beyond the device.
    pub(crate) fn is_polling(&self) -> bool {
        self.window.is_polling()
    }

    /// A pass has found events, or none. Returns whether the driver polls again, and does not park.
    pub(crate) fn note_pass(&mut self, now: Instant, any: bool, pollers: &Pollers) -> bool {
        if any {
            self.window.hit(now);
        }
        if self.has_several_threads && pollers.is_driver_polling() {
            self.count_streams(now, pollers);
        }
        if self.sleeps || !pollers.is_driver_polling() {
            return false;
        }
        let goes_on = self.window.miss(now);
        if !goes_on {
            pollers.stop_driver();
        }
        goes_on
    }

    /// Ends polling, as another thread needs the CPU.
    pub(crate) fn stop(&mut self, now: Instant, pollers: &Pollers) {
        self.window.park(now);
        pollers.stop_driver();
    }

    fn count_streams(&mut self, now: Instant, pollers: &Pollers) {
        let start = *self.period_start.get_or_insert(now);
        if now.duration_since(start) < PERIOD {
            return;
        }
        self.period_start = Some(now);
        let was_sleeping = self.sleeps;
        self.sleeps = pollers.start_period() > STREAMS_MAX;
        if self.sleeps {
            self.window.park(now);
        } else if was_sleeping || pollers.on_several_threads {
            pollers.stop_driver();
        }
    }
}

/// What polls: of a device a few halves, each its own buffer, or the driver for all; of an endpoint
/// a few handshakes, each its own side channel.
#[derive(Debug)]
pub(crate) struct Pollers {
    /// Halves in their windows.
    halves: AtomicU32,
    on_several_threads: bool,
    driver_may_poll: bool,
    /// The next half that parks has to wake the driver.
    is_driver_requested: AtomicBool,
    /// The driver polls, so that halves park at once.
    is_driver_polling: AtomicBool,
    /// The latest window of a half in nanoseconds: new ones begin with it.
    learned: AtomicU64,
    /// The period in which the driver counts streams with events.
    period: AtomicU32,
    streams: AtomicU32,
}

impl Pollers {
    /// Of halves whose tasks run on one thread or several. If no driver may poll, halves beyond
    /// those that poll on the spot park.
    pub(crate) fn new(driver_may_poll: bool, on_several_threads: bool) -> Self {
        Self {
            halves: AtomicU32::new(0),
            on_several_threads,
            driver_may_poll,
            is_driver_requested: AtomicBool::new(false),
            is_driver_polling: AtomicBool::new(false),
            learned: AtomicU64::new(u64::MAX),
            period: AtomicU32::new(1),
            streams: AtomicU32::new(0),
        }
    }

    /// Counts a half that begins a window. Returns false if there are so many that the driver has
    /// to poll, if it may.
    fn enter(&self) -> bool {
        let max = match self.driver_may_poll && self.on_several_threads {
            true => STREAMS_MAX,
            false => POLLERS_MAX,
        };
        if self.halves.fetch_add(1, Ordering::Relaxed) < max {
            return true;
        }
        self.leave();
        self.is_driver_requested
            .store(self.driver_may_poll, Ordering::Relaxed);
        false
    }

    /// Whether the driver has to start. It polls from now on.
    pub(crate) fn take_request(&self) -> bool {
        if !self.is_driver_requested.load(Ordering::Relaxed) {
            return false;
        }
        self.is_driver_requested.store(false, Ordering::Relaxed);
        !self.is_driver_polling.swap(true, Ordering::Relaxed)
    }

    fn leave(&self) {
        self.halves.fetch_sub(1, Ordering::Relaxed);
    }

    fn is_alone_on_several_threads(&self) -> bool {
        self.on_several_threads && self.halves.load(Ordering::Relaxed) == 1
    }

    fn is_driver_polling(&self) -> bool {
        self.is_driver_polling.load(Ordering::Relaxed)
    }

    /// The driver parks; halves may poll again.
    fn stop_driver(&self) {
        self.is_driver_polling.store(false, Ordering::Relaxed);
    }

    /// Counts a stream with an event, once in each period. `counted_in` is the latest one in which
    /// it was.
    pub(crate) fn count_stream(&self, counted_in: &AtomicU32) {
        let period = self.period.load(Ordering::Relaxed);
        if counted_in.load(Ordering::Relaxed) != period {
            counted_in.store(period, Ordering::Relaxed);
            self.streams.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Starts the next period. Returns the number of streams that had events in this one.
    fn start_period(&self) -> u32 {
        self.period.fetch_add(1, Ordering::Relaxed);
        self.streams.swap(0, Ordering::Relaxed)
    }

    fn learned(&self, max: Duration) -> Duration {
        max.min(Duration::from_nanos(self.learned.load(Ordering::Relaxed)))
    }

    fn learn(&self, window: &PollWindow) {
        let nanos = u64::try_from(window.len.as_nanos()).unwrap_or(u64::MAX);
        self.learned.store(nanos, Ordering::Relaxed);
    }
}

/// Polls before yielding to the executor: about a microsecond.
const SPINS_MAX: u32 = 24;

/// The longest look before the first yield on several threads: about what it takes to wake a
/// thread.
const LONG_LOOK: Duration = Duration::from_micros(10);

/// Windows without one after a long look that found nothing.
const LONG_LOOK_PAUSE_MIN: u32 = 8;
const LONG_LOOK_PAUSE_MAX: u32 = 1024;

/// Consecutive hits before other tasks run, as for tokio's own streams.
pub(crate) const HITS_MAX: u32 = 128;

/// Bound of polls for clocks that do not advance while tasks run, as virtual ones.
const POLLS_MAX: u32 = 20_000;

/// A wait that took at most this, or two windows, was short: a wake-up alone takes some ten
/// microseconds.
const SHORT_WAIT: Duration = Duration::from_micros(50);

/// Windows below this are not worth reading the clock.
const WINDOW_MIN: Duration = Duration::from_micros(5);

/// How long streams with events are counted.
const PERIOD: Duration = Duration::from_millis(1);

/// Streams with events in a period for which there is polling on several threads: of their halves,
/// or of a driver with a thread of its own. A turn there delivers a few events and costs a part of
/// a wake-up, so that the turns for more streams cost more than one wake-up for all.
const STREAMS_MAX: u32 = 16;

/// Halves that poll at a time on one thread. With more, the turns that they share take longer than
/// a signal takes by way of the driver.
const POLLERS_MAX: u32 = 3;

/// Yields the CPU: the peer may wait for the same one. Returns false if another thread needs it.
pub(crate) fn yield_processor(now: Instant) -> bool {
    let lately = |at: Instant| now.duration_since(at) < YIELD_EVERY;
    if LAST_YIELD.get().is_some_and(lately) {
        return true;
    }
    std::thread::yield_now();
    let after = Instant::now();
    LAST_YIELD.set(Some(after));
    if after.duration_since(now) > YIELD_DELAY_MAX {
        SUSPENDED.set(Some(after + BUSY_CPU_PAUSE));
        return false;
    }
    true
}

/// Whether a thread other than the peer needed the CPU lately, so that polling is suspended.
pub(crate) fn is_cpu_busy(now: Instant) -> bool {
    match SUSPENDED.get() {
        Some(until) if now < until => true,
        Some(_) => {
            SUSPENDED.set(None);
            false
        }
        None => false,
    }
}

/// The CPU is not yielded more often than this.
const YIELD_EVERY: Duration = Duration::from_micros(2);

/// A thread that runs longer than this after a yield was not the peer.
const YIELD_DELAY_MAX: Duration = Duration::from_micros(500);

/// How long polling is suspended then, as the CPU is busy.
const BUSY_CPU_PAUSE: Duration = Duration::from_millis(50);

thread_local! {
    /// The time of the last yield of the CPU.
    static LAST_YIELD: Cell<Option<Instant>> = const { Cell::new(None) };
    /// Until when polling is suspended.
    static SUSPENDED: Cell<Option<Instant>> = const { Cell::new(None) };
}

#[cfg(all(test, smc_loom))]
mod models;

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Duration = Duration::from_micros(50);

    fn pollers() -> Arc<Pollers> {
        Arc::new(Pollers::new(true, false))
    }

    fn half(max: Duration, pollers: &Arc<Pollers>) -> BusyPoll {
        SUSPENDED.set(None);
        BusyPoll::new(max, pollers)
    }

    fn until_park(half: &mut BusyPoll) -> u32 {
        let mut yields = 0;
        loop {
            match half.miss() {
                PollStep::Again => {}
                PollStep::Yield => yields += 1,
                PollStep::Park => return yields,
            }
        }
    }

    /// Parks in between on a machine with other work.
    fn until_yield(half: &mut BusyPoll) {
        while !half.window.is_polling() {
            SUSPENDED.set(None);
            half.window.parked_at = None;
            while half.miss() == PollStep::Again {}
        }
    }

    #[test]
    fn with_polling_off_the_first_miss_parks() {
        let mut half = half(Duration::ZERO, &pollers());
        assert_eq!(half.miss(), PollStep::Park);
    }

    #[test]
    fn hits_count_until_other_tasks_have_run_also_with_looks_between_them() {
        let mut half = half(Duration::from_secs(3600), &pollers());
        for _ in 0..HITS_MAX {
            assert!(!half.take_spent_budget());
            assert_eq!(half.miss(), PollStep::Again);
            half.hit();
        }
        assert!(half.take_spent_budget());
        half.hit();
        half.end_turn();
        assert_eq!(half.hits, 0, "other tasks run");
        // Those that park look once more, and may find data then.
        let mut parking = self::half(Duration::ZERO, &pollers());
        for _ in 0..HITS_MAX {
            assert!(!parking.take_spent_budget());
            assert_eq!(parking.miss(), PollStep::Park);
            parking.hit();
        }
        assert!(parking.take_spent_budget());
    }

    #[test]
    fn polls_at_once_then_yields_then_parks() {
        let mut half = half(Duration::from_millis(2), &pollers());
        assert_eq!(half.miss(), PollStep::Again);
        assert!(until_park(&mut half) > 0);
    }

    #[test]
    fn missed_windows_shrink_to_zero_and_a_hit_in_time_reopens() {
        let mut half = half(Duration::from_micros(100), &pollers());
        // A window that a busy CPU cuts short is not halved.
        while !half.window.len.is_zero() {
            SUSPENDED.set(None);
            until_park(&mut half);
            half.window.parked_at = None;
        }
        assert_eq!(half.miss(), PollStep::Park);
        // In time, however busy this machine is.
        half.window.parked_at = Some(Instant::now() + Duration::from_secs(60));
        half.hit();
        assert_eq!(half.window.len, half.window.max);
        assert_eq!(half.miss(), PollStep::Again);
    }

    #[test]
    fn a_new_half_begins_with_the_latest_window_on_its_device() {
        let pollers = pollers();
        let mut first = half(Duration::from_micros(100), &pollers);
        // A window that a busy CPU cuts short is not halved.
        while first.window.len == first.window.max {
            SUSPENDED.set(None);
            until_park(&mut first);
            first.window.parked_at = None;
        }
        assert_eq!(
            half(Duration::from_micros(100), &pollers).window.len,
            first.window.len
        );
        assert!(first.window.len < first.window.max);
    }

    #[test]
    fn with_too_many_halves_the_driver_polls_and_all_of_them_park() {
        let pollers = pollers();
        let long = Duration::from_secs(3600);
        let mut halves: Vec<_> = (0..=POLLERS_MAX).map(|_| half(long, &pollers)).collect();
        let (last, polling) = halves.split_last_mut().unwrap();
        polling.iter_mut().for_each(until_yield);
        assert_eq!(until_park(last), 0);
        assert!(pollers.take_request());
        assert!(!pollers.take_request(), "once");
        for half in polling {
            assert_eq!(half.miss(), PollStep::Park);
        }
        assert_eq!(pollers.halves.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn without_a_driver_that_may_poll_further_halves_park_and_the_others_go_on() {
        let pollers = Arc::new(Pollers::new(false, false));
        let long = Duration::from_secs(3600);
        let mut halves: Vec<_> = (0..=POLLERS_MAX).map(|_| half(long, &pollers)).collect();
        let (last, polling) = halves.split_last_mut().unwrap();
        polling.iter_mut().for_each(until_yield);
        assert_eq!(until_park(last), 0);
        assert!(!pollers.take_request());
        assert!(!pollers.is_driver_polling());
        assert_eq!(pollers.halves.load(Ordering::Relaxed), POLLERS_MAX);
    }

    #[test]
    fn a_half_that_is_dropped_in_its_window_is_not_counted_any_more() {
        let pollers = pollers();
        let mut polling = half(Duration::from_secs(3600), &pollers);
        until_yield(&mut polling);
        assert_eq!(pollers.halves.load(Ordering::Relaxed), 1);
        drop(polling);
        assert_eq!(pollers.halves.load(Ordering::Relaxed), 0);
    }

    fn requested() -> Pollers {
        let pollers = Pollers::new(true, false);
        pollers.is_driver_polling.store(true, Ordering::Relaxed);
        pollers
    }

    #[test]
    fn a_driver_polls_until_a_window_ends_without_an_event() {
        let (pollers, mut driver) = (requested(), DriverPoll::new(COST, true));
        let start = Instant::now();
        for turn in 0..100 {
            assert!(driver.note_pass(start + COST * turn, true, &pollers));
        }
        let last = start + COST * 99;
        assert!(driver.note_pass(last + COST / 2, false, &pollers));
        assert!(!driver.note_pass(last + COST, false, &pollers));
        assert!(!pollers.is_driver_polling(), "halves may poll again");
    }

    /// Streams whose events come in turn, one each microsecond. Returns whether the driver polls
    /// for three periods.
    fn polls_for(streams: u32, driver: &mut DriverPoll, pollers: &Pollers) -> bool {
        let counted: Vec<_> = (0..streams).map(|_| AtomicU32::new(0)).collect();
        let mut now = driver.period_start.unwrap_or_else(Instant::now);
        counted.iter().cycle().take(3003).all(|stream| {
            now += Duration::from_micros(1);
            pollers.count_stream(stream);
            driver.note_pass(now, true, pollers)
        })
    }

    #[test]
    fn with_several_threads_a_driver_polls_for_some_streams_and_sleeps_for_many() {
        for (streams, polls) in [(5, true), (STREAMS_MAX, true), (STREAMS_MAX + 1, false)] {
            let (pollers, mut driver) = (requested(), DriverPoll::new(COST, true));
            assert_eq!(
                polls_for(streams, &mut driver, &pollers),
                polls,
                "{streams}"
            );
            assert!(pollers.is_driver_polling(), "halves park in either case");
            let (pollers, mut driver) = (requested(), DriverPoll::new(COST, false));
            assert!(polls_for(streams, &mut driver, &pollers), "with one thread");
        }
    }

    #[test]
    fn on_several_threads_more_halves_poll_and_a_driver_leaves_few_streams_to_them() {
        let pollers = Arc::new(Pollers::new(true, true));
        let long = Duration::from_secs(3600);
        let mut halves: Vec<_> = (0..=STREAMS_MAX).map(|_| half(long, &pollers)).collect();
        let (last, polling) = halves.split_last_mut().unwrap();
        polling.iter_mut().for_each(until_yield);
        assert_eq!(until_park(last), 0);
        assert!(pollers.take_request());
        let mut driver = DriverPoll::new(COST, true);
        assert!(!polls_for(STREAMS_MAX, &mut driver, &pollers));
        assert!(!pollers.is_driver_polling(), "halves may poll again");
    }

    #[test]
    fn a_driver_that_slept_for_many_streams_lets_halves_poll_when_few_are_left() {
        let (pollers, mut driver) = (requested(), DriverPoll::new(COST, true));
        assert!(!polls_for(500, &mut driver, &pollers));
        let stream = AtomicU32::new(0);
        let mut now = driver.period_start.unwrap();
        while pollers.is_driver_polling() {
            now += Duration::from_micros(10);
            pollers.count_stream(&stream);
            assert!(!driver.note_pass(now, true, &pollers));
        }
        assert!(!driver.sleeps);
    }

    #[test]
    fn a_long_look_that_finds_nothing_is_followed_by_windows_without_one() {
        let mut look = LongLook::default();
        let mut now = Instant::now();
        let mut window = |look: &mut LongLook| {
            now += LONG_LOOK;
            let begins = look.goes_on(true, now);
            assert_eq!(look.goes_on(false, now + LONG_LOOK / 2), begins);
            assert!(!look.goes_on(false, now + LONG_LOOK));
            begins
        };
        let mut pause = |look: &mut LongLook| (0..).take_while(|_| !window(look)).count();
        assert_eq!(pause(&mut look), 0);
        assert_eq!(pause(&mut look), 8);
        assert_eq!(pause(&mut look), 16);
        // An arrival in the next one.
        while !look.goes_on(true, Instant::now()) {}
        look.hit();
        assert_eq!(pause(&mut look), 0);
        assert_eq!(pause(&mut look), 8);
    }

    #[test]
    fn only_one_half_on_several_threads_has_long_looks() {
        for (on_several_threads, halves) in [(true, 1), (true, 2), (false, 1)] {
            let pollers = Pollers::new(true, on_several_threads);
            assert!((0..halves).all(|_| pollers.enter()));
            let is_alone = pollers.is_alone_on_several_threads();
            assert_eq!(is_alone, on_several_threads && halves == 1);
        }
    }

    /// The cost of waiting for arrivals.
    #[derive(Clone, Copy, Debug, Default)]
    struct Spent {
        latency: Duration,
        cpu: Duration,
    }

    /// Times between the last arrival that was handled and the next one, with a window that is as
    /// long as a sleep and a wake-up take.
    fn simulate(gaps: &[Duration]) -> Spent {
        let mut window = PollWindow::new(COST, COST);
        let mut now = Instant::now();
        let mut spent = Spent::default();
        for &gap in gaps {
            let (start, arrival) = (now, now + gap);
            let mut polls = window.may_poll();
            while polls && now < arrival {
                now += Duration::from_micros(1);
                polls = window.miss(now);
            }
            spent.cpu += now.duration_since(start);
            if now < arrival {
                window.park(now);
                now = arrival + COST;
                spent.latency += COST;
                spent.cpu += COST;
            } else {
                spent.latency += now.duration_since(arrival);
            }
            window.hit(now);
        }
        spent
    }

    /// The least that is possible if the next arrival is known.
    fn oracle(gaps: &[Duration]) -> Spent {
        let mut spent = Spent::default();
        for &gap in gaps {
            spent.cpu += gap.min(COST);
            if gap > COST {
                spent.latency += COST;
            }
        }
        spent
    }

    #[test]
    fn latency_and_cpu_time_are_within_twice_those_of_an_oracle() {
        let micros = Duration::from_micros;
        let mut random = fastrand::Rng::with_seed(1);
        let mut poisson = |per_second: f64| -> Vec<Duration> {
            let mut gap = || -(1.0 - random.f64()).ln() / per_second;
            (0..20_000)
                .map(|_| Duration::from_secs_f64(gap()))
                .collect()
        };
        let bursts = |len: usize, silence| {
            let burst = std::iter::repeat_n(micros(2), len).chain([silence]);
            burst.cycle().take(20_000).collect::<Vec<_>>()
        };
        let mut patterns = vec![
            ("one ball", vec![micros(1); 20_000]),
            ("a slow ball", vec![micros(40); 20_000]),
            ("ten balls", bursts(9, micros(10))),
            ("bursts", bursts(50, micros(10_000))),
            ("pairs", bursts(1, micros(500))),
            ("silence", vec![micros(1_000_000); 1000]),
        ];
        for rate in [1e3, 3e3, 1e4, 2e4, 3e4, 1e5, 3e5, 1e6] {
            patterns.push(("Poisson", poisson(rate)));
        }
        for (name, gaps) in patterns {
            let (spent, least) = (simulate(&gaps), oracle(&gaps));
            // The clock of the simulation has microseconds, and the first windows are learned.
            let count = u32::try_from(gaps.len()).unwrap();
            let slack = micros(1) * count + COST * 10;
            let within = |spent: Duration, least: Duration| spent <= least * 2 + slack;
            assert!(
                within(spent.latency, least.latency),
                "{name}: {spent:?}, {least:?}"
            );
            assert!(within(spent.cpu, least.cpu), "{name}: {spent:?}, {least:?}");
        }
    }
}
