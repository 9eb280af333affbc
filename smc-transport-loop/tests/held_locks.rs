//! Directories whose locks another user holds: what is looked up or published there comes later,
//! and nothing else waits.
//!
//! A job that does not end stands for a call that waits for the lock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use common::hostile::HostilePeer;
use common::{DrivenDevice, names, socket_name};
use futures_lite::future::{block_on, poll_once};
use rustix::net::accept;
use rustix::process::geteuid;
use smc_core::device::{DeviceError, Direct, Event};
use smc_ipc::Domain;
use smc_ipc::thread::{Lock, start};
use smc_testkit::wait::TIMEOUT;
use smc_transport_loop::LoopDevice;
use smc_wire::types::Gid;
use tempfile::TempDir;

/// Tests that hold a thread do so one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the thread of a lock until the result is dropped.
fn hold(of: Lock) -> Sender<()> {
    let (release, released) = channel::<()>();
    let (begin, begun) = channel();
    // It may still be held by the last test.
    while start(of.clone(), || ()).is_err() {}
    start(of, move || {
        begin.send(()).unwrap();
        assert!(released.recv().is_err());
    })
    .unwrap();
    begun.recv().unwrap();
    release
}

/// The thread on which devices of the own user are looked up.
fn look_ups() -> Lock {
    Lock::DirectoriesOf(geteuid().as_raw())
}

/// Drives the device as a runtime does, until something holds.
fn drive_until(device: &DrivenDevice, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TIMEOUT;
    loop {
        device.drain();
        if is_so() {
            return;
        }
        device.arm();
        device.drain();
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(is_so() || device.park(left), "is not woken");
    }
}

fn scene() -> (TempDir, DrivenDevice) {
    let dir = TempDir::new().unwrap();
    let device = DrivenDevice::in_dir(dir.path());
    (dir, device)
}

#[test]
fn a_channel_whose_device_is_being_looked_up_is_accepted_later() {
    let _alone = alone();
    let (dir, victim) = scene();
    let mut number = 0;
    // A machine may be too busy for that once.
    let is_accepted = || {
        number += 1;
        let release = hold(look_ups());
        let peer = HostilePeer::connect(dir.path(), victim.gid(), number);
        victim.drain();
        assert_eq!(victim.device.peers(), 0);
        let waits = !peer.is_closed();
        drop(release);
        drive_until(&victim, || peer.is_closed() || victim.device.peers() == 1);
        let is_accepted = waits && victim.device.peers() == 1;
        drop(peer);
        drive_until(&victim, || victim.device.peers() == 0);
        is_accepted
    };
    assert!(std::iter::repeat_with(is_accepted).take(10).any(|it| it));
}

#[test]
fn channels_whose_device_is_not_found_in_time_are_closed_and_no_others() {
    let _alone = alone();
    let (dir, victim) = scene();
    let before = HostilePeer::connect(dir.path(), victim.gid(), 1);
    victim.accept();
    let release = hold(look_ups());
    let peers: Vec<_> = (2..22)
        .map(|number| HostilePeer::connect(dir.path(), victim.gid(), number))
        .collect();
    victim.drain();
    let waiting = peers.iter().filter(|peer| !peer.is_closed()).count();
    assert_ne!(waiting, 0, "the driver has waited for them");
    drive_until(&victim, || peers.iter().all(HostilePeer::is_closed));
    assert_eq!(victim.device.peers(), 1);
    assert!(!before.is_closed());
    // The search has found nothing, and is over.
    drop(release);
    drop(hold(look_ups()));
    let late = HostilePeer::connect(dir.path(), victim.gid(), 30);
    drive_until(&victim, || victim.device.peers() == 2);
    assert!(!late.is_closed());
}

type Reaching<'a> = Pin<Box<dyn Future<Output = Result<(), DeviceError>> + 'a>>;

/// A call that has begun, and waits.
fn begin_to_reach(device: &DrivenDevice, peer: Gid) -> Reaching<'_> {
    let mut reaching: Reaching<'_> = Box::pin(device.device.reach(peer));
    let polled = block_on(poll_once(&mut reaching));
    assert!(
        polled.is_none(),
        "it has kept its thread waiting: {polled:?}"
    );
    reaching
}

#[test]
fn a_call_that_needs_a_look_up_leaves_its_thread_to_other_tasks() {
    let _alone = alone();
    let (dir, ours) = scene();
    let theirs = DrivenDevice::in_dir(dir.path());
    let release = hold(look_ups());
    let reaching = begin_to_reach(&ours, theirs.gid());
    drop(release);
    block_on(reaching).unwrap();

    // The driver ends a call that waits for too long.
    let third = DrivenDevice::in_dir(dir.path());
    let _release = hold(look_ups());
    let mut reaching = begin_to_reach(&ours, third.gid());
    let mut reached = None;
    drive_until(&ours, || {
        if reached.is_none() {
            reached = block_on(poll_once(&mut reaching));
        }
        reached.is_some()
    });
    let error = reached.unwrap().unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
}

#[test]
fn while_no_descriptor_can_be_watched_there_are_no_new_peers_and_others_go_on() {
    let _alone = alone();
    let (dir, ours) = scene();
    let [before, after] = [(); 2].map(|()| DrivenDevice::in_dir(dir.path()));
    ours.reach(before.gid());
    before.accept();
    let dmb = block_on(before.device.register(ours.gid(), 1 << 14)).unwrap();
    ours.accept();
    let release = hold(Lock::NestedEpoll);
    let error = block_on(ours.device.reach(after.gid())).unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
    let built = LoopDevice::builder().domain(Domain::directory(dir.path()));
    let error = built.build().unwrap_err();
    assert!(error.to_string().contains("timed out"), "{error}");
    assert_eq!(ours.write(before.gid(), dmb.token(), 0, b"goes on"), Ok(()));
    assert_eq!(ours.device.peers(), 1);
    drop(release);
    let end = Instant::now() + TIMEOUT;
    while let Err(error) = block_on(ours.device.reach(after.gid())) {
        assert!(Instant::now() < end, "{error}");
    }
}

#[test]
fn a_device_is_made_while_its_directory_is_held_and_is_found_later() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let release = hold(Lock::DirectoriesBelow(dir.path().to_owned()));
    let device = DrivenDevice::in_dir(dir.path());
    assert!(device.device.runtime_dir().is_err());
    assert!(names(dir.path()).is_empty());
    drop(release);
    drive_until(&device, || device.device.runtime_dir().is_ok());
    assert_eq!(names(dir.path()), [socket_name(device.gid())]);
    let other = DrivenDevice::in_dir(dir.path());
    other.reach(device.gid());
}

#[test]
fn the_name_of_a_process_that_ends_while_it_is_connected_to_is_removed() {
    let _alone = alone();
    let (dir, device) = scene();
    let HostilePeer {
        gid,
        channel,
        listener,
        ..
    } = HostilePeer::connect(dir.path(), device.gid(), 1);
    device.accept();
    let of_device = accept(&listener).unwrap();
    let release = hold(look_ups());
    drop((channel, of_device));
    device.wait(Event::PeerGone(gid));
    drop(release);
    // The kernel closes the sockets of a process one after the other, and the listener last.
    let of_look_up = accept(&listener).unwrap();
    drop((listener, of_look_up));
    device.wait_names(dir.path(), &[socket_name(device.gid())]);
}
