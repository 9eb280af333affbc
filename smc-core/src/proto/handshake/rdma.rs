//! What both sides of an SMC-R handshake have in common.

use smc_wire::clc::RdmaEnd;
use smc_wire::size::SizeCode;
use smc_wire::types::{DeclineCode, MtuCode, PeerId};

use super::engine::{next_smaller, of_device};
use super::{ConfirmFailure, LocalRmb, PeerRmb, RkeyFailure, RmbError};
use crate::device::{DeviceError, LinkAddress};
use crate::error::{FallbackCause, FallbackReason, PeerMisbehaved, SetupStep};

/// Our end, as the peer is told of it. `mtu` is our own in ACCEPT, the smaller of both in CONFIRM.
pub(super) fn own_end(local: &LocalRmb, peer_id: PeerId, mtu: MtuCode) -> RdmaEnd {
    RdmaEnd {
        peer_id,
        gid: local.link.gid,
        mac: local.link.mac,
        qpn: local.link.qpn,
        rkey: local.rkey,
        rmbe_index: local.index,
        token: local.token,
        size: local.size,
        mtu,
        rmb_addr: local.addr,
        psn: local.link.psn,
    }
}

/// The peer's end of the link.
///
/// # Errors
///
/// Packets of that size cannot be sent.
pub(super) fn peer_link(end: &RdmaEnd) -> Result<LinkAddress, PeerMisbehaved> {
    if end.mtu.bytes().is_none() {
        return Err(PeerMisbehaved::BadLink);
    }
    Ok(LinkAddress {
        gid: end.gid,
        mac: end.mac,
        qpn: end.qpn,
        psn: end.psn,
        mtu: end.mtu,
    })
}

/// The peer's receive buffer.
///
/// # Errors
///
/// Elements are counted from 1, and no connection is called 0.
pub(super) fn peer_rmb(end: &RdmaEnd) -> Result<PeerRmb, PeerMisbehaved> {
    if end.rmbe_index == 0 || end.token.is_zero() {
        return Err(PeerMisbehaved::BadBuffer);
    }
    Ok(PeerRmb {
        rkey: end.rkey,
        addr: end.rmb_addr,
        index: end.rmbe_index,
        size: end.size,
        token: end.token,
    })
}

/// What to do without a receive buffer: try a smaller one, or decline for this reason.
pub(super) fn without_rmb(
    error: RmbError,
    size: SizeCode,
    no_link: DeclineCode,
) -> Result<SizeCode, FallbackReason> {
    match error {
        RmbError::NoLink => Err(no_link.into()),
        RmbError::Device(error) => next_smaller(&error, size)
            .ok_or_else(|| of_device(DeclineCode::MEM, SetupStep::Register, error)),
    }
}

/// Why a queue pair could not be made.
pub(super) fn not_opened(error: DeviceError) -> FallbackReason {
    let code = match error {
        DeviceError::Exhausted => DeclineCode::MEM,
        _ if error.is_lack_of_memory() => DeclineCode::MEM,
        _ => DeclineCode::INTERR,
    };
    of_device(code, SetupStep::OpenLink, error)
}

/// Why the link was not confirmed, and whether the peer may be telling us first.
pub(super) fn not_confirmed(failure: ConfirmFailure) -> (FallbackReason, bool) {
    let (code, may_be_late) = match failure {
        ConfirmFailure::Eyecatchers => (DeclineCode::RMBE_EC, false),
        ConfirmFailure::TimedOut | ConfirmFailure::LinkDown => (DeclineCode::TIMEOUT_CL, true),
    };
    let cause = FallbackCause::ConfirmLink(failure);
    (FallbackReason::because(code, cause), may_be_late)
}

/// Why the peer does not know the keys of our buffer.
pub(super) fn unknown_rkey(failure: RkeyFailure) -> FallbackReason {
    FallbackReason::because(DeclineCode::ERR_REGBUF, FallbackCause::Rkey(failure))
}
