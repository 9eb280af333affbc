//! Users who are not allowed, and pass descriptors whose closing waits: together they take no more
//! threads of this process than one user.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::Permissions;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::io::Errno;
use smc_ipc::Domain;
use smc_ipc::passed::has_descriptors;
use smc_ipc::runtime_dir::Publication;
use smc_testkit::unix::{connect_to, lingering, pair, send};
use smc_testkit::user::{is_root, run_as};
use smc_testkit::wait::until;

/// A user who is allowed, and the first of those who are not.
const ALLOWED: u32 = 990;
const NOT_ALLOWED: u32 = 100_000;

/// Users who are not allowed.
const USERS: u32 = 30;

/// A UNIX socket with a TCP connection in its queue whose closing takes long.
fn slow() -> (OwnedFd, TcpStream) {
    let (near, far) = lingering(Duration::from_secs(600));
    let (inside, outside) = pair();
    send(&inside, b"x", &[near.as_fd()]);
    (outside, far)
}

/// Connects, and passes a descriptor whose closing waits.
fn attack(path: &Path) -> (OwnedFd, TcpStream) {
    let channel = connect_to(path);
    let (slow, far) = slow();
    send(&channel, b"x", &[slow.as_fd()]);
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
    let text = || format!("{} of {count} threads", count_closers());
    until(|| count_closers() >= count, text);
}

#[test]
fn users_who_are_not_allowed_share_the_threads_that_close_for_them() {
    if !is_root("become another user") {
        return;
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

    // Descriptors of a user who is allowed wait for none of them.
    assert!(has_descriptors());
    let of_allowed = run_as(ALLOWED, || attack(&path)).unwrap();
    publication.handle_events();
    drop(publication.accept().unwrap());
    wait_for_closers(5);
    assert_eq!(count_closers(), 5);
    drop((attackers, of_allowed));
}
