//! What `smc check` finds, by the cases of docs/operating.md, and `smc listen`, which answers it.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Command;
use std::sync::Arc;
use std::thread;

use nix::sys::signal::{Signal, raise};
use smc::{Builder, Local};
use smc_testkit::port::HeldPort;
use smc_testkit::process::{Child, ENTRY, Role, command};
use smc_testkit::user::is_root;
use tokio::runtime::Runtime;

use crate::process::{Process, World, data, echo, tcp_client, tcp_server};

/// A check that ends with this status.
fn check(world: &World, line: &str, status: i32) -> String {
    let output = world.run(&format!("check {line}"));
    let text = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{text}{error}");
    text
}

/// The same, for a connection that is not SMC: with the reason and what to do.
fn check_fails(world: &World, line: &str, reason: &str, to_do: &str) -> String {
    let text = check(world, line, 1);
    let is_advice = |line: &str| line.starts_with("to do") && line.contains(to_do);
    assert!(text.contains(reason), "no {reason:?}: {text}");
    assert!(text.lines().any(is_advice), "no {to_do:?}: {text}");
    text
}

/// `smc listen`, and its address.
fn listen(world: &World, line: &str) -> (Process, String) {
    let server = world.smc(&format!("listen -v {line}"));
    let address = server.address();
    (server, address)
}

/// A server of another kind than the command has, as another process.
fn role(world: &World, name: &str) -> (Child, String) {
    let mut entry = command(ENTRY);
    entry.env("SMC_RUNTIME_DIR", world.dir.path().join("run"));
    let mut child = Child::spawn(entry, name, "");
    let address = child.recv();
    (child, address)
}

/// What the servers do.
pub(crate) fn helper(role: &Role) {
    Runtime::new().unwrap().block_on(async {
        let builder = match role.name() {
            "without-device" => Builder::tokio().negotiation(Arc::new(Local::new())),
            _ => smc::tokio().unwrap(),
        };
        let endpoint = builder.build().unwrap();
        let listener = endpoint.bind("127.0.0.1:0").await.unwrap();
        role.send(listener.local_addr().unwrap());
        let _client = listener.accept().await.unwrap();
        match role.name() {
            "stops" => raise(Signal::SIGSTOP).unwrap(),
            "dies" => raise(Signal::SIGKILL).unwrap(),
            _ => {}
        }
        role.stay();
    });
}

#[test]
fn a_server_of_this_user_is_reached_by_smc_and_sends_probes_back() {
    let world = World::new();
    let (server, address) = listen(&world, "127.0.0.1:0");
    let text = check(&world, &address, 0);
    assert!(text.contains("SMC-D v2.1"), "{text}");
    assert!(!text.contains("round trip"), "{text}");
    // No probe is sent unless it is asked for.
    let line = server.line_with(": 0 bytes, complete");
    assert!(line.contains("SMC-D v2.1"), "{line}");

    let text = check(&world, &format!("--round-trip {address}"), 0);
    assert!(text.contains("at best"), "{text}");
    server.line_with(": 320 bytes, complete");
    let report = check(&world, &format!("--json --round-trip {address}"), 0);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["smc"], true);
    assert_eq!(report["connection"]["mode"], "SMCD");
    assert_eq!(report["connection"]["version"], "2.1");
    assert_eq!(report["candidates"][0]["device"], "loop");
    assert_eq!(report["candidates"][0]["excluded"], serde_json::Value::Null);
    let time = |name: &str| report["round_trip"][name].as_u64().unwrap();
    assert!(time("min_ns") <= time("median_ns") && time("min_ns") > 0);
}

#[test]
fn a_plain_server_is_named_and_gets_no_byte() {
    let world = World::new();
    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let to = plain.local_addr().unwrap().to_string();
    let reason = "0x03010000 no SMC listener is announced";
    let to_do = "the server does not use SMC, or";
    let text = check_fails(&world, &to, reason, to_do);
    assert!(text.contains("a socket of user"), "{text}");
    let report = check(&world, &format!("--json {to}"), 1);
    let report: serde_json::Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["reason"], 0x0301_0000);
    assert_eq!(report["peer_reason"], serde_json::Value::Null);
    assert_eq!(report["connection"]["mode"], "TCP");
    drop(plain.accept().unwrap());
    let mut received = Vec::new();
    plain
        .accept()
        .unwrap()
        .0
        .read_to_end(&mut received)
        .unwrap();
    assert_eq!(received, b"");

    // On request, where any echo will do.
    let echoing = tcp_server(echo).to_string();
    let text = check_fails(&world, &format!("--round-trip {echoing}"), reason, to_do);
    assert!(text.contains("at best"), "{text}");
    let other = tcp_server(|mut stream| {
        stream.write_all(&[b'x'; 64]).unwrap();
        let _reset = stream.read(&mut [0; 64]);
    });
    let text = check_fails(&world, &format!("--round-trip {other}"), reason, to_do);
    assert!(text.contains("something else than the probe"), "{text}");
}

#[test]
fn a_closed_port_and_a_name_without_address_are_told_apart() {
    let world = World::new();
    let held = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
    let refused = "Connection refused";
    check_fails(
        &world,
        &held.addr().to_string(),
        refused,
        "no process listens there",
    );
    check_fails(
        &world,
        "no-such-host.invalid:1",
        "has no address",
        "check the name",
    );
}

#[test]
fn a_server_with_another_runtime_directory_is_not_found() {
    let (world, other) = (World::new(), World::new());
    let (_server, address) = listen(&world, "127.0.0.1:0");
    let reason = "0x03010000 no SMC listener is announced";
    check_fails(&other, &address, reason, "another runtime directory");
}

#[test]
fn a_server_of_another_user_is_named() {
    if !is_root("check as another user") {
        return;
    }
    // Both users may search them.
    let (world, other) = (World::new(), World::new());
    for world in [&world, &other] {
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(world.dir.path(), open).unwrap();
    }
    let (_server, address) = listen(&world, "127.0.0.1:0");
    let text = check_fails(
        &world,
        &format!("--user 990 {address}"),
        "belongs to user 0",
        "the runtime directory is not one of user 990; the server runs as user 0",
    );
    assert!(text.contains("group 990"), "{text}");
    assert!(text.contains("a socket of user 0"), "{text}");

    // With a directory of its own.
    let run = other.dir.path().join("run");
    std::fs::create_dir(&run).unwrap();
    chown(&run, Some(990), Some(990)).unwrap();
    check_fails(
        &other,
        &format!("--user 990 {address}"),
        "0x03010000 no SMC listener is announced",
        "the server runs as user 0",
    );
}

#[test]
fn ends_without_a_common_eid_are_told_so() {
    let world = World::new();
    let (server, address) = listen(&world, "--no-seid --ueid ONE 127.0.0.1:0");
    check_fails(
        &world,
        &format!("--no-seid --ueid OTHER {address}"),
        "0x03030001",
        "in common",
    );
    server.line_with("no EID in common");
    let text = check(
        &world,
        &format!("--no-seid --ueid OTHER --ueid ONE {address}"),
        0,
    );
    assert!(text.contains("EID ONE"), "{text}");
}

#[test]
fn a_server_without_a_device_is_told_so() {
    let world = World::new();
    let (_server, address) = role(&world, "without-device");
    check_fails(
        &world,
        &address,
        "0x03030003",
        "the server has no device that works",
    );
}

#[test]
fn an_own_end_without_a_device_or_directory_is_told_so() {
    let world = World::new();
    let (_server, address) = listen(&world, "127.0.0.1:0");
    // Fewer descriptors than a device takes.
    let smc = env!("CARGO_BIN_EXE_smc");
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -n 12 && exec {smc} check {address}")])
        .env("SMC_RUNTIME_DIR", world.dir.path().join("run"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("device     cannot open the loop device"),
        "{text}"
    );
    assert!(
        text.contains("RLIMIT_NOFILE is 12") && text.contains("`ulimit -n`"),
        "{text}"
    );

    let other = World::new();
    let run = other.dir.path().join("run");
    std::fs::create_dir(&run).unwrap();
    std::fs::set_permissions(&run, std::fs::Permissions::from_mode(0o777)).unwrap();
    let reason = "can be changed by other users: mode 0777";
    check_fails(&other, &address, reason, "correct owner and mode");
}

#[test]
fn a_policy_is_given_as_the_reason() {
    let world = World::new();
    let (_server, address) = listen(&world, "127.0.0.1:0");
    let line = format!("--policy never {address}");
    check_fails(&world, &line, "policy is to use TCP", "the policy");
    let plain = tcp_server(echo);
    let line = format!("--policy require {plain}");
    let text = check_fails(&world, &line, "0x03010000", "does not use SMC");
    assert!(text.contains("SMC is required"), "{text}");
}

#[test]
fn a_server_that_is_stopped_before_it_answers_is_told_so() {
    let world = World::new();
    let (server, address) = listen(&world, "127.0.0.1:0");
    server.signal(Signal::SIGSTOP);
    let reason = "listener has not answered within";
    check_fails(&world, &address, reason, "the server is stopped");
    server.signal(Signal::SIGCONT);
}

#[test]
fn a_server_that_is_stopped_or_dies_after_the_connection_is_told_so() {
    for (name, reason, to_do) in [
        ("stops", "no answer within", "it is stopped"),
        ("dies", "peer is gone", "has ended the connection or itself"),
    ] {
        let world = World::new();
        let (_server, address) = role(&world, name);
        // The connection is SMC.
        let text = check(&world, &format!("--round-trip --timeout 2 {address}"), 0);
        assert!(text.contains("SMC-D"), "{text}");
        assert!(text.contains(reason) && text.contains(to_do), "{text}");
    }
}

#[test]
fn wrong_arguments_have_a_status_of_their_own() {
    let world = World::new();
    for line in [
        "",
        "host",
        "host:1 --timeout x",
        "host:1 --policy x",
        "host:1 --ueid a_b",
        "host:1 --user no-such-user",
    ] {
        let output = world.run(&format!("check {line}"));
        assert_eq!(output.status.code(), Some(2), "{line}: {output:?}");
        assert!(output.stdout.is_empty(), "{line}: {output:?}");
    }
    assert_eq!(world.run("listen host").status.code(), Some(2));
}

#[test]
fn a_listener_echoes_what_plain_clients_send() {
    let world = World::new();
    let (server, address) = listen(&world, "127.0.0.1:0");
    let mut client = tcp_client(&address);
    let mut reader = client.try_clone().unwrap();
    let sending = thread::spawn(move || {
        client.write_all(&data(1, 1 << 20)).unwrap();
        client.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    reader.read_to_end(&mut received).unwrap();
    sending.join().unwrap();
    assert!(received == data(1, 1 << 20));
    server.line_with(": 1048576 bytes, complete");
}

#[test]
fn a_listener_has_a_limit_and_a_client_in_excess_waits() {
    let world = World::new();
    let (server, address) = listen(&world, "--max-connections 1 127.0.0.1:0");
    let mut first = tcp_client(&address);
    first.write_all(b"1").unwrap();
    first.read_exact(&mut [0]).unwrap();
    server.line_with("1 connections, the limit");
    let mut second = tcp_client(&address);
    second.write_all(b"2").unwrap();
    drop(first);
    second.read_exact(&mut [0]).unwrap();
}

#[test]
fn a_listener_that_is_told_to_end_ends_its_streams_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let world = World::new();
        let (mut server, address) = listen(&world, "127.0.0.1:0");
        let mut client = world.smc(&format!("cat -v {address}"));
        client.line_with("SMC-D");
        let mut input = client.input.take().unwrap();
        input.write_all(b"once").unwrap();
        assert_eq!(client.receive(4), b"once");
        server.signal(signal);
        let (status, lines) = server.end();
        assert_eq!(status, Some(0), "{lines}");
        assert!(lines.contains(": 4 bytes, complete"), "{lines}");
        // Not reset: the client has the end of the stream.
        drop(input);
        assert_eq!(client.receive_all(), b"");
        assert_eq!(client.end().0, Some(0));
    }
}
