//! Things that end in the middle of a handshake: futures, listeners, endpoints, peers.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, FutureExt, future};
use smc::Error;
use smc_core::wire::types::DeclineCode;

use smc_testkit::streams::{expect_error, expect_rest, expect_rest_and_error, expect_write_error};
use smc_testkit::world::messages::*;
use smc_testkit::world::{
    Call, Host, World, accept_now, connect_pair, connect_pair_smc, exchange_to_end, expect_no_data,
    join_smc, kind, reason,
};

use crate::fallback_table::AT_ONCE;

// ---- Futures and listeners that are dropped ----------------------------------------------------

/// However far it has come: nothing of it stays at either end, and a stream that the server has
/// already made of it ends.
#[test]
fn a_connect_that_is_dropped_leaves_nothing() {
    let mut dropped = 0;
    for cut in (0..).map(|step| Duration::from_micros(5 * step)) {
        let world = World::with_seed(u64::from(cut.subsec_micros()));
        let (client, server) = (world.host("client"), world.host("server"));
        let has_ended = world.block_on(async {
            let (listener, at) = server.listen().await;
            if let Some(connected) = world.within(cut, client.endpoint.connect(at)).await {
                connected.unwrap();
                return true;
            }
            world.only_idle_groups_left([&client]).await;
            if let Some(accepted) = world.within(AT_ONCE, listener.accept()).await {
                let (mut stream, _) = accepted.unwrap();
                assert!(stream.mode().is_smc(), "no side has declined");
                expect_no_data(&mut stream).await;
            }
            world.only_idle_groups_left([&server]).await;
            false
        });
        if has_ended {
            break;
        }
        dropped += 1;
    }
    assert!(dropped > 20, "cut {dropped} times");
}

/// The same while a device is at work, which is when most there is to release.
#[test]
fn a_connect_that_is_dropped_during_device_work_leaves_nothing() {
    for call in [Call::Register, Call::Attach] {
        let world = World::new();
        world.between_hosts(async |client, server| {
            client.device.stall(call);
            let (listener, at) = server.listen().await;
            let connect = client.endpoint.connect(at);
            assert!(
                world
                    .within(Duration::from_secs(1), connect)
                    .await
                    .is_none()
            );
            world.nothing_left([&client, &server]).await;
            assert!(accept_now(&listener).is_none());
        });
    }
}

#[test]
fn an_accept_that_is_dropped_loses_no_stream() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (listener, at) = server.listen().await;
        let accept = async { Some(listener.accept().await) };
        assert!(accept.or(async { None }).await.is_none());
        let ours = client.endpoint.connect(at).await.unwrap();
        drop(
            world
                .within(Duration::from_micros(1), listener.accept())
                .await,
        );
        let connect = client.endpoint.connect(at);
        let (other, theirs) = future::zip(connect, listener.accept()).await;
        assert!(other.is_ok() && theirs.is_ok());
        drop(ours);
    });
}

#[test]
fn a_listener_that_is_dropped_ends_handshakes_under_way() {
    // The seed decides which of them ends first.
    for world in (1..=8).map(World::with_seed).chain([World::real()]) {
        let server = world.host("server");
        let forged = world.forged_peer(&server.device);
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let silent = world.raw(at).await;
            let unconfirmed = world.raw_that_sent(at, forged.propose()).await;
            unconfirmed.message().await;
            // This one waits for the server's device.
            server.device.stall(Call::Register);
            let waiting = world.raw_that_sent(at, forged.propose()).await;
            world.sleep(AT_ONCE).await;
            let since = world.now();
            drop(listener);
            silent.expect_reset().await;
            waiting.expect_reset().await;
            unconfirmed.expect_reset().await;
            assert!(world.is_within(since, 5 * AT_ONCE), "they need not wait");
            world.nothing_left([&server]).await;
        });
    }
}

#[test]
fn a_listener_that_is_dropped_resets_unaccepted_streams() {
    for world in World::both() {
        let (client, server) = (world.host("client"), world.host("server"));
        let (at, _held) = world.own_address();
        world.block_on(async {
            let listener = server.endpoint.bind(at).await.unwrap();
            let mut smc = client.endpoint.connect(at).await.unwrap();
            let tcp = world
                .raw_that_sent(at, decline_v1(DeclineCode::NOSMCDEV))
                .await;
            // Both have come as far as the queue.
            world.sleep(AT_ONCE).await;
            drop(listener);
            expect_error(&mut smc, ErrorKind::ConnectionReset).await;
            tcp.expect_reset().await;
            drop(smc);
            world.only_idle_groups_left([&client, &server]).await;
            let refused = client.endpoint.connect(at).await.unwrap_err();
            assert_eq!(kind(refused), ErrorKind::ConnectionRefused);
        });
    }
}

#[test]
fn a_listener_outlives_its_endpoint() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (listener, _) = server.listen().await;
        let Host { endpoint, device } = server;
        drop(endpoint);
        let (ours, theirs) = join_smc(&client, &listener).await;
        exchange_to_end((ours, theirs)).await;
        world.only_idle_groups_left([&client]).await;
        world.sleep(AT_ONCE).await;
        assert_eq!(device.dmbs(), 0);
    });
}

// ---- Endpoints that shut down ------------------------------------------------------------------

#[test]
fn a_shutdown_ends_connections_with_connection_aborted() {
    for world in World::all() {
        world.between_hosts(async |client, server| {
            let (mut ours, mut theirs) = connect_pair(&client, &server).await;
            theirs.write_all(b"last words").await.unwrap();
            client.endpoint.shutdown();

            expect_write_error(&mut ours, ErrorKind::ConnectionAborted).await;
            expect_rest_and_error(&mut ours, b"last words", ErrorKind::ConnectionAborted).await;

            let end = theirs.read(&mut [0; 8]).await;
            let ends = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
            assert!(ends.contains(&end.unwrap_err().kind()));
            drop((ours, theirs));
            world.nothing_left([&client, &server]).await;

            // Ended were the connections, not the endpoint.
            let (ours, theirs) = connect_pair_smc(&client, &server).await;
            exchange_to_end((ours, theirs)).await;
        });
    }
}

#[test]
fn a_shutdown_wakes_all_waiters() {
    for world in World::both() {
        world.between_hosts(async |client, server| {
            let (mut ours, mut theirs) = connect_pair(&client, &server).await;
            let shutdown = async {
                world.sleep(AT_ONCE).await;
                server.endpoint.shutdown();
            };
            let (mut first, mut second) = ([0; 8], [0; 8]);
            let reads = future::zip(ours.read(&mut first), theirs.read(&mut second));
            let ((ours, theirs), ()) = future::zip(reads, shutdown).await;
            assert_eq!(theirs.unwrap_err().kind(), ErrorKind::ConnectionAborted);
            assert!(ours.is_err());
        });
    }
}

#[test]
fn a_shutdown_leaves_tcp_streams_alone() {
    let world = World::new();
    let client = world.host("client");
    let server = world.host_on(world.device("server").on_fabric(0xff77), |b| b);
    world.block_on(async {
        let (ours, theirs) = connect_pair(&client, &server).await;
        assert!(!ours.mode().is_smc());
        client.endpoint.shutdown();
        server.endpoint.shutdown();
        exchange_to_end((ours, theirs)).await;
    });
}

#[test]
fn a_shutdown_during_a_handshake_ends_it() {
    let world = World::new();
    let server = world.host("server");
    let forged = world.forged_peer(&server.device);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = world.raw_that_sent(at, forged.propose()).await;
        raw.message().await;
        server.endpoint.shutdown();
        raw.send(&bytes(&forged.confirm())).await;
        let since = world.now();
        raw.expect_end().await;
        assert!(world.is_within(since, AT_ONCE));
        // The client may have written before the end.
        let (mut stream, _) = accept_now(&listener).unwrap();
        expect_error(&mut stream, ErrorKind::ConnectionAborted).await;
        drop(stream);
        world.nothing_left([&server]).await;
    });
}

/// Its link group was there before and ends while the device is still at work.
#[test]
fn a_shutdown_during_a_handshake_that_joins_a_group_ends_it() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (listener, at) = server.listen().await;
        let first = client.endpoint.connect(at).await.unwrap();
        client.device.stall(Call::Register);
        let shutdown = async {
            world.sleep(AT_ONCE).await;
            client.endpoint.shutdown();
            client.device.recover();
        };
        let (connected, ()) = future::zip(client.endpoint.connect(at), shutdown).await;
        match connected {
            Ok(mut stream) => {
                assert!(stream.mode().is_smc());
                expect_error(&mut stream, ErrorKind::ConnectionAborted).await;
            }
            Err(error) => assert_eq!(kind(error), ErrorKind::ConnectionAborted),
        }
        drop((first, listener));
        world.nothing_left([&client, &server]).await;
    });
}

// ---- Endpoints that close ----------------------------------------------------------------------

/// What was written is in the peer's memory, where it stays.
#[test]
fn closing_an_endpoint_does_not_wait_for_the_peer_to_read() {
    for nocopy in [true, false] {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
        world.between_hosts(async |client, server| {
            let (mut ours, mut theirs) = connect_pair(&client, &server).await;
            ours.write_all(b"to be read later").await.unwrap();
            drop(ours);
            let since = world.now();
            client.endpoint.close().await;
            assert!(world.is_within(since, AT_ONCE));
            world.nothing_left([&client]).await;
            expect_rest(&mut theirs, b"to be read later").await;
        });
    }
}

/// The application has done its part: nothing is cut off.
#[test]
fn a_stream_that_was_shut_down_ends_in_order_when_its_endpoint_closes() {
    for nocopy in [true, false] {
        for close in [true, false] {
            let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
            world.between_hosts(async |client, server| {
                let (mut ours, mut theirs) = connect_pair(&client, &server).await;
                theirs.write_all(b"an answer").await.unwrap();
                ours.write_all(b"to be read later").await.unwrap();
                ours.shutdown_how(Shutdown::Write).unwrap();
                match close {
                    true => client.endpoint.close().await,
                    false => client.endpoint.shutdown(),
                }
                expect_rest(&mut theirs, b"to be read later").await;
                expect_write_error(&mut theirs, ErrorKind::BrokenPipe).await;
                // This end reads the remaining data, and then the end of the stream.
                expect_rest_and_error(&mut ours, b"an answer", ErrorKind::ConnectionAborted).await;
                drop((ours, theirs));
                world.nothing_left([&client, &server]).await;
            });
        }
    }
}

#[test]
fn a_stream_that_both_ends_shut_down_has_ended_when_its_endpoint_closes() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (mut ours, mut theirs) = connect_pair(&client, &server).await;
        ours.close().await.unwrap();
        theirs.close().await.unwrap();
        client.endpoint.close().await;
        for stream in [&mut ours, &mut theirs] {
            assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        }
    });
}

#[test]
fn an_end_that_the_peer_has_published_is_read_behind_the_end_of_the_endpoint() {
    for nocopy in [true, false] {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
        world.between_hosts(async |client, server| {
            let (mut ours, mut theirs) = connect_pair(&client, &server).await;
            theirs.write_all(b"an answer").await.unwrap();
            theirs.shutdown_how(Shutdown::Write).unwrap();
            client.endpoint.shutdown();
            expect_rest(&mut ours, b"an answer").await;
        });
    }
}

#[test]
fn a_closed_endpoint_makes_no_streams() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let is_closed = |error: Error| {
            assert!(matches!(error, Error::Misuse(_)), "{error}");
            assert!(error.to_string().contains("closed"), "{error}");
        };
        let (listener, at) = server.listen().await;
        let first = client.endpoint.connect(at).await.unwrap();
        assert_eq!(reason(&first), None);
        listener.accept().await.unwrap();
        // This one waits to be accepted when the endpoint closes, and another one is waited for.
        let overloaded = server.endpoint.bind("10.0.0.1:82").await.unwrap();
        let unaccepted = client.endpoint.connect("10.0.0.1:82").await.unwrap();
        assert_eq!(reason(&unaccepted), None);
        // One is under way.
        client.device.stall(Call::Register);
        let closing = async {
            world.sleep(AT_ONCE / 2).await;
            client.endpoint.close().await;
            client.device.recover();
            server.endpoint.close().await;
            // Nothing ran between.
            overloaded.accept().await.unwrap_err()
        };
        let both = future::zip(client.endpoint.connect(at), listener.accept());
        let ((connected, accepted), late) = future::zip(both, closing).await;
        is_closed(connected.unwrap_err());
        is_closed(accepted.unwrap_err().into());
        is_closed(late.into());
        // Though streams of before are still there.
        is_closed(client.endpoint.connect(at).await.unwrap_err());
        is_closed(client.endpoint.bind("10.0.0.1:81").await.unwrap_err());
        is_closed(listener.accept().await.unwrap_err().into());
        drop((first, unaccepted, listener));
        world.nothing_left([&client, &server]).await;
    });
}

#[test]
fn the_error_that_ended_a_stream_is_taken_once() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (mut ours, theirs) = connect_pair(&client, &server).await;
        assert!(ours.take_error().unwrap().is_none());
        theirs.set_zero_linger().unwrap();
        drop(theirs);
        expect_error(&mut ours, ErrorKind::ConnectionReset).await;
        let taken = ours.take_error().unwrap();
        assert_eq!(taken.unwrap().kind(), ErrorKind::ConnectionReset);
        assert!(ours.take_error().unwrap().is_none());

        let (mut ours, _theirs) = connect_pair(&client, &server).await;
        client.endpoint.shutdown();
        let taken = ours.take_error().unwrap();
        assert_eq!(taken.unwrap().kind(), ErrorKind::ConnectionAborted);
        assert!(ours.take_error().unwrap().is_none());
        // What ended it stays the end.
        expect_error(&mut ours, ErrorKind::ConnectionAborted).await;
    });
}
