//! Link groups whose ends have agreed on a single link: RMBs stay announced.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_lite::future::zip;
use futures_lite::{AsyncReadExt, AsyncWriteExt};
use smc::{Builder, Endpoint, Listener, Mode, Stream};
use smc_core::wire::llc::{Class, MessageType};
use smc_core::wire::types::Features;
use smc_testkit::runtime::Options;
use smc_testkit::streams::{connect_smc, transfer_both_ways};
use smc_testkit::world::are_kept;
use smc_testkit::world::{RdmaHosts, RdmaWorld, SERVER, eid};

use crate::interceptor::{Interceptor, recorded};

/// Half of a round trip, of TCP and of RDMA.
pub(crate) const LATENCY: Duration = Duration::from_millis(10);

pub(crate) fn world(seed: u64) -> RdmaWorld {
    let options = Options::default().with_latency(LATENCY, Duration::ZERO);
    let world = RdmaWorld::with_options(seed, options);
    world.network().set_latency(LATENCY, Duration::ZERO);
    world
}

/// What two ends with one link agree on.
const AGREED: Features = WITH_ANY.union(Features::SINGLE_LINK);

/// What any two ends agree on.
const WITH_ANY: Features = Features::AUTHENTICATION.union(Features::RECEIVE_CREDITS);

pub(crate) fn features(stream: &Stream) -> Features {
    match stream.mode() {
        Mode::SmcR {
            vendor_features, ..
        } => *vendor_features,
        mode => panic!("{mode}"),
    }
}

/// Connects, and awaits the answer to 64 bytes.
async fn request(client: &Endpoint, listener: &Listener) -> [Stream; 2] {
    let connecting = async {
        let mut ours = client.connect(SERVER).await.unwrap();
        ours.write_all(&[1; 64]).await.unwrap();
        ours.read_exact(&mut [0; 64]).await.unwrap();
        ours
    };
    let serving = async {
        let (mut theirs, _) = listener.accept().await.unwrap();
        theirs.read_exact(&mut [0; 64]).await.unwrap();
        theirs.write_all(&[2; 64]).await.unwrap();
        theirs
    };
    zip(connecting, serving).await.into()
}

#[test]
fn a_further_connection_takes_three_round_trips_and_five_without_the_agreement() {
    for has_it in [[true, true], [false, true], [true, false], [false, false]] {
        let round_trips = if has_it == [true, true] { 3 } else { 5 };
        let configured = |at: usize| {
            move |builder: Builder| match has_it[at] {
                true => builder,
                false => builder.vendor_features(Features::empty()),
            }
        };
        let world = world(1);
        let (a, b) = (world.device("a0", 1), world.device("b0", 2));
        let client = world.endpoint_with(&[&a], configured(0));
        let server = world.endpoint_with(&[&b], configured(1));
        world.block_on(async {
            let listener = server.bind(SERVER).await.unwrap();
            drop(request(&client, &listener).await);
            for _ in 0..5 {
                world.sleep(LATENCY * 10).await;
                let (streams, took) = world.timed(request(&client, &listener)).await;
                // TCP connects in half of a round trip here.
                let expected = LATENCY * (2 * round_trips - 1);
                assert!(
                    took >= expected && took < expected + LATENCY,
                    "{took:?} for {round_trips} round trips"
                );
                let agreed = match round_trips {
                    3 => AGREED | Features::EARLY_CONFIRM,
                    _ => Features::empty(),
                };
                assert_eq!(streams.each_ref().map(features), [agreed; 2]);
            }
        });
    }
}

type Messages = Arc<Mutex<Vec<(MessageType, Class)>>>;

fn keys_in(messages: &Messages) -> usize {
    let about_keys = [MessageType::ConfirmRkey, MessageType::DeleteRkey];
    let mut messages = messages.lock().unwrap();
    let count = messages
        .iter()
        .filter(|(kind, _)| about_keys.contains(kind));
    let count = count.count();
    messages.clear();
    count
}

#[test]
fn each_rmb_is_announced_once() {
    let world = RdmaWorld::new(2);
    let a = Interceptor::new(world.device("a0", 1));
    let b = Interceptor::new(world.device("b0", 2));
    let client = world.endpoint_on(vec![a.clone()], |builder| builder.ueid(eid()));
    let server = world.endpoint_on(vec![b.clone()], |builder| builder.ueid(eid()));
    world.block_on(async {
        let messages = [&a, &b].map(|device| recorded(device, |_, _| true));
        let listener = server.bind(SERVER).await.unwrap();
        // As many at a time: the first has the RMBs of the first contact.
        for (at_a_time, announced) in [(1, 0), (1, 0), (4, 3), (4, 0), (2, 0), (6, 1)] {
            let mut streams = Vec::new();
            for _ in 0..at_a_time {
                streams.push(connect_smc(&client, &listener).await);
            }
            for (ours, theirs) in &mut streams {
                transfer_both_ways(ours, theirs, 30_000).await;
            }
            drop(streams);
            world.sleep(Duration::from_secs(1)).await;
            for keys in messages.each_ref().map(keys_in) {
                // A request and an answer for each. A side that had to wait for an announcement
                // announces one more, for the next connection.
                let one_more = if announced > 0 { 2 } else { 0 };
                let expected = announced * 2..=announced * 2 + one_more;
                assert!(expected.contains(&keys), "{at_a_time}: {keys}");
            }
        }
        let groups = [server.rdma_groups(), client.rdma_groups()].concat();
        assert!(are_kept(&groups, true), "{groups:?}");
        client.close().await;
    });
}

#[test]
fn an_rmb_that_the_peer_may_still_write_is_revoked() {
    let world = RdmaWorld::new(3);
    let RdmaHosts { client, server, .. } = world.hosts();
    world.block_on(async {
        let listener = server.bind(SERVER).await.unwrap();
        let (mut ours, mut theirs) = connect_smc(&client, &listener).await;
        transfer_both_ways(&mut ours, &mut theirs, 1000).await;
        // With unread data, so that this is an abort, before the peer has ended.
        theirs.write_all(&[1; 100]).await.unwrap();
        drop(ours);
        let (mut ours, mut next) = connect_smc(&client, &listener).await;
        let _refused = theirs.write_all(&[3; 1000]).await;
        drop(theirs);
        transfer_both_ways(&mut ours, &mut next, 50_000).await;
    });
}

#[test]
fn a_host_with_one_port_has_a_single_link_with_any_other() {
    for two in [0, 1] {
        let world = RdmaWorld::new(4);
        let one = [world.device("a0", 1), world.device("b0", 2)];
        let other = [world.device("a1", 3), world.device("b1", 4)];
        let endpoint = |at: usize| match at == two {
            true => world.endpoint(&[&one[at], &other[at]]),
            false => world.endpoint(&[&one[at]]),
        };
        let (client, server) = (endpoint(0), endpoint(1));
        world.block_on(async {
            let listener = server.bind(SERVER).await.unwrap();
            let (ours, theirs) = connect_smc(&client, &listener).await;
            assert_eq!([&ours, &theirs].map(features), [AGREED; 2]);
        });
    }
}

#[test]
fn hosts_with_two_ports_have_two_links_and_agree_on_authentication_and_credits_alone() {
    let world = RdmaWorld::new(7);
    let RdmaHosts { client, server, .. } = world.hosts_with_two_links();
    world.block_on(async {
        let listener = server.bind(SERVER).await.unwrap();
        let (ours, theirs) = connect_smc(&client, &listener).await;
        assert_eq!([&ours, &theirs].map(features), [WITH_ANY; 2]);
    });
}

#[test]
fn a_host_with_two_ports_has_a_single_link_if_it_is_set_so() {
    let world = RdmaWorld::new(5);
    let names = [("a0", 1), ("b0", 2), ("a1", 3), ("b1", 4)];
    let devices = names.map(|(name, last)| world.device(name, last));
    let endpoint = |at: usize| {
        let both = [&devices[at], &devices[at + 2]];
        world.endpoint_with(&both, |builder| builder.max_links(1))
    };
    let (client, server) = (endpoint(0), endpoint(1));
    world.block_on(async {
        let listener = server.bind(SERVER).await.unwrap();
        let (ours, theirs) = connect_smc(&client, &listener).await;
        assert_eq!([&ours, &theirs].map(features), [AGREED; 2]);
        world.sleep(Duration::from_secs(10)).await;
        for group in [server.rdma_groups(), client.rdma_groups()].concat() {
            assert_eq!(group.links.len(), 1, "{group:?}");
        }
    });
}

#[test]
fn under_a_lack_of_memory_rmbs_that_stay_announced_are_revoked() {
    let world = RdmaWorld::new(6);
    let RdmaHosts { client, server, .. } =
        world.hosts_with(|builder| builder.memory_limit(8 << 20).recv_buffer(1 << 20));
    world.block_on(async {
        let listener = server.bind(SERVER).await.unwrap();
        for round in 0..3 {
            let mut streams = Vec::new();
            for _ in 0..12 {
                streams.push(connect_smc(&client, &listener).await);
            }
            for (ours, theirs) in &mut streams {
                transfer_both_ways(ours, theirs, 1000).await;
            }
            drop(streams);
            world.sleep(Duration::from_secs(2)).await;
            let groups = [server.rdma_groups(), client.rdma_groups()].concat();
            assert!(are_kept(&groups, true), "{round}: {groups:?}");
        }
    });
}
