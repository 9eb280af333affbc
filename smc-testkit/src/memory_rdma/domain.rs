//! Protection domains of the RDMA device in memory.

use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{
    Access, DeviceError, LinkAddress, LinkCounters, Mr, PendingLink, ProtectionDomain, RdmaAddress,
};
use smc_core::mem::Region;
use smc_wire::types::{Psn, Rkey, RmbAddr};

use super::SharedNetwork;
use super::handles::{Handle, MemoryMr, MemoryPending};
use super::pair::{Phase, QueuePair};
use super::state::{DeviceId, DomainId, Memory};

/// A protection domain of a [`MemoryRdma`](super::MemoryRdma).
#[derive(Debug)]
pub(super) struct MemoryDomain {
    pub(super) shared: Arc<SharedNetwork>,
    pub(super) device: DeviceId,
    pub(super) id: DomainId,
}

#[async_trait]
impl ProtectionDomain for MemoryDomain {
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError> {
        self.shared.pass_setup_time().await;
        let mut state = self.shared.lock();
        let used = state
            .pairs
            .keys()
            .filter(|id| id.device == self.device)
            .count();
        let bits = state.rng.bits();
        let member = state.devices.get_mut(&self.device);
        let member = member.filter(|member| !member.is_gone);
        let member = member.ok_or(DeviceError::Gone("removed"))?;
        let mut addresses = member.addresses().into_iter();
        let address = addresses.find(|entry| entry.is_same_entry(at));
        let address = address.ok_or(DeviceError::Invalid("no such address on an active port"))?;
        if used >= member.options.max_links {
            return Err(DeviceError::Exhausted);
        }
        let id = state
            .fresh_pair(self.device)
            .ok_or(DeviceError::Exhausted)?;
        let psn = u32::try_from(bits & u64::from(Psn::MAX.get()));
        let local = LinkAddress {
            gid: address.gid,
            mac: address.mac,
            qpn: id.qpn,
            psn: psn.ok().and_then(Psn::new).unwrap_or_default(),
            mtu: address.mtu,
        };
        let pair = QueuePair {
            local,
            domain: self.id,
            kind: address.kind,
            port: address.port,
            phase: Phase::Reset,
            is_cut: false,
            loss: None,
            counters: LinkCounters::default(),
            late: None,
        };
        state.pairs.insert(id, pair);
        let shared = Arc::clone(&self.shared);
        let handle = Handle { shared, id };
        Ok(Box::new(MemoryPending {
            handle,
            domain: self.id,
            local,
        }))
    }

    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError> {
        self.shared.pass_setup_time().await;
        let mut state = self.shared.lock();
        let keys: Vec<_> = (0..8).map(|_| state.rng.bits()).collect();
        let member = state.devices.get_mut(&self.device);
        let member = member.filter(|member| !member.is_gone);
        let member = member.ok_or(DeviceError::Gone("removed"))?;
        if let Some(error) = member.refusals.pop_front() {
            return Err(error);
        }
        if memory.is_empty() {
            return Err(DeviceError::Invalid("no memory to register"));
        }
        if memory.len() > member.options.limits.max_dmb_len {
            return Err(DeviceError::NoMemory);
        }
        if member.memory.len() >= member.options.limits.max_dmbs {
            return Err(DeviceError::Exhausted);
        }
        let keys = keys
            .into_iter()
            .filter_map(|bits| u32::try_from(bits >> 32).ok());
        let mut fresh = keys.filter(|key| !member.memory.contains_key(key));
        let rkey = fresh.next().ok_or(DeviceError::Exhausted)?;
        let addr = member.next_addr;
        let pages = u64::try_from(memory.len()).unwrap_or(u64::MAX / 2);
        // A page in between, so that what passes the end of one is not in the next.
        member.next_addr = addr + pages.next_multiple_of(PAGE) + PAGE;
        let registered = Memory {
            region: memory.clone(),
            addr,
            access,
            domain: self.id,
        };
        member.memory.insert(rkey, registered);
        Ok(Arc::new(MemoryMr {
            shared: Arc::clone(&self.shared),
            device: self.device,
            domain: self.id,
            region: memory.clone(),
            rkey: Rkey(rkey),
            addr: RmbAddr(addr),
        }))
    }
}

const PAGE: u64 = 4096;
