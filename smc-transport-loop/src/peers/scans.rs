//! Scans of the signal pages of peers for changed slots.
//!
//! A peer can mark all slots at any time, with a new registration in each. So all scans between two
//! drains have a number of slots in common, and peers with more are scanned in turn.

use std::collections::VecDeque;
use std::sync::Arc;

use smc_core::mem::sync::{AtomicUsize, Ordering};
use smc_core::mutex::Mutex;

use crate::peer::Peer;

/// What is left to be scanned.
#[derive(Debug, Default)]
pub(super) struct Scans {
    /// Slots that were scanned since the last drain began.
    done: AtomicUsize,
    /// Peers with more changed slots.
    left: Mutex<VecDeque<Arc<Peer>>>,
}

impl Scans {
    /// A drain begins: goes on with what was left.
    pub(super) fn begin_drain(&self) {
        self.done.store(0, Ordering::Relaxed);
        let count = self.left.lock().len();
        for _ in 0..count {
            if self.budget() == 0 {
                break;
            }
            let next = self.left.lock().pop_front();
            if let Some(peer) = next {
                self.scan(&peer);
            }
        }
    }

    /// Scans changed slots of a peer. Returns whether there may be more, which further drains scan.
    pub(super) fn scan(&self, peer: &Arc<Peer>) -> bool {
        let more = match self.budget() {
            0 => true,
            budget => {
                let taken = peer.scan(budget.min(SLOTS_PER_SCAN));
                self.done.fetch_add(taken.count, Ordering::Relaxed);
                taken.more
            }
        };
        if more && !peer.is_gone() {
            let mut left = self.left.lock();
            if !left.iter().any(|known| Arc::ptr_eq(known, peer)) {
                left.push_back(Arc::clone(peer));
            }
        }
        more
    }

    /// Whether there is something left.
    pub(super) fn has_more(&self) -> bool {
        !self.left.lock().is_empty()
    }

    fn budget(&self) -> usize {
        SLOTS_PER_DRAIN.saturating_sub(self.done.load(Ordering::Relaxed))
    }
}

/// Slots that are scanned from the beginning of one drain to that of the next one: some
/// milliseconds, if each has another token.
const SLOTS_PER_DRAIN: usize = 4096;

/// Slots of one peer that are scanned at a time.
pub(crate) const SLOTS_PER_SCAN: usize = 512;
