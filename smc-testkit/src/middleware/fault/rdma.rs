//! Faults of the SMC-R surface.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use smc_core::device::{
    Access, Device, DeviceError, Link, LinkAddress, LinkCounters, Mr, OpId, PendingLink,
    ProtectionDomain, Rdma, RdmaAddress, Route, SubmitError, Write,
};
use smc_core::mem::Region;
use smc_wire::types::Qpn;

use super::{Fault, Held, State, lock, ring};
use crate::middleware::{delegate_rdma, rdma};

#[async_trait]
impl Rdma for Fault {
    delegate_rdma!();

    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        Ok(Arc::new(FaultyDomain {
            inner: rdma(&*self.inner).protection_domain().await?,
            device: Arc::clone(&self.inner),
            state: Arc::clone(&self.state),
        }))
    }
}

#[derive(Debug)]
struct FaultyDomain {
    inner: Arc<dyn ProtectionDomain>,
    device: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
}

#[async_trait]
impl ProtectionDomain for FaultyDomain {
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError> {
        {
            let mut state = lock(&self.state);
            let chance = state.faults.exhausted;
            if state.rng.chance(chance) {
                return Err(DeviceError::Exhausted);
            }
        }
        let inner = self.inner.open_link(at).await?;
        Ok(Box::new(FaultyPending {
            inner,
            device: Arc::clone(&self.device),
            state: Arc::clone(&self.state),
        }))
    }

    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError> {
        lock(&self.state).exhaust()?;
        self.inner.register(memory, access).await
    }
}

#[derive(Debug)]
struct FaultyPending {
    inner: Box<dyn PendingLink>,
    device: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
}

#[async_trait]
impl PendingLink for FaultyPending {
    fn local(&self) -> LinkAddress {
        self.inner.local()
    }

    async fn connect(
        self: Box<Self>,
        peer: LinkAddress,
        route: Route,
    ) -> Result<Arc<dyn Link>, DeviceError> {
        {
            let mut state = lock(&self.state);
            let chance = state.faults.unreachable;
            if state.rng.chance(chance) {
                return Err(DeviceError::Invalid("injected fault"));
            }
        }
        let qpn = self.inner.local().qpn;
        let inner = self.inner.connect(peer, route).await?;
        let held = Held {
            link: Arc::downgrade(&inner),
            outstanding: 0,
        };
        lock(&self.state).links.insert(qpn, held);
        Ok(Arc::new(FaultyLink {
            inner,
            device: self.device,
            state: self.state,
        }))
    }
}

#[derive(Debug)]
struct FaultyLink {
    inner: Arc<dyn Link>,
    device: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
}

impl Link for FaultyLink {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        let qpn = self.qpn();
        let may = lock(&self.state).submit_post(qpn);
        if may.is_err() {
            // An event for tasks that have to try again, or to detect the death.
            ring(&*self.device);
        }
        may?;
        // Counted first: it may be reported before the call returns.
        self.count(|outstanding| outstanding + 1);
        let result = self.inner.post(op, writes, message);
        if result.is_err() {
            self.count(|outstanding| outstanding.saturating_sub(1));
        }
        result
    }

    fn close(&self) {
        self.inner.close();
        lock(&self.state).silence(self.qpn());
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

impl FaultyLink {
    fn count(&self, change: impl FnOnce(usize) -> usize) {
        if let Some(held) = lock(&self.state).links.get_mut(&self.qpn()) {
            held.outstanding = change(held.outstanding);
        }
    }
}

impl Drop for FaultyLink {
    fn drop(&mut self) {
        self.close();
    }
}
