//! The ringer's side: buffers of a peer that we may write.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smc_core::device::{Attachment, Charge, DeviceError, MemoryAccount, SubmitError};
use smc_core::mem::Region;
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_wire::types::{DmbToken, Gid};

use crate::bell::{Bell, Notice, SLOTS_PER_PAGE, Slot};
use crate::lock;
use crate::outbox::Outbox;
use crate::region::Mapping;

/// How to tell one peer that its buffers were written.
#[derive(Debug)]
pub(crate) struct Ringer {
    peer: Gid,
    bell: Bell,
    gone: AtomicBool,
    doorbell: Mutex<Option<RingWith>>,
}

/// What wakes the driver of a peer.
#[derive(Debug)]
pub(crate) enum RingWith {
    /// The eventfd that it waits on.
    Eventfd(Arc<OwnedFd>),
    /// A message on our channel to it. For peers of other users: a process that shares an eventfd
    /// with us can make writing to it block, but not sending on a socket.
    Channel(Arc<Outbox>),
}

impl Ringer {
    pub(crate) fn new(peer: Gid, bell: Bell, doorbell: RingWith) -> Self {
        Self {
            peer,
            bell,
            gone: AtomicBool::new(false),
            doorbell: Mutex::new(Some(doorbell)),
        }
    }

    /// Nothing is rung any more; the descriptors are closed.
    pub(crate) fn close(&self) {
        self.gone.store(true, Ordering::Release);
        lock(&self.doorbell).take();
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Reports a buffer whose owner wants to hear of it.
    #[cold]
    fn report(&self, index: u32) {
        if !self.bell.set_ready(index) {
            return;
        }
        // A full counter or channel means that enough has been said; an error that the peer is on
        // its way out, which its channel tells the driver.
        match &*lock(&self.doorbell) {
            Some(RingWith::Eventfd(fd)) => {
                let _ = rustix::io::write(fd, &1_u64.to_ne_bytes());
            }
            Some(RingWith::Channel(outbox)) => outbox.look(),
            None => {}
        }
    }
}

/// One registration of a peer's buffer.
#[derive(Debug)]
pub(crate) struct Target {
    ringer: Arc<Ringer>,
    index: u32,
    live: u64,
    slot: Slot,
    /// Why not, if the memory could not be mapped.
    memory: Result<(Arc<Mapping>, Region), DeviceError>,
}

impl Target {
    pub(crate) fn peer(&self) -> Gid {
        self.ringer.peer
    }

    /// Writes the slices one after the other from offset `at`.
    pub(crate) fn write(&self, at: usize, data: &[IoSlice<'_>]) -> Result<(), SubmitError> {
        let (_, region) = self.memory.as_ref().map_err(|error| error.clone())?;
        if self.ringer.is_gone() {
            return Err(SubmitError::PeerGone);
        }
        let total = data
            .iter()
            .try_fold(at, |end, part| end.checked_add(part.len()));
        if total.is_none_or(|end| end > region.len()) {
            return Err(SubmitError::OutOfBounds);
        }
        if !self.begin_use() {
            return Err(SubmitError::UnknownToken);
        }
        let mut at = at;
        let copied = data.iter().try_for_each(|part| {
            let copied = region.copy_in(at, part);
            at += part.len();
            copied
        });
        self.slot.end_use();
        copied.map_err(|_| SubmitError::OutOfBounds)
    }

    /// Whether the owner still has this registration, which a connection has written.
    pub(crate) fn is_offered(&self) -> bool {
        // Moves do not, so that they cost nothing.
        if let Ok((mapping, _)) = &self.memory {
            mapping.charge();
        }
        !self.ringer.is_gone() && self.slot.is_live(self.live)
    }

    /// Starts using the buffer; false if this registration is over.
    fn begin_use(&self) -> bool {
        let has_begun = self.slot.begin_use(self.live);
        if !has_begun {
            self.left();
        }
        has_begun
    }

    /// A use has ended: the owner of a buffer that was dropped may wait for that.
    fn left(&self) {
        self.signal();
    }

    /// Tells the owner that its buffer was written.
    pub(crate) fn signal(&self) {
        if self.slot.must_signal() {
            self.ringer.report(self.index);
        }
    }

    /// Uses the buffer until the attachment, and every region made from it, is dropped.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<LoopAttachment, DeviceError> {
        let (mapping, _) = self.memory.as_ref().map_err(|error| error.clone())?;
        if self.ringer.is_gone() {
            return Err(DeviceError::PeerGone);
        }
        if !self.begin_use() {
            return Err(UNKNOWN);
        }
        mapping.charge();
        let region = mapping.leased(Use(Arc::clone(self)));
        Ok(LoopAttachment {
            region,
            target: Arc::clone(self),
        })
    }
}

/// A use of a buffer that has begun.
#[derive(Debug)]
struct Use(Arc<Target>);

impl Drop for Use {
    fn drop(&mut self) {
        self.0.slot.end_use();
        self.0.left();
    }
}

/// A peer's buffer, mapped.
#[derive(Debug)]
pub(crate) struct LoopAttachment {
    region: Region,
    target: Arc<Target>,
}

impl Attachment for LoopAttachment {
    fn region(&self) -> &Region {
        &self.region
    }

    fn signal(&self) -> Result<(), SubmitError> {
        if self.target.ringer.is_gone() {
            return Err(SubmitError::PeerGone);
        }
        self.target.signal();
        Ok(())
    }
}

/// What a token of a peer's buffer stands for, over all peers.
#[derive(Debug, Default)]
pub(crate) struct Tokens(RwLock<HashMap<DmbToken, Known>>);

#[derive(Debug)]
enum Known {
    Buffer(Arc<Target>),
    /// The buffer went away together with its device.
    Gone,
}

impl Tokens {
    /// Looks a token up and does something with it while it cannot go away.
    pub(crate) fn with<T>(
        &self,
        token: DmbToken,
        then: impl FnOnce(&Arc<Target>) -> Result<T, SubmitError>,
    ) -> Result<T, SubmitError> {
        match self.read().get(&token) {
            Some(Known::Buffer(target)) => then(target),
            Some(Known::Gone) => Err(SubmitError::PeerGone),
            None => Err(SubmitError::UnknownToken),
        }
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .clear();
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<DmbToken, Known>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a buffer; false if the token is taken, which a peer can only bring about on purpose.
    fn insert(&self, token: DmbToken, target: Arc<Target>) -> bool {
        let mut tokens = self.0.write().unwrap_or_else(PoisonError::into_inner);
        match tokens.entry(token) {
            Entry::Vacant(entry) => {
                entry.insert(Known::Buffer(target));
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    fn remove(&self, token: DmbToken) {
        self.0
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(&token);
    }

    /// Replaces the buffers of a peer that died. Of very many, only some are remembered.
    fn bury(&self, dead: impl Iterator<Item = DmbToken>) {
        let mut tokens = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if tokens
            .values()
            .filter(|known| matches!(known, Known::Gone))
            .count()
            > MAX_GRAVES
        {
            tokens.retain(|_, known| matches!(known, Known::Buffer(_)));
        }
        for token in dead {
            tokens.insert(token, Known::Gone);
        }
    }
}

/// The buffers of one peer.
#[derive(Debug)]
pub(crate) struct Remote {
    ringer: Arc<Ringer>,
    tokens: Arc<Tokens>,
    buffers: HashMap<u32, Buffer>,
    /// Pages of slots that were looked at, with what they are charged as if the memory limit left that.
    pages: HashMap<u32, Option<Charge>>,
    /// How many of these are not charged.
    pages_over: usize,
    account: MemoryAccount,
}

/// Memory of the peer, kept while it may be used again.
#[derive(Debug)]
struct Buffer {
    number: u64,
    memory: Result<Arc<Mapping>, DeviceError>,
    /// The registration that our table of tokens has.
    known: Option<(DmbToken, u64)>,
    /// Keeps the owner from using memory again that could not be mapped here.
    _unusable: Option<Unusable>,
}

/// A use of a slot without memory, which lasts until other memory is behind the slot.
#[derive(Debug)]
struct Unusable(Slot);

impl Unusable {
    fn new(slot: Slot) -> Self {
        slot.hold();
        Self(slot)
    }
}

impl Drop for Unusable {
    fn drop(&mut self) {
        self.0.end_use();
    }
}

impl Remote {
    pub(crate) fn new(ringer: Arc<Ringer>, tokens: Arc<Tokens>, account: &MemoryAccount) -> Self {
        Self {
            ringer,
            tokens,
            buffers: HashMap::new(),
            pages: HashMap::new(),
            pages_over: 0,
            account: account.clone(),
        }
    }

    pub(crate) fn ringer(&self) -> &Arc<Ringer> {
        &self.ringer
    }

    /// Takes over memory that the peer put behind a slot.
    pub(crate) fn install(
        &mut self,
        index: u32,
        number: u64,
        memory: Result<Arc<Mapping>, DeviceError>,
    ) {
        self.forget(index);
        let page = index / SLOTS_PER_PAGE;
        let memory = match self.charge_page(page) {
            Ok(()) => memory,
            Err(error) => {
                // So that the owner sees that its memory cannot be used.
                if self.pages_over == MAX_PAGES_OVER {
                    return;
                }
                self.pages_over += 1;
                self.pages.insert(page, None);
                Err(error)
            }
        };
        let is_usable = memory.is_ok();
        let slot = self.ringer.bell.slot(index).ok().filter(|_| !is_usable);
        self.buffers.insert(
            index,
            Buffer {
                number,
                memory,
                known: None,
                _unusable: slot.map(Unusable::new),
            },
        );
        self.look_at(index);
    }

    /// Slots of this page may be looked at from now on, which makes it resident.
    fn charge_page(&mut self, page: u32) -> Result<(), DeviceError> {
        if let Entry::Vacant(entry) = self.pages.entry(page) {
            entry.insert(Some(self.account.charge(PAGE_CHARGE)?));
        }
        Ok(())
    }

    /// Learns what changed in the peer's bell.
    pub(crate) fn look(&mut self) {
        // The bell is behind an `Arc` of its own, so that the closure may change `self`.
        let ringer = Arc::clone(&self.ringer);
        ringer.bell.take_fresh(|index| self.look_at(index));
    }

    /// Forgets all buffers, after the peer died.
    pub(crate) fn bury(&mut self) {
        let buffers = std::mem::take(&mut self.buffers);
        let known = buffers.values().filter_map(|buffer| buffer.known);
        self.tokens.bury(known.map(|(token, _)| token));
    }

    fn look_at(&mut self, index: u32) {
        // First, as the peer can mark all slots, and each page that is looked at takes memory.
        let Some(buffer) = self.buffers.get_mut(&index) else {
            return;
        };
        // `None`: the owner is at it and will mark the slot again; else the index is out of range,
        // which `take_fresh` and messages cannot give.
        let Ok(slot) = self.ringer.bell.slot(index) else {
            return;
        };
        let Some(notice) = slot.notice() else { return };
        if buffer.number != notice.memory {
            self.forget(index);
            return;
        }
        if buffer.known.is_some_and(|(_, live)| live == notice.live) {
            return;
        }
        if let Some((token, _)) = buffer.known.take() {
            self.tokens.remove(token);
        }
        if notice.live == 0 || notice.token == 0 {
            return;
        }
        let Notice { live, token, .. } = notice;
        let token = DmbToken(token);
        let memory = buffer.memory.clone().map(|mapping| {
            let region = mapping.region();
            (mapping, region)
        });
        let ringer = Arc::clone(&self.ringer);
        let target = Target {
            ringer,
            index,
            live,
            slot,
            memory,
        };
        if self.tokens.insert(token, Arc::new(target)) {
            buffer.known = Some((token, live));
        }
    }

    /// Lets go of what is behind a slot.
    pub(crate) fn forget(&mut self, index: u32) {
        if let Some(Buffer {
            known: Some((token, _)),
            ..
        }) = self.buffers.remove(&index)
        {
            self.tokens.remove(token);
        }
    }
}

/// There is no buffer of this name for us.
pub(crate) const UNKNOWN: DeviceError = DeviceError::Invalid("no such buffer for this device");

/// What one page of slots is charged as: the page, and less than 448 bytes for each buffer.
const PAGE_CHARGE: usize = 32 << 10;

/// Pages of slots of a peer that are looked at though the memory limit leaves nothing for them.
const MAX_PAGES_OVER: usize = 16;

/// Tokens of dead peers that are remembered as such; about.
const MAX_GRAVES: usize = 4096;
