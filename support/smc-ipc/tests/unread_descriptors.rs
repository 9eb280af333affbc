//! Descriptors in a packet that was not received. One process: it counts its descriptors.

use std::fs::read_dir;
use std::os::fd::AsFd;
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use smc_ipc::passed::PeerSocket;
use smc_testkit::unix::{pair, send};
use smc_testkit::wait::TIMEOUT;

fn open_descriptors() -> usize {
    read_dir("/proc/self/fd").expect("is there").count()
}

#[test]
fn what_was_not_received_takes_no_descriptor_while_it_is_closed() {
    let passed = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    let mut most = 0;
    for _ in 0..200 {
        let (peer, ours) = pair();
        send(&peer, b"x", &[passed.as_fd(); 250]);
        let before = open_descriptors();
        drop(PeerSocket::from(ours));
        let end = Instant::now() + TIMEOUT;
        loop {
            let now = open_descriptors();
            most = most.max(now.saturating_sub(before));
            if now < before {
                break;
            }
            assert!(Instant::now() < end, "is not closed");
        }
    }
    assert!(most < 10, "{most} more");
}
