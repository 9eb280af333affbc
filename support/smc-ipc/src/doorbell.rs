//! Descriptors that a driver waits for, and eventfds that wake it.
//!
//! A [`Doorbell`] is one descriptor for all: an epoll set with an eventfd of its own in it. Nothing
//! here waits, but [`WatchSet::watch`] and [`register`] for part of a second.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

use crate::OsError;
use crate::thread::{Lock, run};

/// What a driver waits for. Drivers may be edge-triggered.
#[derive(Debug)]
pub struct Doorbell {
    set: WatchSet,
    own: Arc<OwnedFd>,
}

impl Doorbell {
    /// One with nothing but the own eventfd, which has the number [`OWN`].
    ///
    /// # Errors
    ///
    /// When there is no descriptor left.
    pub fn new() -> Result<Self, OsError> {
        let (set, own) = (WatchSet::new()?, Arc::new(new_eventfd()?));
        // Nothing watches the set yet.
        set.add(&own, OWN, EDGES).map_err(failed(WATCH))?;
        Ok(Self { set, own })
    }

    /// The eventfd by which the driver is woken. It is never read.
    #[must_use]
    pub fn own(&self) -> &Arc<OwnedFd> {
        &self.own
    }

    /// Wakes the driver.
    pub fn notify_self(&self) {
        notify(&self.own);
    }

    /// The descriptors that are watched.
    #[must_use]
    pub fn set(&self) -> &WatchSet {
        &self.set
    }

    /// Passes numbers of ready descriptors to `each`, and wakes the driver if there may be more.
    ///
    /// # Errors
    ///
    /// As `epoll_wait(2)`.
    pub fn poll(&self, mut each: impl FnMut(u64)) -> Result<(), OsError> {
        for _ in 0..MAX_ROUNDS {
            if !self.set.poll_round(|id, _, _| each(id))? {
                return Ok(());
            }
        }
        self.notify_self();
        Ok(())
    }

    /// One round of a set, which is that of this doorbell or watched by it: passes each ready
    /// descriptor with its share of [`PACKETS_PER_ROUND`] to `each`, which receives no more from
    /// it. Returns whether there may be more descriptors, for which it wakes the driver as well.
    ///
    /// The system reports ready descriptors in turn. So a descriptor that is always ready delays
    /// others, and keeps none of them waiting without end.
    ///
    /// # Errors
    ///
    /// As `epoll_wait(2)`.
    pub fn poll_round(
        &self,
        set: &WatchSet,
        each: impl FnMut(u64, EventFlags, usize),
    ) -> Result<bool, OsError> {
        let more = set.poll_round(each)?;
        if more {
            self.notify_self();
        }
        Ok(more)
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

/// An epoll set: descriptors that are watched under numbers.
///
/// To add to a set that is watched itself takes a lock of the whole system, which any user can
/// hold. So descriptors are added on a thread ([`Lock::NestedEpoll`]), for which the caller waits
/// half a second at most.
#[derive(Clone, Debug)]
pub struct WatchSet(Arc<OwnedFd>);

impl WatchSet {
    /// An empty one.
    ///
    /// # Errors
    ///
    /// When there is no descriptor left.
    pub fn new() -> Result<Self, OsError> {
        let set = epoll::create(CreateFlags::CLOEXEC);
        Ok(Self(Arc::new(set.map_err(failed("make doorbell"))?)))
    }

    /// Watches a descriptor for input and for the end of the peer, level-triggered.
    ///
    /// # Errors
    ///
    /// As `epoll_ctl(2)`; `TimedOut` if another user holds the lock.
    pub fn watch<F>(&self, fd: &Arc<F>, id: u64) -> Result<(), OsError>
    where
        F: AsFd + Send + Sync + 'static,
    {
        self.add_on_thread(fd, id, INPUT)
    }

    /// Watches what is ready in another set, level-triggered.
    ///
    /// # Errors
    ///
    /// As [`WatchSet::watch`].
    pub fn watch_set(&self, set: &Self, id: u64) -> Result<(), OsError> {
        self.watch(&set.0, id)
    }

    /// Watches an eventfd, edge-triggered: a write makes an edge whatever the count is, so that it
    /// need not be read. Only a full counter makes none, which takes 2^64 writes.
    ///
    /// # Errors
    ///
    /// As [`WatchSet::watch`].
    pub fn watch_edges<F>(&self, fd: &Arc<F>, id: u64) -> Result<(), OsError>
    where
        F: AsFd + Send + Sync + 'static,
    {
        self.add_on_thread(fd, id, EDGES)
    }

    /// Watches a descriptor that is watched already also for space, or no longer.
    ///
    /// # Errors
    ///
    /// As `epoll_ctl(2)`.
    pub fn watch_writable(&self, fd: impl AsFd, id: u64, on: bool) -> Result<(), OsError> {
        let space = match on {
            true => EventFlags::OUT,
            false => EventFlags::empty(),
        };
        let id = EventData::new_u64(id);
        epoll::modify(&self.0, fd, id, INPUT | space).map_err(failed(WATCH))
    }

    /// Stops watching a descriptor. One that other processes share has to be taken out before it is
    /// closed.
    pub fn unwatch(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.0, fd);
    }

    fn add_on_thread<F>(&self, fd: &Arc<F>, id: u64, flags: EventFlags) -> Result<(), OsError>
    where
        F: AsFd + Send + Sync + 'static,
    {
        // The descriptor stays open until it was added, whatever the caller does meanwhile: its
        // number must not be that of another one.
        let (set, fd) = (self.clone(), Arc::clone(fd));
        let add = move || set.add(&fd, id, flags).map(|()| Added(Some((set, fd))));
        let added = run(Lock::NestedEpoll, NESTED_LIMIT, add);
        let mut added = added.and_then(|added| added).map_err(failed(WATCH))?;
        added.0 = None;
        Ok(())
    }

    fn add(&self, fd: impl AsFd, id: u64, flags: EventFlags) -> Result<(), Errno> {
        epoll::add(&self.0, fd, EventData::new_u64(id), flags)
    }

    /// Passes ready descriptors to `each`; whether there may be more. Edges are consumed.
    fn poll_round(&self, mut each: impl FnMut(u64, EventFlags, usize)) -> Result<bool, OsError> {
        let mut events = [epoll::Event {
            flags: EventFlags::empty(),
            data: EventData::new_u64(0),
        }; EVENTS_PER_ROUND];
        let count = match epoll::wait(&self.0, &mut events[..], Some(&NOW)) {
            Ok(count) => count,
            Err(Errno::INTR) => return Ok(true),
            Err(error) => return Err(failed("poll the doorbell")(error)),
        };
        let share = PACKETS_PER_ROUND / count.max(1);
        for event in &events[..count] {
            each(event.data.u64(), event.flags, share);
        }
        Ok(count == EVENTS_PER_ROUND)
    }
}

impl AsFd for WatchSet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A descriptor that was added to a set. It is taken out again if the caller waits no more.
struct Added<F: AsFd>(Option<(WatchSet, Arc<F>)>);

impl<F: AsFd> Drop for Added<F> {
    fn drop(&mut self) {
        if let Some((set, fd)) = self.0.take() {
            set.unwatch(&fd);
        }
    }
}

/// Has `register` add a descriptor that can be an epoll set to that of a reactor, on the thread of
/// [`WatchSet`]. It gets a duplicate.
///
/// # Errors
///
/// As `register`; `TimedOut` if another user holds the lock.
pub fn register<T: Send + 'static>(
    fd: impl AsFd,
    register: impl FnOnce(BorrowedFd<'_>) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let fd = fd.as_fd().try_clone_to_owned()?;
    let register = move || register(fd.as_fd());
    run(Lock::NestedEpoll, NESTED_LIMIT, register)?
}

/// An eventfd that does not block.
///
/// # Errors
///
/// When there is no descriptor left.
pub fn new_eventfd() -> Result<OwnedFd, OsError> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    eventfd(0, flags).map_err(failed("make eventfd"))
}

/// Adds 1 to an eventfd that does not block.
pub fn notify(eventfd: impl AsFd) {
    // A full one was notified before.
    let _ = rustix::io::write(eventfd, &1_u64.to_ne_bytes());
}

fn failed(operation: &'static str) -> impl FnOnce(Errno) -> OsError {
    move |errno| OsError::new(operation, &errno.into())
}

/// The number of a doorbell's own eventfd; others have smaller ones.
pub const OWN: u64 = u64::MAX;

const INPUT: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);
const EDGES: EventFlags = EventFlags::IN.union(EventFlags::ET);
const WATCH: &str = "watch peer";
const EVENTS_PER_ROUND: usize = 64;
/// Packets that a round receives at most, for peers that send without end: one from each descriptor
/// if as many as possible are ready.
pub const PACKETS_PER_ROUND: usize = EVENTS_PER_ROUND;
/// Descriptors that are always ready must not occupy the driver; the rest is for the next poll.
const MAX_ROUNDS: usize = 16;
/// How long a caller waits for the lock of nested sets. Longer than for that of a directory, as
/// what needs the call is not made later: a busy machine must not take the lock for held.
const NESTED_LIMIT: Duration = Duration::from_millis(500);
const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

#[cfg(test)]
mod tests {
    use super::*;

    fn eventfd() -> Arc<OwnedFd> {
        Arc::new(new_eventfd().unwrap())
    }

    #[test]
    fn a_set_inside_of_a_doorbell_is_one_of_its_descriptors() {
        let doorbell = Doorbell::new().unwrap();
        let inner = WatchSet::new().unwrap();
        let ready: Vec<_> = (0..2).map(|_| eventfd()).collect();
        for (id, eventfd) in ready.iter().enumerate() {
            notify(eventfd);
            inner.watch(eventfd, id as u64).unwrap();
        }
        doorbell.set().watch_set(&inner, 7).unwrap();
        let mut seen = Vec::new();
        doorbell.poll(|id| seen.push(id)).unwrap();
        assert_eq!(seen, [7]);
        seen.clear();
        let more = doorbell.poll_round(&inner, |id, _, share| {
            seen.push(id);
            assert_eq!(share, PACKETS_PER_ROUND / 2);
        });
        assert!(!more.unwrap());
        seen.sort_unstable();
        assert_eq!(seen, [0, 1]);
        // Nothing is left over, so the own eventfd is not ready.
        seen.clear();
        inner.unwatch(&ready[0]);
        inner.unwatch(&ready[1]);
        doorbell.poll(|id| seen.push(id)).unwrap();
        assert_eq!(seen, [0; 0]);
        doorbell.notify_self();
        doorbell.poll(|id| seen.push(id)).unwrap();
        assert_eq!(seen, [OWN]);
    }

    #[test]
    fn rounds_pass_descriptors_that_are_always_ready_in_turn_one_packet_each() {
        let doorbell = Doorbell::new().unwrap();
        let eventfds: Vec<_> = (0..EVENTS_PER_ROUND * 2).map(|_| eventfd()).collect();
        let inner = WatchSet::new().unwrap();
        for (id, eventfd) in eventfds.iter().enumerate() {
            notify(eventfd);
            inner.watch(eventfd, id as u64).unwrap();
        }
        let mut seen = Vec::new();
        for _ in 0..2 {
            let more = doorbell.poll_round(&inner, |id, _, share| {
                seen.push(id);
                assert_eq!(share, 1);
            });
            assert!(more.unwrap());
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..eventfds.len() as u64).collect::<Vec<_>>());
    }

    #[test]
    fn a_poll_is_bounded_and_wakes_the_driver_for_the_rest() {
        let doorbell = Doorbell::new().unwrap();
        let eventfds: Vec<_> = (0..EVENTS_PER_ROUND).map(|_| eventfd()).collect();
        for (id, eventfd) in eventfds.iter().enumerate() {
            notify(eventfd);
            doorbell.set().watch(eventfd, id as u64).unwrap();
        }
        let mut count = 0;
        doorbell.poll(|_| count += 1).unwrap();
        assert_eq!(count, MAX_ROUNDS * EVENTS_PER_ROUND);
        eventfds.iter().for_each(|it| doorbell.set().unwatch(it));
        let mut seen = Vec::new();
        doorbell.poll(|id| seen.push(id)).unwrap();
        assert_eq!(seen, [OWN], "the driver is not woken for the rest");
    }
}
