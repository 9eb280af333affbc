//! The writer's side: buffers of a peer that this device may write.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use hashbrown::HashMap;
use hashbrown::hash_map::{Entry, IntoIter};
use smc_core::device::{Attachment, Charge, DeviceError, MemoryAccount, SubmitError};
use smc_core::mem::sync::{AtomicBool, Ordering};
use smc_core::mem::{Region, Taken};
use smc_core::mutex::Mutex;
use smc_ipc::doorbell;
use smc_ipc::passed::PeerFile;
use smc_wire::types::{DmbToken, Gid};

use crate::region::Mapping;
use crate::released::Released;
use crate::send_queue::SendQueue;
use crate::signal_page::{SLOTS_PER_PAGE, SignalPage, Slot, SlotState};

/// Notifies one peer of writes to its buffers.
#[derive(Debug)]
pub(crate) struct Notifier {
    peer: Gid,
    signal_page: SignalPage,
    gone: AtomicBool,
    doorbell: Mutex<Option<NotifyBy>>,
}

/// The method that wakes the driver of a peer.
#[derive(Debug)]
pub(crate) enum NotifyBy {
    /// The eventfd that the local device waits on, as its own peer.
    Own(Arc<OwnedFd>),
    /// The eventfd that it waits on.
    Eventfd(PeerFile),
    /// A message on the channel to it. For peers of other users: a process that shares an eventfd
    /// with this one can make writing to it block, but not sending on a socket.
    Channel(Arc<SendQueue>),
}

impl Notifier {
    pub(crate) fn new(peer: Gid, signal_page: SignalPage, doorbell: NotifyBy) -> Self {
        Self {
            peer,
            signal_page,
            gone: AtomicBool::new(false),
            doorbell: Mutex::new(Some(doorbell)),
        }
    }

    /// Ends notifications and closes the descriptors.
    pub(crate) fn close(&self) {
        self.gone.store(true, Ordering::Release);
        self.doorbell.lock().take();
    }

    fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Acquire)
    }

    /// Notifies the owner of a buffer that has requested it.
    #[cold]
    fn notify(&self, index: u32) {
        if !self.signal_page.set_ready(index) {
            return;
        }
        // A full counter or channel already wakes the peer. An error means that the peer has ended,
        // which its channel reports to the driver.
        match &*self.doorbell.lock() {
            Some(NotifyBy::Own(fd)) => doorbell::notify(fd),
            Some(NotifyBy::Eventfd(fd)) => doorbell::notify(fd),
            Some(NotifyBy::Channel(send_queue)) => send_queue.notify(),
            None => {}
        }
    }
}

/// One registration of a peer's buffer.
#[derive(Debug)]
pub(crate) struct Target {
    notifier: Arc<Notifier>,
    index: u32,
    registration: u64,
    slot: Slot,
    /// Why not, if the memory could not be mapped.
    memory: Result<Arc<Mapping>, DeviceError>,
}

impl Target {
    /// Writes the slices one after the other from offset `at`.
    pub(crate) fn write(&self, at: usize, data: &[IoSlice<'_>]) -> Result<(), SubmitError> {
        if self.notifier.is_gone() {
            return Err(SubmitError::PeerGone);
        }
        let mapping = self.memory.as_ref().map_err(|error| error.clone())?;
        if !self.begin_use() {
            return Err(SubmitError::UnknownToken);
        }
        let copied = mapping.write(at, data);
        self.slot.end_use();
        copied.map_err(|_| SubmitError::OutOfBounds)
    }

    /// Whether the owner still has this registration, which a connection has written.
    pub(crate) fn is_registered(&self) -> bool {
        // Moves do not, so that they cost nothing.
        if let Ok(mapping) = &self.memory {
            mapping.charge();
        }
        !self.notifier.is_gone() && self.slot.is_live(self.registration)
    }

    /// Starts using the buffer; false if this registration has ended.
    fn begin_use(&self) -> bool {
        let has_begun = self.slot.begin_use(self.registration);
        if !has_begun {
            // The owner of a dropped buffer may wait for the end of a use.
            self.signal();
        }
        has_begun
    }

    /// Signals a write to the owner.
    pub(crate) fn signal(&self) {
        if self.slot.must_signal() {
            self.notifier.notify(self.index);
        }
    }

    /// Uses the buffer until the attachment, and every region made from it, is dropped.
    pub(crate) fn attach(self: &Arc<Self>) -> Result<LoopAttachment, DeviceError> {
        if self.notifier.is_gone() {
            return Err(DeviceError::PeerGone);
        }
        let mapping = self.memory.as_ref().map_err(|error| error.clone())?;
        if !self.begin_use() {
            return Err(UNKNOWN);
        }
        mapping.charge();
        let region = mapping.leased(UseGuard(Arc::clone(self)));
        Ok(LoopAttachment {
            region,
            target: Arc::clone(self),
        })
    }
}

/// A use of a buffer that has begun.
#[derive(Debug)]
struct UseGuard(Arc<Target>);

impl Drop for UseGuard {
    fn drop(&mut self) {
        self.0.slot.end_use();
        // As at the end of `Target::begin_use`.
        self.0.signal();
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
        if self.target.notifier.is_gone() {
            return Err(SubmitError::PeerGone);
        }
        self.target.signal();
        Ok(())
    }
}

/// The buffers of all peers by token.
#[derive(Debug, Default)]
pub(crate) struct Tokens(RwLock<TokenTable>);

#[derive(Debug, Default)]
struct TokenTable {
    known: HashMap<DmbToken, TokenState>,
    /// Those of ended peers, the oldest first.
    gone: VecDeque<DmbToken>,
}

#[derive(Debug)]
enum TokenState {
    Buffer(Arc<Target>),
    /// The peer of the buffer has ended.
    PeerGone,
}

impl Tokens {
    /// Looks a token of a peer up. What is done with the buffer is done without the lock: copying
    /// can take long, and drains wait for it.
    pub(crate) fn find(&self, peer: Gid, token: DmbToken) -> Result<Arc<Target>, SubmitError> {
        match self.read().known.get(&token) {
            Some(TokenState::Buffer(target)) if target.notifier.peer == peer => {
                Ok(Arc::clone(target))
            }
            Some(TokenState::PeerGone) => Err(SubmitError::PeerGone),
            _ => Err(SubmitError::UnknownToken),
        }
    }

    /// Removes all tokens.
    pub(crate) fn clear(&self) {
        *self.write() = TokenTable::default();
    }

    fn read(&self) -> RwLockReadGuard<'_, TokenTable> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, TokenTable> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a buffer; false if the token is in use, which only a malicious peer causes.
    fn insert(&self, token: DmbToken, target: Arc<Target>) -> bool {
        let mut table = self.write();
        let inserted = table.known.try_insert(token, TokenState::Buffer(target));
        inserted.is_ok()
    }

    fn remove(&self, token: DmbToken) {
        self.write().known.remove(&token);
    }

    /// Replaces a buffer of an ended peer by a tombstone. Of these the oldest are removed.
    fn mark_gone(&self, token: DmbToken) {
        let mut table = self.write();
        let replaced = table.known.insert(token, TokenState::PeerGone);
        table.gone.push_back(token);
        if table.gone.len() > MAX_TOMBSTONES {
            let oldest = table.gone.pop_front();
            if let Some(Entry::Occupied(entry)) = oldest.map(|token| table.known.entry(token)) {
                if matches!(entry.get(), TokenState::PeerGone) {
                    entry.remove();
                }
            }
        }
        drop(table);
        drop(replaced);
    }
}

/// The buffers of one peer.
#[derive(Debug)]
pub(crate) struct PeerBuffers {
    pub(crate) notifier: Arc<Notifier>,
    tokens: Arc<Tokens>,
    released: Arc<Released>,
    buffers: HashMap<u32, Buffer>,
    /// Pages of slots that were read, with their charge if the memory limit allowed it.
    pages: HashMap<u32, Option<Charge>>,
    /// How many of these are not charged.
    pages_over: usize,
    account: MemoryAccount,
}

/// Memory of the peer, mapped while it may be used again.
#[derive(Debug)]
pub(crate) struct Buffer {
    number: u64,
    memory: Result<Arc<Mapping>, DeviceError>,
    /// The registration that the local table of tokens has.
    known: Option<(DmbToken, u64)>,
    /// Has the owner drop memory that could not be mapped here.
    _unusable: Option<Unusable>,
}

/// The buffers of an ended peer.
#[derive(Debug)]
pub(crate) struct EndedBuffers {
    tokens: Arc<Tokens>,
    left: IntoIter<u32, Buffer>,
}

impl EndedBuffers {
    /// Removes a buffer. Returns the length of its memory; `None` if there is none left.
    pub(crate) fn remove_one(&mut self) -> Option<usize> {
        let (_, buffer) = self.left.next()?;
        if let Some((token, _)) = buffer.known {
            self.tokens.mark_gone(token);
        }
        Some(buffer.memory.map_or(0, |mapping| mapping.len()))
    }
}

/// The mark of a slot without memory, which lasts until other memory is behind the slot.
#[derive(Debug)]
struct Unusable(Slot);

impl Unusable {
    fn new(slot: Slot) -> Self {
        slot.set_unusable();
        Self(slot)
    }
}

impl Drop for Unusable {
    fn drop(&mut self) {
        self.0.clear_unusable();
    }
}

impl PeerBuffers {
    pub(crate) fn new(
        notifier: Arc<Notifier>,
        tokens: Arc<Tokens>,
        released: Arc<Released>,
        account: &MemoryAccount,
    ) -> Self {
        Self {
            notifier,
            tokens,
            released,
            buffers: HashMap::new(),
            pages: HashMap::new(),
            pages_over: 0,
            account: account.clone(),
        }
    }

    /// Adds memory that the peer has put behind a slot.
    pub(crate) fn install(
        &mut self,
        index: u32,
        number: u64,
        memory: Result<Arc<Mapping>, DeviceError>,
    ) {
        drop(self.remove_memory(index));
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
        let slot = match &memory {
            Ok(_) => None,
            Err(_) => self.notifier.signal_page.slot(index).ok(),
        };
        self.buffers.insert(
            index,
            Buffer {
                number,
                memory,
                known: None,
                _unusable: slot.map(Unusable::new),
            },
        );
        self.refresh_slot(index);
    }

    /// Slots of this page may be read from now on, which makes it resident.
    fn charge_page(&mut self, page: u32) -> Result<(), DeviceError> {
        if let Entry::Vacant(entry) = self.pages.entry(page) {
            entry.insert(Some(self.account.charge(PAGE_CHARGE)?));
        }
        Ok(())
    }

    /// Scans changed slots of the peer's signal page, about so many.
    pub(crate) fn scan(&mut self, most: usize) -> Taken {
        // The signal page is behind an `Arc` of its own, so that the closure may change `self`.
        let notifier = Arc::clone(&self.notifier);
        notifier
            .signal_page
            .take_changed(most, |index| self.refresh_slot(index))
    }

    /// Gives all buffers up, after the end of the peer and of its notifier: that is what their
    /// tokens answer with until they are removed, by further drains.
    pub(crate) fn mark_gone(&mut self) {
        self.released.add_ended(EndedBuffers {
            tokens: Arc::clone(&self.tokens),
            left: std::mem::take(&mut self.buffers).into_iter(),
        });
    }

    fn refresh_slot(&mut self, index: u32) {
        // First, as the peer can mark all slots, and each page that is read takes memory.
        let Some(buffer) = self.buffers.get_mut(&index) else {
            return;
        };
        // `None`: the owner is at it and will mark the slot again; else the index is out of range,
        // which `take_changed` and messages cannot give.
        let Ok(slot) = self.notifier.signal_page.slot(index) else {
            return;
        };
        let Some(SlotState {
            registration,
            token,
            memory,
        }) = slot.state()
        else {
            return;
        };
        if buffer.number != memory {
            let removed = self.remove_memory(index);
            if let Some(mapping) = removed.and_then(|buffer| buffer.memory.ok()) {
                self.released.add_mapping(mapping);
            }
            return;
        }
        if buffer.known.is_some_and(|(_, known)| known == registration) {
            return;
        }
        if let Some((token, _)) = buffer.known.take() {
            self.tokens.remove(token);
        }
        if registration == 0 || token == 0 {
            return;
        }
        let token = DmbToken(token);
        let target = Target {
            notifier: Arc::clone(&self.notifier),
            index,
            registration,
            slot,
            memory: buffer.memory.clone(),
        };
        if self.tokens.insert(token, Arc::new(target)) {
            buffer.known = Some((token, registration));
        }
    }

    /// Takes the memory from behind a slot.
    pub(crate) fn remove_memory(&mut self, index: u32) -> Option<Buffer> {
        let removed = self.buffers.remove(&index)?;
        if let Some((token, _)) = removed.known {
            self.tokens.remove(token);
        }
        Some(removed)
    }
}

/// There is no buffer with this token for this device.
pub(crate) const UNKNOWN: DeviceError = DeviceError::Invalid("no such buffer for this device");

/// What one page of slots is charged as: the page, and less than 448 bytes for each buffer.
const PAGE_CHARGE: usize = 32 << 10;

/// Pages of slots of a peer that are read although the memory limit leaves nothing for them.
const MAX_PAGES_OVER: usize = 16;

/// Approximate upper limit of tombstones: tokens of ended peers.
const MAX_TOMBSTONES: usize = 4096;
