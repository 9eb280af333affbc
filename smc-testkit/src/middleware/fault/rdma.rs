//! Faults of the SMC-R surface.

use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{
    Access, DeviceError, Link, LinkAddress, LinkCounters, Mr, OpId, PendingLink, ProtectionDomain,
    Rdma, RdmaAddress, Route, SubmitError, Write,
};
use smc_core::mem::Region;
use smc_wire::types::Qpn;

use super::{Fault, Held};
use crate::middleware::{delegate_rdma, rdma};

#[async_trait]
impl Rdma for Fault {
    delegate_rdma!();

    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        self.state().allocate()?;
        let inner = rdma(&*self.inner).protection_domain().await?;
        let fault = self.clone();
        Ok(Arc::new(FaultyDomain { inner, fault }))
    }
}

#[derive(Debug)]
struct FaultyDomain {
    inner: Arc<dyn ProtectionDomain>,
    fault: Fault,
}

#[async_trait]
impl ProtectionDomain for FaultyDomain {
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError> {
        {
            let mut state = self.fault.state();
            state.allocate()?;
            if state.has(|faults| faults.exhausted) {
                return Err(DeviceError::Exhausted);
            }
        }
        let inner = self.inner.open_link(at).await?;
        let fault = self.fault.clone();
        Ok(Box::new(FaultyPending { inner, fault }))
    }

    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError> {
        self.fault.state().exhaust()?;
        self.inner.register(memory, access).await
    }
}

#[derive(Debug)]
struct FaultyPending {
    inner: Box<dyn PendingLink>,
    fault: Fault,
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
            let mut state = self.fault.state();
            state.allocate()?;
            if state.has(|faults| faults.unreachable) {
                return Err(DeviceError::Invalid("injected fault"));
            }
        }
        let qpn = self.inner.local().qpn;
        let inner = self.inner.connect(peer, route).await?;
        let held = Held {
            link: Arc::downgrade(&inner),
            outstanding: 0,
        };
        let fault = self.fault;
        fault.state().links.insert(qpn, held);
        Ok(Arc::new(FaultyLink { inner, fault }))
    }
}

#[derive(Debug)]
struct FaultyLink {
    inner: Arc<dyn Link>,
    fault: Fault,
}

impl Link for FaultyLink {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        let qpn = self.qpn();
        self.fault.submit(|state| state.submit_post(qpn))?;
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
        self.fault.state().silence(self.qpn());
    }

    fn receives(&self) -> u32 {
        self.inner.receives()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

impl FaultyLink {
    fn count(&self, change: impl FnOnce(usize) -> usize) {
        if let Some(held) = self.fault.state().links.get_mut(&self.qpn()) {
            held.outstanding = change(held.outstanding);
        }
    }
}

impl Drop for FaultyLink {
    fn drop(&mut self) {
        self.close();
    }
}
