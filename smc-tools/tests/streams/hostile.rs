//! Processes that answer requests with anything, and clients that ask for anything.

use std::fs::{self, Permissions};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::net::{RecvFlags, SocketAddrUnix, SocketFlags, accept_with, bind, recv};
use serde_json::{Map, json};
use smc::info::SIZE_CLASSES;
use smc::record::Record;
use smc_testkit::Rng;
use smc_testkit::process::{ENTRY, command};
use smc_testkit::unix::{
    connect_to, is_readable, lingering, listen_at, send, send_if_possible, seqpacket,
};
use smc_testkit::wait::{TIMEOUT, until};

use crate::process::{Process, World, data};
use crate::shown::connected;

/// The socket of a process for requests.
fn socket_of(world: &World, process: &Process) -> PathBuf {
    let prefix = format!("i-{}-", process.id());
    let entries = fs::read_dir(world.dir.path().join("run")).unwrap();
    let mut names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let name = names.find(|name| name.starts_with(&prefix)).unwrap();
    world.dir.path().join("run").join(name)
}

/// The packets that are received up to the end.
fn packets(socket: impl AsFd) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let mut buffer = vec![0; 1 << 18];
    while is_readable(&socket, TIMEOUT) {
        match recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT) {
            Ok((len @ 1.., _)) => packets.push(buffer[..len].to_vec()),
            _ => return packets,
        }
    }
    panic!("no end of the answer");
}

/// The answer of a process to a packet.
fn answer(path: &Path, packet: &[u8]) -> Vec<Vec<u8>> {
    let socket = connect_to(path);
    send_if_possible(&socket, packet, &[]);
    packets(socket)
}

const REQUEST: &[u8] =
    br#"{"version":1,"what":["connections","listeners","groups","devices","stats"]}"#;

/// What a number or text is replaced by.
const REPLACEMENTS: [&str; 10] = [
    "18446744073709551615",
    "-1",
    "1e308",
    "null",
    "[]",
    r#""\u001b]0;title\u0007\r\n""#,
    r#""\u202e""#,
    "\"\u{9b}31m\u{e0041}\"",
    "{}",
    "LONG",
];

/// Packets with one to four values, bytes or lines that are others.
fn changed(packets: &[Vec<u8>], rng: &mut Rng) -> Vec<Vec<u8>> {
    let mut packets = packets.to_vec();
    for _ in 0..rng.between(1, 4) {
        let at = rng.below(packets.len());
        let packet = &mut packets[at];
        match rng.below(5) {
            0 => {
                let at = rng.below(packet.len());
                packet[at] = rng.bits().to_ne_bytes()[0];
            }
            1 => packet.truncate(rng.between(1, packet.len())),
            // Two lines, or the same one again.
            2 => packet.extend_from_within(..),
            _ => {
                // A value ends at a comma, or at the end of its object.
                let text = String::from_utf8_lossy(packet).into_owned();
                let values: Vec<_> = text.match_indices(':').map(|(at, _)| at + 1).collect();
                let begin = values.get(rng.below(values.len())).copied().unwrap_or(0);
                let end = text[begin..].find([',', '}']);
                let end = end.map_or(text.len(), |len| begin + len);
                let new = REPLACEMENTS[rng.below(REPLACEMENTS.len())];
                let new = match new {
                    "LONG" => format!("\"{}\"", "w".repeat(70_000)),
                    other => other.to_owned(),
                };
                *packet = [&text[..begin], &new, &text[end..]].concat().into_bytes();
            }
        }
    }
    packets
}

/// Answers clients with the packets that there are at that time.
fn serve(listener: &OwnedFd, rng: &mut Rng, real: &[Vec<u8>]) {
    while let Ok(client) = accept_with(listener, SocketFlags::CLOEXEC) {
        for packet in changed(real, rng) {
            send_if_possible(&client, &packet, &[]);
        }
        // Not to reset what the client has not received.
        while is_readable(&client, TIMEOUT) {
            let received = recv(&client, &mut [0; 4096][..], RecvFlags::empty());
            if !matches!(received, Ok((1.., _))) {
                break;
            }
        }
    }
}

#[test]
fn what_a_hostile_process_answers_ends_no_tool_and_no_terminal() {
    let world = World::new();
    let (server, _client) = connected(&world);
    let real = answer(&socket_of(&world, &server), REQUEST);
    assert!(!real.is_empty());
    let run = world.dir.path().join("run");
    let listener = listen_at(run.join("i-1-0123456789abcdef.sock"));
    thread::spawn(move || {
        // Two packets in place of one, so that lines of one can be missing.
        let lines: Vec<_> = real
            .concat()
            .split_inclusive(|byte| *byte == b'\n')
            .map(<[u8]>::to_vec)
            .collect();
        serve(&listener, &mut Rng::new(0x5eed), &lines);
    });
    for round in 0..20 {
        for command in [
            "ss -a -d -W",
            "ss --json",
            "groups",
            "links",
            "stats -d",
            "info",
            "devices --endpoints",
            "top -n 1 --interval 1",
        ] {
            if command.starts_with("top") && round > 0 {
                continue;
            }
            let output = world.run(command);
            let code = output.status.code();
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(matches!(code, Some(0 | 1)), "{command}: {code:?} {errors}");
            let shown = [&*output.stdout, &output.stderr].concat();
            let shown = String::from_utf8(shown).unwrap();
            assert!(
                !shown.contains(['\u{1b}', '\u{9b}', '\u{202e}', '\u{e0041}']),
                "{command}: {}",
                shown.escape_debug()
            );
            // The processes that keep to the format are shown all the same.
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(!text.trim().is_empty(), "{command}: {errors}");
        }
    }
}

/// A process, as the first record of an answer has it.
const PROCESS: &str = concat!(
    r#"{"record":"process","version":1,"pid":1,"uid":0,"program":"hostile","#,
    r#""library":"0","endpoints":1}"#,
    "\n"
);

/// The last one.
const END: &str = "{\"record\":\"end\"}\n";

#[test]
fn a_descriptor_whose_closing_blocks_keeps_no_tool_from_ending() {
    let world = World::new();
    let server = world.smc("cat -l -v 127.0.0.1:0");
    server.address();
    let listener = listen_at(world.dir.path().join("run/i-1-0123456789abcdef.sock"));
    let (near, far) = lingering(Duration::from_secs(600));
    let mut tool = world.smc("info --json");
    let client = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
    assert!(is_readable(&client, TIMEOUT), "no request");
    // So that it is the last one to close the descriptor.
    tool.signal(Signal::SIGSTOP);
    let answer = format!("{PROCESS}{END}");
    let kept = match smc_ipc::channel::send(&client, answer.as_bytes(), &[near.as_fd()]) {
        Ok(_) => {
            drop(near);
            None
        }
        // The socket takes none.
        Err(_) => Some(near),
    };
    tool.signal(Signal::SIGCONT);
    drop(client);
    assert!(tool.status().success());
    drop((far, kept));
    let shown = String::from_utf8(tool.receive_all()).unwrap();
    let other = format!(r#""pid":{},"#, server.id());
    assert!(shown.contains(&other), "{shown}");
}

#[test]
fn answers_take_a_bounded_amount_of_memory_altogether() {
    let world = World::new();
    let server = world.smc("cat -l -v 127.0.0.1:0");
    server.address();
    let listeners = [1, 2, 3].map(|number| {
        let name = format!("run/i-{number}-0123456789abcdef.sock");
        listen_at(world.dir.path().join(name))
    });
    for listener in listeners {
        thread::spawn(move || {
            let client = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
            let record = concat!(
                r#"{"record":"listener","endpoint":0,"local":"","ready":0,"refused":0}"#,
                "\n"
            );
            let packet = record.repeat(1000);
            send(&client, PROCESS.as_bytes(), &[]);
            for _ in 0..50 {
                send(&client, packet.as_bytes(), &[]);
            }
            send(&client, END.as_bytes(), &[]);
        });
    }
    let output = world.run("ss -l");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("answers of this user are too long"),
        "{errors}"
    );
}

/// Of the next test: a process that listens at its standard input, and ends.
#[test]
fn helper_process() {
    if std::env::var_os(LISTEN).is_some() {
        rustix::net::listen(std::io::stdin(), 8).unwrap();
    }
}

const LISTEN: &str = "SMC_TEST_LISTEN";

#[test]
fn the_number_of_a_process_that_has_ended_is_not_shown() {
    let world = World::new();
    let server = world.smc("cat -l -v 127.0.0.1:0");
    server.address();
    let socket = seqpacket();
    let path = world.dir.path().join("run/i-1-0123456789abcdef.sock");
    bind(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
    let listens = command(&format!("hostile::{ENTRY}"))
        .env(LISTEN, "1")
        .stdin(socket.try_clone().unwrap())
        .status();
    assert!(listens.unwrap().success());
    thread::spawn(move || {
        let client = accept_with(&socket, SocketFlags::CLOEXEC).unwrap();
        let answer = format!("{PROCESS}{END}");
        send_if_possible(&client, answer.as_bytes(), &[]);
        is_readable(&client, TIMEOUT)
    });
    let output = world.run("info");
    let shown = String::from_utf8(output.stdout).unwrap();
    assert!(!shown.contains("hostile"), "{shown}");
    assert!(shown.contains(&server.id().to_string()), "{shown}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("has ended"), "{errors}");
}

#[test]
fn requests_of_any_bytes_and_clients_that_wait_change_nothing_for_an_endpoint() {
    let world = World::new();
    let (mut server, mut client) = connected(&world);
    let path = socket_of(&world, &server);
    let id = server.id();
    let descriptors = || fs::read_dir(format!("/proc/{id}/fd")).unwrap().count();
    let before = descriptors();
    let mut rng = Rng::new(0x00c0_ffee);
    for _ in 0..300 {
        let mut packet = REQUEST.to_vec();
        for _ in 0..rng.between(1, 8) {
            match rng.below(4) {
                0 => packet.extend_from_within(..rng.below(packet.len())),
                1 => packet.truncate(rng.between(1, packet.len())),
                _ => {
                    let at = rng.below(packet.len());
                    packet[at] = rng.bits().to_ne_bytes()[0];
                }
            }
        }
        answer(&path, &packet);
    }
    // More than the listening socket takes, and not one of them sends or receives anything.
    let silent: Vec<_> = (0..100).map(|_| connect_to(&path)).collect();
    client.send(data(1, 100_000));
    assert_eq!(server.receive(100_000), data(1, 100_000));
    drop(silent);
    let answers = answer(&path, REQUEST).concat();
    assert!(answers.ends_with(b"{\"record\":\"end\"}\n"));
    until(
        || descriptors() <= before,
        || "descriptors are left".to_owned(),
    );
    assert!(
        is_readable(connect_to(&path), Duration::from_secs(10)),
        "it is disconnected"
    );
}

/// What `smc` says with these arguments and 2 GB of address space, to a process that answers so.
fn run_with_2_gb(command: &str, packets: &[String]) -> Output {
    let world = World::new();
    fs::create_dir(world.dir.path().join("run")).unwrap();
    fs::set_permissions(world.dir.path().join("run"), Permissions::from_mode(0o700)).unwrap();
    let listener = listen_at(world.dir.path().join("run/i-1-0123456789abcdef.sock"));
    let packets = [&[PROCESS.to_owned()], packets, &[END.to_owned()]].concat();
    thread::spawn(move || {
        let client = accept_with(&listener, SocketFlags::CLOEXEC).unwrap();
        // A request that is not received resets the connection.
        recv(&client, &mut [0; 1024], RecvFlags::empty()).unwrap();
        for packet in packets {
            send(&client, packet.as_bytes(), &[]);
        }
    });
    Command::new("sh")
        .args(["-c", "ulimit -v 2000000 && exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_smc"))
        .args(command.split_whitespace())
        .env("SMC_RUNTIME_DIR", world.dir.path().join("run"))
        .env("MALLOC_ARENA_MAX", "1")
        .output()
        .unwrap()
}

/// A group with this name and so many links.
fn group(id: &str, links: usize) -> String {
    let link = json!({
        "id": "", "number": 1, "state": "", "device": 0, "is_asymmetric": false,
    });
    let group = json!({
        "record": "group", "endpoint": 0, "id": id, "mode": "SMCR", "state": "", "connections": 0,
        "links": vec![link; links],
    });
    format!("{group}\n")
}

#[test]
fn links_take_as_much_of_the_bound_as_the_name_of_their_group_in_each() {
    // Three records of 200 kB, whose links would be shown in 240 MB.
    let packets = vec![group(&"x".repeat(90_000), 900); 3];
    let output = run_with_2_gb("links --json", &packets);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(
        errors.contains("answers of this user are too long"),
        "{errors}"
    );
    assert!(output.stdout.is_empty());
}

#[test]
fn groups_have_the_devices_of_their_endpoint_in_common() {
    let device = json!({
        "record": "device", "endpoint": 0, "name": "d", "mode": "SMCR", "is_gone": false,
        "connections": 0,
    });
    // Each group with each device would take 6 GB.
    let packets = [group("1", 0).repeat(500), format!("{device}\n").repeat(500)];
    let packets: Vec<_> = packets.iter().cycle().take(80).cloned().collect();
    let output = run_with_2_gb("groups --json", &packets);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    let lines = output.stdout.split_inclusive(|byte| *byte == b'\n');
    assert_eq!(lines.count(), 20_000, "{errors}");
}

/// Statistics of an endpoint with so many fallbacks, and a device with so many counters.
fn stats(endpoint: usize, fallbacks: usize, counters: usize) -> String {
    let classes = [0; SIZE_CLASSES];
    let direction = json!([0, classes, classes, 0, 0, 0, 0, 0]);
    let count = json!([0, 0]);
    let hardware: Map<_, _> = (0..counters)
        .map(|it| (format!("{it:x}"), 1.into()))
        .collect();
    let device = json!(["", true, count, count, 0, direction, direction, 0, hardware]);
    let fallbacks: Vec<_> = (0..fallbacks)
        .map(|code| json!([code, null, count]))
        .collect();
    let phase = json!([0, {"secs": 0, "nanos": 0}, {"secs": 0, "nanos": 0}]);
    let record = json!({
        "record": "stats", "endpoint": endpoint,
        "stats": [[device], fallbacks, count, phase, phase, phase],
    });
    format!("{record}\n")
}

#[test]
fn short_elements_take_as_much_of_the_bound_as_they_take_of_memory() {
    // 20 MB of text, as structures some 300 MB.
    let record = stats(0, 0, 20_000);
    assert!(record.len() < 200 * 1024, "{}", record.len());
    serde_json::from_str::<Record>(&record).unwrap();
    let packets: Vec<_> = (0..110)
        .map(|endpoint| stats(endpoint, 0, 20_000))
        .collect();
    let output = run_with_2_gb("stats --json", &packets);
    let errors = String::from_utf8(output.stderr).unwrap();
    // A slow machine has not received that much within the time of an answer.
    let ends = ["answers of this user are too long", "does not answer"];
    assert!(ends.iter().any(|end| errors.contains(end)), "{errors}");
}

#[test]
fn an_answer_has_what_was_requested_and_counters_of_an_endpoint_once() {
    let twice = [stats(0, 1, 1), stats(0, 1, 1)];
    for (command, packets, error) in [
        ("ss", &twice[..1], "a record that was not requested"),
        ("stats", &twice, "the counters of an endpoint a second time"),
    ] {
        let output = run_with_2_gb(command, packets);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains(error), "{command}: {errors}");
    }
}

#[test]
fn a_reason_of_any_length_is_cut() {
    let error = json!({"record": "error", "error": "x".repeat(100_000)});
    let output = run_with_2_gb("ss", &[format!("{error}\n")]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.contains("xxx.."), "{errors}");
    assert!(errors.len() < 1000, "{}", errors.len());
}

#[test]
fn a_directory_that_others_can_change_is_reported_by_servers_and_by_tools() {
    let world = World::new();
    let dir = world.dir.path().join("run");
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    let server = world.smc("listen 127.0.0.1:0");
    let line = server.line_with("clients of this host will connect by TCP");
    assert!(line.contains("can be changed by other users"), "{line}");
    for command in ["ss -l", "info", "stats", "groups"] {
        let output = world.run(command);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(
            errors.contains("no process can be shown"),
            "{command}: {errors}"
        );
    }
}
