//! Policies: SMC at all costs, or not at all.

use std::io::ErrorKind;
use std::sync::Arc;

use futures_lite::{AsyncReadExt, future};
use smc::ConnectOptions;
use smc::Policy;
use smc_core::device::DeviceError;
use smc_core::error::{FallbackCause, OsError};
use smc_core::negotiate::{Delivery, Withdrawn};
use smc_core::wire::types::DeclineCode;

use smc_testkit::world::messages::*;
use smc_testkit::world::{
    Call, Codes, Scripted, World, accept_now, anywhere, codes, connect_pair, connect_pair_smc,
    exchange, exchange_to_end, join, kind, reason,
};

#[test]
fn a_client_that_requires_smc_gets_it() {
    let world = World::new();
    let require = |name| world.host_with(name, |builder| builder.policy(Policy::Require));
    let (client, server) = (require("client"), require("server"));
    world.block_on(async {
        let (ours, theirs) = connect_pair_smc(&client, &server).await;
        exchange_to_end((ours, theirs)).await;
    });
}

#[test]
fn a_client_that_requires_smc_gets_an_error_instead_of_tcp() {
    let code = DeclineCode::NOSMCD2DEV;
    for world in World::all() {
        let client = world.host("client");
        let (acceptor, at) = world.raw_listener();
        world.block_on(async {
            let server = async {
                let raw = acceptor.accept().await;
                raw.message().await;
                raw.send(&decline_v2(code)).await;
                raw.rest().await
            };
            let options = ConnectOptions::new().policy(Policy::Require);
            let connect = client.endpoint.connect_with(at, &options);
            let (connected, (rest, _)) = future::zip(connect, server).await;
            let error = connected.unwrap_err();
            assert_eq!(codes(&error), Codes::peer_declined(code));
            assert_eq!(kind(error), ErrorKind::ConnectionRefused);
            assert_eq!(rest, b"");
            world.nothing_left([&client]).await;
        });
    }
}

#[test]
fn a_client_that_requires_smc_does_not_talk_to_plain_servers() {
    let world = World::new();
    let scripted = Scripted::client(Delivery::Plain, Withdrawn::Free);
    let required = Codes::local(DeclineCode::PEERNOSMC);
    let client = world.host_with("client", |builder| {
        builder
            .negotiation(Arc::new(scripted))
            .policy(Policy::Require)
    });
    let bare = world.endpoint(|builder| builder.policy(Policy::Require));
    let (acceptor, at) = world.raw_listener();
    world.block_on(async {
        let (connected, raw) = future::zip(client.endpoint.connect(at), acceptor.accept()).await;
        assert_eq!(codes(&connected.unwrap_err()), required);
        raw.expect_end().await;

        let (connected, raw) = future::zip(bare.connect(at), acceptor.accept()).await;
        let code = DeclineCode::NOSMCDEV;
        let without_devices = Codes::local(code);
        assert_eq!(codes(&connected.unwrap_err()), without_devices);
        assert_eq!(declined(&raw.message().await).0, code);
        raw.expect_end().await;
        world.nothing_left([&client]).await;
    });
}

#[test]
fn a_listener_that_requires_smc_shows_nothing_else() {
    for world in World::all() {
        let server = world.host_with("server", |builder| builder.policy(Policy::Require));
        let client = world.host("client");
        let elsewhere = world.host_on(world.device("elsewhere").on_fabric(0xff77), |b| b);
        world.block_on(async {
            let (listener, at) = server.listen().await;
            // One that declines, and one that is declined.
            let raw = world
                .raw_that_sent(at, decline_v2(DeclineCode::NOSMCDEV))
                .await;
            assert_eq!(raw.rest().await.0, b"", "closed");
            let mut stream = elsewhere.endpoint.connect(at).await.unwrap();
            assert!(!stream.mode().is_smc());
            let mut read = Vec::new();
            let end = stream.read_to_end(&mut read).await;
            assert!(end.is_err() || read.is_empty());

            let (ours, theirs) = join(&client, &listener).await;
            assert_eq!(reason(&theirs), None);
            exchange_to_end((ours, theirs)).await;
            let refused = listener.refused();
            assert_eq!(refused.count, 2);
            let (_, why) = refused.last.unwrap();
            assert_eq!(why.local, DeclineCode::NOSMCD2DEV);
            assert!(accept_now(&listener).is_none());
            world.only_idle_groups_left([&server]).await;
        });
    }
}

#[test]
fn a_listener_that_requires_smc_closes_plain_connections() {
    let world = World::new();
    let negotiation = Arc::new(Scripted::server());
    let server = world.host_with("server", |builder| {
        builder.policy(Policy::Require).negotiation(negotiation)
    });
    world.block_on(async {
        let (listener, at) = server.listen().await;
        assert_eq!(listener.refused().count, 0);
        let raw = world.raw(at).await;
        assert_eq!(raw.rest().await.0, b"", "closed");
        assert!(accept_now(&listener).is_none());
        let refused = listener.refused();
        assert_eq!(refused.count, 1);
        let (_, why) = refused.last.unwrap();
        assert_eq!(why.cause, FallbackCause::NotOffered);
        world.nothing_left([&server]).await;
    });
}

#[test]
fn a_listener_without_smc_declines_before_any_wait() {
    let world = World::new();
    let scripted = Scripted::server();
    let negotiation = Arc::new(scripted.clone());
    let server = world.host_with("server", |builder| {
        builder.policy(Policy::Never).negotiation(negotiation)
    });
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = world.raw(at).await;
        let (stream, _) = listener.accept().await.unwrap();
        assert_eq!(scripted.dismissed(), 1);
        let by_policy = Codes::local(DeclineCode::OPTUNSUPP);
        assert_eq!(reason(&stream), Some(by_policy));
        exchange(stream, Some(raw), b"").await;
    });
}

#[test]
fn a_client_without_smc_sends_no_offer() {
    let world = World::new();
    let scripted = Scripted::delivered(Withdrawn::Taken);
    let negotiation = Arc::new(scripted.clone());
    let client = world.host_with("client", |builder| {
        builder.policy(Policy::Never).negotiation(negotiation)
    });
    let (acceptor, at) = world.raw_listener();
    world.block_on(async {
        let (stream, raw) = future::zip(client.endpoint.connect(at), acceptor.accept()).await;
        let stream = stream.unwrap();
        let by_policy = Codes::local(DeclineCode::OPTUNSUPP);
        assert_eq!(reason(&stream), Some(by_policy));
        assert_eq!(scripted.offered(), None);
        exchange(stream, Some(raw), b"").await;
        world.nothing_left([&client]).await;
    });
}

#[test]
fn a_policy_can_depend_on_who_it_is() {
    let world = World::new();
    let server = world.host("server");
    let (at, other) = world.block_on(async {
        let endpoint = &server.endpoint;
        let first = endpoint.bind(anywhere()).await.unwrap();
        let second = endpoint.bind(anywhere()).await.unwrap();
        (first, second)
    });
    let wanted = at.local_addr().unwrap();
    let client = world.host_with("client", |builder| {
        builder.policy_for(move |to| {
            if *to == wanted {
                Policy::Require
            } else {
                Policy::Prefer
            }
        })
    });
    server.device.fail(Call::Register, DeviceError::Exhausted);
    world.block_on(async {
        let (ours, theirs) = future::zip(client.endpoint.connect(wanted), at.accept()).await;
        let peer_code = Codes::peer_declined(DeclineCode::MAX_DMB);
        assert_eq!(codes(&ours.unwrap_err()), peer_code);
        drop(theirs);
        let to = other.local_addr().unwrap();
        let (ours, theirs) = future::zip(client.endpoint.connect(to), other.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(reason(&ours), Some(peer_code));
        exchange_to_end((ours, theirs)).await;
        world.nothing_left([&client, &server]).await;
    });
}

/// A peer of another host has not met this end's device.
#[test]
fn a_decline_over_tcp_is_not_explained_by_what_this_end_lacks() {
    let world = World::new();
    let lack = OsError::new("accept a peer device", &ErrorKind::OutOfMemory.into());
    let client = world.host_on(world.device("client").short_of(lack), |builder| builder);
    let server = world.host_with("server", |builder| builder.policy(Policy::Never));
    world.block_on(async {
        let (ours, _theirs) = connect_pair(&client, &server).await;
        let cause = ours.fallback_reason().unwrap().cause;
        assert!(matches!(cause, FallbackCause::PeerDeclined(_)), "{cause:?}");
    });
}
