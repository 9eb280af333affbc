use smc_wire::types::Features;

use super::*;
use crate::device::LinkAddress;
use crate::proto::group::{CREATOR_TIMEOUT, GroupId, GroupLinks};
use crate::proto::links::{AuthenticatedPart, PeerRmb};

/// The peer's end of a link.
fn end(host: u8, qpn: Qpn) -> LinkAddress {
    LinkAddress {
        gid: RoceGid::from_ipv4(ip(host)),
        mac: port(host).address.mac,
        qpn,
        psn: Psn::default(),
        mtu: MtuCode::MTU_1024,
    }
}

fn set_links(groups: &RefCell<Groups>, group: GroupId, ends: Vec<LinkAddress>) {
    let is_full = false;
    let links = GroupLinks {
        ends,
        is_full,
        ..GroupLinks::default()
    };
    groups.borrow_mut().registry.set_links(group, &links);
}

#[test]
fn next_connection_joins_the_group() {
    let first = rdma_pair().completed();
    let second = again(&first).completed();

    for side in [&second.client, &second.server] {
        assert!(!side.established().first_contact);
        assert_eq!(side.established().release, Release::V2_1);
        assert_eq!(side.established().peer_host.as_str(), Some("host-a"));
        assert_eq!(side.groups.borrow().connections(), 2);
        assert_eq!(side.groups.borrow().registry.group_infos().len(), 1);
    }
    assert_eq!(
        second.client.rdma().link,
        first.client.rdma().link,
        "the link that the server has named"
    );
    assert_ne!(second.client.rdma().local, first.client.rdma().local);
    assert_eq!(second.from_server.len(), 108);
    assert_eq!(second.from_client.len(), 156 + 108);
    assert_eq!(
        second.server.asked(),
        ["enter", "prepare", "confirm rkey", "bind"],
        "keys before ACCEPT"
    );
    assert_eq!(
        second.client.asked(),
        ["enter", "prepare", "bind", "confirm rkey"],
        "keys before CONFIRM"
    );
}

fn authenticating(host: u8) -> HandshakeConfig {
    HandshakeConfig {
        vendor_features: Features::AUTHENTICATION,
        ..rdma_host(host)
    }
}

/// What a side was to check.
fn bound(side: &HandshakeSide) -> PeerRmb {
    let bound = side.works.iter().find_map(|work| match work {
        Work::BindPeer { rmb, .. } => Some(*rmb),
        _ => None,
    });
    bound.unwrap()
}

#[test]
fn messages_of_further_connections_have_the_code_of_the_group() {
    let first = pair_of(authenticating(CLIENT), authenticating(SERVER)).completed();
    for side in [&first.client, &first.server] {
        assert_eq!(bound(side).authentication, None, "there is no key yet");
        let features = side.established().vendor_features;
        assert_eq!(features, Features::AUTHENTICATION);
    }
    let groups = [&first.client, &first.server].map(|side| Rc::clone(&side.groups));
    let second = pair_in(authenticating(CLIENT), authenticating(SERVER), groups).completed();
    for (side, peer) in [
        (&second.client, &second.server),
        (&second.server, &second.client),
    ] {
        assert!(!side.established().first_contact);
        let sent = peer.rdma().local.authentication;
        let sent = sent.unwrap().of(Features::empty()).unwrap();
        let (received, part) = bound(side).authentication.unwrap();
        assert_eq!(received, sent);
        assert_eq!(part, AuthenticatedPart::InUse(Features::empty(), 0));
    }
}

/// A process between the two has removed the features of one of them, or the peer has none.
#[test]
fn a_client_that_can_authenticate_gets_into_no_group_without_a_key() {
    let first = again(&rdma_pair().completed()).completed();
    assert!(!first.server.established().first_contact);
    let groups = [&first.client, &first.server].map(|side| Rc::clone(&side.groups));
    let without = pair_in(authenticating(CLIENT), rdma_host(SERVER), groups.clone()).completed();
    assert!(
        !without.server.established().first_contact,
        "nor can the server"
    );
    let second = pair_in(
        authenticating(CLIENT),
        authenticating(SERVER),
        groups.clone(),
    );
    let second = second.completed();
    assert!(second.server.established().first_contact);
    let third = pair_in(rdma_host(CLIENT), authenticating(SERVER), groups).completed();
    assert_eq!(
        third.server.established().group,
        first.server.established().group,
        "nor into one with a key, if it cannot"
    );
}

#[test]
fn a_full_group_is_not_joined() {
    let mut server = rdma_host(SERVER);
    rdma_of(&mut server).max_conns = 16;
    let groups = [Rc::default(), Rc::default()];
    let counts: Vec<_> = (0..33)
        .map(|_| {
            let pair = pair_in(rdma_host(CLIENT), server.clone(), groups.clone()).completed();
            assert_eq!(
                pair.client.established().first_contact,
                pair.server.established().first_contact
            );
            pair.server.established().group
        })
        .collect();
    for side in &groups {
        let groups = side.borrow();
        let held: Vec<_> = groups
            .registry
            .group_infos()
            .iter()
            .map(|group| group.connections)
            .collect();
        assert_eq!(held, [16, 16, 1]);
    }
    assert_ne!(counts[15], counts[16]);
}

#[test]
fn a_full_table_means_a_new_group() {
    let first = rdma_pair().completed();
    let group = first.server.established().group;
    let set_full = |is_full| {
        let mut groups = first.server.groups.borrow_mut();
        let ends = vec![end(CLIENT, Qpn::default())];
        groups.registry.set_links(
            group,
            &GroupLinks {
                ends,
                is_full,
                ..GroupLinks::default()
            },
        );
    };
    set_full(true);
    let second = again(&first).completed();
    assert!(second.client.established().first_contact);
    // The newest group with a free place is joined; that is the second now.
    set_full(false);
    let third = again(&first).completed();
    assert_eq!(
        third.server.established().group,
        second.server.established().group
    );
}

#[test]
fn lost_link_group_is_out_of_sync_and_the_server_makes_a_new_one() {
    let first = rdma_pair().completed();
    let server = Rc::clone(&first.server.groups);
    // The client's process forgot its groups.
    let groups = [Rc::default(), Rc::clone(&server)];
    let second = pair_in(rdma_host(CLIENT), rdma_host(SERVER), groups).completed();
    second.client_declines(DeclineCode::SYNCERR);
    // Any process could have said it: the connection of the first one stays.
    assert_eq!(server.borrow().terminated, []);
    assert_eq!(server.borrow().connections(), 1);
    let (_, decline) = second.from_client.split_at(156);
    let decline = Decline::parse(decline).unwrap();
    assert!(decline.out_of_sync);
    assert_eq!(decline.peer_id, peer_id(CLIENT));

    let third = again(&second).completed();
    assert!(third.client.established().first_contact);
}

/// All that a PROPOSAL says can be copied.
#[test]
fn a_client_at_another_address_cannot_join_deny_or_delay_the_group() {
    let elsewhere = |groups: &Rc<RefCell<Groups>>| {
        let path_of_server = path(SERVER).with_addresses(ip(SERVER).into(), ip(99).into());
        Pair::with(
            (rdma_host(CLIENT), path(CLIENT)),
            (rdma_host(SERVER), path_of_server),
            [Rc::default(), Rc::clone(groups)],
        )
    };
    let mut first = rdma_pair();
    let groups = Rc::clone(&first.server.groups);
    // It names the client and falls silent.
    let mut silent = elsewhere(&groups);
    silent.client.faults.stall = Some("open link");
    silent.settle();
    first.settle();
    let group = first.server.established().group;
    // It names the client, and a link group of its own is not the client's.
    let mut forged = elsewhere(&groups);
    forged.client.faults.rdma = [WorkDone::LinkOpened(Err(DeviceError::Exhausted))].into();
    forged.run();
    assert_eq!(forged.server.fallback(), peer(DeclineCode::MEM));
    let second = again(&first).completed();
    assert_eq!(second.server.established().group, group);
}

#[test]
fn a_link_that_the_client_does_not_know_is_out_of_sync() {
    let first = rdma_pair().completed();
    // The client has moved its connections to another link, the server uses the old one.
    let group = first.client.established().group;
    let groups = Rc::clone(&first.client.groups);
    let other = end(SERVER, Qpn::new(0x999).unwrap());
    set_links(&groups, group, vec![other]);
    let second = again(&first).completed();
    assert_eq!(second.client.fallback(), local(DeclineCode::SYNCERR));
}

#[test]
fn a_group_is_found_over_each_of_its_links() {
    let first = rdma_pair().completed();
    let group = first.server.established().group;
    let groups = Rc::clone(&first.server.groups);
    let ends = [CLIENT, 77].map(|host| end(host, Qpn::default()));
    set_links(&groups, group, ends.to_vec());
    // The client comes over its other port.
    let mut port = port(CLIENT);
    port.address.gid = RoceGid::from_ipv4(ip(77));
    let second = pair_in(
        rdma_host_with(CLIENT, vec![port]),
        rdma_host(SERVER),
        [Rc::clone(&first.client.groups), Rc::clone(&groups)],
    )
    .completed();
    assert_eq!(second.server.established().group, group);
    assert_eq!(
        second.client.established().group,
        first.client.established().group
    );
}

#[test]
fn many_setups_at_once_share_one_group() {
    let groups = [Rc::default(), Rc::default()];
    let mut pairs: Vec<_> = (0..50)
        .map(|_| pair_in(rdma_host(CLIENT), rdma_host(SERVER), groups.clone()))
        .collect();
    // All PROPOSALs arrive before any CONFIRM.
    for pair in &mut pairs {
        pair.client.settle(pair.now);
        let bytes = pair.client.take_sent();
        pair.server.receive(pair.now, &bytes, usize::MAX);
    }
    assert_eq!(groups[1].borrow().registry.waiting(), 49);
    for pair in &mut pairs {
        pair.settle();
    }
    let first_contacts = pairs
        .iter()
        .filter(|pair| pair.client.established().first_contact)
        .count();
    assert_eq!(first_contacts, 1);
    for side in &groups {
        assert_eq!(side.borrow().connections(), 50);
        assert_eq!(side.borrow().registry.group_infos().len(), 1);
    }
}

/// The server may tell of its new group before our own first contact has come to its end.
#[test]
fn client_waits_for_its_own_first_contact() {
    let mut first = rdma_pair();
    first.client.faults.stall = Some("confirm link");
    first.settle();
    assert!(first.server.established().first_contact);
    let mut second = again(&first);
    second.settle();
    assert_eq!(second.client.machine.state(), Some("link group"));
    let confirmed = WorkDone::LinkConfirmed(Ok(()));
    first.client.machine.handle_done(first.now, confirmed);
    first.settle();
    assert!(first.client.established().first_contact);
    second.run();
    assert!(!second.client.established().first_contact);
}

#[test]
fn stalled_client_costs_the_others_two_seconds_and_nothing_else() {
    let server = Rc::default();
    let pair = || {
        let groups = [Rc::default(), Rc::clone(&server)];
        pair_in(rdma_host(CLIENT), rdma_host(SERVER), groups)
    };
    let mut stalled = pair();
    stalled.client.faults.stall = Some("connect");
    stalled.settle();
    let mut other = pair();
    other.settle();
    assert_eq!(other.server.machine.state(), Some("link group"));
    let before = other.now;
    other.run();
    assert!(other.server.established().first_contact);
    assert_eq!(other.now - before, CREATOR_TIMEOUT);
    stalled.run();
    stalled.client_declines(DeclineCode::ERR_RDYLNK);
    assert_eq!(server.borrow().connections(), 1);
}

#[test]
fn rkey_that_is_not_confirmed() {
    let all = [
        RkeyError::TimedOut,
        RkeyError::Refused,
        RkeyError::NoTurn,
        RkeyError::NoKey,
        RkeyError::Ended,
    ];
    for failure in all {
        let first = rdma_pair().completed();
        let mut second = again(&first);
        let faults = &mut second.server.faults.rdma;
        faults.push_back(WorkDone::RkeyConfirmed(Err(failure)));
        second.run();
        second.server_declines(DeclineCode::ERR_REGBUF);
        assert_eq!(*second.server.cause(), FallbackCause::Rkey(failure));

        let mut third = again(&first);
        let faults = &mut third.client.faults.rdma;
        faults.push_back(WorkDone::RkeyConfirmed(Err(failure)));
        third.run();
        third.client_declines(DeclineCode::ERR_REGBUF);
        assert_eq!(*third.client.cause(), FallbackCause::Rkey(failure));
        assert!(!third.client.is_crossing_possible());
        for side in [&third.client, &third.server] {
            assert_eq!(side.groups.borrow().connections(), 1, "the first one");
        }
    }
}

#[test]
fn link_that_is_gone() {
    let first = rdma_pair().completed();
    let no_link = || WorkDone::RmbPrepared(Err(RmbError::NoLink));
    let mut second = again(&first);
    second.server.faults.rdma.push_back(no_link());
    second.run();
    second.server_declines(DeclineCode::NOACTLINK);

    let mut third = again(&first);
    third.client.faults.rdma.push_back(no_link());
    third.run();
    third.client_declines(DeclineCode::NOSRVLINK);
}

/// After CONFIRM on a link that exists the client may have sent data, which can be read.
#[test]
fn server_without_a_place_for_the_clients_buffer_has_the_connection_on_reuse() {
    let first = rdma_pair().completed();
    let mut second = again(&first);
    let full = WorkDone::PeerBound(Err(RtokenError::TableFull));
    second.server.faults.rdma.push_back(full);
    second.run();
    second.client.established();
    second.server.established();
}

#[test]
fn group_that_ends_under_a_setup() {
    let first = rdma_pair().completed();
    let mut second = again(&first);
    second.server.faults.stall = Some("confirm rkey");
    second.settle();
    second.server.machine.handle_terminated();
    second.run();
    second.server_declines(DeclineCode::NOACTLINK);
    assert_eq!(*second.server.cause(), FallbackCause::GroupTerminated);

    let mut third = again(&first);
    third.client.faults.stall = Some("confirm rkey");
    third.settle();
    third.client.machine.handle_terminated();
    third.run();
    third.client_declines(DeclineCode::NOACTLINK);
    assert_eq!(*third.client.cause(), FallbackCause::GroupTerminated);

    // The client has the connection from CONFIRM on.
    let mut fourth = again(&first);
    fourth.server.faults.stall = Some("bind");
    fourth.settle();
    fourth.client.established();
    fourth.server.machine.handle_terminated();
    let full = WorkDone::PeerBound(Err(RtokenError::TableFull));
    fourth.server.machine.handle_done(fourth.now, full);
    fourth.run();
    fourth.server.established();
}
