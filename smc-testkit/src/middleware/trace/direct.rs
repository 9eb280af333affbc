//! What is asked of the SMC-D surface.

use std::io::IoSlice;
use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{
    Attachment, DeviceError, Direct, Dmb, Nocopy, PeerEvent, PeerEvents, Signal, SubmitError,
};
use smc_core::mem::Region;
use smc_wire::types::{DmbToken, Gid};

use super::{Released, Trace, What, debug_as_inner};
use crate::middleware::{delegate_direct, direct, nocopy, peer_events};

#[async_trait]
impl Direct for Trace {
    delegate_direct!();

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        let result = direct(&*self.inner).reach(peer).await;
        self.log.record(What::Reached {
            peer,
            result: result.clone(),
        });
        result
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        let result = direct(&*self.inner).register(peer, len).await;
        let outcome = result.as_ref().map(|dmb| dmb.token()).map_err(Clone::clone);
        self.log.record(What::Registered {
            peer,
            len,
            result: outcome,
        });
        let inner = result?;
        let released = self.log.until(What::Unregistered(inner.token()));
        Ok(Arc::new(TracedDmb { inner, released }))
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let result = direct(&*self.inner).move_data(peer, to, at, data, signal);
        let len = data.iter().map(|slice| slice.len()).sum();
        self.log.record(What::Moved {
            peer,
            to,
            at,
            len,
            signal,
            result: result.clone(),
        });
        result
    }
}

#[async_trait]
impl Nocopy for Trace {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        let result = nocopy(&*self.inner).attach(peer, token).await;
        let outcome = result.as_ref().map(|_| ()).map_err(Clone::clone);
        self.log.record(What::Attached {
            peer,
            token,
            result: outcome,
        });
        Ok(Arc::new(TracedAttachment {
            inner: result?,
            token,
            released: self.log.until(What::Detached(token)),
        }))
    }
}

impl PeerEvents for Trace {
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        let result = peer_events(&*self.inner).signal_event(peer, event);
        self.log.record(What::EventSent {
            peer,
            event,
            result: result.clone(),
        });
        result
    }
}

struct TracedDmb {
    inner: Arc<dyn Dmb>,
    released: Released,
}

impl Dmb for TracedDmb {
    fn token(&self) -> DmbToken {
        self.inner.token()
    }

    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn arm(&self) {
        let armed = What::BufferArmed(self.token());
        self.released.log.record(armed);
        self.inner.arm();
    }

    fn set_used(&self, len: usize) {
        self.inner.set_used(len);
    }
}

struct TracedAttachment {
    inner: Arc<dyn Attachment>,
    token: DmbToken,
    released: Released,
}

impl Attachment for TracedAttachment {
    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn signal(&self) -> Result<(), SubmitError> {
        let result = self.inner.signal();
        self.released.log.record(What::Signalled {
            token: self.token,
            result: result.clone(),
        });
        result
    }
}

debug_as_inner!(TracedDmb TracedAttachment);
