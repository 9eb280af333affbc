//! PROPOSALs that reach the server beside TCP.
//!
//! The whole handshake goes that way, and not a byte of it goes over TCP. The client has to wait
//! for an answer that may never come, because another process listens there.

use std::io::ErrorKind;
use std::sync::Arc;

use futures_lite::future;
use smc::config::ANSWER_TIMEOUT;
use smc_core::negotiate::{Delivery, Withdrawn};
use smc_core::wire::types::DeclineCode;
use smc_testkit::world::Step::*;
use smc_testkit::world::messages::*;
use smc_testkit::world::{Codes, Finds, Scripted, World, exchange, reason};

use Withdrawn::{Free, Taken};

use crate::client::run_row;
use crate::fallback_table::{MESSAGE, NODEV, Outcome, PLAIN, Row, SOON, everywhere, peer, rows};

#[test]
fn an_offer_without_answer() {
    run(
        Free,
        rows! {
            "and both ends are silent", |_| [] => PLAIN.takes(ANSWER_TIMEOUT);
            "and that becomes known", |_|
                [] => PLAIN.lost_after(ANSWER_TIMEOUT / 2).takes(ANSWER_TIMEOUT / 2);
            "and the way beside TCP ends", |_| [LetsGo] => PLAIN;
            "a plain server sends first", |_| [SendsFirst(b"220 mail.example ESMTP\r\n")] => PLAIN;
            "a plain server sends first, in pieces", |_|
                [SendsFirstSlowly(b"220 mail.example ESMTP\r\n")] => PLAIN;
            "a plain server sends what looks like CLC", |_|
                [SendsFirst(b"\xe2\xd4\xc3\xc5 is EBCDIC")] => PLAIN;
            "a plain server sends when it becomes known that no answer can come", |_|
                [SendsFirst(b"2")] => PLAIN.lost_after(std::time::Duration::ZERO);
            "a plain server closes", |_| [HangsUp] => PLAIN;
            "a plain server sends a little and closes", |_| [SendsFirst(b"no"), HangsUp] => PLAIN;
            // The application gets to know of the reset, and there was no handshake that could
            // fail.
            "a plain server resets", |_| [Resets] => PLAIN;
        },
    );
}

#[test]
fn the_server_takes_the_offer_and_declines() {
    run(
        Taken,
        rows! {
            "version 1", |_| [Sends(decline_v1(NODEV))] => peer(NODEV);
            "version 2", |_| [Sends(decline_v2(NODEV))] => peer(NODEV);
            "out of sync", |_| [Sends(out_of_sync())] => peer(DeclineCode::SYNCERR);
            "in pieces", |_| [SendsSlowly(decline_v2(NODEV))] => peer(NODEV);
            "with data on TCP behind it, version 1", |_|
                [SendsWith(decline_v1(NODEV), b"220 ready\r\n")] => peer(NODEV);
            "with data on TCP behind it, version 2", |_|
                [SendsWith(decline_v2(NODEV), b"220 ready\r\n")] => peer(NODEV);
            "with data on TCP that looks like CLC", |_|
                [SendsWith(decline_v2(NODEV), b"\xe2\xd4\xc3\xc5")] => peer(NODEV);
            "and lets go", |_| [Sends(decline_v2(NODEV)), LetsGo] => peer(NODEV);
            "and closes", |_| [SendsWith(decline_v2(NODEV), b"bye"), HangsUp] => peer(NODEV);
            "before its channel is lost", |_|
                [Sends(decline_v2(NODEV))] => peer(NODEV).lost_after(SOON);
        },
    );
}

#[test]
fn the_server_takes_the_offer_and_fails() {
    let invalid = Outcome::Fails(ErrorKind::InvalidData);
    let reset = Outcome::Fails(ErrorKind::ConnectionReset);
    run(
        Taken,
        rows! {
            "stalls", |_| [] => Outcome::TimesOut(MESSAGE);
            "stalls, and its channel is lost", |_| [] => reset.lost_after(SOON);
            "stalls in the eyecatcher", |_| [Sends(b"\xe2\xd4".to_vec())] => Outcome::TimesOut(MESSAGE);
            "stalls in ACCEPT", |forged|
                [Sends(bytes(&forged.accept())[..100].to_vec())] => Outcome::TimesOut(MESSAGE);
            "stalls in ACCEPT, and its channel is lost", |forged|
                [Sends(bytes(&forged.accept())[..100].to_vec())] => reset.lost_after(SOON);
            "sends rubbish", |_| [Sends(b"220 mail.example ESMTP\r\n".to_vec())] => invalid;
            "sends CONFIRM", |forged| [Sends(bytes(&forged.confirm()))] => invalid;
            "damages its ACCEPT", |forged| [Sends(without_trailer(bytes(&forged.accept())))] => invalid;
            "sends on TCP instead", |_| [SendsFirst(b"220 mail.example ESMTP\r\n")] => reset;
            "lets go", |_| [LetsGo] => reset;
            "hangs up", |_| [HangsUp] => reset;
            "lets go in the eyecatcher", |_| [Sends(b"\xe2\xd4".to_vec()), LetsGo] => reset;
            "hangs up in the eyecatcher", |_| [Sends(b"\xe2\xd4".to_vec()), HangsUp] => reset;
            "hangs up in ACCEPT", |forged| {
                let accept = bytes(&forged.accept());
                vec![Sends(accept[..100].to_vec()), HangsUp]
            } => reset;
            "resets", |_| [Resets] => reset;
        },
    );
}

#[test]
fn the_server_takes_the_offer_and_accepts() {
    run(
        Taken,
        rows! {
            "at once", |forged| [Sends(bytes(&forged.accept()))] => Outcome::Smc;
            "in pieces", |forged| [SendsSlowly(bytes(&forged.accept()))] => Outcome::Smc;
            "an unregistered buffer", |forged| {
                let mut accept = forged.accept();
                direct(&mut accept).dmb.0 ^= 1;
                vec![Sends(bytes(&accept))]
            } => Outcome::Declined(DeclineCode::MEM);
        },
    );
}

/// The offer was not taken, or was taken and the server answers like this.
fn run(withdrawn: Withdrawn, rows: &[Row]) {
    for row in rows {
        everywhere(row.name, row.outcome, |world| {
            run_row(world, row, Some(withdrawn))
        });
    }
}

#[test]
fn the_server_is_known_not_to_speak() {
    let plain = Scripted::client(Delivery::Plain, Free);
    let nothing = Scripted::delivered(Taken).finds(Finds::Nothing);
    let without_interest = Scripted::delivered(Taken).finds(Finds::NoInterest);
    for scripted in [plain, nothing, without_interest] {
        everywhere("known not to support SMC", PLAIN, |world| {
            let negotiation = Arc::new(scripted.clone());
            let client = world.host_with("client", |builder| builder.negotiation(negotiation));
            let (acceptor, at) = world.raw_listener();
            world.block_on(async {
                let server = acceptor.accept();
                let since = world.now();
                let (stream, raw) = future::zip(client.endpoint.connect(at), server).await;
                assert!(world.is_within(since, SOON), "there is nothing to wait for");
                let stream = stream.unwrap();
                assert_eq!(Outcome::Tcp(reason(&stream).unwrap()), PLAIN);
                exchange(stream, Some(raw), b"").await;
                world.nothing_left([&client]).await;
            });
        });
    }
}

#[test]
fn a_client_with_nothing_to_offer_does_not_wait() {
    // Whether the server has taken the DECLINE or not: it needs no answer.
    for withdrawn in [Free, Taken] {
        everywhere("nothing to offer", PLAIN, |world| {
            let scripted = Scripted::delivered(withdrawn);
            let negotiation = Arc::new(scripted.clone());
            let endpoint = world.endpoint(|builder| builder.negotiation(negotiation));
            let (acceptor, at) = world.raw_listener();
            world.block_on(async {
                let server = acceptor.accept();
                let (stream, raw) = future::zip(endpoint.connect(at), server).await;
                let stream = stream.unwrap();
                assert_eq!(reason(&stream), Some(Codes::local(NODEV)));
                let far = scripted.far().unwrap();
                assert_eq!(declined(&far.message().await).0, NODEV);
                assert_eq!(far.rest().await, b"");
                assert_eq!(scripted.offers(), 0, "the offer is not kept");
                exchange(stream, Some(raw), b"").await;
            });
        });
    }
}

#[test]
fn a_connect_that_is_dropped_takes_its_offer_back() {
    let world = World::new();
    let scripted = Scripted::delivered(Free);
    let negotiation = Arc::new(scripted.clone());
    let client = world.host_with("client", |builder| {
        builder.negotiation(negotiation).answer_timeout(2 * SOON)
    });
    let (acceptor, at) = world.raw_listener();
    world.block_on(async {
        let connect = world.within(SOON, client.endpoint.connect(at));
        let watch = async {
            world.sleep(SOON / 2).await;
            assert_eq!(scripted.offers(), 1);
        };
        assert!(future::zip(connect, watch).await.0.is_none());
        assert_eq!(scripted.offers(), 0);
        let far = scripted.far().unwrap();
        far.message().await;
        assert_eq!(far.rest().await, b"", "only the PROPOSAL was sent");
        let raw = acceptor.accept().await;
        assert_eq!(raw.rest().await.0, b"", "not a byte on TCP");
        world.nothing_left([&client]).await;
    });
}
