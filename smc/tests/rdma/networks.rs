//! Ports on different networks: VLANs, cards that do not reach the peer, and IPsec.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use smc_core::device::{RdmaAddress, RoceKind};
use smc_core::wire::types::{DeclineCode, Mac, MtuCode, RoceGid};
use smc_testkit::memory_rdma::{MemoryRdma, RdmaOptions};
use smc_testkit::runtime::Options;
use smc_testkit::streams::{connect, transfer_both_ways};
use smc_testkit::world::{RdmaWorld, SERVER, is_smcr};

/// An address of a port, and the interface that it is at.
fn address(port: u8, ip: Ipv4Addr, interface: &str, vlan: u16) -> RdmaAddress {
    let [.., net, host] = ip.octets();
    let mac = Mac::new([2, 0, 0, 0, net, host]);
    let gid = RoceGid::from_ipv4(ip);
    RdmaAddress::new(gid, RoceKind::V2, mac, MtuCode::MTU_1024)
        .with_interface(interface, vlan)
        .with_port(port)
}

fn device(world: &RdmaWorld, name: &str, addresses: &[RdmaAddress]) -> Arc<MemoryRdma> {
    let options = addresses.iter().cloned();
    let options = options.fold(RdmaOptions::default(), RdmaOptions::with_address);
    world.wire().device_with(name, options)
}

#[test]
fn connections_in_a_vlan_use_gids_of_that_vlan() {
    for (tcp, gids, is_possible) in [(7, 7, true), (7, 0, false), (0, 7, false)] {
        let world = RdmaWorld::new(700);
        world.runtime().set_vlan("v0", tcp);
        let hosts = [1, 2].map(|host| {
            let ip = Ipv4Addr::new(10, 0, 0, host);
            device(&world, "dev", &[address(1, ip, "v0", gids)])
        });
        let [client, server] = hosts.each_ref().map(|device| world.endpoint(&[device]));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert_eq!(is_smcr(&ours), is_possible, "VLAN {tcp}, GIDs in {gids}");
            transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
        });
    }
}

#[test]
fn a_connection_that_ipsec_protects_is_tcp_unless_it_may_go_around() {
    for bypass in [false, true] {
        let world = RdmaWorld::with_options(703, Options::default().with_ipsec(true));
        let hosts = [world.device("a0", 1), world.device("b0", 2)];
        let [client, server] = hosts
            .each_ref()
            .map(|device| world.endpoint_with(&[device], |builder| builder.bypass_ipsec(bypass)));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert_eq!(is_smcr(&ours), bypass);
            let reason = ours.fallback_reason().map(|reason| reason.local);
            let expected = (!bypass).then_some(DeclineCode(0x0302_0000));
            assert_eq!(reason, expected);
            transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
        });
    }
}

/// Two hosts with a port in the network of the connection and another one elsewhere.
fn links_with_second_port(world: &RdmaWorld, second: [(Ipv4Addr, &str); 2]) -> [usize; 2] {
    let mut host = 0;
    let hosts = second.map(|(ip, interface)| {
        host += 1;
        let first = address(1, Ipv4Addr::new(10, 0, 0, host), "v0", 0);
        device(world, "dev", &[first, address(2, ip, interface, 0)])
    });
    let [client, server] = hosts.each_ref().map(|device| world.endpoint(&[device]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (ours, _theirs) = connect(&client, &listener).await;
        assert!(is_smcr(&ours));
        world.sleep(Duration::from_secs(10)).await;
        hosts.each_ref().map(|device| device.links().len())
    })
}

#[test]
fn a_port_in_a_network_that_does_not_lead_to_the_peer_gets_no_link() {
    let world = RdmaWorld::new(701);
    let [near, far] = [Ipv4Addr::new(10, 8, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
    world.runtime().add_interface("v8", near.into(), 24);
    world.runtime().add_interface("v9", far.into(), 24);
    let links = links_with_second_port(&world, [(near, "v8"), (far, "v9")]);
    assert_eq!(links, [1, 1]);
}

#[test]
fn a_port_in_the_network_of_the_peer_gets_a_second_link() {
    let world = RdmaWorld::new(702);
    let [near, far] = [Ipv4Addr::new(10, 0, 0, 3), Ipv4Addr::new(10, 0, 0, 4)];
    let links = links_with_second_port(&world, [(near, "v0"), (far, "v0")]);
    assert_eq!(links, [2, 2]);
}
