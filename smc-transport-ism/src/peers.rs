//! The peers that a device communicates with.

use hashbrown::HashMap;
use smc_core::device::Event;
use smc_core::mutex::Mutex;
use smc_wire::types::Gid;

use crate::shared::{FabricMemory, Tag};

/// Peers whose end has to be reported.
#[derive(Debug, Default)]
pub(crate) struct Peers(Mutex<HashMap<Tag, Gid>>);

impl Peers {
    /// From now on the end of the peer is reported, once.
    pub(crate) fn watch(&self, tag: Tag, gid: Gid) {
        self.0.lock().insert(tag, gid);
    }

    /// Number of peers that are watched.
    pub(crate) fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// The GID of a peer that is watched.
    pub(crate) fn gid(&self, tag: Tag) -> Option<Gid> {
        self.0.lock().get(&tag).copied()
    }

    /// Reports the peers that are gone.
    pub(crate) fn check(&self, memory: &FabricMemory, events: &mut Vec<Event>) {
        self.0.lock().retain(|tag, gid| {
            let is_live = memory.is_live(*tag);
            if !is_live {
                events.push(Event::PeerGone(*gid));
            }
            is_live
        });
    }

    /// Removes all peers.
    pub(crate) fn clear(&self) {
        self.0.lock().clear();
    }
}
