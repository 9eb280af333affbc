//! The owner's side: our buffers for one peer.
//!
//! A buffer whose [`Dmb`] was dropped leaves its place, that is its memory and its slot in the
//! bell, in a bounded pool, and the peer keeps the memory mapped. The next buffer of the same
//! length takes the place again under a fresh token: no system call, no descriptor, no message.
//! That needs the peer to be done with the memory, which it says through the `users` word of the
//! slot. Places are never given to another peer, since a process keeps access to what it once
//! mapped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, OnceLock};

use smc_core::device::{Charge, DeviceError, Dmb, Event, MemoryAccount};
use smc_core::mem::Region;
use smc_core::mem::sync::{AtomicBool, AtomicUsize, Ordering};
use smc_wire::types::DmbToken;

use crate::bell::{Bell, Notice, SLOTS};
use crate::lock;
use crate::outbox::{Wakes, Way};
use crate::pool::{Keep, Place, Pool, kept};
use crate::random;
use crate::region::Mapping;

/// Our buffers for one peer, and the way to tell the peer about them.
#[derive(Debug)]
pub(crate) struct Owner {
    bell: Bell,
    table: Mutex<Table>,
    way: Way,
    keep: Keep,
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

impl Owner {
    pub(crate) fn new(bell: Bell, way: Way, keep: Keep, account: MemoryAccount) -> Self {
        // Until the driver hears of the peer, only the doorbell tells it.
        bell.sleep();
        Self {
            bell,
            table: Mutex::default(),
            way,
            keep,
            account,
        }
    }

    pub(crate) fn bell(&self) -> &Bell {
        &self.bell
    }

    pub(crate) fn way(&self) -> &Way {
        &self.way
    }

    /// Makes a zeroed buffer. New memory has to get to the peer before the peer is told the token.
    pub(crate) fn register(
        self: &Arc<Self>,
        len: usize,
        permit: Permit,
    ) -> Result<(LoopDmb, Option<NewMemory>), DeviceError> {
        let (live, claim) = lock(&self.table).claim(len)?;
        let index = claim.index();
        let made = self
            .make(len, live, claim)
            .and_then(|made| Ok((made, random::token()?)));
        let ((place, new), token) = made.inspect_err(|_| self.give_up(index))?;
        if !lock(&self.table).set(index, token) {
            return Err(DeviceError::PeerGone);
        }
        place.slot.publish(Notice {
            live,
            token: token.0,
            memory: place.number,
        });
        if new.is_none() {
            self.bell.set_fresh(index);
        }
        let dmb = LoopDmb {
            token,
            region: place.mapping.leased(Lease {
                held: Some(Arc::clone(&place.lease)),
                index,
                owner: Arc::clone(self),
            }),
            tenancy: Tenancy {
                delivered: AtomicBool::new(new.is_none()),
                used: AtomicUsize::new(len),
                place: Some(place),
                owner: Arc::clone(self),
            },
            _permit: permit,
        };
        Ok((dmb, new))
    }

    /// Reports the buffers that the peer signalled; false if there are none.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> bool {
        let mut table = None;
        let mut left = Vec::new();
        let is_any = self.bell.take_ready(|index| {
            // Locked only if there is something.
            let table = table.get_or_insert_with(|| lock(&self.table));
            match table.entry(index) {
                Entry::Registered(token) => events.push(Event::Signalled(token)),
                Entry::Dirty => left.push(index),
                Entry::Vacant => {}
            }
        });
        drop(table);
        left.into_iter().for_each(|index| self.settle(index));
        is_any
    }

    /// Ends everything, after the peer or the device is gone.
    pub(crate) fn close(&self) -> Wakes {
        let pool = lock(&self.table).close();
        let wakes = self.way.close();
        drop(pool);
        wakes
    }

    fn make(
        &self,
        len: usize,
        live: u64,
        claim: Claim,
    ) -> Result<(Place, Option<NewMemory>), DeviceError> {
        let index = match claim {
            Claim::Used(mut place) => {
                place.charge.resize(len)?;
                let zeroed = place.mapping.zero(place.used);
                zeroed.map_err(|_| DeviceError::NoMemory)?;
                return Ok((place, None));
            }
            Claim::New(index) => index,
        };
        let charge = self.account.charge(len)?;
        let (mapping, file) = match self.way {
            Way::Own(_) => (Mapping::anonymous(len)?, None),
            Way::Channel(_) => {
                let (mapping, file) = Mapping::create(len)?;
                (mapping, Some(file))
            }
        };
        let slot = self.bell.slot(index).map_err(|_| DeviceError::Exhausted)?;
        let new = NewMemory {
            index,
            number: live,
            mapping: Arc::clone(&mapping),
            file,
        };
        let place = Place {
            index,
            number: live,
            slot,
            mapping,
            lease: Arc::default(),
            used: len,
            charge,
        };
        Ok((place, Some(new)))
    }

    /// Gives back the memory that is kept for the peer's next connections.
    pub(crate) fn trim(&self) {
        let dropped = {
            let mut table = lock(&self.table);
            let unused = table.pool.take_free();
            table.retire(&unused, &self.bell);
            unused
        };
        if !dropped.is_empty() {
            self.ask_to_look();
        }
    }

    /// Returns an index for which there is no memory after all.
    fn give_up(&self, index: u32) {
        if let Ok(slot) = self.bell.slot(index) {
            let mut table = lock(&self.table);
            slot.retire();
            self.bell.set_fresh(index);
            table.enter(index, Entry::Vacant);
            table.free.push(index);
        }
        self.ask_to_look();
    }

    /// Takes a place back whose buffer was dropped.
    fn release(&self, place: Place, was_delivered: bool) {
        place.slot.withdraw();
        self.put(place, was_delivered);
    }

    /// Gives back the pages of a dropped buffer, if this process and the peer have both let go of
    /// it: whichever does so last calls, the peer by a signal.
    fn settle(&self, index: u32) {
        let place = {
            let mut table = lock(&self.table);
            match table.entry(index) {
                Entry::Dirty => table.pool.take_settled(index),
                _ => None,
            }
        };
        if let Some(place) = place {
            self.put(place, true);
        }
    }

    /// Pools a place, and has its pages given back first if nothing uses them.
    fn put(&self, mut place: Place, mut is_reusable: bool) {
        let dropped = loop {
            let put = lock(&self.table).put(place, is_reusable, self.keep, &self.bell);
            match put {
                Ok(dropped) => break dropped,
                Err(dirty) => place = dirty,
            }
            // Outside of the lock: it takes the system some time.
            is_reusable = place.trim().is_ok();
        };
        if !dropped.is_empty() {
            self.ask_to_look();
        }
    }

    /// Whether there is memory whose pages wait to be given back.
    #[cfg(all(test, smc_loom))]
    pub(crate) fn has_dirty(&self) -> bool {
        let table = lock(&self.table);
        let mut entries = table.entries.iter();
        entries.any(|entry| matches!(entry, Entry::Dirty))
    }

    fn ask_to_look(&self) {
        if self.bell.ask_to_look() {
            self.way.look();
        }
    }
}

/// A buffer of ours.
#[derive(Debug)]
pub(crate) struct LoopDmb {
    token: DmbToken,
    // Dropped before the tenancy, which may find the memory free then.
    region: Region,
    tenancy: Tenancy,
    _permit: Permit,
}

impl LoopDmb {
    pub(crate) fn set_delivered(&self) {
        self.tenancy.delivered.store(true, Ordering::Relaxed);
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
        if let Some(place) = &self.tenancy.place {
            place.slot.arm();
        }
    }

    fn set_used(&self, len: usize) {
        self.tenancy.used.store(len, Ordering::Relaxed);
    }
}

/// A registration of a place, which ends when this is dropped.
#[derive(Debug)]
struct Tenancy {
    /// Taken when dropped.
    place: Option<Place>,
    /// Whether the peer has the memory, so that the place can be used again.
    delivered: AtomicBool,
    /// Bytes from the start that the peer may have written.
    used: AtomicUsize,
    owner: Arc<Owner>,
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        if let Some(mut place) = self.place.take() {
            place.used = self.used.load(Ordering::Relaxed);
            self.owner
                .release(place, self.delivered.load(Ordering::Relaxed));
        }
    }
}

/// Shared by the regions of a buffer, and dropped with the last of them.
#[derive(Debug)]
struct Lease {
    /// Taken when dropped.
    held: Option<Arc<()>>,
    index: u32,
    owner: Arc<Owner>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.held.take();
        self.owner.settle(self.index);
    }
}

/// Where a new buffer may go.
#[derive(Debug)]
enum Claim {
    Used(Place),
    New(u32),
}

impl Claim {
    fn index(&self) -> u32 {
        match self {
            Self::Used(place) => place.index,
            Self::New(index) => *index,
        }
    }
}

#[derive(Debug, Default)]
struct Table {
    closed: bool,
    /// By index.
    entries: Vec<Entry>,
    free: Vec<u32>,
    registrations: u64,
    pool: Pool,
}

/// What is behind an index.
#[derive(Clone, Copy, Debug)]
enum Entry {
    /// No buffer, or memory in the pool that needs no care.
    Vacant,
    Registered(DmbToken),
    /// Memory in the pool whose pages are to be given back when nothing uses it any more.
    Dirty,
}

impl Table {
    fn claim(&mut self, len: usize) -> Result<(u64, Claim), DeviceError> {
        if self.closed {
            return Err(DeviceError::PeerGone);
        }
        let claim = match self.pool.take(len) {
            Some(place) => Claim::Used(place),
            None => Claim::New(self.take_index()?),
        };
        self.registrations += 1;
        Ok((self.registrations, claim))
    }

    fn take_index(&mut self) -> Result<u32, DeviceError> {
        if let Some(index) = self.free.pop() {
            return Ok(index);
        }
        if let Some(index) = u32::try_from(self.entries.len())
            .ok()
            .filter(|next| *next < SLOTS)
        {
            self.entries.push(Entry::Vacant);
            return Ok(index);
        }
        // Other memory comes into this slot, which tells the peer that the old one is gone.
        let place = self.pool.take_oldest().ok_or(DeviceError::Exhausted)?;
        self.enter(place.index, Entry::Vacant);
        Ok(place.index)
    }

    /// False if there is nobody left to write to the buffer.
    fn set(&mut self, index: u32, token: DmbToken) -> bool {
        self.enter(index, Entry::Registered(token));
        !self.closed
    }

    fn enter(&mut self, index: u32, entry: Entry) {
        if let Some(place) = self.entries.get_mut(index as usize) {
            *place = entry;
        }
    }

    fn entry(&self, index: u32) -> Entry {
        let entry = self.entries.get(index as usize);
        entry.copied().unwrap_or(Entry::Vacant)
    }

    /// Pools a place; gives back what has to be dropped, outside of the lock. A place whose pages
    /// can be given back at once is the error.
    fn put(
        &mut self,
        place: Place,
        is_reusable: bool,
        keep: Keep,
        bell: &Bell,
    ) -> Result<Vec<Place>, Place> {
        let mut dropped = Vec::new();
        if self.closed {
            return Ok(dropped);
        }
        let (index, is_dirty) = (place.index, place.is_dirty());
        self.enter(index, Entry::Vacant);
        if is_reusable && keep.has_room_for(place.mapping.len()) {
            if let Some(dirty) = self.pool.put(place) {
                return Err(dirty);
            }
            if is_dirty {
                self.enter(index, Entry::Dirty);
            }
        } else {
            dropped.push(place);
        }
        while self.pool.exceeds(keep) {
            dropped.extend(self.pool.take_oldest());
        }
        self.retire(&dropped, bell);
        Ok(dropped)
    }

    /// Places are about to be dropped: the peer has to forget their memory, too.
    fn retire(&mut self, dropped: &[Place], bell: &Bell) {
        for place in dropped {
            // Before the index is free, or another thread's memory could be retired.
            place.slot.retire();
            bell.set_fresh(place.index);
            self.enter(place.index, Entry::Vacant);
            self.free.push(place.index);
        }
    }

    fn close(&mut self) -> Pool {
        self.closed = true;
        self.entries.clear();
        std::mem::take(&mut self.pool)
    }
}

/// Counts buffers, or mappings, against the limit of the device.
#[derive(Debug)]
pub(crate) struct Permits {
    used: AtomicUsize,
    max: usize,
    account: MemoryAccount,
}

impl Permits {
    pub(crate) fn new(max: usize, account: MemoryAccount) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
            account,
        })
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    /// Room for one more, until it is dropped.
    pub(crate) fn take(self: &Arc<Self>) -> Result<Permit, DeviceError> {
        let one_more = |used| (used < self.max).then_some(used + 1);
        match self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more)
        {
            Ok(_) => Ok(Permit {
                permits: Arc::clone(self),
                charge: OnceLock::new(),
            }),
            Err(_) => Err(DeviceError::Exhausted),
        }
    }
}

/// Room for one of them.
#[derive(Debug)]
pub(crate) struct Permit {
    permits: Arc<Permits>,
    charge: OnceLock<Charge>,
}

impl Permit {
    /// Memory of a peer of this length is going to be written: as much of it as the peer keeps of an
    /// unused buffer may stay charged to this process.
    pub(crate) fn charge(&self, len: usize) {
        let account = &self.permits.account;
        self.charge.get_or_init(|| account.charge_anyway(kept(len)));
    }

    /// Charges so many bytes, if the memory limit leaves as much.
    pub(crate) fn charge_within_limit(&self, bytes: usize) -> Result<(), DeviceError> {
        let charge = self.permits.account.charge(bytes)?;
        let _set_once = self.charge.set(charge);
        Ok(())
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.permits.used.fetch_sub(1, Ordering::Relaxed);
    }
}
