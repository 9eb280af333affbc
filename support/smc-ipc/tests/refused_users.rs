//! Users who are not allowed: a thread that accepts makes no call on the connection that wakes its
//! peer.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs::Permissions;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType, connect, recv, socket};
use smc_ipc::Domain;
use smc_ipc::channel::send;
use smc_ipc::runtime_dir::Publication;
use smc_testkit::slow_close::slow_to_close;
use smc_testkit::user::run_as;

const ALLOWED: u32 = 990;
const NOT_ALLOWED: u32 = 991;

fn connect_to(path: &Path) -> OwnedFd {
    let channel = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    connect(&channel, &SocketAddrUnix::new(path).unwrap()).unwrap();
    channel
}

/// Connects, and passes a descriptor whose closing waits.
fn connect_with_slow(path: &Path) -> (OwnedFd, TcpStream) {
    let channel = connect_to(path);
    let (slow, far) = slow_to_close();
    send(&channel, b"x", &[slow.as_fd()]).unwrap();
    (channel, far)
}

fn is_readable(socket: &OwnedFd, time: Duration) -> bool {
    let time = Timespec::try_from(time).unwrap();
    poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&time)) == Ok(1)
}

#[test]
fn connections_of_users_who_are_not_allowed_are_ended_on_the_closing_threads() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: why: needs root to become another user");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let domain = Domain::shared(dir.path(), [ALLOWED]);
    let mut publication = Publication::new(domain, "name.sock".into()).unwrap();
    publication.set_refusal(|uid| format!("not {uid}").into_bytes());
    let path = publication.directories().next().unwrap().join("name.sock");
    let as_refused = || run_as(NOT_ALLOWED, || connect_to(&path)).unwrap();
    let accept = |publication: &mut Publication| {
        publication.handle_events();
        publication.accept().map(drop)
    };
    // The close of as many connections waits as there are threads.
    let (mut blocking, mut far) = (Vec::new(), Vec::new());
    for _ in 0..4 {
        let (client, other_end) = run_as(NOT_ALLOWED, || connect_with_slow(&path)).unwrap();
        assert_eq!(accept(&mut publication), Err(Errno::CONNABORTED));
        blocking.push(client);
        far.push(other_end);
    }
    let refused = as_refused();
    assert_eq!(accept(&mut publication), Err(Errno::CONNABORTED));
    let _allowed = run_as(ALLOWED, || connect_to(&path)).unwrap();
    assert_eq!(accept(&mut publication), Ok(()));
    // One that is not accepted ends with the listener.
    let left = as_refused();
    drop(publication);
    for client in [&refused, &left] {
        assert!(
            !is_readable(client, Duration::ZERO),
            "it waits for a thread"
        );
    }
    drop(far);
    assert!(is_readable(&refused, Duration::from_secs(60)));
    let mut bytes = [0; 16];
    let (len, _) = recv(&refused, &mut bytes, RecvFlags::empty()).unwrap();
    assert_eq!(&bytes[..len], b"not 991");
    assert!(is_readable(&refused, Duration::from_secs(60)));
    assert_eq!(recv(&refused, &mut bytes, RecvFlags::empty()).unwrap().1, 0);
    assert!(is_readable(&left, Duration::from_secs(60)));
}
