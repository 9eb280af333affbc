//! A peer that passes descriptors whose closing waits: it must not use up those of this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::io::{IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
    sendmsg, socketpair,
};
use smc_core::io::negotiate::passed::{PeerSocket, has_room, receive};
use smc_core::io::negotiate::runtime_dir::{Publication, RuntimeDirs};

/// How long closing each of them waits: none ends by itself while the test goes on.
const LINGER: Duration = Duration::from_secs(600);

/// What `passed` documents: descriptors of a user that may wait to be closed, and what one packet
/// brings on top.
const MAX_WAITING: usize = 64;
const IN_A_PACKET: usize = 8;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn pass(socket: &OwnedFd, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(IN_A_PACKET))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let flags = SendFlags::empty();
    sendmsg(socket, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
}

/// A UNIX socket with something in its queue whose closing takes long: a TCP connection with unsent
/// data to a peer that does not read.
fn slow(listener: &TcpListener) -> (OwnedFd, TcpStream) {
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    set_socket_send_buffer_size(&near, 4096).unwrap();
    near.set_nonblocking(true).unwrap();
    // What is under way when the first write is refused may still find room at the other end.
    while is_ready(near.as_fd(), PollFlags::OUT, Duration::from_millis(5)) {
        while near.write(&[0; 1 << 14]).is_ok() {}
    }
    near.set_nonblocking(false).unwrap();
    set_socket_linger(&near, Some(LINGER)).unwrap();
    let (inside, outside) = pair();
    pass(&inside, &[near.as_fd()]);
    (outside, far)
}

fn is_readable(publication: &Publication, time: Duration) -> bool {
    is_ready(publication.bell(), PollFlags::IN, time)
}

fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(&fd, flags)], Some(&time)) == Ok(1)
}

#[test]
fn a_peer_cannot_use_up_descriptors_by_such_as_are_slow_to_close() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    // Connections inherit it, and it does not grow.
    set_socket_recv_buffer_size(&listener, 4096).unwrap();
    let mut readers = Vec::new();
    let mut received = 0;
    // A new connection for each packet, as each of them is ended.
    let refused = (0..4 * MAX_WAITING / IN_A_PACKET).find_map(|_| {
        let (peer, ours) = pair();
        let ours = PeerSocket::from(ours);
        let (slow, far): (Vec<_>, Vec<_>) = (0..IN_A_PACKET).map(|_| slow(&listener)).unzip();
        readers.extend(far);
        let descriptors: Vec<_> = slow.iter().map(AsFd::as_fd).collect();
        pass(&peer, &descriptors);
        drop(slow);
        match receive(&ours, &mut [0; 16]) {
            Ok(packet) => {
                assert!(packet.is_overloaded(IN_A_PACKET));
                received += packet.passed.len();
                None
            }
            Err(error) => Some(error),
        }
    });
    let refused = refused.expect("some are refused");
    assert!(refused.to_string().contains("64 descriptors"), "{refused}");
    assert!(received <= 2 * MAX_WAITING, "{received}");
    assert!(has_room(), "others are accepted all the same");

    // Connections that are refused wait to be closed as well, until none is accepted.
    while has_room() {
        let (peer, ours) = pair();
        let (slow, far) = slow(&listener);
        readers.push(far);
        pass(&peer, &[slow.as_fd()]);
        drop(PeerSocket::from(ours));
    }
    let dir = tempfile::tempdir().unwrap();
    let dirs = RuntimeDirs::at(dir.path());
    let mut publication = Publication::new(dirs.clone(), "name.sock".into(), false).unwrap();
    let _client = dirs.connect("name.sock").unwrap();
    assert!(is_readable(&publication, Duration::ZERO));
    publication.tend();
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
    assert!(
        !is_readable(&publication, Duration::ZERO),
        "it would ring on and on"
    );

    // With the peers that do not read all of it ends.
    drop(readers);
    let accepted = loop {
        assert!(is_readable(&publication, Duration::from_secs(60)));
        publication.tend();
        if let Ok(accepted) = publication.accept() {
            break accepted;
        }
    };
    drop(accepted);
    loop {
        let (peer, ours) = pair();
        let (one, _) = pair();
        pass(&peer, &[one.as_fd()]);
        if receive(&PeerSocket::from(ours), &mut [0; 16]).is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
}
