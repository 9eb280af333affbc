//! Many set-ups at once: none waits for a stalled one, and link groups stay consistent.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_lite::{AsyncReadExt, AsyncWriteExt, future};
use smc::{FallbackCause, Stream};
use smc_core::device::DeviceError;
use smc_core::negotiate::{Candidate, Negotiated, Negotiation, Published};
use smc_core::proto::group::GroupState;
use smc_core::runtime::{Runtime, Socket};
use smc_core::wire::types::DeclineCode;

use crate::fallback_table::{AT_ONCE, MESSAGE};
use smc_testkit::streams::{expect, expect_error, join_all};
use smc_testkit::world::messages::*;
use smc_testkit::world::{Call, Host, World, exchange_to_end, join_smc, proposal_from, reason};

#[test]
fn stalled_clients_delay_no_other() {
    let world = World::new();
    let (client, server) = (world.host("client"), world.host("server"));
    let forged = world.forged_peer(&server.device);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let silent = world.raw(at).await;
        let unconfirmed = world.raw_that_sent(at, forged.propose()).await;
        unconfirmed.message().await;
        let since = world.now();
        for _ in 0..20 {
            let (ours, theirs) = join_smc(&client, &listener).await;
            exchange_to_end((ours, theirs)).await;
        }
        assert!(world.is_within(since, AT_ONCE));
        silent.expect_reset().await;
        unconfirmed.expect_reset().await;
        world.only_idle_groups_left([&server]).await;
    });
}

#[test]
fn a_listener_full_of_stalled_clients_recovers_when_their_time_is_over() {
    let world = World::new();
    let client = world.host("client");
    // Of which all of these have two.
    let server = world.host_with("server", |builder| builder.max_handshakes(4));
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let since = world.now();
        // All but the first byte.
        let first = world.raw_that_sent(at, b"\xe2").await;
        world.sleep(Duration::from_secs(3)).await;
        let second = world.raw_that_sent(at, b"\xe2").await;
        let connect = client.endpoint.connect(at);
        let (ours, theirs) = future::zip(connect, listener.accept()).await;
        assert!(world.has_taken(since, MESSAGE));
        let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
        assert_eq!((reason(&ours), reason(&theirs)), (None, None));
        exchange_to_end((ours, theirs)).await;
        drop(first);
        second.expect_end().await;
        assert!(world.has_taken(since, MESSAGE + Duration::from_secs(3)));
    });
}

/// Says of connections that they support CLC, or that they are plain, as configured.
#[derive(Clone, Debug, Default)]
struct Told(Arc<AtomicBool>);

#[async_trait]
impl Negotiation for Told {
    async fn look_up(
        &self,
        _: &Arc<dyn Runtime>,
        _: SocketAddr,
    ) -> Result<Candidate, FallbackCause> {
        Err(FallbackCause::NoNegotiation)
    }

    fn publish(
        &self,
        _: &Arc<dyn Runtime>,
        _: SocketAddr,
        _: Option<BorrowedFd<'_>>,
    ) -> Result<Arc<dyn Published>, FallbackCause> {
        Ok(Arc::new(self.clone()))
    }
}

impl Published for Told {
    fn negotiated(&self, _: &dyn Socket, _: SocketAddr) -> Negotiated {
        match self.0.load(Ordering::SeqCst) {
            true => Negotiated::Plain(FallbackCause::NotOffered),
            false => Negotiated::Clc,
        }
    }
}

#[test]
fn plain_tcp_clients_do_not_wait_for_handshakes() {
    let world = World::new();
    let are_plain = Told::default();
    let negotiation = Arc::new(are_plain.clone());
    let server = world.host_with("server", |builder| {
        builder.max_handshakes(4).negotiation(negotiation)
    });
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let mut stalled = Vec::new();
        for round in 0..40 {
            let raw = world.raw(at).await;
            if round % 2 == 0 {
                raw.send(b"\xe2").await;
            }
            stalled.push(raw);
        }
        world.sleep(AT_ONCE).await;
        are_plain.0.store(true, Ordering::SeqCst);
        let since = world.now();
        let _plain = world.raw_that_sent(at, b"GET").await;
        let (mut stream, _) = listener.accept().await.unwrap();
        expect(&mut stream, b"GET").await;
        assert!(world.is_within(since, AT_ONCE));
    });
}

#[test]
fn a_handshake_gives_its_slot_back_however_it_ends() {
    let world = World::new();
    let client = world.host("client");
    let server = world.host_with("server", |builder| builder.max_handshakes(1));
    let forged = world.forged_peer(&server.device);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let since = world.now();
        for round in 0..5 {
            let raw = world.raw(at).await;
            match round {
                0 => drop(raw),
                1 => raw.send(b"rubbish").await,
                2 => {
                    raw.send(&decline_v1(DeclineCode::NOSMCDEV)).await;
                    listener.accept().await.unwrap();
                }
                3 => {
                    raw.send(&forged.propose()).await;
                    raw.message().await;
                    drop(raw);
                }
                _ => {
                    server
                        .device
                        .fail_times(Call::Register, DeviceError::Exhausted, 1);
                    raw.send(&forged.propose()).await;
                    listener.accept().await.unwrap();
                }
            }
            let (ours, theirs) = join_smc(&client, &listener).await;
            exchange_to_end((ours, theirs)).await;
        }
        assert!(world.is_within(since, AT_ONCE));
        world.only_idle_groups_left([&server]).await;
    });
}

// ---- No set-up waits for another one that creates a link group ---------------------------------

#[test]
fn a_stalled_creator_of_a_link_group_delays_no_other_setup() {
    let world = World::new();
    world.between_hosts(async |client, server| {
        let (listener, at) = server.listen().await;
        // It claims the client's GID, is accepted, and lets it rest there.
        let creator = world
            .raw_that_sent(at, proposal_from(&*client.device))
            .await;
        creator.message().await;
        let since = world.now();
        let connects = connect_all(&client, at, 2);
        let (ours, theirs) = future::zip(connects, accept_all(&listener, 2)).await;
        assert!(ours.iter().all(|stream| reason(stream).is_none()));
        assert!(world.is_within(since, AT_ONCE));
        exchange_names(ours, theirs).await;
        drop(creator);
        world.only_idle_groups_left([&client, &server]).await;
    });
}

#[test]
fn first_contacts_at_the_same_time_do_not_wait_for_each_other() {
    let virtual_worlds = (1..=8).map(World::with_seed);
    let others = [World::in_pieces(), World::real(), World::parallel()];
    for world in virtual_worlds.chain(others) {
        println!("{world}");
        world.between_hosts(async |client, server| {
            let (listener, at) = server.listen().await;
            let connects = connect_all(&client, at, CONNECTIONS);
            let accepts = accept_all(&listener, CONNECTIONS);
            let (ours, theirs) = future::zip(connects, accepts).await;
            assert!(ours.iter().all(|stream| reason(stream).is_none()));
            assert!(theirs.iter().all(|stream| reason(stream).is_none()));
            for host in [&client, &server] {
                let groups = host.endpoint.link_groups();
                let connections: usize = groups.iter().map(|group| group.connections).sum();
                assert_eq!(connections, CONNECTIONS);
                assert!(groups.iter().all(|group| group.state == GroupState::Active));
            }
            assert_eq!(
                (client.device.dmbs(), server.device.dmbs()),
                (CONNECTIONS, CONNECTIONS)
            );
            // From now on there is a group to join.
            let groups = server.endpoint.link_groups().len();
            let connects = connect_all(&client, at, 1);
            let one_more = future::zip(connects, accept_all(&listener, 1)).await;
            assert_eq!(server.endpoint.link_groups().len(), groups);
            exchange_names(one_more.0, one_more.1).await;
            exchange_names(ours, theirs).await;
            world.only_idle_groups_left([&client, &server]).await;
        });
    }
}

#[test]
fn hosts_that_connect_to_each_other_at_the_same_time_agree() {
    for world in (1..=4).map(World::with_seed).chain([World::parallel()]) {
        world.between_hosts(async |left, right| {
            let ((left_listener, left_at), (right_listener, right_at)) =
                (left.listen().await, right.listen().await);
            let there = future::zip(
                connect_all(&left, right_at, CONNECTIONS),
                accept_all(&right_listener, CONNECTIONS),
            );
            let back = future::zip(
                connect_all(&right, left_at, CONNECTIONS),
                accept_all(&left_listener, CONNECTIONS),
            );
            let (there, back) = future::zip(there, back).await;
            for (ours, theirs) in [there, back] {
                assert!(ours.iter().all(|stream| reason(stream).is_none()));
                exchange_names(ours, theirs).await;
            }
            world.only_idle_groups_left([&left, &right]).await;
        });
    }
}

#[test]
fn each_client_host_has_a_link_group_of_its_own() {
    let world = World::new();
    let server = world.host("server");
    let clients: Vec<_> = (0..6).map(|_| world.host("client")).collect();
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let mut all = Vec::new();
        for client in &clients {
            let (mut ours, mut theirs) = (Vec::new(), Vec::new());
            for _ in 0..4 {
                let connects = connect_all(client, at, 1);
                let met = future::zip(connects, accept_all(&listener, 1)).await;
                ours.extend(met.0);
                theirs.extend(met.1);
            }
            one_group(client, 4);
            all.push((ours, theirs));
        }
        assert_eq!(server.endpoint.link_groups().len(), 6);
        // One of them is removed: the others are not affected.
        clients[0].device.leave();
        let (ours, theirs) = all.remove(0);
        for mut stream in theirs {
            expect_error(&mut stream, std::io::ErrorKind::ConnectionAborted).await;
        }
        drop(ours);
        for (ours, theirs) in all {
            exchange_names(ours, theirs).await;
        }
        world.only_idle_groups_left([&server]).await;
        assert_eq!(server.endpoint.link_groups().len(), 5);
    });
}

#[test]
fn good_clients_among_bad_ones() {
    for world in (1..=4).map(World::with_seed) {
        let (client, server) = (world.host("client"), world.host("server"));
        let forged = world.forged_peer(&server.device);
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let bad = async {
                let mut kept = Vec::new();
                for kind in 0..40 {
                    let raw = world.raw(at).await;
                    match kind % 5 {
                        0 => kept.push(raw),
                        1 => drop(raw),
                        2 => raw.send(&[0xe2; 100]).await,
                        3 => {
                            raw.send(&forged.propose()).await;
                            kept.push(raw);
                        }
                        _ => {
                            raw.send(&proposal_from(&*client.device)).await;
                            drop(raw);
                        }
                    }
                }
                kept
            };
            let good = future::zip(
                connect_all(&client, at, CONNECTIONS),
                accept_all(&listener, CONNECTIONS),
            );
            let (kept, (ours, theirs)) = future::zip(bad, good).await;
            assert!(ours.iter().all(|stream| reason(stream).is_none()));
            exchange_names(ours, theirs).await;
            for raw in kept {
                raw.rest().await;
            }
            world.only_idle_groups_left([&client, &server]).await;
        });
    }
}

#[test]
fn when_buffers_run_out_the_rest_is_tcp() {
    use smc_core::device::Limits;

    let world = World::new().with_fabric(|fabric| fabric.with_limits(Limits::new(10, 1 << 20)));
    world.between_hosts(async |client, server| {
        let (listener, at) = server.listen().await;
        let connects = connect_all(&client, at, 30);
        let (ours, theirs) = future::zip(connects, accept_all(&listener, 30)).await;
        let smc = |streams: &[Stream]| streams.iter().filter(|s| s.mode().is_smc()).count();
        assert_eq!((smc(&ours), smc(&theirs)), (10, 10));
        for stream in ours.iter().chain(&theirs) {
            let peer_code = stream
                .fallback_reason()
                .map(|reason| reason.peer.unwrap_or(reason.local));
            assert!(peer_code.is_none_or(|code| code == DeclineCode::MAX_DMB));
        }
        exchange_names(ours, theirs).await;
        world.only_idle_groups_left([&client, &server]).await;
    });
}

fn one_group(host: &Host, connections: usize) {
    let groups = host.endpoint.link_groups();
    assert_eq!(groups.len(), 1);
    assert_eq!(
        (groups[0].state, groups[0].connections),
        (GroupState::Active, connections)
    );
    assert_eq!(host.endpoint.connections().len(), connections);
}

async fn connect_all(client: &Host, at: SocketAddr, count: usize) -> Vec<Stream> {
    let connects = (0..count).map(|_| client.endpoint.connect(at));
    let connected = join_all(connects).await;
    connected.into_iter().map(Result::unwrap).collect()
}

async fn accept_all(listener: &smc::Listener, count: usize) -> Vec<Stream> {
    let mut accepted = Vec::new();
    for _ in 0..count {
        accepted.push(listener.accept().await.unwrap().0);
    }
    accepted
}

/// Every stream sends its name, and receives the name of its other end.
async fn exchange_names(ours: Vec<Stream>, theirs: Vec<Stream>) {
    let echoes = theirs.into_iter().map(async |mut stream| {
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await.unwrap();
        stream.write_all(&received).await.unwrap();
        stream.close().await.unwrap();
        // Not gone before the other end has read it.
        stream
    });
    let clients = ours
        .into_iter()
        .enumerate()
        .map(async |(number, mut stream)| {
            let name = format!("stream {number}");
            stream.write_all(name.as_bytes()).await.unwrap();
            stream.close().await.unwrap();
            let mut received = String::new();
            stream.read_to_string(&mut received).await.unwrap();
            assert_eq!(received, name);
        });
    future::zip(join_all(echoes), join_all(clients)).await;
}

/// First contacts at the same time.
const CONNECTIONS: usize = 50;
