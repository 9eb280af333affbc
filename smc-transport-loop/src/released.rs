//! Memory that is not used any more, and unmapped in pieces.
//!
//! A peer can have thousands of buffers, all of which go with it. Unmapping one takes microseconds,
//! and a long one more, as its pages are freed.

use std::collections::VecDeque;
use std::sync::Arc;

use smc_core::mutex::Mutex;

use crate::peer_buffers::EndedBuffers;
use crate::pool::Backing;
use crate::region::Mapping;

/// Memory that further drains unmap.
#[derive(Debug, Default)]
pub(crate) struct Released(Mutex<VecDeque<Memory>>);

#[derive(Debug)]
enum Memory {
    /// Behind a slot of a peer.
    Peer(Arc<Mapping>),
    /// Behind a slot of this device.
    Own(Backing),
    /// All buffers of a peer.
    Ended(EndedBuffers),
}

impl Released {
    pub(crate) fn add_mapping(&self, of_peer: Arc<Mapping>) {
        self.0.lock().push_back(Memory::Peer(of_peer));
    }

    pub(crate) fn add_backings(&self, own: impl Iterator<Item = Backing>) {
        self.0.lock().extend(own.map(Memory::Own));
    }

    pub(crate) fn add_ended(&self, buffers: EndedBuffers) {
        self.0.lock().push_back(Memory::Ended(buffers));
    }

    /// Unmaps some of it. Returns whether there is more.
    pub(crate) fn unmap_some(&self) -> bool {
        let (mut count, mut bytes) = (0, 0);
        while count < BUFFERS_PER_DRAIN && bytes < BYTES_PER_DRAIN {
            // Unmapped after the lock.
            let next = self.0.lock().pop_front();
            count += 1;
            bytes += match next {
                None => return false,
                Some(Memory::Peer(mapping)) => mapping.len(),
                Some(Memory::Own(backing)) => backing.mapping.len(),
                Some(Memory::Ended(mut buffers)) => match buffers.remove_one() {
                    None => 0,
                    Some(len) => {
                        self.0.lock().push_front(Memory::Ended(buffers));
                        len
                    }
                },
            };
        }
        !self.0.lock().is_empty()
    }
}

/// What one drain unmaps, beside the last piece: a few milliseconds.
const BUFFERS_PER_DRAIN: usize = 256;
const BYTES_PER_DRAIN: usize = 16 << 20;
