//! The doorbell that the driver of a device waits on: an epoll set with an eventfd of our own in
//! it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use smc_core::device::DeviceError;

use crate::region::os;

/// The doorbell of one device.
#[derive(Debug)]
pub(crate) struct Doorbell {
    set: OwnedFd,
    own: OwnedFd,
}

impl Doorbell {
    pub(crate) fn new() -> Result<Self, DeviceError> {
        let failed = |error| os("make doorbell", error);
        let set = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let own = new_eventfd()?;
        let flags = EventFlags::IN | EventFlags::ET;
        epoll::add(&set, &own, EventData::new_u64(OWN), flags).map_err(failed)?;
        Ok(Self { set, own })
    }

    /// For the driver to wait on.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }

    /// Wakes our own driver.
    pub(crate) fn notify_self(&self) {
        // Edge-triggered and never read. A full counter makes no edge, but needs 2^64 writes.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    /// Watches a descriptor for input, level-triggered.
    pub(crate) fn watch(&self, fd: impl AsFd, id: u64) -> Result<(), DeviceError> {
        self.add(fd, id, EventFlags::IN | EventFlags::RDHUP)
    }

    /// Watches an eventfd, edge-triggered, so that it need not be read.
    pub(crate) fn watch_edges(&self, fd: impl AsFd, id: u64) -> Result<(), DeviceError> {
        self.add(fd, id, EventFlags::IN | EventFlags::ET)
    }

    /// Stops watching a descriptor. Necessary before the close of one that other processes share.
    pub(crate) fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.set, fd);
    }

    /// Passes the ids of ready descriptors to `each`, without blocking. Drivers may be
    /// edge-triggered, so the doorbell is rung again if events are left.
    pub(crate) fn poll(&self, mut each: impl FnMut(u64)) -> Result<(), DeviceError> {
        for _ in 0..MAX_ROUNDS {
            let mut events = [epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(0),
            }; EVENTS_PER_ROUND];
            let count = match epoll::wait(&self.set, &mut events[..], Some(&NOW)) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(os("poll doorbell", error)),
            };
            events[..count]
                .iter()
                .map(|event| event.data.u64())
                .filter(|id| *id != OWN)
                .for_each(&mut each);
            if count < EVENTS_PER_ROUND {
                return Ok(());
            }
        }
        self.notify_self();
        Ok(())
    }

    fn add(&self, fd: impl AsFd, id: u64, flags: EventFlags) -> Result<(), DeviceError> {
        epoll::add(&self.set, fd, EventData::new_u64(id), flags)
            .map_err(|error| os("watch peer", error))
    }
}

/// An eventfd that does not block.
pub(crate) fn new_eventfd() -> Result<OwnedFd, DeviceError> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| os("make eventfd", error))
}

/// The id of our own eventfd; others use smaller ones.
const OWN: u64 = u64::MAX;

const EVENTS_PER_ROUND: usize = 64;
/// Descriptors that stay ready must not occupy the driver; the rest is handled by the next call.
const MAX_ROUNDS: usize = 16;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
