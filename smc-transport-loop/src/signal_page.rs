//! The signal page: shared words by which two devices signal writes and changes of buffers.
//!
//! Each device makes one signal page per peer. It is the *owner* of the page and of the buffers in
//! its slots. The peer is the *writer* of these buffers:
//!
//! ```text
//! 0x0000  sleeping        owner: 1 before it parks;           writer: 0 when it rings the doorbell
//! 0x0040  scan requested  owner: 1 when slots have changed;   writer: 0 before it scans
//! 0x0080  ready, 4 words of summary        set by the writer, taken by the owner
//! 0x00c0  changed, 4 words of summary      set by the owner, taken by the writer
//! 0x1000  ready, 256 words, one bit per buffer
//! 0x1800  changed, 256 words, one bit per buffer
//! 0x2000  slots, one cache line per buffer:
//!    +0   armed         owner: 1 to request the next signal;  writer: 0 when it sets the ready bit
//!                       (of a dropped buffer: the signal of the end of a use)
//!    +8   users         writer: number of current uses of the buffer; the highest bit is 1 if it
//!                       has no use of the memory, as it could not map it
//!    +16  registration  owner: number of the registration, 0 if the buffer may not be used
//!    +24  token         owner: DMB token of the buffer
//!    +32  memory        owner: number of the memory behind the slot, 0 if there is none
//! ```
//!
//! Either side can write any bytes anywhere. The owner therefore uses the words of the writer only
//! for buffers of that writer: a ready bit is a hint to poll a buffer, `users` is zero when the
//! owner may reuse memory *for the same peer*. Numbers are checked against private tables before
//! use.
//!
//! Five pairs of words need that one of two sides reads what the other just wrote. Each side writes
//! its word and reads the other's word. *data, armed* and *users, armed* ([`Slot::must_signal`])
//! are [`WakeFlag`]s. For *registration, users* ([`Slot::begin_use`]) a sequentially consistent
//! fence is between the two; for *ready bits, sleeping* ([`SignalPage::set_ready`]) and *changed
//! bits, scan requested* ([`SignalPage::request_scan`]) the accesses themselves are sequentially
//! consistent. The crate's `models` test all of them.

use smc_core::mem::sync::{Ordering, fence};
use smc_core::mem::{BitSet, OutOfBounds, Region, Taken, WakeFlag};

use crate::region::Line;

/// Buffers that one signal page can describe. A model uses one summary word, not four.
pub(crate) const SLOTS: u32 = if cfg!(smc_loom) { 4096 } else { 16_384 };

/// Slots on a page of 4 KiB, the smallest there is.
pub(crate) const SLOTS_PER_PAGE: u32 = 64;

/// Length of a signal page in bytes; most of it is never touched and takes no memory.
pub(crate) const LEN: usize = SLOT_BASE + SLOTS as usize * SLOT_LEN;

/// One side's view of a signal page.
#[derive(Debug)]
pub(crate) struct SignalPage {
    region: Region,
    sleeping: Line,
    scan_requested: Line,
}

impl SignalPage {
    /// A signal page in a region of [`LEN`] bytes.
    pub(crate) fn new(region: Region) -> Result<Self, OutOfBounds> {
        region.word(LEN - 8)?;
        Ok(Self {
            sleeping: Line::new(&region, SLEEPING)?,
            scan_requested: Line::new(&region, SCAN_REQUESTED)?,
            region,
        })
    }

    /// Owner: requests the doorbell from now on. A fence and a poll have to follow.
    pub(crate) fn set_sleeping(&self) {
        self.sleeping[0].store(1, Ordering::SeqCst);
    }

    /// Owner: is awake and polls by itself.
    pub(crate) fn clear_sleeping(&self) {
        self.sleeping[0].store(0, Ordering::Relaxed);
    }

    /// Owner: whether the next signal rings the doorbell.
    pub(crate) fn is_sleeping(&self) -> bool {
        self.sleeping[0].load(Ordering::SeqCst) != 0
    }

    /// Writer: marks a buffer as written. True if the doorbell has to be rung.
    pub(crate) fn set_ready(&self, index: u32) -> bool {
        self.bits(READY).set(index);
        self.sleeping[0].swap(0, Ordering::SeqCst) == 1
    }

    /// Writer: as [`SignalPage::set_ready`], interrupted before it reads whether the owner sleeps.
    #[cfg(test)]
    pub(crate) fn begin_set_ready(&self, index: u32) -> impl FnOnce() -> bool + '_ {
        self.bits(READY).set(index);
        || self.sleeping[0].swap(0, Ordering::SeqCst) == 1
    }

    /// Owner: hands the buffers written since the last time to `each`; false if there are none.
    pub(crate) fn take_ready(&self, each: impl FnMut(u32)) -> bool {
        self.bits(READY).take(each)
    }

    /// Owner: marks a slot as changed.
    pub(crate) fn set_changed(&self, index: u32) {
        self.bits(CHANGED).set(index);
    }

    /// Owner: requests a scan of changed slots; true if the writer has to be notified.
    pub(crate) fn request_scan(&self) -> bool {
        self.scan_requested[0].swap(1, Ordering::SeqCst) == 0
    }

    /// Writer: hands slots that changed since the last time to `each`, about so many.
    pub(crate) fn take_changed(&self, most: usize, each: impl FnMut(u32)) -> Taken {
        self.scan_requested[0].store(0, Ordering::SeqCst);
        self.bits(CHANGED).take_some(most, each)
    }

    /// The words of one buffer.
    pub(crate) fn slot(&self, index: u32) -> Result<Slot, OutOfBounds> {
        Ok(Slot(Line::new(
            &self.region,
            SLOT_BASE + index as usize * SLOT_LEN,
        )?))
    }

    fn bits(&self, set: Bits) -> BitSet<'_> {
        let bits = BitSet::new(&self.region, set.summary, set.bits, SLOTS);
        bits.expect("`new` checked the length; offsets are multiples of 8")
    }
}

/// The words of one buffer.
#[derive(Debug)]
pub(crate) struct Slot(Line);

/// The owner's words of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotState {
    /// Number of the registration; 0 if there is none.
    pub(crate) registration: u64,
    pub(crate) token: u64,
    /// Number of the memory.
    pub(crate) memory: u64,
}

impl Slot {
    /// Owner: offers the slot to the writer.
    pub(crate) fn publish(&self, state: SlotState) {
        self.wake_flag().clear();
        self.0[MEMORY].store(state.memory, Ordering::Relaxed);
        self.0[TOKEN].store(state.token, Ordering::Relaxed);
        self.0[REGISTRATION].store(state.registration, Ordering::SeqCst);
    }

    /// Owner: no use of the buffer may begin any more, and the end of one is not signalled unless
    /// the slot is armed again.
    pub(crate) fn withdraw(&self) {
        self.wake_flag().clear();
        self.0[REGISTRATION].store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Owner: the memory behind the slot is no longer offered.
    pub(crate) fn clear_memory(&self) {
        self.0[MEMORY].store(0, Ordering::SeqCst);
    }

    /// Owner: whether the writer still uses a buffer that was withdrawn.
    pub(crate) fn is_used(&self) -> bool {
        self.0[USERS].load(Ordering::SeqCst) != 0
    }

    /// Owner: whether the writer can never use the memory behind the slot.
    pub(crate) fn is_unusable(&self) -> bool {
        self.0[USERS].load(Ordering::Relaxed) & UNUSABLE != 0
    }

    /// Owner: requests the next signal. A poll of the buffer has to follow.
    pub(crate) fn arm(&self) {
        self.wake_flag().arm();
    }

    /// Writer: after a write, whether the owner has requested a signal.
    #[inline]
    pub(crate) fn must_signal(&self) -> bool {
        self.wake_flag().must_wake()
    }

    #[inline]
    fn wake_flag(&self) -> WakeFlag<'_> {
        WakeFlag::new(&self.0[ARMED])
    }

    /// Writer: starts using the buffer; false if this registration has ended. Only a use that has
    /// begun is ended.
    pub(crate) fn begin_use(&self, registration: u64) -> bool {
        self.0[USERS].fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let is_live = self.0[REGISTRATION].load(Ordering::SeqCst) == registration;
        if !is_live {
            self.end_use();
        }
        is_live
    }

    /// Writer: the memory behind the slot could not be mapped. It counts as in use.
    pub(crate) fn set_unusable(&self) {
        self.0[USERS].fetch_or(UNUSABLE, Ordering::SeqCst);
    }

    /// Writer: other memory is going to be behind the slot.
    pub(crate) fn clear_unusable(&self) {
        self.0[USERS].fetch_and(!UNUSABLE, Ordering::SeqCst);
    }

    /// Writer: whether a registration has not ended.
    pub(crate) fn is_live(&self, registration: u64) -> bool {
        self.0[REGISTRATION].load(Ordering::Relaxed) == registration
    }

    /// Writer: all accesses of a use have ended.
    pub(crate) fn end_use(&self) {
        self.0[USERS].fetch_sub(1, Ordering::SeqCst);
    }

    /// Writer: the owner's words, in one piece. `None` while they change; the owner marks the
    /// slot as fresh again afterwards.
    pub(crate) fn state(&self) -> Option<SlotState> {
        let registration = self.0[REGISTRATION].load(Ordering::Acquire);
        let token = self.0[TOKEN].load(Ordering::Relaxed);
        let memory = self.0[MEMORY].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = self.0[REGISTRATION].load(Ordering::Relaxed) == registration;
        same.then_some(SlotState {
            registration,
            token,
            memory,
        })
    }
}

/// Byte offsets of a [`BitSet`].
#[derive(Clone, Copy, Debug)]
struct Bits {
    summary: usize,
    bits: usize,
}

const SLEEPING: usize = 0x0000;
const SCAN_REQUESTED: usize = 0x0040;
const READY: Bits = Bits {
    summary: 0x0080,
    bits: 0x1000,
};
const CHANGED: Bits = Bits {
    summary: 0x00c0,
    bits: 0x1800,
};
const SLOT_BASE: usize = 0x2000;
const SLOT_LEN: usize = 64;

/// Words of a slot.
const ARMED: usize = 0;
const USERS: usize = 1;
const REGISTRATION: usize = 2;
const TOKEN: usize = 3;
const MEMORY: usize = 4;

/// In the word `users`.
const UNUSABLE: u64 = 1 << 63;

#[cfg(test)]
mod tests;
