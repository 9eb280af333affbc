//! Buffers of the SMC-D device in memory.

use std::io::IoSlice;
use std::sync::Arc;

use smc_core::device::{Attachment, Dmb, Event, Signal, SubmitError};
use smc_core::mem::Region;
use smc_core::mem::sync::{AtomicBool, Ordering, fence};
use smc_wire::types::{DmbToken, Gid};

use super::SharedFabric;
use super::device::Port;

/// A registered buffer: owned by one device, writable by one peer.
#[derive(Debug)]
pub(super) struct Buffer {
    pub(super) token: DmbToken,
    pub(super) region: Region,
    /// The device that may write.
    pub(super) peer: Gid,
    owner: Arc<Port>,
    armed: AtomicBool,
    freed: AtomicBool,
}

impl Buffer {
    pub(super) fn new(token: DmbToken, len: usize, owner: Arc<Port>, peer: Gid) -> Self {
        let region = Region::anonymous(len);
        let (armed, freed) = (AtomicBool::new(false), AtomicBool::new(false));
        Self {
            token,
            region,
            peer,
            owner,
            armed,
            freed,
        }
    }

    pub(super) fn is_owned_by(&self, gid: Gid) -> bool {
        self.owner.gid == gid
    }

    /// Writes one aligned block word by word, anything else piece by piece.
    pub(super) fn write(
        &self,
        at: u32,
        data: &[IoSlice<'_>],
        signal: Signal,
    ) -> Result<(), SubmitError> {
        let mut at = usize::try_from(at).map_err(|_| SubmitError::OutOfBounds)?;
        let lens = data.iter().map(|slice| slice.len());
        if lens.fold(at, usize::saturating_add) > self.region.len() {
            return Err(SubmitError::OutOfBounds);
        }
        for slice in data {
            self.region
                .copy_in(at, slice)
                .map_err(|_| SubmitError::OutOfBounds)?;
            at += slice.len();
        }
        if signal == Signal::Yes {
            self.signal();
        }
        Ok(())
    }

    /// Signals the owner if the buffer is armed.
    pub(super) fn signal(&self) {
        // Pairs with the fence of `arm`: either the owner is seen to be armed, or its poll of the
        // memory after arming sees what was written before.
        fence(Ordering::SeqCst);
        if self.armed.load(Ordering::Relaxed) && self.armed.swap(false, Ordering::AcqRel) {
            self.owner.report(Event::Signalled(self.token));
        }
    }

    fn arm(&self) {
        self.armed.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
    }
}

/// The owner's handle.
#[derive(Debug)]
pub(super) struct MemDmb {
    pub(super) buffer: Arc<Buffer>,
    pub(super) shared: Arc<SharedFabric>,
}

impl Dmb for MemDmb {
    fn token(&self) -> DmbToken {
        self.buffer.token
    }

    fn region(&self) -> &Region {
        &self.buffer.region
    }

    fn arm(&self) {
        self.buffer.arm();
    }
}

impl Drop for MemDmb {
    fn drop(&mut self) {
        self.buffer.freed.store(true, Ordering::Release);
        self.shared.write().buffers.remove(&self.buffer.token);
    }
}

/// The peer's handle. The memory lives as long as either handle does.
#[derive(Debug)]
pub(super) struct MemAttachment {
    pub(super) buffer: Arc<Buffer>,
}

impl Attachment for MemAttachment {
    fn region(&self) -> &Region {
        &self.buffer.region
    }

    fn signal(&self) -> Result<(), SubmitError> {
        if self.buffer.freed.load(Ordering::Acquire) || self.buffer.owner.is_gone() {
            return Err(SubmitError::PeerGone);
        }
        self.buffer.signal();
        Ok(())
    }
}
