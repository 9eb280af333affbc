//! Handshakes that a listener has beside TCP, controlled by the verdict on a connection.

use std::sync::Arc;

use smc::FallbackCause;
use smc_core::wire::clc::ClcType;
use smc_core::wire::types::DeclineCode;
use smc_testkit::world::Step::*;
use smc_testkit::world::messages::*;
use smc_testkit::world::{Scripted, SideChannelPipe, exchange, exchange_to_end, join_smc};

use crate::fallback_table::{MESSAGE, NODEV, Outcome, PLAIN, Row, everywhere, peer, rows};
use crate::server::{UNSEEN, run_row};

/// What the client has sent already comes first.
#[test]
fn a_listener_gets_the_first_message_beside_tcp() {
    let late = Outcome::TimesOut(MESSAGE);
    let rows: &[Row] = rows! {
        "PROPOSAL, and CONFIRM follows", |forged|
            [Sends(forged.propose()), Takes(ClcType::Accept), Sends(bytes(&forged.confirm()))]
            => Outcome::Smc;
        "PROPOSAL, and DECLINE follows with data", |forged| [
            Sends(forged.propose()),
            Takes(ClcType::Accept),
            SendsWith(decline_v2(NODEV), b"GET /"),
        ] => peer(NODEV);
        "PROPOSAL, and rubbish follows", |forged|
            [Sends(forged.propose()), Takes(ClcType::Accept), Sends(b"GET /".to_vec())] => UNSEEN;
        "PROPOSAL, and data on TCP follows", |forged|
            [Sends(forged.propose()), Takes(ClcType::Accept), SendsFirst(b"GET /")] => late;
        "PROPOSAL, and the client lets go", |forged|
            [Sends(forged.propose()), Takes(ClcType::Accept), LetsGo] => UNSEEN;
        "PROPOSAL, and nothing follows", |forged|
            [Sends(forged.propose()), Takes(ClcType::Accept)] => late;
        "PROPOSAL, and the client hangs up", |forged|
            [Sends(forged.propose()), Takes(ClcType::Accept), HangsUp] => UNSEEN;
        "PROPOSAL without an EID", |forged| {
            let mut offered = forged.proposal();
            offered.ext.as_mut().unwrap().has_seid = false;
            [Sends(proposal(&offered))]
        } => Outcome::Declined(DeclineCode::NOUEID);
        "DECLINE", |_| [Sends(decline_v2(NODEV))] => peer(NODEV);
        "rubbish", |_| [Sends(b"GET / HTTP/1.1\r\n\r\n".to_vec())] => UNSEEN;
        "PROPOSAL and more", |forged| [Sends([forged.propose(), vec![0]].concat())] => UNSEEN;
        "a part of PROPOSAL", |forged| [Sends(forged.propose()[..100].to_vec())] => late;
        "a part of PROPOSAL, and the client is gone", |forged|
            [Sends(forged.propose()[..100].to_vec()), LetsGo] => UNSEEN;
        "PROPOSAL, the rest of it later", |forged| [
            Sends(forged.propose()[..100].to_vec()),
            SendsSlowly(forged.propose()[100..].to_vec()),
            Takes(ClcType::Accept),
            SendsSlowly(bytes(&forged.confirm())),
        ] => Outcome::Smc;
        "nothing", |_| [Sends(vec![])] => late;
        "nothing, and the client is gone", |_| [Sends(vec![]), LetsGo] => UNSEEN;
        "the verdict that this is plain", |_| [SendsFirst(b"GET /")] => PLAIN;
    };
    for row in rows {
        everywhere(row.name, row.outcome, |world| run_row(world, row, true));
    }
}

#[test]
fn two_endpoints_with_the_proposal_beside_tcp() {
    everywhere("both ends are real", Outcome::Smc, |world| {
        let negotiation = Arc::new(Scripted::server());
        let host = |name| {
            let negotiation = negotiation.clone();
            world.host_with(name, |builder| builder.negotiation(negotiation))
        };
        let (client, server) = (host("client"), host("server"));
        world.block_on(async {
            let (listener, _) = server.listen().await;
            let (ours, theirs) = join_smc(&client, &listener).await;
            exchange_to_end((ours, theirs)).await;
            world.only_idle_groups_left([&client, &server]).await;
        });
    });
}

#[test]
fn a_client_that_withdraws_before_the_answer_has_plain_tcp() {
    everywhere("withdrawn", PLAIN, |world| {
        let device = world.device("server");
        let forged = world.forged_peer(&device);
        let (near, far) = SideChannelPipe::pair();
        near.deliver(&forged.propose());
        let negotiation = Arc::new(Scripted::server_beside(far.withdrawn()));
        let server = world.host_on(device, |builder| builder.negotiation(negotiation));
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let raw = world.raw(at).await;
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!(
                stream.fallback_reason().unwrap().cause,
                FallbackCause::Withdrawn
            );
            exchange(stream, Some(raw), b"").await;
            world.nothing_left([&server]).await;
        });
    });
}
