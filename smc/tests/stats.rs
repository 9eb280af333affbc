//! What an endpoint reports of its streams.

#![cfg(feature = "smol")]

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use futures_lite::future::block_on;
use futures_lite::{AsyncReadExt as _, AsyncWriteExt as _};
use smc::info::{CandidateTransport, ConnState, DeviceExclusion, Exclusion, Role};
use smc::{Builder, Domain, Endpoint, FallbackCause, LoopDevice, Mode, Policy, Stream};

fn endpoint(dir: &tempfile::TempDir) -> Endpoint {
    let domain = Domain::directory(dir.path());
    let builder = smc::add_defaults(Builder::smol(), domain).expect("a device");
    builder.build().expect("an endpoint")
}

async fn pair(client: &Endpoint, server: &Endpoint) -> (Stream, Stream) {
    let listener = server.bind("127.0.0.1:0").await.expect("it listens");
    let to = listener.local_addr().expect("it has one");
    let connected = client.connect(to).await.expect("it connects");
    (connected, listener.accept().await.expect("it accepts").0)
}

#[test]
fn both_ends_report_the_same_cursors_tokens_and_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = (endpoint(&dir), endpoint(&dir));
    block_on(async {
        let (mut near, mut far) = pair(&client, &server).await;
        near.write_all(&[7; 100]).await.unwrap();
        near.write_all(&[7; 20_000]).await.unwrap();
        let mut buf = vec![0; 300];
        far.read_exact(&mut buf).await.unwrap();

        let ([here], [there]) = (&*client.connections(), &*server.connections()) else {
            panic!("one connection each");
        };
        assert_eq!((here.role, there.role), (Role::Client, Role::Server));
        assert_eq!(here.local, Some(there.peer.clone()));
        let (Some(here), Some(there)) = (&here.smc, &there.smc) else {
            panic!("they are SMC");
        };
        assert_eq!(here.state, ConnState::Active);
        assert_eq!(here.peer_token, Some(there.token));
        assert_eq!(there.peer_token, Some(here.token));
        assert_eq!(here.sent, there.received);
        assert_eq!(here.received, there.sent);
        assert_eq!(here.sent.producer.count, 20_100);
        assert_eq!(here.flags, there.peer_flags);
        assert_eq!(here.writes.bytes, 20_100);
        assert_eq!(here.writes.requests[..3], [1, 0, 1]);
        assert_eq!(there.reads.bytes, 300);
        assert_eq!(there.reads.request_count(), 1);
    });
}

#[test]
fn the_bytes_of_ended_connections_count() {
    let dir = tempfile::tempdir().unwrap();
    let (client, server) = (endpoint(&dir), endpoint(&dir));
    block_on(async {
        for _ in 0..70 {
            let (mut near, mut far) = pair(&client, &server).await;
            near.write_all(b"hello").await.unwrap();
            near.close().await.unwrap();
            let mut read = Vec::new();
            far.read_to_end(&mut read).await.unwrap();
        }
        let (near, far) = (client.stats(), server.stats());
        let ([near], [far]) = (&*near.devices, &*far.devices) else {
            panic!("one device each");
        };
        assert_eq!(near.connections_v2.client, 70);
        assert_eq!(far.connections_v2.server, 70);
        assert_eq!(near.sent.bytes, 350);
        assert_eq!(far.received.bytes, 350);
        assert_eq!(far.received.request_count(), 70);
        assert_eq!(near.received.buffers.iter().sum::<u64>(), 70);
        // Memory of the first connections is the pool of the later ones.
        assert!(
            near.received.buffer_reuses > 60,
            "{}",
            near.received.buffer_reuses
        );
        let stats = client.stats();
        assert_eq!(stats.handshakes.count, 70);
        assert_eq!(stats.look_ups.count, 70);
        assert!(stats.handshakes.max <= stats.handshakes.total);
        assert_eq!(stats.fallbacks, []);
    });
}

#[test]
fn a_stream_that_has_fallen_back_is_reported_with_its_reason_until_it_is_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let client = endpoint(&dir);
    let plain = TcpListener::bind("127.0.0.1:0").unwrap();
    let to: SocketAddr = plain.local_addr().unwrap();
    block_on(async {
        let first = client.connect(to).await.unwrap();
        let second = client.connect(to).await.unwrap();
        let [one, other] = &*client.connections() else {
            panic!("two streams");
        };
        assert!(one.id < other.id);
        assert!(one.smc.is_none());
        assert_eq!(one.peer, to.into());
        let Mode::Tcp { reason, .. } = &one.mode else {
            panic!("{}", one.mode);
        };
        let code = reason.local.0;
        drop((first, second));
        assert!(client.connections().is_empty());
        let stats = client.stats();
        let [fallback] = &*stats.fallbacks else {
            panic!("{stats:?}");
        };
        assert_eq!((fallback.code, fallback.count.client), (code, 2));
    });
}

#[test]
fn listeners_and_devices_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let server = endpoint(&dir);
    block_on(async {
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let [info] = &*server.listener_infos() else {
            panic!("one listener");
        };
        assert_eq!(info.local, listener.local_addr().unwrap().into());
        assert!(info.unpublished.is_none(), "{:?}", info.unpublished);
        drop(listener);
        assert!(server.listener_infos().is_empty());
        let devices = server.device_infos();
        assert_eq!(devices.len(), 1);
        assert!(!devices[0].is_gone);
    });
    let none: Endpoint = Builder::smol().build().unwrap();
    assert!(none.device_infos().is_empty());
}

#[test]
fn the_ways_to_a_server_are_listed_best_first_with_the_reason_against_each_other_one() {
    let dir = tempfile::tempdir().unwrap();
    let domain = Domain::directory(dir.path());
    let two_devices = smc::add_defaults(Builder::smol(), domain.clone()).unwrap();
    let second = LoopDevice::builder().domain(domain).build().unwrap();
    let client = two_devices.device(Arc::new(second)).build().unwrap();
    let server = endpoint(&dir);
    block_on(async {
        let listener = server.bind("127.0.0.1:0").await.unwrap();
        let smc = listener.local_addr().unwrap();
        let [first, tcp, second] = &*client.candidates(smc).await.unwrap() else {
            panic!("two devices and TCP");
        };
        assert!(first.excluded.is_none() && tcp.excluded.is_none());
        assert_eq!((first.to, &tcp.transport), (smc, &CandidateTransport::Tcp));
        assert!(matches!(
            second.excluded,
            Some(Exclusion::Device(DeviceExclusion::SameFabric))
        ));
        let stream = client.connect(smc).await.unwrap();
        let Mode::SmcD { peer: _, .. } = stream.mode() else {
            panic!("{}", stream.mode());
        };

        let plain = TcpListener::bind("127.0.0.1:0").unwrap();
        let plain = plain.local_addr().unwrap();
        let [tcp, first, second] = &*client.candidates(plain).await.unwrap() else {
            panic!("two devices and TCP");
        };
        assert!(tcp.excluded.is_none());
        for device in [first, second] {
            assert!(matches!(
                device.excluded,
                Some(Exclusion::NoSmc(FallbackCause::NotAnnounced { .. }))
            ));
        }
        client.candidates("no port").await.unwrap_err();
    });
}

#[test]
fn a_policy_excludes_smc_or_tcp() {
    let dir = tempfile::tempdir().unwrap();
    for (policy, smc, tcp) in [
        (Policy::Never, "policy is to use TCP", ""),
        (Policy::Require, "", "policy is to require SMC"),
    ] {
        let domain = Domain::directory(dir.path());
        let builder = smc::add_defaults(Builder::smol(), domain).unwrap();
        let client = builder.policy(policy).build().unwrap();
        let server = endpoint(&dir);
        block_on(async {
            let listener = server.bind("127.0.0.1:0").await.unwrap();
            let to = listener.local_addr().unwrap();
            let all = client.candidates(to).await.unwrap();
            let excluded = |is_tcp: bool| {
                let mut all = all.iter();
                let way = all.find(|way| (way.transport == CandidateTransport::Tcp) == is_tcp);
                let excluded = way.and_then(|way| way.excluded.as_ref());
                excluded.map_or_else(String::new, ToString::to_string)
            };
            assert_eq!((&*excluded(false), &*excluded(true)), (smc, tcp));
            // What is used comes first.
            assert!(all[0].excluded.is_none());
        });
    }
}
