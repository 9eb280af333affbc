use std::io::IoSlice;
use std::sync::Arc;

use futures::FutureExt as _;
use smc_core::device::{
    Device, DeviceError, Direct, Event, Limits, Nocopy, PeerEvent, PeerEvents, Signal, SubmitError,
};

use super::*;

#[test]
fn peer_events_arrive_with_their_sender() {
    let fabric = MemFabric::new(1);
    let (ours, peer) = (fabric.device("mem0"), fabric.device("mem1"));
    ours.signal_event(peer.gid(), PeerEvent::TestRequest)
        .unwrap();
    let from = ours.gid();
    assert_eq!(
        drained(&peer),
        [Event::Peer {
            from,
            event: PeerEvent::TestRequest
        }]
    );

    let gone = peer.gid();
    drop(peer);
    assert_eq!(
        ours.signal_event(gone, PeerEvent::Shutdown),
        Err(SubmitError::PeerGone)
    );
}

#[test]
fn a_dropped_device_leaves_the_fabric_with_its_buffers() {
    let fabric = MemFabric::new(2);
    let (ours, peer) = (fabric.device("mem0"), fabric.device("mem1"));
    let dmb = now(peer.register(ours.gid(), 1 << 14)).unwrap();
    let attached = now(ours.attach(peer.gid(), dmb.token())).unwrap();
    let gid = peer.gid();
    drop(peer);
    assert_eq!(drained(&ours), [Event::PeerGone(gid)]);
    let data = [IoSlice::new(&[1])];
    let moved = ours.move_data(gid, dmb.token(), 0, &data, Signal::Yes);
    assert_eq!(moved, Err(SubmitError::UnknownToken));
    assert_eq!(attached.signal(), Err(SubmitError::PeerGone));
}

#[test]
fn copying_devices_have_no_nocopy() {
    let fabric = MemFabric::new(3).with_nocopy(false);
    assert!(Direct::nocopy(&*fabric.device("mem0")).is_none());
}

#[test]
fn limits_are_those_asked_for() {
    let limits = Limits::new(1, 1 << 15);
    let fabric = MemFabric::new(4).with_limits(limits);
    let (ours, peer) = (fabric.device("mem0"), fabric.device("mem1"));
    assert_eq!(ours.limits(), limits);
    assert!(matches!(
        now(ours.register(peer.gid(), 1 << 16)),
        Err(DeviceError::Invalid(_))
    ));
    let dmb = now(ours.register(peer.gid(), 1 << 15)).unwrap();
    assert!(matches!(
        now(ours.register(peer.gid(), 1 << 14)),
        Err(DeviceError::Exhausted)
    ));
    drop(dmb);
    now(ours.register(peer.gid(), 1 << 14)).unwrap();
}

#[test]
fn the_seed_decides_names_and_tokens() {
    let tokens = |seed| {
        let fabric = MemFabric::new(seed);
        let (ours, peer) = (fabric.device("mem0"), fabric.device("mem1"));
        (
            ours.gid(),
            now(ours.register(peer.gid(), 1 << 14)).unwrap().token(),
        )
    };
    assert_eq!(tokens(5), tokens(5));
    assert_ne!(tokens(5), tokens(6));
}

fn drained(device: &Arc<MemDevice>) -> Vec<Event> {
    let mut events = Vec::new();
    device.drain(&mut |event| events.push(event)).unwrap();
    events
}

/// The calls of these devices never wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    future
        .now_or_never()
        .expect("a memory device does not wait")
}
