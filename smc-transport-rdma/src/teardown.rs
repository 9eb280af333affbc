//! Deferred teardown of a link that has no user any more.

use std::sync::Arc;

use sideway::ibverbs::queue_pair::BasicQueuePair;

use crate::device::Parts;
use crate::link::Buffers;

/// The resources of a link: the queue pair, and its buffers.
pub(crate) struct DeferredTeardown {
    pub(crate) qp: Option<BasicQueuePair>,
    pub(crate) _buffers: Arc<Buffers>,
    pub(crate) parts: Arc<Parts>,
}

impl DeferredTeardown {
    /// Destroys a link that has failed, on another thread.
    ///
    /// Soft-RoCE then waits for packets that an interface which is down will never send, for close
    /// to a minute: not on a thread that has other links to serve. Without another thread it has to
    /// be this one.
    pub(crate) fn spawn(self) {
        let thread = std::thread::Builder::new().name("smc-rdma".to_owned());
        let _dropped_if_refused = thread.spawn(move || drop(self));
    }
}

impl Drop for DeferredTeardown {
    fn drop(&mut self) {
        let qp = self.qp.take();
        if self.parts.is_severed() {
            // Destroying it would fail, at which sideway panics.
            std::mem::forget(qp);
        } else {
            drop(qp);
        }
        self.parts.retire();
    }
}
