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
            is_armed = self.poll(is_armed);
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

    /// Notifies the driver if a peer has. Returns whether to poll on.
    fn poll(&self, is_armed: bool) -> bool {
        match self.memory.sleep_of(self.slot) {
            // Repeated until the driver has polled and changed the word: a notification that it
            // misses must not be the last one.
            Sleep::Notified if self.must_poll => {
                self.doorbell.notify_self();
                true
            }
            Sleep::Awake => false,
            Sleep::Notified | Sleep::Asleep => is_armed,
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

#[cfg(all(test, smc_loom))]
mod models {
    use loom::thread;
    use smc_core::mem::Region;
    use smc_core::mem::sync::model::{Mutation, check, with};

    use super::*;
    use crate::shared::FabricOptions;

    #[test]
    fn a_driver_that_sleeps_is_notified_by_the_thread() {
        sleeps(None, None);
    }

    #[test]
    #[should_panic(expected = "neither seen nor notified")]
    fn a_driver_that_sleeps_out_of_order_misses_what_was_written() {
        sleeps(Some(Mutation::NoSeqCst), None);
    }

    #[test]
    #[should_panic(expected = "neither seen nor notified")]
    fn a_peer_that_writes_out_of_order_misses_that_the_driver_sleeps() {
        sleeps(None, Some(Mutation::NoSeqCst));
    }

    /// The driver sleeps, while a peer writes and the thread polls. Afterwards the thread does what
    /// it repeats.
    fn sleeps(sleeping: Option<Mutation>, writing: Option<Mutation>) {
        check(move || {
            let memory = FabricMemory::create(Region::anonymous(LEN), OPTIONS).unwrap();
            let (arm, armed) = sync_channel(1);
            let shared = Arc::new(Shared {
                memory: Arc::new(memory),
                slot: 0,
                doorbell: Arc::new(Doorbell::new().unwrap()),
                must_poll: true,
                is_server_gone: AtomicBool::new(false),
            });
            let memory = &*shared.memory;
            let drain = |memory: &FabricMemory| {
                let mut is_ready = false;
                memory.take_ready(0, usize::MAX, |_| is_ready = true);
                is_ready
            };
            // Accesses all words before threads share them.
            memory.set_ready(0, 0);
            drain(memory);
            memory.wake(0);

            let writer = {
                let memory = Arc::clone(&shared.memory);
                thread::spawn(move || {
                    with(writing, || {
                        memory.set_ready(0, 0);
                        memory.must_notify(0);
                    });
                })
            };
            let poller = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    let is_armed = shared.poll(false);
                    (is_armed | armed.try_recv().is_ok(), armed)
                })
            };
            let is_seen = with(sleeping, || {
                drain(memory) || {
                    memory.sleep(0);
                    let _ = arm.try_send(());
                    drain(memory)
                }
            });
            writer.join().unwrap();
            let (was_armed, armed) = poller.join().unwrap();
            if !is_seen {
                let is_armed = shared.poll(was_armed) | armed.try_recv().is_ok();
                assert!(is_armed, "asleep, and no poll before the next heartbeat");
                shared.poll(is_armed);
                let mut is_notified = false;
                shared.doorbell.poll(|_| is_notified = true).unwrap();
                assert!(is_notified, "neither seen nor notified");
            }
        });
    }

    const LEN: usize = 160 << 10;
    const OPTIONS: FabricOptions = FabricOptions {
        slots: 2,
        nocopy: false,
    };
}

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
