//! Link groups: shared, full, idle.

use smc_testkit::streams::{connect, connect_many, transfer};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, is_smcr};
use std::sync::Arc;
use std::time::Duration;

#[test]
fn connections_of_a_pair_of_hosts_share_a_link_group() {
    let world = RdmaWorld::new(10);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = connect_many(&client, &listener, 50).await;
        for (ours, theirs) in &mut streams {
            transfer(ours, theirs, 5000).await;
        }
        assert_eq!(client.link_groups().len(), 1);
        assert_eq!(server.link_groups().len(), 1);
        assert_eq!(server.link_groups()[0].connections, 50);
    });
}

#[test]
fn a_full_link_group_is_followed_by_another() {
    let world = RdmaWorld::new(11);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let client = world.endpoint(&[&a]);
    let server = world.endpoint_with(&[&b], |builder| builder.max_connections_per_group(16));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut streams = connect_many(&client, &listener, 40).await;
        for (ours, theirs) in &mut streams {
            transfer(ours, theirs, 100).await;
        }
        assert_eq!(server.link_groups().len(), 3);
        assert_eq!(client.link_groups().len(), 3);
    });
}

#[test]
fn the_link_group_that_is_idle_for_longest_gives_its_link_to_a_new_peer() {
    let world = RdmaWorld::new(14);
    let device = world.device("b0", 2);
    device.set_max_links(2);
    let server = world.endpoint(&[&device]);
    let clients = [1, 3, 4].map(|last| world.endpoint(&[&world.device("a0", last)]));
    let groups = || clients.each_ref().map(|client| client.link_groups().len());
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        for client in &clients[..2] {
            drop(connect(client, &listener).await);
            world.sleep(Duration::from_secs(5)).await;
        }
        assert_eq!(groups(), [1, 1, 0]);
        let (connecting, time) = world.timed(connect(&clients[2], &listener)).await;
        let mut streams = vec![connecting];
        assert!(time < Duration::from_secs(1), "{time:?}");
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(groups(), [0, 1, 1]);
        // The other one is idle, too.
        streams.push(connect(&clients[0], &listener).await);
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(groups(), [1, 0, 1]);
        // A group with a connection is not ended for another one.
        let (ours, theirs) = connect(&clients[1], &listener).await;
        assert!(!is_smcr(&ours) && !is_smcr(&theirs));
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!(groups(), [1, 0, 1]);
        for (ours, theirs) in &mut streams {
            assert!(is_smcr(ours));
            transfer(ours, theirs, 100).await;
        }
    });
}

#[test]
fn a_setup_waits_for_the_end_of_an_idle_group_in_bounded_time() {
    let world = RdmaWorld::new(15);
    let device = world.device("b0", 2);
    device.set_max_links(1);
    let server = world.endpoint(&[&device]);
    let peers = [1, 3].map(|last| world.device("a0", last));
    let clients = peers.each_ref().map(|peer| world.endpoint(&[peer]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        drop(connect(&clients[0], &listener).await);
        world.sleep(Duration::from_secs(1)).await;
        // The DELETE LINK for the idle group is not acknowledged.
        peers[0].set_port_cut(1, true);
        let connecting = connect(&clients[1], &listener);
        let ((mut ours, mut theirs), time) = world.timed(connecting).await;
        assert!(time < Duration::from_secs(6), "{time:?}");
        assert!(is_smcr(&ours), "the link is closed all the same");
        transfer(&mut ours, &mut theirs, 100).await;
    });
}

#[test]
fn idle_link_groups_end_with_their_endpoint_and_its_streams() {
    let world = RdmaWorld::new(13);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        drop(client);
        world.sleep(Duration::from_secs(5)).await;
        transfer(&mut ours, &mut theirs, 100).await;
        drop((ours, theirs));
        // Longer than the completion of the DELETE LINK is waited for: no driver reports it.
        world.sleep(Duration::from_secs(5)).await;
        assert!(server.link_groups().is_empty());
        assert!(a.links().is_empty() && b.links().is_empty());
    });
}

#[test]
fn idle_link_groups_are_dropped_with_the_runtime_of_their_endpoint() {
    // The endpoint is dropped before its runtime ends, or after it.
    for is_before in [true, false] {
        let world = RdmaWorld::new(14);
        let (a, b) = (world.device("a0", 1), world.device("b0", 2));
        let ending = world.runtime().ending();
        let client = world.endpoint_with(&[&a], |builder| builder.runtime(ending.clone()));
        let server = world.endpoint(&[&b]);
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let streams = connect(&client, &listener).await;
            assert_eq!(a.connected_links(), 1);
            drop(streams);
            world.sleep(Duration::from_secs(1)).await;
            let mut client = Some(client);
            // No task of the runtime runs in between.
            client.take_if(|_| is_before);
            ending.end();
            drop(client);
            assert!(a.links().is_empty(), "endpoint dropped first: {is_before}");
        });
        assert_eq!(Arc::strong_count(&a), 1, "{is_before}");
    }
}

#[test]
fn an_idle_link_group_ends_after_its_lifetime_on_both_sides() {
    let world = RdmaWorld::new(12);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        drop(connect(&client, &listener).await);
        world.sleep(Duration::from_secs(595)).await;
        assert_eq!(server.link_groups().len(), 1);
        world.sleep(Duration::from_secs(10)).await;
        assert!(server.link_groups().is_empty());
        assert!(client.link_groups().is_empty());
        assert!(a.links().is_empty() && b.links().is_empty());
        // And the next connection makes a new one.
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        transfer(&mut ours, &mut theirs, 100).await;
    });
}
