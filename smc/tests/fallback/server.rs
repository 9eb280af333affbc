//! A listener against a client that does as it likes: first instead of its PROPOSAL, then instead
//! of its CONFIRM.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;

use smc::Listener;
use smc_core::wire::Bounded;
use smc_core::wire::clc::{GidEntry, Proposal};
use smc_core::wire::types::{Chid, DeclineCode, OfferedTypes, Version};
use smc_testkit::streams::{expect_error, listen};
use smc_testkit::world::Step::*;
use smc_testkit::world::messages::*;
use smc_testkit::world::{
    Codes, ForgedPeer, Host, Scripted, SideChannelPipe, Step, World, accept_now, exchange,
    proposal_from, reason,
};

use crate::fallback_table::{MESSAGE, NODEV, Outcome, Row, SOON, early, everywhere, peer, rows};

/// The kind of error does not matter: it is not visible.
pub(crate) const UNSEEN: Outcome = Outcome::Fails(ErrorKind::Other);

// ---- S4: instead of PROPOSAL -----------------------------------------------------------------

#[test]
fn a_client_declines_at_once() {
    run(rows! {
        "version 1", |_| [Sends(decline_v1(NODEV))] => peer(NODEV);
        "version 2", |_| [Sends(decline_v2(NODEV))] => peer(NODEV);
        "out of sync, about no group of ours", |_|
            [Sends(out_of_sync())] => peer(DeclineCode::SYNCERR);
        "in pieces", |_| [SendsSlowly(decline_v2(NODEV))] => peer(NODEV);
        "with data behind it, version 1", |_|
            [SendsWith(decline_v1(NODEV), b"GET / HTTP/1.1\r\n\r\n")] => peer(NODEV);
        "with data behind it, version 2", |_|
            [SendsWith(decline_v2(NODEV), b"GET / HTTP/1.1\r\n\r\n")] => peer(NODEV);
        "and closes", |_| [SendsWith(decline_v1(NODEV), b"bye"), HangsUp] => peer(NODEV);
    });
}

#[test]
fn a_client_is_plain() {
    run(rows! {
        "sends first", |_| [Sends(b"GET / HTTP/1.1\r\n\r\n".to_vec())] => UNSEEN;
        "never sends", |_| [] => Outcome::TimesOut(MESSAGE);
    });
}

#[test]
fn a_client_sends_rubbish_instead_of_proposal() {
    run(rows! {
        "zeros", |_| [Sends(vec![0; 300])] => UNSEEN;
        "an eyecatcher and no header", |_| [Sends(b"\xe2\xd4\xc3\xd9 and more".to_vec())] => UNSEEN;
        "ACCEPT", |forged| [Sends(bytes(&forged.accept()))] => UNSEEN;
        "CONFIRM", |forged| [Sends(bytes(&forged.confirm()))] => UNSEEN;
        "a damaged trailer", |forged| [Sends(without_trailer(forged.propose()))] => UNSEEN;
        "a length of nothing", |forged| [Sends(with_length(forged.propose(), 0))] => UNSEEN;
        "longer than any", |forged| [Sends(with_length(forged.propose(), 653))] => UNSEEN;
    });
}

#[test]
fn a_client_stalls_before_its_proposal_is_complete() {
    let late = Outcome::TimesOut(MESSAGE);
    run(rows! {
        "at once", |_| [] => late;
        "in the header", |_| [Sends(decline_v2(NODEV)[..7].to_vec())] => late;
        "in PROPOSAL", |forged| {
            let proposal = forged.propose();
            vec![Sends(proposal[..proposal.len() - 1].to_vec())]
        } => late;
    });
}

#[test]
fn a_client_hangs_up_before_its_proposal_is_complete() {
    run(rows! {
        "at once", |_| [HangsUp] => UNSEEN;
        "with a reset", |_| [Resets] => UNSEEN;
        "in the header", |_| [Sends(decline_v2(NODEV)[..7].to_vec()), HangsUp] => UNSEEN;
        "in PROPOSAL", |forged| {
            let proposal = forged.propose();
            vec![Sends(proposal[..100].to_vec()), Resets]
        } => UNSEEN;
        "after PROPOSAL", |forged| {
            let proposal = forged.propose();
            vec![Sends(proposal), HangsUp]
        } => UNSEEN;
        "after PROPOSAL with a reset", |forged| {
            let proposal = forged.propose();
            vec![Sends(proposal), Resets]
        } => UNSEEN;
    });
}

// ---- S6, S9: nothing in the PROPOSAL can be used ----------------------------------------------

fn offers(forged: &ForgedPeer, change: impl FnOnce(&mut Proposal)) -> Vec<Step> {
    let mut offered = forged.proposal();
    change(&mut offered);
    vec![Sends(proposal(&offered))]
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
    run(rows! {
        "another fabric", |forged| {
            offers(forged, |offered| {
                change_entries(offered, |entry| entry.chid = Chid(0xff77));
            })
        } => Outcome::Declined(DeclineCode::NOSMCD2DEV);
        "a device that is not there", |forged| {
            offers(forged, |offered| {
                change_entries(offered, |entry| entry.gid.0 ^= 1);
            })
        } => Outcome::Declined(DeclineCode::NOSMCD2DEV);
        "no EID at all", |forged|
            offers(forged, |offered| { offered.ext.as_mut().unwrap().has_seid = false })
            => Outcome::Declined(DeclineCode::NOUEID);
        "SMC-R only", |forged| {
            offers(forged, |offered| {
                offered.v2 = OfferedTypes::R;
                let ext = offered.ext.as_mut().unwrap();
                ext.direct = None;
                ext.max_conns = 255;
                ext.max_links = 2;
                ext.ueids.push("TEST.UEID".parse().unwrap()).unwrap();
            })
        } => Outcome::Declined(NODEV);
    });
}

/// With its own GID, and the token from its ACCEPT, a client on TCP would connect the listener to
/// itself.
#[test]
fn a_client_offers_the_device_of_the_listener() {
    for world in World::both() {
        let server = world.host("server");
        world.block_on(async {
            let (listener, at) = server.listen().await;
            let raw = world
                .raw_that_sent(at, proposal_from(&*server.device))
                .await;
            let code = DeclineCode::NOSMCD2DEV;
            assert_eq!(declined(&raw.message().await), (code, Version::V2));
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!(reason(&stream), Some(Codes::local(code)));
            exchange(stream, Some(raw), b"").await;
        });
    }
}

#[test]
fn a_listener_without_devices_declines() {
    for world in World::both() {
        let server = world.host("elsewhere");
        let forged = world.forged_peer(&server.device);
        let bare = world.endpoint(|builder| builder);
        world.block_on(async {
            let listener = listen(&bare).await;
            let raw = world
                .raw_that_sent(listener.local_addr().unwrap(), forged.propose())
                .await;
            let code = DeclineCode::NOISM2SUPP;
            assert_eq!(declined(&raw.message().await), (code, Version::V2));
            let (stream, _) = listener.accept().await.unwrap();
            assert_eq!(reason(&stream), Some(Codes::local(code)));
            exchange(stream, Some(raw), b"").await;
        });
    }
}

pub(crate) fn run(rows: &[Row]) {
    for row in rows {
        everywhere(row.name, row.outcome, |world| run_row(world, row, false));
    }
}

/// Runs a row on TCP, or beside it: the first message is there then when the connection comes, if
/// there is one.
pub(crate) fn run_row(world: &World, row: &Row, is_beside: bool) {
    let device = world.device("server");
    let forged = world.forged_peer(&device);
    let script = (row.script)(&forged);
    let (near, far, rest) = match &script[..] {
        [Sends(sent), rest @ ..] if is_beside => {
            let (near, far) = SideChannelPipe::pair();
            near.deliver(sent);
            (Some(near), Some(far), rest)
        }
        script => (None, None, script),
    };
    let negotiation = far.map_or_else(Scripted::server, Scripted::server_beside);
    let server = world.host_on(device, |builder| match is_beside {
        true => builder.negotiation(Arc::new(negotiation)),
        false => builder,
    });
    world.block_on(async {
        let (listener, at) = server.listen().await;
        let mut raw = world.raw(at).await;
        let client_addr = raw.local_addr();
        if let Some(near) = near {
            raw = raw.beside(near);
        }
        let since = world.now();
        let raw = raw.follow(rest).await;
        match row.outcome {
            Outcome::Tcp(_) | Outcome::Declined(_) => {
                let (stream, peer) = listener.accept().await.unwrap();
                assert_eq!(peer, client_addr);
                match row.outcome {
                    Outcome::Declined(code) => {
                        assert_eq!(reason(&stream), Some(Codes::local(code)));
                        let decline = raw.as_ref().unwrap().message().await;
                        assert_eq!(declined(&decline), (code, Version::V2));
                    }
                    _ => assert_eq!(Outcome::Tcp(reason(&stream).unwrap()), row.outcome),
                }
                exchange(stream, raw, early(&script)).await;
            }
            Outcome::Lost => {
                let (mut stream, _) = listener.accept().await.unwrap();
                raw.unwrap().expect_end().await;
                expect_error(&mut stream, ErrorKind::ConnectionAborted).await;
                drop(stream);
                world.only_idle_groups_left([&server]).await;
                forged.leave();
            }
            Outcome::FailsInGroup => {
                raw.unwrap().expect_end().await;
                world.only_idle_groups_left([&server]).await;
                // The peer has the link group too. It ends with the peer's device.
                forged.leave();
            }
            Outcome::Fails(_) | Outcome::TimesOut(_) => {
                if let Some(raw) = &raw {
                    raw.expect_reset().await;
                }
                let is_in_time = match row.outcome {
                    Outcome::TimesOut(time) => world.has_taken(since, time),
                    _ => !is_beside || world.is_within(since, SOON),
                };
                assert!(is_in_time, "{:?}", world.now() - since);
            }
            Outcome::Smc => {
                let (stream, peer) = listener.accept().await.unwrap();
                assert_eq!((reason(&stream), peer), (None, client_addr));
                // A peer that is gone sends no last message.
                forged.leave();
                drop(stream);
                assert_eq!(
                    raw.unwrap().rest().await.0,
                    b"",
                    "data does not go over TCP"
                );
            }
        }
        world.nothing_left([&server]).await;
        match is_beside {
            true => assert!(accept_now(&listener).is_none()),
            false => only_the_next_is_shown(world, &server, &listener, at).await,
        }
    });
}

/// The application gets to see the next client, and no other.
async fn only_the_next_is_shown(world: &World, server: &Host, listener: &Listener, at: SocketAddr) {
    let next = world.raw_that_sent(at, decline_v1(NODEV)).await;
    let (stream, peer) = listener.accept().await.unwrap();
    assert_eq!(peer, next.local_addr());
    assert_eq!(reason(&stream), Some(Codes::peer_declined(NODEV)));
    assert!(accept_now(listener).is_none());
    world.nothing_left([server]).await;
}
