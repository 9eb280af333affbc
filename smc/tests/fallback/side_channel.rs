//! Handshakes that a listener has beside TCP, controlled by the verdict on a connection.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use futures_lite::future;
use smc_core::FallbackCause;
use smc_core::wire::clc::ClcType;
use smc_core::wire::types::DeclineCode;

use crate::fallback_table::{MESSAGE, Outcome, early, everywhere, peer};
use crate::messages::*;
use crate::negotiation::Scripted;
use crate::peer::{Raw, Step};
use crate::pipe::Pipe;
use crate::world::{Codes, Forger, World, accept_now, has_taken, reason};

const NODEV: DeclineCode = DeclineCode::NOSMCDEV;
const PLAIN: Outcome = Outcome::Tcp(Codes::local(DeclineCode::PEERNOSMC));
const SOON: Duration = Duration::from_millis(300);

struct Row {
    name: &'static str,
    /// What the client has sent already, if it supports SMC.
    sent: fn(&Forger) -> Option<Vec<u8>>,
    client: fn(&Forger) -> Vec<Step>,
    outcome: Outcome,
}

#[test]
fn a_listener_gets_the_first_message_beside_tcp() {
    let unseen = Outcome::Fails(ErrorKind::Other);
    let rows = [
        Row {
            name: "PROPOSAL, and CONFIRM follows",
            sent: |forger| Some(proposal(&forger.proposal())),
            client: |forger| {
                let confirm = bytes(&forger.confirm());
                vec![Step::Takes(ClcType::Accept), Step::Sends(confirm)]
            },
            outcome: Outcome::Smc,
        },
        Row {
            name: "PROPOSAL, and DECLINE follows with data",
            sent: |forger| Some(proposal(&forger.proposal())),
            client: |_| {
                let decline = Step::SendsWith(decline_v2(NODEV), b"GET /");
                vec![Step::Takes(ClcType::Accept), decline]
            },
            outcome: peer(NODEV),
        },
        Row {
            name: "PROPOSAL, and rubbish follows",
            sent: |forger| Some(proposal(&forger.proposal())),
            client: |_| {
                let rubbish = Step::Sends(b"GET /".to_vec());
                vec![Step::Takes(ClcType::Accept), rubbish]
            },
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL, and data on TCP follows",
            sent: |forger| Some(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept), Step::SendsFirst(b"GET /")],
            outcome: Outcome::TimesOut(MESSAGE),
        },
        Row {
            name: "PROPOSAL, and the client lets go",
            sent: |forger| Some(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept), Step::LetsGo],
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL, and nothing follows",
            sent: |forger| Some(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept)],
            outcome: Outcome::TimesOut(MESSAGE),
        },
        Row {
            name: "PROPOSAL, and the client hangs up",
            sent: |forger| Some(proposal(&forger.proposal())),
            client: |_| vec![Step::Takes(ClcType::Accept), Step::HangsUp],
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL without an EID",
            sent: |forger| {
                let mut offered = forger.proposal();
                offered.ext.as_mut().unwrap().has_seid = false;
                Some(proposal(&offered))
            },
            client: |_| vec![],
            outcome: Outcome::Declined(DeclineCode::NOUEID),
        },
        Row {
            name: "DECLINE",
            sent: |_| Some(decline_v2(NODEV)),
            client: |_| vec![],
            outcome: peer(NODEV),
        },
        Row {
            name: "rubbish",
            sent: |_| Some(b"GET / HTTP/1.1\r\n\r\n".to_vec()),
            client: |_| vec![],
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL and more",
            sent: |forger| Some([proposal(&forger.proposal()), vec![0]].concat()),
            client: |_| vec![],
            outcome: unseen,
        },
        Row {
            name: "a part of PROPOSAL",
            sent: |forger| Some(proposal(&forger.proposal())[..100].to_vec()),
            client: |_| vec![],
            outcome: Outcome::TimesOut(MESSAGE),
        },
        Row {
            name: "a part of PROPOSAL, and the client is gone",
            sent: |forger| Some(proposal(&forger.proposal())[..100].to_vec()),
            client: |_| vec![Step::LetsGo],
            outcome: unseen,
        },
        Row {
            name: "PROPOSAL, the rest of it later",
            sent: |forger| Some(proposal(&forger.proposal())[..100].to_vec()),
            client: |forger| {
                let rest = proposal(&forger.proposal())[100..].to_vec();
                let confirm = bytes(&forger.confirm());
                vec![
                    Step::SendsSlowly(rest),
                    Step::Takes(ClcType::Accept),
                    Step::SendsSlowly(confirm),
                ]
            },
            outcome: Outcome::Smc,
        },
        Row {
            name: "nothing",
            sent: |_| Some(vec![]),
            client: |_| vec![],
            outcome: Outcome::TimesOut(MESSAGE),
        },
        Row {
            name: "nothing, and the client is gone",
            sent: |_| Some(vec![]),
            client: |_| vec![Step::LetsGo],
            outcome: unseen,
        },
        Row {
            name: "the verdict that this is plain",
            sent: |_| None,
            client: |_| vec![Step::SendsFirst(b"GET /")],
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
    let (near, negotiation) = match (row.sent)(&forger) {
        Some(sent) => {
            let (near, far) = Pipe::pair();
            near.deliver(&sent);
            (Some(near), Scripted::server_beside(far))
        }
        None => (None, Scripted::server()),
    };
    let negotiation = Arc::new(negotiation);
    let server = world.host_with(device, |builder| builder.negotiation(negotiation));
    let script = (row.client)(&forger);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let since = world.rt.now();
        let raw = Raw::connect(&*world.rt, at).await;
        let raw = match near {
            Some(near) => raw.beside(near),
            None => raw,
        };
        let raw = raw.follow(&*world.rt, &script).await;
        match row.outcome {
            Outcome::Tcp(_) | Outcome::Declined(_) => {
                let (stream, _) = listener.accept().await.unwrap();
                let early = match row.outcome {
                    Outcome::Declined(code) => {
                        assert_eq!(reason(&stream), Some(Codes::local(code)));
                        let decline = raw.as_ref().unwrap().message().await;
                        assert_eq!(declined(&decline).0, code);
                        b""
                    }
                    _ => {
                        assert_eq!(Outcome::Tcp(reason(&stream).unwrap()), row.outcome);
                        match &script[..] {
                            [Step::SendsFirst(data)] => data,
                            script => early(script),
                        }
                    }
                };
                world.exchange(stream, raw, early).await;
            }
            Outcome::Smc => {
                let (stream, _) = listener.accept().await.unwrap();
                assert_eq!(reason(&stream), None);
                forger.device.leave();
            }
            Outcome::Fails(_) | Outcome::TimesOut(_) | Outcome::FailsInGroup | Outcome::Lost => {
                if let Some(raw) = raw {
                    assert_eq!(raw.rest().await.0, b"", "closed without a word");
                }
                if let Outcome::TimesOut(time) = row.outcome {
                    assert!(has_taken(world.rt.now(), since, time));
                } else {
                    assert!(world.is_within(since, SOON), "there is nothing to wait for");
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
        let negotiation = Arc::new(Scripted::server());
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

#[test]
fn a_client_that_withdraws_before_the_answer_has_plain_tcp() {
    everywhere("withdrawn", PLAIN, |world| {
        let device = world.device("server");
        let forger = world.forger_for(&device);
        let (near, far) = Pipe::pair();
        near.deliver(&proposal(&forger.proposal()));
        let negotiation = Arc::new(Scripted::server_beside(far.withdrawn()));
        let server = world.host_with(device, |builder| builder.negotiation(negotiation));
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let raw = Raw::connect(&*world.rt, at).await;
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!(
                stream.fallback_reason().unwrap().cause,
                FallbackCause::Withdrawn
            );
            world.exchange(stream, Some(raw), b"").await;
            world.nothing_left(&server).await;
        });
    });
}
