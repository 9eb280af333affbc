//! What is asked of the SMC-R surface.

use std::any::Any;
use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{
    Access, DeviceError, Link, LinkAddress, LinkCounters, Mr, OpId, PendingLink, ProtectionDomain,
    Rdma, RdmaAddress, Route, SubmitError, Write,
};
use smc_core::mem::Region;
use smc_wire::types::{Qpn, Rkey, RmbAddr};

use super::{Log, Released, Trace, What, debug_as_inner};
use crate::middleware::{delegate_rdma, rdma};

#[async_trait]
impl Rdma for Trace {
    delegate_rdma!();

    async fn protection_domain(&self) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        Ok(Arc::new(TracedDomain {
            inner: rdma(&*self.inner).protection_domain().await?,
            log: self.log.clone(),
        }))
    }
}

struct TracedDomain {
    inner: Arc<dyn ProtectionDomain>,
    log: Log,
}

#[async_trait]
impl ProtectionDomain for TracedDomain {
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError> {
        let result = self.inner.open_link(at).await;
        let outcome = result.as_ref().map(|link| link.local());
        self.log.record(What::Opened {
            at: at.gid,
            result: outcome.map_err(Clone::clone),
        });
        let inner = result?;
        let released = self.log.until(What::Released(inner.local().qpn));
        Ok(Box::new(TracedPending { inner, released }))
    }

    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError> {
        let result = self.inner.register(memory, access).await;
        let outcome = result.as_ref().map(|mr| (mr.rkey(), mr.addr()));
        self.log.record(What::MemoryRegistered {
            len: memory.len(),
            access,
            result: outcome.map_err(Clone::clone),
        });
        let inner = result?;
        let released = self.log.until(What::MemoryReleased(inner.rkey()));
        Ok(Arc::new(TracedMr { inner, released }))
    }
}

struct TracedPending {
    inner: Box<dyn PendingLink>,
    released: Released,
}

#[async_trait]
impl PendingLink for TracedPending {
    fn local(&self) -> LinkAddress {
        self.inner.local()
    }

    async fn connect(
        self: Box<Self>,
        peer: LinkAddress,
        route: Route,
    ) -> Result<Arc<dyn Link>, DeviceError> {
        let link = self.inner.local().qpn;
        let result = self.inner.connect(peer, route).await;
        let outcome = result.as_ref().map(|_| ()).map_err(Clone::clone);
        let released = self.released;
        released.log.record(What::Connected {
            link,
            peer,
            result: outcome,
        });
        Ok(Arc::new(TracedLink {
            inner: result?,
            released,
        }))
    }
}

struct TracedLink {
    inner: Arc<dyn Link>,
    released: Released,
}

impl Link for TracedLink {
    fn qpn(&self) -> Qpn {
        self.inner.qpn()
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        let result = self.inner.post(op, writes, message);
        let length = |write: &Write<'_>| u64::from(write.first.len) + u64::from(write.second.len);
        let writes = writes.iter();
        self.released.log.record(What::Posted {
            link: self.qpn(),
            op,
            writes: writes.map(|it| (it.rkey, it.to, length(it))).collect(),
            message: message.into(),
            result: result.clone(),
        });
        result
    }

    fn close(&self) {
        self.released.log.record(What::Closed(self.qpn()));
        self.inner.close();
    }

    fn receives(&self) -> u32 {
        self.inner.receives()
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

struct TracedMr {
    inner: Arc<dyn Mr>,
    #[expect(dead_code, reason = "held for its drop")]
    released: Released,
}

impl Mr for TracedMr {
    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn rkey(&self) -> Rkey {
        self.inner.rkey()
    }

    fn addr(&self) -> RmbAddr {
        self.inner.addr()
    }

    fn as_any(&self) -> &dyn Any {
        self.inner.as_any()
    }
}

debug_as_inner!(TracedDomain TracedPending TracedLink TracedMr);
