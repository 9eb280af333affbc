//! The owner's side: the local buffers for one peer.
//!
//! A buffer whose [`Dmb`] was dropped leaves its backing, that is its memory and its slot in the
//! signal page, in a bounded pool, and the peer keeps the memory mapped. The next buffer of the
//! same length takes the backing again under a fresh token: no system call, no descriptor, no
//! message. The peer has to have released the memory, as the `users` word of the slot shows.
//! Backings are never given to another peer, since a process keeps access to what it once mapped.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use smc_core::device::{DeviceError, Dmb, DmbPermit, Event, MemoryAccount};
use smc_core::mem::Region;
use smc_core::mem::sync::{AtomicUsize, Ordering};
use smc_core::mutex::Mutex;
use smc_wire::types::DmbToken;

use crate::mappings::take_of_process;
use crate::pool::{Backing, Pool, PoolLimits};
use crate::random;
use crate::region::Mapping;
use crate::released::Released;
use crate::send_queue::{SendPath, WakeList};
use crate::signal_page::{SLOTS, SignalPage, SlotState};

/// The local buffers for one peer, and the send path to the peer.
#[derive(Debug)]
pub(crate) struct LocalBuffers {
    pub(crate) signal_page: SignalPage,
    table: Mutex<Table>,
    pub(crate) send_path: SendPath,
    pool_limits: PoolLimits,
    account: MemoryAccount,
}

/// Memory that the peer does not have yet.
#[derive(Debug)]
pub(crate) struct NewMemory {
    pub(crate) index: u32,
    pub(crate) number: u64,
    pub(crate) mapping: Arc<Mapping>,
    /// `None` if the peer is this very device.
    pub(crate) file: Option<OwnedFd>,
}

impl LocalBuffers {
    pub(crate) fn new(
        signal_page: SignalPage,
        send_path: SendPath,
        pool_limits: PoolLimits,
        account: MemoryAccount,
    ) -> Self {
        // Until the driver polls the peer, only the doorbell notifies it.
        signal_page.set_sleeping();
        Self {
            signal_page,
            table: Mutex::default(),
            send_path,
            pool_limits,
            account,
        }
    }

    /// Makes a zeroed buffer. New memory has to reach the peer before the token does.
    pub(crate) fn register(
        self: &Arc<Self>,
        len: usize,
        permit: DmbPermit,
    ) -> Result<(LoopDmb, Option<NewMemory>), DeviceError> {
        let (registration, index, reused) = self.table.lock().allocate(len)?;
        let made = match reused {
            Some(backing) => reuse(backing, len).map(|backing| (backing, None)),
            None => self.make(len, registration, index),
        };
        let made = made.and_then(|made| Ok((made, random::token()?)));
        let ((backing, new), token) = made.inspect_err(|_| self.cancel_allocation(index))?;
        if !self.table.lock().set(index, token) {
            return Err(DeviceError::PeerGone);
        }
        backing.slot.publish(SlotState {
            registration,
            token: token.0,
            memory: backing.number,
        });
        if new.is_none() {
            self.signal_page.set_changed(index);
        }
        let dmb = LoopDmb {
            token,
            region: backing.mapping.leased(Lease {
                refs: Some(Arc::clone(&backing.lease)),
                index,
                local: Arc::clone(self),
            }),
            registration: Registration {
                delivered: new.is_none(),
                used: AtomicUsize::new(len),
                backing: Some(backing),
                local: Arc::clone(self),
            },
            is_reused: new.is_none(),
            _permit: permit,
        };
        Ok((dmb, new))
    }

    /// Reports the buffers that the peer signalled. Returns the number of its signals.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> usize {
        let mut table = None;
        let mut left = Vec::new();
        let mut signals = 0;
        self.signal_page.take_ready(|index| {
            signals += 1;
            // Locked only if there is something.
            let table = table.get_or_insert_with(|| self.table.lock());
            match table.entry(index) {
                TableEntry::Registered(token) => events.push(Event::Signalled(token)),
                TableEntry::Dirty => left.push(index),
                TableEntry::Vacant => {}
            }
        });
        drop(table);
        left.into_iter().for_each(|index| self.reclaim(index));
        signals
    }

    /// Closes the table and the channel, after the end of the peer or the device.
    pub(crate) fn close(&self, released: &Released) -> WakeList {
        let pool = self.table.lock().close();
        released.add_backings(pool.into_backings());
        self.send_path.close()
    }

    fn make(
        &self,
        len: usize,
        registration: u64,
        index: u32,
    ) -> Result<(Backing, Option<NewMemory>), DeviceError> {
        let charge = self.account.charge(len)?;
        let (mapping, file) = match &self.send_path {
            SendPath::Own(_) => (Mapping::anonymous(len)?, None),
            SendPath::Channel(send_queue) => {
                let permit = take_of_process(send_queue.user)?;
                let (mapping, file) = Mapping::create(len, permit, send_queue.user)?;
                (mapping, Some(file))
            }
        };
        let slot = self
            .signal_page
            .slot(index)
            .map_err(|_| DeviceError::Exhausted)?;
        let new = NewMemory {
            index,
            number: registration,
            mapping: Arc::clone(&mapping),
            file,
        };
        let backing = Backing {
            index,
            number: registration,
            slot,
            mapping,
            lease: Arc::default(),
            used: len,
            charge,
        };
        Ok((backing, Some(new)))
    }

    /// Releases the pooled memory.
    pub(crate) fn trim(&self) {
        let dropped = {
            let mut table = self.table.lock();
            let unused = table.pool.take_free();
            table.clear_memory(&unused, &self.signal_page);
            unused
        };
        if !dropped.is_empty() {
            self.notify_changes();
        }
    }

    /// Returns an index for which there is no memory after all.
    fn cancel_allocation(&self, index: u32) {
        if let Ok(slot) = self.signal_page.slot(index) {
            let mut table = self.table.lock();
            slot.clear_memory();
            self.signal_page.set_changed(index);
            table.enter(index, TableEntry::Vacant);
            table.free.push(index);
        }
        self.notify_changes();
    }

    /// Drops the dirty backing of a dropped buffer, if this process and the peer have both released
    /// it: the last release calls this, that of the peer by a signal.
    fn reclaim(&self, index: u32) {
        let backing = {
            let mut table = self.table.lock();
            match table.entry(index) {
                TableEntry::Dirty => table.pool.take_reclaimable(index),
                _ => None,
            }
        };
        if let Some(backing) = backing {
            self.put(backing, true);
        }
    }

    /// Pools a backing that can be used again, or is still in use.
    fn put(&self, backing: Backing, is_reusable: bool) {
        let dropped =
            self.table
                .lock()
                .put(backing, is_reusable, self.pool_limits, &self.signal_page);
        if !dropped.is_empty() {
            self.notify_changes();
        }
    }

    /// Whether there is dirty memory that waits to be dropped.
    #[cfg(all(test, smc_loom))]
    pub(crate) fn has_dirty(&self) -> bool {
        let table = self.table.lock();
        let mut entries = table.entries.iter();
        entries.any(|entry| matches!(entry, TableEntry::Dirty))
    }

    fn notify_changes(&self) {
        if self.signal_page.request_scan() {
            self.send_path.notify();
        }
    }
}

/// Makes a pooled backing one of a new buffer.
fn reuse(mut backing: Backing, len: usize) -> Result<Backing, DeviceError> {
    backing.charge.resize(len)?;
    let zeroed = backing.mapping.zero(backing.used);
    zeroed.map_err(|_| DeviceError::NoMemory)?;
    Ok(backing)
}

/// A local buffer.
#[derive(Debug)]
pub(crate) struct LoopDmb {
    token: DmbToken,
    // Dropped before the registration, which may find the memory free then.
    region: Region,
    registration: Registration,
    is_reused: bool,
    _permit: DmbPermit,
}

impl LoopDmb {
    pub(crate) fn set_delivered(&mut self) {
        self.registration.delivered = true;
    }
}

impl Dmb for LoopDmb {
    fn token(&self) -> DmbToken {
        self.token
    }

    fn region(&self) -> &Region {
        &self.region
    }

    fn arm(&self) {
        if let Some(backing) = &self.registration.backing {
            backing.slot.arm();
        }
    }

    fn set_used(&self, len: usize) {
        self.registration.used.store(len, Ordering::Relaxed);
    }

    fn is_reused(&self) -> bool {
        self.is_reused
    }
}

/// A registration of a backing, which ends when this is dropped.
#[derive(Debug)]
struct Registration {
    /// Taken when dropped.
    backing: Option<Backing>,
    /// Whether the peer has the memory, so that the backing can be used again.
    delivered: bool,
    /// Bytes from the start that the peer may have written.
    used: AtomicUsize,
    local: Arc<LocalBuffers>,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Some(mut backing) = self.backing.take() {
            backing.used = self.used.load(Ordering::Relaxed);
            backing.slot.withdraw();
            self.local.put(backing, self.delivered);
        }
    }
}

/// Shared by the regions of a buffer, and dropped with the last of them.
#[derive(Debug)]
struct Lease {
    /// Taken when dropped.
    refs: Option<Arc<()>>,
    index: u32,
    local: Arc<LocalBuffers>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.refs.take();
        self.local.reclaim(self.index);
    }
}

#[derive(Debug, Default)]
struct Table {
    is_closed: bool,
    /// By index.
    entries: Vec<TableEntry>,
    free: Vec<u32>,
    registrations: u64,
    pool: Pool,
}

/// What is behind an index.
#[derive(Clone, Copy, Debug)]
enum TableEntry {
    /// No buffer, or memory in the pool that can be used again.
    Vacant,
    Registered(DmbToken),
    /// Memory in the pool that is to be dropped when nothing uses it any more.
    Dirty,
}

impl Table {
    /// Number and index of a new registration, and the backing if there is one to be used again.
    fn allocate(&mut self, len: usize) -> Result<(u64, u32, Option<Backing>), DeviceError> {
        if self.is_closed {
            return Err(DeviceError::PeerGone);
        }
        let reused = self.pool.take(len);
        let index = match &reused {
            Some(backing) => backing.index,
            None => self.take_index()?,
        };
        self.registrations += 1;
        Ok((self.registrations, index, reused))
    }

    fn take_index(&mut self) -> Result<u32, DeviceError> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        if let Some(index) = u32::try_from(self.entries.len())
            .ok()
            .filter(|next| *next < SLOTS)
        {
            self.entries.push(TableEntry::Vacant);
            return Ok(index);
        }
        // Other memory gets this slot, which shows the peer that the old one was released.
        let backing = self.pool.take_oldest().ok_or(DeviceError::Exhausted)?;
        self.enter(backing.index, TableEntry::Vacant);
        Ok(backing.index)
    }

    /// False if the peer has ended.
    fn set(&mut self, index: u32, token: DmbToken) -> bool {
        self.enter(index, TableEntry::Registered(token));
        !self.is_closed
    }

    fn enter(&mut self, index: u32, entry: TableEntry) {
        if let Some(backing) = self.entries.get_mut(index as usize) {
            *backing = entry;
        }
    }

    fn entry(&self, index: u32) -> TableEntry {
        let entry = self.entries.get(index as usize);
        entry.copied().unwrap_or(TableEntry::Vacant)
    }

    /// Pools a backing; returns what has to be dropped, outside of the lock.
    fn put(
        &mut self,
        backing: Backing,
        is_reusable: bool,
        pool_limits: PoolLimits,
        signal_page: &SignalPage,
    ) -> Vec<Backing> {
        let mut dropped = Vec::new();
        if self.is_closed {
            return dropped;
        }
        let (index, is_dirty) = (backing.index, backing.is_dirty());
        self.enter(index, TableEntry::Vacant);
        if is_reusable && pool_limits.allows(backing.mapping.len()) {
            match self.pool.put(backing) {
                Some(dirty) => dropped.push(dirty),
                None if is_dirty => self.enter(index, TableEntry::Dirty),
                None => {}
            }
        } else {
            dropped.push(backing);
        }
        while self.pool.exceeds(pool_limits) {
            dropped.extend(self.pool.take_oldest());
        }
        self.clear_memory(&dropped, signal_page);
        dropped
    }

    /// Backings are about to be dropped: the peer has to release their memory, too.
    fn clear_memory(&mut self, dropped: &[Backing], signal_page: &SignalPage) {
        for backing in dropped {
            // Before the index is free, or another thread's memory could be released.
            backing.slot.clear_memory();
            signal_page.set_changed(backing.index);
            self.enter(backing.index, TableEntry::Vacant);
            self.free.push(backing.index);
        }
    }

    fn close(&mut self) -> Pool {
        self.is_closed = true;
        self.entries.clear();
        std::mem::take(&mut self.pool)
    }
}
