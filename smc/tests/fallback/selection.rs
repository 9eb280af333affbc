//! Which ends can use SMC together: EIDs, networks, fabrics and policies.

use std::sync::Arc;
use std::time::Duration;

use smc::{Builder, Mode};
use smc_core::device::Direct;
use smc_core::wire::types::{DeclineCode, Eid, PnetId};
use smc_testkit::world::{
    Call, Codes, Host, ScriptedDevice, World, connect_pair, exchange_to_end, join, reason,
};

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
            name: "the system EID of a device, and the same one that was set",
            client: |world| {
                let device = world.device("client");
                world.host_on(device, |b| b.system_eid(Eid::from_bytes(*SEID_A)))
            },
            server: |world| of_system(world, SEID_A, |builder| builder),
            outcome: Ok(|| Eid::from_bytes(*SEID_A)),
        },
        Row {
            name: "the system EID of a device before another one that was set",
            client: |world| of_system(world, SEID_A, |builder| builder),
            server: |world| {
                of_system(world, SEID_A, |builder| {
                    builder.system_eid(Eid::from_bytes(*SEID_B))
                })
            },
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
                world.host_on(device, |builder| builder.seid(false).ueid(ueid("OURS")))
            },
            server: |world| {
                let device = world.device("server");
                world.host_on(device, |builder| builder.ueid(ueid("OURS")))
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
                world.host_on(device, |builder| builder.seid(false))
            },
            server: |world| world.host("server"),
            outcome: Err(DeclineCode::NOUEID),
        },
        Row {
            name: "a server without any EID",
            client: |world| world.host("client"),
            server: |world| {
                let device = world.device("server");
                world.host_on(device, |builder| builder.seid(false))
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
                let Mode::SmcD { eid, .. } = mode_of(&world, &client, &server) else {
                    panic!("not SMC");
                };
                assert_eq!(eid, Some(expected()));
            }
            Err(code) => declines(&world, &client, &server, code),
        }
    }
}

fn of_system(world: &World, seid: &[u8; 32], configure: fn(Builder) -> Builder) -> Host {
    world.host_on(world.device("host").of_system(seid), configure)
}

#[test]
fn devices_of_other_networks_are_not_offered() {
    let on = |world: &World, device_net, ours: Option<&str>| {
        let device = world.device("client").on_network(device_net);
        world.host_on(device, |builder| match ours {
            Some(id) => builder.pnet_id(PnetId::new(id).unwrap()),
            None => builder,
        })
    };
    let world = World::new();
    let server = world.host("server");
    let attached = on(&world, "NETA", Some("NETA"));
    assert!(mode_of(&world, &attached, &server).is_smc());

    for ours in [None, Some("NETB")] {
        let elsewhere = on(&world, "NETA", ours);
        world.block_on(async {
            let (listener, _) = server.listen().await;
            let (ours, theirs) = join(&elsewhere, &listener).await;
            let code = DeclineCode::NOSMCDEV;
            assert_eq!(reason(&ours), Some(Codes::local(code)));
            assert_eq!(reason(&theirs), Some(Codes::peer_declined(code)));
            exchange_to_end((ours, theirs)).await;
            world.nothing_left([&elsewhere]).await;
        });
    }
}

#[test]
fn a_fabric_in_common_is_found_among_several() {
    let world = World::new();
    let (client_b, client_c) = (extra(&world, 0xff0b), extra(&world, 0xff0c));
    let client = world.host_on(world.device("first").on_fabric(0xff0a), |builder| {
        builder.device(client_b).device(client_c)
    });
    let server_d = extra(&world, 0xff0d);
    let server = world.host_on(world.device("first").on_fabric(0xff0c), |builder| {
        builder.device(server_d)
    });
    let Mode::SmcD { chid, device, .. } = mode_of(&world, &client, &server) else {
        panic!("not SMC");
    };
    assert_eq!((chid.0, &*device), (0xff0c, "extra"));
}

#[test]
fn without_a_fabric_in_common_no_device_is_asked() {
    let world = World::new();
    let client = world.host_on(world.device("client").on_fabric(0xff0a), |b| b);
    let server = world.host_on(world.device("server").on_fabric(0xff0b), |b| b);
    let since = world.now();
    declines(&world, &client, &server, DeclineCode::NOSMCD2DEV);
    assert!(world.is_within(since, Duration::from_millis(100)));
    for device in [&client.device, &server.device] {
        let asked = [Call::Reach, Call::Register, Call::Attach].map(|call| device.calls(call));
        assert_eq!(asked, [0; 3]);
    }
}

fn extra(world: &World, chid: u16) -> Arc<ScriptedDevice> {
    Arc::new(world.device("extra").on_fabric(chid))
}

#[test]
fn an_endpoint_can_talk_to_itself() {
    let world = World::new();
    let host = world.host("both");
    world.block_on(async {
        let (listener, _) = host.listen().await;
        for _ in 0..3 {
            let (ours, theirs) = join(&host, &listener).await;
            for stream in [&ours, &theirs] {
                assert_eq!(reason(stream), None);
            }
            let Mode::SmcD { peer, .. } = ours.mode() else {
                unreachable!()
            };
            assert_eq!(*peer, host.device.gid());
            exchange_to_end((ours, theirs)).await;
            world.only_idle_groups_left([&host]).await;
        }
    });
}

/// Connects, exchanges data, and returns the client's mode; the server's is of the same kind.
fn mode_of(world: &World, client: &Host, server: &Host) -> Mode {
    world.block_on(async {
        let (ours, theirs) = connect_pair(client, server).await;
        assert_eq!(ours.mode().is_smc(), theirs.mode().is_smc());
        let mode = ours.mode().clone();
        exchange_to_end((ours, theirs)).await;
        world.only_idle_groups_left([client]).await;
        world.only_idle_groups_left([server]).await;
        mode
    })
}

/// Connects; the server declines for this reason, and both use TCP.
fn declines(world: &World, client: &Host, server: &Host, code: DeclineCode) {
    world.block_on(async {
        let (ours, theirs) = connect_pair(client, server).await;
        assert_eq!(reason(&ours), Some(Codes::peer_declined(code)));
        assert_eq!(reason(&theirs), Some(Codes::local(code)));
        exchange_to_end((ours, theirs)).await;
        world.nothing_left([client]).await;
        world.nothing_left([server]).await;
    });
}
