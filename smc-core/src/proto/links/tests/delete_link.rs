use smc_wire::llc::{ByteOrder, Class, DeleteLink, Dialect};
use smc_wire::types::LinkNumber;

use super::*;

fn request(link: u8) -> [u8; 44] {
    let mut message = [0; 44];
    DeleteLink {
        dialect: Dialect::V2(ByteOrder::Little),
        class: Class::Request,
        all: false,
        orderly: true,
        link: LinkNumber(link),
        reason: DeleteLinkReason::PATH_LOST,
    }
    .emit(&mut message)
    .unwrap();
    message
}

fn symmetric() -> World {
    let mut world = World::connected([2, 2], LlcTerms::v2_1(2, 255), LlcConfig::default());
    world.summaries();
    world
}

/// The answers of a side, which are not delivered to the other one.
fn deliver(world: &mut World, side: usize, message: &[u8], link: LinkId) -> Vec<String> {
    world.hosts[1 - side].filter = Some(|_| true);
    let now = world.now;
    world.with(side, |group| group.handle_message(now, link, message));
    world.advance(5 * MS);
    world.summaries()
}

#[test]
fn a_client_answers_and_moves() {
    let mut world = symmetric();
    let [one, two] = [0, 1].map(|at| world.hosts[CLIENT].group.assigned_link(at).unwrap());
    assert_eq!(
        deliver(&mut world, CLIENT, &request(1), two),
        ["C:DELETE_LINK'(1 orderly 0x0)"]
    );
    assert!(world.took(CLIENT, &LinkGroupOutput::Move { from: one, to: two }));
    assert!(world.took(CLIENT, &LinkGroupOutput::Close(one)));
    assert_eq!(world.kinds()[CLIENT], GroupType::Single);
    // It does not exist any more.
    assert_eq!(
        deliver(&mut world, CLIENT, &request(1), two),
        ["C:DELETE_LINK'(1 orderly 0x100000)"]
    );
}

#[test]
fn the_answer_does_not_travel_on_the_link_that_goes() {
    let mut world = symmetric();
    let [one, two] = [0, 1].map(|at| world.hosts[CLIENT].group.assigned_link(at).unwrap());
    let now = world.now;
    world.with(CLIENT, |group| group.handle_message(now, one, &request(1)));
    let (_, on, _) = world.log.last().unwrap();
    assert_eq!(*on, two);
}

#[test]
fn a_server_echoes_delete_link_and_waits_two_seconds() {
    let mut world = symmetric();
    let [one, two] = [0, 1].map(|at| world.hosts[SERVER].group.assigned_link(at).unwrap());
    assert_eq!(
        deliver(&mut world, SERVER, &request(1), two),
        ["S:DELETE_LINK(1 orderly 0x10000)"]
    );
    assert!(world.took(SERVER, &LinkGroupOutput::Move { from: one, to: two }));
    // Repeated by the client, which is answered already.
    assert_eq!(deliver(&mut world, SERVER, &request(1), two), [""; 0]);
    world.advance(2 * SECOND - 20 * MS);
    assert!(!world.took(SERVER, &LinkGroupOutput::Close(one)));
    world.advance(20 * MS);
    assert!(world.took(SERVER, &LinkGroupOutput::Close(one)));
    // Then it looks for another one.
    assert!(world.hosts[SERVER].group.flow.is_some());
    world.advance(20 * SECOND);
    world.summaries();
    assert_eq!(
        deliver(&mut world, SERVER, &request(9), two),
        ["S:DELETE_LINK'(9 orderly 0x100000)"]
    );
}

#[test]
fn the_last_link_deleted_ends_the_group() {
    for side in [SERVER, CLIENT] {
        let mut world = World::connected([1, 1], LlcTerms::v2_1(2, 255), LlcConfig::default());
        world.summaries();
        let link = world.hosts[side].group.assigned_link(0).unwrap();
        let messages = deliver(&mut world, side, &request(1), link);
        world.settle();
        let reason = DeleteLinkReason::PATH_LOST;
        assert!(world.took(
            side,
            &LinkGroupOutput::Terminate(GroupEndCause::LinksDeleted(reason))
        ));
        assert!(world.hosts[side].group.has_ended());
        let expected = match side {
            SERVER => "S:DELETE_LINK(all orderly 0x10000)",
            _ => "C:DELETE_LINK'(1 orderly 0x0)",
        };
        assert_eq!(messages, [expected]);
    }
}

#[test]
fn a_deletion_takes_the_place_of_what_a_new_link_waits_for() {
    // The server waits for the answer to its offer.
    let mut world = World::v2([2, 2]);
    let links = world.contact(LlcTerms::v2_1(2, 255));
    world.confirm();
    world.hosts[CLIENT].filter = Some(|_| true);
    world.establish();
    world.summaries();
    let now = world.now;
    world.with(SERVER, |group| {
        group.handle_message(now, links[SERVER], &request(2))
    });
    assert_eq!(world.summaries(), ["S:DELETE_LINK'(2 orderly 0x100000)"]);
    assert!(world.hosts[SERVER].group.flow.is_none());

    // The client waits for CONFIRM LINK.
    let mut world = World::v2([2, 2]);
    let links = world.contact(LlcTerms::v2_1(2, 255));
    world.confirm();
    world.hosts[SERVER].filter = Some(|message| message[0] == 0x22);
    world.establish();
    world.summaries();
    let now = world.now;
    world.with(CLIENT, |group| {
        group.handle_message(now, links[CLIENT], &request(2))
    });
    assert_eq!(
        world.summaries(),
        ["C:DELETE_LINK'(2 orderly 0x0)", "C:ADD_LINK'(2)!"]
    );
    assert!(world.hosts[CLIENT].group.flow.is_none());
    assert_eq!(world.hosts[CLIENT].group.links().count(), 1);
}

#[test]
fn one_request_is_kept_aside_and_a_second_one_dropped() {
    let mut world = World::connected([3, 3], LlcTerms::v2_1(2, 255), LlcConfig::default());
    let [one, two] = [0, 1].map(|at| world.hosts[SERVER].group.assigned_link(at).unwrap());
    world.summaries();
    // The state of the server has a request that it never sent.
    world.hosts[CLIENT].filter = Some(|_| true);
    let until = world.now + 2 * SECOND;
    let group = &mut world.hosts[SERVER].group;
    group.flow = Some(flow::Flow::Delete(super::super::delete_link::Deletion {
        link: LinkId(77),
        number: LinkNumber(77),
        reason: DeleteLinkReason::PATH_LOST,
        is_orderly: true,
        awaits_moves: false,
        over: Some(two),
        until,
    }));
    let now = world.now;
    world.with(SERVER, |group| {
        group.handle_message(now, two, &request(1));
        group.handle_message(now, two, &request(2));
    });
    assert_eq!(world.summaries(), [""; 0]);
    let deferred = &world.hosts[SERVER].group.pending.deferred;
    assert!(
        matches!(deferred, Some(flow::DeferredRequest::Delete { request, .. })
            if request.link.0 == 1)
    );
    world.advance(2 * SECOND);
    assert_eq!(world.summaries(), ["S:DELETE_LINK(1 orderly 0x10000)"]);
    world.advance(2 * SECOND);
    assert!(world.took(SERVER, &LinkGroupOutput::Close(one)));
}

#[test]
fn a_deletion_does_not_wait_for_the_answer_to_a_request_for_a_link() {
    // The link over which it was requested, and the other one.
    for number in [1, 2] {
        let mut world = symmetric();
        let links = [0, 1].map(|at| world.hosts[CLIENT].group.assigned_link(at).unwrap());
        let until = world.now + 2 * SECOND;
        let over = links[0];
        world.hosts[CLIENT].group.flow = Some(flow::Flow::RequestAdd { over, until });
        let answer = format!("C:DELETE_LINK'({number} orderly 0x0)");
        let messages = deliver(&mut world, CLIENT, &request(number), links[1]);
        assert_eq!(messages[0], answer);
        let [from, to] = match number {
            1 => links,
            _ => [links[1], links[0]],
        };
        assert!(world.took(CLIENT, &LinkGroupOutput::Move { from, to }));
        assert!(world.took(CLIENT, &LinkGroupOutput::Close(from)));
        // The request is made again if its link is gone.
        let is_repeated = messages[1..] == ["C:REQUEST_ADD_LINK"];
        assert_eq!(is_repeated, number == 1, "{messages:?}");
        assert!(world.hosts[CLIENT].group.flow.is_some());
    }
}
