//! Faults of the SMC-D surface.

use std::io::IoSlice;
use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{
    Attachment, DeviceError, Direct, Dmb, Nocopy, PeerEvent, PeerEvents, Signal, SubmitError,
};
use smc_core::mem::Region;
use smc_wire::types::{DmbToken, Gid};

use super::{Fault, FaultState};
use crate::middleware::{delegate_direct, direct, nocopy, peer_events};

#[async_trait]
impl Direct for Fault {
    delegate_direct!();

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        self.state().reach(peer, |faults| faults.unreachable)?;
        direct(&*self.inner).reach(peer).await?;
        self.state().peers.insert(peer);
        Ok(())
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        {
            let mut state = self.state();
            if state.ended.contains(&peer) {
                return Err(DeviceError::PeerGone);
            }
            state.exhaust()?;
        }
        let dmb = direct(&*self.inner).register(peer, len).await?;
        let mut state = self.state();
        state.peers.insert(peer);
        state.own().push((dmb.token(), Arc::downgrade(&dmb)));
        Ok(dmb)
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        self.submit(FaultState::submit)?;
        direct(&*self.inner).move_data(peer, to, at, data, signal)
    }
}

#[async_trait]
impl Nocopy for Fault {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        {
            let mut state = self.state();
            state.allocate()?;
            state.reach(peer, |faults| faults.unattachable)?;
        }
        let inner = nocopy(&*self.inner).attach(peer, token).await?;
        self.state().peers.insert(peer);
        let fault = self.clone();
        Ok(Arc::new(FaultyAttachment { inner, fault }))
    }
}

impl PeerEvents for Fault {
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        self.submit(FaultState::submit)?;
        peer_events(&*self.inner).signal_event(peer, event)
    }
}

#[derive(Debug)]
struct FaultyAttachment {
    inner: Arc<dyn Attachment>,
    fault: Fault,
}

impl Attachment for FaultyAttachment {
    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn signal(&self) -> Result<(), SubmitError> {
        self.fault.submit(FaultState::submit)?;
        self.inner.signal()
    }
}
