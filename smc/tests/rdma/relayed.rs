//! Processes with TCP alone between two honest hosts, which hold back or change their messages.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::{Endpoint, Listener, Stream};
use smc_core::runtime::Socket;
use smc_core::wire::clc::{AcceptConfirm, Body, FirstContact, Message, RdmaEnd, Terms};
use smc_core::wire::size::SizeCode;
use smc_core::wire::types::{AlertToken, Features, OsType, PeerId, Rkey};
use smc_testkit::streams::{connect, transfer_both_ways};
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, is_smcr};

use crate::forged::{
    HOSTILE, accept_hostile, connect_from, peer_id, peer_of, propose_with, receive_bytes, send,
    stream_between,
};

const AGREED: Features = Features::SINGLE_LINK.union(Features::AUTHENTICATION);

type Change = fn(&mut AcceptConfirm);

/// Relays PROPOSAL, ACCEPT and CONFIRM of a client that connects to the hostile server, from the
/// address of the client's host: a server tells clients apart by that.
async fn relay(world: &RdmaWorld, in_accept: Change, in_confirm: Change) -> [Arc<dyn Socket>; 2] {
    let near = accept_hostile(world).await;
    let far = connect_from(world, Ipv4Addr::new(10, 0, 0, 2)).await;
    send(&*far, &receive_bytes(&*near).await).await;
    send(&*near, &changed(&receive_bytes(&*far).await, in_accept)).await;
    send(&*far, &changed(&receive_bytes(&*near).await, in_confirm)).await;
    [near, far]
}

fn changed(bytes: &[u8], change: Change) -> Vec<u8> {
    let (message, extensions) = Message::parse_extended(bytes).expect("a message");
    let (Message::Accept(mut message) | Message::Confirm(mut message)) = message else {
        panic!("{message:?}");
    };
    change(&mut message);
    let mut bytes = vec![0; message.extended_len(&extensions)];
    message
        .emit_extended(&extensions, &mut bytes)
        .expect("it fits");
    bytes
}

fn end(message: &mut AcceptConfirm) -> &mut RdmaEnd {
    match &mut message.body {
        Body::R(end) => end,
        Body::D(_) => panic!("it is SMC-R"),
    }
}

fn first_contact(message: &mut AcceptConfirm) -> &mut FirstContact {
    match &mut message.terms {
        Terms::V2 {
            first_contact: Some(parts),
            ..
        } => parts,
        terms => panic!("{terms:?}"),
    }
}

/// The server's stream is written no further than its peer's buffer is long: nothing on the link
/// states that.
#[test]
fn a_relay_that_changes_the_size_of_a_buffer_ends_no_other_stream() {
    let world = RdmaWorld::new(51);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let (listener, mut ours, mut theirs) = stream_between(&client, &server).await;
        let relaying = relay(&world, |_| {}, |confirm| end(confirm).size = SizeCode::MAX);
        let (_sockets, relayed) = zip(relaying, client.connect(HOSTILE)).await;
        let _relayed = relayed.expect("connects");
        let (mut stream, _) = listener.accept().await.expect("accepts");
        assert!(is_smcr(&stream), "{}", stream.mode());
        assert!(stream.write_all(&[1; 100_000]).await.is_err());
        world.sleep(Duration::from_millis(100)).await;
        transfer_both_ways(&mut ours, &mut theirs, 1000).await;
    });
}

#[test]
fn a_first_contact_that_a_relay_has_changed_has_no_group_for_other_streams() {
    let nothing: Change = |_| {};
    let changes: [(&str, Change, Change); 6] = [
        ("key", nothing, |confirm| end(confirm).rkey = Rkey(0x5555)),
        ("size", nothing, |confirm| end(confirm).size = SizeCode::MAX),
        ("key", |accept| end(accept).rkey = Rkey(0x5555), nothing),
        (
            "peer",
            |accept| end(accept).peer_id = peer_id(9, 9),
            nothing,
        ),
        (
            "alert token",
            |accept| end(accept).token = AlertToken::new(9).expect("is not zero"),
            nothing,
        ),
        (
            "system",
            |accept| first_contact(accept).os = OsType::AIX,
            |confirm| first_contact(confirm).os = OsType::AIX,
        ),
    ];
    for (what, in_accept, in_confirm) in changes {
        let world = RdmaWorld::new(52);
        let RdmaHosts { client, server, .. } = world.hosts();
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let relaying = relay(&world, in_accept, in_confirm);
            let (_sockets, relayed) = zip(relaying, client.connect(HOSTILE)).await;
            let (stream, _) = listener.accept().await.expect("accepts");
            assert!(!is_smcr(&stream), "{what}: {}", stream.mode());
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert!(is_smcr(&ours), "{what}: {}", ours.mode());
            if let Ok(mut relayed) = relayed {
                let _refused = relayed.write_all(&[1; 100]).await;
            }
            world.sleep(Duration::from_millis(100)).await;
            transfer_both_ways(&mut ours, &mut theirs, 1000).await;
        });
    }
}

/// As the streams of others have to be.
const DOTS: [u8; 40] = [b'.'; 40];

/// Two honest hosts with a stream, and what a process of the client's host knows of them.
async fn known_group(client: &Endpoint, server: &Endpoint) -> (Listener, Stream, Stream, PeerId) {
    let (listener, ours, theirs) = stream_between(client, server).await;
    let groups: Vec<_> = server.link_groups().iter().map(|group| group.key).collect();
    let (peer, ..) = peer_of(&groups);
    (listener, ours, theirs, peer)
}

async fn expect_dots(stream: &mut Stream) {
    let mut read = [0; DOTS.len()];
    stream.read_exact(&mut read).await.expect("reads");
    assert_eq!(read, DOTS);
}

#[test]
fn an_accept_that_is_held_back_names_no_buffer_of_another_stream() {
    for features in [AGREED, Features::AUTHENTICATION] {
        let world = RdmaWorld::new(53);
        let RdmaHosts { client, server, .. } =
            world.hosts_with(|builder| builder.vendor_features(features));
        world.block_on(async {
            let (listener, mut first, mut first_there, peer) = known_group(&client, &server).await;
            let socket = propose_with(&world, 2, peer, features).await;
            let accept = receive_bytes(&*socket).await;
            drop(socket);
            world.sleep(Duration::from_secs(20)).await;
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert!(is_smcr(&ours), "{}", ours.mode());
            ours.write_all(&DOTS).await.expect("writes");
            world.sleep(Duration::from_millis(100)).await;
            let serving = async {
                let near = accept_hostile(&world).await;
                receive_bytes(&*near).await;
                send(&*near, &accept).await;
                receive_bytes(&*near).await;
                near
            };
            let (_near, stream) = zip(serving, client.connect(HOSTILE)).await;
            let mut stream = stream.expect("connects");
            assert!(!is_smcr(&stream), "{}", stream.mode());
            stream.write_all(b"bytes of another").await.expect("is TCP");
            world.sleep(Duration::from_millis(100)).await;
            expect_dots(&mut theirs).await;
            transfer_both_ways(&mut first, &mut first_there, 1000).await;
        });
    }
}

#[test]
fn a_confirm_that_is_held_back_names_no_buffer_of_another_stream() {
    for features in [AGREED, Features::AUTHENTICATION] {
        let world = RdmaWorld::new(54);
        let RdmaHosts { client, server, .. } =
            world.hosts_with(|builder| builder.vendor_features(features));
        world.block_on(async {
            let (listener, mut first, mut first_there, peer) = known_group(&client, &server).await;
            let relaying = async {
                let near = accept_hostile(&world).await;
                let far = connect_from(&world, Ipv4Addr::new(10, 0, 0, 2)).await;
                send(&*far, &receive_bytes(&*near).await).await;
                send(&*near, &receive_bytes(&*far).await).await;
                receive_bytes(&*near).await
            };
            let (confirm, relayed) = zip(relaying, client.connect(HOSTILE)).await;
            drop(relayed);
            world.sleep(Duration::from_secs(150)).await;
            let (mut ours, mut theirs) = connect(&client, &listener).await;
            assert!(is_smcr(&ours), "{}", ours.mode());
            theirs.write_all(&DOTS).await.expect("writes");
            world.sleep(Duration::from_millis(100)).await;
            let socket = propose_with(&world, 2, peer, features).await;
            receive_bytes(&*socket).await;
            send(&*socket, &confirm).await;
            let (mut stream, _) = listener.accept().await.expect("accepts");
            assert!(stream.write_all(b"bytes of another").await.is_err());
            world.sleep(Duration::from_millis(100)).await;
            expect_dots(&mut ours).await;
            transfer_both_ways(&mut first, &mut first_there, 1000).await;
        });
    }
}
