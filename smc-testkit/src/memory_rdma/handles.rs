//! What the users of a device hold.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{
    DeviceError, Link, LinkAddress, LinkCounters, MESSAGE_MAX, Mr, OpId, PendingLink, Route,
    SENDS_MAX, SubmitError, Write,
};
use smc_core::mem::Region;
use smc_wire::types::{Qpn, Rkey, RmbAddr};

use super::SharedNetwork;
use super::pair::{Chain, ChainPhase, PairConnection, Phase, Transfer, advance, packets};
use super::state::{DeviceId, DomainId, PairId};

/// A queue pair for as long as it is held.
pub(super) struct Handle {
    pub(super) shared: Arc<SharedNetwork>,
    pub(super) id: PairId,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.silence(self.id);
        state.pairs.remove(&self.id);
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.id.qpn, f)
    }
}

/// A queue pair in its reset state.
#[derive(Debug)]
pub(super) struct MemoryPending {
    pub(super) handle: Handle,
    pub(super) domain: DomainId,
    pub(super) local: LinkAddress,
}

#[async_trait]
impl PendingLink for MemoryPending {
    fn local(&self) -> LinkAddress {
        self.local
    }

    async fn connect(
        self: Box<Self>,
        peer: LinkAddress,
        _route: Route,
    ) -> Result<Arc<dyn Link>, DeviceError> {
        let shared = Arc::clone(&self.handle.shared);
        shared.pass_setup_time().await;
        let id = self.handle.id;
        let mut state = shared.lock();
        if peer.mtu.bytes().is_none() {
            return Err(DeviceError::Invalid("reserved MTU code"));
        }
        if state.owner(peer.gid).is_none() {
            return Err(DeviceError::Invalid("no route to this GID"));
        }
        let member = state.devices.get(&id.device);
        let member = member.filter(|member| !member.is_gone);
        let member = member.ok_or(DeviceError::Gone("removed"))?;
        let (down, free) = (member.down.clone(), member.options.receives);
        let pair = state.pairs.get_mut(&id);
        let pair = pair.ok_or(DeviceError::Gone("removed"))?;
        if down.contains(&pair.port) {
            return Err(DeviceError::Invalid("the port is down"));
        }
        pair.phase = Phase::Connected(Box::new(PairConnection {
            peer,
            mtu: self.local.mtu.min(peer.mtu),
            next_psn: self.local.psn,
            expected_psn: peer.psn,
            chains: std::collections::VecDeque::new(),
            unreported: 0,
            stall: None,
            expiry: None,
            last_due: None,
            free,
        }));
        // The peer may have posted already.
        state.retry_all();
        drop(state);
        Ok(Arc::new(MemoryLink {
            handle: self.handle,
            domain: self.domain,
        }))
    }
}

/// A connected queue pair.
#[derive(Debug)]
pub(super) struct MemoryLink {
    handle: Handle,
    domain: DomainId,
}

impl Link for MemoryLink {
    fn qpn(&self) -> Qpn {
        self.handle.id.qpn
    }

    fn post(&self, op: OpId, writes: &[Write<'_>], message: &[u8]) -> Result<(), SubmitError> {
        let id = self.handle.id;
        if message.len() > MESSAGE_MAX {
            return Err(SubmitError::OutOfBounds);
        }
        if writes.len() > MAX_WRITES {
            return Err(DeviceError::Invalid("more than two writes in a post").into());
        }
        let writes = writes.iter().map(|write| transfer(self.domain, write));
        let writes = writes.collect::<Result<Vec<_>, _>>()?;
        let mut state = self.handle.shared.lock();
        let pair = state.pairs.get_mut(&id).ok_or(SubmitError::PeerGone)?;
        let connection = pair.connection_mut().ok_or(SubmitError::PeerGone)?;
        if connection.outstanding() >= SENDS_MAX {
            return Err(SubmitError::WouldBlock);
        }
        let lengths = writes.iter().map(Transfer::len);
        let lengths = lengths.chain([u64::try_from(message.len()).unwrap_or(u64::MAX)]);
        let packets = lengths.map(|len| packets(len, connection.mtu)).sum();
        let psn = connection.next_psn;
        connection.next_psn = advance(psn, packets);
        let chain = Chain {
            op,
            writes,
            message: message.into(),
            psn,
            packets,
            due: None,
            phase: ChainPhase::Underway,
            is_counted: false,
            is_hit: false,
        };
        state.send_chain(id, chain);
        Ok(())
    }

    fn close(&self) {
        self.handle.shared.lock().silence(self.handle.id);
    }

    fn receives(&self) -> u32 {
        let state = self.handle.shared.lock();
        let device = state.devices.get(&self.handle.id.device);
        device.map_or(0, |device| device.options.receives)
    }

    fn counters(&self) -> LinkCounters {
        let state = self.handle.shared.lock();
        let pair = state.pairs.get(&self.handle.id);
        pair.map_or_else(LinkCounters::default, |pair| pair.counters)
    }
}

fn transfer(domain: DomainId, write: &Write<'_>) -> Result<Transfer, SubmitError> {
    let mr = write.from.as_any().downcast_ref::<MemoryMr>();
    let mr = mr.filter(|mr| mr.domain == domain);
    let mr = mr.ok_or(DeviceError::Invalid("memory of another protection domain"))?;
    let size = u64::try_from(mr.region.len()).unwrap_or(u64::MAX);
    for piece in [write.first, write.second] {
        if u64::from(piece.at) + u64::from(piece.len) > size {
            return Err(SubmitError::OutOfBounds);
        }
    }
    Ok(Transfer {
        own: mr.rkey,
        region: mr.region.clone(),
        pieces: [write.first, write.second],
        rkey: write.rkey,
        to: write.to,
    })
}

/// Registered memory.
#[derive(Debug)]
pub(super) struct MemoryMr {
    pub(super) shared: Arc<SharedNetwork>,
    pub(super) device: DeviceId,
    pub(super) domain: DomainId,
    pub(super) region: Region,
    pub(super) rkey: Rkey,
    pub(super) addr: RmbAddr,
}

impl Mr for MemoryMr {
    fn region(&self) -> &Region {
        &self.region
    }

    fn rkey(&self) -> Rkey {
        self.rkey
    }

    fn addr(&self) -> RmbAddr {
        self.addr
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Drop for MemoryMr {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        if let Some(member) = state.devices.get_mut(&self.device) {
            member.memory.remove(&self.rkey.0);
        }
    }
}

/// Writes that a post may have.
const MAX_WRITES: usize = 2;
