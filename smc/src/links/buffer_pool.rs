//! Memory that devices may access: RMBs, which peers write, and staging rings, which local links
//! read from. A link group pools the buffers of its former connections.

use std::sync::Arc;

use smc_wire::size::SizeCode;

use crate::device::{Access, Charge, DeviceError, MemoryLimit, Mr, ProtectionDomain};
use crate::mem::sync::{AtomicBool, Ordering};
use crate::mem::{Element, HEADER_LEN, Region};
use crate::mutex::Mutex;
use crate::proto::group::DeviceIndex;
use crate::proto::links::{RmbId, RmbKey};

/// A ring of registered memory.
///
/// In front of the ring, and not registered, is space for a CDC block: the device of SMC-D writes
/// the peer's words there, the driver of SMC-R does the same.
#[derive(Debug)]
pub(crate) struct RdmaBuffer {
    /// The CDC block and the ring.
    pub(crate) element: Element,
    /// The ring without the block: what is registered.
    ring: Region,
    pub(crate) size: SizeCode,
    access: Access,
    registrations: Mutex<Vec<(DeviceIndex, Arc<dyn Mr>)>>,
    /// It is not of its first connection.
    is_reused: AtomicBool,
    /// The identifier under which the peer knows it, while no connection uses it.
    announced: Mutex<Option<RmbId>>,
    // Dropped last, after the memory.
    _charge: Charge,
}

impl RdmaBuffer {
    fn is(&self, size: SizeCode, access: Access) -> bool {
        self.size == size && self.access == access
    }

    /// Whether it is an RMB of this size that stays announced in the pool.
    fn is_announced(&self, size: SizeCode) -> bool {
        self.size == size && self.announced.lock().is_some()
    }

    pub(super) fn new(
        size: SizeCode,
        access: Access,
        limit: &MemoryLimit,
    ) -> Result<Self, DeviceError> {
        let charge = limit.charge(size.byte_len())?;
        let whole = aligned(size.byte_len())?;
        let ring = whole.part(HEADER_LEN, size.byte_len());
        let ring = ring.map_err(|_| DeviceError::NoMemory)?;
        let element = Element::new(whole).map_err(|_| DeviceError::NoMemory)?;
        Ok(Self {
            element,
            ring,
            size,
            access,
            registrations: Mutex::default(),
            is_reused: AtomicBool::new(false),
            announced: Mutex::default(),
            _charge: charge,
        })
    }

    /// Takes the identifier under which the peer knows it, if it stayed announced in the pool.
    pub(super) fn take_announced(&self) -> Option<RmbId> {
        self.announced.lock().take()
    }

    /// Whether a former connection has used it.
    pub(crate) fn is_reused(&self) -> bool {
        self.is_reused.load(Ordering::Relaxed)
    }

    /// The registration with a device, if any.
    pub(crate) fn mr(&self, device: DeviceIndex) -> Option<Arc<dyn Mr>> {
        let registrations = self.registrations.lock();
        let found = registrations.iter().find(|(at, _)| *at == device);
        found.map(|(_, mr)| Arc::clone(mr))
    }

    /// Registers the ring with a device, in the link group's domain, unless it is already.
    pub(crate) async fn register(
        &self,
        device: DeviceIndex,
        domain: &dyn ProtectionDomain,
    ) -> Result<Arc<dyn Mr>, DeviceError> {
        if let Some(mr) = self.mr(device) {
            return Ok(mr);
        }
        let mr = domain.register(&self.ring, self.access).await?;
        let mut registrations = self.registrations.lock();
        // The key of a faster task may have been sent to the peer.
        if let Some((_, mr)) = registrations.iter().find(|(at, _)| *at == device) {
            return Ok(Arc::clone(mr));
        }
        registrations.push((device, Arc::clone(&mr)));
        Ok(mr)
    }

    /// Registers the ring with several devices. Returns the keys.
    pub(crate) async fn register_all(&self, domains: &Domains) -> Result<Vec<RmbKey>, DeviceError> {
        let mut keys = Vec::new();
        for (device, domain) in domains {
            let mr = self.register(*device, &**domain).await?;
            keys.push(RmbKey {
                device: *device,
                rkey: mr.rkey(),
                addr: mr.addr(),
            });
        }
        Ok(keys)
    }

    /// Clears a buffer for the next connection, as far as it was written.
    fn clear(&self, dirty: usize) {
        self.element.reset();
        // The span is within the region.
        let _in_bounds = self.ring.zero(0, dirty.min(self.ring.len()));
        self.is_reused.store(true, Ordering::Relaxed);
    }
}

/// Protection domains of a link group, which separate its memory from the peers of other groups,
/// with their devices.
pub(crate) type Domains = Vec<(DeviceIndex, Arc<dyn ProtectionDomain>)>;

/// The buffers of a link group that no connection uses.
#[derive(Debug)]
pub(crate) struct RdmaBufferPool {
    free: Mutex<Vec<Arc<RdmaBuffer>>>,
    /// The limit that buffers are charged to, also while they are unused.
    limit: MemoryLimit,
}

impl RdmaBufferPool {
    pub(crate) fn new(limit: MemoryLimit) -> Self {
        Self {
            free: Mutex::default(),
            limit,
        }
    }

    /// Takes all buffers out of the pool.
    pub(crate) fn take_all(&self) -> Vec<Arc<RdmaBuffer>> {
        std::mem::take(&mut *self.free.lock())
    }

    /// Number of RMBs that the peer knows.
    pub(crate) fn announced(&self) -> usize {
        let free = self.free.lock();
        let announced = free
            .iter()
            .filter(|buffer| buffer.announced.lock().is_some());
        announced.count()
    }

    /// Whether the pool has an RMB of this size that stays announced.
    pub(crate) fn has_announced(&self, size: SizeCode) -> bool {
        let is = |buffer: &Arc<RdmaBuffer>| buffer.is_announced(size);
        self.free.lock().iter().any(is)
    }

    /// Whether the pool has a buffer of this size.
    pub(crate) fn has(&self, size: SizeCode, access: Access) -> bool {
        self.free
            .lock()
            .iter()
            .any(|buffer| buffer.is(size, access))
    }

    /// A buffer of this size. An RMB is zeroed as far as its former connection knew it to be
    /// written.
    pub(crate) fn take(
        &self,
        size: SizeCode,
        access: Access,
    ) -> Result<Arc<RdmaBuffer>, DeviceError> {
        self.take_if(size, access, |buffer| buffer.is(size, access))
    }

    /// The same for an RMB that is not announced.
    pub(crate) fn take_unannounced(&self, size: SizeCode) -> Result<Arc<RdmaBuffer>, DeviceError> {
        let access = Access::RemoteWrite;
        self.take_if(size, access, |buffer| {
            buffer.is(size, access) && !buffer.is_announced(size)
        })
    }

    /// A buffer of the pool that is such a one, or a new one.
    fn take_if(
        &self,
        size: SizeCode,
        access: Access,
        is_such: impl Fn(&RdmaBuffer) -> bool,
    ) -> Result<Arc<RdmaBuffer>, DeviceError> {
        let reused = {
            let mut free = self.free.lock();
            let at = free.iter().rposition(|buffer| is_such(buffer));
            at.map(|at| free.swap_remove(at))
        };
        match reused {
            Some(buffer) => Ok(buffer),
            None => RdmaBuffer::new(size, access, &self.limit).map(Arc::new),
        }
    }

    /// An RMB, one that is announced if there is one. It goes back to the pool if it stayed
    /// announced there and no connection comes to use it.
    pub(super) fn take_rmb(&self, size: SizeCode) -> Result<TakenRmb<'_>, DeviceError> {
        let announced = {
            let mut free = self.free.lock();
            let at = free.iter().rposition(|buffer| buffer.is_announced(size));
            at.map(|at| free.swap_remove(at))
        };
        let buffer = match announced {
            Some(buffer) => buffer,
            None => self.take(size, Access::RemoteWrite)?,
        };
        Ok(TakenRmb { pool: self, buffer })
    }

    /// Returns an RMB to the pool that stays announced under this identifier. The peer writes it no
    /// more, as it has published the end of its data.
    pub(crate) fn put_announced(&self, buffer: Arc<RdmaBuffer>, dirty: usize, id: RmbId) {
        *buffer.announced.lock() = Some(id);
        buffer.clear(dirty);
        // Few stay announced, so that there is space for them: without the buffer its key could not
        // be deleted.
        self.free.lock().push(buffer);
    }

    /// Returns a buffer to the pool. It must not be writable any more: the peer has confirmed the
    /// deletion of the RKEY, or the link is gone.
    ///
    /// The first `dirty` bytes are erased. A staging ring needs no erasing: only bytes that were
    /// copied into it for the current connection are sent from it.
    pub(crate) fn put(&self, buffer: Arc<RdmaBuffer>, dirty: usize) {
        // Before it can be reused.
        buffer.clear(dirty);
        let mut free = self.free.lock();
        if free.len() < KEPT_MAX {
            free.push(buffer);
        }
    }
}

/// An RMB for a connection that is being set up.
#[derive(Debug)]
pub(super) struct TakenRmb<'p> {
    pool: &'p RdmaBufferPool,
    buffer: Arc<RdmaBuffer>,
}

impl TakenRmb<'_> {
    pub(super) fn buffer(&self) -> &Arc<RdmaBuffer> {
        &self.buffer
    }

    /// A connection uses it, with the identifier under which the peer knows it already.
    pub(super) fn used(self) -> (Arc<RdmaBuffer>, Option<RmbId>) {
        let id = self.buffer.take_announced();
        (Arc::clone(&self.buffer), id)
    }
}

impl Drop for TakenRmb<'_> {
    fn drop(&mut self) {
        if self.buffer.announced.lock().is_some() {
            self.pool.free.lock().push(Arc::clone(&self.buffer));
        }
    }
}

/// Memory for a CDC block and a ring that begins at a page boundary: registration pins whole
/// pages, and nothing else shares them.
fn aligned(ring: usize) -> Result<Region, DeviceError> {
    let len = ring.checked_add(PAGE).ok_or(DeviceError::NoMemory)?;
    let region = Region::try_anonymous(len)?;
    let whole = region.part(PAGE - HEADER_LEN, HEADER_LEN + ring);
    whole.map_err(|_| DeviceError::NoMemory)
}

const PAGE: usize = 4096;

/// Maximum of pooled buffers: those of a full group.
const KEPT_MAX: usize = 2 * 255;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_announced_rmb_of_a_set_up_that_fails_is_for_the_next_one() {
        let pool = RdmaBufferPool::new(MemoryLimit::new(1 << 20));
        let take = || pool.take_rmb(SizeCode::MIN).unwrap();
        let (buffer, id) = take().used();
        assert_eq!(id, None);
        pool.put_announced(buffer, 0, RmbId(7));
        for _ in 0..3 {
            drop(take());
            assert_eq!(pool.announced(), 1);
        }
        let (_buffer, id) = take().used();
        assert_eq!(id, Some(RmbId(7)));
        assert_eq!(pool.announced(), 0);
    }
}
