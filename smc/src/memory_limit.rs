//! Memory of connections: the limit of a process, and the charges of peers' buffers.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use smc_wire::size::SizeCode;
use smc_wire::types::DmbToken;

use super::device_driver::DeviceDriver;
use super::endpoint::EndpointInner;
use crate::config::MEMORY_SHARE;
use crate::device::{Charge, DeviceError, MemoryLimit, TrimMemory};
use smc_ipc::cgroup;

/// The shared limit of all endpoints of this process without their own.
pub(crate) fn default_limit() -> MemoryLimit {
    static LIMIT: OnceLock<MemoryLimit> = OnceLock::new();
    let limit = LIMIT.get_or_init(|| {
        let memory = cgroup::memory(Path::new("/"));
        let share = memory.map_or(u64::MAX, |bytes| bytes / MEMORY_SHARE);
        MemoryLimit::new(usize::try_from(share).unwrap_or(usize::MAX))
    });
    limit.clone()
}

impl EndpointInner {
    /// Checks whether the limit allows a local buffer of this size, and charges the peer's buffer.
    ///
    /// Called before a handshake commits to either buffer, when a smaller size or TCP is still
    /// possible. The device charges the local buffer.
    pub(crate) fn admit(&self, own: SizeCode, peer: usize) -> Result<Charge, DeviceError> {
        self.try_admit(own, peer).or_else(|_| {
            self.groups.memory.release_unneeded();
            if own == SizeCode::MIN {
                self.groups.memory.trim();
            }
            self.try_admit(own, peer)
        })
    }

    fn try_admit(&self, own: SizeCode, peer: usize) -> Result<Charge, DeviceError> {
        let (len, available) = (own.byte_len(), self.groups.memory.available());
        let is_fair = own == SizeCode::MIN || len <= available / BUFFERS_LEFT;
        // Twice, as a device may also charge its mapping of the peer's buffer.
        let needed = peer.saturating_mul(2).saturating_add(len);
        if !is_fair || needed > available {
            return Err(self.groups.memory.exceeded(needed));
        }
        self.groups.memory.charge(peer)
    }
}

impl TrimMemory for EndpointInner {
    /// Trims pooled buffers. Later connections then have to allocate them anew, so a smaller buffer
    /// is tried first.
    fn trim(&self) {
        for driver in self.drivers.iter() {
            driver.device.trim_memory();
        }
        for group in self.groups.all_rdma() {
            group.pool.trim();
        }
        self.groups.spares.clear();
    }
}

/// The charge of the peer's buffer of an SMC-D connection: the system charges its pages to the
/// process that writes them first.
///
/// When this is dropped, the charge stays until the peer has released the buffer.
pub(crate) struct PeerCharge {
    /// Taken when dropped.
    charge: Option<Charge>,
    driver: Arc<DeviceDriver>,
    token: DmbToken,
}

impl PeerCharge {
    /// For a buffer of this length, which is known by now.
    pub(crate) fn new(
        mut charge: Charge,
        len: usize,
        driver: &Arc<DeviceDriver>,
        token: DmbToken,
    ) -> Result<Self, DeviceError> {
        charge.resize(len)?;
        Ok(Self {
            charge: Some(charge),
            driver: Arc::clone(driver),
            token,
        })
    }
}

impl Drop for PeerCharge {
    fn drop(&mut self) {
        let (driver, token) = (Arc::downgrade(&self.driver), self.token);
        let is_offered = move || {
            let driver = driver.upgrade();
            driver.is_some_and(|driver| {
                let direct = driver.device.fabric().direct();
                direct.is_some_and(|direct| direct.is_offered(token))
            })
        };
        if let Some(charge) = self.charge.take() {
            charge.defer_while(is_offered);
        }
    }
}

/// The fraction of the available memory for a buffer that is not the smallest, so that buffers get
/// smaller before memory is exhausted.
const BUFFERS_LEFT: usize = 64;
