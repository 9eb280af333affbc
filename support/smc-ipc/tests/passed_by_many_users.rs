//! Users who are not allowed, and pass descriptors whose closing waits: together they take no more
//! threads of this process than one user.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::Permissions;
use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket, socketpair,
};
use smc_ipc::Domain;
use smc_ipc::passed::has_descriptors;
use smc_ipc::runtime_dir::Publication;
use smc_testkit::user::run_as;

/// A user who is allowed, and the first of those who are not.
const ALLOWED: u32 = 990;
const NOT_ALLOWED: u32 = 100_000;

/// Users who are not allowed.
const USERS: u32 = 30;

fn pass(socket: &OwnedFd, descriptor: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = [descriptor];
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    let flags = SendFlags::empty();
    sendmsg(socket, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
}

/// A UNIX socket with a TCP connection in its queue whose closing takes long: unsent data to a peer
/// that does not read.
fn slow() -> (OwnedFd, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    set_socket_linger(&near, Some(Duration::from_secs(600))).unwrap();
    let flags = SocketFlags::CLOEXEC;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (inside, outside) = pair.unwrap();
    pass(&inside, near.as_fd());
    (outside, far)
}

/// Connects, and passes a descriptor whose closing waits.
fn attack(path: &Path) -> (OwnedFd, TcpStream) {
    let channel = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&channel, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let (slow, far) = slow();
    pass(&channel, slow.as_fd());
    (channel, far)
}

/// Threads that close what was passed. One that has just begun may not have its name yet.
fn count_closers() -> usize {
    let is_closer = |task: &PathBuf| {
        let name = std::fs::read_to_string(task.join("comm"));
        name.is_ok_and(|name| name.trim() == "smc-close")
    };
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .map(|task| task.unwrap().path())
        .filter(is_closer)
        .count()
}

fn wait_for_closers(count: usize) {
    let end = Instant::now() + Duration::from_secs(60);
    while count_closers() < count {
        assert!(
            Instant::now() < end,
            "{} of {count} threads",
            count_closers()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn users_who_are_not_allowed_share_the_threads_that_close_for_them() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: why: needs root to become another user");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let domain = Domain::shared(dir.path(), [ALLOWED]);
    let mut publication = Publication::new(domain.clone(), "name.sock".into()).unwrap();
    let path = publication.directories().next().unwrap().join("name.sock");
    let mut attackers = Vec::new();
    for number in 0..USERS {
        attackers.push(run_as(NOT_ALLOWED + number, || attack(&path)).unwrap());
        publication.handle_events();
        assert_eq!(publication.accept().unwrap_err(), Errno::CONNABORTED);
    }
    wait_for_closers(4);
    assert_eq!(count_closers(), 4, "threads for {USERS} users");

    // Those of a user who is allowed wait for none of them.
    assert!(has_descriptors());
    let of_allowed = run_as(ALLOWED, || attack(&path)).unwrap();
    publication.handle_events();
    drop(publication.accept().unwrap());
    wait_for_closers(5);
    assert_eq!(count_closers(), 5);
    drop((attackers, of_allowed));
}
