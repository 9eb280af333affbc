use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};

use async_trait::async_trait;
use futures::FutureExt as _;
use smc_core::device::{
    Access, Device, DeviceError, Direct, Doorbell, Event, LinkFailure, OpId, Piece, Route, Signal,
    SubmitError, Write,
};
use smc_core::mem::Region;

use super::*;
use crate::conformance::rdma as rdma_conformance;
use crate::conformance::{Effort, Outcome, Pair, Provider, Report, Skip, run_all};
use crate::memory_device::MemFabric;
use crate::memory_rdma::RdmaNetwork;

#[test]
fn a_trace_reads_like_a_story() {
    let fabric = MemFabric::new(1);
    let (traced, journal) = Trace::with_journal(fabric.device("mem0"));
    let peer = fabric.device("mem1");
    let ours = direct(&*traced);
    now(ours.reach(peer.gid())).unwrap();
    let to_peer = now(peer.register(ours.gid(), 1 << 14)).unwrap();
    let to_local = now(ours.register(peer.gid(), 1 << 14)).unwrap();
    to_local.arm();
    ours.move_data(
        peer.gid(),
        to_peer.token(),
        32,
        &[std::io::IoSlice::new(b"hello")],
        Signal::Yes,
    )
    .unwrap();
    peer.move_data(ours.gid(), to_local.token(), 0, &[], Signal::Yes)
        .unwrap();
    traced.drain(&mut |_| {}).unwrap();
    let token = to_local.token();
    drop(to_local);
    let story: Vec<_> = journal.take().iter().map(ToString::to_string).collect();
    let (peer, to_peer) = (peer.gid(), to_peer.token());
    assert_eq!(
        story,
        [
            format!("mem0 reach {peer}"),
            format!("mem0 register 16384 bytes for {peer}: {token}"),
            format!("mem0 arm {token}"),
            format!("mem0 move 5 bytes to {to_peer} of {peer} at 32 and signal"),
            format!("mem0 <- signalled {token}"),
            format!("mem0 unregister {token}"),
        ]
    );
    assert!(journal.take().is_empty());
}

#[test]
fn a_trace_tells_errors() {
    let (traced, journal) = Trace::with_journal(MemFabric::new(1).device("mem0"));
    let gid = smc_wire::types::Gid::emulated(0x0007_0000_0000_0000_0000);
    now(direct(&*traced).reach(gid)).unwrap_err();
    let records = journal.take();
    assert!(matches!(&records[0].what, What::Reached { peer, result: Err(_) } if *peer == gid));
    assert!(
        records[0].to_string().contains("not on the fabric"),
        "{}",
        records[0]
    );
}

#[test]
fn a_trace_of_a_link_reads_like_a_story() {
    let network = RdmaNetwork::new(1);
    let (traced, journal) = Trace::with_journal(network.device("rdma0"));
    let peer = network.device("rdma1");
    let (ours, theirs) = (rdma(&*traced), rdma(&*peer));
    let (at, peer_at) = (&ours.addresses()[3], &theirs.addresses()[3]);
    let at_local = now(ours.protection_domain()).unwrap();
    let at_peer = now(theirs.protection_domain()).unwrap();
    let pending = now(at_local.open_link(at)).unwrap();
    let other = now(at_peer.open_link(peer_at)).unwrap();
    let (local, peer_link) = (pending.local(), other.local());
    let link = now(pending.connect(peer_link, Route::SameSubnet)).unwrap();
    let _other = now(other.connect(local, Route::SameSubnet)).unwrap();
    let staging = now(at_local.register(&Region::anonymous(64), Access::Local)).unwrap();
    let rmb = now(at_peer.register(&Region::anonymous(64), Access::RemoteWrite)).unwrap();
    let write = Write {
        from: &*staging,
        first: Piece { at: 60, len: 4 },
        second: Piece { at: 0, len: 3 },
        rkey: rmb.rkey(),
        to: rmb.addr(),
    };
    link.post(OpId(5), &[write], &[0xfe; 44]).unwrap();
    traced.drain(&mut |_| {}).unwrap();
    link.close();
    let (key, addr) = (staging.rkey(), staging.addr());
    drop((staging, link));
    let story: Vec<_> = journal.take().iter().map(ToString::to_string).collect();
    let (qpn, gid) = (local.qpn, at.gid);
    let (to, to_gid, to_key, to_addr) = (peer_link.qpn, peer_at.gid, rmb.rkey(), rmb.addr());
    assert_eq!(
        story,
        [
            format!("rdma0 open link at {gid}: {qpn}"),
            format!("rdma0 connect {qpn} to {to} at {to_gid}"),
            format!("rdma0 register 64 bytes, Local: {key} at {addr}"),
            format!(
                "rdma0 post 5 on {qpn}: 7 bytes to {to_key} at {to_addr}, message 0xfe of 44 bytes"
            ),
            format!("rdma0 <- {qpn} completed 5"),
            format!("rdma0 close {qpn}"),
            format!("rdma0 unregister {key}"),
            format!("rdma0 release {qpn}"),
        ]
    );
}

/// Makes pairs of memory devices that are wrapped on both sides.
struct Wrapped(fn(Arc<dyn Device>) -> Arc<dyn Device>);

#[async_trait]
impl Provider for Wrapped {
    async fn pair(&self) -> Result<Pair, Skip> {
        let fabric = MemFabric::new(3);
        let [ours, peer, third] = [0, 1, 2].map(|n| fabric.device(&format!("mem{n}")));
        let victim = Arc::clone(&peer);
        let removed = Arc::clone(&ours);
        Ok(Pair::new((self.0)(ours), (self.0)(peer))
            .with_third((self.0)(third))
            .with_kill(move |_| victim.leave())
            .with_removal(move |_| removed.remove()))
    }

    fn effort(&self) -> Effort {
        Effort::default().with_rounds(1000)
    }
}

#[test]
fn a_traced_device_conforms() {
    let provider =
        Wrapped(|device| Trace::new(device, |record| assert!(!record.device.is_empty())));
    assert_conforms(&provider);
}

#[test]
fn a_faulty_device_conforms_since_nothing_is_lost() {
    let faults = Faults::default()
        .with_delayed(300)
        .with_spurious(50)
        .with_busy(100);
    assert_eq!(faults.delayed, 300);
    let provider = Wrapped(|device| {
        let faults = Faults::default()
            .with_delayed(300)
            .with_spurious(50)
            .with_busy(100);
        Fault::new(device, 11, faults)
    });
    assert_conforms(&provider);
}

fn assert_conforms(provider: &Wrapped) {
    assert_passed(&run_all(provider));
}

fn assert_passed(report: &Report) {
    let is_fine = |outcome: &Outcome| !matches!(outcome, Outcome::Failed(_));
    assert!(
        report.outcomes().all(|(_, outcome)| is_fine(outcome)),
        "{report}"
    );
}

/// The same for SMC-R.
struct WrappedRdma(fn(Arc<dyn Device>) -> Arc<dyn Device>);

#[async_trait]
impl Provider for WrappedRdma {
    async fn pair(&self) -> Result<Pair, Skip> {
        let network = RdmaNetwork::new(3);
        let (ours, peer) = (network.device("rdma0"), network.device("rdma1"));
        let [victim, removed, switched] = [&peer, &ours, &ours].map(Arc::clone);
        Ok(Pair::new((self.0)(ours), (self.0)(peer))
            .with_kill(move |_| victim.leave())
            .with_removal(move |_| removed.remove())
            .with_port_switch(move |is_active| switched.set_port_active(1, is_active))
            .with_cut(move || network.cut()))
    }

    fn effort(&self) -> Effort {
        Effort::default().with_rounds(1000)
    }
}

#[test]
fn a_traced_rdma_device_conforms() {
    let provider =
        WrappedRdma(|device| Trace::new(device, |record| assert!(!record.device.is_empty())));
    assert_passed(&rdma_conformance::run_all(&provider));
}

#[test]
fn a_faulty_rdma_device_conforms_since_nothing_is_lost() {
    let provider = WrappedRdma(|device| {
        let faults = Faults::default().with_delayed(300).with_busy(100);
        Fault::new(device, 12, faults)
    });
    assert_passed(&rdma_conformance::run_all(&provider));
}

#[test]
fn injected_failures_of_links_are_those_asked_for() {
    let network = RdmaNetwork::new(6);
    let always = 1000;
    let faults = Faults::default().with_exhausted(always);
    let faulty = Fault::new(network.device("rdma0"), 1, faults);
    let peer = network.device("rdma1");
    let (ours, theirs) = (rdma(&*faulty), rdma(&*peer));
    let (at, peer_at) = (&ours.addresses()[3], &theirs.addresses()[3]);
    let at_local = now(ours.protection_domain()).unwrap();
    let at_peer = now(theirs.protection_domain()).unwrap();
    let open = || now(at_local.open_link(at));
    assert!(matches!(open(), Err(DeviceError::Exhausted)));
    let region = Region::anonymous(8);
    now(at_local.register(&region, Access::Local)).unwrap_err();

    faulty.set(Faults::default().with_unreachable(always));
    let other = now(at_peer.open_link(peer_at)).unwrap();
    let to = other.local();
    now(open().unwrap().connect(to, Route::SameSubnet)).unwrap_err();

    faulty.set(Faults::default().with_peers_gone_at(2));
    let pending = open().unwrap();
    let local = pending.local();
    let link = now(pending.connect(to, Route::SameSubnet)).unwrap();
    let _other = now(other.connect(local, Route::SameSubnet)).unwrap();
    link.post(OpId(1), &[], &[1; 44]).unwrap();
    for _ in 0..2 {
        assert_eq!(link.post(OpId(2), &[], &[]), Err(SubmitError::PeerGone));
    }
    let mut events = Vec::new();
    faulty.drain(&mut |event| events.push(event)).unwrap();
    let (link, cause) = (local.qpn, LinkFailure::RetryExceeded);
    assert_eq!(events, [Event::LinkDown { link, cause }]);
}

#[test]
fn injected_failures_are_those_asked_for() {
    let fabric = MemFabric::new(4);
    let always = 1000;
    let faults = Faults::default()
        .with_exhausted(always)
        .with_unattachable(always);
    let faulty = Fault::new(fabric.device("mem0"), 1, faults);
    let peer = fabric.device("mem1");
    let ours = direct(&*faulty);
    now(ours.reach(peer.gid())).unwrap();
    let error = now(ours.register(peer.gid(), 1 << 14)).unwrap_err();
    assert!(matches!(
        error,
        DeviceError::Exhausted | DeviceError::NoMemory
    ));
    let dmb = now(peer.register(ours.gid(), 1 << 14)).unwrap();
    now(nocopy(&*faulty).attach(peer.gid(), dmb.token())).unwrap_err();

    faulty.set(Faults::default().with_busy(always));
    now(ours.register(peer.gid(), 1 << 14)).unwrap();
    let attached = now(nocopy(&*faulty).attach(peer.gid(), dmb.token())).unwrap();
    assert_eq!(attached.signal(), Err(SubmitError::WouldBlock));
    assert_eq!(
        ours.move_data(peer.gid(), dmb.token(), 0, &[], Signal::No),
        Err(SubmitError::WouldBlock)
    );
    faulty.set(Faults::default().with_unreachable(always));
    now(ours.reach(peer.gid())).unwrap_err();
}

#[test]
fn allocations_fail_by_number() {
    let fabric = MemFabric::new(4);
    let faulty = Fault::new(fabric.device("mem0"), 1, Faults::default());
    let peer = fabric.device("mem1");
    let ours = direct(&*faulty);
    let dmb = now(peer.register(ours.gid(), 1 << 14)).unwrap();
    let attach = || now(nocopy(&*faulty).attach(peer.gid(), dmb.token())).err();
    let register = || now(ours.register(peer.gid(), 1 << 14)).err();
    faulty.fail_allocations(1, 2, DeviceError::NoMemory);
    let expected = Some(DeviceError::NoMemory);
    assert_eq!(
        [register(), attach(), register()],
        [None, expected.clone(), expected]
    );
    assert_eq!([register(), attach()], [None, None]);
}

#[test]
fn a_peer_dies_on_time() {
    let fabric = MemFabric::new(5);
    let faulty = Fault::new(
        fabric.device("mem0"),
        1,
        Faults::default().with_peers_gone_at(3),
    );
    let peer = fabric.device("mem1");
    let ours = direct(&*faulty);
    now(ours.reach(peer.gid())).unwrap();
    let dmb = now(peer.register(ours.gid(), 1 << 14)).unwrap();
    for expected in [
        Ok(()),
        Ok(()),
        Err(SubmitError::PeerGone),
        Err(SubmitError::PeerGone),
    ] {
        assert_eq!(
            ours.move_data(peer.gid(), dmb.token(), 0, &[], Signal::No),
            expected
        );
    }
    let mut events = Vec::new();
    faulty.drain(&mut |event| events.push(event)).unwrap();
    // The real end is not reported again.
    drop(dmb);
    let gid = peer.gid();
    drop(peer);
    faulty.drain(&mut |event| events.push(event)).unwrap();
    assert_eq!(events, [Event::PeerGone(gid)]);
}

/// Drain, arm, drain, park: what comes after that has to wake, whatever the second drain kept back.
#[test]
fn a_drain_that_hands_out_nothing_leaves_the_device_armed() {
    let fabric = MemFabric::new(7);
    let faulty = Fault::new(fabric.device("mem0"), 1, Faults::default());
    let [dead, other] = ["mem1", "mem2"].map(|name| fabric.device(name));
    now(direct(&*faulty).reach(dead.gid())).unwrap();
    let _from_dead = now(dead.register(direct(&*faulty).gid(), 1 << 14)).unwrap();
    let from_other = now(direct(&*faulty).register(other.gid(), 1 << 14)).unwrap();
    faulty.lose_peers();
    faulty.drain(&mut |_| {}).unwrap();

    let Doorbell::Waker(doorbell) = faulty.doorbell() else {
        panic!("memory devices wake");
    };
    let wake_signal = Arc::new(WakeSignal::default());
    doorbell.register(&Waker::from(Arc::clone(&wake_signal)));
    // That was reported before.
    dead.leave();
    faulty.arm().unwrap();
    faulty
        .drain(&mut |event| panic!("{event:?} is handed out"))
        .unwrap();
    from_other.arm();
    let signalled = other.move_data(
        direct(&*faulty).gid(),
        from_other.token(),
        0,
        &[],
        Signal::Yes,
    );
    signalled.unwrap();
    assert!(wake_signal.0.load(Ordering::Relaxed), "a lost wake-up");
}

#[derive(Default)]
struct WakeSignal(AtomicBool);

impl Wake for WakeSignal {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    future
        .now_or_never()
        .expect("a memory device does not wait")
}
