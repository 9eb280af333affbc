//! Threads for calls that take the lock of a directory.
//!
//! A user who may read a directory can hold its lock for any time, by reading it into memory that
//! does not come. A call that takes the lock then waits in the kernel, where nothing ends it. So such
//! calls are made in a thread for each [`Place`], and a task waits for a limited time.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::domain::own;

/// Directories whose locks a thread takes: if one of them is held, calls in the others wait too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Place {
    /// Directories of this user, in which names are looked up.
    OfUser(u32),
    /// This directory and those of the own user in it, in which names are made and removed.
    Below(PathBuf),
}

/// Runs `job` in the thread of the place, and waits for its result no longer than `limit`. Later it
/// runs all the same, and its result is dropped. A job of the same place runs it itself.
pub(super) fn run<T: Send + 'static>(
    place: Place,
    limit: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    if CURRENT.with_borrow(|key| key.as_ref() == Some(&(own(), place.clone()))) {
        return Some(job());
    }
    let result = begin(place, job).ok()?;
    result.recv_timeout(limit).ok()
}

/// As [`start`]; returns where the result arrives.
pub(super) fn begin<T: Send + 'static>(
    place: Place,
    job: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Receiver<T>> {
    let (sender, result) = mpsc::sync_channel(1);
    start(place, move || {
        // Fails if the caller waits no more.
        let _ = sender.send(job());
    })?;
    Ok(result)
}

/// Runs `job` in the thread of the place, some time.
///
/// # Errors
///
/// When an earlier one has not returned for long, or there is no thread.
pub fn start(place: Place, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let key = (own(), place);
    let mut threads = lock(&THREADS);
    let process = std::process::id();
    if threads.process != process {
        // Those of the parent of a child process.
        std::mem::forget(std::mem::take(&mut threads.of_places));
        threads.process = process;
    }
    let mut job: Job = Box::new(job);
    if let Some(thread) = threads.of_places.get(&key) {
        if thread.since.is_longer_than(STUCK) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match thread.jobs.send(job) {
            Ok(()) => return Ok(()),
            // It has ended by a panic.
            Err(SendError(returned)) => job = returned,
        }
    }
    let (jobs, queue) = mpsc::channel();
    let since = Arc::new(Since::default());
    let thread = Thread {
        jobs,
        since: Arc::clone(&since),
    };
    let _queued = thread.jobs.send(job);
    let of = key.clone();
    thread::Builder::new()
        .name("smc-directory".into())
        .stack_size(STACK)
        .spawn(move || run_jobs(&of, &queue, &since))?;
    threads.of_places.insert(key, thread);
    Ok(())
}

fn run_jobs(key: &Key, queue: &Receiver<Job>, since: &Since) {
    CURRENT.set(Some(key.clone()));
    loop {
        let job = match queue.recv_timeout(IDLE) {
            Ok(job) => job,
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let mut threads = lock(&THREADS);
                // Sent meanwhile.
                match queue.try_recv() {
                    Ok(job) => job,
                    Err(_) => {
                        threads.of_places.remove(key);
                        return;
                    }
                }
            }
        };
        let _running = since.begin();
        job();
    }
}

/// A thread has the user of the one that has started it, which need not be that of the process.
type Key = (u32, Place);

thread_local! {
    /// Of a directory thread.
    static CURRENT: RefCell<Option<Key>> = const { RefCell::new(None) };
}

type Job = Box<dyn FnOnce() + Send>;

struct Threads {
    /// The process that has started them.
    process: u32,
    of_places: BTreeMap<Key, Thread>,
}

struct Thread {
    jobs: Sender<Job>,
    since: Arc<Since>,
}

/// When the job that runs was begun.
#[derive(Debug, Default)]
struct Since(Mutex<Option<Instant>>);

impl Since {
    /// Until the result is dropped, a job runs.
    fn begin(&self) -> impl Drop + '_ {
        struct Running<'a>(&'a Since);

        impl Drop for Running<'_> {
            fn drop(&mut self) {
                *lock(&self.0.0) = None;
            }
        }

        *lock(&self.0) = Some(Instant::now());
        Running(self)
    }

    fn is_longer_than(&self, limit: Duration) -> bool {
        lock(&self.0).is_some_and(|since| since.elapsed() > limit)
    }
}

/// Of the process: endpoints do not multiply the threads that wait.
static THREADS: Mutex<Threads> = Mutex::new(Threads {
    process: 0,
    of_places: BTreeMap::new(),
});

/// How long a task waits for a look-up, a search or a removal.
pub(super) const LIMIT: Duration = Duration::from_millis(200);

/// How long a job runs before no other one is queued behind it.
const STUCK: Duration = Duration::from_secs(1);

/// How long a thread stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

/// Of a thread: enough for reading a directory, and for a backtrace.
const STACK: usize = 256 * 1024;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_job_that_does_not_end_keeps_neither_its_caller_nor_other_places_waiting() {
        let place = |name: &str| Place::Below(format!("/held/{name}").into());
        let (release, released) = channel::<()>();
        let wait = move || assert!(released.recv().is_err());
        assert_eq!(run(place("a"), Duration::ZERO, wait), None);
        let caller = thread::current().id();
        let elsewhere = || thread::current().id();
        let other = run(place("b"), Duration::from_secs(60), elsewhere);
        assert!(other.is_some_and(|thread| thread != caller));
        drop(release);
        while run(place("a"), Duration::from_millis(10), || ()).is_none() {}
    }

    #[test]
    fn a_job_that_runs_another_of_its_place_does_not_wait_for_itself() {
        let place = Place::Below("/nested".into());
        let inner = place.clone();
        let outer = move || run(inner, Duration::ZERO, || thread::current().id());
        let within = run(place.clone(), Duration::from_secs(60), outer);
        let again = run(place, Duration::from_secs(60), || thread::current().id());
        assert_eq!(within, Some(again));
    }

    #[test]
    fn jobs_of_a_place_run_in_their_order() {
        // No user of other tests.
        let place = Place::OfUser(u32::MAX - 3);
        let (results, received) = channel();
        for number in 0..3 {
            let results = results.clone();
            start(place.clone(), move || results.send(number).unwrap()).unwrap();
        }
        assert_eq!(received.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
