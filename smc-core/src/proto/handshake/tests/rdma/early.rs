//! Early CONFIRM and early data for SMC-R (docs/spec/extensions.md#early-data).

use smc_wire::clc::{EarlyRdmaEnd, Extensions};
use smc_wire::types::{Features, LinkNumber, Nonce};

use super::super::early_data::{receive, receives_again_over};
use super::*;
use crate::error::PeerMisbehaved;
use crate::proto::links::{HandshakeHash, RkeyError, RtokenError};

const ALL: Features = Features::SINGLE_LINK
    .union(Features::AUTHENTICATION)
    .union(Features::EARLY_CONFIRM)
    .union(Features::EARLY_DATA);

const DATA: &[u8] = b"GET /";

pub(in super::super) fn early_host(host: u8) -> HandshakeConfig {
    let mut config = rdma_host(host);
    rdma_of(&mut config).max_links = 1;
    config.vendor_features = ALL;
    config
}

/// A server that takes early data.
fn taking_server() -> HandshakeConfig {
    HandshakeConfig {
        early_data: Some(Arc::new(EarlyDataPolicy::new(4096))),
        ..early_host(SERVER)
    }
}

/// A link group that takes early CONFIRMs.
pub(in super::super) fn first() -> Pair {
    let first = pair_of(early_host(CLIENT), early_host(SERVER)).completed();
    for side in [&first.client, &first.server] {
        let established = side.established();
        assert_eq!(established.group_features, ALL);
        let of_connection = ALL.difference(Features::EARLY_CONFIRM | Features::EARLY_DATA);
        assert_eq!(established.vendor_features, of_connection);
    }
    first
}

/// A connection after `first`, whose client sends an early CONFIRM, and data if there is some.
pub(in super::super) fn next(
    first: &Pair,
    server: HandshakeConfig,
    data: &[u8],
    nonce: u128,
) -> Pair {
    let groups = [&first.client, &first.server].map(|side| Rc::clone(&side.groups));
    let mut pair = pair_in(early_host(CLIENT), server, groups);
    let client = &mut pair.client;
    let group = first.client.established().group;
    let link = LinkChoice::Assign;
    let (size, early) = (SizeCode::LINUX_DEFAULT, 0);
    let WorkDone::RmbPrepared(Ok(local)) = client.rdma_work(&Work::PrepareRmb {
        group,
        link,
        size,
        early,
    }) else {
        panic!("there is an RMB");
    };
    let config = Arc::new(early_host(CLIENT));
    let key = client
        .groups
        .borrow()
        .registry
        .group_info(group)
        .unwrap()
        .key;
    let confirm = EarlyConfirm::Rdma {
        key,
        end: EarlyRdmaEnd {
            end: local.end(&config),
            link: LinkNumber(1),
        },
        authentication: local.authentication.unwrap().of(Features::empty()).unwrap(),
    };
    let data = EarlyData {
        nonce: Nonce::from_bytes(nonce.to_be_bytes()),
        bytes: data.into(),
    };
    let proposal = Arc::new(ClientProposal::new(&config, &path(CLIENT)).unwrap());
    client.machine =
        Handshake::client_with_early_confirm(pair.now, config, proposal, confirm, Some(&data));
    client.prepared = Some(local);
    pair
}

fn is_accepted(side: &HandshakeSide) -> bool {
    let features = side.established().vendor_features;
    features.contains(Features::EARLY_DATA)
}

/// Bytes of early data that the client's sending half begins behind.
pub(in super::super) fn sent(side: &HandshakeSide) -> usize {
    let of = |work: &Work| match work {
        Work::BindPeer { sent, .. } => Some(*sent),
        _ => None,
    };
    side.works.iter().find_map(of).unwrap()
}

#[test]
fn the_connection_is_established_and_the_data_delivered_by_the_accept() {
    let first = first();
    let second = next(&first, taking_server(), DATA, 1).completed();
    for side in [&second.client, &second.server] {
        assert_eq!(side.established().vendor_features, ALL);
        assert!(!side.established().first_contact);
    }
    assert_eq!(second.server.early_data, DATA);
    assert_eq!(sent(&second.client), DATA.len());
    assert_eq!(sent(&second.server), 0, "its own half begins at the start");
    let (client, server) = (second.client.rdma(), second.server.rdma());
    assert_eq!(server.peer_rmb.token, client.local.token);
    assert_eq!(client.peer_rmb.token, server.local.token);
    assert_eq!(second.confirms(), [], "there is no CONFIRM");
    assert_eq!(
        second.server.asked(),
        ["enter", "prepare", "confirm rkey", "bind"]
    );
    assert_eq!(
        second.client.asked(),
        ["enter", "prepare", "bind", "confirm rkey"]
    );
}

#[test]
fn an_early_confirm_without_data_establishes_the_connection_as_well() {
    let second = next(&first(), taking_server(), b"", 1).completed();
    let features = second.client.established().vendor_features;
    assert_eq!(features, ALL.difference(Features::EARLY_DATA));
    assert_eq!(second.server.early_data, b"");
    assert_eq!(second.confirms(), []);
}

#[test]
fn data_that_the_listener_does_not_take_is_left_to_the_client() {
    let first = first();
    let short = HandshakeConfig {
        early_data: Some(Arc::new(EarlyDataPolicy::new(DATA.len() - 1))),
        ..early_host(SERVER)
    };
    for server in [early_host(SERVER), short] {
        let second = next(&first, server, DATA, 1).completed();
        assert!(!is_accepted(&second.client) && !is_accepted(&second.server));
        assert_eq!(second.server.early_data, b"");
        assert_eq!(sent(&second.client), 0);
        assert_eq!(second.confirms(), [], "the early CONFIRM counts");
    }
}

#[test]
fn data_with_a_nonce_that_was_seen_is_not_taken() {
    let (first, server) = (first(), taking_server());
    let second = next(&first, server.clone(), DATA, 1).completed();
    assert!(is_accepted(&second.client));
    let third = next(&first, server.clone(), DATA, 1).completed();
    assert!(!is_accepted(&third.client));
    assert_eq!(third.server.early_data, b"");
    let fourth = next(&first, server, DATA, 2).completed();
    assert!(is_accepted(&fourth.client));
}

/// The client writes the data behind the handshake.
#[test]
fn a_proposal_whose_data_was_not_taken_is_not_taken_later() {
    let first = first();
    let without = HandshakeConfig {
        vendor_features: Features::SINGLE_LINK | Features::AUTHENTICATION,
        ..early_host(SERVER)
    };
    let no_device = HandshakeConfig {
        rdma: None,
        ..early_host(SERVER)
    };
    let mut failing = next(&first, taking_server(), DATA, 1);
    let failed = DeviceError::Exhausted;
    failing.server.faults.rdma = [WorkDone::RmbPrepared(Err(failed.into()))].into();
    let without = next(&first, without, DATA, 1);
    for mut second in [failing, without, next(&first, no_device, DATA, 1)] {
        second.client.settle(second.now);
        let proposal = second.client.sent.clone();
        second.run();
        let listener = taking_server();
        let mut again = receives_again_over(&second, listener, path(SERVER));
        receive(&mut again, second.now, &proposal);
        assert_eq!(again.early_data, b"");
        assert!(matches!(again.outcome, Some(Outcome::Tcp(_))));
    }
}

/// Both ends of a new group make its key of the PROPOSAL as it was sent.
#[test]
fn a_server_that_has_lost_the_group_makes_a_new_one_without_the_data() {
    let mut second = next(&first(), taking_server(), DATA, 1);
    second.server.groups = Rc::default();
    second.run();
    assert!(second.client.established().first_contact);
    assert!(!is_accepted(&second.client));
    assert_eq!(second.server.early_data, b"");
    assert_eq!(sent(&second.client), 0);
    let hash = |side: &HandshakeSide| -> HandshakeHash {
        let of = |work: &Work| match work {
            Work::ConfirmLink { messages, .. } => *messages,
            _ => None,
        };
        side.works.iter().find_map(of).unwrap()
    };
    assert_eq!(hash(&second.client), hash(&second.server));
    assert!(second.client.prepared.is_none(), "the RMB is given back");
}

#[test]
fn a_confirm_with_another_rmb_follows_where_the_early_one_is_not_taken() {
    let without = HandshakeConfig {
        vendor_features: Features::SINGLE_LINK | Features::AUTHENTICATION,
        ..early_host(SERVER)
    };
    for data in [b"", DATA] {
        let second = next(&first(), without.clone(), data, 1).completed();
        let confirms = second.confirms();
        let [confirm] = &confirms[..] else {
            panic!("{confirms:?}")
        };
        let Body::R(end) = confirm.body else {
            panic!("SMC-R")
        };
        assert_eq!(end.token, second.client.rdma().local.token);
        assert!(second.client.prepared.is_none(), "it is not the early one");
        assert!(!is_accepted(&second.client));
    }
    // It knows the lengths of the released protocol.
    let long = next(&first(), without, &[0; 1000], 1).completed();
    assert!(matches!(long.server.error(), Error::Malformed(_)));
}

#[test]
fn an_early_confirm_that_is_not_valid_is_declined_and_delivers_nothing() {
    let first = first();
    for why in [
        RtokenError::NotAuthentic,
        RtokenError::NotAnnounced,
        RtokenError::InUse,
    ] {
        let mut second = next(&first, taking_server(), DATA, 1);
        second.server.faults.rdma = [WorkDone::PeerBound(Err(why))].into();
        second.run();
        let code = second.server.fallback();
        assert_eq!(second.client.fallback(), peer(code.local));
        assert_eq!(second.server.early_data, b"");
        assert_eq!(second.server.groups.borrow().connections(), 1);
    }
}

#[test]
fn a_client_that_cannot_go_on_after_the_accept_ends_the_connection() {
    let first = first();
    for fault in [
        WorkDone::PeerBound(Err(RtokenError::NotAuthentic)),
        WorkDone::RkeyConfirmed(Err(RkeyError::NoKey)),
    ] {
        let mut second = next(&first, taking_server(), DATA, 1);
        second.client.faults.rdma = [fault].into();
        second.run();
        assert_eq!(second.server.early_data, DATA, "it may be delivered");
        assert!(matches!(second.client.error(), Error::Declined(_)));
        let decline = Message::parse(&second.from_client[second.from_client.len() - 28..]);
        assert!(decline.is_err(), "no DECLINE, which would be data");
    }
}

#[test]
fn a_server_that_states_what_was_not_sent_is_refused() {
    let first = first();
    let cases: [(&[u8], Features); 3] = [
        (b"", Features::EARLY_CONFIRM | Features::EARLY_DATA),
        (DATA, Features::EARLY_DATA),
        (b"", Features::EARLY_DATA),
    ];
    for (data, stated) in cases {
        let honest = next(&first, taking_server(), data, 1).completed();
        let [accept] = &honest.accepts()[..] else {
            panic!("one ACCEPT")
        };
        let extensions = Extensions {
            features: Some(Features::AUTHENTICATION | stated),
            authentication: honest
                .server
                .rdma()
                .local
                .authentication
                .unwrap()
                .of(stated),
            ..Extensions::default()
        };
        let mut bytes = vec![0; accept.extended_len(&extensions)];
        accept.emit_extended(&extensions, &mut bytes).unwrap();
        let mut client = next(&first, taking_server(), data, 2).client;
        client.settle(Instant::now());
        client.receive(Instant::now(), &bytes, usize::MAX);
        let unexpected = PeerMisbehaved::UnexpectedMessage;
        assert_eq!(*client.error(), unexpected.into(), "{stated:?}");
    }
}

/// What an unmodified kernel gets: it ignores these seven bytes.
#[test]
fn a_proposal_without_precedent_differs_in_the_vendor_options_alone() {
    let with = early_host(CLIENT);
    let without = HandshakeConfig {
        vendor_features: Features::empty(),
        ..with.clone()
    };
    let [with, without] =
        [with, without].map(|config| ClientProposal::new(&config, &path(CLIENT)).unwrap());
    assert_eq!(with.bytes().len(), without.bytes().len());
    let pairs = with.bytes().iter().zip(without.bytes()).enumerate();
    let differing: Vec<_> = pairs
        .filter(|(_, (a, b))| a != b)
        .map(|(at, _)| at)
        .collect();
    assert!(!differing.is_empty());
    assert!(
        differing.iter().all(|at| (52..59).contains(at)),
        "{differing:?}"
    );
}
