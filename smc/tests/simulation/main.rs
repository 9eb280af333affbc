//! Whole endpoints under virtual time: two to five hosts with devices of SMC-D and SMC-R, their
//! connections, and everything that can go wrong.
//!
//! What a run does is a [`schedule`], which a seed decides ([`generate`]). It breaks no rule of
//! these, whatever happens:
//!
//! - each byte arrives once, in order, and none that was not written;
//! - an end of the stream is behind the last byte, of a peer that has closed or shut down;
//! - streams and set-ups fail only if an event may have that effect ([`effects`]), and a stream
//!   that is TCP has the code of its cause;
//! - everything ends in bounded time;
//! - nothing is left: connections, link groups, buffers, queue pairs, registrations, charged
//!   memory, tasks.
//!
//! A schedule that fails is made as short as it can be ([`minimise`]) and printed, for a file in
//! `regressions`.
//!
//! `SMC_SIM_SEEDS` sets how many seeds are run, `SMC_SIM_FIRST` the first of them,
//! `SMC_SIM_SECONDS` for how long at most; `SMC_SIM_SCHEDULE` names a file with a schedule to run
//! alone.

mod connections;
mod effects;
mod faults;
mod generate;
mod hosts;
mod minimise;
mod rest;
mod run;
mod schedule;
mod streams;

use std::cell::RefCell;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, Once};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use connections::{Violation, lock};
use generate::generate;
use minimise::minimise;
use run::Tally;
use schedule::{Action, End, Event, Schedule};

#[test]
fn whatever_happens_streams_keep_their_promises_and_nothing_is_left() {
    if let Some(path) = env::var_os("SMC_SIM_SCHEDULE") {
        return run_file(Path::new(&path));
    }
    let first = number("SMC_SIM_FIRST").unwrap_or(0);
    let count = number("SMC_SIM_SEEDS").unwrap_or(SEEDS);
    let (next, end) = (AtomicU64::new(first), first + count);
    let sum = Mutex::new(Tally::default());
    let failed = Mutex::new(None);
    let begin = Instant::now();
    let time = number("SMC_SIM_SECONDS").map_or(Duration::MAX, Duration::from_secs);
    let done = AtomicU64::new(0);
    let workers = thread::available_parallelism().map_or(1, Into::into);
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= end || begin.elapsed() > time {
                        break;
                    }
                    match run_guarded(&generate(seed)) {
                        Ok(tally) => {
                            done.fetch_add(1, Ordering::Relaxed);
                            lock(&sum).add(tally);
                        }
                        Err(violation) => {
                            next.store(end, Ordering::Relaxed);
                            *lock(&failed) = Some((seed, violation));
                        }
                    }
                }
            });
        }
    });
    if let Some((seed, violation)) = lock(&failed).take() {
        report(seed, &violation);
    }
    let (sum, time) = (lock(&sum), begin.elapsed());
    let count = done.into_inner();
    println!("{count} schedules from {first} on in {time:.1?}: {sum:?}");
    assert!(sum.direct > 0 && sum.rdma > 0 && sum.tcp > 0 || count < 100);
}

#[test]
fn schedules_that_failed_once_do_not_fail_again() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simulation/regressions");
    let mut count = 0;
    for entry in fs::read_dir(&folder).expect("the folder is there") {
        let path = entry.expect("can be listed").path();
        if path.extension().is_some_and(|extension| extension == "txt") {
            run_file(&path);
            count += 1;
        }
    }
    println!("{count} schedules");
}

#[test]
fn the_text_of_a_schedule_is_the_schedule() {
    for seed in 0..300 {
        let schedule = generate(seed);
        let text = schedule.to_string();
        assert_eq!(text.parse::<Schedule>().expect("can be read"), schedule);
    }
}

#[test]
fn a_schedule_becomes_as_short_as_what_fails() {
    let is_kill = |event: &Event| {
        matches!(
            event.action,
            Action::Restart {
                is_killed: true,
                ..
            }
        )
    };
    let is_long = |event: &Event| {
        matches!(
            event.action,
            Action::Write {
                end: End::Server,
                len: 100..,
                ..
            }
        )
    };
    let fails = |schedule: &Schedule| {
        schedule.events.iter().any(is_kill) && schedule.events.iter().any(is_long)
    };
    let schedule = (0..).map(generate).find(fails).expect("there is one");
    let short = minimise(schedule, fails);
    assert_eq!((short.events.len(), short.setting.hosts.len()), (2, 1));
    let lens = short.events.iter().filter(|event| is_long(event));
    for event in lens {
        let Action::Write { conn, len, .. } = event.action else {
            unreachable!("it is a write");
        };
        assert_eq!((event.at, conn, len), (0, 0, 100));
    }
}

/// Makes the schedule of a seed shorter, and shows it.
fn report(seed: u64, violation: &Violation) -> ! {
    println!("seed {seed}: {}\n{}", violation.kind, violation.what);
    let schedule = generate(seed);
    let before = schedule.events.len();
    let is_same =
        |shorter: &Schedule| run_guarded(shorter).is_err_and(|other| other.kind == violation.kind);
    let short = minimise(schedule, is_same);
    let again = run_guarded(&short).err();
    panic!(
        "seed {seed}: {}\n{} of {before} events are left:\n# {}\n{short}\n{}",
        violation.kind,
        short.events.len(),
        violation.kind,
        again.map_or_else(|| "it does not fail each time".into(), |again| again.what)
    );
}

fn run_file(path: &Path) {
    let text = fs::read_to_string(path).expect("can be read");
    let schedule: Schedule = text.parse().expect("is a schedule");
    // What the library takes from the randomness of the system may be what it depends on.
    for _ in 0..FILE_RUNS {
        if let Err(violation) = run_guarded(&schedule) {
            let (path, Violation { kind, what }) = (path.display(), violation);
            panic!("{path}: {kind}\n{what}");
        }
    }
}

/// A panic is a violation as well.
fn run_guarded(schedule: &Schedule) -> Result<Tally, Violation> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            match PANIC.with_borrow_mut(|panic| panic.as_mut().map(|text| *text = info.to_string()))
            {
                Some(()) => {}
                None => before(info),
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let result = panic::catch_unwind(AssertUnwindSafe(|| run::run(schedule)));
    let text = PANIC.take().unwrap_or_default();
    result.unwrap_or_else(|_| {
        let kind = text.lines().next().unwrap_or_default().to_owned();
        Err(Violation::new(kind, text))
    })
}

thread_local! {
    /// The last panic of a run, while there is one.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

impl Tally {
    fn add(&mut self, other: Self) {
        self.direct += other.direct;
        self.rdma += other.rdma;
        self.tcp += other.tcp;
        self.failed += other.failed;
    }
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// Unoptimised code takes its time.
const SEEDS: u64 = if cfg!(debug_assertions) { 400 } else { 4000 };

/// How often a schedule of a file is run.
const FILE_RUNS: usize = 5;
