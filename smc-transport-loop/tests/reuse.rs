//! Memory that is used again for the next connection, and a device that is its own peer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{DrivenDevice, LEN, device, names};
use futures_lite::future::block_on;
use smc_core::device::{Attachment, DeviceError, Direct, Dmb, Event, SubmitError};
use smc_core::mem::Region;
use tempfile::TempDir;

/// Where the memory is mapped; the same place means the same memory.
fn place(region: &Region) -> usize {
    region.as_ptr().addr().get()
}

/// The number of the memory file; the system counts them up.
fn file(region: &Region) -> u64 {
    let start = format!("{:x}-", place(region));
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let mut lines = maps.lines();
    let line = lines.find(|line| line.starts_with(&start)).expect("mapped");
    assert!(line.contains("memfd:smc-dmb"), "{line}");
    line.split(' ').nth(4).unwrap().parse().unwrap()
}

fn long(ours: &DrivenDevice, theirs: &DrivenDevice) -> (Arc<dyn Dmb>, Arc<dyn Attachment>) {
    let dmb = block_on(ours.device.register(theirs.gid(), LONG)).unwrap();
    let attached = theirs.attach(ours.gid(), dmb.token());
    (dmb, attached)
}

const LONG: usize = 1 << 20;

fn is_zero(region: &Region) -> bool {
    let mut bytes = vec![1; region.len()];
    region.copy_out(0, &mut bytes).unwrap();
    bytes.iter().all(|byte| *byte == 0)
}

#[test]
fn memory_is_used_again_under_a_fresh_token() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let first = ours.register(theirs.gid());
    let attached = theirs.attach(ours.gid(), first.token());
    attached.region().copy_in(0, &[0xff; LEN]).unwrap();
    let (old, here, there) = (
        first.token(),
        place(first.region()),
        place(attached.region()),
    );
    drop((first, attached));

    let second = ours.register(theirs.gid());
    assert_ne!(second.token(), old);
    assert_eq!(place(second.region()), here);
    assert!(is_zero(second.region()));
    let error = theirs.try_attach(ours.gid(), old).unwrap_err();
    assert!(matches!(error, DeviceError::Invalid(_)), "{error:?}");
    assert_eq!(
        theirs.write(ours.gid(), old, 0, b"late"),
        Err(SubmitError::UnknownToken)
    );
    assert!(is_zero(second.region()));
    let attached = theirs.attach(ours.gid(), second.token());
    assert_eq!(place(attached.region()), there);
    second.arm();
    attached.signal().unwrap();
    ours.wait(Event::Signalled(second.token()));
}

#[test]
fn memory_still_in_use_is_not_reused() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    // The peer has not detached.
    let first = ours.register(theirs.gid());
    let attached = theirs.attach(ours.gid(), first.token());
    drop(first);
    let second = ours.register(theirs.gid());
    attached.region().copy_in(100, b"late").unwrap();
    attached.signal().unwrap();
    assert!(is_zero(second.region()));
    // It has, but a part of the memory is still in use there.
    let part = attached.region().part(64, 64).unwrap();
    drop((attached, second));
    let third = ours.register(theirs.gid());
    let fourth = ours.register(theirs.gid());
    part.copy_in(0, b"late").unwrap();
    assert!(is_zero(third.region()) && is_zero(fourth.region()));
    // Or here.
    let kept = third.region().clone();
    drop(third);
    let fifth = ours.register(theirs.gid());
    kept.copy_in(0, b"late").unwrap();
    assert!(is_zero(fifth.region()));
}

/// The peer releases later than the owner, in order. It keeps a few for long.
#[test]
fn many_buffers_reuse_the_memory_that_the_peer_has_released() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let open = || {
        let dmb = ours.register(theirs.gid());
        let attached = theirs.attach(ours.gid(), dmb.token());
        (dmb, attached)
    };
    let (dmbs, mut attached): (Vec<_>, Vec<_>) = (0..200).map(|_| open()).unzip();
    let mut known: Vec<_> = dmbs.iter().map(|dmb| place(dmb.region())).collect();
    drop(dmbs);
    let kept_for_long: Vec<_> = attached.drain(..10).collect();
    let now_free: Vec<_> = attached.drain(..50).collect();
    drop(now_free);

    let again: Vec<_> = (0..50).map(|_| open()).collect();
    known.sort_unstable();
    let is_known = |dmb: &Arc<dyn Dmb>| known.binary_search(&place(dmb.region())).is_ok();
    let reused = again.iter().filter(|(dmb, _)| is_known(dmb)).count();
    // Some were looked for while what is in use stood before them.
    assert!(reused >= 45, "{reused} of 50");
    drop((kept_for_long, attached));
}

#[test]
fn long_buffers_are_zeroed_as_far_as_they_were_used() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let (first, attached) = long(&ours, &theirs);
    attached.region().copy_in(0, &[0xff; LEN]).unwrap();
    let here = place(first.region());
    first.set_used(LEN);
    drop((first, attached));
    let (second, _attached) = long(&ours, &theirs);
    assert_eq!(place(second.region()), here);
    assert!(is_zero(second.region()));
}

#[test]
fn the_file_of_a_buffer_that_was_used_further_is_not_used_again() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    for used in [None, Some(LEN + 1), Some(LONG)] {
        for is_last in [false, true] {
            let (first, attached) = long(&ours, &theirs);
            attached.region().copy_in(0, &vec![0xff; LONG]).unwrap();
            let old = file(first.region());
            used.into_iter().for_each(|len| first.set_used(len));
            if is_last {
                drop((first, attached));
            } else {
                drop((attached, first));
            }
            let (second, _attached) = long(&ours, &theirs);
            assert_ne!(file(second.region()), old, "used {used:?}");
            assert!(is_zero(second.region()));
        }
    }
}

#[test]
fn without_a_pool_memory_is_given_back() {
    let dir = TempDir::new().unwrap();
    let ours = DrivenDevice::new(device(dir.path()).pool(0, 0));
    let theirs = DrivenDevice::in_dir(dir.path());
    for _ in 0..100 {
        let dmb = ours.register(theirs.gid());
        let attached = theirs.attach(ours.gid(), dmb.token());
        drop(dmb);
        drop(attached);
    }
    assert_eq!(ours.device.dmbs(), 0);
}

#[test]
fn lengths_other_than_dmb_sizes_are_refused() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    for len in [0, 1, 8192, LEN - 1, LEN + 1, 3 * LEN, 1 << 25, usize::MAX] {
        let refused = block_on(ours.device.register(theirs.gid(), len));
        assert!(
            matches!(refused, Err(DeviceError::Invalid(_))),
            "{len}: {refused:?}"
        );
    }
}

/// Connections come and go in two threads while the owner's driver runs; what is written through
/// an attachment never shows up in a buffer that was registered later.
#[test]
fn buffers_that_come_and_go_do_not_mix() {
    let dir = TempDir::new().unwrap();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let done = AtomicBool::new(false);
    let churn = |mark: u8| {
        for _ in 0..1500 {
            let dmb = ours.register(theirs.gid());
            assert!(is_zero(dmb.region()));
            let attached = theirs.attach(ours.gid(), dmb.token());
            let late = thread::spawn(move || {
                attached.region().copy_in(16, &[mark; 64]).unwrap();
                attached.signal().unwrap();
            });
            let mut seen = [0; 64];
            dmb.region().copy_out(16, &mut seen).unwrap();
            assert!(seen.iter().all(|byte| *byte == 0 || *byte == mark));
            drop(dmb);
            late.join().unwrap();
        }
    };
    thread::scope(|scope| {
        let drive = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                ours.drain();
                theirs.drain();
                thread::yield_now();
            }
        });
        let other = scope.spawn(|| churn(2));
        churn(1);
        other.join().unwrap();
        done.store(true, Ordering::Relaxed);
        drive.join().unwrap();
    });
    assert_eq!(ours.device.dmbs(), 0);
}

#[test]
fn a_device_can_be_its_own_peer() {
    let dir = TempDir::new().unwrap();
    let device = DrivenDevice::in_dir(dir.path());
    let own = device.gid();
    let mut places = Vec::new();
    for round in 0_u64..100 {
        let dmb: Arc<dyn Dmb> = device.register(own);
        assert!(is_zero(dmb.region()));
        let attached = device.attach(own, dmb.token());
        dmb.arm();
        attached.region().copy_in(8, &round.to_ne_bytes()).unwrap();
        attached.signal().unwrap();
        device.wait(Event::Signalled(dmb.token()));
        dmb.arm();
        device
            .write(own, dmb.token(), 16, &round.to_ne_bytes())
            .unwrap();
        device.wait(Event::Signalled(dmb.token()));
        assert_eq!(dmb.region().load(16, Ordering::Acquire), Ok(round));
        places.push(place(dmb.region()));
        let token = dmb.token();
        drop(dmb);
        assert_eq!(
            device.write(own, token, 0, b"late"),
            Err(SubmitError::UnknownToken)
        );
    }
    places.dedup();
    assert_eq!(places.len(), 1, "one buffer is used again and again");
    assert_eq!(device.device.peers(), 0);
    drop(device);
    assert!(names(dir.path()).is_empty());
}
