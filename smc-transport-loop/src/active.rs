//! Peers that the driver looks after without being rung.
//!
//! A peer is added when it rings, which also takes back its request for the doorbell. It stays
//! while it keeps signalling, and is removed once the driver has asked for the doorbell again and
//! then found nothing. So the work of a drain is in proportion to the peers that are at it.

use std::sync::{Arc, Mutex};

use smc_core::device::Event;
use smc_core::mem::sync::{Ordering, fence};

use crate::lock;
use crate::peer::Peer;

/// The peers that the driver looks after. Its lock also guards their `care`.
#[derive(Debug, Default)]
pub(crate) struct Active(Mutex<Vec<Arc<Peer>>>);

impl Active {
    /// Looks after a peer that has rung.
    pub(crate) fn add(&self, peer: &Arc<Peer>) {
        let mut peers = lock(&self.0);
        peer.care.armed.store(false, Ordering::Relaxed);
        if !peer.care.listed.swap(true, Ordering::Relaxed) {
            peers.push(Arc::clone(peer));
        }
    }

    /// Takes what the peers signalled. Returns whether each of them will ring if it signals again:
    /// one that has rung since the last [`Active::arm`], or signalled what is no event,
    /// will not.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> bool {
        let mut all_armed = true;
        lock(&self.0).retain(|peer| {
            if peer.is_gone() {
                return false;
            }
            if peer.collect(events) {
                all_armed = false;
                peer.owner.bell().wake();
                peer.care.armed.store(false, Ordering::Relaxed);
                return true;
            }
            let stays = !peer.care.armed.load(Ordering::Relaxed);
            peer.care.listed.store(stays, Ordering::Relaxed);
            all_armed &= !stays || peer.owner.bell().is_asleep();
            stays
        });
        all_armed
    }

    /// Has the peers ring from now on; what they signalled before is for [`Active::collect`].
    pub(crate) fn arm(&self) {
        for peer in &*lock(&self.0) {
            peer.owner.bell().sleep();
            peer.care.armed.store(true, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}
