//! Link groups that run out while others between the same two devices are in use.

use std::time::Duration;

use futures_lite::future;
use smc::Stream;
use smc_core::device::{Direct, PeerEvent};
use smc_core::proto::group::IDLE_LIFETIME;
use smc_testkit::streams::ping_pong;
use smc_testkit::world::{Host, World, connect_pair, exchange_to_end, reason};

/// Long enough for a link group that became idle just before.
const PAST_IDLE: Duration = IDLE_LIFETIME.saturating_add(Duration::from_secs(5));

/// Two streams between two hosts, one in each direction, whose first contacts cross: each host has
/// two link groups with the other.
async fn crossing(left: &Host, right: &Host) -> [(Stream, Stream); 2] {
    let pairs = future::zip(connect_pair(left, right), connect_pair(right, left)).await;
    for host in [left, right] {
        assert_eq!(host.endpoint.link_groups().len(), 2, "they did not cross");
    }
    [pairs.0, pairs.1]
}

#[test]
fn an_idle_link_group_that_expires_leaves_streams_in_other_groups_alone() {
    for ends_first in [0, 1] {
        for seed in 1..=4 {
            let world = World::with_seed(seed);
            world.between_hosts(async |left, right| {
                let [mut one, mut two] = crossing(&left, &right).await;
                if ends_first == 0 {
                    std::mem::swap(&mut one, &mut two);
                }
                let (ours, theirs) = two;
                exchange_to_end((ours, theirs)).await;
                for _ in 0..3 {
                    world.sleep(PAST_IDLE).await;
                    ping_pong(&mut one).await;
                }
                assert_eq!((reason(&one.0), reason(&one.1)), (None, None));
                for host in [&left, &right] {
                    assert_eq!(host.endpoint.link_groups().len(), 1, "the idle one ended");
                }

                // The last one that expires takes nothing along, and nothing stays behind.
                let (ours, theirs) = one;
                exchange_to_end((ours, theirs)).await;
                world.sleep(PAST_IDLE).await;
                world.nothing_left([&left, &right]).await;
            });
        }
    }
}

#[test]
fn a_shutdown_event_at_any_moment_of_a_first_contact_does_not_end_the_stream() {
    let world = World::new();
    // A handshake takes some 300 us.
    for delay in (0..600).step_by(5) {
        world.between_hosts(async |client, server| {
            let shutdown = async {
                world.sleep(Duration::from_micros(delay)).await;
                let (to_client, to_server) = (client.device.gid(), server.device.gid());
                let exchange = |from: &Host, to| {
                    let events = from.device.peer_events().unwrap();
                    events.signal_event(to, PeerEvent::Shutdown).unwrap();
                };
                exchange(&client, to_server);
                exchange(&server, to_client);
            };
            let (mut pair, ()) = future::zip(connect_pair(&client, &server), shutdown).await;
            let reasons = (reason(&pair.0), reason(&pair.1));
            assert_eq!(reasons, (None, None), "{delay} us");
            for _ in 0..2 {
                ping_pong(&mut pair).await;
                world.sleep(PAST_IDLE).await;
            }
            let (ours, theirs) = pair;
            exchange_to_end((ours, theirs)).await;
            world.sleep(PAST_IDLE).await;
            world.nothing_left([&client, &server]).await;
        });
    }
}
