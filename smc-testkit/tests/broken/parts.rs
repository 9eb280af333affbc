use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Wake;

use atomic_waker::AtomicWaker;
use smc_core::device::{Attachment, Dmb, SubmitError};
use smc_core::mem::Region;
use smc_wire::types::{DmbToken, Gid};

use crate::device::Shared;
use crate::flaw::Flaw;

/// What is known of a registered buffer.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) token: DmbToken,
    pub(crate) inner: DmbToken,
    pub(crate) region: Region,
    pub(crate) writer: Gid,
    pub(crate) is_live: bool,
}

/// A buffer with another token or other memory than the real one.
#[derive(Debug)]
pub(crate) struct BrokenDmb {
    pub(crate) inner: Arc<dyn Dmb>,
    pub(crate) token: DmbToken,
    pub(crate) region: Region,
    pub(crate) flaw: Flaw,
    pub(crate) shared: Arc<Shared>,
}

impl Dmb for BrokenDmb {
    fn token(&self) -> DmbToken {
        self.token
    }

    fn region(&self) -> &Region {
        &self.region
    }

    fn arm(&self) {
        self.inner.arm();
    }
}

impl Drop for BrokenDmb {
    fn drop(&mut self) {
        for entry in self
            .shared
            .entries()
            .iter_mut()
            .filter(|entry| entry.token == self.token)
        {
            entry.is_live = false;
        }
        match self.flaw {
            Flaw::NeverFrees => std::mem::forget(Arc::clone(&self.inner)),
            Flaw::RecyclesMemory => self.shared.pool().push(Arc::clone(&self.inner)),
            _ => {}
        }
    }
}

#[derive(Debug)]
pub(crate) struct BrokenAttachment {
    pub(crate) inner: Option<Arc<dyn Attachment>>,
    pub(crate) region: Region,
    pub(crate) flaw: Flaw,
}

impl Attachment for BrokenAttachment {
    fn region(&self) -> &Region {
        &self.region
    }

    fn signal(&self) -> Result<(), SubmitError> {
        self.inner.as_ref().map_or(Ok(()), |inner| inner.signal())
    }
}

impl Drop for BrokenAttachment {
    fn drop(&mut self) {
        if self.flaw == Flaw::DetachWipes {
            self.region.zero(0, self.region.len()).unwrap();
        }
    }
}

/// A doorbell between the real one and the driver, that can be taken back.
#[derive(Debug, Default)]
pub(crate) struct Relay {
    pub(crate) outer: AtomicWaker,
    pub(crate) is_armed: AtomicBool,
}

impl Wake for Relay {
    fn wake(self: Arc<Self>) {
        if self.is_armed.load(Ordering::SeqCst) {
            self.outer.wake();
        }
    }
}

/// A move that is held back until the next one was made.
pub(crate) type Held = Mutex<Option<(DmbToken, u32, Vec<u8>)>>;
