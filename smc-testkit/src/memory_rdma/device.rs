//! An RDMA device in the memory of one process.

use std::net::Ipv4Addr;
use std::sync::Arc;

use async_trait::async_trait;
use atomic_waker::AtomicWaker;
use smc_core::device::{
    Device, DeviceError, Doorbell, Event, Identity, Limits, Operations, ProtectionDomain, Rdma,
    RdmaAddress, RoceKind,
};
use smc_wire::types::{Mac, MtuCode, RoceGid};

use super::SharedNetwork;
use super::domain::MemoryDomain;
use super::options::RdmaOptions;
use super::state::DeviceId;

/// An RDMA device of an [`RdmaNetwork`](super::RdmaNetwork).
///
/// Dropping it takes it off the network, with its memory and links.
#[derive(Debug)]
pub struct MemoryRdma {
    identity: Identity,
    limits: Limits,
    wake_signal: Arc<AtomicWaker>,
    pub(super) shared: Arc<SharedNetwork>,
    pub(super) id: DeviceId,
}

impl MemoryRdma {
    pub(super) fn new(name: &str, options: RdmaOptions, shared: &Arc<SharedNetwork>) -> Self {
        let wake_signal = Arc::<AtomicWaker>::default();
        let limits = options.limits;
        let id = shared.lock().join(options, Arc::clone(&wake_signal));
        Self {
            identity: Identity::new(name),
            limits,
            wake_signal,
            shared: Arc::clone(shared),
            id,
        }
    }
}

impl Drop for MemoryRdma {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.leave(self.id);
        state.devices.remove(&self.id);
    }
}

impl Device for MemoryRdma {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        self.limits
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Rdma(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        // The rest of the events that were there when the drain began.
        let mut left = None;
        while left != Some(0) {
            let event = {
                let mut state = self.shared.lock();
                let Some(member) = state.devices.get_mut(&self.id) else {
                    return Err(DeviceError::Gone("removed"));
                };
                // Closing a link takes its events out of the list at any time.
                let Some(event) = member.queued.pop_front() else {
                    // Stays armed if nothing came: this is how the second drain before parking
                    // ends.
                    return match member.is_gone && left.is_none() {
                        true => Err(DeviceError::Gone("removed")),
                        false => Ok(()),
                    };
                };
                left = Some(left.map_or(member.queued.len(), |left| left - 1));
                member.is_armed = false;
                state.reported(self.id, &event);
                event
            };
            // Outside of the lock: the sink may call the device.
            sink(event);
        }
        Ok(())
    }

    fn arm(&self) -> Result<(), DeviceError> {
        if let Some(member) = self.shared.lock().devices.get_mut(&self.id) {
            member.is_armed = true;
        }
        Ok(())
    }

    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::Waker(&self.wake_signal)
    }
}

#[async_trait]
impl Rdma for MemoryRdma {
    fn arm_completions(&self) -> Result<(), DeviceError> {
        if let Some(member) = self.shared.lock().devices.get_mut(&self.id) {
            member.is_armed_for_completions = true;
        }
        Ok(())
    }

    fn addresses(&self) -> Vec<RdmaAddress> {
        let state = self.shared.lock();
        let member = state.devices.get(&self.id);
        member.map_or_else(Vec::new, |member| member.addresses())
    }

    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        self.shared.pass_setup_time().await;
        let mut state = self.shared.lock();
        Ok(Arc::new(MemoryDomain {
            shared: Arc::clone(&self.shared),
            device: self.id,
            id: state.fresh_domain(),
        }))
    }
}

/// What Linux shows for a port with a link-local and an IPv4 address.
pub(super) fn made_up_table(id: DeviceId) -> Vec<RdmaAddress> {
    let [_, _, high, low] = (id.0 + 1).to_be_bytes();
    let mac = Mac::new([0x02, 0x53, 0x4d, 0x43, high, low]);
    let mut local = [0; 16];
    local[..2].copy_from_slice(&[0xfe, 0x80]);
    local[8..].copy_from_slice(&[0x00, 0x53, 0x4d, 0xff, 0xfe, 0x43, high, low]);
    let gids = [
        RoceGid::new(local),
        RoceGid::from_ipv4(Ipv4Addr::new(10, 77, high, low)),
    ];
    let kinds = [RoceKind::V1, RoceKind::V2];
    let entries = gids
        .into_iter()
        .flat_map(|gid| kinds.map(|kind| (gid, kind)));
    let entries = entries.map(|(gid, kind)| RdmaAddress::new(gid, kind, mac, MtuCode::MTU_1024));
    entries.collect()
}
