//! PROPOSALs that reach the server beside TCP.
//!
//! The client has to wait on TCP for an answer that may never come, because it is somebody else
//! who is listening there; and until it comes, it must not send a byte.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use smc_core::FallbackReason;
use smc_core::io::negotiate::{Delivery, Verdict, Withdrawn};
use smc_core::wire::clc::{ClcType, Message};
use smc_core::wire::types::DeclineCode;

use crate::messages::*;
use crate::negotiation::{Finds, Scripted};
use crate::peer::{Raw, Step};
use crate::rows::{MESSAGE, Outcome, early, everywhere, peer};
use crate::world::{Forger, World, accept_now, has_taken, kind, reason};

struct Row {
    name: &'static str,
    withdrawn: Withdrawn,
    /// When it becomes known that nobody can answer.
    lost_after: Option<Duration>,
    server: fn(&Forger) -> Vec<Step>,
    outcome: Outcome,
    /// What the application reads that the server has sent before we knew.
    early: &'static [u8],
    takes: Duration,
}

/// Nobody has taken the offer, or somebody has, and the server answers like this.
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
const PLAIN: Outcome = Outcome::Tcp(FallbackReason::local(DeclineCode::PEERNOSMC));
const SOON: Duration = Duration::from_millis(300);

use Withdrawn::{Free, Taken};

#[test]
fn nobody_takes_the_offer() {
    run(&[
        row("and nobody speaks", Free, |_| vec![], PLAIN).takes(MESSAGE),
        row("and that becomes known", Free, |_| vec![], PLAIN)
            .lost_after(SOON)
            .takes(SOON),
        row(
            "a plain server speaks first",
            Free,
            |_| vec![Step::Sends(b"220 mail.example ESMTP\r\n".to_vec())],
            PLAIN,
        )
        .reads(b"220 mail.example ESMTP\r\n"),
        row(
            "a plain server speaks first, in pieces",
            Free,
            |_| vec![Step::SendsSlowly(b"220 mail.example ESMTP\r\n".to_vec())],
            PLAIN,
        )
        .reads(b"220 mail.example ESMTP\r\n"),
        row(
            "a plain server begins as a message would",
            Free,
            |_| vec![Step::SendsSlowly(b"\xe2\xd4\xc3\xc5 is EBCDIC".to_vec())],
            PLAIN,
        )
        .reads(b"\xe2\xd4\xc3\xc5 is EBCDIC"),
        row(
            "a plain server says a little that might begin a message",
            Free,
            |_| vec![Step::Sends(b"\xe2\xd4\xc3".to_vec())],
            PLAIN,
        )
        .reads(b"\xe2\xd4\xc3")
        .takes(MESSAGE),
        row(
            "the same, when it becomes known that nobody answers",
            Free,
            |_| vec![Step::Sends(b"\xe2".to_vec())],
            PLAIN,
        )
        .reads(b"\xe2")
        .lost_after(SOON)
        .takes(SOON),
        row(
            "a plain server closes",
            Free,
            |_| vec![Step::HangsUp],
            PLAIN,
        ),
        row(
            "a plain server says a little and closes",
            Free,
            |_| vec![Step::Sends(b"\xe2\xd4".to_vec()), Step::HangsUp],
            PLAIN,
        )
        .reads(b"\xe2\xd4"),
        row(
            "a plain server resets",
            Free,
            |_| vec![Step::Resets],
            Outcome::Fails(ErrorKind::ConnectionReset),
        ),
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
            "with data behind it, version 1",
            Taken,
            |_| vec![Step::SendsWith(decline_v1(NODEV), b"220 ready\r\n")],
            peer(NODEV),
        )
        .reads(b"220 ready\r\n"),
        row(
            "with data behind it, version 2",
            Taken,
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"220 ready\r\n")],
            peer(NODEV),
        )
        .reads(b"220 ready\r\n"),
        row(
            "and closes",
            Taken,
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"bye"), Step::HangsUp],
            peer(NODEV),
        )
        .reads(b"bye"),
        row(
            "although its channel was lost",
            Taken,
            |_| vec![Step::Sends(decline_v2(NODEV))],
            peer(NODEV),
        )
        .lost_after(Duration::ZERO),
    ]);
}

#[test]
fn the_server_takes_the_offer_and_fails() {
    let invalid = Outcome::Fails(ErrorKind::InvalidData);
    let reset = Outcome::Fails(ErrorKind::ConnectionReset);
    run(&[
        row("stalls", Taken, |_| vec![], Outcome::TimesOut(MESSAGE)),
        row(
            "stalls, and its channel is lost",
            Taken,
            |_| vec![],
            Outcome::TimesOut(MESSAGE),
        )
        .lost_after(SOON),
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
            "sends data",
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
        row("hangs up", Taken, |_| vec![Step::HangsUp], reset),
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
            "a buffer that nobody registered",
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
            // What the server reads in `talk` begins with the application's data.
            Outcome::Tcp(expected) => {
                let stream = connected.unwrap();
                assert_eq!(reason(&stream), Some(expected));
                assert!(now - since >= row.takes && now - since < row.takes + 2 * SOON);
                world.talk(stream, raw, row.early).await;
            }
            Outcome::Declined(code) => {
                let (stream, raw) = (connected.unwrap(), raw.unwrap());
                assert_eq!(reason(&stream), Some(FallbackReason::local(code)));
                assert_eq!(declined(&raw.message().await).0, code);
                world.talk(stream, Some(raw), b"").await;
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
            Outcome::FailsInGroup => unreachable!("groups fail before the client confirms"),
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
    let nobody = Scripted::delivered(Taken).finds(Finds::Nobody);
    let without_interest = Scripted::delivered(Taken).finds(Finds::SomebodyWithoutInterest);
    for scripted in [plain, nobody, without_interest] {
        everywhere("known not to speak", PLAIN, |world| {
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
                assert!(
                    world.rt.now() - since < SOON,
                    "there is nothing to wait for"
                );
                let stream = stream.unwrap();
                assert_eq!(Outcome::Tcp(reason(&stream).unwrap()), PLAIN);
                world.talk(stream, Some(raw), b"").await;
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
                assert_eq!(reason(&stream), Some(FallbackReason::local(NODEV)));
                assert_eq!(declined(&scripted.offered().unwrap()).0, NODEV);
                assert_eq!(scripted.offers(), 0, "the offer is not kept");
                world.talk(stream, Some(raw), b"").await;
            });
        });
    }
}

// ---- The listener's side -----------------------------------------------------------------------

struct Verdicts {
    name: &'static str,
    verdict: fn(&Forger) -> Verdict,
    client: fn(&Forger) -> Vec<Step>,
    outcome: Outcome,
}

fn clc(proposal: Vec<u8>) -> Verdict {
    Verdict::Clc {
        proposal: Some(proposal),
    }
}

#[test]
fn a_listener_gets_the_first_message_beside_tcp() {
    let unseen = Outcome::Fails(ErrorKind::Other);
    let rows = [
        Verdicts {
            name: "PROPOSAL, and CONFIRM follows",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |forger| {
                let confirm = bytes(&forger.confirm());
                vec![Step::Takes(ClcType::Accept), Step::Sends(confirm)]
            },
            outcome: Outcome::Smc,
        },
        Verdicts {
            name: "PROPOSAL, and DECLINE follows with data",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| {
                let decline = Step::SendsWith(decline_v2(NODEV), b"GET /");
                vec![Step::Takes(ClcType::Accept), decline]
            },
            outcome: peer(NODEV),
        },
        Verdicts {
            name: "PROPOSAL, and plain data follows",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| {
                let data = Step::Sends(b"GET /".to_vec());
                vec![Step::Takes(ClcType::Accept), data]
            },
            outcome: unseen,
        },
        Verdicts {
            name: "PROPOSAL, and nothing follows",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept)],
            outcome: Outcome::TimesOut(MESSAGE),
        },
        Verdicts {
            name: "PROPOSAL, and the client hangs up",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept), Step::HangsUp],
            outcome: unseen,
        },
        Verdicts {
            name: "PROPOSAL without an EID",
            verdict: |forger| {
                let mut offered = forger.proposal();
                offered.ext.as_mut().unwrap().has_seid = false;
                clc(proposal(&offered))
            },
            client: |_| vec![],
            outcome: Outcome::Declined(DeclineCode::NOUEID),
        },
        Verdicts {
            name: "DECLINE",
            verdict: |_| clc(decline_v2(NODEV)),
            client: |_| vec![],
            outcome: peer(NODEV),
        },
        Verdicts {
            name: "rubbish",
            verdict: |_| clc(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
            client: |_| vec![],
            outcome: unseen,
        },
        Verdicts {
            name: "PROPOSAL and more",
            verdict: |forger| clc([proposal(&forger.proposal()), vec![0]].concat()),
            client: |_| vec![],
            outcome: unseen,
        },
        Verdicts {
            name: "a part of PROPOSAL",
            verdict: |forger| clc(proposal(&forger.proposal())[..100].to_vec()),
            client: |_| vec![],
            outcome: unseen,
        },
        Verdicts {
            name: "nothing",
            verdict: |_| clc(vec![]),
            client: |_| vec![],
            outcome: unseen,
        },
        Verdicts {
            name: "the verdict that this is plain",
            verdict: |_| Verdict::Plain,
            client: |_| vec![Step::Sends(b"GET /".to_vec())],
            outcome: PLAIN,
        },
    ];
    for row in rows {
        everywhere(row.name, row.outcome, |world| accept_row(world, &row));
    }
}

fn accept_row(world: &World, row: &Verdicts) {
    let device = world.device("server");
    // The forged messages depend on the device, so it is made before the endpoint.
    let forger = world.forger_for(&device);
    let negotiation = Arc::new(Scripted::server((row.verdict)(&forger)));
    let server = world.host_with(device, |builder| builder.negotiation(negotiation));
    let script = (row.client)(&forger);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = Raw::connect(&*world.rt, at).await;
        let raw = raw.follow(&*world.rt, &script).await;
        let since = world.rt.now();
        match row.outcome {
            Outcome::Tcp(_) | Outcome::Declined(_) => {
                let (stream, _) = listener.accept().await.unwrap();
                let early = match row.outcome {
                    Outcome::Declined(code) => {
                        assert_eq!(reason(&stream), Some(FallbackReason::local(code)));
                        let decline = raw.as_ref().unwrap().message().await;
                        assert_eq!(declined(&decline).0, code);
                        b""
                    }
                    _ => {
                        assert_eq!(Outcome::Tcp(reason(&stream).unwrap()), row.outcome);
                        match &script[..] {
                            [Step::Sends(data)] => &data[..],
                            script => early(script),
                        }
                    }
                };
                world.talk(stream, raw, early).await;
            }
            Outcome::Smc => {
                let (stream, _) = listener.accept().await.unwrap();
                assert_eq!(reason(&stream), None);
                forger.device.leave();
            }
            Outcome::Fails(_) | Outcome::TimesOut(_) | Outcome::FailsInGroup => {
                if let Some(raw) = raw {
                    assert_eq!(raw.rest().await.0, b"", "closed without a word");
                }
                if let Outcome::TimesOut(time) = row.outcome {
                    assert!(has_taken(world.rt.now(), since, time));
                } else {
                    assert!(
                        world.rt.now() - since < SOON,
                        "there is nothing to wait for"
                    );
                }
            }
        }
        world.nothing_left(&server).await;
        assert!(accept_now(&listener).is_none());
    });
}

#[test]
fn two_endpoints_with_the_proposal_beside_tcp() {
    everywhere("both ends are real", Outcome::Smc, |world| {
        let negotiation = Arc::new(Scripted::server(None));
        let host = |name| {
            let negotiation = negotiation.clone();
            world.host_with(world.device(name), |builder| {
                builder.negotiation(negotiation)
            })
        };
        let (client, server) = (host("client"), host("server"));
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let connect = client.endpoint.connect(at);
            let (ours, theirs) = future::zip(connect, listener.accept()).await;
            let (ours, (theirs, _)) = (ours.unwrap(), theirs.unwrap());
            assert_eq!((reason(&ours), reason(&theirs)), (None, None));
            world.chat(ours, theirs).await;
            world.only_idle_groups_left(&client).await;
            world.only_idle_groups_left(&server).await;
        });
    });
}
