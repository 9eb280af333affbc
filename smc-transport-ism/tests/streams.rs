//! Streams over fabrics; each end has its own endpoint and device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod support;

use std::future::Future;
use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::runtime::smol::SmolRuntime;
use smc::{Mode, Stream};
use smc_core::runtime::Runtime;
use smc_testkit::model::{self, Rules};
use smc_testkit::on::On;
use smc_testkit::streams::{
    connect, connect_smc, expect, expect_error, expect_rest, expect_write_error, listen, pattern,
};
use smc_transport_ism::IsmDevice;
use smc_wire::types::DeclineCode;
use support::{Kind, World, builder};

scenarios! {
    echo_of_small_messages
    a_long_stream_both_ways_at_once
    half_close_then_the_answer
    an_abort_resets_the_peer
    fifty_connections
    streams_conform_to_the_model
    an_exhausted_device_causes_fallback
    a_dropped_endpoint_ends_its_streams
}

fn run<F: Future<Output = ()>>(on: On, kind: Kind, nocopy: bool, scenario: fn(World, On) -> F) {
    on.run(scenario(World::new(kind, nocopy), on));
}

async fn echo_of_small_messages(world: World, on: On) {
    let (mut client, mut server) = world.pair(on).await;
    for stream in [&client, &server] {
        match stream.mode() {
            Mode::SmcD {
                nocopy, version, ..
            } => assert_eq!((*nocopy, version.get()), (world.nocopy, 2)),
            mode => panic!("{mode}"),
        }
    }
    for i in 0..1000_usize {
        let message = [pattern(i); 14];
        client.write_all(&message).await.unwrap();
        let mut received = [0; 14];
        server.read_exact(&mut received).await.unwrap();
        server.write_all(&received).await.unwrap();
        client.read_exact(&mut received).await.unwrap();
        assert_eq!(received, message);
    }
}

async fn a_long_stream_both_ways_at_once(world: World, on: On) {
    let (client, server) = world.pair(on).await;
    zip(both_ways(client, 4_001), both_ways(server, 70_001)).await;
}

/// Sends and checks the pattern at once, in pieces of `piece` bytes.
async fn both_ways(stream: Stream, piece: usize) {
    // 100 MB only in release builds, where this is fast.
    const LEN: usize = if cfg!(debug_assertions) { 10 } else { 100 } * 1_000_000;
    // The pattern repeats every 64 KiB.
    let lap: Vec<u8> = (0..65_536 + piece).map(pattern).collect();
    let at_position = |at: usize, len: usize| &lap[at % 65_536..at % 65_536 + len];
    let (mut from, mut to) = stream.into_split();
    let sending = async {
        let mut at = 0;
        while at < LEN {
            let len = piece.min(LEN - at);
            to.write_all(at_position(at, len)).await.unwrap();
            at += len;
        }
        to.close().await.unwrap();
    };
    let receiving = async {
        let mut buf = vec![0; piece];
        let mut at = 0;
        loop {
            let count = from.read(&mut buf).await.unwrap();
            if count == 0 {
                break;
            }
            assert!(buf[..count] == *at_position(at, count), "around byte {at}");
            at += count;
        }
        assert_eq!(at, LEN);
    };
    zip(sending, receiving).await;
}

async fn half_close_then_the_answer(world: World, on: On) {
    let (mut client, mut server) = world.pair(on).await;
    client.write_all(b"question").await.unwrap();
    client.close().await.unwrap();
    expect_rest(&mut server, "question").await;
    server.write_all(b"answer").await.unwrap();
    drop(server);
    expect_rest(&mut client, "answer").await;
}

async fn an_abort_resets_the_peer(world: World, on: On) {
    let (mut client, server) = world.pair(on).await;
    client.write_all(b"this is not read").await.unwrap();
    drop(server);
    expect_error(&mut client, ErrorKind::ConnectionReset).await;
    expect_write_error(&mut client, ErrorKind::ConnectionReset).await;
}

async fn fifty_connections(world: World, on: On) {
    let options = || world.builder(on).recv_buffer(64 << 10);
    let (client, server) = (options().build().unwrap(), options().build().unwrap());
    let listener = listen(&server).await;
    let mut pairs = Vec::new();
    for _ in 0..50 {
        pairs.push(connect_smc(&client, &listener).await);
    }
    for round in 0..5_usize {
        for (index, (client, server)) in pairs.iter_mut().enumerate() {
            let message = [pattern(round * 50 + index); 1000];
            let mut received = [0; 1000];
            client.write_all(&message).await.unwrap();
            server.read_exact(&mut received).await.unwrap();
            server.write_all(&received).await.unwrap();
            client.read_exact(&mut received).await.unwrap();
            assert_eq!(received, message);
        }
    }
}

async fn streams_conform_to_the_model(world: World, on: On) {
    let (client, server) = (world.endpoint(on), world.endpoint(on));
    let listener = listen(&server).await;
    let runtime: Arc<dyn Runtime> = Arc::new(SmolRuntime::new());
    let rules = Rules::relaxed().with_timeout(Duration::from_secs(20));
    for seed in 0..40 {
        let pair = connect(&client, &listener).await;
        let outcome = model::run(seed, &runtime, pair, rules).await;
        outcome.unwrap_or_else(|violation| panic!("{violation}"));
    }
}

async fn an_exhausted_device_causes_fallback(world: World, on: On) {
    let device = |dmbs| {
        let device = IsmDevice::builder(world.fabric_address())
            .max_dmbs(dmbs)
            .build();
        Arc::new(device.unwrap())
    };
    let endpoint = |dmbs| {
        builder(on, world.dir())
            .device(device(dmbs))
            .build()
            .unwrap()
    };
    let (client, server) = (endpoint(100), endpoint(2));
    let listener = listen(&server).await;
    let mut pairs = Vec::new();
    for _ in 0..2 {
        pairs.push(connect_smc(&client, &listener).await);
    }
    let (mut client, mut server) = connect(&client, &listener).await;
    match server.mode() {
        Mode::Tcp { reason, .. } => assert_eq!(reason.local, DeclineCode::MAX_DMB),
        mode => panic!("{mode}"),
    }
    match client.mode() {
        Mode::Tcp { reason, .. } => assert_eq!(reason.peer, Some(DeclineCode::MAX_DMB)),
        mode => panic!("{mode}"),
    }
    client.write_all(b"all the same").await.unwrap();
    expect(&mut server, b"all the same").await;
}

async fn a_dropped_endpoint_ends_its_streams(world: World, on: On) {
    let (mut client, mut server) = world.pair(on).await;
    client.write_all(b"last words").await.unwrap();
    drop(client);
    expect_rest(&mut server, b"last words").await;
}
