//! Whatever a peer sends, in whatever pieces, and whatever devices answer: no panic, no byte
//! taken behind the handshake, and an end in bounded time.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::proto::group::{GroupId, GroupTerms};
use smc_wire::types::{
    AlertToken, Features, HostName, Mac, MtuCode, OsType, Psn, Qpn, Release, Rkey, RmbAddr,
    RoceGid, Version,
};

use super::rdma::{CLIENT, SERVER, again, path, rdma_host, rdma_pair};
use crate::device::LinkAddress;

#[derive(Clone, Debug)]
enum HandshakeInput {
    Bytes(Vec<u8>),
    WorkDone(WorkDone),
    Closed,
    Terminated,
    Seconds(u64),
}

fn input() -> impl Strategy<Value = HandshakeInput> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..100).prop_map(HandshakeInput::Bytes),
        8 => message().prop_map(HandshakeInput::Bytes),
        8 => done().prop_map(HandshakeInput::WorkDone),
        1 => Just(HandshakeInput::Closed),
        1 => Just(HandshakeInput::Terminated),
        1 => (0..7_u64).prop_map(HandshakeInput::Seconds),
    ]
}

/// A message that was right before some bytes were changed.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let pair = Pair::new(host(), host()).completed();
    let decline = {
        let pair = Pair::new(host_with_ueids(&[]), host()).completed();
        pair.from_server
    };
    let proposal_len = proposal(&host()).encoded_len();
    let (proposal, confirm) = pair.from_client.split_at(proposal_len);
    let mut all = vec![
        proposal.to_vec(),
        pair.from_server.clone(),
        confirm.to_vec(),
        decline,
    ];
    let first = early_confirm::first();
    let second = early_confirm::next(&first, early_confirm::config(), SizeCode::MIN, |_| {});
    for pair in [first, second.completed()] {
        all.extend([pair.from_client, pair.from_server]);
    }
    let first = rdma_pair().completed();
    let second = again(&first).completed();
    for pair in [first, second] {
        let (proposal, confirm) = pair.from_client.split_at(156);
        all.extend([proposal.to_vec(), confirm.to_vec(), pair.from_server]);
    }
    let changes = vec((any::<prop::sample::Index>(), any::<u8>()), 0..4);
    (prop::sample::select(all), changes, 0..4_usize).prop_map(|(mut bytes, changes, keep)| {
        // Most messages stay intact, so that later states are reached.
        if keep == 0 {
            for (at, value) in changes {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        bytes
    })
}

fn done() -> impl Strategy<Value = WorkDone> {
    let terms = GroupTerms {
        version: Version::V2,
        release: Release::V2_1,
        eid: None,
        os: OsType::NONE,
        host: HostName::BLANK,
        max_connections: None,
        vendor_features: Features::empty(),
    };
    let group = GroupId([0, 0, 1, 0]);
    prop::sample::select(vec![
        WorkDone::Reached(Ok(())),
        WorkDone::Reached(Ok(())),
        WorkDone::Reached(Err(DeviceError::PeerGone)),
        WorkDone::Entered(Ok(Member::Created(group))),
        WorkDone::Entered(Ok(Member::Created(group))),
        WorkDone::Entered(Ok(Member::Joined { group, terms })),
        WorkDone::Registered(Ok(DmbToken(7))),
        WorkDone::Registered(Ok(DmbToken(7))),
        WorkDone::Registered(Err(DeviceError::NoMemory)),
        WorkDone::Registered(Err(DeviceError::Exhausted)),
        WorkDone::Claimed(Ok(())),
        WorkDone::Claimed(Err(DeviceError::PeerGone)),
        WorkDone::Attached(Ok(0x10_0000)),
        WorkDone::Attached(Ok(1)),
        WorkDone::Attached(Err(DeviceError::PeerGone)),
        WorkDone::GroupEstablished(Ok(())),
        WorkDone::LinkOpened(Ok(link())),
        WorkDone::LinkOpened(Err(DeviceError::Exhausted)),
        WorkDone::RmbPrepared(Ok(rmb())),
        WorkDone::RmbPrepared(Ok(rmb())),
        WorkDone::RmbPrepared(Err(RmbError::NoLink)),
        WorkDone::RmbPrepared(Err(DeviceError::NoMemory.into())),
        WorkDone::PeerBound(Ok(())),
        WorkDone::PeerBound(Ok(())),
        WorkDone::PeerBound(Err(RtokenError::TableFull)),
        WorkDone::LinkConnected(Ok(())),
        WorkDone::RkeyConfirmed(Ok(())),
        WorkDone::RkeyConfirmed(Err(RkeyError::Refused)),
        WorkDone::LinkConfirmed(Ok(())),
        WorkDone::LinkConfirmed(Err(FirstLinkError::TimedOut)),
        WorkDone::LinkConfirmed(Err(FirstLinkError::Eyecatchers)),
    ])
}

fn link() -> LinkAddress {
    LinkAddress {
        gid: RoceGid::from_ipv4([10, 9, 0, 7].into()),
        mac: Mac::new([2; 6]),
        qpn: Qpn::new(7).unwrap(),
        psn: Psn::new(7).unwrap(),
        mtu: MtuCode::MTU_1024,
    }
}

fn rmb() -> LocalRmb {
    LocalRmb {
        device: DeviceIndex(0),
        link: link(),
        rkey: Rkey(7),
        addr: RmbAddr(7),
        token: AlertToken::new(7).unwrap(),
        size: SizeCode::MIN,
        index: 1,
        authentication: None,
        peer: None,
    }
}

/// Applies inputs and then lets time pass; the machine has to come to exactly one end.
fn survive(machine: &mut Handshake, start: Instant, inputs: &[HandshakeInput]) {
    let mut now = start;
    let mut ends = 0;
    let mut asked = None;
    drain(machine, &mut ends, &mut asked);
    for input in inputs {
        match input {
            HandshakeInput::Bytes(bytes) => {
                let wanted = machine.bytes_needed();
                let taken = machine.handle_bytes(now, bytes);
                assert!(taken <= bytes.len());
                assert!(wanted > 0 || taken == 0);
                assert!(taken == bytes.len() || machine.bytes_needed() == 0 || wanted == 0);
            }
            // Mostly answers that were asked for; a wrong one is a bug, not a panic.
            HandshakeInput::WorkDone(done)
                if asked.as_ref().is_some_and(|work| fits(work, done)) =>
            {
                asked = None;
                machine.handle_done(now, done.clone());
            }
            HandshakeInput::WorkDone(_) => {}
            HandshakeInput::Closed => machine.handle_closed(),
            HandshakeInput::Terminated => machine.handle_terminated(),
            HandshakeInput::Seconds(seconds) => {
                now += SECOND * u32::try_from(*seconds).unwrap();
                machine.handle_timeout(now);
            }
        }
        drain(machine, &mut ends, &mut asked);
    }
    // A handshake has at most four waits on the peer or on devices.
    for _ in 0..4 {
        if let Some(deadline) = machine.poll_timeout() {
            now = now.max(deadline);
            machine.handle_timeout(now);
            drain(machine, &mut ends, &mut asked);
        }
    }
    assert_eq!(ends, 1, "exactly one outcome");
    assert_eq!((machine.bytes_needed(), machine.poll_timeout()), (0, None));
}

fn drain(machine: &mut Handshake, ends: &mut usize, asked: &mut Option<Work>) {
    while let Some(output) = machine.poll_output() {
        assert_eq!(*ends, 0, "nothing follows an outcome");
        match output {
            HandshakeOutput::Established(_)
            | HandshakeOutput::Fallback(_)
            | HandshakeOutput::Abort(_) => *ends += 1,
            HandshakeOutput::EarlyData(_) => panic!("there is no policy for it"),
            HandshakeOutput::Work(work) => assert!(asked.replace(work).is_none(), "one at a time"),
            HandshakeOutput::Send(bytes) => {
                Message::parse(&bytes).expect("what we send is well-formed");
            }
            _ => {}
        }
    }
}

fn fits(work: &Work, done: &WorkDone) -> bool {
    matches!(
        (work, done),
        (Work::Reach { .. }, WorkDone::Reached(_))
            | (Work::Enter { .. }, WorkDone::Entered(_))
            | (Work::Register { .. }, WorkDone::Registered(_))
            | (Work::Claim { .. }, WorkDone::Claimed(_))
            | (Work::Attach { .. }, WorkDone::Attached(_))
            | (Work::EstablishGroup { .. }, WorkDone::GroupEstablished(_))
            | (Work::OpenLink { .. }, WorkDone::LinkOpened(_))
            | (Work::PrepareRmb { .. }, WorkDone::RmbPrepared(_))
            | (Work::BindPeer { .. }, WorkDone::PeerBound(_))
            | (Work::ConnectLink { .. }, WorkDone::LinkConnected(_))
            | (Work::ConfirmRkey, WorkDone::RkeyConfirmed(_))
            | (Work::ConfirmLink { .. }, WorkDone::LinkConfirmed(_))
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn server_survives_anything(inputs in vec(input(), 0..24)) {
        let now = Instant::now();
        let mut server = Handshake::server(now, Arc::new(host()), TcpPath::default());
        survive(&mut server, now, &inputs);
    }

    #[test]
    fn client_survives_anything(inputs in vec(input(), 0..24)) {
        let now = Instant::now();
        let mut client = Handshake::client(now, Arc::new(host()), &TcpPath::default());
        survive(&mut client, now, &inputs);
    }

    #[test]
    fn server_of_smc_r_survives_anything(inputs in vec(input(), 0..32)) {
        let now = Instant::now();
        let config = Arc::new(rdma_host(SERVER));
        let mut server = Handshake::server(now, config, path(SERVER));
        survive(&mut server, now, &inputs);
    }

    #[test]
    fn client_of_smc_r_survives_anything(inputs in vec(input(), 0..32)) {
        let now = Instant::now();
        let config = Arc::new(rdma_host(CLIENT));
        let mut client = Handshake::client(now, config, &path(CLIENT));
        survive(&mut client, now, &inputs);
    }

    #[test]
    fn any_bytes_in_any_pieces(bytes in vec(any::<u8>(), 0..800), chunk in 1..50_usize) {
        let now = Instant::now();
        let mut server = HandshakeSide::new(Handshake::server(now, Arc::new(host()), TcpPath::default()));
        server.receive(now, &bytes, chunk);
        let mut client = HandshakeSide::new(Handshake::client(now, Arc::new(host()), &TcpPath::default()));
        client.settle(now);
        client.receive(now, &bytes, chunk);
    }

    #[test]
    fn pieces_make_no_difference(chunk in 1..200_usize) {
        let mut pair = Pair::new(host(), host());
        pair.chunk = chunk;
        pair.run();
        pair.client.established();
        pair.server.established();
    }
}
