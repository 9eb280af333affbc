//! The registry of link groups, shared by set-ups, connections and drivers.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Poll, Waker};
use std::time::Instant;

use hashbrown::HashMap;
use smc_wire::types::Gid;

use super::driver::Slot;
use super::runtime::Runtime;
use crate::device::PeerEvent;
use crate::proto::group::{
    Admission, CREATOR_PATIENCE, Cause, DeviceIndex, GroupId, Intent, Key, NoGroup, Output,
    Registry, Seat, Snapshot, State, Terminated, Terms, Waiter,
};

/// The link groups of an endpoint.
///
/// The lock is held for one step of the registry, never while anything is waited for.
pub(crate) struct Groups {
    inner: Mutex<Inner>,
    runtime: Arc<dyn Runtime>,
    slots: OnceLock<Vec<Weak<Slot>>>,
}

struct Inner {
    registry: Registry,
    waiting: HashMap<Waiter, Waiting>,
}

enum Waiting {
    Asleep(Option<Waker>),
    Answered(Result<Seat, NoGroup>),
}

impl Groups {
    pub(crate) fn new(runtime: Arc<dyn Runtime>) -> Arc<Self> {
        let inner = Inner {
            registry: Registry::new(),
            waiting: HashMap::new(),
        };
        Arc::new(Self {
            inner: Mutex::new(inner),
            runtime,
            slots: OnceLock::new(),
        })
    }

    /// Says which devices there are, once.
    pub(crate) fn set_slots(&self, slots: &[Arc<Slot>]) {
        let weak = slots.iter().map(Arc::downgrade).collect();
        // An endpoint is built once.
        let _first = self.slots.set(weak);
    }

    /// Takes a place in a group, waiting for whoever is just creating it.
    ///
    /// Dropping the future gives up the place.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        key: Key,
        intent: Intent,
    ) -> Result<Membership, NoGroup> {
        let now = self.runtime.now();
        let admission = self.step(|inner| {
            let admission = inner.registry.enter(now, key, intent);
            if let Admission::Wait(waiter) = admission {
                inner.waiting.insert(waiter, Waiting::Asleep(None));
            }
            admission
        });
        let seat = match admission {
            Admission::Now(seat) => seat,
            Admission::Wait(waiter) => self.wait(waiter).await,
        };
        seat.map(|seat| Membership {
            groups: Arc::clone(self),
            seat,
        })
    }

    async fn wait(&self, waiter: Waiter) -> Result<Seat, NoGroup> {
        let guard = CancelOnDrop {
            groups: self,
            waiter,
        };
        let mut patience = self.runtime.timer(self.runtime.now() + CREATOR_PATIENCE);
        poll_fn(|cx| {
            if patience.as_mut().poll(cx).is_ready() {
                let now = self.runtime.now();
                self.step(|inner| inner.registry.handle_timeout(now));
            }
            match self.lock().waiting.get_mut(&guard.waiter) {
                Some(Waiting::Answered(seat)) => {
                    let seat = *seat;
                    Poll::Ready(seat)
                }
                Some(Waiting::Asleep(waker)) => {
                    *waker = Some(cx.waker().clone());
                    Poll::Pending
                }
                None => Poll::Ready(Err(NoGroup)),
            }
        })
        .await
        .inspect(|_| guard.keep())
    }

    pub(crate) fn establish(&self, group: GroupId, terms: Terms) -> Result<(), Terminated> {
        self.step(|inner| inner.registry.establish(group, terms))
    }

    pub(crate) fn terminate(&self, group: GroupId, cause: Cause) {
        self.step(|inner| inner.registry.terminate(group, cause));
    }

    pub(crate) fn peer_gone(&self, device: DeviceIndex, peer: Gid) {
        self.step(|inner| inner.registry.peer_gone(device, peer));
    }

    pub(crate) fn device_gone(&self, device: DeviceIndex) {
        self.step(|inner| inner.registry.device_gone(device));
    }

    pub(crate) fn shutdown(&self) {
        self.step(|inner| inner.registry.shutdown());
    }

    /// Whether connections may (still) be in the group.
    pub(crate) fn is_usable(&self, group: GroupId) -> bool {
        let snapshot = self.lock().registry.snapshot(group);
        snapshot.is_some_and(|group| group.state != State::Terminating)
    }

    pub(crate) fn snapshots(&self) -> Vec<Snapshot> {
        self.lock().registry.snapshots()
    }

    /// Does what is due. Returns when something will be.
    pub(crate) fn next_timeout(&self, now: Instant) -> Option<Instant> {
        let due = self.lock().registry.poll_timeout()?;
        if due > now {
            return Some(due);
        }
        self.step(|inner| inner.registry.handle_timeout(now));
        self.lock().registry.poll_timeout()
    }

    /// One mutation of the registry, and what comes of it.
    fn step<T>(&self, mutate: impl FnOnce(&mut Inner) -> T) -> T {
        let mut woken = Vec::new();
        let mut ended = Vec::new();
        let (result, sooner) = {
            let mut inner = self.lock();
            let before = inner.registry.poll_timeout();
            let result = mutate(&mut inner);
            while let Some(output) = inner.registry.poll_output() {
                match output {
                    Output::Ready { waiter, seat } => {
                        let answer = Waiting::Answered(seat);
                        if let Some(Waiting::Asleep(Some(waker))) =
                            inner.waiting.insert(waiter, answer)
                        {
                            woken.push(waker);
                        }
                    }
                    output => ended.push(output),
                }
            }
            let after = inner.registry.poll_timeout();
            (
                result,
                after.is_some_and(|after| before.is_none_or(|before| after < before)),
            )
        };
        woken.into_iter().for_each(Waker::wake);
        for output in ended {
            self.end(output);
        }
        if sooner {
            for slot in self.slots() {
                slot.call_driver();
            }
        }
        result
    }

    fn end(&self, output: Output) {
        match output {
            Output::Terminate { group, key, cause } => {
                if let Some(slot) = self.slot(key.device()) {
                    slot.group_ended(group, cause);
                }
            }
            Output::Removed { key, cause, .. } if cause.is_local() => {
                let (Some(slot), Some(peer)) = (self.slot(key.device()), key.peer()) else {
                    return;
                };
                let direct = slot.device().fabric().direct();
                if let Some(events) = direct.and_then(|direct| direct.peer_events()) {
                    // A peer that cannot be told finds out when it uses the group.
                    let _best_effort = events.signal_event(peer, PeerEvent::Shutdown);
                }
            }
            Output::Removed { .. } | Output::Ready { .. } => {}
        }
    }

    fn slot(&self, device: DeviceIndex) -> Option<Arc<Slot>> {
        self.slots.get()?.get(device.0)?.upgrade()
    }

    fn slots(&self) -> impl Iterator<Item = Arc<Slot>> {
        self.slots
            .get()
            .into_iter()
            .flatten()
            .filter_map(Weak::upgrade)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Groups").finish_non_exhaustive()
    }
}

/// A place in a link group; dropping it leaves the group.
#[derive(Debug)]
pub(crate) struct Membership {
    groups: Arc<Groups>,
    seat: Seat,
}

impl Membership {
    pub(crate) fn seat(&self) -> Seat {
        self.seat
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let now = self.groups.runtime.now();
        let group = self.seat.group();
        self.groups.step(|inner| inner.registry.leave(now, group));
    }
}

/// Takes back the wish for a place.
struct CancelOnDrop<'a> {
    groups: &'a Groups,
    waiter: Waiter,
}

impl CancelOnDrop<'_> {
    /// The place was taken.
    fn keep(&self) {
        self.groups.lock().waiting.remove(&self.waiter);
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        let now = self.groups.runtime.now();
        let waiter = self.waiter;
        self.groups
            .step(|inner| match inner.waiting.remove(&waiter) {
                Some(Waiting::Answered(Ok(seat))) => inner.registry.leave(now, seat.group()),
                Some(_) => inner.registry.cancel(now, waiter),
                None => {}
            });
    }
}
