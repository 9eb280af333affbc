//! Protection domains: each link group has its own, so that no peer can write into the memory of
//! another one.

use std::io;
use std::sync::Arc;

use async_trait::async_trait;
use sideway::ibverbs::device_context::{AllocateProtectionDomainErrorKind, DeviceContext};
use sideway::ibverbs::protection_domain;
use smc_core::device::{Access, DeviceError, Mr, PendingLink, ProtectionDomain, RdmaAddress};
use smc_core::mem::Region;

use crate::device::Parts;
use crate::error::not_made;
use crate::link::{Core, Pending};
use crate::memory::{self, Memory};
use crate::port;

/// A protection domain of a device.
#[derive(Clone, Debug)]
pub(crate) struct RdmaProtectionDomain {
    pd: Arc<protection_domain::ProtectionDomain>,
    parts: Arc<Parts>,
}

impl RdmaProtectionDomain {
    /// Blocks.
    pub(crate) fn new(parts: &Arc<Parts>) -> Result<Self, DeviceError> {
        let pd = allocate(&parts.context);
        Ok(Self {
            pd: pd.map_err(|error| not_made(ALLOCATING, &error))?,
            parts: Arc::clone(parts),
        })
    }
}

#[async_trait]
impl ProtectionDomain for RdmaProtectionDomain {
    async fn open_link(&self, at: &RdmaAddress) -> Result<Box<dyn PendingLink>, DeviceError> {
        self.parts.check()?;
        let (domain, at) = (self.clone(), at.clone());
        let opened = self.parts.calls.run(move || domain.open(&at));
        Ok(Box::new(opened.await??))
    }

    async fn register(&self, memory: &Region, access: Access) -> Result<Arc<dyn Mr>, DeviceError> {
        self.parts.check()?;
        let (pd, memory) = (Arc::clone(&self.pd), memory.clone());
        let is_relaxed = self.parts.is_relaxed;
        let has_huge_pages = self.parts.has_huge_pages;
        let made = self.parts.calls.run(move || {
            // Registering takes the pages.
            if has_huge_pages {
                memory::advise_huge_pages(&memory);
            }
            Memory::new(&pd, &memory, access, is_relaxed)
        });
        Ok(Arc::new(made.await??))
    }
}

impl RdmaProtectionDomain {
    /// Blocks.
    fn open(&self, at: &RdmaAddress) -> Result<Pending, DeviceError> {
        let ports = port::read(&self.parts.context)
            .map_err(|error| DeviceError::os("reading the GID table", &error))?;
        let mut active = port::active(&ports).into_iter();
        let entry = active.find(|entry| entry.address.is_same_entry(at));
        let entry = entry.ok_or(DeviceError::Invalid("no active port has this address"))?;
        let links = &self.parts.links;
        let serial = links.reserve().ok_or(DeviceError::Exhausted)?;
        let core = Core::open(&self.parts, &self.pd, serial, &entry);
        let core = core.inspect_err(|_| self.parts.release_link())?;
        Pending::new(core, &entry)
    }
}

/// Allocates a protection domain.
pub(crate) fn allocate(
    context: &Arc<DeviceContext>,
) -> io::Result<Arc<protection_domain::ProtectionDomain>> {
    context.alloc_pd().map_err(|error| match error.0 {
        AllocateProtectionDomainErrorKind::Ibverbs(error) => error,
        _ => io::ErrorKind::Unsupported.into(),
    })
}

/// For errors.
pub(crate) const ALLOCATING: &str = "allocating a protection domain";
