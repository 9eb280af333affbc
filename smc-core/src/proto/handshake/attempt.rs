//! Attempts: the state that two sides agree on and acquire for a connection, from the choice of the
//! device on, and the results that an established handshake passes to the connection.

use smc_wire::Bounded;
use smc_wire::clc::{
    self, AcceptConfirm, Authentication, Body, DirectEnd, Extensions, FirstContact, RdmaEnd,
};
use smc_wire::llc::{ByteOrder, Dialect};
use smc_wire::size::SizeCode;
use smc_wire::types::{
    Chid, DmbToken, Eid, FeatureMask, Features, Gid, GroupId, HostName, Mac, OsType, PeerId,
    Release, RoceGid, Version,
};

use super::early::{PER_CONNECTION, ReceivedEarlyData, ReceivedRdmaEnd};
use super::rdma_port::LinkLimits;
use super::steps::{Awaits, When};
use super::{DirectDevice, HandshakeConfig, LocalRmb, RdmaPort, Work};
use crate::device::{DeviceError, LinkAddress, Route};
use crate::error::{FallbackReason, PeerMisbehaved};
use crate::proto::Role;
use crate::proto::group::{DeviceIndex, GroupKey, GroupTerms, Intent, Member};
use crate::proto::links::{AuthenticatedPart, HandshakeHash, LinkChoice, LlcTerms, PeerRmb};

/// One attempt with one device.
#[derive(Debug)]
pub(super) struct DeviceAttempt {
    pub(super) role: Role,
    pub(super) version: Version,
    /// The EID if version 2 is used.
    pub(super) eid: Option<Eid>,
    /// Negotiated in this handshake; a group that exists keeps its own.
    pub(super) release: Release,
    /// The features to be stated at first contact: a server states its own, a client those that
    /// both sides have.
    pub(super) features: FeatureMask,
    /// Features beyond the released protocol that both sides have, to be stated at first contact; a
    /// group that exists keeps its own.
    pub(super) vendor_features: Features,
    /// Of the features [of a connection](PER_CONNECTION), those that this one uses.
    pub(super) in_use: Features,
    /// At a client the bytes of early data that the server has taken.
    pub(super) early_data: usize,
    /// The operating system and host name that the peer states at first contact.
    pub(super) peer_host: Option<(OsType, HostName)>,
    pub(super) key: GroupKey,
    pub(super) intent: Intent,
    /// The member of the link group.
    pub(super) member: Option<Member>,
    /// Size of the local buffer.
    pub(super) size: SizeCode,
    pub(super) ends: Ends,
}

/// Both ends of the connection.
#[derive(Debug)]
pub(super) enum Ends {
    Direct(DirectEnds),
    Rdma(Box<RdmaEnds>),
}

#[derive(Debug)]
pub(super) struct DirectEnds {
    pub(super) device: DirectDevice,
    pub(super) peer: Gid,
    pub(super) local: Option<DmbToken>,
    /// Known when the peer's message has arrived.
    pub(super) peer_buffer: Option<PeerBuffer>,
    /// The client's buffer according to its PROPOSAL, at the server.
    pub(super) early_buffer: Option<PeerBuffer>,
    /// The PROPOSAL has early data as well.
    pub(super) has_early_data: bool,
    pub(super) access: PeerAccess,
}

#[derive(Debug)]
pub(super) struct RdmaEnds {
    /// The port that was negotiated. A link that exists may use another one.
    pub(super) port: RdmaPort,
    pub(super) route: Route,
    /// Negotiated in v2.1.
    pub(super) limits: Option<LinkLimits>,
    /// The client's GID and MAC according to its PROPOSAL, at the server.
    pub(super) proposed: Option<(RoceGid, Mac)>,
    /// The client's end according to its PROPOSAL, at the server.
    pub(super) early: Option<ReceivedRdmaEnd>,
    pub(super) local: Option<LocalRmb>,
    /// Known when the peer's message has arrived.
    pub(super) peer: Option<(LinkAddress, PeerRmb)>,
}

impl DirectEnds {
    pub(super) const fn new(device: DirectDevice, peer: Gid) -> Self {
        let access = match device.nocopy {
            // Until it is attached.
            true => PeerAccess::Lost,
            false => PeerAccess::Moved,
        };
        Self {
            device,
            peer,
            local: None,
            peer_buffer: None,
            early_buffer: None,
            has_early_data: false,
            access,
        }
    }
}

impl LocalRmb {
    /// The end that a message of the handshake names.
    #[must_use]
    pub fn end(&self, config: &HandshakeConfig) -> RdmaEnd {
        let rdma = config.rdma.as_ref();
        RdmaEnd {
            peer_id: rdma.map_or(PeerId::ZERO, |rdma| rdma.peer_id),
            gid: self.link.gid,
            mac: self.link.mac,
            qpn: self.link.qpn,
            rkey: self.rkey,
            rmbe_index: self.index,
            token: self.token,
            size: self.size,
            mtu: self.link.mtu,
            rmb_addr: self.addr,
            psn: self.link.psn,
        }
    }
}

impl RdmaEnds {
    /// Takes the peer's end from its message.
    ///
    /// # Errors
    ///
    /// Packets of that size cannot be sent; or the element has the number 0 or the token 0, which
    /// are not used.
    pub(super) fn set_peer(
        &mut self,
        end: &RdmaEnd,
        authentication: Option<(Authentication, AuthenticatedPart)>,
    ) -> Result<(), PeerMisbehaved> {
        if end.mtu.bytes().is_none() {
            return Err(PeerMisbehaved::BadLink);
        }
        if end.rmbe_index == 0 || end.token.is_zero() {
            return Err(PeerMisbehaved::BadBuffer);
        }
        // A client's packets come from the address in its PROPOSAL. In version 2 it may have left
        // the MAC out there.
        let (gid, mac) = self.proposed.unwrap_or((end.gid, end.mac));
        let link = LinkAddress {
            gid,
            mac: if mac.is_zero() { end.mac } else { mac },
            qpn: end.qpn,
            psn: end.psn,
            mtu: end.mtu,
        };
        self.peer = Some((link, peer_rmb(end, authentication)));
        Ok(())
    }

    fn llc_terms(&self, version: Version, peer: Option<OsType>, features: Features) -> LlcTerms {
        let terms = match self.limits {
            Some(limits) => LlcTerms::v2_1(limits.links, limits.conns),
            None if version.is_v2() => LlcTerms::V2,
            None => LlcTerms::V1,
        };
        let dialect = match peer {
            // The order that the documents specify. Linux uses the order of its CPU.
            Some(os) if version.is_v2() && ![OsType::LINUX, OsType::NONE].contains(&os) => {
                Dialect::V2(ByteOrder::Big)
            }
            _ => terms.dialect,
        };
        LlcTerms {
            dialect,
            confirms_rkeys: peer == Some(OsType::LINUX),
            is_linux: peer == Some(OsType::LINUX),
            keeps_rkeys: features.contains(Features::SINGLE_LINK),
            authenticates: features.contains(Features::AUTHENTICATION),
            has_credits: features.contains(Features::RECEIVE_CREDITS),
            ..terms
        }
    }
}

/// The RMB that a message of the peer names.
pub(super) const fn peer_rmb(
    end: &RdmaEnd,
    authentication: Option<(Authentication, AuthenticatedPart)>,
) -> PeerRmb {
    PeerRmb {
        rkey: end.rkey,
        addr: end.rmb_addr,
        index: end.rmbe_index,
        size: end.size,
        token: end.token,
        authentication,
    }
}

impl DeviceAttempt {
    pub(super) fn group(&self) -> Option<GroupId> {
        self.member.map(|member| member.group())
    }

    pub(super) fn is_first_contact(&self) -> bool {
        self.member.is_some_and(|member| member.is_first_contact())
    }

    /// The client's buffer in an early CONFIRM for SMC-D that holds, at a server with a buffer for
    /// the connection. In a group that exists there is nothing else in a CONFIRM.
    fn early_direct(&self) -> Option<PeerBuffer> {
        let Ends::Direct(ends) = &self.ends else {
            return None;
        };
        let holds = self.joined_features().contains(Features::EARLY_CONFIRM);
        ends.early_buffer
            .filter(|early| holds && early.size <= self.size)
    }

    /// The features of a link group that exists and is joined; none at first contact.
    fn features_of_joined(&self) -> Features {
        match self.member {
            Some(Member::Joined { terms, .. }) => terms.vendor_features,
            _ => Features::empty(),
        }
    }

    /// The same, as far as this handshake has them as well.
    fn joined_features(&self) -> Features {
        self.features_of_joined() & self.vendor_features
    }

    /// Whether the buffer of that early CONFIRM has to be claimed: the PROPOSAL may be repeated,
    /// by the network or by another process, and what it has must not be delivered twice.
    fn must_claim(&self) -> bool {
        let has_early_data = matches!(&self.ends, Ends::Direct(ends) if ends.has_early_data);
        // Those of the group, and not of this PROPOSAL, which may be a changed copy of another one.
        let is_of_fast_open = self.features_of_joined().contains(Features::FAST_OPEN);
        let may_repeat = has_early_data || is_of_fast_open;
        may_repeat && self.early_direct().is_some()
    }

    /// The outcome of claiming it. If that has failed the early CONFIRM is not taken.
    pub(super) fn handle_claimed(&mut self, claimed: Result<(), DeviceError>) {
        if let (Ends::Direct(ends), Err(_)) = (&mut self.ends, claimed) {
            ends.early_buffer = None;
        }
    }

    /// A server takes the early CONFIRM for SMC-D, if that holds.
    pub(super) fn take_early_direct(&mut self) {
        let early = self.early_direct();
        if let Ends::Direct(ends) = &mut self.ends {
            ends.peer_buffer = early;
            self.in_use.set(Features::EARLY_CONFIRM, early.is_some());
        }
    }

    /// Whether a server has an early CONFIRM for SMC-R, in a group that takes it.
    fn has_early_rdma(&self) -> bool {
        let Ends::Rdma(ends) = &self.ends else {
            return false;
        };
        // The client may have meant another group with this server, or one with another server at
        // the address.
        let peer = ends.local.and_then(|local| local.peer);
        let is_of_link = |early: ReceivedRdmaEnd| {
            peer.is_some_and(|peer| (peer.gid, peer.qpn) == (early.end.gid, early.end.qpn))
        };
        self.joined_features().contains(EARLY_RDMA) && ends.early.is_some_and(is_of_link)
    }

    /// A server takes the early CONFIRM for SMC-R.
    ///
    /// # Errors
    ///
    /// As a CONFIRM with this end.
    pub(super) fn take_early_rdma(&mut self) -> Result<(), PeerMisbehaved> {
        if let Ends::Rdma(ends) = &mut self.ends {
            if let Some(early) = ends.early {
                ends.set_peer(&early.end, early.rmb().authentication)?;
                self.in_use.insert(Features::EARLY_CONFIRM);
            }
        }
        Ok(())
    }

    /// A server takes early data, together with the early CONFIRM.
    pub(super) fn take_early_data(
        &mut self,
        data: Option<ReceivedEarlyData>,
        config: &HandshakeConfig,
    ) -> Option<Vec<u8>> {
        let is_agreed = self.joined_features().contains(Features::EARLY_DATA);
        let policy = config.early_data.as_ref();
        let policy = policy.filter(|_| is_agreed && self.has_early_confirm())?;
        let data = data.filter(|data| self.has_space(data.bytes.len()) && policy.takes(data))?;
        self.in_use.insert(Features::EARLY_DATA);
        Some(data.bytes)
    }

    /// Whether so much early data leaves space in the server's buffer: a client that has filled it
    /// would have to say so, as it does when it writes. An RMB always has space.
    pub(super) fn has_space(&self, early_data: usize) -> bool {
        let Ends::Direct(ends) = &self.ends else {
            return true;
        };
        let size = match self.role {
            Role::Client => ends.peer_buffer.map_or(SizeCode::MIN, |buffer| buffer.size),
            Role::Server => self.size,
        };
        u32::try_from(early_data).is_ok_and(|len| len < size.ring_d().size())
    }

    /// Whether the server has the client's buffer before it sends ACCEPT.
    pub(super) fn has_early_confirm(&self) -> bool {
        self.role == Role::Server && self.in_use.contains(Features::EARLY_CONFIRM)
    }

    /// Whether this connection has a step.
    pub(super) fn has_step(&self, when: When) -> bool {
        match (when, &self.ends) {
            (When::Always, _) => true,
            (When::FirstContact, _) => self.is_first_contact(),
            (When::Reuse, _) => !self.is_first_contact(),
            (When::EarlyReuse, _) => self.has_early_rdma(),
            (When::EarlyClaim, _) => self.must_claim(),
            (When::LateReuse, _) => !self.is_first_contact() && !self.has_early_confirm(),
            (When::Nocopy, Ends::Direct(ends)) => ends.device.nocopy,
            (When::Nocopy, Ends::Rdma(_)) => false,
        }
    }

    /// The work of a step; `None` before the steps that it needs. `messages` are those of the
    /// handshake.
    pub(super) fn work(
        &self,
        awaits: Awaits,
        messages: impl FnOnce() -> HandshakeHash,
    ) -> Option<Work> {
        Some(match (awaits, &self.ends) {
            (Awaits::Enter, _) => Work::Enter {
                key: self.key,
                intent: self.intent,
            },
            (Awaits::EstablishGroup, _) => Work::EstablishGroup {
                group: self.group()?,
                terms: self.terms()?,
            },
            (Awaits::Reach, Ends::Direct(ends)) => Work::Reach {
                device: ends.device.index,
                peer: ends.peer,
            },
            (Awaits::Register, Ends::Direct(ends)) => Work::Register {
                device: ends.device.index,
                peer: ends.peer,
                size: self.size,
                // A client's buffer is no larger than the server's.
                peer_size: ends.peer_buffer.map_or(self.size, |buffer| buffer.size),
            },
            (Awaits::Claim, Ends::Direct(ends)) => Work::Claim {
                device: ends.device.index,
                peer: ends.peer,
                token: ends.early_buffer?.token,
            },
            (Awaits::Attach, Ends::Direct(ends)) => Work::Attach {
                device: ends.device.index,
                peer: ends.peer,
                token: ends.peer_buffer?.token,
            },
            (Awaits::OpenLink, Ends::Rdma(ends)) => Work::OpenLink {
                group: self.group()?,
                device: ends.port.device,
                address: ends.port.address.clone(),
            },
            (Awaits::PrepareRmb, Ends::Rdma(ends)) => Work::PrepareRmb {
                group: self.group()?,
                link: self.link_choice(ends),
                size: self.size,
                early: ends.early.map_or(0, |early| early.authentication.number),
            },
            (Awaits::ConfirmRkey, Ends::Rdma(_)) => Work::ConfirmRkey,
            (Awaits::BindPeer, Ends::Rdma(ends)) => Work::BindPeer {
                rmb: ends.peer?.1,
                sent: self.early_data,
            },
            (Awaits::ConnectLink, Ends::Rdma(ends)) => Work::ConnectLink {
                group: self.group()?,
                peer: ends.peer?.0,
                route: ends.route,
                terms: ends.llc_terms(
                    self.version,
                    self.peer_host.map(|(os, _)| os),
                    self.vendor_features,
                ),
            },
            (Awaits::ConfirmLink, Ends::Rdma(_)) => Work::ConfirmLink {
                group: self.group()?,
                messages: self
                    .vendor_features
                    .contains(Features::AUTHENTICATION)
                    .then(messages),
            },
            _ => return None,
        })
    }

    /// The server assigns a link, and names it in ACCEPT.
    fn link_choice(&self, ends: &RdmaEnds) -> LinkChoice {
        match ends.peer {
            _ if self.is_first_contact() => LinkChoice::First,
            None => LinkChoice::Assign,
            Some((peer, _)) => LinkChoice::Named {
                qpn: peer.qpn,
                gid: peer.gid,
                mac: (!self.version.is_v2()).then_some(peer.mac),
            },
        }
    }

    /// The terms of the link group, once the peer has stated its identity.
    fn terms(&self) -> Option<GroupTerms> {
        if let Member::Joined { terms, .. } = self.member? {
            return Some(terms);
        }
        let (os, host) = self.peer_host.unwrap_or((OsType::NONE, HostName::BLANK));
        let max_conns = match &self.ends {
            Ends::Direct(_) => None,
            Ends::Rdma(ends) => Some(ends.limits.map_or(u8::MAX, |limits| limits.conns)),
        };
        Some(GroupTerms {
            version: self.version,
            release: self.release,
            eid: self.eid,
            os,
            host,
            max_connections: max_conns.map(u32::from),
            vendor_features: self.vendor_features,
        })
    }

    /// ACCEPT or CONFIRM; `None` before there is a buffer.
    pub(super) fn message(
        &self,
        kind: clc::AcceptKind,
        config: &HandshakeConfig,
    ) -> Option<AcceptConfirm> {
        let is_first_contact = self.is_first_contact();
        let first_contact = || self.first_contact(kind, config);
        let terms = match self.eid {
            Some(eid) => clc::Terms::V2 {
                eid,
                first_contact: is_first_contact.then(first_contact),
            },
            None => clc::Terms::V1 {
                first_contact: is_first_contact,
            },
        };
        let body = match &self.ends {
            Ends::Direct(ends) => Body::D(DirectEnd {
                gid: ends.device.gid,
                chid: match self.eid {
                    Some(_) => ends.device.chid,
                    None => Chid::NONE,
                },
                dmb: ends.local?,
                dmbe_index: 0,
                size: self.size,
                group: self.group()?,
            }),
            Ends::Rdma(ends) => {
                let local = ends.local?;
                let own = local.link.mtu;
                Body::R(RdmaEnd {
                    // In CONFIRM the smaller of both.
                    mtu: ends.peer.map_or(own, |(peer, _)| own.min(peer.mtu)),
                    ..local.end(config)
                })
            }
        };
        Some(AcceptConfirm { kind, terms, body })
    }

    /// The extensions of that message.
    pub(super) fn extensions(&self) -> Extensions<'static> {
        let local = match &self.ends {
            Ends::Direct(_) if self.has_early_confirm() => {
                return Extensions {
                    features: Some(self.in_use),
                    ..Extensions::default()
                };
            }
            Ends::Direct(_) => None,
            Ends::Rdma(ends) => ends.local,
        };
        let authentications = local.and_then(|local| local.authentication);
        let authentication = authentications.and_then(|all| all.of(self.in_use));
        let of_group = || Some(self.terms()?.vendor_features.difference(PER_CONNECTION));
        let features = authentication.and_then(|_| Some(of_group()? | self.in_use));
        Extensions {
            features,
            authentication,
            ..Extensions::default()
        }
    }

    fn first_contact(&self, kind: clc::AcceptKind, config: &HandshakeConfig) -> FirstContact {
        let parts = FirstContact {
            features: self.features,
            ..FirstContact::new(self.release, config.os, config.host)
        }
        .with_vendor_features(self.vendor_features);
        let Ends::Rdma(ends) = &self.ends else {
            return parts;
        };
        // A client names GIDs for further links: that of this one, and an alternate.
        let alternate = config.rdma.as_ref().zip(ends.peer.as_ref());
        let alternate =
            alternate.and_then(|(rdma, (peer, _))| rdma.alternate(&ends.port, peer.gid));
        let alternate = alternate.map(|port| port.address.gid);
        let gids = ends.local.map(|local| local.link.gid).into_iter();
        FirstContact {
            v2_direct: ends.route == Route::SameSubnet,
            max_conns: ends.limits.map_or(0, |limits| limits.conns),
            max_links: ends.limits.map_or(0, |limits| limits.links),
            gids: (kind == clc::AcceptKind::Confirm)
                .then(|| Bounded::from_iter_lossy(gids.chain(alternate))),
            ..parts
        }
    }

    /// The connection; `None` before the last step.
    pub(super) fn established(&self) -> Option<Established> {
        let member = self.member?;
        let terms = self.terms()?;
        Some(Established {
            version: self.version,
            release: terms.release,
            eid: self.eid,
            group: member.group(),
            first_contact: member.is_first_contact(),
            group_features: terms.vendor_features,
            vendor_features: terms.vendor_features.difference(PER_CONNECTION) | self.in_use,
            peer_host: terms.host,
            transport: match &self.ends {
                Ends::Direct(ends) => Transport::Direct(DirectParams {
                    device: ends.device.index,
                    chid: ends.device.chid,
                    peer: ends.peer,
                    local: ends.local?,
                    local_size: self.size,
                    peer_buffer: ends.peer_buffer?,
                    access: ends.access,
                    sent: self.early_data,
                }),
                Ends::Rdma(ends) => {
                    let (local, (peer, peer_rmb)) = (ends.local?, ends.peer?);
                    Transport::Rdma(RdmaParams {
                        device: local.device,
                        link: local.link,
                        peer,
                        local,
                        peer_rmb,
                        route: ends.route,
                    })
                }
            },
        })
    }
}

/// The features beyond the released protocol that both sides have, if the peer has these.
/// Authentication is for link groups of SMC-R. A single link takes that, and the agreement that
/// there is no other; an early CONFIRM of SMC-R takes a single link.
pub(super) fn common_features(
    config: &HandshakeConfig,
    release: Release,
    peer: Features,
    ends: &Ends,
) -> Features {
    let both = config.vendor_features_for(release) & peer;
    let Ends::Rdma(ends) = ends else {
        return features_at(None, both);
    };
    let both = features_at(Some(&ends.port), both).difference(Features::SOCKET_REUSE);
    let has_one_link = ends.limits.is_some_and(|limits| limits.links == 1);
    match has_one_link && both.contains(KEPT_RMBS) {
        true => both,
        false => both.difference(Features::SINGLE_LINK | PER_CONNECTION),
    }
}

/// What RMBs that stay announced take.
const KEPT_RMBS: Features = Features::SINGLE_LINK.union(Features::AUTHENTICATION);

/// Those of these features that go with SMC-R v2 at this port, or without it.
pub(super) fn features_at(port: Option<&RdmaPort>, all: Features) -> Features {
    match port {
        Some(port) if port.is_ipv6() => all,
        Some(_) => all.difference(Features::RDMA_IPV6),
        None => all.difference(OF_RDMA | Features::RDMA_IPV6),
    }
}

/// Features of link groups of SMC-R.
const OF_RDMA: Features = KEPT_RMBS.union(Features::RECEIVE_CREDITS);

/// The features of a link group of SMC-R that takes early CONFIRMs: both ends know that there is
/// one link, and authenticate what they receive.
pub const EARLY_RDMA: Features = KEPT_RMBS.union(Features::EARLY_CONFIRM);

/// The result of a successful handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// Version of the handshake.
    pub version: Version,
    /// Release within version 2; v2.0 in version 1.
    pub release: Release,
    /// Negotiated EID; none in version 1.
    pub eid: Option<Eid>,
    /// The link group.
    pub group: GroupId,
    /// Whether this connection made the group.
    pub first_contact: bool,
    /// Features beyond the released protocol that the link group has.
    pub group_features: Features,
    /// The same, but an early CONFIRM and early data only if this connection has used them.
    pub vendor_features: Features,
    /// Name of the peer's host, blank if it gave none.
    pub peer_host: HostName,
    /// The transport of the data.
    pub transport: Transport,
}

/// The transport of a connection's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each handshake, in a box"
)]
pub enum Transport {
    /// SMC-D.
    Direct(DirectParams),
    /// SMC-R.
    Rdma(RdmaParams),
}

/// The two ends of an SMC-D connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectParams {
    /// The local device.
    pub device: DeviceIndex,
    /// The fabric.
    pub chid: Chid,
    /// The peer's device.
    pub peer: Gid,
    /// The local receive buffer, registered by [`Work::Register`](super::Work::Register).
    pub local: DmbToken,
    /// Size of the local receive buffer.
    pub local_size: SizeCode,
    /// The peer's receive buffer, which this side writes.
    pub peer_buffer: PeerBuffer,
    /// How it is written.
    pub access: PeerAccess,
    /// Bytes of early data at its start, which this side has sent with the PROPOSAL.
    pub sent: usize,
}

/// How the peer's buffer of an SMC-D connection is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerAccess {
    /// In place: it was attached by [`Work::Attach`](super::Work::Attach).
    Attached,
    /// The device moves data there.
    Moved,
    /// Not at all: it could not be attached after the peer had everything that it needs to use the
    /// connection. What the peer has written until then is in the local buffer.
    Lost,
}

/// The two ends of an SMC-R connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RdmaParams {
    /// The local device.
    pub device: DeviceIndex,
    /// The local end of the link that the connection uses.
    pub link: LinkAddress,
    /// The peer's end.
    pub peer: LinkAddress,
    /// The local receive buffer, prepared by [`Work::PrepareRmb`](super::Work::PrepareRmb).
    pub local: LocalRmb,
    /// The peer's receive buffer, which this side writes.
    pub peer_rmb: PeerRmb,
    /// Whether packets between the ends pass a router.
    pub route: Route,
}

/// The peer's receive buffer: one element of a DMB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerBuffer {
    /// Names the DMB.
    pub token: DmbToken,
    /// Number of the element in it, from 0.
    pub index: u8,
    /// Size of the element.
    pub size: SizeCode,
}

impl PeerBuffer {
    pub(super) const fn new(token: DmbToken, index: u8, size: SizeCode) -> Self {
        Self { token, index, size }
    }

    /// Where the element begins in the DMB, in bytes.
    #[must_use]
    pub fn offset(&self) -> usize {
        self.size.byte_len().saturating_mul(usize::from(self.index))
    }

    /// Where the element ends in the DMB, in bytes.
    #[must_use]
    pub fn end(&self) -> usize {
        self.offset().saturating_add(self.size.byte_len())
    }
}

/// The reason of the fallback, and whether a crossing DECLINE is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fallback {
    /// The local reason, and the peer's if it declined.
    pub reason: FallbackReason,
    /// The peer may have sent a DECLINE at the same time: pass what is received next through
    /// [`CrossingDecline`](super::CrossingDecline).
    ///
    /// That takes two sides that both wait for something else than the other's message on TCP,
    /// which only happens while the first link of SMC-R is confirmed; never with SMC-D.
    pub crossing_possible: bool,
}
