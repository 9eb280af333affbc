//! A client that has sent its PROPOSAL on TCP, against a server that does as it likes.

use std::io::ErrorKind;

use futures_lite::{AsyncReadExt, future};
use smc_core::wire::clc::{ClcType, Header, Message, Terms};
use smc_core::wire::types::{Chid, DeclineCode, Gid, Release};

use crate::fallback_table::{MESSAGE, Outcome, early, everywhere, peer};
use crate::messages::*;
use crate::peer::{Raw, Step};
use crate::world::{Codes, Forger, World, has_taken, kind, reason};

/// What the server does once it has the PROPOSAL.
type Script = fn(&Forger) -> Vec<Step>;

struct Row {
    name: &'static str,
    server: Script,
    outcome: Outcome,
}

const fn row(name: &'static str, server: Script, outcome: Outcome) -> Row {
    Row {
        name,
        server,
        outcome,
    }
}

const NODEV: DeclineCode = DeclineCode::NOSMCDEV;

#[test]
fn a_server_declines() {
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
            "an unknown code",
            |_| vec![Step::Sends(decline_v2(DeclineCode(0x1234)))],
            peer(DeclineCode(0x1234)),
        ),
        row(
            "out of sync, about no group of ours",
            |_| vec![Step::Sends(out_of_sync())],
            peer(DeclineCode::SYNCERR),
        ),
        row(
            "in pieces, version 1",
            |_| vec![Step::SendsSlowly(decline_v1(NODEV))],
            peer(NODEV),
        ),
        row(
            "in pieces, version 2",
            |_| vec![Step::SendsSlowly(decline_v2(NODEV))],
            peer(NODEV),
        ),
        row(
            "with data behind it, version 1",
            |_| vec![Step::SendsWith(decline_v1(NODEV), b"220 ready\r\n")],
            peer(NODEV),
        ),
        row(
            "with data behind it, version 2",
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"220 ready\r\n")],
            peer(NODEV),
        ),
        row(
            "with data behind it that looks like a message",
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"\xe2\xd4\xc3\xd9\x04")],
            peer(NODEV),
        ),
        row(
            "and closes",
            |_| vec![Step::SendsWith(decline_v2(NODEV), b"bye"), Step::HangsUp],
            peer(NODEV),
        ),
    ]);
}

#[test]
fn a_server_is_plain() {
    run(&[
        row(
            "sends first",
            |_| vec![Step::Sends(b"220 mail.example ESMTP\r\n".to_vec())],
            Outcome::Fails(ErrorKind::InvalidData),
        ),
        row(
            "echoes what it gets",
            |forger| vec![Step::Sends(proposal(&forger.proposal()))],
            Outcome::Fails(ErrorKind::InvalidData),
        ),
        row("never sends", |_| vec![], Outcome::TimesOut(MESSAGE)),
    ]);
}

#[test]
fn a_server_sends_rubbish() {
    let fails = Outcome::Fails(ErrorKind::InvalidData);
    run(&[
        row("zeros", |_| vec![Step::Sends(vec![0; 80])], fails),
        row("one wrong byte", |_| vec![Step::Sends(vec![0xe3])], fails),
        row(
            "an eyecatcher and no header",
            |_| vec![Step::Sends(b"\xe2\xd4\xc3\xd9 and more".to_vec())],
            fails,
        ),
        row(
            "CONFIRM",
            |forger| vec![Step::Sends(bytes(&forger.confirm()))],
            fails,
        ),
        row(
            "ACCEPT with a damaged trailer",
            |forger| vec![Step::Sends(without_trailer(bytes(&forger.accept())))],
            fails,
        ),
        row(
            "ACCEPT with a length of nothing",
            |forger| vec![Step::Sends(with_length(bytes(&forger.accept()), 0))],
            fails,
        ),
        row(
            "DECLINE longer than any",
            |_| vec![Step::Sends(with_length(decline_v2(NODEV), 45))],
            fails,
        ),
        row(
            "DECLINE of a length in between",
            |_| vec![Step::Sends(with_length(decline_v2(NODEV), 40))],
            fails,
        ),
        row(
            "ACCEPT for a fabric that was not offered",
            |forger| {
                let mut accept = forger.accept();
                direct(&mut accept).chid = Chid(0xff77);
                vec![Step::Sends(bytes(&accept))]
            },
            fails,
        ),
    ]);
}

#[test]
fn a_server_stalls() {
    let late = Outcome::TimesOut(MESSAGE);
    run(&[
        row("at once", |_| vec![], late),
        row(
            "in the header",
            |_| vec![Step::Sends(decline_v2(NODEV)[..7].to_vec())],
            late,
        ),
        row(
            "in DECLINE",
            |_| vec![Step::SendsSlowly(decline_v2(NODEV)[..43].to_vec())],
            late,
        ),
        row(
            "in ACCEPT",
            |forger| {
                let accept = bytes(&forger.accept());
                vec![Step::Sends(accept[..accept.len() - 1].to_vec())]
            },
            late,
        ),
    ]);
}

#[test]
fn a_server_hangs_up() {
    let fails = Outcome::Fails(ErrorKind::ConnectionReset);
    run(&[
        row("at once", |_| vec![Step::HangsUp], fails),
        row(
            "in the header",
            |_| vec![Step::Sends(decline_v2(NODEV)[..5].to_vec()), Step::HangsUp],
            fails,
        ),
        row(
            "in ACCEPT",
            |forger| {
                let accept = bytes(&forger.accept());
                vec![Step::Sends(accept[..50].to_vec()), Step::HangsUp]
            },
            fails,
        ),
        row("with a reset", |_| vec![Step::Resets], fails),
        row(
            "with a reset in ACCEPT",
            |forger| {
                let accept = bytes(&forger.accept());
                vec![Step::Sends(accept[..50].to_vec()), Step::Resets]
            },
            fails,
        ),
    ]);
}

#[test]
fn a_server_accepts_what_the_client_cannot_have() {
    run(&[
        row(
            "version 1, which was not offered",
            |forger| {
                let mut accept = forger.accept();
                accept.terms = Terms::V1 {
                    first_contact: true,
                };
                direct(&mut accept).gid = Gid::native(0xaaaa);
                direct(&mut accept).chid = Chid::NONE;
                vec![Step::Sends(bytes(&accept))]
            },
            Outcome::Declined(DeclineCode::MODEUNSUPP),
        ),
        row(
            "a link group that is not there",
            |forger| {
                let mut accept = forger.accept();
                let Terms::V2 { first_contact, .. } = &mut accept.terms else {
                    unreachable!()
                };
                *first_contact = None;
                vec![Step::Sends(bytes(&accept))]
            },
            Outcome::Declined(DeclineCode::SYNCERR),
        ),
        row(
            "a release of the future",
            |forger| {
                let mut accept = forger.accept();
                let Terms::V2 { first_contact, .. } = &mut accept.terms else {
                    unreachable!()
                };
                first_contact.as_mut().unwrap().release = Release::new(2).unwrap();
                vec![Step::Sends(bytes(&accept))]
            },
            Outcome::Declined(DeclineCode::RELEASEERR),
        ),
        row(
            "an unregistered buffer",
            |forger| {
                let mut accept = forger.accept();
                direct(&mut accept).dmb.0 ^= 1;
                vec![Step::Sends(bytes(&accept))]
            },
            Outcome::Declined(DeclineCode::MEM),
        ),
        row(
            "an element behind the end of the buffer",
            |forger| {
                let mut accept = forger.accept();
                direct(&mut accept).dmbe_index = 1;
                vec![Step::Sends(bytes(&accept))]
            },
            Outcome::Declined(DeclineCode::MEM),
        ),
        row(
            "a device that is not there",
            |forger| {
                let mut accept = forger.accept();
                direct(&mut accept).gid = Gid::new(0xaaaa, 0xbbbb);
                vec![Step::Sends(bytes(&accept))]
            },
            Outcome::Declined(DeclineCode::NOSMCD2DEV),
        ),
    ]);
}

#[test]
fn a_server_accepts() {
    run(&[
        row(
            "at first contact",
            |forger| vec![Step::Sends(bytes(&forger.accept()))],
            Outcome::Smc,
        ),
        row(
            "in pieces",
            |forger| vec![Step::SendsSlowly(bytes(&forger.accept()))],
            Outcome::Smc,
        ),
    ]);
}

fn run(rows: &[Row]) {
    for row in rows {
        everywhere(row.name, row.outcome, |world| run_row(world, row));
    }
}

fn run_row(world: &World, row: &Row) {
    let client = world.host("client");
    let forger = world.forger(&client);
    let script = (row.server)(&forger);
    let acceptor = world.acceptor();
    let at = acceptor.local_addr().unwrap();
    let server = async {
        let raw = Raw::accept(&*acceptor).await;
        let proposal = raw.message().await;
        assert!(matches!(
            Message::parse(&proposal),
            Ok(Message::Proposal(_))
        ));
        raw.follow(&*world.rt, &script).await
    };
    world.block_on(async {
        let since = world.rt.now();
        let (connected, raw) = future::zip(client.endpoint.connect(at), server).await;
        let now = world.rt.now();
        match row.outcome {
            Outcome::Tcp(expected) => {
                let stream = connected.unwrap();
                assert_eq!(reason(&stream), Some(expected));
                world.exchange(stream, raw, early(&script)).await;
            }
            Outcome::Declined(code) => {
                let (stream, raw) = (connected.unwrap(), raw.unwrap());
                assert_eq!(reason(&stream), Some(Codes::local(code)));
                let accept = match &script[..] {
                    [Step::Sends(accept)] => Header::parse(accept).unwrap(),
                    _ => unreachable!(),
                };
                let version = accept.version;
                assert_eq!(declined(&raw.message().await), (code, version));
                world.exchange(stream, Some(raw), b"").await;
            }
            Outcome::Fails(_) | Outcome::TimesOut(_) => {
                let error = kind(connected.unwrap_err());
                match row.outcome {
                    Outcome::Fails(expected) => assert_eq!(error, expected),
                    Outcome::TimesOut(time) => {
                        assert_eq!(error, ErrorKind::TimedOut);
                        assert!(has_taken(now, since, time), "{:?}", now - since);
                    }
                    _ => unreachable!(),
                }
                if let Some(raw) = raw {
                    assert_eq!(raw.rest().await.0, b"", "nothing follows the PROPOSAL");
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
                forger.device.leave();
                drop(stream);
                assert_eq!(raw.rest().await.0, b"", "data does not go over TCP");
            }
        }
        world.nothing_left(&client).await;
    });
}

// ---- Behind CONFIRM: the client is in SMC mode and cannot fall back ------------------------------

/// What the server does after its ACCEPT. The stream ends; it shows nothing of what was on TCP.
#[test]
fn a_server_accepts_and_thinks_better_of_it() {
    let scripts: [(&str, Script); 5] = [
        ("hangs up", |forger| {
            vec![Step::Sends(bytes(&forger.accept())), Step::HangsUp]
        }),
        ("resets", |forger| {
            vec![Step::Sends(bytes(&forger.accept())), Step::Resets]
        }),
        ("hangs up after CONFIRM", |forger| {
            let accept = Step::Sends(bytes(&forger.accept()));
            vec![accept, Step::Takes(ClcType::Confirm), Step::HangsUp]
        }),
        ("declines after CONFIRM", |forger| {
            let accept = Step::Sends(bytes(&forger.accept()));
            let decline = Step::Sends(decline_v2(DeclineCode::RELEASEERR));
            vec![accept, Step::Takes(ClcType::Confirm), decline]
        }),
        ("sends data on TCP after CONFIRM", |forger| {
            let accept = Step::Sends(bytes(&forger.accept()));
            let data = Step::Sends(b"220 ready\r\n".to_vec());
            vec![accept, Step::Takes(ClcType::Confirm), data]
        }),
    ];
    for (name, server) in scripts {
        everywhere(name, Outcome::Smc, |world| {
            let client = world.host("client");
            let forger = world.forger(&client);
            let script = server(&forger);
            let acceptor = world.acceptor();
            let at = acceptor.local_addr().unwrap();
            let server = async {
                let raw = Raw::accept(&*acceptor).await;
                raw.message().await;
                raw.follow(&*world.rt, &script).await
            };
            world.block_on(async {
                let (connected, _raw) = future::zip(client.endpoint.connect(at), server).await;
                match connected {
                    Ok(mut stream) => {
                        assert!(stream.mode().is_smc());
                        let end = stream.read(&mut [0; 64]).await.unwrap_err();
                        assert_eq!(end.kind(), ErrorKind::ConnectionAborted);
                    }
                    // CONFIRM no longer went out.
                    Err(error) => {
                        let ends = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
                        assert!(ends.contains(&kind(error)));
                    }
                }
                world.only_idle_groups_left(&client).await;
            });
        });
    }
}
