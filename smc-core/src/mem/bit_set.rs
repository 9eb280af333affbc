//! A set of bits in shared memory, with a summary.

use super::sync::{AtomicU64, Ordering};
use super::{OutOfBounds, Region};

/// Bits in shared memory, of which one side takes those that others have set.
///
/// A summary has a bit for each word that may have some, so that a search reads few words:
///
/// ```text
/// set:  the bit, then the bit of its word in the summary
/// take: bits of the summary, then all bits of their words
/// ```
///
/// So a bit that is set behind a search is found by the next one. All accesses are sequentially
/// consistent: a side that sets a bit and then loads a word, or takes bits after a store, needs no
/// fence between the two if that load or store is sequentially consistent as well.
#[derive(Clone, Copy, Debug)]
pub struct BitSet<'a> {
    region: &'a Region,
    summary: usize,
    bits: usize,
    len: u32,
}

/// What [`BitSet::take_some`] has taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Taken {
    /// The number of bits.
    pub count: usize,
    /// Others may be set.
    pub more: bool,
}

impl<'a> BitSet<'a> {
    /// `len` bits from byte offset `bits` on, with their summary from `summary` on, in words of 64.
    ///
    /// # Errors
    ///
    /// [`OutOfBounds`] unless all words are inside of the region and aligned to 8.
    pub fn new(
        region: &'a Region,
        summary: usize,
        bits: usize,
        len: u32,
    ) -> Result<Self, OutOfBounds> {
        let set = Self {
            region,
            summary,
            bits,
            len,
        };
        let last = set.words().saturating_sub(1);
        region.word(set.word_offset(last))?;
        region.word(set.summary_offset(last / 64))?;
        Ok(set)
    }

    /// Sets a bit below the length.
    ///
    /// # Panics
    ///
    /// With another one, if there is no such word in the region; with debug assertions always.
    pub fn set(self, index: u32) {
        debug_assert!(index < self.len, "bit {index} of {}", self.len);
        let (word, bit) = (index as usize / 64, index % 64);
        self.word(self.word_offset(word))
            .fetch_or(1 << bit, Ordering::SeqCst);
        self.word(self.summary_offset(word / 64))
            .fetch_or(1 << (word % 64), Ordering::SeqCst);
    }

    /// Takes the bits that were set since the last time, and passes them to `each`; false if there
    /// are none.
    pub fn take(self, each: impl FnMut(u32)) -> bool {
        self.take_some(usize::MAX, each).count > 0
    }

    /// As [`BitSet::take`], until there were `most` bits; those of one word are taken together. The
    /// others stay set.
    pub fn take_some(self, most: usize, mut each: impl FnMut(u32)) -> Taken {
        let mut count = 0;
        for group in 0..self.words().div_ceil(64) {
            let summary = self.word(self.summary_offset(group));
            let mut words = take_bits(summary);
            while let Some(word) = words.next() {
                if count >= most {
                    let rest = words.fold(1 << word, |bits, word| bits | 1 << word);
                    summary.fetch_or(rest, Ordering::SeqCst);
                    return Taken { count, more: true };
                }
                let word = group * 64 + word as usize;
                // A summary can have bits of words that there are not.
                if word >= self.words() {
                    continue;
                }
                for bit in take_bits(self.word(self.word_offset(word))) {
                    let index = u32::try_from(word * 64).unwrap_or(u32::MAX) | bit;
                    if index < self.len {
                        count += 1;
                        each(index);
                    }
                }
            }
        }
        Taken { count, more: false }
    }

    fn words(self) -> usize {
        self.len.div_ceil(64) as usize
    }

    fn word_offset(self, word: usize) -> usize {
        self.bits + word * 8
    }

    fn summary_offset(self, group: usize) -> usize {
        self.summary + group * 8
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        self.region
            .word(at)
            .expect("`new` checked the last words, and offsets are multiples of 8")
    }
}

/// Takes the bits of a word, and returns the positions of those that were set; most of the time
/// there are none.
pub fn take_bits(word: &AtomicU64) -> impl Iterator<Item = u32> + use<> {
    let mut bits = match word.load(Ordering::SeqCst) {
        0 => 0,
        _ => word.swap(0, Ordering::SeqCst),
    };
    std::iter::from_fn(move || {
        let bit = (bits != 0).then(|| bits.trailing_zeros())?;
        bits &= bits - 1;
        Some(bit)
    })
}

#[cfg(all(test, not(smc_loom)))]
mod tests {
    use super::*;

    #[test]
    fn bits_that_are_too_many_at_once_are_taken_later() {
        let region = Region::anonymous(4096);
        let set = BitSet::new(&region, 0, 1024, 8192).unwrap();
        (0..8192).for_each(|index| set.set(index));
        let mut taken = Vec::new();
        for _ in 0..8 {
            let some = set.take_some(1000, |index| taken.push(index));
            assert_eq!(some.count, 1024, "whole words");
            assert_eq!(some.more, taken.len() < 8192);
        }
        assert!(taken.iter().copied().eq(0..8192));
        assert!(!set.take(|_| panic!("there is none")));
    }

    #[test]
    fn bits_are_taken_once_and_in_order() {
        let region = Region::anonymous(4096);
        let set = BitSet::new(&region, 0, 64, 4200).unwrap();
        assert!(!set.take(|_| panic!("there is none")));
        for index in [4199, 63, 64, 4096, 0] {
            set.set(index);
        }
        let mut taken = Vec::new();
        assert!(set.take(|index| taken.push(index)));
        assert_eq!(taken, [0, 63, 64, 4096, 4199]);
        assert!(!set.take(|_| panic!("they were taken")));
    }

    #[test]
    fn bits_beyond_the_length_are_ignored() {
        let region = Region::anonymous(4096);
        let set = BitSet::new(&region, 0, 64, 100).unwrap();
        for at in (0..4096).step_by(8) {
            region.store(at, u64::MAX, Ordering::SeqCst).unwrap();
        }
        let mut taken = Vec::new();
        assert!(set.take(|index| taken.push(index)));
        assert_eq!(taken, (0..100).collect::<Vec<_>>());
    }

    #[test]
    fn a_set_outside_of_the_region_is_refused() {
        let region = Region::anonymous(4096);
        assert!(BitSet::new(&region, 0, 4096 - 8, 64).is_ok());
        assert!(BitSet::new(&region, 0, 4096 - 8, 65).is_err());
        assert!(BitSet::new(&region, 4096 - 8, 0, 64 * 64).is_ok());
        assert!(BitSet::new(&region, 4096 - 8, 0, 64 * 64 + 1).is_err());
        assert!(BitSet::new(&region, 4, 64, 64).is_err());
    }
}
