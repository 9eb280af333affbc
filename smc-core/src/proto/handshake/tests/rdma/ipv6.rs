//! SMC-R over IPv6, which both sides agree on (docs/spec/extensions.md#smc-r-over-ipv6).

use std::net::Ipv6Addr;

use smc_wire::clc::{AcceptKind, FirstContact};
use smc_wire::types::{Features, OfferedTypes};

use super::*;

/// An address in the network of both hosts.
fn ip6(host: u8) -> Ipv6Addr {
    Ipv6Addr::new(0xfd09, 0x5c, 0, 0, 0, 0, 0, host.into())
}

/// A RoCE v2 port of the host at this address.
fn port_at(host: u8, address: Ipv6Addr) -> RdmaPort {
    let mut port = port(host);
    port.address.gid = RoceGid::from_ipv6(address);
    port.subnets.push(Subnet::V6(ip6(host), 64));
    port
}

/// What a port has in its table: link-local, IPv4 and IPv6.
fn ports(host: u8) -> Vec<RdmaPort> {
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, host.into());
    vec![
        port_at(host, link_local),
        port(host),
        port_at(host, ip6(host)),
    ]
}

/// The path of an IPv6 connection over the interface of those ports.
fn path6(host: u8) -> TcpPath {
    let subnets = vec![Subnet::V4(ip(host), 24), Subnet::V6(ip6(host), 64)];
    let peer = if host == CLIENT { SERVER } else { CLIENT };
    TcpPath::over(Interface::new(subnets, None).with_name("eth0"))
        .with_addresses(ip6(host).into(), ip6(peer).into())
}

/// A host that offers SMC-R over IPv6, and accepts it.
fn host6(host: u8) -> HandshakeConfig {
    host6_with(host, ports(host))
}

fn host6_with(host: u8, ports: Vec<RdmaPort>) -> HandshakeConfig {
    let mut config = rdma_host_with(host, ports);
    config.vendor_features = Features::RDMA_IPV6;
    rdma_of(&mut config).offers_ipv6 = true;
    config
}

fn pair6(client: HandshakeConfig, server: HandshakeConfig) -> Pair {
    let groups = [Rc::default(), Rc::default()];
    Pair::with((client, path6(CLIENT)), (server, path6(SERVER)), groups)
}

fn proposal6(config: &HandshakeConfig) -> Proposal {
    Proposal::parse(ClientProposal::new(config, &path6(CLIENT)).unwrap().bytes()).unwrap()
}

/// What a server does with a PROPOSAL.
fn declined(server: HandshakeConfig, proposal: &Proposal) -> DeclineCode {
    HandshakeFixture::server(server, path6(SERVER)).declines(&bytes(proposal))
}

fn features(message: &AcceptConfirm) -> Features {
    message
        .first_contact()
        .map_or(Features::empty(), FirstContact::vendor_features)
}

#[test]
fn a_link_group_is_at_ipv6_addresses_if_both_sides_agree() {
    let pair = pair6(host6(CLIENT), host6(SERVER)).completed();
    for (side, own, peer) in [
        (&pair.client, CLIENT, SERVER),
        (&pair.server, SERVER, CLIENT),
    ] {
        let rdma = side.rdma();
        assert_eq!(rdma.link.gid, RoceGid::from_ipv6(ip6(own)));
        assert_eq!(rdma.peer.gid, RoceGid::from_ipv6(ip6(peer)));
        assert_eq!(rdma.route, Route::SameSubnet);
        assert_eq!(side.established().vendor_features, Features::RDMA_IPV6);
    }
    let proposal = proposal6(&host6(CLIENT));
    let area = proposal.smcd.unwrap();
    assert_eq!(area.vendor_features(), Features::RDMA_IPV6);
    assert_eq!(proposal.ext.unwrap().gid, RoceGid::from_ipv6(ip6(CLIENT)));
    assert_eq!(features(&pair.accepts()[0]), Features::RDMA_IPV6);
    assert_eq!(features(&pair.confirms()[0]), Features::RDMA_IPV6);
}

#[test]
fn another_connection_joins_the_group() {
    let first = pair6(host6(CLIENT), host6(SERVER)).completed();
    let groups = [&first.client, &first.server].map(|side| Rc::clone(&side.groups));
    let host = |host| (host6(host), path6(host));
    let second = Pair::with(host(CLIENT), host(SERVER), groups).completed();
    for side in [&second.client, &second.server] {
        assert!(!side.established().first_contact);
        assert_eq!(side.established().vendor_features, Features::RDMA_IPV6);
    }
}

#[test]
fn without_the_agreement_an_ipv6_connection_is_tcp() {
    let without = |host| {
        let mut config = host6(host);
        config.vendor_features = Features::empty();
        config
    };
    let old = |host| {
        let mut config = host6(host);
        config.release = Release::V2_0;
        config
    };
    let quiet = |host| {
        let mut config = host6(host);
        rdma_of(&mut config).offers_ipv6 = false;
        config
    };
    let sent = |config| {
        let mut f = HandshakeFixture::client(config, &path6(CLIENT));
        f.side.take_sent()
    };
    let declines = sent(rdma_host_with(CLIENT, Vec::new()));
    for client in [without(CLIENT), old(CLIENT), quiet(CLIENT)] {
        assert_eq!(sent(client.clone()), declines, "as a host without devices");
        let mut pair = pair6(client, host6(SERVER));
        pair.run();
        pair.client_declines(DeclineCode::NOSMCDEV);
    }
    for server in [without(SERVER), old(SERVER)] {
        let mut pair = pair6(host6(CLIENT), server);
        pair.run();
        pair.server_declines(DeclineCode::NOSMCRDEV);
    }
    // Servers need not offer it.
    pair6(host6(CLIENT), quiet(SERVER)).completed();
}

#[test]
fn nothing_changes_over_ipv4() {
    let plain = rdma_host_with(CLIENT, ports(CLIENT));
    let sent = |config| {
        let pair = pair_of(config, rdma_host(SERVER)).completed();
        (pair.from_client.clone(), pair.from_server.clone())
    };
    assert_eq!(sent(host6(CLIENT)), sent(plain));
    // Two hosts that have the feature do not state it there either.
    let pair = pair_of(host6(CLIENT), host6(SERVER)).completed();
    assert_eq!(features(&pair.accepts()[0]), Features::empty());
    assert_eq!(pair.client.rdma().link.gid, RoceGid::from_ipv4(ip(CLIENT)));
}

#[test]
fn an_offer_of_version_1_stays() {
    let mut all = ports(CLIENT);
    all.push(port_v1(CLIENT));
    let with = proposal6(&host6_with(CLIENT, all.clone()));
    let without = proposal6(&rdma_host_with(CLIENT, all));
    assert_eq!((with.v1, with.v2), (OfferedTypes::R, OfferedTypes::R));
    assert_eq!(
        (without.v1, without.v2),
        (OfferedTypes::R, OfferedTypes::Neither)
    );
    let ends = |from: &Proposal| (from.peer_id, from.gid, from.mac, from.ip.clone());
    assert_eq!(ends(&with), ends(&without));

    // A server that does not know the feature takes it, as one that has it and no other address.
    let mut unaware = ports(SERVER);
    unaware.push(port_v1(SERVER));
    let f_accept = |config| {
        let mut f = HandshakeFixture::server(config, path6(SERVER));
        f.receive(&bytes(&with));
        AcceptConfirm::parse(&f.side.take_sent()).unwrap()
    };
    let accept = f_accept(rdma_host_with(SERVER, unaware));
    assert!(!accept.version().is_v2());
    let accept = f_accept(host6_with(SERVER, vec![port(SERVER), v1_port6(SERVER)]));
    assert!(!accept.version().is_v2());
}

/// A RoCE v1 port on an interface with an IPv6 address.
fn v1_port6(host: u8) -> RdmaPort {
    RdmaPort {
        subnets: port_at(host, ip6(host)).subnets,
        ..port_v1(host)
    }
}

#[test]
fn a_server_takes_no_gid_that_is_not_a_reachable_ipv6_address() {
    let proposal = proposal6(&host6(CLIENT));
    for gid in [
        // IPv4 in both forms, which `::1` is as well.
        ip(CLIENT).to_ipv6_mapped(),
        ip(CLIENT).to_ipv6_compatible(),
        Ipv6Addr::LOCALHOST,
        Ipv6Addr::UNSPECIFIED,
        "ff02::1".parse().unwrap(),
        "fe80::2".parse().unwrap(),
        // No route leads there.
        "fd09:5d::2".parse().unwrap(),
    ] {
        let mut proposal = proposal.clone();
        proposal.ext.as_mut().unwrap().gid = RoceGid::from_ipv6(gid);
        let code = declined(host6(SERVER), &proposal);
        assert_eq!(code, DeclineCode::NOSMCRDEV, "{gid}");
    }

    let mut unstated = proposal;
    let area = unstated.smcd.as_mut().unwrap();
    *area = area.with_vendor_features(Features::SINGLE_LINK);
    let code = declined(host6(SERVER), &unstated);
    assert_eq!(code, DeclineCode::NOSMCRDEV);
}

#[test]
fn an_ipv4_connection_has_no_ipv6_gid_whatever_the_client_states() {
    let mut proposal = rdma_proposal(&host6(CLIENT));
    proposal.ext.as_mut().unwrap().gid = RoceGid::from_ipv6(ip6(CLIENT));
    let area = proposal.smcd.as_mut().unwrap();
    *area = area.with_vendor_features(Features::RDMA_IPV6);
    let f = HandshakeFixture::server(host6(SERVER), path(SERVER));
    assert_eq!(f.declines(&bytes(&proposal)), DeclineCode::NOSMCRDEV);
}

#[test]
fn a_client_takes_no_server_that_does_not_agree_or_is_not_at_an_ipv6_address() {
    let accept = pair6(host6(CLIENT), host6(SERVER))
        .completed()
        .accepts()
        .remove(0);
    let declined = |accept: &AcceptConfirm| {
        let mut f = HandshakeFixture::client(host6(CLIENT), &path6(CLIENT));
        f.side.take_sent();
        f.declines(&accept_bytes(accept))
    };
    let unstated = with_parts(accept.clone(), |parts| {
        *parts = parts.with_vendor_features(Features::empty());
    });
    assert_eq!(declined(&unstated), DeclineCode::MODEUNSUPP);
    for gid in [
        RoceGid::from_ipv4(ip(SERVER)),
        RoceGid::from_ipv6("fe80::1".parse().unwrap()),
        RoceGid::ZERO,
    ] {
        let elsewhere = with_end(accept.clone(), |end| end.gid = gid);
        assert_eq!(declined(&elsewhere), DeclineCode::NOROUTE, "{gid}");
    }
    let indirect = with_parts(accept, |parts| parts.v2_direct = false);
    assert_eq!(declined(&indirect), DeclineCode::NOINDIRECT);
}

#[test]
fn a_confirm_repeats_the_agreement() {
    let confirm = pair6(host6(CLIENT), host6(SERVER))
        .completed()
        .confirms()
        .remove(0);
    assert_eq!(confirm.kind, AcceptKind::Confirm);
    let unstated = with_parts(confirm, |parts| {
        *parts = parts.with_vendor_features(Features::empty());
    });
    let mut f = HandshakeFixture::server(host6(SERVER), path6(SERVER));
    f.receive(&bytes(&proposal6(&host6(CLIENT))));
    f.side.take_sent();
    f.side.faults.stall = Some("confirm link");
    assert_eq!(
        f.declines(&accept_bytes(&unstated)),
        DeclineCode::RELEASEERR
    );
}

#[test]
fn the_port_is_at_the_address_of_the_connection_if_it_has_that() {
    let other = Ipv6Addr::new(0xfd09, 0x5c, 0, 0, 0, 0, 7, CLIENT.into());
    let own = port_at(CLIENT, ip6(CLIENT));
    for (ports, expected) in [
        (vec![port_at(CLIENT, other), own], ip6(CLIENT)),
        (vec![port_at(CLIENT, other)], other),
    ] {
        let proposal = proposal6(&host6_with(CLIENT, ports));
        assert_eq!(proposal.ext.unwrap().gid, RoceGid::from_ipv6(expected));
    }
}

#[test]
fn a_link_local_connection_has_no_port() {
    let link_local = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, CLIENT.into());
    let path = path6(CLIENT).with_addresses(link_local.into(), link_local.into());
    let offer = ClientProposal::new(&host6(CLIENT), &path);
    assert_eq!(offer.map(|_| ()).unwrap_err().local, DeclineCode::NOSMCDEV);
}

#[test]
fn the_second_gid_of_a_client_is_of_ipv6_too() {
    let mut all = ports(CLIENT);
    let second = Ipv6Addr::new(0xfd09, 0x5c, 0, 0, 0, 0, 7, CLIENT.into());
    let mut others = ports(CLIENT);
    others[2].address.gid = RoceGid::from_ipv6(second);
    for mut port in others {
        port.device = DeviceIndex(1);
        all.push(port);
    }
    let pair = pair6(host6_with(CLIENT, all), host6(SERVER)).completed();
    let gids = pair.confirms()[0].first_contact().unwrap().gids.unwrap();
    assert_eq!(
        gids.as_slice(),
        [ip6(CLIENT), second].map(RoceGid::from_ipv6)
    );
}

#[test]
fn over_a_router() {
    let host = |host| {
        let mut config = host6(host);
        rdma_of(&mut config).routes = Some(Arc::new(OverRouter));
        config
    };
    let pair = pair6(host(CLIENT), host(SERVER)).completed();
    for side in [&pair.client, &pair.server] {
        assert_eq!(side.rdma().route, Route::Gateway);
    }
}
