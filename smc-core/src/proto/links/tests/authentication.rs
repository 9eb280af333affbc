//! Link groups whose ends have exchanged a key (docs/spec/extensions.md#authentication).

use smc_wire::clc::Authentication;
use smc_wire::size::SizeCode;
use smc_wire::types::{Features, Qpn};

use super::world::{key_of, peer_rmb};
use super::*;
use crate::device::{RoceKind, Route};

const AUTHENTICATED: LlcTerms = LlcTerms {
    confirms_rkeys: true,
    is_linux: true,
    authenticates: true,
    ..LlcTerms::v2_1(2, 255)
};

fn announced(rmb: u64) -> (World, LinkId, PeerRmb) {
    let mut world = World::connected([1, 1], AUTHENTICATED, LlcConfig::default());
    world.confirm_rkey(CLIENT, rmb);
    world.settle();
    let link = world.hosts[SERVER].group.assigned_link(1).unwrap();
    let (rkey, addr) = key_of(CLIENT, RmbId(rmb), 0);
    (world, link, peer_rmb(rkey, addr))
}

/// Of a message without early CONFIRM.
fn plain(all: Authentications) -> (Authentication, AuthenticatedPart) {
    let in_use = Features::empty();
    (all.of(in_use).unwrap(), AuthenticatedPart::InUse(in_use, 0))
}

/// As the client's message names it.
fn authenticated(world: &mut World, rmb: PeerRmb) -> PeerRmb {
    let authentications = world.hosts[CLIENT].group.authenticate(&rmb, 0);
    PeerRmb {
        authentication: Some(plain(authentications.unwrap())),
        ..rmb
    }
}

fn add(world: &mut World, link: LinkId, rmb: &PeerRmb) -> Result<RtokenId, RtokenError> {
    world.with(SERVER, |group| group.add_rtoken(link, rmb))
}

#[test]
fn an_rmb_is_named_by_the_peer_once_for_each_connection() {
    let (mut world, link, rmb) = announced(1);
    let first = authenticated(&mut world, rmb);
    let rtoken = add(&mut world, link, &first).unwrap();
    world.with(SERVER, |group| group.release_rtoken(rtoken));
    // By another process, which has seen the message.
    let refused = Err(RtokenError::NotAuthentic);
    assert_eq!(add(&mut world, link, &first), refused);
    let second = authenticated(&mut world, rmb);
    assert_eq!(add(&mut world, link, &second), Ok(rtoken));
}

#[test]
fn an_early_confirm_that_was_refused_is_not_taken_when_it_comes_again() {
    let (mut world, link, rmb) = announced(1);
    let peer = world.hosts[SERVER].group.links().find(|of| of.id == link);
    let peer = peer.and_then(|link| link.peer).unwrap();
    let early = |world: &mut World| {
        let data = EarlyDataHash::of_none();
        let code = world.hosts[CLIENT].group.authenticate_early(&rmb, data);
        PeerRmb {
            authentication: code.map(|code| (code, AuthenticatedPart::Early(data))),
            ..rmb
        }
    };
    let (first, second) = (early(&mut world), early(&mut world));
    // Of another group.
    let other = Qpn::new(peer.qpn.get() ^ 1).unwrap();
    world.with(SERVER, |group| group.refuse_early(peer.gid, other, &first));
    let rtoken = add(&mut world, link, &first).unwrap();
    world.with(SERVER, |group| group.release_rtoken(rtoken));
    // What another process has changed is not the client's.
    let forged = PeerRmb { index: 2, ..second };
    for refused in [forged, first, second] {
        world.with(SERVER, |group| {
            group.refuse_early(peer.gid, peer.qpn, &refused);
        });
        let third = early(&mut world);
        assert_eq!(add(&mut world, link, &third), Ok(rtoken));
        world.with(SERVER, |group| group.release_rtoken(rtoken));
    }
    let refused = Err(RtokenError::NotAuthentic);
    assert_eq!(add(&mut world, link, &second), refused);
}

#[test]
fn an_authentic_message_names_an_announced_rmb_whatever_system_the_peer_states() {
    let terms = LlcTerms {
        confirms_rkeys: false,
        is_linux: false,
        ..AUTHENTICATED
    };
    let mut world = World::connected([1, 1], terms, LlcConfig::default());
    let link = world.hosts[SERVER].group.assigned_link(1).unwrap();
    let (rkey, addr) = key_of(CLIENT, RmbId(9), 0);
    let named = authenticated(&mut world, peer_rmb(rkey, addr));
    let refused = Err(RtokenError::NotAnnounced);
    assert_eq!(add(&mut world, link, &named), refused);
}

#[test]
fn what_another_process_names_or_changes_is_refused() {
    let (mut world, link, rmb) = announced(1);
    let refused = Err(RtokenError::NotAuthentic);
    assert_eq!(add(&mut world, link, &rmb), refused, "without a code");
    let named = authenticated(&mut world, rmb);
    let larger = PeerRmb {
        size: SizeCode::MAX,
        ..named
    };
    assert_eq!(add(&mut world, link, &larger), refused);
    // A message of this side.
    let authentication = world.hosts[SERVER].group.authenticate(&rmb, 0).map(plain);
    let reflected = PeerRmb {
        authentication,
        ..rmb
    };
    assert_eq!(add(&mut world, link, &reflected), refused);
    assert!(add(&mut world, link, &named).is_ok());
}

#[test]
fn a_group_has_a_key_of_its_own() {
    let (mut world, link, rmb) = announced(1);
    let share = [9; 8];
    let mut other = World::new([1, 1], RoceKind::V2, LlcConfig::default());
    other.contact(AUTHENTICATED);
    let end = other.hosts[CLIENT].group.links().next().unwrap().peer;
    other.with(CLIENT, |group| {
        group.first_peer(end.unwrap(), Route::SameSubnet, AUTHENTICATED, share);
    });
    other.confirm();
    let of_other = authenticated(&mut other, rmb);
    let refused = Err(RtokenError::NotAuthentic);
    assert_eq!(add(&mut world, link, &of_other), refused);
}

/// A first contact of which the client has sent and received these messages, and what is done
/// there before.
fn first_contact(messages: &[u8], change: impl FnOnce(&mut LinkGroup)) -> World {
    let mut world = World::new([1, 1], RoceKind::V2, LlcConfig::default());
    world.contact(AUTHENTICATED);
    world.with(CLIENT, change);
    let now = world.now;
    for (side, messages) in [(CLIENT, messages), (SERVER, MESSAGES)] {
        world.with(side, |group| {
            group.first_handshake(HandshakeHash::of(&[messages]));
            group.confirm_link(now);
        });
    }
    world.settle();
    world
}

const MESSAGES: &[u8] = b"PROPOSAL, ACCEPT and CONFIRM";

fn assert_refused(mut world: World) {
    let refused = LinkGroupOutput::FirstLink(Err(FirstLinkError::NotAuthentic));
    assert!(world.took(SERVER, &refused));
}

/// Such as the key of an RMB, or the name of a peer.
#[test]
fn a_message_of_the_first_contact_that_another_process_has_changed_ends_it() {
    let ok = LinkGroupOutput::FirstLink(Ok(()));
    assert!(first_contact(MESSAGES, |_| {}).took(SERVER, &ok));
    let changed = b"PROPOSAL, ACCEPT and another CONFIRM";
    assert_refused(first_contact(changed, |_| {}));
}

#[test]
fn a_peer_that_has_agreed_and_sends_no_share_is_refused() {
    let terms = LlcTerms {
        authenticates: false,
        ..AUTHENTICATED
    };
    assert_refused(first_contact(MESSAGES, |group| {
        let peer = group.links().next().and_then(|link| link.peer).unwrap();
        group.first_peer(peer, Route::SameSubnet, terms, [0; 8]);
    }));
}

#[test]
fn only_the_first_link_of_an_authenticated_group_has_other_bytes_than_the_released_protocol() {
    for terms in [LlcTerms::v2_1(2, 255), AUTHENTICATED] {
        let world = World::connected([2, 2], terms, LlcConfig::default());
        let confirms = world.log.iter().filter(|(_, _, bytes)| bytes[0] == 0x21);
        let has_bytes: Vec<_> = confirms
            .map(|(_, _, bytes)| bytes[36..44] != [0; 8])
            .collect();
        let is_first = terms.authenticates;
        assert_eq!(has_bytes, [is_first, is_first, false, false]);
    }
}
