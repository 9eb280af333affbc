//! Things that end in the middle of a handshake: futures, listeners, endpoints, peers.

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, FutureExt, future};
use smc::{Error, Stream};
use smc_core::wire::types::DeclineCode;
use smc_testkit::memory_device::MemFabric;

use crate::device::Call;
use crate::messages::*;
use crate::peer::Raw;
use crate::world::{Host, World, accept_now, kind, meet, reason};

/// Much longer than a handshake, much shorter than any time-out.
const AT_ONCE: Duration = Duration::from_millis(100);

// ---- Futures and listeners that are dropped ----------------------------------------------------

/// However far it has come: nothing of it stays at either end, and a stream that the server has
/// already made of it ends.
#[test]
fn a_connect_that_is_dropped_leaves_nothing() {
    let mut dropped = 0;
    for cut in (0..).map(|step| Duration::from_micros(5 * step)) {
        let world = World::with_seed(u64::from(cut.subsec_micros()));
        let (client, server) = (world.host("client"), world.host("server"));
        let is_over = world.block_on(async {
            let (listener, at) = server.listen().await;
            let connect = async { Some(client.endpoint.connect(at).await.unwrap()) };
            let too_late = async {
                world.sleep(cut).await;
                None
            };
            if connect.or(too_late).await.is_some() {
                return true;
            }
            world.only_idle_groups_left(&client).await;
            if let Ok((mut stream, _)) = accept_for(&world, &listener, AT_ONCE).await {
                assert!(stream.mode().is_smc(), "no side has declined");
                let end = stream.read(&mut [0; 8]).await;
                assert!(!matches!(end, Ok(1..)), "invented data");
            }
            world.only_idle_groups_left(&server).await;
            false
        });
        if is_over {
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
        let (client, server) = (world.host("client"), world.host("server"));
        world.block_on(async {
            client.device.stall(call);
            let (listener, at) = server.listen().await;
            let connect = async { Some(client.endpoint.connect(at).await) };
            let too_late = async {
                world.sleep(Duration::from_secs(1)).await;
                None
            };
            assert!(connect.or(too_late).await.is_none());
            world.nothing_left(&client).await;
            world.nothing_left(&server).await;
            assert!(accept_now(&listener).is_none());
        });
    }
}

#[test]
fn an_accept_that_is_dropped_loses_no_stream() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let accept = async { Some(listener.accept().await) };
        assert!(accept.or(async { None }).await.is_none());
        let ours = client.endpoint.connect(at).await.unwrap();
        let accept = async { Some(listener.accept().await) };
        let too_late = async {
            world.sleep(Duration::from_micros(1)).await;
            None
        };
        drop(accept.or(too_late).await);
        let connect = client.endpoint.connect(at);
        let (other, theirs) = future::zip(connect, listener.accept()).await;
        assert!(other.is_ok() && theirs.is_ok());
        drop(ours);
    });
}

#[test]
fn a_listener_that_is_dropped_ends_handshakes_under_way() {
    // The seed decides which of them ends first.
    for world in (1..=8).map(World::with_seed).chain(World::real()) {
        let server = world.host("server");
        let forger = world.forger(&server);
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let silent = Raw::connect(&*world.rt, at).await;
            let unconfirmed = Raw::connect(&*world.rt, at).await;
            unconfirmed.send(&proposal(&forger.proposal())).await;
            unconfirmed.message().await;
            // This one waits for the server's device.
            server.device.stall(Call::Register);
            let waiting = Raw::connect(&*world.rt, at).await;
            waiting.send(&proposal(&forger.proposal())).await;
            world.sleep(AT_ONCE).await;
            let since = world.rt.now();
            drop(listener);
            assert_eq!(silent.rest().await.0, b"");
            assert_eq!(waiting.rest().await.0, b"");
            assert_eq!(unconfirmed.rest().await.0, b"");
            assert!(world.is_within(since, 5 * AT_ONCE), "they need not wait");
            world.nothing_left(&server).await;
        });
    }
}

#[test]
fn a_listener_that_is_dropped_ends_unaccepted_streams() {
    for world in [Some(World::new()), World::real()].into_iter().flatten() {
        let (client, server) = (world.host("client"), world.host("server"));
        let (at, _held) = world.own_address();
        world.block_on(async {
            let listener = server.endpoint.bind(at).await.unwrap();
            let mut smc = client.endpoint.connect(at).await.unwrap();
            let tcp = Raw::connect(&*world.rt, at).await;
            tcp.send(&decline_v1(DeclineCode::NOSMCDEV)).await;
            // Both have come as far as the queue.
            world.sleep(AT_ONCE).await;
            drop(listener);
            let end = smc.read(&mut [0; 8]).await;
            assert!(!matches!(end, Ok(1..)), "invented data");
            assert_eq!(tcp.rest().await.0, b"");
            drop(smc);
            world.only_idle_groups_left(&client).await;
            world.only_idle_groups_left(&server).await;
            let refused = client.endpoint.connect(at).await.unwrap_err();
            assert_eq!(kind(refused), ErrorKind::ConnectionRefused);
        });
    }
}

#[test]
fn a_listener_outlives_its_endpoint() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let Host { endpoint, device } = server;
        drop(endpoint);
        let connect = client.endpoint.connect(at);
        let (ours, theirs) = future::zip(connect, listener.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!((reason(&ours), reason(&theirs)), (None, None));
        world.chat(ours, theirs).await;
        world.only_idle_groups_left(&client).await;
        world.sleep(AT_ONCE).await;
        assert_eq!(device.dmbs(), 0);
    });
}

// ---- Endpoints that shut down ------------------------------------------------------------------

#[test]
fn a_shutdown_ends_connections_with_connection_aborted() {
    for world in [World::new(), World::in_pieces()]
        .into_iter()
        .chain(World::real())
    {
        let (client, server) = (world.host("client"), world.host("server"));
        world.block_on(async {
            let (mut ours, mut theirs) = meet(&client, &server).await;
            theirs.write_all(b"last words").await.unwrap();
            client.endpoint.shutdown();

            let written = ours.write(b"into the void").await;
            assert_eq!(written.unwrap_err().kind(), ErrorKind::ConnectionAborted);
            let mut received = Vec::new();
            let end = ours.read_to_end(&mut received).await;
            assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionAborted);
            assert_eq!(received, b"last words", "what was there before can be read");

            let end = theirs.read(&mut [0; 8]).await;
            let ends = [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset];
            assert!(ends.contains(&end.unwrap_err().kind()));
            drop((ours, theirs));
            world.nothing_left(&client).await;
            world.nothing_left(&server).await;

            // Ended were the connections, not the endpoint.
            let (ours, theirs) = meet(&client, &server).await;
            assert_eq!((reason(&ours), reason(&theirs)), (None, None));
            world.chat(ours, theirs).await;
        });
    }
}

#[test]
fn a_shutdown_wakes_all_waiters() {
    for world in [Some(World::new()), World::real()].into_iter().flatten() {
        let (client, server) = (world.host("client"), world.host("server"));
        world.block_on(async {
            let (mut ours, mut theirs) = meet(&client, &server).await;
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
    let server = world.host_with(world.device("server").on_fabric(0xff77), |b| b);
    world.block_on(async {
        let (ours, theirs) = meet(&client, &server).await;
        assert!(!ours.mode().is_smc());
        client.endpoint.shutdown();
        server.endpoint.shutdown();
        world.chat(ours, theirs).await;
    });
}

#[test]
fn a_shutdown_during_a_handshake_ends_it() {
    let world = World::new();
    let server = world.host("server");
    let forger = world.forger(&server);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = Raw::connect(&*world.rt, at).await;
        raw.send(&proposal(&forger.proposal())).await;
        raw.message().await;
        server.endpoint.shutdown();
        raw.send(&bytes(&forger.confirm())).await;
        let since = world.rt.now();
        assert_eq!(raw.rest().await.0, b"");
        assert!(world.is_within(since, AT_ONCE));
        // The client may have written before the end.
        let (mut stream, _) = accept_now(&listener).unwrap();
        let end = stream.read(&mut [0; 8]).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        drop(stream);
        world.nothing_left(&server).await;
    });
}

/// Its link group was there before and ends while the device is still at work.
#[test]
fn a_shutdown_during_a_handshake_that_joins_a_group_ends_it() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
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
                let end = stream.read(&mut [0; 8]).await;
                assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionAborted);
            }
            Err(error) => assert_eq!(kind(error), ErrorKind::ConnectionAborted),
        }
        drop((first, listener));
        world.nothing_left(&client).await;
        world.nothing_left(&server).await;
    });
}

/// Accepts, or gives up after a time.
async fn accept_for(
    world: &World,
    listener: &smc::Listener,
    time: Duration,
) -> Result<(Stream, std::net::SocketAddr), ()> {
    let accept = async { Ok(listener.accept().await.unwrap()) };
    let too_late = async {
        world.sleep(time).await;
        Err(())
    };
    accept.or(too_late).await
}

// ---- Endpoints that close ------------------------------------------------------------------------

/// What was written is in the peer's memory, where it stays.
#[test]
fn closing_an_endpoint_does_not_wait_for_the_peer_to_read() {
    for nocopy in [true, false] {
        let mut world = World::new();
        world.fabric = MemFabric::new(7).with_nocopy(nocopy);
        let (client, server) = (world.host("client"), world.host("server"));
        world.block_on(async {
            let (mut ours, mut theirs) = meet(&client, &server).await;
            ours.write_all(b"to be read later").await.unwrap();
            drop(ours);
            let since = world.rt.now();
            client.endpoint.close().await;
            assert!(world.is_within(since, AT_ONCE));
            world.nothing_left(&client).await;
            let mut read = Vec::new();
            theirs.read_to_end(&mut read).await.unwrap();
            assert_eq!(read, b"to be read later");
        });
    }
}

/// The application has done its part: nothing is cut off.
#[test]
fn a_stream_that_was_shut_down_ends_in_order_when_its_endpoint_closes() {
    for nocopy in [true, false] {
        for close in [true, false] {
            let mut world = World::new();
            world.fabric = MemFabric::new(7).with_nocopy(nocopy);
            let (client, server) = (world.host("client"), world.host("server"));
            world.block_on(async {
                let (mut ours, mut theirs) = meet(&client, &server).await;
                theirs.write_all(b"an answer").await.unwrap();
                ours.write_all(b"to be read later").await.unwrap();
                ours.shutdown_how(Shutdown::Write).unwrap();
                match close {
                    true => client.endpoint.close().await,
                    false => client.endpoint.shutdown(),
                }
                let mut read = Vec::new();
                theirs.read_to_end(&mut read).await.unwrap();
                assert_eq!(read, b"to be read later");
                let late = theirs.write(b"late").await;
                assert_eq!(late.unwrap_err().kind(), ErrorKind::ConnectionReset);
                // This end reads the remaining data, and then the end of the stream.
                read.clear();
                let end = ours.read_to_end(&mut read).await;
                assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionAborted);
                assert_eq!(read, b"an answer");
                drop((ours, theirs));
                world.nothing_left(&client).await;
                world.nothing_left(&server).await;
            });
        }
    }
}

#[test]
fn a_stream_that_both_ends_shut_down_has_ended_when_its_endpoint_closes() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
        let (mut ours, mut theirs) = meet(&client, &server).await;
        ours.close().await.unwrap();
        theirs.close().await.unwrap();
        client.endpoint.close().await;
        for stream in [&mut ours, &mut theirs] {
            assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
        }
    });
}

#[test]
fn a_closed_endpoint_makes_no_streams() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
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
        world.nothing_left(&client).await;
        world.nothing_left(&server).await;
    });
}

#[test]
fn the_error_that_ended_a_stream_is_taken_once() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
        let (mut ours, theirs) = meet(&client, &server).await;
        assert!(ours.take_error().unwrap().is_none());
        theirs.set_zero_linger().unwrap();
        drop(theirs);
        let end = ours.read(&mut [0; 8]).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionReset);
        let taken = ours.take_error().unwrap();
        assert_eq!(taken.unwrap().kind(), ErrorKind::ConnectionReset);
        assert!(ours.take_error().unwrap().is_none());

        let (mut ours, _theirs) = meet(&client, &server).await;
        client.endpoint.shutdown();
        let taken = ours.take_error().unwrap();
        assert_eq!(taken.unwrap().kind(), ErrorKind::ConnectionAborted);
        assert!(ours.take_error().unwrap().is_none());
        // What ended it stays the end.
        let end = ours.read(&mut [0; 8]).await;
        assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionAborted);
    });
}
