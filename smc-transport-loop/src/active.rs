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

    /// Takes what the peers signalled, of one peer after the other until there are enough signals;
    /// the next call goes on with the others. Returns whether the doorbell is armed for each of
    /// them: it is not for a peer that has rung since the last [`ActivePeers::arm`], or has
    /// signalled without an event, and counts as not armed for those left.
    pub(crate) fn collect(&self, events: &mut Vec<Event>) -> bool {
        let mut all_armed = true;
        let (mut signals, mut done) = (0, 0);
        let mut peers = self.0.lock();
        peers.retain(|peer| {
            if peer.is_gone() {
                return false;
            }
            if signals >= MAX_SIGNALS {
                all_armed = false;
                return true;
            }
            let signalled = peer.local.collect(events);
            signals += signalled;
            if signalled > 0 {
                all_armed = false;
                peer.local.signal_page.clear_sleeping();
                peer.poll_state.armed.store(false, Ordering::Relaxed);
                done += 1;
                return true;
            }
            let stays = !peer.poll_state.armed.load(Ordering::Relaxed);
            peer.poll_state.listed.store(stays, Ordering::Relaxed);
            all_armed &= !stays || peer.local.signal_page.is_sleeping();
            done += usize::from(stays);
            stays
        });
        if signals >= MAX_SIGNALS {
            peers.rotate_left(done);
        }
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

/// Signals in one call beyond which further peers wait for the next one, so that many peers with
/// many signals do not make a drain long. One peer can have as many as a page has slots.
const MAX_SIGNALS: usize = 4096;
