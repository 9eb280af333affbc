//! Queue pairs and what is posted to them.

use std::collections::VecDeque;
use std::time::Instant;

use smc_core::device::{Inbound, LinkAddress, LinkCounters, OpId, Piece, RoceKind};
use smc_core::mem::Region;
use smc_wire::types::{MtuCode, Psn, Rkey, RmbAddr};

use super::faults::Loss;
use super::state::DomainId;

/// A queue pair.
pub(super) struct QueuePair {
    pub(super) local: LinkAddress,
    pub(super) domain: DomainId,
    pub(super) kind: RoceKind,
    pub(super) port: u8,
    pub(super) phase: Phase,
    pub(super) is_cut: bool,
    pub(super) loss: Option<Loss>,
    pub(super) counters: LinkCounters,
    /// A message that has arrived and is reported late.
    pub(super) late: Option<Inbound>,
}

/// What a queue pair can do.
pub(super) enum Phase {
    /// It has no peer and sends no answers.
    Reset,
    Connected(Box<PairConnection>),
    Error,
}

/// What a connected queue pair knows.
pub(super) struct PairConnection {
    pub(super) peer: LinkAddress,
    pub(super) mtu: MtuCode,
    /// Of the next packet posted.
    pub(super) next_psn: Psn,
    /// Of the next packet received.
    pub(super) expected_psn: Psn,
    /// What was posted and has not completed.
    pub(super) chains: VecDeque<Chain>,
    /// Posts that have completed and were not reported yet: they hold their space.
    pub(super) unreported: usize,
    /// Why the next chain does not leave.
    pub(super) stall: Option<SendStall>,
    /// Runs while an answer is missing.
    pub(super) expiry: Option<u64>,
    /// When the packets posted last arrive.
    pub(super) last_due: Option<Instant>,
    /// Receive buffers that nothing has arrived in.
    pub(super) free: u32,
}

/// Why a chain is not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SendStall {
    /// The peer does not answer.
    NoAnswer,
    /// The peer has no receive buffer.
    NotReady,
}

/// One post.
pub(super) struct Chain {
    pub(super) op: OpId,
    pub(super) writes: Vec<Transfer>,
    pub(super) message: Vec<u8>,
    pub(super) psn: Psn,
    pub(super) packets: u32,
    pub(super) due: Option<Instant>,
    pub(super) phase: ChainPhase,
    /// Whether a fault that counts posts has counted it, and whether it is hit.
    pub(super) is_counted: bool,
    pub(super) is_hit: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChainPhase {
    Underway,
    /// It has arrived, and the acknowledgement arrives at this time.
    Delivered(Option<Instant>),
    /// It has arrived, and the acknowledgement was lost.
    Unanswered,
}

/// One write of a chain.
pub(super) struct Transfer {
    /// Key of the local memory.
    pub(super) own: Rkey,
    pub(super) region: Region,
    pub(super) pieces: [Piece; 2],
    pub(super) rkey: Rkey,
    pub(super) to: RmbAddr,
}

impl Transfer {
    pub(super) fn len(&self) -> u64 {
        self.pieces.iter().map(|piece| u64::from(piece.len)).sum()
    }
}

impl PairConnection {
    /// Posts that count against the space of the link.
    pub(super) fn outstanding(&self) -> usize {
        self.chains.len() + self.unreported
    }
}

impl QueuePair {
    pub(super) fn connection(&self) -> Option<&PairConnection> {
        match &self.phase {
            Phase::Connected(connection) => Some(connection),
            _ => None,
        }
    }

    pub(super) fn connection_mut(&mut self) -> Option<&mut PairConnection> {
        match &mut self.phase {
            Phase::Connected(connection) => Some(connection),
            _ => None,
        }
    }
}

/// Packets that this many bytes take.
pub(super) fn packets(len: u64, mtu: MtuCode) -> u32 {
    let mtu = u64::from(mtu.bytes().unwrap_or(256));
    u32::try_from(len.div_ceil(mtu).max(1)).unwrap_or(u32::MAX)
}

/// The number that many packets later.
pub(super) fn advance(psn: Psn, packets: u32) -> Psn {
    Psn::new(psn.get().wrapping_add(packets) & Psn::MAX.get()).unwrap_or_default()
}
