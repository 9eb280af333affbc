//! Streams as applications use them.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::{poll_once, zip};
use futures_lite::{AsyncReadExt, AsyncWriteExt, pin};
use smc::Builder;
use smc::Error;
use smc_core::negotiate::Assume;
use smc_testkit::streams::{
    connect, expect_error, expect_rest, patterned, transfer, transfer_both_ways,
};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, eid, is_smcr, rdma_pair};

#[test]
fn two_hosts_talk_over_their_devices() {
    let world = RdmaWorld::new(1);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        assert!(is_smcr(&ours), "{}", ours.mode());
        assert!(is_smcr(&theirs), "{}", theirs.mode());
        transfer_both_ways(&mut ours, &mut theirs, 100).await;
    });
}

#[test]
fn megabytes_arrive_whole_in_both_directions() {
    let world = RdmaWorld::new(2);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        transfer_both_ways(&mut ours, &mut theirs, 3_000_001).await;
    });
}

#[test]
fn a_half_close_leaves_the_other_direction_open() {
    let world = RdmaWorld::new(3);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        ours.write_all(b"question").await.expect("writes");
        ours.close().await.expect("shuts down");
        expect_rest(&mut theirs, b"question").await;
        theirs.write_all(b"answer").await.expect("writes");
        drop(theirs);
        expect_rest(&mut ours, b"answer").await;
    });
}

#[test]
fn what_was_written_before_a_drop_arrives() {
    let world = RdmaWorld::new(4);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let data = patterned(200_000);
        ours.write_all(&data).await.expect("writes");
        drop(ours);
        world.sleep(Duration::from_millis(50)).await;
        expect_rest(&mut theirs, &data).await;
    });
}

#[test]
fn a_drop_with_unread_data_resets_the_peer() {
    let world = RdmaWorld::new(5);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (mut ours, theirs) = rdma_pair(&client, &server).await;
        ours.write_all(b"this is not read").await.expect("writes");
        world.sleep(Duration::from_millis(1)).await;
        drop(theirs);
        expect_error(&mut ours, ErrorKind::ConnectionReset).await;
    });
}

#[test]
fn closed_connections_leave_nothing_behind() {
    let world = RdmaWorld::new(6);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let (client, server) = (world.endpoint(&[&a]), world.endpoint(&[&b]));
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        for _ in 0..20 {
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            transfer(&mut ours, &mut theirs, 1000).await;
            drop((ours, theirs));
            world.sleep(Duration::from_millis(5)).await;
        }
        assert!(client.connections().is_empty());
        assert!(server.connections().is_empty());
        // One RMB and one staging ring, used again and again, and those for the next link group.
        assert_eq!((a.registrations(), b.registrations()), (4, 4));
        client.close().await;
        world.sleep(Duration::from_secs(1)).await;
        assert_eq!((a.registrations(), b.registrations()), (0, 0));
        assert!(a.links().is_empty() && b.links().is_empty());
        assert!(server.link_groups().is_empty());
    });
}

#[test]
fn any_number_of_tasks_peek() {
    let world = RdmaWorld::new(7);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (ours, mut theirs) = rdma_pair(&client, &server).await;
        let peek = async || {
            let mut buf = [0; 4];
            assert_eq!(ours.peek(&mut buf).await.expect("peeks"), 4);
            buf
        };
        let (first, second) = (peek(), peek());
        pin!(first);
        pin!(second);
        assert!(poll_once(&mut first).await.is_none());
        assert!(poll_once(&mut second).await.is_none());
        let writing = async { theirs.write_all(b"abcd").await.expect("writes") };
        let (seen, ()) = zip(zip(first, second), writing).await;
        assert_eq!(seen, (*b"abcd", *b"abcd"));
    });
}

#[test]
fn a_device_serves_one_endpoint_at_a_time() {
    let world = RdmaWorld::new(8);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let client = world.endpoint(&[&a]);
    let again = || {
        Builder::new()
            .runtime(world.runtime().handle())
            .negotiation(Arc::new(Assume::new()))
            .ueid(eid())
            .device(b.clone())
            .build()
    };
    for _ in 0..3 {
        let server = again().expect("the device is free");
        assert!(matches!(again(), Err(Error::Misuse(_))));
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            transfer_both_ways(&mut ours, &mut theirs, 1000).await;
            drop((ours, theirs, listener));
            server.close().await;
        });
    }
}

#[test]
fn reservations_have_an_exact_length() {
    let world = RdmaWorld::new(9);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let [client, server] = [a, b].map(|device| {
        let small = |builder: Builder| builder.recv_buffer(16 * 1024).send_buffer(32 * 1024);
        world.endpoint_with(&[&device], small)
    });
    world.block_on(async {
        let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
        let data = patterned(500_000);
        let writing = async {
            let mut left = &data[..];
            for len in (1..).map(|round| round * 7_919 % 32_768) {
                let (now, later) = left.split_at(left.len().min(len));
                let mut space = ours.reserve_exact(now.len()).await.expect("reserves");
                assert_eq!(space.len(), now.len());
                space.as_mut_slice().copy_from_slice(now);
                space.commit(now.len()).await.expect("commits");
                left = later;
                if left.is_empty() {
                    break;
                }
            }
            let refused = ours
                .reserve_exact(32 * 1024 + 1)
                .await
                .expect_err("never fits");
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
            ours.close().await.expect("delivers");
        };
        let mut got = Vec::new();
        let (read, ()) = zip(theirs.read_to_end(&mut got), writing).await;
        read.expect("reads");
        assert!(got == data);
    });
}
