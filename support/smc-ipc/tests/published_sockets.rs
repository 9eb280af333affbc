//! The end of a published socket: its file ends as well, which the system reports to all who watch
//! that. Where other users may watch it, no thread that drops the socket waits for it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::Permissions;
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify;
use rustix::io::Errno;
use smc_ipc::Domain;
use smc_ipc::runtime_dir::Publication;
use smc_testkit::slow_close::slow_to_close;
use smc_testkit::unix::{connect_to, is_closed, is_readable, send};
use smc_testkit::wait::until;

/// Another user than the one that runs this.
const OTHER: u32 = 1001;

/// What `passed` documents: threads that close listening sockets.
const CLOSING_THREADS: usize = 4;

const NAME: &str = "name.sock";

fn publish(domain: &Domain) -> Publication {
    let publication = Publication::new(domain.clone(), NAME.into()).unwrap();
    assert!(publication.error().is_none());
    publication
}

fn path(publication: &Publication) -> PathBuf {
    publication.directories().next().unwrap().join(NAME)
}

/// Blocks the closing threads of listening sockets, until the result is dropped.
fn block_closing_threads() -> Vec<TcpStream> {
    let dir = tempfile::tempdir().unwrap();
    let block = |_| {
        let publication = publish(&Domain::directory(dir.path()));
        let connect = |_| connect_to(path(&publication));
        // More than are closed by the thread that drops it; the last one is slow to close.
        let clients: Vec<_> = (0..8).map(connect).collect();
        let (slow, far) = slow_to_close();
        send(clients.last().unwrap(), b"x", &[slow.as_fd()]);
        far
    };
    (0..CLOSING_THREADS).map(block).collect()
}

/// Reports the end of a file.
fn watch(path: &Path) -> OwnedFd {
    let watch = inotify::init(inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK);
    let watch = watch.unwrap();
    inotify::add_watch(&watch, path, inotify::WatchFlags::DELETE_SELF).unwrap();
    watch
}

fn has_ended(watch: &OwnedFd) -> bool {
    let mut space = [MaybeUninit::uninit(); 512];
    match inotify::Reader::new(watch, &mut space).next() {
        Ok(_) => true,
        Err(Errno::AGAIN) => false,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_socket_that_other_users_may_watch_is_closed_on_the_closing_threads() {
    let far = block_closing_threads();
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();

    let own = Domain::directory(dir.path().join("own"));
    let publication = publish(&own);
    let watched = watch(&path(&publication));
    drop(publication);
    assert!(has_ended(&watched), "no other user could watch it");

    let shared = Domain::shared(dir.path(), [OTHER]);
    let publication = publish(&shared);
    let watched = watch(&path(&publication));
    let waiting = shared.connect(NAME).unwrap();
    drop(publication);
    assert!(!has_ended(&watched), "it is closed by this thread");
    // To processes it has ended, and the name is free.
    assert!(is_closed(&waiting));
    assert_eq!(shared.connect(NAME).unwrap_err(), Errno::NOENT);
    let mut publication = publish(&shared);

    // One that has lost its name is closed when no connection waits there.
    std::fs::remove_file(path(&publication)).unwrap();
    let is_there_again = || {
        publication.handle_events();
        assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
        let is_named = shared.connect(NAME).is_ok();
        while publication.accept().is_ok() {}
        is_named && !is_readable(publication.epoll_fd(), Duration::ZERO)
    };
    until(is_there_again, || "it stays readable".to_owned());
    publication.close();
    assert!(!is_readable(publication.epoll_fd(), Duration::ZERO));

    drop(far);
    until(|| has_ended(&watched), || "it stays open".to_owned());
}
