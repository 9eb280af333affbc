//! The eventfds of an ivshmem server, which all its clients have: none is closed by the server's thread,
//! or by one that drives a device.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use smc_core::device::Device as _;
use smc_ipc::channel::{Received, receive, send};
use smc_ipc::passed::PeerSocket;
use smc_testkit::slow_close::slow_to_close;
use support::{Kind, World};

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

/// Waits until so many eventfds are open.
fn wait_eventfds(count: usize, mut turn: impl FnMut()) {
    let end = Instant::now() + Duration::from_secs(60);
    while open_eventfds() != count {
        let open = open_eventfds();
        assert!(Instant::now() < end, "{open} instead of {count}");
        turn();
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn eventfds_of_clients_are_closed_on_the_closing_threads() {
    let far = block_closing_threads();
    let before = open_eventfds();
    let world = World::with_len(Kind::Server, false, 8 << 20);
    let first = world.device();
    let with_one = open_eventfds();
    let second = world.device();
    // The eventfd of the second client: the server has it, the second device, and the first one when it
    // has read the server's messages.
    let drain = || first.drain(&mut |_| {}).unwrap();
    wait_eventfds(with_one + 6, drain);
    drop((first, second, world));
    assert_eq!(open_eventfds(), before + 6);
    drop(far);
    wait_eventfds(before, || {});
}
