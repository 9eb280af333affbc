//! Eventfds that a peer has as well: the last close of one waits for as long as the peer wants, so
//! all are closed by the closing threads.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::doorbell::{Doorbell, new_eventfd, notify};
use smc_ipc::passed::{PeerFile, PeerSocket};
use smc_testkit::process::is_alone;
use smc_testkit::resources::{limit_descriptors, open_descriptors_of};
use smc_testkit::slow_close::block_closing_threads;

/// What `passed` documents, with the limit of this test.
const DESCRIPTORS: u64 = 1024;
const MAX_WAITING: usize = 256;

fn pair() -> (OwnedFd, PeerSocket) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (peer, ours) = pair.unwrap();
    (peer, ours.into())
}

/// Eventfds whose last close is watched.
struct Watched {
    /// An epoll set reports an eventfd as long as any process has it.
    set: Doorbell,
    count: usize,
}

impl Watched {
    /// A ready eventfd.
    fn eventfd(&mut self) -> OwnedFd {
        let eventfd = Arc::new(new_eventfd().unwrap());
        notify(&eventfd);
        self.set.set().watch(&eventfd, self.count as u64).unwrap();
        self.count += 1;
        Arc::into_inner(eventfd).unwrap()
    }

    fn open(&self) -> usize {
        let mut open = 0;
        self.set.poll(|_| open += 1).unwrap();
        open
    }
}

#[test]
fn eventfds_that_peers_have_are_closed_on_the_closing_threads() {
    if !is_alone() {
        return;
    }
    limit_descriptors(DESCRIPTORS);
    let far = block_closing_threads();
    let set = Doorbell::new().unwrap();
    // Its own eventfd is not ready.
    set.poll(|_| {}).unwrap();
    let mut watched = Watched { set, count: 0 };
    let (peer, ours) = pair();

    // In a packet that is refused.
    send(&peer, b"x", &[watched.eventfd().as_fd()]).unwrap();
    assert!(matches!(receive(&ours, &mut [0; 1], 0), Received::Invalid));
    assert_eq!(watched.open(), 1);
    // In one that is not, whether it is used or not.
    send(&peer, b"x", &[watched.eventfd().as_fd()]).unwrap();
    match receive(&ours, &mut [0; 1], 1) {
        Received::Packet(_, passed) => drop(passed),
        other => panic!("{other:?}"),
    }
    assert_eq!(watched.open(), 2);
    // One of this process, that the peer was to have.
    drop(PeerFile::shared(watched.eventfd(), &ours));
    assert_eq!(watched.open(), 3);

    // Memory files wait for nothing.
    let memory = memfd_create("smc-test-memory", MemfdFlags::CLOEXEC).unwrap();
    send(&peer, b"x", &[memory.as_fd()]).unwrap();
    drop(memory);
    match receive(&ours, &mut [0; 1], 1) {
        Received::Packet(_, passed) => {
            assert_eq!(open_descriptors_of("smc-test-memory"), 1);
            drop(passed);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(open_descriptors_of("smc-test-memory"), 0);

    // A user can have so many wait, and no more.
    let refused = (3..2 * MAX_WAITING).find(|_| {
        send(&peer, b"x", &[new_eventfd().unwrap().as_fd()]).unwrap();
        matches!(receive(&ours, &mut [0; 1], 1), Received::Closed)
    });
    assert_eq!(refused, Some(MAX_WAITING));
    drop(PeerFile::shared(watched.eventfd(), &ours));
    assert_eq!(watched.open(), 4);

    drop(far);
    let end = Instant::now() + Duration::from_secs(60);
    while watched.open() > 0 {
        assert!(Instant::now() < end, "{} are left", watched.open());
        std::thread::sleep(Duration::from_millis(1));
    }
}
