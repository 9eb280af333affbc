//! A queue pair and registered buffers, made in advance for the first contact of the next link
//! group: making them takes a device longer than the messages of a handshake.

use std::sync::Arc;

use smc_wire::size::SizeCode;

use super::super::groups::Groups;
use super::buffer_pool::RdmaBuffer;
use crate::device::{Access, DeviceError, MemoryLimit, PendingLink, ProtectionDomain, RdmaAddress};
use crate::mutex::Mutex;
use crate::proto::group::DeviceIndex;

/// A prepared link with buffers, for the next link group. No peer has ever had access to them.
pub(crate) struct Spare {
    device: DeviceIndex,
    address: RdmaAddress,
    pub(crate) domain: Arc<dyn ProtectionDomain>,
    pub(crate) link: Box<dyn PendingLink>,
    /// An RMB and a staging ring, registered in the domain.
    pub(crate) buffers: [Arc<RdmaBuffer>; 2],
}

/// The spares of an endpoint: one at most for each device, while there are SMC-R groups.
#[derive(Default)]
pub(crate) struct Spares(Arc<Mutex<SpareState>>);

#[derive(Default)]
struct SpareState {
    ready: Vec<Spare>,
    /// Devices for which one is in progress.
    in_progress: Vec<DeviceIndex>,
    /// How often all were dropped. One that was started before is dropped as well.
    clears: u64,
}

/// A spare in progress. Once this is dropped, another one of the device can be started.
struct SpareInProgress {
    state: Arc<Mutex<SpareState>>,
    device: DeviceIndex,
    /// Of the time when it was started.
    clears: u64,
}

impl Spares {
    /// The spare for this address of a device.
    pub(crate) fn take(&self, device: DeviceIndex, address: &RdmaAddress) -> Option<Spare> {
        let ready = &mut self.0.lock().ready;
        let fits = |spare: &Spare| spare.device == device && spare.address == *address;
        let at = ready.iter().position(fits)?;
        Some(ready.swap_remove(at))
    }

    /// Drops all: addresses have changed, or a device or the memory is short of something. Returns
    /// whether there was one.
    pub(crate) fn clear(&self) -> bool {
        let dropped = {
            let mut state = self.0.lock();
            state.clears += 1;
            std::mem::take(&mut state.ready)
        };
        // Outside of the lock: queue pairs are destroyed.
        !dropped.is_empty()
    }

    /// Starts another spare, unless the device has one or memory is half used.
    fn start(
        &self,
        device: DeviceIndex,
        bytes: usize,
        memory: &MemoryLimit,
    ) -> Option<SpareInProgress> {
        let mut state = self.0.lock();
        let has_one = state.ready.iter().any(|spare| spare.device == device);
        let is_plenty = memory.used().saturating_add(bytes) <= memory.limit() / 2;
        if has_one || state.in_progress.contains(&device) || !is_plenty {
            return None;
        }
        state.in_progress.push(device);
        Some(SpareInProgress {
            state: Arc::clone(&self.0),
            device,
            clears: state.clears,
        })
    }
}

impl SpareInProgress {
    fn finish(self, made: Spare) {
        let mut state = self.state.lock();
        if state.clears == self.clears {
            state.ready.push(made);
        } else {
            drop(state);
            drop(made);
        }
    }
}

impl Drop for SpareInProgress {
    fn drop(&mut self) {
        let mut state = self.state.lock();
        state.in_progress.retain(|other| *other != self.device);
    }
}

impl Groups {
    /// Has a spare made at this address, with buffers of these sizes. Without one the next group
    /// makes its own.
    pub(super) fn make_spare(
        self: &Arc<Self>,
        device: DeviceIndex,
        address: RdmaAddress,
        sizes: [SizeCode; 2],
    ) {
        let bytes = sizes.iter().map(|size| size.byte_len()).sum();
        let Some(in_progress) = self.spares.start(device, bytes, &self.memory) else {
            return;
        };
        let groups = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            if let Ok(made) = groups.new_spare(device, address, sizes).await {
                in_progress.finish(made);
            }
        }));
    }

    async fn new_spare(
        &self,
        device: DeviceIndex,
        address: RdmaAddress,
        [rmb, staging]: [SizeCode; 2],
    ) -> Result<Spare, DeviceError> {
        let driver = self.driver(device).ok_or(DeviceError::Exhausted)?;
        let rdma = driver.device.operations().rdma();
        let domain = rdma
            .ok_or(DeviceError::Exhausted)?
            .protection_domain()
            .await?;
        let link = domain.open_link(&address).await?;
        let buffer = async |size, access| {
            let buffer = RdmaBuffer::new(size, access, &self.memory)?;
            buffer.register(device, &*domain).await?;
            Ok::<_, DeviceError>(Arc::new(buffer))
        };
        let buffers = [
            buffer(rmb, Access::RemoteWrite).await?,
            buffer(staging, Access::Local).await?,
        ];
        Ok(Spare {
            device,
            address,
            domain,
            link,
            buffers,
        })
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::{block_on, poll_once};

    use super::*;

    #[test]
    fn after_the_task_of_a_spare_was_dropped_another_one_can_be_started() {
        let (spares, memory) = (Spares::default(), MemoryLimit::new(1 << 20));
        let start = |device| spares.start(DeviceIndex(device), 1 << 10, &memory);
        let task = async {
            let _in_progress = start(0);
            std::future::pending::<()>().await;
        };
        let mut task = Box::pin(task);
        assert_eq!(block_on(poll_once(&mut task)), None);
        assert!(start(0).is_none());
        assert!(start(1).is_some());
        drop(task);
        assert!(start(0).is_some());
    }
}
