use super::*;
use smc_wire::types::Features;

use crate::proto::group::{GroupKey, GroupState};

#[test]
fn first_contact_of_v2_1() {
    let pair = rdma_pair().completed();

    let (client, server) = (pair.client.established(), pair.server.established());
    for side in [client, server] {
        assert!(side.first_contact);
        assert_eq!((side.version, side.release), (Version::V2, Release::V2_1));
        assert_eq!(side.eid, Some(ueid("EXAMPLE")));
        assert_eq!(side.peer_host.as_str(), Some("host-a"));
    }

    let (here, there) = (pair.client.rdma(), pair.server.rdma());
    assert_eq!((here.link, here.peer), (there.peer, there.link));
    for (own, told) in [(here.local, there.peer_rmb), (there.local, here.peer_rmb)] {
        assert_eq!(
            (own.rkey, own.addr, own.index, own.size, own.token),
            (told.rkey, told.addr, told.index, told.size, told.token)
        );
    }
    assert_eq!(
        (here.route, there.route),
        (Route::SameSubnet, Route::SameSubnet)
    );
    assert_eq!(here.local.size, SizeCode::LINUX_DEFAULT);

    // PROPOSAL, ACCEPT and CONFIRM as long as those of Linux, and not a byte more.
    assert_eq!(pair.from_server.len(), 160);
    assert_eq!(pair.from_client.len(), 156 + 180);
    assert!(pair.to_client.is_empty() && pair.to_server.is_empty());
    assert_eq!(
        pair.client.asked(),
        [
            "enter",
            "open link",
            "prepare",
            "bind",
            "connect",
            "confirm link",
            "establish"
        ]
    );
    assert_eq!(
        pair.server.asked(),
        [
            "enter",
            "open link",
            "prepare",
            "bind",
            "connect",
            "confirm link",
            "establish"
        ]
    );
    for side in [&pair.client, &pair.server] {
        let groups = side.groups.borrow();
        let group = side.established().group;
        let snapshot = groups.registry.group_info(group).unwrap();
        assert_eq!(
            (snapshot.state, snapshot.connections),
            (GroupState::Active, 1)
        );
        assert_eq!(snapshot.terms.unwrap().max_connections, Some(255));
        let terms = groups.links[&group].terms.unwrap();
        assert_eq!(terms, of_linux(LlcTerms::v2_1(2, 255)));
    }
}

#[test]
fn the_byte_order_of_the_link_is_that_of_the_peers_documents_or_of_linux() {
    use smc_wire::llc::{ByteOrder, Dialect};
    for (os, dialect) in [
        (OsType::LINUX, Dialect::V2(ByteOrder::Little)),
        (OsType::NONE, Dialect::V2(ByteOrder::Little)),
        (OsType::ZOS, Dialect::V2(ByteOrder::Big)),
        (OsType::AIX, Dialect::V2(ByteOrder::Big)),
    ] {
        let (mut client, mut server) = (rdma_host(CLIENT), rdma_host(SERVER));
        (client.os, server.os) = (os, os);
        let pair = pair_of(client, server).completed();
        for side in [&pair.client, &pair.server] {
            let groups = side.groups.borrow();
            let terms = groups.links[&side.established().group].terms.unwrap();
            assert_eq!(terms.dialect, dialect, "{os}");
            assert_eq!(terms.confirms_rkeys, os == OsType::LINUX);
        }
    }
    let v1 = |host| rdma_host_with(host, vec![port_v1(host)]);
    let (mut client, server) = (v1(CLIENT), v1(SERVER));
    client.os = OsType::ZOS;
    let pair = pair_of(client, server).completed();
    let groups = pair.server.groups.borrow();
    let terms = groups.links[&pair.server.established().group].terms;
    assert_eq!(terms.unwrap().dialect, Dialect::V1);
}

#[test]
fn a_single_link_takes_both_sides_and_a_limit_of_one_link() {
    for has_it in [[true, true], [true, false], [false, true], [false, false]] {
        for limits in [[1, 1], [1, 2], [2, 1], [2, 2]] {
            let host = |host, at: usize| {
                let mut config = rdma_host(host);
                rdma_of(&mut config).max_links = limits[at];
                config.vendor_features = match has_it[at] {
                    true => Features::SINGLE_LINK | Features::AUTHENTICATION,
                    false => Features::AUTHENTICATION,
                };
                config
            };
            let pair = pair_of(host(CLIENT, 0), host(SERVER, 1)).completed();
            let is_agreed = has_it == [true, true] && limits.contains(&1);
            let agreed = match is_agreed {
                true => Features::SINGLE_LINK | Features::AUTHENTICATION,
                false => Features::AUTHENTICATION,
            };
            for side in [&pair.client, &pair.server] {
                let groups = side.groups.borrow();
                let established = side.established();
                let terms = groups.links[&established.group].terms.unwrap();
                let case = format!("{has_it:?} {limits:?}");
                assert_eq!(terms.keeps_rkeys, is_agreed, "{case}");
                assert_eq!(terms.max_links, limits[0].min(limits[1]), "{case}");
                assert_eq!(established.vendor_features, agreed, "{case}");
            }
        }
    }
}

#[test]
fn a_single_link_takes_authentication() {
    let host = |host| {
        let mut config = rdma_host(host);
        rdma_of(&mut config).max_links = 1;
        config.vendor_features = Features::SINGLE_LINK;
        config
    };
    let pair = pair_of(host(CLIENT), host(SERVER)).completed();
    let features = pair.client.established().vendor_features;
    assert_eq!(features, Features::empty());
}

/// Linux announces its RMBs on the link.
fn of_linux(terms: LlcTerms) -> LlcTerms {
    LlcTerms {
        confirms_rkeys: true,
        is_linux: true,
        ..terms
    }
}

#[test]
fn one_byte_at_a_time() {
    let mut pair = rdma_pair();
    pair.chunk = 1;
    pair.run();
    assert!(pair.client.established().first_contact);
    assert!(pair.server.established().first_contact);
}

#[test]
fn keys_are_what_linux_compares_and_the_clients_address() {
    let pair = rdma_pair().completed();
    let key_of = |side: &HandshakeSide| {
        let group = side.established().group;
        let groups = side.groups.borrow();
        groups.registry.group_info(group).unwrap().key
    };
    let rdma = |role, host, qpn| GroupKey::Rdma {
        role,
        version: Version::V2,
        peer: peer_id(host),
        gid: RoceGid::from_ipv4(ip(host)),
        mac: None,
        vlan: 0,
        client: (role == Role::Server).then_some(ip(host).into()),
        authenticates: false,
        qpn,
    };
    let of_server = Some(pair.server.rdma().link.qpn);
    assert_eq!(key_of(&pair.client), rdma(Role::Client, SERVER, of_server));
    assert_eq!(key_of(&pair.server), rdma(Role::Server, CLIENT, None));
}

#[test]
fn path_mtu_is_the_smaller_one() {
    let with = |host, mtu| {
        let mut port = port(host);
        port.address.mtu = mtu;
        rdma_host_with(host, vec![port])
    };
    for (client, server) in [
        (MtuCode::MTU_4096, MtuCode::MTU_1024),
        (MtuCode::MTU_512, MtuCode::MTU_2048),
    ] {
        let pair = pair_of(with(CLIENT, client), with(SERVER, server)).completed();
        let told = |message: &AcceptConfirm| match message.body {
            Body::R(end) => end.mtu,
            Body::D(_) => panic!("not SMC-R"),
        };
        assert_eq!(told(&pair.accepts()[0]), server, "its own");
        assert_eq!(told(&pair.confirms()[0]), client.min(server));
        assert_eq!(pair.client.rdma().peer.mtu, server);
        assert_eq!(pair.server.rdma().peer.mtu, client.min(server));
    }
}

#[test]
fn limits_are_the_smaller_ones() {
    let (mut client, mut server) = (rdma_host(CLIENT), rdma_host(SERVER));
    (
        rdma_of(&mut client).max_conns,
        rdma_of(&mut client).max_links,
    ) = (100, 2);
    (
        rdma_of(&mut server).max_conns,
        rdma_of(&mut server).max_links,
    ) = (16, 1);
    let pair = pair_of(client, server).completed();
    for message in [&pair.accepts()[0], &pair.confirms()[0]] {
        let parts = message.first_contact().unwrap();
        assert_eq!((parts.max_conns, parts.max_links), (16, 1));
    }
    for side in [&pair.client, &pair.server] {
        let groups = side.groups.borrow();
        let terms = groups.links[&side.established().group].terms.unwrap();
        assert_eq!(terms, of_linux(LlcTerms::v2_1(1, 16)));
        assert_eq!(side.established().release, Release::V2_1);
    }
}

#[test]
fn v2_0_states_no_limits() {
    for old in [CLIENT, SERVER] {
        let mut configs = [rdma_host(CLIENT), rdma_host(SERVER)];
        configs[usize::from(old == SERVER)].release = Release::V2_0;
        let [client, server] = configs;
        let pair = pair_of(client, server).completed();
        assert_eq!(pair.from_server.len(), 160, "as long as with limits");
        assert_eq!(pair.from_client.len(), 156 + 180);
        for side in [&pair.client, &pair.server] {
            assert_eq!(side.established().release, Release::V2_0);
            let groups = side.groups.borrow();
            let terms = groups.links[&side.established().group].terms.unwrap();
            assert_eq!(terms, of_linux(LlcTerms::V2));
        }
    }
}

#[test]
fn version_1_between_hosts_without_a_ueid() {
    let v1 = |host| {
        let mut config = rdma_host_with(host, vec![port_v1(host)]);
        config.ueids.clear();
        config
    };
    let pair = pair_of(v1(CLIENT), v1(SERVER)).completed();
    assert_eq!(pair.from_server.len(), 68);
    assert_eq!(pair.from_client.len(), 92 + 68);
    for side in [&pair.client, &pair.server] {
        let established = side.established();
        assert_eq!(
            (established.version, established.release),
            (Version::V1, Release::V2_0)
        );
        assert_eq!((established.eid, established.first_contact), (None, true));
        let groups = side.groups.borrow();
        let snapshot = groups.registry.group_info(established.group).unwrap();
        let GroupKey::Rdma { mac: told, .. } = snapshot.key else {
            panic!("not SMC-R");
        };
        assert!(told.is_some(), "version 1 compares the MAC too");
    }
    let mut second = {
        let groups = [&pair.client, &pair.server].map(|side| Rc::clone(&side.groups));
        pair_in(v1(CLIENT), v1(SERVER), groups)
    };
    second.run();
    assert!(!second.client.established().first_contact);
    assert_eq!(second.from_server.len(), 68);
}

#[test]
fn over_a_router() {
    let far = |host: u8, net: u8| {
        let own = Ipv4Addr::new(10, net, 0, host);
        let subnets = vec![Subnet::V4(own, 24)];
        let mut port = port(host);
        port.address.gid = RoceGid::from_ipv4(own);
        port.subnets.clone_from(&subnets);
        let interface = Interface::new(subnets, None).with_name("eth0");
        let path = TcpPath::over(interface).with_addresses(own.into(), ip(9).into());
        let mut config = rdma_host_with(host, vec![port]);
        rdma_of(&mut config).routes = Some(Arc::new(OverRouter));
        (config, path)
    };
    let groups = [Rc::default(), Rc::default()];
    let pair = Pair::with(far(CLIENT, 1), far(SERVER, 2), groups).completed();
    for side in [&pair.client, &pair.server] {
        assert_eq!(side.rdma().route, Route::Gateway);
    }
    for message in [&pair.accepts()[0], &pair.confirms()[0]] {
        assert!(!message.first_contact().unwrap().v2_direct);
    }
}

#[test]
fn alternate_port_of_the_client_is_in_confirm() {
    let mut second = port(CLIENT);
    second.device = DeviceIndex(1);
    second.address.gid = RoceGid::from_ipv4(Ipv4Addr::new(10, 9, 1, CLIENT));
    second.address.interface = Some("eth1".into());
    let client = rdma_host_with(CLIENT, vec![port(CLIENT), second.clone()]);
    let pair = pair_of(client, rdma_host(SERVER)).completed();
    let confirm = &pair.confirms()[0];
    let gids = confirm.first_contact().unwrap().gids.unwrap();
    assert_eq!(
        gids.as_slice(),
        [RoceGid::from_ipv4(ip(CLIENT)), second.address.gid]
    );
    assert_eq!(confirm.encoded_len(), 196);
}

#[test]
fn smc_d_goes_before_smc_r() {
    let both = |host| {
        let mut config = rdma_host(host);
        config.devices = vec![device(0, LOOP)];
        config
    };
    let pair = pair_of(both(CLIENT), both(SERVER)).completed();
    pair.client.direct();
    assert!(pair.server.asked().contains(&"reach"));

    let mut pair = pair_of(both(CLIENT), both(SERVER));
    pair.server.faults.unreachable.push(DeviceIndex(0));
    pair.run();
    assert_eq!(pair.client.rdma().device, DeviceIndex(0));
    assert!(pair.server.established().first_contact);
}

#[test]
fn smc_r_when_smc_d_has_no_buffer_left() {
    let both = |host| {
        let mut config = rdma_host(host);
        config.devices = vec![device(0, LOOP)];
        config
    };
    let mut pair = pair_of(both(CLIENT), both(SERVER));
    let faults = &mut pair.server.faults;
    let full = [DeviceError::Exhausted].into();
    faults.register.insert(DeviceIndex(0), full);
    pair.run();
    pair.server.rdma();
    pair.client.rdma();
    assert_eq!(pair.server.discards, 1);
    assert_eq!(pair.server.groups.borrow().connections(), 1);
}
