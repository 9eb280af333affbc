//! Link groups: shared, full, idle.

use smc_testkit::streams::{connect, connect_many, transfer};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER};
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
