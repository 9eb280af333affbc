//! The links of a device, by number.

use std::sync::Arc;

use hashbrown::HashMap;
use smc_core::mem::sync::{AtomicUsize, Ordering};
use smc_core::mutex::Mutex;

use crate::link::Core;

/// Names a link in work requests. Queue pair numbers do not serve for that: devices use them
/// again, while completions of an earlier queue pair may still be around.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Serial(pub(crate) u32);

/// The links that there are, and the space in the completion queue that each takes.
#[derive(Debug)]
pub(crate) struct Links {
    table: Mutex<Table>,
    /// Queue pairs destroyed whose completions may still be in the queue.
    undrained: AtomicUsize,
    /// Links at a time.
    max: usize,
    /// Links that the completion queue has space for, with those that were destroyed.
    capacity: usize,
}

#[derive(Debug, Default)]
struct Table {
    links: HashMap<Serial, Arc<Core>>,
    last: u32,
    taken: usize,
}

impl Links {
    pub(crate) fn new(max: usize, capacity: usize) -> Self {
        Self {
            table: Mutex::default(),
            undrained: AtomicUsize::new(0),
            max,
            capacity,
        }
    }

    /// A number for another link, unless there are too many. It has to be released at last.
    pub(crate) fn reserve(&self) -> Option<Serial> {
        let mut table = self.table.lock();
        let live = table
            .taken
            .saturating_sub(self.undrained.load(Ordering::Acquire));
        if live >= self.max || table.taken >= self.capacity {
            return None;
        }
        table.taken += 1;
        loop {
            table.last = table.last.wrapping_add(1);
            let serial = Serial(table.last);
            if !table.links.contains_key(&serial) {
                return Some(serial);
            }
        }
    }

    pub(crate) fn insert(&self, link: Arc<Core>) {
        self.table.lock().links.insert(link.serial, link);
    }

    pub(crate) fn find(&self, serial: Serial) -> Option<Arc<Core>> {
        self.table.lock().links.get(&serial).cloned()
    }

    pub(crate) fn remove(&self, serial: Serial) {
        let link = self.table.lock().links.remove(&serial);
        // Destroys the queue pair, unless it is in use right now.
        drop(link);
    }

    pub(crate) fn all(&self) -> Vec<Arc<Core>> {
        self.table.lock().links.values().cloned().collect()
    }

    /// The queue pair of a link was destroyed, or never made. `true` if it is time to drain the
    /// completion queue, so that its entries become free.
    pub(crate) fn release(&self) -> bool {
        let undrained = self.undrained.fetch_add(1, Ordering::AcqRel) + 1;
        undrained >= (self.capacity - self.max).div_ceil(2)
    }

    /// How many were released whose completions may be in the queue.
    pub(crate) fn undrained(&self) -> usize {
        self.undrained.load(Ordering::Acquire)
    }

    /// The completion queue has been empty since these were released.
    pub(crate) fn confirm_drained(&self, undrained: usize) {
        if undrained > 0 {
            let mut table = self.table.lock();
            table.taken = table.taken.saturating_sub(undrained);
            // Under the lock, so that both always fit together.
            self.undrained.fetch_sub(undrained, Ordering::AcqRel);
        }
    }
}
