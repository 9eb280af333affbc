//! What the driver of a device waits on: an epoll set with an eventfd of our own in it.

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
    pub(crate) fn ring_own(&self) {
        // It is watched for edges and never read; a full counter makes no edge, but is 2^64 away.
        let _ = rustix::io::write(&self.own, &1_u64.to_ne_bytes());
    }

    /// Watches a descriptor for input, until it is read.
    pub(crate) fn watch(&self, fd: impl AsFd, id: u64) -> Result<(), DeviceError> {
        self.add(fd, id, EventFlags::IN | EventFlags::RDHUP)
    }

    /// Watches an eventfd, which need not be read.
    pub(crate) fn watch_edges(&self, fd: impl AsFd, id: u64) -> Result<(), DeviceError> {
        self.add(fd, id, EventFlags::IN | EventFlags::ET)
    }

    /// A descriptor that others share has to be taken out before it is closed.
    pub(crate) fn forget(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.set, fd);
    }

    /// Hands the ids of what rang to `each`, without waiting. Drivers may wait for edges, so what
    /// is left when there is very much rings again.
    pub(crate) fn rang(&self, mut each: impl FnMut(u64)) -> Result<(), DeviceError> {
        for _ in 0..MAX_ROUNDS {
            let mut events = [epoll::Event {
                flags: EventFlags::empty(),
                data: EventData::new_u64(0),
            }; EVENTS_PER_ROUND];
            let count = match epoll::wait(&self.set, &mut events[..], Some(&NOW)) {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(os("look at doorbell", error)),
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
        self.ring_own();
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
/// What rings again and again must not hold the driver; it comes back.
const MAX_ROUNDS: usize = 16;
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};
