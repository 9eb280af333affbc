//! What one end of a run did, for runs whose ends are in different processes.
//!
//! Either end is judged by the same oracle as in one process, except for what depends on the other
//! end: that is compared when both have ended.

use serde::{Deserialize, Serialize};

use super::Tally;
use super::oracle::Closed;

/// What one end of a run did.
///
/// It goes to wherever both are held against each other, in whatever way the ends have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndReport {
    pub(super) written: u64,
    pub(super) is_shut: bool,
    pub(super) read: u64,
    pub(super) claims: Claims,
    pub(super) tally: Tally,
}

/// What an end saw that only the other one can explain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
