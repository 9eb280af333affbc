//! Posts: RDMA writes and the CDC message behind them.

use smc_wire::cdc::CdcR;

use crate::device::Piece;

/// A chain to be posted: the writes, then the CDC behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Post {
    /// Pass this to [`Transmit::handle_completed`](super::Transmit::handle_completed) when the CDC
    /// is completed.
    pub id: PostId,
    /// The writes, of length 0 where fewer are needed: [`Post::writes`] skips the empty ones.
    pub spans: [PeerWrite; 2],
    /// The message.
    pub cdc: CdcR,
    /// Changes that it states besides one: each would have been a message of its own, had it been
    /// posted at once.
    pub coalesced: u32,
}

impl Post {
    /// The non-empty writes: none, one, or two when the data passes the end of the peer's ring.
    pub fn writes(&self) -> impl Iterator<Item = &PeerWrite> {
        self.spans.iter().filter(|write| !write.is_empty())
    }

    /// Bytes of payload.
    #[must_use]
    pub fn payload(&self) -> u32 {
        let [first, second] = &self.spans;
        first.len().saturating_add(second.len())
    }
}

/// One span of the peer's memory, written from up to two pieces of the staging ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeerWrite {
    /// Positions in the staging ring; the second has length 0 unless the data passes its end.
    pub pieces: [Piece; 2],
    /// Position in the peer's RMB, in bytes from its start.
    pub at: u64,
}

impl PeerWrite {
    /// Bytes of payload.
    #[must_use]
    pub fn len(&self) -> u32 {
        let [first, second] = self.pieces;
        first.len.saturating_add(second.len)
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Identifies a post of its connection.
///
/// A number is not used again for four billion posts, so that a late completion, after the
/// connection moved to another link, is recognized.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PostId(pub u32);
