//! Rings by eventfds that other processes have, too.
//!
//! The counter of an eventfd, and the flag `O_NONBLOCK`, belong to the open file, which all processes
//! share that have the eventfd. Each of them can clear the flag and fill the counter: a write of
//! another process then waits without end. `write(2)` cannot be told not to wait, nor can
//! `pwritev2(2)` for an eventfd. The kernel itself adds to an eventfd without waiting, and wakes its
//! readers even if the counter is full. It does so for a program when asynchronous I/O is complete
//! (`IOCB_FLAG_RESFD`).

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use smc_core::device::DeviceError;

use crate::region::{Polls, os};

/// Adds to eventfds without waiting.
#[derive(Debug)]
pub(crate) struct Ringer {
    polls: Polls,
    /// An eventfd of our own that is never read: a poll of it is complete at once.
    ready: OwnedFd,
}

impl Ringer {
    /// # Errors
    ///
    /// When the system has no asynchronous I/O (`ENOSYS`), does not let us use it (`EPERM`), or has
    /// too much of it under way (`EAGAIN`: `fs.aio-max-nr`).
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let failed = |error| os("set up rings by asynchronous I/O", error);
        let ringer = Self {
            polls: Polls::new(UNDER_WAY).map_err(failed)?,
            ready: eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(failed)?,
        };
        // Kernels before 4.18 cannot poll so.
        ringer.try_ring(&ringer.ready).map_err(failed)?;
        Ok(ringer)
    }

    /// Adds 1 to an eventfd, unless it is full, and wakes its readers. Does not wait.
    pub(crate) fn ring(&self, eventfd: impl AsFd) {
        // What is not an eventfd cannot be rung. When memory is short, the server rings again.
        let _ = self.try_ring(&eventfd);
    }

    fn try_ring(&self, eventfd: &impl AsFd) -> Result<(), Errno> {
        for _ in 0..TRIES {
            match self.polls.submit(self.ready.as_fd(), eventfd.as_fd()) {
                Err(Errno::AGAIN) => self.polls.reap(),
                result => return result,
            }
        }
        Err(Errno::AGAIN)
    }
}

/// Answers that are kept until they are taken out; what there may be in a system is limited.
const UNDER_WAY: u32 = 32;
/// Other threads may fill the place that one has made.
const TRIES: usize = 16;
