//! Many connections at once and one after the other, and that nothing of them stays behind.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod common;

use std::collections::HashMap;
use std::future::Future;

use common::World;
use futures_lite::future::zip;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Endpoint, Listener};
use smc_testkit::on::{On, until};
use smc_testkit::resources::{alone, memory_mappings, open_descriptors, wait_for_descriptors};
use smc_testkit::streams::{connect_smc, join_all, listen};

scenarios! {
    by super::run;
    two_hundred_at_once
    a_thousand_at_once_without_an_error
    ten_thousand_one_after_the_other
}

/// Descriptors are counted for the whole process, so one scenario at a time.
fn run<F: Future<Output = ()>>(on: On, nocopy: bool, scenario: impl FnOnce(World) -> F) {
    let _alone = alone();
    World::run(on, nocopy, scenario);
}

/// More than the limit of concurrent handshakes.
async fn a_thousand_at_once_without_an_error(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    exchange(&client, &listener).await;
    let addr = listener.local_addr().unwrap();
    let connecting = join_all((0..1000).map(|_| client.connect(addr)));
    let accepting = join_all((0..1000).map(|_| listener.accept()));
    let (connected, accepted) = zip(connecting, accepting).await;
    let mut errors: Vec<_> = (connected.into_iter())
        .filter_map(|stream| Some(stream.err()?.to_string()))
        .collect();
    errors.extend((accepted.into_iter()).filter_map(|stream| Some(stream.err()?.to_string())));
    assert!(
        errors.is_empty(),
        "{} errors: {:?}",
        errors.len(),
        errors[0]
    );
}

async fn two_hundred_at_once(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    exchange(&client, &listener).await;
    drained(&client, &server).await;
    let before = open_descriptors();
    {
        let addr = listener.local_addr().unwrap();
        let connecting = join_all((0..200).map(|_| client.connect(addr)));
        let accepting = join_all((0..200).map(|_| listener.accept()));
        let (connected, accepted) = zip(connecting, accepting).await;
        let mut far: HashMap<_, _> = accepted
            .into_iter()
            .map(|accepted| accepted.unwrap())
            .map(|(stream, peer)| (peer, stream))
            .collect();
        let mut streams: Vec<_> = connected
            .into_iter()
            .map(|stream| stream.unwrap())
            .map(|stream| {
                let far = far.remove(&stream.local_addr().unwrap());
                (stream, far.unwrap())
            })
            .collect();
        assert!(
            streams
                .iter()
                .all(|(a, b)| a.mode().is_smc() && b.mode().is_smc())
        );
        assert_eq!(client.link_groups().len(), 1);
        for (i, (near, _)) in streams.iter_mut().enumerate() {
            near.write_all(&i.to_be_bytes()).await.unwrap();
        }
        for (i, (_, far)) in streams.iter_mut().enumerate().rev() {
            let mut number = [0; 8];
            far.read_exact(&mut number).await.unwrap();
            assert_eq!(usize::from_be_bytes(number), i);
        }
    }
    drained(&client, &server).await;
    wait_for_descriptors(before);
}

async fn ten_thousand_one_after_the_other(world: World) {
    let (client, server) = (world.endpoint(), world.endpoint());
    let listener = listen(&server).await;
    for _ in 0..100 {
        exchange(&client, &listener).await;
    }
    drained(&client, &server).await;
    let (fds, maps) = (open_descriptors(), memory_mappings());
    let is_long = world.on == On::Tokio && world.nocopy;
    let count = if is_long { 10_000 } else { 1_000 };
    for _ in 0..count {
        exchange(&client, &listener).await;
    }
    drained(&client, &server).await;
    wait_for_descriptors(fds);
    assert!(
        memory_mappings() <= maps + POOLED,
        "{} mappings, {maps} before",
        memory_mappings()
    );
}

/// Mappings of the buffers that the pools of two endpoints keep at most: each buffer is mapped by
/// the endpoint that has made it and by its peer. How many of them there are is a matter of how
/// connections that end overlap with new ones.
const POOLED: usize = 2 * 2 * 256;

async fn exchange(client: &Endpoint, listener: &Listener) {
    let (mut near, mut far) = connect_smc(client, listener).await;
    near.write_all(b"short").await.unwrap();
    let mut word = [0; 5];
    far.read_exact(&mut word).await.unwrap();
    far.write_all(&word).await.unwrap();
    near.read_exact(&mut word).await.unwrap();
    drop(near);
    assert_eq!(far.read(&mut word).await.unwrap(), 0);
}

/// Waits until no connection is left.
async fn drained(client: &Endpoint, server: &Endpoint) {
    let left = || client.connections().len() + server.connections().len();
    until(
        || left() == 0,
        || format!("{} connections are left", left()),
    )
    .await;
}
