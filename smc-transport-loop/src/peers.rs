//! All peers of a device: how they are found, and what the driver does about them.

mod lobby;
mod share;
mod waiting;

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use smc_core::Domain;
use smc_core::device::{DeviceError, Event, MemoryAccount};
use smc_core::error::OsError;
use smc_core::io::negotiate::Credentials;
use smc_core::io::negotiate::passed::PeerSocket;
use smc_core::io::negotiate::runtime_dir::{Publication, RuntimeDirError};
use smc_core::mem::sync::{AtomicU64, Ordering};
use smc_wire::types::Gid;

use crate::active::Active;
use crate::bell::{self, Bell};
use crate::channel::{self, Message};
use crate::directory::{is_socket_name, socket_name};
use crate::doorbell::{Doorbell, Rang, new_eventfd};
use crate::lock;
use crate::outbox::{Outbox, Wakes, Way};
use crate::peer::{Incoming, Peer};
use crate::pool::Keep;
use crate::region::{Mapping, has_unread};
use crate::registry::{Owner, Permits};
use crate::remote::{Remote, RingWith, Ringer, Tokens};
use lobby::Lobby;

/// The peers of a device.
#[derive(Debug)]
pub(crate) struct Peers {
    gid: Gid,
    own: Arc<Peer>,
    domain: Domain,
    publication: Mutex<Publication>,
    keep: Keep,
    account: MemoryAccount,
    doorbell: Arc<Doorbell>,
    tokens: Arc<Tokens>,
    active: Active,
    known: RwLock<Known>,
    next_id: AtomicU64,
    /// Held while a channel is opened, so that there is one per peer.
    opening: Mutex<()>,
    /// Held while set-up is caught up with.
    lobby: Mutex<Lobby>,
    /// Channels to peers that have gone without reading all, by user. Descriptors that are under way
    /// count for the user of the sender until they are read, also after the channel is closed.
    unread: Mutex<Vec<(u32, Arc<PeerSocket>)>>,
    /// What this process lacked when a peer was not let in, and when that was.
    shortage: Mutex<Option<(Instant, OsError)>>,
    /// Limits what is mapped for all peers: bells, ours and theirs, and their buffers.
    mappings: Arc<Permits>,
    /// To be woken as soon as neither of the two is locked.
    wakes: Mutex<Wakes>,
}

#[derive(Debug, Default)]
struct Known {
    by_gid: HashMap<Gid, Arc<Peer>>,
    by_id: HashMap<u64, Arc<Peer>>,
}

/// Why a channel could not be opened.
#[derive(Debug)]
pub(crate) enum OpenError {
    /// The peer has too many connections to accept; it may help to try again.
    Busy,
    Failed(DeviceError),
}

impl From<DeviceError> for OpenError {
    fn from(error: DeviceError) -> Self {
        Self::Failed(error)
    }
}

impl Peers {
    /// Publishes a device in the runtime directory.
    pub(crate) fn new(
        gid: Gid,
        domain: Domain,
        keep: Keep,
        max_mappings: usize,
        account: MemoryAccount,
    ) -> Result<Self, DeviceError> {
        domain.sweep(is_socket_name);
        let publication = Publication::new(domain.clone(), socket_name(gid));
        let publication = publication.map_err(|error| DeviceError::os("publish device", &error))?;
        let doorbell = Arc::new(Doorbell::new(publication.epoll_fd())?);
        let tokens = Arc::new(Tokens::default());
        let mappings = Permits::new(max_mappings, account.clone());
        let own = own_peer(gid, &doorbell, &tokens, keep, &mappings, account.clone())?;
        Ok(Self {
            gid,
            own: Arc::new(own),
            domain,
            publication: Mutex::new(publication),
            keep,
            account,
            doorbell,
            tokens,
            active: Active::default(),
            known: RwLock::default(),
            next_id: AtomicU64::new(1),
            opening: Mutex::default(),
            lobby: Mutex::default(),
            unread: Mutex::default(),
            shortage: Mutex::default(),
            mappings,
            wakes: Mutex::default(),
        })
    }

    pub(crate) fn gid(&self) -> Gid {
        self.gid
    }

    /// The runtime directory in which the device is published, or why it is in none.
    pub(crate) fn directory(&self) -> Result<PathBuf, RuntimeDirError> {
        let publication = lock(&self.publication);
        match (publication.directories().next(), publication.error()) {
            (None, Some(error)) => Err(error.clone()),
            (path, _) => Ok(path.map(Path::to_owned).unwrap_or_default()),
        }
    }

    pub(crate) fn doorbell(&self) -> &Doorbell {
        &self.doorbell
    }

    /// The bell by which the device wakes itself.
    #[cfg(test)]
    pub(crate) fn own_bell(&self) -> &Bell {
        self.own.owner.bell()
    }

    pub(crate) fn tokens(&self) -> &Tokens {
        &self.tokens
    }

    /// What this process lacked when a peer was not let in, a moment ago.
    pub(crate) fn shortage(&self) -> Option<OsError> {
        let latest = lock(&self.shortage).clone();
        let recent = latest.filter(|(at, _)| at.elapsed() < SHORTAGE_LASTS);
        recent.map(|(_, error)| error)
    }

    /// Number of peers there is a channel to.
    pub(crate) fn len(&self) -> usize {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_gid
            .len()
    }

    /// Gives back the memory that is kept for next connections.
    pub(crate) fn trim(&self) {
        self.own.owner.trim();
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_gid.values().for_each(|peer| peer.owner.trim());
    }

    pub(crate) fn find(&self, gid: Gid) -> Option<Arc<Peer>> {
        if gid == self.gid {
            return Some(Arc::clone(&self.own));
        }
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_gid
            .get(&gid)
            .cloned()
    }

    /// Hands all that happened to `events`, without waiting.
    pub(crate) fn drain(&self, events: &mut Vec<Event>) -> Result<(), DeviceError> {
        let mut inside = false;
        self.doorbell.rang(|rang| match rang {
            Rang::Own => {
                self.own.look();
                self.active.add(&self.own);
            }
            Rang::Inside => inside = true,
            Rang::Peer(id) => {
                if let Some(peer) = self.by_id(id) {
                    self.active.add(&peer);
                }
            }
            _ => {}
        })?;
        if inside {
            self.set_up(Some(events))?;
        }
        if !self.active.collect(events) && events.is_empty() {
            // The driver may sleep now, as it gets no event, and those peers would not wake it.
            self.doorbell.ring_own();
        }
        Ok(())
    }

    /// Asks that the next event rings.
    pub(crate) fn arm(&self) {
        self.active.arm();
    }

    /// Catches up with what peers sent, for a call that needs it now.
    pub(crate) fn catch_up(&self) -> Result<(), DeviceError> {
        self.set_up(None)
    }

    /// Has every known peer's bell looked at, for a token that came without its owner's GID.
    pub(crate) fn look_at_all(&self) {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_gid.values().for_each(|peer| peer.look());
    }

    /// Opens our channel to a peer, if there is none yet.
    pub(crate) fn open(&self, gid: Gid) -> Result<Arc<Peer>, OpenError> {
        let opened = self.open_now(gid);
        self.wake();
        opened
    }

    /// The same for those who have the lobby locked; [`Peers::wake`] is left to them.
    fn open_now(&self, gid: Gid) -> Result<Arc<Peer>, OpenError> {
        if let Some(peer) = self.find(gid) {
            return Ok(peer);
        }
        let _opening = lock(&self.opening);
        if let Some(peer) = self.find(gid) {
            return Ok(peer);
        }
        let unreachable = |why| Err(DeviceError::Unreachable { peer: gid, why }.into());
        let name = socket_name(gid);
        let failed = |operation, error: Errno| DeviceError::os_at(operation, &name, &error.into());
        let channel = match self.domain.connect(&name) {
            Ok(channel) => Arc::new(channel),
            Err(Errno::AGAIN) => return Err(OpenError::Busy),
            Err(Errno::NOENT) => {
                // Then it is more likely that the peer cannot use it either.
                self.directory().map_err(DeviceError::from)?;
                return unreachable("no such device in the runtime directory");
            }
            Err(Errno::CONNREFUSED) => {
                self.domain.remove_if_stale(&name);
                return unreachable("its process has ended");
            }
            Err(Errno::ACCESS | Errno::PERM) => {
                let why = format!("{name} of the runtime directory may not be used");
                return Err(DeviceError::NotPermitted(why.into()).into());
            }
            Err(error) => return Err(failed("connect to peer device", error).into()),
        };
        let credentials = Credentials::of_peer(&channel)
            .map_err(|error| DeviceError::os("identify peer device", &error))?;
        if !self.domain.allows(credentials.uid) {
            let why = format!("the peer device {gid} belongs to user {}", credentials.uid);
            return Err(DeviceError::NotPermitted(why.into()).into());
        }
        if !share::has_room(credentials.uid, self.count(credentials.uid)) {
            return Err(DeviceError::Exhausted.into());
        }
        // If it fails, more descriptors may be under way.
        let _ = set_socket_send_buffer_size(&channel, CHANNEL_ROOM);
        let permit = self.mappings.take()?;
        permit.charge_within_limit(PEER_CHARGE)?;
        let (mapping, file) = Mapping::create(bell::LEN)?;
        let bell = new_bell(&mapping)?;
        let eventfd = Arc::new(new_eventfd()?);
        let hello = Message::Hello { gid: self.gid };
        match channel::send(&channel, hello, &[file.as_fd(), eventfd.as_fd()]) {
            Ok(()) => {}
            Err(Errno::PIPE | Errno::CONNRESET) => return unreachable("it refuses us"),
            Err(error) => return Err(failed("greet peer device", error).into()),
        }

        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let outbox = Outbox::new(Arc::clone(&self.doorbell), id, Arc::clone(&channel));
        let way = Way::Channel(Arc::new(outbox));
        let owner = Owner::new(bell, way, self.keep, self.account.clone());
        let peer = Peer::new(
            gid,
            id,
            Some(credentials),
            owner,
            Some(Arc::clone(&eventfd)),
            Some(permit),
        );
        let peer = Arc::new(peer);
        // First known, then watched: an edge for an unknown number would be lost.
        self.insert(&peer);
        let watched = self
            .doorbell
            .watch_peer(&eventfd, id)
            .and_then(|()| self.doorbell.watch_outgoing(&channel, id));
        if let Err(error) = watched {
            self.remove(&peer);
            self.close(&peer);
            return Err(error.into());
        }
        Ok(peer)
    }

    /// Counts peers, and those that have gone and left something unread.
    fn count(&self, uid: u32) -> share::PeerCounts {
        let mut unread = lock(&self.unread);
        unread.retain(|(_, channel)| has_unread(channel));
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let peers = known.by_id.values().filter_map(|peer| peer.credentials);
        let mut counts = share::PeerCounts::default();
        for user in peers
            .map(|credentials| credentials.uid)
            .chain(unread.iter().map(|(user, _)| *user))
        {
            counts.same_user += usize::from(user == uid);
            counts.other_users += usize::from(!share::is_own(user));
        }
        counts
    }

    fn close(&self, peer: &Peer) {
        if let (Some(credentials), Way::Channel(outbox)) = (peer.credentials, peer.owner.way()) {
            let unread = outbox.unread().map(|channel| (credentials.uid, channel));
            lock(&self.unread).extend(unread);
        }
        let wakes = peer.close(&self.doorbell);
        lock(&self.wakes).append(wakes);
    }

    /// Wakes those whose buffers are on their way, or never will be.
    fn wake(&self) {
        let wakes = std::mem::take(&mut *lock(&self.wakes));
        wakes.wake();
    }

    fn by_id(&self, id: u64) -> Option<Arc<Peer>> {
        self.known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .by_id
            .get(&id)
            .cloned()
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
        lock(&self.publication).close();
        let known =
            std::mem::take(&mut *self.known.write().unwrap_or_else(PoisonError::into_inner));
        for peer in known.by_id.values() {
            self.close(peer);
        }
        self.close(&self.own);
        self.tokens.clear();
        self.wake();
    }
}

/// A device can be its own peer, without sockets and memory files.
fn own_peer(
    gid: Gid,
    doorbell: &Doorbell,
    tokens: &Arc<Tokens>,
    keep: Keep,
    mappings: &Arc<Permits>,
    account: MemoryAccount,
) -> Result<Peer, DeviceError> {
    let mapping = Mapping::anonymous(bell::LEN)?;
    let owner = Owner::new(
        new_bell(&mapping)?,
        Way::Own(Arc::clone(doorbell.own())),
        keep,
        account.clone(),
    );
    let ring_with = RingWith::Eventfd(Arc::clone(doorbell.own()));
    let ringer = Arc::new(Ringer::new(gid, new_bell(&mapping)?, ring_with));
    let remote = Remote::new(ringer, Arc::clone(tokens), &account);
    let peer = Peer::new(gid, 0, None, owner, None, None);
    let incoming = Incoming {
        channel: None,
        remote,
        mappings: Arc::clone(mappings),
    };
    peer.set_incoming(incoming)
        .map_err(|_| DeviceError::Gone("own device"))?;
    Ok(peer)
}

/// The bell in fresh memory, or in a peer's, which [`Mapping::adopt`] found long enough.
fn new_bell(mapping: &Arc<Mapping>) -> Result<Bell, DeviceError> {
    let bell = Bell::new(mapping.region());
    let bell = bell.map_err(|_| DeviceError::PeerMisbehaved("bell is too short"))?;
    Ok(bell)
}

/// Send buffer of a channel in bytes, of which the system makes twice as many: about 20 messages, each
/// with a descriptor, that a peer may leave unread.
const CHANNEL_ROOM: usize = 8 << 10;

/// What a peer without buffers is charged as: two pages of each of the two bells, with the words and
/// the bit sets.
const PEER_CHARGE: usize = 16 << 10;

/// For how long a set-up that fails may be explained by it: about as long as one may take.
const SHORTAGE_LASTS: Duration = Duration::from_secs(10);
