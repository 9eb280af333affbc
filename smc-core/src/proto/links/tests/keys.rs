use smc_wire::llc::{
    ConfirmRkey, DeleteRkey, DeleteRkeyErrors, Dialect, Message, RkeyClass, WireRkey,
};
use smc_wire::types::{Rkey, RmbAddr};

use super::world::{key_of, peer_rmb};
use super::*;

fn single(terms: LlcTerms) -> World {
    let mut world = World::connected([1, 1], terms, LlcConfig::default());
    world.summaries();
    world
}

fn confirmed(rmb: u64) -> LinkGroupOutput {
    LinkGroupOutput::RkeyConfirmed {
        rmb: RmbId(rmb),
        result: Ok(()),
    }
}

fn deleted(rmb: u64, is_answered: bool) -> LinkGroupOutput {
    LinkGroupOutput::RkeyDeleted {
        rmb: RmbId(rmb),
        is_answered,
    }
}

#[test]
fn a_key_is_confirmed_and_deleted() {
    for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
        let mut world = single(terms);
        for side in [SERVER, CLIENT] {
            world.confirm_rkey(side, 1);
            world.settle();
            assert!(world.took(side, &confirmed(1)));
            world.assert_agreed();
            world.delete_rkey(side, 1);
            world.settle();
            assert!(world.took(side, &deleted(1, true)));
            world.assert_agreed();
        }
        assert_eq!(
            world.summaries(),
            [
                "S:CONFIRM_RKEY(0)",
                "C:CONFIRM_RKEY'(0)",
                "S:DELETE_RKEY",
                "C:DELETE_RKEY'",
                "C:CONFIRM_RKEY(0)",
                "S:CONFIRM_RKEY'(0)",
                "C:DELETE_RKEY",
                "S:DELETE_RKEY'"
            ]
        );
    }
}

/// What two ends with one link each agree on.
const KEPT: LlcTerms = LlcTerms {
    keeps_rkeys: true,
    ..LlcTerms::v2_1(1, 255)
};

#[test]
fn an_rmb_that_stays_announced_is_confirmed_once() {
    let mut world = single(KEPT);
    world.confirm_rkey(CLIENT, 1);
    world.settle();
    assert!(world.took(CLIENT, &confirmed(1)));
    for _ in 0..3 {
        assert!(world.with(CLIENT, |group| group.keep_rmb(RmbId(1))));
        let link = world.hosts[CLIENT].group.assigned_link(1).unwrap();
        let (rkey, addr) = key_of(CLIENT, RmbId(1), 0);
        // The server's connection, which ends, and the next one.
        let rtoken = world.with(SERVER, |group| {
            group.add_rtoken(link, &peer_rmb(rkey, addr))
        });
        world.with(SERVER, |group| group.release_rtoken(rtoken.unwrap()));
        world.confirm_rkey(CLIENT, 1);
        world.settle();
        assert!(world.took(CLIENT, &confirmed(1)), "at once");
    }
    assert!(!world.hosts[SERVER].group.awaits_deletions());
    world.delete_rkey(CLIENT, 1);
    assert!(
        !world.with(CLIENT, |group| group.keep_rmb(RmbId(1))),
        "it is about to be deleted"
    );
    world.settle();
    assert!(world.took(CLIENT, &deleted(1, true)));
    assert_eq!(
        world.summaries(),
        [
            "C:CONFIRM_RKEY(0)",
            "S:CONFIRM_RKEY'(0)",
            "C:DELETE_RKEY",
            "S:DELETE_RKEY'"
        ]
    );
    world.assert_agreed();
}

#[test]
fn an_rmb_stays_announced_only_if_the_ends_have_agreed_and_the_peer_has_confirmed_it() {
    let mut world = single(LlcTerms::v2_1(1, 255));
    world.confirm_rkey(CLIENT, 1);
    world.settle();
    assert!(!world.with(CLIENT, |group| group.keep_rmb(RmbId(1))));
    let mut world = single(KEPT);
    world.confirm_rkey(CLIENT, 1);
    assert!(!world.with(CLIENT, |group| group.keep_rmb(RmbId(1))), "yet");
    assert!(!world.with(CLIENT, |group| group.keep_rmb(RmbId(9))));
}

#[test]
fn rmbs_that_stay_announced_leave_half_of_the_peers_table_for_others() {
    let mut world = single(KEPT);
    let rmbs = 1..u64::try_from(RTOKENS_MAX).unwrap();
    for rmb in rmbs.clone() {
        world.confirm_rkey(CLIENT, rmb);
        world.settle();
    }
    assert_eq!(world.hosts[SERVER].group.rtokens(), RTOKENS_MAX);
    let mut deleted = 0;
    for rmb in rmbs {
        if !world.with(CLIENT, |group| group.keep_rmb(RmbId(rmb))) {
            world.delete_rkey(CLIENT, rmb);
            world.settle();
            deleted += 1;
        }
    }
    assert_eq!(deleted, RTOKENS_MAX - RTOKENS_MAX / 2);
    assert_eq!(world.hosts[SERVER].group.rtokens(), RTOKENS_MAX / 2);
    world.assert_agreed();
}

#[test]
fn of_an_rmb_of_linux_there_is_one_element_and_one_user() {
    for is_linux in [true, false] {
        let mut world = single(LlcTerms {
            is_linux,
            ..LlcTerms::v2_1(1, 255)
        });
        world.confirm_rkey(CLIENT, 1);
        world.settle();
        let link = world.hosts[SERVER].group.assigned_link(1).unwrap();
        let (rkey, addr) = key_of(CLIENT, RmbId(1), 0);
        let named = peer_rmb(rkey, addr);
        let mut add = |index| {
            let named = PeerRmb { index, ..named };
            world.with(SERVER, |group| group.add_rtoken(link, &named))
        };
        let other = add(2);
        let first = add(1).unwrap();
        let second = add(1);
        match is_linux {
            true => {
                assert_eq!(other, Err(RtokenError::OtherElement));
                assert_eq!(second, Err(RtokenError::InUse));
            }
            false => assert_eq!((other, second), (Ok(first), Ok(first))),
        }
        world.with(SERVER, |group| group.release_rtoken(first));
        let next = world.with(SERVER, |group| {
            group.add_rtoken(link, &peer_rmb(rkey, addr))
        });
        assert_eq!(next, Ok(first));
    }
}

#[test]
fn a_full_table_of_rmbs_that_the_peer_keeps_loses_none() {
    let mut world = single(KEPT);
    let link = world.hosts[SERVER].group.assigned_link(1).unwrap();
    for rmb in 1..u64::try_from(RTOKENS_MAX).unwrap() {
        world.confirm_rkey(CLIENT, rmb);
        world.settle();
    }
    let name = |rmb| key_of(CLIENT, RmbId(rmb), 0);
    let (rkey, addr) = name(1);
    let rtoken = world.with(SERVER, |group| {
        group.add_rtoken(link, &peer_rmb(rkey, addr))
    });
    world.with(SERVER, |group| group.release_rtoken(rtoken.unwrap()));
    world.confirm_rkey(CLIENT, 1000);
    world.settle();
    let refused = LinkGroupOutput::RkeyConfirmed {
        rmb: RmbId(1000),
        result: Err(RkeyError::Refused),
    };
    assert!(world.took(CLIENT, &refused));
    let again = world.with(SERVER, |group| {
        group.add_rtoken(link, &peer_rmb(rkey, addr))
    });
    assert!(again.is_ok(), "{again:?}");
}

#[test]
fn a_key_is_announced_for_all_links() {
    let mut world = World::connected([2, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    world.summaries();
    world.confirm_rkey(CLIENT, 1);
    world.settle();
    assert_eq!(
        world.summaries(),
        ["C:CONFIRM_RKEY(1)", "S:CONFIRM_RKEY'(1)"]
    );
    world.assert_agreed();
    world.delete_rkey(CLIENT, 1);
    world.settle();
    world.assert_agreed();
}

#[test]
fn an_rmb_waits_for_the_answer_to_a_deletion_only_if_the_peer_may_not_answer_both() {
    for answers_several in [true, false] {
        let mut world = single(LlcTerms {
            is_linux: answers_several,
            ..LlcTerms::v2_1(1, 255)
        });
        world.confirm_rkey(CLIENT, 1);
        world.settle();
        world.summaries();
        world.delete_rkey(CLIENT, 1);
        world.confirm_rkey(CLIENT, 2);
        world.settle();
        let mut expected = [
            "C:DELETE_RKEY",
            "S:DELETE_RKEY'",
            "C:CONFIRM_RKEY(0)",
            "S:CONFIRM_RKEY'(0)",
        ];
        if answers_several {
            expected.swap(1, 2);
        }
        assert_eq!(world.summaries(), expected);
        assert!(world.took(CLIENT, &deleted(1, true)));
        assert!(world.took(CLIENT, &confirmed(2)));
        world.assert_agreed();
    }
}

#[test]
fn missing_keys_are_requested() {
    let mut world = World::connected([2, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    let now = world.now;
    let keys = world.keys(SERVER, RmbId(1), &[0]);
    let link = world.hosts[SERVER].group.assigned_link(1).unwrap();
    world.with(SERVER, |group| {
        group.confirm_rkey(now, RmbId(1), link, &keys)
    });
    world.settle();
    assert!(world.took(SERVER, &confirmed(1)));
    world.assert_agreed();
    // A device that cannot have it is left out; without any, there is nothing to announce.
    world.hosts[SERVER].unmappable = [0, 1].into();
    let keys = world.keys(SERVER, RmbId(2), &[1]);
    let now = world.now;
    world.with(SERVER, |group| {
        group.confirm_rkey(now, RmbId(2), link, &keys);
        group.confirm_rkey(now, RmbId(3), link, &[]);
    });
    world.summaries();
    world.settle();
    assert!(world.took(SERVER, &confirmed(2)));
    assert_eq!(
        world.summaries(),
        ["S:CONFIRM_RKEY(0)", "C:CONFIRM_RKEY'(0)"]
    );
    let none = LinkGroupOutput::RkeyConfirmed {
        rmb: RmbId(3),
        result: Err(RkeyError::NoKey),
    };
    assert!(world.took(SERVER, &none));
    world.delete_rkey(SERVER, 3);
    assert!(world.took(SERVER, &deleted(3, true)), "the key is unknown");
}

#[test]
fn crossing_requests_are_answered_at_once() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    for side in [SERVER, CLIENT] {
        world.confirm_rkey(side, 1);
        world.confirm_rkey(side, 2);
        world.delete_rkey(side, 0);
    }
    world.advance(3 * MS);
    let messages = world.summaries();
    assert_eq!(
        messages[..4],
        [
            "S:CONFIRM_RKEY(0)",
            "C:CONFIRM_RKEY(0)",
            "C:CONFIRM_RKEY'(0)",
            "S:CONFIRM_RKEY'(0)"
        ]
    );
    world.settle();
    for side in [SERVER, CLIENT] {
        assert!(world.took(side, &confirmed(1)));
        assert!(world.took(side, &confirmed(2)));
        assert!(world.took(side, &deleted(0, true)));
    }
    world.assert_agreed();
}

#[test]
fn several_requests_may_be_unanswered_if_configured() {
    let config = LlcConfig {
        rkeys_in_flight: 4,
        ..LlcConfig::default()
    };
    let mut world = World::connected([1, 1], LlcTerms::v2_1(2, 255), config);
    world.summaries();
    for rmb in 1..=6 {
        world.confirm_rkey(SERVER, rmb);
    }
    assert_eq!(world.summaries(), ["S:CONFIRM_RKEY(0)"; 4]);
    // Answers in another order find their requests.
    let group = &mut world.hosts[SERVER].group;
    let link = group.assigned_link(0).unwrap();
    for rmb in [3, 1] {
        let (rkey, address) = key_of(SERVER, RmbId(rmb), 0);
        let mut answer = [0; 44];
        ConfirmRkey {
            dialect: group.terms.dialect,
            class: RkeyClass::Accepted,
            rkey,
            address,
            further_links: 0,
            further: Default::default(),
        }
        .emit(&mut answer)
        .unwrap();
        group.handle_message(world.now, link, &answer);
        let outputs: Vec<_> = std::iter::from_fn(|| group.poll_output()).collect();
        assert!(outputs.contains(&confirmed(rmb)), "{outputs:?}");
    }
}

#[test]
fn a_peer_that_does_not_answer_costs_two_seconds() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    world.hosts[CLIENT].filter = Some(|_| true);
    world.confirm_rkey(SERVER, 1);
    world.advance(2 * SECOND - MS);
    assert!(!world.saw(SERVER, |output| matches!(
        output,
        LinkGroupOutput::RkeyConfirmed { .. }
    )));
    world.advance(MS);
    let failed = LinkGroupOutput::RkeyConfirmed {
        rmb: RmbId(1),
        result: Err(RkeyError::TimedOut),
    };
    assert!(world.took(SERVER, &failed));
    // The peer may have the key already: DELETE RKEY is sent for it.
    world.delete_rkey(SERVER, 1);
    assert_eq!(world.summaries().last().unwrap(), "S:DELETE_RKEY");
    world.advance(2 * SECOND);
    assert!(world.took(SERVER, &deleted(1, false)));
}

#[test]
fn a_late_answer_is_not_taken_for_the_next_one() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    world.confirm_rkey(SERVER, 1);
    world.settle();
    // The answer to the first comes after two seconds.
    world.hosts[CLIENT].filter = Some(|_| true);
    world.delete_rkey(SERVER, 0);
    world.advance(2 * SECOND);
    assert!(world.took(SERVER, &deleted(0, false)));
    world.delete_rkey(SERVER, 1);
    let group = &mut world.hosts[SERVER].group;
    let link = group.assigned_link(0).unwrap();
    let mut late = [0; 44];
    late[..5].copy_from_slice(&[0x29, 44, 0, 0x80, 1]);
    group.handle_message(world.now, link, &late);
    let outputs: Vec<_> = std::iter::from_fn(|| group.poll_output()).collect();
    assert!(!outputs.contains(&deleted(1, true)), "{outputs:?}");
    group.handle_message(world.now, link, &late);
    let outputs: Vec<_> = std::iter::from_fn(|| group.poll_output()).collect();
    assert!(outputs.contains(&deleted(1, true)), "{outputs:?}");
}

#[test]
fn requests_are_answered_when_there_are_as_many_answers() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    world.confirm_rkey(SERVER, 1);
    world.settle();
    // Every answer comes after two seconds and a half.
    world.latency = (1250 * MS, Duration::ZERO);
    world.delete_rkey(SERVER, 0);
    world.delete_rkey(SERVER, 1);
    world.advance(4 * SECOND);
    assert!(world.took(SERVER, &deleted(0, false)));
    assert!(world.took(SERVER, &deleted(1, false)));
    let was_answered = |world: &World| {
        world.saw(SERVER, |output| {
            matches!(
                output,
                LinkGroupOutput::RkeyDeleted {
                    is_answered: true,
                    ..
                }
            )
        })
    };
    assert!(
        !was_answered(&world),
        "the first answer can be that of either"
    );
    world.advance(SECOND);
    assert!(world.took(SERVER, &deleted(0, true)));
    assert!(world.took(SERVER, &deleted(1, true)));
    assert_eq!(world.hosts[SERVER].group.local_rmbs.undeleted, 0);
    world.assert_agreed();
}

#[test]
fn an_omitted_answer_holds_up_deletions_for_a_while_and_nothing_else() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    for rmb in 1..=5 {
        world.confirm_rkey(SERVER, rmb);
    }
    world.settle();
    world.hosts[CLIENT].omitted = 1;
    for rmb in 1..=4 {
        world.delete_rkey(SERVER, rmb);
    }
    world.advance(4 * SECOND);
    // The answer to one of them has come.
    assert!(world.took(SERVER, &deleted(1, false)));
    assert!(world.took(SERVER, &deleted(2, false)));
    world.summaries();
    world.confirm_rkey(SERVER, 6);
    world.settle();
    assert!(world.took(SERVER, &confirmed(6)));
    world.advance(19 * SECOND);
    assert_eq!(
        world.summaries(),
        ["S:CONFIRM_RKEY(0)", "C:CONFIRM_RKEY'(0)"]
    );
    // It is no longer expected.
    world.advance(SECOND);
    world.settle();
    for rmb in [3, 4] {
        assert!(world.took(SERVER, &deleted(rmb, true)), "{rmb}");
    }
    for rmb in [1, 2] {
        assert!(!world.took(SERVER, &deleted(rmb, true)), "{rmb}");
    }
    world.delete_rkey(SERVER, 5);
    world.settle();
    assert!(world.took(SERVER, &deleted(5, true)));
    world.assert_agreed();
}

#[test]
fn an_answer_that_names_a_key_is_for_that_one() {
    for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
        let mut world = single(terms);
        for rmb in 1..=2 {
            world.confirm_rkey(SERVER, rmb);
        }
        world.settle();
        world.hosts[CLIENT].filter = Some(|_| true);
        world.delete_rkey(SERVER, 1);
        world.advance(2 * SECOND);
        assert!(world.took(SERVER, &deleted(1, false)));
        world.delete_rkey(SERVER, 2);
        let group = &mut world.hosts[SERVER].group;
        let link = group.assigned_link(0).unwrap();
        let mut answer = |rmb, link| {
            let rkeys = [key_of(SERVER, RmbId(rmb), 0).0.into()];
            let request = DeleteRkey::request(group.terms.dialect, &rkeys);
            let mut answer = [0; 44];
            request
                .response(DeleteRkeyErrors::from_known(request.dialect, [true]))
                .emit(&mut answer)
                .unwrap();
            group.handle_message(world.now, link, &answer);
            std::iter::from_fn(|| group.poll_output()).collect::<Vec<_>>()
        };
        assert_eq!(answer(9, link), [], "that of no request");
        assert_eq!(answer(2, link), [deleted(2, true)]);
        assert_eq!(answer(1, link), [deleted(1, true)]);
        assert_eq!(answer(1, link), []);
    }
}

#[test]
fn rkey_requests_report_their_timeout() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    world.hosts[CLIENT].filter = Some(|_| true);
    for rmb in 1..=20 {
        world.confirm_rkey(SERVER, rmb);
    }
    world.advance(21 * SECOND);
    let ended = |result| {
        world.hosts[SERVER]
            .seen
            .iter()
            .filter(|output| {
                matches!(output, LinkGroupOutput::RkeyConfirmed { result: Err(why), .. } if *why == result)
            })
            .count()
    };
    assert_eq!(ended(RkeyError::TimedOut), 10);
    assert_eq!(ended(RkeyError::NoTurn), 10);
}

#[test]
fn a_setup_that_is_given_up_leaves_nothing_behind() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    // Deleted before it was its turn, and while it was announced.
    world.confirm_rkey(SERVER, 1);
    world.confirm_rkey(SERVER, 2);
    world.delete_rkey(SERVER, 2);
    assert!(world.took(SERVER, &deleted(2, true)));
    world.delete_rkey(SERVER, 1);
    world.settle();
    assert!(world.took(SERVER, &deleted(1, true)));
    assert!(!world.saw(SERVER, |output| matches!(
        output,
        LinkGroupOutput::RkeyConfirmed { .. }
    )));
    assert_eq!(world.hosts[SERVER].group.local_rmbs.rmbs.len(), 1);
    world.assert_agreed();
}

#[test]
fn a_full_table_is_seen_on_both_sides() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    for rmb in 1..255 {
        world.confirm_rkey(SERVER, rmb);
    }
    world.advance(2 * SECOND);
    assert!(world.hosts[CLIENT].reported.is_full);
    world.confirm_rkey(SERVER, 255);
    world.settle();
    let refused = LinkGroupOutput::RkeyConfirmed {
        rmb: RmbId(255),
        result: Err(RkeyError::Refused),
    };
    assert!(world.took(SERVER, &refused));
    world.delete_rkey(SERVER, 255);
    world.delete_rkey(SERVER, 7);
    world.settle();
    assert!(!world.hosts[CLIENT].reported.is_full);
    assert!(world.took(SERVER, &deleted(7, true)));
    world.assert_agreed();
}

#[test]
fn unknown_keys_are_marked_in_the_answer() {
    for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
        let mut world = single(terms);
        let known = key_of(CLIENT, RmbId(0), 0).0;
        let rkeys = [Rkey(1), known, Rkey(2)].map(WireRkey::from);
        let group = &mut world.hosts[SERVER].group;
        let link = group.assigned_link(0).unwrap();
        let mut request = [0; 44];
        DeleteRkey::request(group.terms.dialect, &rkeys)
            .emit(&mut request)
            .unwrap();
        group.handle_message(world.now, link, &request);
        let Some(LinkGroupOutput::Send { message, .. }) = group.poll_output() else {
            panic!("an answer");
        };
        let Message::DeleteRkey(answer) = Message::parse(&message).unwrap() else {
            panic!("of that kind");
        };
        assert!(answer.negative);
        assert_eq!(answer.errors.count(), 2);
        assert_eq!(message.len(), 44);
        match terms.dialect {
            Dialect::V1 => assert_eq!((message[5], answer.rkeys), (0b1010_0000, &rkeys[..])),
            Dialect::V2(_) => assert_eq!(message[8..], [0; 36]),
        }
    }
}

#[test]
fn more_links_than_there_can_be_are_refused() {
    let mut world = single(LlcTerms::v2_1(2, 255));
    let mut request = [0; 44];
    request[..6].copy_from_slice(&[0x26, 44, 0, 0, 4, 9]);
    let now = world.now;
    let link = world.hosts[SERVER].group.assigned_link(0).unwrap();
    world.with(SERVER, |group| group.handle_message(now, link, &request));
    assert_eq!(world.log.last().unwrap().2[3], 0xb0);
    request[4] = 3;
    world.with(SERVER, |group| group.handle_message(now, link, &request));
    assert_eq!(world.log.last().unwrap().2[3], 0x80);
}

#[test]
fn what_a_connection_left_behind_gives_way() {
    let mut world = single(LlcTerms::V1);
    let group = &mut world.hosts[SERVER].group;
    let link = group.assigned_link(0).unwrap();
    let add =
        |group: &mut LinkGroup, rkey| group.add_rtoken(link, &peer_rmb(Rkey(rkey), RmbAddr(0)));
    let ids: Vec<_> = (1..255).map(|at| add(group, at).unwrap()).collect();
    assert_eq!(add(group, 300), Err(RtokenError::TableFull));
    let is_full = |group: &mut LinkGroup| match group.poll_output() {
        Some(LinkGroupOutput::Links(links)) => links.is_full,
        other => panic!("{other:?}"),
    };
    assert!(is_full(group));
    group.release_rtoken(ids[3]);
    assert!(!is_full(group));
    assert_eq!(group.rtoken(ids[3], link), Some((Rkey(4), RmbAddr(0))));
    let other = add(group, 300).unwrap();
    assert_eq!(group.rtoken(ids[3], link), None);
    assert_eq!(group.rtoken(other, link), Some((Rkey(300), RmbAddr(0))));
}
