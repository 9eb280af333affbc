use super::*;
use crate::device::{LinkFailure, RoceKind};
use crate::proto::links::LinkChoice;

fn default(ports: [usize; 2], terms: LlcTerms) -> World {
    World::connected(ports, terms, LlcConfig::default())
}

#[test]
fn two_ports_on_both_sides_make_a_symmetric_group() {
    let mut world = default([2, 2], LlcTerms::v2_1(2, 255));
    assert_eq!(
        world.summaries()[2..],
        [
            "S:ADD_LINK(2)",
            "C:ADD_LINK'(2)",
            "S:CONFIRM_LINK(2)",
            "C:CONFIRM_LINK'(2)"
        ]
    );
    assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
    world.assert_agreed();
    // Connections alternate.
    let group = &world.hosts[SERVER].group;
    assert_ne!(group.assigned_link(0), group.assigned_link(1));
    assert_eq!(group.assigned_link(0), group.assigned_link(2));
    // And are found by the end that ACCEPT names.
    for info in group.links() {
        let local = info.local.unwrap();
        let named = |qpn| LinkChoice::Named {
            gid: local.gid,
            mac: Some(local.mac),
            qpn,
        };
        let client = &world.hosts[CLIENT].group;
        let found = client.link_for(named(local.qpn), 0).unwrap();
        assert_eq!(found.number, info.number);
        assert_eq!(client.link_for(named(smc_wire::types::Qpn::MAX), 0), None);
    }
}

#[test]
fn version_1_tells_keys_in_turns() {
    let mut world = default([2, 2], LlcTerms::V1);
    assert_eq!(
        world.summaries()[2..],
        [
            "S:ADD_LINK(2)",
            "C:ADD_LINK'(2)",
            "S:ADD_LINK_CONT(1)",
            "C:ADD_LINK_CONT'(1)",
            "S:CONFIRM_LINK(2)",
            "C:CONFIRM_LINK'(2)"
        ]
    );
    assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
    world.assert_agreed();
}

#[test]
fn many_keys_take_many_turns_in_version_1() {
    let mut world = World::connected([2, 2], LlcTerms::V1, LlcConfig::default());
    // Back to one link, with five more buffers here and one more there.
    world.set_port(SERVER, 1, false);
    world.advance(5 * SECOND);
    for rmb in 1..=5 {
        world.confirm_rkey(SERVER, rmb);
    }
    world.confirm_rkey(CLIENT, 1);
    world.settle();
    world.assert_agreed();
    world.summaries();
    world.set_port(SERVER, 1, true);
    world.settle();
    let messages = world.summaries();
    let turns: Vec<_> = messages
        .iter()
        .filter(|line| line.contains("CONT"))
        .collect();
    assert_eq!(
        turns,
        [
            "S:ADD_LINK_CONT(6)",
            "C:ADD_LINK_CONT'(2)",
            "S:ADD_LINK_CONT(4)",
            "C:ADD_LINK_CONT'(0)",
            "S:ADD_LINK_CONT(2)",
            "C:ADD_LINK_CONT'(0)"
        ]
    );
    assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
    world.assert_agreed();
}

#[test]
fn one_port_each_means_one_link() {
    for terms in [LlcTerms::V1, LlcTerms::V2, LlcTerms::v2_1(2, 255)] {
        let mut world = default([1, 1], terms);
        assert_eq!(world.summaries()[2..], ["S:ADD_LINK(2)", "C:ADD_LINK'(2)!"]);
        assert_eq!(world.kinds(), [GroupType::Single; 2]);
        world.assert_agreed();
        assert_eq!(
            world.hosts[SERVER].qps.len(),
            1,
            "the queue pair is dropped"
        );
    }
}

#[test]
fn one_link_negotiated_means_no_offer() {
    let mut world = default([2, 2], LlcTerms::v2_1(1, 255));
    assert_eq!(world.summaries().len(), 2);
    assert_eq!(world.kinds(), [GroupType::Single; 2]);
}

#[test]
fn a_second_link_that_was_not_agreed_on_is_refused() {
    // What ends ask for that have agreed on two.
    let mut other = default([2, 1], LlcTerms::v2_1(2, 255));
    let port = World::v2([1, 2]).hosts[CLIENT].ports[1].clone();
    other.hosts[CLIENT].ports.push(port);
    other.set_port(CLIENT, 1, true);
    other.settle();
    let asks = |kind| {
        let mut messages = other.log.iter().map(|(_, _, message)| message);
        messages.find(|message| message[0] == kind).unwrap().clone()
    };
    for (side, kind, answer) in [
        (CLIENT, 0x22, "C:ADD_LINK'(2)!"),
        (SERVER, 0x25, "S:REQUEST_ADD_LINK'"),
    ] {
        let message = asks(kind);
        let mut world = default([2, 2], LlcTerms::v2_1(1, 255));
        let link = world.hosts[side].group.links().next().unwrap().id;
        world.summaries();
        let now = world.now;
        world.with(side, |group| group.handle_message(now, link, &message));
        world.advance(SECOND);
        assert_eq!(world.summaries(), [answer]);
        assert_eq!(world.kinds(), [GroupType::Single; 2]);
        assert_eq!(world.hosts[side].qps.len(), 1);
        world.assert_agreed();
    }
}

#[test]
fn a_server_with_one_link_spares_older_clients_the_wait() {
    let config = LlcConfig {
        max_links: 1,
        ..LlcConfig::default()
    };
    for terms in [LlcTerms::V1, LlcTerms::V2] {
        let mut world = World::connected([1, 1], terms, config);
        let (_, _, offer) = world.log[2].clone();
        assert_eq!(offer[32] & 0xf, 0, "an MTU that no client accepts");
        assert_ne!(offer[4..28], [0; 24], "but not all zero");
        assert_eq!(world.summaries()[2..], ["S:ADD_LINK(2)", "C:ADD_LINK'(2)!"]);
        world.assert_agreed();
    }
}

#[test]
fn two_ports_on_one_side_make_an_asymmetric_group() {
    use GroupType::{AsymmetricLocal, AsymmetricPeer};
    for (ports, kinds) in [
        ([2, 1], [AsymmetricPeer, AsymmetricLocal]),
        ([1, 2], [AsymmetricLocal, AsymmetricPeer]),
    ] {
        let world = default(ports, LlcTerms::v2_1(2, 255));
        assert_eq!(world.kinds(), kinds);
        world.assert_agreed();
        // No new connections on the second link.
        let group = &world.hosts[SERVER].group;
        assert_eq!(group.assigned_link(0), group.assigned_link(1));
    }
}

#[test]
fn a_third_link_makes_the_group_symmetric_and_the_asymmetric_one_goes() {
    for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
        let mut world = default([2, 1], terms);
        assert_eq!(world.kinds()[SERVER], GroupType::AsymmetricPeer);
        world.summaries();
        // The client gets another port, and asks.
        let port = {
            let other = World::new(
                [1, 2],
                world.hosts[CLIENT].ports[0].address.kind,
                LlcConfig::default(),
            );
            other.hosts[CLIENT].ports[1].clone()
        };
        world.hosts[CLIENT].ports.push(port);
        world.set_port(CLIENT, 1, true);
        world.settle();
        assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
        let messages = world.summaries();
        let first = if terms.dialect.is_v2() {
            "C:REQUEST_ADD_LINK"
        } else {
            "C:ADD_LINK(0)"
        };
        assert_eq!(messages[0], first);
        let last = &messages[messages.len() - 2..];
        assert_eq!(
            last,
            [
                "S:DELETE_LINK(2 orderly 0x50000)",
                "C:DELETE_LINK'(2 orderly 0x0)"
            ]
        );
        world.assert_agreed();
        assert_eq!(world.hosts[SERVER].group.links().count(), 2);
    }
}

#[test]
fn a_request_without_a_place_for_it_is_answered() {
    let config = LlcConfig {
        same_device: false,
        ..LlcConfig::default()
    };
    let mut world = World::connected([1, 1], LlcTerms::v2_1(2, 255), config);
    let port = World::v2([1, 2]).hosts[CLIENT].ports[1].clone();
    world.hosts[CLIENT].ports.push(port);
    world.summaries();
    world.set_port(CLIENT, 1, true);
    world.settle();
    assert_eq!(
        world.summaries(),
        ["C:REQUEST_ADD_LINK", "S:REQUEST_ADD_LINK'"]
    );
    assert!(world.hosts[CLIENT].group.flow.is_none());
}

#[test]
fn a_request_during_an_offer_that_fails_before_it_is_sent_is_answered() {
    for is_mapping in [false, true] {
        let mut world = World::v2([2, 1]);
        world.contact(LlcTerms::v2_1(2, 255));
        world.confirm();
        match is_mapping {
            false => assert!(world.hosts[SERVER].stuck.insert(1)),
            true => world.hosts[SERVER].map_time = 3_600 * SECOND,
        }
        world.establish();
        world.advance(4 * SECOND);
        let port = World::v2([1, 2]).hosts[CLIENT].ports[1].clone();
        world.hosts[CLIENT].ports.push(port);
        world.summaries();
        world.set_port(CLIENT, 1, true);
        world.advance(1_500 * MS);
        assert_eq!(
            world.summaries(),
            ["C:REQUEST_ADD_LINK", "S:REQUEST_ADD_LINK'"]
        );
        let client = &world.hosts[CLIENT].group;
        assert!(client.flow.is_none(), "before its timeout");
    }
}

/// Linux does not look at the number, and RFC 7609 does not say that an answer has it.
#[test]
fn an_answer_without_the_number_of_the_link_is_one_to_the_offer() {
    for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
        for is_accepted in [true, false] {
            let version = match terms.dialect.is_v2() {
                true => RoceKind::V2,
                false => RoceKind::V1,
            };
            let ports = if is_accepted { [2, 2] } else { [1, 1] };
            let mut world = World::new(ports, version, LlcConfig::default());
            world.hosts[CLIENT].edit = Some(|message| {
                // ADD LINK and ADD LINK CONT.
                match message[0] & 0x1f {
                    0x02 => message[31] = 0,
                    0x03 => message[4] = 0,
                    _ => {}
                }
            });
            world.connect(terms);
            let expected = if is_accepted {
                GroupType::Symmetric
            } else {
                GroupType::Single
            };
            assert_eq!(world.kinds(), [expected; 2]);
            assert!(world.hosts[SERVER].group.flow.is_none(), "at once");
            world.assert_agreed();
        }
    }
}

#[test]
fn no_wait_for_a_silent_peer_exceeds_its_timeout() {
    // The client does not receive the offer.
    let mut world = World::v2([2, 2]);
    world.contact(LlcTerms::v2_1(2, 255));
    world.confirm();
    world.hosts[CLIENT].filter = Some(|message| message[0] == 0x22);
    world.establish();
    world.advance(2 * SECOND);
    assert!(world.hosts[SERVER].group.flow.is_none());
    let offered = Some(smc_wire::types::LinkNumber(2));
    assert_eq!(world.hosts[SERVER].group.abandoned, offered);
    world.assert_agreed();

    // The client does not receive CONFIRM LINK, nor the server its answer.
    for deaf in [SERVER, CLIENT] {
        let mut world = World::v2([2, 2]);
        world.contact(LlcTerms::v2_1(2, 255));
        world.confirm();
        world.hosts[deaf].filter = Some(|message| message[0] == 0x21);
        world.summaries();
        world.establish();
        world.advance(6 * SECOND);
        assert_eq!(world.kinds(), [GroupType::Single; 2], "{deaf}");
        assert!(
            world
                .summaries()
                .iter()
                .any(|line| line.contains("DELETE_LINK(2 "))
        );
        world.assert_agreed();
    }
}

#[test]
fn an_offer_is_not_accepted_when_the_server_has_abandoned_it() {
    for (is_deferred, is_stuck, map_time) in [
        (false, true, MS),
        (false, false, 3 * SECOND),
        (true, false, 1_500 * MS),
    ] {
        let mut world = World::v2([2, 2]);
        world.contact(LlcTerms::v2_1(2, 255));
        world.confirm();
        if is_deferred {
            // Another request is unanswered when the offer comes, for a second.
            world.hosts[SERVER].filter = Some(|message| message[0] == 0x26);
            world.confirm_rkey(CLIENT, 1);
            world.advance(SECOND);
        }
        if is_stuck {
            world.hosts[CLIENT].stuck.insert(1);
        }
        world.hosts[CLIENT].map_time = map_time;
        let now = world.now;
        world.with(SERVER, |group| group.establish(now));
        world.summaries();
        // Opening and registering take a few milliseconds in the server.
        world.advance(1_990 * MS);
        assert_eq!(world.summaries(), ["S:ADD_LINK(2)"]);
        world.advance(30 * MS);
        assert_eq!(world.summaries(), ["C:ADD_LINK'(2)!"]);
        assert!(world.hosts.iter().all(|host| host.group.flow.is_none()));
        world.advance(10 * SECOND);
        assert_eq!(world.kinds(), [GroupType::Single; 2]);
        assert_eq!(world.hosts[SERVER].group.abandoned, None);
    }
}

/// The numbers of the ports at which links were opened.
fn opened(world: &mut World, side: usize) -> Vec<u8> {
    let seen = std::mem::take(&mut world.hosts[side].seen).into_iter();
    seen.filter_map(|output| match output {
        LinkGroupOutput::Open { address, .. } => Some(address.port),
        _ => None,
    })
    .collect()
}

/// A port of the other side makes the group look for another link.
fn look_for_a_link(world: &mut World, side: usize) {
    world.set_port(1 - side, 1, false);
    world.set_port(1 - side, 1, true);
    world.advance(10 * SECOND);
}

#[test]
fn a_port_that_cannot_be_reached_gives_way_to_others() {
    for terms in [LlcTerms::V1, LlcTerms::v2_1(2, 255)] {
        for side in [SERVER, CLIENT] {
            let mut ports = [2, 2];
            ports[side] = 3;
            let version = match terms.dialect.is_v2() {
                true => RoceKind::V2,
                false => RoceKind::V1,
            };
            let mut world = World::new(ports, version, LlcConfig::default());
            let set_dead = |world: &mut World, at: usize, is_dead| {
                world.hosts[side].ports[at].is_dead = is_dead;
            };
            set_dead(&mut world, 1, true);
            set_dead(&mut world, 2, true);
            world.contact(terms);
            world.confirm();
            world.establish();
            world.advance(10 * SECOND);
            assert_eq!(opened(&mut world, side), [2]);
            assert_eq!(world.kinds(), [GroupType::Single; 2]);
            // In turns, as long as none works.
            look_for_a_link(&mut world, side);
            look_for_a_link(&mut world, side);
            assert_eq!(opened(&mut world, side), [3, 2]);
            assert_eq!(world.kinds(), [GroupType::Single; 2]);
            set_dead(&mut world, 2, false);
            look_for_a_link(&mut world, side);
            assert_eq!(opened(&mut world, side), [3]);
            assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
            world.assert_agreed();
            assert_eq!(world.hosts[side].group.failed_ports, [], "it has a link");
        }
    }
}

#[test]
fn ports_that_change_are_all_tried_again() {
    let mut world = World::v2([3, 2]);
    world.hosts[SERVER].ports[1].is_dead = true;
    world.contact(LlcTerms::v2_1(2, 255));
    world.confirm();
    world.establish();
    world.advance(10 * SECOND);
    assert_eq!(opened(&mut world, SERVER), [2]);
    world.set_port(SERVER, 2, false);
    world.advance(10 * SECOND);
    world.set_port(SERVER, 2, true);
    world.advance(10 * SECOND);
    assert_eq!(opened(&mut world, SERVER), [2]);
    look_for_a_link(&mut world, SERVER);
    assert_eq!(opened(&mut world, SERVER), [3]);
    assert_eq!(world.kinds(), [GroupType::Symmetric; 2]);
    world.assert_agreed();
}

#[test]
fn devices_that_fail_cost_the_link_and_nothing_else() {
    for side in [SERVER, CLIENT] {
        let mut world = World::v2([2, 2]);
        world.contact(LlcTerms::v2_1(2, 255));
        world.confirm();
        world.hosts[side].stuck.insert(1);
        world.establish();
        world.advance(6 * SECOND);
        assert!(world.hosts.iter().all(|host| host.group.flow.is_none()));
        assert_eq!(world.kinds(), [GroupType::Single; 2]);
        // Keys go on.
        world.confirm_rkey(side, 1);
        world.settle();
        world.assert_agreed();
    }
}

#[test]
fn the_link_below_fails_while_another_is_added() {
    for stage in 1..12_u32 {
        let mut world = World::v2([2, 2]);
        let links = world.contact(LlcTerms::v2_1(2, 255));
        world.confirm();
        let now = world.now;
        for side in [CLIENT, SERVER] {
            world.with(side, |group| group.establish(now));
        }
        world.advance(stage * MS);
        world.cut(SERVER, links[SERVER]);
        let now = world.now;
        for side in [SERVER, CLIENT] {
            world.with(side, |group| {
                group.handle_link_down(now, links[side], LinkFailure::RetryExceeded);
            });
        }
        world.advance(20 * SECOND);
        for host in &world.hosts {
            assert!(host.group.flow.is_none());
        }
        let ended = [0, 1].map(|side| world.hosts[side].group.has_ended());
        assert_eq!(ended[0], ended[1], "after {stage} ms");
    }
}
