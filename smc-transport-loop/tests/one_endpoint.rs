//! A device object serves one endpoint at a time.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod support;

use std::future::Future;
use std::sync::Arc;

use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{Domain, Endpoint, Error};
use smc_core::device::Device;
use smc_transport_loop::LoopDevice;
use support::{On, World, connect, local};

scenarios! {
    a_device_that_serves_an_endpoint_is_refused_to_another
    a_device_given_twice_is_refused
    a_device_whose_endpoint_is_gone_serves_the_next_one
    a_device_is_free_as_soon_as_an_unused_endpoint_is_dropped
}

fn run<F: Future<Output = ()>>(on: On, nocopy: bool, scenario: impl FnOnce(World) -> F) {
    on.run(scenario(World::new(on, nocopy)));
}

fn device(world: &World) -> Arc<LoopDevice> {
    let device = LoopDevice::builder().domain(Domain::directory(world.dir()));
    Arc::new(device.nocopy(world.nocopy).build().unwrap())
}

fn endpoint(world: &World, devices: &[&Arc<LoopDevice>]) -> Result<Endpoint, Error> {
    let negotiation = local(Domain::directory(world.dir()));
    let mut builder = world.on.endpoint().negotiation(negotiation);
    for device in devices {
        builder = builder.device(Arc::clone(*device) as Arc<dyn Device>);
    }
    builder.build()
}

fn is_refused(built: Result<Endpoint, Error>) -> bool {
    match built {
        Ok(_) => false,
        Err(Error::Misuse(what)) => what.contains("another endpoint"),
        Err(error) => panic!("{error}"),
    }
}

async fn a_device_that_serves_an_endpoint_is_refused_to_another(world: World) {
    let device = device(&world);
    let server = endpoint(&world, &[&device]).unwrap();
    assert!(is_refused(endpoint(&world, &[&device])));
    // The refusal has taken nothing from the one that has it.
    let listener = server.bind("127.0.0.1:0").await.unwrap();
    let (mut ours, mut theirs) = connect(&world.endpoint(), &listener).await;
    for _ in 0..50 {
        let mut word = [0; 4];
        ours.write_all(b"ping").await.unwrap();
        theirs.read_exact(&mut word).await.unwrap();
        theirs.write_all(&word).await.unwrap();
        ours.read_exact(&mut word).await.unwrap();
    }
}

async fn a_device_given_twice_is_refused(world: World) {
    let device = device(&world);
    assert!(is_refused(endpoint(&world, &[&device, &device])));
    assert!(endpoint(&world, &[&device]).is_ok());
}

async fn a_device_whose_endpoint_is_gone_serves_the_next_one(world: World) {
    let device = device(&world);
    let client = world.endpoint();
    for _ in 0..5 {
        let server = endpoint(&world, &[&device]).unwrap();
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        theirs.write_all(b"hello").await.unwrap();
        drop(theirs);
        let mut all = String::new();
        ours.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "hello");
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
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            let runtime = runtime.enable_all().build().unwrap();
            runtime.block_on(moves_on(&world, end));
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
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let (mut ours, mut theirs) = connect(&client, &listener).await;
        assert!(ours.mode().is_smc());
        ours.write_all(b"ping").await.unwrap();
        theirs.read_exact(&mut [0; 4]).await.unwrap();
        theirs.write_all(b"pong").await.unwrap();
        match end {
            End::OursFirst => {
                ours.read_exact(&mut [0; 4]).await.unwrap();
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
        let mut all = String::new();
        ours.read_to_string(&mut all).await.unwrap();
        assert_eq!(all, "pong");
    }
}
