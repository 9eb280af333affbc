use super::*;
use crate::device::{LinkFailure, RoceKind};

#[test]
fn both_sides_confirm_the_first_link() {
    let mut world = World::v2([1, 1]);
    let [server, client] = world.contact(LlcTerms::v2_1(2, 255));
    world.confirm();
    assert_eq!(
        world.summaries(),
        ["S:CONFIRM_LINK(1)", "C:CONFIRM_LINK'(1)"],
        "nothing else before the set-up is complete"
    );
    for (side, link) in [(SERVER, server), (CLIENT, client)] {
        assert!(world.took(side, &LinkGroupOutput::FirstLink(Ok(()))));
        let host = &world.hosts[side];
        let peer = host.group.link(link).and_then(|link| link.peer);
        assert_eq!(host.reported.ends, [peer.unwrap()]);
    }
    assert_eq!(world.kinds(), [GroupType::Single; 2]);
    world.assert_agreed();
}

#[test]
fn a_request_that_comes_before_the_client_is_ready_is_kept() {
    let mut world = World::v2([1, 1]);
    world.contact(LlcTerms::v2_1(2, 255));
    let now = world.now;
    world.with(SERVER, |group| group.confirm_link(now));
    world.settle();
    assert_eq!(world.summaries(), ["S:CONFIRM_LINK(1)"]);
    let now = world.now;
    world.with(CLIENT, |group| group.confirm_link(now));
    world.settle();
    assert_eq!(world.summaries(), ["C:CONFIRM_LINK'(1)"]);
    assert!(world.took(SERVER, &LinkGroupOutput::FirstLink(Ok(()))));
    assert!(world.took(CLIENT, &LinkGroupOutput::FirstLink(Ok(()))));
}

#[test]
fn a_call_that_comes_too_late_leaves_the_present_flow_alone() {
    let mut world = World::v2([2, 2]);
    world.contact(LlcTerms::v2_1(2, 255));
    world.confirm();
    let now = world.now;
    for side in [SERVER, CLIENT] {
        // The server's second link is being added then.
        world.with(side, |group| group.establish(now));
        world.with(side, |group| group.confirm_link(now));
        let failed = LinkGroupOutput::FirstLink(Err(FirstLinkError::LinkDown));
        assert!(world.took(side, &failed));
    }
    world.settle();
    let is_active = |link: LinkInfo| link.state == LinkState::Active;
    for host in &world.hosts {
        assert_eq!(
            host.group.links().filter(|link| is_active(*link)).count(),
            2
        );
    }
}

#[test]
fn a_silent_peer_is_waited_for_two_or_four_seconds() {
    for (side, seconds) in [(SERVER, 2), (CLIENT, 4)] {
        let mut world = World::v2([1, 1]);
        world.contact(LlcTerms::v2_1(2, 255));
        world.hosts[1 - side].filter = Some(|_| true);
        let now = world.now;
        world.with(side, |group| group.confirm_link(now));
        world.advance(seconds * SECOND - MS);
        let failed = LinkGroupOutput::FirstLink(Err(FirstLinkError::TimedOut));
        assert!(!world.took(side, &failed));
        world.advance(MS);
        assert!(world.took(side, &failed));
    }
}

#[test]
fn a_server_that_gives_up_says_so_and_a_client_stays_silent() {
    let mut world = World::v2([1, 1]);
    world.contact(LlcTerms::v2_1(2, 255));
    world.hosts[CLIENT].filter = Some(|_| true);
    world.confirm();
    world.advance(5 * SECOND);
    let now = world.now;
    for side in [SERVER, CLIENT] {
        world.with(side, |group| {
            group.end(now, false, DeleteLinkReason::PROGRAM);
        });
    }
    world.advance(3 * SECOND);
    assert_eq!(
        world.summaries(),
        ["S:CONFIRM_LINK(1)", "S:DELETE_LINK(all 0x30000)"]
    );
    assert!(world.hosts.iter().all(|host| host.group.has_ended()));
}

#[test]
fn a_peer_that_wants_eyecatchers_is_refused() {
    let mut world = World::v2([1, 1]);
    let [_, client] = world.contact(LlcTerms::v2_1(2, 255));
    let now = world.now;
    world.with(CLIENT, |group| group.confirm_link(now));
    let mut request = [0; 44];
    request[..4].copy_from_slice(&[0x21, 44, 0, 0]);
    world.with(CLIENT, |group| group.handle_message(now, client, &request));
    let failed = LinkGroupOutput::FirstLink(Err(FirstLinkError::Eyecatchers));
    assert!(world.took(CLIENT, &failed));
    assert_eq!(world.summaries(), [""; 0], "it is answered on TCP");
}

#[test]
fn a_first_link_that_fails_is_told_once() {
    for side in [SERVER, CLIENT] {
        for early in [false, true] {
            let mut world = World::v2([1, 1]);
            let links = world.contact(LlcTerms::v2_1(2, 255));
            let now = world.now;
            let down = |group: &mut LinkGroup| {
                group.handle_link_down(now, links[side], LinkFailure::PortDown);
            };
            if early {
                world.with(side, down);
            }
            world.with(side, |group| group.confirm_link(now));
            world.with(side, down);
            let failed = LinkGroupOutput::FirstLink(Err(FirstLinkError::LinkDown));
            assert!(world.took(side, &failed));
            assert!(!world.took(side, &failed));
        }
    }
}

#[test]
fn the_order_of_the_peer_is_learnt() {
    use smc_wire::llc::{ByteOrder, Dialect};
    let mut world = World::new([1, 1], RoceKind::V2, LlcConfig::default());
    let big = LlcTerms {
        dialect: Dialect::V2(ByteOrder::Big),
        ..LlcTerms::v2_1(2, 255)
    };
    let links = world.contact(big);
    // A little-endian server.
    let mut request = [0; 44];
    request[..4].copy_from_slice(&[0x21, 44, 0, 3]);
    let now = world.now;
    world.with(CLIENT, |group| {
        group.confirm_link(now);
        group.handle_message(now, links[CLIENT], &request);
    });
    let (_, _, answer) = world.log.last().unwrap();
    assert_eq!(answer[..4], [0x21, 44, 0, 0x83]);
    let dialect = world.hosts[CLIENT].group.terms.dialect;
    assert_eq!(dialect, Dialect::V2(ByteOrder::Little));
}

#[test]
fn idle_links_are_tested() {
    let mut world = World::connected([1, 1], LlcTerms::v2_1(1, 255), LlcConfig::default());
    world.summaries();
    world.advance(29 * SECOND);
    assert_eq!(world.summaries(), [""; 0]);
    // The server tests first, because it received its answer last; each message counts for
    // the other side.
    world.advance(2 * SECOND);
    let messages = world.summaries();
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages[0].ends_with(":TEST_LINK") && messages[1].ends_with(":TEST_LINK'"));
    // Messages of connections count as well.
    for _ in 0..10 {
        world.advance(10 * SECOND);
        let now = world.now;
        for side in [SERVER, CLIENT] {
            let link = world.hosts[side].group.assigned_link(0).unwrap();
            world.with(side, |group| group.handle_received(now, link));
        }
    }
    assert_eq!(world.summaries(), [""; 0]);
}

#[test]
fn an_unanswered_test_takes_the_link_down() {
    let mut world = World::connected([1, 1], LlcTerms::v2_1(1, 255), LlcConfig::default());
    world.hosts[CLIENT].filter = Some(|_| true);
    world.hosts[SERVER].filter = Some(|_| true);
    world.summaries();
    let quiet_until = world.now + 29 * SECOND;
    world.advance(quiet_until - world.now);
    assert_eq!(world.kinds(), [GroupType::Single; 2]);
    world.advance(5 * SECOND);
    for side in [SERVER, CLIENT] {
        assert!(world.saw(side, |output| {
            matches!(
                output,
                LinkGroupOutput::Terminate(GroupEndCause::LinksLost(_))
            )
        }));
        assert!(world.hosts[side].group.has_ended());
    }
}

#[test]
fn tests_can_be_turned_off() {
    let config = LlcConfig {
        test_link: None,
        ..LlcConfig::default()
    };
    let mut world = World::connected([1, 1], LlcTerms::v2_1(1, 255), config);
    world.summaries();
    world.advance(3_600 * SECOND);
    assert_eq!(world.summaries(), [""; 0]);
    assert_eq!(world.hosts[SERVER].group.poll_timeout(), None);
}

#[test]
fn what_is_repeated_or_out_of_place_is_dropped() {
    let mut world = World::connected([1, 1], LlcTerms::v2_1(1, 255), LlcConfig::default());
    let requests: &[(u8, u8, MessageType)] = &[
        (0x21, 0x03, MessageType::ConfirmLink),
        (0x21, 0x83, MessageType::ConfirmLink),
        (0x22, 0x80, MessageType::AddLink),
        (0x24, 0x80, MessageType::DeleteLink),
        (0x25, 0x80, MessageType::RequestAddLink),
        (0x26, 0x80, MessageType::ConfirmRkey),
        (0x29, 0x80, MessageType::DeleteRkey),
    ];
    world.summaries();
    let now = world.now;
    for side in [SERVER, CLIENT] {
        let link = world.hosts[side].group.assigned_link(0).unwrap();
        // Any message proves that the peer lives.
        world.with(side, |group| group.handle_received(now, link));
        world.hosts[side].seen.clear();
        for (kind, flags, name) in requests {
            let mut message = [0; 44];
            message[..4].copy_from_slice(&[*kind, 44, 0, *flags]);
            let before = format!("{:?}", world.hosts[side].group);
            world.with(side, |group| group.handle_message(now, link, &message));
            let after = format!("{:?}", world.hosts[side].group);
            assert_eq!(after, before, "{name}");
        }
        let mut message = [0; 44];
        for unknown in [0x23, 0x28, 0x05, 0x01, 0x8a] {
            message[..4].copy_from_slice(&[unknown, 44, 0, 0]);
            let before = format!("{:?}", world.hosts[side].group);
            world.with(side, |group| group.handle_message(now, link, &message));
            let after = format!("{:?}", world.hosts[side].group);
            assert_eq!(after, before, "{unknown:#x}");
        }
        world.with(side, |group| group.handle_message(now, link, &[0x21; 43]));
        world.with(side, |group| group.handle_message(now, link, &[]));
    }
    assert_eq!(world.summaries(), [""; 0]);
    let is_drop = |output: &LinkGroupOutput| {
        matches!(output, LinkGroupOutput::Notice(Notice::Dropped { .. }))
    };
    assert!(world.hosts.iter().all(|host| host.seen.iter().all(is_drop)));
    assert_eq!(world.kinds(), [GroupType::Single; 2]);
}
