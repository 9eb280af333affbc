//! All peers of a device: how they are found, and how the driver handles them.

mod open;
mod pending_channels;
mod scans;
mod setup;

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::task::Waker;

use hashbrown::HashMap;
use rustix::process::geteuid;
use smc_core::device::{DeviceError, Event, MemoryAccount};
use smc_core::mem::sync::{AtomicU32, AtomicU64, Ordering};
use smc_core::mutex::Mutex;
use smc_core::quota::Permit;
use smc_core::quota::descriptors;
use smc_ipc::doorbell::PACKETS_PER_ROUND;
use smc_ipc::passed::PeerSocket;
use smc_ipc::runtime_dir::Publication;
use smc_ipc::shortage::Shortage;
use smc_ipc::{Domain, OsError, RuntimeDirError, is_own_user};
use smc_wire::types::Gid;

use crate::active::ActivePeers;
use crate::config::Builder;
use crate::directory::{self, is_socket_name, socket_name};
use crate::doorbell::{Doorbell, EventSource};
use crate::local_buffers::LocalBuffers;
use crate::mappings::Mappings;
use crate::peer::{Incoming, Peer};
use crate::peer_buffers::{Notifier, NotifyBy, PeerBuffers, Tokens};
use crate::pool::PoolLimits;
use crate::region::{Mapping, has_unread};
use crate::released::Released;
use crate::send_queue::{SendPath, WakeList};
use crate::signal_page::{self, SignalPage};
pub(crate) use open::OpenError;
use open::{SetupWaker, WaitingTasks};
pub(crate) use scans::SLOTS_PER_SCAN;
use scans::Scans;
use setup::SetupState;

/// The peers of a device.
#[derive(Debug)]
pub(crate) struct Peers {
    pub(crate) gid: Gid,
    domain: Domain,
    publication: Mutex<Publication>,
    pool_limits: PoolLimits,
    pub(crate) account: MemoryAccount,
    pub(crate) doorbell: Arc<Doorbell>,
    pub(crate) tokens: Arc<Tokens>,
    pub(crate) active: ActivePeers,
    known: RwLock<Known>,
    next_id: AtomicU64,
    /// Locked while a channel is opened, so that there is one per peer.
    opening: Mutex<()>,
    /// Tasks that wait until they can open a channel.
    waiting: WaitingTasks,
    /// For what set-up waits for on other threads.
    setup_waker: Arc<SetupWaker>,
    /// Locked while set-up runs.
    setup: Mutex<SetupState>,
    /// Channels to peers that have ended without reading all, which count as peers. Descriptors in
    /// flight count for the user of the sender until they are read, also after the channel is
    /// closed.
    unread: Mutex<VecDeque<(Permit, Arc<PeerSocket>)>>,
    /// Rounds in which moves may receive messages until the next drain.
    move_rounds: AtomicU32,
    /// Changed slots of signal pages.
    scans: Scans,
    released: Arc<Released>,
    /// The resource that was exhausted when a peer was not accepted.
    shortage: Mutex<Shortage>,
    /// Limits what is mapped for peers: signal pages of both sides, and the peers' buffers.
    mappings: Arc<Mappings>,
    /// Tasks to be woken as soon as neither of the two is locked.
    wakes: Mutex<WakeList>,
}

/// The peers, and the device itself.
#[derive(Debug, Default)]
struct Known {
    by_gid: HashMap<Gid, Arc<Peer>>,
    by_id: HashMap<u64, Arc<Peer>>,
}

impl Peers {
    /// Publishes a device in the runtime directory.
    pub(crate) fn new(gid: Gid, options: &Builder) -> Result<Self, DeviceError> {
        let (domain, pool_limits) = (&options.domain, options.pool_limits);
        domain.sweep(is_socket_name);
        let publication = Publication::new(domain.clone(), socket_name(gid));
        let publication = publication.map_err(|error| DeviceError::os("publish device", &error))?;
        let doorbell = Arc::new(Doorbell::new(publication.epoll_fd())?);
        let tokens = Arc::new(Tokens::default());
        let account = MemoryAccount::default();
        let mappings = Mappings::new(options.max_mappings, domain.has_others(), account.clone());
        let peers = Self {
            gid,
            domain: domain.clone(),
            publication: Mutex::new(publication),
            pool_limits,
            account,
            tokens,
            active: ActivePeers::default(),
            known: RwLock::default(),
            next_id: AtomicU64::new(OWN_ID + 1),
            opening: Mutex::default(),
            waiting: WaitingTasks::default(),
            setup_waker: SetupWaker::new(&doorbell),
            setup: Mutex::default(),
            unread: Mutex::default(),
            move_rounds: AtomicU32::new(MOVE_ROUNDS),
            scans: Scans::default(),
            released: Arc::default(),
            shortage: Mutex::default(),
            mappings,
            wakes: Mutex::default(),
            doorbell,
        };
        peers.insert(&peers.own_peer()?);
        Ok(peers)
    }

    /// A device can be its own peer, without sockets and memory files.
    fn own_peer(&self) -> Result<Arc<Peer>, DeviceError> {
        let mapping = Mapping::anonymous(signal_page::LEN)?;
        let eventfd = self.doorbell.own();
        let local = LocalBuffers::new(
            new_signal_page(&mapping)?,
            SendPath::Own(Arc::clone(eventfd)),
            self.pool_limits,
            self.account.clone(),
        );
        let notify_by = NotifyBy::Own(Arc::clone(eventfd));
        let notifier = Notifier::new(self.gid, new_signal_page(&mapping)?, notify_by);
        let tokens = Arc::clone(&self.tokens);
        let buffers = PeerBuffers::new(
            Arc::new(notifier),
            tokens,
            Arc::clone(&self.released),
            &self.account,
        );
        let peer = Peer::new(self.gid, OWN_ID, None, local, None, None);
        let incoming = Incoming {
            channel: None,
            buffers,
            mappings: Arc::clone(&self.mappings),
            user: geteuid().as_raw(),
        };
        peer.set_incoming(incoming)
            .map_err(|_| DeviceError::Gone("own device"))?;
        Ok(Arc::new(peer))
    }

    /// The runtime directory in which the device is published, or why it is in none.
    pub(crate) fn directory(&self) -> Result<PathBuf, RuntimeDirError> {
        let publication = self.publication.lock();
        match (publication.directories().next(), publication.error()) {
            (None, Some(error)) => Err(error.clone()),
            (path, _) => Ok(path.map(Path::to_owned).unwrap_or_default()),
        }
    }

    /// The buffers of the device for itself.
    #[cfg(test)]
    pub(crate) fn own_local(&self) -> Arc<LocalBuffers> {
        Arc::clone(&self.find(self.gid).unwrap().local)
    }

    /// The resource that was exhausted when a peer was not accepted, a moment ago.
    pub(crate) fn shortage(&self) -> Option<OsError> {
        self.shortage.lock().recent().cloned()
    }

    /// Number of peers there is a channel to; the device itself does not count.
    pub(crate) fn len(&self) -> usize {
        self.known().by_gid.len() - 1
    }

    /// Releases the pooled memory.
    pub(crate) fn trim(&self) {
        let known = self.known();
        known.by_gid.values().for_each(|peer| peer.local.trim());
    }

    pub(crate) fn find(&self, gid: Gid) -> Option<Arc<Peer>> {
        self.known().by_gid.get(&gid).cloned()
    }

    /// Adds all events to `events`, without waiting.
    pub(crate) fn drain(&self, events: &mut Vec<Event>) -> Result<(), DeviceError> {
        self.move_rounds.store(MOVE_ROUNDS, Ordering::Relaxed);
        self.scans.begin_drain();
        let mut has_setup = false;
        self.doorbell.poll_signals(|source, id| match source {
            EventSource::Own => {
                if let Some(own) = self.by_id(OWN_ID) {
                    self.scans.scan(&own);
                    self.active.add(&own);
                }
                has_setup |= self.setup_waker.take();
            }
            EventSource::Setup => has_setup = true,
            EventSource::Peer => {
                if let Some(peer) = self.by_id(id) {
                    self.active.add(&peer);
                }
            }
            _ => {}
        })?;
        if has_setup {
            // What is still ready wakes the driver.
            let _more = self.run_setup(Some(events))?;
        }
        if self.released.unmap_some() || self.scans.has_more() {
            self.doorbell.notify_self();
        }
        if !self.active.collect(events) && events.is_empty() {
            // The driver may sleep now, as it gets no event, and those peers would not wake it.
            self.doorbell.notify_self();
        }
        Ok(())
    }

    /// Adds the events of active peers to `events`. The driver does not sleep after this without
    /// another [`Peers::drain`].
    pub(crate) fn poll(&self, events: &mut Vec<Event>) {
        let _all_armed = self.active.collect(events);
    }

    /// Arms the doorbell for the next event.
    pub(crate) fn arm(&self) {
        self.active.arm();
    }

    /// Receives what peers have sent, for a call that needs it now, as far as a few rounds do.
    /// Returns whether there may be more, which is left to the driver.
    pub(crate) fn receive_pending(&self) -> Result<bool, DeviceError> {
        Ok(self.receive_rounds()? == CALL_ROUNDS)
    }

    /// Returns how many rounds have found something.
    fn receive_rounds(&self) -> Result<u32, DeviceError> {
        for round in 0..CALL_ROUNDS {
            if !self.run_setup(None)? {
                return Ok(round);
            }
        }
        Ok(CALL_ROUNDS)
    }

    /// Receives what a peer has sent, for a call that needs it now: all, if the peer is a device.
    pub(crate) fn receive_from(&self, peer: &Arc<Peer>) {
        let outcome = peer.receive(PACKETS_PER_ROUND);
        self.note_received(peer, outcome, false);
    }

    /// As [`Peers::receive_pending`], for a move to a buffer of `peer` that is not known, and scans
    /// its signal page. Moves can be many, and a peer can have each of them find no buffer: all
    /// that come between two drains have a number of rounds in common.
    pub(crate) fn receive_for_move(&self, peer: Gid) -> Result<bool, DeviceError> {
        let is_spent = self.move_rounds.load(Ordering::Relaxed) == 0;
        let rounds = match is_spent {
            true => 0,
            false => self.receive_rounds()?,
        };
        let left = |left: u32| Some(left.saturating_sub(rounds));
        let _ = self
            .move_rounds
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        let more = self.find(peer).is_some_and(|peer| self.scans.scan(&peer));
        if more || is_spent {
            self.doorbell.notify_self();
        }
        Ok(more || is_spent || rounds == CALL_ROUNDS)
    }

    /// The user to whom the device with this GID has to belong. In a domain of one user that is
    /// this user, whose number may be another one in the user namespace of the peer.
    fn user_of(&self, gid: Gid) -> u32 {
        match self.domain.has_others() {
            true => directory::user_of(gid),
            false => geteuid().as_raw(),
        }
    }

    /// Has the name of an ended device removed; those of other users are left to them.
    fn remove_if_stale(&self, gid: Gid) {
        if is_own_user(self.user_of(gid)) {
            self.domain.remove_if_stale(&socket_name(gid));
        }
    }

    fn new_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes so many descriptors for a peer or a channel of this user.
    fn take_descriptors(&self, uid: u32, count: usize) -> Result<Permit, DeviceError> {
        self.forget_read();
        let permit = descriptors::take(uid, count);
        permit.map_err(|_share| DeviceError::Exhausted)
    }

    /// Forgets channels of ended peers that are read by now, of some of them in turn; whether there
    /// are others.
    fn forget_read(&self) -> bool {
        let mut unread = self.unread.lock();
        for _ in 0..unread.len().min(UNREAD_PER_CALL) {
            let oldest = unread.pop_front();
            unread.extend(oldest.filter(|(_, channel)| has_unread(channel)));
        }
        !unread.is_empty()
    }

    fn close(&self, peer: &Peer) {
        let unread = match &peer.local.send_path {
            SendPath::Channel(send_queue) => send_queue.unread(),
            SendPath::Own(_) => None,
        };
        let wakes = peer.close(&self.doorbell, &self.released);
        self.wakes.lock().extend(wakes);
        let descriptors = peer.descriptors.lock().take();
        self.unread.lock().extend(descriptors.zip(unread));
    }

    /// Wakes the tasks whose messages were sent or failed.
    fn wake(&self) {
        let wakes = std::mem::take(&mut *self.wakes.lock());
        wakes.into_iter().for_each(Waker::wake);
    }

    fn by_id(&self, id: u64) -> Option<Arc<Peer>> {
        self.known().by_id.get(&id).cloned()
    }

    fn known(&self) -> RwLockReadGuard<'_, Known> {
        self.known.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, peer: &Arc<Peer>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.by_gid.insert(peer.gid, Arc::clone(peer));
        known.by_id.insert(peer.id, Arc::clone(peer));
    }

    /// False if it was removed before.
    fn remove(&self, peer: &Arc<Peer>) -> bool {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let was_known = known.by_id.remove(&peer.id).is_some();
        if was_known {
            known.by_gid.remove(&peer.gid);
        }
        was_known
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        self.publication.lock().close();
        let known =
            std::mem::take(&mut *self.known.write().unwrap_or_else(PoisonError::into_inner));
        for peer in known.by_id.values() {
            self.close(peer);
        }
        self.tokens.clear();
        self.wake();
    }
}

/// The signal page in new memory, or in a peer's, whose length [`Mapping::adopt`] has checked.
fn new_signal_page(mapping: &Arc<Mapping>) -> Result<SignalPage, DeviceError> {
    let signal_page = SignalPage::new(mapping.leased(()));
    let signal_page =
        signal_page.map_err(|_| DeviceError::PeerMisbehaved("signal page is too short"))?;
    Ok(signal_page)
}

/// The number of the device as its own peer.
const OWN_ID: u64 = 0;

/// Send buffer of a channel in bytes, of which the system makes twice as many: about 20 messages,
/// each with a descriptor, that a peer may leave unread. Fewer than [`PACKETS_PER_ROUND`].
const CHANNEL_BUFFER: usize = 8 << 10;

/// Rounds of set-up in a call that needs a message now. Each has a message of each of 64 channels
/// at least; peers that send without end must not occupy the task of the call.
const CALL_ROUNDS: u32 = 4;

/// The same of all moves between two drains: with all that peers can send, some milliseconds.
const MOVE_ROUNDS: u32 = 8;

/// Channels of ended peers that are looked at in one call.
const UNREAD_PER_CALL: usize = 16;

/// A channel in each direction, and an eventfd for each.
const DESCRIPTORS_PER_PEER: usize = 4;

/// What a peer without buffers is charged as: two pages of each of the two signal pages, with the
/// words and the bit sets.
const PEER_CHARGE: usize = 16 << 10;
