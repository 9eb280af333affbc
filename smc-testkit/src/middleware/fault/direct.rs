//! Faults of the SMC-D surface.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Nocopy, PeerEvent, PeerEvents, Signal,
    SubmitError,
};
use smc_core::mem::Region;
use smc_wire::types::{DmbToken, Gid};

use super::{Fault, State, lock, ring};
use crate::middleware::{delegate_direct, delegate_dmb, direct, nocopy, peer_events};

#[async_trait]
impl Direct for Fault {
    delegate_direct!();

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        {
            let mut state = self.state();
            if state.dead.contains(&peer) {
                return Err(DeviceError::PeerGone);
            }
            let chance = state.faults.unreachable;
            if state.rng.chance(chance) {
                return Err(DeviceError::Unreachable {
                    peer,
                    why: "injected fault",
                });
            }
        }
        direct(&*self.inner).reach(peer).await?;
        self.state().peers.insert(peer);
        Ok(())
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        {
            let mut state = self.state();
            if state.dead.contains(&peer) {
                return Err(DeviceError::PeerGone);
            }
            state.exhaust()?;
        }
        let inner = direct(&*self.inner).register(peer, len).await?;
        let mut state = self.state();
        state.peers.insert(peer);
        state.own.insert(inner.token());
        Ok(Arc::new(FaultyDmb {
            inner,
            state: Arc::clone(&self.state),
        }))
    }

    fn move_data(
        &self,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        self.submit()?;
        direct(&*self.inner).move_data(to, at, data, signal)
    }
}

#[async_trait]
impl Nocopy for Fault {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        {
            let mut state = self.state();
            if state.dead.contains(&peer) {
                return Err(DeviceError::PeerGone);
            }
            let chance = state.faults.unattachable;
            if state.rng.chance(chance) {
                return Err(DeviceError::Unreachable {
                    peer,
                    why: "injected fault",
                });
            }
        }
        let inner = nocopy(&*self.inner).attach(peer, token).await?;
        self.state().peers.insert(peer);
        let (device, state) = (Arc::clone(&self.inner), Arc::clone(&self.state));
        Ok(Arc::new(FaultyAttachment {
            inner,
            device,
            state,
        }))
    }
}

impl PeerEvents for Fault {
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        self.submit()?;
        peer_events(&*self.inner).signal_event(peer, event)
    }
}

#[derive(Debug)]
struct FaultyDmb {
    inner: Arc<dyn Dmb>,
    state: Arc<Mutex<State>>,
}

impl Dmb for FaultyDmb {
    delegate_dmb!();

    fn arm(&self) {
        self.inner.arm();
    }

    fn set_used(&self, len: usize) {
        self.inner.set_used(len);
    }
}

impl Drop for FaultyDmb {
    fn drop(&mut self) {
        lock(&self.state).own.remove(&self.inner.token());
    }
}

#[derive(Debug)]
struct FaultyAttachment {
    inner: Arc<dyn Attachment>,
    device: Arc<dyn Device>,
    state: Arc<Mutex<State>>,
}

impl Attachment for FaultyAttachment {
    fn region(&self) -> &Region {
        self.inner.region()
    }

    fn signal(&self) -> Result<(), SubmitError> {
        let result = lock(&self.state).submit();
        if result.is_err() {
            ring(&*self.device);
        }
        result?;
        self.inner.signal()
    }
}
