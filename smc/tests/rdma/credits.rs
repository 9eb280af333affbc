//! Peers that do not keep to receive credits.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::AsyncWriteExt;
use smc::Endpoint;
use smc_core::wire::cdc::CdcR;
use smc_core::wire::llc;
use smc_testkit::streams::{connect, expect_write_error, transfer};
use smc_testkit::world::{RdmaWorld, SERVER, eid};

use crate::interceptor::Interceptor;

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

#[test]
fn a_peer_that_sends_without_credits_ends_its_own_link_and_nothing_else() {
    let world = RdmaWorld::new(62);
    let ([hostile, other], server, interceptor) = two_clients(&world);
    world.block_on(async {
        let listener = server.bind(SERVER).await.expect("a free port");
        let mut good = connect(&other, &listener).await;
        let (mut ours, mut theirs) = connect(&hostile, &listener).await;
        let mut is_done = false;
        interceptor.set_filter(move |message| {
            let is_first = message.first() == Some(&CdcR::TYPE) && !is_done;
            is_done |= is_first;
            // More than any end has.
            let count = if is_first { 20_000 } else { 1 };
            vec![message.to_vec(); count]
        });
        ours.write_all(&[1; 100]).await.expect("space");
        world.sleep(Duration::from_secs(1)).await;
        expect_write_error(&mut theirs, ErrorKind::ConnectionAborted).await;
        transfer(&mut good.0, &mut good.1, 100_000).await;
    });
}

#[test]
fn a_peer_that_grants_no_credits_is_given_up_after_ten_seconds() {
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
        for _ in 0..40 {
            theirs.write_all(&[2; 100]).await.ok();
            world.sleep(Duration::from_millis(500)).await;
        }
        expect_write_error(&mut theirs, ErrorKind::ConnectionAborted).await;
    });
}
