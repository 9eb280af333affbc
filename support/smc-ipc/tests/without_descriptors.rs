//! A process that has no descriptor left for new connections.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use smc_ipc::Domain;
use smc_ipc::passed::{Passed, PeerSocket, receive};
use smc_ipc::runtime_dir::Publication;
use smc_testkit::process::is_alone;
use smc_testkit::resources::limit_descriptors;
use smc_testkit::unix::{is_readable, lingering, pair, send};

/// Takes all descriptors there are.
fn take_all() -> Vec<OwnedFd> {
    let take = || eventfd(0, EventfdFlags::CLOEXEC).ok();
    std::iter::from_fn(take).collect()
}

#[test]
fn connections_are_refused_and_the_descriptor_does_not_stay_readable() {
    if !is_alone() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let domain = Domain::directory(dir.path());
    let mut publication = Publication::new(domain.clone(), "name.sock".into()).unwrap();
    let is_quiet = |publication: &Publication| !is_readable(publication.epoll_fd(), Duration::ZERO);
    let connect = || domain.connect("name.sock").unwrap();
    // Only new connections are events.
    while !is_quiet(&publication) {
        publication.handle_events();
    }
    let waiting = [(); 3].map(|()| connect());
    limit_descriptors(64);
    let all = take_all();
    assert!(!is_quiet(&publication));
    publication.handle_events();
    for client in &waiting {
        assert!(!is_readable(client.as_fd(), Duration::ZERO));
        assert_eq!(publication.accept().unwrap_err(), Errno::MFILE);
        assert!(is_readable(client.as_fd(), Duration::ZERO), "is closed");
    }
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
    assert!(is_quiet(&publication));

    // When the limit is lowered a released descriptor is of no use.
    drop(all);
    let client = connect();
    limit_descriptors(3);
    publication.handle_events();
    assert_eq!(publication.accept().unwrap_err(), Errno::MFILE);
    assert_eq!(publication.accept().unwrap_err(), Errno::AGAIN);
    assert!(is_quiet(&publication));
    // Nor is the name lost when it is checked.
    assert!(is_readable(publication.epoll_fd(), Duration::from_secs(60)));
    publication.handle_events();
    assert!(dir.path().join("name.sock").exists());
    assert!(!is_readable(client.as_fd(), Duration::ZERO));
    limit_descriptors(64);
    let accepted = loop {
        assert!(is_readable(publication.epoll_fd(), Duration::from_secs(60)));
        publication.handle_events();
        if let Ok(accepted) = publication.accept() {
            break accepted;
        }
    };
    drop(accepted);

    // With the reserve that it has again.
    let client = connect();
    let all = take_all();
    loop {
        publication.handle_events();
        match publication.accept() {
            Err(Errno::AGAIN) => {
                assert!(is_readable(publication.epoll_fd(), Duration::from_secs(60)))
            }
            result => break assert_eq!(result.unwrap_err(), Errno::MFILE),
        }
    }
    assert!(is_readable(client.as_fd(), Duration::ZERO), "is closed");

    drop(all);
    // Nor is a descriptor closed here for which there is no number: its packet is not received.
    without_descriptors_a_packet_stays_in_its_queue();
}

fn without_descriptors_a_packet_stays_in_its_queue() {
    let (peer, socket) = pair();
    let (slow, _far) = lingering(Duration::from_secs(4));
    send(&peer, b"x", &[slow.as_fd()]);
    drop(slow);
    let socket = PeerSocket::from(socket);
    let all = take_all();
    let start = std::time::Instant::now();
    let packet = receive(&socket, &mut [0; 8]).unwrap();
    assert!(matches!(packet.passed[..], [Passed::Lost]));
    assert!(is_readable(socket.as_fd(), Duration::ZERO), "is unread");
    drop(socket);
    assert!(start.elapsed() < Duration::from_secs(2), "waited");
    drop(all);
}
