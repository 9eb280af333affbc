//! What both sides of an SMC-R handshake have in common.

use smc_wire::clc::RdmaEnd;
use smc_wire::size::SizeCode;
use smc_wire::types::{DeclineCode, MtuCode, PeerId};

use super::engine::smaller;
use super::{ConfirmFailure, LocalRmb, PeerRmb, RmbError};
use crate::device::{DeviceError, LinkAddress};
use crate::error::PeerMisbehaved;

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
/// Nobody can send packets of that size.
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

/// What to do without a receive buffer: try a smaller one, or tell the peer this.
pub(super) fn without_rmb(
    error: &RmbError,
    size: SizeCode,
    no_link: DeclineCode,
) -> Result<SizeCode, DeclineCode> {
    match error {
        RmbError::NoLink => Err(no_link),
        RmbError::Device(error) => smaller(error, size).ok_or(DeclineCode::MEM),
    }
}

/// What the peer is told when a queue pair could not be made.
pub(super) fn open_code(error: &DeviceError) -> DeclineCode {
    match error {
        DeviceError::NoMemory | DeviceError::Exhausted => DeclineCode::MEM,
        _ => DeclineCode::INTERR,
    }
}

/// What the peer is told when the link was not confirmed, and whether it may be telling us first.
pub(super) fn confirm_code(failure: ConfirmFailure) -> (DeclineCode, bool) {
    match failure {
        ConfirmFailure::Eyecatchers => (DeclineCode::RMBE_EC, false),
        ConfirmFailure::TimedOut | ConfirmFailure::LinkDown => (DeclineCode::TIMEOUT_CL, true),
    }
}
