//! Memory without a buffer, kept for the next buffers for the same peer.
//!
//! Who lets go of a buffer first is a matter of chance, so memory comes in that the peer still
//! uses. It waits apart, in the order in which it came, since that is about the order in which the
//! peer lets go: a crowd of connections finds what is free at its front, and need not look at all
//! the rest, whose slots are in the cache of the peer's CPU.

use std::collections::VecDeque;
use std::sync::Arc;

use smc_core::device::Charge;
use smc_core::mem::OutOfBounds;

use crate::bell::Slot;
use crate::region::{KEPT, Mapping};

/// A slot with memory behind it.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) index: u32,
    /// Number of the memory: of its first registration.
    pub(crate) number: u64,
    pub(crate) slot: Slot,
    pub(crate) mapping: Arc<Mapping>,
    /// Shared with the [`Lease`](crate::registry) of the buffer's regions, which may outlive it.
    pub(crate) lease: Arc<()>,
    /// Bytes from the start that may not be zero any more.
    pub(crate) used: usize,
    /// All of the memory, but of an unused buffer only what is kept.
    pub(crate) charge: Charge,
}

impl Place {
    /// Whether neither this process nor the peer uses the memory any more.
    fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.lease).is_some() && !self.slot.is_used()
    }

    /// Whether there are pages beyond [`KEPT`] to be given back to the system.
    pub(crate) fn is_dirty(&self) -> bool {
        self.used > KEPT
    }

    /// As [`Place::is_free`]. If the peer still uses the memory, it signals when it has let go.
    fn is_free_or_awaited(&mut self) -> bool {
        if self.is_free() {
            return true;
        }
        self.slot.arm();
        self.is_free()
    }

    /// Gives back the pages beyond [`KEPT`]. The memory has to be [free](Place::is_free).
    pub(crate) fn trim(&mut self) -> Result<(), OutOfBounds> {
        self.mapping.trim()?;
        self.used = self.used.min(KEPT);
        Ok(())
    }

    /// Bytes that stay resident.
    fn kept(&self) -> usize {
        kept(self.mapping.len())
    }
}

/// How much unused memory is kept for a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keep {
    pub(crate) buffers: usize,
    pub(crate) bytes: usize,
}

impl Keep {
    /// Whether memory of a buffer of this length may be kept at all.
    pub(crate) fn has_room_for(self, len: usize) -> bool {
        self.buffers > 0 && kept(len) <= self.bytes
    }
}

/// The memory of one peer's buffers that have gone.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// What came in last, and is in the caches, is at the back.
    free: VecDeque<Place>,
    /// Used by somebody still, when it was looked at last. What came in last is at the back.
    leaving: VecDeque<Place>,
    bytes: usize,
}

impl Pool {
    /// Keeps a place. One that is free and has pages to be given back first is returned.
    pub(crate) fn put(&mut self, mut place: Place) -> Option<Place> {
        let is_free = match place.is_dirty() {
            true => place.is_free_or_awaited(),
            false => place.is_free(),
        };
        if is_free && place.is_dirty() {
            return Some(place);
        }
        if !place.is_dirty() {
            place.charge.shrink(place.kept());
        }
        self.bytes += place.kept();
        if is_free {
            self.free.push_back(place);
        } else {
            self.leaving.push_back(place);
        }
        None
    }

    /// The place of this index, if nothing uses it any more and it has pages to be given back.
    pub(crate) fn take_settled(&mut self, index: u32) -> Option<Place> {
        for list in [&mut self.leaving, &mut self.free] {
            let Some(at) = list.iter().position(|place| place.index == index) else {
                continue;
            };
            let is_settled = list
                .get_mut(at)
                .is_some_and(|place| place.is_dirty() && place.is_free_or_awaited());
            let place = is_settled.then(|| list.remove(at)).flatten()?;
            self.bytes -= place.kept();
            return Some(place);
        }
        None
    }

    /// Memory of this length that nobody uses.
    pub(crate) fn take(&mut self, len: usize) -> Option<Place> {
        self.look_for_free();
        let mut latest = self.free.iter().rev().take(LOOKS);
        let back = latest.position(|place| place.mapping.len() == len)?;
        let place = self.free.remove(self.free.len() - 1 - back)?;
        self.bytes -= place.kept();
        Some(place)
    }

    /// All memory that nothing uses.
    pub(crate) fn take_free(&mut self) -> Vec<Place> {
        let free: Vec<_> = self.free.drain(..).collect();
        self.bytes -= free.iter().map(Place::kept).sum::<usize>();
        free
    }

    /// Whatever has been here for long.
    pub(crate) fn take_oldest(&mut self) -> Option<Place> {
        let place = self.free.pop_front().or_else(|| self.leaving.pop_front())?;
        self.bytes -= place.kept();
        Some(place)
    }

    pub(crate) fn exceeds(&self, keep: Keep) -> bool {
        self.free.len() + self.leaving.len() > keep.buffers || self.bytes > keep.bytes
    }

    /// Who keeps memory for long is in nobody's way: the next look is at what came after it.
    fn look_for_free(&mut self) {
        let mut busy = 0;
        for _ in 0..self.leaving.len().min(LOOKS) {
            let Some(mut place) = self.leaving.pop_front() else {
                return;
            };
            if place.is_free() {
                self.free.push_back(place);
                continue;
            }
            self.leaving.push_back(place);
            busy += 1;
            if busy == BUSY_LOOKS {
                return;
            }
        }
    }
}

/// Bytes that unused memory of this length may keep resident.
pub(crate) fn kept(len: usize) -> usize {
    len.min(KEPT)
}

/// Places that are looked at, so that a large pool stays cheap.
const LOOKS: usize = 64;

/// Places still in use that are looked at: each costs a cache miss.
const BUSY_LOOKS: usize = 4;
