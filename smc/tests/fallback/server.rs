//! A listener against a client that does as it likes: first instead of its PROPOSAL, then instead
//! of its CONFIRM.

use std::io::ErrorKind;

use futures_lite::AsyncReadExt as _;
use smc_core::wire::Bounded;
use smc_core::wire::clc::{GidEntry, Proposal};
use smc_core::wire::types::{Chid, DeclineCode, Offer, Version};

use crate::fallback_table::{FIRST_BYTE, MESSAGE, Outcome, early, everywhere, peer};
use crate::messages::*;
use crate::peer::{Raw, Step};
use crate::world::{Codes, Forger, Host, World, accept_now, has_taken, reason};

pub(crate) struct Row {
    name: &'static str,
    client: fn(&Forger) -> Vec<Step>,
    outcome: Outcome,
}

pub(crate) const fn row(
    name: &'static str,
    client: fn(&Forger) -> Vec<Step>,
    outcome: Outcome,
) -> Row {
    Row {
        name,
        client,
        outcome,
    }
}

pub(crate) const NODEV: DeclineCode = DeclineCode::NOSMCDEV;

/// The kind of error does not matter: it is not visible.
pub(crate) const UNSEEN: Outcome = Outcome::Fails(ErrorKind::Other);

// ---- S4: instead of PROPOSAL -----------------------------------------------------------------

#[test]
fn a_client_declines_at_once() {
    run(&[
        row(
            "version 1",
            |_| vec![Step::Sends(decline_v1(NODEV))],
            peer(NODEV),
        ),
        row(
            "version 2",
            |_| vec![Step::Sends(decline_v2(NODEV))],
            peer(NODEV),
        ),
        row(
            "out of sync, about no group of ours",
            |_| vec![Step::Sends(out_of_sync())],
            peer(DeclineCode::SYNCERR),
        ),
        row(
            "in pieces",
            |_| vec![Step::SendsSlowly(decline_v2(NODEV))],
            peer(NODEV),
        ),
        row(
            "with data behind it, version 1",
            |_| {
                vec![Step::SendsWith(
                    decline_v1(NODEV),
                    b"GET / HTTP/1.1\r\n\r\n",
                )]
            },
            peer(NODEV),
        ),
        row(
            "with data behind it, version 2",
            |_| {
                vec![Step::SendsWith(
                    decline_v2(NODEV),
                    b"GET / HTTP/1.1\r\n\r\n",
                )]
            },
            peer(NODEV),
        ),
        row(
            "and closes",
            |_| vec![Step::SendsWith(decline_v1(NODEV), b"bye"), Step::HangsUp],
            peer(NODEV),
        ),
    ]);
}

#[test]
fn a_client_is_plain() {
    run(&[
        row(
            "sends first",
            |_| vec![Step::Sends(b"GET / HTTP/1.1\r\n\r\n".to_vec())],
            UNSEEN,
        ),
        row("never sends", |_| vec![], Outcome::TimesOut(FIRST_BYTE)),
    ]);
}

#[test]
fn a_client_sends_rubbish_instead_of_proposal() {
    run(&[
        row("zeros", |_| vec![Step::Sends(vec![0; 300])], UNSEEN),
        row(
            "an eyecatcher and no header",
            |_| vec![Step::Sends(b"\xe2\xd4\xc3\xd9 and more".to_vec())],
            UNSEEN,
        ),
        row(
            "ACCEPT",
            |forger| vec![Step::Sends(bytes(&forger.accept()))],
            UNSEEN,
        ),
        row(
            "CONFIRM",
            |forger| vec![Step::Sends(bytes(&forger.confirm()))],
            UNSEEN,
        ),
        row(
            "a damaged trailer",
            |forger| vec![Step::Sends(without_trailer(proposal(&forger.proposal())))],
            UNSEEN,
        ),
        row(
            "a length of nothing",
            |forger| vec![Step::Sends(with_length(proposal(&forger.proposal()), 0))],
            UNSEEN,
        ),
        row(
            "longer than any",
            |forger| vec![Step::Sends(with_length(proposal(&forger.proposal()), 653))],
            UNSEEN,
        ),
    ]);
}

#[test]
fn a_client_stalls_before_its_proposal_is_complete() {
    let late = Outcome::TimesOut(MESSAGE);
    run(&[
        row("at once", |_| vec![], Outcome::TimesOut(FIRST_BYTE)),
        row(
            "in the header",
            |_| vec![Step::Sends(decline_v2(NODEV)[..7].to_vec())],
            late,
        ),
        row(
            "in PROPOSAL",
            |forger| {
                let proposal = proposal(&forger.proposal());
                vec![Step::Sends(proposal[..proposal.len() - 1].to_vec())]
            },
            late,
        ),
    ]);
}

#[test]
fn a_client_hangs_up_before_its_proposal_is_complete() {
    run(&[
        row("at once", |_| vec![Step::HangsUp], UNSEEN),
        row("with a reset", |_| vec![Step::Resets], UNSEEN),
        row(
            "in the header",
            |_| vec![Step::Sends(decline_v2(NODEV)[..7].to_vec()), Step::HangsUp],
            UNSEEN,
        ),
        row(
            "in PROPOSAL",
            |forger| {
                let proposal = proposal(&forger.proposal());
                vec![Step::Sends(proposal[..100].to_vec()), Step::Resets]
            },
            UNSEEN,
        ),
        row(
            "after PROPOSAL",
            |forger| {
                let proposal = proposal(&forger.proposal());
                vec![Step::Sends(proposal), Step::HangsUp]
            },
            UNSEEN,
        ),
        row(
            "after PROPOSAL with a reset",
            |forger| {
                let proposal = proposal(&forger.proposal());
                vec![Step::Sends(proposal), Step::Resets]
            },
            UNSEEN,
        ),
    ]);
}

// ---- S6, S9: nothing in the PROPOSAL can be used ----------------------------------------------

fn offers(forger: &Forger, change: impl FnOnce(&mut Proposal)) -> Vec<Step> {
    let mut offered = forger.proposal();
    change(&mut offered);
    vec![Step::Sends(proposal(&offered))]
}

fn change_entries(offered: &mut Proposal, change: impl Fn(&mut GidEntry)) {
    let direct = offered.ext.as_mut().unwrap().direct.as_mut().unwrap();
    let changed = direct.entries.iter().map(|entry| {
        let mut entry = *entry;
        change(&mut entry);
        entry
    });
    direct.entries = Bounded::from_iter_lossy(changed.collect::<Vec<_>>());
}

#[test]
fn the_listener_declines_a_proposal() {
    run(&[
        row(
            "another fabric",
            |forger| {
                offers(forger, |offered| {
                    change_entries(offered, |entry| entry.chid = Chid(0xff77));
                })
            },
            Outcome::Declined(DeclineCode::NOSMCD2DEV),
        ),
        row(
            "a device that is not there",
            |forger| {
                offers(forger, |offered| {
                    change_entries(offered, |entry| entry.gid.0 ^= 1);
                })
            },
            Outcome::Declined(DeclineCode::NOSMCD2DEV),
        ),
        row(
            "no EID at all",
            |forger| {
                offers(forger, |offered| {
                    offered.ext.as_mut().unwrap().has_seid = false
                })
            },
            Outcome::Declined(DeclineCode::NOUEID),
        ),
        row(
            "SMC-R only",
            |forger| {
                offers(forger, |offered| {
                    offered.v2 = Offer::R;
                    let ext = offered.ext.as_mut().unwrap();
                    ext.direct = None;
                    ext.max_conns = 255;
                    ext.max_links = 2;
                    ext.ueids.push("TEST.UEID".parse().unwrap()).unwrap();
                })
            },
            Outcome::Declined(NODEV),
        ),
    ]);
}

#[test]
fn a_listener_without_devices_declines() {
    for world in [Some(World::new()), World::real()].into_iter().flatten() {
        let server = world.host("elsewhere");
        let forger = world.forger(&server);
        let bare = world.endpoint(|builder| builder);
        world.block_on(async {
            let listener = bare.bind(crate::world::anywhere()).await.unwrap();
            let raw = Raw::connect(&*world.rt, listener.local_addr().unwrap()).await;
            raw.send(&proposal(&forger.proposal())).await;
            let code = DeclineCode::NOISM2SUPP;
            assert_eq!(declined(&raw.message().await), (code, Version::V2));
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!(reason(&stream), Some(Codes::local(code)));
            world.exchange(stream, Some(raw), b"").await;
        });
    }
}

pub(crate) fn run(rows: &[Row]) {
    for row in rows {
        everywhere(row.name, row.outcome, |world| run_row(world, row));
    }
}

fn run_row(world: &World, row: &Row) {
    let server = world.host("server");
    let forger = world.forger(&server);
    let script = (row.client)(&forger);
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let raw = Raw::connect(&*world.rt, at).await;
        let client_addr = raw.local_addr();
        let raw = raw.follow(&*world.rt, &script).await;
        let since = world.rt.now();
        match row.outcome {
            Outcome::Tcp(_) | Outcome::Declined(_) => {
                let (stream, peer) = listener.accept().await.unwrap();
                assert_eq!(peer, client_addr);
                match row.outcome {
                    Outcome::Tcp(expected) => assert_eq!(reason(&stream), Some(expected)),
                    Outcome::Declined(code) => {
                        assert_eq!(reason(&stream), Some(Codes::local(code)));
                        let decline = raw.as_ref().unwrap().message().await;
                        assert_eq!(declined(&decline), (code, Version::V2));
                    }
                    _ => unreachable!(),
                }
                world.exchange(stream, raw, early(&script)).await;
            }
            Outcome::Lost => {
                let (mut stream, _) = listener.accept().await.unwrap();
                assert_eq!(raw.unwrap().rest().await.0, b"", "closed without a word");
                let end = stream.read(&mut [0; 8]).await;
                assert_eq!(end.unwrap_err().kind(), ErrorKind::ConnectionAborted);
                drop(stream);
                world.only_idle_groups_left(&server).await;
                forger.device.leave();
            }
            Outcome::FailsInGroup => {
                assert_eq!(raw.unwrap().rest().await.0, b"", "closed without a word");
                world.only_idle_groups_left(&server).await;
                // The peer has the link group too. It ends with the peer's device.
                forger.device.leave();
            }
            Outcome::Fails(_) | Outcome::TimesOut(_) => {
                if let Some(raw) = &raw {
                    assert_eq!(raw.rest().await.0, b"", "closed without a word");
                }
                if let Outcome::TimesOut(time) = row.outcome {
                    let now = world.rt.now();
                    assert!(has_taken(now, since, time), "{:?}", now - since);
                }
            }
            Outcome::Smc => {
                let (stream, peer) = listener.accept().await.unwrap();
                assert_eq!((reason(&stream), peer), (None, client_addr));
                // A peer that is gone sends no last message.
                forger.device.leave();
                drop(stream);
                assert_eq!(
                    raw.unwrap().rest().await.0,
                    b"",
                    "data does not go over TCP"
                );
            }
        }
        world.nothing_left(&server).await;
        only_the_next_is_shown(world, &server, &listener, at).await;
    });
}

/// The application gets to see the next client, and no other.
async fn only_the_next_is_shown(
    world: &World,
    server: &Host,
    listener: &smc::Listener,
    at: std::net::SocketAddr,
) {
    let next = Raw::connect(&*world.rt, at).await;
    next.send(&decline_v1(NODEV)).await;
    let (stream, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, next.local_addr());
    assert_eq!(reason(&stream), Some(Codes::peer_declined(NODEV)));
    assert!(accept_now(listener).is_none());
    world.nothing_left(server).await;
}
