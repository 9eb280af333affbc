//! What `smc ss` and its like show of running processes.

use std::net::{Ipv4Addr, TcpListener};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use smc_testkit::wait::until;

use crate::process::{Process, World};

/// The records that a command prints.
pub(crate) fn records(world: &World, command: &str) -> Vec<Value> {
    let output = world.run(command);
    let text = String::from_utf8(output.stdout).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Waits until so many processes answer: a thread of each publishes its socket.
fn await_processes(world: &World, count: usize) {
    let is_answered = || records(world, "info --json").len() == count;
    until(is_answered, || format!("{count} processes do not answer"));
}

/// A listener and a client that are connected.
pub(crate) fn connected(world: &World) -> (Process, Process) {
    let server = world.smc("cat -l -v 127.0.0.1:0");
    let client = world.smc(&format!("cat -v {}", server.address()));
    client.line_with("SMC-D v2.1");
    server.line_with("SMC-D v2.1");
    await_processes(world, 2);
    (server, client)
}

#[test]
fn both_ends_of_a_connection_are_shown_with_the_same_cursors() {
    let world = World::new();
    let (mut server, mut client) = connected(&world);
    client.send(vec![7; 1000]);
    assert_eq!(server.receive(1000), [7; 1000]);
    let shown = records(&world, "ss --json");
    let of = |role: &str| shown.iter().find(|record| record["role"] == role).unwrap();
    let (near, far) = (of("client"), of("server"));
    assert_eq!(near["mode"], "SMCD");
    assert_eq!(near["local"], far["peer"]);
    assert_eq!(near["token"], far["peer_token"]);
    assert_eq!(near["gid"], far["peer_gid"]);
    assert_eq!(near["writes"]["bytes"], 1000);
    assert_eq!(far["reads"]["bytes"], 1000);
    assert_eq!(near["sent"]["producer"], far["received"]["producer"]);
    assert_eq!(near["program"], "smc");

    let text = String::from_utf8(world.run("ss -d -W").stdout).unwrap();
    let header = text.lines().next().unwrap();
    assert!(header.starts_with("State"), "{header}");
    let words: Vec<_> = header.split_whitespace().collect();
    assert_eq!(words[..2], ["State", "PID"]);
    assert_eq!(text.matches("SMCD").count(), 2, "{text}");

    let groups = records(&world, "groups --json");
    assert_eq!(groups.len(), 2, "{groups:?}");
    assert!(groups.iter().all(|group| group["connections"] == 1));
    let id = groups[0]["id"].as_str().unwrap();
    for (filter, count) in [
        ("all -D".to_owned(), 2),
        ("-R".to_owned(), 0),
        ("netdev lo".to_owned(), 0),
        ("ibdev loop".to_owned(), 0),
        ("no-such-group".to_owned(), 0),
        (
            format!("{id} -D"),
            groups.iter().filter(|it| it["id"] == id).count(),
        ),
    ] {
        let shown = records(&world, &format!("groups {filter} --json"));
        assert_eq!(shown.len(), count, "{filter}: {shown:?}");
    }
    for wrong in ["groups netdev", "links ibdev", "groups 1 2", "groups -D -R"] {
        assert_eq!(world.run(wrong).status.code(), Some(2), "{wrong}");
    }
    let stats = String::from_utf8(world.run("stats").stdout).unwrap();
    assert!(stats.contains("SMC-D connections"), "{stats}");
    let info = records(&world, "info --json");
    assert_eq!(info.len(), 2, "{info:?}");
    for process in &info {
        let [settings] = &**process["settings"].as_array().unwrap() else {
            panic!("{process}");
        };
        assert_eq!(settings["policy"], "prefer");
        assert_eq!(settings["ueids"], serde_json::json!([]));
        let seid = settings["seid"].as_str().unwrap();
        assert!(seid.starts_with("IBM-DEF-ISMSEID"), "{seid}");
        assert_eq!(settings["recv_buffer"], 4 << 20);
    }
    let text = String::from_utf8(world.run("info").stdout).unwrap();
    assert!(text.contains(" EIDs "), "{text}");
    assert_eq!(text.matches(" IBM-DEF-ISMSEID").count(), 2, "{text}");
    let rates = records(&world, "top --json -n 1 --interval 1");
    assert_eq!(rates.len(), 2, "{rates:?}");
    for stream in &rates {
        assert_eq!(stream["record"], "connection");
        assert_eq!(stream["received_per_second"], 0.0);
    }
    let top = String::from_utf8(world.run("top -n 1 --interval 1").stdout).unwrap();
    assert!(top.starts_with("2 connections"), "{top}");
    let devices = records(&world, "devices --endpoints --json");
    assert_eq!(devices.len(), 2, "{devices:?}");
    assert!(devices.iter().all(|device| device["connections"] == 1));
}

#[test]
fn listeners_are_shown_on_request() {
    let world = World::new();
    let server = world.smc("cat -l -v 127.0.0.1:0");
    let address = server.address();
    await_processes(&world, 1);
    assert_eq!(records(&world, "ss --json"), Vec::<Value>::new());
    let shown = records(&world, "ss -l --json");
    let [listener] = &*shown else {
        panic!("{shown:?}");
    };
    assert_eq!(listener["local"], *address);
    assert_eq!(listener["unpublished"], Value::Null);
}

#[test]
fn without_the_kernels_smc_it_is_an_error_to_ask_for_its_sockets() {
    let world = World::new();
    let output = world.run("ss --kernel --json");
    if std::path::Path::new("/sys/module/smc_diag").exists() {
        println!("skipped: the kernel's SMC is loaded");
        return;
    }
    assert_eq!(output.status.code(), Some(1));
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("modprobe smc_diag"), "{message}");
}

#[test]
fn a_stream_that_is_tcp_is_shown_with_its_reason() {
    let world = World::new();
    let plain = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let client = world.smc(&format!("cat -v {}", plain.local_addr().unwrap()));
    client.line_with("TCP");
    await_processes(&world, 1);
    let shown = records(&world, "ss --json");
    let [stream] = &*shown else {
        panic!("{shown:?}");
    };
    assert_eq!(stream["mode"], "TCP");
    assert_eq!(stream["reason"], 0x0301_0000);
    let cause = stream["cause"].as_str().unwrap();
    assert!(cause.contains("no SMC listener is announced"), "{cause}");
    let text = String::from_utf8(world.run("ss").stdout).unwrap();
    assert!(text.contains("TCP 0x03010000"), "{text}");
}

#[test]
fn a_stopped_process_is_named_and_keeps_no_other_from_being_shown() {
    let world = World::new();
    let (server, _client) = connected(&world);
    let pid = Pid::from_raw(server.id().try_into().unwrap());
    kill(pid, Signal::SIGSTOP).unwrap();
    let output = world.run("ss --json");
    kill(pid, Signal::SIGCONT).unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().count(), 1, "{text}");
    let message = String::from_utf8(output.stderr).unwrap();
    assert!(message.contains("does not answer"), "{message}");
}

#[test]
fn a_killed_process_is_not_shown() {
    let world = World::new();
    let (server, _client) = connected(&world);
    kill(
        Pid::from_raw(server.id().try_into().unwrap()),
        Signal::SIGKILL,
    )
    .unwrap();
    let pid = server.id();
    let is_gone = || {
        let shown = records(&world, "info --json");
        shown.iter().all(|process| process["pid"] != pid)
    };
    until(is_gone, || "it is still shown".to_owned());
}
