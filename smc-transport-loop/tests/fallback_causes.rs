//! The causes that streams report for TCP, each by an event that really happened.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::iter::repeat_with;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::sync::Arc;

use common::{builder, device, local, shared_dir, start, without_device};
use rustix::io::Errno;
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, apply_filter_all_threads};
use smc::{Builder, ConnectOptions};
use smc::{Domain, Error, Policy, Stream};
use smc_testkit::on::On;
use smc_testkit::process::{Child, ENTRY, Role, command};
use smc_testkit::resources::{limit_descriptors, limit_file_size};
use smc_testkit::streams::{connect, connect_smc, listen, pair};
use smc_testkit::user::is_root;
use smc_transport_loop::LoopDevice;
use tempfile::TempDir;

/// What helpers do: connect to a listener of the test and report why the stream is TCP.
#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "device without descriptors" => {
            limit_descriptors(next_descriptor());
            return role.send(device(role.dir()).build().unwrap_err());
        }
        "listener" => return On::TokioAlone.run_unbounded(listen_with_few_descriptors(role)),
        _ => {}
    }
    let to: SocketAddr = role.parse();
    // Without a bound, which would take descriptors of its own; here the test waits.
    On::Tokio.run_unbounded(async {
        let shared = |users: Option<u32>| {
            let domain = Domain::shared(role.dir(), users);
            let device = LoopDevice::builder()
                .domain(domain.clone())
                .build()
                .unwrap();
            On::Tokio
                .endpoint()
                .negotiation(local(domain))
                .device(Arc::new(device))
        };
        let client = match role.name() {
            "a user who is not listed" => shared(None),
            "a friend of root" => shared(Some(0)),
            _ => builder(On::Tokio, true, role.dir()),
        };
        let client = client.build().unwrap();
        if role.name() == "small files" {
            limit_file_size(4096);
        } else if let Some(left) = role.name().strip_suffix(DESCRIPTORS_LEFT) {
            limit_descriptors(next_descriptor() + left.parse::<u64>().unwrap());
        } else if let Some(name) = role.name().strip_prefix(DENIED) {
            if let Err(error) = deny(name) {
                return role.send(format!("skipped: {error}"));
            }
        }
        match client.connect(to).await {
            Ok(stream) => role.send(why(&stream)),
            Err(error) => role.send(error),
        }
    });
}

/// From now on the system refuses this call with `EPERM`, as seccomp filters of containers do.
fn deny(name: &str) -> Result<(), seccompiler::Error> {
    let call = match name {
        "memfd_create" => libc::SYS_memfd_create,
        "sendmsg" => libc::SYS_sendmsg,
        "eventfd2" => libc::SYS_eventfd2,
        other => panic!("no call {other}"),
    };
    let eperm = SeccompAction::Errno(Errno::PERM.raw_os_error().unsigned_abs());
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let calls = [(call, Vec::new())].into();
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, eperm, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    apply_filter_all_threads(&program)
}

/// Accepts connections with so few more descriptors as the test says, and reports its address.
async fn listen_with_few_descriptors(role: Role) {
    let server = builder(On::TokioAlone, true, role.dir()).build().unwrap();
    let listener = listen(&server).await;
    role.send(listener.local_addr().unwrap());
    limit_descriptors(next_descriptor() + role.parse::<u64>());
    role.send("limited");
    let mut accepted = Vec::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => accepted.push(stream),
            Err(error) => println!("{error}"),
        }
    }
}

/// The lowest number of a descriptor that is free.
fn next_descriptor() -> u64 {
    let file = std::fs::File::open("/").unwrap();
    u64::try_from(std::os::fd::AsRawFd::as_raw_fd(&file)).unwrap()
}

#[test]
fn each_event_has_its_cause() {
    let plain = |change: fn(Builder) -> Builder| change;
    // Name, the client's and the listener's settings, and what their streams say.
    let rows = [
        (
            "a policy of the client",
            plain(|client| client.policy(Policy::Never)),
            plain(|server| server),
            "0x03060000 policy is to use TCP",
            "0x03010000 client made no offer for this connection, or withdrew it",
        ),
        (
            "a policy of the listener",
            |client| client,
            |server| server.policy(Policy::Never),
            "0x03010000 listener refused the offer: policy is to use TCP",
            "0x03060000 policy is to use TCP",
        ),
        (
            "no EID in common",
            |client| client.seid(false).ueid("ONE".parse().unwrap()),
            |server| server.seid(false).ueid("TWO".parse().unwrap()),
            "0x05000000/0x03030001 peer declined: \
             only SMC-D is offered and no device or EID matches",
            "0x03030001 no EID in common",
        ),
    ];
    for (name, client, server, ours, theirs) in rows {
        println!("{name}");
        let dir = TempDir::new().unwrap();
        On::Tokio.run(async {
            let with_device = || builder(On::Tokio, true, dir.path());
            let (client, server) = (client(with_device()), server(with_device()));
            assert_eq!(both(client, server).await, [ours, theirs]);
        });
    }
}

#[test]
fn a_memory_limit_is_named_with_what_was_needed_and_what_is_left() {
    let dir = TempDir::new().unwrap();
    On::Tokio.run(async {
        let with_device = || builder(On::Tokio, true, dir.path());
        let limited = with_device().memory_limit(1 << 20);
        let reported = both(limited, with_device()).await;
        // A small buffer of its own, and its server's twice.
        let begin = "0x01010000 register the receive buffer: 8404992 bytes are needed and ";
        assert!(reported[0].starts_with(begin), "{reported:?}");
        let end = " are left: memory limit is 1048576";
        assert!(reported[0].ends_with(end), "{reported:?}");
    });
}

#[test]
fn a_directory_whose_parent_is_missing_is_named_and_neither_is_made() {
    let dir = TempDir::new().unwrap();
    let (parent, path) = (dir.path().join("no"), dir.path().join("no/such"));
    let error = device(&path).build();
    let text = format!(
        "runtime directory {} cannot be used: make: no such file or directory (os error 2)",
        path.display()
    );
    assert_eq!(error.unwrap_err().to_string(), text);
    On::Tokio.run(async {
        let device = device(dir.path()).build();
        let server = without_device(On::Tokio, &path).device(Arc::new(device.unwrap()));
        let reported = both(builder(On::Tokio, true, dir.path()), server).await;
        assert_eq!(reported[1], format!("0x03010000 {text}"));
    });
    assert!(!parent.exists());
}

#[test]
fn an_endpoint_without_a_device_reports_it() {
    let dir = TempDir::new().unwrap();
    On::Tokio.run(async {
        let with_device = || builder(On::Tokio, true, dir.path());
        let reported = both(with_device(), without_device(On::Tokio, dir.path())).await;
        assert_eq!(reported[1], "0x03030003 endpoint has no device that works");
        let reported = both(without_device(On::Tokio, dir.path()), with_device()).await;
        assert_eq!(reported[0], "0x03030000 endpoint has no device that works");
        let text = "0x03010000 client made no offer for this connection, or withdrew it";
        assert_eq!(reported[1], text);
    });
}

#[test]
fn a_listener_without_a_buffer_reports_it_and_its_client_has_the_code() {
    let dir = TempDir::new().unwrap();
    On::Tokio.run(async {
        let device = device(dir.path()).max_dmbs(1).build().unwrap();
        let server = without_device(On::Tokio, dir.path()).device(Arc::new(device));
        let (server, client) = (
            server.build().unwrap(),
            builder(On::Tokio, true, dir.path()),
        );
        let (client, listener) = (client.build().unwrap(), listen(&server).await);
        // It has the one buffer.
        let _held = connect_smc(&client, &listener).await;
        let (ours, theirs) = connect(&client, &listener).await;
        let text = "0x05000000/0x030d0000 peer declined: the device cannot register more buffers";
        assert_eq!(why(&ours), text);
        let text = "0x030d0000 register the receive buffer: no buffer left on the device";
        assert_eq!(why(&theirs), text);
    });
}

#[test]
fn a_plain_server_is_the_usual_case_and_a_missing_directory_is_not() {
    let dir = TempDir::new().unwrap();
    On::Tokio.run(async {
        let server = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let at = server.local_addr().unwrap();
        let client = builder(On::Tokio, true, dir.path()).build().unwrap();
        let text = format!(
            "0x03010000 no SMC listener is announced at this address in {}",
            dir.path().display()
        );
        assert_eq!(why(&client.connect(at).await.unwrap()), text);
        let options = ConnectOptions::new().policy(Policy::Require);
        let error = client.connect_with(at, &options).await.unwrap_err();
        assert!(matches!(error, Error::Declined(_)), "{error:?}");
        assert_eq!(
            error.to_string(),
            format!("SMC required but declined: {text}")
        );

        let open = TempDir::new().unwrap();
        std::fs::set_permissions(open.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
        let client = without_device(On::Tokio, open.path());
        let device = device(dir.path()).build();
        let client = client.device(Arc::new(device.unwrap())).build().unwrap();
        let text = format!(
            "0x03010000 runtime directory {} can be changed by other users: mode 0777",
            open.path().display()
        );
        assert_eq!(why(&client.connect(at).await.unwrap()), text);
    });
}

#[test]
fn a_client_that_may_not_make_a_file_long_enough_names_the_limit() {
    let dir = TempDir::new().unwrap();
    let helper = start("small files", &dir);
    let reported = reported_by(helper, Domain::directory(dir.path()));
    assert!(reported.starts_with("0x03010000 "), "{reported}");
    assert!(reported.contains("RLIMIT_FSIZE is 4096"), "{reported}");
}

#[test]
fn a_client_that_has_too_few_descriptors_names_the_limit_wherever_it_meets_it() {
    let dir = TempDir::new().unwrap();
    let mut others = Vec::new();
    for left in 0.. {
        assert!(left < 100, "never enough");
        let helper = start(&format!("{left}{DESCRIPTORS_LEFT}"), &dir);
        let reported = reported_by(helper, Domain::directory(dir.path()));
        if reported.starts_with("SMC-D") {
            break;
        }
        let path = dir.path().display().to_string();
        let has_path = !reported.contains("connect to peer device") || reported.contains(&path);
        if !reported.contains("(os error 24)") || !has_path {
            others.push(format!("with {left} left: {reported}"));
        }
    }
    assert!(others.is_empty(), "{others:#?}");
}

#[test]
fn a_client_whose_calls_a_seccomp_filter_denies_names_the_call() {
    let rows = [
        ("memfd_create", "0x03010000 create memory for the listener"),
        ("sendmsg", "0x03010000 send to the listener's socket"),
        (
            "eventfd2",
            "0x03030007 reach the peer's device: make eventfd",
        ),
    ];
    for (name, begin) in rows {
        let dir = TempDir::new().unwrap();
        // The server can notice first that the client's device has no eventfd for it, and declines.
        let report = || {
            let helper = start(&format!("{DENIED}{name}"), &dir);
            reported_by(helper, Domain::directory(dir.path()))
        };
        let mut reports = repeat_with(report).take(100);
        let reported = reports.find(|reported| !reported.contains("peer declined"));
        let reported = reported.expect("a report of the client's own");
        if reported.starts_with("skipped: ") {
            return println!("{reported}");
        }
        assert!(reported.starts_with(begin), "{name}: {reported}");
        let end = ": operation not permitted (os error 1)";
        assert!(reported.ends_with(end), "{name}: {reported}");
    }
}

/// What clients report of a listener with ever more descriptors, until it has enough.
fn reports_of_a_listener_with_few_descriptors() -> Vec<String> {
    let report = |left: usize| {
        let dir = TempDir::new().unwrap();
        let mut helper = start("listener", &dir);
        let at: SocketAddr = helper.parse();
        helper.send(left);
        assert_eq!(helper.recv(), "limited");
        On::Tokio.run(async {
            let client = builder(On::Tokio, true, dir.path()).build().unwrap();
            why(&client.connect(at).await.unwrap())
        })
    };
    let reports = (0..100).map(report);
    let reported: Vec<_> = reports.take_while(|it| !it.starts_with("SMC-D")).collect();
    assert!(reported.len() < 100, "never enough");
    reported
}

#[test]
fn a_listener_that_has_too_few_descriptors_is_named_by_its_client() {
    // With one, which the channel of the client takes, and none for its memory. The TCP connection
    // may come first and take it.
    let refused = "0x03010000 listener refused the offer: no descriptor left".to_owned();
    let mut rounds = repeat_with(reports_of_a_listener_with_few_descriptors).take(20);
    assert!(rounds.any(|reported| reported.contains(&refused)));
}

#[test]
fn a_device_that_cannot_be_made_reports_the_cause() {
    let dir = TempDir::new().unwrap();
    let mut helper = start("device without descriptors", &dir);
    let reported = helper.recv();
    let end = "too many open files (os error 24), RLIMIT_NOFILE is";
    assert!(reported.contains(end), "{reported}");

    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = device(&file).build();
    let text = format!("runtime directory {} is not a directory", file.display());
    assert_eq!(error.unwrap_err().to_string(), text);
}

#[test]
fn a_user_that_is_not_allowed_gets_the_cause() {
    if !is_root("start processes of other users") {
        return;
    }
    let dir = shared_dir();
    let start = |role| {
        let mut command = command(ENTRY);
        command.uid(UNLISTED);
        Child::spawn(command, role, dir.path().display())
    };
    let shared = |users: &[u32]| Domain::shared(dir.path(), users.iter().copied());
    let other = UNLISTED + 1;
    let reported = reported_by(start("a friend of root"), shared(&[other]));
    let refused = format!("0x03010000 listener refused the offer: user {UNLISTED} is not allowed");
    assert_eq!(reported, refused);
    let reported = reported_by(start("a user who is not listed"), shared(&[other]));
    let searched = dir.path().join(UNLISTED.to_string());
    assert!(reported.starts_with("0x03010000 "), "{reported}");
    assert!(
        reported.ends_with(&searched.display().to_string()),
        "{reported}"
    );
    let closed = dir.path().join("0");
    std::fs::remove_dir(&closed).unwrap();
    let reported = reported_by(start("a friend of root"), shared(&[]));
    assert!(
        reported.contains("permission denied (os error 13)"),
        "{reported}"
    );
    assert!(
        reported.contains(&closed.display().to_string()),
        "{reported}"
    );
}

/// The report of a helper that connects to a listener here.
fn reported_by(mut helper: Child, domain: Domain) -> String {
    On::Tokio.run(async {
        let device = LoopDevice::builder().domain(domain.clone()).build();
        let server = On::Tokio.endpoint().negotiation(local(domain));
        let server = server.device(Arc::new(device.unwrap())).build().unwrap();
        let listener = listen(&server).await;
        helper.send(listener.local_addr().unwrap());
        let accepting = tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let reported = tokio::task::spawn_blocking(move || helper.recv());
        let reported = reported.await.unwrap();
        accepting.abort();
        reported
    })
}

/// Connects once; the report of both streams.
async fn both(client: Builder, server: Builder) -> [String; 2] {
    let (ours, theirs) = pair(&client.build().unwrap(), &server.build().unwrap()).await;
    [why(&ours), why(&theirs)]
}

fn why(stream: &Stream) -> String {
    match stream.fallback_reason() {
        Some(reason) => reason.to_string(),
        None => stream.mode().to_string(),
    }
}

/// Behind the number of descriptors that a helper may still open.
const DESCRIPTORS_LEFT: &str = " descriptors left";

/// Before the call that a helper may not make.
const DENIED: &str = "denied ";

/// A user without an account.
const UNLISTED: u32 = 54_321;
