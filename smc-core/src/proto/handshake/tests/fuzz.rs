//! Whatever a peer sends, in whatever pieces, and whatever devices answer: no panic, no byte
//! taken behind the handshake, and an end in bounded time.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::proto::group::{GroupId, Terms};
use smc_wire::size::SizeCode;
use smc_wire::types::{
    AlertToken, Mac, MtuCode, Psn, Qpn, Release, Rkey, RmbAddr, RoceGid, Version,
};

use super::rdma::{CLIENT, SERVER, again, path, rdma_host, rdma_pair};
use crate::device::LinkAddress;

#[derive(Clone, Debug)]
enum Event {
    Bytes(Vec<u8>),
    Done(Done),
    Closed,
    Terminated,
    Seconds(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..100).prop_map(Event::Bytes),
        8 => message().prop_map(Event::Bytes),
        8 => done().prop_map(Event::Done),
        1 => Just(Event::Closed),
        1 => Just(Event::Terminated),
        1 => (0..7_u64).prop_map(Event::Seconds),
    ]
}

/// A message that was right before some bytes were changed.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let mut pair = Pair::new(host(), host());
    pair.run();
    let decline = {
        let mut pair = Pair::new(host_with_ueids(&[]), host());
        pair.run();
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
    let mut first = rdma_pair();
    first.run();
    let mut second = again(&first);
    second.run();
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

fn done() -> impl Strategy<Value = Done> {
    let terms = Terms::new(Version::V2, Release::V2_1, None);
    let group = GroupId([0, 0, 1, 0]);
    prop::sample::select(vec![
        Done::Reached(Ok(())),
        Done::Reached(Ok(())),
        Done::Reached(Err(DeviceError::PeerGone)),
        Done::Entered(Ok(Seat::Created(group))),
        Done::Entered(Ok(Seat::Created(group))),
        Done::Entered(Ok(Seat::Joined { group, terms })),
        Done::Registered(Ok(DmbToken(7))),
        Done::Registered(Ok(DmbToken(7))),
        Done::Registered(Err(DeviceError::NoMemory)),
        Done::Registered(Err(DeviceError::Exhausted)),
        Done::Attached(Ok(0x10_0000)),
        Done::Attached(Ok(1)),
        Done::Attached(Err(DeviceError::PeerGone)),
        Done::Opened(Ok(())),
        Done::LinkOpened(Ok(link())),
        Done::LinkOpened(Err(DeviceError::Exhausted)),
        Done::RmbPrepared(Ok(rmb())),
        Done::RmbPrepared(Ok(rmb())),
        Done::RmbPrepared(Err(RmbError::NoLink)),
        Done::RmbPrepared(Err(DeviceError::NoMemory.into())),
        Done::PeerBound(Ok(())),
        Done::PeerBound(Ok(())),
        Done::PeerBound(Err(TableFull::new())),
        Done::LinkConnected(Ok(())),
        Done::RkeyConfirmed(Ok(())),
        Done::RkeyConfirmed(Err(RkeyFailure::Refused)),
        Done::LinkConfirmed(Ok(())),
        Done::LinkConfirmed(Err(ConfirmFailure::TimedOut)),
        Done::LinkConfirmed(Err(ConfirmFailure::Eyecatchers)),
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
    }
}

/// Applies events and then lets time pass; the machine has to come to exactly one end.
fn survive(machine: &mut dyn Machine, start: Instant, events: &[Event]) {
    let mut now = start;
    let mut ends = 0;
    let mut asked = None;
    drain(machine, &mut ends, &mut asked);
    for event in events {
        match event {
            Event::Bytes(bytes) => {
                let wanted = machine.wants();
                let taken = machine.handle_bytes(now, bytes);
                assert!(taken <= bytes.len());
                assert!(wanted > 0 || taken == 0);
                assert!(taken == bytes.len() || machine.wants() == 0 || wanted == 0);
            }
            // Mostly answers that were asked for; a wrong one is a bug, not a panic.
            Event::Done(done) if asked.as_ref().is_some_and(|work| fits(work, done)) => {
                asked = None;
                machine.handle_done(now, done.clone());
            }
            Event::Done(_) => {}
            Event::Closed => machine.handle_closed(),
            Event::Terminated => machine.handle_terminated(),
            Event::Seconds(seconds) => {
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
    assert_eq!((machine.wants(), machine.poll_timeout()), (0, None));
}

fn drain(machine: &mut dyn Machine, ends: &mut usize, asked: &mut Option<Work>) {
    while let Some(output) = machine.poll_output() {
        assert_eq!(*ends, 0, "nothing follows an outcome");
        match output {
            Output::Established(_) | Output::Fallback(_) | Output::Abort(_) => *ends += 1,
            Output::Work(work) => assert!(asked.replace(work).is_none(), "one at a time"),
            Output::Send(bytes) => {
                Message::parse(&bytes).expect("what we send is well-formed");
            }
            _ => {}
        }
    }
}

fn fits(work: &Work, done: &Done) -> bool {
    matches!(
        (work, done),
        (Work::Reach { .. }, Done::Reached(_))
            | (Work::Enter { .. }, Done::Entered(_))
            | (Work::Register { .. }, Done::Registered(_))
            | (Work::Attach { .. }, Done::Attached(_))
            | (Work::Open { .. }, Done::Opened(_))
            | (Work::OpenLink { .. }, Done::LinkOpened(_))
            | (Work::PrepareRmb { .. }, Done::RmbPrepared(_))
            | (Work::BindPeer { .. }, Done::PeerBound(_))
            | (Work::ConnectLink { .. }, Done::LinkConnected(_))
            | (Work::ConfirmRkey { .. }, Done::RkeyConfirmed(_))
            | (Work::ConfirmLink { .. }, Done::LinkConfirmed(_))
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn server_survives_anything(events in vec(event(), 0..24)) {
        let now = Instant::now();
        let mut server = Server::new(now, Arc::new(host()), Path::default());
        survive(&mut server, now, &events);
    }

    #[test]
    fn client_survives_anything(events in vec(event(), 0..24)) {
        let now = Instant::now();
        let mut client = Client::new(now, Arc::new(host()), &Path::default());
        survive(&mut client, now, &events);
    }

    #[test]
    fn server_of_smc_r_survives_anything(events in vec(event(), 0..32)) {
        let now = Instant::now();
        let config = Arc::new(rdma_host(SERVER));
        let mut server = Server::new(now, config, path(SERVER));
        survive(&mut server, now, &events);
    }

    #[test]
    fn client_of_smc_r_survives_anything(events in vec(event(), 0..32)) {
        let now = Instant::now();
        let config = Arc::new(rdma_host(CLIENT));
        let mut client = Client::new(now, config, &path(CLIENT));
        survive(&mut client, now, &events);
    }

    #[test]
    fn any_bytes_in_any_pieces(bytes in vec(any::<u8>(), 0..800), chunk in 1..50_usize) {
        let now = Instant::now();
        let mut server = Side::new(Server::new(now, Arc::new(host()), Path::default()));
        server.receive(now, &bytes, chunk);
        let mut client = Side::new(Client::new(now, Arc::new(host()), &Path::default()));
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
