//! The ISM device and its builder.

use std::fmt;
use std::io::IoSlice;
use std::sync::Arc;

use async_trait::async_trait;
use smc_core::device::{
    Attachment, Device, DeviceError, Direct, Dmb, Doorbell, Event, Identity, Limits, MemoryLimit,
    Nocopy, Operations, PeerEvent, PeerEvents, Signal, SubmitError,
};
use smc_core::mem::Region;
use smc_core::mutex::Mutex;
use smc_wire::types::{Chid, DmbToken, Gid};

use crate::config::Builder;
use crate::fabric::FabricAddress;
use crate::node::{Node, UNKNOWN};
use crate::shared::Target;

/// An SMC-D device whose peers use the same shared memory.
///
/// See the [crate documentation](crate). Dropping the device ends the communication with its peers;
/// remaining buffers and attachments keep their memory.
pub struct IsmDevice {
    identity: Identity,
    node: Arc<Node>,
    /// Reused by the next drain, so that draining does not allocate.
    events: Mutex<Vec<Event>>,
}

impl IsmDevice {
    /// Options for a device on the fabric at this address.
    #[must_use]
    pub fn builder(address: FabricAddress) -> Builder {
        Builder::new(address)
    }

    pub(crate) fn new(identity: Identity, node: Arc<Node>) -> Self {
        Self {
            identity,
            node,
            events: Mutex::default(),
        }
    }

    /// The number of the device on its fabric.
    #[must_use]
    pub fn slot(&self) -> u16 {
        self.node.tag.slot
    }

    /// The random number that the fabric got when it was created.
    #[must_use]
    pub fn fabric_id(&self) -> u128 {
        self.node.memory.fabric
    }

    /// Number of other devices that are live on the fabric.
    #[must_use]
    pub fn others(&self) -> usize {
        self.node.memory.others(self.node.tag).count()
    }

    /// Number of live devices that this one has communicated with.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.node.peers.lock().len()
    }

    /// Number of buffers that are registered now.
    #[must_use]
    pub fn dmbs(&self) -> usize {
        self.node.dmbs.used()
    }
}

impl Drop for IsmDevice {
    fn drop(&mut self) {
        self.node.leave();
    }
}

impl Device for IsmDevice {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn limits(&self) -> Limits {
        self.node.limits
    }

    fn operations(&self) -> Operations<'_> {
        Operations::Direct(self)
    }

    fn drain(&self, sink: &mut dyn FnMut(Event)) -> Result<(), DeviceError> {
        // Collected first: the sink may call the device, and no lock is held then.
        let mut events = std::mem::take(&mut *self.events.lock());
        let drained = self.node.drain(&mut events);
        events.drain(..).for_each(sink);
        *self.events.lock() = events;
        drained
    }

    fn arm(&self) -> Result<(), DeviceError> {
        self.node.arm()
    }

    fn doorbell(&self) -> Doorbell<'_> {
        Doorbell::Fd(self.node.fabric.doorbell())
    }

    fn limit_memory(&self, limit: &MemoryLimit) {
        self.node.account.limit_by(limit);
    }
}

#[async_trait]
impl Direct for IsmDevice {
    fn gid(&self) -> Gid {
        self.node.gid
    }

    fn chid(&self) -> Chid {
        self.node.memory.chid()
    }

    async fn reach(&self, peer: Gid) -> Result<(), DeviceError> {
        self.node.connect_peer(peer).map(|_| ())
    }

    async fn register(&self, peer: Gid, len: usize) -> Result<Arc<dyn Dmb>, DeviceError> {
        Ok(Arc::new(self.node.register(peer, len)?))
    }

    fn move_data(
        &self,
        peer: Gid,
        to: DmbToken,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        self.node.move_data(peer, to, at, data, signal)
    }

    fn is_registered(&self, peer: Gid, token: DmbToken) -> bool {
        self.node.memory.is_registered(peer, token, self.node.tag)
    }

    fn nocopy(&self) -> Option<&dyn Nocopy> {
        self.node.memory.nocopy.then_some(self as &dyn Nocopy)
    }

    fn peer_events(&self) -> Option<&dyn PeerEvents> {
        Some(self)
    }
}

#[async_trait]
impl Nocopy for IsmDevice {
    async fn attach(&self, peer: Gid, token: DmbToken) -> Result<Arc<dyn Attachment>, DeviceError> {
        let (target, lease) = self.node.attach(peer, token)?;
        let region = self.node.memory.region_of(target.run, lease);
        let region = region.ok_or(UNKNOWN)?;
        Ok(Arc::new(IsmAttachment {
            target,
            region,
            node: Arc::clone(&self.node),
        }))
    }
}

impl PeerEvents for IsmDevice {
    fn signal_event(&self, peer: Gid, event: PeerEvent) -> Result<(), SubmitError> {
        self.node.post(peer, event)
    }
}

/// A peer's buffer, to be written in place.
#[derive(Debug)]
struct IsmAttachment {
    target: Target,
    region: Region,
    node: Arc<Node>,
}

impl Attachment for IsmAttachment {
    fn region(&self) -> &Region {
        &self.region
    }

    fn signal(&self) -> Result<(), SubmitError> {
        if !self.node.memory.is_live(self.target.owner) {
            return Err(SubmitError::PeerGone);
        }
        self.node.signal(self.target);
        Ok(())
    }
}

impl fmt::Debug for IsmDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IsmDevice")
            .field("name", &self.identity.name)
            .field("gid", &format_args!("{}", self.gid()))
            .field("chid", &self.chid())
            .field("slot", &self.slot())
            .field("nocopy", &self.node.memory.nocopy)
            .field("limits", &self.node.limits)
            .field("peers", &self.peers())
            .field("dmbs", &self.dmbs())
            .finish_non_exhaustive()
    }
}
