//! The owner's side: our buffers for one peer.
//!
//! A buffer whose [`Dmb`] was dropped leaves its place, that is its memory and its slot in the
//! bell, in a bounded pool, and the peer keeps the memory mapped. The next buffer of the same
//! length takes the place again under a fresh token: no system call, no descriptor, no message.
//! That needs the peer to be done with the memory, which it says through the `users` word of the
//! slot. Places are never given to another peer, since a process keeps access to what it once
//! mapped.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use smc_core::device::{DeviceError, Dmb, Event};
use smc_core::mem::Region;
use smc_core::mem::sync::{AtomicBool, AtomicUsize, Ordering};
use smc_wire::types::DmbToken;

use crate::bell::{Bell, Notice, SLOTS};
use crate::lock;
use crate::outbox::{Wakes, Way};
use crate::pool::{Keep, Place, Pool};
use crate::random;
use crate::region::{KEPT, Mapping};

/// Our buffers for one peer, and the way to tell the peer about them.
#[derive(Debug)]
pub(crate) struct Owner {
    bell: Bell,
    table: Mutex<Table>,
    way: Way,
    keep: Keep,
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
    pub(crate) fn new(bell: Bell, way: Way, keep: Keep) -> Self {
        // Until the driver hears of the peer, only the doorbell tells it.
        bell.sleep();
        Self {
            bell,
            table: Mutex::default(),
            way,
            keep,
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
            region: place.mapping.leased(Arc::clone(&place.lease)),
            delivered: AtomicBool::new(new.is_none()),
            used: AtomicUsize::new(len),
            place: Some(place),
            owner: Arc::clone(self),
            _permit: permit,
        };
        Ok((dmb, new))
    }

    /// Reports the buffers that the peer signalled; false if there are none.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> bool {
        let mut table = None;
        self.bell.take_ready(|index| {
            // Locked only if there is something.
            let table = table.get_or_insert_with(|| lock(&self.table));
            if let Some(token) = table.token(index) {
                events.push(Event::Signalled(token));
            }
        })
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
            Claim::Used(place) => {
                let zeroed = place.mapping.zero(place.used);
                zeroed.map_err(|_| DeviceError::NoMemory)?;
                return Ok((place, None));
            }
            Claim::New(index) => index,
        };
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
        };
        Ok((place, Some(new)))
    }

    /// Returns an index for which there is no memory after all.
    fn give_up(&self, index: u32) {
        if let Ok(slot) = self.bell.slot(index) {
            let mut table = lock(&self.table);
            slot.retire();
            self.bell.set_fresh(index);
            table.free.push(index);
        }
        self.ask_to_look();
    }

    /// Takes a place back whose buffer was dropped.
    fn release(&self, mut place: Place, was_delivered: bool) {
        place.slot.withdraw();
        // What the peer still writes into it now is zeroed when it has let go.
        let is_settled = was_delivered && !place.slot.is_used();
        if is_settled && place.used > KEPT && place.mapping.trim().is_ok() {
            place.used = KEPT;
        }
        let dropped = lock(&self.table).release(place, was_delivered, self.keep, &self.bell);
        if !dropped.is_empty() {
            self.ask_to_look();
        }
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
    region: Region,
    /// Taken when dropped.
    place: Option<Place>,
    /// Whether the peer has the memory, so that the place can be used again.
    delivered: AtomicBool,
    /// Bytes from the start that the peer may have written.
    used: AtomicUsize,
    owner: Arc<Owner>,
    _permit: Permit,
}

impl LoopDmb {
    pub(crate) fn set_delivered(&self) {
        self.delivered.store(true, Ordering::Relaxed);
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
        if let Some(place) = &self.place {
            place.slot.arm();
        }
    }

    fn set_used(&self, len: usize) {
        self.used.store(len, Ordering::Relaxed);
    }
}

impl Drop for LoopDmb {
    fn drop(&mut self) {
        if let Some(mut place) = self.place.take() {
            place.used = self.used.load(Ordering::Relaxed);
            self.owner
                .release(place, self.delivered.load(Ordering::Relaxed));
        }
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
    /// By index; `None` where no buffer is registered.
    tokens: Vec<Option<DmbToken>>,
    free: Vec<u32>,
    registrations: u64,
    pool: Pool,
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
        if let Some(index) = u32::try_from(self.tokens.len())
            .ok()
            .filter(|next| *next < SLOTS)
        {
            self.tokens.push(None);
            return Ok(index);
        }
        // Other memory comes into this slot, which tells the peer that the old one is gone.
        let place = self.pool.take_oldest().ok_or(DeviceError::Exhausted)?;
        Ok(place.index)
    }

    /// False if there is nobody left to write to the buffer.
    fn set(&mut self, index: u32, token: DmbToken) -> bool {
        if let Some(entry) = self.tokens.get_mut(index as usize) {
            *entry = Some(token);
        }
        !self.closed
    }

    fn token(&self, index: u32) -> Option<DmbToken> {
        self.tokens.get(index as usize).copied().flatten()
    }

    /// Pools a place; gives back what has to be dropped, outside of the lock.
    fn release(
        &mut self,
        place: Place,
        was_delivered: bool,
        keep: Keep,
        bell: &Bell,
    ) -> Vec<Place> {
        let mut dropped = Vec::new();
        if self.closed {
            return dropped;
        }
        if let Some(entry) = self.tokens.get_mut(place.index as usize) {
            *entry = None;
        }
        if was_delivered && keep.has_room_for(place.mapping.len()) {
            self.pool.put(place);
        } else {
            dropped.push(place);
        }
        while self.pool.exceeds(keep) {
            dropped.extend(self.pool.take_oldest());
        }
        for place in &dropped {
            // Before the index is free, or another thread's memory could be retired.
            place.slot.retire();
            bell.set_fresh(place.index);
            self.free.push(place.index);
        }
        dropped
    }

    fn close(&mut self) -> Pool {
        self.closed = true;
        self.tokens.clear();
        std::mem::take(&mut self.pool)
    }
}

/// Counts buffers, or mappings, against the limit of the device.
#[derive(Debug)]
pub(crate) struct Permits {
    used: AtomicUsize,
    max: usize,
}

impl Permits {
    pub(crate) fn new(max: usize) -> Arc<Self> {
        Arc::new(Self {
            used: AtomicUsize::new(0),
            max,
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
            Ok(_) => Ok(Permit(Arc::clone(self))),
            Err(_) => Err(DeviceError::Exhausted),
        }
    }
}

/// Room for one of them.
#[derive(Debug)]
pub(crate) struct Permit(Arc<Permits>);

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.used.fetch_sub(1, Ordering::Relaxed);
    }
}
