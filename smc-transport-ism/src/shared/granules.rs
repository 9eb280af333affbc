//! Granules: the memory for buffers, and who uses it.
//!
//! A buffer is a run of 2^n granules that begins at a multiple of its length. There is no lock and
//! no list: each granule has a word that says whose it is, taken and given back by compare and
//! swap. A device that dies in the middle of it leaves granules with its tag, which anybody may
//! take back once the tag is known to be dead. Memory that a peer may still be writing is left
//! alone until that peer has finished, or is dead itself.
//!
//! A writer says that it uses a buffer in one of two words. A move takes the *turn*, if nobody has
//! it, and gives it up by a plain store, for only who has it writes there; with a second move at the
//! same time, and for uses that last longer, the writer counts its *users*.
//!
//! One pair of accesses needs that one of two sides sees what the other just wrote: *turn or users,
//! token*. The writer takes its turn or counts itself in, and looks whether the buffer and its owner
//! are still there; the owner takes the token away, or somebody marks it as dead, and looks for turn
//! and users. All of these are sequentially consistent. The crate's `models` try them.

use std::any::Any;

use hashbrown::HashMap;
use smc_core::device::{DeviceError, SubmitError};
use smc_core::mem::Region;
use smc_core::mem::sync::{Ordering, fence};
use smc_wire::types::DmbToken;

use super::layout::{GRANULE, granule};
use super::slots::Tag;
use super::{MIX, Room};
use crate::region::{Words, words};

/// A run of granules: the memory of one buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Place {
    pub(crate) first: u32,
    /// The run has 2^order granules.
    pub(crate) order: u8,
}

impl Place {
    /// Length in bytes.
    pub(crate) fn len(self) -> usize {
        GRANULE << self.order
    }

    fn granules(self) -> std::ops::Range<u32> {
        self.first..self.first + (1 << self.order)
    }
}

/// Whose a granule is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Nobody's. Its bytes are zero unless it was used before.
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

    /// Nonsense counts as memory that nobody may have.
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

impl Room {
    /// Takes a run of granules and zeroes what was used before. `None` if there is no free run.
    ///
    /// Short runs are sought from the end and long ones from the start, so that the former do not
    /// break up the room for the latter.
    pub(crate) fn take(&self, owner: Tag, order: u8) -> Option<Place> {
        let step = 1_u32.checked_shl(order.into())?;
        let runs = self.granules() / step;
        (0..runs).find_map(|run| {
            let run = if order < SHORT { runs - 1 - run } else { run };
            let place = Place {
                first: run * step,
                order,
            };
            self.take_place(owner, place).then_some(place)
        })
    }

    fn take_place(&self, owner: Tag, place: Place) -> bool {
        let taken = Claim::Taken {
            owner,
            order: place.order,
        };
        let is_free = |index| matches!(self.claim(index), Some(Claim::Free { .. }));
        if !place.granules().all(is_free) {
            return false;
        }
        for index in place.granules() {
            let Some(used) = self.take_granule(index, taken) else {
                // Somebody was faster. What was taken may have been zeroed already or not.
                for index in place.first..index {
                    self.swap_claim(index, taken, Claim::Free { used: true });
                }
                return false;
            };
            if used {
                let zeroed = self.all.zero(self.layout.data(index), GRANULE);
                debug_assert!(zeroed.is_ok(), "granules are inside of the memory");
            }
        }
        self.granule(place.first)[granule::TOKEN].store(0, Ordering::SeqCst);
        true
    }

    /// Takes one granule, and says whether it was used before. `None` if it is somebody's.
    fn take_granule(&self, index: u32, taken: Claim) -> Option<bool> {
        match self.claim(index) {
            Some(free @ Claim::Free { used }) => {
                self.swap_claim(index, free, taken).then_some(used)
            }
            _ => None,
        }
    }

    /// Gives a run back that nobody uses.
    pub(crate) fn give_back(&self, owner: Tag, place: Place) {
        let taken = Claim::Taken {
            owner,
            order: place.order,
        };
        for index in place.granules() {
            // If the word is not what we wrote, somebody wrote over it; it is not ours to mend.
            self.swap_claim(index, taken, Claim::Free { used: true });
        }
    }

    /// Takes back what dead devices have left behind. `is_dead` is asked once per device.
    pub(crate) fn sweep(&self, mut is_dead: impl FnMut(Tag) -> bool) -> u32 {
        let mut known: HashMap<Tag, bool> = HashMap::new();
        let mut freed = 0;
        for index in 0..self.granules() {
            let Some(claim @ Claim::Taken { owner, order }) = self.claim(index) else {
                continue;
            };
            let dead = *known.entry(owner).or_insert_with(|| is_dead(owner));
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

    /// Offers the buffer of a place to one writer. Returns its token.
    pub(crate) fn offer(&self, place: Place, writer: Tag) -> Result<DmbToken, DeviceError> {
        let token = loop {
            let token = token_of(place.first, crate::random::word()?);
            if token.0 != 0 {
                break token;
            }
        };
        let words = self.granule(place.first);
        words[granule::WANT].store(0, Ordering::Relaxed);
        words[granule::WRITER].store(writer.bits(), Ordering::Relaxed);
        words[granule::TOKEN].store(token.0, Ordering::SeqCst);
        Ok(token)
    }

    /// No use of the buffer may begin any more.
    pub(crate) fn withdraw(&self, place: Place) {
        self.granule(place.first)[granule::TOKEN].store(0, Ordering::SeqCst);
        settle();
    }

    /// Whether a writer that is not dead uses the buffer that began here.
    pub(crate) fn is_used(&self, first: u32) -> bool {
        let words = self.granule(first);
        [granule::USERS, granule::TURN].into_iter().any(|word| {
            let users = words[word].load(Ordering::SeqCst);
            users & COUNT != 0 && !self.is_dead(Tag::of_bits(users))
        })
    }

    /// Owner: asks to hear of the next signal. A look at the buffer has to follow.
    pub(crate) fn want(&self, place: Place) {
        self.granule(place.first)[granule::WANT].store(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Writer: after a write, whether the owner wants to hear of it.
    #[inline]
    pub(crate) fn must_signal(&self, first: u32) -> bool {
        takes_want(self.granule(first))
    }

    /// Writer: after a use has ended, whether the owner wants to hear of it. The wish stays: the
    /// memory may be that of another buffer already.
    pub(crate) fn is_awaited(&self, first: u32) -> bool {
        fence(Ordering::SeqCst);
        self.granule(first)[granule::WANT].load(Ordering::Relaxed) != 0
    }

    /// Whether a buffer is still registered for this writer, by a device that is there.
    pub(crate) fn is_offered(&self, token: DmbToken, writer: Tag) -> bool {
        let offered = self.offered(token, writer);
        offered.is_ok_and(|(first, words)| self.look_up(first, words, token).is_ok())
    }

    /// Whose memory a token names that is no buffer for this writer any more.
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
                place: Place { first, order },
                owner,
            }),
            _ => None,
        }
    }

    /// Writer: uses the buffer of a token for as long as `then` takes.
    #[inline]
    pub(crate) fn using<T>(
        &self,
        token: DmbToken,
        writer: Tag,
        then: impl FnOnce(Turn<'_>) -> Result<T, SubmitError>,
    ) -> Result<T, SubmitError> {
        let (first, words) = self.offered(token, writer)?;
        let is_alone = self.takes_turn(words, writer);
        if !is_alone {
            self.count_in(words, writer)?;
        }
        let done = match self.look_up(first, words, token) {
            Ok(target) => then(Turn { target, words }),
            Err(refused) => Err(refused.into()),
        };
        if is_alone {
            words[granule::TURN].store(0, Ordering::Release);
        } else {
            count_out(words, writer);
        }
        done
    }

    /// Writer: begins to use the buffer of a token. What comes back has to be ended with
    /// [`Room::end_use`].
    pub(crate) fn begin_use(&self, token: DmbToken, writer: Tag) -> Result<Target, SubmitError> {
        let (first, words) = self.offered(token, writer)?;
        self.count_in(words, writer)?;
        let looked = self.look_up(first, words, token);
        if looked.is_err() {
            count_out(words, writer);
        }
        Ok(looked?)
    }

    /// Writer: all accesses of a use are over.
    pub(crate) fn end_use(&self, first: u32, writer: Tag) {
        count_out(self.granule(first), writer);
    }

    /// Where the buffer of a token is, if it is for this writer. A stranger must not be able to say
    /// that he uses it, so this comes first.
    #[inline]
    fn offered(&self, token: DmbToken, writer: Tag) -> Result<(u32, Words<'_>), Refused> {
        let first = index_of(token);
        if first >= self.granules() {
            return Err(Refused::Unknown);
        }
        let words = self.granule(first);
        let is_offered = words[granule::TOKEN].load(Ordering::SeqCst) == token.0
            && words[granule::WRITER].load(Ordering::Relaxed) == writer.bits();
        if is_offered {
            Ok((first, words))
        } else {
            Err(Refused::Unknown)
        }
    }

    /// Whether it is the writer's turn, which ends when the word is 0 again.
    #[inline]
    fn takes_turn(&self, words: Words<'_>, writer: Tag) -> bool {
        let turn = writer.bits() | MOVING;
        match words[granule::TURN].compare_exchange(0, turn, Ordering::SeqCst, Ordering::Relaxed) {
            Ok(_) => {
                settle();
                true
            }
            Err(now) => self.inherits_turn(words, now, turn),
        }
    }

    /// Whether who has the turn is dead, and it is ours now.
    #[cold]
    fn inherits_turn(&self, words: Words<'_>, now: u64, turn: u64) -> bool {
        self.is_dead(Tag::of_bits(now))
            && words[granule::TURN]
                .compare_exchange(now, turn, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
    }

    /// The memory of a place; `lease` is dropped together with the last clone of it.
    pub(crate) fn lend<T: Any + Send + Sync>(&self, place: Place, lease: T) -> Option<Region> {
        let place = self.all.part(self.layout.data(place.first), place.len());
        Some(place.ok()?.leased(lease))
    }

    /// Copies into the buffer of a place.
    #[inline]
    pub(crate) fn copy_in(&self, place: Place, at: usize, data: &[u8]) -> Result<(), SubmitError> {
        let end = at.checked_add(data.len());
        if end.is_none_or(|end| end > place.len()) {
            return Err(SubmitError::OutOfBounds);
        }
        self.all
            .copy_in(self.layout.data(place.first) + at, data)
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
        let place = Place { first, order };
        if first % (1 << order) != 0 || place.granules().end > self.granules() {
            return Err(Refused::Unknown);
        }
        Ok(Target { place, owner })
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
                // The writer of an earlier buffer is just finding out that it is gone.
                std::hint::spin_loop();
                continue;
            };
            if users
                .compare_exchange(now, next, Ordering::SeqCst, Ordering::Relaxed)
                .is_ok()
            {
                settle();
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

/// A use of a buffer that lasts as long as one call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turn<'a> {
    pub(crate) target: Target,
    words: Words<'a>,
}

impl Turn<'_> {
    /// After a write, whether the owner wants to hear of it.
    #[inline]
    pub(crate) fn must_signal(self) -> bool {
        takes_want(self.words)
    }
}

/// Gives a sequentially consistent access its place before those that follow. They have it anyway;
/// but to loom, only fences have one.
#[inline]
fn settle() {
    #[cfg(smc_loom)]
    fence(Ordering::SeqCst);
}

/// Writer: one use less.
fn count_out(words: Words<'_>, writer: Tag) {
    let users = &words[granule::USERS];
    let _ = users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |now| {
        // Else somebody wrote over it.
        (now & !COUNT == writer.bits() && now & COUNT != 0).then(|| now - 1)
    });
}

/// Writer: after a write, whether the owner wanted to hear of it until now.
#[inline]
fn takes_want(words: Words<'_>) -> bool {
    fence(Ordering::SeqCst);
    let want = &words[granule::WANT];
    want.load(Ordering::Relaxed) != 0 && want.swap(0, Ordering::SeqCst) != 0
}

/// A buffer that is being used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) place: Place,
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

/// A token: 40 random bits, and the place hidden under them, so that it is found without a table.
fn token_of(first: u32, random: u64) -> DmbToken {
    let high = random & !PLACE;
    DmbToken(high | (u64::from(first) ^ mix(high)) & PLACE)
}

fn index_of(token: DmbToken) -> u32 {
    let place = (token.0 ^ mix(token.0 & !PLACE)) & PLACE;
    u32::try_from(place).expect("24 bits")
}

fn mix(high: u64) -> u64 {
    high.wrapping_mul(MIX) >> 40
}

/// Bits of a token that hold the place.
const PLACE: u64 = (1 << 24) - 1;
/// Kinds of claims, in the low byte of a word.
const USED: u64 = 1;
const TAKEN: u64 = 2;
/// 512 MiB, the largest DMB.
const MAX_ORDER: u8 = 15;
/// Runs of fewer than 2^SHORT granules count as short.
const SHORT: u8 = 3;
/// Bits of `users` that count. Those of `turn` are [`MOVING`] while somebody has it.
const COUNT: u64 = 0xffff;
const MOVING: u64 = 1;
/// Looks at whether another writer has let go of the count. A move that was not counted by then is
/// tried again later.
const COUNT_TRIES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_name_places() {
        for first in [0, 1, 77, 4095, (1 << 24) - 1] {
            for random in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
                assert_eq!(index_of(token_of(first, random)), first);
            }
        }
    }

    #[test]
    fn who_comes_too_late_takes_nothing() {
        let room = super::super::tests::room();
        let taken = |slot| Claim::Taken {
            owner: Tag {
                slot,
                generation: 1,
            },
            order: 0,
        };
        assert_eq!(room.take_granule(3, taken(1)), Some(false));
        // Somebody who has seen the granule free a moment ago.
        assert_eq!(room.take_granule(3, taken(2)), None);
        assert_eq!(room.claim(3), Some(taken(1)), "the claim was stolen");
        assert!(room.swap_claim(3, taken(1), Claim::Free { used: true }));
        assert_eq!(room.take_granule(3, taken(2)), Some(true));
    }

    #[test]
    fn a_claim_of_a_slot_that_there_is_not_names_no_owner() {
        let room = super::super::tests::room();
        let join = |slot, gid| {
            super::super::tests::join(&room, slot, smc_wire::types::Gid::new(7, gid)).unwrap()
        };
        let (owner, writer) = (join(0, 1), join(1, 2));
        let place = room.take(owner, 0).unwrap();
        let token = room.offer(place, writer).unwrap();
        room.withdraw(place);
        assert!(room.withdrawn(token, writer).is_some());
        let taken = |owner| Claim::Taken { owner, order: 0 };
        let nowhere = Tag {
            slot: 0xffff,
            generation: 1,
        };
        assert!(room.swap_claim(place.first, taken(owner), taken(nowhere)));
        assert!(room.withdrawn(token, writer).is_none());
    }

    #[test]
    fn claims_survive_their_words_and_nonsense_is_none() {
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
