//! A thread that does for a guest what no interrupt does: it looks whether the device was rung, and
//! shows that the device is alive.
//!
//! It looks only while the driver sleeps: at first every few tens of microseconds, then ever less
//! often, so that an idle guest is woken some hundred times a second at most. A busy driver looks
//! by itself and does not need it.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use smc_core::device::DeviceError;
use smc_core::mem::sync::{AtomicBool, Ordering};

use super::{BEAT, SILENCE};
use crate::fabric::doorbell::Doorbell;
use crate::lock;
use crate::shared::{Room, Sleep};

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Poller {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    room: Arc<Room>,
    slot: u16,
    doorbell: Arc<Doorbell>,
    /// Whether the device is rung by nothing else.
    must_look: bool,
    state: Mutex<State>,
    changed: Condvar,
    is_server_gone: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    is_armed: bool,
    is_over: bool,
}

impl Poller {
    /// Starts to show that the device is alive, and, if it has no interrupts, to look.
    pub(super) fn start(
        room: Arc<Room>,
        slot: u16,
        doorbell: Arc<Doorbell>,
        must_look: bool,
    ) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared {
            room,
            slot,
            doorbell,
            must_look,
            state: Mutex::default(),
            changed: Condvar::new(),
            is_server_gone: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("smc-ism".into());
        let run = {
            let shared = Arc::clone(&shared);
            move || shared.run()
        };
        let thread = thread
            .spawn(run)
            .map_err(|error| DeviceError::os("start thread of ivshmem device", &error))?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// The driver is about to sleep.
    pub(super) fn arm(&self) {
        if self.shared.must_look {
            lock(&self.shared.state).is_armed = true;
            self.shared.changed.notify_one();
        }
    }

    /// Whether the server has said that it ends, or not shown for long that it is alive.
    pub(super) fn is_server_gone(&self) -> bool {
        self.shared.room.has_keeper_ended() || self.shared.is_server_gone.load(Ordering::Acquire)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self) {
        let mut server = (self.room.keeper_beat(), Instant::now());
        let mut next_beat = Instant::now();
        let mut pause = SHORTEST;
        loop {
            let now = Instant::now();
            if now >= next_beat {
                next_beat = now + BEAT;
                self.room.beat(self.slot);
                self.look_after_server(&mut server, now);
            }
            let mut state = lock(&self.state);
            if state.is_over {
                return;
            }
            match self.room.sleep_of(self.slot) {
                // Again and again until the driver has looked, which it shows by another word: a
                // ring that it misses must not be the last one.
                Sleep::Rung if self.must_look => {
                    state.is_armed = true;
                    self.doorbell.ring_own();
                }
                Sleep::Awake => state.is_armed = false,
                Sleep::Rung | Sleep::Asleep => {}
            }
            let until_beat = next_beat.saturating_duration_since(now);
            let is_armed = state.is_armed;
            let time = if is_armed {
                pause.min(until_beat)
            } else {
                until_beat
            };
            let waited = self.changed.wait_timeout(state, time);
            let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            if is_armed && waited.timed_out() {
                pause = (pause * 5 / 4).min(LONGEST);
            } else if state.is_armed {
                pause = SHORTEST;
            }
        }
    }

    fn look_after_server(&self, (beat, since): &mut (u64, Instant), now: Instant) {
        let current = self.room.keeper_beat();
        if current != *beat {
            (*beat, *since) = (current, now);
        } else if now.duration_since(*since) > SILENCE
            && !self.is_server_gone.swap(true, Ordering::AcqRel)
        {
            self.doorbell.ring_own();
        }
    }
}

/// Between two looks.
const SHORTEST: Duration = Duration::from_micros(50);
const LONGEST: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use smc_core::mem::Region;

    use super::*;
    use crate::shared::Plan;

    #[test]
    fn a_sleeping_driver_is_rung_until_it_has_looked() {
        let plan = Plan {
            slots: 2,
            nocopy: false,
        };
        let room = Arc::new(Room::make(Region::anonymous(1 << 20), plan).unwrap());
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let bell = Arc::clone(&doorbell);
        let poller = Poller::start(Arc::clone(&room), 0, bell, true).unwrap();
        room.sleep(0);
        poller.arm();
        assert!(room.must_ring(0));
        let patience = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        for ring in 0..3 {
            let mut fds = [PollFd::from_borrowed_fd(doorbell.as_fd(), PollFlags::IN)];
            assert_eq!(poll(&mut fds, Some(&patience)).unwrap(), 1, "ring {ring}");
            doorbell.rang(|_| {}).unwrap();
        }
    }
}
