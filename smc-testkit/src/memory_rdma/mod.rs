//! An SMC-R fabric inside one process, in safe code: RDMA devices that reach each other.
//!
//! An [`RdmaNetwork`] makes [`MemoryRdma`] devices. They check what real queue pairs check: a link
//! works only if both ends were given the right number, packet sequence number and MTU of the
//! other, writes need a key and stay in bounds, messages need a receive buffer, and a sender
//! without an answer gives up after a while.
//!
//! Without a clock nothing takes time: a post has arrived when the call returns. With
//! [`RdmaNetwork::with_clock`], on a [`VirtualRuntime`](crate::runtime::VirtualRuntime) or any
//! other, packets and acknowledgements are under way for a time, in an order that follows from the
//! seed. Memory is read when a packet leaves for the last time, not when it is posted, so that
//! changing it too early shows.
//!
//! The test configures failures: see [`MemoryRdma`] for one device and its links, and
//! [`RdmaNetwork::cut`] for everything.
//!
//! ```
//! use smc_core::device::{Operations, Device};
//! use smc_testkit::memory_rdma::RdmaNetwork;
//!
//! let network = RdmaNetwork::new(1);
//! let (local, peer) = (network.device("rdma0"), network.device("rdma1"));
//! let Operations::Rdma(rdma) = local.operations() else { unreachable!() };
//! assert!(!rdma.addresses().is_empty());
//! # let _ = peer;
//! ```

mod device;
mod domain;
mod faults;
mod handles;
mod options;
mod pair;
mod state;
mod transfer;

pub use device::MemoryRdma;
pub use faults::{LinkInfo, LinkPhase, Loss, Lost};
pub use options::RdmaOptions;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use smc_core::runtime::Runtime;

use crate::Rng;
use state::NetworkState;
pub(crate) use state::link_of;

/// A network that connects the devices it makes. Clones are the same network.
#[derive(Clone, Debug)]
pub struct RdmaNetwork {
    shared: Arc<SharedNetwork>,
}

impl RdmaNetwork {
    /// A network without devices, on which nothing takes time. The seed decides all names and
    /// delays.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::over(seed, Timing::default())
    }

    /// A network on which things take time: latency 5 us, no jitter, 1.1 s until a sender gives
    /// up, no time for set-up calls.
    #[must_use]
    pub fn with_clock(seed: u64, clock: Arc<dyn Runtime>) -> Self {
        let timing = Timing {
            clock: Some(clock),
            latency: Duration::from_micros(5),
            retry: Duration::from_millis(1100),
            ..Timing::default()
        };
        Self::over(seed, timing)
    }

    fn over(seed: u64, timing: Timing) -> Self {
        let state = Mutex::new(NetworkState::new(Rng::new(seed)));
        let timing = Mutex::new(timing);
        Self {
            shared: Arc::new(SharedNetwork { state, timing }),
        }
    }

    /// Sets how long packets and acknowledgements are under way from now on: `latency`, and up to
    /// `jitter` more at random. Those of one link stay in order. Without a clock it has no effect.
    pub fn set_latency(&self, latency: Duration, jitter: Duration) {
        let mut timing = self.shared.timing();
        (timing.latency, timing.jitter) = (latency, jitter);
    }

    /// Sets how long a sender without an answer tries on, from now on. Without a clock it gives up
    /// at once.
    pub fn set_retry_time(&self, time: Duration) {
        self.shared.timing().retry = time;
    }

    /// Sets how long opening, connecting and registering take from now on. Without a clock they
    /// take no time.
    pub fn set_setup_time(&self, time: Duration) {
        self.shared.timing().setup = time;
    }

    /// A new device with one active port: an IPv4 address of 10.77.0.0/16 and a link-local one,
    /// each for both kinds of packets, MTU 1024, and no network interface.
    #[must_use]
    pub fn device(&self, name: &str) -> Arc<MemoryRdma> {
        self.device_with(name, RdmaOptions::default())
    }

    /// A new device.
    #[must_use]
    pub fn device_with(&self, name: &str, options: RdmaOptions) -> Arc<MemoryRdma> {
        Arc::new(MemoryRdma::new(name, options, &self.shared))
    }

    /// From now on every packet and acknowledgement is lost. Every sender learns of it with
    /// [`RetryExceeded`](smc_core::device::LinkFailure::RetryExceeded) after the retry time;
    /// idle links do not notice.
    pub fn cut(&self) {
        self.shared.lock().is_cut = true;
    }

    /// Ends a [`cut`](Self::cut). Links that have not given up go on where they were.
    pub fn repair(&self) {
        let mut state = self.shared.lock();
        state.is_cut = false;
        state.retry_all();
    }

    /// Stops all packets where they are, without a loss and without end.
    pub fn pause(&self) {
        self.shared.lock().is_paused = true;
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        let mut state = self.shared.lock();
        state.is_paused = false;
        state.retry_all();
    }
}

/// What all devices of a network share.
struct SharedNetwork {
    state: Mutex<NetworkState>,
    timing: Mutex<Timing>,
}

impl fmt::Debug for SharedNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaNetwork").finish_non_exhaustive()
    }
}

/// How long things take. Without a clock nothing does.
#[derive(Clone, Default)]
struct Timing {
    clock: Option<Arc<dyn Runtime>>,
    latency: Duration,
    jitter: Duration,
    retry: Duration,
    setup: Duration,
}

#[cfg(test)]
mod tests;
