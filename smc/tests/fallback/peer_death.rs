//! Peers that end, and peers that have lost what they knew.

use std::collections::BTreeSet;
use std::io::ErrorKind;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::info::ConnState;
use smc_core::wire::clc::{AcceptConfirm, AcceptKind};
use smc_core::wire::types::DeclineCode;

use crate::fallback_table::{AT_ONCE, MESSAGE};
use smc_testkit::streams::{expect_error, expect_rest_and_error};
use smc_testkit::world::messages::*;
use smc_testkit::world::{
    Host, World, accept_now, connect_pair, connect_pair_smc, exchange, exchange_to_end,
    expect_no_data, kind, proposal_from, reason,
};

/// What goes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Death {
    /// Its process ends: TCP and device.
    Process,
    /// Its device only.
    Device,
}

#[test]
fn a_client_dies_before_it_confirms() {
    for death in [Death::Process, Death::Device] {
        println!("{death:?}");
        let world = World::new();
        let server = world.host("server");
        let forged = world.forged_peer(&server.device);
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let raw = world.raw_that_sent(at, forged.propose()).await;
            raw.message().await;
            let since = world.now();
            forged.leave();
            match death {
                Death::Process => drop(raw),
                // It sends nothing more: in the end it times out.
                Death::Device => {
                    raw.expect_end().await;
                    assert!(world.is_within(since, MESSAGE + AT_ONCE));
                }
            }
            world.nothing_left([&server]).await;
            assert!(accept_now(&listener).is_none());
        });
    }
}

#[test]
fn a_client_whose_device_died_confirms_all_the_same() {
    let world = World::new();
    let server = world.host("server");
    let forged = world.forged_peer(&server.device);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = world.raw_that_sent(at, forged.propose()).await;
        raw.message().await;
        forged.leave();
        world.sleep(AT_ONCE).await;
        raw.send(&bytes(&forged.confirm())).await;
        raw.expect_end().await;
        // It might have written before.
        let (mut stream, _) = accept_now(&listener).unwrap();
        expect_error(&mut stream, ErrorKind::ConnectionAborted).await;
        drop(stream);
        world.nothing_left([&server]).await;
    });
}

#[test]
fn other_tasks_run_while_the_connections_of_a_peer_end() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
        let mut streams = Vec::new();
        for _ in 0..200 {
            streams.push(connect_pair_smc(&client, &server).await);
        }
        let ended = || {
            let states = streams.iter().map(|(_, theirs)| theirs.state());
            states
                .filter(|state| *state != Some(ConnState::Active))
                .count()
        };
        assert_eq!(ended(), 0);
        client.device.leave();
        let mut seen = BTreeSet::new();
        while ended() < streams.len() {
            seen.insert(ended());
            future::yield_now().await;
        }
        assert!(seen.len() > 3, "{seen:?}");
        for (_, theirs) in &mut streams {
            expect_error(theirs, ErrorKind::ConnectionAborted).await;
        }
    });
}

#[test]
fn a_server_dies_before_it_answers() {
    let world = World::new();
    let client = world.host("client");
    let forged = world.forged_peer(&client.device);
    let (acceptor, at) = world.raw_listener();
    for death in [Death::Process, Death::Device] {
        world.block_on(async {
            let since = world.now();
            let server = async {
                let raw = acceptor.accept().await;
                raw.message().await;
                forged.leave();
                (death == Death::Device).then_some(raw)
            };
            let (connected, _raw) = future::zip(client.endpoint.connect(at), server).await;
            let error = kind(connected.unwrap_err());
            match death {
                Death::Process => assert_eq!(error, ErrorKind::ConnectionReset),
                Death::Device => {
                    assert_eq!(error, ErrorKind::TimedOut);
                    assert!(world.has_taken(since, MESSAGE));
                }
            }
            world.nothing_left([&client]).await;
        });
    }
}

/// The server is gone by the time the client has its buffer. What the client makes of it depends on
/// what it notices first; in no case does it find data or wait.
#[test]
fn a_server_dies_while_the_client_prepares() {
    for death in [Death::Process, Death::Device] {
        println!("{death:?}");
        let world = World::new();
        let client = world.host("client");
        let forged = world.forged_peer(&client.device);
        let (acceptor, at) = world.raw_listener();
        world.block_on(async {
            let server = async {
                let raw = acceptor.accept().await;
                raw.message().await;
                raw.send(&bytes(&forged.accept())).await;
                forged.leave();
                (death == Death::Device).then_some(raw)
            };
            let since = world.now();
            let (connected, raw) = future::zip(client.endpoint.connect(at), server).await;
            assert!(world.is_within(since, AT_ONCE));
            match (connected, raw) {
                (Ok(stream), Some(raw)) => {
                    let code = reason(&stream).unwrap().local;
                    assert!([DeclineCode::NOSMCD2DEV, DeclineCode::MEM].contains(&code));
                    assert_eq!(declined(&raw.message().await).0, code);
                    exchange(stream, Some(raw), b"").await;
                }
                (Ok(mut stream), None) => {
                    assert!(!stream.mode().is_smc());
                    expect_no_data(&mut stream).await;
                }
                (Err(error), _) => {
                    let ends = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                    assert!(ends.contains(&kind(error)));
                }
            }
            world.nothing_left([&client]).await;
        });
    }
}

#[test]
fn a_peer_that_dies_after_the_handshake_aborts_the_stream() {
    for world in World::both() {
        world.between_hosts(async |client, server| {
            let (mut ours, mut theirs) = connect_pair(&client, &server).await;
            ours.write_all(b"last words").await.unwrap();
            client.device.leave();
            expect_rest_and_error(&mut theirs, b"last words", ErrorKind::ConnectionAborted).await;
            drop(theirs);
            world.nothing_left([&server]).await;
        });
    }
}

/// Any TCP client can name a host's GID and then report that it does not have the link group.
#[test]
fn a_client_that_is_out_of_sync_ends_no_stream_and_the_next_ones_get_a_new_link_group() {
    for world in World::both() {
        world.between_hosts(async |client, server| {
            let (listener, at) = server.listen().await;
            let join = async || {
                let connect = client.endpoint.connect(at);
                let (ours, theirs) = future::zip(connect, listener.accept()).await;
                (ours.unwrap(), theirs.unwrap().0)
            };
            let (ours, theirs) = join().await;
            let groups = || server.endpoint.link_groups();
            let denied = groups()[0].id;

            let raw = world
                .raw_that_sent(at, proposal_from(&*client.device))
                .await;
            raw.message().await;
            raw.send(&out_of_sync()).await;
            let (fell_back, _) = listener.accept().await.unwrap();
            let peer_code = reason(&fell_back).unwrap();
            assert_eq!(peer_code.peer, Some(DeclineCode::SYNCERR));
            exchange(fell_back, Some(raw), b"").await;

            let next = join().await;
            assert_eq!((reason(&next.0), reason(&next.1)), (None, None));
            let connections: Vec<_> = groups().iter().map(|group| group.connections).collect();
            assert_eq!(connections, [1, 1], "the next one is in another group");
            exchange_to_end((ours, theirs)).await;
            exchange_to_end((next.0, next.1)).await;
            world.only_idle_groups_left([&server]).await;
            assert!(groups().iter().all(|group| group.id != denied));
        });
    }
}

/// A TCP client without a device names that of one listener to the other, each with the token from
/// its ACCEPT, so that the two have a stream with each other.
#[test]
fn two_listeners_that_a_client_has_joined_are_apart_when_its_connections_end() {
    let world = World::new();
    let hosts = ["one", "other"].map(|name| world.host(name));
    world.block_on(async {
        let mut listening = Vec::new();
        for host in &hosts {
            listening.push(host.listen().await);
        }
        let mut met = Vec::new();
        for (of, (_, at)) in hosts.iter().rev().zip(&listening) {
            let raw = world.raw_that_sent(*at, proposal_from(&*of.device)).await;
            let accept = raw.message().await;
            met.push((raw, AcceptConfirm::parse(&accept).unwrap()));
        }
        for (index, (raw, _)) in met.iter().enumerate() {
            let mut confirm = met[1 - index].1.clone();
            confirm.kind = AcceptKind::Confirm;
            raw.send(&bytes(&confirm)).await;
        }
        let mut streams = Vec::new();
        for (listener, _) in &listening {
            streams.push(listener.accept().await.unwrap().0);
        }
        for stream in &mut streams {
            assert_eq!(reason(stream), None);
            stream.write_all(b"220 ready").await.unwrap();
        }
        for stream in &mut streams {
            let mut greeting = [0; 9];
            stream.read_exact(&mut greeting).await.unwrap();
        }
        drop(met);
        for stream in &mut streams {
            let end = stream.read(&mut [0]).await.unwrap_err().kind();
            // The end of TCP, or the abort of the other one.
            let is_apart =
                [ErrorKind::ConnectionAborted, ErrorKind::ConnectionReset].contains(&end);
            assert!(is_apart, "{end}");
        }
        drop(streams);
        world.only_idle_groups_left([&hosts[0], &hosts[1]]).await;
    });
}

/// The client's groups went with a restart that kept its address; the server still has one.
#[test]
fn a_server_that_joins_a_link_group_which_the_client_has_lost_is_told() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (listener, at) = server.listen().await;
        let connect = client.endpoint.connect(at);
        let (ours, theirs) = future::zip(connect, listener.accept()).await;
        exchange_to_end((ours.unwrap(), theirs.unwrap().0)).await;
        world.only_idle_groups_left([&server]).await;
        // An endpoint that knows nothing, on the same device.
        let Host { endpoint, device } = client;
        drop(endpoint);
        world.sleep(AT_ONCE).await;
        let again = world.endpoint(|builder| builder.device(device.clone()));

        let connect = again.connect(at);
        let (ours, theirs) = future::zip(connect, listener.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(reason(&ours).unwrap().local, DeclineCode::SYNCERR);
        assert_eq!(reason(&theirs).unwrap().peer, Some(DeclineCode::SYNCERR));
        exchange_to_end((ours, theirs)).await;
        world.nothing_left([&server]).await;

        let connect = again.connect(at);
        let (ours, theirs) = future::zip(connect, listener.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!((reason(&ours), reason(&theirs)), (None, None));
        exchange_to_end((ours, theirs)).await;
    });
}
