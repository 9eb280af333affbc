//! The eventfds of two devices, which either has: none is closed by a thread that drops a device.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

use common::DrivenDevice;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;
use smc_testkit::slow_close::slow_to_close;
use smc_testkit::wait::until;
use tempfile::TempDir;

/// Passes descriptors whose closing waits to all closing threads of the own user.
fn block_closing_threads() -> Vec<TcpStream> {
    let block = |_| {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (peer, ours): (OwnedFd, OwnedFd) = pair.unwrap();
        let (slow, far) = slow_to_close().unwrap();
        send(&peer, b"x", &[slow.as_fd()]).unwrap();
        drop(slow);
        let ours = PeerSocket::from(ours);
        assert!(matches!(receive(&ours, &mut [0; 1], 1), Received::Invalid));
        far
    };
    (0..4).map(block).collect()
}

fn open_eventfds() -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap();
    let is_eventfd = |entry: &std::io::Result<std::fs::DirEntry>| {
        let target = std::fs::read_link(entry.as_ref().unwrap().path());
        target.is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]")
    };
    links.filter(is_eventfd).count()
}

#[test]
fn eventfds_of_peers_are_closed_on_the_closing_threads() {
    let dir = TempDir::new().unwrap();
    let far = block_closing_threads();
    let before = open_eventfds();
    let (ours, theirs) = DrivenDevice::pair(&dir);
    let dmb = ours.register(theirs.gid());
    drop(theirs.attach(ours.gid(), dmb.token()));
    ours.drain();
    drop((dmb, ours, theirs));
    // Each has one for the other, and that of the other.
    assert_eq!(open_eventfds(), before + 4);
    drop(far);
    until(|| open_eventfds() <= before, || "they stay open".to_owned());
}
