//! What is left of a link when nobody uses it any more.

use std::sync::Arc;

use sideway::ibverbs::queue_pair::BasicQueuePair;

use crate::device::Parts;
use crate::link::Buffers;

/// What is left of a link: the queue pair, and what it uses.
pub(crate) struct Remains {
    pub(crate) qp: Option<BasicQueuePair>,
    pub(crate) _buffers: Arc<Buffers>,
    pub(crate) parts: Arc<Parts>,
}

impl Remains {
    /// Takes a link apart that went down by itself.
    ///
    /// Soft-RoCE then waits for packets that an interface which is down will never send, for close
    /// to a minute: not on a thread that has other links to serve. Without another thread it has to
    /// be this one.
    pub(crate) fn drop_later(self) {
        let thread = std::thread::Builder::new().name("smc-rdma".to_owned());
        let _dropped_if_refused = thread.spawn(move || drop(self));
    }
}

impl Drop for Remains {
    fn drop(&mut self) {
        let qp = self.qp.take();
        if self.parts.is_severed() {
            // Destroying it would fail, and sideway does not bear that.
            std::mem::forget(qp);
        } else {
            drop(qp);
        }
        self.parts.retire();
    }
}
