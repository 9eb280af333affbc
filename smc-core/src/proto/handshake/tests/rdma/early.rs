//! Early CONFIRM and early data for SMC-R (docs/spec/extensions.md#early-data).

use std::collections::BTreeSet;

use smc_testkit::Rng;
use smc_wire::clc::{EarlyRdmaEnd, Extensions};
use smc_wire::types::{Features, LinkNumber, Nonce};

use super::*;
use crate::error::PeerMisbehaved;
use crate::proto::links::{HandshakeHash, RkeyError, RtokenError};

const ALL: Features = Features::SINGLE_LINK
    .union(Features::AUTHENTICATION)
    .union(Features::EARLY_CONFIRM)
    .union(Features::EARLY_DATA);

const DATA: &[u8] = b"GET /";

fn early_host(host: u8) -> HandshakeConfig {
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
fn first() -> Pair {
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
fn next(first: &Pair, server: HandshakeConfig, data: &[u8], nonce: u128) -> Pair {
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
fn sent(side: &HandshakeSide) -> usize {
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

/// What happens in a schedule, by its seed.
struct Schedule {
    rng: Rng,
    /// Numbers of codes that the server's group has taken.
    taken: BTreeSet<u64>,
}

impl Schedule {
    fn server(&mut self) -> HandshakeConfig {
        let max = [0, DATA.len() - 1, DATA.len(), 4096][self.rng.below(4)];
        let mut config = early_host(SERVER);
        if max > 0 {
            config.early_data = Some(Arc::new(EarlyDataPolicy::new(max)));
        }
        if self.rng.chance(100) {
            config.rdma = None;
        }
        config
    }

    fn faults(&mut self) -> VecDeque<WorkDone> {
        let failed = DeviceError::Exhausted;
        let faults = [
            WorkDone::RmbPrepared(Err(RmbError::NoLink)),
            WorkDone::RmbPrepared(Err(failed.into())),
            WorkDone::RkeyConfirmed(Err(RkeyError::TimedOut)),
            WorkDone::PeerBound(Err(RtokenError::NotAnnounced)),
        ];
        match self.rng.chance(300) {
            true => [faults[self.rng.below(faults.len())].clone()].into(),
            false => VecDeque::new(),
        }
    }

    /// A server gets a number once: the group refuses it the second time.
    fn bind(&mut self, server: &mut HandshakeSide, number: u64) {
        if !self.taken.insert(number) {
            server.faults.rdma = [WorkDone::PeerBound(Err(RtokenError::NotAuthentic))].into();
        }
    }
}

/// How often the server's application gets the data from PROPOSALs.
fn deliveries(sides: &[&HandshakeSide]) -> usize {
    let has_data = |side: &&&HandshakeSide| {
        let is_smc = matches!(side.outcome, Some(Outcome::Smc(_)));
        is_smc && side.early_data == DATA
    };
    sides.iter().filter(has_data).count()
}

/// Links are lost at any byte, work fails, PROPOSALs come again in other connections, before or
/// after the one that they belong to, listeners change: the data arrives once, by the PROPOSAL or
/// behind the handshake, or the connect fails.
#[test]
fn simulation_of_early_data() {
    let mut group = first();
    for seed in 0..SCHEDULES {
        // Connections that are established stay in it.
        if seed % 100 == 0 {
            group = first();
        }
        let mut schedule = Schedule {
            rng: Rng::new(seed),
            taken: BTreeSet::new(),
        };
        let server = schedule.server();
        let mut pair = next(&group, server.clone(), DATA, 1);
        let number = pair.client.prepared.unwrap().authentication.unwrap().number;
        let mut again = next(&group, server, DATA, 1).server;
        pair.client.faults.rdma = schedule.faults();
        pair.server.faults.rdma = schedule.faults();
        if schedule.rng.chance(100) {
            // The group was lost.
            pair.server.groups = Rc::default();
        }
        pair.client.settle(pair.now);
        let proposal = pair.client.sent.clone();
        let repeats = |pair: &Pair, schedule: &mut Schedule, again: &mut HandshakeSide| {
            schedule.bind(again, number);
            again.settle(pair.now);
            again.receive(pair.now, &proposal, usize::MAX);
        };
        let order = schedule.rng.below(4);
        if order == 1 {
            repeats(&pair, &mut schedule, &mut again);
        }
        if schedule.taken.contains(&number) {
            schedule.bind(&mut pair.server, number);
        } else {
            schedule.taken.insert(number);
        }
        // Either direction may end behind so many bytes.
        let cut = [(); 2].map(|()| match schedule.rng.chance(200) {
            true => schedule.rng.below(400),
            false => usize::MAX,
        });
        pair.chunk = [1, 7, 64, usize::MAX][schedule.rng.below(4)];
        run_until_cut(&mut pair, cut);
        if order == 2 {
            repeats(&pair, &mut schedule, &mut again);
        }
        let by_proposal = deliveries(&[&pair.server, &again]);
        assert!(
            by_proposal <= 1,
            "seed {seed}: delivered {by_proposal} times"
        );
        let behind = match &pair.client.outcome {
            Some(Outcome::Smc(_)) if is_accepted(&pair.client) => {
                assert_eq!(deliveries(&[&pair.server]), 1, "seed {seed}");
                assert_eq!(sent(&pair.client), DATA.len());
                0
            }
            // The client writes it.
            Some(Outcome::Smc(_) | Outcome::Tcp(_)) => 1,
            // The connect fails.
            Some(Outcome::Failed(_)) => continue,
            None => panic!("seed {seed}: there is no end"),
        };
        // A copy that another process has sent before is the client's: it got no answer for it.
        let own = deliveries(&[&pair.server]);
        assert_eq!(own + behind, 1, "seed {seed}");
    }
}

/// As [`Pair::run`]. TCP ends behind so many bytes of the client and of the server.
fn run_until_cut(pair: &mut Pair, cut: [usize; 2]) {
    for _ in 0..10_000 {
        let now = pair.now;
        let mut has_moved = pair.client.settle(now) | pair.server.settle(now);
        pair.from_client.extend(&pair.client.sent);
        pair.to_server.append(&mut pair.client.sent);
        pair.from_server.extend(&pair.server.sent);
        pair.to_client.append(&mut pair.server.sent);
        let [to_server, to_client] = cut;
        let given = pair.from_client.len() - pair.to_server.len();
        let open = to_server.saturating_sub(given).min(pair.to_server.len());
        let taken = pair
            .server
            .receive(now, &pair.to_server[..open], pair.chunk);
        pair.to_server.drain(..taken);
        has_moved |= taken > 0;
        let given = pair.from_server.len() - pair.to_client.len();
        let open = to_client.saturating_sub(given).min(pair.to_client.len());
        let taken = pair
            .client
            .receive(now, &pair.to_client[..open], pair.chunk);
        pair.to_client.drain(..taken);
        has_moved |= taken > 0;
        if has_moved {
            continue;
        }
        if pair.client.outcome.is_some() && pair.server.outcome.is_some() {
            return;
        }
        // What is lost is lost for both.
        if cut != [usize::MAX; 2] {
            pair.client.machine.handle_closed();
            pair.server.machine.handle_closed();
        }
        for side in [&mut pair.client, &mut pair.server] {
            if let Some(at) = side.machine.poll_timeout() {
                pair.now = pair.now.max(at);
            }
        }
        for side in [&mut pair.client, &mut pair.server] {
            side.machine.handle_timeout(pair.now);
            let mut groups = side.groups.borrow_mut();
            groups.registry.handle_timeout(pair.now);
            groups.drain();
        }
    }
}

/// Enough to have each combination of faults many times.
const SCHEDULES: u64 = 100_000;
