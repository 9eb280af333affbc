//! Early CONFIRM and early data: what a PROPOSAL has beyond the offer, in a link group that exists
//! (docs/spec/extensions.md#early-confirm).

use std::collections::VecDeque;
use std::sync::Arc;

use hashbrown::HashSet;
use smc_wire::clc::{Authentication, DirectEnd, EarlyRdmaEnd, Extensions, RdmaEnd};
use smc_wire::types::{Features, Gid, Nonce, Qpn, RoceGid};

use super::attempt::{DeviceAttempt, Ends, peer_rmb};
use super::client::ClientProposal;
use super::machine::emitted;
use crate::mutex::Mutex;
use crate::proto::group::{GroupKey, Intent};
use crate::proto::links::{AuthenticatedPart, EarlyDataHash, PeerRmb};

/// The client's end of a connection in a link group that exists, sent with the PROPOSAL. If the
/// server takes it, the connection is established with ACCEPT
/// (docs/spec/extensions.md#early-confirm).
///
/// The client has done all that a CONFIRM takes. The work is requested all the same, once the
/// server has taken the early CONFIRM, and is answered with what was done: [`Work::Reach`],
/// [`Work::Enter`] and [`Work::Register`] of SMC-D, [`Work::Enter`], [`Work::PrepareRmb`] and
/// [`Work::ConfirmRkey`] of SMC-R.
///
/// [`Work::Reach`]: super::Work::Reach
/// [`Work::Enter`]: super::Work::Enter
/// [`Work::Register`]: super::Work::Register
/// [`Work::PrepareRmb`]: super::Work::PrepareRmb
/// [`Work::ConfirmRkey`]: super::Work::ConfirmRkey
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyConfirm {
    /// SMC-D.
    Direct {
        /// The server's device, which may write to the buffer.
        peer: Gid,
        /// The client's end, as CONFIRM would have it.
        end: DirectEnd,
    },
    /// SMC-R, in a link group with a single link.
    Rdma {
        /// The link group, as ACCEPT names it.
        key: GroupKey,
        /// The client's end, as CONFIRM would have it. Its RMB is announced to the peer.
        end: EarlyRdmaEnd,
        /// Of the end and the early data, by the key of the link group.
        authentication: Authentication,
    },
}

/// The first bytes of the stream, sent with an early CONFIRM. If the server takes them they are
/// delivered; otherwise the client sends them behind the handshake, whatever that ends in
/// (docs/spec/extensions.md#early-data).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EarlyData {
    /// Random: no two PROPOSALs have the same.
    pub nonce: Nonce,
    /// At most [`Extensions::MAX_EARLY_DATA`].
    pub bytes: Arc<[u8]>,
}

impl EarlyData {
    /// For the authentication of the early CONFIRM.
    #[must_use]
    pub fn hash(&self) -> EarlyDataHash {
        EarlyDataHash::of(self.nonce, &self.bytes)
    }
}

/// Whether and how a server takes early data.
#[derive(Debug)]
pub struct EarlyDataPolicy {
    max: usize,
    seen: Mutex<SeenNonces>,
}

impl EarlyDataPolicy {
    /// Takes up to this number of bytes. The nonces of the PROPOSALs that it was taken from are
    /// stored, the last 4096, and none of those is taken again.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self {
            max,
            seen: Mutex::default(),
        }
    }

    /// Whether to take the data of a PROPOSAL. Not twice the same.
    pub(super) fn takes(&self, data: &ReceivedEarlyData) -> bool {
        data.bytes.len() <= self.max && self.seen.lock().insert(data.nonce)
    }
}

/// The nonces that were seen last.
#[derive(Debug, Default)]
struct SeenNonces {
    all: HashSet<Nonce>,
    in_order: VecDeque<Nonce>,
}

impl SeenNonces {
    /// False if it was seen before.
    fn insert(&mut self, nonce: Nonce) -> bool {
        if !self.all.insert(nonce) {
            return false;
        }
        self.in_order.push_back(nonce);
        if self.in_order.len() > NONCES_MAX {
            let oldest = self.in_order.pop_front();
            oldest.map(|oldest| self.all.remove(&oldest));
        }
        true
    }
}

/// Number of nonces that a server stores.
const NONCES_MAX: usize = 4096;

/// A client's part of its PROPOSAL, until ACCEPT.
#[derive(Clone, Copy, Debug)]
pub(super) struct SentEarly {
    pub(super) confirm: EarlyConfirm,
    /// Bytes of early data.
    pub(super) data: usize,
}

impl SentEarly {
    /// The number of an early CONFIRM for SMC-R.
    pub(super) fn number(&self) -> u64 {
        match &self.confirm {
            EarlyConfirm::Direct { .. } => 0,
            EarlyConfirm::Rdma { authentication, .. } => authentication.number,
        }
    }

    /// Whether the early CONFIRM is one for the attempt that ACCEPT begins.
    pub(super) fn is_for(&self, attempt: &DeviceAttempt) -> bool {
        let is_same = match (&self.confirm, &attempt.ends) {
            (EarlyConfirm::Direct { peer, end }, Ends::Direct(ends)) => {
                (ends.device.gid, ends.peer) == (end.gid, *peer) && end.size <= attempt.size
            }
            (EarlyConfirm::Rdma { key, .. }, Ends::Rdma(_)) => attempt.key == *key,
            _ => false,
        };
        is_same && attempt.intent == Intent::Join
    }
}

/// A client's early CONFIRM and early data, as a server has received them.
#[derive(Debug, Default)]
pub(super) struct ReceivedEarly {
    pub(super) direct: Option<DirectEnd>,
    pub(super) rdma: Option<ReceivedRdmaEnd>,
    pub(super) data: Option<ReceivedEarlyData>,
}

/// An early CONFIRM for SMC-R.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReceivedRdmaEnd {
    pub(super) end: RdmaEnd,
    pub(super) authentication: Authentication,
    pub(super) data: EarlyDataHash,
}

impl ReceivedRdmaEnd {
    /// The client's RMB, with the authentication of the early CONFIRM.
    pub(super) fn rmb(self) -> PeerRmb {
        let part = AuthenticatedPart::Early(self.data);
        peer_rmb(&self.end, Some((self.authentication, part)))
    }

    pub(super) fn refused(self) -> RefusedEarly {
        RefusedEarly {
            gid: self.end.gid,
            qpn: self.end.qpn,
            rmb: self.rmb(),
        }
    }
}

/// An early CONFIRM for SMC-R that a server has not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RefusedEarly {
    /// The client's end of the link that it names.
    pub gid: RoceGid,
    /// The queue pair of that end.
    pub qpn: Qpn,
    /// The client's RMB, with the authentication.
    pub rmb: PeerRmb,
}

#[derive(Debug)]
pub(super) struct ReceivedEarlyData {
    nonce: Nonce,
    pub(super) bytes: Vec<u8>,
}

impl ReceivedEarly {
    /// The early parts of a PROPOSAL.
    pub(super) fn of(extensions: &Extensions<'_>) -> Self {
        let data = extensions.nonce.zip(extensions.early_data);
        let data = data.map(|(nonce, data)| ReceivedEarlyData {
            nonce,
            bytes: data.pieces().flatten().copied().collect(),
        });
        let rdma = extensions.rdma.zip(extensions.authentication);
        Self {
            direct: extensions.direct,
            rdma: rdma.map(|(early, authentication)| ReceivedRdmaEnd {
                end: early.end,
                authentication,
                data: data.as_ref().map_or_else(EarlyDataHash::of_none, |data| {
                    EarlyDataHash::of(data.nonce, &data.bytes)
                }),
            }),
            data,
        }
    }
}

impl ClientProposal {
    /// The PROPOSAL with an early CONFIRM, and with early data. `None` if it cannot have them.
    pub(super) fn with_early(
        &self,
        confirm: &EarlyConfirm,
        data: Option<&EarlyData>,
    ) -> Option<Vec<u8>> {
        let mut extensions = Extensions {
            nonce: data.map(|data| data.nonce),
            early_data: data.map(|data| (&*data.bytes).into()),
            ..Extensions::default()
        };
        match *confirm {
            EarlyConfirm::Direct { end, .. } => extensions.direct = Some(end),
            EarlyConfirm::Rdma {
                end,
                authentication,
                ..
            } => {
                extensions.rdma = Some(end);
                extensions.authentication = Some(authentication);
            }
        }
        let proposal = self.proposal();
        emitted(proposal.extended_len(&extensions), |buffer| {
            proposal.emit_extended(&extensions, buffer)
        })
    }
}

/// Features that a connection uses or not, in a link group that has them.
pub(super) const PER_CONNECTION: Features = Features::EARLY_CONFIRM.union(Features::EARLY_DATA);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_is_taken_once_and_the_number_of_nonces_is_bounded() {
        let policy = EarlyDataPolicy::new(4);
        let data = |number: u128, len| ReceivedEarlyData {
            nonce: Nonce::from_bytes(number.to_be_bytes()),
            bytes: vec![0; len],
        };
        assert!(!policy.takes(&data(0, 5)), "too long");
        assert!(policy.takes(&data(0, 4)), "and not taken before");
        for number in 1..=2 * NONCES_MAX as u128 {
            assert!(policy.takes(&data(number, 4)));
            assert!(!policy.takes(&data(number, 4)), "{number} again");
        }
        let seen = policy.seen.lock();
        assert_eq!([seen.all.len(), seen.in_order.len()], [NONCES_MAX; 2]);
    }
}
