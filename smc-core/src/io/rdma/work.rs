//! The SMC-R work of a handshake.

use std::sync::Arc;

use smc_wire::size::SizeCode;
use smc_wire::types::GroupId;

use super::super::endpoint::EndpointInner;
use super::conn::RdmaConnHandle;
use super::link_group::RdmaGroup;
use crate::device::{DeviceError, LinkAddress, RdmaAddress, Route};
use crate::proto::group::DeviceIndex;
use crate::proto::handshake::{
    ConfirmFailure, LinkChoice, LinkTerms, LocalRmb, PeerRmb, RkeyFailure, RmbError, TableFull,
};
use crate::proto::links::{self, FirstLinkError, LinkId, LinkState, PeerEnd, RkeyError, RmbKey};

/// The resources of a handshake in its link group. Dropping it releases the connection's buffers.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    handle: Arc<RdmaConnHandle>,
    keys: Vec<RmbKey>,
    link: LinkId,
}

impl Prepared {
    pub(crate) fn handle(&self) -> &Arc<RdmaConnHandle> {
        &self.handle
    }

    fn group(&self) -> &Arc<RdmaGroup> {
        self.handle.rdma_conn().group()
    }
}

pub(crate) async fn open_link(
    endpoint: &EndpointInner,
    group: GroupId,
    device: DeviceIndex,
    address: &RdmaAddress,
) -> Result<LinkAddress, DeviceError> {
    let group = endpoint.groups.start_rdma(group).ok_or(NO_GROUP)?;
    group.open_first(device, address).await
}

pub(crate) async fn prepare_rmb(
    endpoint: &EndpointInner,
    group: GroupId,
    choice: LinkChoice,
    size: SizeCode,
) -> Result<(Prepared, LocalRmb), RmbError> {
    let group = endpoint.groups.rdma(group).ok_or(RmbError::NoLink)?;
    let link = match choice {
        LinkChoice::First => group.first_link().map(|link| link.id),
        LinkChoice::Assign => group.assign(),
        LinkChoice::Named { qpn, gid, mac } => group.find(PeerEnd {
            gid,
            mac,
            qpn: Some(qpn),
        }),
    };
    let link = link.and_then(|link| group.link(link));
    let link = link.ok_or(RmbError::NoLink)?;
    let address = link.local.ok_or(RmbError::NoLink)?;
    // Pooled buffers are charged already, and the peer's buffer is not charged to this process.
    if !group.has_pooled_rmb(size) {
        drop(endpoint.admit(size, 0)?);
    }
    let staging = endpoint.config.send_buffer;
    let (handle, keys) = group.prepare(link.id, size, staging).await?;
    let key = keys.iter().find(|key| key.device == link.device);
    let key = *key.ok_or(RmbError::NoLink)?;
    if choice == LinkChoice::First {
        group.add_rmb(handle.rdma_conn(), &keys);
    }
    let local = LocalRmb {
        device: link.device,
        link: address,
        rkey: key.rkey,
        addr: key.addr,
        token: handle.rdma_conn().token(),
        size: handle.rdma_conn().rmb().size(),
        index: 1,
    };
    let prepared = Prepared {
        handle: Arc::new(handle),
        keys,
        link: link.id,
    };
    Ok((prepared, local))
}

pub(crate) async fn confirm_rkey(prepared: Option<&Prepared>) -> Result<(), RkeyFailure> {
    let prepared = prepared.ok_or(RkeyFailure::LinkDown)?;
    let conn = prepared.handle.rdma_conn();
    let told = prepared
        .group()
        .confirm_rkey(conn, prepared.link, &prepared.keys)
        .await;
    told.map_err(|error| match error {
        RkeyError::TimedOut | RkeyError::NoTurn => RkeyFailure::TimedOut,
        RkeyError::Refused => RkeyFailure::Refused,
        RkeyError::NoKey | RkeyError::Ended => RkeyFailure::LinkDown,
    })?;
    // The handshake names this link, which may have failed since. The connection may still be bound
    // to it: it moves only when the link is closed.
    let link = prepared.group().link(prepared.link);
    match link.is_some_and(|link| link.state == LinkState::Active) {
        true => Ok(()),
        false => Err(RkeyFailure::LinkDown),
    }
}

pub(crate) fn bind_peer(prepared: Option<&Prepared>, rmb: &PeerRmb) -> Result<(), TableFull> {
    let prepared = prepared.ok_or_else(TableFull::new)?;
    let conn = prepared.handle.rdma_conn();
    let bound = prepared.group().bind(conn, prepared.link, rmb);
    bound.map_err(|_| TableFull::new())
}

pub(crate) async fn connect_link(
    endpoint: &EndpointInner,
    group: GroupId,
    peer: LinkAddress,
    route: Route,
    terms: LinkTerms,
) -> Result<(), DeviceError> {
    let group = endpoint.groups.rdma(group).ok_or(NO_GROUP)?;
    let agreed = if !terms.version.is_v2() {
        links::LlcTerms::V1
    } else if terms.release >= smc_wire::types::Release::V2_1 {
        links::LlcTerms::v2_1(terms.max_links, terms.max_conns)
    } else {
        links::LlcTerms::V2
    };
    group.connect_first(peer, route, agreed).await
}

pub(crate) async fn confirm_link(
    endpoint: &EndpointInner,
    group: GroupId,
) -> Result<(), ConfirmFailure> {
    let group = endpoint.groups.rdma(group);
    let group = group.ok_or(ConfirmFailure::LinkDown)?;
    let confirmed = group.confirm_first().await;
    confirmed.map_err(|error| match error {
        FirstLinkError::TimedOut => ConfirmFailure::TimedOut,
        FirstLinkError::Eyecatchers => ConfirmFailure::Eyecatchers,
        FirstLinkError::LinkDown => ConfirmFailure::LinkDown,
    })
}

const NO_GROUP: DeviceError = DeviceError::Gone("link group has ended");
