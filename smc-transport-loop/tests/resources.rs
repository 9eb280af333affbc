//! What devices take from the system, and that they give it back.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use common::{DrivenDevice, LEN, device, names, socket_name, start};
use futures_lite::future::{block_on, poll_once};
use smc_core::device::{Device as _, DeviceError, Direct, Dmb, Event, SubmitError};
use smc_testkit::process::Role;
use smc_testkit::resources::{
    alone, list_descriptors, memory_mappings, open_descriptors, wait_for_descriptors,
};
use smc_testkit::wait::until;
use smc_wire::types::{DmbToken, Gid};
use tempfile::TempDir;

/// What helpers do.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "idle" => common::idle(&role),
        "busy" => busy(&role),
        other => panic!("no role {other}"),
    }
}

/// Registers, drops and writes buffers until it is killed.
fn busy(role: &Role) {
    let device = DrivenDevice::new(device(role.dir()).pool(2, 1 << 20));
    role.send(device.gid());
    let (peer, token) = (role.parse::<Gid>(), DmbToken(role.parse()));
    let attached = device.attach(peer, token);
    role.send("busy");
    let mut kept = Vec::new();
    loop {
        kept.push(device.register(peer));
        kept.truncate(5);
        attached.region().copy_in(0, &[7; LEN]).unwrap();
        attached.signal().unwrap();
        device.drain();
        if kept.len() == 5 {
            kept.clear();
        }
    }
}

#[test]
fn a_killed_peer_is_noticed_and_leaves_nothing() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let device = DrivenDevice::in_dir(dir.path());
    let mut helper = start("idle", &dir);
    let peer = helper.parse::<Gid>();
    let dmb = device.register(peer);
    helper.send(device.gid());
    let theirs = DmbToken(helper.parse());
    let attached = device.attach(peer, theirs);
    let descriptors = open_descriptors();
    helper.kill();

    device.wait(Event::PeerGone(peer));
    let again = device.wait_within(Duration::from_millis(20), |_| true);
    assert!(!again, "reported once");
    device.wait_names(dir.path(), &[socket_name(device.gid())]);
    assert_eq!(attached.signal(), Err(SubmitError::PeerGone));
    assert_eq!(
        device.write(peer, theirs, 0, b"x"),
        Err(SubmitError::PeerGone)
    );
    attached.region().copy_in(0, b"still mapped").unwrap();
    dmb.region().copy_in(0, b"still ours").unwrap();
    let again = block_on(device.device.register(peer, LEN));
    assert!(
        matches!(again, Err(DeviceError::Unreachable { .. })),
        "{again:?}"
    );
    drop((dmb, attached));
    // The descriptors of pipes, and 4 of the peer.
    wait_for_descriptors(descriptors - 2 - 4);
    assert_eq!(memory_mappings(), 0);
}

#[test]
fn a_peer_may_be_killed_at_any_moment() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let device = DrivenDevice::in_dir(dir.path());
    let before = open_descriptors();
    for round in 0..20 {
        let mut helper = start("busy", &dir);
        let peer = helper.parse::<Gid>();
        let dmb = device.register(peer);
        helper.send(device.gid());
        helper.send(dmb.token().0);
        helper.recv();
        dmb.arm();
        device.wait_within(Duration::from_micros(round * 150), |event| {
            dmb.arm();
            matches!(event, Event::PeerGone(_))
        });
        helper.kill();
        device.wait(Event::PeerGone(peer));
        drop(dmb);
        device.wait_names(dir.path(), &[socket_name(device.gid())]);
        // The name of the ended peer is looked at on another thread, for the driver.
        until(
            || {
                device.wait_within(Duration::from_millis(1), |_| true);
                open_descriptors() <= before
            },
            || format!("more than {before} descriptors: {}", list_descriptors()),
        );
        assert_eq!(memory_mappings(), 0);
    }
    assert_eq!((device.device.peers(), device.device.dmbs()), (0, 0));
}

#[test]
fn thousands_of_buffers_leave_no_trace() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    // The first device of a process begins to watch the directory, and what that takes stays.
    drop(DrivenDevice::in_dir(dir.path()));
    let start = open_descriptors();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let cycle = |count: usize| {
        for _ in 0..count {
            let dmb = ours.register(theirs.gid());
            let attached = theirs.attach(ours.gid(), dmb.token());
            attached.region().copy_in(LEN - 5, b"hello").unwrap();
            drop(dmb);
            drop(attached);
        }
    };
    cycle(1);
    let (descriptors, mappings) = (open_descriptors(), memory_mappings());
    cycle(2000);
    wait_for_descriptors(descriptors);
    assert_eq!(
        memory_mappings(),
        mappings,
        "one buffer is used again and again"
    );
    drop((ours, theirs));
    wait_for_descriptors(start);
    assert_eq!(memory_mappings(), 0);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn buffers_without_attachment_leave_no_trace() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    drop(ours.register(theirs.gid()));
    theirs.accept();
    let (descriptors, mappings) = (open_descriptors(), memory_mappings());
    for _ in 0..2000 {
        drop(ours.register(theirs.gid()));
    }
    wait_for_descriptors(descriptors);
    assert_eq!(memory_mappings(), mappings);
}

#[test]
fn many_buffers_at_once_take_no_descriptors_and_are_given_back() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let device = || DrivenDevice::new(device(dir.path()).pool(10, 1 << 20));
    let (ours, theirs) = (device(), device());
    drop(theirs.attach(ours.gid(), ours.register(theirs.gid()).token()));
    ours.drain();
    let descriptors = open_descriptors();
    let mut both = Vec::new();
    for _ in 0..1000 {
        let dmb = ours.register(theirs.gid());
        let attached = theirs.attach(ours.gid(), dmb.token());
        both.push((dmb, attached));
    }
    wait_for_descriptors(descriptors);
    assert!(memory_mappings() >= 2000);
    drop(both);
    // The peer is notified once, and releases what is not pooled.
    assert!(theirs.park(Duration::from_secs(1)));
    theirs.accept();
    // Pooled on both sides, and the bells. Each drain unmaps a part.
    until(
        || {
            theirs.drain();
            memory_mappings() == 2 * 10 + 4
        },
        || format!("{} are mapped", memory_mappings()),
    );
}

#[test]
fn memory_that_the_peer_cannot_map_is_given_back_at_once() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let ours = DrivenDevice::in_dir(dir.path());
    // Its two signal pages, and one buffer.
    let theirs = DrivenDevice::new(device(dir.path()).max_mappings(3));
    let (gid, peer) = (ours.gid(), theirs.gid());
    let dmb = ours.register(peer);
    let attached = theirs.attach(gid, dmb.token());
    let mappings = memory_mappings();
    for _ in 0..20 {
        let more = ours.register(peer);
        let error = theirs.try_attach(gid, more.token()).unwrap_err();
        assert!(matches!(error, DeviceError::Exhausted), "{error:?}");
        drop(more);
        theirs.drain();
    }
    assert_eq!(memory_mappings(), mappings);
    drop((dmb, attached));
    let again = ours.register(peer);
    assert!(again.is_reused(), "what the peer can map is pooled");
    theirs.attach(gid, again.token());
}

#[test]
fn memory_that_the_peer_released_last_is_given_back_on_request() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let dmb = ours.register(theirs.gid());
    let attached = theirs.attach(ours.gid(), dmb.token());
    ours.drain();
    let mappings = memory_mappings();
    drop(dmb);
    ours.device.trim_memory();
    theirs.drain();
    assert_eq!(memory_mappings(), mappings, "the peer uses it");
    drop(attached);
    ours.device.trim_memory();
    theirs.drain();
    assert_eq!(memory_mappings(), mappings - 2);
}

#[test]
fn a_peer_that_releases_nothing_keeps_no_more_than_the_pool() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let ours = DrivenDevice::new(device(dir.path()).pool(10, 1 << 20));
    let theirs = DrivenDevice::in_dir(dir.path());
    let mut used = Vec::new();
    for _ in 0..100 {
        let dmb = ours.register(theirs.gid());
        used.push(theirs.attach(ours.gid(), dmb.token()));
    }
    theirs.drain();
    // The signal pages, what the peer uses, and the pool.
    let mappings = memory_mappings();
    assert!(mappings <= 4 + 100 + 10, "{mappings}");
}

type Registering<'a> = Pin<Box<dyn Future<Output = Result<Arc<dyn Dmb>, DeviceError>> + 'a>>;

/// Registers buffers until the channel to the peer has no space. Also returns the call that waits.
fn fill_channel(device: &DrivenDevice, peer: Gid) -> (Vec<Arc<dyn Dmb>>, Registering<'_>) {
    device.reach(peer);
    let mut dmbs = Vec::new();
    loop {
        let mut register = Box::pin(device.device.register(peer, LEN));
        match block_on(poll_once(&mut register)) {
            Some(dmb) => dmbs.push(dmb.unwrap()),
            None => return (dmbs, register),
        }
        assert!(dmbs.len() < 10_000, "channels are bounded");
    }
}

#[test]
fn a_stopped_peer_does_not_block_us() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let device = DrivenDevice::in_dir(dir.path());
    let mut helper = start("idle", &dir);
    let peer = helper.parse::<Gid>();
    helper.stop();
    let before = open_descriptors();
    // Fill the channel with buffers that the peer does not take.
    let (dmbs, pending) = fill_channel(&device, peer);
    assert!(dmbs.len() <= 32, "{} descriptors under way", dmbs.len());
    // A call that is given up leaves nothing behind.
    drop(pending);
    // A channel, an eventfd, and nothing for each buffer.
    wait_for_descriptors(before + 2);
    let mut waiting = Box::pin(device.device.register(peer, LEN));
    assert!(block_on(poll_once(&mut waiting)).is_none());
    helper.resume();
    helper.send(device.gid());
    helper.recv();
    // The peer receives whenever it registers or attaches; it does not drain. So it is notified
    // again.
    helper.kill();
    device.wait(Event::PeerGone(peer));
    let end = block_on(poll_once(&mut waiting)).expect("ends with the peer");
    assert!(matches!(end, Err(DeviceError::PeerGone)), "{end:?}");
}

#[test]
fn buffers_that_wait_for_channel_space_are_sent_when_there_is_some() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let (mut dmbs, mut waiting) = fill_channel(&ours, theirs.gid());
    ours.drain();
    assert!(block_on(poll_once(&mut waiting)).is_none());
    theirs.accept();
    // Only a few messages are received with the channel.
    theirs.drain();
    ours.drain();
    let dmb = block_on(poll_once(&mut waiting)).expect("there is space");
    dmbs.push(dmb.unwrap());
    for dmb in &dmbs {
        theirs.attach(ours.gid(), dmb.token()).signal().unwrap();
    }
}
