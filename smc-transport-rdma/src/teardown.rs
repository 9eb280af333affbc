//! The end of queue pairs, and deferred teardown of a link that has no user any more.

use std::sync::Arc;

use sideway::ibverbs::device_context::DeviceContext;
use sideway::ibverbs::queue_pair::BasicQueuePair;

use crate::buffers::Buffers;
use crate::device::Parts;
use crate::verbs;

/// A queue pair, which is destroyed when this is dropped, unless its device is gone.
pub(crate) struct OwnedQueuePair {
    qp: Option<BasicQueuePair>,
    context: Arc<DeviceContext>,
}

impl OwnedQueuePair {
    pub(crate) fn new(qp: BasicQueuePair, context: &Arc<DeviceContext>) -> Self {
        Self {
            qp: Some(qp),
            context: Arc::clone(context),
        }
    }

    /// `None` once it was taken.
    pub(crate) fn get(&self) -> Option<&BasicQueuePair> {
        self.qp.as_ref()
    }

    /// As [`OwnedQueuePair::get`].
    pub(crate) fn get_mut(&mut self) -> Option<&mut BasicQueuePair> {
        self.qp.as_mut()
    }

    /// Takes the queue pair away, which is destroyed with the result.
    pub(crate) fn take(&mut self) -> Self {
        Self {
            qp: self.qp.take(),
            context: Arc::clone(&self.context),
        }
    }
}

impl Drop for OwnedQueuePair {
    fn drop(&mut self) {
        let Some(qp) = self.qp.take() else { return };
        if is_device_gone(&self.context) {
            // Destroying it would fail, at which sideway panics.
            std::mem::forget(qp);
        }
    }
}

/// Whether objects of the device can no longer be destroyed. The device is queried: it may be gone
/// before its event has been read.
pub(crate) fn is_device_gone(context: &DeviceContext) -> bool {
    #[cfg(test)]
    if tests::IS_DEVICE_GONE.get() {
        return true;
    }
    verbs::is_device_gone(context)
}

/// The resources of a link: the queue pair, and its buffers.
pub(crate) struct DeferredTeardown {
    pub(crate) qp: OwnedQueuePair,
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
        // Its entries in the completion queues become free with that.
        drop(self.qp.take());
        self.parts.release_link();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::link::Core;
    use crate::links::Serial;
    use crate::port::{self, PortState};
    use crate::{RdmaDevice, domain, probe};

    thread_local! {
        /// This thread finds the device gone.
        pub(super) static IS_DEVICE_GONE: Cell<bool> = const { Cell::new(false) };
    }

    #[test]
    fn a_queue_pair_that_is_not_completed_is_destroyed_only_if_its_device_is_there() {
        let reports = probe().unwrap_or_default();
        let Some(usable) = reports.iter().find(|report| report.usable.is_ok()) else {
            println!("skipped: no RDMA device that can be used");
            return;
        };
        let device = RdmaDevice::open(&usable.name).unwrap();
        let parts = device.parts();
        let domain = domain::allocate(&parts.context).unwrap();
        let ports = port::read(&parts.context).unwrap();
        assert!(ports.iter().any(|port| port.state == PortState::Active));
        let mut entry = port::active(&ports)[0].clone();
        // The queue pair is made, and refuses this one.
        entry.address.port = 99;
        let users = Arc::strong_count(&domain);
        for (is_device_gone, left) in [(false, 0), (true, 1)] {
            IS_DEVICE_GONE.set(is_device_gone);
            let opened = Core::open(parts, &domain, Serial(1), &entry);
            IS_DEVICE_GONE.set(false);
            assert!(opened.is_err());
            assert_eq!(Arc::strong_count(&domain), users + left, "queue pairs left");
        }
    }
}
