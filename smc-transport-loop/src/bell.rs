//! The bell: a page of shared words through which two devices tell each other what happened.
//!
//! Every device makes one bell per peer; it *owns* that bell and the buffers it describes, and the
//! peer rings it:
//!
//! ```text
//! 0x0000  sleeping      owner: 1 before it parks;         ringer: 0 when it rings the doorbell
//! 0x0040  looked        owner: 1 when it asks to look;    ringer: 0 before it looks
//! 0x0080  ready, 4 words of summary      set by the ringer, taken by the owner
//! 0x00c0  fresh, 4 words of summary      set by the owner, taken by the ringer
//! 0x1000  ready, 256 words, one bit per buffer
//! 0x1800  fresh, 256 words, one bit per buffer
//! 0x2000  slots, one cache line per buffer:
//!    +0   want          owner: 1 to hear of the next signal;  ringer: 0 when it sets the ready bit
//!                       (of a buffer that was dropped: of the end of a use)
//!    +8   users         ringer: how many uses of the buffer are under way
//!    +16  live          owner: number of the registration, 0 if the buffer may not be used
//!    +24  token         owner: what the peer's program calls the buffer
//!    +32  memory        owner: number of the memory behind the slot, 0 if there is none
//! ```
//!
//! Either side can write anything anywhere. The owner therefore believes the words of the ringer
//! only as far as they concern buffers of that ringer: a ready bit is a hint to look at a buffer,
//! `users` says when the owner may use memory again *for the same peer*. Numbers are checked
//! against private tables before they mean anything.
//!
//! Five places need that one of two sides sees what the other just wrote. Each side writes its word
//! and reads the other's word. For *data, want* and *users, want* ([`Slot::must_signal`]) and for
//! *live, users* ([`Slot::begin_use`]) it passes a sequentially consistent fence between the two; for *ready bits,
//! sleeping* ([`Bell::set_ready`]) and *fresh bits, looked* ([`Bell::ask_to_look`]) the accesses
//! themselves are sequentially consistent. The crate's `models` try them all.

use smc_core::mem::sync::{AtomicU64, Ordering, fence};
use smc_core::mem::{OutOfBounds, Region};

use crate::region::Line;

/// Buffers that one bell can describe. A model looks at one summary word, not at four.
pub(crate) const SLOTS: u32 = if cfg!(smc_loom) { 4096 } else { 16_384 };

/// Slots on a page of 4 KiB, the smallest there is.
pub(crate) const SLOTS_PER_PAGE: u32 = 64;

/// Length of a bell in bytes; most of it is never touched and takes no memory.
pub(crate) const LEN: usize = SLOT_BASE + SLOTS as usize * SLOT_LEN;

/// One side's view of a bell.
#[derive(Debug)]
pub(crate) struct Bell {
    region: Region,
    sleeping: Line,
    looked: Line,
}

impl Bell {
    /// Looks at a region of [`LEN`] bytes as a bell.
    pub(crate) fn new(region: Region) -> Result<Self, OutOfBounds> {
        region.word(LEN - 8)?;
        Ok(Self {
            sleeping: Line::new(&region, SLEEPING)?,
            looked: Line::new(&region, LOOKED)?,
            region,
        })
    }

    /// Owner: asks for the doorbell from now on. A fence and a look have to follow.
    pub(crate) fn sleep(&self) {
        self.sleeping[0].store(1, Ordering::SeqCst);
    }

    /// Owner: is awake and will look by itself.
    pub(crate) fn wake(&self) {
        self.sleeping[0].store(0, Ordering::Relaxed);
    }

    /// Owner: whether the next signal rings the doorbell.
    pub(crate) fn is_asleep(&self) -> bool {
        self.sleeping[0].load(Ordering::SeqCst) != 0
    }

    /// Ringer: marks a buffer as written. True if the doorbell has to be rung.
    pub(crate) fn set_ready(&self, index: u32) -> bool {
        self.set(READY, index);
        self.sleeping[0].swap(0, Ordering::SeqCst) == 1
    }

    /// Ringer: as [`Bell::set_ready`], interrupted before it looks whether the owner sleeps.
    #[cfg(test)]
    pub(crate) fn begin_set_ready(&self, index: u32) -> impl FnOnce() -> bool + '_ {
        self.set(READY, index);
        || self.sleeping[0].swap(0, Ordering::SeqCst) == 1
    }

    /// Owner: hands the buffers written since the last time to `each`; false if there are none.
    pub(crate) fn take_ready(&self, each: impl FnMut(u32)) -> bool {
        self.take(READY, each)
    }

    /// Owner: marks a slot as changed.
    pub(crate) fn set_fresh(&self, index: u32) {
        self.set(FRESH, index);
    }

    /// Owner: whether the ringer has to be told that slots changed (or was told already).
    pub(crate) fn ask_to_look(&self) -> bool {
        self.looked[0].swap(1, Ordering::SeqCst) == 0
    }

    /// Ringer: hands the slots that changed since the last time to `each`.
    pub(crate) fn take_fresh(&self, each: impl FnMut(u32)) -> bool {
        self.looked[0].store(0, Ordering::SeqCst);
        self.take(FRESH, each)
    }

    /// The words of one buffer.
    pub(crate) fn slot(&self, index: u32) -> Result<Slot, OutOfBounds> {
        Ok(Slot(Line::new(
            &self.region,
            SLOT_BASE + index as usize * SLOT_LEN,
        )?))
    }

    /// Sets a bit, then its bit in the summary.
    fn set(&self, set: BitSet, index: u32) {
        let (word, bit) = (index as usize / 64, index % 64);
        let (group, group_bit) = (word / 64, word % 64);
        self.word(set.bits + word * 8)
            .fetch_or(1 << bit, Ordering::SeqCst);
        self.word(set.summary + group * 8)
            .fetch_or(1 << group_bit, Ordering::SeqCst);
    }

    /// Takes summary bits, then the bits under them: whoever sets a bit that was just passed sets
    /// its summary bit afterwards, so the next call finds it.
    fn take(&self, set: BitSet, mut each: impl FnMut(u32)) -> bool {
        let mut any = false;
        for group in 0..WORDS / 64 {
            let summary = self.word(set.summary + group * 8);
            if summary.load(Ordering::SeqCst) == 0 {
                continue;
            }
            for word in ones(summary.swap(0, Ordering::SeqCst)) {
                let word = group * 64 + word as usize;
                for bit in ones(self.word(set.bits + word * 8).swap(0, Ordering::SeqCst)) {
                    any = true;
                    each(u32::try_from(word * 64).expect("a bell has 256 words") + bit);
                }
            }
        }
        any
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.region
            .word(at)
            .expect("`new` checked the length; offsets are multiples of 8")
    }
}

/// The words of one buffer.
#[derive(Debug)]
pub(crate) struct Slot(Line);

/// What the owner says about a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Notice {
    /// Number of the registration; 0 if there is none.
    pub(crate) live: u64,
    pub(crate) token: u64,
    /// Number of the memory.
    pub(crate) memory: u64,
}

impl Slot {
    /// Owner: offers the slot to the ringer.
    pub(crate) fn publish(&self, notice: Notice) {
        self.0[WANT].store(0, Ordering::Relaxed);
        self.0[MEMORY].store(notice.memory, Ordering::Relaxed);
        self.0[TOKEN].store(notice.token, Ordering::Relaxed);
        self.0[LIVE].store(notice.live, Ordering::SeqCst);
    }

    /// Owner: no use of the buffer may begin any more.
    pub(crate) fn withdraw(&self) {
        self.0[LIVE].store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Owner: the memory behind the slot is no longer offered.
    pub(crate) fn retire(&self) {
        self.0[MEMORY].store(0, Ordering::SeqCst);
    }

    /// Owner: whether the ringer still uses a buffer that was withdrawn.
    pub(crate) fn is_used(&self) -> bool {
        self.0[USERS].load(Ordering::SeqCst) != 0
    }

    /// Owner: asks to hear of the next signal. A look at the buffer has to follow.
    pub(crate) fn arm(&self) {
        self.0[WANT].store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Ringer: after a write, whether the owner wants to hear of it.
    #[inline]
    pub(crate) fn must_signal(&self) -> bool {
        fence(Ordering::SeqCst);
        self.0[WANT].load(Ordering::Relaxed) != 0 && self.0[WANT].swap(0, Ordering::SeqCst) != 0
    }

    /// Ringer: starts using the buffer; false if this registration is over. Only a use that has
    /// begun is ended.
    pub(crate) fn begin_use(&self, live: u64) -> bool {
        self.0[USERS].fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let is_live = self.0[LIVE].load(Ordering::SeqCst) == live;
        if !is_live {
            self.end_use();
        }
        is_live
    }

    /// Ringer: starts a use whatever the registration, so that the owner does not use the memory
    /// again before it is ended.
    pub(crate) fn hold(&self) {
        self.0[USERS].fetch_add(1, Ordering::SeqCst);
    }

    /// Ringer: whether a registration is not over.
    pub(crate) fn is_live(&self, live: u64) -> bool {
        self.0[LIVE].load(Ordering::Relaxed) == live
    }

    /// Ringer: all accesses of a use are over.
    pub(crate) fn end_use(&self) {
        self.0[USERS].fetch_sub(1, Ordering::SeqCst);
    }

    /// Ringer: what the owner says, in one piece. `None` while it is changing; the owner marks the
    /// slot as fresh again afterwards.
    pub(crate) fn notice(&self) -> Option<Notice> {
        let live = self.0[LIVE].load(Ordering::Acquire);
        let token = self.0[TOKEN].load(Ordering::Relaxed);
        let memory = self.0[MEMORY].load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        let same = self.0[LIVE].load(Ordering::Relaxed) == live;
        same.then_some(Notice {
            live,
            token,
            memory,
        })
    }
}

#[derive(Clone, Copy, Debug)]
struct BitSet {
    summary: usize,
    bits: usize,
}

/// Positions of the bits that are set.
fn ones(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

const SLEEPING: usize = 0x0000;
const LOOKED: usize = 0x0040;
const READY: BitSet = BitSet {
    summary: 0x0080,
    bits: 0x1000,
};
const FRESH: BitSet = BitSet {
    summary: 0x00c0,
    bits: 0x1800,
};
const SLOT_BASE: usize = 0x2000;
const SLOT_LEN: usize = 64;
/// Words of a bit set.
const WORDS: usize = SLOTS as usize / 64;

/// Words of a slot.
const WANT: usize = 0;
const USERS: usize = 1;
const LIVE: usize = 2;
const TOKEN: usize = 3;
const MEMORY: usize = 4;

#[cfg(test)]
mod tests;
