//! `smc report`: what is in its archive, what is not, and which file it makes.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use flate2::read::GzDecoder;
use nix::sys::signal::Signal;
use serde_json::Value;
use smc_testkit::wait::until;

use crate::process::World;
use crate::shown::connected;

fn report(world: &World, to: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_smc"))
        .args(["report", "--output"])
        .arg(to)
        .env("SMC_RUNTIME_DIR", world.dir.path().join("run"))
        .env("TOKEN_OF_A_SERVICE", SECRET)
        .output()
        .unwrap()
}

/// The parts of an archive by their names below its only folder.
fn parts(archive: &Path) -> BTreeMap<String, String> {
    let mut archive = tar::Archive::new(GzDecoder::new(std::fs::File::open(archive).unwrap()));
    let entries = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let path = entry.path().unwrap().to_str().unwrap().to_owned();
        let (folder, name) = path.split_once('/').unwrap();
        assert!(folder.starts_with("smc-report-"), "{path}");
        let mut text = String::new();
        entry.read_to_string(&mut text).unwrap();
        (name.to_owned(), text)
    });
    entries.collect()
}

fn lines(text: &str) -> Vec<Value> {
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn an_archive_has_the_state_of_processes_and_no_data_or_environment_of_theirs() {
    let world = World::new();
    let (mut server, mut client) = connected(&world);
    client.send(DATA.into());
    assert_eq!(server.receive(DATA.len()), DATA.as_bytes());
    let to = world.dir.path().join("report.tar.gz");
    let output = report(&world, &to);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.contains("report.tar.gz: "), "{shown}");
    let mode = std::fs::metadata(&to).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);

    let parts = parts(&to);
    let contents = &parts["contents.txt"];
    assert!(shown.starts_with(contents), "{shown}");
    // A line for each part, and what is there is there.
    for line in contents.lines() {
        let (name, what) = line.split_once(' ').unwrap();
        assert_eq!(
            parts.contains_key(name),
            !what.contains("not there: "),
            "{line}"
        );
    }
    let is_listed = |name: &&String| *name == "contents.txt" || contents.contains(&**name);
    assert!(parts.keys().all(|name| is_listed(&name)), "{contents}");
    assert!(
        contents.contains("library.log                not there: "),
        "{contents}"
    );

    assert_eq!(lines(&parts["processes/info.json"]).len(), 2);
    let sockets = lines(&parts["processes/ss.json"]);
    let bytes = |direction: &str| {
        let mut bytes = sockets
            .iter()
            .filter_map(|it| it[direction]["bytes"].as_u64());
        bytes.any(|bytes| bytes == DATA.len() as u64)
    };
    assert!(bytes("writes") && bytes("reads"), "{sockets:?}");
    for name in ["groups", "stats", "devices"] {
        assert_eq!(
            lines(&parts[&format!("processes/{name}.json")]).len(),
            2,
            "{name}"
        );
    }
    let environment = &parts["runtime/environment.txt"];
    assert_eq!(
        environment.matches("SMC_RUNTIME_DIR=").count(),
        3,
        "{environment}"
    );
    let run = world.dir.path().join("run");
    let directory = format!("directory 0700 {}:", nix::unistd::geteuid());
    let directories = &parts["runtime/directories.txt"];
    let is_run = |line: &str| line.starts_with(&directory) && line.ends_with(run.to_str().unwrap());
    assert!(directories.lines().any(is_run), "{directories}");
    for (name, text) in &parts {
        assert!(!text.contains(SECRET) && !text.contains(DATA), "{name}");
        assert!(!text.contains("TOKEN_OF_A_SERVICE"), "{name}");
    }
}

#[test]
fn a_process_that_does_not_answer_is_named_in_the_archive() {
    let world = World::new();
    let (server, _client) = connected(&world);
    server.signal(Signal::SIGSTOP);
    let to = world.dir.path().join("report.tar.gz");
    let output = report(&world, &to);
    server.signal(Signal::SIGCONT);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let parts = parts(&to);
    assert_eq!(lines(&parts["processes/info.json"]).len(), 1);
    let silent = &parts["processes/silent.txt"];
    assert!(silent.contains("does not answer"), "{silent}");
}

#[test]
fn no_file_is_replaced_and_no_link_is_followed() {
    let world = World::new();
    let in_dir = |name: &str| world.dir.path().join(name);
    std::fs::write(in_dir("mine"), "mine").unwrap();
    symlink(in_dir("mine"), in_dir("to-mine")).unwrap();
    symlink(in_dir("nothing"), in_dir("to-nothing")).unwrap();
    for name in ["mine", "to-mine", "to-nothing"] {
        let output = report(&world, &in_dir(name));
        assert_eq!(output.status.code(), Some(1), "{name}: {output:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            error.contains("File exists") && error.contains(name),
            "{error}"
        );
    }
    assert_eq!(std::fs::read(in_dir("mine")).unwrap(), b"mine");
    assert!(!in_dir("nothing").exists());
    // Without processes there is an archive too, which says so.
    let output = report(&world, &in_dir("new"));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let contents = &parts(&in_dir("new"))["contents.txt"];
    let line = "processes/info.json        not there: there is none";
    assert!(contents.contains(line), "{contents}");
}

#[test]
fn of_a_long_environment_the_begin_is_read_and_the_archive_says_so() {
    let world = World::new();
    let mut server = Command::new(env!("CARGO_BIN_EXE_smc"))
        .args(["cat", "-l", "127.0.0.1:0"])
        .envs((0..10).map(|number| (format!("SMC_{number}"), "x".repeat(100_000))))
        .env("SMC_RUNTIME_DIR", world.dir.path().join("run"))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    until(|| world.run("info --json").stdout.len() > 2, String::new);
    let to = world.dir.path().join("report.tar.gz");
    let output = report(&world, &to);
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let environment = &parts(&to)["runtime/environment.txt"];
    assert!(environment.len() < 10_000, "{} bytes", environment.len());
    assert!(environment.contains("(cut: it is longer than 131072 bytes)"));
}

#[test]
fn a_link_in_the_place_of_a_directory_is_not_followed() {
    let world = World::new();
    let session = world.dir.path().join("session");
    let private = world.dir.path().join("private");
    std::fs::create_dir_all(&session).unwrap();
    std::fs::create_dir_all(&private).unwrap();
    std::fs::write(private.join("diary"), "").unwrap();
    symlink(&private, session.join("smc")).unwrap();
    let to = world.dir.path().join("report.tar.gz");
    let output = Command::new(env!("CARGO_BIN_EXE_smc"))
        .args(["report", "--output"])
        .arg(&to)
        .env_remove("SMC_RUNTIME_DIR")
        .env("XDG_RUNTIME_DIR", &session)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let directories = &parts(&to)["runtime/directories.txt"];
    let link = session.join("smc");
    assert!(
        directories.contains(link.to_str().unwrap()),
        "{directories}"
    );
    assert!(!directories.contains("diary"), "{directories}");
}

const DATA: &str = "data of an application";
const SECRET: &str = "d41d8cd98f00b204";
