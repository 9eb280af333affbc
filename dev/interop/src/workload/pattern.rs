//! Bytes that identify their position.

/// The bytes of one direction of one connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pattern {
    seed: u64,
}

impl Pattern {
    /// What the client with this number, such as its port, sends.
    pub(crate) fn of_client(number: u64) -> Self {
        Self { seed: number << 1 }
    }

    /// What the server sends to the client with this number.
    pub(crate) fn of_server(number: u64) -> Self {
        Self {
            seed: number << 1 | 1,
        }
    }

    /// The bytes from a position on.
    pub(crate) fn fill(self, at: u64, buf: &mut [u8]) {
        let (mut block, skip) = (at / 8, usize::try_from(at % 8).unwrap_or(0));
        let head = buf.len().min((8 - skip) % 8);
        let (first, rest) = buf.split_at_mut(head);
        if head > 0 {
            first.copy_from_slice(&self.block(block)[skip..skip + head]);
            block += 1;
        }
        let mut chunks = rest.chunks_exact_mut(8);
        for chunk in &mut chunks {
            chunk.copy_from_slice(&self.block(block));
            block += 1;
        }
        let tail = chunks.into_remainder();
        tail.copy_from_slice(&self.block(block)[..tail.len()]);
    }

    /// The first position in `buf`, which begins at `at`, that is not as it should be.
    pub(crate) fn difference(self, at: u64, buf: &[u8], scratch: &mut Vec<u8>) -> Option<u64> {
        scratch.resize(buf.len(), 0);
        self.fill(at, scratch);
        if buf == scratch {
            return None;
        }
        let wrong = buf.iter().zip(scratch.iter()).position(|(a, b)| a != b);
        wrong
            .and_then(|index| u64::try_from(index).ok())
            .map(|index| at + index)
    }

    /// SplitMix64: cheap, and neighbours have nothing in common.
    fn block(self, index: u64) -> [u8; 8] {
        let mut z = (self.seed << 40)
            .wrapping_add(index)
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_make_the_whole() {
        let pattern = Pattern::of_client(4711);
        let mut whole = [0; 100];
        pattern.fill(3, &mut whole);
        for cut in 0..whole.len() {
            let mut pieces = [0; 100];
            let (a, b) = pieces.split_at_mut(cut);
            pattern.fill(3, a);
            pattern.fill(3 + cut as u64, b);
            assert_eq!(pieces, whole, "cut at {cut}");
        }
    }

    #[test]
    fn a_shifted_byte_is_found() {
        let pattern = Pattern::of_server(1);
        let mut bytes = [0; 64];
        pattern.fill(0, &mut bytes);
        assert_eq!(pattern.difference(0, &bytes, &mut Vec::new()), None);
        bytes[41] ^= 1;
        assert_eq!(pattern.difference(0, &bytes, &mut Vec::new()), Some(41));
        assert_eq!(pattern.difference(1, &bytes, &mut Vec::new()), Some(1));
    }
}
