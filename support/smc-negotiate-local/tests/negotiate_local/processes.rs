//! Several processes, also of several users.

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::process::{Command, ExitStatus};

use rustix::net::sockopt;
use rustix::process::Uid;
use smc_core::negotiate::{Credentials, Withdrawn};
use smc_testkit::resources::limit_descriptors;
use smc_testkit::unix::listen_at;
use smc_testkit::user::run_as;

use super::raw::{RawChannel, RawMailbox};
use super::*;

#[test]
fn announcements_die_with_their_process() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        // Holds the port that the child announces.
        let socket = bound_to(own_address());
        let from = address_of(&socket);
        let args = format!("{from} {}", server.at());
        let mut child = world.child(Placement::Same, "announces", &args);
        assert_eq!(child.recv(), "announced");
        child.kill();
        let _plain = connect(socket, server.at());
        assert_eq!(server.accept_one().await, Accepted::Plain);

        // Also that of a connection that was made.
        let mut caller = world.child(Placement::Same, "dials", &server.at().to_string());
        assert_eq!(caller.recv(), "offered");
        caller.kill();
        assert_eq!(server.accept_one().await, Accepted::Plain);
    });
}

#[test]
fn a_client_of_another_process_is_recognised() {
    run(|world| async move {
        let server = world.server("[::]:0");
        let to = loopback(server.port()).to_string();
        let mut caller = world.child(Placement::Same, "dials", &to);
        assert_eq!(caller.recv(), "offered");
        assert_eq!(server.accept_one().await, announced());
    });
}

#[test]
fn a_killed_listener_leaves_no_client_waiting() {
    run(|world| async move {
        let mut listener = world.child(Placement::Same, "listens", "127.0.0.1:0");
        let to = listener.parse();
        let client = world.client();
        // More than one, so that some are never accepted.
        let mut connection = Vec::new();
        for _ in 0..3 {
            connection.push(world.dial(&client, to).await);
        }
        assert_eq!(listener.recv(), "clc");
        listener.kill();
        for connection in &mut connection {
            until_lost(&mut **connection.offer.as_mut().unwrap()).await;
        }
        assert_eq!(world.names().len(), 1, "it could not clean up");
        let candidate = client.look_up(&world.rt, to).await.unwrap();
        assert!(Announced::to(&candidate).is_none());
        // By a client, on another thread.
        world.until(|| world.names().is_empty()).await;
        assert!(client.look_up(&world.rt, to).await.is_err());
    });
}

#[test]
fn a_stopped_listener_does_not_block_its_peer() {
    run(|world| async move {
        let mut listener = world.child(Placement::Same, "listens", "127.0.0.1:0");
        let to = listener.parse();
        let client = world.client();
        listener.stop();
        let mut connection = world.dial(&client, to).await;
        let offer = connection.offer.as_mut().unwrap();
        assert!(is_open(&mut **offer), "its state is not known");
        // A client can withdraw at any time, without the listener.
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        listener.resume();
        assert_eq!(listener.recv(), "plain");
    });
}

#[test]
fn a_stopped_client_does_not_block_its_peer() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let mut caller = world.child(Placement::Same, "dials", &server.at().to_string());
        assert_eq!(caller.recv(), "offered");
        caller.stop();
        let (mut side_channel, received) = server.accept_side_channel().await;
        assert_eq!(received, PROPOSAL);
        send(&mut *side_channel, b"ACCEPT");
        let client = world.client();
        world.assert_announced(&client, &server).await;
        // Its end wakes the task that waits for its answer.
        caller.kill();
        assert_eq!(read_exact(&mut *side_channel, 1).await, b"");
    });
}

#[test]
fn users_are_kept_apart() {
    run_shared("become another user", |world| async move {
        let options = SocketOptions::default();
        let strict = world.server_with(loopback(0), &options, &world.shared(&[]));
        let to = strict.at().to_string();
        let mut other = world.child(Placement::As(OTHER), "dials", &to);
        assert_eq!(other.recv(), "plain", "not let in");
        assert_eq!(strict.accept_one().await, Accepted::Plain);
        drop(strict);

        let server = world.server_with(loopback(0), &options, &world.shared(&[OTHER]));
        let to = server.at().to_string();
        let mut guest = world.child(Placement::As(OTHER), "dials", &to);
        assert_eq!(guest.recv(), "offered");
        assert_eq!(server.accept_one().await, announced());

        // A user who knows all properties of another user's connection.
        let victim = bound_to(loopback(0));
        let from = address_of(&victim);
        let cookie = sockopt::socket_cookie(&victim).unwrap();
        let own = world.dir.path.join("0");
        let path = own.join(names(&own).pop().unwrap());
        let args = format!("{} {from} {to} {cookie}", path.display());
        let mut forger = world.child(Placement::As(OTHER), "forges", &args);
        assert_eq!(forger.recv(), "announced");
        rustix::net::connect(&victim, &server.at()).unwrap();
        let verdict = server.accept().await.1;
        let cause = FallbackCause::Refused(Refusal::Identity);
        assert!(
            matches!(&verdict, Negotiated::Plain(received) if *received == cause),
            "{verdict:?}"
        );
    });
}

#[test]
fn connections_of_users_who_are_not_allowed_leave_the_executor_to_other_tasks() {
    run_shared("become another user", |world| async move {
        let options = SocketOptions::default();
        let _server = world.server_with(loopback(0), &options, &world.shared(&[OTHER]));
        let own = world.dir.path.join("0");
        let path = own.join(names(&own).pop().unwrap());
        let fill = |_| {
            let channel = RawChannel::at(&path);
            (0..20).for_each(|_| channel.send(b"x", None));
            channel
        };
        let flood: Vec<_> = run_as(NOT_ALLOWED, || (0..500).map(fill).collect()).unwrap();
        // Another task of the same executor that waits for its timer all the time.
        let mut turns = 0;
        while !flood.iter().all(RawChannel::is_ended) {
            world.pause().await;
            turns += 1;
        }
        assert!(turns >= 5, "only {turns} turns while they were refused");
    });
}

#[test]
fn channels_of_a_user_to_all_listeners_of_a_process_leave_descriptors_to_tcp_clients() {
    run_shared("become another user", |world| async move {
        // Counts descriptors, so it needs a process without other tests.
        let mut victim = world.child(Placement::Same, "serves", "");
        let to: Vec<SocketAddr> = (0..LISTENERS).map(|_| victim.parse()).collect();
        let own = world.dir.path.join("0");
        let flood = || {
            let mailbox = RawMailbox::new();
            let channel = |name| RawChannel::at(&own.join(name)).send_hello(Some(mailbox.file()));
            let names = names(&own).into_iter();
            let channels = names.flat_map(|name| vec![name; CHANNELS]).map(channel);
            channels.collect::<Vec<_>>()
        };
        let channels = run_as(OTHER, flood).unwrap();
        let open = || channels.iter().filter(|channel| !channel.is_ended());
        let mut connect_by_tcp = || {
            let clients = to.iter().flat_map(|to| [*to; TCP_CLIENTS]);
            let _clients: Vec<_> = clients.map(TcpStream::connect).collect();
            assert_eq!(victim.recv(), "accepted all TCP clients");
        };
        // While the channels come, and while the user has as many as it can have.
        connect_by_tcp();
        world.until(|| open().count() <= DESCRIPTORS / 8).await;
        connect_by_tcp();
        assert_eq!(open().count(), DESCRIPTORS / 8);
        victim.kill();
    });
}

#[test]
fn listeners_of_users_who_are_not_allowed_are_not_believed() {
    run_shared("become another user", |world| async move {
        let mut other = world.child(Placement::As(OTHER), "listens", "127.0.0.1:0");
        let to: SocketAddr = other.parse();
        let strict = world.shared(&[]);
        assert!(
            strict.look_up(&world.rt, to).await.is_err(),
            "is not looked for"
        );
        let friendly = world.shared(&[OTHER]);
        let candidate = friendly.look_up(&world.rt, to).await.ok();
        let offered = candidate.and_then(|candidate| Announced::to(&candidate));
        assert_eq!(offered.is_some(), has_sock_diag());

        // Root trusts a directory of its own, and still not a socket in it that is not its own.
        let plain = TcpListener::bind(loopback(0)).unwrap();
        let cookie = sockopt::socket_cookie(&plain).unwrap();
        let to = plain.local_addr().unwrap();
        let args = format!(". {} {cookie}", to.port());
        let mut impostor = world.child(Placement::As(OTHER), "impersonates", &args);
        assert_eq!(impostor.recv(), "published");
        fs::set_permissions(&world.dir.path, fs::Permissions::from_mode(0o755)).unwrap();
        let candidate = world.client().look_up(&world.rt, to).await.unwrap();
        let refused = Announced::try_with(bound_to(own_address()), &candidate, PROPOSAL);
        assert_eq!(refused.err(), Some(FallbackCause::User { uid: OTHER }));
    });
}

#[test]
fn a_forged_name_gets_no_offer() {
    run_shared("become another user", |world| async move {
        // A user who is allowed publishes in its directory what is root's.
        let theirs = world.dir.path.join(OTHER.to_string());
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(OTHER), Some(OTHER)).unwrap();
        let plain = TcpListener::bind(loopback(0)).unwrap();
        let cookie = sockopt::socket_cookie(&plain).unwrap();
        let to = plain.local_addr().unwrap();
        let args = format!("{OTHER} {} {cookie}", to.port());
        let mut forger = world.child(Placement::As(OTHER), "impersonates", &args);
        assert_eq!(forger.recv(), "published");
        let client = world.shared(&[OTHER]);
        // Looked up in the directory of the owner of the socket alone.
        let found = client.look_up(&world.rt, to).await;
        let searched = [world.dir.path.join("0")].into();
        let cause = FallbackCause::NotAnnounced { searched };
        assert_eq!(found.map(|_| ()), Err(cause));
    });
}

#[test]
fn a_listening_socket_of_another_user_is_plain_with_its_cause() {
    if !is_root("give a socket to another user") {
        return;
    }
    run(|world| async move {
        if !has_sock_diag() {
            return println!("skipped: why: no sock_diag here");
        }
        let options = SocketOptions::default();
        let acceptor = world
            .rt
            .bind(loopback(0), &options, &mut |_| Ok(()))
            .unwrap();
        // As a service has it whose manager, of another user, has made it.
        rustix::fs::fchown(acceptor.fd().unwrap(), Some(Uid::from_raw(OTHER)), None).unwrap();
        let at = acceptor.local_addr().unwrap();
        let published = world.local().publish(&world.rt, at, acceptor.fd()).unwrap();
        let server = Server {
            acceptor,
            published,
        };
        let client = world.client();
        let candidate = client.look_up(&world.rt, at).await.unwrap();
        let refused = Announced::try_with(bound_to(own_address()), &candidate, PROPOSAL);
        let cause = FallbackCause::NotOwner {
            uid: 0,
            owner: Some(OTHER),
        };
        assert_eq!(refused.err(), Some(cause.clone()));
        let _plain = world.dial(&client, at).await;
        let verdict = server.accept().await.1;
        assert!(
            matches!(&verdict, Negotiated::Plain(received) if *received == cause),
            "{verdict:?}"
        );
    });
}

#[test]
fn users_without_a_number_are_not_taken_for_each_other() {
    if !is_root("become another user") {
        return;
    }
    let tried = Command::new("unshare")
        .arg("--user")
        .arg("true")
        .uid(OTHER)
        .status();
    if !tried.as_ref().is_ok_and(ExitStatus::success) {
        return println!("skipped: why: no user namespaces here: {tried:?}");
    }
    run_shared("become another user", |world| async move {
        let path = world.dir.path.join("socket");
        let _socket = listen_at(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        // To the child both it and root are user 65534.
        let mut child = world.child(Placement::Unmapped(OTHER), "inspects", "");
        assert_eq!(child.recv(), "belongs to user 65534");
        assert_eq!(child.recv(), "permission denied");
    });
}

/// `<directory>`: reports what is wrong with it, and the owner of a socket in it.
pub(super) fn inspects(role: &Role) {
    run_in(role.dir(), |world| async move {
        let options = SocketOptions::default();
        let bound = world.rt.bind(loopback(0), &options, &mut |_| Ok(()));
        let acceptor = bound.unwrap();
        let at = acceptor.local_addr().unwrap();
        let published = world.local().publish(&world.rt, at, acceptor.fd());
        role.send(match published {
            Err(FallbackCause::Directory(error)) => error.problem.to_string(),
            other => format!("{other:?}"),
        });
        let channel = RawChannel::at(&world.dir.path.join("socket"));
        role.send(match Credentials::of_peer(&channel) {
            Err(error) => error.kind().to_string(),
            Ok(peer) => peer.uid.to_string(),
        });
    });
}

/// `<directory> <from> <to>`: announces a connection and does not make it.
pub(super) fn announces(role: &Role) {
    let (from, to) = (role.arg(1).parse().unwrap(), role.arg(2).parse().unwrap());
    run_in(role.dir(), |world| async move {
        let candidate = guest(&world).look_up(&world.rt, to).await.unwrap();
        let announced = Announced::with(bound_to(from), &candidate, PROPOSAL);
        let mut offer = announced.unwrap().offer;
        role.send("announced");
        role.stay();
        assert_eq!(offer.withdraw(), Withdrawn::Free);
    });
}

/// `<directory> <to>`: connects, as an endpoint does.
pub(super) fn dials(role: &Role) {
    let to = role.arg(1).parse().unwrap();
    run_in(role.dir(), |world| async move {
        let connection = world.dial(&guest(&world), to).await;
        role.send(if connection.offer.is_some() {
            "offered"
        } else {
            "plain"
        });
        role.stay();
    });
}

/// `<directory> <at>`: listens, and accepts one connection.
pub(super) fn listens(role: &Role) {
    let at = role.arg(1).parse().unwrap();
    run_in(role.dir(), |world| async move {
        let server = world.server_with(at, &SocketOptions::default(), &guest(&world));
        role.send(server.at().to_string());
        let (_socket, mut verdict) = server.accept().await;
        role.send(match Accepted::of(&mut verdict) {
            Accepted::Plain => "plain",
            _ => "clc",
        });
        // Clients in other namespaces are served as long as the runtime runs.
        world
            .rt
            .timer(world.rt.now() + Duration::from_secs(50))
            .await;
    });
}

/// `<directory>`: has few descriptors and several listeners, and reports each time that each of
/// them has accepted its TCP clients.
pub(super) fn serves(role: &Role) {
    limit_descriptors(DESCRIPTORS as u64);
    run_in(role.dir(), |world| async move {
        let (options, local) = (SocketOptions::default(), world.shared(&[OTHER]));
        let server = |_| world.server_with(loopback(0), &options, &local);
        let servers: Vec<_> = (0..LISTENERS).map(server).collect();
        servers.iter().for_each(|server| role.send(server.at()));
        loop {
            let mut accepted = Vec::new();
            for server in &servers {
                for _ in 0..TCP_CLIENTS {
                    accepted.push(server.accept().await);
                }
            }
            role.send("accepted all TCP clients");
        }
    });
}

/// `<directory> <name in it> <port> <cookie>`: publishes a listener that another process has.
pub(super) fn impersonates(role: &Role) {
    let netns = smc_ipc::netns::current().unwrap();
    let (port, cookie): (u16, u64) = (role.arg(2).parse().unwrap(), role.arg(3).parse().unwrap());
    let name = format!("l-{port}-7f000001-{netns:x}-{cookie:x}-00000001.sock");
    let _socket = listen_at(role.dir().join(role.arg(1)).join(name));
    role.send("published");
    role.stay();
}

/// `<directory> <socket> <from> <to> <cookie>`: announces the connection of another process.
pub(super) fn forges(role: &Role) {
    let mailbox = RawMailbox::new();
    let _channel = RawChannel::at(Path::new(role.arg(1))).send_hello(Some(mailbox.file()));
    let (from, to) = (role.arg(2).parse().unwrap(), role.arg(3).parse().unwrap());
    mailbox.announce(0, role.arg(4).parse().unwrap(), from, to, PROPOSAL);
    role.send("announced");
    role.stay();
}

impl World {
    pub(super) fn child(&self, place: Placement<'_>, test: &str, args: &str) -> Child {
        start(place, test, &self.dir.path, args)
    }
}

/// Runs a scenario in a directory that belongs to the parent.
fn run_in<F: Future<Output = ()>>(dir: &Path, scenario: impl FnOnce(World) -> F) {
    run_once(TempDir::of_parent(dir), scenario);
}

/// Placement a process finds its parent: as another user in a directory that they share.
fn guest(world: &World) -> Local {
    let owner = fs::metadata(&world.dir.path).unwrap().uid();
    match owner == rustix::process::geteuid().as_raw() {
        true => world.local(),
        false => world.shared(&[owner]),
    }
}

/// What a process may have, its listeners, and the channels and TCP clients of each of them: more
/// channels than there are descriptors, and still fewer than one listener accepts of a user.
const DESCRIPTORS: usize = 512;
const LISTENERS: usize = 4;
const CHANNELS: usize = 150;
const TCP_CLIENTS: usize = 8;

/// A user without any rights, who need not have an account.
const OTHER: u32 = 990;

/// A user who is in no list.
const NOT_ALLOWED: u32 = 991;
