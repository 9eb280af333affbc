use std::fs::{self, Permissions};
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, OFlags, RenameFlags, fcntl_setfl, renameat_with};
use rustix::net::sockopt::set_socket_linger;
use smc_testkit::limits::limit_descriptors;
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
        // Says what has to be said yet.
        server.wait(Duration::ZERO, false).unwrap();
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
            let _ = Named::listen(sock.clone(), 0o666);
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

/// Whether this is a process for this test alone, as descriptors are those of all tests. Else the test
/// has run in such a one when this returns.
fn is_alone() -> bool {
    const ALONE: &str = "SMC_ISM_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return true;
    }
    let name = thread::current().name().unwrap().to_owned();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", &name, "--nocapture"]).env(ALONE, "");
    assert!(child.status().unwrap().success());
    false
}

#[test]
fn a_server_that_cannot_be_made_leaves_no_name_behind() {
    if !is_alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let free = fs::File::open("/").unwrap().as_raw_fd();
    let mut missing = 0;
    for left in 0..100 {
        limit_descriptors(u64::try_from(free).unwrap() + left);
        match Server::builder(&path).len(2 << 20).bind() {
            Ok(_) => break,
            Err(_) => missing += 1,
        }
        assert!(path.symlink_metadata().is_err(), "{left} were left");
    }
    // The memory, what it listens with, and what it rings by.
    assert!((3..100).contains(&missing), "{missing}");
}

#[test]
fn a_server_that_ends_takes_its_own_name_along_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let first = server(dir.path(), 2);
    let path = first.path().to_owned();
    fs::remove_file(&path).unwrap();
    let second = server(dir.path(), 2);
    drop(first);
    assert_eq!(connect(&second).0.port(), 0);
    drop(second);
    assert!(path.symlink_metadata().is_err());
}

/// A connection with unsent data to one who does not read: closing it waits.
fn lingering() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    near.set_nonblocking(true).unwrap();
    while near.write(&[0; 1 << 16]).is_ok() {}
    near.set_nonblocking(false).unwrap();
    set_socket_linger(&near, Some(Duration::from_secs(60))).unwrap();
    (near, far)
}

#[test]
fn a_client_that_says_anything_is_ended_whatever_it_passes() {
    let dir = tempfile::tempdir().unwrap();
    let server = Arc::new(server(dir.path(), 4));
    let (stays, _) = connect(&server);
    let client = UnixStream::connect(server.path()).unwrap();
    assert!(server.accept());
    assert_eq!(server.clients(), 2);
    let (slow, _far) = lingering();
    // More than is looked at.
    protocol::send(&client, 0, None).unwrap();
    for _ in 0..20 {
        protocol::send(&client, 0, Some(slow.as_fd())).unwrap();
    }
    drop(slow);
    let serving = Arc::clone(&server);
    at_once("a server with a client that talks", move || {
        dismiss_ended(&serving, 1);
    });
    assert!(matches!(
        server.wait(Duration::ZERO, true).unwrap(),
        Woken::For { is_new: false, ended } if ended.is_empty()
    ));
    drop(stays);
}

#[test]
fn a_client_that_does_not_read_is_sent_few_descriptors_and_all_when_it_reads() {
    const CLIENTS: usize = 40;
    let dir = tempfile::tempdir().unwrap();
    let server = server(dir.path(), 64);
    let silent: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = UnixStream::connect(server.path()).unwrap();
            assert!(server.accept());
            client
        })
        .collect();
    assert_eq!(server.clients(), CLIENTS);
    let unread = |client: &UnixStream| rustix::io::ioctl_fionread(client).unwrap() / 8;
    for client in &silent {
        assert!(unread(client) < 10, "{} numbers", unread(client));
    }
    // Among those, one is told what it has missed: of the memory, of all, and of itself twice.
    let mut numbers = Vec::new();
    let mut bytes = [0; 8];
    silent[7].set_nonblocking(true).unwrap();
    while numbers.len() < CLIENTS + 3 {
        server.wait(Duration::ZERO, false).unwrap();
        while (&silent[7]).read_exact(&mut bytes).is_ok() {
            numbers.push(i64::from_le_bytes(bytes));
        }
    }
    assert_eq!(numbers[..3], [protocol::VERSION, 7, protocol::MEMORY]);
    let mut others = numbers[3..].to_vec();
    others.sort_unstable();
    assert!(others.into_iter().eq(0..CLIENTS as i64));
}

#[test]
fn a_server_without_descriptors_turns_clients_away_and_goes_on() {
    if !is_alone() {
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
    limit_descriptors(64);
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
        assert_eq!(rustix::io::read(socket, &mut [0; 8]), Ok(0));
    }
    drop(stays);
    // It leaves descriptors behind, which others may be faster to take.
    all.extend(std::iter::from_fn(|| socket().ok()));
    assert_eq!(look().1.len(), 1, "the end of a client is noticed");
    // Nor is the reserve of use when the limit is lowered.
    let waiting = all.pop().unwrap();
    all.extend(std::iter::from_fn(|| socket().ok()));
    super::connect(&waiting, &address).unwrap();
    limit_descriptors(3);
    assert!(
        !server.accept(),
        "it can do nothing before there are descriptors"
    );
    assert!(matches!(
        server.wait(Duration::ZERO, false).unwrap(),
        Woken::For { is_new: false, .. }
    ));
    drop(all);
    limit_descriptors(64);
    assert!(server.accept());
    assert_eq!(
        server.clients(),
        2,
        "one has waited, one is not dismissed yet"
    );
}
