//! Early CONFIRM and early data of a client: the work that is done before the handshake requests
//! it.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use smc_wire::clc::{DirectEnd, EarlyRdmaEnd};
use smc_wire::size::SizeCode;
use smc_wire::types::{DmbToken, Features, Gid, Nonce};

use super::work::{self, Prepared, confirm_rkey, prepare_rmb, reach, register};
use crate::device::{Charge, DeviceError, Dmb};
use crate::endpoint::EndpointInner;
use crate::groups::Membership;
use crate::negotiate::{Credentials, ExpectedHandshake};
use crate::precedents::Precedent;
use crate::proto::group::{DeviceIndex, GroupKey, GroupTerms, Member};
use crate::proto::handshake::{
    EARLY_RDMA, EarlyConfirm, EarlyData, Established, HandshakeConfig, LocalRmb, Transport,
};
use crate::proto::links::{EarlyDataHash, LinkChoice};
use crate::random;

/// Work that was done before the handshake requests it, so that a CONFIRM could be sent early. The
/// server may use the connection and end before its answer is read, and with it the link group: by
/// then this side has its buffer and its place.
pub(super) enum EarlyWork {
    Direct(EarlyDirect),
    Rdma(Box<EarlyRdma>),
}

/// For SMC-D.
pub(super) struct EarlyDirect {
    pub(super) device: DeviceIndex,
    pub(super) peer: Gid,
    pub(super) size: SizeCode,
    /// The process whose answer is expected. The peer's device belongs to it, where that is known.
    pub(super) process: Option<Credentials>,
    /// The receive buffer, and the charge for the server's, whose size is the cached one.
    pub(super) buffer: Option<(Arc<dyn Dmb>, Charge)>,
    /// If the link group takes it.
    pub(super) data: Option<EarlyData>,
    pub(super) membership: Option<Membership>,
}

/// For SMC-R, with an RMB that is announced.
pub(super) struct EarlyRdma {
    pub(super) key: GroupKey,
    confirm: EarlyConfirm,
    /// If the link group takes it.
    data: Option<EarlyData>,
    pub(super) prepared: Option<(Prepared, LocalRmb)>,
    // Dropped last: with the last connection its group may end.
    pub(super) membership: Option<Membership>,
}

impl EarlyWork {
    /// Does the work, if the handshake is likely to be like the last one. `data` is that of the
    /// connect.
    pub(super) async fn prepare(
        endpoint: &EndpointInner,
        config: &HandshakeConfig,
        precedent: Option<Precedent>,
        data: Option<&Arc<[u8]>>,
    ) -> Option<Self> {
        match precedent? {
            Precedent::Direct(expected) => {
                let early = prepare_direct(endpoint, config, expected, data).await?;
                Some(Self::Direct(early))
            }
            Precedent::Rdma(key) => {
                let early = Box::pin(prepare_rdma(endpoint, config, key, data)).await?;
                Some(Self::Rdma(Box::new(early)))
            }
        }
    }

    /// The buffer of SMC-D.
    pub(super) fn buffer(&self) -> Option<DmbToken> {
        match self {
            Self::Direct(early) => early.buffer.as_ref().map(|(dmb, _)| dmb.token()),
            Self::Rdma(_) => None,
        }
    }

    /// The early data that the PROPOSAL can have with it.
    pub(super) fn data(&self) -> Option<&EarlyData> {
        match self {
            Self::Direct(early) => early.data.as_ref(),
            Self::Rdma(early) => early.data.as_ref(),
        }
    }

    /// The CONFIRM that a PROPOSAL can have.
    pub(super) fn confirm(&self, config: &HandshakeConfig) -> Option<EarlyConfirm> {
        match self {
            Self::Rdma(early) => Some(early.confirm),
            Self::Direct(early) => {
                let mut devices = config.devices.iter();
                let device = devices.find(|device| device.index == early.device)?;
                let (dmb, _charge) = early.buffer.as_ref()?;
                Some(EarlyConfirm::Direct {
                    peer: early.peer,
                    end: DirectEnd {
                        gid: device.gid,
                        chid: device.chid,
                        dmb: dmb.token(),
                        dmbe_index: 0,
                        size: early.size,
                        group: early.membership.as_ref()?.member.group(),
                    },
                })
            }
        }
    }
}

/// Joins the link group and registers a buffer.
async fn prepare_direct(
    endpoint: &EndpointInner,
    config: &HandshakeConfig,
    expected: ExpectedHandshake,
    data: Option<&Arc<[u8]>>,
) -> Option<EarlyDirect> {
    let ExpectedHandshake {
        client,
        server,
        process,
        size,
        server_size,
    } = expected;
    let mut devices = config.devices.iter();
    let device = devices.find(|device| device.gid == client)?;
    if size != config.client_buffer(device, server_size) {
        return None;
    }
    let device = device.index;
    let membership = endpoint.groups.join_now(GroupKey::Direct {
        device,
        peer: server,
    })?;
    let Member::Joined { terms, .. } = membership.member else {
        return None;
    };
    if !terms.vendor_features.contains(Features::EARLY_CONFIRM) {
        return None;
    }
    let registering = async {
        reach(endpoint, device, server, process).await?;
        register(endpoint, device, server, size, server_size).await
    };
    let registered: Result<_, DeviceError> = at_once(registering).await?;
    Some(EarlyDirect {
        device,
        peer: server,
        size,
        process,
        buffer: Some(registered.ok()?),
        data: early_data(&terms, data)?,
        membership: Some(membership),
    })
}

/// Joins the link group and takes an RMB that is announced already.
async fn prepare_rdma(
    endpoint: &EndpointInner,
    config: &HandshakeConfig,
    key: GroupKey,
    data: Option<&Arc<[u8]>>,
) -> Option<EarlyRdma> {
    let membership = endpoint.groups.join_now(key)?;
    let Member::Joined { group, terms } = membership.member else {
        return None;
    };
    let rdma = endpoint.groups.rdma(group)?;
    if !terms.vendor_features.contains(EARLY_RDMA) {
        return None;
    }
    if !rdma.pool.has_announced(config.rmb) {
        rdma.announce_another(config.rmb);
        return None;
    }
    let preparing = prepare_rmb(endpoint, group, LinkChoice::Assign, config.rmb, 0);
    let (prepared, local) = at_once(preparing).await?.ok()?;
    at_once(confirm_rkey(Some(&prepared))).await?.ok()?;
    let link = rdma.link(prepared.link)?.number;
    let end = local.end(config);
    let data = early_data(&terms, data)?;
    let hash = data
        .as_ref()
        .map_or_else(EarlyDataHash::of_none, EarlyData::hash);
    let confirm = EarlyConfirm::Rdma {
        key,
        end: EarlyRdmaEnd { end, link },
        authentication: rdma.authenticate_early(&prepared.named, hash)?,
    };
    Some(EarlyRdma {
        key,
        confirm,
        data,
        prepared: Some((prepared, local)),
        membership: Some(membership),
    })
}

/// The data of a connect that a PROPOSAL in this link group can have. `None` if there is no nonce
/// for it.
fn early_data(terms: &GroupTerms, data: Option<&Arc<[u8]>>) -> Option<Option<EarlyData>> {
    let takes_data = terms.vendor_features.contains(Features::EARLY_DATA);
    let Some(bytes) = data.filter(|data| takes_data && !data.is_empty()) else {
        return Some(None);
    };
    Some(Some(EarlyData {
        nonce: Nonce::from_bytes(random::bytes().ok()?),
        bytes: Arc::clone(bytes),
    }))
}

/// The result if there is one without waiting: the peer may be stopped, and no timeout is running
/// yet.
async fn at_once<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    match poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx))).await {
        Poll::Ready(done) => Some(done),
        Poll::Pending => None,
    }
}

/// What an established handshake lets expect of the next one, if the server takes an early CONFIRM
/// then. `process` is at its end, where that is known.
pub(super) fn precedent(
    endpoint: &EndpointInner,
    established: &Established,
    process: Option<Credentials>,
) -> Option<Precedent> {
    let features = established.group_features;
    let is_of_use = |early| features.contains(Features::FAST_OPEN) || features.contains(early);
    match &established.transport {
        Transport::Direct(params) if is_of_use(Features::EARLY_CONFIRM) => {
            let device = work::direct(endpoint, params.device).ok()?;
            Some(Precedent::Direct(ExpectedHandshake {
                client: device.gid(),
                server: params.peer,
                process,
                size: params.local_size,
                server_size: params.peer_buffer.size,
            }))
        }
        Transport::Rdma(_) if is_of_use(EARLY_RDMA) => {
            let group = endpoint.groups.info(established.group)?;
            Some(Precedent::Rdma(group.key))
        }
        Transport::Direct(_) | Transport::Rdma(_) => None,
    }
}

/// Whether the PROPOSAL can be data of the SYN: there is a link group with the server that takes
/// such.
pub(super) fn has_fast_open(
    endpoint: &EndpointInner,
    config: &HandshakeConfig,
    precedent: Precedent,
) -> bool {
    let key = match precedent {
        Precedent::Rdma(key) => key,
        Precedent::Direct(expected) => {
            let mut devices = config.devices.iter();
            let Some(device) = devices.find(|device| device.gid == expected.client) else {
                return false;
            };
            GroupKey::Direct {
                device: device.index,
                peer: expected.server,
            }
        }
    };
    let terms = endpoint.groups.terms(key);
    terms.is_some_and(|terms| terms.vendor_features.contains(Features::FAST_OPEN))
}
