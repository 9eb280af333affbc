//! Streams and listeners among several tasks: who is woken, who gets a turn, and what is left when
//! their runtime ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[macro_use]
mod support;

use std::future::Future;
use std::io::ErrorKind;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_lite::future::{poll_once, yield_now, zip};
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _, pin};
use smc_core::Stream;
use smc_core::io::negotiate::Local;
use smc_testkit::middleware::{Fault, Faults};
use smc_transport_loop::LoopDevice;
use support::{On, World, connect, open_fds};

scenarios! {
    two_tasks_in_accept_both_get_a_stream
    shutting_down_reading_wakes_who_waits
    any_number_of_tasks_wait_for_a_plain_stream
    a_set_up_that_fails_at_the_other_end_last_is_noticed
    a_stream_that_always_has_data_gives_others_a_turn
}

fn run<F: Future<Output = ()>>(on: On, nocopy: bool, scenario: impl FnOnce(World) -> F) {
    on.run(scenario(World::new(on, nocopy)));
}

async fn two_tasks_in_accept_both_get_a_stream(world: World) {
    let server = world.endpoint();
    let listener = server.bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let (first, second) = (listener.accept(), listener.accept());
    pin!(first);
    pin!(second);
    // Both sleep, then two connections come before either is polled again.
    assert!(poll_once(&mut first).await.is_none() && poll_once(&mut second).await.is_none());
    let _clients = [
        TcpStream::connect(addr).unwrap(),
        TcpStream::connect(addr).unwrap(),
    ];
    let (first, second) = zip(first, second).await;
    first.unwrap();
    second.unwrap();
}

async fn shutting_down_reading_wakes_who_waits(world: World) {
    let (client, _server) = world.pair().await;
    let waiting = client.readable();
    pin!(waiting);
    assert!(poll_once(&mut waiting).await.is_none());
    client.shutdown_how(Shutdown::Read).unwrap();
    waiting.await.unwrap();
    assert_eq!(client.try_read(&mut [0; 1]).unwrap(), 0);
}

async fn any_number_of_tasks_wait_for_a_plain_stream(world: World) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = world
        .endpoint()
        .connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    assert!(!client.mode().is_smc());
    let (mut server, _) = listener.accept().unwrap();
    let (first, second, third) = (client.readable(), client.readable(), client.readable());
    pin!(first);
    pin!(second);
    {
        // One that gives up waiting does not keep the others from being woken.
        pin!(third);
        assert!(poll_once(&mut third).await.is_none());
        assert!(poll_once(&mut first).await.is_none());
        assert!(poll_once(&mut second).await.is_none());
    }
    std::io::Write::write_all(&mut server, b"x").unwrap();
    let (first, second) = zip(first, second).await;
    first.unwrap();
    second.unwrap();
}

async fn a_set_up_that_fails_at_the_other_end_last_is_noticed(world: World) {
    if !world.nocopy {
        // Only what is attached can fail to be.
        return;
    }
    let device = LoopDevice::builder()
        .runtime_dir(world.dir())
        .build()
        .unwrap();
    let fault = Fault::new(
        Arc::new(device),
        1,
        Faults::default().with_unattachable(1000),
    );
    let negotiation = Arc::new(Local::new().with_directory(world.dir()));
    let server = world
        .on
        .endpoint()
        .device(fault)
        .negotiation(negotiation)
        .build()
        .unwrap();
    let listener = server.bind("127.0.0.1:0").await.unwrap();
    // For the client set-up ends with its last message.
    let mut client = world
        .endpoint()
        .connect(listener.local_addr().unwrap())
        .await
        .unwrap();
    assert!(client.mode().is_smc());
    let error = client.read(&mut [0; 1]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionAborted);
}

async fn a_stream_that_always_has_data_gives_others_a_turn(world: World) {
    let (mut client, mut server) = world.pair().await;
    client.write_all(&vec![7; 100_000]).await.unwrap();
    let turns = AtomicUsize::new(0);
    let reading = async {
        for _ in 0..100_000 {
            server.read_exact(&mut [0; 1]).await.unwrap();
        }
        turns.load(Ordering::Relaxed)
    };
    let others = async {
        loop {
            turns.fetch_add(1, Ordering::Relaxed);
            yield_now().await;
        }
    };
    let turns = futures_lite::future::or(reading, others).await;
    assert!(
        turns >= 100_000 / 200,
        "{turns} turns of others in 100,000 reads"
    );
}

#[test]
fn a_runtime_that_ends_leaves_nothing_of_its_connections() {
    let mut counts = Vec::new();
    for _ in 0..4 {
        let world = World::new(On::Tokio, true);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let half: Stream = runtime.block_on(async {
            let (client, server) = (world.endpoint(), world.endpoint());
            let listener = server.bind("127.0.0.1:0").await.unwrap();
            let (near, far) = connect(&client, &listener).await;
            // Waits for the last word of the other one, which outlives the runtime.
            drop(near);
            far
        });
        drop(runtime);
        drop(half);
        counts.push(open_fds());
    }
    assert!(counts[3] <= counts[1], "{counts:?}");
}
