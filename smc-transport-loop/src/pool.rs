//! Memory without a buffer, pooled for the next buffers for the same peer.
//!
//! Either side may release a buffer first, so memory can enter the pool while the peer still uses
//! it. Such memory is in a queue of its own, in the order in which it came, which is about the
//! order in which the peer releases it. Free memory is therefore near the front, and few slots have
//! to be read: a slot in use is in the cache of the peer's CPU, and reading it costs a cache miss.
//!
//! Memory that the peer could not map is of no use to either side, and is dropped: it would fill
//! the pool, and other memory would have to go.
//!
//! Memory of which more than [`RESIDENT_LEN`] was used is *dirty*. It is dropped when neither side
//! uses it any more, and is charged until then. To keep the file and remove its pages
//! (`MADV_REMOVE`) would take the lock of its inode, which a peer can hold without end, as by a
//! `write(2)` whose source is a page of a FUSE file.

use std::collections::VecDeque;
use std::sync::Arc;

use smc_core::device::Charge;

use crate::region::{Mapping, RESIDENT_LEN};
use crate::signal_page::Slot;

/// A slot with memory behind it.
#[derive(Debug)]
pub(crate) struct Backing {
    pub(crate) index: u32,
    /// Number of the memory: of its first registration.
    pub(crate) number: u64,
    pub(crate) slot: Slot,
    pub(crate) mapping: Arc<Mapping>,
    /// Shared with the [`Lease`](crate::local_buffers) of the buffer's regions, which may outlive
    /// it.
    pub(crate) lease: Arc<()>,
    /// Bytes from the start that may not be zero any more.
    pub(crate) used: usize,
    /// All of the memory while it is registered or dirty, else its resident part.
    pub(crate) charge: Charge,
}

impl Backing {
    /// Whether neither this process nor the peer uses the memory any more.
    fn is_free(&mut self) -> bool {
        Arc::get_mut(&mut self.lease).is_some() && !self.slot.is_used()
    }

    /// Whether more was used than is zeroed and kept resident.
    pub(crate) fn is_dirty(&self) -> bool {
        self.used > RESIDENT_LEN
    }

    /// As [`Backing::is_free`]. Otherwise has the peer signal when it releases the memory.
    fn arm_unless_free(&mut self) -> bool {
        if self.is_free() {
            return true;
        }
        self.slot.arm();
        self.is_free()
    }

    /// Bytes that stay resident.
    fn resident_len(&self) -> usize {
        resident_len(self.mapping.len())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.mapping
            .set_last_charge(std::mem::take(&mut self.charge));
    }
}

/// Limits of the pool of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PoolLimits {
    pub(crate) buffers: usize,
    pub(crate) bytes: usize,
}

impl PoolLimits {
    /// Whether memory of a buffer of this length may be pooled at all.
    pub(crate) fn allows(self, len: usize) -> bool {
        self.buffers > 0 && resident_len(len) <= self.bytes
    }
}

/// The memory of one peer's dropped buffers.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    /// The memory that came last, and is in the CPU caches, is at the back.
    free: VecDeque<Backing>,
    /// In use when it was last checked. The memory that came last is at the back.
    in_use: VecDeque<Backing>,
    bytes: usize,
}

impl Pool {
    /// Keeps a backing. One that the peer cannot use is returned, to be dropped, and a dirty one
    /// that is free.
    pub(crate) fn put(&mut self, mut backing: Backing) -> Option<Backing> {
        if backing.slot.is_unusable() {
            return Some(backing);
        }
        let is_free = match backing.is_dirty() {
            true => backing.arm_unless_free(),
            false => backing.is_free(),
        };
        if is_free && backing.is_dirty() {
            return Some(backing);
        }
        if !backing.is_dirty() {
            backing.charge.shrink(backing.resident_len());
        }
        self.bytes += backing.resident_len();
        if is_free {
            self.free.push_back(backing);
        } else {
            self.in_use.push_back(backing);
        }
        None
    }

    /// The backing of this index, if it is dirty and nothing uses it any more.
    pub(crate) fn take_reclaimable(&mut self, index: u32) -> Option<Backing> {
        for list in [&mut self.in_use, &mut self.free] {
            let Some(at) = list.iter().position(|backing| backing.index == index) else {
                continue;
            };
            let is_reclaimable = list
                .get_mut(at)
                .is_some_and(|backing| backing.is_dirty() && backing.arm_unless_free());
            let backing = is_reclaimable.then(|| list.remove(at)).flatten()?;
            self.bytes -= backing.resident_len();
            return Some(backing);
        }
        None
    }

    /// Memory of this length that is not in use.
    pub(crate) fn take(&mut self, len: usize) -> Option<Backing> {
        self.collect_free();
        let mut latest = self.free.iter().rev().take(MAX_PROBES);
        let back =
            latest.position(|backing| backing.mapping.len() == len && !backing.is_dirty())?;
        let backing = self.free.remove(self.free.len() - 1 - back)?;
        self.bytes -= backing.resident_len();
        Some(backing)
    }

    /// All memory that nothing uses.
    pub(crate) fn take_free(&mut self) -> Vec<Backing> {
        let mut taken: Vec<_> = self.free.drain(..).collect();
        let unused = |backing: &mut Backing| backing.is_free() || backing.slot.is_unusable();
        for mut backing in std::mem::take(&mut self.in_use) {
            match unused(&mut backing) {
                true => taken.push(backing),
                false => self.in_use.push_back(backing),
            }
        }
        self.bytes -= taken.iter().map(Backing::resident_len).sum::<usize>();
        taken
    }

    /// All memory.
    pub(crate) fn into_backings(self) -> impl Iterator<Item = Backing> {
        self.free.into_iter().chain(self.in_use)
    }

    /// The memory that came first.
    pub(crate) fn take_oldest(&mut self) -> Option<Backing> {
        let backing = self.free.pop_front().or_else(|| self.in_use.pop_front())?;
        self.bytes -= backing.resident_len();
        Some(backing)
    }

    pub(crate) fn exceeds(&self, pool_limits: PoolLimits) -> bool {
        self.free.len() + self.in_use.len() > pool_limits.buffers || self.bytes > pool_limits.bytes
    }

    /// Moves free memory to the free queue. Memory in use goes to the back, so the next call checks
    /// others.
    fn collect_free(&mut self) {
        let mut busy = 0;
        for _ in 0..self.in_use.len().min(MAX_PROBES) {
            let Some(mut backing) = self.in_use.pop_front() else {
                return;
            };
            if backing.is_free() {
                self.free.push_back(backing);
                continue;
            }
            self.in_use.push_back(backing);
            busy += 1;
            if busy == MAX_BUSY_PROBES {
                return;
            }
        }
    }
}

/// Bytes that unused memory of this length may keep resident.
pub(crate) fn resident_len(len: usize) -> usize {
    len.min(RESIDENT_LEN)
}

/// Backings that are checked, so that a large pool stays cheap.
const MAX_PROBES: usize = 64;

/// Backings in use that are checked: each costs a cache miss.
const MAX_BUSY_PROBES: usize = 4;
