use super::*;
use crate::device::LinkFailure;

fn single() -> World {
    let mut world = World::connected([1, 1], Terms::v2_1(2, 255), LlcConfig::default());
    world.said();
    world
}

#[test]
fn an_idle_group_ends_in_order() {
    // The client first: the server says it back.
    let mut world = single();
    let now = world.now;
    let reason = DeleteLinkReason::OPERATOR;
    world.with(CLIENT, |group| group.shutdown(now, reason));
    assert!(world.took(CLIENT, &Output::Terminate(Cause::Local(reason))));
    assert!(!world.hosts[CLIENT].group.is_ended(), "until it is sent");
    world.settle();
    assert_eq!(
        world.said(),
        [
            "C:DELETE_LINK(all orderly 0x20000)",
            "S:DELETE_LINK(all orderly 0x20000)"
        ]
    );
    assert!(world.took(SERVER, &Output::Terminate(Cause::Peer(reason))));
    world.advance(2 * SECOND);
    assert!(world.hosts.iter().all(|host| host.group.is_ended()));

    // The server first: the client says nothing.
    let mut world = single();
    let now = world.now;
    world.with(SERVER, |group| {
        group.shutdown(now, DeleteLinkReason::PROGRAM)
    });
    world.settle();
    assert_eq!(world.said(), ["S:DELETE_LINK(all orderly 0x30000)"]);
    assert!(world.hosts.iter().all(|host| host.group.is_ended()));
}

/// Linux in the midst of adding a link ends only that with the first of them.
#[test]
fn a_peer_that_waits_for_us_in_another_flow_is_told_twice() {
    for side in [SERVER, CLIENT] {
        let mut world = World::v2([2, 2]);
        world.contact(Terms::v2_1(2, 255));
        world.confirm();
        // CONFIRM LINK of the second link, or its answer, is lost.
        world.hosts[side].filter = Some(|message| message[0] == 0x21);
        world.establish();
        world.advance(SECOND);
        assert!(world.hosts[side].group.flow.is_some());
        world.said();
        let now = world.now;
        world.with(side, |group| group.shutdown(now, DeleteLinkReason::PROGRAM));
        world.settle();
        let said = world.said();
        let farewell = "DELETE_LINK(all orderly 0x30000)";
        let ours = said.iter().filter(|line| line.ends_with(farewell));
        let ours = ours.filter(|line| line.starts_with(["S", "C"][side]));
        assert_eq!(ours.count(), 2, "{said:?}");
        world.advance(2 * SECOND);
        assert!(world.hosts.iter().all(|host| host.group.is_ended()));
    }
}

#[test]
fn a_group_that_is_terminated_is_not_orderly() {
    let mut world = single();
    let now = world.now;
    let reason = DeleteLinkReason::PROGRAM;
    world.with(SERVER, |group| group.terminate(now, reason));
    world.settle();
    assert_eq!(world.said(), ["S:DELETE_LINK(all 0x30000)"]);
    let cause = Cause::Peer(reason);
    assert!(world.took(CLIENT, &Output::Terminate(cause)));
    assert!(!cause.is_reachable() && Cause::Local(reason).is_reachable());
}

#[test]
fn nobody_waits_long_for_a_farewell() {
    for (fails, wait) in [(true, MS), (false, 2 * SECOND)] {
        let mut world = single();
        let link = world.hosts[SERVER].group.assign(0).unwrap();
        world.hosts[CLIENT].filter = Some(|_| true);
        let now = world.now;
        // Its completion is never seen.
        world.hosts[SERVER]
            .group
            .terminate(now, DeleteLinkReason::PROGRAM);
        while world.hosts[SERVER].group.poll_output().is_some() {}
        let group = &mut world.hosts[SERVER].group;
        assert_eq!(group.poll_timeout(), Some(now + 2 * SECOND));
        if fails {
            group.handle_link_down(now, link, LinkFailure::RetryExceeded);
        } else {
            group.handle_timeout(now + wait);
        }
        assert!(group.is_ended());
    }
}

#[test]
fn both_ends_at_once() {
    let mut world = World::connected([2, 2], Terms::v2_1(2, 255), LlcConfig::default());
    let now = world.now;
    for side in [SERVER, CLIENT] {
        world.confirm_rkey(side, 1);
        world.delete_rkey(side, 0);
        world.with(side, |group| {
            group.terminate(now, DeleteLinkReason::PROGRAM)
        });
    }
    world.advance(3 * SECOND);
    for side in [SERVER, CLIENT] {
        let host = &world.hosts[side];
        assert!(host.group.is_ended());
        let ended = host.seen.iter().filter(|output| **output == Output::Ended);
        assert_eq!(ended.count(), 1);
        let closed = host.seen.iter();
        let closed = closed.filter(|output| matches!(output, Output::Close(_)));
        assert_eq!(closed.count(), 2);
        assert!(world.saw(side, |output| matches!(output, Output::RkeyDeleted { .. })));
        assert!(world.saw(side, |output| matches!(
            output,
            Output::RkeyConfirmed {
                result: Err(RkeyError::Ended),
                ..
            }
        )));
    }
}

#[test]
fn a_group_without_links_ends_at_once() {
    let mut group = LinkGroup::new(
        crate::proto::handshake::Role::Client,
        smc_wire::types::GroupId([0; 4]),
        LlcConfig::default(),
    );
    group.terminate(std::time::Instant::now(), DeleteLinkReason::PROGRAM);
    assert!(group.is_ended());
    assert_eq!(group.poll_timeout(), None);
}
