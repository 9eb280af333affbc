//! Memory that is not used any more, and unmapped in pieces.
//!
//! A peer can have thousands of buffers, all of which go with it. Unmapping one takes microseconds,
//! and a long one more, as its pages are freed.

use std::collections::VecDeque;
use std::sync::Arc;

use smc_core::mutex::Mutex;

use crate::pool::Backing;
use crate::region::Mapping;

/// Memory that further drains unmap.
#[derive(Debug, Default)]
pub(crate) struct Released(Mutex<VecDeque<Memory>>);

#[derive(Debug)]
enum Memory {
    /// Of a buffer of a peer.
    Peer(Arc<Mapping>),
    /// Behind a slot of this device.
    Own(Backing),
}

impl Memory {
    fn len(&self) -> usize {
        match self {
            Self::Peer(mapping) => mapping.len(),
            Self::Own(backing) => backing.mapping.len(),
        }
    }
}

impl Released {
    pub(crate) fn add_mappings(&self, of_peer: impl Iterator<Item = Arc<Mapping>>) {
        self.0.lock().extend(of_peer.map(Memory::Peer));
    }

    pub(crate) fn add_backings(&self, own: impl Iterator<Item = Backing>) {
        self.0.lock().extend(own.map(Memory::Own));
    }

    /// Unmaps some of it. Returns whether there is more.
    pub(crate) fn unmap_some(&self) -> bool {
        let (mut count, mut bytes) = (0, 0);
        while count < MAPPINGS_PER_DRAIN && bytes < BYTES_PER_DRAIN {
            // Unmapped after the lock.
            let next = self.0.lock().pop_front();
            let Some(memory) = next else {
                return false;
            };
            count += 1;
            bytes += memory.len();
        }
        !self.0.lock().is_empty()
    }
}

/// What one drain unmaps, beside the last piece: a few milliseconds.
const MAPPINGS_PER_DRAIN: usize = 256;
const BYTES_PER_DRAIN: usize = 16 << 20;
