//! Peers that the driver polls without a doorbell.
//!
//! A peer is added when it rings the doorbell, which also clears the driver's request for it. It
//! stays while it signals, and is removed once the driver has armed the doorbell again and then
//! found nothing. The cost of a drain is therefore proportional to the number of active peers.

use std::sync::Arc;

use smc_core::device::Event;
use smc_core::mem::sync::{Ordering, fence};
use smc_core::mutex::Mutex;

use crate::peer::Peer;

/// The peers that the driver polls. Its lock also guards their `poll_state`.
#[derive(Debug, Default)]
pub(crate) struct ActivePeers(Mutex<Vec<Arc<Peer>>>);

impl ActivePeers {
    /// Adds a peer that has rung the doorbell.
    pub(crate) fn add(&self, peer: &Arc<Peer>) {
        let mut peers = self.0.lock();
        peer.poll_state.armed.store(false, Ordering::Relaxed);
        if !peer.poll_state.listed.swap(true, Ordering::Relaxed) {
            peers.push(Arc::clone(peer));
        }
    }

    /// Takes what the peers signalled. Returns whether the doorbell is armed for each of them: it
    /// is not for a peer that has rung since the last [`ActivePeers::arm`], or has signalled
    /// without an event.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> bool {
        let mut all_armed = true;
        self.0.lock().retain(|peer| {
            if peer.is_gone() {
                return false;
            }
            if peer.local.collect(events) {
                all_armed = false;
                peer.local.signal_page.clear_sleeping();
                peer.poll_state.armed.store(false, Ordering::Relaxed);
                return true;
            }
            let stays = !peer.poll_state.armed.load(Ordering::Relaxed);
            peer.poll_state.listed.store(stays, Ordering::Relaxed);
            all_armed &= !stays || peer.local.signal_page.is_sleeping();
            stays
        });
        all_armed
    }

    /// Arms the doorbell for all peers; earlier signals are for [`ActivePeers::collect`].
    pub(crate) fn arm(&self) {
        for peer in &*self.0.lock() {
            peer.local.signal_page.set_sleeping();
            peer.poll_state.armed.store(true, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}
