//! An RMB as a handshake names it to the other side.

use smc_wire::clc::Authentication;
use smc_wire::size::SizeCode;
use smc_wire::types::{AlertToken, Rkey, RmbAddr};

use super::AuthenticatedPart;

/// The peer's receive buffer of one SMC-R connection: one element of an RMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerRmb {
    /// Key of the RMB on the connection's link.
    pub rkey: Rkey,
    /// Address of the RMB on the connection's link.
    pub addr: RmbAddr,
    /// Number of the element in the RMB, from 1.
    pub index: u8,
    /// Size of the element.
    pub size: SizeCode,
    /// Names the connection in messages to the peer.
    pub token: AlertToken,
    /// Of the message that named the RMB, and what else it covers.
    pub authentication: Option<(Authentication, AuthenticatedPart)>,
}

impl PeerRmb {
    /// Where the element begins in the RMB, in bytes.
    #[must_use]
    pub fn offset(&self) -> u64 {
        let len = u64::try_from(self.size.byte_len()).unwrap_or(u64::MAX);
        len.saturating_mul(u64::from(self.index.saturating_sub(1)))
    }
}
