//! A peer that passes descriptors whose closing waits: it must not use up those of this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::Permissions;
use std::io::{ErrorKind, IoSlice, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_linger, set_socket_recv_buffer_size, set_socket_send_buffer_size,
};
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, connect, sendmsg, socket, socketpair,
};
use smc_ipc::Domain;
use smc_ipc::passed::{PeerSocket, has_descriptors, receive};
use smc_ipc::runtime_dir::Publication;
use smc_testkit::limits::limit_descriptors;
use smc_testkit::user::run_as;

/// How long closing each of them waits: none ends by itself while the test goes on.
const LINGER: Duration = Duration::from_secs(600);

/// Another user than the one that runs this.
const OTHER: u32 = 1001;

/// What `passed` documents: descriptors of a user that may wait to be closed, and what one packet
/// brings on top.
const MAX_WAITING: usize = 64;
const IN_A_PACKET: usize = 8;

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn pass(socket: impl AsFd, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(IN_A_PACKET))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let flags = SendFlags::empty();
    sendmsg(socket, &[IoSlice::new(b"x")], &mut control, flags).unwrap();
}

/// A listener whose connections inherit a small buffer, which does not grow.
fn listener() -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    set_socket_recv_buffer_size(&listener, 4096).unwrap();
    listener
}

/// A TCP connection whose closing takes long: unsent data to a peer that does not read.
fn lingering(listener: &TcpListener) -> (TcpStream, TcpStream) {
    let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (far, _) = listener.accept().unwrap();
    set_socket_send_buffer_size(&near, 4096).unwrap();
    near.set_nonblocking(true).unwrap();
    // What is in flight when the first write is refused may still find space at the other end.
    while is_ready(near.as_fd(), PollFlags::OUT, Duration::from_millis(5)) {
        while near.write(&[0; 1 << 14]).is_ok() {}
    }
    near.set_nonblocking(false).unwrap();
    set_socket_linger(&near, Some(LINGER)).unwrap();
    (near, far)
}

/// A UNIX socket with a lingering connection in its queue.
fn slow(listener: &TcpListener) -> (OwnedFd, TcpStream) {
    let (near, far) = lingering(listener);
    let (inside, outside) = pair();
    pass(&inside, &[near.as_fd()]);
    (outside, far)
}

/// Descriptors of this user are slow to close.
fn refuses_one_user_only() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let domain = Domain::shared(dir.path(), [OTHER]);
    let mut publication = Publication::new(domain.clone(), "name.sock".into()).unwrap();
    let accept = |publication: &mut Publication| {
        publication.handle_events();
        publication.accept().map(drop)
    };
    let client = domain.connect("name.sock").unwrap();
    assert_eq!(accept(&mut publication), Err(Errno::CONNABORTED));
    assert!(is_ready(client.as_fd(), PollFlags::IN, Duration::ZERO));
    let _client = domain.connect("name.sock").unwrap();
    let path = publication.directories().next().unwrap();
    let path = path.join("name.sock");
    let of_other = run_as(OTHER, || {
        let client = seqpacket();
        connect(&client, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        client
    });
    match of_other {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => {
            println!("skipped: why: needs root to become another user");
        }
        client => {
            let _client = client.unwrap();
            assert_eq!(accept(&mut publication), Err(Errno::CONNABORTED));
            assert_eq!(accept(&mut publication), Ok(()));
        }
    }
    assert!(has_descriptors());
}

fn seqpacket() -> OwnedFd {
    socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap()
}

fn is_readable(publication: &Publication, time: Duration) -> bool {
    is_ready(publication.epoll_fd(), PollFlags::IN, time)
}

fn is_ready(fd: BorrowedFd<'_>, flags: PollFlags, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(&fd, flags)], Some(&time)) == Ok(1)
}

#[test]
fn a_peer_cannot_use_up_descriptors_by_such_as_are_slow_to_close() {
    limit_descriptors(1024);
    let listener = listener();
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
    assert!(has_descriptors(), "others are accepted all the same");
    refuses_one_user_only();

    // Connections that are refused wait to be closed as well, until none is accepted.
    let bell = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
    while has_descriptors() {
        let (peer, ours) = pair();
        pass(&peer, &[bell.as_fd()]);
        drop(PeerSocket::from(ours));
    }
    let dir = tempfile::tempdir().unwrap();
    let domain = Domain::directory(dir.path());
    let mut publication = Publication::new(domain.clone(), "name.sock".into()).unwrap();
    let mut client = domain.connect("name.sock").unwrap();
    assert!(is_readable(&publication, Duration::ZERO));
    publication.handle_events();
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
    assert!(
        !is_readable(&publication, Duration::ZERO),
        "it would be readable without end"
    );

    // With the peers that do not read all of it ends.
    drop(readers);
    let accepted = loop {
        assert!(is_readable(&publication, Duration::from_secs(60)));
        publication.handle_events();
        match publication.accept() {
            Ok(accepted) => break accepted,
            // Fewer wait than half of the descriptors, but still more than the user's share.
            Err(Errno::CONNABORTED) => client = domain.connect("name.sock").unwrap(),
            Err(_) => {}
        }
    };
    drop(client);
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

#[test]
fn a_name_is_given_up_without_waiting_for_what_was_passed_to_it() {
    let listener = listener();
    let dir = tempfile::tempdir().unwrap();
    let domain = Domain::directory(dir.path());
    let publication = Publication::new(domain.clone(), "name.sock".into()).unwrap();
    let clients = [(); 3].map(|()| domain.connect("name.sock").unwrap());
    let (near, _far) = lingering(&listener);
    pass(&clients[1], &[near.as_fd()]);
    drop(near);
    let closing = thread::spawn(|| drop(publication));
    let end = Instant::now() + Duration::from_secs(60);
    while !closing.is_finished() {
        assert!(Instant::now() < end, "waits");
        thread::sleep(Duration::from_millis(1));
    }
    let has_ended = |client: &PeerSocket| is_ready(client.as_fd(), PollFlags::IN, Duration::ZERO);
    assert!(clients.iter().all(has_ended));
    assert_eq!(domain.connect("name.sock").unwrap_err(), Errno::NOENT);
}
