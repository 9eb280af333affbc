//! First messages that reach a listener beside TCP, with the verdict on a connection.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use smc_core::FallbackReason;
use smc_core::io::negotiate::Verdict;
use smc_core::wire::clc::ClcType;
use smc_core::wire::types::DeclineCode;

use crate::messages::*;
use crate::negotiation::Scripted;
use crate::peer::{Raw, Step};
use crate::rows::{MESSAGE, Outcome, early, everywhere, peer};
use crate::world::{Forger, World, accept_now, has_taken, reason};

const NODEV: DeclineCode = DeclineCode::NOSMCDEV;
const PLAIN: Outcome = Outcome::Tcp(FallbackReason::local(DeclineCode::PEERNOSMC));
const SOON: Duration = Duration::from_millis(300);

struct Row {
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
        Row {
            name: "PROPOSAL, and CONFIRM follows",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |forger| {
                let confirm = bytes(&forger.confirm());
                vec![Step::Takes(ClcType::Accept), Step::Sends(confirm)]
            },
            outcome: Outcome::Smc,
        },
        Row {
            name: "PROPOSAL, and DECLINE follows with data",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| {
                let decline = Step::SendsWith(decline_v2(NODEV), b"GET /");
                vec![Step::Takes(ClcType::Accept), decline]
            },
            outcome: peer(NODEV),
        },
        Row {
            name: "PROPOSAL, and plain data follows",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| {
                let data = Step::Sends(b"GET /".to_vec());
                vec![Step::Takes(ClcType::Accept), data]
            },
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL, and nothing follows",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept)],
            outcome: Outcome::TimesOut(MESSAGE),
        },
        Row {
            name: "PROPOSAL, and the client hangs up",
            verdict: |forger| clc(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept), Step::HangsUp],
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL without an EID",
            verdict: |forger| {
                let mut offered = forger.proposal();
                offered.ext.as_mut().unwrap().has_seid = false;
                clc(proposal(&offered))
            },
            client: |_| vec![],
            outcome: Outcome::Declined(DeclineCode::NOUEID),
        },
        Row {
            name: "DECLINE",
            verdict: |_| clc(decline_v2(NODEV)),
            client: |_| vec![],
            outcome: peer(NODEV),
        },
        Row {
            name: "rubbish",
            verdict: |_| clc(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
            client: |_| vec![],
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL and more",
            verdict: |forger| clc([proposal(&forger.proposal()), vec![0]].concat()),
            client: |_| vec![],
            outcome: unseen,
        },
        Row {
            name: "a part of PROPOSAL",
            verdict: |forger| clc(proposal(&forger.proposal())[..100].to_vec()),
            client: |_| vec![],
            outcome: unseen,
        },
        Row {
            name: "nothing",
            verdict: |_| clc(vec![]),
            client: |_| vec![],
            outcome: unseen,
        },
        Row {
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

fn accept_row(world: &World, row: &Row) {
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
