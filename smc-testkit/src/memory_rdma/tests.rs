mod faults;

use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Wake, Waker};
use std::thread;
use std::time::Duration;

use futures::FutureExt as _;
use smc_core::device::{
    Access, Device, DeviceError, Doorbell, Event, Inbound, Limits, Link, LinkAddress, LinkFailure,
    MESSAGE_MAX, Mr, OpId, PendingLink, Piece, ProtectionDomain, Rdma, RdmaAddress, RoceKind,
    Route, SENDS_MAX, SubmitError, Write,
};
use smc_core::mem::Region;
use smc_wire::types::{Mac, MtuCode, Psn, Qpn, Rkey, RoceGid};

use super::*;
use crate::runtime::VirtualRuntime;

#[test]
fn who_was_told_a_wrong_number_gets_no_answer() {
    let wrong: [fn(&mut LinkAddress); 2] = [
        |end| end.qpn = Qpn::new(end.qpn.get() + 9).unwrap(),
        |end| end.gid = RoceGid::from_ipv4([10, 77, 0, 1].into()),
    ];
    for change in wrong {
        let (a, b) = pair_of(3);
        let (ours, theirs) = (open(&a), open(&b));
        let (mut to, from) = (theirs.local(), ours.local());
        change(&mut to);
        let ours = now(ours.connect(to, Route::SameSubnet)).unwrap();
        let _theirs = now(theirs.connect(from, Route::SameSubnet)).unwrap();
        ours.post(OpId(1), &[], &[0; 44]).unwrap();
        assert_eq!(drained(&a), [down(&ours, LinkFailure::RetryExceeded)]);
        assert_eq!(ours.post(OpId(2), &[], &[]), Err(SubmitError::PeerGone));
        assert_eq!(drained(&b), []);
    }
}

#[test]
fn sequence_numbers_have_to_be_those_announced() {
    let (a, b) = pair_of(4);
    let (ours, theirs) = (open(&a), open(&b));
    let (to, mut from) = (theirs.local(), ours.local());
    from.psn = Psn::new(from.psn.get() ^ 1).unwrap();
    let ours = now(ours.connect(to, Route::SameSubnet)).unwrap();
    let theirs = now(theirs.connect(from, Route::SameSubnet)).unwrap();
    // The other direction is not concerned.
    theirs.post(OpId(1), &[], &[2; 44]).unwrap();
    assert_eq!(drained(&a), [received(&ours, &[2; 44])]);
    ours.post(OpId(1), &[], &[1; 44]).unwrap();
    assert_eq!(drained(&a), [down(&ours, LinkFailure::RetryExceeded)]);
}

#[test]
fn both_ends_have_to_agree_on_the_mtu_of_longer_messages() {
    let (a, b) = pair_of(5);
    let (ours, theirs) = (open(&a), open(&b));
    let (to, mut from) = (theirs.local(), ours.local());
    from.mtu = MtuCode::MTU_512;
    let ours = now(ours.connect(to, Route::SameSubnet)).unwrap();
    let _theirs = now(theirs.connect(from, Route::SameSubnet)).unwrap();
    ours.post(OpId(1), &[], &[1; 44]).unwrap();
    assert_eq!(drained(&a), [sent(&ours, 1)]);
    ours.post(OpId(2), &[], &[1; 600]).unwrap();
    assert!(matches!(
        drained(&a)[..],
        [Event::LinkDown {
            cause: LinkFailure::QueuePair(_),
            ..
        }]
    ));
}

#[test]
fn a_reserved_mtu_is_refused() {
    let (a, b) = pair_of(6);
    let peer = LinkAddress {
        mtu: MtuCode::new(9).unwrap(),
        ..open(&b).local()
    };
    let result = now(open(&a).connect(peer, Route::SameSubnet));
    assert!(matches!(result, Err(DeviceError::Invalid(_))), "{result:?}");
    assert_eq!(a.links(), []);
}

#[test]
fn kinds_of_packets_do_not_mix() {
    let (a, b) = pair_of(7);
    let (v1, v2) = (at(&a, RoceKind::V1), at(&b, RoceKind::V2));
    let (ours, theirs) = (
        now(domain(&a).open_link(&v1)).unwrap(),
        now(domain(&b).open_link(&v2)).unwrap(),
    );
    let (ours, _theirs) = connect(ours, theirs);
    ours.post(OpId(1), &[], &[]).unwrap();
    assert_eq!(drained(&a), [down(&ours, LinkFailure::RetryExceeded)]);
}

#[test]
fn a_refused_write_costs_both_ends_their_link() {
    let world = LinkWorld::new(8);
    let write = Write {
        rkey: Rkey(world.rmb.rkey().0 ^ 1),
        ..world.write(0, 5)
    };
    world.to_b.post(OpId(1), &[write], &[]).unwrap();
    let expected = [down(&world.to_b, LinkFailure::RemoteAccess)];
    assert_eq!(drained(&world.a), expected);
    let expected = [down(&world.to_a, LinkFailure::Flushed)];
    assert_eq!(drained(&world.b), expected);
}

#[test]
fn a_post_with_three_writes_is_not_sent() {
    let world = LinkWorld::new(11);
    let three = [world.write(0, 1); 3];
    assert!(world.to_b.post(OpId(1), &three, &[]).is_err());
    assert_eq!(drained(&world.a), []);
    assert_eq!(drained(&world.b), []);
}

#[test]
fn a_link_takes_sixteen_posts() {
    let world = LinkWorld::new(14);
    world.network.pause();
    let message = vec![3; MESSAGE_MAX];
    for op in 0..SENDS_MAX as u64 {
        let writes = [world.write(0, 4096), world.write(0, 4096)];
        world.to_b.post(OpId(op), &writes, &message).unwrap();
    }
    let one_more = world.to_b.post(OpId(99), &[], &[]);
    assert_eq!(one_more, Err(SubmitError::WouldBlock));
    assert_eq!(world.a.links()[0].outstanding, SENDS_MAX);
    world.network.resume();
    let all: Vec<_> = (0..16).map(|op| sent(&world.to_b, op)).collect();
    assert_eq!(drained(&world.a), all);
    assert_eq!(drained(&world.b).len(), 16);
}

#[test]
fn memory_is_read_when_it_leaves_and_has_to_stay_registered() {
    let (runtime, world) = LinkWorld::timed(18);
    world.post(1, 0, b"early").unwrap();
    world.staging.region().copy_in(0, b"later").unwrap();
    runtime.run_for(Duration::from_millis(1));
    assert_eq!(world.inbox(), b"later");
    drained(&world.a);

    let short = now(world
        .domain_a
        .register(&Region::anonymous(8), Access::Local))
    .unwrap();
    let write = Write {
        from: &*short,
        ..world.write(0, 8)
    };
    world.to_b.post(OpId(2), &[write], &[]).unwrap();
    drop(short);
    runtime.run_for(Duration::from_millis(1));
    assert!(matches!(
        drained(&world.a)[..],
        [Event::LinkDown {
            cause: LinkFailure::QueuePair(_),
            ..
        }]
    ));
}

#[test]
fn messages_to_a_peer_that_is_not_connected_yet_arrive_later() {
    let (a, b) = pair_of(25);
    let (ours, theirs) = (open(&a), open(&b));
    let (to, from) = (theirs.local(), ours.local());
    let ours = now(ours.connect(to, Route::SameSubnet)).unwrap();
    ours.post(OpId(1), &[], b"early").unwrap();
    assert_eq!(drained(&a), []);
    let theirs = now(theirs.connect(from, Route::SameSubnet)).unwrap();
    assert_eq!(drained(&b), [received(&theirs, b"early")]);
    assert_eq!(drained(&a), [sent(&ours, 1)]);
}

/// The driver parks then, and what comes later has to wake it.
#[test]
fn a_drain_whose_events_are_taken_away_leaves_the_device_armed() {
    let world = LinkWorld::new(28);
    let Doorbell::Waker(doorbell) = world.b.doorbell() else {
        panic!("memory devices wake");
    };
    let wake_signal = Arc::new(WakeSignal::default());
    for round in 0..2000 {
        let (to_b, to_a) = connect(
            open_in(&*world.domain_a, &world.a),
            open_in(&*world.domain_b, &world.b),
        );
        to_b.post(OpId(round), &[], b"taken away").unwrap();
        world.b.arm().unwrap();
        let (ready, mut count) = (AtomicUsize::new(0), 0);
        // Threads that have slept do not go on at the same time.
        let wait_for_both = || {
            ready.fetch_add(1, Ordering::SeqCst);
            while ready.load(Ordering::SeqCst) < 2 {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                wait_for_both();
                (0..round % 64).for_each(|_| spin_loop());
                to_a.close();
            });
            wait_for_both();
            world.b.drain(&mut |_| count += 1).unwrap();
        });
        if count == 0 {
            wake_signal.0.store(false, Ordering::Relaxed);
            doorbell.register(&Waker::from(Arc::clone(&wake_signal)));
            world.post(round, 0, b"data").unwrap();
            assert!(wake_signal.0.load(Ordering::Relaxed), "a lost wake-up");
        }
        let _all = (drained(&world.a), drained(&world.b));
    }
}

#[derive(Default)]
struct WakeSignal(AtomicBool);

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let run = |seed| {
        let (runtime, world) = LinkWorld::timed(seed);
        let jitter = Duration::from_micros(300);
        world.network.set_latency(Duration::from_micros(20), jitter);
        let mut log = Vec::new();
        for op in 0..12 {
            world.post(op, 0, b"data").unwrap();
            runtime.run_for(Duration::from_micros(100));
            log.push((drained(&world.a), drained(&world.b)));
        }
        log
    };
    assert_eq!(run(27), run(27));
    assert_ne!(run(27), run(28));
}

/// Two devices with a link between them: a writes into the memory of b.
struct LinkWorld {
    network: RdmaNetwork,
    to_b: Arc<dyn Link>,
    to_a: Arc<dyn Link>,
    staging: Arc<dyn Mr>,
    rmb: Arc<dyn Mr>,
    domain_a: Arc<dyn ProtectionDomain>,
    domain_b: Arc<dyn ProtectionDomain>,
    a: Arc<MemoryRdma>,
    b: Arc<MemoryRdma>,
}

impl LinkWorld {
    fn new(seed: u64) -> Self {
        Self::with(seed, RdmaOptions::default())
    }

    fn with(seed: u64, options: RdmaOptions) -> Self {
        Self::on(RdmaNetwork::new(seed), &options)
    }

    fn timed(seed: u64) -> (VirtualRuntime, Self) {
        let runtime = VirtualRuntime::new(seed);
        let network = RdmaNetwork::with_clock(seed, runtime.handle());
        (runtime, Self::on(network, &RdmaOptions::default()))
    }

    fn on(network: RdmaNetwork, options: &RdmaOptions) -> Self {
        let [a, b] = ["rdma0", "rdma1"].map(|name| network.device_with(name, options.clone()));
        let [domain_a, domain_b] = [&a, &b].map(|device| domain(device));
        let (to_b, to_a) = connect(open_in(&*domain_a, &a), open_in(&*domain_b, &b));
        let staging = now(domain_a.register(&Region::anonymous(4096), Access::Local)).unwrap();
        let rmb = now(domain_b.register(&Region::anonymous(4096), Access::RemoteWrite)).unwrap();
        Self {
            network,
            to_b,
            to_a,
            staging,
            rmb,
            domain_a,
            domain_b,
            a,
            b,
        }
    }

    fn write(&self, at: u32, len: u32) -> Write<'_> {
        Write {
            from: &*self.staging,
            first: Piece { at, len },
            second: Piece::default(),
            rkey: self.rmb.rkey(),
            to: self.rmb.addr(),
        }
    }

    /// Puts data into the staging memory and posts it with a message.
    fn post(&self, op: u64, at: u32, data: &[u8]) -> Result<(), SubmitError> {
        self.staging.region().copy_in(at as usize, data).unwrap();
        let write = self.write(at, data.len() as u32);
        self.to_b.post(OpId(op), &[write], b"message")
    }

    /// The memory of b up to its first zero.
    fn inbox(&self) -> Vec<u8> {
        let mut all = vec![0; 4096];
        self.rmb.region().copy_out(0, &mut all).unwrap();
        let end = all.iter().position(|byte| *byte == 0).unwrap_or(all.len());
        all[..end].to_vec()
    }
}

fn pair_of(seed: u64) -> (Arc<MemoryRdma>, Arc<MemoryRdma>) {
    let network = RdmaNetwork::new(seed);
    (network.device("rdma0"), network.device("rdma1"))
}

fn at(device: &MemoryRdma, kind: RoceKind) -> RdmaAddress {
    let table = device.addresses();
    table.into_iter().rfind(|at| at.kind == kind).unwrap()
}

fn domain(device: &MemoryRdma) -> Arc<dyn ProtectionDomain> {
    now(device.protection_domain()).unwrap()
}

fn open(device: &MemoryRdma) -> Box<dyn PendingLink> {
    open_in(&*domain(device), device)
}

fn open_in(domain: &dyn ProtectionDomain, device: &MemoryRdma) -> Box<dyn PendingLink> {
    now(domain.open_link(&at(device, RoceKind::V2))).unwrap()
}

fn connect(a: Box<dyn PendingLink>, b: Box<dyn PendingLink>) -> (Arc<dyn Link>, Arc<dyn Link>) {
    let (at_a, at_b) = (a.local(), b.local());
    let a = now(a.connect(at_b, Route::SameSubnet)).unwrap();
    (a, now(b.connect(at_a, Route::SameSubnet)).unwrap())
}

fn mac(n: u8) -> Mac {
    Mac::new([2, 0, 0, 0, 0, n])
}

fn sent(link: &Arc<dyn Link>, op: u64) -> Event {
    let (link, op) = (link.qpn(), OpId(op));
    Event::Completed { link, op }
}

fn received(link: &Arc<dyn Link>, message: &[u8]) -> Event {
    let (link, message) = (link.qpn(), Inbound::new(message));
    Event::Received { link, message }
}

fn down(link: &Arc<dyn Link>, cause: LinkFailure) -> Event {
    let link = link.qpn();
    Event::LinkDown { link, cause }
}

fn drained(device: &Arc<MemoryRdma>) -> Vec<Event> {
    let mut events = Vec::new();
    device.drain(&mut |event| events.push(event)).unwrap();
    events
}

/// Without a set-up time the calls of these devices never wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    future
        .now_or_never()
        .expect("a memory device does not wait")
}
