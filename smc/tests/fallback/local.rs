//! Local negotiation between endpoints with and without devices, over real sockets.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::Domain;
use smc::FallbackCause;
use smc::{Builder, Endpoint, ListenOptions, Stream};
use smc_core::error::{Limit, Refusal};
use smc_core::negotiate::{Negotiated, Negotiation, Published};
use smc_core::wire::types::DeclineCode;
use smc_negotiate_local::Local;
use tempfile::TempDir;

use smc_testkit::negotiation::Connection;
use smc_testkit::world::messages::decline_v2;
use smc_testkit::world::{Codes, RawListener, World, anywhere, exchange, exchange_to_end, reason};

fn ours(code: DeclineCode) -> Option<Codes> {
    Some(Codes::local(code))
}

fn peer_code(code: DeclineCode) -> Option<Codes> {
    Some(Codes::peer_declined(code))
}

fn cause(stream: &Stream) -> FallbackCause {
    stream.fallback_reason().expect("it is TCP").cause
}

#[test]
fn an_endpoint_without_a_device_falls_back_at_once() {
    let (nodev, not_offered) = (ours(DeclineCode::NOSMCDEV), ours(DeclineCode::PEERNOSMC));
    let (no_ism, peer_no_ism) = (DeclineCode::NOISM2SUPP, peer_code(DeclineCode::NOISM2SUPP));
    // Which ends have a device, and the reasons of the client's stream and of the server's.
    let rows = [
        (true, true, None, None),
        (true, false, peer_no_ism, ours(no_ism)),
        (false, true, nodev, not_offered),
        (false, false, nodev, not_offered),
    ];
    for (client_has, server_has, client_reason, server_reason) in rows {
        let world = World::real();
        println!("client has a device: {client_has}, server has one: {server_has}");
        let dir = tempfile::tempdir().unwrap();
        let (client, server) = (
            endpoint(&world, &dir, client_has),
            endpoint(&world, &dir, server_has),
        );
        world.block_on(async {
            let listener = server.bind(anywhere()).await.unwrap();
            let at = listener.local_addr().unwrap();
            for _ in 0..10 {
                let since = world.now();
                let connect = client.connect(at);
                let (ours, theirs) = future::zip(connect, listener.accept()).await;
                let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
                assert!(world.is_within(since, LONG), "it has waited");
                let reasons = (reason(&ours), reason(&theirs));
                assert_eq!(reasons, (client_reason, server_reason));
                exchange_to_end((ours, theirs)).await;
            }
        });
    }
}

#[test]
fn a_listener_that_takes_no_offer_leaves_its_clients_plain() {
    let world = World::real();
    let dir = tempfile::tempdir().unwrap();
    let client = endpoint_with(&world, &dir, true, |builder| {
        builder.handshake_timeout(Duration::from_millis(50))
    });
    world.block_on(async {
        let (acceptor, at, published) = publish(&world, &dir);
        for _ in 0..3 {
            let (stream, raw) = future::zip(client.connect(at), acceptor.accept()).await;
            let stream = stream.unwrap();
            assert_eq!(reason(&stream), ours(DeclineCode::PEERNOSMC));
            // As when it is stopped, and wakes up then.
            let verdict = published.negotiated(raw.socket(), raw.peer_addr());
            assert!(matches!(verdict, Negotiated::Plain(_)), "{verdict:?}");
            exchange(stream, Some(raw), b"").await;
        }
        // A client that waits for such a listener stops to wait when it ends.
        let connect = client.connect(at);
        let (stream, raw) = future::zip(connect, async {
            let raw = acceptor.accept().await;
            drop(published);
            raw
        })
        .await;
        let stream = stream.unwrap();
        assert_eq!(cause(&stream), FallbackCause::ListenerGone);
        exchange(stream, Some(raw), b"").await;
    });
}

#[test]
fn a_server_that_sends_data_instead_of_an_answer_is_a_plain_one() {
    let world = World::real();
    let dir = TempDir::new().unwrap();
    let client = endpoint(&world, &dir, true);
    world.block_on(async {
        // It shares the listening socket with the process that supports SMC.
        let (acceptor, at, _published) = publish(&world, &dir);
        let (stream, raw) = future::zip(client.connect(at), async {
            let raw = acceptor.accept().await;
            raw.send(b"220 ready").await;
            raw
        })
        .await;
        let stream = stream.unwrap();
        assert_eq!(cause(&stream), FallbackCause::PlainServer);
        exchange(stream, Some(raw), b"220 ready").await;
    });
}

#[test]
fn a_listener_with_too_many_handshakes_reports_it_and_so_does_its_client() {
    let world = World::real();
    let dir = TempDir::new().unwrap();
    let client = endpoint(&world, &dir, true);
    let server = endpoint_with(&world, &dir, true, |builder| builder.max_handshakes(1));
    let local = Local::in_domain(Domain::directory(dir.path()));
    world.block_on(async {
        let mut options = ListenOptions::default();
        options.backlog = Some(1);
        let listener = server.bind_with(anywhere(), &options).await.unwrap();
        let at = listener.local_addr().unwrap();
        // The first is in its handshake and does not go on, the second waits for its end.
        let mut stalled = Vec::new();
        for _ in 0..2 {
            stalled.push(Connection::dial(world.rt(), &local, at, b"\xe2").await);
        }
        let (ours, theirs) = future::zip(client.connect(at), listener.accept()).await;
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!(cause(&ours), FallbackCause::Refused(Refusal::Full));
        let limit = Limit::new("limit of handshakes that wait", 1);
        assert_eq!(cause(&theirs), FallbackCause::Full(limit));
        exchange_to_end((ours, theirs)).await;
    });
}

#[test]
fn a_listener_that_stops_before_its_answer_leaves_its_client_plain() {
    let world = World::real();
    let dir = TempDir::new().unwrap();
    // Far longer than the test may take.
    let client = endpoint_with(&world, &dir, true, |builder| {
        builder.handshake_timeout(Duration::from_secs(600))
    });
    world.block_on(async {
        let (acceptor, at, published) = publish(&world, &dir);
        let (stream, (raw, mut side_channel)) = future::zip(client.connect(at), async {
            let raw = acceptor.accept().await;
            match published.negotiated(raw.socket(), raw.peer_addr()) {
                Negotiated::SideChannel(side_channel) => (raw, side_channel),
                verdict => panic!("{verdict:?}"),
            }
        })
        .await;
        let stream = stream.unwrap();
        let cause = cause(&stream);
        assert!(matches!(cause, FallbackCause::NoAnswer { .. }), "{cause}");
        // As it goes on.
        let decline = decline_v2(DeclineCode::NOSMCDEV);
        assert!(side_channel.send(&decline).is_err() && side_channel.is_withdrawn());
        drop(side_channel);
        exchange(stream, Some(raw), b"").await;
    });
}

#[test]
fn a_slow_listener_that_works_is_waited_for() {
    let world = World::real();
    const ANSWER: Duration = Duration::from_millis(100);
    let dir = TempDir::new().unwrap();
    let client = endpoint_with(&world, &dir, true, |builder| {
        builder
            .answer_timeout(ANSWER)
            .handshake_timeout(Duration::from_secs(600))
    });
    world.block_on(async {
        let (acceptor, at, published) = publish(&world, &dir);
        let (stream, raw) = future::zip(client.connect(at), async {
            let raw = acceptor.accept().await;
            let Negotiated::SideChannel(mut side_channel) =
                published.negotiated(raw.socket(), raw.peer_addr())
            else {
                panic!("the offer is not seen");
            };
            let until = world.now() + 5 * ANSWER;
            while world.now() < until {
                side_channel.publish_progress();
                world.sleep(ANSWER / 10).await;
            }
            side_channel
                .send(&decline_v2(DeclineCode::MAX_DMB))
                .unwrap();
            side_channel.flush();
            raw
        })
        .await;
        let stream = stream.unwrap();
        assert_eq!(reason(&stream), peer_code(DeclineCode::MAX_DMB));
        exchange(stream, Some(raw), b"").await;
    });
}

#[test]
fn both_ends_agree_when_there_are_more_connections_than_cards() {
    let world = World::real();
    // Two descriptors each, and as many as a process may have by default are too few.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    if limit
        .current
        .is_some_and(|current| current < 4 * CONNECTIONS)
    {
        println!("skipped: not descriptors enough");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let client = Arc::new(endpoint(&world, &dir, true));
    // A few at a time, while all the others have announced themselves.
    let server = endpoint_with(&world, &dir, true, |builder| builder.max_handshakes(64));
    world.block_on(async {
        let mut options = ListenOptions::default();
        options.backlog = Some(u32::try_from(2 * CONNECTIONS).unwrap());
        let listener = server.bind_with(anywhere(), &options).await.unwrap();
        let at = listener.local_addr().unwrap();
        let connected = Arc::new(Mutex::new(Vec::new()));
        for _ in 0..CONNECTIONS {
            let (client, connected) = (Arc::clone(&client), Arc::clone(&connected));
            world.rt().spawn(Box::pin(async move {
                let mut stream = client.connect(at).await.unwrap();
                let from = stream.local_addr().unwrap();
                stream.write_all(&from.port().to_le_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                let is_smc = stream.mode().is_smc();
                connected.lock().unwrap().push((from, is_smc, stream));
            }));
        }
        let mut accepted = HashMap::new();
        for _ in 0..CONNECTIONS {
            let (mut stream, peer) = listener.accept().await.unwrap();
            let mut sent = [0; 2];
            stream.read_exact(&mut sent).await.unwrap();
            assert_eq!(u16::from_le_bytes(sent), peer.port());
            accepted.insert(peer, stream.mode().is_smc());
        }
        let connected = std::mem::take(&mut *connected.lock().unwrap());
        let agreed: HashMap<_, _> = connected
            .iter()
            .map(|(from, is_smc, _)| (*from, *is_smc))
            .collect();
        assert_eq!(agreed, accepted);
        assert!(agreed.values().any(|is_smc| *is_smc));
    });
}

/// A TCP listener with local negotiation and no endpoint.
fn publish(world: &World, dir: &TempDir) -> (RawListener, SocketAddr, Arc<dyn Published>) {
    let (listener, at) = world.raw_listener();
    let local = Local::in_domain(Domain::directory(dir.path()));
    let published = local.publish(world.rt(), at, listener.acceptor().fd());
    (listener, at, published.unwrap())
}

/// An endpoint that waits for its peer however busy the machine is.
fn endpoint(world: &World, dir: &TempDir, has_device: bool) -> Endpoint {
    endpoint_with(world, dir, has_device, |builder| {
        builder.answer_timeout(LONG).handshake_timeout(LONG)
    })
}

fn endpoint_with(
    world: &World,
    dir: &TempDir,
    has_device: bool,
    configure: impl FnOnce(Builder) -> Builder,
) -> Endpoint {
    let negotiation = Arc::new(Local::in_domain(Domain::directory(dir.path())));
    world.endpoint(|builder| {
        let builder = configure(builder.negotiation(negotiation));
        match has_device {
            true => builder.device(Arc::new(world.device("device"))),
            false => builder,
        }
    })
}

/// Longer than anything takes that waits for nothing.
const LONG: Duration = Duration::from_secs(120);

/// More connections than a client may have under way with one listener over SMC.
const CONNECTIONS: u64 = 1200;
