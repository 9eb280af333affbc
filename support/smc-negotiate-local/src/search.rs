//! Searches of directories, on threads.
//!
//! A user who may read a directory can hold its lock for any time, by reading it into memory that
//! does not come. A search of this directory then waits in the kernel, where nothing ends it. So
//! each owner of listeners has a thread in which the directories of this owner are searched, and a
//! task waits for the result for a limited time.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SendError, Sender};
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use atomic_waker::AtomicWaker;
use smc_core::error::OsError;
use smc_core::runtime::Runtime;

use crate::lock;
use crate::reachability::within;

/// What `job` returns, which runs in the thread for the directories of this user.
///
/// # Errors
///
/// When it has not returned in time, or an earlier one has not yet; when there is no thread.
pub(super) async fn search<T: Send + 'static>(
    runtime: &dyn Runtime,
    user: u32,
    job: impl FnOnce() -> T + Send + 'static,
) -> Result<T, OsError> {
    let failed = |error: &io::Error| OsError::new("search the runtime directories", error);
    let result = Arc::new(Outcome::default());
    let waiting = Arc::downgrade(&result);
    let started = start(user, move || {
        // Nothing is searched for a task that waits no more.
        if waiting.strong_count() > 0 {
            let value = job();
            if let Some(result) = waiting.upgrade() {
                *lock(&result.value) = Some(value);
                result.waiter.wake();
            }
        }
    });
    started.map_err(|error| failed(&error))?;
    let found = poll_fn(|cx| {
        result.waiter.register(cx.waker());
        lock(&result.value)
            .take()
            .map_or(Poll::Pending, Poll::Ready)
    });
    let found = within(runtime, LIMIT, found).await;
    found.ok_or_else(|| failed(&io::ErrorKind::TimedOut.into()))
}

/// Runs `job` in the thread for the directories of this user, some time.
///
/// # Errors
///
/// When an earlier one has not returned for long, or there is no thread.
pub(super) fn start(user: u32, job: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut threads = lock(&THREADS);
    let process = std::process::id();
    if threads.process != process {
        // Those of the parent of a child process.
        std::mem::forget(std::mem::take(&mut threads.of_users));
        threads.process = process;
    }
    let mut job: Job = Box::new(job);
    if let Some(thread) = threads.of_users.get(&user) {
        if thread.since.is_longer_than(LIMIT) {
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
    thread::Builder::new()
        .name("smc-search".into())
        .stack_size(STACK)
        .spawn(move || run(user, &queue, &since))?;
    threads.of_users.insert(user, thread);
    Ok(())
}

fn run(user: u32, queue: &Receiver<Job>, since: &Since) {
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
                        threads.of_users.remove(&user);
                        return;
                    }
                }
            }
        };
        let _running = since.begin();
        job();
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The result of a search, when it is there, and the task that waits for it.
#[derive(Debug)]
struct Outcome<T> {
    value: Mutex<Option<T>>,
    waiter: AtomicWaker,
}

impl<T> Default for Outcome<T> {
    fn default() -> Self {
        Self {
            value: Mutex::new(None),
            waiter: AtomicWaker::new(),
        }
    }
}

struct Threads {
    /// The process that has started them.
    process: u32,
    of_users: BTreeMap<u32, Thread>,
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
    of_users: BTreeMap::new(),
});

/// How long a task waits for a search. Directories are on a local file system.
const LIMIT: Duration = Duration::from_secs(1);

/// How long a thread stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

/// Of a thread: enough for reading a directory, and for a backtrace.
const STACK: usize = 256 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use smc::runtime::smol::SmolRuntime;

    use super::*;

    #[test]
    fn a_search_that_does_not_end_keeps_neither_its_task_nor_other_users_waiting() {
        // No users of other tests.
        let (held, other) = (u32::MAX - 1, u32::MAX - 2);
        let executor = Arc::new(smol::Executor::new());
        let runtime = SmolRuntime::with_executor(Arc::clone(&executor));
        let caller = thread::current().id();
        smol::block_on(executor.run(async {
            let (release, released) = channel::<()>();
            let wait = move || assert!(released.recv().is_err());
            let timed_out = |result: Result<(), OsError>| {
                assert_eq!(result.unwrap_err().kind(), io::ErrorKind::TimedOut);
            };
            timed_out(search(&runtime, held, wait).await);
            // This one is not even queued.
            let (never, dropped) = channel::<()>();
            timed_out(search(&runtime, held, move || drop(never)).await);
            assert!(dropped.try_recv().is_err(), "it was dropped");

            let elsewhere = search(&runtime, other, || thread::current().id());
            assert_ne!(elsewhere.await.unwrap(), caller);
            drop(release);
            while search(&runtime, held, || ()).await.is_err() {}
        }));
    }

    #[test]
    fn jobs_of_a_user_run_in_their_order() {
        let user = u32::MAX - 3;
        let (results, received) = channel();
        for number in 0..3 {
            let results = results.clone();
            start(user, move || results.send(number).unwrap()).unwrap();
        }
        assert_eq!(received.iter().take(3).collect::<Vec<_>>(), [0, 1, 2]);
        drop(results);
    }
}
