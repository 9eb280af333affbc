//! Events and spans of the feature `tracing`, as a subscriber of the application gets them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

#[path = "../rdma/interceptor.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod interceptor;
mod log;

use std::io::{ErrorKind, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use smc::{Builder, Domain, Policy, Stream};
use smc_core::device::{Direct as _, Signal};
use smc_core::wire::cdc::ProducerWord;
use smc_core::wire::cursor::Cursor;
use smc_core::wire::types::{DmbToken, Features};
use smc_testkit::streams::{expect_error, transfer};
use smc_testkit::world::{
    RdmaWorld, World, anywhere, connect_pair_smc, eid, exchange_to_end, join, rdma_pair,
};
use tracing::Level;

use interceptor::Interceptor;
use log::{Event, Log};

#[test]
fn a_connect_over_the_loop_device_has_its_spans_and_the_steps_of_its_handshake() {
    let log = Log::default();
    let (to, from) = log.record(|| {
        let world = World::real();
        let dir = tempfile::tempdir().unwrap();
        let endpoint = || {
            let builder = Builder::new().runtime(Arc::clone(world.rt()));
            let domain = Domain::directory(dir.path());
            smc::add_defaults(builder, domain).unwrap().build().unwrap()
        };
        let (client, server) = (endpoint(), endpoint());
        world.block_on(async {
            let listener = server.bind(anywhere()).await.unwrap();
            let to = listener.local_addr().unwrap();
            let (ours, theirs) = future::zip(client.connect(to), listener.accept()).await;
            let (ours, (theirs, from)) = (ours.unwrap(), theirs.unwrap());
            assert!(ours.mode().is_smc() && theirs.mode().is_smc());
            exchange_to_end((ours, theirs)).await;
            while !(client.connections().is_empty() && server.connections().is_empty()) {
                world.sleep(Duration::from_millis(1)).await;
            }
            (to, from)
        })
    });

    let connect = log.within("smc.connect");
    let span = connect[0].span("smc.connect");
    assert_eq!(span["peer"], to.to_string());
    assert_eq!(span["policy"], "prefer");
    assert_eq!(
        messages(&connect),
        [
            "message is sent: PROPOSAL",
            "message was received: ACCEPT",
            "message is sent: CONFIRM"
        ]
    );
    let steps = |events: &[Event], text: &str| -> Vec<String> {
        let steps = events.iter().filter(|event| event.text == text);
        steps.map(|event| event.fields["step"].clone()).collect()
    };
    let work = [
        "reachability",
        "link group",
        "buffer",
        "attachment",
        "establishment",
    ];
    assert_eq!(steps(&connect, "work begins"), work);
    assert_eq!(steps(&connect, "work is done"), work);

    let accept = log.within("smc.accept");
    assert_eq!(accept[0].span("smc.accept")["peer"], from.to_string());
    assert_eq!(
        messages(&accept),
        [
            "message was received: PROPOSAL",
            "message is sent: ACCEPT",
            "message was received: CONFIRM"
        ]
    );

    let established = log.all("connection is established");
    assert_eq!(established.len(), 2, "{log}");
    for event in &established {
        assert_eq!(event.level, Level::DEBUG);
        let span = event.span("smc.conn");
        assert!(span["mode"].starts_with("SMC-D v2.1"), "{event}");
        assert_eq!(span["device"], "loop", "{event}");
        assert!(!span["group"].is_empty() && !span["conn"].is_empty());
    }
    let ended = log.all("connection has ended");
    assert_eq!(ended.len(), 2, "{log}");
    let is_closed = |event: &Event| event.fields["cause"] == "closed by both ends";
    assert!(ended.iter().all(is_closed), "{log}");
    assert_eq!(log.all("link group is created").len(), 2, "{log}");
    assert_eq!(log.all("device is added").len(), 2, "{log}");
    assert!(log.at_least(Level::WARN).is_empty(), "{log}");
}

/// The messages of handshakes.
fn messages(events: &[Event]) -> Vec<String> {
    let messages = events
        .iter()
        .filter(|event| event.text.starts_with("message"));
    messages
        .map(|event| format!("{}: {}", event.text, event.fields["kind"]))
        .collect()
}

#[test]
fn a_further_connection_to_a_process_at_a_unix_socket_takes_two_messages() {
    let handshakes = |count: usize, features: Option<Features>| {
        let log = Log::default();
        log.record(|| {
            let world = World::real();
            let dir = tempfile::tempdir().unwrap();
            let endpoint = |features: Option<Features>| {
                let mut builder = Builder::new().runtime(Arc::clone(world.rt()));
                if let Some(features) = features {
                    builder = builder.vendor_features(features);
                }
                let domain = Domain::directory(dir.path());
                smc::add_defaults(builder, domain).unwrap().build().unwrap()
            };
            let (client, server) = (endpoint(None), endpoint(features));
            let path = dir.path().join("app.sock");
            let listener = server.bind_unix(&path).unwrap();
            world.block_on(async {
                for _ in 0..count {
                    let connect = client.connect_unix(&path);
                    let (ours, theirs) = future::zip(connect, listener.accept()).await;
                    let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
                    assert!(ours.mode().is_smc() && theirs.mode().is_smc());
                    exchange_to_end((ours, theirs)).await;
                }
            });
        });
        messages(&log.within("smc.connect"))
    };
    let first = [
        "message is sent: PROPOSAL",
        "message was received: ACCEPT",
        "message is sent: CONFIRM",
    ];
    let further = &first[..2];
    assert_eq!(handshakes(3, None), [&first, further, further].concat());
    // A listener without the feature.
    let none = Some(Features::empty());
    assert_eq!(handshakes(2, none), [first, first].concat());
}

#[test]
fn streams_that_stay_tcp_for_the_same_reason_give_one_warning_at_each_end() {
    let log = Log::default();
    log.record(|| {
        let world = World::new();
        let client = world.host("client");
        let server = world.endpoint(|builder| builder);
        world.block_on(async {
            let listener = server.bind(anywhere()).await.unwrap();
            for _ in 0..3 {
                let (ours, theirs) = join(&client, &listener).await;
                assert!(!ours.mode().is_smc() && !theirs.mode().is_smc());
                exchange_to_end((ours, theirs)).await;
            }
        });
    });
    let tcp = log.all("stream stays TCP");
    assert_eq!(tcp.len(), 6, "{log}");
    let warnings = log.at_least(Level::WARN);
    assert_eq!(warnings.len(), 2, "{log}");
    let reasons = [
        ("smc.connect", "0x05000000/0x03030003 peer declined"),
        ("smc.accept", "0x03030003 endpoint has no device that works"),
    ];
    for (span, reason) in reasons {
        let mut warnings = warnings.iter().filter(|event| event.has_span(span));
        let warning = warnings.next().unwrap_or_else(|| panic!("{log}"));
        assert_eq!(warning.text, "stream stays TCP");
        assert!(warning.fields["reason"].starts_with(reason), "{warning}");
    }
}

#[test]
fn another_destination_or_reason_gives_another_warning() {
    let log = Log::default();
    log.record(|| {
        let world = World::new();
        let client = world.host("client");
        let server = world.endpoint(|builder| builder);
        world.block_on(async {
            for _ in 0..2 {
                let listener = server.bind(anywhere()).await.unwrap();
                exchange_to_end(join(&client, &listener).await).await;
            }
        });
    });
    let warned = log.at_least(Level::WARN);
    let clients = warned.iter().filter(|event| event.has_span("smc.connect"));
    assert_eq!(clients.count(), 2, "{log}");
    // All come from one address.
    let servers = warned.iter().filter(|event| event.has_span("smc.accept"));
    assert_eq!(servers.count(), 1, "{log}");
}

#[test]
fn a_policy_for_tcp_gives_no_warning() {
    let log = Log::default();
    log.record(|| {
        let world = World::new();
        let client = world.host_with("client", |builder| builder.policy(Policy::Never));
        let (_plain_server, at) = world.raw_listener();
        world.block_on(async {
            let stream = client.endpoint.connect(at).await.unwrap();
            assert!(!stream.mode().is_smc());
        });
    });
    let stays = log.all("stream stays TCP");
    assert_eq!(stays.len(), 1, "{log}");
    assert_eq!(stays[0].fields["reason"], "0x03060000 policy is to use TCP");
    assert_eq!(stays[0].span("smc.connect")["policy"], "never");
    assert!(log.at_least(Level::WARN).is_empty(), "{log}");
}

#[test]
fn a_client_that_is_closed_as_smc_is_required_gives_one_warning() {
    let log = Log::default();
    log.record(|| {
        let world = World::new();
        let client = world.endpoint(|builder| builder);
        let server = world.host_with("server", |builder| builder.policy(Policy::Require));
        world.block_on(async {
            let (listener, at) = server.listen().await;
            for _ in 0..2 {
                drop(client.connect(at).await.unwrap());
                world.sleep(Duration::from_secs(1)).await;
            }
            assert_eq!(listener.refused().count, 2);
        });
    });
    let refused = log.all("client is refused: SMC is required");
    assert_eq!(refused.len(), 2, "{log}");
    let levels: Vec<_> = refused.iter().map(|event| event.level).collect();
    assert_eq!(levels, [Level::WARN, Level::DEBUG]);
    assert!(refused[0].has_span("smc.accept"), "{log}");
}

#[test]
fn a_client_that_breaks_the_rules_of_the_handshake_gives_a_warning() {
    let log = Log::default();
    log.record(|| {
        let world = World::new();
        let server = world.host("server");
        let peer = world.forged_peer(&server.device);
        world.block_on(async {
            let (_listener, at) = server.listen().await;
            let confirm = smc_testkit::world::messages::bytes(&peer.confirm());
            for _ in 0..2 {
                let _raw = world.raw_that_sent(at, &confirm).await;
                world.sleep(Duration::from_secs(1)).await;
            }
        });
    });
    assert_eq!(log.all("peer violated the protocol").len(), 2, "{log}");
    let warnings = log.at_least(Level::WARN);
    assert_eq!(warnings.len(), 1, "{log}");
    assert_eq!(warnings[0].text, "peer violated the protocol");
    assert!(
        warnings[0].fields["cause"].contains("unexpected message"),
        "{log}"
    );
    assert!(warnings[0].has_span("smc.accept"), "{log}");
}

#[test]
fn a_peer_whose_connections_break_the_protocol_gives_one_warning_at_each_end() {
    let log = Log::default();
    log.record(|| {
        let world = World::new();
        let (client, server) = (world.host("client"), world.host("server"));
        world.block_on(async {
            let (listener, at) = server.listen().await;
            for _ in 0..3 {
                let connecting = client.endpoint.connect(at);
                let (ours, theirs) = future::zip(connecting, listener.accept()).await;
                let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
                // More than the ring has, in both directions.
                let producer = ProducerWord {
                    cursor: Cursor {
                        wrap: 0,
                        count: u32::MAX,
                    },
                };
                let producer = producer.to_ne().to_ne_bytes();
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let token = to.endpoint.connections()[0].smc.as_ref().unwrap().token;
                    let at = u32::try_from(ProducerWord::OFFSET).unwrap();
                    let data = [IoSlice::new(&producer)];
                    let device = &from.device;
                    device
                        .move_data(to.device.gid(), DmbToken(token), at, &data, Signal::Yes)
                        .unwrap();
                }
                for mut stream in [ours, theirs] {
                    expect_error(&mut stream, ErrorKind::InvalidData).await;
                }
                world.sleep(Duration::from_secs(60)).await;
            }
        });
    });
    assert_eq!(log.all("peer violated the protocol").len(), 6, "{log}");
    let warnings = log.at_least(Level::WARN);
    assert_eq!(warnings.len(), 2, "{log}");
    for warning in warnings {
        assert_eq!(warning.text, "peer violated the protocol");
        assert_eq!(warning.fields["step"], "connection");
        assert!(warning.has_span("smc.conn"), "{log}");
    }
}

#[test]
fn a_port_that_goes_down_gives_its_link_and_the_failover_as_information() {
    let log = Log::default();
    log.record(|| {
        let world = RdmaWorld::new(20);
        let hosts = world.hosts_with_two_links();
        world.block_on(async {
            let (mut ours, mut theirs) = hosts.pair().await;
            transfer(&mut ours, &mut theirs, 1000).await;
            world.sleep(Duration::from_secs(1)).await;
            hosts.devices[0].set_port_active(1, false);
            world.sleep(Duration::from_secs(1)).await;
            transfer(&mut ours, &mut theirs, 1000).await;
        });
    });
    for role in ["client", "server"] {
        let of_role = |text: &str| -> Vec<Event> {
            let mut events = log.all(text);
            events.retain(|event| event.span("smc.group")["role"] == role);
            events
        };
        assert_eq!(of_role("link group is created").len(), 1, "{log}");
        assert!(of_role("link is up").len() >= 2, "{log}");
        let (down, moved) = (of_role("link is down"), of_role("failover"));
        assert_eq!((down.len(), moved.len()), (1, 1), "{log}");
        assert_eq!((down[0].level, moved[0].level), (Level::INFO, Level::INFO));
        let cause = match role {
            "client" => "port went down",
            _ => "peer deleted the link",
        };
        assert!(down[0].fields["cause"].starts_with(cause), "{log}");
        assert_eq!(down[0].fields["link"], moved[0].fields["from"]);
        assert_ne!(moved[0].fields["from"], moved[0].fields["to"]);
    }
    assert!(log.at_least(Level::WARN).is_empty(), "{log}");
}

#[test]
fn hosts_with_one_port_each_give_no_warning_from_first_contact_to_the_end() {
    let log = Log::default();
    log.record(|| {
        let world = RdmaWorld::new(22);
        let hosts = world.hosts();
        world.block_on(async {
            for _ in 0..3 {
                exchange_to_end(hosts.pair().await).await;
                world.sleep(Duration::from_secs(1)).await;
            }
            hosts.client.close().await;
            world.sleep(Duration::from_secs(1)).await;
        });
    });
    assert!(log.at_least(Level::WARN).is_empty(), "{log}");
    assert_eq!(log.all("link group is created").len(), 2, "{log}");
    let ended = log.all("link group has ended");
    let cause = |role: &str| {
        let mut ended = ended.iter();
        let event = ended.find(|event| event.span("smc.group")["role"] == role);
        event.unwrap_or_else(|| panic!("{log}")).fields["cause"].clone()
    };
    assert_eq!(cause("client"), "endpoint shuts down");
    assert!(
        cause("server").starts_with("peer deleted all links"),
        "{log}"
    );
    assert!(ended.iter().all(|event| event.level == Level::INFO));
}

#[test]
fn messages_that_are_dropped_give_one_warning_for_each_type_and_cause() {
    let log = Log::default();
    log.record(|| {
        let world = RdmaWorld::new(21);
        let (ours, device) = (world.device("a0", 1), world.device("b0", 2));
        let interceptor = Interceptor::new(device);
        let client = world.endpoint(&[&ours]);
        let server = world.endpoint_on(vec![interceptor.clone()], |builder| builder.ueid(eid()));
        world.block_on(async {
            let (mut ours, mut theirs) = rdma_pair(&client, &server).await;
            // A CONFIRM LINK that is not awaited, a type that is not known, and an empty message.
            let mut unexpected = vec![0; 44];
            unexpected[..4].copy_from_slice(&[0x21, 44, 0, 0x83]);
            let unknown = vec![0x2f; 44];
            interceptor.set_filter(move |message| {
                let dropped = [unexpected.clone(), unknown.clone(), Vec::new()];
                std::iter::once(message.to_vec()).chain(dropped).collect()
            });
            for _ in 0..3 {
                transfer(&mut ours, &mut theirs, 1000).await;
                world.sleep(Duration::from_millis(10)).await;
            }
        });
    });
    let mut warned = Vec::new();
    for event in log.at_least(Level::WARN) {
        assert_eq!(event.text, "message is dropped", "{log}");
        assert_eq!(event.span("smc.group")["role"], "server", "{log}");
        warned.push(format!(
            "{}: {}",
            event.fields["kind"], event.fields["cause"]
        ));
    }
    warned.sort();
    let expected = [
        "CONFIRM LINK: unexpected",
        "unknown: malformed",
        "unknown: other version or unknown type",
    ];
    assert_eq!(warned, expected, "{log}");
    assert!(log.all("message is dropped").len() > 6, "{log}");
}

#[test]
fn a_removed_device_is_information_and_ends_its_connections_with_the_cause() {
    let log = Log::default();
    log.record(|| {
        let world = World::new();
        let (client, server) = (world.host("client"), world.host("server"));
        world.block_on(async {
            let _streams: (Stream, Stream) = connect_pair_smc(&client, &server).await;
            client.device.remove();
            world.sleep(Duration::from_secs(1)).await;
        });
    });
    let gone = log.all("device is gone");
    assert_eq!(gone.len(), 1, "{log}");
    assert_eq!(
        (gone[0].level, &*gone[0].fields["device"]),
        (Level::INFO, "client")
    );
    let ended = log.all("link group has ended");
    let is_gone = |event: &Event| event.fields["cause"] == "local device is gone";
    assert!(ended.iter().any(is_gone), "{log}");
    let aborted = log.within("smc.conn");
    let is_aborted = |event: &Event| {
        event.text == "ended with an error" && event.fields["cause"].contains("peer is gone")
    };
    assert!(aborted.iter().any(is_aborted), "{log}");
}
