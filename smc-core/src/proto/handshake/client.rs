//! The part of a handshake that only a client has: the device search, the PROPOSAL, and the check
//! of ACCEPT.

use core::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use smc_wire::Bounded;
use smc_wire::clc::{
    AcceptConfirm, Authentication, Body, DirectEnd, DirectExtension, Extensions, FirstContact,
    IpArea, Ipv6Prefix, OfferedDevice, Proposal, RdmaEnd, SmcdArea, V2Extension,
};
use smc_wire::size::SizeCode;
use smc_wire::types::{
    Chid, Eid, FeatureMask, Features, Gid, IsmGid, Mac, OfferedTypes, PeerId, Release, RoceGid,
    Version,
};

use super::attempt::{DeviceAttempt, DirectEnds, Ends, RdmaEnds, common_features, features_at};
use super::config::{mask_v4, mask_v6};
use super::decline::SearchedDevices;
use super::early::{PER_CONNECTION, SentEarly};
use super::machine::{Failure, RoleState, emitted};
use super::rdma_port::LinkLimits;
use super::steps::{ACCEPT, CLIENT_DIRECT, CLIENT_RDMA};
use super::{
    DeclineCause, DeviceExclusion, DirectDevice, EarlyConfirm, EarlyData, Handshake,
    HandshakeConfig, Interface, PeerBuffer, RdmaConfig, RdmaPort, Subnet, TcpPath,
};
use crate::device::Route;
use crate::error::{FallbackReason, PeerMisbehaved};
use crate::proto::Role;
use crate::proto::group::{GroupKey, Intent};
use crate::proto::links::AuthenticatedPart;

impl HandshakeConfig {
    /// Size of a client's receive buffer of SMC-D. The server needs memory for it as well, and has
    /// stated how much it spends on a buffer.
    #[must_use]
    pub fn client_buffer(&self, device: &DirectDevice, server: SizeCode) -> SizeCode {
        self.buffer.min(device.max_buffer).min(server)
    }

    /// Whether the host has a device for SMC-D v2.
    #[must_use]
    pub fn is_v2_capable(&self) -> bool {
        self.devices.iter().any(|device| !device.chid.is_none())
    }

    /// Whether the PROPOSAL for this path is that for the default one.
    #[must_use]
    pub fn has_default_proposal(&self, path: &TcpPath) -> bool {
        let is_within_reach = |device: &DirectDevice| path.is_within_reach(device.chid);
        let is_default = self.rdma.is_none() && !self.v1 && !path.ipsec;
        is_default && self.devices.iter().all(is_within_reach)
    }
}

/// The outcome of a client's device search, and the PROPOSAL for it.
///
/// It is made before the machine: for [`Handshake::client_with`](super::Handshake::client_with),
/// which sends the PROPOSAL, or for
/// [`Handshake::client_delivered`](super::Handshake::client_delivered), after a side channel has
/// delivered it.
#[derive(Clone, Debug)]
pub struct ClientProposal {
    /// The native device, which the PROPOSAL has outside of the GID list: that of SMC-D v1.
    pub(super) native: Option<DirectDevice>,
    /// Devices of SMC-D v2, all with different CHIDs, the native one first if it has a CHID.
    direct_v2: Vec<DirectDevice>,
    /// The port for SMC-R v1.
    rdma_v1: Option<RdmaPort>,
    /// The port for SMC-R v2.
    rdma_v2: Option<RdmaPort>,
    types: [OfferedTypes; 2],
    pub(super) release: Release,
    proposal: Proposal,
    bytes: Vec<u8>,
}

impl ClientProposal {
    /// Searches for devices and makes the PROPOSAL.
    ///
    /// # Errors
    ///
    /// The reason why there is nothing to offer. It is sent as a DECLINE in the place of the
    /// PROPOSAL, if the server expects one on TCP.
    pub fn new(config: &HandshakeConfig, path: &TcpPath) -> Result<Self, FallbackReason> {
        if path.ipsec {
            return Err(DeclineCause::IPSEC.into());
        }
        let found = DeviceSearch::new(config, path);
        found.check(config, path)?;
        let types = [
            OfferedTypes::of(found.rdma_v1.is_some(), found.native.is_some()),
            OfferedTypes::of(found.rdma_v2.is_some(), found.has_direct_v2()),
        ];
        let [v1, v2] = types;
        let (peer_id, gid, mac) = found.rdma_ends(config);
        let proposal = Proposal {
            version: Version::V2,
            v1,
            v2,
            peer_id,
            gid,
            mac,
            smcd: Some(
                SmcdArea {
                    gid: found.native.map_or(IsmGid::ZERO, |device| device.gid.hi()),
                    chid: found.native.map_or(Chid::NONE, |device| device.chid),
                    ..SmcdArea::default()
                }
                .with_vendor_features(offered_features(config, &found)),
            ),
            ip: found.ip.clone(),
            ext: (!v2.is_neither()).then(|| v2_extension(config, &found)),
        };
        let bytes = emitted(proposal.encoded_len(), |buffer| proposal.emit(buffer))
            .ok_or(DeclineCause::UNWRITABLE)?;
        let direct_v2 = found
            .native
            .into_iter()
            .chain(found.listed())
            .filter(|device| !device.chid.is_none())
            .collect();
        Ok(Self {
            native: found.native,
            direct_v2,
            rdma_v1: found.rdma_v1.cloned(),
            rdma_v2: found.rdma_v2.cloned(),
            types,
            release: config.release,
            proposal,
            bytes,
        })
    }

    /// The PROPOSAL.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// What the PROPOSAL says.
    pub(super) const fn proposal(&self) -> &Proposal {
        &self.proposal
    }

    /// The device that the server means in an ACCEPT of version 2.
    pub(super) fn v2_device(&self, chid: Chid) -> Option<DirectDevice> {
        self.direct_v2
            .iter()
            .copied()
            .find(|device| device.chid == chid)
    }

    /// Whether it can have this early CONFIRM: one for SMC-D is of a device that is offered.
    #[must_use]
    pub fn goes_with(&self, confirm: &EarlyConfirm) -> bool {
        match confirm {
            EarlyConfirm::Direct { end, .. } => {
                let device = self.v2_device(end.chid);
                device.is_some_and(|device| device.gid == end.gid)
            }
            EarlyConfirm::Rdma { .. } => true,
        }
    }

    /// The port that was offered.
    pub(super) fn rdma_port(&self, version: Version) -> Option<&RdmaPort> {
        if version.is_v2() {
            self.rdma_v2.as_ref()
        } else {
            self.rdma_v1.as_ref()
        }
    }

    /// The types that are offered in this version.
    pub(super) fn types(&self, version: Version) -> OfferedTypes {
        let [v1, v2] = self.types;
        if version.is_v2() { v2 } else { v1 }
    }
}

/// The outcome of the device search.
struct DeviceSearch<'a> {
    /// The native device: that of SMC-D v1.
    native: Option<DirectDevice>,
    /// All devices of SMC-D, with why they are not offered in version 2 besides the native one.
    listed: Vec<ListedDevice>,
    /// The same for the PROPOSAL.
    direct: DirectExtension,
    rdma_v1: Option<&'a RdmaPort>,
    rdma_v2: Option<&'a RdmaPort>,
    /// Version 1 would be offered if the subnets were known.
    lacks_subnets: bool,
    /// There if version 1 is offered.
    ip: Option<IpArea>,
}

impl<'a> DeviceSearch<'a> {
    fn new(config: &'a HandshakeConfig, path: &TcpPath) -> Self {
        let rdma = config.rdma.as_ref();
        let features = config.client_features();
        let port = |version| rdma.and_then(|rdma| rdma.port(version, path, features));
        let (native, rdma_v1) = (config.v1_device(path).copied(), port(Version::V1));
        let wants_v1 = native.is_some() || rdma_v1.is_some();
        // Version 1 needs the subnets, or it is not offered.
        let ip = path
            .interface
            .as_ref()
            .filter(|_| wants_v1)
            .and_then(|interface| ip_area(interface, path.local));
        let native = native.filter(|_| ip.is_some());
        let (listed, direct) = listed_devices(config, path, native.as_ref());
        Self {
            native,
            listed,
            direct,
            rdma_v1: rdma_v1.filter(|_| ip.is_some()),
            rdma_v2: port(Version::V2).filter(|_| !config.ueids.is_empty()),
            lacks_subnets: wants_v1 && ip.is_none(),
            ip,
        }
    }

    /// Why there is nothing to offer, if so.
    fn check(&self, config: &HandshakeConfig, path: &TcpPath) -> Result<(), DeclineCause> {
        let has_v1 = self.native.is_some() || self.rdma_v1.is_some();
        if has_v1 || self.has_direct_v2() || self.rdma_v2.is_some() {
            Ok(())
        } else if self.lacks_subnets {
            Err(DeclineCause::NO_SUBNETS)
        } else {
            let cause = config.no_offer_cause(path);
            Err(DeclineCause::NoDevice(SearchedDevices::Any, Some(cause)))
        }
    }

    /// Devices of SMC-D v2 besides the native one.
    fn listed(&self) -> impl Iterator<Item = DirectDevice> + '_ {
        let offered = self
            .listed
            .iter()
            .filter(|(_, excluded)| excluded.is_none());
        offered.map(|(device, _)| *device)
    }

    fn has_direct_v2(&self) -> bool {
        self.native.is_some() || self.listed().next().is_some()
    }

    /// Peer ID, GID and MAC. Linux leaves them zero without SMC-R v1, but its servers tell clients
    /// apart by the peer ID, and send to the MAC, in version 2 too.
    fn rdma_ends(&self, config: &HandshakeConfig) -> (PeerId, RoceGid, Mac) {
        match (&config.rdma, self.rdma_v1.or(self.rdma_v2)) {
            (Some(rdma), Some(port)) => (rdma.peer_id, port.address.gid, port.address.mac),
            _ => (PeerId::ZERO, RoceGid::ZERO, Mac::ZERO),
        }
    }
}

/// A device of SMC-D, and why it is not in the GID list.
type ListedDevice = (DirectDevice, Option<DeviceExclusion>);

/// Devices for the GID list: on a network that the host is connected to, on a fabric that the peer
/// may be on, one per CHID, and not the native one, which has its own place.
fn listed_devices(
    config: &HandshakeConfig,
    path: &TcpPath,
    native: Option<&DirectDevice>,
) -> (Vec<ListedDevice>, DirectExtension) {
    let mut direct = DirectExtension {
        seid: config.seid.unwrap_or(Eid::ZERO),
        ..DirectExtension::default()
    };
    let mut listed = Vec::<ListedDevice>::new();
    for device in &config.devices {
        let &DirectDevice { gid, chid, .. } = device;
        let offered = listed.iter().filter(|(_, excluded)| excluded.is_none());
        let mut offered = native.into_iter().chain(offered.map(|(device, _)| device));
        let excluded = if chid.is_none() {
            Some(DeviceExclusion::NoV1)
        } else if device
            .pnet_id
            .is_some_and(|id| !config.pnet_ids.contains(&id))
        {
            Some(DeviceExclusion::OtherPnetId)
        } else if offered.any(|other| other.chid == chid) {
            Some(DeviceExclusion::SameFabric)
        } else if !path.is_within_reach(chid) {
            Some(DeviceExclusion::OtherHost)
        } else {
            let added = direct.push_device(OfferedDevice { gid, chid });
            added.is_err().then_some(DeviceExclusion::Full)
        };
        listed.push((*device, excluded));
    }
    (listed, direct)
}

/// The devices and ports of a host, and why those that are not offered on a connection are not.
#[derive(Clone, Debug)]
pub struct OfferedDevices {
    /// SMC-D, in order of preference.
    pub direct: Vec<(DirectDevice, Option<DeviceExclusion>)>,
    /// SMC-R, likewise.
    pub rdma: Vec<(RdmaPort, Option<DeviceExclusion>)>,
}

impl OfferedDevices {
    /// As [`ClientProposal::new`] chooses them. Whether IPsec applies is not considered.
    #[must_use]
    pub fn new(config: &HandshakeConfig, path: &TcpPath) -> Self {
        let found = DeviceSearch::new(config, path);
        let excluded = |(device, excluded): ListedDevice| {
            let is_native = found
                .native
                .is_some_and(|native| native.index == device.index);
            (device, excluded.filter(|_| !is_native))
        };
        let is = |port: &RdmaPort, offered: Option<&RdmaPort>| offered == Some(port);
        let port_excluded = |port: &RdmaPort| {
            if is(port, found.rdma_v2) || is(port, found.rdma_v1) {
                return None;
            }
            if path.vlan_unknown {
                return Some(DeviceExclusion::VlanUnknown);
            }
            let mismatch = port.mismatch(Version::V2, path, config.client_features());
            mismatch.or(Some(match config.ueids.is_empty() {
                true => DeviceExclusion::NoUeid,
                false => DeviceExclusion::OtherPort,
            }))
        };
        let ports = config.rdma.iter().flat_map(|rdma| &rdma.ports);
        Self {
            direct: found.listed.iter().copied().map(excluded).collect(),
            rdma: ports
                .map(|port| (port.clone(), port_excluded(port)))
                .collect(),
        }
    }
}

fn v2_extension(config: &HandshakeConfig, found: &DeviceSearch<'_>) -> V2Extension {
    let limits = config
        .rdma
        .as_ref()
        .filter(|_| found.rdma_v2.is_some() && config.release >= Release::V2_1)
        .map_or_else(LinkLimits::default, RdmaConfig::limits);
    V2Extension {
        release: config.release,
        has_seid: config.seid.is_some() && found.has_direct_v2(),
        gid: found.rdma_v2.map_or(RoceGid::ZERO, |port| port.address.gid),
        max_conns: limits.conns,
        max_links: limits.links,
        features: config.features_for(config.release),
        ueids: Bounded::from_iter_lossy(config.ueids.iter().copied()),
        direct: found.has_direct_v2().then(|| found.direct.clone()),
    }
}

/// The IP area of version 1: the subnet of the local address (IPv4), or up to eight prefixes.
fn ip_area(interface: &Interface, local: Option<IpAddr>) -> Option<IpArea> {
    let is_of = |subnet: &&Subnet| local.is_none_or(|local| subnet.contains(local));
    let first = match local {
        Some(IpAddr::V6(_)) => interface
            .subnets
            .iter()
            .find(|s| matches!(s, Subnet::V6(..))),
        _ => interface.subnets.iter().find(is_of),
    };
    if let Subnet::V4(address, len) = *first? {
        return Some(IpArea::v4(address & mask_v4(len), len));
    }
    let prefixes = interface.subnets.iter().filter_map(|subnet| match *subnet {
        Subnet::V6(address, prefix_len) => Some(Ipv6Prefix {
            prefix: address & mask_v6(prefix_len),
            prefix_len,
        }),
        Subnet::V4(..) => None,
    });
    Some(IpArea::v6(Bounded::from_iter_lossy(prefixes)))
}

/// Whether a server's interface is in one of the client's subnets: same length and same prefix.
pub(super) fn is_same_subnet(area: &IpArea, interface: &Interface) -> bool {
    interface.subnets.iter().any(|subnet| match *subnet {
        Subnet::V4(address, len) => {
            let mask = mask_v4(len);
            area.prefixes.is_empty()
                && area.prefix_len == len
                && area.subnet & mask == address & mask
        }
        Subnet::V6(address, len) => area.prefixes.iter().any(|offered| {
            let mask = mask_v6(len);
            offered.prefix_len == len && offered.prefix & mask == address & mask
        }),
    })
}

/// The features beyond the released protocol that an offer states: those of SMC-R go with SMC-R,
/// those of SMC-D with SMC-D, and all with version 2.
fn offered_features(config: &HandshakeConfig, found: &DeviceSearch<'_>) -> Features {
    let mut own = features_at(found.rdma_v2, config.client_features());
    if !found.has_direct_v2() {
        own.remove(Features::SOCKET_REUSE);
    }
    if found.rdma_v2.is_none() && !found.has_direct_v2() {
        return own.difference(PER_CONNECTION);
    }
    own
}

/// The address that a peer's device has in messages of version 1: 64 bits.
pub(super) fn v1_gid(gid: Gid) -> Gid {
    Gid::from(gid.hi())
}

impl Handshake {
    /// The client's side (docs/spec/handshake.md#client): searches for devices and sends the
    /// PROPOSAL, or a DECLINE if there is nothing to offer.
    ///
    /// To be made when the TCP connection is there and it is known that the server supports SMC; if
    /// it does not, the stream is TCP without a handshake.
    #[must_use]
    pub fn client(now: Instant, config: Arc<HandshakeConfig>, path: &TcpPath) -> Self {
        let proposal = ClientProposal::new(&config, path).map(Arc::new);
        Self::client_with(now, config, proposal)
    }

    /// As [`Handshake::client`] with a PROPOSAL that exists, or the reason why there is none.
    #[must_use]
    pub fn client_with(
        now: Instant,
        config: Arc<HandshakeConfig>,
        proposal: Result<Arc<ClientProposal>, FallbackReason>,
    ) -> Self {
        let mut handshake = Self::of_client(now, config, proposal.clone().ok(), None);
        match proposal {
            Ok(proposal) => handshake.send(proposal.bytes().to_vec()),
            Err(reason) => handshake.conclude(Err(Failure::decline(reason))),
        }
        handshake
    }

    /// As [`Handshake::client_with`], with an early CONFIRM, and early data if there is some. The
    /// server is known to support that, as the terms of the link group say
    /// ([`GroupTerms::vendor_features`](crate::proto::group::GroupTerms)): others refuse the
    /// PROPOSAL.
    #[must_use]
    pub fn client_with_early_confirm(
        now: Instant,
        config: Arc<HandshakeConfig>,
        proposal: Arc<ClientProposal>,
        confirm: EarlyConfirm,
        data: Option<&EarlyData>,
    ) -> Self {
        let data = data.filter(|data| !data.bytes.is_empty());
        let Some(bytes) = proposal.with_early(&confirm, data) else {
            return Self::client_with(now, config, Ok(proposal));
        };
        let early = SentEarly {
            confirm,
            data: data.map_or(0, |data| data.bytes.len()),
        };
        let mut handshake = Self::of_client(now, config, Some(proposal), Some(early));
        // As it is sent: the server makes the key of a new link group of it as well.
        handshake.record(&bytes);
        handshake.send(bytes);
        handshake
    }

    /// Goes on after the PROPOSAL has reached the server on a side channel.
    ///
    /// Such a client sends nothing before it has received a message: that the server answers is
    /// the proof that it supports SMC.
    #[must_use]
    pub fn client_delivered(
        now: Instant,
        config: Arc<HandshakeConfig>,
        proposal: Arc<ClientProposal>,
    ) -> Self {
        Self::of_client(now, config, Some(proposal), None)
    }

    fn of_client(
        now: Instant,
        config: Arc<HandshakeConfig>,
        proposal: Option<Arc<ClientProposal>>,
        early: Option<SentEarly>,
    ) -> Self {
        // Before the server has shown its version, a DECLINE has the one that was offered.
        let version = match config.is_v2_capable() {
            true => Version::V2,
            false => Version::V1,
        };
        let role_state = RoleState::Client { proposal, early };
        let mut handshake = Self::new(now, config, role_state, version);
        let begun = handshake.begin(&ACCEPT);
        handshake.conclude(begun);
        handshake
    }

    /// The server's choice.
    pub(super) fn handle_accept(
        &mut self,
        accept: &AcceptConfirm,
        extensions: &Extensions<'_>,
    ) -> Result<(), Failure> {
        let RoleState::Client {
            proposal: Some(proposal),
            early,
        } = &self.role_state
        else {
            return Err(PeerMisbehaved::UnexpectedMessage.into());
        };
        let early = *early;
        self.version = accept.version();
        let offered = proposal.types(self.version);
        let is_offered = match accept.body {
            Body::D(_) => offered.has_d(),
            Body::R(_) => offered.has_r(),
        };
        if !is_offered {
            return Err(Failure::decline(DeclineCause::UNOFFERED_CHOICE));
        }
        // Not a release that could be confirmed.
        let stated = accept.first_contact();
        if stated.is_some_and(|stated| stated.release > proposal.release) {
            return Err(Failure::decline(DeclineCause::RELEASE));
        }
        let mut attempt = match &accept.body {
            Body::D(end) => direct_attempt(accept, end, proposal, &self.config)?,
            Body::R(end) => {
                let number = early.map_or(0, |early| early.number());
                let authentication = authenticated(extensions, number);
                rdma_attempt(accept, end, authentication, proposal, &self.config)?
            }
        };
        let in_use = extensions.features.unwrap_or_default();
        if in_use.intersects(PER_CONNECTION) {
            let early = early.filter(|early| early.is_for(&attempt));
            let early = early.ok_or(PeerMisbehaved::UnexpectedMessage)?;
            let has_data = in_use.contains(Features::EARLY_DATA);
            let has_sent = early.data > 0 && attempt.has_space(early.data);
            if !in_use.contains(Features::EARLY_CONFIRM) || (has_data && !has_sent) {
                return Err(PeerMisbehaved::UnexpectedMessage.into());
            }
            if let EarlyConfirm::Direct { end, .. } = early.confirm {
                attempt.size = end.size;
            }
            attempt.early_data = if has_data { early.data } else { 0 };
            attempt.in_use = in_use & PER_CONNECTION;
            self.is_early_taken = true;
        }
        self.rest = match attempt.ends {
            Ends::Direct(_) => CLIENT_DIRECT,
            Ends::Rdma(_) => CLIENT_RDMA,
        };
        self.attempt = Some(attempt);
        self.advance()
    }
}

/// The authentication of ACCEPT or CONFIRM, which covers what they state to be in use. `early`:
/// number of the early CONFIRM that the client has sent, in the case of ACCEPT.
pub(super) fn authenticated(
    extensions: &Extensions<'_>,
    early: u64,
) -> Option<(Authentication, AuthenticatedPart)> {
    let in_use = extensions.features.unwrap_or_default() & PER_CONNECTION;
    let part = AuthenticatedPart::InUse(in_use, early);
    Some((extensions.authentication?, part))
}

/// SMC-D with the device that the server means.
fn direct_attempt(
    accept: &AcceptConfirm,
    end: &DirectEnd,
    proposal: &ClientProposal,
    config: &HandshakeConfig,
) -> Result<DeviceAttempt, Failure> {
    let device = if accept.version().is_v2() {
        let device = proposal.v2_device(end.chid);
        device.ok_or(PeerMisbehaved::SelectedUnofferedDevice)?
    } else {
        proposal
            .native
            .ok_or_else(|| Failure::decline(DeclineCause::UNOFFERED_CHOICE))?
    };
    let key = GroupKey::Direct {
        device: device.index,
        peer: end.gid,
    };
    let ends = Ends::Direct(DirectEnds {
        peer_buffer: Some(PeerBuffer::new(end.dmb, end.dmbe_index, end.size)),
        ..DirectEnds::new(device, end.gid)
    });
    Ok(DeviceAttempt {
        size: config.client_buffer(&device, end.size),
        ..attempt(accept, key, ends, config)
    })
}

/// SMC-R with the offered port.
fn rdma_attempt(
    accept: &AcceptConfirm,
    end: &RdmaEnd,
    authentication: Option<(Authentication, AuthenticatedPart)>,
    proposal: &ClientProposal,
    config: &HandshakeConfig,
) -> Result<DeviceAttempt, Failure> {
    let (version, stated) = (accept.version(), accept.first_contact());
    let port = proposal.rdma_port(version);
    let port = port.ok_or_else(|| Failure::decline(DeclineCause::UNOFFERED_CHOICE))?;
    if version.is_v2() && !port.address.is_of_family(end.gid) {
        return Err(Failure::decline(DeclineCause::NO_ROUTE));
    }
    let rdma = config.rdma.as_ref();
    let own_route = rdma.and_then(|rdma| rdma.route(port, version, end.gid));
    let mut ends = RdmaEnds {
        route: route(stated, own_route).map_err(Failure::decline)?,
        limits: limits(stated).map_err(Failure::decline)?,
        port: port.clone(),
        proposed: None,
        early: None,
        local: None,
        peer: None,
    };
    ends.set_peer(end, authentication)?;
    let key = GroupKey::Rdma {
        role: Role::Client,
        version,
        peer: end.peer_id,
        gid: end.gid,
        mac: (!version.is_v2()).then_some(end.mac),
        vlan: 0,
        client: None,
        authenticates: false,
        qpn: Some(end.qpn),
    };
    let attempt = DeviceAttempt {
        size: config.rmb,
        ..attempt(accept, key, Ends::Rdma(Box::new(ends)), config)
    };
    let has_ipv6 = attempt.vendor_features.contains(Features::RDMA_IPV6);
    if stated.is_some() && port.is_ipv6() && !has_ipv6 {
        return Err(Failure::decline(DeclineCause::UNOFFERED_CHOICE));
    }
    Ok(attempt)
}

fn attempt(
    accept: &AcceptConfirm,
    key: GroupKey,
    ends: Ends,
    config: &HandshakeConfig,
) -> DeviceAttempt {
    let stated = accept.first_contact();
    let both = |stated: &FirstContact| stated.features & config.features_for(stated.release);
    let stated_features = stated.map_or(Features::empty(), FirstContact::vendor_features);
    let release = stated.map_or(Release::V2_0, |stated| stated.release);
    DeviceAttempt {
        role: Role::Client,
        version: accept.version(),
        eid: accept.eid(),
        release,
        features: stated.map_or(FeatureMask::empty(), both),
        vendor_features: common_features(config, release, stated_features, &ends),
        in_use: Features::empty(),
        early_data: 0,
        peer_host: stated.map(|stated| (stated.os, stated.host)),
        key,
        // Whether the link group is new is the server's decision.
        intent: match accept.is_first_contact() {
            true => Intent::Create,
            false => Intent::Join,
        },
        member: None,
        size: config.buffer,
        ends,
    }
}

/// How the server is reached. That both sides agree on it is checked at first contact only.
fn route(stated: Option<&FirstContact>, route: Option<Route>) -> Result<Route, DeclineCause> {
    match (stated, route) {
        (Some(stated), _) if stated.v2_direct => Ok(Route::SameSubnet),
        (Some(_), None) => Err(DeclineCause::NO_ROUTE),
        (Some(_), Some(Route::SameSubnet)) => Err(DeclineCause::OTHER_ROUTE),
        (_, route) => Ok(route.unwrap_or(Route::SameSubnet)),
    }
}

/// The limits of the new link group (docs/spec/handshake.md#negotiation).
fn limits(stated: Option<&FirstContact>) -> Result<Option<LinkLimits>, DeclineCause> {
    let Some(stated) = stated.filter(|stated| stated.release >= Release::V2_1) else {
        return Ok(None);
    };
    if stated.max_conns < RdmaConfig::MIN_CONNS {
        return Err(DeclineCause::MAX_CONNS);
    }
    if !(1..=RdmaConfig::MAX_LINKS).contains(&stated.max_links) {
        return Err(DeclineCause::MAX_LINKS);
    }
    Ok(Some(LinkLimits {
        conns: stated.max_conns,
        links: stated.max_links,
    }))
}
