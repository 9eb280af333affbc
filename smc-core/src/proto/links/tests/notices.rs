//! Notices of a group to its caller, for logs.

use super::*;
use crate::device::LinkFailure;

/// The notices that a side has given since the last call.
fn notices(world: &mut World, side: usize) -> Vec<Notice> {
    let seen = std::mem::take(&mut world.hosts[side].seen);
    let notices = seen.into_iter().filter_map(|output| match output {
        LinkGroupOutput::Notice(notice) => Some(notice),
        _ => None,
    });
    notices.collect()
}

fn receive(world: &mut World, side: usize, message: &[u8]) -> Vec<Notice> {
    let link = world.hosts[side].group.assigned_link(0).unwrap();
    let now = world.now;
    world.with(side, |group| group.handle_message(now, link, message));
    notices(world, side)
}

#[test]
fn both_links_are_up_once_the_second_one_is_added() {
    let mut world = World::connected([2, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    for side in [SERVER, CLIENT] {
        let links: Vec<_> = world.hosts[side].group.links().collect();
        let up: Vec<_> = links.iter().map(|link| Notice::LinkUp(link.id)).collect();
        assert_eq!(notices(&mut world, side), up);
    }
}

#[test]
fn a_failed_link_is_down_for_its_failure_here_and_as_deleted_at_the_peer() {
    let mut world = World::connected([2, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    let [failed, deleted] =
        [CLIENT, SERVER].map(|side| world.hosts[side].group.assigned_link(0).unwrap());
    for side in [SERVER, CLIENT] {
        notices(&mut world, side);
    }
    let now = world.now;
    world.with(CLIENT, |group| {
        group.handle_link_down(now, failed, LinkFailure::PortDown);
    });
    world.settle();
    let down = |link, cause| Notice::LinkDown { link, cause };
    let here = down(failed, LinkDownCause::Failed(LinkFailure::PortDown));
    assert_eq!(notices(&mut world, CLIENT)[0], here);
    let lost = LinkDownCause::Deleted(DeleteLinkReason::PATH_LOST);
    assert_eq!(notices(&mut world, SERVER)[0], down(deleted, lost));
}

#[test]
fn a_link_that_does_not_answer_its_test_is_down_as_silent() {
    let mut world = World::connected([2, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    let link = world.hosts[CLIENT].group.assigned_link(0).unwrap();
    for host in &mut world.hosts {
        host.filter = Some(|_| true);
    }
    notices(&mut world, CLIENT);
    world.advance(60 * SECOND);
    let cause = LinkDownCause::Silent;
    let down = Notice::LinkDown { link, cause };
    assert!(notices(&mut world, CLIENT).contains(&down));
}

#[test]
fn hosts_with_one_port_each_do_not_report_a_failure_to_add_a_link() {
    let mut world = World::connected([1, 1], LlcTerms::v2_1(2, 255), LlcConfig::default());
    for side in [SERVER, CLIENT] {
        let notices = notices(&mut world, side);
        assert!(matches!(notices[0], Notice::LinkUp(_)), "{notices:?}");
        let is_expected =
            |notice: &Notice| matches!(notice, Notice::NotAdded { why, .. } if why.is_expected());
        assert!(notices[1..].iter().all(is_expected), "{notices:?}");
        assert_eq!(notices.len(), 2, "{notices:?}");
    }
}

#[test]
fn a_dropped_message_is_reported_with_its_type_and_the_reason() {
    use DropReason::{LinkNotInUse, Malformed, Unexpected, Unknown};
    use MessageType::{ConfirmLink, ConfirmRkey, RequestAddLink};
    let mut world = World::connected([1, 1], LlcTerms::v2_1(1, 255), LlcConfig::default());
    let with = |head: [u8; 4]| {
        let mut message = vec![0; 44];
        message[..4].copy_from_slice(&head);
        message
    };
    let rows = [
        (with([0x21, 44, 0, 0x03]), Some(ConfirmLink), Unexpected),
        (with([0x25, 44, 0, 0x80]), Some(RequestAddLink), Unexpected),
        (with([0x26, 44, 0, 0x80]), Some(ConfirmRkey), Unexpected),
        (with([0x28, 44, 0, 0]), None, Unknown),
        (with([0x01, 44, 0, 0x03]), Some(ConfirmLink), Unknown),
        (vec![0x21; 43], Some(ConfirmLink), Malformed),
        (Vec::new(), None, Malformed),
    ];
    notices(&mut world, SERVER);
    for (message, kind, why) in rows {
        let dropped = Notice::Dropped { kind, why };
        assert_eq!(receive(&mut world, SERVER, &message), [dropped]);
    }
    let (now, request) = (world.now, with([0x27, 44, 0, 0]));
    world.with(SERVER, |group| {
        group.handle_message(now, LinkId(77), &request)
    });
    let kind = Some(MessageType::TestLink);
    let dropped = Notice::Dropped {
        kind,
        why: LinkNotInUse,
    };
    assert_eq!(notices(&mut world, SERVER), [dropped]);
}

#[test]
fn a_request_that_the_peer_does_not_answer_is_reported() {
    let mut world = World::connected([1, 1], LlcTerms::v2_1(1, 255), LlcConfig::default());
    world.hosts[SERVER].filter = Some(|_| true);
    notices(&mut world, CLIENT);
    world.confirm_rkey(CLIENT, 1);
    world.advance(5 * SECOND);
    let unanswered = Notice::Unanswered(MessageType::ConfirmRkey);
    assert!(notices(&mut world, CLIENT).contains(&unanswered));
}
