//! Early data over SMC-D, on TCP and on UNIX sockets (docs/spec/extensions.md#early-data).

#![cfg(all(feature = "tokio", feature = "smol"))]
#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod devices;
mod fast_open;

use std::net::SocketAddr;
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::{
    Builder, ConnectOptions, Endpoint, Error, ListenOptions, Listener, Mode, Policy, Stream,
};
use smc_core::device::{DeviceError, Direct as _};
use smc_core::wire::clc::{Body, Extensions, Message};
use smc_core::wire::types::{Features, Nonce};
use smc_testkit::streams::{expect, patterned, transfer_both_ways};
use smc_testkit::world::{Call, Host, Raw, RawListener, World};

const REQUEST: [u8; 64] = [b'?'; 64];
const ANSWER: [u8; 64] = [b'!'; 64];

fn with_data(data: &[u8]) -> ConnectOptions {
    ConnectOptions::new().early_data(data)
}

async fn listen(server: &Endpoint, early_data: usize) -> (Listener, SocketAddr) {
    let options = ListenOptions::new().max_early_data(early_data);
    let at = SocketAddr::from(([127, 0, 0, 1], 0));
    let listener = server.bind_with(at, &options).await.unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

/// Sends the request as early data, and awaits the answer to it: both ends.
async fn request(client: &Endpoint, to: SocketAddr, listener: &Listener) -> [Stream; 2] {
    let connecting = async {
        let options = with_data(&REQUEST);
        let mut ours = client.connect_with(to, &options).await.unwrap();
        expect(&mut ours, ANSWER).await;
        ours
    };
    zip(connecting, serve(listener)).await.into()
}

async fn serve(listener: &Listener) -> Stream {
    let (mut theirs, _) = listener.accept().await.unwrap();
    answer(&mut theirs).await;
    theirs
}

async fn answer(theirs: &mut Stream) {
    expect(theirs, REQUEST).await;
    theirs.write_all(&ANSWER).await.unwrap();
}

/// Which of early CONFIRM and early data a stream has used.
fn features(stream: &Stream) -> Features {
    match stream.mode() {
        Mode::SmcD {
            vendor_features, ..
        } => *vendor_features,
        mode => panic!("not SMC-D but {mode}"),
    }
}

fn is_taken(streams: &[Stream; 2]) -> bool {
    let [ours, theirs] = streams;
    assert_eq!(ours.early_data_accepted(), theirs.is_early());
    ours.early_data_accepted()
}

/// Two hosts with devices that map, and two with devices that move.
fn worlds() -> [World; 3] {
    let moving = World::new().with_fabric(|fabric| fabric.with_nocopy(false));
    let mapping = || World::new().with_fabric(|fabric| fabric.with_nocopy(true));
    [moving, mapping(), World::in_pieces()]
}

#[test]
fn a_request_with_early_data_is_answered_on_a_connection_with_a_precedent() {
    let without = Features::EARLY_CONFIRM | Features::SOCKET_REUSE;
    let with_data = without | Features::EARLY_DATA;
    let cases = [
        (4096, with_data),
        (REQUEST.len(), with_data),
        // The listener does not take as much, or none: the connect writes it.
        (REQUEST.len() - 1, without),
        (0, without),
    ];
    for world in worlds() {
        world.between_hosts(async |client, server| {
            for (max, expected) in cases {
                let (listener, at) = listen(&server.endpoint, max).await;
                let first = request(&client.endpoint, at, &listener).await;
                assert!(!is_taken(&first), "there was no precedent");
                for _ in 0..5 {
                    let streams = request(&client.endpoint, at, &listener).await;
                    assert_eq!(streams.each_ref().map(features), [expected; 2]);
                    assert_eq!(is_taken(&streams), expected == with_data);
                }
            }
        });
    }
}

#[test]
fn streams_with_early_data_carry_what_follows_in_both_directions() {
    for world in worlds() {
        let hosts = ["client", "server"]
            .map(|name| world.host_with(name, |builder| builder.recv_buffer(16 << 10)));
        let [client, server] = hosts;
        world.block_on(async {
            let (listener, at) = listen(&server.endpoint, ConnectOptions::MAX_EARLY_DATA).await;
            drop(request(&client.endpoint, at, &listener).await);
            let most = ConnectOptions::MAX_EARLY_DATA;
            // As much as the ring has leaves no space, so it is not taken.
            for (len, taken) in [(1, true), (64, true), (most - 1, true), (most, false)] {
                let data = patterned(len);
                let options = with_data(&data);
                let connecting = client.endpoint.connect_with(at, &options);
                let accepting = async {
                    let mut theirs = listener.accept().await.unwrap().0;
                    expect(&mut theirs, &data).await;
                    theirs
                };
                let (ours, mut theirs) = zip(connecting, accepting).await;
                let mut ours = ours.unwrap();
                assert_eq!(ours.early_data_accepted(), taken, "{len}");
                // Several times around the ring.
                transfer_both_ways(&mut ours, &mut theirs, 100_000).await;
                drop(ours);
                assert_eq!(theirs.read(&mut [0]).await.unwrap(), 0);
            }
        });
    }
}

#[test]
fn a_reservation_begins_behind_early_data() {
    for world in worlds() {
        world.between_hosts(async |client, server| {
            let (listener, at) = listen(&server.endpoint, 4096).await;
            drop(request(&client.endpoint, at, &listener).await);
            let [mut ours, mut theirs] = request(&client.endpoint, at, &listener).await;
            assert!(ours.early_data_accepted());
            for len in [100, 20_000] {
                let data = patterned(len);
                let write = async {
                    let mut written = 0;
                    while written < len {
                        let mut reservation = ours.reserve(len - written).await.unwrap();
                        let part = reservation.len();
                        let piece = &data[written..written + part];
                        reservation.write_at(0, piece).unwrap();
                        reservation.commit(part).await.unwrap();
                        written += part;
                    }
                };
                zip(write, expect(&mut theirs, &data)).await;
            }
        });
    }
}

/// What the server lacks at one of its steps: name, order to the device, whether the stream is SMC.
type Lack = (&'static str, fn(&Host), bool);

#[test]
fn data_is_delivered_once_where_the_server_declines_or_takes_no_early_confirm() {
    let unreachable = |server: &Host| {
        let error = DeviceError::Unreachable {
            peer: server.device.gid(),
            why: "as told",
        };
        server.device.fail(Call::Reach, error);
    };
    let full = |server: &Host| server.device.fail(Call::Register, DeviceError::Exhausted);
    let unmapped = |server: &Host| {
        let no_memory = DeviceError::NoMemory;
        server.device.fail_times(Call::Attach, no_memory, 1);
    };
    let cases: [Lack; 3] = [
        ("reach", unreachable, false),
        ("register", full, false),
        ("attach", unmapped, true),
    ];
    for (what, order, is_smc) in cases {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(true));
        world.between_hosts(async |client, server| {
            let (listener, at) = listen(&server.endpoint, 4096).await;
            drop(request(&client.endpoint, at, &listener).await);
            order(&server);
            let [mut ours, mut theirs] = request(&client.endpoint, at, &listener).await;
            assert_eq!(ours.mode().is_smc(), is_smc, "{what}: {}", ours.mode());
            assert!(!ours.early_data_accepted() && !theirs.is_early(), "{what}");
            transfer_both_ways(&mut ours, &mut theirs, 10_000).await;
            // Afterwards it is as before.
            server.device.recover();
            drop([ours, theirs]);
            drop(request(&client.endpoint, at, &listener).await);
            assert!(
                is_taken(&request(&client.endpoint, at, &listener).await),
                "{what}"
            );
            world.only_idle_groups_left([&client, &server]).await;
        });
    }
}

#[test]
fn a_client_that_cannot_go_on_after_the_accept_reports_it_and_sends_nothing_again() {
    let world = World::new().with_fabric(|fabric| fabric.with_nocopy(true));
    world.between_hosts(async |client, server| {
        let (listener, at) = listen(&server.endpoint, 4096).await;
        drop(request(&client.endpoint, at, &listener).await);
        client.device.fail(Call::Attach, DeviceError::NoMemory);
        let options = with_data(&REQUEST);
        let connecting = client.endpoint.connect_with(at, &options);
        let (ours, theirs) = zip(connecting, listener.accept()).await;
        assert!(matches!(ours, Err(Error::Declined(_))), "{ours:?}");
        let mut theirs = theirs.unwrap().0;
        assert!(theirs.is_early());
        expect(&mut theirs, REQUEST).await;
        theirs.read(&mut [0]).await.unwrap_err();
        drop(theirs);
        world.only_idle_groups_left([&client, &server]).await;
    });
}

#[test]
fn data_is_delivered_once_where_the_listener_has_changed() {
    let without: fn(Builder) -> Builder = |builder| builder.vendor_features(Features::empty());
    let tcp: fn(Builder) -> Builder = |builder| builder.policy(Policy::Never);
    let other: fn(Builder) -> Builder = |builder| builder;
    for (what, configure) in [("features", without), ("TCP", tcp), ("other", other)] {
        let world = World::new();
        let (client, server) = (world.host("client"), world.host("server"));
        world.block_on(async {
            let (listener, at) = listen(&server.endpoint, 4096).await;
            drop(request(&client.endpoint, at, &listener).await);
            drop(request(&client.endpoint, at, &listener).await);
            drop(listener);
            let server = world.host_with("new", configure);
            let options = ListenOptions::new().max_early_data(4096);
            let listener = server.endpoint.bind_with(at, &options).await.unwrap();
            for round in 0..3 {
                let [mut ours, mut theirs] = request(&client.endpoint, at, &listener).await;
                assert_eq!(ours.mode().is_smc(), what != "TCP", "{what} {round}");
                transfer_both_ways(&mut ours, &mut theirs, 1000).await;
            }
        });
    }
}

/// It knows the lengths of the released protocol, and closes: the client cannot tell whether the
/// data was delivered.
#[test]
fn a_connect_fails_once_where_a_new_server_does_not_know_such_long_proposals() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    world.block_on(async {
        let (listener, at) = listen(&server.endpoint, 4096).await;
        drop(request(&client.endpoint, at, &listener).await);
        drop(listener);
        let without = |builder: Builder| builder.vendor_features(Features::empty());
        let server = world.host_with("new", without);
        let _listener = server.endpoint.bind(at).await.unwrap();
        let options = with_data(&[b'x'; 4000]);
        let failed = client.endpoint.connect_with(at, &options).await;
        assert!(
            matches!(failed, Err(Error::Closed(_) | Error::Io(_))),
            "{failed:?}"
        );
        let ours = client.endpoint.connect_with(at, &options).await.unwrap();
        assert!(!ours.early_data_accepted());
    });
}

/// A process with TCP alone between two hosts, which passes the messages on. Returns the PROPOSAL.
async fn relay(world: &World, listener: &RawListener, to: SocketAddr) -> (Vec<u8>, [Raw; 2]) {
    let near = listener.accept().await;
    let far = world.raw(to).await;
    let proposal = near.message().await;
    far.send(&proposal).await;
    near.send(&far.message().await).await;
    (proposal, [near, far])
}

/// The same for a handshake without a precedent.
async fn relay_with_confirm(world: &World, listener: &RawListener, to: SocketAddr) -> [Raw; 2] {
    let (_, [near, far]) = relay(world, listener, to).await;
    far.send(&near.message().await).await;
    [near, far]
}

#[test]
fn a_proposal_that_is_sent_again_delivers_nothing_at_any_listener() {
    for nocopy in [true, false] {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
        world.between_hosts(async |client, server| {
            let (listener, at) = listen(&server.endpoint, 4096).await;
            let (other_listener, other) = listen(&server.endpoint, 4096).await;
            let (raw, via) = world.raw_listener();
            let relaying = relay_with_confirm(&world, &raw, at);
            let connecting = client.endpoint.connect(via);
            let (_sockets, ours) = zip(relaying, connecting).await;
            drop((ours, listener.accept().await));
            let options = with_data(&REQUEST);
            let connecting = client.endpoint.connect_with(via, &options);
            let accepting = zip(connecting, serve(&listener));
            let (relayed, (ours, theirs)) = zip(relay(&world, &raw, at), accepting).await;
            let (proposal, _sockets) = relayed;
            let ours = ours.unwrap();
            assert!(ours.early_data_accepted() && theirs.is_early());
            // While the stream exists, when the server alone has closed it, and when both have.
            let mut ends = [Some(theirs), Some(ours)];
            for end in 0..=ends.len() {
                for to in [at, other] {
                    let again = world.raw_that_sent(to, &proposal).await;
                    // ACCEPT: a CONFIRM is awaited, which a process without the device cannot send.
                    again.message().await;
                    drop(again);
                }
                if let Some(end) = ends.get_mut(end) {
                    drop(end.take());
                }
                world.sleep(Duration::from_millis(1)).await;
            }
            for listener in [listener, other_listener] {
                let accepting = listener.accept();
                let more = world.within(Duration::from_secs(30), accepting).await;
                assert!(more.is_none(), "{more:?}");
            }
        });
    }
}

/// A process that has seen a handshake on TCP names the client's buffer with data of its own: the
/// server's answer would be in the client's stream.
#[test]
fn data_with_the_buffer_that_a_confirm_has_named_is_not_taken() {
    for nocopy in [true, false] {
        let world = World::new().with_fabric(|fabric| fabric.with_nocopy(nocopy));
        world.between_hosts(async |client, server| {
            let (listener, at) = listen(&server.endpoint, 4096).await;
            let (raw, via) = world.raw_listener();
            let relaying = async {
                let (proposal, [near, far]) = relay(&world, &raw, at).await;
                let confirm = near.message().await;
                far.send(&confirm).await;
                (proposal, confirm, [near, far])
            };
            let connecting = client.endpoint.connect(via);
            let accepting = async { listener.accept().await.unwrap().0 };
            let (relayed, streams) = zip(relaying, zip(connecting, accepting)).await;
            let (proposal, confirm, _sockets) = relayed;
            let (mut ours, mut theirs) = (streams.0.unwrap(), streams.1);
            let Ok(Message::Confirm(seen)) = Message::parse(&confirm) else {
                panic!("{confirm:?}")
            };
            let (Message::Proposal(offer), _) = Message::parse_extended(&proposal).unwrap() else {
                panic!("{proposal:?}")
            };
            let Body::D(end) = seen.body else {
                panic!("{seen:?}")
            };
            let extensions = Extensions {
                direct: Some(end),
                nonce: Some(Nonce::from_bytes([7; 16])),
                early_data: Some(REQUEST.as_slice().into()),
                ..Extensions::default()
            };
            let mut bytes = vec![0; offer.extended_len(&extensions)];
            offer.emit_extended(&extensions, &mut bytes).unwrap();
            let forged = world.raw_that_sent(at, &bytes).await;
            forged.message().await;
            drop(forged);
            let more = world
                .within(Duration::from_secs(30), listener.accept())
                .await;
            assert!(more.is_none(), "{more:?}");
            transfer_both_ways(&mut ours, &mut theirs, 1000).await;
        });
    }
}

#[test]
fn a_stream_of_a_client_that_is_gone_after_its_proposal_ends() {
    for world in worlds() {
        world.between_hosts(async |client, server| {
            let (listener, at) = listen(&server.endpoint, 4096).await;
            let (raw, via) = world.raw_listener();
            let relaying = relay_with_confirm(&world, &raw, at);
            let (_sockets, ours) = zip(relaying, client.endpoint.connect(via)).await;
            drop((ours, listener.accept().await));
            let options = with_data(&REQUEST).timeout(Duration::from_millis(20));
            let connecting = client.endpoint.connect_with(via, &options);
            // The answer does not arrive.
            let relaying = async {
                let near = raw.accept().await;
                let far = world.raw(at).await;
                far.send(&near.message().await).await;
                let mut theirs = listener.accept().await.unwrap().0;
                expect(&mut theirs, REQUEST).await;
                (theirs, near.rest().await, far)
            };
            let (ours, (mut theirs, _, far)) = zip(connecting, relaying).await;
            ours.unwrap_err();
            drop(far);
            let mut byte = [0];
            let reading = theirs.read(&mut byte);
            let ended = world.within(Duration::from_secs(30), reading).await;
            ended.expect("shows that the client is gone").unwrap_err();
        });
    }
}
