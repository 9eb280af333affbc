//! Who meets whom: EIDs, networks, fabrics and policies.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{AsyncReadExt, future};
use smc_core::device::Direct;
use smc_core::io::negotiate::{Delivery, Verdict, Withdrawn};
use smc_core::io::{Builder, ConnectOptions};
use smc_core::wire::types::{DeclineCode, Eid, PnetId};
use smc_core::{Error, FallbackReason, Mode, Policy};

use crate::device::{Call, TestDevice};
use crate::messages::*;
use crate::negotiation::Scripted;
use crate::peer::Raw;
use crate::world::{Host, World, accept_now, anywhere, kind, reason};

const SEID_A: &[u8; 32] = b"SYSTEM-A-ISMSEID0000000000000000";
const SEID_B: &[u8; 32] = b"SYSTEM-B-ISMSEID0000000000000000";

fn ueid(name: &str) -> Eid {
    Eid::ueid(name).unwrap()
}

struct Row {
    name: &'static str,
    client: fn(&World) -> Host,
    server: fn(&World) -> Host,
    /// The EID that both agree on, or why the server declines.
    outcome: Result<fn() -> Eid, DeclineCode>,
}

#[test]
fn endpoints_meet_over_a_common_eid() {
    let rows = [
        Row {
            name: "the default system EID",
            client: |world| world.host("client"),
            server: |world| world.host("server"),
            outcome: Ok(|| smc_core::proto::handshake::DEFAULT_SEID),
        },
        Row {
            name: "the system EID of their devices",
            client: |world| of_system(world, SEID_A, |builder| builder),
            server: |world| of_system(world, SEID_A, |builder| builder.ueid(ueid("OURS"))),
            outcome: Ok(|| Eid::from_bytes(*SEID_A)),
        },
        Row {
            name: "different system EIDs and a common UEID",
            client: |world| of_system(world, SEID_A, |builder| builder.ueid(ueid("OURS"))),
            server: |world| of_system(world, SEID_B, |builder| builder.ueid(ueid("OURS"))),
            outcome: Ok(|| ueid("OURS")),
        },
        Row {
            name: "the first of the client's UEIDs that the server has",
            client: |world| {
                of_system(world, SEID_A, |builder| {
                    builder.ueid(ueid("MINE")).ueid(ueid("B")).ueid(ueid("A"))
                })
            },
            server: |world| {
                of_system(world, SEID_B, |builder| {
                    builder.ueid(ueid("A")).ueid(ueid("B"))
                })
            },
            outcome: Ok(|| ueid("B")),
        },
        Row {
            name: "a UEID and no system EID",
            client: |world| {
                let device = world.device("client");
                world.host_with(device, |builder| builder.seid(false).ueid(ueid("OURS")))
            },
            server: |world| {
                let device = world.device("server");
                world.host_with(device, |builder| builder.ueid(ueid("OURS")))
            },
            outcome: Ok(|| ueid("OURS")),
        },
        Row {
            name: "different system EIDs and no UEID",
            client: |world| of_system(world, SEID_A, |builder| builder),
            server: |world| of_system(world, SEID_B, |builder| builder),
            outcome: Err(DeclineCode::NOSMCDDEV),
        },
        Row {
            name: "different system EIDs and different UEIDs",
            client: |world| of_system(world, SEID_A, |builder| builder.ueid(ueid("MINE"))),
            server: |world| of_system(world, SEID_B, |builder| builder.ueid(ueid("YOURS"))),
            outcome: Err(DeclineCode::NOSMCDDEV),
        },
        Row {
            name: "a client without any EID",
            client: |world| {
                let device = world.device("client");
                world.host_with(device, |builder| builder.seid(false))
            },
            server: |world| world.host("server"),
            outcome: Err(DeclineCode::NOUEID),
        },
        Row {
            name: "a server without any EID",
            client: |world| world.host("client"),
            server: |world| {
                let device = world.device("server");
                world.host_with(device, |builder| builder.seid(false))
            },
            outcome: Err(DeclineCode::NOSMCDDEV),
        },
    ];
    for row in rows {
        println!("{}", row.name);
        let world = World::new();
        let (client, server) = ((row.client)(&world), (row.server)(&world));
        match row.outcome {
            Ok(expected) => {
                let Mode::SmcD { eid, .. } = meet(&world, &client, &server) else {
                    panic!("not SMC");
                };
                assert_eq!(eid, Some(expected()));
            }
            Err(code) => declines(&world, &client, &server, code),
        }
    }
}

fn of_system(world: &World, seid: &[u8; 32], configure: fn(Builder) -> Builder) -> Host {
    world.host_with(world.device("host").of_system(seid), configure)
}

#[test]
fn devices_of_other_networks_are_not_offered() {
    let on = |world: &World, device_net, ours: Option<&str>| {
        let device = world.device("client").on_network(device_net);
        world.host_with(device, |builder| match ours {
            Some(id) => builder.pnet_id(PnetId::new(id).unwrap()),
            None => builder,
        })
    };
    let world = World::new();
    let server = world.host("server");
    let attached = on(&world, "NETA", Some("NETA"));
    assert!(meet(&world, &attached, &server).is_smc());

    for ours in [None, Some("NETB")] {
        let elsewhere = on(&world, "NETA", ours);
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let connect = elsewhere.endpoint.connect(at);
            let (ours, theirs) = future::zip(connect, listener.accept()).await;
            let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
            let code = DeclineCode::NOSMCDEV;
            assert_eq!(reason(&ours), Some(FallbackReason::local(code)));
            assert_eq!(reason(&theirs), Some(FallbackReason::peer_declined(code)));
            world.chat(ours, theirs).await;
            world.nothing_left(&elsewhere).await;
        });
    }
}

#[test]
fn a_fabric_in_common_is_found_among_several() {
    let world = World::new();
    let (client_b, client_c) = (extra(&world, 0xff0b), extra(&world, 0xff0c));
    let client = world.host_with(world.device("first").on_fabric(0xff0a), |builder| {
        builder.device(client_b).device(client_c)
    });
    let server_d = extra(&world, 0xff0d);
    let server = world.host_with(world.device("first").on_fabric(0xff0c), |builder| {
        builder.device(server_d)
    });
    let Mode::SmcD { chid, device, .. } = meet(&world, &client, &server) else {
        panic!("not SMC");
    };
    assert_eq!((chid.0, &*device), (0xff0c, "extra"));
}

#[test]
fn without_a_fabric_in_common_no_device_is_asked() {
    let world = World::new();
    let client = world.host_with(world.device("client").on_fabric(0xff0a), |b| b);
    let server = world.host_with(world.device("server").on_fabric(0xff0b), |b| b);
    let since = world.rt.now();
    declines(&world, &client, &server, DeclineCode::NOSMCD2DEV);
    assert!(world.rt.now() - since < Duration::from_millis(100));
    for device in [&client.device, &server.device] {
        let asked = [Call::Reach, Call::Register, Call::Attach].map(|call| device.calls(call));
        assert_eq!(asked, [0; 3]);
    }
}

fn extra(world: &World, chid: u16) -> Arc<TestDevice> {
    Arc::new(world.device("extra").on_fabric(chid))
}

#[test]
fn an_endpoint_can_talk_to_itself() {
    let world = World::new();
    let host = world.host("both");
    world.block_on(async {
        let (listener, at) = host.listen().await;
        for _ in 0..3 {
            let connect = host.endpoint.connect(at);
            let (ours, theirs) = future::zip(connect, listener.accept()).await;
            let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
            for stream in [&ours, &theirs] {
                assert_eq!(reason(stream), None);
            }
            let Mode::SmcD { peer, .. } = ours.mode() else {
                unreachable!()
            };
            assert_eq!(*peer, host.device.gid());
            world.chat(ours, theirs).await;
            world.only_idle_groups_left(&host).await;
        }
    });
}

/// Connects, talks, and gives the client's mode; the server's is of the same kind.
fn meet(world: &World, client: &Host, server: &Host) -> Mode {
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let connect = client.endpoint.connect(at);
        let (ours, theirs) = future::zip(connect, listener.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(ours.mode().is_smc(), theirs.mode().is_smc());
        let mode = ours.mode().clone();
        world.chat(ours, theirs).await;
        world.only_idle_groups_left(client).await;
        world.only_idle_groups_left(server).await;
        mode
    })
}

/// Connects; the server declines for this reason, and both talk over TCP.
fn declines(world: &World, client: &Host, server: &Host, code: DeclineCode) {
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let connect = client.endpoint.connect(at);
        let (ours, theirs) = future::zip(connect, listener.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(reason(&ours), Some(FallbackReason::peer_declined(code)));
        assert_eq!(reason(&theirs), Some(FallbackReason::local(code)));
        world.chat(ours, theirs).await;
        world.nothing_left(client).await;
        world.nothing_left(server).await;
    });
}

// ---- Policies ----------------------------------------------------------------------------------

#[test]
fn a_client_that_requires_smc_gets_it() {
    let world = World::new();
    let require = |name| {
        world.host_with(world.device(name), |builder| {
            builder.policy(Policy::Require)
        })
    };
    let (client, server) = (require("client"), require("server"));
    assert!(meet(&world, &client, &server).is_smc());
}

#[test]
fn a_client_that_requires_smc_gets_an_error_instead_of_tcp() {
    let code = DeclineCode::NOSMCD2DEV;
    for world in [World::new(), World::in_pieces()]
        .into_iter()
        .chain(World::real())
    {
        let client = world.host("client");
        let acceptor = world.acceptor();
        let at = acceptor.local_addr().unwrap();
        world.block_on(async {
            let server = async {
                let raw = Raw::accept(&*acceptor).await;
                raw.message().await;
                raw.send(&decline_v2(code)).await;
                raw.rest().await
            };
            let options = ConnectOptions::new().policy(Policy::Require);
            let connect = client.endpoint.connect_with(at, &options);
            let (connected, (rest, _)) = future::zip(connect, server).await;
            let error = connected.unwrap_err();
            assert_eq!(error, Error::Declined(FallbackReason::peer_declined(code)));
            assert_eq!(kind(error), ErrorKind::ConnectionRefused);
            assert_eq!(rest, b"");
            world.nothing_left(&client).await;
        });
    }
}

#[test]
fn a_client_that_requires_smc_does_not_talk_to_plain_servers() {
    let world = World::new();
    let scripted = Scripted::client(Delivery::Plain, Withdrawn::Free);
    let required = FallbackReason::local(DeclineCode::PEERNOSMC);
    let client = world.host_with(world.device("client"), |builder| {
        builder
            .negotiation(Arc::new(scripted))
            .policy(Policy::Require)
    });
    let bare = world.endpoint(|builder| builder.policy(Policy::Require));
    let acceptor = world.acceptor();
    let at = acceptor.local_addr().unwrap();
    world.block_on(async {
        let (connected, raw) =
            future::zip(client.endpoint.connect(at), Raw::accept(&*acceptor)).await;
        assert_eq!(connected.unwrap_err(), Error::Declined(required));
        assert_eq!(raw.rest().await.0, b"");

        let (connected, raw) = future::zip(bare.connect(at), Raw::accept(&*acceptor)).await;
        let code = DeclineCode::NOSMCDEV;
        let without_devices = FallbackReason::local(code);
        assert_eq!(connected.unwrap_err(), Error::Declined(without_devices));
        assert_eq!(declined(&raw.message().await).0, code);
        assert_eq!(raw.rest().await.0, b"");
        world.nothing_left(&client).await;
    });
}

#[test]
fn a_listener_that_requires_smc_shows_nothing_else() {
    for world in [World::new(), World::in_pieces()]
        .into_iter()
        .chain(World::real())
    {
        let server = world.host_with(world.device("server"), |builder| {
            builder.policy(Policy::Require)
        });
        let client = world.host("client");
        let elsewhere = world.host_with(world.device("elsewhere").on_fabric(0xff77), |b| b);
        world.block_on(async {
            let (listener, at) = server.listen().await;
            // One that declines, and one that is declined.
            let raw = Raw::connect(&*world.rt, at).await;
            raw.send(&decline_v2(DeclineCode::NOSMCDEV)).await;
            assert_eq!(raw.rest().await.0, b"", "closed");
            let mut stream = elsewhere.endpoint.connect(at).await.unwrap();
            assert!(!stream.mode().is_smc());
            let mut read = Vec::new();
            let end = stream.read_to_end(&mut read).await;
            assert!(end.is_err() || read.is_empty());

            let connect = client.endpoint.connect(at);
            let (ours, theirs) = future::zip(connect, listener.accept()).await;
            let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
            assert_eq!(reason(&theirs), None);
            world.chat(ours, theirs).await;
            assert!(accept_now(&listener).is_none());
            world.only_idle_groups_left(&server).await;
        });
    }
}

#[test]
fn a_listener_that_requires_smc_closes_plain_connections() {
    let world = World::new();
    let negotiation = Arc::new(Scripted::server(Verdict::Plain));
    let server = world.host_with(world.device("server"), |builder| {
        builder.policy(Policy::Require).negotiation(negotiation)
    });
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = Raw::connect(&*world.rt, at).await;
        assert_eq!(raw.rest().await.0, b"", "closed");
        assert!(accept_now(&listener).is_none());
        world.nothing_left(&server).await;
    });
}

#[test]
fn a_listener_that_wants_no_smc_says_so_before_anybody_waits() {
    let world = World::new();
    let scripted = Scripted::server(Verdict::Plain);
    let negotiation = Arc::new(scripted.clone());
    let server = world.host_with(world.device("server"), |builder| {
        builder.policy(Policy::Never).negotiation(negotiation)
    });
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = Raw::connect(&*world.rt, at).await;
        let (stream, _) = listener.accept().await.unwrap();
        assert_eq!(scripted.dismissed(), 1);
        let by_policy = FallbackReason::local(DeclineCode::OPTUNSUPP);
        assert_eq!(reason(&stream), Some(by_policy));
        world.talk(stream, Some(raw), b"").await;
    });
}

#[test]
fn a_client_that_wants_no_smc_tells_nobody() {
    let world = World::new();
    let scripted = Scripted::delivered(Withdrawn::Taken);
    let negotiation = Arc::new(scripted.clone());
    let client = world.host_with(world.device("client"), |builder| {
        builder.policy(Policy::Never).negotiation(negotiation)
    });
    let acceptor = world.acceptor();
    let at = acceptor.local_addr().unwrap();
    world.block_on(async {
        let (stream, raw) = future::zip(client.endpoint.connect(at), Raw::accept(&*acceptor)).await;
        let stream = stream.unwrap();
        let by_policy = FallbackReason::local(DeclineCode::OPTUNSUPP);
        assert_eq!(reason(&stream), Some(by_policy));
        assert_eq!(scripted.offered(), None);
        world.talk(stream, Some(raw), b"").await;
        world.nothing_left(&client).await;
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
    let client = world.host_with(world.device("client"), |builder| {
        builder.policy_for(move |to| {
            if *to == wanted {
                Policy::Require
            } else {
                Policy::Prefer
            }
        })
    });
    server
        .device
        .fail(Call::Register, smc_core::device::DeviceError::Exhausted);
    world.block_on(async {
        let (ours, theirs) = future::zip(client.endpoint.connect(wanted), at.accept()).await;
        let told = FallbackReason::peer_declined(DeclineCode::MAX_DMB);
        assert_eq!(ours.unwrap_err(), Error::Declined(told));
        drop(theirs);
        let to = other.local_addr().unwrap();
        let (ours, theirs) = future::zip(client.endpoint.connect(to), other.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(reason(&ours), Some(told));
        world.chat(ours, theirs).await;
        world.nothing_left(&client).await;
        world.nothing_left(&server).await;
    });
}
