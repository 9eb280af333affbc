//! Notification by eventfds that are shared with other processes.
//!
//! The counter of an eventfd, and the flag `O_NONBLOCK`, belong to the open file description, which
//! all processes share that have the eventfd. Each of them can clear the flag and fill the counter:
//! a write of another process then blocks without end. `write(2)` has no flag for a non-blocking
//! write, and `pwritev2(2)` has none for an eventfd. The kernel itself adds to an eventfd without
//! blocking, and wakes its readers even if the counter is full. It does so on completion of
//! asynchronous I/O (`IOCB_FLAG_RESFD`).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use smc_core::device::DeviceError;

use crate::region::{AioContext, os};

/// Adds to eventfds without blocking.
#[derive(Debug)]
pub(crate) struct EventfdNotifier {
    aio: AioContext,
    /// An eventfd of this process that is never read: a poll of it is complete at once.
    ready: OwnedFd,
}

impl EventfdNotifier {
    /// # Errors
    ///
    /// When the system has no asynchronous I/O (`ENOSYS`), does not allow its use (`EPERM`), or has
    /// too much of it under way (`EAGAIN`: `fs.aio-max-nr`).
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let failed = |error| os("set up notification by asynchronous I/O", error);
        let notifier = Self {
            aio: AioContext::new(MAX_IN_FLIGHT).map_err(failed)?,
            ready: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?,
        };
        // Kernels before 4.18 have no asynchronous poll.
        notifier.try_notify(&notifier.ready).map_err(failed)?;
        Ok(notifier)
    }

    /// Adds 1 to an eventfd, unless it is full, and wakes its readers. Does not block.
    pub(crate) fn notify(&self, eventfd: impl AsFd) {
        // Fails for another kind of descriptor. Without memory, the server notifies again.
        let _ = self.try_notify(&eventfd);
    }

    fn try_notify(&self, eventfd: &impl AsFd) -> Result<(), Errno> {
        for _ in 0..TRIES {
            match self.aio.submit(self.ready.as_fd(), eventfd.as_fd()) {
                Err(Errno::AGAIN) => self.aio.reap(),
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }
}

/// Completions that may be pending; the number in a system is limited.
const MAX_IN_FLIGHT: u32 = 32;
/// Other threads may fill the entry that one has freed.
const TRIES: usize = 16;
