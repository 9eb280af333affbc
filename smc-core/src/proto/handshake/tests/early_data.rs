//! Early data over SMC-D (docs/spec/extensions.md#early-data), and a simulation for both
//! transports.

use smc_testkit::Rng;
use smc_wire::clc::Extensions;
use smc_wire::size::SizeCode;
use smc_wire::types::{Features, Nonce};

use super::early_confirm::next_with_data;
use super::rdma::early as over_rdma;
use super::*;
use crate::error::PeerMisbehaved;

const ALL: Features = Features::EARLY_CONFIRM.union(Features::EARLY_DATA);

const DATA: &[u8] = b"GET /";

fn early_host() -> HandshakeConfig {
    HandshakeConfig {
        vendor_features: ALL,
        ..host()
    }
}

/// A server that takes so much early data.
fn server_with(max: usize) -> HandshakeConfig {
    HandshakeConfig {
        early_data: Some(Arc::new(EarlyDataPolicy::new(max))),
        ..early_host()
    }
}

/// A link group that takes early data.
fn first() -> Pair {
    let first = Pair::new(early_host(), early_host()).completed();
    assert_eq!(first.client.established().group_features, ALL);
    first
}

fn early(bytes: &[u8], nonce: u128) -> EarlyData {
    EarlyData {
        nonce: Nonce::from_bytes(nonce.to_be_bytes()),
        bytes: bytes.into(),
    }
}

/// A connection after `first`, whose client sends an early CONFIRM, and data if there is some.
fn next(first: &Pair, server: HandshakeConfig, bytes: &[u8], nonce: u128) -> Pair {
    let (data, size) = (early(bytes, nonce), SizeCode::LINUX_DEFAULT);
    next_with_data(first, [early_host(), server], size, Some(&data), |_| {})
}

fn is_accepted(side: &HandshakeSide) -> bool {
    let features = side.established().vendor_features;
    features.contains(Features::EARLY_DATA)
}

/// The server's side of another TCP connection of that server, on which the PROPOSAL comes again.
fn receives_again(pair: &Pair, server: HandshakeConfig) -> HandshakeSide {
    receives_again_over(pair, server, TcpPath::default())
}

pub(super) fn receives_again_over(
    pair: &Pair,
    server: HandshakeConfig,
    path: TcpPath,
) -> HandshakeSide {
    let machine = Handshake::server(pair.now, Arc::new(server), path);
    let groups = Rc::clone(&pair.server.groups);
    HandshakeSide::with_groups(machine, groups, Rc::clone(&pair.server.fabric))
}

pub(super) fn receive(side: &mut HandshakeSide, now: Instant, proposal: &[u8]) {
    side.settle(now);
    side.receive(now, proposal, usize::MAX);
}

#[test]
fn the_connection_is_established_and_the_data_delivered_by_the_accept() {
    let nocopies = [true, false].map(|nocopy| {
        let with = |mut config: HandshakeConfig| {
            config.devices[0].nocopy = nocopy;
            config
        };
        let first = Pair::new(with(early_host()), with(early_host())).completed();
        let (data, size) = (early(DATA, 1), SizeCode::MIN);
        let configs = [with(early_host()), with(server_with(4096))];
        let second = next_with_data(&first, configs, size, Some(&data), |_| {}).completed();
        for side in [&second.client, &second.server] {
            assert_eq!(side.established().vendor_features, ALL);
            assert!(!side.established().first_contact);
        }
        assert_eq!(second.server.early_data, DATA);
        assert_eq!(second.client.direct().sent, DATA.len());
        assert_eq!(second.server.direct().sent, 0, "it begins at the start");
        assert_eq!(second.confirms(), [], "there is no CONFIRM");
        second.server.works.iter().map(name).collect::<Vec<_>>()
    });
    let [mapped, moved] = nocopies;
    assert_eq!(mapped, ["reach", "enter", "register", "claim", "attach"]);
    assert_eq!(moved, ["reach", "enter", "register", "claim"]);
}

#[test]
fn data_that_the_listener_does_not_take_is_left_to_the_client() {
    let first = first();
    let mut short = server_with(4096);
    // A ring that it would fill.
    short.buffer = SizeCode::MIN;
    let filling = vec![0; Extensions::MAX_EARLY_DATA];
    let cases = [
        (early_host(), DATA),
        (server_with(DATA.len() - 1), DATA),
        (short, &filling[..]),
    ];
    for (server, data) in cases {
        let mut second = next(&first, server, data, 1);
        // As long as the server's at most.
        second.client.registered = None;
        second.run();
        assert!(!is_accepted(&second.client) && !is_accepted(&second.server));
        assert_eq!(second.server.early_data, b"");
        assert_eq!(second.client.direct().sent, 0);
    }
}

#[test]
fn a_connection_whose_data_is_not_taken_has_the_buffer_of_the_early_confirm() {
    let second = next(&first(), early_host(), DATA, 1).completed();
    assert_eq!(second.confirms(), [], "the early CONFIRM counts");
    let features = second.client.established().vendor_features;
    assert_eq!(features, Features::EARLY_CONFIRM);
}

#[test]
fn data_is_taken_up_to_the_last_byte_of_space_but_one() {
    let first = first();
    let mut short = server_with(Extensions::MAX_EARLY_DATA);
    short.buffer = SizeCode::MIN;
    for (len, fits) in [(16351, true), (16352, false)] {
        let data = early(&vec![7; len], 1);
        let configs = [early_host(), short.clone()];
        let second = next_with_data(&first, configs, SizeCode::MIN, Some(&data), |_| {});
        assert_eq!(is_accepted(&second.completed().client), fits, "{len}");
    }
}

#[test]
fn a_proposal_that_comes_again_is_not_taken_at_any_listener() {
    let (first, server) = (first(), server_with(4096));
    let mut second = next(&first, server.clone(), DATA, 1);
    second.client.settle(second.now);
    let proposal = second.client.sent.clone();
    second.run();
    assert!(is_accepted(&second.client));
    // At that listener, at one that knows no nonce, and when the buffer no longer exists.
    for listener in [server, server_with(4096), server_with(4096)] {
        let mut again = receives_again(&second, listener);
        receive(&mut again, second.now, &proposal);
        assert_eq!(again.early_data, b"");
        assert_eq!(again.outcome, None, "it waits for a CONFIRM");
        let token = second.client.direct().local;
        second.server.fabric.borrow_mut().buffers.remove(&token);
    }
}

/// The client has no use for the buffer any more: the PROPOSAL may come again later.
#[test]
fn a_confirm_with_another_buffer_follows_where_the_early_one_is_not_taken() {
    let first = first();
    let without = HandshakeConfig {
        vendor_features: Features::EARLY_DATA,
        ..early_host()
    };
    let mut forgotten = next(&first, server_with(4096), DATA, 1);
    forgotten.server.groups = Rc::default();
    let mut unmapped = next(&first, server_with(4096), DATA, 1);
    unmapped.server.faults.claim = Some(DeviceError::NoMemory);
    for mut pair in [next(&first, without, DATA, 1), forgotten, unmapped] {
        let (_, named) = pair.client.registered.unwrap();
        pair.client.settle(pair.now);
        let proposal = pair.client.sent.clone();
        pair.run();
        assert!(!is_accepted(&pair.client) && !is_accepted(&pair.server));
        assert_eq!(pair.server.early_data, b"");
        let [confirm] = &pair.confirms()[..] else {
            panic!("a CONFIRM")
        };
        let Body::D(end) = confirm.body else {
            panic!("SMC-D")
        };
        assert_ne!(end.dmb, named);
        let mut again = receives_again(&pair, server_with(4096));
        receive(&mut again, pair.now, &proposal);
        assert_eq!(again.early_data, b"");
    }
}

/// A process that has seen a buffer of another connection names it with data of its own.
#[test]
fn data_with_the_buffer_of_another_connection_is_not_taken() {
    let first = first();
    let second = next(&first, server_with(4096), DATA, 1).completed();
    let token = second.client.direct().local;
    let (data, size) = (early(b"forged", 2), SizeCode::LINUX_DEFAULT);
    let configs = [early_host(), server_with(4096)];
    let forged = next_with_data(&first, configs, size, Some(&data), |end| end.dmb = token);
    let mut server = receives_again(&second, server_with(4096));
    let mut client = forged.client;
    client.settle(forged.now);
    receive(&mut server, forged.now, &client.sent);
    assert_eq!(server.early_data, b"");
    assert_eq!(server.outcome, None, "it waits for a CONFIRM");
}

/// A SYN with a PROPOSAL can be delivered twice.
#[test]
fn an_early_confirm_in_a_syn_is_taken_once() {
    let features = Features::EARLY_CONFIRM | Features::FAST_OPEN;
    let config = || HandshakeConfig {
        vendor_features: features,
        ..host()
    };
    let first = Pair::new(config(), config()).completed();
    let size = SizeCode::LINUX_DEFAULT;
    let mut second = next_with_data(&first, [config(), config()], size, None, |_| {});
    second.client.settle(second.now);
    let proposal = second.client.sent.clone();
    second.run();
    let in_use = second.client.established().vendor_features;
    assert!(in_use.contains(Features::EARLY_CONFIRM));
    // A copy in which another process has cleared the bit is none of another group.
    let magic = [0x52, 0x53, 0x4d, 0x53, 0x46];
    let at = proposal.windows(5).position(|at| at == magic).unwrap() + 6;
    let mut changed = proposal.clone();
    assert_eq!(changed[at], 0x06);
    changed[at] = 0x04;
    for copy in [proposal, changed] {
        let mut again = receives_again(&second, config());
        receive(&mut again, second.now, &copy);
        assert_eq!(again.outcome, None, "it waits for a CONFIRM");
    }
}

/// Buffers that connections of such a group have named are not known.
#[test]
fn a_group_without_the_feature_takes_no_early_data_however_a_proposal_states_it() {
    let config = || HandshakeConfig {
        vendor_features: Features::EARLY_CONFIRM,
        ..host()
    };
    let first = Pair::new(config(), config()).completed();
    let mut second = next(&first, server_with(4096), DATA, 1);
    second.client.settle(second.now);
    let mut server = receives_again(&first, server_with(4096));
    receive(&mut server, second.now, &second.client.sent);
    assert_eq!(server.early_data, b"");
}

#[test]
fn a_server_that_states_what_was_not_sent_is_refused() {
    let first = first();
    let filling = vec![0; Extensions::MAX_EARLY_DATA];
    let cases: [(&[u8], Features, SizeCode); 4] = [
        (b"", ALL, SizeCode::LINUX_DEFAULT),
        (DATA, Features::EARLY_DATA, SizeCode::LINUX_DEFAULT),
        (b"", Features::EARLY_DATA, SizeCode::LINUX_DEFAULT),
        // It leaves no space in this buffer.
        (&filling, ALL, SizeCode::MIN),
    ];
    for (data, stated, size) in cases {
        let mut config = server_with(4096);
        config.buffer = size;
        let sent = early(data, 1);
        let configs = [early_host(), config.clone()];
        let honest = next_with_data(&first, configs, SizeCode::MIN, Some(&sent), |_| {});
        let honest = honest.completed();
        let [accept] = &honest.accepts()[..] else {
            panic!("one ACCEPT")
        };
        let extensions = Extensions {
            features: Some(stated),
            ..Extensions::default()
        };
        let mut bytes = vec![0; accept.extended_len(&extensions)];
        accept.emit_extended(&extensions, &mut bytes).unwrap();
        let configs = [early_host(), config];
        let pair = next_with_data(&first, configs, SizeCode::MIN, Some(&sent), |_| {});
        let mut client = pair.client;
        client.settle(pair.now);
        client.receive(pair.now, &bytes, usize::MAX);
        let unexpected = PeerMisbehaved::UnexpectedMessage;
        assert_eq!(*client.error(), unexpected.into(), "{stated:?}");
    }
}

#[test]
fn a_server_that_goes_back_to_tcp_delivers_nothing() {
    let mut second = next(&first(), server_with(4096), DATA, 1);
    second.server.faults.unreachable.push(DeviceIndex(0));
    second.run();
    assert_eq!(
        second.client.fallback(),
        peer(second.server.fallback().local)
    );
    assert_eq!(second.server.early_data, b"");
    assert!(second.client.machine.has_sent_early_data());
}

// ---- Simulation -------------------------------------------------------------------------------

/// A transport, as the simulation uses it.
struct SimulatedTransport {
    /// A link group that takes early data.
    first: fn() -> Pair,
    /// A server without a policy.
    server: fn() -> HandshakeConfig,
    next: fn(&Pair, HandshakeConfig, &[u8], u128) -> Pair,
    /// The server's path.
    path: fn() -> TcpPath,
    /// Bytes of early data that the client's sending half begins behind.
    sent: fn(&HandshakeSide) -> usize,
    /// One of the faults of a side.
    fault: fn(&mut Rng, &mut Faults),
}

const OVER_RDMA: SimulatedTransport = SimulatedTransport {
    first: over_rdma::first,
    server: || over_rdma::early_host(rdma::SERVER),
    next: over_rdma::next,
    path: || rdma::path(rdma::SERVER),
    sent: over_rdma::sent,
    fault: |rng, faults| {
        let failed = DeviceError::Exhausted;
        let all = [
            WorkDone::RmbPrepared(Err(RmbError::NoLink)),
            WorkDone::RmbPrepared(Err(failed.into())),
            WorkDone::RkeyConfirmed(Err(RkeyError::TimedOut)),
            WorkDone::PeerBound(Err(RtokenError::NotAnnounced)),
        ];
        faults.rdma = [all[rng.below(all.len())].clone()].into();
    },
};

const OVER_DIRECT: SimulatedTransport = SimulatedTransport {
    first,
    server: early_host,
    next,
    path: TcpPath::default,
    sent: |side| side.direct().sent,
    fault: |rng, faults| {
        let all = [
            DeviceError::Exhausted,
            DeviceError::NoMemory,
            DeviceError::PeerGone,
        ];
        let error = all[rng.below(all.len())].clone();
        match rng.below(4) {
            0 => faults.unreachable.push(DeviceIndex(0)),
            1 => faults.claim = Some(error),
            2 => faults.attach = Some(Err(error)),
            _ => drop(faults.register.insert(DeviceIndex(0), [error].into())),
        }
    },
};

impl SimulatedTransport {
    fn listener(&self, rng: &mut Rng) -> HandshakeConfig {
        let max = [0, DATA.len() - 1, DATA.len(), 4096][rng.below(4)];
        let mut config = (self.server)();
        if max > 0 {
            config.early_data = Some(Arc::new(EarlyDataPolicy::new(max)));
        }
        if rng.chance(100) {
            (config.rdma, config.devices) = (None, Vec::new());
        }
        config
    }

    /// As a schedule by this seed.
    fn run(&self, group: &Pair, seed: u64) {
        let mut rng = Rng::new(seed);
        let server = self.listener(&mut rng);
        let mut pair = (self.next)(group, server.clone(), DATA, 1);
        // The copy comes to the same listener or to another one of the host.
        let listener = match rng.chance(500) {
            true => server,
            false => self.listener(&mut rng),
        };
        for side in [&mut pair.client, &mut pair.server] {
            if rng.chance(300) {
                (self.fault)(&mut rng, &mut side.faults);
            }
        }
        if rng.chance(100) {
            // The group was lost.
            pair.server.groups = Rc::default();
        }
        let mut again = receives_again_over(&pair, listener, (self.path)());
        pair.client.settle(pair.now);
        let proposal = pair.client.sent.clone();
        let order = rng.below(4);
        if order == 1 {
            receive(&mut again, pair.now, &proposal);
        }
        // Either direction may end behind so many bytes.
        let cut = [(); 2].map(|()| match rng.chance(200) {
            true => rng.below(400),
            false => usize::MAX,
        });
        pair.chunk = [1, 7, 64, usize::MAX][rng.below(4)];
        run_until_cut(&mut pair, cut);
        if order == 2 {
            receive(&mut again, pair.now, &proposal);
        }
        let by_proposal = deliveries(&[&pair.server, &again]);
        assert!(
            by_proposal <= 1,
            "seed {seed}: delivered {by_proposal} times"
        );
        let behind = match &pair.client.outcome {
            Some(Outcome::Smc(_)) if is_accepted(&pair.client) => {
                assert_eq!(deliveries(&[&pair.server]), 1, "seed {seed}");
                assert_eq!((self.sent)(&pair.client), DATA.len());
                0
            }
            // The client writes it.
            Some(Outcome::Smc(_) | Outcome::Tcp(_)) => 1,
            // The connect fails.
            Some(Outcome::Failed(_)) => return,
            None => panic!("seed {seed}: there is no end"),
        };
        // A copy that another process has sent before is the client's: it got no answer for it.
        let own = deliveries(&[&pair.server]);
        assert_eq!(own + behind, 1, "seed {seed}");
        let is_copied_later = order == 2 && by_proposal > own;
        assert!(!is_copied_later, "seed {seed}: delivered by the copy, too");
    }

    fn simulate(&self) {
        let mut group = (self.first)();
        for seed in 0..SCHEDULES {
            // Connections that are established stay in it.
            if seed % 100 == 0 {
                group = (self.first)();
            }
            self.run(&group, seed);
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
    OVER_RDMA.simulate();
}

#[test]
fn simulation_of_early_data_over_smc_d() {
    OVER_DIRECT.simulate();
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
const SCHEDULES: u64 = if cfg!(debug_assertions) {
    10_000
} else {
    100_000
};
