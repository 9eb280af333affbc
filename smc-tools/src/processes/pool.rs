//! Threads that ask processes, shared by users.
//!
//! A user can have a call block that takes the lock of a directory of the user, or that closes a
//! descriptor, for any time. So nothing waits for these threads, and a user has few of them: what
//! blocks or is silent delays requests to processes of the same user.

use std::collections::{BTreeMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

pub(super) type Job = Box<dyn FnOnce() + Send>;

/// Of the process: threads that block are counted by later looks as well.
static POOL: Mutex<Pool> = Mutex::new(Pool {
    threads: 0,
    users: BTreeMap::new(),
});

struct Pool {
    threads: usize,
    users: BTreeMap<u32, User>,
}

#[derive(Default)]
struct User {
    jobs: VecDeque<Job>,
    /// Jobs that run.
    running: usize,
}

/// Has jobs run for these users, some time. Those for which there is no thread are dropped.
pub(super) fn start(jobs: impl IntoIterator<Item = (u32, Job)>) {
    let mut pool = lock();
    for (user, job) in jobs {
        pool.users.entry(user).or_default().jobs.push_back(job);
    }
    let users = pool.users.values();
    let wanted: usize = users
        .map(|user| {
            user.jobs
                .len()
                .min(USER_THREADS.saturating_sub(user.running))
        })
        .sum();
    for _ in 0..wanted.min(THREADS_MAX.saturating_sub(pool.threads)) {
        let thread = thread::Builder::new().stack_size(STACK).spawn(work);
        match thread {
            Ok(_detached) => pool.threads += 1,
            Err(_) => break,
        }
    }
    if pool.threads == 0 {
        drop(take_jobs(pool));
    }
}

/// Has jobs run for these users, and waits for their results no longer than that. Returns how many
/// are missing as well.
pub(crate) fn results<T: Send + 'static>(
    jobs: impl IntoIterator<Item = (u32, impl FnOnce() -> T + Send + 'static)>,
    until: Instant,
) -> (Vec<T>, usize) {
    let (sender, received) = channel();
    let jobs = jobs.into_iter().map(|(user, job)| {
        let sender = sender.clone();
        let job = move || {
            let _late = sender.send(job());
        };
        (user, Box::new(job) as Job)
    });
    let jobs: Vec<_> = jobs.collect();
    drop(sender);
    let count = jobs.len();
    start(jobs);
    let mut found = Vec::new();
    while let Ok(result) = received.recv_timeout(until.saturating_duration_since(Instant::now())) {
        found.push(result);
    }
    clear();
    let missing = count.saturating_sub(found.len());
    (found, missing)
}

/// Drops the jobs that do not run yet.
pub(super) fn clear() {
    drop(take_jobs(lock()));
}

/// What jobs own may be dropped only when the pool is not locked any more.
fn take_jobs(mut pool: MutexGuard<'_, Pool>) -> Vec<VecDeque<Job>> {
    let users = pool.users.values_mut();
    let jobs = users.map(|user| std::mem::take(&mut user.jobs)).collect();
    pool.users.retain(|_, user| user.running > 0);
    jobs
}

fn work() {
    let mut pool = lock();
    while let Some((user, job)) = pool.next() {
        drop(pool);
        // A panic ends the job, and no other one.
        let _panicked = catch_unwind(AssertUnwindSafe(job));
        pool = lock();
        pool.ended(user);
    }
    pool.threads = pool.threads.saturating_sub(1);
}

impl Pool {
    /// A job of a user with the fewest that run.
    fn next(&mut self) -> Option<(u32, Job)> {
        let users = self.users.iter_mut();
        let waiting = users.filter(|(_, it)| !it.jobs.is_empty() && it.running < USER_THREADS);
        let (user, next) = waiting.min_by_key(|(_, it)| it.running)?;
        let job = next.jobs.pop_front()?;
        next.running += 1;
        Some((*user, job))
    }

    fn ended(&mut self, user: u32) {
        if let Some(it) = self.users.get_mut(&user) {
            it.running = it.running.saturating_sub(1);
            if it.running == 0 && it.jobs.is_empty() {
                self.users.remove(&user);
            }
        }
    }
}

fn lock() -> MutexGuard<'static, Pool> {
    POOL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Threads of one user, and of all: some thirty users can have all of theirs block.
const USER_THREADS: usize = 4;
const THREADS_MAX: usize = 128;

/// Of a thread: enough for records, and for a backtrace.
const STACK: usize = 512 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use super::*;

    #[test]
    fn jobs_that_block_cost_their_user_only_and_what_is_left_is_dropped() {
        let (release, released) = channel::<()>();
        let released = std::sync::Arc::new(Mutex::new(released));
        let (begun, begins) = channel();
        let blocking = || {
            let (released, begun) = (released.clone(), begun.clone());
            let job: Job = Box::new(move || {
                begun.send(()).unwrap();
                // The end of the channel wakes all of them, one after the other.
                let _ended = released.lock().unwrap().recv();
            });
            (1, job)
        };
        start((0..200).map(|_| blocking()));
        for _ in 0..USER_THREADS {
            begins.recv().unwrap();
        }
        let (done, results) = channel();
        let quick = |number| {
            let done = done.clone();
            let job: Job = Box::new(move || done.send(number).unwrap());
            (2, job)
        };
        start((0..200).map(quick));
        drop(done);
        assert_eq!(results.iter().count(), 200);
        let more = begins.recv_timeout(Duration::ZERO);
        assert_eq!(more, Err(RecvTimeoutError::Timeout), "too many threads");
        clear();
        drop((begun, release));
        assert_eq!(begins.iter().count(), 0, "those that wait do not begin");
    }

    #[test]
    fn results_are_returned_although_a_job_of_another_user_does_not_end() {
        let (release, released) = channel::<()>();
        let blocking: Box<dyn FnOnce() -> u32 + Send> = Box::new(move || {
            let _ended = released.recv();
            3
        });
        let quick: Box<dyn FnOnce() -> u32 + Send> = Box::new(|| 4);
        let until = Instant::now() + Duration::from_millis(200);
        let found = results([(3, blocking), (4, quick)], until);
        assert_eq!(found, (vec![4], 1));
        drop(release);
    }
}
