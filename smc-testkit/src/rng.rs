//! Random numbers from a seed.

/// A small seeded generator (SplitMix64), so that a run can be repeated from its seed alone.
///
/// Not for secrets.
#[derive(Clone, Debug)]
pub struct Rng {
    state: u64,
    /// Taken instead of numbers of the generator, from the end on.
    script: Vec<u8>,
}

impl Rng {
    /// A generator that always gives the same numbers for the same seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self {
            state: seed,
            script: Vec::new(),
        }
    }

    /// A generator whose first numbers are made of these bytes, each of as few as its range takes,
    /// and whose later ones are those of [`Rng::new`] with seed 0. A fuzz target varies the bytes.
    ///
    /// A number takes one byte below 257, two below 65,537, four below any greater end, and eight
    /// as [`Rng::bits`]; the first byte is the lowest one.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            state: 0,
            script: bytes.iter().rev().copied().collect(),
        }
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        if let Some(scripted) = self.scripted(8) {
            return scripted;
        }
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number of at most so many bytes of the script, if there is one.
    fn scripted(&mut self, len: usize) -> Option<u64> {
        let start = self.script.len().checked_sub(1)?.saturating_sub(len - 1);
        let bytes = self.script.drain(start..);
        Some(bytes.fold(0, |number, byte| number << 8 | u64::from(byte)))
    }

    /// A number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: usize) -> usize {
        let scripted = match end {
            0 | 1 if !self.script.is_empty() => return 0,
            0..=0x100 => self.scripted(1),
            0x101..=0x1_0000 => self.scripted(2),
            _ => self.scripted(4),
        };
        // The bias of the remainder does not matter at the sizes that tests use.
        let number = scripted.unwrap_or_else(|| self.bits() >> 32);
        usize::try_from(number)
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
        Self::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_before_the_numbers_of_the_seed() {
        let mut rng = Rng::from_bytes(&[7, 0x34, 0x12, 1, 2, 3, 4, 5, 6]);
        assert_eq!(rng.below(1), 0, "takes no byte");
        assert_eq!((rng.below(256), rng.below(1 << 16)), (7, 0x1234));
        assert_eq!(rng.bits(), 0x0605_0403_0201);
        let mut seeded = Rng::new(0);
        assert_eq!([0; 3].map(|_| rng.bits()), [0; 3].map(|_| seeded.bits()));
    }
}
