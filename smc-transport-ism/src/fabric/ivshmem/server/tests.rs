use std::fs::{self, Permissions};
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::fs::{CWD, OFlags, RenameFlags, fcntl_setfl, renameat_with};
use smc_testkit::process::is_alone;
use smc_testkit::resources::limit_descriptors;
use smc_testkit::unix::{lingering, send_urgent};
use smc_testkit::user::run_as;
use smc_wire::types::Gid;
use tempfile::TempDir;

use super::super::IvshmemClient as Process;
use super::*;
use crate::fabric::FabricOps as _;

/// A server for so many devices, in a directory of its own.
fn server(devices: u16) -> (TempDir, Server) {
    let dir = tempfile::tempdir().unwrap();
    let server = server_in(dir.path(), devices);
    (dir, server)
}

fn server_in(dir: &Path, devices: u16) -> Server {
    let server = Server::builder(dir.join("sock")).len(2 << 20);
    server.devices(devices).bind().unwrap()
}

/// Has a process join as a device.
fn join(process: &Process, slot: u16, has_heartbeat: bool) -> Tag {
    let gid = Gid::new(1, u64::from(slot) + 1);
    let joined = process
        .memory()
        .join(slot, gid, process.port(), has_heartbeat);
    joined.unwrap()
}

/// A new client, connected.
fn connect(server: &Server) -> (Process, u16) {
    let path = server.path().to_owned();
    let connecting = thread::spawn(move || Process::connect(&path).unwrap());
    while !connecting.is_finished() {
        server.accept();
        // Sends pending messages.
        server.wait(Duration::ZERO, false).unwrap();
        thread::yield_now();
    }
    connecting.join().unwrap()
}

/// Removes clients that have closed their sockets, down to `count`.
fn remove_ended(server: &Server, count: usize) {
    while server.clients() > count {
        if let Wakeup::For { ended, .. } = server.wait(Duration::ZERO, true).unwrap() {
            ended
                .into_iter()
                .for_each(|slot| server.remove_client(slot));
        }
    }
}

#[test]
fn a_symlink_in_place_of_the_new_socket_changes_no_other_file() {
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
            let _ = BoundSocket::listen(sock.clone(), 0o666);
            let _ = fs::remove_file(&sock);
        }
        is_done.store(true, Ordering::Relaxed);
    });
    let mode = secret.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn numbers_are_not_reused_while_any_client_is_connected() {
    let (_dir, server) = server(2);
    let (stays, slot) = connect(&server);
    assert_eq!((stays.port(), slot), (0, 0));
    for number in [1, 3, 5] {
        let (leaves, slot) = connect(&server);
        assert_eq!((leaves.port(), slot), (number, 1));
        drop(leaves);
        remove_ended(&server, 1);
    }
    drop(stays);
    remove_ended(&server, 0);
    assert_eq!(connect(&server).0.port(), 0);
}

#[test]
fn numbers_are_counted_by_the_user_of_the_process_that_connects() {
    const OTHER: u32 = 990;
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let path = dir.path().join("sock");
    let server = Server::builder(&path).len(2 << 20).devices(4);
    let server = server.mode(0o666).bind().unwrap();
    let (_stays, _) = connect(&server);
    let come_and_go = || -> std::io::Result<()> {
        for _ in 0..3 {
            let mut client = UnixStream::connect(&path)?;
            server.accept();
            client.read_exact(&mut [0; 8])?;
            drop(client);
            remove_ended(&server, 1);
        }
        Ok(())
    };
    match run_as(OTHER, come_and_go) {
        Err(error) => return println!("skipped: why: cannot become another user: {error}"),
        Ok(result) => result.unwrap(),
    }
    let clients = server.clients.lock();
    assert_eq!(clients.numbers.of_user(OTHER), 3);
}

#[test]
fn a_server_that_ends_is_marked_in_the_memory_and_wakes_sleeping_devices() {
    let (_dir, server) = server(4);
    let processes = [connect(&server), connect(&server)];
    let memories = processes.each_ref().map(|(process, slot)| {
        join(process, *slot, false);
        process.memory()
    });
    let (asleep, awake) = (processes[0].1, processes[1].1);
    memories[0].sleep(asleep);
    server.memory.bump_server_heartbeat();
    assert!(!memories[0].has_server_ended());
    drop(server);
    assert!(memories.iter().all(|memory| memory.has_server_ended()));
    assert_eq!(memories[0].sleep_of(asleep), Sleep::Notified);
    assert_eq!(memories[1].sleep_of(awake), Sleep::Awake);
    assert!(memories[1].take_peers_changed(awake));
}

/// Whether the driver of a device was notified since the last call.
fn was_notified(process: &Process) -> bool {
    let doorbell = process.doorbell();
    let mut fds = [PollFd::new(&doorbell, PollFlags::IN)];
    let count = poll(&mut fds, Some(&Timespec::default())).unwrap();
    process.poll_events(&mut |_| {}).unwrap();
    count > 0
}

/// Runs a call that must not block.
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
fn no_notification_blocks_or_is_lost_when_a_client_fills_blocking_eventfds() {
    let (_dir, server) = server(4);
    let server = Arc::new(server);
    let [(notifier, _), (sleeper, slot), (hostile, _)] = [(); 3].map(|()| connect(&server));
    let notifier = Arc::new(notifier);
    let memory = Arc::clone(sleeper.memory());
    let tag = join(&sleeper, slot, false);
    // The flag and the counter are shared by all clients that have the eventfd.
    for eventfd in hostile.eventfds() {
        let _ = rustix::io::read(&eventfd, &mut [0; 8]);
        rustix::io::write(&eventfd, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        fcntl_setfl(&eventfd, OFlags::empty()).unwrap();
    }
    was_notified(&sleeper);
    // More often than requests can be in flight.
    for round in 0..1000 {
        let notifier = Arc::clone(&notifier);
        at_once("a device that notifies", move || notifier.notify(tag));
        assert!(was_notified(&sleeper), "notification {round} of a device");
    }
    memory.sleep(slot);
    let serving = Arc::clone(&server);
    at_once("a server that notifies all devices", move || {
        serving.notify_all(&serving.clients.lock());
    });
    assert!(was_notified(&sleeper), "notification of the server");
    let serving = Arc::clone(&server);
    at_once("a server that repeats a notification", move || {
        serving.retry_notifications();
        serving.retry_notifications();
    });
    assert!(was_notified(&sleeper), "second notification of the server");
}

#[test]
fn a_lost_notification_is_repeated() {
    let (_dir, server) = server(4);
    let (process, slot) = connect(&server);
    let was_notified = || was_notified(&process);
    let memory = process.memory();
    join(&process, slot, false);
    memory.sleep(slot);
    server.retry_notifications();
    was_notified();
    // Killed right afterwards.
    assert!(memory.must_notify(slot));
    server.retry_notifications();
    assert!(!was_notified());
    server.retry_notifications();
    assert!(was_notified());
    // The mark of the dead peer does not prevent a notification by the server.
    server.notify_all(&server.clients.lock());
    assert!(was_notified());
    memory.wake(slot);
    server.retry_notifications();
    server.retry_notifications();
    server.notify_all(&server.clients.lock());
    assert!(!was_notified());
}

#[test]
fn a_device_whose_heartbeats_stop_is_dead_and_one_that_never_sends_any_is_not() {
    let (_dir, server) = server(4);
    let [(first, slot_of_first), (second, slot_of_second)] = [(); 2].map(|()| connect(&server));
    let has_heartbeat = join(&first, slot_of_first, true);
    let does_not = join(&second, slot_of_second, false);
    let start = Instant::now();
    let later = |seconds| start + Duration::from_secs(seconds);
    server.mark_silent_dead(start);
    server.mark_silent_dead(later(14));
    server.memory.bump_heartbeat(has_heartbeat.slot);
    server.mark_silent_dead(later(15));
    server.mark_silent_dead(later(29));
    assert!(server.memory.is_live(has_heartbeat));
    server.mark_silent_dead(later(31));
    assert!(server.memory.is_dead(has_heartbeat));
    assert!(server.memory.is_live(does_not));
    // Its first heartbeat may be the last one of the earlier device.
    let next = join(&first, slot_of_first, true);
    server.mark_silent_dead(later(60));
    assert!(server.memory.is_live(next));
    server.mark_silent_dead(later(80));
    assert!(server.memory.is_dead(next));
}

#[test]
fn a_server_that_cannot_be_created_leaves_no_socket_file() {
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
    // The memory, the listening socket, and the asynchronous I/O context.
    assert!((3..100).contains(&missing), "{missing}");
}

#[test]
fn a_file_that_is_no_socket_is_not_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    fs::write(&path, "kept").unwrap();
    let error = Server::builder(&path).len(2 << 20).bind().unwrap_err();
    assert!(error.to_string().contains("is no socket"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "kept");
    // A link to a socket neither.
    let link = dir.path().join("link");
    symlink(dir.path().join("other"), &link).unwrap();
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("other")).unwrap());
    assert!(Server::builder(&link).len(2 << 20).bind().is_err());
    assert!(link.is_symlink());
}

#[test]
fn a_server_that_ends_removes_its_own_socket_file_and_no_other() {
    let (dir, first) = server(2);
    let path = first.path().to_owned();
    fs::remove_file(&path).unwrap();
    let second = server_in(dir.path(), 2);
    drop(first);
    assert_eq!(connect(&second).0.port(), 0);
    drop(second);
    assert!(path.symlink_metadata().is_err());
}

#[test]
fn a_client_that_sends_anything_is_removed_whatever_it_passes() {
    // More descriptors than are received.
    is_removed_after(|client, slow| {
        protocol::send(client, 0, None).unwrap();
        for _ in 0..20 {
            protocol::send(client, 0, Some(slow)).unwrap();
        }
    });
}

#[test]
fn a_client_that_sends_an_urgent_byte_is_removed_whatever_it_passes() {
    is_removed_after(|client, slow| {
        if !send_urgent(client, &[slow]) {
            println!("skipped: why: this kernel has no urgent bytes on UNIX sockets");
            protocol::send(client, 0, Some(slow)).unwrap();
        }
    });
}

/// A client sends something with a socket whose closing takes long, and the server removes it.
fn is_removed_after(send: impl FnOnce(&UnixStream, BorrowedFd<'_>)) {
    let (_dir, server) = server(4);
    let server = Arc::new(server);
    let (stays, _) = connect(&server);
    let client = UnixStream::connect(server.path()).unwrap();
    assert!(server.accept());
    assert_eq!(server.clients(), 2);
    let (slow, _far) = lingering(Duration::from_secs(60));
    send(&client, slow.as_fd());
    drop(slow);
    let serving = Arc::clone(&server);
    at_once("a server with a client that sends", move || {
        remove_ended(&serving, 1);
    });
    assert!(matches!(
        server.wait(Duration::ZERO, true).unwrap(),
        Wakeup::For { is_new: false, ended } if ended.is_empty()
    ));
    drop(stays);
}

#[test]
fn a_client_that_does_not_read_is_sent_few_descriptors_and_all_when_it_reads() {
    const CLIENTS: usize = 40;
    let (_dir, server) = server(64);
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
    // A client that reads is sent the pending numbers: memory, all clients, and its own twice.
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
fn a_server_without_free_descriptors_closes_connections_and_continues() {
    if !is_alone() {
        return;
    }
    let (_dir, server) = server(4);
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
    let poll_once = || match server.wait(Duration::ZERO, true).unwrap() {
        Wakeup::For { is_new, ended } => (is_new, ended),
        Wakeup::Stopped => panic!("nothing stops it"),
    };
    assert_eq!(poll_once(), (true, vec![]));
    assert!(server.accept());
    assert_eq!(
        poll_once(),
        (false, vec![]),
        "the server would be woken without end"
    );
    for socket in &waiting {
        assert_eq!(rustix::io::read(socket, &mut [0; 8]), Ok(0));
    }
    drop(stays);
    // Its descriptors are free again, and other sockets may take them first.
    all.extend(std::iter::from_fn(|| socket().ok()));
    assert_eq!(poll_once().1.len(), 1, "the end of a client is detected");
    // With a lower limit the reserved descriptor is of no use either.
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
        Wakeup::For { is_new: false, .. }
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
