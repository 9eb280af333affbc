//! Searches of directories, on [threads](smc_ipc::thread).
//!
//! Each owner of listeners has a thread in which the directories of this owner are searched, and a
//! task waits for the result for a limited time.

use std::io;
use std::time::Duration;

use rustix::io::Errno;
use smc_core::error::OsError;
use smc_core::runtime::Runtime;
use smc_ipc::thread::{Lock, spawn};

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
    let answer = spawn(Lock::DirectoriesOf(user), job).map_err(|error| failed(&error))?;
    let found = within(runtime, LIMIT, answer).await;
    let found = found.unwrap_or(Err(Errno::TIMEDOUT));
    found.map_err(|errno| failed(&errno.into()))
}

/// How long a task waits for a search. Directories are on a local file system.
const LIMIT: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::thread;

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
}
