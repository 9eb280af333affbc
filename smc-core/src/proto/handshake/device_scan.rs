//! The server's choice: what of a PROPOSAL it can use, and which devices to try in which order.

use std::collections::VecDeque;

use smc_wire::clc::{Proposal, SmcdArea};
use smc_wire::types::{Eid, Features, Gid, Release, RoceGid, Version};

use super::attempt::{DeviceAttempt, DirectEnds, Ends, RdmaEnds, common_features};
use super::client::{is_same_subnet, v1_gid};
use super::decline::SearchedDevices;
use super::early::{ReceivedEarly, ReceivedEarlyData};
use super::rdma_port::LinkLimits;
use super::{
    DeclineCause, DirectDevice, HandshakeConfig, PeerBuffer, RdmaConfig, RdmaPort, TcpPath,
};
use crate::device::{DeviceError, Route};
use crate::error::{FallbackCause, FallbackReason, SetupStep};
use crate::proto::Role;
use crate::proto::group::{DeviceIndex, GroupKey, Intent};

/// The device scan of a server (docs/spec/handshake.md#device-scan).
#[derive(Debug)]
pub(super) struct DeviceScan {
    proposal: Proposal,
    early: ReceivedEarly,
    path: TcpPath,
    screened: Screened,
    release: Release,
    eid: Option<Eid>,
    stage: Stage,
    /// Everything was tried.
    is_exhausted: bool,
    pairs: VecDeque<DevicePair>,
    /// The one that is tried.
    pair: Option<DevicePair>,
    /// Local devices that an entry of the offer has claimed; each serves only one.
    claimed: Vec<DeviceIndex>,
    reason: Option<FallbackReason>,
    /// Why a device that is otherwise suitable cannot be used.
    blocking_cause: Option<Box<FallbackCause>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    DirectV2,
    DirectV1,
    RdmaV2,
    RdmaV1,
}

/// A local device and the peer's device that it may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct DevicePair {
    device: DirectDevice,
    peer: Gid,
    version: Version,
    /// The EID if version 2 is used.
    eid: Option<Eid>,
    /// Which entry of the offer.
    entry: usize,
}

impl DeviceScan {
    /// Screens a PROPOSAL.
    ///
    /// # Errors
    ///
    /// The cause of a DECLINE.
    pub(super) fn new(
        proposal: Proposal,
        early: ReceivedEarly,
        config: &HandshakeConfig,
        path: TcpPath,
    ) -> Result<Self, DeclineCause> {
        if path.ipsec {
            return Err(DeclineCause::IPSEC);
        }
        let screened = screen(&proposal, config)?;
        let offered = proposal
            .ext
            .as_ref()
            .map_or(Release::V2_0, |ext| ext.release);
        let release = offered.min(config.release);
        check_limits(&proposal, screened, release)?;

        let eid = common_eid(&proposal, config);
        let mut scan = Self {
            proposal,
            early,
            path,
            screened,
            release,
            eid,
            stage: Stage::DirectV2,
            is_exhausted: false,
            pairs: VecDeque::new(),
            pair: None,
            claimed: Vec::new(),
            reason: None,
            blocking_cause: None,
        };
        if screened.d_v2 {
            scan.pairs = scan.v2_pairs(config);
        }
        Ok(scan)
    }

    /// The client's early data.
    pub(super) fn into_early_data(self) -> Option<ReceivedEarlyData> {
        self.early.data
    }

    /// An attempt with the next device.
    ///
    /// # Errors
    ///
    /// Nothing is left: the reason to decline with.
    pub(super) fn next(
        &mut self,
        config: &HandshakeConfig,
    ) -> Result<DeviceAttempt, FallbackReason> {
        loop {
            while let Some(pair) = self.pairs.pop_front() {
                if !self.claimed.contains(&pair.device.index) {
                    self.pair = Some(pair);
                    return Ok(self.direct(pair, config));
                }
            }
            match self.stage {
                Stage::DirectV2 => {
                    if self.screened.d_v2 && self.claimed.is_empty() {
                        self.record_reason(
                            self.without_device(SearchedDevices::Direct(Version::V2)),
                        );
                    }
                    self.enter_v1(config)?;
                }
                Stage::DirectV1 => {
                    if self.wants_direct_v1() && self.claimed_in_v1().is_none() {
                        self.record_reason(
                            self.without_device(SearchedDevices::Direct(Version::V1)),
                        );
                    }
                    self.enter_rdma()?;
                }
                Stage::RdmaV2 => {
                    self.stage = Stage::RdmaV1;
                    if let Some(found) = self.rdma_v2(config) {
                        return Ok(found);
                    }
                }
                Stage::RdmaV1 => {
                    let is_first = !std::mem::replace(&mut self.is_exhausted, true);
                    if let Some(found) = self.rdma_v1(config).filter(|_| is_first) {
                        return Ok(found);
                    }
                    return Err(self.exhausted_reason());
                }
            }
        }
    }

    /// The device reaches the peer. Whether it can be used: an EID mismatch leaves no reason of
    /// its own and rules version 2 out.
    pub(super) fn claim(&mut self) -> bool {
        let Some(pair) = self.pair else {
            return false;
        };
        self.claimed.push(pair.device.index);
        self.pairs.retain(|other| other.entry != pair.entry);
        if pair.version.is_v2() && pair.eid.is_none() {
            self.pairs.clear();
            self.blocking_cause = Some(Box::new(FallbackCause::NoCommonEid));
            return false;
        }
        true
    }

    /// The device does not reach the peer.
    pub(super) fn handle_unreachable(&mut self, error: DeviceError) {
        let step = SetupStep::Reach;
        self.blocking_cause
            .get_or_insert_with(|| Box::new(FallbackCause::Device { step, error }));
    }

    /// Stores a reason to decline; the first one counts.
    pub(super) fn record_reason(&mut self, reason: impl Into<FallbackReason>) {
        self.reason.get_or_insert_with(|| reason.into());
    }

    /// The reason to decline with when there is no time for more.
    pub(super) fn final_reason(&self, reason: impl Into<FallbackReason>) -> FallbackReason {
        self.reason.clone().unwrap_or_else(|| reason.into())
    }

    /// No device was found.
    fn without_device(&self, search: SearchedDevices) -> DeclineCause {
        DeclineCause::NoDevice(search, self.blocking_cause.as_deref().cloned())
    }

    /// The local devices on the fabrics of the offer, in the order of the offer: the native device
    /// first, then the list (docs/spec/handshake.md#device-scan).
    fn v2_pairs(&self, config: &HandshakeConfig) -> VecDeque<DevicePair> {
        let pair = |entry, peer, device: &DirectDevice| DevicePair {
            device: *device,
            peer,
            version: Version::V2,
            eid: self.eid,
            entry,
        };
        self.proposal
            .devices()
            .enumerate()
            .filter(|(_, offered)| self.path.is_within_reach(offered.chid))
            .flat_map(|(entry, offered)| {
                let ours = config
                    .devices
                    .iter()
                    .filter(move |ours| ours.chid == offered.chid);
                ours.map(move |device| pair(entry, offered.gid, device))
            })
            .collect()
    }

    /// Goes on with version 1: subnet, VLAN, and a native device on the same physical network.
    fn enter_v1(&mut self, config: &HandshakeConfig) -> Result<(), FallbackReason> {
        self.stage = Stage::DirectV1;
        if !self.is_subnet_ok() {
            self.record_reason(DeclineCause::OTHER_SUBNET);
        }
        if self.path.vlan_unknown {
            return Err(self.final_reason(DeclineCause::VLAN_UNKNOWN));
        }
        let (Some(area), Some(device)) = (self.proposal.smcd, config.v1_device(&self.path)) else {
            return Ok(());
        };
        if self.wants_direct_v1() {
            self.claimed.clear();
            self.pairs.push_back(DevicePair {
                device: *device,
                peer: v1_gid(area.gid.into()),
                version: Version::V1,
                eid: None,
                entry: 0,
            });
        }
        Ok(())
    }

    /// Goes on with SMC-R, if that is offered at all.
    fn enter_rdma(&mut self) -> Result<(), FallbackReason> {
        self.stage = Stage::RdmaV2;
        let Proposal { v1, v2, .. } = self.proposal;
        if v1.has_r() || v2.has_r() {
            Ok(())
        } else {
            Err(self.final_reason(self.without_device(SearchedDevices::Direct(Version::V1))))
        }
    }

    /// A port for version 2, with a route to the client. It is looked for only with a UEID in
    /// common; a mismatch leaves no reason.
    fn rdma_v2(&mut self, config: &HandshakeConfig) -> Option<DeviceAttempt> {
        if !self.proposal.v2.has_r() || !self.screened.r_v2 {
            return None;
        }
        let Some(eid) = common_ueid(&self.proposal, config) else {
            self.blocking_cause
                .get_or_insert_with(|| Box::new(FallbackCause::NoCommonEid));
            return None;
        };
        let ext = self.proposal.ext.as_ref()?;
        let found = config.rdma.as_ref().and_then(|rdma| {
            let features = self.features_of_both(Version::V2, config);
            let port = rdma.port(Version::V2, &self.path, features)?;
            let route = rdma.route(port, Version::V2, ext.gid)?;
            let own = rdma.limits();
            let both = LinkLimits {
                conns: own.conns.min(ext.max_conns),
                links: own.links.min(ext.max_links),
            };
            let limits = (self.release >= Release::V2_1).then_some(both);
            Some(self.rdma(port, Some(eid), ext.gid, route, limits, config))
        });
        if found.is_none() {
            self.record_reason(DeclineCause::NoDevice(SearchedDevices::Rdma, None));
        }
        found
    }

    /// A port for version 1, in a subnet of the client's.
    fn rdma_v1(&self, config: &HandshakeConfig) -> Option<DeviceAttempt> {
        if !self.proposal.v1.has_r() || !self.is_subnet_ok() {
            return None;
        }
        let rdma = config.rdma.as_ref()?;
        let port = rdma.port(Version::V1, &self.path, Features::empty())?;
        Some(self.rdma(
            port,
            None,
            self.proposal.gid,
            Route::SameSubnet,
            None,
            config,
        ))
    }

    /// SMC-D with a device that may reach the client's.
    fn direct(&self, pair: DevicePair, config: &HandshakeConfig) -> DeviceAttempt {
        let DevicePair { device, peer, .. } = pair;
        let key = GroupKey::Direct {
            device: device.index,
            peer,
        };
        let early = self
            .early
            .direct
            .filter(|end| (end.gid, end.chid) == (peer, device.chid));
        let ends = Ends::Direct(DirectEnds {
            early_buffer: early.map(|end| PeerBuffer::new(end.dmb, end.dmbe_index, end.size)),
            has_early_data: self.early.data.is_some(),
            ..DirectEnds::new(device, peer)
        });
        DeviceAttempt {
            size: config.buffer.min(device.max_buffer),
            ..self.attempt(pair.version, pair.eid, key, ends, config)
        }
    }

    /// SMC-R with a port that reaches the client. Version 2 has an EID.
    fn rdma(
        &self,
        port: &RdmaPort,
        eid: Option<Eid>,
        gid: RoceGid,
        route: Route,
        limits: Option<LinkLimits>,
        config: &HandshakeConfig,
    ) -> DeviceAttempt {
        let mac = self.proposal.mac;
        let version = eid.map_or(Version::V1, |_| Version::V2);
        let features = self.features_of_both(version, config);
        let key = GroupKey::Rdma {
            role: Role::Server,
            version,
            peer: self.proposal.peer_id,
            gid,
            mac: eid.is_none().then_some(mac),
            vlan: self.path.vlan,
            client: self.path.peer,
            authenticates: features.contains(Features::AUTHENTICATION),
            qpn: None,
        };
        let ends = RdmaEnds {
            port: port.clone(),
            route,
            limits,
            proposed: Some((gid, mac)),
            early: self.early.rdma.filter(|_| eid.is_some()),
            local: None,
            peer: None,
        };
        DeviceAttempt {
            size: config.rmb,
            ..self.attempt(version, eid, key, Ends::Rdma(Box::new(ends)), config)
        }
    }

    fn attempt(
        &self,
        version: Version,
        eid: Option<Eid>,
        key: GroupKey,
        ends: Ends,
        config: &HandshakeConfig,
    ) -> DeviceAttempt {
        let release = self.release_of(version);
        DeviceAttempt {
            role: Role::Server,
            version,
            eid,
            release,
            features: config.features_for(release),
            vendor_features: common_features(config, release, self.client_features(), &ends),
            in_use: Features::empty(),
            early_data: 0,
            peer_host: None,
            key,
            intent: Intent::JoinOrCreate,
            member: None,
            size: config.buffer,
            ends,
        }
    }

    fn release_of(&self, version: Version) -> Release {
        match version.is_v2() {
            true => self.release,
            false => Release::V2_0,
        }
    }

    /// The features beyond the released protocol that both sides have, in this version.
    fn features_of_both(&self, version: Version, config: &HandshakeConfig) -> Features {
        config.vendor_features_for(self.release_of(version)) & self.client_features()
    }

    /// The client's features beyond the released protocol.
    fn client_features(&self) -> Features {
        let area = self.proposal.smcd.as_ref();
        area.map_or(Features::empty(), SmcdArea::vendor_features)
    }

    /// The reason to decline with after the last device.
    fn exhausted_reason(&self) -> FallbackReason {
        if self.is_subnet_ok() {
            self.final_reason(self.without_device(SearchedDevices::Any))
        } else {
            DeclineCause::OTHER_SUBNET.into()
        }
    }

    fn wants_direct_v1(&self) -> bool {
        self.proposal.v1.has_d() && self.is_subnet_ok()
    }

    fn claimed_in_v1(&self) -> Option<&DeviceIndex> {
        self.claimed
            .first()
            .filter(|_| self.stage == Stage::DirectV1)
    }

    /// Version 1 requires a common subnet; if the interface is not known it is taken as common.
    fn is_subnet_ok(&self) -> bool {
        match (&self.proposal.ip, &self.path.interface) {
            (Some(area), Some(interface)) => is_same_subnet(area, interface),
            _ => true,
        }
    }
}

/// The rest of an offer after screening (docs/spec/handshake.md#screening).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Screened {
    d_v2: bool,
    r_v2: bool,
}

/// Strikes from the offer what cannot be used for formal reasons.
///
/// # Errors
///
/// Nothing is left: the reason of what was struck last.
fn screen(proposal: &Proposal, config: &HandshakeConfig) -> Result<Screened, DeclineCause> {
    let Proposal { v1, v2, ext, .. } = proposal;
    let Some(ext) = ext else {
        return match (v1.is_neither(), v2.is_neither()) {
            (false, _) => Ok(Screened::default()),
            (true, false) => Err(DeclineCause::NO_V2_EXTENSION),
            (true, true) => Err(DeclineCause::NOTHING_OFFERED),
        };
    };

    let mut last = DeclineCause::NOTHING_OFFERED;
    let mut d_v2 = v2.has_d();
    if d_v2 {
        let trouble = if !config.is_v2_capable() {
            Some(DeclineCause::NO_DEVICE_FOR_V2)
        } else if ext.direct.is_none() {
            Some(DeclineCause::NO_DIRECT_EXTENSION)
        } else if ext.ueids.is_empty() && !ext.has_seid {
            Some(DeclineCause::NO_EID)
        } else {
            None
        };
        if let Some(cause) = trouble {
            (d_v2, last) = (false, cause);
        }
    }
    let mut r_v2 = v2.has_r();
    if r_v2 && ext.ueids.is_empty() {
        (r_v2, last) = (false, DeclineCause::NO_EID);
    }
    if v1.is_neither() && !d_v2 && !r_v2 {
        Err(last)
    } else {
        Ok(Screened { d_v2, r_v2 })
    }
}

/// Limits of SMC-R in v2.1. They are checked before it is clear that SMC-R is used at all.
fn check_limits(
    proposal: &Proposal,
    screened: Screened,
    release: Release,
) -> Result<(), DeclineCause> {
    let Some(ext) = proposal.ext.as_ref().filter(|_| screened.r_v2) else {
        return Ok(());
    };
    if release < Release::V2_1 {
        return Ok(());
    }
    if ext.max_conns < RdmaConfig::MIN_CONNS {
        return Err(DeclineCause::MAX_CONNS);
    }
    if ext.max_links < LINKS_MIN {
        return Err(DeclineCause::MAX_LINKS);
    }
    Ok(())
}

/// The EID for SMC-D v2: the system EID if both sides have the same, else the first common UEID.
fn common_eid(proposal: &Proposal, config: &HandshakeConfig) -> Option<Eid> {
    let seid = proposal.seid().filter(|seid| config.seid == Some(*seid));
    seid.or_else(|| common_ueid(proposal, config))
}

/// The first UEID of the client that this side has too.
fn common_ueid(proposal: &Proposal, config: &HandshakeConfig) -> Option<Eid> {
    let ext = proposal.ext.as_ref()?;
    ext.ueids
        .iter()
        .copied()
        .find(|ueid| config.ueids.contains(ueid))
}

/// Links per link group that a client of SMC-R has to support at least (v2.1).
const LINKS_MIN: u8 = 1;
