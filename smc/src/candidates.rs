//! The ways to a destination: what a connection would use now, and why it would not use the rest.

use std::net::SocketAddr;

use smc_wire::types::{Chid, Gid, RoceGid};

use crate::config::Policy;
use crate::endpoint::EndpointInner;
use crate::error::FallbackCause;
use crate::handshake::handshake_config;
use crate::proto::group::DeviceIndex;
use crate::proto::handshake::{DeviceExclusion, OfferedDevices, TcpPath};

/// A way to a destination, as [`Endpoint::candidates`](crate::Endpoint::candidates) finds it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CandidateInfo {
    /// The address of the destination.
    pub to: SocketAddr,
    /// The transport that would carry the stream.
    pub transport: CandidateTransport,
    /// Why it is not used; `None` if it can be.
    pub excluded: Option<Exclusion>,
}

/// A transport that can carry a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CandidateTransport {
    /// SMC-D.
    #[non_exhaustive]
    SmcD {
        /// Name of the device.
        device: String,
        /// Its GID.
        gid: Gid,
        /// Its fabric.
        chid: Chid,
    },
    /// SMC-R.
    #[non_exhaustive]
    SmcR {
        /// Name of the device.
        device: String,
        /// Number of its port.
        port: u8,
        /// A GID of the port.
        gid: RoceGid,
    },
    /// TCP.
    Tcp,
}

/// Why a way to a destination is not used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Exclusion {
    /// No SMC at all: the policy, or the negotiation has not found a listener that supports SMC.
    #[error(transparent)]
    NoSmc(FallbackCause),
    /// The device or port is not offered on connections to this address.
    #[error(transparent)]
    Device(DeviceExclusion),
    /// TCP alone is excluded: the policy requires SMC.
    #[error("policy is to require SMC")]
    SmcRequired,
}

/// The ways to one address, best first: those that can be used, then those that cannot.
pub(crate) async fn candidates(endpoint: &EndpointInner, to: SocketAddr) -> Vec<CandidateInfo> {
    let policy = endpoint.config.policy.of_destination(&to.into());
    let found = match policy {
        Policy::Never => Err(FallbackCause::Policy),
        _ => endpoint.negotiation.look_up(&endpoint.runtime, to).await,
    };
    let is_same_host = found.as_ref().is_ok_and(|found| found.is_same_host());
    // Without other lengths of buffers there is no error.
    let config =
        handshake_config(endpoint, &to.into(), None).unwrap_or_else(|_| endpoint.base_config());
    let local = endpoint.runtime.source(to);
    let mut path = match (&config.rdma, local) {
        (Some(_), local) => (endpoint.groups).tcp_path(local.map(|local| (local, 0).into()), to),
        (None, Some(local)) => TcpPath::default().with_addresses(local, to.ip()),
        (None, None) => TcpPath::default(),
    };
    path.same_host = is_same_host;
    let offered = OfferedDevices::new(&config, &path);
    let excluded = |by_device: Option<DeviceExclusion>| match &found {
        Ok(_) => by_device.map(Exclusion::Device),
        Err(cause) => Some(Exclusion::NoSmc(cause.clone())),
    };
    let name = |index: DeviceIndex| {
        let driver = endpoint.drivers.get(index.0);
        driver.map_or_else(String::new, |driver| driver.name.to_string())
    };
    let direct = offered.direct.into_iter().map(|(device, by_device)| {
        let transport = CandidateTransport::SmcD {
            device: name(device.index),
            gid: device.gid,
            chid: device.chid,
        };
        (transport, excluded(by_device))
    });
    let rdma = offered.rdma.into_iter().map(|(port, by_device)| {
        let transport = CandidateTransport::SmcR {
            device: name(port.device),
            port: port.address.port,
            gid: port.address.gid,
        };
        (transport, excluded(by_device))
    });
    let requires_smc = (policy == Policy::Require).then_some(Exclusion::SmcRequired);
    let mut all: Vec<_> = direct
        .chain(rdma)
        .chain([(CandidateTransport::Tcp, requires_smc)])
        .collect();
    all.sort_by_key(|(_, excluded)| excluded.is_some());
    let candidate = |(transport, excluded)| CandidateInfo {
        to,
        transport,
        excluded,
    };
    all.into_iter().map(candidate).collect()
}
