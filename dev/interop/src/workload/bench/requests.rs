//! Requests that a server counts ([`Measure::Requests`](super::Measure::Requests)).

use std::collections::HashSet;
use std::io;

use super::{CHUNK, SIZES_LEN, part};

/// What a client has seen of its requests, and what the server has counted for it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Requested {
    /// Whose early data the server has taken.
    pub(crate) taken: f64,
    /// Answered over TCP.
    pub(crate) over_tcp: f64,
    /// Connections that begin with a CLC header for the server's application.
    pub(crate) clc: f64,
    /// The most bytes that it has read from one of them.
    pub(crate) clc_len: f64,
}

impl Requested {
    #[cfg(feature = "ours")]
    pub(crate) fn to_values(self) -> [f64; 4] {
        [self.taken, self.over_tcp, self.clc, self.clc_len]
    }

    pub(crate) fn from_values([taken, over_tcp, clc, clc_len]: [f64; 4]) -> Self {
        Self {
            taken,
            over_tcp,
            clc,
            clc_len,
        }
    }
}

/// The beginning of a request that a server counts, and of its answer.
#[derive(Default)]
pub(super) struct Numbered {
    /// Zero for requests that are not counted.
    pub(super) number: u64,
    /// How many requests have come twice so far.
    pub(super) doubled: u64,
    /// As of [`Requested`].
    pub(super) clc: u64,
    pub(super) clc_len: u64,
}

impl Numbered {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let word = |at| bytes.get(at..at + 8).and_then(|word| word.try_into().ok());
        let [number, doubled, clc, clc_len] =
            [0, 8, 16, 24].map(|at| word(at).map_or(0, u64::from_le_bytes));
        Self {
            number,
            doubled,
            clc,
            clc_len,
        }
    }

    pub(super) fn put(&self, bytes: &mut [u8]) {
        let words = [self.number, self.doubled, self.clc, self.clc_len].map(u64::to_le_bytes);
        for (to, from) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&from);
        }
    }
}

/// What a server has got.
#[derive(Default)]
pub(super) struct Requests {
    numbers: HashSet<u64>,
    doubled: u64,
    clc: u64,
    clc_len: u64,
}

impl Requests {
    /// Makes the answer to a request of this length, of which `buf` has the first part, in its
    /// place.
    pub(super) fn answer(&mut self, buf: &mut [u8], len: u64) {
        let request = &mut buf[..part(CHUNK, len)];
        let Numbered { number, .. } = Numbered::of(request);
        if number > 0 {
            self.doubled += u64::from(!self.numbers.insert(number));
            let answer = Numbered {
                number,
                doubled: self.doubled,
                clc: self.clc,
                clc_len: self.clc_len,
            };
            answer.put(request);
        }
    }

    /// A connection that begins with a CLC header, and had so many bytes when it ended.
    pub(super) fn add_clc(&mut self, len: u64) {
        self.clc += 1;
        self.clc_len = self.clc_len.max(len);
    }
}

/// Of a connection that is not to be answered.
pub(super) fn begins_with_clc() -> io::Error {
    io::Error::other("a connection begins with a CLC header")
}

/// Whether the first bytes of a connection are those of a CLC message
/// (docs/spec/clc.md#common-header).
pub(super) fn is_clc(first: [u8; SIZES_LEN]) -> bool {
    first.starts_with(&[0xE2, 0xD4, 0xC3, 0xD9])
}
