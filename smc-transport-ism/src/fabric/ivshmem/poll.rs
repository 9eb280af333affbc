//! A polling thread for guests without interrupts: it checks whether the device was notified, and
//! sends the heartbeats of the device.
//!
//! It polls only while the driver sleeps: at first every few tens of microseconds, then with
//! increasing intervals, so that an idle guest is woken some hundred times a second at most. A
//! running driver polls by itself and does not need the thread.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use smc_core::device::DeviceError;
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_ipc::doorbell::Doorbell;

use super::{HEARTBEAT_INTERVAL, HEARTBEAT_TIMEOUT};
use crate::shared::{FabricMemory, Sleep};

/// The thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Poller {
    shared: Arc<Shared>,
    /// Says that the driver is about to sleep, if the thread is to poll then. `None` after drop.
    arm: Option<SyncSender<()>>,
    /// `None` after drop.
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    memory: Arc<FabricMemory>,
    slot: u16,
    doorbell: Arc<Doorbell>,
    /// Whether the device has no interrupt.
    must_poll: bool,
    is_server_gone: AtomicBool,
}

impl Poller {
    /// Starts to send heartbeats, and to poll if the device has no interrupt.
    pub(super) fn start(
        memory: Arc<FabricMemory>,
        slot: u16,
        doorbell: Arc<Doorbell>,
        must_poll: bool,
    ) -> Result<Self, DeviceError> {
        let shared = Arc::new(Shared {
            memory,
            slot,
            doorbell,
            must_poll,
            is_server_gone: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new().name("smc-ism".into());
        // One message is enough for all calls that the thread has not seen yet.
        let (arm, armed) = sync_channel(1);
        let run = {
            let shared = Arc::clone(&shared);
            move || shared.run(&armed)
        };
        let thread = thread
            .spawn(run)
            .map_err(|error| DeviceError::os("start thread of ivshmem device", &error))?;
        Ok(Self {
            shared,
            arm: Some(arm),
            thread: Some(thread),
        })
    }

    /// The driver is about to sleep.
    pub(super) fn arm(&self) {
        if let Some(arm) = self.arm.as_ref().filter(|_| self.shared.must_poll) {
            let _ = arm.try_send(());
        }
    }

    /// Whether the server has ended, or its heartbeats have stopped.
    pub(super) fn is_server_gone(&self) -> bool {
        self.shared.memory.has_server_ended() || self.shared.is_server_gone.load(Ordering::Acquire)
    }
}

impl Drop for Poller {
    fn drop(&mut self) {
        drop(self.arm.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn run(&self, armed: &Receiver<()>) {
        let mut server = (self.memory.server_heartbeat(), Instant::now());
        let mut next_heartbeat = Instant::now();
        let mut pause = MIN_POLL_INTERVAL;
        let mut is_armed = false;
        loop {
            let now = Instant::now();
            if now >= next_heartbeat {
                next_heartbeat = now + HEARTBEAT_INTERVAL;
                self.memory.bump_heartbeat(self.slot);
                self.check_server_heartbeat(&mut server, now);
            }
            match self.memory.sleep_of(self.slot) {
                // Repeated until the driver has polled and changed the word: a notification that
                // it misses must not be the last one.
                Sleep::Notified if self.must_poll => {
                    is_armed = true;
                    self.doorbell.notify_self();
                }
                Sleep::Awake => is_armed = false,
                Sleep::Notified | Sleep::Asleep => {}
            }
            let until_heartbeat = next_heartbeat.saturating_duration_since(now);
            let time = if is_armed {
                pause.min(until_heartbeat)
            } else {
                until_heartbeat
            };
            match armed.recv_timeout(time) {
                Ok(()) => (is_armed, pause) = (true, MIN_POLL_INTERVAL),
                Err(RecvTimeoutError::Timeout) if is_armed => {
                    pause = (pause * 5 / 4).min(MAX_POLL_INTERVAL);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn check_server_heartbeat(&self, (heartbeat, since): &mut (u64, Instant), now: Instant) {
        let current = self.memory.server_heartbeat();
        if current != *heartbeat {
            (*heartbeat, *since) = (current, now);
        } else if now.duration_since(*since) > HEARTBEAT_TIMEOUT
            && !self.is_server_gone.swap(true, Ordering::AcqRel)
        {
            self.doorbell.notify_self();
        }
    }
}

/// Time between two polls.
const MIN_POLL_INTERVAL: Duration = Duration::from_micros(50);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(2);

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use smc_core::mem::Region;

    use super::*;
    use crate::shared::FabricOptions;

    #[test]
    fn a_sleeping_driver_is_notified_until_it_has_polled() {
        let options = FabricOptions::default();
        let memory = Arc::new(FabricMemory::create(Region::anonymous(1 << 20), options).unwrap());
        let doorbell = Arc::new(Doorbell::new().unwrap());
        let poller = Poller::start(Arc::clone(&memory), 0, Arc::clone(&doorbell), true).unwrap();
        memory.sleep(0);
        poller.arm();
        assert!(memory.must_notify(0));
        let timeout = Timespec {
            tv_sec: 10,
            tv_nsec: 0,
        };
        for round in 0..3 {
            let mut fds = [PollFd::new(&*doorbell, PollFlags::IN)];
            assert_eq!(
                poll(&mut fds, Some(&timeout)).unwrap(),
                1,
                "notification {round}"
            );
            doorbell.poll(|_| {}).unwrap();
        }
    }
}
