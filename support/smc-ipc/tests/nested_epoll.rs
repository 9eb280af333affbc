//! The lock of the whole system that is taken to add to an epoll set which another set watches: any
//! user can hold it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread;

use smc_ipc::doorbell::{Doorbell, WatchSet, new_eventfd, notify};
use smc_testkit::nested_epoll::HeldLock;
use smc_testkit::user::is_root;
use smc_testkit::wait::{TIMEOUT, until};

fn ready() -> Arc<OwnedFd> {
    let eventfd = Arc::new(new_eventfd().unwrap());
    notify(&eventfd);
    eventfd
}

#[test]
fn a_descriptor_is_watched_without_waiting_for_the_lock_of_nested_epoll_sets() {
    if !is_root("mount a file system") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (doorbell, set) = (Doorbell::new().unwrap(), WatchSet::new().unwrap());
    doorbell.set().watch_set(&set, 0).unwrap();
    let held = match HeldLock::take(dir.path()) {
        Ok(held) => held,
        Err(error) => {
            println!("skipped: why: cannot mount a FUSE file system: {error}");
            return;
        }
    };
    let (late, early) = (ready(), ready());
    let (returned, result) = channel();
    let (watching, eventfd) = (set.clone(), Arc::clone(&late));
    thread::spawn(move || returned.send(watching.watch(&eventfd, 1)));
    let result = result.recv_timeout(TIMEOUT);
    drop(held);
    let error = result.expect("waits for the lock").unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);

    // The thread may have the lock still to take.
    until(|| set.watch(&early, 2).is_ok(), || "stays held".into());
    let mut seen = Vec::new();
    doorbell.poll_round(&set, |id, _, _| seen.push(id)).unwrap();
    assert_eq!(seen, [2], "what could not be watched is not");
    let eventfd = Arc::into_inner(late);
    assert!(eventfd.is_some(), "the thread has it still");
}
