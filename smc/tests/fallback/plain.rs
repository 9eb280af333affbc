//! Clients that have nothing to offer, and what a stream is like that fell back.

use std::io::ErrorKind;

use futures_lite::{AsyncBufReadExt, future};
use smc_core::wire::types::{DeclineCode, Version};

use smc_testkit::streams::expect_rest;
use smc_testkit::world::messages::*;
use smc_testkit::world::{Codes, World, exchange, kind, reason};

const NODEV: DeclineCode = DeclineCode::NOSMCDEV;

#[test]
fn a_client_without_devices_declines_instead_of_proposing() {
    for world in World::all() {
        let endpoint = world.endpoint(|builder| builder);
        let (acceptor, at) = world.raw_listener();
        world.block_on(async {
            let server = async {
                let raw = acceptor.accept().await;
                let decline = raw.message().await;
                assert_eq!(
                    declined(&decline),
                    (NODEV, Version::V1),
                    "nothing here knows version 2"
                );
                raw
            };
            let (stream, raw) = future::zip(endpoint.connect(at), server).await;
            let stream = stream.unwrap();
            assert_eq!(reason(&stream), Some(Codes::local(NODEV)));
            exchange(stream, Some(raw), b"").await;
        });
    }
}

#[test]
fn a_client_whose_devices_are_elsewhere_declines() {
    let world = World::new();
    let device = world.device("client").on_network("ELSEWHERE");
    let client = world.host_on(device, |builder| builder);
    let (acceptor, at) = world.raw_listener();
    world.block_on(async {
        let server = async {
            let raw = acceptor.accept().await;
            assert_eq!(declined(&raw.message().await), (NODEV, Version::V2));
            raw
        };
        let (stream, raw) = future::zip(client.endpoint.connect(at), server).await;
        let stream = stream.unwrap();
        assert_eq!(reason(&stream), Some(Codes::local(NODEV)));
        exchange(stream, Some(raw), b"").await;
        world.nothing_left([&client]).await;
    });
}

#[test]
fn no_listener() {
    for world in World::both() {
        let client = world.host("client");
        let (at, _held) = world.own_address();
        let error = world.block_on(client.endpoint.connect(at)).unwrap_err();
        assert_eq!(kind(error), ErrorKind::ConnectionRefused);
        world.block_on(world.nothing_left([&client]));
    }
}

#[test]
fn what_fell_back_is_a_tcp_stream_in_every_respect() {
    let world = World::new();
    let client = world.host("client");
    let (acceptor, at) = world.raw_listener();
    world.block_on(async {
        let server = async {
            let raw = acceptor.accept().await;
            raw.message().await;
            raw.send(&[&decline_v2(NODEV)[..], b"line one\nline two\n"].concat())
                .await;
            raw
        };
        let (stream, raw) = future::zip(client.endpoint.connect(at), server).await;
        let mut stream = stream.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), at);
        assert_eq!(stream.local_addr().unwrap(), raw.peer_addr());
        assert_eq!(stream.recv_buffer_size(), None);
        stream.readable().await.unwrap();
        let mut peeked = [0; 4];
        assert_eq!(stream.peek(&mut peeked).await.unwrap(), 4);
        assert_eq!(&peeked, b"line");
        let mut line = String::new();
        stream.read_line(&mut line).await.unwrap();
        assert_eq!(line, "line one\n");

        let (mut read, write) = stream.into_split();
        drop(raw);
        expect_rest(&mut read, b"line two\n").await;
        drop((read, write));
    });
}
