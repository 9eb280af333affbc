//! Random numbers from a seed.

/// A small seeded generator (SplitMix64), so that a run can be repeated from its seed alone.
///
/// Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// A generator that always gives the same numbers for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The bias of the remainder does not matter at the sizes that tests use.
        usize::try_from(self.bits() >> 32)
            .unwrap_or(0)
            .checked_rem(end)
            .unwrap_or(0)
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below((high + 1).saturating_sub(low))
    }

    /// True in `per_mille` of a thousand cases.
    pub fn chance(&mut self, per_mille: u16) -> bool {
        self.below(1000) < usize::from(per_mille)
    }

    /// Fills `buf` with random bytes.
    pub fn fill(&mut self, buf: &mut [u8]) {
        for chunk in buf.chunks_mut(8) {
            let bits = self.bits().to_ne_bytes();
            chunk.copy_from_slice(&bits[..chunk.len()]);
        }
    }

    /// A generator of its own for a part of the run, so that one part does not shift another.
    pub fn fork(&mut self) -> Self {
        Self(self.bits())
    }
}
