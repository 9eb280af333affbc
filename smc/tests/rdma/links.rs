//! Links that are tested, fail, and come back.

use std::io::ErrorKind;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::{Endpoint, Error, Stream};
use smc_core::device::LinkFailure;
use smc_core::proto::links::LinkState;
use smc_testkit::streams::{
    connect, connect_many, expect_error, expect_rest, join_all, patterned, transfer,
    transfer_both_ways,
};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, is_smcr, rdma_pair};

fn active(endpoint: &Endpoint) -> usize {
    let groups = endpoint.rdma_groups();
    let links = groups.iter().flat_map(|group| &group.links);
    links.filter(|link| link.state == LinkState::Active).count()
}

#[test]
fn a_link_is_tested_and_answers_while_applications_sleep() {
    let world = RdmaWorld::new(50);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        world.sleep(Duration::from_secs(300)).await;
        assert_eq!((active(&client), active(&server)), (1, 1));
        transfer(&mut ours, &mut theirs, 1000).await;
    });
}

#[test]
fn a_dead_single_link_aborts_its_connections() {
    let world = RdmaWorld::new(51);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        transfer(&mut ours, &mut theirs, 1000).await;
        // The failure is not detected until the link is tested.
        world.network().cut();
        for stream in [&mut ours, &mut theirs] {
            let timeout = async {
                world.sleep(Duration::from_secs(40)).await;
                panic!("the failure is not detected");
            };
            let read = future::or(stream.read(&mut [0; 10]), timeout).await;
            assert_eq!(
                read.expect_err("is aborted").kind(),
                ErrorKind::ConnectionAborted
            );
            let wrote = stream.write(b"x").await;
            assert_eq!(
                wrote.expect_err("is aborted").kind(),
                ErrorKind::ConnectionAborted
            );
        }
        assert!(client.rdma_groups().is_empty() && server.rdma_groups().is_empty());
    });
}

#[test]
fn a_link_that_does_not_answer_its_test_gives_way_to_the_other() {
    let world = RdmaWorld::new(52);
    let hosts = world.hosts_with_two_links();
    world.block_on(async {
        let (mut ours, mut theirs) = hosts.pair().await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!((active(&hosts.client), active(&hosts.server)), (2, 2));
        hosts.devices[0].set_port_cut(1, true);
        world.sleep(Duration::from_secs(40)).await;
        assert_eq!((active(&hosts.client), active(&hosts.server)), (1, 1));
        transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
    });
}

#[test]
fn a_cut_under_load_costs_time_and_no_byte() {
    for (seed, which) in [(53, 0), (54, 1), (55, 2), (56, 3)] {
        let world = RdmaWorld::new(seed);
        let hosts = world.hosts_with_two_links();
        world.block_on(async {
            let listener = hosts.listen().await;
            let mut streams = connect_many(&hosts.client, &listener, 4).await;
            world.sleep(Duration::from_secs(1)).await;
            // The streams that came first are on the first link, these on both.
            for _ in 0..4 {
                streams.push(hosts.connect(&listener).await);
            }
            let cut = async {
                world.sleep(Duration::from_micros(30)).await;
                hosts.devices[which].set_port_cut(1, true);
            };
            let moving = both_ways(&mut streams, 500_000);
            future::zip(moving, cut).await;
            assert_eq!((active(&hosts.client), active(&hosts.server)), (1, 1));
        });
    }
}

async fn both_ways(streams: &mut [(Stream, Stream)], len: usize) {
    let data = patterned(len);
    let all = streams.iter_mut().map(|(ours, theirs)| {
        let data = &data;
        async move {
            let (mut read, mut write) = ours.split();
            let (mut other_read, mut other_write) = theirs.split();
            let (mut got, mut other_got) = (vec![0; len], vec![0; len]);
            let there = future::zip(write.write_all(data), other_read.read_exact(&mut other_got));
            let back = future::zip(other_write.write_all(data), read.read_exact(&mut got));
            let ((sent, received), (other_sent, other_received)) = future::zip(there, back).await;
            for result in [sent, received, other_sent, other_received] {
                result.expect("no stream notices");
            }
            assert!(got == *data && other_got == *data);
        }
    });

    join_all(all).await;
}

#[test]
fn a_port_that_comes_back_becomes_a_second_link_again() {
    let world = RdmaWorld::new(57);
    let hosts = world.hosts_with_two_links();
    world.block_on(async {
        let (mut ours, mut theirs) = hosts.pair().await;
        world.sleep(Duration::from_secs(1)).await;
        for which in [0, 1, 2, 3, 0, 2] {
            hosts.devices[which].set_port_active(1, false);
            transfer(&mut ours, &mut theirs, 50_000).await;
            world.sleep(Duration::from_secs(10)).await;
            hosts.devices[which].set_port_active(1, true);
            world.sleep(Duration::from_secs(10)).await;
            assert_eq!(
                (active(&hosts.client), active(&hosts.server)),
                (2, 2),
                "{which}"
            );
            for device in &hosts.devices {
                assert_eq!(device.connected_links(), 1, "{which}");
            }
            transfer(&mut theirs, &mut ours, 50_000).await;
        }
        assert_eq!(hosts.client.link_groups().len(), 1);
    });
}

#[test]
fn while_the_first_port_is_down_a_third_one_of_its_network_gets_a_link() {
    let world = RdmaWorld::new(65);
    world.runtime().set_pnet_id("v0", "NET1");
    let ours = [1, 3, 5].map(|last| world.device("a", last));
    let theirs = [2, 4].map(|last| world.device("b", last));
    let client = world.endpoint(&ours.each_ref());
    let server = world.endpoint(&theirs.each_ref());
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut near, mut far) = connect(&client, &listener).await;
        world.sleep(Duration::from_secs(10)).await;
        let links = || ours.each_ref().map(|device| device.connected_links());
        assert_eq!(links(), [1, 1, 0]);
        ours[0].set_port_active(1, false);
        transfer(&mut near, &mut far, 50_000).await;
        world.sleep(Duration::from_secs(10)).await;
        assert_eq!(links(), [0, 1, 1]);
        assert_eq!(active(&client), 2);
    });
}

#[test]
fn a_removed_device_takes_its_links_and_no_connection() {
    for which in 0..4 {
        let world = RdmaWorld::new(58);
        let hosts = world.hosts_with_two_links();
        world.block_on(async {
            let listener = hosts.listen().await;
            let mut streams = Vec::new();
            for _ in 0..3 {
                streams.push(hosts.connect(&listener).await);
                world.sleep(Duration::from_secs(1)).await;
            }
            hosts.devices[which].remove();
            both_ways(&mut streams, 100_000).await;
            // New ones come about over the rest.
            streams.push(hosts.connect(&listener).await);
            both_ways(&mut streams, 10_000).await;
            // They end in order, those included whose first device is gone.
            for (mut ours, mut theirs) in streams.drain(..) {
                ours.write_all(b"last one").await.expect("writes");
                drop(ours);
                expect_rest(&mut theirs, b"last one").await;
            }
            world.sleep(Duration::from_secs(1)).await;
            assert!(hosts.client.connections().is_empty(), "{which}");
            assert!(hosts.server.connections().is_empty(), "{which}");
        });
    }
}

#[test]
fn without_any_device_left_connections_are_aborted() {
    let world = RdmaWorld::new(59);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 1000).await;
        a.remove();
        expect_error(&mut ours, ErrorKind::ConnectionAborted).await;
        expect_error(&mut theirs, ErrorKind::ConnectionAborted).await;
        drop((ours, theirs));
        world.sleep(Duration::from_secs(1)).await;
        assert!(client.connections().is_empty() && server.connections().is_empty());
        // Without a device there is nothing but TCP, and that works.
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        assert!(!ours.mode().is_smc() && !theirs.mode().is_smc());
        transfer(&mut ours, &mut theirs, 1000).await;
    });
}

#[test]
fn failures_one_after_the_other_cost_nothing_as_long_as_links_come_back() {
    let world = RdmaWorld::new(60);
    let hosts = world.hosts_with_two_links();
    world.block_on(async {
        let listener = hosts.listen().await;
        let mut streams = vec![hosts.connect(&listener).await];
        world.sleep(Duration::from_secs(1)).await;
        for round in 0..10 {
            let device = &hosts.devices[round % 4];
            for link in device.links() {
                device.fail_link(link.local.qpn, LinkFailure::Flushed);
            }
            both_ways(&mut streams, 30_000).await;
            world.sleep(Duration::from_secs(5)).await;
            assert_eq!(
                (active(&hosts.client), active(&hosts.server)),
                (2, 2),
                "{round}"
            );
        }
    });
}

#[test]
fn a_device_in_the_place_of_a_removed_one_becomes_a_second_link() {
    for which in 0..4 {
        let world = RdmaWorld::new(61);
        let hosts = world.hosts_with_two_links();
        let endpoint = [&hosts.client, &hosts.server][which % 2];
        world.block_on(async {
            let listener = hosts.listen().await;
            let mut streams = vec![hosts.connect(&listener).await];
            world.sleep(Duration::from_secs(1)).await;
            hosts.devices[which].remove();
            both_ways(&mut streams, 100_000).await;
            assert_eq!(active(endpoint), 1);
            assert_eq!(endpoint.devices().count(), 1);
            let last = [1, 2, 3, 4][which];
            let device = world.device("again", last);
            endpoint.add_device(device.clone()).expect("is added");
            world.sleep(Duration::from_secs(10)).await;
            assert_eq!((active(&hosts.client), active(&hosts.server)), (2, 2));
            assert_eq!((device.links().len(), endpoint.devices().count()), (1, 2));
            // Old streams and new ones go on over it alone.
            streams.push(hosts.connect(&listener).await);
            hosts.devices[(which + 2) % 4].remove();
            both_ways(&mut streams, 100_000).await;
            streams.push(hosts.connect(&listener).await);
            both_ways(&mut streams, 10_000).await;
            assert!(streams.iter().all(|(ours, _)| is_smcr(ours)), "{which}");
        });
    }
}

#[test]
fn a_device_that_comes_late_makes_new_streams_smc_r() {
    let world = RdmaWorld::new(62);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let is_rdma = async || is_smcr(&connect(&client, &listener).await.0);
        assert!(!is_rdma().await);
        client.add_device(a.clone()).expect("is added");
        assert!(is_rdma().await);
        // Removed while its group is idle, on either side in turn. The peer finds out by a test.
        for (endpoint, device, last) in [(&client, a, 1), (&server, b, 2)] {
            device.remove();
            world.sleep(Duration::from_secs(60)).await;
            assert!(!is_rdma().await);
            let again = world.device("again", last);
            endpoint.add_device(again).expect("is added");
            assert!(is_rdma().await);
        }
    });
}

#[test]
fn a_device_is_added_once_and_to_an_endpoint_that_is_open() {
    let world = RdmaWorld::new(63);
    let [a, b, c] = [1, 2, 3].map(|last| world.device("dev", last));
    let (one, other) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    let is_refused = |added: Result<(), Error>| matches!(added, Err(Error::Misuse(_)));
    assert!(is_refused(one.add_device(a.clone())));
    assert!(is_refused(one.add_device(b)));
    one.add_device(c.clone()).expect("is added");
    assert!(is_refused(one.add_device(c)));
    assert_eq!(one.devices().count(), 2);
    a.remove();
    world.block_on(async {
        world.sleep(Duration::from_secs(1)).await;
        assert!(is_refused(one.add_device(a)));
        assert_eq!(one.devices().count(), 1);
        other.close().await;
    });
    assert!(is_refused(other.add_device(world.device("dev", 4))));
}

#[test]
fn streams_that_outlive_their_endpoint_go_on_over_another_device() {
    let world = RdmaWorld::new(64);
    let RdmaHosts {
        client,
        server,
        devices,
    } = world.hosts_with_two_links();
    world.block_on(async {
        let mut streams = vec![rdma_pair(&client, &server).await];
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!((active(&client), active(&server)), (2, 2));
        drop((client, server));
        devices[0].set_port_cut(1, true);
        both_ways(&mut streams, 100_000).await;
    });
}
