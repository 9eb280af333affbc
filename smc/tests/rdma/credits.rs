//! Peers that do not keep to receive credits.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::AsyncWriteExt;
use smc::{Endpoint, Stream};
use smc_core::wire::cdc::CdcR;
use smc_core::wire::llc::{self, AnnounceCredits, ByteOrder, MESSAGE_LEN};
use smc_testkit::streams::{connect, expect_error, expect_write_error, transfer};
use smc_testkit::world::{RdmaWorld, SERVER, eid};

use crate::interceptor::Interceptor;
#[cfg(feature = "tracing")]
use crate::log::Log;

/// Two clients of one server, which sees changed messages of the first.
fn two_clients(world: &RdmaWorld) -> ([Endpoint; 2], Endpoint, Arc<Interceptor>) {
    let interceptor = Interceptor::new(world.device("b0", 2));
    let server = world.endpoint_on(vec![interceptor.clone()], |builder| builder.ueid(eid()));
    let clients = [("a0", 1), ("c0", 3)].map(|(name, last)| {
        let device = world.device(name, last);
        world.endpoint(&[&device])
    });
    (clients, server, interceptor)
}

/// One link ends in this scenario, by a failure of that name, which only a log has.
fn with_one_failure(cause: &str, scenario: impl FnOnce()) {
    #[cfg(feature = "tracing")]
    {
        let log = Log::default();
        log.record(scenario);
        let downs = log.all("link is down").into_iter();
        let causes: Vec<_> = downs.map(|event| event.fields["cause"].clone()).collect();
        // The other end learns of it by DELETE LINK, or has none to use any more.
        let own = causes.iter().filter(|of_link| of_link.contains(cause));
        assert_eq!(own.count(), 1, "{causes:?}");
    }
    #[cfg(not(feature = "tracing"))]
    {
        _ = cause;
        scenario();
    }
}

/// A client sends a CDC message, which its server sees as what `forge` makes of it.
fn with_forged(seed: u64, cause: &str, forge: impl Fn(&[u8]) -> Vec<Vec<u8>> + Send + 'static) {
    with_one_failure(cause, || {
        let world = RdmaWorld::new(seed);
        let ([hostile, other], server, interceptor) = two_clients(&world);
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let mut good = connect(&other, &listener).await;
            let (mut ours, mut theirs) = connect(&hostile, &listener).await;
            let mut is_done = false;
            interceptor.set_filter(move |message| {
                let is_first = message.first() == Some(&CdcR::TYPE) && !is_done;
                is_done |= is_first;
                match is_first {
                    true => forge(message),
                    false => vec![message.to_vec()],
                }
            });
            ours.write_all(&[1; 100]).await.expect("space");
            world.sleep(Duration::from_secs(1)).await;
            expect_write_error(&mut theirs, ErrorKind::ConnectionAborted).await;
            transfer(&mut good.0, &mut good.1, 100_000).await;
        });
    });
}

#[test]
fn a_peer_that_sends_without_credits_ends_its_own_link_and_nothing_else() {
    // More than any end has.
    let often = |message: &[u8]| vec![message.to_vec(); 20_000];
    with_forged(62, "peer sends without a receive credit", often);
}

#[test]
fn a_peer_that_grants_too_many_credits_ends_its_own_link_and_nothing_else() {
    let announce = |message: &[u8]| {
        let mut announcement = vec![0; MESSAGE_LEN];
        let credits = AnnounceCredits {
            order: ByteOrder::Big,
            credits: u16::MAX,
        };
        credits.emit(&mut announcement).expect("it has the length");
        vec![message.to_vec(), announcement]
    };
    let cause = "peer grants more receive credits than are possible";
    with_forged(64, cause, announce);
}

#[test]
fn a_peer_that_grants_no_credits_is_given_up_after_ten_seconds() {
    with_one_failure("peer grants no receive credits", || {
        let world = RdmaWorld::new(63);
        let ([hostile, other], server, interceptor) = two_clients(&world);
        world.block_on(async {
            let listener = server.bind(SERVER).await.expect("a free port");
            let mut good = connect(&other, &listener).await;
            transfer(&mut good.1, &mut good.0, 100).await;
            interceptor.set_filter(|message| {
                let mut message = message.to_vec();
                match llc::Message::parse(&message) {
                    Ok(llc::Message::AnnounceCredits(_)) => message[0] = 0x2f,
                    _ if message.first() == Some(&CdcR::TYPE) => message[26] = 0,
                    _ => {}
                }
                vec![message]
            });
            let (mut ours, mut theirs) = connect(&hostile, &listener).await;
            for _ in 0..20 {
                transfer(&mut theirs, &mut ours, 100).await;
            }
            while !is_waiting(&server) {
                theirs.write_all(&[2; 100]).await.expect("space");
                world.sleep(Duration::from_millis(1)).await;
            }
            let (_, waited) = world
                .timed(async {
                    goes_on(&world, &mut good, Duration::from_millis(9900)).await;
                    assert!(is_waiting(&server));
                    expect_error(&mut theirs, ErrorKind::ConnectionAborted).await;
                })
                .await;
            let expected = Duration::from_millis(9990)..=Duration::from_millis(10_010);
            assert!(expected.contains(&waited), "{waited:?}");
            goes_on(&world, &mut good, Duration::from_secs(1)).await;
        });
    });
}

/// Whether something waits on a link of an endpoint.
fn is_waiting(endpoint: &Endpoint) -> bool {
    let groups = endpoint.rdma_groups();
    let mut queues = groups.iter().flat_map(|group| &group.queues);
    queues.any(|queue| queue.stats.waiting > 0)
}

/// A connection transfers data for so long.
async fn goes_on(world: &RdmaWorld, (from, to): &mut (Stream, Stream), time: Duration) {
    let until = world.elapsed() + time;
    while world.elapsed() < until {
        transfer(from, to, 1000).await;
        world.sleep(Duration::from_millis(10)).await;
    }
}
