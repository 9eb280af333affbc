use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use smc_testkit::wait::until;
use tempfile::TempDir;

use super::domain::{Locations, own};
use super::lookup::{LOCKED, open_name};
use super::open::ATTEMPTS;
use super::socket::NamedSocket;
use super::watch::Watcher;
use super::*;
use crate::thread;

mod places;
mod shared;

const NAME: &str = "d-1.sock";
const LONG: Duration = Duration::from_secs(60);

/// Users that need not have accounts.
const OTHER: u32 = 991;
const THIRD: u32 = 992;

/// A parent for directories, with locations of its own for `/run` and `/tmp`.
struct World(TempDir);

impl World {
    fn new() -> Self {
        let world = Self(TempDir::new().unwrap());
        for (dir, mode) in [("run", 0o755), ("tmp", 0o1777), ("session", 0o700)] {
            world.make(dir, mode);
        }
        world
    }

    fn at(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn make(&self, path: &str, mode: u32) -> PathBuf {
        let path = self.at(path);
        fs::create_dir_all(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// The domain of the user without `/run`, which is another one for root.
    fn usual(&self) -> Domain {
        self.usual_with("no run", None)
    }

    fn usual_with(&self, run: &str, session: Option<PathBuf>) -> Domain {
        Domain::at(Locations::Standard {
            session,
            run: self.at(run),
            tmp: self.at("tmp"),
        })
    }

    /// Names of the directories for temporary files that are the user's.
    fn temporary(&self) -> Vec<String> {
        let mut names: Vec<_> = names(&self.at("tmp")).unwrap().collect();
        names.sort_unstable();
        names
    }
}

fn publish(domain: &Domain) -> Publication {
    Publication::new(domain.clone(), NAME.into()).unwrap()
}

/// A directory in which a name is published.
fn published() -> (World, Domain, Publication) {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    let publication = publish(&domain);
    (world, domain, publication)
}

/// Waits until the descriptor is readable; false after this time.
fn is_readable(publication: &Publication, seconds: i64, nanoseconds: i64) -> bool {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanoseconds,
    };
    let epoll = publication.epoll_fd();
    let mut fds = [PollFd::from_borrowed_fd(epoll.as_fd(), PollFlags::IN)];
    poll(&mut fds, Some(&time)).unwrap() > 0
}

/// Does what an owner does until a condition holds.
fn handle_events_until(publication: &mut Publication, holds: impl Fn(&Publication) -> bool) {
    while !holds(publication) {
        assert!(is_readable(publication, 30, 0), "no event");
        publication.handle_events();
    }
}

/// Returns when what was begun on the thread of the directory has ended.
fn finish_jobs(domain: &Domain) {
    thread::run(domain.names_lock(), LONG, || ()).unwrap();
}

/// Holds the thread of the directory, as a user who holds its lock, until the result is dropped.
fn hold(domain: &Domain) -> Sender<()> {
    let (release, released) = channel::<()>();
    let wait = move || assert!(released.recv().is_err());
    thread::start(domain.names_lock(), wait).unwrap();
    release
}

fn assert_connects(publication: &mut Publication, domain: &Domain) {
    domain.connect(NAME).unwrap();
    publication.accept().unwrap();
}

#[test]
fn a_name_that_is_removed_is_published_again() {
    let (world, domain, mut publication) = published();
    let path = world.at("dir").join(NAME);
    for _ in 0..3 {
        assert_connects(&mut publication, &domain);
        fs::remove_file(&path).unwrap();
        handle_events_until(&mut publication, |_| path.exists());
    }
    assert_connects(&mut publication, &domain);
}

#[test]
fn a_search_reads_4096_names_of_a_directory_at_most() {
    let world = World::new();
    let dir = world.make("dir", 0o700);
    for number in 0..4096 {
        fs::write(dir.join(number.to_string()), "").unwrap();
    }
    assert_eq!(names(&dir).unwrap().count(), 4096);
    for number in 4096..4100 {
        fs::write(dir.join(number.to_string()), "").unwrap();
    }
    assert_eq!(names(&dir).unwrap().count(), 4096);
}

#[test]
fn a_name_is_published_again_when_events_can_be_read_no_more() {
    let (world, domain, mut publication) = published();
    let watcher = Watcher::start().unwrap();
    publication.set_watcher(&watcher);
    // Once the next event is read there is none.
    watcher.fail();
    let path = world.at("dir").join(NAME);
    for _ in 0..3 {
        fs::remove_file(&path).unwrap();
        handle_events_until(&mut publication, |_| path.exists());
        assert_connects(&mut publication, &domain);
    }
    assert!(watcher.has_ended());
    assert!(!Watcher::shared().unwrap().has_ended());
}

#[test]
fn a_directory_that_is_removed_or_renamed_must_exist_again() {
    let world = World::new();
    world.make("above", 0o700);
    let domain = Domain::directory(world.at("above/dir"));
    let mut publication = publish(&domain);
    let path = world.at("above/dir").join(NAME);

    fs::remove_dir_all(world.at("above/dir")).unwrap();
    handle_events_until(&mut publication, |_| path.exists());
    assert_connects(&mut publication, &domain);

    fs::rename(world.at("above/dir"), world.at("above/moved")).unwrap();
    handle_events_until(&mut publication, |_| path.exists());
    assert_connects(&mut publication, &domain);

    // Directories above it are not made.
    fs::rename(world.at("above"), world.at("moved")).unwrap();
    handle_events_until(&mut publication, |it| it.error().is_some());
    world.make("above", 0o700);
    handle_events_until(&mut publication, |_| path.exists());
    assert_connects(&mut publication, &domain);
    assert_eq!(
        world.at("above/dir").metadata().unwrap().mode() & 0o777,
        0o700
    );
}

#[test]
fn a_directory_that_others_can_write_is_not_published_in_again() {
    let (world, domain, mut publication) = published();
    fs::remove_dir_all(world.at("dir")).unwrap();
    world.make("dir", 0o777);
    handle_events_until(&mut publication, |it| it.error().is_some());
    let writable = DirectoryProblem::Writable { mode: 0o777 };
    assert_eq!(*publication.error().unwrap().path, *world.at("dir"));
    assert_eq!(publication.error().unwrap().problem, writable);
    assert_eq!(names(&world.at("dir")).unwrap().count(), 0);

    world.make("dir", 0o700);
    handle_events_until(&mut publication, |it| it.error().is_none());
    assert_connects(&mut publication, &domain);
}

#[test]
fn a_name_of_another_socket_is_neither_replaced_nor_removed() {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    let path = world.at("dir").join(NAME);
    let mut publication = publish(&domain);
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    handle_events_until(&mut publication, |it| it.error().is_some());
    assert_eq!(publication.directories().count(), 0);
    drop(publication);
    assert!(path.exists());
}

#[test]
fn a_link_in_the_place_of_a_new_name_changes_no_other_file() {
    let world = World::new();
    let domain = Domain::directory(world.make("dir", 0o700));
    let dir = domain.open(&world.at("dir")).unwrap();
    let secret = world.at("secret");
    fs::write(&secret, "").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let (draft, link) = (world.at("dir").join(format!(".{NAME}")), world.at("link"));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // The owner of the directory may be another user, who can do this to any name in it.
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                symlink(&secret, &link).unwrap();
                let exchange = || renameat_with(CWD, &link, CWD, &draft, RenameFlags::EXCHANGE);
                while exchange().is_err() && !is_done.load(Ordering::Relaxed) {}
                fs::remove_file(&link).unwrap();
            }
        });
        for _ in 0..10_000 {
            let _ = NamedSocket::bind(&dir, NAME, true);
            for name in [&draft, &world.at("dir").join(NAME)] {
                let _ = fs::remove_file(name);
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(secret.metadata().unwrap().mode() & 0o777, 0o600);
}

#[test]
fn the_mode_of_a_name_does_not_depend_on_the_umask() {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    world.make("shared", 0o1777);
    let shared = Domain::shared(world.at("shared"), [OTHER]);
    for (domain, dir, mode) in [
        (domain, "dir".into(), 0o600),
        (shared, format!("shared/{}", own()), 0o666),
    ] {
        let _publication = publish(&domain);
        let found = world.at(&dir).join(NAME).symlink_metadata().unwrap();
        assert_eq!(found.mode() & 0o7777, mode);
    }
}

#[test]
fn a_directory_by_a_relative_path_is_refused() {
    let domain = Domain::directory("smc-relative");
    let publication = publish(&domain);
    assert_eq!(
        publication.error().unwrap().to_string(),
        "runtime directory smc-relative is not an absolute path"
    );
    let error = domain.open(Path::new("smc-relative")).unwrap_err();
    assert_eq!(error.problem, DirectoryProblem::Relative);
    assert!(!Path::new("smc-relative").exists());
}

#[test]
fn sockets_behind_links_are_not_connected_to() {
    let world = World::new();
    let others = Domain::directory(world.at("others"));
    let mut publication = publish(&others);
    let domain = Domain::directory(world.make("dir", 0o700));
    symlink(world.at("others").join(NAME), world.at("dir").join(NAME)).unwrap();
    assert_eq!(domain.connect(NAME).unwrap_err(), Errno::LOOP);
    // Nor is the link taken for a name that was left behind.
    domain.remove_if_stale(NAME);
    finish_jobs(&domain);
    assert!(world.at("dir").join(NAME).is_symlink());
    assert_connects(&mut publication, &others);
}

/// Another user can hold the lock of a directory, for which each call waits that removes a name.
#[test]
fn names_are_removed_on_the_thread_of_the_directory() {
    let world = World::new();
    let domain = Domain::directory(world.make("dir", 0o700));
    let path = world.at("dir").join(NAME);
    for remove in [
        (|domain| domain.remove_if_stale(NAME)) as fn(&Domain),
        |domain| domain.sweep(|_| true),
    ] {
        drop(UnixListener::bind(&path).unwrap());
        let release = hold(&domain);
        remove(&domain);
        assert!(path.exists(), "removed by the caller");
        drop(release);
        until(|| !path.exists(), || "not removed".to_owned());
    }
}

#[test]
fn what_wakes_a_publication_for_other_reasons_has_no_more_checks_made() {
    let (_world, _domain, mut publication) = published();
    let (start, mut checks) = (Instant::now(), BTreeSet::new());
    let mut handled = 0;
    while checks.len() < 4 {
        publication.wake_after(Duration::ZERO);
        assert!(is_readable(&publication, 30, 0));
        publication.handle_events();
        checks.extend(publication.last_check());
        handled += 1;
    }
    let most = start.elapsed().as_millis() / 100 + 2;
    assert!(checks.len() as u128 <= most, "{} checks", checks.len());
    assert!(handled > 3);
}

/// A publication whose check has published the name again, which it has not noticed yet.
fn published_unnoticed() -> (World, Domain, Publication) {
    let (world, domain, mut publication) = published();
    let path = world.at("dir").join(NAME);
    let release = hold(&domain);
    fs::remove_file(&path).unwrap();
    assert!(is_readable(&publication, 30, 0));
    publication.handle_events();
    drop(release);
    until(|| path.exists(), || "not published".to_owned());
    finish_jobs(&domain);
    (world, domain, publication)
}

#[test]
fn what_a_check_has_published_is_removed_on_the_thread_of_the_directory() {
    let (world, domain, publication) = published_unnoticed();
    let path = world.at("dir").join(NAME);
    let release = hold(&domain);
    drop(publication);
    assert!(path.exists(), "removed by the caller");
    drop(release);
    until(|| !path.exists(), || "not removed".to_owned());
}

#[test]
fn a_name_that_is_removed_before_its_check_is_noticed_is_published_again() {
    let (world, domain, mut publication) = published_unnoticed();
    let path = world.at("dir").join(NAME);
    fs::remove_file(&path).unwrap();
    handle_events_until(&mut publication, |_| path.exists());
    assert_connects(&mut publication, &domain);
}

#[test]
fn what_could_not_be_published_in_time_is_published_later() {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    let release = hold(&domain);
    let mut publication = publish(&domain);
    assert_eq!(publication.error().unwrap().kind(), ErrorKind::TimedOut);
    // Not even begun.
    let mut late = Publication::new(domain.clone(), "d-2.sock".into()).unwrap();
    assert_eq!(late.error().unwrap().kind(), ErrorKind::TimedOut);
    drop(release);
    for publication in [&mut publication, &mut late] {
        handle_events_until(publication, |it| it.error().is_none());
    }
    assert_connects(&mut publication, &domain);
}

#[test]
fn dropping_removes_the_name_and_no_other() {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    let path = world.at("dir").join(NAME);
    drop(publish(&domain));
    assert!(!path.exists());
    let publication = publish(&domain);
    fs::remove_file(&path).unwrap();
    let _other = UnixListener::bind(&path).unwrap();
    drop(publication);
    assert!(path.exists());
}

#[test]
fn pending_connections_are_accepted_when_the_name_is_lost() {
    let (world, domain, mut publication) = published();
    let _clients = [domain.connect(NAME).unwrap(), domain.connect(NAME).unwrap()];
    let path = world.at("dir").join(NAME);
    fs::remove_file(&path).unwrap();
    while !path.exists() {
        publication.handle_events();
    }
    let _client = domain.connect(NAME).unwrap();
    for _ in 0..3 {
        assert!(is_readable(&publication, 30, 0));
        publication.accept().unwrap();
    }
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
}

#[test]
fn a_process_that_connects_without_end_does_not_hold_up_the_loss_of_a_name() {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    let mut publication = publish(&domain);
    let path = world.at("dir").join(NAME);
    let name = rustix::fs::open(&path, OFlags::PATH, Mode::empty()).unwrap();
    let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", name.as_raw_fd())).unwrap();
    let connect = move || {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let kind = SocketType::SEQPACKET;
        let socket = socket_with(AddressFamily::UNIX, kind, flags, None).unwrap();
        rustix::net::connect(socket, &address)
    };
    let connect_until_refused = move || {
        let mut connections = 0;
        loop {
            match connect() {
                Ok(()) => connections += 1,
                Err(Errno::AGAIN) => std::thread::yield_now(),
                Err(errno) => return (connections, errno),
            }
        }
    };
    let peers: Vec<_> = std::iter::repeat_n(connect_until_refused, 3)
        .map(std::thread::spawn)
        .collect();
    fs::remove_file(&path).unwrap();
    let server = std::thread::spawn(move || {
        handle_events_until(&mut publication, |_| path.exists());
        publication
    });
    until(|| server.is_finished(), || "still accepts".to_owned());
    let mut publication = server.join().unwrap();
    let peers = peers.into_iter().map(|peer| peer.join().unwrap());
    let made: usize = peers
        .map(|(connections, errno)| {
            assert_eq!(errno, Errno::CONNREFUSED);
            connections
        })
        .sum();
    // What waited at the old socket comes first, then the next at the new one.
    let _client = domain.connect(NAME).unwrap();
    for left in (0..=made).rev() {
        publication
            .accept()
            .unwrap_or_else(|errno| panic!("{left} left: {errno}"));
    }
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
}

#[test]
fn names_of_other_sockets_that_come_and_go_start_no_check() {
    let (world, domain, mut publication) = published();
    for count in 0..100 {
        let other = Publication::new(domain.clone(), format!("d-{count}-other.sock"));
        drop(other.unwrap());
        fs::write(world.at("dir/file"), "").unwrap();
        fs::remove_file(world.at("dir/file")).unwrap();
        domain.connect(NAME).unwrap();
        publication.accept().unwrap();
    }
    assert!(!publication.is_refresh_scheduled());
    assert!(!is_readable(&publication, 0, 0));
    fs::remove_file(world.at("dir").join(NAME)).unwrap();
    assert!(is_readable(&publication, 30, 0));
}

#[test]
fn a_link_in_the_place_of_a_directory_that_is_to_exist_is_not_followed() {
    let world = World::new();
    let dir = world.make("dir", 0o700);
    symlink(&dir, world.at("link")).unwrap();
    let domain = Domain::existing(world.at("link"));
    let problem = DirectoryProblem::NotDirectory;
    assert_eq!(domain.open(&world.at("link")).unwrap_err().problem, problem);
    assert_eq!(
        domain.check(&world.at("link")).unwrap_err().problem,
        problem
    );
    assert_eq!(publish(&domain).error().unwrap().problem, problem);
    assert_eq!(names(&dir).unwrap().count(), 0);
    // Links above it are for the administrator to make.
    symlink(world.at(""), world.at("above")).unwrap();
    let path = world.at("above/dir");
    assert!(Domain::existing(&path).open(&path).is_ok());
}

#[test]
fn a_name_that_belongs_to_a_file_is_published_beside_that_file_only() {
    let world = World::new();
    world.make("dir", 0o700);
    fs::write(world.at("dir/memory"), "").unwrap();
    let domain = Domain::existing(world.at("dir"));
    let mut publication =
        Publication::with_companion(domain.clone(), NAME.into(), "memory").unwrap();
    let path = world.at("dir").join(NAME);
    fs::remove_file(&path).unwrap();
    handle_events_until(&mut publication, |_| path.exists());
    assert_connects(&mut publication, &domain);

    fs::rename(world.at("dir"), world.at("old")).unwrap();
    handle_events_until(&mut publication, |it| it.error().is_some());
    assert!(!world.at("dir").exists());
    // No connection waits at the socket, which ends here.
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
    world.make("dir", 0o700);
    fs::write(world.at("dir/memory"), "another one").unwrap();
    for _ in 0..2 {
        assert!(is_readable(&publication, 30, 0), "no periodic check");
        publication.handle_events();
    }
    assert!(!path.exists());

    fs::remove_dir_all(world.at("dir")).unwrap();
    fs::rename(world.at("old"), world.at("dir")).unwrap();
    handle_events_until(&mut publication, |it| it.error().is_none());
    assert_connects(&mut publication, &domain);
}

#[test]
fn any_number_of_changes_before_a_check_is_one_check() {
    let world = World::new();
    world.make("above", 0o700);
    let domain = Domain::directory(world.at("above/dir"));
    let mut publication = publish(&domain);
    for _ in 0..1000 {
        for mode in [0o755, 0o700] {
            world.make("above", mode);
            world.make("above/dir", mode);
        }
    }
    assert!(is_readable(&publication, 30, 0));
    publication.handle_events();
    assert!(!publication.is_refresh_scheduled());
    assert_connects(&mut publication, &domain);
}

#[test]
fn checks_are_further_apart_if_a_name_is_lost_again_and_again() {
    let world = World::new();
    let mut publication = publish(&Domain::directory(world.at("dir")));
    let mut delays: Vec<_> = (0..5)
        .map(|_| publication.next_delay(true).as_millis())
        .collect();
    delays.push(publication.next_delay(false).as_millis());
    assert_eq!(delays, [200, 400, 500, 500, 500, 500]);
}

#[test]
fn a_dead_name_is_replaced() {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    world.make("dir", 0o700);
    let path = world.at("dir").join(NAME);
    drop(UnixListener::bind(&path).unwrap());
    drop(UnixListener::bind(world.at("dir").join(format!(".{NAME}"))).unwrap());
    let mut publication = publish(&domain);
    assert_connects(&mut publication, &domain);
    assert_eq!(names(&world.at("dir")).unwrap().collect::<Vec<_>>(), [NAME]);
}

#[test]
fn only_names_without_a_process_are_swept() {
    let world = World::new();
    let domain = Domain::directory(world.at("dir"));
    let _alive = publish(&domain);
    let at = |name: &str| world.at("dir").join(name);
    for name in ["d-dead.sock", ".d-draft.sock", "other.sock"] {
        drop(UnixListener::bind(at(name)).unwrap());
    }
    fs::write(at("d-file.sock"), "").unwrap();
    domain.sweep(|name| name.starts_with("d-"));
    finish_jobs(&domain);
    let mut left: Vec<_> = names(&world.at("dir")).unwrap().collect();
    left.sort_unstable();
    assert_eq!(left, [NAME, "d-file.sock", "other.sock"]);
}
