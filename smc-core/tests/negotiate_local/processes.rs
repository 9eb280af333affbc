//! Several processes, also of several users.

use std::net::TcpListener;
use std::os::unix::fs::{MetadataExt as _, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};

use rustix::net::sockopt;
use rustix::process::{Signal, Uid};
use smc_core::io::negotiate::{Credentials, Withdrawn};

use super::child::{self, Child, Where, say, stay};
use super::raw::{RawBoard, RawChannel, listen_at};
use super::scenarios::kernel_says;
use super::*;

#[test]
fn announcements_die_with_their_process() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        // Holds the port that the child announces.
        let socket = bound_to(own_address());
        let from: SocketAddr = rustix::net::getsockname(&socket)
            .unwrap()
            .try_into()
            .unwrap();
        let args = format!("{from} {}", server.at());
        let mut announcer = world.child(Where::Here, "announces", &args);
        assert_eq!(announcer.line(), "announced");
        announcer.kill();
        let _plain = connect(socket, server.at());
        assert_eq!(server.accept().await, Heard::Plain);

        // Also that of a connection that was made.
        let mut caller = world.child(Where::Here, "dials", &server.at().to_string());
        assert_eq!(caller.line(), "offered");
        caller.kill();
        assert_eq!(server.accept().await, Heard::Plain);
    });
}

#[test]
fn a_client_of_another_process_is_recognised() {
    run(|world| async move {
        let server = world.server("[::]:0");
        let to = loopback(server.port()).to_string();
        let mut caller = world.child(Where::Here, "dials", &to);
        assert_eq!(caller.line(), "offered");
        assert_eq!(server.accept().await, announced());
    });
}

#[test]
fn a_killed_listener_leaves_no_one_waiting() {
    run(|world| async move {
        let mut listener = world.child(Where::Here, "listens", "127.0.0.1:0");
        let to = listener.line().parse().unwrap();
        let client = world.client();
        // More than one, so that some are never accepted.
        let mut dialled = Vec::new();
        for _ in 0..3 {
            dialled.push(world.dial(&*client, to).await);
        }
        assert_eq!(listener.line(), "clc");
        listener.kill();
        for dialled in &mut dialled {
            until_lost(&mut **dialled.offer.as_mut().unwrap()).await;
        }
        assert_eq!(world.names().len(), 1, "it could not clean up");
        let candidate = client.look_up(to).await.unwrap();
        assert!(Announced::to(&*candidate).is_none());
        assert!(world.names().is_empty());
        assert!(client.look_up(to).await.is_err());
    });
}

#[test]
fn a_stopped_listener_holds_nobody_up() {
    run(|world| async move {
        let mut listener = world.child(Where::Here, "listens", "127.0.0.1:0");
        let to = listener.line().parse().unwrap();
        let client = world.client();
        listener.stop();
        let mut dialled = world.dial(&*client, to).await;
        let offer = dialled.offer.as_mut().unwrap();
        assert!(is_open(&mut **offer), "nobody can say more than that");
        // Whenever the client does not want to wait any longer, nobody is asked.
        assert_eq!(offer.withdraw(), Withdrawn::Free);
        listener.signal(Signal::CONT);
        assert_eq!(listener.line(), "plain");
    });
}

#[test]
fn a_stopped_client_holds_nobody_up() {
    run(|world| async move {
        let server = world.server("127.0.0.1:0");
        let mut caller = world.child(Where::Here, "dials", &server.at().to_string());
        assert_eq!(caller.line(), "offered");
        caller.stop();
        let (mut side_channel, said) = server.accept_side_channel().await;
        assert_eq!(said, PROPOSAL);
        tell(&mut *side_channel, b"ACCEPT");
        let client = world.client();
        let _dialled = world.dial(&*client, server.at()).await;
        assert_eq!(server.accept().await, announced());
        // Its end is noticed by who waits for its answer.
        caller.kill();
        assert_eq!(hear(&mut *side_channel, 1).await, b"");
    });
}

#[test]
fn users_are_kept_apart() {
    if !is_root() {
        return println!("skipped: why: needs root to become another user");
    }
    run(|world| async move {
        world.share();
        let options = SocketOptions::default();
        let strict = world.server_with(loopback(0), &options, &world.shared(&[]));
        let to = strict.at().to_string();
        let Some(mut other) = world.child_as(OTHER, "dials", &to) else {
            return;
        };
        assert_eq!(other.line(), "plain", "not let in");
        assert_eq!(strict.accept().await, Heard::Plain);
        drop(strict);

        let server = world.server_with(loopback(0), &options, &world.shared(&[OTHER]));
        let to = server.at().to_string();
        let Some(mut guest) = world.child_as(OTHER, "dials", &to) else {
            return;
        };
        assert_eq!(guest.line(), "offered");
        assert_eq!(server.accept().await, announced());

        // A guest who knows everything about somebody else's connection.
        let victim = bound_to(loopback(0));
        let from: SocketAddr = rustix::net::getsockname(&victim)
            .unwrap()
            .try_into()
            .unwrap();
        let cookie = sockopt::socket_cookie(&victim).unwrap();
        let own = world.dir.path.join("0");
        let path = own.join(names(&own).pop().unwrap());
        let args = format!("{} {from} {to} {cookie}", path.display());
        let Some(mut forger) = world.child_as(OTHER, "forges", &args) else {
            return;
        };
        assert_eq!(forger.line(), "announced");
        rustix::net::connect(&victim, &server.at()).unwrap();
        assert_eq!(server.accept().await, Heard::Plain);
    });
}

#[test]
fn listeners_of_strangers_are_not_believed() {
    if !is_root() {
        return println!("skipped: why: needs root to become another user");
    }
    run(|world| async move {
        world.share();
        let Some(mut other) = world.child_as(OTHER, "listens", "127.0.0.1:0") else {
            return;
        };
        let to: SocketAddr = other.line().parse().unwrap();
        let strict = world.shared(&[]).client(&world.rt);
        assert!(strict.look_up(to).await.is_err(), "is not looked for");
        let friendly = world.shared(&[OTHER]).client(&world.rt);
        let candidate = friendly.look_up(to).await.unwrap();
        assert_eq!(Announced::to(&*candidate).is_some(), kernel_says());

        // Root trusts a directory of its own, and still not a socket in it that is not its own.
        let args = format!(". {} 1", to.port());
        let mut impostor = world.child(Where::As(OTHER), "impersonates", &args);
        assert_eq!(impostor.line(), "published");
        fs::set_permissions(&world.dir.path, fs::Permissions::from_mode(0o755)).unwrap();
        let candidate = world.client().look_up(to).await.unwrap();
        assert!(Announced::to(&*candidate).is_none());
    });
}

#[test]
fn a_forged_name_gets_no_offer() {
    if !is_root() {
        return println!("skipped: why: needs root to become another user");
    }
    run(|world| async move {
        // A user who is allowed publishes in its directory what is root's.
        world.share();
        let theirs = world.dir.path.join(OTHER.to_string());
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(OTHER), Some(OTHER)).unwrap();
        let plain = TcpListener::bind(loopback(0)).unwrap();
        let cookie = sockopt::socket_cookie(&plain).unwrap();
        let to = plain.local_addr().unwrap();
        let args = format!("{OTHER} {} {cookie}", to.port());
        let Some(mut forger) = world.child_as(OTHER, "impersonates", &args) else {
            return;
        };
        assert_eq!(forger.line(), "published");
        let client = world.shared(&[OTHER]).client(&world.rt);
        let candidate = client.look_up(to).await.unwrap();
        let refused = Announced::try_with(bound_to(own_address()), &*candidate, PROPOSAL);
        let cause = FallbackCause::NotOwner {
            uid: OTHER,
            owner: kernel_says().then_some(0),
        };
        assert_eq!(refused.err(), Some(cause));
    });
}

#[test]
fn a_listening_socket_of_another_user_is_plain_and_says_so() {
    if !is_root() {
        return println!("skipped: why: needs root to give a socket to another user");
    }
    run(|world| async move {
        if !kernel_says() {
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
        let candidate = client.look_up(at).await.unwrap();
        let refused = Announced::try_with(bound_to(own_address()), &*candidate, PROPOSAL);
        let cause = FallbackCause::NotOwner {
            uid: 0,
            owner: Some(OTHER),
        };
        assert_eq!(refused.err(), Some(cause.clone()));
        let _plain = world.dial(&*client, at).await;
        let verdict = server.accept_stream().await.1;
        assert!(
            matches!(&verdict, Verdict::Plain(said) if *said == cause),
            "{verdict:?}"
        );
    });
}

#[test]
fn users_without_a_number_are_not_taken_for_each_other() {
    if !is_root() {
        return println!("skipped: why: needs root to become another user");
    }
    let tried = Command::new("unshare")
        .arg("--user")
        .arg("true")
        .uid(OTHER)
        .status();
    if !tried.as_ref().is_ok_and(ExitStatus::success) {
        return println!("skipped: why: no user namespaces here: {tried:?}");
    }
    run(|world| async move {
        world.share();
        let path = world.dir.path.join("socket");
        let _socket = listen_at(&path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
        // To the child both it and root are user 65534.
        let mut child = world.child(Where::Unmapped(OTHER), "judges", "");
        assert_eq!(child.line(), "belongs to user 65534");
        assert_eq!(child.line(), "permission denied");
    });
}

/// `<directory>`: says what is wrong with it, and who is behind a socket in it.
#[test]
#[ignore = "started by other tests"]
fn judges() {
    let Some(args) = child::args() else { return };
    run_in(&args[0], |world| async move {
        let options = SocketOptions::default();
        let bound = world.rt.bind(loopback(0), &options, &mut |_| Ok(()));
        let acceptor = bound.unwrap();
        let at = acceptor.local_addr().unwrap();
        let published = world.local().publish(&world.rt, at, acceptor.fd());
        say(&match published {
            Err(FallbackCause::Directory { problem, .. }) => problem.to_string(),
            other => format!("{other:?}"),
        });
        let channel = RawChannel::at(&world.dir.path.join("socket"));
        say(&match Credentials::of_peer(&channel) {
            Err(error) => error.kind().to_string(),
            Ok(peer) => peer.uid.to_string(),
        });
    });
}

/// `<directory> <from> <to>`: announces a connection and does not make it.
#[test]
#[ignore = "started by other tests"]
fn announces() {
    let Some(args) = child::args() else { return };
    let (from, to) = (args[1].parse().unwrap(), args[2].parse().unwrap());
    run_in(&args[0], |world| async move {
        let candidate = guest(&world).client(&world.rt).look_up(to).await.unwrap();
        let announced = Announced::with(bound_to(from), &*candidate, PROPOSAL);
        let mut offer = announced.unwrap().offer;
        say("announced");
        stay();
        assert_eq!(offer.withdraw(), Withdrawn::Free);
    });
}

/// `<directory> <to>`: connects, as an endpoint does.
#[test]
#[ignore = "started by other tests"]
fn dials() {
    let Some(args) = child::args() else { return };
    let to = args[1].parse().unwrap();
    run_in(&args[0], |world| async move {
        let dialled = world.dial(&*guest(&world).client(&world.rt), to).await;
        say(if dialled.offer.is_some() {
            "offered"
        } else {
            "plain"
        });
        stay();
    });
}

/// `<directory> <at>`: listens, and accepts one connection.
#[test]
#[ignore = "started by other tests"]
fn listens() {
    let Some(args) = child::args() else { return };
    let at = args[1].parse().unwrap();
    run_in(&args[0], |world| async move {
        let server = world.server_with(at, &SocketOptions::default(), &guest(&world));
        say(&server.at().to_string());
        let (_socket, mut verdict) = server.accept_stream().await;
        say(match Heard::of(&mut verdict) {
            Heard::Plain => "plain",
            _ => "clc",
        });
        // Clients in other namespaces are served as long as the runtime runs.
        world
            .rt
            .timer(world.rt.now() + Duration::from_secs(50))
            .await;
    });
}

/// `<directory> <name in it> <port> <cookie>`: publishes a listener that another process has.
#[test]
#[ignore = "started by other tests"]
fn impersonates() {
    let Some(args) = child::args() else { return };
    let netns = rustix::fs::stat("/proc/thread-self/ns/net").unwrap().st_ino;
    let (port, cookie): (u16, u64) = (args[2].parse().unwrap(), args[3].parse().unwrap());
    let name = format!("l-{port}-7f000001-{netns:x}-{cookie:x}-00000001.sock");
    let _socket = listen_at(&Path::new(&args[0]).join(&args[1]).join(name));
    say("published");
    stay();
}

/// `<directory> <socket> <from> <to> <cookie>`: announces somebody else's connection.
#[test]
#[ignore = "started by other tests"]
fn forges() {
    let Some(args) = child::args() else { return };
    let board = RawBoard::new();
    let _channel = RawChannel::at(Path::new(&args[1])).introduce(Some(board.file()));
    let (from, to) = (args[2].parse().unwrap(), args[3].parse().unwrap());
    board.announce(0, args[4].parse().unwrap(), from, to, PROPOSAL);
    say("announced");
    stay();
}

impl World {
    pub(super) fn child(&self, place: Where<'_>, test: &str, args: &str) -> Child {
        self.try_child(place, test, args).unwrap()
    }

    /// `None` if that user cannot run this program.
    fn child_as(&self, uid: u32, test: &str, args: &str) -> Option<Child> {
        let child = self.try_child(Where::As(uid), test, args);
        child
            .inspect_err(|error| println!("skipped: why: user {uid} cannot start: {error}"))
            .ok()
    }

    fn try_child(&self, place: Where<'_>, test: &str, args: &str) -> io::Result<Child> {
        let dir = self.dir.path.display().to_string();
        Child::try_start(place, &format!("processes::{test}"), &[&dir, args])
    }

    /// Lets users share the directory.
    fn share(&self) {
        fs::set_permissions(&self.dir.path, fs::Permissions::from_mode(0o1777)).unwrap();
    }
}

/// Runs a scenario in a directory that belongs to the parent.
fn run_in<F: Future<Output = ()>>(dir: &str, scenario: impl FnOnce(World) -> F) {
    run_once(TempDir::of_parent(dir), scenario);
}

/// Where a process finds its parent: as another user in a directory that they share.
fn guest(world: &World) -> Local {
    let owner = fs::metadata(&world.dir.path).unwrap().uid();
    match owner == rustix::process::geteuid().as_raw() {
        true => world.local(),
        false => world.shared(&[owner]),
    }
}

/// A user without any rights, who need not have an account.
const OTHER: u32 = 990;
