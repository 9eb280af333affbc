//! Which ports fit a connection, and what a client offers.

use smc_wire::types::{Features, OfferedTypes, PnetId};

use super::*;

fn offer(config: &HandshakeConfig, path: &TcpPath) -> Result<Proposal, DeclineCode> {
    let offer = ClientProposal::new(config, path).map_err(|reason| reason.local)?;
    Ok(Proposal::parse(offer.bytes()).unwrap())
}

#[test]
fn a_proposal_has_the_peer_id_in_version_2() {
    let config = rdma_host(CLIENT);
    let proposal = offer(&config, &path(CLIENT)).unwrap();
    assert_eq!(
        (proposal.v1, proposal.v2),
        (OfferedTypes::Neither, OfferedTypes::R)
    );
    let gid = RoceGid::from_ipv4(ip(CLIENT));
    assert_eq!(
        (proposal.peer_id, proposal.gid, proposal.mac),
        (peer_id(CLIENT), gid, mac(CLIENT))
    );
    assert_eq!(proposal.smcd, Some(clc::SmcdArea::default()));
    let ext = proposal.ext.as_ref().unwrap();
    assert_eq!((ext.gid, ext.max_conns, ext.max_links), (gid, 255, 2));
    assert!(!ext.has_seid && ext.direct.is_none());
    // Linux takes the byte where an IP area would begin for a count of prefixes.
    let bytes = bytes(&proposal);
    assert_eq!((bytes.len(), &bytes[38..48]), (156, &[0; 10][..]));
}

#[test]
fn one_port_means_one_link() {
    let one = RdmaConfig::new(peer_id(CLIENT), vec![port(CLIENT)]);
    assert_eq!(one.max_links, 1);
    let both_kinds = vec![port(CLIENT), port_v1(CLIENT)];
    assert_eq!(RdmaConfig::new(peer_id(CLIENT), both_kinds).max_links, 1);
    let mut second = port(CLIENT);
    second.address.port = 2;
    let two = RdmaConfig::new(peer_id(CLIENT), vec![port(CLIENT), second]);
    assert_eq!(two.max_links, 2);
}

#[test]
fn both_versions_at_once() {
    let config = rdma_host_with(CLIENT, vec![port_v1(CLIENT), port(CLIENT)]);
    let proposal = offer(&config, &path(CLIENT)).unwrap();
    assert_eq!(
        (proposal.v1, proposal.v2),
        (OfferedTypes::R, OfferedTypes::R)
    );
    assert_eq!(proposal.gid, port_v1(CLIENT).address.gid);
    assert_eq!(proposal.ext.unwrap().gid, port(CLIENT).address.gid);
    let area = proposal.ip.unwrap();
    assert_eq!(
        (area.subnet, area.prefix_len),
        (Ipv4Addr::new(10, 9, 0, 0), 24)
    );
}

#[test]
fn c5_vlan_that_is_not_known() {
    let mut path = path(CLIENT);
    path.vlan_unknown = true;
    let config = rdma_host_with(CLIENT, vec![port_v1(CLIENT), port(CLIENT)]);
    assert_eq!(offer(&config, &path), Err(DeclineCode::NOSMCDEV));
}

#[test]
fn c6_nothing_to_offer() {
    let none = Err(DeclineCode::NOSMCDEV);
    let mut without_ueid = rdma_host(CLIENT);
    without_ueid.ueids.clear();
    assert_eq!(offer(&without_ueid, &path(CLIENT)), none);

    let over_v6 = {
        let local = "fd09:5c::2".parse().unwrap();
        path(CLIENT).with_addresses(local, local)
    };
    assert_eq!(offer(&rdma_host(CLIENT), &over_v6), none);
    assert_eq!(offer(&rdma_host(CLIENT), &TcpPath::default()), none);

    // An IPv4 connection of an IPv6 socket.
    let mapped = ip(CLIENT).to_ipv6_mapped().into();
    let mapped = path(CLIENT).with_addresses(mapped, mapped);
    assert_eq!(
        offer(&rdma_host(CLIENT), &mapped).unwrap().v2,
        OfferedTypes::R
    );
}

#[test]
fn c7_subnets_that_are_not_known() {
    let mut unknown = path(CLIENT);
    unknown.interface = Some(Interface::new(Vec::new(), None).with_name("eth0"));
    let v1 = rdma_host_with(CLIENT, vec![port_v1(CLIENT)]);
    assert_eq!(offer(&v1, &unknown), Err(DeclineCode::CNFERR));
    let both = rdma_host_with(CLIENT, vec![port_v1(CLIENT), port(CLIENT)]);
    let proposal = offer(&both, &unknown).unwrap();
    assert_eq!(
        (proposal.v1, proposal.v2),
        (OfferedTypes::Neither, OfferedTypes::R)
    );
}

#[test]
fn prefixes_of_an_ipv6_connection() {
    let local = "fd09:5c::2".parse().unwrap();
    let subnets = vec![
        Subnet::V4(ip(CLIENT), 24),
        Subnet::V6("fd09:5c::2".parse().unwrap(), 64),
    ];
    let interface = Interface::new(subnets, None).with_name("eth0");
    let path = TcpPath::over(interface).with_addresses(local, local);
    let config = rdma_host_with(CLIENT, vec![port_v1(CLIENT)]);
    let area = offer(&config, &path).unwrap().ip.unwrap();
    assert!(area.subnet.is_unspecified());
    assert_eq!(area.prefixes.as_slice()[0].prefix_len, 64);
}

#[test]
fn physical_networks_go_before_interfaces() {
    let net = |name| Some(PnetId::new(name).unwrap());
    let named = |name, interface: &str, device| {
        let mut port = RdmaPort {
            pnet_id: net(name),
            ..port(CLIENT)
        };
        port.device = DeviceIndex(device);
        port.base = Some(interface.into());
        port
    };
    let ports = vec![
        named("NET1", "eth0", 0),
        named("NET2", "eth1", 1),
        named("NET2", "eth2", 2),
    ];
    let rdma = RdmaConfig::new(peer_id(CLIENT), ports);
    let over = |pnet_id, name: &str| {
        let interface = Interface::new(subnets(CLIENT), pnet_id).with_name(name);
        let path = TcpPath::over(interface).with_addresses(ip(CLIENT).into(), ip(SERVER).into());
        rdma.port(Version::V2, &path, Features::empty())
            .map(|port| port.device.0)
    };
    assert_eq!(over(net("NET2"), "eth0"), Some(1), "the first one");
    assert_eq!(over(net("NET3"), "eth0"), None);
    assert_eq!(over(None, "eth2"), Some(2), "its own interface");
    assert_eq!(over(None, "eth9"), None);
    let unnamed = TcpPath::default().with_addresses(ip(CLIENT).into(), ip(SERVER).into());
    let found = rdma.port(Version::V2, &unnamed, Features::empty());
    assert_eq!(
        found.map(|port| port.device.0),
        Some(0),
        "by the connection's address"
    );
}

#[test]
fn addresses_that_do_not_suit() {
    let fits = |change: &dyn Fn(&mut RdmaPort)| {
        let mut port = port(CLIENT);
        change(&mut port);
        let rdma = RdmaConfig::new(peer_id(CLIENT), vec![port]);
        rdma.port(Version::V2, &path(CLIENT), Features::empty())
            .is_some()
    };
    assert!(fits(&|_| {}));
    assert!(!fits(&|port| port.address.kind = RoceKind::V1));
    assert!(!fits(&|port| port.address.vlan = 5));
    assert!(!fits(&|port| port.subnets.clear()));
    assert!(!fits(&|port| {
        port.address.gid = RoceGid::from_ipv6("fe80::1".parse().unwrap());
    }));
    let mut config = RdmaConfig::new(peer_id(CLIENT), vec![port_v1(CLIENT)]);
    assert!(
        config
            .port(Version::V1, &path(CLIENT), Features::empty())
            .is_some()
    );
    config.v1 = false;
    assert!(
        config
            .port(Version::V1, &path(CLIENT), Features::empty())
            .is_none()
    );
}
