//! A peer that passes descriptors whose closing waits: it must not use up those of this process.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::Permissions;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use smc_ipc::Domain;
use smc_ipc::passed::{PeerSocket, has_descriptors, receive};
use smc_ipc::runtime_dir::Publication;
use smc_testkit::process::is_alone;
use smc_testkit::resources::limit_descriptors;
use smc_testkit::unix::{connect_to, is_readable, lingering, pair, send};
use smc_testkit::user::run_as;
use smc_testkit::wait::until;

/// How long closing each of them waits: none ends by itself while the test goes on.
const LINGER: Duration = Duration::from_secs(600);

/// Another user than the one that runs this.
const OTHER: u32 = 1001;

/// What `passed` documents: descriptors of a user that may wait to be closed, and what one packet
/// brings on top.
const MAX_WAITING: usize = 64;
const IN_A_PACKET: usize = 8;

/// A UNIX socket with a lingering connection in its queue.
fn slow() -> (OwnedFd, TcpStream) {
    let (near, far) = lingering(LINGER);
    let (inside, outside) = pair();
    send(&inside, b"x", &[near.as_fd()]);
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
    assert!(is_readable(client.as_fd(), Duration::ZERO));
    let _client = domain.connect("name.sock").unwrap();
    let path = publication.directories().next().unwrap();
    let path = path.join("name.sock");
    let of_other = run_as(OTHER, || connect_to(&path));
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

#[test]
fn a_peer_cannot_use_up_descriptors_by_such_as_are_slow_to_close() {
    if !is_alone() {
        return;
    }
    limit_descriptors(1024);
    let mut readers = Vec::new();
    let mut received = 0;
    // A new connection for each packet, as each of them is ended.
    let refused = (0..4 * MAX_WAITING / IN_A_PACKET).find_map(|_| {
        let (peer, ours) = pair();
        let ours = PeerSocket::from(ours);
        let (slow, far): (Vec<_>, Vec<_>) = (0..IN_A_PACKET).map(|_| slow()).unzip();
        readers.extend(far);
        let descriptors: Vec<_> = slow.iter().map(AsFd::as_fd).collect();
        send(&peer, b"x", &descriptors);
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
        send(&peer, b"x", &[bell.as_fd()]);
        drop(PeerSocket::from(ours));
    }
    let dir = tempfile::tempdir().unwrap();
    let domain = Domain::directory(dir.path());
    let mut publication = Publication::new(domain.clone(), "name.sock".into()).unwrap();
    let mut client = domain.connect("name.sock").unwrap();
    assert!(is_readable(publication.epoll_fd(), Duration::ZERO));
    publication.handle_events();
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
    assert!(
        !is_readable(publication.epoll_fd(), Duration::ZERO),
        "it would be readable without end"
    );

    // With the peers that do not read all of it ends.
    drop(readers);
    let accepted = loop {
        assert!(is_readable(publication.epoll_fd(), Duration::from_secs(60)));
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
        send(&peer, b"x", &[one.as_fd()]);
        if receive(&PeerSocket::from(ours), &mut [0; 16]).is_ok() {
            break;
        }
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_name_is_given_up_without_waiting_for_what_was_passed_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let domain = Domain::directory(dir.path());
    let publication = Publication::new(domain.clone(), "name.sock".into()).unwrap();
    let clients = [(); 3].map(|()| domain.connect("name.sock").unwrap());
    let (near, _far) = lingering(LINGER);
    send(&clients[1], b"x", &[near.as_fd()]);
    drop(near);
    let closing = thread::spawn(|| drop(publication));
    until(|| closing.is_finished(), || "waits".to_owned());
    let has_ended = |client: &PeerSocket| is_readable(client.as_fd(), Duration::ZERO);
    assert!(clients.iter().all(has_ended));
    assert_eq!(domain.connect("name.sock").unwrap_err(), Errno::NOENT);
}
