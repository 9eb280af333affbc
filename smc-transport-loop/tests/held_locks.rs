//! Directories whose locks another user holds: what is looked up or published there comes later, and
//! nothing else waits.
//!
//! A job that does not end stands for a call that waits for the lock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use common::{DrivenDevice, names, socket_name};
use smc_ipc::runtime_dir::thread::{Place, start};
use smc_testkit::wait::TIMEOUT;
use tempfile::TempDir;

/// Tests that hold a thread do so one after the other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Holds the thread of a place until the result is dropped.
fn hold(place: Place) -> Sender<()> {
    let (release, released) = channel::<()>();
    let (begin, begun) = channel();
    // It may still be held by the last test.
    while start(place.clone(), || ()).is_err() {}
    start(place, move || {
        begin.send(()).unwrap();
        assert!(released.recv().is_err());
    })
    .unwrap();
    begun.recv().unwrap();
    release
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

#[test]
fn a_device_is_made_while_its_directory_is_held_and_is_found_later() {
    let _alone = alone();
    let dir = TempDir::new().unwrap();
    let release = hold(Place::Below(dir.path().to_owned()));
    let device = DrivenDevice::in_dir(dir.path());
    assert!(device.device.runtime_dir().is_err());
    assert!(names(dir.path()).is_empty());
    drop(release);
    drive_until(&device, || device.device.runtime_dir().is_ok());
    assert_eq!(names(dir.path()), [socket_name(device.gid())]);
    let other = DrivenDevice::in_dir(dir.path());
    other.reach(device.gid());
}
