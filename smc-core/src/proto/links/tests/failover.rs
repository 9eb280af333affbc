use super::*;
use crate::device::LinkFailure;

fn symmetric(terms: LlcTerms) -> World {
    let mut world = World::connected([2, 2], terms, LlcConfig::default());
    assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
    world.summaries();
    world
}

fn fail(world: &mut World, side: usize, link: LinkId, failure: LinkFailure) {
    let now = world.now;
    world.with(side, |group| group.handle_link_down(now, link, failure));
}

#[test]
fn connections_move_to_the_other_link() {
    for side in [SERVER, CLIENT] {
        let mut world = symmetric(LlcTerms::v2_1(2, 255));
        let from = world.hosts[side].group.assigned_link(0).unwrap();
        let to = world.hosts[side].group.assigned_link(1).unwrap();
        world.set_port(side, 0, false);
        world.advance(2 * MS);
        let seen = &world.hosts[side].seen;
        let reported = seen
            .iter()
            .rposition(|output| matches!(output, LinkGroupOutput::Links(_)));
        let stopped = seen
            .iter()
            .position(|output| *output == LinkGroupOutput::Stop(from));
        let moved = seen
            .iter()
            .position(|output| *output == LinkGroupOutput::Move { from, to });
        assert!(reported.unwrap() < stopped.unwrap() && stopped.unwrap() < moved.unwrap());
        assert_eq!(world.hosts[side].group.group_type(), GroupType::Single);
        world.settle();
        // The other side moves too, when it receives the message.
        assert!(world.saw(1 - side, |output| matches!(
            output,
            LinkGroupOutput::Move { .. }
        )));
        let messages = world.summaries();
        let expected: &[&str] = match side {
            SERVER => &[
                "S:DELETE_LINK(1 orderly 0x10000)",
                "C:DELETE_LINK'(1 orderly 0x0)",
            ],
            _ => &[
                "C:DELETE_LINK(1 orderly 0x10000)",
                "S:DELETE_LINK(1 orderly 0x10000)",
            ],
        };
        assert_eq!(messages[..2], *expected);
        // The server tries to get a second link again: over the port that is left.
        assert!(
            messages.contains(&"S:ADD_LINK(3)".to_owned()),
            "{messages:?}"
        );
        world.assert_agreed();
    }
}

#[test]
fn a_port_that_comes_back_brings_the_second_link_back() {
    for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
        for side in [SERVER, CLIENT] {
            let mut world = symmetric(terms);
            world.set_port(side, 1, false);
            world.advance(10 * SECOND);
            assert_ne!(world.kinds(), [GroupType::Symmetric; 2]);
            world.summaries();
            world.set_port(side, 1, true);
            world.advance(10 * SECOND);
            assert_eq!(world.kinds(), [GroupType::Symmetric; 2], "{side}");
            world.assert_agreed();
        }
    }
}

#[test]
fn both_sides_notice_at_the_same_time() {
    let mut world = symmetric(LlcTerms::v2_1(2, 255));
    let links = [0, 1].map(|side| world.hosts[side].group.assigned_link(0).unwrap());
    world.cut(SERVER, links[SERVER]);
    for side in [SERVER, CLIENT] {
        fail(&mut world, side, links[side], LinkFailure::RetryExceeded);
    }
    world.advance(20 * SECOND);
    for side in [SERVER, CLIENT] {
        assert!(!world.saw(side, |output| matches!(
            output,
            LinkGroupOutput::Terminate(_)
        )));
        assert!(world.hosts[side].group.flow.is_none());
    }
    assert_eq!(
        world.kinds(),
        [GroupType::Symmetric; 2],
        "and a new link is there"
    );
    world.assert_agreed();
}

#[test]
fn only_active_links_go_down_and_only_once() {
    let mut world = symmetric(LlcTerms::v2_1(2, 255));
    let link = world.hosts[CLIENT].group.assigned_link(0).unwrap();
    for _ in 0..3 {
        fail(&mut world, CLIENT, link, LinkFailure::Flushed);
    }
    let moves = world.hosts[CLIENT].seen.iter();
    let moves = moves.filter(|output| matches!(output, LinkGroupOutput::Move { .. }));
    assert_eq!(moves.count(), 1);
    fail(&mut world, CLIENT, LinkId(77), LinkFailure::Flushed);
    world.settle();
    world.assert_agreed();
}

#[test]
fn the_last_link_takes_the_group_with_it() {
    for side in [SERVER, CLIENT] {
        let mut world = World::connected([1, 1], LlcTerms::V2, LlcConfig::default());
        let link = world.hosts[side].group.assigned_link(0).unwrap();
        world.confirm_rkey(side, 1);
        world.delete_rkey(side, 0);
        fail(&mut world, side, link, LinkFailure::RemoteAccess);
        let end = [
            LinkGroupOutput::RkeyConfirmed {
                rmb: RmbId(1),
                result: Err(RkeyError::Ended),
            },
            LinkGroupOutput::Terminate(GroupEndCause::LinksLost(LinkFailure::RemoteAccess)),
            LinkGroupOutput::Close(link),
            LinkGroupOutput::RkeyDeleted {
                rmb: RmbId(0),
                is_answered: true,
            },
            LinkGroupOutput::Ended,
        ];
        let seen = &world.hosts[side].seen;
        assert_eq!(seen[seen.len() - end.len()..], end);
        assert_eq!(world.kinds()[side], GroupType::None);
        // Nothing happens after the end, and requests have outcomes all the same.
        world.hosts[side].seen.clear();
        world.confirm_rkey(side, 5);
        world.delete_rkey(side, 1);
        world.delete_rkey(side, 5);
        let now = world.now;
        world.with(side, |group| {
            group.end(now, true, DeleteLinkReason::PROGRAM);
            group.handle_timeout(now);
            group.handle_message(now, link, &[0x27; 44]);
            group.establish(now);
        });
        assert_eq!(
            world.hosts[side].seen,
            [
                LinkGroupOutput::RkeyConfirmed {
                    rmb: RmbId(5),
                    result: Err(RkeyError::Ended)
                },
                LinkGroupOutput::RkeyDeleted {
                    rmb: RmbId(1),
                    is_answered: true
                },
                LinkGroupOutput::RkeyDeleted {
                    rmb: RmbId(5),
                    is_answered: true
                },
            ]
        );
    }
}

#[test]
fn links_of_a_failed_port_do_not_help_each_other() {
    // Both links at the one port of the server.
    for failure in OF_A_PORT {
        let mut world = World::connected([1, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
        assert_eq!(world.kinds()[SERVER], GroupType::AsymmetricLocal);
        let link = world.hosts[SERVER].group.assigned_link(0).unwrap();
        fail(&mut world, SERVER, link, failure);
        assert!(world.hosts[SERVER].group.has_ended(), "{failure}");
    }
}

#[test]
fn another_failure_concerns_one_link_only() {
    for failure in OF_A_LINK {
        for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
            let mut world = World::connected([1, 2], terms, LlcConfig::default());
            assert_eq!(world.kinds()[SERVER], GroupType::AsymmetricLocal);
            let link = world.hosts[SERVER].group.assigned_link(0).unwrap();
            fail(&mut world, SERVER, link, failure);
            assert!(!world.hosts[SERVER].group.has_ended(), "{failure}");
            world.settle();
            let group = &world.hosts[SERVER].group;
            let left = group
                .assigned_link(0)
                .expect("the asymmetric link is one like any other now");
            assert_ne!(left, link);
            world.assert_agreed();
        }
    }
}

#[test]
fn the_other_port_of_the_same_device_helps() {
    for failure in OF_A_LINK.into_iter().chain(OF_A_PORT) {
        for side in [SERVER, CLIENT] {
            let mut world = World::connected_by_dual_ports(LlcTerms::v2_1(2, 255));
            assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
            let from = world.hosts[side].group.assigned_link(0).unwrap();
            let to = world.hosts[side].group.assigned_link(1).unwrap();
            fail(&mut world, side, from, failure);
            assert!(
                world.took(side, &LinkGroupOutput::Move { from, to }),
                "{failure}"
            );
            world.settle();
            world.assert_agreed();
        }
    }
}

/// After these, links at the same port of the same device are no help.
pub(super) const OF_A_PORT: [LinkFailure; 2] =
    [LinkFailure::PortDown, LinkFailure::Device("fatal")];

pub(super) const OF_A_LINK: [LinkFailure; 5] = [
    LinkFailure::RetryExceeded,
    LinkFailure::RnrExceeded,
    LinkFailure::RemoteAccess,
    LinkFailure::Flushed,
    LinkFailure::QueuePair("posts are not completed"),
];

#[test]
fn requests_on_the_failed_link_are_made_again_on_the_other() {
    let mut world = symmetric(LlcTerms::v2_1(2, 255));
    let link = world.hosts[CLIENT].group.assigned_link(0).unwrap();
    world.confirm_rkey(CLIENT, 1);
    world.settle();
    world.cut(CLIENT, link);
    world.delete_rkey(CLIENT, 1);
    world.settle();
    let deleted = LinkGroupOutput::RkeyDeleted {
        rmb: RmbId(1),
        is_answered: true,
    };
    assert!(!world.took(CLIENT, &deleted));
    world.advance(SECOND);
    assert!(world.took(CLIENT, &deleted));
    world.advance(10 * SECOND);
    world.assert_agreed();
}

#[test]
fn answers_on_another_link_are_not_those_to_requests_on_a_dead_one() {
    for side in [SERVER, CLIENT] {
        let mut world = symmetric(LlcTerms::v2_1(2, 255));
        let link = world.hosts[side].group.assigned_link(0).unwrap();
        for rmb in 1..=4 {
            world.confirm_rkey(side, rmb);
        }
        world.settle();
        let deleted = |rmb, is_answered| LinkGroupOutput::RkeyDeleted {
            rmb: RmbId(rmb),
            is_answered,
        };
        // As long as a device takes to notice.
        world.retry_time = 3_800 * MS;
        world.cut(side, link);
        world.delete_rkey(side, 1);
        world.delete_rkey(side, 2);
        world.advance(2 * SECOND);
        assert!(world.took(side, &deleted(1, false)));
        world.advance(1_700 * MS);
        assert!(!world.took(side, &deleted(2, true)));
        world.advance(200 * MS);
        assert!(
            !world.took(side, &deleted(1, true)),
            "the peer may still write"
        );
        assert!(world.took(side, &deleted(2, true)), "on the other link");
        for rmb in [3, 4] {
            world.delete_rkey(side, rmb);
            world.settle();
            assert!(world.took(side, &deleted(rmb, true)), "{rmb}");
        }
        assert_eq!(world.hosts[side].group.local_rmbs.undeleted, 1);
        assert_eq!(world.hosts[side].group.local_rmbs.stale.entries.len(), 0);
        world.advance(10 * SECOND);
        world.assert_agreed();
    }
}

#[test]
fn a_key_that_the_handshake_cannot_name_any_more_is_not_confirmed() {
    let failed = |rmb| LinkGroupOutput::RkeyConfirmed {
        rmb: RmbId(rmb),
        result: Err(RkeyError::NoKey),
    };
    // One waits for the peer and the other for its turn, when their link fails.
    for side in [SERVER, CLIENT] {
        let mut world = symmetric(LlcTerms::v2_1(2, 255));
        let link = world.hosts[side].group.assigned_link(0).unwrap();
        world.cut(side, link);
        world.confirm_rkey(side, 1);
        world.confirm_rkey(side, 2);
        world.settle();
        fail(&mut world, side, link, LinkFailure::RetryExceeded);
        world.advance(SECOND);
        // On the other link the peer would get them under another key.
        assert!(world.took(side, &failed(1)));
        assert!(world.took(side, &failed(2)));
        world.delete_rkey(side, 1);
        world.delete_rkey(side, 2);
        world.advance(10 * SECOND);
        world.assert_agreed();
    }
}

#[test]
fn a_link_is_closed_when_its_connections_have_left() {
    let mut world = symmetric(LlcTerms::v2_1(2, 255));
    let link = world.hosts[CLIENT].group.assigned_link(0).unwrap();
    world.hosts[CLIENT].move_time = 50 * MS;
    fail(&mut world, CLIENT, link, LinkFailure::RetryExceeded);
    world.advance(49 * MS);
    assert!(!world.took(CLIENT, &LinkGroupOutput::Close(link)));
    world.advance(MS);
    assert!(world.took(CLIENT, &LinkGroupOutput::Close(link)));

    // Or when that takes too long.
    let mut world = symmetric(LlcTerms::v2_1(2, 255));
    let link = world.hosts[CLIENT].group.assigned_link(0).unwrap();
    world.hosts[CLIENT].move_time = 3_600 * SECOND;
    fail(&mut world, CLIENT, link, LinkFailure::RetryExceeded);
    world.advance(2 * SECOND);
    assert!(world.took(CLIENT, &LinkGroupOutput::Close(link)));
}

#[test]
fn connections_do_not_move_to_a_link_that_has_failed_meanwhile() {
    for side in [SERVER, CLIENT] {
        let mut world = World::connected([3, 3], LlcTerms::v2_1(2, 255), LlcConfig::default());
        let [first, second] = [0, 1].map(|at| world.hosts[side].group.assigned_link(at).unwrap());
        world.hosts[side].stop_time = SECOND;
        fail(&mut world, side, first, LinkFailure::RetryExceeded);
        // Another link is added meanwhile.
        world.advance(500 * MS);
        let mut links = world.hosts[side].group.active();
        let third = links.find(|link| link.id != second).unwrap().id;
        drop(links);
        fail(&mut world, side, second, LinkFailure::RetryExceeded);
        let has_moved = |world: &World| {
            world.saw(side, |output| {
                matches!(output, LinkGroupOutput::Move { .. })
            })
        };
        assert!(!has_moved(&world), "both are still to be stopped");
        world.advance(2 * SECOND);
        for from in [first, second] {
            let to = third;
            assert!(world.took(side, &LinkGroupOutput::Move { from, to }));
        }
        assert!(!has_moved(&world));
        world.advance(10 * SECOND);
        world.assert_agreed();
    }
}

#[test]
fn connections_of_a_link_that_is_stopped_late_are_moved_nevertheless() {
    let mut world = symmetric(LlcTerms::v2_1(2, 255));
    let [from, to] = [0, 1].map(|at| world.hosts[CLIENT].group.assigned_link(at).unwrap());
    world.hosts[CLIENT].stop_time = 3 * SECOND;
    fail(&mut world, CLIENT, from, LinkFailure::RetryExceeded);
    world.advance(2 * SECOND);
    assert!(world.took(CLIENT, &LinkGroupOutput::Close(from)));
    assert!(!world.took(CLIENT, &LinkGroupOutput::Move { from, to }));
    world.advance(SECOND);
    assert!(world.took(CLIENT, &LinkGroupOutput::Move { from, to }));
}
