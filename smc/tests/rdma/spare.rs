//! The queue pair and the buffers that are made in advance for the next link group.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use smc::{Endpoint, Stream};
use smc_core::device::{DeviceError, RdmaAddress, RoceKind};
use smc_core::wire::types::{Mac, MtuCode, RoceGid};
use smc_testkit::memory_rdma::{MemoryRdma, RdmaOptions};
use smc_testkit::streams::{connect, transfer_both_ways};
use smc_testkit::world::{RdmaWorld, SERVER, is_smcr};

/// Queue pairs that no link group has.
fn spares(device: &MemoryRdma) -> usize {
    device.links().len() - device.connected_links()
}

/// Clients of different hosts.
fn clients(world: &RdmaWorld) -> [(Arc<MemoryRdma>, Endpoint); 3] {
    [1, 3, 4].map(|last| {
        let device = world.device("a0", last);
        let endpoint = world.endpoint(&[&device]);
        (device, endpoint)
    })
}

async fn check((ours, theirs): &mut (Stream, Stream)) {
    assert!(is_smcr(ours), "{}", ours.mode());
    transfer_both_ways(ours, theirs, 10_000).await;
}

#[test]
fn the_second_link_group_finds_a_queue_pair_and_registered_buffers() {
    let world = RdmaWorld::new(800);
    let device = world.device("b0", 2);
    let server = world.endpoint(&[&device]);
    let clients = clients(&world);
    let time = Duration::from_millis(10);
    world.network().set_setup_time(time);
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut times = Vec::new();
        for (_, client) in &clients {
            let (mut streams, time) = world.timed(connect(client, &listener)).await;
            check(&mut streams).await;
            times.push(time);
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(spares(&device), 1);
        }
        // The server's queue pair, its RMB and its staging ring.
        for later in &times[1..] {
            assert!(*later + 3 * time <= times[0], "{times:?}");
        }
    });
}

#[test]
fn the_spare_ends_with_the_last_link_group_and_with_its_address() {
    let world = RdmaWorld::new(801);
    let hosts = world.hosts_with_two_links();
    let [near, far] = [0, 1].map(|host| &hosts.devices[host]);
    world.block_on(async {
        let mut streams = hosts.pair().await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!([near, far].map(|device| spares(device)), [1, 1]);
        near.set_port_active(1, false);
        check(&mut streams).await;
        assert_eq!(spares(near), 0);
        drop(streams);
        hosts.client.close().await;
        hosts.server.close().await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(far.links(), []);
        assert_eq!(far.registrations(), 0);
    });
}

/// A device with two addresses in the network, and space for so many links.
fn device_with_two_ports(world: &RdmaWorld, host: u8, max_links: usize) -> Arc<MemoryRdma> {
    let ports = [1, 2].into_iter();
    let options = ports.fold(RdmaOptions::default(), |all, port| {
        let last = host + 2 * (port - 1);
        let gid = RoceGid::from_ipv4(Ipv4Addr::new(10, 0, 0, last));
        let mac = Mac::new([2, 0, 0, 0, 0, last]);
        let address = RdmaAddress::new(gid, RoceKind::V2, mac, MtuCode::MTU_1024);
        all.with_address(address.with_interface("v0", 0).with_port(port))
    });
    let device = world.network().device_with("r", options);
    device.set_max_links(max_links);
    device
}

#[test]
fn a_link_that_is_needed_takes_the_place_of_the_spare() {
    let world = RdmaWorld::new(802);
    let device = device_with_two_ports(&world, 2, 2);
    let peer = device_with_two_ports(&world, 1, 100);
    let [client, server] = [&peer, &device].map(|device| world.endpoint(&[device]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = connect(&client, &listener).await;
        world.sleep(Duration::from_secs(10)).await;
        check(&mut streams).await;
        assert_eq!(device.connected_links(), 2, "the second link");
        assert_eq!(spares(&device), 0);
    });
}

#[test]
fn registrations_that_are_needed_take_the_place_of_the_spare() {
    for shortage in [DeviceError::NoMemory, DeviceError::Exhausted] {
        let world = RdmaWorld::new(803);
        let (a, b) = (world.device("a0", 1), world.device("b0", 2));
        let [client, server] = [&a, &b].map(|device| world.endpoint(&[device]));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let mut first = connect(&client, &listener).await;
            world.sleep(Duration::from_secs(1)).await;
            assert_eq!(spares(&b), 1);
            b.refuse_registrations([shortage]);
            let mut second = connect(&client, &listener).await;
            assert_eq!(spares(&b), 0);
            let lens = [&first.1, &second.1].map(Stream::recv_buffer_size);
            assert_eq!(lens[0], lens[1]);
            check(&mut first).await;
            check(&mut second).await;
        });
    }
}

#[test]
fn there_is_no_spare_where_memory_is_half_used() {
    let world = RdmaWorld::new(804);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let client = world.endpoint(&[&a]);
    let server = world.endpoint_with(&[&b], |builder| builder.memory_limit(4 << 20));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = Vec::new();
        for _ in 0..60 {
            streams.push(connect(&client, &listener).await);
        }
        assert!(server.memory().used() > 2 << 20);
        drop(streams);
        world.sleep(Duration::from_secs(700)).await;
        assert_eq!((b.links().len(), server.memory().used()), (0, 0));
        let _one = connect(&client, &listener).await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(spares(&b), 1);
    });
}
