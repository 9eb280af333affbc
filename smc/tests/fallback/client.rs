//! A client that has sent its PROPOSAL on TCP, against a server that does as it likes.

use std::io::ErrorKind;
use std::sync::Arc;

use futures_lite::future;
use smc_core::negotiate::Withdrawn;
use smc_core::wire::clc::{ClcType, Header, Message, Terms};
use smc_core::wire::types::{Chid, DeclineCode, Gid, Release};
use smc_testkit::streams::expect_error;
use smc_testkit::world::Step::*;
use smc_testkit::world::messages::*;
use smc_testkit::world::{Codes, ForgedPeer, Scripted, Step, World, exchange, kind, reason};

use crate::fallback_table::{MESSAGE, NODEV, Outcome, Row, SOON, early, everywhere, peer, rows};

#[test]
fn a_server_declines() {
    run(rows! {
        "version 1", |_| [Sends(decline_v1(NODEV))] => peer(NODEV);
        "version 2", |_| [Sends(decline_v2(NODEV))] => peer(NODEV);
        "an unknown code", |_|
            [Sends(decline_v2(DeclineCode(0x1234)))] => peer(DeclineCode(0x1234));
        "out of sync, about no group of ours", |_|
            [Sends(out_of_sync())] => peer(DeclineCode::SYNCERR);
        "in pieces, version 1", |_| [SendsSlowly(decline_v1(NODEV))] => peer(NODEV);
        "in pieces, version 2", |_| [SendsSlowly(decline_v2(NODEV))] => peer(NODEV);
        "with data behind it, version 1", |_|
            [SendsWith(decline_v1(NODEV), b"220 ready\r\n")] => peer(NODEV);
        "with data behind it, version 2", |_|
            [SendsWith(decline_v2(NODEV), b"220 ready\r\n")] => peer(NODEV);
        "with data behind it that looks like a message", |_|
            [SendsWith(decline_v2(NODEV), b"\xe2\xd4\xc3\xd9\x04")] => peer(NODEV);
        "and closes", |_| [SendsWith(decline_v2(NODEV), b"bye"), HangsUp] => peer(NODEV);
    });
}

#[test]
fn a_server_is_plain() {
    run(rows! {
        "sends first", |_|
            [Sends(b"220 mail.example ESMTP\r\n".to_vec())]
            => Outcome::Fails(ErrorKind::InvalidData);
        "echoes what it gets", |forged|
            [Sends(forged.propose())] => Outcome::Fails(ErrorKind::InvalidData);
        "never sends", |_| [] => Outcome::TimesOut(MESSAGE);
    });
}

#[test]
fn a_server_sends_an_invalid_message() {
    let fails = Outcome::Fails(ErrorKind::InvalidData);
    run(rows! {
        "zeros", |_| [Sends(vec![0; 80])] => fails;
        "one wrong byte", |_| [Sends(vec![0xe3])] => fails;
        "an eyecatcher and no header", |_| [Sends(b"\xe2\xd4\xc3\xd9 and more".to_vec())] => fails;
        "CONFIRM", |forged| [Sends(bytes(&forged.confirm()))] => fails;
        "ACCEPT with a damaged trailer", |forged|
            [Sends(without_trailer(bytes(&forged.accept())))] => fails;
        "ACCEPT with a length of nothing", |forged|
            [Sends(with_length(bytes(&forged.accept()), 0))] => fails;
        "DECLINE longer than any", |_| [Sends(with_length(decline_v2(NODEV), 45))] => fails;
        "DECLINE of a length in between", |_| [Sends(with_length(decline_v2(NODEV), 40))] => fails;
        "ACCEPT for a fabric that was not offered", |forged| {
            let mut accept = forged.accept();
            direct(&mut accept).chid = Chid(0xff77);
            vec![Sends(bytes(&accept))]
        } => fails;
    });
}

#[test]
fn a_server_stalls() {
    let late = Outcome::TimesOut(MESSAGE);
    run(rows! {
        "at once", |_| [] => late;
        "in the header", |_| [Sends(decline_v2(NODEV)[..7].to_vec())] => late;
        "in DECLINE", |_| [SendsSlowly(decline_v2(NODEV)[..43].to_vec())] => late;
        "in ACCEPT", |forged| {
            let accept = bytes(&forged.accept());
            vec![Sends(accept[..accept.len() - 1].to_vec())]
        } => late;
    });
}

#[test]
fn a_server_hangs_up() {
    let fails = Outcome::Fails(ErrorKind::ConnectionReset);
    run(rows! {
        "at once", |_| [HangsUp] => fails;
        "in the header", |_| [Sends(decline_v2(NODEV)[..5].to_vec()), HangsUp] => fails;
        "in ACCEPT", |forged| {
            let accept = bytes(&forged.accept());
            vec![Sends(accept[..50].to_vec()), HangsUp]
        } => fails;
        "with a reset", |_| [Resets] => fails;
        "with a reset in ACCEPT", |forged| {
            let accept = bytes(&forged.accept());
            vec![Sends(accept[..50].to_vec()), Resets]
        } => fails;
    });
}

#[test]
fn a_server_accepts_what_the_client_cannot_have() {
    run(rows! {
        "version 1, which was not offered", |forged| {
            let mut accept = forged.accept();
            accept.terms = Terms::V1 {
                first_contact: true,
            };
            direct(&mut accept).gid = Gid::native(0xaaaa);
            direct(&mut accept).chid = Chid::NONE;
            vec![Sends(bytes(&accept))]
        } => Outcome::Declined(DeclineCode::MODEUNSUPP);
        "a link group that is not there", |forged| {
            let mut accept = forged.accept();
            let Terms::V2 { first_contact, .. } = &mut accept.terms else {
                unreachable!()
            };
            *first_contact = None;
            vec![Sends(bytes(&accept))]
        } => Outcome::Declined(DeclineCode::SYNCERR);
        "a release of the future", |forged| {
            let mut accept = forged.accept();
            let Terms::V2 { first_contact, .. } = &mut accept.terms else {
                unreachable!()
            };
            first_contact.as_mut().unwrap().release = Release::new(2).unwrap();
            vec![Sends(bytes(&accept))]
        } => Outcome::Declined(DeclineCode::RELEASEERR);
        "an unregistered buffer", |forged| {
            let mut accept = forged.accept();
            direct(&mut accept).dmb.0 ^= 1;
            vec![Sends(bytes(&accept))]
        } => Outcome::Declined(DeclineCode::MEM);
        "an element behind the end of the buffer", |forged| {
            let mut accept = forged.accept();
            direct(&mut accept).dmbe_index = 1;
            vec![Sends(bytes(&accept))]
        } => Outcome::Declined(DeclineCode::MEM);
        "a device that is not there", |forged| {
            let mut accept = forged.accept();
            direct(&mut accept).gid = Gid::new(0xaaaa, 0xbbbb);
            vec![Sends(bytes(&accept))]
        } => Outcome::Declined(DeclineCode::NOSMCD2DEV);
    });
}

#[test]
fn a_server_accepts() {
    run(rows! {
        "at first contact", |forged| [Sends(bytes(&forged.accept()))] => Outcome::Smc;
        "in pieces", |forged| [SendsSlowly(bytes(&forged.accept()))] => Outcome::Smc;
    });
}

fn run(rows: &[Row]) {
    for row in rows {
        everywhere(row.name, row.outcome, |world| run_row(world, row, None));
    }
}

/// Runs a row on TCP, or beside it where an offer is withdrawn like this.
pub(crate) fn run_row(world: &World, row: &Row, beside: Option<Withdrawn>) {
    let scripted = beside.map(|how| Scripted::delivered(how).lost_after(row.lost_after));
    let client = world.host_with("client", |builder| match &scripted {
        Some(scripted) => builder.negotiation(Arc::new(scripted.clone())),
        None => builder,
    });
    let forged = world.forged_peer(&client.device);
    let script = (row.script)(&forged);
    let (acceptor, at) = world.raw_listener();
    let server = async {
        let mut raw = acceptor.accept().await;
        if let Some(scripted) = &scripted {
            raw = raw.beside(scripted.far().unwrap());
        }
        let proposal = raw.message().await;
        assert!(matches!(
            Message::parse(&proposal),
            Ok(Message::Proposal(_))
        ));
        if let Some(scripted) = &scripted {
            assert_eq!(
                Some(proposal),
                scripted.offered(),
                "sent on the side channel"
            );
        }
        raw.follow(&script).await
    };
    world.block_on(async {
        let since = world.now();
        let (connected, raw) = future::zip(client.endpoint.connect(at), server).await;
        let took = world.now() - since;
        let has_timed_out =
            matches!(row.outcome, Outcome::TimesOut(time) if world.has_taken(since, time));
        if let Some(scripted) = &scripted {
            assert_eq!(scripted.offers(), 0, "the offer is not kept");
        }
        match row.outcome {
            // What the server reads in `exchange` begins with the application's data.
            Outcome::Tcp(expected) => {
                let stream = connected.unwrap();
                assert_eq!(reason(&stream), Some(expected));
                let is_in_time = world.is_within(since, row.takes + 2 * SOON);
                assert!(
                    beside.is_none() || (took >= row.takes && is_in_time),
                    "{took:?}"
                );
                exchange(stream, raw, early(&script)).await;
            }
            Outcome::Declined(code) => {
                let (stream, raw) = (connected.unwrap(), raw.unwrap());
                assert_eq!(reason(&stream), Some(Codes::local(code)));
                let [Sends(accept)] = &script[..] else {
                    unreachable!("only ACCEPT is declined")
                };
                let version = Header::parse(accept).unwrap().version;
                assert_eq!(declined(&raw.message().await), (code, version));
                exchange(stream, Some(raw), b"").await;
            }
            Outcome::Fails(_) | Outcome::TimesOut(_) => {
                let error = kind(connected.unwrap_err());
                match row.outcome {
                    Outcome::Fails(expected) => assert_eq!(error, expected),
                    _ => assert!(error == ErrorKind::TimedOut && has_timed_out, "{took:?}"),
                }
                if let Some(raw) = raw {
                    // Nothing follows the PROPOSAL.
                    raw.expect_end().await;
                }
            }
            Outcome::FailsInGroup | Outcome::Lost => {
                unreachable!("groups fail before the client confirms")
            }
            Outcome::Smc => {
                let (stream, raw) = (connected.unwrap(), raw.unwrap());
                assert_eq!(reason(&stream), None);
                let confirm = raw.message().await;
                assert!(matches!(Message::parse(&confirm), Ok(Message::Confirm(_))));
                // A peer that is gone sends no last message.
                forged.leave();
                drop(stream);
                assert_eq!(raw.rest().await.0, b"", "data does not go over TCP");
            }
        }
        world.nothing_left([&client]).await;
    });
}

// ---- Behind CONFIRM: the client is in SMC mode and cannot fall back ----------------------------

/// Actions of the server after its ACCEPT. The stream ends; it shows nothing of what was on TCP.
#[test]
fn a_server_accepts_and_thinks_better_of_it() {
    type Script = fn(&ForgedPeer) -> Vec<Step>;
    let scripts: [(&str, Script); 5] = [
        ("hangs up", |_| vec![HangsUp]),
        ("resets", |_| vec![Resets]),
        ("hangs up after CONFIRM", |_| {
            vec![Takes(ClcType::Confirm), HangsUp]
        }),
        ("declines after CONFIRM", |_| {
            vec![
                Takes(ClcType::Confirm),
                Sends(decline_v2(DeclineCode::RELEASEERR)),
            ]
        }),
        ("sends data on TCP after CONFIRM", |_| {
            vec![Takes(ClcType::Confirm), Sends(b"220 ready\r\n".to_vec())]
        }),
    ];
    for (name, server) in scripts {
        everywhere(name, Outcome::Smc, |world| {
            let client = world.host("client");
            let forged = world.forged_peer(&client.device);
            let accept = Sends(bytes(&forged.accept()));
            let script = [vec![accept], server(&forged)].concat();
            let (acceptor, at) = world.raw_listener();
            let server = async {
                let raw = acceptor.accept().await;
                raw.message().await;
                raw.follow(&script).await
            };
            world.block_on(async {
                let (connected, _raw) = future::zip(client.endpoint.connect(at), server).await;
                match connected {
                    Ok(mut stream) => {
                        assert!(stream.mode().is_smc());
                        expect_error(&mut stream, ErrorKind::ConnectionAborted).await;
                    }
                    // CONFIRM no longer went out.
                    Err(error) => {
                        let ends = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                        assert!(ends.contains(&kind(error)));
                    }
                }
                world.only_idle_groups_left([&client]).await;
            });
        });
    }
}
