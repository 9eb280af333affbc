//! Early CONFIRM and early data, in link groups with a single link
//! (docs/spec/extensions.md#early-data).

use std::future::Future;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::{ConnectOptions, Endpoint, Error, ListenOptions, Listener, Mode, Policy, Stream};
use smc_core::wire::clc::{Extensions, Message};
use smc_core::wire::types::{Features, Nonce};
use smc_testkit::memory_device::MemFabric;
use smc_testkit::streams::{connect_smc, patterned, transfer_both_ways};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, is_smcr};

use crate::forged::{HOSTILE, accept_hostile, connect_from, receive_bytes, send};
use crate::single_link::{LATENCY, features, world};

const REQUEST: [u8; 64] = [b'?'; 64];
const ANSWER: [u8; 64] = [b'!'; 64];

async fn listen(server: &Endpoint, early_data: usize) -> Listener {
    let options = ListenOptions::new().max_early_data(early_data);
    server.bind_with(SERVER, &options).await.expect("listens")
}

async fn connect(client: &Endpoint, data: &[u8]) -> Result<Stream, Error> {
    let options = ConnectOptions::new().early_data(data);
    client.connect_with(SERVER, &options).await
}

/// Sends the request as early data, and awaits the answer to it.
async fn request(client: &Endpoint, listener: &Listener) -> [Stream; 2] {
    let connecting = async {
        let mut ours = connect(client, &REQUEST).await.expect("connects");
        let mut answer = [0; ANSWER.len()];
        ours.read_exact(&mut answer).await.expect("is answered");
        assert_eq!(answer, ANSWER);
        ours
    };
    zip(connecting, serve(listener)).await.into()
}

async fn serve(listener: &Listener) -> Stream {
    let (mut theirs, _) = listener.accept().await.expect("accepts");
    let mut request = [0; REQUEST.len()];
    theirs.read_exact(&mut request).await.expect("is asked");
    assert_eq!(request, REQUEST);
    theirs.write_all(&ANSWER).await.expect("answers");
    theirs
}

/// After the peer's streams have ended, so that an RMB is free again.
async fn pause(world: &RdmaWorld) {
    world.sleep(LATENCY * 20).await;
}

#[test]
fn a_request_with_early_data_is_answered_in_two_round_trips() {
    let all = Features::SINGLE_LINK
        | Features::AUTHENTICATION
        | Features::EARLY_CONFIRM
        | Features::RECEIVE_CREDITS;
    let cases = [
        (4096, 2, all | Features::EARLY_DATA),
        (REQUEST.len(), 2, all | Features::EARLY_DATA),
        // The listener does not take as much, or none: the connect writes it.
        (REQUEST.len() - 1, 3, all),
        (0, 3, all),
    ];
    for (max, round_trips, expected) in cases {
        let world = world(1);
        let RdmaHosts { client, server, .. } = world.hosts();
        world.block_on(async {
            let listener = listen(&server, max).await;
            let first = request(&client, &listener).await;
            assert!(!first.iter().any(Stream::is_early), "there was no group");
            drop(first);
            for _ in 0..5 {
                pause(&world).await;
                let (streams, took) = world.timed(request(&client, &listener)).await;
                // TCP connects in half of a round trip here.
                let least = LATENCY * (2 * round_trips - 1);
                assert!(
                    took >= least && took < least + LATENCY,
                    "{took:?} for {round_trips} round trips"
                );
                assert_eq!(streams.each_ref().map(features), [expected; 2]);
                let is_taken = expected.contains(Features::EARLY_DATA);
                let [ours, theirs] = &streams;
                assert_eq!(ours.early_data_accepted(), is_taken);
                assert_eq!(theirs.is_early(), is_taken);
            }
        });
    }
}

#[test]
fn a_request_in_the_syn_is_answered_in_one_round_trip() {
    let world = world(1);
    let RdmaHosts { client, server, .. } = world.hosts_with(|builder| builder.fast_open(true));
    world.block_on(async {
        let listener = listen(&server, REQUEST.len()).await;
        // They make the link group, and get the cookie.
        for _ in 0..2 {
            drop(request(&client, &listener).await);
            pause(&world).await;
        }
        for _ in 0..5 {
            let ([ours, theirs], took) = world.timed(request(&client, &listener)).await;
            assert!(took >= LATENCY * 2 && took < LATENCY * 3, "{took:?}");
            let used = Features::FAST_OPEN | Features::EARLY_DATA;
            assert!(features(&ours).contains(used) && theirs.is_early());
            drop([ours, theirs]);
            pause(&world).await;
        }
    });
}

#[test]
fn streams_with_early_data_carry_what_follows_in_both_directions() {
    let world = RdmaWorld::new(2);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.recv_buffer(16 << 10));
    world.block_on(async {
        let listener = listen(&server, ConnectOptions::MAX_EARLY_DATA).await;
        drop(connect_smc(&client, &listener).await);
        for len in [1, 64, 4096, ConnectOptions::MAX_EARLY_DATA] {
            pause(&world).await;
            let data = patterned(len);
            let accepting = async { listener.accept().await.expect("accepts").0 };
            let (ours, mut theirs) = zip(connect(&client, &data), accepting).await;
            let mut ours = ours.expect("connects");
            assert!(ours.early_data_accepted() && theirs.is_early(), "{len}");
            let mut read = vec![0; len];
            theirs.read_exact(&mut read).await.expect("reads");
            assert_eq!(read, data);
            // Several times around the ring.
            transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
            drop(ours);
            assert_eq!(theirs.read(&mut [0]).await.expect("ends"), 0);
        }
    });
}

#[test]
fn data_is_delivered_once_where_the_listener_has_changed() {
    let without: fn(&RdmaWorld) -> Endpoint = |world| {
        let device = world.device("b1", 4);
        world.endpoint_with(&[&device], |builder| {
            builder.vendor_features(Features::empty())
        })
    };
    let tcp: fn(&RdmaWorld) -> Endpoint = |world| {
        let device = world.device("b1", 4);
        world.endpoint_with(&[&device], |builder| builder.policy(Policy::Never))
    };
    let other: fn(&RdmaWorld) -> Endpoint = |world| {
        let device = world.device("b1", 4);
        world.endpoint_with(&[&device], |builder| builder)
    };
    for (what, new) in [("features", without), ("TCP", tcp), ("other", other)] {
        let world = RdmaWorld::new(3);
        let RdmaHosts { client, server, .. } = world.hosts();
        world.block_on(async {
            let listener = listen(&server, 4096).await;
            drop(request(&client, &listener).await);
            pause(&world).await;
            drop(listener);
            let server = new(&world);
            let listener = listen(&server, 4096).await;
            for round in 0..3 {
                let [mut ours, mut theirs] = request(&client, &listener).await;
                assert_eq!(is_smcr(&ours), what != "TCP", "{what} {round}");
                transfer_both_ways(&mut ours, &mut theirs, 1000).await;
                drop([ours, theirs]);
                pause(&world).await;
            }
        });
    }
}

#[test]
fn more_data_than_a_proposal_can_have_is_refused_before_anything_is_sent() {
    let world = RdmaWorld::new(4);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let _listener = listen(&server, 4096).await;
        let data = vec![0; ConnectOptions::MAX_EARLY_DATA + 1];
        let refused = connect(&client, &data).await.expect_err("too much");
        assert!(matches!(refused, Error::Misuse(_)), "{refused}");
        assert!(client.link_groups().is_empty());
    });
}

/// A process with TCP alone between two hosts, which relays a connection and then sends what the
/// client has sent once more.
async fn relayed(
    world: &RdmaWorld,
    connecting: impl Future<Output = Result<Stream, Error>>,
) -> (Vec<u8>, Stream) {
    let relaying = async {
        let near = accept_hostile(world).await;
        let far = connect_from(world, Ipv4Addr::new(10, 0, 0, 2)).await;
        let proposal = receive_bytes(&*near).await;
        send(&*far, &proposal).await;
        send(&*near, &receive_bytes(&*far).await).await;
        (proposal, near, far)
    };
    let ((proposal, ..), stream) = zip(relaying, connecting).await;
    (proposal, stream.expect("connects"))
}

#[test]
fn a_proposal_that_is_sent_again_delivers_nothing() {
    let world = RdmaWorld::new(5);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = listen(&server, 4096).await;
        let (mut first, mut first_there) = connect_smc(&client, &listener).await;
        // The precedent of that destination, with an RMB.
        for _ in 0..2 {
            let options = ConnectOptions::new().early_data(REQUEST);
            let connecting = client.connect_with(HOSTILE, &options);
            let relaying = relayed_until_confirm(&world, connecting);
            let (stream, theirs) = zip(relaying, serve(&listener)).await;
            drop((stream, theirs));
            pause(&world).await;
        }
        let options = ConnectOptions::new().early_data(REQUEST);
        let connecting = client.connect_with(HOSTILE, &options);
        let ((proposal, stream), theirs) = zip(relayed(&world, connecting), serve(&listener)).await;
        assert!(stream.early_data_accepted() && theirs.is_early());
        let mut streams = Some((stream, theirs));
        // While the stream exists, and when its RMB is free for another one.
        for _ in 0..2 {
            let far = connect_from(&world, Ipv4Addr::new(10, 0, 0, 2)).await;
            send(&*far, &proposal).await;
            let (again, _) = listener.accept().await.expect("accepts");
            assert!(!is_smcr(&again), "{}", again.mode());
            assert!(!again.is_early());
            drop(streams.take());
            pause(&world).await;
        }
        transfer_both_ways(&mut first, &mut first_there, 1000).await;
    });
}

/// Relays a connection that may have a CONFIRM.
async fn relayed_until_confirm(
    world: &RdmaWorld,
    connecting: impl Future<Output = Result<Stream, Error>>,
) -> Stream {
    let relaying = async {
        let near = accept_hostile(world).await;
        let far = connect_from(world, Ipv4Addr::new(10, 0, 0, 2)).await;
        let proposal = receive_bytes(&*near).await;
        send(&*far, &proposal).await;
        send(&*near, &receive_bytes(&*far).await).await;
        let is_early = proposal.windows(REQUEST.len()).any(|part| part == REQUEST);
        if !is_early {
            send(&*far, &receive_bytes(&*near).await).await;
        }
        (near, far)
    };
    let (_sockets, stream) = zip(relaying, connecting).await;
    stream.expect("connects")
}

/// A listener of each of two servers in turn at one address, as behind a load balancer.
#[test]
fn connections_to_servers_that_share_an_address_are_all_smc_r() {
    let world = RdmaWorld::new(6);
    let RdmaHosts { client, server, .. } = world.hosts();
    let other = world.endpoint(&[&world.device("b1", 4)]);
    world.block_on(async {
        for round in 0..12 {
            let at = match [1, 5, 6, 9].contains(&round) {
                true => &other,
                false => &server,
            };
            let listener = listen(at, 4096).await;
            let streams = request(&client, &listener).await;
            assert!(
                streams.iter().all(is_smcr),
                "{round}: {}",
                streams[0].mode()
            );
            drop((streams, listener));
            pause(&world).await;
        }
    });
}

#[test]
fn connections_are_smc_r_where_there_are_several_groups_with_a_server() {
    let world = RdmaWorld::new(7);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.max_connections_per_group(16));
    world.block_on(async {
        let listener = listen(&server, 4096).await;
        let mut kept = Vec::new();
        for round in 0..120 {
            let streams = request(&client, &listener).await;
            assert!(
                streams.iter().all(is_smcr),
                "{round}: {}",
                streams[0].mode()
            );
            kept.push(streams);
            if round > 40 && round % 2 == 0 {
                drop(kept.swap_remove(round * 7 % kept.len()));
                pause(&world).await;
            }
        }
        assert!(client.link_groups().len() > 2);
    });
}

/// As many bytes are longer than any PROPOSAL of the released protocol.
#[test]
fn a_server_that_takes_early_confirms_alone_gets_no_data_with_the_proposal() {
    let features = Features::SINGLE_LINK | Features::AUTHENTICATION | Features::EARLY_CONFIRM;
    let world = RdmaWorld::new(8);
    let RdmaHosts { client, .. } = world.hosts();
    let server = world.endpoint_with(&[&world.device("b1", 4)], |builder| {
        builder.vendor_features(features)
    });
    world.block_on(async {
        let listener = listen(&server, 4096).await;
        for round in 0..6 {
            let accepting = async { listener.accept().await.expect("accepts").0 };
            let (ours, mut theirs) = zip(connect(&client, &[b'x'; 4000]), accepting).await;
            let ours = ours.expect("connects");
            assert!(!ours.early_data_accepted(), "{round}");
            theirs.read_exact(&mut [0; 4000]).await.expect("has it");
            drop((ours, theirs));
            pause(&world).await;
        }
    });
}

#[test]
fn a_stream_of_a_client_that_is_gone_after_its_proposal_ends() {
    for cancelled_after in [11, 15, 21, 25] {
        let world = world(9);
        let RdmaHosts { client, server, .. } = world.hosts();
        world.block_on(async {
            let listener = listen(&server, 4096).await;
            let _first = connect_smc(&client, &listener).await;
            drop(connect_smc(&client, &listener).await);
            pause(&world).await;
            let options = ConnectOptions::new()
                .early_data(REQUEST)
                .timeout(Duration::from_millis(cancelled_after));
            let accepting = async { listener.accept().await.expect("accepts").0 };
            let (ours, mut theirs) = zip(client.connect_with(SERVER, &options), accepting).await;
            ours.expect_err("is cancelled");
            let mut request = [0; REQUEST.len()];
            theirs.read_exact(&mut request).await.expect("has it");
            assert_eq!(request, REQUEST);
            let reading = theirs.read(&mut request);
            let ended = futures_lite::future::or(async { Some(reading.await) }, async {
                world.sleep(Duration::from_secs(30)).await;
                None
            });
            let ended = ended.await.expect("shows that the client is gone");
            assert!(ended.is_err(), "{ended:?} after {cancelled_after} ms");
        });
    }
}

/// The client has a precedent of the address at which the relay listens, and an RMB.
async fn make_precedent(world: &RdmaWorld, client: &Endpoint, listener: &Listener) {
    let relaying = relayed_until_confirm(world, client.connect(HOSTILE));
    drop(zip(relaying, listener.accept()).await);
    pause(world).await;
}

/// Whatever has held it up may do so again.
#[test]
fn a_connect_that_is_cancelled_is_not_a_precedent_any_more() {
    let world = RdmaWorld::new(12);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = listen(&server, 4096).await;
        let (_first, _first_there) = connect_smc(&client, &listener).await;
        make_precedent(&world, &client, &listener).await;
        let options = ConnectOptions::new().early_data(REQUEST);
        let cancelled = async {
            let near = accept_hostile(&world).await;
            let proposal = receive_bytes(&*near).await;
            assert!(proposal.windows(64).any(|part| part == REQUEST));
        };
        let connecting = async { drop(client.connect_with(HOSTILE, &options).await) };
        futures_lite::future::or(cancelled, connecting).await;
        let connecting = client.connect_with(HOSTILE, &options);
        let relaying = relayed_until_confirm(&world, connecting);
        let (stream, theirs) = zip(relaying, serve(&listener)).await;
        assert!(is_smcr(&stream), "{}", stream.mode());
        assert!(!stream.early_data_accepted() && !theirs.is_early());
    });
}

/// Changes the low byte of the features that an ACCEPT states.
fn change_features(accept: &mut [u8], change: fn(&mut u8)) {
    let at = accept.windows(2).rposition(|magic| magic == b"SF");
    change(&mut accept[at.expect("states features") + 3]);
}

type Change = fn(&mut Vec<u8>);

#[test]
fn data_that_a_relay_changes_adds_or_hides_is_not_delivered() {
    let replace: Change = |proposal| {
        let at = proposal.windows(64).position(|part| part == REQUEST);
        let at = at.expect("has early data");
        proposal[at..at + 64].fill(b'X');
    };
    let add: Change = |proposal| {
        let (message, extensions) = Message::parse_extended(proposal).expect("a message");
        let Message::Proposal(message) = message else {
            panic!("{message:?}")
        };
        let extensions = Extensions {
            nonce: Some(Nonce::from_bytes([7; 16])),
            early_data: Some(REQUEST.as_slice().into()),
            ..extensions
        };
        let mut changed = vec![0; message.extended_len(&extensions)];
        let emitted = message.emit_extended(&extensions, &mut changed);
        emitted.expect("it fits");
        *proposal = changed;
    };
    let state: Change = |accept| change_features(accept, |low| *low |= 0x08);
    let hide: Change = |accept| change_features(accept, |low| *low &= !0x08);
    let nothing: Change = |_| {};
    let cases: [(&str, &[u8], usize, Change, Change); 4] = [
        ("replaced", &REQUEST, 4096, replace, nothing),
        ("added", &[], 4096, add, hide),
        ("stated", &REQUEST, 0, nothing, state),
        ("hidden", &REQUEST, 4096, nothing, hide),
    ];
    for (what, data, max, in_proposal, in_accept) in cases {
        let world = RdmaWorld::new(10);
        let RdmaHosts { client, server, .. } = world.hosts();
        world.block_on(async {
            let listener = listen(&server, max).await;
            let (mut first, mut first_there) = connect_smc(&client, &listener).await;
            make_precedent(&world, &client, &listener).await;
            let relaying = async {
                let near = accept_hostile(&world).await;
                let far = connect_from(&world, Ipv4Addr::new(10, 0, 0, 2)).await;
                let mut proposal = receive_bytes(&*near).await;
                in_proposal(&mut proposal);
                send(&*far, &proposal).await;
                let mut answer = receive_bytes(&*far).await;
                let is_accept = answer[4] == 2;
                if is_accept {
                    in_accept(&mut answer);
                }
                send(&*near, &answer).await;
                (near, far)
            };
            let options = ConnectOptions::new().early_data(data);
            let connecting = client.connect_with(HOSTILE, &options);
            let (_sockets, ours) = zip(relaying, connecting).await;
            match (what, &ours) {
                // The server declines what the client has not sent.
                ("replaced" | "added", Ok(ours)) => {
                    assert!(!is_smcr(ours), "{what}: {}", ours.mode());
                    let (theirs, _) = listener.accept().await.expect("accepts");
                    assert!(!theirs.is_early(), "{what}");
                }
                // The client refuses what the server has not stated.
                ("stated" | "hidden", Err(_)) => {}
                other => panic!("{other:?}"),
            }
            transfer_both_ways(&mut first, &mut first_there, 1000).await;
        });
    }
}

/// A relay takes the early parts out of the PROPOSAL that it passes on, and sends the original on
/// another connection before the client can know.
#[test]
fn data_that_a_relay_sends_beside_the_connection_is_not_delivered_by_both() {
    let world = RdmaWorld::new(11);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = listen(&server, 4096).await;
        let (mut first, mut first_there) = connect_smc(&client, &listener).await;
        make_precedent(&world, &client, &listener).await;
        let relaying = async {
            let near = accept_hostile(&world).await;
            let far = connect_from(&world, Ipv4Addr::new(10, 0, 0, 2)).await;
            let beside = connect_from(&world, Ipv4Addr::new(10, 0, 0, 2)).await;
            let original = receive_bytes(&*near).await;
            let stripped = {
                let (message, _) = Message::parse_extended(&original).expect("a message");
                let Message::Proposal(message) = message else {
                    panic!("{message:?}")
                };
                let mut bytes = vec![0; message.encoded_len()];
                message.emit(&mut bytes).expect("it fits");
                bytes
            };
            send(&*far, &stripped).await;
            let accept = receive_bytes(&*far).await;
            send(&*beside, &original).await;
            receive_bytes(&*beside).await;
            send(&*near, &accept).await;
            // What the client sends in place of a CONFIRM is for the server.
            send(&*far, &receive_bytes(&*near).await).await;
            (near, far, beside)
        };
        let options = ConnectOptions::new()
            .early_data(REQUEST)
            .policy(Policy::Require);
        let connecting = client.connect_with(HOSTILE, &options);
        let (_sockets, ours) = zip(relaying, connecting).await;
        ours.expect_err("the ACCEPT is for another PROPOSAL");
        transfer_both_ways(&mut first, &mut first_there, 1000).await;
    });
}

#[test]
fn early_data_is_delivered_once_where_the_server_has_memory_for_one_connection() {
    let world = world(1);
    let (a, b) = (world.device("a0", 1), world.device("b0", 2));
    let client = world.endpoint(&[&a]);
    let server = world.endpoint_with(&[&b], |builder| builder.memory_limit(48 << 10));
    world.block_on(async {
        let listener = listen(&server, 4096).await;
        let mut declined = 0;
        for _ in 0..4 {
            let beside = connect_smc(&client, &listener).await;
            pause(&world).await;
            let sent = world.runtime().copy_next(SERVER);
            let [mut ours, mut theirs] = request(&client, &listener).await;
            assert!(!is_smcr(&ours) && !ours.early_data_accepted());
            transfer_both_ways(&mut ours, &mut theirs, 1000).await;
            let sent = sent.lock().expect("is not poisoned").clone();
            let times = sent.windows(REQUEST.len()).filter(|part| *part == REQUEST);
            // In the PROPOSAL, and behind the DECLINE.
            declined += usize::from(times.count() == 2);
            drop((beside, ours, theirs));
            pause(&world).await;
        }
        assert!(declined > 0);
    });
}

/// SMC-D goes first. The PROPOSAL depends on the connection, as the RDMA devices do.
#[test]
fn early_data_goes_over_smc_d_where_the_hosts_have_both() {
    let world = world(12);
    let fabric = MemFabric::new(12);
    let [client, server] = [("a", 1), ("b", 2)].map(|(name, last)| {
        let device = world.device(name, last);
        world.endpoint_with(&[&device], |builder| builder.device(fabric.device(name)))
    });
    world.block_on(async {
        let listener = listen(&server, 4096).await;
        drop(request(&client, &listener).await);
        for _ in 0..3 {
            pause(&world).await;
            let (streams, took) = world.timed(request(&client, &listener)).await;
            // SMC-D takes no time here, and so the answer comes with the ACCEPT.
            assert!(took < LATENCY * 4, "{took:?}");
            let [ours, theirs] = &streams;
            assert!(matches!(ours.mode(), Mode::SmcD { .. }), "{}", ours.mode());
            assert!(ours.early_data_accepted() && theirs.is_early());
        }
    });
}
