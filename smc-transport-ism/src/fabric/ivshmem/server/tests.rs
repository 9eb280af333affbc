use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, OFlags, RenameFlags, fcntl_setfl, renameat_with};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use smc_wire::types::Gid;

use super::super::Client as Process;
use super::*;
use crate::fabric::Fabric as _;
use crate::shared::Newcomer;

fn server(dir: &Path, devices: u16) -> Server {
    let server = Server::builder(dir.join("sock")).len(2 << 20);
    server.devices(devices).bind().unwrap()
}

/// A device of a process.
fn newcomer(process: &Process, slot: u16) -> Newcomer {
    Newcomer {
        slot,
        port: process.port(),
        beats: false,
        gid: Gid::new(1, u64::from(slot) + 1),
    }
}

/// A client that is waited for.
fn connect(server: &Server) -> (Process, u16) {
    let path = server.path().to_owned();
    let connecting = thread::spawn(move || Process::connect(&path).unwrap());
    while !connecting.is_finished() {
        server.accept();
        thread::yield_now();
    }
    connecting.join().unwrap()
}

/// The numbers of those who ended are known by their sockets.
fn dismiss_ended(server: &Server, count: usize) {
    while server.clients() > count {
        if let Woken::For { ended, .. } = server.wait(Duration::ZERO, true).unwrap() {
            ended.into_iter().for_each(|slot| server.dismiss(slot));
        }
    }
}

#[test]
fn a_link_in_the_place_of_the_new_socket_changes_no_other_file() {
    let dir = tempfile::tempdir().unwrap();
    let [sock, link, secret] = ["sock", "link", "secret"].map(|name| dir.path().join(name));
    fs::write(&secret, "").unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        // The owner of the directory may be another user.
        scope.spawn(|| {
            while !is_done.load(Ordering::Relaxed) {
                symlink(&secret, &link).unwrap();
                let exchange = || renameat_with(CWD, &link, CWD, &sock, RenameFlags::EXCHANGE);
                while exchange().is_err() && !is_done.load(Ordering::Relaxed) {}
                fs::remove_file(&link).unwrap();
            }
        });
        for _ in 0..10_000 {
            let _ = listener(&sock, 0o666);
            let _ = fs::remove_file(&sock);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let mode = secret.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn numbers_are_given_once_while_anybody_could_have_heard_of_them() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 2);
    let (stays, slot) = connect(&server);
    assert_eq!((stays.port(), slot), (0, 0));
    for number in [1, 3, 5] {
        let (leaves, slot) = connect(&server);
        assert_eq!((leaves.port(), slot), (number, 1));
        drop(leaves);
        dismiss_ended(&server, 1);
    }
    drop(stays);
    dismiss_ended(&server, 0);
    assert_eq!(connect(&server).0.port(), 0);
}

#[test]
fn a_server_that_ends_says_so_in_the_memory_and_rings_who_sleeps() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 4);
    let processes = [connect(&server), connect(&server)];
    let rooms = processes.each_ref().map(|(process, slot)| {
        process.room().join(newcomer(process, *slot)).unwrap();
        process.room()
    });
    let (asleep, awake) = (processes[0].1, processes[1].1);
    rooms[0].sleep(asleep);
    server.room.beat_keeper();
    assert!(!rooms[0].has_keeper_ended());
    drop(server);
    assert!(rooms.iter().all(|room| room.has_keeper_ended()));
    assert_eq!(rooms[0].sleep_of(asleep), Sleep::Rung);
    assert_eq!(rooms[1].sleep_of(awake), Sleep::Awake);
    assert!(rooms[1].take_look(awake));
}

/// Whether the driver of a device was rung since this was asked last.
fn has_rung(process: &Process) -> bool {
    let bell = process.doorbell();
    let mut fds = [PollFd::new(&bell, PollFlags::IN)];
    let count = poll(&mut fds, Some(&Timespec::default())).unwrap();
    process.look(&mut |_| {}).unwrap();
    count > 0
}

/// Does something that must not wait for anyone.
fn at_once(name: &str, call: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    thread::spawn(move || {
        call();
        done.send(()).unwrap();
    });
    let ended = is_done.recv_timeout(Duration::from_secs(20));
    assert!(ended.is_ok(), "{name} waits");
}

#[test]
fn no_ring_waits_or_is_lost_when_a_client_fills_eventfds_that_block() {
    let dir = tempfile::tempdir().unwrap();
    let server = Arc::new(server(dir.path(), 4));
    let [(ringer, _), (sleeper, slot), (hostile, _)] = [(); 3].map(|()| connect(&server));
    let ringer = Arc::new(ringer);
    let room = Arc::clone(sleeper.room());
    let tag = room.join(newcomer(&sleeper, slot)).unwrap();
    // The flag and the counter are those of all who have the eventfd.
    for eventfd in hostile.eventfds() {
        let _ = rustix::io::read(&eventfd, &mut [0; 8]);
        rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&eventfd, OFlags::empty()).unwrap();
    }
    has_rung(&sleeper);
    // More often than requests can be under way.
    for round in 0..1000 {
        let ringer = Arc::clone(&ringer);
        at_once("a device that rings", move || ringer.ring(tag));
        assert!(has_rung(&sleeper), "ring {round} of a device");
    }
    room.sleep(slot);
    let serving = Arc::clone(&server);
    at_once("a server that has news", move || {
        serving.ring_all(&lock(&serving.clients));
    });
    assert!(has_rung(&sleeper), "ring of the server");
    let serving = Arc::clone(&server);
    at_once("a server that makes up for a ring", move || {
        serving.ring_again();
        serving.ring_again();
    });
    assert!(has_rung(&sleeper), "second ring of the server");
}

#[test]
fn a_ring_that_was_lost_is_made_up_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 4);
    let (process, slot) = connect(&server);
    let has_rung = || has_rung(&process);
    let room = process.room();
    room.join(newcomer(&process, slot)).unwrap();
    room.sleep(slot);
    server.ring_again();
    has_rung();
    // Killed right afterwards.
    assert!(room.must_ring(slot));
    server.ring_again();
    assert!(!has_rung());
    server.ring_again();
    assert!(has_rung());
    // Nor does it keep the server from ringing.
    server.ring_all(&lock(&server.clients));
    assert!(has_rung());
    room.wake(slot);
    server.ring_again();
    server.ring_again();
    server.ring_all(&lock(&server.clients));
    assert!(!has_rung());
}

#[test]
fn who_beats_no_more_is_dead_and_who_never_does_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 4);
    let join = |process: &(Process, u16), beats| {
        let newcomer = newcomer(&process.0, process.1);
        process
            .0
            .room()
            .join(Newcomer { beats, ..newcomer })
            .unwrap()
    };
    let processes = [connect(&server), connect(&server)];
    let (beats, does_not) = (join(&processes[0], true), join(&processes[1], false));
    let start = Instant::now();
    let later = |seconds| start + Duration::from_secs(seconds);
    server.bury_silent(start);
    server.bury_silent(later(14));
    server.room.beat(beats.slot);
    server.bury_silent(later(15));
    server.bury_silent(later(29));
    assert!(server.room.is_live(beats));
    server.bury_silent(later(31));
    assert!(server.room.is_dead(beats));
    assert!(server.room.is_live(does_not));
    // It begins with the number with which an earlier one may have ended.
    let next = join(&processes[0], true);
    server.bury_silent(later(60));
    assert!(server.room.is_live(next));
    server.bury_silent(later(80));
    assert!(server.room.is_dead(next));
}

/// In a process of its own, for descriptors are those of all tests.
#[test]
fn a_server_without_descriptors_turns_clients_away_and_goes_on() {
    const CHILD: &str = "SMC_ISM_WITHOUT_DESCRIPTORS";
    if std::env::var_os(CHILD).is_none() {
        let name = thread::current().name().unwrap().to_owned();
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", &name, "--nocapture"]).env(CHILD, "");
        assert!(child.status().unwrap().success());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 4);
    let (stays, _) = connect(&server);
    let socket = || {
        socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::empty(),
            None,
        )
    };
    let waiting = [(); 3].map(|()| socket().unwrap());
    let limit = Rlimit {
        current: Some(64),
        maximum: getrlimit(Resource::Nofile).maximum,
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut all: Vec<_> = std::iter::from_fn(|| socket().ok()).collect();
    let address = SocketAddrUnix::new(server.path()).unwrap();
    for socket in &waiting {
        super::connect(socket, &address).unwrap();
    }
    let look = || match server.wait(Duration::ZERO, true).unwrap() {
        Woken::For { is_new, ended } => (is_new, ended),
        Woken::Stopped => panic!("nobody stops it"),
    };
    assert_eq!(look(), (true, vec![]));
    assert!(server.accept());
    assert_eq!(
        look(),
        (false, vec![]),
        "the server would be woken again and again"
    );
    for socket in &waiting {
        let said = recv(socket, &mut [0; 8][..], RecvFlags::DONTWAIT);
        assert_eq!(said.map(|(len, _)| len), Ok(0));
    }
    drop(stays);
    // It leaves descriptors behind, which others may be faster to take.
    all.extend(std::iter::from_fn(|| socket().ok()));
    assert_eq!(look().1.len(), 1, "the end of a client is noticed");
    // Nor is the reserve safe from others.
    *lock(&server.reserve) = None;
    let waiting = socket().unwrap();
    all.extend(std::iter::from_fn(|| socket().ok()));
    super::connect(&waiting, &address).unwrap();
    assert!(
        !server.accept(),
        "it can do nothing before there are descriptors"
    );
    assert!(matches!(
        server.wait(Duration::ZERO, false).unwrap(),
        Woken::For { is_new: false, .. }
    ));
    drop(all);
    assert!(server.accept());
    assert_eq!(
        server.clients(),
        2,
        "one has waited, one is not dismissed yet"
    );
}
