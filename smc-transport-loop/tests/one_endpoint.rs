//! A device object serves one endpoint at a time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod common;

use std::sync::Arc;

use futures_lite::AsyncWriteExt as _;
use smc::{Endpoint, Error};
use smc_core::device::Device;
use smc_testkit::on::On;
use smc_testkit::streams::{connect, connect_smc, expect, expect_rest, listen, ping_pong};
use smc_transport_loop::LoopDevice;

use common::World;

scenarios! {
    a_device_that_serves_an_endpoint_is_refused_to_another
    a_device_given_twice_is_refused
    a_device_whose_endpoint_is_gone_serves_the_next_one
    a_device_is_free_as_soon_as_an_unused_endpoint_is_dropped
}

fn device(world: &World) -> Arc<LoopDevice> {
    Arc::new(world.device().build().unwrap())
}

fn endpoint(world: &World, devices: &[&Arc<LoopDevice>]) -> Result<Endpoint, Error> {
    let mut builder = common::without_device(world.on, world.dir());
    for device in devices {
        builder = builder.device(Arc::clone(*device) as Arc<dyn Device>);
    }
    builder.build()
}

fn is_refused(built: Result<Endpoint, Error>) -> bool {
    is_refused_as("another endpoint", built)
}

fn is_refused_as(why: &str, built: Result<Endpoint, Error>) -> bool {
    match built {
        Ok(_) => false,
        Err(Error::Misuse(what)) => what.contains(why),
        Err(error) => panic!("{error}"),
    }
}

async fn a_device_that_serves_an_endpoint_is_refused_to_another(world: World) {
    let device = device(&world);
    let server = endpoint(&world, &[&device]).unwrap();
    assert!(is_refused(endpoint(&world, &[&device])));
    // The refusal has taken nothing from the one that has it.
    let listener = listen(&server).await;
    let mut streams = connect(&world.endpoint(), &listener).await;
    for _ in 0..50 {
        ping_pong(&mut streams).await;
    }
}

async fn a_device_given_twice_is_refused(world: World) {
    let device = device(&world);
    let built = endpoint(&world, &[&device, &device]);
    assert!(is_refused_as("has this device already", built));
    assert!(endpoint(&world, &[&device]).is_ok());
}

async fn a_device_whose_endpoint_is_gone_serves_the_next_one(world: World) {
    let device = device(&world);
    let client = world.endpoint();
    for _ in 0..5 {
        let server = endpoint(&world, &[&device]).unwrap();
        let listener = listen(&server).await;
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        theirs.write_all(b"hello").await.unwrap();
        drop(theirs);
        expect_rest(&mut ours, "hello").await;
        drop((ours, listener));
        server.close().await;
        drop(server);
    }
}

async fn a_device_is_free_as_soon_as_an_unused_endpoint_is_dropped(world: World) {
    let device = device(&world);
    // Drivers may end later, and until then each watches the doorbell, which has a limit.
    for round in 0..20 {
        let built = endpoint(&world, &[&device]);
        assert!(built.is_ok(), "round {round}: {built:?}");
    }
}

/// On one thread: no task runs while an endpoint is built.
#[test]
fn a_device_is_free_when_its_endpoint_and_its_streams_are_dropped() {
    for nocopy in [true, false] {
        for end in [End::OursFirst, End::TheirsFirst, End::TheirsAlone] {
            let world = World::new(On::Tokio, nocopy);
            On::TokioAlone.run_unbounded(moves_on(&world, end));
        }
    }
}

/// Which ends of a stream are dropped before the device moves on.
#[derive(Clone, Copy, Debug)]
enum End {
    OursFirst,
    TheirsFirst,
    TheirsAlone,
}

async fn moves_on(world: &World, end: End) {
    let device = device(world);
    let client = world.endpoint();
    let mut held = Vec::new();
    for round in 0..3 {
        let built = endpoint(world, &[&device]);
        let server = built.unwrap_or_else(|error| panic!("{end:?}, round {round}: {error}"));
        let listener = listen(&server).await;
        let (mut ours, mut theirs) = connect_smc(&client, &listener).await;
        ours.write_all(b"ping").await.unwrap();
        expect(&mut theirs, b"ping").await;
        theirs.write_all(b"pong").await.unwrap();
        match end {
            End::OursFirst => {
                expect(&mut ours, b"pong").await;
                drop(ours);
                drop(theirs);
            }
            End::TheirsFirst => {
                drop(theirs);
                drop(ours);
            }
            End::TheirsAlone => {
                drop(theirs);
                held.push(ours);
            }
        }
        drop((listener, server));
    }
    assert!(endpoint(world, &[&device]).is_ok(), "{end:?}");
    for mut ours in held {
        expect_rest(&mut ours, "pong").await;
    }
}
