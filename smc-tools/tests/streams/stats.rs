//! `smc stats reset`: what later calls show, of processes that keep their counters.

use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::PathBuf;

use serde_json::Value;

use crate::process::{Process, World};
use crate::shown::{connected, records};

/// What the devices of all processes have sent, and their SMC connections as a client.
fn sent(world: &World, line: &str) -> [u64; 2] {
    let all = records(world, &format!("stats {line} --json"));
    let devices = all
        .iter()
        .flat_map(|it| it["stats"]["devices"].as_array().unwrap());
    let number = |value: &Value| value.as_u64().unwrap();
    devices.fold([0, 0], |[bytes, connections], it| {
        let client = number(&it["connections_v2"]["client"]);
        [bytes + number(&it["sent"]["bytes"]), connections + client]
    })
}

fn transfer(from: &mut Process, to: &mut Process, len: usize) {
    from.input
        .as_mut()
        .unwrap()
        .write_all(&vec![7; len])
        .unwrap();
    assert_eq!(to.receive(len), vec![7; len]);
}

fn file(world: &World) -> PathBuf {
    world.dir.path().join("run/stats-baseline.json")
}

#[test]
fn after_a_reset_only_what_was_counted_since_is_shown() {
    let world = World::new();
    let (mut server, mut client) = connected(&world);
    transfer(&mut client, &mut server, 1000);
    assert_eq!(sent(&world, ""), [1000, 1]);
    // It shows what it ends.
    assert_eq!(sent(&world, "reset"), [1000, 1]);
    assert_eq!(sent(&world, ""), [0, 0]);
    transfer(&mut client, &mut server, 500);
    assert_eq!(sent(&world, "show"), [500, 0]);
    assert_eq!(sent(&world, "--absolute"), [1500, 1]);
    let text = String::from_utf8(world.run("stats").stdout).unwrap();
    // What is open is no count of events.
    let open = text
        .lines()
        .find(|line| line.trim_start().starts_with("Open"));
    assert!(open.unwrap().ends_with(" 2"), "{text}");
    // The process has lost nothing.
    let connections = records(&world, "ss --json");
    let written = connections.iter().any(|it| it["writes"]["bytes"] == 1500);
    assert!(written, "{connections:?}");
    assert_eq!(sent(&world, "reset"), [500, 0]);
    assert_eq!(sent(&world, ""), [0, 0]);
    assert_eq!(sent(&world, "-a"), [1500, 1]);
}

#[test]
fn a_process_has_a_baseline_of_its_own_as_long_as_it_runs() {
    let world = World::new();
    let (mut server, mut client) = connected(&world);
    transfer(&mut client, &mut server, 1000);
    // Of one process only.
    sent(&world, &format!("reset --pid {}", server.id()));
    assert_eq!(sent(&world, ""), [1000, 1]);
    sent(&world, "reset");
    let baseline =
        || -> Value { serde_json::from_slice(&std::fs::read(file(&world)).unwrap()).unwrap() };
    assert_eq!(baseline()["processes"].as_object().unwrap().len(), 2);
    client.kill();
    server.kill();

    // Processes that begin afterwards are shown whole.
    let (mut server, mut client) = connected(&world);
    transfer(&mut client, &mut server, 300);
    assert_eq!(sent(&world, ""), [300, 1]);
    sent(&world, "reset");
    let left = baseline();
    let left: Vec<_> = left["processes"].as_object().unwrap().values().collect();
    assert_eq!(left.len(), 2, "{left:?}");
    assert!(
        left.iter()
            .all(|it| it["pid"] == server.id() || it["pid"] == client.id())
    );
}

#[test]
fn the_file_is_the_users_alone_and_replaces_what_is_no_file_of_this_kind() {
    let world = World::new();
    let (mut server, mut client) = connected(&world);
    transfer(&mut client, &mut server, 1000);
    let other = world.dir.path().join("other");
    std::fs::write(&other, "other").unwrap();
    symlink(&other, file(&world)).unwrap();
    let show = || {
        let output = world.run("stats");
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(show().contains("since the beginning"));
    sent(&world, "reset");
    assert_eq!(sent(&world, ""), [0, 0]);
    assert_eq!(std::fs::read(&other).unwrap(), b"other");
    let found = std::fs::symlink_metadata(file(&world)).unwrap();
    assert!(found.is_file());
    assert_eq!(found.mode() & 0o7777, 0o600);

    std::fs::write(file(&world), "{").unwrap();
    assert!(show().contains("stats-baseline.json is not valid"));
    assert_eq!(sent(&world, ""), [1000, 1]);
    sent(&world, "reset");
    assert_eq!(show(), "");
}
