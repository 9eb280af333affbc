//! Ports on different networks: VLANs, cards that do not reach the peer, and IPsec.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use smc::ConnectOptions;
use smc::info::{CandidateInfo, CandidateTransport};
use smc::introspection::{Directory, Request, Subject, directories, query};
use smc::record::Record;
use smc_core::device::{RdmaAddress, RoceKind};
use smc_core::wire::types::{DeclineCode, Mac, MtuCode, RoceGid};
use smc_testkit::memory_rdma::{MemoryRdma, RdmaOptions};
use smc_testkit::runtime::Options;
use smc_testkit::streams::{connect, transfer_both_ways};
use smc_testkit::wait::{TIMEOUT, until};
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
    world.network().device_with(name, options)
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
            let candidates = client.candidates(SERVER).await.expect("an address");
            let is_port = |way: &&CandidateInfo| way.transport != CandidateTransport::Tcp;
            let port = candidates.iter().find(is_port).expect("the device");
            let excluded = port.excluded.as_ref().map(ToString::to_string);
            let reason = "connection is in another VLAN".to_owned();
            assert_eq!(excluded, (!is_possible).then_some(reason));
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert_eq!(is_smcr(&ours), is_possible, "VLAN {tcp}, GIDs in {gids}");
            transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
        });
    }
}

#[test]
fn connections_to_an_address_of_no_interface_do_not_have_the_interfaces_read_each_time() {
    let world = RdmaWorld::new(709);
    let [client, server] = [1, 2].map(|last| world.endpoint(&[&world.device("dev", last)]));
    world.block_on(async {
        let listener = server.bind("192.0.2.1:4000").await.expect("a free port");
        let connect =
            || futures_lite::future::zip(client.connect("192.0.2.1:4000"), listener.accept());
        let before = world.runtime().interface_reads();
        let ((), time) = world
            .timed(async {
                for _ in 0..100 {
                    let (ours, theirs) = connect().await;
                    assert!(!is_smcr(&ours.expect("connects")) && theirs.is_ok());
                }
            })
            .await;
        let reads = world.runtime().interface_reads() - before;
        let most = usize::try_from(time.as_millis() / 100).expect("is short") + 1;
        assert!(reads <= 2 * most, "{reads} in {time:?}");
        assert!(most < 50, "{time:?}");
    });
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

#[test]
fn a_port_below_the_interface_of_the_connection_is_used() {
    // The connection runs over `bond0`, whose addresses are those of GIDs at its port, too.
    let world = RdmaWorld::new(704);
    world.runtime().set_base("v0", "eth0");
    let ip = Ipv4Addr::new(10, 0, 0, 9);
    world.runtime().add_interface("eth0", ip.into(), 24);
    let hosts = [1, 2].map(|host| {
        let ip = Ipv4Addr::new(10, 0, 0, host);
        device(&world, "dev", &[address(1, ip, "eth0", 0)])
    });
    let [client, server] = hosts.each_ref().map(|device| world.endpoint(&[device]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (ours, _theirs) = connect(&client, &listener).await;
        assert!(is_smcr(&ours));
    });
}

#[test]
fn interfaces_and_ports_are_in_the_networks_of_the_kernels_table() {
    for (of_port, is_possible) in [("NET1", true), ("NET2", false)] {
        let world = RdmaWorld::new(705);
        world.runtime().set_pnet_id("v0", "NET1");
        world.runtime().set_pnet_id("ib0", of_port);
        let ip = Ipv4Addr::new(10, 0, 0, 9);
        world.runtime().add_interface("ib0", ip.into(), 24);
        let hosts = [1, 2].map(|host| {
            let ip = Ipv4Addr::new(10, 0, 0, host);
            device(&world, "dev", &[address(1, ip, "ib0", 0)])
        });
        let [client, server] = hosts.each_ref().map(|device| world.endpoint(&[device]));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let (ours, _theirs) = connect(&client, &listener).await;
            assert_eq!(is_smcr(&ours), is_possible, "{of_port}");
        });
    }
}

#[test]
fn a_second_link_is_at_a_gid_of_an_ipv4_address() {
    let world = RdmaWorld::new(706);
    world.runtime().set_pnet_id("v0", "NET1");
    let hosts = [1, 2].map(|host| {
        let [first, second] = [host, host + 2].map(|host| Ipv4Addr::new(10, 0, 0, host));
        let mut link_local = address(2, second, "v0", 0);
        let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, u16::from(host));
        link_local.gid = RoceGid::from_ipv6(ip);
        let second = address(2, second, "v0", 0);
        device(
            &world,
            "dev",
            &[address(1, first, "v0", 0), link_local, second],
        )
    });
    let [client, server] = hosts.each_ref().map(|device| world.endpoint(&[device]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (_ours, _theirs) = connect(&client, &listener).await;
        world.sleep(Duration::from_secs(1)).await;
        let groups = client.rdma_groups();
        let gids: Vec<_> = groups.iter().flat_map(|group| &group.links).collect();
        let gids: Vec<_> = gids
            .iter()
            .filter_map(|link| link.local?.gid.ipv4())
            .collect();
        assert_eq!(
            gids,
            [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 3)]
        );
    });
}

#[test]
fn link_local_prefixes_are_no_common_network() {
    let ip = |text: &str| text.parse::<Ipv6Addr>().expect("an address");
    let [from, to] = [ip("fd00:1::1"), ip("fd00:2::2")];
    for (besides, is_possible) in [
        ([ip("fe80::1"), ip("fe80::2")], false),
        ([ip("fd00:3::1"), ip("fd00:3::2")], true),
    ] {
        let world = RdmaWorld::new(710);
        let host = |name: &str, last: u8, addresses: [Ipv6Addr; 2]| {
            for address in addresses {
                world.runtime().add_interface(name, address.into(), 64);
            }
            let gid = RoceGid::from_ipv6(addresses[0]);
            let mac = Mac::new([2, 0, 0, 0, 0, last]);
            let address = RdmaAddress::new(gid, RoceKind::V1, mac, MtuCode::MTU_1024);
            let device = device(&world, "dev", &[address.with_interface(name, 0)]);
            world.endpoint(&[&device])
        };
        let client = host("v8", 1, [from, besides[0]]);
        let server = host("v9", 2, [to, besides[1]]);
        world.block_on(async {
            let listener = server.bind((to, 4000)).await.expect("a free port");
            let options = ConnectOptions::default().local((from, 0).into());
            let connecting = client.connect_with((to, 4000), &options);
            let (ours, theirs) = futures_lite::future::zip(connecting, listener.accept()).await;
            assert!(theirs.is_ok());
            assert_eq!(
                is_smcr(&ours.expect("connects")),
                is_possible,
                "{besides:?}"
            );
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
        hosts.each_ref().map(|device| device.connected_links())
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

#[test]
fn a_link_is_reported_with_the_interface_of_its_gid() {
    if !smc_testkit::process::is_alone() {
        return;
    }
    let world = RdmaWorld::new(711);
    let hosts = [1, 2].map(|host| {
        let other = address(2, Ipv4Addr::new(10, 0, 7, host), "v7", 0);
        let used = address(1, Ipv4Addr::new(10, 0, 0, host), "v0", 0);
        device(&world, "dev", &[other, used])
    });
    let [client, server] = hosts.each_ref().map(|device| world.endpoint(&[device]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (ours, _theirs) = connect(&client, &listener).await;
        assert!(is_smcr(&ours));
        let own = format!("i-{}-", std::process::id());
        let is_own = |path: &PathBuf| path.to_string_lossy().contains(&own);
        let mut socket: Option<PathBuf> = None;
        // A thread publishes it.
        let is_published = || {
            socket = directories()
                .found
                .iter()
                .flat_map(Directory::sockets)
                .find(is_own);
            socket.is_some()
        };
        until(is_published, || "no socket for requests".to_owned());
        let request = Request::new(&[Subject::Groups]);
        let records = query(&socket.expect("a socket"), &request, TIMEOUT, |_| true);
        let records = records.expect("an answer");
        let groups = records.iter().filter_map(|record| match record {
            Record::Group(group) => Some(group),
            _ => None,
        });
        let links: Vec<_> = groups.flat_map(|group| &group.links).collect();
        let active: Vec<_> = links.iter().filter(|link| link.gid.is_some()).collect();
        assert!(active.len() >= 2, "{links:?}");
        for link in active {
            // The group gets a link at the other port, too.
            let is_first = link
                .gid
                .as_ref()
                .is_some_and(|gid| gid.contains(":10.0.0."));
            let interface = if is_first { "v0" } else { "v7" };
            assert_eq!(link.interface.as_deref(), Some(interface), "{link:?}");
        }
    });
}
