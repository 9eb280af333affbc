//! SMC-R: client against server over one link each, with work that turns out as told.

mod client;
mod concurrency;
pub(super) mod early;
mod ipv6;
mod pair;
mod reuse;
mod selection;
mod server;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use smc_wire::clc;
use smc_wire::size::SizeCode;
use smc_wire::types::{
    AlertToken, AuthenticationCode, FeatureMask, Mac, MtuCode, OsType, PeerId, Psn, Qpn, Release,
    Rkey, RmbAddr, RoceGid, Version,
};

use super::*;
use crate::device::{LinkAddress, RdmaAddress, RoceKind, Route};
use crate::proto::Role;
use crate::proto::links::{AuthenticatedPart, Authentications, LinkChoice, PeerRmb};

/// The one link of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupLink {
    device: DeviceIndex,
    local: LinkAddress,
    peer: Option<LinkAddress>,
    terms: Option<LlcTerms>,
}

impl HandshakeSide {
    pub(super) fn rdma_work(&mut self, work: &Work) -> WorkDone {
        // Before anything else is looked at.
        let is_authentic = match work {
            Work::BindPeer { rmb, .. } => {
                let is_early = |(_, part)| matches!(part, AuthenticatedPart::Early(_));
                !rmb.authentication.is_some_and(is_early) || self.take_number(rmb)
            }
            _ => true,
        };
        if let Some(done) = self.scripted(work) {
            return done;
        }
        if matches!(work, Work::PrepareRmb { .. }) {
            let prepared = self.prepared.take();
            if let Some(local) = prepared.filter(|_| self.machine.is_early_taken()) {
                return WorkDone::RmbPrepared(Ok(local));
            }
        }
        let number = {
            let mut fabric = self.fabric.borrow_mut();
            fabric.last_token += 1;
            u32::try_from(fabric.last_token).unwrap()
        };
        let mut groups = self.groups.borrow_mut();
        match *work {
            Work::OpenLink {
                group,
                device,
                ref address,
            } => {
                let local = LinkAddress {
                    gid: address.gid,
                    mac: address.mac,
                    qpn: Qpn::new(0x100 + number).unwrap(),
                    psn: Psn::new(0x7000 + number).unwrap(),
                    mtu: address.mtu,
                };
                let link = GroupLink {
                    device,
                    local,
                    peer: None,
                    terms: None,
                };
                assert!(groups.links.insert(group, link).is_none());
                WorkDone::LinkOpened(Ok(local))
            }
            Work::PrepareRmb {
                group, link, size, ..
            } => {
                let Some(found) = groups.links.get(&group) else {
                    return WorkDone::RmbPrepared(Err(RmbError::NoLink));
                };
                if let LinkChoice::Named { qpn, gid, .. } = link {
                    let peer = found.peer.unwrap();
                    assert_eq!((peer.qpn, peer.gid), (qpn, gid), "found by that name");
                }
                let authenticates = found.terms.is_some_and(|terms| terms.authenticates);
                let is_first = link == LinkChoice::First;
                let codes = [6, 7, 8].map(|byte| AuthenticationCode::from_bytes([byte; 16]));
                let authentication = Authentications::new(number.into(), codes);
                WorkDone::RmbPrepared(Ok(LocalRmb {
                    device: found.device,
                    link: found.local,
                    rkey: Rkey(0x1000 + number),
                    addr: RmbAddr(0xffff_0000_0000 + u64::from(number)),
                    token: AlertToken::new(number).unwrap(),
                    size,
                    index: 1,
                    authentication: (authenticates && !is_first).then_some(authentication),
                    peer: found.peer,
                }))
            }
            Work::ConnectLink {
                group, peer, terms, ..
            } => {
                let link = groups.links.get_mut(&group).unwrap();
                (link.peer, link.terms) = (Some(peer), Some(terms));
                WorkDone::LinkConnected(Ok(()))
            }
            Work::BindPeer { .. } => WorkDone::PeerBound(match is_authentic {
                true => Ok(()),
                false => Err(RtokenError::NotAuthentic),
            }),
            Work::ConfirmRkey => WorkDone::RkeyConfirmed(Ok(())),
            Work::ConfirmLink { .. } => WorkDone::LinkConfirmed(Ok(())),
            ref other => panic!("not SMC-R work: {other:?}"),
        }
    }

    /// A group takes each number once.
    fn take_number(&self, rmb: &PeerRmb) -> bool {
        let (stated, _) = rmb.authentication.unwrap();
        self.fabric.borrow_mut().taken.insert(stated.number)
    }

    pub(super) fn refuse_early(&self, early: &RefusedEarly) {
        let groups = self.groups.borrow();
        let is_of = |link: &GroupLink| {
            let peer = link.peer;
            peer.is_some_and(|peer| (peer.gid, peer.qpn) == (early.gid, early.qpn))
        };
        if groups.links.values().any(is_of) {
            self.take_number(&early.rmb);
        }
    }

    /// The next outcome that the test has set, if it is for this kind of work.
    fn scripted(&mut self, work: &Work) -> Option<WorkDone> {
        let fits = matches!(
            (work, self.faults.rdma.front()?),
            (Work::OpenLink { .. }, WorkDone::LinkOpened(_))
                | (Work::PrepareRmb { .. }, WorkDone::RmbPrepared(_))
                | (Work::BindPeer { .. }, WorkDone::PeerBound(_))
                | (Work::ConnectLink { .. }, WorkDone::LinkConnected(_))
                | (Work::ConfirmRkey, WorkDone::RkeyConfirmed(_))
                | (Work::ConfirmLink { .. }, WorkDone::LinkConfirmed(_))
        );
        fits.then(|| self.faults.rdma.pop_front()).flatten()
    }

    fn rdma(&self) -> RdmaParams {
        match self.established().transport {
            Transport::Rdma(rdma) => rdma,
            other => panic!("not SMC-R but {other:?}"),
        }
    }

    /// The kinds of work that were asked for.
    fn asked(&self) -> Vec<&'static str> {
        self.works.iter().map(name).collect()
    }

    pub(super) fn is_crossing_possible(&self) -> bool {
        match &self.outcome {
            Some(Outcome::Tcp(fallback)) => fallback.crossing_possible,
            other => panic!("not fallen back but {other:?}"),
        }
    }
}

/// Number of a host in its subnet.
pub(super) const CLIENT: u8 = 2;
pub(super) const SERVER: u8 = 1;

fn ip(host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, host)
}

fn mac(host: u8) -> Mac {
    Mac::new([0x52, 0x54, 0, 0, 0, host])
}

fn subnets(host: u8) -> Vec<Subnet> {
    vec![Subnet::V4(ip(host), 24)]
}

/// The path of a connection over the only interface of the host.
pub(super) fn path(host: u8) -> TcpPath {
    let interface = Interface::new(subnets(host), None).with_name("eth0");
    let peer = if host == CLIENT { SERVER } else { CLIENT };
    TcpPath::over(interface).with_addresses(ip(host).into(), ip(peer).into())
}

/// A RoCE v2 port of the host.
fn port(host: u8) -> RdmaPort {
    let gid = RoceGid::from_ipv4(ip(host));
    let address = RdmaAddress::new(gid, RoceKind::V2, mac(host), MtuCode::MTU_1024);
    RdmaPort {
        device: DeviceIndex(0),
        address: address.with_interface("eth0", 0),
        pnet_id: None,
        subnets: subnets(host),
        base: Some("eth0".into()),
    }
}

/// The same port with a RoCE v1 address.
fn port_v1(host: u8) -> RdmaPort {
    let gid = RoceGid::from_ipv6(Ipv4Addr::new(0, 0, 0, host).to_ipv6_compatible());
    let mut port = port(host);
    port.address.gid = gid;
    port.address.kind = RoceKind::V1;
    port
}

fn peer_id(host: u8) -> PeerId {
    PeerId::new(0x1234, mac(host))
}

/// A host with one RDMA device and nothing else.
pub(super) fn rdma_host(host: u8) -> HandshakeConfig {
    rdma_host_with(host, vec![port(host)])
}

fn rdma_host_with(host: u8, ports: Vec<RdmaPort>) -> HandshakeConfig {
    let mut config = host_with(Vec::new());
    config.seid = None;
    config.ueids = vec![ueid("EXAMPLE")];
    let mut rdma = RdmaConfig::new(peer_id(host), ports);
    rdma.max_links = 2;
    config.rdma = Some(rdma);
    config
}

/// A host whose packets all pass a router.
#[derive(Debug)]
struct OverRouter;

impl Routes for OverRouter {
    fn route(&self, _from: &RdmaAddress, _to: IpAddr) -> Option<Route> {
        Some(Route::Gateway)
    }

    fn by_port(&self, from: &RdmaAddress, to: IpAddr) -> Option<Route> {
        self.route(from, to)
    }
}

fn rdma_of(config: &mut HandshakeConfig) -> &mut RdmaConfig {
    config.rdma.as_mut().unwrap()
}

/// The usual pair.
pub(super) fn rdma_pair() -> Pair {
    pair_of(rdma_host(CLIENT), rdma_host(SERVER))
}

fn pair_of(client: HandshakeConfig, server: HandshakeConfig) -> Pair {
    pair_in(client, server, [Rc::default(), Rc::default()])
}

fn pair_in(
    client: HandshakeConfig,
    server: HandshakeConfig,
    groups: [Rc<RefCell<Groups>>; 2],
) -> Pair {
    Pair::with((client, path(CLIENT)), (server, path(SERVER)), groups)
}

/// Another connection between the same hosts.
pub(super) fn again(pair: &Pair) -> Pair {
    let groups = [&pair.client, &pair.server].map(|side| Rc::clone(&side.groups));
    pair_in(rdma_host(CLIENT), rdma_host(SERVER), groups)
}

/// A PROPOSAL of such a client.
fn rdma_proposal(config: &HandshakeConfig) -> Proposal {
    Proposal::parse(ClientProposal::new(config, &path(CLIENT)).unwrap().bytes()).unwrap()
}

/// ACCEPT or CONFIRM of first contact with other parts.
fn with_parts(
    mut message: AcceptConfirm,
    change: impl FnOnce(&mut clc::FirstContact),
) -> AcceptConfirm {
    if let clc::Terms::V2 {
        first_contact: Some(parts),
        ..
    } = &mut message.terms
    {
        change(parts);
    }
    message
}

/// ACCEPT or CONFIRM with another end.
fn with_end(mut message: AcceptConfirm, change: impl FnOnce(&mut clc::RdmaEnd)) -> AcceptConfirm {
    if let Body::R(end) = &mut message.body {
        change(end);
    }
    message
}

/// A DECLINE of the peer.
fn decline_bytes(code: DeclineCode) -> Vec<u8> {
    let decline = Decline::new(Version::V2, code, OsType::LINUX);
    let mut bytes = vec![0; decline.encoded_len()];
    decline.emit(&mut bytes).unwrap();
    bytes
}
