//! Calls of a device that may block, on threads of their own.
//!
//! Registering memory pins all of its pages, making a queue pair waits for the firmware of a card,
//! and connecting one resolves the peer's hardware address, which takes seconds when there is no
//! such host. An executor's thread must not block for that.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Pid;
use smc_core::device::DeviceError;
use smc_core::process;
use smc_ipc::thread::completer;

/// Threads for calls of one kind: a few, which come and go with the work.
#[derive(Debug)]
pub(crate) struct Workers {
    /// The process that has the threads; a child process of `fork` has none.
    process: Pid,
    max_threads: usize,
    max_queued: usize,
    queue: Arc<JobQueue>,
}

#[derive(Debug, Default)]
struct JobQueue {
    state: Mutex<JobQueueState>,
    wake: Condvar,
}

#[derive(Default)]
struct JobQueueState {
    jobs: VecDeque<Job>,
    threads: usize,
    /// Threads that wait for a job, or were woken for one and have not taken it.
    idle: usize,
    /// No further jobs come.
    is_closed: bool,
}

type Job = Box<dyn FnOnce() + Send>;

impl Workers {
    pub(crate) fn new(max_threads: usize, max_queued: usize) -> Self {
        Self {
            process: process::current(),
            max_threads,
            max_queued,
            queue: Arc::default(),
        }
    }

    /// Runs `work` on a thread and waits for it.
    ///
    /// If the future is dropped, work that has not begun is dropped with what it has, and so is the
    /// result of work that has begun, by a thread of the workers. A result that was there already
    /// is dropped with the future.
    ///
    /// # Errors
    ///
    /// `EBUSY` if as many wait as may, as behind calls that do not return;
    /// [`DeviceError::Gone`] if the work panics, and in a child process.
    pub(crate) async fn run<T, F>(&self, work: F) -> Result<T, DeviceError>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (completer, answer) = completer();
        let wanted = Arc::new(());
        let is_wanted = Arc::downgrade(&wanted);
        self.start(Box::new(move || {
            if is_wanted.strong_count() > 0 {
                completer.complete(work());
            }
        }))?;
        let result = answer.await;
        drop(wanted);
        result.map_err(|_| DeviceError::Gone("its thread ended early"))
    }

    fn start(&self, job: Job) -> Result<(), DeviceError> {
        if process::current() != self.process {
            return Err(DeviceError::Gone("it was opened by another process"));
        }
        let mut state = self.queue.lock();
        if state.jobs.len() >= self.max_queued {
            return Err(DeviceError::os(
                "waiting for earlier calls of the device",
                &Errno::BUSY.into(),
            ));
        }
        state.jobs.push_back(job);
        if state.idle >= state.jobs.len() {
            self.queue.wake.notify_one();
            return Ok(());
        }
        if state.threads >= self.max_threads {
            return Ok(());
        }
        let queue = Arc::clone(&self.queue);
        let thread = std::thread::Builder::new().name("smc-rdma".to_owned());
        match thread.spawn(move || queue.run_jobs()) {
            Ok(_) => state.threads += 1,
            // The threads that run take the job later.
            Err(_) if state.threads > 0 => {}
            Err(error) => {
                let unstarted = state.jobs.pop_back();
                // It may call back.
                drop(state);
                drop(unstarted);
                return Err(DeviceError::os("starting a thread", &error));
            }
        }
        Ok(())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        // In a child process another thread of the parent may have had the lock.
        if process::current() == self.process {
            self.queue.lock().is_closed = true;
            self.queue.wake.notify_all();
        }
    }
}

impl JobQueue {
    fn lock(&self) -> MutexGuard<'_, JobQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run_jobs(&self) {
        while let Some(job) = self.next_job() {
            // A panic ends the job, and no other one.
            let _panicked = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// Waits for a job. `None` when the thread has to end, which is not counted any more then.
    fn next_job(&self) -> Option<Job> {
        let mut state = self.lock();
        let mut is_late = false;
        loop {
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            if is_late || state.is_closed {
                state.threads -= 1;
                return None;
            }
            state.idle += 1;
            let waited = self.wake.wait_timeout(state, IDLE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            is_late = timeout.timed_out();
        }
    }
}

impl std::fmt::Debug for JobQueueState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JobQueueState")
            .field("jobs", &self.jobs.len())
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

/// How long a thread stays that has nothing to do.
const IDLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::task::{Context, Waker};

    use futures_lite::future::block_on;
    use smc_core::device::{Access, Rdma as _, Route};
    use smc_core::mem::Region;

    use super::*;
    use crate::RdmaDevice;

    /// Occupies all threads, until the result is dropped.
    fn hold(workers: &Workers) -> Vec<Sender<()>> {
        let hold = |_| {
            let (release, released) = channel::<()>();
            let (begin, begun) = channel();
            let wait = move || {
                begin.send(()).unwrap();
                assert!(released.recv().is_err());
            };
            workers.start(Box::new(wait)).unwrap();
            begun.recv().unwrap();
            release
        };
        (0..workers.max_threads).map(hold).collect()
    }

    /// Polls once. `true` if there is no result.
    fn is_pending(future: Pin<&mut (impl Future + ?Sized)>) -> bool {
        future
            .poll(&mut Context::from_waker(Waker::noop()))
            .is_pending()
    }

    /// Sends when it is dropped, by what thread.
    struct Dropped(Sender<std::thread::ThreadId>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            let _end_of_test = self.0.send(std::thread::current().id());
        }
    }

    fn dropped() -> (Dropped, Receiver<std::thread::ThreadId>) {
        let (send, receive) = channel();
        (Dropped(send), receive)
    }

    #[test]
    fn the_result_comes_back_from_another_thread() {
        let workers = Workers::new(2, 10);
        let answer = block_on(workers.run(|| std::thread::current().id())).unwrap();
        assert_ne!(answer, std::thread::current().id());
    }

    #[test]
    fn work_that_panics_is_an_error_and_ends_no_other() {
        let workers = Workers::new(1, 10);
        for _ in 0..3 {
            let answer = block_on(workers.run(|| -> u8 { panic!("on purpose") }));
            assert!(matches!(answer, Err(DeviceError::Gone(_))));
        }
        assert_eq!(block_on(workers.run(|| 6 * 7)), Ok(42));
    }

    #[test]
    fn a_child_process_has_no_threads_to_wait_for() {
        let mut workers = Workers::new(1, 10);
        workers.process = Pid::INIT;
        let refused = block_on(workers.run(|| ()));
        assert!(matches!(refused, Err(DeviceError::Gone(_))));
        workers.process = process::current();
    }

    #[test]
    fn threads_and_waiting_calls_are_bounded() {
        let workers = Workers::new(2, 10);
        let release = hold(&workers);
        let mut waiting: Vec<_> = (0..10)
            .map(|number| Box::pin(workers.run(move || number)))
            .collect();
        for call in &mut waiting {
            assert!(is_pending(call.as_mut()));
        }
        let refused = block_on(workers.run(|| ())).unwrap_err();
        let text = "waiting for earlier calls of the device";
        assert!(refused.to_string().starts_with(text), "{refused}");
        assert_eq!(workers.queue.lock().threads, 2);
        drop(release);
        for (number, call) in waiting.into_iter().enumerate() {
            assert_eq!(block_on(call), Ok(number));
        }
        assert_eq!(block_on(workers.run(|| 1)), Ok(1));
        assert_eq!(workers.queue.lock().threads, 2);
    }

    #[test]
    fn a_call_that_is_given_up_in_the_queue_is_not_made() {
        let workers = Workers::new(1, 10);
        let release = hold(&workers);
        let (has, freed) = dropped();
        let mut call = Box::pin(workers.run(move || {
            let _has = has;
            unreachable!("it was given up");
        }));
        assert!(is_pending(call.as_mut()));
        drop(call);
        assert!(freed.try_recv().is_err(), "that may block as well");
        drop(release);
        assert_ne!(freed.recv().unwrap(), std::thread::current().id());
    }

    #[test]
    fn what_a_call_makes_that_was_given_up_meanwhile_is_dropped() {
        let workers = Workers::new(1, 10);
        let (made, freed) = dropped();
        let (begin, begun) = channel();
        let (release, released) = channel::<()>();
        {
            let call = pin!(workers.run(move || {
                begin.send(()).unwrap();
                assert!(released.recv().is_err());
                made
            }));
            assert!(is_pending(call));
            begun.recv().unwrap();
        }
        drop(release);
        assert_ne!(freed.recv().unwrap(), std::thread::current().id());
    }

    #[test]
    fn calls_of_a_device_wait_for_its_threads_and_free_what_is_given_up() {
        let reports = crate::probe().unwrap_or_default();
        let Some(usable) = reports.iter().find(|report| report.usable.is_ok()) else {
            println!("skipped: no RDMA device that can be used");
            return;
        };
        let device = RdmaDevice::builder(&usable.name).links(1).open().unwrap();
        let parts = device.parts();
        let domain = block_on(device.protection_domain()).unwrap();
        let at = device.addresses().remove(0);
        let region = Region::anonymous(4096);

        let release = hold(&parts.calls);
        let (mut opened, mut made) = (
            domain.open_link(&at),
            domain.register(&region, Access::Local),
        );
        let mut given_up = domain.open_link(&at);
        assert!(is_pending(given_up.as_mut()));
        assert!(is_pending(opened.as_mut()) && is_pending(made.as_mut()));
        drop(given_up);
        drop(release);
        let pending = block_on(opened).expect("the only place is free");
        block_on(made).unwrap();

        let release = hold(&parts.connects);
        let peer = pending.local();
        let mut connected = pending.connect(peer, Route::SameSubnet);
        assert!(is_pending(connected.as_mut()));
        assert!(block_on(domain.register(&region, Access::Local)).is_ok());
        drop(connected);
        assert_eq!(parts.links.all().len(), 1);
        drop(release);
        while !parts.links.all().is_empty() {
            std::thread::yield_now();
        }
    }

    #[test]
    fn threads_end_with_the_workers() {
        let workers = Workers::new(3, 10);
        drop(hold(&workers));
        let queue = Arc::downgrade(&workers.queue);
        drop(workers);
        while queue.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
