//! Threads for calls that take a lock in the kernel which other users can hold.
//!
//! A user who may read a directory can hold its lock for any time, by reading it into memory that
//! does not come. A call that takes the lock then waits in the kernel, where nothing ends it. So
//! such calls are made in a thread for each [`Lock`], and a task waits for a limited time.

mod answer;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::geteuid;

pub use self::answer::Answer;
#[doc(hidden)]
pub use self::answer::{Completer, completer};

/// Locks that one thread takes: if one of them is held, calls that take another wait too.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Lock {
    /// The locks of directories of this user, in which names are looked up.
    DirectoriesOf(u32),
    /// The locks of this directory and of the own user's in it, in which names are made and
    /// removed.
    DirectoriesBelow(PathBuf),
    /// The lock of the whole system that is taken to add to an epoll set which another set watches,
    /// and to have a set watched. A FUSE file that is added holds it until its file system answers.
    NestedEpoll,
}

/// Runs `job` on the thread of the lock, and waits for its result no longer than `limit`. Later it
/// runs all the same, and its result is dropped there.
///
/// # Errors
///
/// `TIMEDOUT` if the result is not there by then, or as [`start`].
pub(crate) fn run<T: Send + 'static>(
    of: Lock,
    limit: Duration,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Errno> {
    let (completer, answer) = completer();
    start(of, move || completer.complete(job())).map_err(errno)?;
    answer.wait(limit)
}

/// Runs `job` on the thread of the lock, unless the answer is dropped before.
///
/// # Errors
///
/// As [`start`].
pub fn spawn<T: Send + 'static>(
    of: Lock,
    job: impl FnOnce() -> T + Send + 'static,
) -> io::Result<Answer<T>> {
    let (completer, answer) = completer();
    start(of, move || {
        if completer.is_wanted() {
            completer.complete(job());
        }
    })?;
    Ok(answer)
}

/// Runs `job` on the thread of the lock, some time; at once if that is the calling thread.
///
/// # Errors
///
/// `TimedOut` when an earlier one has not returned for long, or as many wait as may; else when
/// there is no thread.
pub fn start(of: Lock, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let key = (geteuid().as_raw(), of);
    if CURRENT.with_borrow(|current| current.as_ref() == Some(&key)) {
        job();
        return Ok(());
    }
    let mut threads = lock(&THREADS);
    let process = std::process::id();
    if threads.process != process {
        // In a child process these are the threads of its parent.
        std::mem::forget(std::mem::take(&mut threads.of_locks));
        threads.process = process;
    }
    if let Some(thread) = threads.of_locks.get(&key) {
        return thread.queue(Box::new(job));
    }
    let (jobs, queue) = mpsc::channel();
    let unfinished = Arc::default();
    let thread = Thread {
        jobs,
        unfinished: Arc::clone(&unfinished),
    };
    thread.queue(Box::new(job))?;
    let of = key.clone();
    thread::Builder::new()
        .name("smc-lock".into())
        .stack_size(STACK)
        .spawn(move || run_jobs(&of, &queue, &unfinished))?;
    threads.of_locks.insert(key, thread);
    Ok(())
}

pub(crate) fn errno(error: io::Error) -> Errno {
    match error.kind() {
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        _ => Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
    }
}

fn run_jobs(key: &Key, queue: &Receiver<Job>, unfinished: &Unfinished) {
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
                        threads.of_locks.remove(key);
                        return;
                    }
                }
            }
        };
        // A panic ends the job, and no other one.
        let _panicked = catch_unwind(AssertUnwindSafe(job));
        unfinished.remove();
    }
}

/// A thread has the user of the one that has started it, which need not be that of the process.
type Key = (u32, Lock);

thread_local! {
    /// Of a thread for a lock.
    static CURRENT: RefCell<Option<Key>> = const { RefCell::new(None) };
}

type Job = Box<dyn FnOnce() + Send>;

struct Threads {
    /// The process that has started them.
    process: u32,
    of_locks: BTreeMap<Key, Thread>,
}

struct Thread {
    jobs: Sender<Job>,
    unfinished: Arc<Unfinished>,
}

/// When each of the jobs was queued that have not returned, the oldest first.
#[derive(Debug, Default)]
struct Unfinished(Mutex<VecDeque<Instant>>);

impl Thread {
    fn queue(&self, job: Job) -> io::Result<()> {
        if !self.unfinished.add(Instant::now()) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // There is a receiver as long as the thread is known.
        let _queued = self.jobs.send(job);
        Ok(())
    }
}

impl Unfinished {
    /// Adds a job that is queued now; false if that may not be.
    fn add(&self, now: Instant) -> bool {
        let mut queued = lock(&self.0);
        let is_stuck = queued.front().is_some_and(|oldest| now - *oldest > STUCK);
        let may_be_added = !is_stuck && queued.len() < MAX_UNFINISHED;
        if may_be_added {
            queued.push_back(now);
        }
        may_be_added
    }

    /// Removes the oldest job.
    fn remove(&self) {
        lock(&self.0).pop_front();
    }
}

/// Of the process: endpoints do not multiply the threads that wait.
static THREADS: Mutex<Threads> = Mutex::new(Threads {
    process: 0,
    of_locks: BTreeMap::new(),
});

/// How long a task waits for a look-up, a search or a removal.
pub(crate) const JOB_TIMEOUT: Duration = Duration::from_millis(200);

/// How long a job may take from when it is queued before no other one is queued behind it. Jobs
/// that each return in time hold up those behind them as one that does not.
const STUCK: Duration = Duration::from_secs(1);

/// Jobs of a thread, with the one that runs. More than processes have that start at the same time.
const MAX_UNFINISHED: usize = 1024;

/// How long a thread stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

/// Of a thread: enough for reading a directory, and for a backtrace.
const STACK: usize = 256 * 1024;

/// A panic of another thread is no reason for one of this.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn lock_of(name: &str) -> Lock {
        Lock::DirectoriesBelow(format!("/no such place/{name}").into())
    }

    /// Holds the thread of a lock, until the result is dropped.
    fn hold(of: Lock) -> Sender<()> {
        let (release, released) = channel();
        let (begin, begun) = channel();
        let wait = move || {
            begin.send(()).unwrap();
            assert!(released.recv().is_err());
        };
        start(of, wait).unwrap();
        begun.recv().unwrap();
        release
    }

    #[test]
    fn a_job_that_does_not_end_keeps_neither_its_caller_nor_other_locks_waiting() {
        let release = hold(lock_of("a"));
        assert_eq!(
            run(lock_of("a"), Duration::ZERO, || ()),
            Err(Errno::TIMEDOUT)
        );
        let caller = thread::current().id();
        let other = run(lock_of("b"), LONG, || thread::current().id());
        assert!(other.is_ok_and(|thread| thread != caller));
        drop(release);
        while run(lock_of("a"), Duration::from_millis(10), || ()).is_err() {}
    }

    #[test]
    fn jobs_that_end_in_time_hold_up_others_no_longer_than_one_that_does_not() {
        let begin = Instant::now();
        let at = |milliseconds| begin + Duration::from_millis(milliseconds);
        let unfinished = Unfinished::default();
        // They take 0.9 s each.
        assert!(unfinished.add(at(0)) && unfinished.add(at(0)));
        unfinished.remove();
        assert!(unfinished.add(at(1000)));
        assert!(!unfinished.add(at(1001)), "the second has waited, and runs");
        unfinished.remove();
        assert!(unfinished.add(at(1801)), "that is over when it has ended");
        assert!(!unfinished.add(at(2001)));
    }

    #[test]
    fn the_jobs_that_wait_are_bounded() {
        let release = hold(lock_of("flood"));
        let queued = (0..).take_while(|_| start(lock_of("flood"), || ()).is_ok());
        assert!(queued.take(1 << 16).count() < 1 << 16);
        drop(release);
        while start(lock_of("flood"), || ()).is_err() {}
    }

    #[test]
    fn a_job_whose_answer_is_dropped_does_not_run() {
        let release = hold(lock_of("unwanted"));
        let (never, dropped) = channel();
        let unwanted = spawn(lock_of("unwanted"), move || never.send(()));
        drop(unwanted);
        let wanted = spawn(lock_of("unwanted"), || 1).unwrap();
        drop(release);
        assert_eq!(wanted.wait(LONG), Ok(1));
        assert!(dropped.recv().is_err(), "it has run");
    }

    #[test]
    fn a_job_that_panics_has_no_answer_and_ends_no_other() {
        let release = hold(lock_of("panic"));
        let panicking = spawn(lock_of("panic"), || panic!("as intended")).unwrap();
        let next = spawn(lock_of("panic"), || 1).unwrap();
        drop(release);
        assert_eq!(panicking.wait(LONG), Err::<(), _>(Errno::CANCELED));
        assert_eq!(next.wait(LONG), Ok(1));
    }

    #[test]
    fn a_job_that_runs_another_of_its_lock_does_not_wait_for_itself() {
        let inner = lock_of("nested");
        let outer = move || run(inner, Duration::ZERO, || thread::current().id());
        let within = run(lock_of("nested"), LONG, outer).unwrap();
        let again = run(lock_of("nested"), LONG, || thread::current().id());
        assert_eq!(within, again);
    }

    #[test]
    fn jobs_of_a_lock_run_in_their_order() {
        let (results, received) = channel();
        for number in 0..3 {
            let results = results.clone();
            start(lock_of("order"), move || results.send(number).unwrap()).unwrap();
        }
        assert_eq!(received.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
    }
}
