use smc_wire::llc::{DeleteLink, DeleteRkey};

use super::world::Side;
use super::*;
use crate::device::LinkFailure;

fn single() -> World {
    let mut world = World::connected([1, 1], LlcTerms::v2_1(2, 255), LlcConfig::default());
    world.summaries();
    world
}

#[test]
fn an_idle_group_ends_in_order() {
    // The client first: the server echoes it.
    let mut world = single();
    let now = world.now;
    let reason = DeleteLinkReason::OPERATOR;
    world.with(CLIENT, |group| group.end(now, true, reason));
    let is_reported = |output: &LinkGroupOutput| matches!(output, LinkGroupOutput::Terminate(_));
    assert!(!world.saw(CLIENT, is_reported), "its registry has decided");
    assert!(!world.hosts[CLIENT].group.has_ended(), "until it is sent");
    world.settle();
    assert_eq!(
        world.summaries(),
        [
            "C:DELETE_LINK(all orderly 0x20000)",
            "S:DELETE_LINK(all orderly 0x20000)"
        ]
    );
    assert!(world.took(
        SERVER,
        &LinkGroupOutput::Terminate(GroupEndCause::LinksDeleted(reason))
    ));
    world.advance(2 * SECOND);
    assert!(world.hosts.iter().all(|host| host.group.has_ended()));

    // The server first: the client sends nothing.
    let mut world = single();
    let now = world.now;
    world.with(SERVER, |group| {
        group.end(now, true, DeleteLinkReason::PROGRAM)
    });
    world.settle();
    assert_eq!(world.summaries(), ["S:DELETE_LINK(all orderly 0x30000)"]);
    assert!(world.hosts.iter().all(|host| host.group.has_ended()));
}

/// Both ends have agreed on a second link, and one does not receive CONFIRM LINK.
fn adding(deaf: Side) -> World {
    let mut world = World::v2([2, 2]);
    world.contact(LlcTerms::v2_1(2, 255));
    world.confirm();
    world.hosts[deaf].filter = Some(|message| message[0] == 0x21);
    world.establish();
    world.advance(SECOND);
    for host in &world.hosts {
        assert!(host.group.flow.is_some());
    }
    world.summaries();
    world
}

fn shutdown(world: &mut World, side: Side) {
    let now = world.now;
    world.with(side, |group| {
        group.end(now, true, DeleteLinkReason::PROGRAM)
    });
}

fn deliver(world: &mut World, side: Side, message: DeleteLink) {
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(&mut bytes).unwrap();
    let now = world.now;
    world.with(side, |group| group.handle_message(now, LinkId(1), &bytes));
}

/// Linux, while adding a link, takes it for the end of that link, and receives nothing for a
/// while.
#[test]
fn delete_link_is_repeated_until_a_peer_in_another_flow_answers() {
    for side in [SERVER, CLIENT] {
        let mut world = adding(CLIENT);
        world.hosts[1 - side].filter = Some(|_| true);
        shutdown(&mut world, side);
        world.advance(500 * MS);
        let who = ["S", "C"][side];
        let last_message = format!("{who}:DELETE_LINK(all orderly 0x30000)");
        assert_eq!(world.summaries(), vec![last_message; 3]);
        assert!(!world.hosts[side].group.has_ended());
        // Its answer is about the link that it gives up.
        let all = DeleteLink::all(LlcTerms::V2.dialect, false, DeleteLinkReason::PROGRAM);
        deliver(&mut world, side, all.response(all.reason));
        assert!(!world.hosts[side].group.has_ended());
        deliver(&mut world, side, all);
        assert!(world.hosts[side].group.has_ended());
        assert_eq!(world.hosts[side].group.poll_timeout(), None);
    }
}

#[test]
fn delete_link_to_a_peer_that_stays_silent_is_repeated_for_a_bounded_time() {
    let mut world = adding(CLIENT);
    world.hosts[CLIENT].filter = Some(|_| true);
    shutdown(&mut world, SERVER);
    world.advance(10 * SECOND);
    assert!(world.hosts[SERVER].group.has_ended());
    let messages = world.summaries();
    let ours = messages.iter().filter(|line| line.starts_with("S:"));
    assert_eq!(ours.count(), 10, "{messages:?}");
}

/// Linux would wait two seconds for the answer before it processes the end.
#[test]
fn a_peer_that_does_not_receive_yet_may_delete_its_keys() {
    let mut world = adding(CLIENT);
    world.hosts[CLIENT].filter = Some(|_| true);
    shutdown(&mut world, SERVER);
    world.summaries();
    let (rkey, _) = world::key_of(CLIENT, RmbId(0), 0);
    let rkeys = [rkey.into()];
    let message = DeleteRkey::request(LlcTerms::V2.dialect, &rkeys);
    let mut bytes = vec![0; message.encoded_len()];
    message.emit(&mut bytes).unwrap();
    let now = world.now;
    world.with(SERVER, |group| group.handle_message(now, LinkId(1), &bytes));
    assert_eq!(world.summaries(), ["S:DELETE_RKEY'"]);
    assert_eq!(world.hosts[SERVER].group.rtokens(), 0);
    assert!(!world.hosts[SERVER].group.has_ended());
}

/// So that no side has to repeat it.
#[test]
fn one_that_was_adding_a_link_echoes_delete_link() {
    for side in [SERVER, CLIENT] {
        let mut world = adding(CLIENT);
        shutdown(&mut world, side);
        world.settle();
        let last_message = "DELETE_LINK(all orderly 0x30000)";
        let (first, second) = [("S:", "C:"), ("C:", "S:")][side];
        let both = [first, second].map(|who| format!("{who}{last_message}"));
        assert_eq!(world.summaries(), both);
        assert!(world.hosts.iter().all(|host| host.group.has_ended()));
    }
}

#[test]
fn a_client_may_be_busy_with_an_offer_that_the_server_gave_up() {
    for is_rejected in [false, true] {
        let mut world = adding(CLIENT);
        if !is_rejected {
            world.hosts[CLIENT].filter = Some(|_| true);
        }
        world.set_port(SERVER, 1, false);
        world.settle();
        assert!(world.hosts[SERVER].group.flow.is_none());
        let mut messages = vec!["S:DELETE_LINK(2 0x10000)"];
        if is_rejected {
            messages.extend(["C:DELETE_LINK'(2 0x0)", "C:ADD_LINK'(2)!"]);
        }
        assert_eq!(world.summaries(), messages);
        shutdown(&mut world, SERVER);
        world.settle();
        assert_eq!(world.hosts[SERVER].group.has_ended(), is_rejected);
        let times = if is_rejected { 1 } else { 2 };
        assert_eq!(world.summaries().len(), times);
        world.advance(2 * SECOND);
        assert!(world.hosts[SERVER].group.has_ended());
    }
}

#[test]
fn a_group_that_is_terminated_is_not_orderly() {
    let mut world = single();
    let now = world.now;
    let reason = DeleteLinkReason::PROGRAM;
    world.with(SERVER, |group| group.end(now, false, reason));
    world.settle();
    assert_eq!(world.summaries(), ["S:DELETE_LINK(all 0x30000)"]);
    let cause = GroupEndCause::LinksDeleted(reason);
    assert!(world.took(CLIENT, &LinkGroupOutput::Terminate(cause)));
}

#[test]
fn the_wait_for_the_last_message_is_short() {
    for (fails, wait) in [(true, MS), (false, 2 * SECOND)] {
        let mut world = single();
        let link = world.hosts[SERVER].group.assigned_link(0).unwrap();
        world.hosts[CLIENT].filter = Some(|_| true);
        let now = world.now;
        // Its completion is never seen.
        world.hosts[SERVER]
            .group
            .end(now, false, DeleteLinkReason::PROGRAM);
        while world.hosts[SERVER].group.poll_output().is_some() {}
        let group = &mut world.hosts[SERVER].group;
        assert_eq!(group.poll_timeout(), Some(now + 2 * SECOND));
        if fails {
            group.handle_link_down(now, link, LinkFailure::RetryExceeded);
        } else {
            group.handle_timeout(now + wait);
        }
        assert!(group.has_ended());
    }
}

#[test]
fn both_ends_at_once() {
    let mut world = World::connected([2, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    let now = world.now;
    for side in [SERVER, CLIENT] {
        world.confirm_rkey(side, 1);
        world.delete_rkey(side, 0);
        world.with(side, |group| {
            group.end(now, false, DeleteLinkReason::PROGRAM)
        });
    }
    world.advance(3 * SECOND);
    for side in [SERVER, CLIENT] {
        let host = &world.hosts[side];
        assert!(host.group.has_ended());
        let ended = host
            .seen
            .iter()
            .filter(|output| **output == LinkGroupOutput::Ended);
        assert_eq!(ended.count(), 1);
        let closed = host.seen.iter();
        let closed = closed.filter(|output| matches!(output, LinkGroupOutput::Close(_)));
        assert_eq!(closed.count(), 2);
        assert!(world.saw(side, |output| matches!(
            output,
            LinkGroupOutput::RkeyDeleted { .. }
        )));
        assert!(world.saw(side, |output| matches!(
            output,
            LinkGroupOutput::RkeyConfirmed {
                result: Err(RkeyError::Ended),
                ..
            }
        )));
    }
}

#[test]
fn a_group_without_links_ends_at_once() {
    let mut group = LinkGroup::new(
        crate::proto::Role::Client,
        smc_wire::types::GroupId([0; 4]),
        LlcConfig::default(),
    );
    group.end(std::time::Instant::now(), false, DeleteLinkReason::PROGRAM);
    assert!(group.has_ended());
    assert_eq!(group.poll_timeout(), None);
}
