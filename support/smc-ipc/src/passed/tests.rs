use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::sockopt::set_socket_linger;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socketpair,
};
use rustix::process::geteuid;
use smc_testkit::unix::{
    connect_to, is_closed, lingering, pair, send, send_if_possible, send_urgent, seqpacket,
};
use smc_testkit::wait::{TIMEOUT, until};

use super::*;

fn stream_pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap()
}

fn promptly<T>(f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let result = f();
    assert!(start.elapsed() < LINGER / 2, "waited");
    result
}

#[test]
fn descriptors_of_other_kinds_are_closed_without_waiting() {
    let (talker, listener) = pair();
    let (slow, _far) = lingering(LINGER);
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let memory = memfd_create("smc-test", MemfdFlags::CLOEXEC).unwrap();
    // More than a protocol expects; none may be lost.
    let all = [
        bell.as_fd(),
        memory.as_fd(),
        slow.as_fd(),
        bell.as_fd(),
        slow.as_fd(),
    ];
    send(&talker, b"hello", &all);
    drop(slow);
    let mut buf = [0; 16];
    let listener = PeerSocket::from(listener);
    let packet = promptly(|| receive(&listener, &mut buf).unwrap());
    assert_eq!((packet.len, packet.is_cut), (5, false));
    let suitable = |passed: &Passed| matches!(passed, Passed::File(_));
    let suitable: Vec<_> = packet.passed.iter().map(suitable).collect();
    assert_eq!(suitable, [true, true, false, true, false]);
}

/// Another process that has it can watch its end with many epoll entries, each of which takes time.
#[test]
fn a_memory_file_of_another_user_is_closed_on_another_thread() {
    let own = geteuid().as_raw();
    for (user, is_at_once) in [(own, true), (own ^ 1, false)] {
        let memory = memfd_create("smc-test", MemfdFlags::CLOEXEC).unwrap();
        let memory = PeerFile::received(memory, Share::User(user)).unwrap();
        assert_eq!(memory.is_closed_at_once(), is_at_once);
    }
}

/// The last file that is open on a mount can end the mount, and that can wait.
#[test]
fn a_memory_file_with_a_path_is_closed_on_another_thread() {
    let share = Share::User(geteuid().as_raw());
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = std::fs::File::create(dir.path().join("memory")).unwrap();
    match PeerFile::received(file.into(), share) {
        Ok(file) => assert!(!file.is_closed_at_once()),
        Err(_) => println!("skipped: /dev/shm is not a file system in memory"),
    }
}

#[test]
fn a_socket_with_unread_packets_is_closed_without_waiting() {
    let (talker, listener) = pair();
    let (slow, _far) = lingering(LINGER);
    send(&talker, b"", &[]);
    send(&talker, b"longer", &[]);
    send(&talker, b"", &[]);
    send(&talker, b"", &[slow.as_fd()]);
    drop(slow);
    promptly(|| drop(PeerSocket::from(listener)));
    // Reset, once another thread has closed it with the packets in it.
    let sent = rustix::net::send(&talker, b"x", SendFlags::NOSIGNAL);
    assert!(
        matches!(sent, Err(Errno::PIPE | Errno::CONNRESET)),
        "{sent:?}"
    );
}

#[test]
fn a_socket_is_closed_without_waiting_whatever_number_of_descriptors_is_unread() {
    let (talker, listener) = pair();
    let (slow, _far) = lingering(LINGER);
    set_socket_linger(&slow, Some(10 * TIMEOUT)).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let mut all = vec![bell.as_fd(); SCM_MAX_FD];
    // The one that would not fit first.
    all[SCM_MAX_FD - 1] = slow.as_fd();
    send(&talker, b"x", &all);
    drop(slow);
    let closing = std::thread::spawn(|| drop(PeerSocket::from(listener)));
    until(|| closing.is_finished(), || "waits".to_owned());
}

/// `MSG_PEEK` passes over a byte that was sent with `MSG_OOB`, and over what came with it.
#[test]
fn a_stream_with_an_urgent_byte_is_not_closed_in_place() {
    for bytes_before in [0, 1] {
        let (talker, listener) = stream_pair();
        let (inside, outside) = pair();
        send(&talker, &vec![b'x'; bytes_before], &[]);
        if !send_urgent(&talker, &[inside.as_fd()]) {
            return println!("skipped: why: this kernel has no urgent bytes on UNIX sockets");
        }
        drop(inside);
        shutdown(&listener, Shutdown::Both).unwrap();
        assert!(!is_emptied(&listener));
        assert!(!is_closed(&outside), "is still unread");
    }
}

#[test]
fn an_urgent_byte_of_a_stream_is_received_with_what_came_with_it() {
    let (talker, listener) = stream_pair();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    if !send_urgent(&talker, &[bell.as_fd()]) {
        return println!("skipped: why: this kernel has no urgent bytes on UNIX sockets");
    }
    let packet = receive(&PeerSocket::from(listener), &mut [0; 16]).unwrap();
    assert!(matches!(packet.passed[..], [Passed::File(_)]));
}

#[test]
fn bytes_of_a_stream_are_not_received_together_with_descriptors_that_follow() {
    let (talker, listener) = stream_pair();
    let (inside, outside) = pair();
    send(&talker, b"first", &[]);
    send(&talker, b"second", &[inside.as_fd()]);
    drop(inside);
    shutdown(&listener, Shutdown::Both).unwrap();
    assert!(!is_emptied(&listener));
    assert!(!is_closed(&outside), "is still unread");
    drop(listener);
    assert!(is_closed(&outside));
}

#[test]
fn a_socket_is_emptied_of_all_kinds_of_packets() {
    for empty in [true, false] {
        let (talker, listener) = pair();
        for _ in 0..MAX_UNREAD {
            send(&talker, if empty { b"" } else { b"x" }, &[]);
        }
        shutdown(&listener, Shutdown::Both).unwrap();
        assert!(is_emptied(&listener));
        let left = receive(&PeerSocket::from(listener), &mut [0; 1]).unwrap();
        assert_eq!(left.len, 0, "the end");
    }
}

#[test]
fn a_thread_that_drops_a_socket_receives_few_of_its_packets() {
    let (peer, socket) = pair();
    let sent = 100;
    for _ in 0..sent {
        send(&peer, b"x", &[]);
    }
    shutdown(&socket, Shutdown::Both).unwrap();
    assert!(!is_emptied(&socket), "the rest is left to another thread");
    let unread = std::iter::from_fn(|| recv(&socket, &mut [0; 2][..], RecvFlags::DONTWAIT).ok());
    let left = unread.take_while(|(_, len)| *len == 1).count();
    assert!(left >= sent - 4, "{left} of {sent} are left");
}

#[test]
fn a_socket_whose_peer_is_gone_is_closed_on_the_spot() {
    let (talker, listener) = pair();
    send(&listener, b"unread there", &[]);
    send(&talker, b"unread here", &[]);
    drop(talker);
    let _ = shutdown(&listener, Shutdown::Both);
    assert!(is_emptied(&listener));
}

#[test]
fn a_socket_that_was_never_connected_is_empty() {
    let alone = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    let _ = shutdown(&alone, Shutdown::Both);
    assert!(is_emptied(&alone));
}

#[test]
fn over_sockets_accepted_from_one_that_refuses_descriptors_none_are_passed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = seqpacket();
    if !refuse_descriptors(&listener) {
        return println!("skipped: why: needs Linux 6.16");
    }
    bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    listen(&listener, 1).unwrap();
    let client = connect_to(&path);
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    // Before the connection is accepted, and after.
    assert!(!send_if_possible(&client, b"with it", &[bell.as_fd()]));
    let mut accepted = accept(&listener).unwrap();
    assert!(!send_if_possible(&client, b"with it", &[bell.as_fd()]));
    assert!(send_if_possible(&client, b"alone", &[]));
    let packet = receive(&accepted, &mut [0; 16]).unwrap();
    assert_eq!((packet.len, packet.passed.len()), (5, 0));
    // The end is that of any socket with unread data.
    send(&client, b"unread", &[]);
    accepted.set_allowed();
    accepted.set_refuses_descriptors();
    drop(accepted);
    let end = recv(&client, &mut [0; 1][..], RecvFlags::DONTWAIT);
    assert_eq!(end.unwrap_err(), Errno::CONNRESET);
}

const LINGER: Duration = Duration::from_secs(4);
