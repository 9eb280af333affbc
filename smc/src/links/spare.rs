//! A queue pair and registered buffers, made in advance for the first contact of the next link
//! group: making them takes a device longer than the messages of a handshake.

use std::sync::Arc;

use smc_wire::size::SizeCode;

use super::super::groups::Groups;
use super::buffer_pool::RdmaBuffer;
use crate::device::{Access, DeviceError, MemoryLimit, PendingLink, ProtectionDomain, RdmaAddress};
use crate::mutex::Mutex;
use crate::proto::group::DeviceIndex;

/// What a link group begins with. No peer has ever had access to it.
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
pub(crate) struct Spares(Mutex<SpareState>);

#[derive(Default)]
struct SpareState {
    ready: Vec<Spare>,
    /// Devices for which one is being made.
    making: Vec<DeviceIndex>,
    /// How often all were dropped. One that was begun before is dropped as well.
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

    /// Begins another spare, unless the device has one or memory is half used. Returns the number
    /// for [`finish`](Self::finish).
    fn begin(&self, device: DeviceIndex, bytes: usize, memory: &MemoryLimit) -> Option<u64> {
        let mut state = self.0.lock();
        let has_one = state.ready.iter().any(|spare| spare.device == device);
        let is_plenty = memory.used().saturating_add(bytes) <= memory.limit() / 2;
        if has_one || state.making.contains(&device) || !is_plenty {
            return None;
        }
        state.making.push(device);
        Some(state.clears)
    }

    fn finish(&self, device: DeviceIndex, begun: u64, made: Option<Spare>) {
        let mut state = self.0.lock();
        state.making.retain(|other| *other != device);
        if state.clears == begun {
            state.ready.extend(made);
        } else {
            drop(state);
            drop(made);
        }
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
        let Some(begun) = self.spares.begin(device, bytes, &self.memory) else {
            return;
        };
        let groups = Arc::clone(self);
        self.runtime.spawn(Box::pin(async move {
            let made = groups.new_spare(device, address, sizes).await;
            groups.spares.finish(device, begun, made.ok());
        }));
    }

    async fn new_spare(
        &self,
        device: DeviceIndex,
        address: RdmaAddress,
        [rmb, staging]: [SizeCode; 2],
    ) -> Result<Spare, DeviceError> {
        let driver = self.driver(device).ok_or(DeviceError::Exhausted)?;
        let rdma = driver.device.fabric().rdma();
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
