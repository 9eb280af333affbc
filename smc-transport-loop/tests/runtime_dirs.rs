//! The runtime directories of processes, with real streams between real processes.
//!
//! Each scenario has `/tmp` and `/run` of its own, in a mount namespace.

mod common;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use common::local;
use rustix::io::ioctl_fionbio;
use rustix::net::accept;
use smc::{Domain, Endpoint};
use smc_testkit::on::On;
use smc_testkit::process::{Child, ENTRY, Role, command, command_by};
use smc_testkit::streams::listen;
use smc_testkit::unix::listen_at;
use smc_testkit::user::is_root;
use smc_testkit::wait::until;
use smc_transport_loop::LoopDevice;

/// Users that need not have accounts.
const USER: u32 = 990;
const OTHER: u32 = 991;

/// Users who list each other, and one whom they do not list.
const FIRST: u32 = 1001;
const SECOND: u32 = 1002;
const UNLISTED: u32 = 1003;
/// Listed as well, last.
const LAST: u32 = 1004;

/// The directory that they share.
const SHARED: &str = "/run/shared";

const SMC: &str = "SMC-D";
/// Neither end finds the other.
const NOT_FOUND: &str = "0x03010000";

#[test]
fn helper_process() {
    let Some(role) = Role::current() else { return };
    match role.name() {
        "serve" => On::Smol.run_unbounded(serve(&role)),
        "dial" => On::Smol.run_unbounded(dial(&role)),
        "search" => search(&role),
        "squat" => squat(&role),
        other => panic!("no role {other}"),
    }
}

fn endpoint(role: &Role) -> Endpoint {
    let domain = match role.dir() == Path::new("/") {
        true => Domain::default(),
        // All make the same call.
        false => Domain::shared(role.dir(), [FIRST, SECOND, LAST]),
    };
    let device = LoopDevice::builder().domain(domain.clone()).build();
    let device = device.expect("a service starts");
    if let Err(why) = device.runtime_dir() {
        role.send(format!("unpublished: {why}"));
    }
    let endpoint = On::Smol
        .endpoint()
        .negotiation(local(domain))
        .device(Arc::new(device));
    endpoint.build().expect("endpoint")
}

/// Accepts streams, and reports their modes.
async fn serve(role: &Role) {
    let endpoint = endpoint(role);
    let listener = listen(&endpoint).await;
    role.send(listener.local_addr().expect("address"));
    loop {
        let (stream, _) = listener.accept().await.expect("stream");
        role.send(format!("accepted: {}", stream.mode()));
    }
}

/// Connects on each request, and reports the mode of the stream.
async fn dial(role: &Role) {
    let endpoint = endpoint(role);
    role.send("ready");
    while let Some(to) = role.recv() {
        let to: SocketAddr = to.parse().expect("an address");
        let stream = endpoint.connect(to).await.expect("stream");
        role.send(format!("mode: {}", stream.mode()));
    }
}

/// What is set in the environment of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Env {
    Nothing,
    Session(&'static str),
    Smc(&'static str),
}

fn start(role: &str, uid: u32, env: Env) -> Child {
    let mut command = command(ENTRY);
    command.uid(uid).gid(uid);
    command
        .env_remove("XDG_RUNTIME_DIR")
        .env_remove("SMC_RUNTIME_DIR");
    match env {
        Env::Nothing => {}
        Env::Session(path) => drop(command.env("XDG_RUNTIME_DIR", path)),
        Env::Smc(path) => drop(command.env("SMC_RUNTIME_DIR", path)),
    }
    Child::spawn(command, role, "/")
}

fn mode_of(dial: &mut Child, to: &str) -> String {
    dial.send(to);
    loop {
        let line = dial.recv();
        if let Some(mode) = line.strip_prefix("mode: ") {
            return mode.to_owned();
        }
    }
}

fn assert_is_smc(mode: &str) {
    assert!(mode.contains(SMC), "{mode}");
}

/// Connects, with the same process, until the stream is SMC.
fn until_smc(dial: &mut Child, to: &str) {
    until(
        || mode_of(dial, to).contains(SMC),
        || "is not SMC again".to_owned(),
    );
}

/// A directory of a user.
fn make(path: &str, uid: u32, mode: u32) {
    fs::create_dir_all(path).expect("directory");
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
    chown(path, Some(uid), Some(uid)).expect("owner");
}

/// Runs the calling test, by its name, as root where `/tmp` and `/run` are empty. True there; false
/// when that process has ended.
fn is_in_namespace(test: &str) -> bool {
    if let Some(role) = Role::current() {
        role.send("inside");
        return true;
    }
    if !is_root("have several users and a mount namespace") {
        return false;
    }
    let unshare = "unshare --mount --propagation private sh -c".split(' ');
    let launcher: Vec<_> = unshare.chain([MOUNT, "sh"]).collect();
    let tried = command_by(&launcher, ENTRY).arg("--list").output();
    if !tried.as_ref().is_ok_and(|tried| tried.status.success()) {
        println!("skipped: why: no mount namespace: {tried:?}");
        return false;
    }
    let mut child = Child::spawn(command_by(&launcher, test), "inside", "/");
    assert_eq!(child.recv(), "inside");
    child.finish();
    false
}

const MOUNT: &str = "mount -t tmpfs -o mode=1777 none /tmp && \
    mount -t tmpfs -o mode=755 none /run && exec \"$@\"";

#[test]
fn processes_connect_whatever_their_sessions() {
    if !is_in_namespace("processes_connect_whatever_their_sessions") {
        return;
    }
    make("/run/a", USER, 0o700);
    make("/run/b", USER, 0o700);
    make("/run/smc", USER, 0o700);
    // A session of another user, inherited.
    make("/run/other", OTHER, 0o700);
    let all = [
        Env::Nothing,
        Env::Session("/run/a"),
        Env::Session("/run/b"),
        Env::Session("/run/other"),
        Env::Smc("/run/smc"),
    ];
    let is_shared = |one: Env, other: Env| {
        one == other || !matches!((one, other), (Env::Smc(_), _) | (_, Env::Smc(_)))
    };
    let mut servers = all.map(|env| (env, start("serve", USER, env)));
    let servers = servers
        .each_mut()
        .map(|(env, server)| (*env, server.recv()));
    for from in all {
        let mut client = start("dial", USER, from);
        for (env, at) in &servers {
            let mode = mode_of(&mut client, at);
            let expected = if is_shared(from, *env) {
                SMC
            } else {
                NOT_FOUND
            };
            assert!(mode.contains(expected), "{from:?} to {env:?}: {mode}");
        }
    }
}

#[test]
fn streams_are_smc_again_when_the_directory_was_removed() {
    if !is_in_namespace("streams_are_smc_again_when_the_directory_was_removed") {
        return;
    }
    for (env, dir) in [
        (Env::Nothing, "/tmp/smc-990"),
        (Env::Smc("/tmp/given"), "/tmp/given"),
        (Env::Session("/tmp/session"), "/tmp/session"),
    ] {
        make("/tmp/session", USER, 0o700);
        let mut server = start("serve", USER, env);
        let to = server.recv();
        let mut before = start("dial", USER, env);
        assert!(mode_of(&mut before, &to).contains(SMC), "{env:?}");
        let removed = Command::new("rm").args(["-rf", dir]).status();
        assert!(removed.expect("rm").success());
        // Also between devices that did not know each other.
        until_smc(&mut start("dial", USER, env), &to);
        until_smc(&mut before, &to);
    }
}

#[test]
fn a_directory_taken_by_another_user_does_not_matter() {
    if !is_in_namespace("a_directory_taken_by_another_user_does_not_matter") {
        return;
    }
    make("/tmp/smc-990", OTHER, 0o755);
    for number in 0..2000 {
        let path = format!("/tmp/smc-990-{number:016x}");
        match number % 3 {
            0 => make(&path, OTHER, 0o777),
            1 => symlink("/tmp/smc-990", path).expect("link"),
            _ => fs::write(path, "").expect("file"),
        }
    }
    let mut server = start("serve", USER, Env::Nothing);
    let to = server.recv();
    let mut client = start("dial", USER, Env::Nothing);
    assert_is_smc(&mode_of(&mut client, &to));
    let mut other = start("dial", OTHER, Env::Nothing);
    let mode = mode_of(&mut other, &to);
    assert!(mode.contains(NOT_FOUND), "{mode}");
}

#[test]
fn a_directory_taken_while_a_service_runs_does_not_matter() {
    if !is_in_namespace("a_directory_taken_while_a_service_runs_does_not_matter") {
        return;
    }
    let mut server = start("serve", USER, Env::Nothing);
    let to = server.recv();
    let mut before = start("dial", USER, Env::Nothing);
    assert_is_smc(&mode_of(&mut before, &to));
    for owner in [OTHER, USER, OTHER] {
        // At once, as it can only be raced for when it is away.
        fs::rename("/tmp/smc-990", format!("/tmp/old-{owner}")).expect("rename");
        make("/tmp/smc-990", owner, 0o700);
        until_smc(&mut start("dial", USER, Env::Nothing), &to);
        until_smc(&mut before, &to);
        let _ = fs::remove_dir_all(format!("/tmp/old-{owner}"));
    }
}

#[test]
fn a_directory_that_is_free_again_is_used() {
    if !is_in_namespace("a_directory_that_is_free_again_is_used") {
        return;
    }
    make("/tmp/smc-990", OTHER, 0o700);
    let mut server = start("serve", USER, Env::Nothing);
    let to = server.recv();
    let mut before = start("dial", USER, Env::Nothing);
    assert_is_smc(&mode_of(&mut before, &to));
    fs::remove_dir("/tmp/smc-990").expect("remove");
    until_smc(&mut start("dial", USER, Env::Nothing), &to);
    until_smc(&mut before, &to);
}

#[test]
fn a_directory_of_the_system_is_preferred() {
    if !is_in_namespace("a_directory_of_the_system_is_preferred") {
        return;
    }
    // One that started earlier is elsewhere.
    let mut early = start("serve", USER, Env::Nothing);
    let to_early = early.recv();
    make("/run/smc-990", USER, 0o700);
    make("/run/session", USER, 0o700);
    let mut server = start("serve", USER, Env::Session("/run/session"));
    let to = server.recv();
    assert_eq!(names(Path::new("/run/smc-990")).len(), 2);
    assert_eq!(names(Path::new("/run/session")).len(), 0);
    let mut client = start("dial", USER, Env::Nothing);
    for to in [to, to_early] {
        assert_is_smc(&mode_of(&mut client, &to));
    }
    // Root makes its own.
    let mut server = start("serve", 0, Env::Nothing);
    let to = server.recv();
    assert_eq!(names(Path::new("/run/smc-0")).len(), 2);
    assert_is_smc(&mode_of(&mut start("dial", 0, Env::Nothing), &to));
}

/// The names of a device and of a listener; that of introspection may come later.
fn names(dir: &Path) -> Vec<String> {
    let mut names = common::names(dir);
    names.retain(|name| !name.starts_with("i-"));
    names
}

#[test]
fn without_a_directory_a_service_starts_as_tcp() {
    if !is_in_namespace("without_a_directory_a_service_starts_as_tcp") {
        return;
    }
    make("/tmp/smc-990", OTHER, 0o700);
    make("/tmp", 0, 0o755);
    let mut server = start("serve", USER, Env::Nothing);
    let why = "runtime directory /tmp/smc-990 belongs to user 991";
    assert_eq!(server.recv(), format!("unpublished: {why}"));
    let to = server.recv();
    let mut client = start("dial", USER, Env::Nothing);
    let mode = mode_of(&mut client, &to);
    assert!(mode.contains(NOT_FOUND) && mode.contains(why), "{mode}");
    let mode = server.recv();
    assert!(
        mode.starts_with("accepted: TCP") && mode.contains(why),
        "{mode}"
    );
    // And is found as soon as there is one.
    make("/tmp", 0, 0o1777);
    until_smc(&mut client, &to);
}

#[test]
fn a_set_user_id_program_ignores_the_environment() {
    if !is_in_namespace("a_set_user_id_program_ignores_the_environment") {
        return;
    }
    make("/run/given", OTHER, 0o700);
    let program = "/tmp/program";
    fs::copy("/proc/self/exe", program).expect("copy");
    chown(program, Some(USER), Some(USER)).expect("owner");
    let is_used = |mode| {
        fs::set_permissions(program, fs::Permissions::from_mode(mode)).expect("mode");
        let mut command = Command::new(program);
        command.args([ENTRY, "--exact", "--nocapture"]);
        command.uid(OTHER).gid(OTHER);
        command.env("SMC_RUNTIME_DIR", "/run/given");
        command.env("XDG_RUNTIME_DIR", "/run/given");
        let paths = Child::spawn(command, "search", "/").recv();
        paths.contains("/run/given")
    };
    assert!(is_used(0o755));
    assert!(!is_used(0o4755), "user");
    assert!(!is_used(0o2755), "group");
}

/// Reports the directories that it searches.
fn search(role: &Role) {
    role.send(format!("{:?}", Domain::default().search_paths()));
}

fn start_shared(role: &str, uid: u32) -> Child {
    let mut command = command(ENTRY);
    command.uid(uid).gid(uid);
    Child::spawn(command, role, SHARED)
}

/// Two users who have listed each other are SMC, and the third is TCP, in both directions.
fn only_two_connect() {
    let users = [FIRST, SECOND, UNLISTED];
    let mut servers = users.map(|uid| start_shared("serve", uid));
    let addresses = servers.each_mut().map(Child::recv);
    let mut clients = users.map(|uid| start_shared("dial", uid));
    for (from, client) in users.iter().zip(&mut clients) {
        for (to, at) in users.iter().zip(&addresses) {
            let mode = mode_of(client, at);
            let expected = match (*from, *to) {
                (UNLISTED, UNLISTED) => SMC,
                (UNLISTED, _) => "0x03010000 listener refused the offer: user 1003 is not allowed",
                (_, UNLISTED) => "0x03010000 no SMC listener is announced at this address",
                _ => SMC,
            };
            assert!(mode.contains(expected), "{from} to {to}: {mode}");
        }
    }
}

#[test]
fn users_who_list_each_other_connect_by_one_call() {
    if !is_in_namespace("users_who_list_each_other_connect_by_one_call") {
        return;
    }
    make(SHARED, 0, 0o1777);
    only_two_connect();
}

#[test]
fn a_user_who_is_not_listed_and_takes_names_changes_nothing() {
    if !is_in_namespace("a_user_who_is_not_listed_and_takes_names_changes_nothing") {
        return;
    }
    make(SHARED, 0, 0o1777);
    make(&format!("{SHARED}/{FIRST}"), UNLISTED, 0o777);
    fs::write(format!("{SHARED}/{SECOND}"), "").expect("file");
    chown(format!("{SHARED}/{SECOND}"), Some(UNLISTED), Some(UNLISTED)).expect("owner");
    for number in 0..1000 {
        let path = format!("{SHARED}/{FIRST}-{number:016x}");
        match number % 2 {
            0 => make(&path, UNLISTED, 0o755),
            _ => symlink(format!("{SHARED}/{UNLISTED}"), path).expect("link"),
        }
    }
    only_two_connect();
}

#[test]
fn a_user_who_is_listed_and_takes_names_of_devices_changes_nothing() {
    if !is_in_namespace("a_user_who_is_listed_and_takes_names_of_devices_changes_nothing") {
        return;
    }
    make(SHARED, 0, 0o1777);
    let mut server = start_shared("serve", SECOND);
    let at = server.recv();
    let mut squatter = start_shared("squat", FIRST);
    assert_eq!(squatter.recv(), "taken");
    // The client looks in the directory of the other two users in this order.
    let mut client = start_shared("dial", LAST);
    for _ in 0..3 {
        assert_is_smc(&mode_of(&mut client, &at));
    }
    squatter.send("");
    assert_eq!(squatter.recv(), "0 connections");
    squatter.finish();
}

/// Takes the names of another user's devices in the directory of its own user, and counts the
/// connections.
fn squat(role: &Role) {
    let own = role.dir().join(FIRST.to_string());
    fs::create_dir(&own).expect("directory");
    fs::set_permissions(&own, fs::Permissions::from_mode(0o755)).expect("mode");
    let names = common::names(&role.dir().join(SECOND.to_string()));
    let devices = names.iter().filter(|name| name.starts_with("d-"));
    let sockets = devices.map(|name| {
        let path = own.join(name);
        let socket = listen_at(&path);
        fs::set_permissions(path, fs::Permissions::from_mode(0o666)).expect("mode");
        ioctl_fionbio(&socket, true).expect("does not wait");
        socket
    });
    let sockets: Vec<_> = sockets.collect();
    assert_eq!(sockets.len(), 1);
    role.send("taken");
    role.recv();
    let connections = sockets.iter().filter(|socket| accept(socket).is_ok());
    role.send(format!("{} connections", connections.count()));
    assert_eq!(role.recv(), None);
}

#[test]
fn containers_that_share_a_volume_connect() {
    if !is_in_namespace("containers_that_share_a_volume_connect") {
        return;
    }
    make("/tmp/volume", 0, 0o1777);
    let mut server = in_container("serve", FIRST);
    let to = server.recv();
    for uid in [FIRST, SECOND] {
        let mode = mode_of(&mut in_container("dial", uid), &to);
        assert!(mode.contains(SMC), "{uid}: {mode}");
    }
    let mode = mode_of(&mut in_container("dial", UNLISTED), &to);
    assert!(mode.contains("user 1003 is not allowed"), "{mode}");
    let mode = mode_of(&mut start("dial", FIRST, Env::Nothing), &to);
    assert!(mode.contains(NOT_FOUND), "without the volume: {mode}");
}

/// A process that sees the volume, and `/tmp` and `/run` of its own.
fn in_container(role: &str, uid: u32) -> Child {
    let unshare = "unshare --mount --propagation private sh -c".split(' ');
    let setpriv = format!("sh {SHARED} setpriv --clear-groups --reuid={uid} --regid={uid}");
    let launcher: Vec<_> = unshare
        .chain([CONTAINER])
        .chain(setpriv.split(' '))
        .collect();
    let command = command_by(&launcher, ENTRY);
    Child::spawn(command, role, SHARED)
}

const CONTAINER: &str = "mkdir -p \"$1\" && mount --bind /tmp/volume \"$1\" && \
    mount -t tmpfs -o mode=1777 none /tmp && shift && exec \"$@\"";

#[test]
fn a_published_process_that_is_idle_sleeps() {
    if !is_in_namespace("a_published_process_that_is_idle_sleeps") {
        return;
    }
    let mut server = start("serve", USER, Env::Nothing);
    server.recv();
    let switches = || {
        let tasks = fs::read_dir(format!("/proc/{}/task", server.id())).expect("/proc");
        let of = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status")).unwrap_or_default();
            let line = status
                .lines()
                .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.map_or(0, |count| count.trim().parse::<u64>().expect("a number"))
        };
        tasks.map(|task| of(task.expect("task"))).sum::<u64>()
    };
    // It starts up first.
    std::thread::sleep(Duration::from_secs(2));
    let before = switches();
    for _ in 0..20 {
        // Others come and go meanwhile.
        let mut other = start("dial", USER, Env::Nothing);
        assert_eq!(other.recv(), "ready");
        other.finish();
    }
    // One that woke up for each of them would do so twenty times.
    let woken = switches() - before;
    assert!(woken < 10, "{woken} times");
}
