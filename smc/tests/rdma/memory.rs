//! Buffers of SMC-R where memory is short.

use std::net::Ipv4Addr;
use std::sync::Arc;

use smc::{Endpoint, Stream};
use smc_core::device::{Limits, RdmaAddress, RoceKind};
use smc_core::wire::types::{DeclineCode, Mac, MtuCode, RoceGid};
use smc_testkit::memory_rdma::{MemoryRdma, RdmaOptions};
use smc_testkit::streams::{connect, connect_many, transfer_both_ways};
use smc_testkit::world::{RdmaWorld, SERVER, is_smcr};

/// A client and a server with a limit, and streams between them.
async fn streams(
    world: &RdmaWorld,
    limit: usize,
    count: usize,
) -> (Endpoint, Endpoint, Vec<(Stream, Stream)>) {
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let client = world.endpoint(&[&a]);
    let server = world.endpoint_with(&[&b], |builder| builder.memory_limit(limit));
    let listener = server.bind(SERVER).await.expect("a free port");
    let streams = connect_many(&client, &listener, count).await;
    (client, server, streams)
}

#[test]
fn a_memory_limit_makes_receive_buffers_smaller_and_then_leaves_tcp() {
    let world = RdmaWorld::new(7);
    world.block_on(async {
        let limit = 8 << 20;
        let (_client, server, mut streams) = streams(&world, limit, 60).await;
        let lens: Vec<_> = (streams.iter())
            .filter(|(_, theirs)| is_smcr(theirs))
            .map(|(_, theirs)| theirs.recv_buffer_size().expect("SMC"))
            .collect();
        assert!(lens.len() > 8 && lens.len() < 60, "{lens:?}");
        assert!(lens.first() > lens.last(), "{lens:?}");
        assert!(server.memory().used() <= limit);
        let (ours, theirs) = streams.last().expect("one");
        let reasons = [theirs, ours].map(|stream| stream.fallback_reason().expect("TCP"));
        assert_eq!(reasons[0].local, DeclineCode::MEM);
        assert_eq!(reasons[1].peer, Some(DeclineCode::MEM));
        for (ours, theirs) in &mut streams {
            transfer_both_ways(ours, theirs, 100_000).await;
        }
    });
}

/// A device that registers at most `max_len` bytes at a time.
fn device_with_limit(world: &RdmaWorld, last: u8, max_len: usize) -> Arc<MemoryRdma> {
    let gid = RoceGid::from_ipv4(Ipv4Addr::new(10, 0, 0, last));
    let mac = Mac::new([2, 0, 0, 0, 0, last]);
    let address = RdmaAddress::new(gid, RoceKind::V2, mac, MtuCode::MTU_1024);
    let options = RdmaOptions::default()
        .with_limits(Limits::new(4096, max_len))
        .with_address(address.with_interface("v0", 0).with_port(1));
    world.network().device_with(&format!("r{last}"), options)
}

#[test]
fn a_staging_ring_that_cannot_be_registered_gets_smaller_until_it_can() {
    let world = RdmaWorld::new(10);
    world.block_on(async {
        let max_len = 64 << 10;
        let devices = [1, 2].map(|last| device_with_limit(&world, last, max_len));
        // RMBs fit, staging rings do not.
        let endpoint = |device| {
            world.endpoint_with(&[device], |builder| {
                builder.recv_buffer(max_len).send_buffer(4 * max_len)
            })
        };
        let [client, server] = [0, 1].map(|at| endpoint(&devices[at]));
        let listener = server.bind(SERVER).await.expect("a free port");
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        assert!(is_smcr(&ours), "{:?}", ours.mode());
        assert_eq!(theirs.recv_buffer_size(), Some(max_len));
        transfer_both_ways(&mut ours, &mut theirs, 300_000).await;
    });
}

#[test]
fn buffers_that_a_link_group_keeps_are_used_again_when_memory_is_short() {
    let world = RdmaWorld::new(9);
    world.block_on(async {
        let (client, server, streams) = streams(&world, 8 << 20, 12).await;
        let lens = |streams: &[(Stream, Stream)]| {
            let lens = streams.iter().map(|(_, theirs)| theirs.recv_buffer_size());
            let mut lens: Vec<_> = lens.map(|len| len.expect("SMC")).collect();
            lens.sort_unstable();
            lens
        };
        let before = lens(&streams);
        drop(streams);
        world.sleep(std::time::Duration::from_secs(5)).await;
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut again = Vec::new();
        for _ in 0..12 {
            again.push(connect(&client, &listener).await);
        }
        assert_eq!(lens(&again), before);
    });
}

#[test]
fn buffers_stay_charged_while_a_link_group_keeps_them() {
    let world = RdmaWorld::new(8);
    world.block_on(async {
        let (_client, server, streams) = streams(&world, 1 << 30, 3).await;
        let used = server.memory().used();
        assert_eq!(
            used,
            4 * ((1 << 20) + (1 << 18)),
            "RMB and staging ring of each, and those of the next link group"
        );
        drop(streams);
        world.sleep(std::time::Duration::from_secs(5)).await;
        assert_eq!(
            server.memory().used(),
            used,
            "kept for the next connections"
        );
        server.close().await;
        assert_eq!(server.memory().used(), 0);
    });
}
