//! The limit of a process for the memory of connections, and what is given back at the limit.

use std::path::Path;
use std::sync::OnceLock;

use smc_ipc::cgroup;

use super::endpoint::EndpointInner;
use crate::config::MEMORY_SHARE;
use crate::device::{MemoryLimit, TrimMemory};
use crate::error::OsError;

/// The shared limit of all endpoints of this process without their own.
///
/// # Errors
///
/// For lack of descriptors or memory, without which it is unknown.
pub(crate) fn default_limit() -> Result<MemoryLimit, OsError> {
    static LIMIT: OnceLock<MemoryLimit> = OnceLock::new();
    if let Some(limit) = LIMIT.get() {
        return Ok(limit.clone());
    }
    let memory = cgroup::memory(Path::new("/"))?;
    let share = memory.map_or(u64::MAX, |bytes| bytes / MEMORY_SHARE);
    let limit = || MemoryLimit::new(usize::try_from(share).unwrap_or(usize::MAX));
    Ok(LIMIT.get_or_init(limit).clone())
}

impl TrimMemory for EndpointInner {
    /// Trims pooled buffers. Later connections then have to allocate them anew, so a smaller buffer
    /// is tried first.
    fn trim(&self) {
        for driver in self.drivers.iter() {
            driver.device.trim_memory();
        }
        for group in self.groups.all_rdma() {
            group.trim();
        }
        self.groups.spares.clear();
    }
}
