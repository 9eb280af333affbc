//! PROPOSALs that reach the server beside TCP.
//!
//! The whole handshake goes that way, and not a byte of it goes over TCP. The client has to wait
//! for an answer that may never come, because another process listens there.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::{FutureExt, future};
use smc::config::ANSWER_TIMEOUT;
use smc_core::negotiate::{Delivery, Withdrawn};
use smc_core::wire::clc::Message;
use smc_core::wire::types::DeclineCode;

use crate::fallback_table::{MESSAGE, Outcome, everywhere, peer};
use crate::messages::*;
use crate::negotiation::{Finds, Scripted};
use crate::peer::{Raw, Step};
use crate::world::{Codes, Forger, World, has_taken, kind, reason};

struct Row {
    name: &'static str,
    withdrawn: Withdrawn,
    /// When it becomes known that no answer can come.
    lost_after: Option<Duration>,
    server: fn(&Forger) -> Vec<Step>,
    outcome: Outcome,
    /// What the application reads that the server has sent before its announcement was known.
    early: &'static [u8],
    takes: Duration,
}

/// The offer was not taken, or was taken and the server answers like this.
fn row(
    name: &'static str,
    withdrawn: Withdrawn,
    server: fn(&Forger) -> Vec<Step>,
    outcome: Outcome,
) -> Row {
    Row {
        name,
        withdrawn,
        lost_after: None,
        server,
        outcome,
        early: b"",
        takes: Duration::ZERO,
    }
}

impl Row {
    fn lost_after(self, time: Duration) -> Self {
        Self {
            lost_after: Some(time),
            ..self
        }
    }

    fn reads(self, early: &'static [u8]) -> Self {
        Self { early, ..self }
    }

    fn takes(self, takes: Duration) -> Self {
        Self { takes, ..self }
    }
}

const NODEV: DeclineCode = DeclineCode::NOSMCDEV;
const PLAIN: Outcome = Outcome::Tcp(Codes::local(DeclineCode::PEERNOSMC));
const SOON: Duration = Duration::from_millis(300);

use Withdrawn::{Free, Taken};

#[test]
fn an_offer_without_answer() {
    run(&[
        row("and both ends are silent", Free, |_| vec![], PLAIN).takes(ANSWER_TIMEOUT),
        row("and that becomes known", Free, |_| vec![], PLAIN)
            .lost_after(ANSWER_TIMEOUT / 2)
            .takes(ANSWER_TIMEOUT / 2),
        row(
            "and the way beside TCP ends",
            Free,
            |_| vec![Step::LetsGo],
            PLAIN,
        ),
        row(
            "a plain server sends first",
            Free,
            |_| vec![Step::SendsFirst(b"220 mail.example ESMTP\r\n")],
            PLAIN,
        )
        .reads(b"220 mail.example ESMTP\r\n"),
        row(
            "a plain server sends first, in pieces",
            Free,
            |_| vec![Step::SendsFirstSlowly(b"220 mail.example ESMTP\r\n")],
            PLAIN,
        )
        .reads(b"220 mail.example ESMTP\r\n"),
        row(
            "a plain server sends what looks like CLC",
            Free,
            |_| vec![Step::SendsFirst(b"\xe2\xd4\xc3\xc5 is EBCDIC")],
            PLAIN,
        )
        .reads(b"\xe2\xd4\xc3\xc5 is EBCDIC"),
        row(
            "a plain server sends when it becomes known that no answer can come",
            Free,
            |_| vec![Step::SendsFirst(b"2")],
            PLAIN,
        )
        .reads(b"2")
        .lost_after(Duration::ZERO),
        row(
            "a plain server closes",
            Free,
            |_| vec![Step::HangsUp],
            PLAIN,
        ),
        row(
            "a plain server sends a little and closes",
            Free,
            |_| vec![Step::SendsFirst(b"no"), Step::HangsUp],
            PLAIN,
        )
        .reads(b"no"),
        // The application gets to know of the reset, and there was no handshake that could fail.
        row("a plain server resets", Free, |_| vec![Step::Resets], PLAIN),
    ]);
}

#[test]
fn the_server_takes_the_offer_and_declines() {
    run(&[
        row(
            "version 1",
            Taken,
            |_| vec![Step::Sends(decline_v1(NODEV))],
            peer(NODEV),
        ),
        row(
            "version 2",
            Taken,
            |_| vec![Step::Sends(decline_v2(NODEV))],
            peer(NODEV),
        ),
        row(
            "out of sync",
            Taken,
            |_| vec![Step::Sends(out_of_sync())],
            peer(DeclineCode::SYNCERR),
        ),
        row(
            "in pieces",
            Taken,
            |_| vec![Step::SendsSlowly(decline_v2(NODEV))],
            peer(NODEV),
        ),
        row(
            "with data on TCP behind it, version 1",
            Taken,
            |_| vec![Step::SendsWith(decline_v1(NODEV), b"220 ready\r\n")],
            peer(NODEV),
        )
        .reads(b"220 ready\r\n"),
        row(
            "with data on TCP behind it, version 2",
            Taken,
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"220 ready\r\n")],
            peer(NODEV),
        )
        .reads(b"220 ready\r\n"),
        row(
            "with data on TCP that looks like CLC",
            Taken,
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"\xe2\xd4\xc3\xc5")],
            peer(NODEV),
        )
        .reads(b"\xe2\xd4\xc3\xc5"),
        row(
            "and lets go",
            Taken,
            |_| vec![Step::Sends(decline_v2(NODEV)), Step::LetsGo],
            peer(NODEV),
        ),
        row(
            "and closes",
            Taken,
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"bye"), Step::HangsUp],
            peer(NODEV),
        )
        .reads(b"bye"),
        row(
            "before its channel is lost",
            Taken,
            |_| vec![Step::Sends(decline_v2(NODEV))],
            peer(NODEV),
        )
        .lost_after(SOON),
    ]);
}

#[test]
fn the_server_takes_the_offer_and_fails() {
    let invalid = Outcome::Fails(ErrorKind::InvalidData);
    let reset = Outcome::Fails(ErrorKind::ConnectionReset);
    run(&[
        row("stalls", Taken, |_| vec![], Outcome::TimesOut(MESSAGE)),
        row("stalls, and its channel is lost", Taken, |_| vec![], reset).lost_after(SOON),
        row(
            "stalls in the eyecatcher",
            Taken,
            |_| vec![Step::Sends(b"\xe2\xd4".to_vec())],
            Outcome::TimesOut(MESSAGE),
        ),
        row(
            "stalls in ACCEPT",
            Taken,
            |forger| vec![Step::Sends(bytes(&forger.accept())[..100].to_vec())],
            Outcome::TimesOut(MESSAGE),
        ),
        row(
            "stalls in ACCEPT, and its channel is lost",
            Taken,
            |forger| vec![Step::Sends(bytes(&forger.accept())[..100].to_vec())],
            reset,
        )
        .lost_after(SOON),
        row(
            "sends rubbish",
            Taken,
            |_| vec![Step::Sends(b"220 mail.example ESMTP\r\n".to_vec())],
            invalid,
        ),
        row(
            "sends CONFIRM",
            Taken,
            |forger| vec![Step::Sends(bytes(&forger.confirm()))],
            invalid,
        ),
        row(
            "damages its ACCEPT",
            Taken,
            |forger| vec![Step::Sends(without_trailer(bytes(&forger.accept())))],
            invalid,
        ),
        row(
            "sends on TCP instead",
            Taken,
            |_| vec![Step::SendsFirst(b"220 mail.example ESMTP\r\n")],
            reset,
        ),
        row("lets go", Taken, |_| vec![Step::LetsGo], reset),
        row("hangs up", Taken, |_| vec![Step::HangsUp], reset),
        row(
            "lets go in the eyecatcher",
            Taken,
            |_| vec![Step::Sends(b"\xe2\xd4".to_vec()), Step::LetsGo],
            reset,
        ),
        row(
            "hangs up in the eyecatcher",
            Taken,
            |_| vec![Step::Sends(b"\xe2\xd4".to_vec()), Step::HangsUp],
            reset,
        ),
        row(
            "hangs up in ACCEPT",
            Taken,
            |forger| {
                let accept = bytes(&forger.accept());
                vec![Step::Sends(accept[..100].to_vec()), Step::HangsUp]
            },
            reset,
        ),
        row("resets", Taken, |_| vec![Step::Resets], reset),
    ]);
}

#[test]
fn the_server_takes_the_offer_and_accepts() {
    run(&[
        row(
            "at once",
            Taken,
            |forger| vec![Step::Sends(bytes(&forger.accept()))],
            Outcome::Smc,
        ),
        row(
            "in pieces",
            Taken,
            |forger| vec![Step::SendsSlowly(bytes(&forger.accept()))],
            Outcome::Smc,
        ),
        row(
            "an unregistered buffer",
            Taken,
            |forger| {
                let mut accept = forger.accept();
                direct(&mut accept).dmb.0 ^= 1;
                vec![Step::Sends(bytes(&accept))]
            },
            Outcome::Declined(DeclineCode::MEM),
        ),
    ]);
}

fn run(rows: &[Row]) {
    for row in rows {
        let waits = if row.takes == MESSAGE {
            Outcome::TimesOut(MESSAGE)
        } else {
            row.outcome
        };
        everywhere(row.name, waits, |world| run_row(world, row));
    }
}

fn run_row(world: &World, row: &Row) {
    let mut scripted = Scripted::delivered(row.withdrawn);
    if let Some(time) = row.lost_after {
        scripted = scripted.lost_after(time);
    }
    let negotiation = Arc::new(scripted.clone());
    let client = world.host_with(world.device("client"), |builder| {
        builder.negotiation(negotiation)
    });
    let forger = world.forger(&client);
    let script = (row.server)(&forger);
    let acceptor = world.acceptor();
    let at = acceptor.local_addr().unwrap();
    let server = async {
        let raw = Raw::accept(&*acceptor).await;
        let raw = raw.beside(scripted.far().unwrap());
        let proposal = raw.message().await;
        assert_eq!(
            Some(proposal),
            scripted.offered(),
            "sent on the side channel"
        );
        raw.follow(&*world.rt, &script).await
    };
    world.block_on(async {
        let since = world.rt.now();
        let (connected, raw) = future::zip(client.endpoint.connect(at), server).await;
        let now = world.rt.now();
        let offered = scripted.offered().unwrap();
        assert!(matches!(Message::parse(&offered), Ok(Message::Proposal(_))));
        assert_eq!(scripted.offers(), 0, "the offer is not kept");
        match row.outcome {
            // What the server reads in `exchange` begins with the application's data.
            Outcome::Tcp(expected) => {
                let stream = connected.unwrap();
                assert_eq!(reason(&stream), Some(expected));
                assert!(now - since >= row.takes && world.is_within(since, row.takes + 2 * SOON));
                world.exchange(stream, raw, row.early).await;
            }
            Outcome::Declined(code) => {
                let (stream, raw) = (connected.unwrap(), raw.unwrap());
                assert_eq!(reason(&stream), Some(Codes::local(code)));
                assert_eq!(declined(&raw.message().await).0, code);
                world.exchange(stream, Some(raw), b"").await;
            }
            Outcome::Fails(expected) => {
                assert_eq!(kind(connected.unwrap_err()), expected);
                if let Some(raw) = raw {
                    assert_eq!(raw.rest().await.0, b"", "not a byte on TCP");
                }
            }
            Outcome::TimesOut(time) => {
                assert_eq!(kind(connected.unwrap_err()), ErrorKind::TimedOut);
                assert!(has_taken(now, since, time), "{:?}", now - since);
                assert_eq!(raw.unwrap().rest().await.0, b"", "not a byte on TCP");
            }
            Outcome::FailsInGroup | Outcome::Lost => {
                unreachable!("groups fail before the client confirms")
            }
            Outcome::Smc => {
                let (stream, raw) = (connected.unwrap(), raw.unwrap());
                assert_eq!(reason(&stream), None);
                let confirm = raw.message().await;
                assert!(matches!(Message::parse(&confirm), Ok(Message::Confirm(_))));
                forger.device.leave();
                drop(stream);
                assert_eq!(raw.rest().await.0, b"", "data does not go over TCP");
            }
        }
        world.nothing_left(&client).await;
    });
}

#[test]
fn the_server_is_known_not_to_speak() {
    let plain = Scripted::client(Delivery::Plain, Free);
    let nothing = Scripted::delivered(Taken).finds(Finds::Nothing);
    let without_interest = Scripted::delivered(Taken).finds(Finds::NoInterest);
    for scripted in [plain, nothing, without_interest] {
        everywhere("known not to support SMC", PLAIN, |world| {
            let negotiation = Arc::new(scripted.clone());
            let client = world.host_with(world.device("client"), |builder| {
                builder.negotiation(negotiation)
            });
            let acceptor = world.acceptor();
            let at = acceptor.local_addr().unwrap();
            world.block_on(async {
                let server = Raw::accept(&*acceptor);
                let since = world.rt.now();
                let (stream, raw) = future::zip(client.endpoint.connect(at), server).await;
                assert!(world.is_within(since, SOON), "there is nothing to wait for");
                let stream = stream.unwrap();
                assert_eq!(Outcome::Tcp(reason(&stream).unwrap()), PLAIN);
                world.exchange(stream, Some(raw), b"").await;
                world.nothing_left(&client).await;
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
            let acceptor = world.acceptor();
            let at = acceptor.local_addr().unwrap();
            world.block_on(async {
                let server = Raw::accept(&*acceptor);
                let (stream, raw) = future::zip(endpoint.connect(at), server).await;
                let stream = stream.unwrap();
                assert_eq!(reason(&stream), Some(Codes::local(NODEV)));
                let far = scripted.far().unwrap();
                assert_eq!(declined(&far.message().await).0, NODEV);
                assert_eq!(far.rest().await, b"");
                assert_eq!(scripted.offers(), 0, "the offer is not kept");
                world.exchange(stream, Some(raw), b"").await;
            });
        });
    }
}

#[test]
fn a_connect_that_is_dropped_takes_its_offer_back() {
    let world = World::new();
    let scripted = Scripted::delivered(Free);
    let negotiation = Arc::new(scripted.clone());
    let client = world.host_with(world.device("client"), |builder| {
        builder.negotiation(negotiation).answer_timeout(2 * SOON)
    });
    let acceptor = world.acceptor();
    let at = acceptor.local_addr().unwrap();
    world.block_on(async {
        let connect = async { Some(client.endpoint.connect(at).await) };
        let too_late = async {
            world.sleep(SOON).await;
            assert_eq!(scripted.offers(), 1);
            None
        };
        assert!(connect.or(too_late).await.is_none());
        assert_eq!(scripted.offers(), 0);
        let far = scripted.far().unwrap();
        far.message().await;
        assert_eq!(far.rest().await, b"", "only the PROPOSAL was sent");
        let raw = Raw::accept(&*acceptor).await;
        assert_eq!(raw.rest().await.0, b"", "not a byte on TCP");
        world.nothing_left(&client).await;
    });
}
