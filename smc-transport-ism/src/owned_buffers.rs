//! Our own buffers.
//!
//! Which buffers there are is known from a private table; the shared memory only tells others.

use std::sync::{Arc, Mutex};

use hashbrown::HashMap;
use smc_core::device::{Charge, DeviceError, Dmb};
use smc_core::mem::Region;
use smc_wire::types::DmbToken;

use crate::lock;
use crate::node::Node;
use crate::shared::Place;

/// The buffers of a device.
#[derive(Debug)]
pub(crate) struct Owned {
    max: usize,
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    registered: usize,
    /// By first granule.
    tokens: HashMap<u32, DmbToken>,
    /// Dropped, but still used by the peer, or by somebody here who has the region.
    waiting: Vec<Waiting>,
}

/// Memory to be given back.
#[derive(Debug)]
struct Waiting {
    place: Place,
    lease: Arc<()>,
    _charge: Charge,
}

/// Shared by the regions of a buffer, and dropped with the last of them.
#[derive(Debug)]
pub(crate) struct Lease {
    /// Taken when dropped.
    held: Option<Arc<()>>,
    node: Arc<Node>,
}

impl Lease {
    pub(crate) fn new(held: &Arc<()>, node: &Arc<Node>) -> Self {
        Self {
            held: Some(Arc::clone(held)),
            node: Arc::clone(node),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.take();
        self.node.owned().give_back(&self.node);
    }
}

impl Owned {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            table: Mutex::default(),
        }
    }

    /// Number of buffers that are registered now.
    pub(crate) fn len(&self) -> usize {
        lock(&self.table).registered
    }

    /// The buffer that begins at a granule.
    pub(crate) fn token(&self, first: u32) -> Option<DmbToken> {
        lock(&self.table).tokens.get(&first).copied()
    }

    /// Counts one more buffer, which [`Owned::uncount`] takes back.
    pub(crate) fn count(&self) -> Result<(), DeviceError> {
        let mut table = lock(&self.table);
        if table.registered >= self.max {
            return Err(DeviceError::Exhausted);
        }
        table.registered += 1;
        Ok(())
    }

    pub(crate) fn uncount(&self) {
        lock(&self.table).registered -= 1;
    }

    pub(crate) fn insert(&self, place: Place, token: DmbToken) {
        lock(&self.table).tokens.insert(place.first, token);
    }

    /// A buffer was dropped: its memory is given back as soon as nobody uses it.
    fn release(&self, node: &Node, waiting: Waiting) {
        let mut table = lock(&self.table);
        table.tokens.remove(&waiting.place.first);
        table.waiting.push(waiting);
        table.give_back(node);
        table.registered -= 1;
    }

    /// Gives back what was waiting for its users.
    pub(crate) fn give_back(&self, node: &Node) {
        lock(&self.table).give_back(node);
    }
}

impl Table {
    fn give_back(&mut self, node: &Node) {
        self.waiting.retain_mut(|Waiting { place, lease, .. }| {
            let mut is_used = || Arc::get_mut(lease).is_none() || node.room().is_used(place.first);
            if is_used() {
                // The peer signals when it has let go.
                node.room().want(*place);
                if is_used() {
                    return true;
                }
            }
            node.room().give_back(node.tag(), *place);
            false
        });
    }
}

/// A buffer of ours.
#[derive(Debug)]
pub(crate) struct IsmDmb {
    token: DmbToken,
    place: Place,
    region: Region,
    /// Shared by the clones of the region, which may outlive the buffer. Taken when dropped.
    lease: Option<Arc<()>>,
    charge: Charge,
    node: Arc<Node>,
}

impl IsmDmb {
    /// `lease` is shared by `region`.
    pub(crate) fn new(
        node: Arc<Node>,
        place: Place,
        token: DmbToken,
        region: Region,
        lease: Arc<()>,
        charge: Charge,
    ) -> Self {
        Self {
            token,
            place,
            region,
            lease: Some(lease),
            charge,
            node,
        }
    }
}

impl Dmb for IsmDmb {
    fn token(&self) -> DmbToken {
        self.token
    }

    fn region(&self) -> &Region {
        &self.region
    }

    fn arm(&self) {
        self.node.room().want(self.place);
    }
}

impl Drop for IsmDmb {
    fn drop(&mut self) {
        self.node.room().withdraw(self.place);
        // Gives up our own share of the lease.
        self.region = Region::anonymous(0);
        if let Some(lease) = self.lease.take() {
            let waiting = Waiting {
                place: self.place,
                lease,
                _charge: std::mem::take(&mut self.charge),
            };
            self.node.owned().release(&self.node, waiting);
        }
    }
}
