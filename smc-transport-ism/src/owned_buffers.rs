//! The buffers that a device owns.
//!
//! The authoritative table is private; the shared memory only publishes the buffers to peers.

use std::sync::Arc;

use hashbrown::HashMap;
use smc_core::device::{Charge, Dmb, DmbPermit};
use smc_core::mem::Region;
use smc_core::mutex::Mutex;
use smc_wire::types::DmbToken;

use crate::node::Node;
use crate::shared::GranuleRun;

/// The buffers of a device.
#[derive(Debug, Default)]
pub(crate) struct OwnedBuffers {
    /// By first granule.
    tokens: Mutex<HashMap<u32, DmbToken>>,
    /// Dropped, but still used by the peer, or by a clone of the region in this process.
    pending: Mutex<Vec<PendingRelease>>,
}

/// Memory to be released when its last user has ended.
#[derive(Debug)]
struct PendingRelease {
    run: GranuleRun,
    lease: Arc<()>,
    _charge: Charge,
}

/// Shared by the regions of a buffer, and dropped with the last of them.
#[derive(Debug)]
pub(crate) struct Lease {
    /// `None` after drop.
    references: Option<Arc<()>>,
    node: Arc<Node>,
}

impl Lease {
    pub(crate) fn new(references: &Arc<()>, node: &Arc<Node>) -> Self {
        Self {
            references: Some(Arc::clone(references)),
            node: Arc::clone(node),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.references.take();
        self.node.owned.release_unused(&self.node);
    }
}

impl OwnedBuffers {
    /// The buffer that begins at a granule.
    pub(crate) fn token(&self, first: u32) -> Option<DmbToken> {
        self.tokens.lock().get(&first).copied()
    }

    pub(crate) fn insert(&self, run: GranuleRun, token: DmbToken) {
        self.tokens.lock().insert(run.first, token);
    }

    /// A buffer was dropped: its memory is released as soon as it has no user.
    fn release(&self, node: &Node, pending: PendingRelease) {
        self.tokens.lock().remove(&pending.run.first);
        self.pending.lock().push(pending);
        self.release_unused(node);
    }

    /// Releases pending memory that has no user any more.
    pub(crate) fn release_unused(&self, node: &Node) {
        let memory = &node.memory;
        self.pending
            .lock()
            .retain_mut(|PendingRelease { run, lease, .. }| {
                let mut is_used = || Arc::get_mut(lease).is_none() || memory.is_used(run.first);
                if is_used() {
                    // The peer signals at the end of its use.
                    memory.arm(*run);
                    if is_used() {
                        return true;
                    }
                }
                memory.release(node.tag, *run);
                false
            });
    }
}

/// A local buffer.
#[derive(Debug)]
pub(crate) struct IsmDmb {
    pub(crate) token: DmbToken,
    pub(crate) run: GranuleRun,
    pub(crate) region: Region,
    /// Shared by the clones of the region, which may outlive the buffer. `None` after drop.
    pub(crate) lease: Option<Arc<()>>,
    pub(crate) charge: Charge,
    pub(crate) node: Arc<Node>,
    pub(crate) _permit: DmbPermit,
}

impl Dmb for IsmDmb {
    fn token(&self) -> DmbToken {
        self.token
    }

    fn region(&self) -> &Region {
        &self.region
    }

    fn arm(&self) {
        self.node.memory.arm(self.run);
    }
}

impl Drop for IsmDmb {
    fn drop(&mut self) {
        self.node.memory.withdraw(self.run);
        // Drops the local reference to the lease.
        self.region = Region::anonymous(0);
        if let Some(lease) = self.lease.take() {
            let pending = PendingRelease {
                run: self.run,
                lease,
                _charge: std::mem::take(&mut self.charge),
            };
            self.node.owned.release(&self.node, pending);
        }
    }
}
