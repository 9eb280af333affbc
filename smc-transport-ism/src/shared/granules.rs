//! Granules: the allocation of buffers, and their users.
//!
//! A buffer is a run of 2^n granules that begins at a multiple of its length. There is no lock and
//! no free list: each granule has a word that names its owner, changed by compare and swap. A
//! device that ends during an allocation leaves granules with its tag, which any device may
//! reclaim once the tag is known to be dead. Memory that a peer may still write is not reclaimed
//! before that peer has ended its use, or is dead itself.
//!
//! A writer marks a buffer as used in one of two words. A move takes the *write lock*, if it is
//! free, and releases it by a plain store: this is the fast path without contention. A second move
//! at the same time does not wait for the lock. It increments the count of *users*, and so does a
//! use that lasts longer.
//!
//! One pair of accesses requires that at least one of two sides sees the store of the other: *write
//! lock or users* and *token*. The writer takes the lock or increments the count, and then checks
//! that the buffer and its owner are still valid. The owner clears the token, or a device marks the
//! owner as dead, and then that device checks lock and users. All of these accesses are
//! sequentially consistent. The crate's `models` verify them.

use std::any::Any;
use std::io::IoSlice;
use std::ops::Range;

use hashbrown::HashMap;
use smc_core::device::{DeviceError, SubmitError};
use smc_core::mem::sync::Ordering;
use smc_core::mem::{Region, WakeFlag};
use smc_wire::types::{DmbToken, Gid};

use super::layout::{GRANULE, granule};
use super::slots::Tag;
use super::{FabricMemory, MIX};
use crate::region::{Words, words};

/// A run of granules: the memory of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct GranuleRun {
    pub(crate) first: u32,
    /// The run has 2^order granules.
    pub(crate) order: u8,
}

impl GranuleRun {
    /// Length in bytes.
    pub(crate) fn len(self) -> usize {
        GRANULE << self.order
    }

    fn granules(self) -> Range<u32> {
        self.first..self.first + (1 << self.order)
    }
}

/// The owner of a granule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Without owner. Its bytes are zero unless it was used before.
    Free { used: bool },
    /// Part of a run of 2^order granules of a device.
    Taken { owner: Tag, order: u8 },
}

impl Claim {
    fn to_word(self) -> u64 {
        match self {
            Self::Free { used: false } => 0,
            Self::Free { used: true } => USED,
            Self::Taken { owner, order } => owner.bits() | u64::from(order) << 8 | TAKEN,
        }
    }

    /// `None` for an invalid word: such memory is never allocated.
    fn of_word(word: u64) -> Option<Self> {
        let order = (word >> 8 & 0xff).try_into().ok()?;
        match word & 0xff {
            0 if word == 0 => Some(Self::Free { used: false }),
            USED if word == USED => Some(Self::Free { used: true }),
            TAKEN if order <= MAX_ORDER => Some(Self::Taken {
                owner: Tag::of_bits(word),
                order,
            }),
            _ => None,
        }
    }
}

impl FabricMemory {
    /// Allocates a run of granules and zeroes those used before. `None` if there is no free run.
    ///
    /// The search for short runs begins at the end and the search for long ones at the start, which
    /// reduces fragmentation.
    pub(crate) fn allocate(&self, owner: Tag, order: u8) -> Option<GranuleRun> {
        let step = 1_u32.checked_shl(order.into())?;
        let runs = self.granules() / step;
        (0..runs).find_map(|run| {
            let run = if order < SHORT { runs - 1 - run } else { run };
            let run = GranuleRun {
                first: run * step,
                order,
            };
            self.claim_run(owner, run).then_some(run)
        })
    }

    fn claim_run(&self, owner: Tag, run: GranuleRun) -> bool {
        let taken = Claim::Taken {
            owner,
            order: run.order,
        };
        let is_free = |index| matches!(self.claim(index), Some(Claim::Free { .. }));
        if !run.granules().all(is_free) {
            return false;
        }
        for index in run.granules() {
            let Some(used) = self.claim_granule(index, taken) else {
                // Another device was faster. The granules taken so far may be zeroed or not.
                for index in run.first..index {
                    self.swap_claim(index, taken, Claim::Free { used: true });
                }
                return false;
            };
            if used {
                let zeroed = self.all.zero(self.layout.data(index), GRANULE);
                debug_assert!(zeroed.is_ok(), "granules are inside of the memory");
            }
        }
        self.granule(run.first)[granule::TOKEN].store(0, Ordering::SeqCst);
        true
    }

    /// Takes one granule; returns whether it was used before. `None` if it has an owner.
    fn claim_granule(&self, index: u32, taken: Claim) -> Option<bool> {
        match self.claim(index) {
            Some(free @ Claim::Free { used }) => {
                self.swap_claim(index, free, taken).then_some(used)
            }
            _ => None,
        }
    }

    /// Releases a run that has no user.
    pub(crate) fn release(&self, owner: Tag, run: GranuleRun) {
        let taken = Claim::Taken {
            owner,
            order: run.order,
        };
        for index in run.granules() {
            // A word of another value was overwritten by another process, and is left as it is.
            self.swap_claim(index, taken, Claim::Free { used: true });
        }
    }

    /// Reclaims those of these granules that belong to dead devices, except to `own`. Calls
    /// `is_known_dead` once per device of which the memory does not state that it is dead.
    pub(crate) fn sweep(
        &self,
        granules: Range<u32>,
        own: Tag,
        mut is_known_dead: impl FnMut(Tag) -> bool,
    ) -> u32 {
        // One for each slot: of all the generations that the memory can name, one is not dead.
        let mut known: HashMap<u16, (Tag, bool)> = HashMap::new();
        let mut freed = 0;
        for index in granules {
            let Some(claim @ Claim::Taken { owner, order }) = self.claim(index) else {
                continue;
            };
            if owner == own {
                continue;
            }
            let dead = self.is_dead(owner)
                || match known.get(&owner.slot) {
                    Some((device, dead)) if *device == owner => *dead,
                    _ => {
                        let dead = is_known_dead(owner);
                        known.insert(owner.slot, (owner, dead));
                        dead
                    }
                };
            let first = index & !((1 << order) - 1);
            if dead
                && !self.is_used(first)
                && self.swap_claim(index, claim, Claim::Free { used: true })
            {
                freed += 1;
            }
        }
        freed
    }

    /// Offers the buffer of a run to one writer. Returns its token.
    pub(crate) fn offer(&self, run: GranuleRun, writer: Tag) -> Result<DmbToken, DeviceError> {
        let token = loop {
            let token = token_of(run.first, crate::random::word()?);
            if token.0 != 0 {
                break token;
            }
        };
        let words = self.granule(run.first);
        wake_flag(&words).clear();
        words[granule::WRITER].store(writer.bits(), Ordering::Relaxed);
        words[granule::TOKEN].store(token.0, Ordering::SeqCst);
        Ok(token)
    }

    /// Clears the token: no use of the buffer can begin afterwards.
    pub(crate) fn withdraw(&self, run: GranuleRun) {
        self.granule(run.first)[granule::TOKEN].store(0, Ordering::SeqCst);
        seqcst_fence_for_loom();
    }

    /// Whether a writer that is not dead uses the buffer that begins here.
    pub(crate) fn is_used(&self, first: u32) -> bool {
        let words = self.granule(first);
        [granule::USERS, granule::WRITE_LOCK]
            .into_iter()
            .any(|word| {
                let users = words[word].load(Ordering::SeqCst);
                users & COUNT != 0 && !self.is_dead(Tag::of_bits(users))
            })
    }

    /// Owner: requests the next signal. The caller has to poll the buffer afterwards.
    pub(crate) fn arm(&self, run: GranuleRun) {
        wake_flag(&self.granule(run.first)).arm();
    }

    /// Writer: after a write, whether the owner has to be signalled.
    #[inline]
    pub(crate) fn must_signal(&self, first: u32) -> bool {
        wake_flag(&self.granule(first)).must_wake()
    }

    /// Writer: after a use has ended, whether the owner has to be signalled. The word stays set:
    /// the memory may belong to another buffer already.
    pub(crate) fn is_armed(&self, first: u32) -> bool {
        wake_flag(&self.granule(first)).is_armed()
    }

    /// Whether a buffer of a live device is still registered for this writer.
    pub(crate) fn is_registered(&self, owner: Gid, token: DmbToken, writer: Tag) -> bool {
        let offered = self.offered(token, writer);
        offered.is_ok_and(|(first, words)| {
            self.look_up(first, words, token)
                .is_ok_and(|target| self.has_gid(target.owner, owner))
        })
    }

    /// Run and owner of a withdrawn buffer of this writer.
    pub(crate) fn withdrawn(&self, token: DmbToken, writer: Tag) -> Option<Target> {
        let first = index_of(token);
        if first >= self.granules() {
            return None;
        }
        let words = self.granule(first);
        let is_withdrawn = words[granule::TOKEN].load(Ordering::SeqCst) == 0
            && words[granule::WRITER].load(Ordering::Relaxed) == writer.bits();
        match self.claim(first)? {
            Claim::Taken { owner, order } if is_withdrawn && self.is_live(owner) => Some(Target {
                run: GranuleRun { first, order },
                owner,
            }),
            _ => None,
        }
    }

    /// Writer: uses the buffer of a token during the call of `then`, which gets the request of the
    /// owner to be signalled as well.
    #[inline]
    pub(crate) fn with_access<T>(
        &self,
        token: DmbToken,
        writer: Tag,
        then: impl FnOnce(Target, WakeFlag<'_>) -> Result<T, SubmitError>,
    ) -> Result<T, SubmitError> {
        let (first, words) = self.offered(token, writer)?;
        let is_locked = self.try_lock(words, writer);
        if !is_locked {
            self.count_in(words, writer)?;
        }
        let done = match self.look_up(first, words, token) {
            Ok(target) => then(target, wake_flag(&words)),
            Err(refused) => Err(refused.into()),
        };
        if is_locked {
            words[granule::WRITE_LOCK].store(0, Ordering::Release);
        } else {
            count_out(words, writer);
        }
        done
    }

    /// Writer: begins to use the buffer of a token. The use has to be ended with
    /// [`FabricMemory::end_use`].
    pub(crate) fn begin_use(&self, token: DmbToken, writer: Tag) -> Result<Target, SubmitError> {
        let (first, words) = self.offered(token, writer)?;
        self.count_in(words, writer)?;
        let found = self.look_up(first, words, token);
        if found.is_err() {
            count_out(words, writer);
        }
        Ok(found?)
    }

    /// Writer: all accesses of a use have ended.
    pub(crate) fn end_use(&self, first: u32, writer: Tag) {
        count_out(self.granule(first), writer);
    }

    /// The first granule of a token's buffer, if it is for this writer. This check comes first, so
    /// that another device cannot mark the buffer as used.
    #[inline]
    fn offered(&self, token: DmbToken, writer: Tag) -> Result<(u32, Words<'_>), Refused> {
        let first = index_of(token);
        if first >= self.granules() {
            return Err(Refused::Unknown);
        }
        let words = self.granule(first);
        let is_registered = words[granule::TOKEN].load(Ordering::SeqCst) == token.0
            && words[granule::WRITER].load(Ordering::Relaxed) == writer.bits();
        if is_registered {
            Ok((first, words))
        } else {
            Err(Refused::Unknown)
        }
    }

    /// Tries to take the write lock, which is free again when the word is 0.
    #[inline]
    fn try_lock(&self, words: Words<'_>, writer: Tag) -> bool {
        let locked = writer.bits() | LOCKED;
        match words[granule::WRITE_LOCK].compare_exchange(
            0,
            locked,
            Ordering::SeqCst,
            Ordering::Relaxed,
        ) {
            Ok(_) => {
                seqcst_fence_for_loom();
                true
            }
            Err(now) => self.take_over_lock(words, now, locked),
        }
    }

    /// Takes over the write lock of a dead writer, if it is one.
    #[cold]
    fn take_over_lock(&self, words: Words<'_>, now: u64, locked: u64) -> bool {
        self.is_dead(Tag::of_bits(now))
            && words[granule::WRITE_LOCK]
                .compare_exchange(now, locked, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// The memory of a run; `lease` is dropped together with the last clone of the region.
    pub(crate) fn region_of<T: Any + Send + Sync>(
        &self,
        run: GranuleRun,
        lease: T,
    ) -> Option<Region> {
        let run = self.all.part(self.layout.data(run.first), run.len());
        Some(run.ok()?.leased(lease))
    }

    /// Writes the slices into the buffer of a run, one behind the other.
    #[inline]
    pub(crate) fn write(
        &self,
        run: GranuleRun,
        at: u32,
        data: &[IoSlice<'_>],
    ) -> Result<(), SubmitError> {
        let at = usize::try_from(at).map_err(|_| SubmitError::OutOfBounds)?;
        let len = match data {
            [one] => one.len(),
            _ => data
                .iter()
                .fold(0, |len: usize, part| len.saturating_add(part.len())),
        };
        if at.saturating_add(len) > run.len() {
            return Err(SubmitError::OutOfBounds);
        }
        self.all
            .copy_in_all(self.layout.data(run.first) + at, data)
            .map_err(|_| SubmitError::OutOfBounds)
    }

    #[inline]
    fn look_up(&self, first: u32, words: Words<'_>, token: DmbToken) -> Result<Target, Refused> {
        if words[granule::TOKEN].load(Ordering::SeqCst) != token.0 {
            return Err(Refused::Unknown);
        }
        let claim = Claim::of_word(words[granule::CLAIM].load(Ordering::SeqCst));
        let Some(Claim::Taken { owner, order }) = claim else {
            return Err(Refused::Unknown);
        };
        if !self.is_live(owner) {
            return Err(Refused::Gone);
        }
        let run = GranuleRun { first, order };
        if first % (1 << order) != 0 || run.granules().end > self.granules() {
            return Err(Refused::Unknown);
        }
        Ok(Target { run, owner })
    }

    fn count_in(&self, words: Words<'_>, writer: Tag) -> Result<(), Refused> {
        let users = &words[granule::USERS];
        for _ in 0..COUNT_TRIES {
            let now = users.load(Ordering::Relaxed);
            let next = if now & !COUNT == writer.bits() {
                if now & COUNT == COUNT {
                    return Err(Refused::Busy);
                }
                now + 1
            } else if now & COUNT == 0 || self.is_dead(Tag::of_bits(now)) {
                writer.bits() + 1
            } else {
                // The writer of an earlier buffer is about to detect that the buffer is gone.
                std::hint::spin_loop();
                continue;
            };
            if users
                .compare_exchange(now, next, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                seqcst_fence_for_loom();
                return Ok(());
            }
        }
        Err(Refused::Busy)
    }

    fn claim(&self, index: u32) -> Option<Claim> {
        Claim::of_word(self.granule(index)[granule::CLAIM].load(Ordering::SeqCst))
    }

    fn swap_claim(&self, index: u32, old: Claim, new: Claim) -> bool {
        let word = &self.granule(index)[granule::CLAIM];
        word.compare_exchange(
            old.to_word(),
            new.to_word(),
            Ordering::SeqCst,
            Ordering::SeqCst,
        )
        .is_ok()
    }

    #[inline]
    fn granule(&self, index: u32) -> Words<'_> {
        words(&self.all, self.layout.granule(index))
            .expect("granules of the layout are inside of the memory and multiples of 8")
    }
}

/// A fence for loom, which gives a total order to sequentially consistent fences only, and not to
/// accesses. Outside of models the accesses are ordered without it.
#[inline]
fn seqcst_fence_for_loom() {
    #[cfg(smc_loom)]
    smc_core::mem::sync::fence(Ordering::SeqCst);
}

/// Writer: decrements the count of users.
fn count_out(words: Words<'_>, writer: Tag) {
    let users = &words[granule::USERS];
    let _ = users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
        // Otherwise another process has overwritten it.
        (now & !COUNT == writer.bits() && now & COUNT != 0).then(|| now - 1)
    });
}

/// The request of the owner to be signalled.
#[inline]
fn wake_flag<'a>(words: &'a Words<'_>) -> WakeFlag<'a> {
    WakeFlag::new(&words[granule::ARMED])
}

/// A buffer that is being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) run: GranuleRun,
    pub(crate) owner: Tag,
}

/// Why a buffer cannot be used. Small, so that it stays in registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Unknown,
    Gone,
    Busy,
}

impl From<Refused> for SubmitError {
    #[cold]
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Unknown => Self::UnknownToken,
            Refused::Gone => Self::PeerGone,
            Refused::Busy => Self::WouldBlock,
        }
    }
}

/// A token: 40 random bits, and the granule index masked with them, so that no table is needed.
fn token_of(first: u32, random: u64) -> DmbToken {
    let high = random & !PLACE;
    DmbToken(high | (u64::from(first) ^ mix(high)) & PLACE)
}

fn index_of(token: DmbToken) -> u32 {
    let run = (token.0 ^ mix(token.0 & !PLACE)) & PLACE;
    u32::try_from(run).expect("24 bits")
}

fn mix(high: u64) -> u64 {
    high.wrapping_mul(MIX) >> 40
}

/// Bits of a token that contain the granule index.
const PLACE: u64 = (1 << 24) - 1;
/// Kinds of claims, in the low byte of a word.
const USED: u64 = 1;
const TAKEN: u64 = 2;
/// 512 MiB, the largest DMB.
const MAX_ORDER: u8 = 15;
/// Runs of fewer than 2^SHORT granules count as short.
const SHORT: u8 = 3;
/// The count in `users`. The same bits of the write lock are [`LOCKED`] while it is taken.
const COUNT: u64 = 0xffff;
const LOCKED: u64 = 1;
/// Attempts to count a use while another writer has the count. A move that was not counted is
/// tried again later.
const COUNT_TRIES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_contain_the_granule_index() {
        for first in [0, 1, 77, 4095, (1 << 24) - 1] {
            for random in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
                assert_eq!(index_of(token_of(first, random)), first);
            }
        }
    }

    #[test]
    fn a_second_claim_of_a_granule_fails() {
        let memory = super::super::tests::memory();
        let taken = |slot| Claim::Taken {
            owner: Tag {
                slot,
                generation: 1,
            },
            order: 0,
        };
        assert_eq!(memory.claim_granule(3, taken(1)), Some(false));
        // Another device that has seen the granule free a moment ago.
        assert_eq!(memory.claim_granule(3, taken(2)), None);
        assert_eq!(memory.claim(3), Some(taken(1)), "the claim was stolen");
        assert!(memory.swap_claim(3, taken(1), Claim::Free { used: true }));
        assert_eq!(memory.claim_granule(3, taken(2)), Some(true));
    }

    #[test]
    fn a_claim_with_an_invalid_slot_names_no_owner() {
        let memory = super::super::tests::memory();
        let join = |slot, gid| super::super::tests::join(&memory, slot, Gid::new(7, gid)).unwrap();
        let (owner, writer) = (join(0, 1), join(1, 2));
        let run = memory.allocate(owner, 0).unwrap();
        let token = memory.offer(run, writer).unwrap();
        memory.withdraw(run);
        assert!(memory.withdrawn(token, writer).is_some());
        let taken = |owner| Claim::Taken { owner, order: 0 };
        let nowhere = Tag {
            slot: 0xffff,
            generation: 1,
        };
        assert!(memory.swap_claim(run.first, taken(owner), taken(nowhere)));
        assert!(memory.withdrawn(token, writer).is_none());
    }

    #[test]
    fn claims_round_trip_and_invalid_words_are_none() {
        let owner = Tag {
            slot: 700,
            generation: 0xdead_beef,
        };
        for claim in [
            Claim::Free { used: false },
            Claim::Free { used: true },
            Claim::Taken { owner, order: 15 },
        ] {
            assert_eq!(Claim::of_word(claim.to_word()), Some(claim));
        }
        for nonsense in [
            3,
            0x0100,
            0x1_0000,
            owner.bits() | 16 << 8 | TAKEN,
            u64::MAX,
        ] {
            assert_eq!(Claim::of_word(nonsense), None, "{nonsense:#x}");
        }
    }
}
