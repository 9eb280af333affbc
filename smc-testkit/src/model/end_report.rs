//! What one end of a run did, for runs whose ends are in different processes.
//!
//! Either end is judged by the same oracle as in one process, except for what depends on the other
//! end: that is compared when both are over.

use super::Tally;
use super::oracle::Closed;

/// What one end of a run did.
///
/// It goes to wherever both are held against each other, in whatever way the ends have:
/// [`EndReport::to_bytes`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndReport {
    pub(super) written: u64,
    pub(super) is_shut: bool,
    pub(super) read: u64,
    pub(super) claims: Claims,
    pub(super) tally: Tally,
}

/// What an end saw that only the other one can explain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claims {
    /// Bytes that were seen, taken or not.
    pub(super) seen: u64,
    /// Where the end of the stream was read.
    pub(super) end: Option<u64>,
    /// A read found a reset.
    pub(super) is_reset: bool,
    /// The stream was closed with a reset, for the other end to see.
    pub(super) has_zero_linger: bool,
}

impl EndReport {
    /// Bytes of every report.
    pub const LEN: usize = 8 * WORDS;

    /// For the way to the other end.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let Claims {
            seen,
            end,
            is_reset,
            has_zero_linger,
        } = self.claims;
        let words = [
            self.written,
            self.is_shut.into(),
            self.read,
            seen,
            end.is_some().into(),
            end.unwrap_or(0),
            is_reset.into(),
            has_zero_linger.into(),
            self.tally.operations,
            self.tally.bytes,
            self.tally.ends.into(),
            self.tally.resets.into(),
            self.tally.aborts.into(),
            self.tally.cancelled,
        ];
        let mut bytes = [0; Self::LEN];
        for (word, place) in words.into_iter().zip(bytes.chunks_exact_mut(8)) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What [`EndReport::to_bytes`] gave.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let mut words = bytes.chunks_exact(8).map(|word| {
            let word: [u8; 8] = word.try_into().expect("chunks of eight bytes");
            u64::from_le_bytes(word)
        });
        let mut next = || words.next().unwrap_or(0);
        let count = |word: u64| u32::try_from(word).unwrap_or(u32::MAX);
        Self {
            written: next(),
            is_shut: next() != 0,
            read: next(),
            claims: Claims {
                seen: next(),
                end: (next() != 0).then_some(next()),
                is_reset: next() != 0,
                has_zero_linger: next() != 0,
            },
            tally: Tally {
                operations: next(),
                bytes: next(),
                ends: count(next()),
                resets: count(next()),
                aborts: count(next()),
                cancelled: next(),
            },
        }
    }

    /// Whether what this end saw is what the other one did.
    pub(super) fn is_explained_by(&self, peer: &Self) -> Result<(), String> {
        let require = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        let Claims {
            seen,
            end,
            is_reset,
            ..
        } = self.claims;
        let written = peer.written;
        require(
            seen.max(self.read) <= written,
            format!("saw {seen} bytes, {written} were written"),
        )?;
        let closed = peer.closed(self);
        if let Some(end) = end {
            require(
                end == written,
                format!("read the end at {end}, {written} bytes were written"),
            )?;
            require(
                peer.is_shut || closed != Closed::WithReset,
                "read an end, but the peer has reset".to_owned(),
            )?;
        }
        require(
            !is_reset || closed != Closed::InOrder,
            "read a reset, but the peer closed in order".to_owned(),
        )
    }

    /// How this end was closed, as far as its peer can detect.
    fn closed(&self, peer: &Self) -> Closed {
        match self.claims.has_zero_linger {
            true => Closed::WithReset,
            // Something was left unread, unless it came after the end.
            false if peer.written > self.read => Closed::Either,
            false => Closed::InOrder,
        }
    }
}

const WORDS: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    /// An end that wrote and read so much, and closed after it had read the end.
    fn orderly(written: u64, read: u64) -> EndReport {
        EndReport {
            written,
            is_shut: true,
            read,
            claims: Claims {
                seen: read,
                end: Some(read),
                ..Claims::default()
            },
            tally: Tally {
                operations: 3,
                bytes: read,
                ends: 1,
                ..Tally::default()
            },
        }
    }

    #[test]
    fn bytes_and_back() {
        let mut one = orderly(300, 70_000_000_000);
        assert_eq!(EndReport::from_bytes(&one.to_bytes()), one);
        one.claims.end = None;
        one.claims.is_reset = true;
        one.claims.has_zero_linger = true;
        one.is_shut = false;
        assert_eq!(EndReport::from_bytes(&one.to_bytes()), one);
    }

    #[test]
    fn two_that_agree() {
        let (one, two) = (orderly(10, 20), orderly(20, 10));
        one.is_explained_by(&two).unwrap();
        two.is_explained_by(&one).unwrap();
    }

    #[test]
    fn what_one_saw_and_the_other_did_not_do() {
        let peer = orderly(20, 10);
        let refuted = |change: fn(&mut EndReport)| {
            let mut one = orderly(10, 20);
            change(&mut one);
            one.is_explained_by(&peer).unwrap_err()
        };
        assert!(refuted(|one| one.read = 21).contains("saw"));
        assert!(refuted(|one| one.claims.seen = 21).contains("saw"));
        assert!(refuted(|one| one.claims.end = Some(19)).contains("the end at 19"));
        assert!(refuted(|one| one.claims.is_reset = true).contains("in order"));
    }

    #[test]
    fn a_reset_takes_unread_bytes_or_no_linger() {
        let mut one = orderly(10, 20);
        one.claims.end = None;
        one.claims.is_reset = true;
        let mut peer = orderly(20, 9);
        one.is_explained_by(&peer).unwrap();
        peer = orderly(20, 10);
        peer.claims.has_zero_linger = true;
        one.is_explained_by(&peer).unwrap();
        // Then there is no end, except behind an own one.
        peer.is_shut = false;
        one.claims.end = Some(20);
        assert!(one.is_explained_by(&peer).unwrap_err().contains("reset"));
    }
}
