//! An SMC-D fabric inside one process, in safe code.
//!
//! [`MemFabric`] makes [`MemDevice`]s that reach each other. Buffers are anonymous memory, the
//! doorbell is a waker, so the devices work with every runtime and need nothing from the system.
//! They serve simulations, and as the example of a device that keeps all the rules.

mod buffer;
mod device;

pub use device::MemDevice;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use smc_core::device::{Event, Limits};
use smc_wire::types::{Chid, DmbToken, Gid};

use crate::Rng;
use buffer::Buffer;
use device::Port;

/// A fabric that connects the devices it makes.
///
/// ```
/// use smc_testkit::memory_device::MemFabric;
///
/// let fabric = MemFabric::new(1);
/// let (local, peer) = (fabric.device("mem0"), fabric.device("mem1"));
/// # let _ = (local, peer);
/// ```
#[derive(Clone, Debug)]
pub struct MemFabric {
    shared: Arc<SharedFabric>,
    nocopy: bool,
    limits: Limits,
}

impl MemFabric {
    /// A fabric without devices. The seed decides GIDs and tokens.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let shared = SharedFabric {
            chid: CHID,
            rng: Mutex::new(Rng::new(seed)),
            table: RwLock::new(Table::default()),
        };
        Self {
            shared: Arc::new(shared),
            nocopy: true,
            limits: Limits::new(MAX_DMBS, MAX_DMB_LEN),
        }
    }

    /// A new device on the fabric.
    #[must_use]
    pub fn device(&self, name: &str) -> Arc<MemDevice> {
        let gid = self.shared.fresh_gid();
        let device = MemDevice::new(name, gid, self.nocopy, self.limits, &self.shared);
        Arc::new(device)
    }
}

setters! {
    MemFabric {
        /// Whether devices made from now on can map each other's buffers. They can by default.
        fn with_nocopy(nocopy: bool);
        /// Limits of devices made from now on.
        fn with_limits(limits: Limits);
    }
}

/// What all devices of a fabric share.
#[derive(Debug)]
struct SharedFabric {
    chid: Chid,
    rng: Mutex<Rng>,
    table: RwLock<Table>,
}

/// The devices that exist, and what may be written. Locked for the time of a look-up.
#[derive(Debug, Default)]
struct Table {
    ports: HashMap<Gid, Arc<Port>>,
    buffers: HashMap<DmbToken, Arc<Buffer>>,
}

impl SharedFabric {
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }

    fn bits(&self) -> u64 {
        self.rng
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .bits()
    }

    /// A 128-bit GID with a second half that is not zero: that marks emulated devices.
    fn fresh_gid(&self) -> Gid {
        Gid::new(self.bits(), self.bits() | 1)
    }

    /// Takes a device off the fabric with all its buffers and notifies all others, once.
    fn leave(&self, gid: Gid) {
        let mut table = self.write();
        if table.ports.remove(&gid).is_none() {
            return;
        }
        table.buffers.retain(|_, buffer| !buffer.is_owned_by(gid));
        for port in table.ports.values() {
            port.report(Event::PeerGone(gid));
        }
    }
}

/// On the emulated range, and not the loopback device of an operating system.
const CHID: Chid = Chid(0xff10);

/// As many as ISM hardware has.
const MAX_DMBS: usize = 1920;

/// The longest of the DMB sizes, 2^20.
const MAX_DMB_LEN: usize = 1 << 20;

#[cfg(test)]
mod tests;
