//! `smc cat`.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown};
use std::thread;

use nix::sys::signal::Signal;
use smc_testkit::port::HeldPort;
use xxhash_rust::xxh3::xxh3_64;

use crate::process::{Process, World, data, echo, reverse, tcp_client, tcp_server};

const LEN: usize = 10_000_000;

#[test]
fn ten_megabytes_go_each_way_and_the_end_of_input_is_passed_on_first() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = world.smc(&format!("cat -v {}", server.address()));
    client.line_with("SMC-D v2.1");
    server.line_with("SMC-D v2.1");
    // The client has sent everything and its end of stream before the server sends anything.
    client.send(data(1, LEN));
    let there = server.receive(LEN);
    server.send(data(2, LEN));
    let back = client.receive_all();
    assert_eq!(xxh3_64(&there), xxh3_64(&data(1, LEN)));
    assert_eq!(xxh3_64(&back), xxh3_64(&data(2, LEN)));
    assert_eq!(server.receive_all(), b"");
    assert_eq!(server.end(), (Some(0), String::new()));
    assert_eq!(client.end(), (Some(0), String::new()));
    let mut left = std::fs::read_dir(world.dir.path().join("run")).unwrap();
    assert!(left.next().is_none());
}

#[test]
fn a_part_of_a_line_is_passed_on_at_once() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = world.smc(&format!("cat {}", server.address()));
    for word in ["login: ", "password: "] {
        client
            .input
            .as_mut()
            .unwrap()
            .write_all(word.as_bytes())
            .unwrap();
        assert_eq!(server.receive(word.len()), word.as_bytes());
    }
}

#[test]
fn both_ends_send_at_once() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = world.smc(&format!("cat {}", server.address()));
    client.send(data(1, LEN));
    server.send(data(2, LEN));
    let receiving = thread::spawn(move || (client.receive_all(), client.end()));
    assert_eq!(xxh3_64(&server.receive_all()), xxh3_64(&data(1, LEN)));
    let (received, end) = receiving.join().unwrap();
    assert_eq!(xxh3_64(&received), xxh3_64(&data(2, LEN)));
    assert_eq!((end.0, server.end().0), (Some(0), Some(0)));
}

#[test]
fn a_plain_server_has_a_client_over_tcp() {
    let world = World::new();
    let mut client = world.smc(&format!("cat -v {}", tcp_server(reverse)));
    let line = client.line_with("connected to");
    assert!(line.contains(": TCP 0x03010000"), "{line}");
    client.send(data(1, LEN));
    let mut received = client.receive_all();
    received.reverse();
    assert_eq!(xxh3_64(&received), xxh3_64(&data(1, LEN)));
    assert_eq!(client.end().0, Some(0));
}

#[test]
fn a_plain_client_is_served_over_tcp() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = tcp_client(&server.address());
    server.line_with(": TCP 0x03010000");
    server.send(b"answer".to_vec());
    client.write_all(b"request").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    assert_eq!(server.receive_all(), b"request");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn a_policy_that_requires_smc_refuses_a_plain_peer() {
    let world = World::new();
    let mut client = world.smc(&format!("cat --policy require {}", tcp_server(echo)));
    let (code, errors) = client.end();
    assert_eq!(code, Some(1));
    assert!(errors.contains("0x03010000"), "{errors}");
    let server = world.smc("cat -l -v --policy require 127.0.0.1:0");
    let mut client = tcp_client(&server.address());
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0);
    server.line_with("1 clients refused");
}

#[test]
fn a_server_that_keeps_listening_serves_one_client_after_the_other() {
    let world = World::new();
    let mut server = world.smc("cat -l -k -v 127.0.0.1:0");
    let address = server.address();
    server.send(b"for the first".to_vec());
    for (sent, wanted) in [("one ", &b"for the first"[..]), ("two", b"")] {
        let mut client = world.smc(&format!("cat {address}"));
        client.send(sent.into());
        assert_eq!(client.receive_all(), wanted);
        assert_eq!(client.end().0, Some(0));
    }
    assert_eq!(server.receive(7), b"one two");
    server.signal(Signal::SIGTERM);
    assert_eq!(server.status().code(), Some(0));
}

#[test]
fn a_closed_standard_output_ends_the_command_without_a_message() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = world.smc(&format!("cat {}", server.address()));
    drop(client.output.take());
    server.send(data(1, LEN));
    assert_eq!(client.end(), (Some(0), String::new()));
    assert_eq!(server.end().0, Some(1));
}

#[test]
fn an_end_that_is_killed_is_a_failure_of_the_other() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = world.smc(&format!("cat -v {}", server.address()));
    client.line_with("SMC-D");
    server.kill();
    let (code, errors) = client.end();
    assert_eq!(code, Some(1));
    assert!(errors.contains("cannot receive"), "{errors}");
}

#[test]
fn an_end_that_is_interrupted_resets_the_stream() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = world.smc(&format!("cat -v {}", server.address()));
    client.line_with("SMC-D");
    client.signal(Signal::SIGINT);
    for process in [&mut client, &mut server] {
        let (code, errors) = process.end();
        assert_eq!(code, Some(1), "{errors}");
    }
}

#[test]
fn wrong_arguments_are_distinguished_from_failures() {
    let world = World::new();
    for line in [
        "cat",
        "cat host",
        "cat -k host:1",
        "cat -l --timeout 1 host:1",
    ] {
        assert_eq!(world.smc(line).end().0, Some(2), "{line}");
    }
    // A port that another socket is bound to, and that does not listen.
    let held = HeldPort::of(Ipv4Addr::LOCALHOST).unwrap();
    let address = held.addr();
    let (code, errors) = world.smc(&format!("cat {address}")).end();
    assert_eq!(code, Some(1));
    let wanted = format!("cannot connect to {address}");
    assert!(errors.contains(&wanted), "{errors}");
}

#[test]
fn memory_does_not_depend_on_how_much_is_sent() {
    let world = World::new();
    let mut server = world.smc("cat -l -v 127.0.0.1:0");
    let mut client = world.smc(&format!("cat -v {}", server.address()));
    client.line_with("connected to");
    let mut input = client.input.take().unwrap();
    let sending = thread::spawn(move || {
        let piece = data(1, 1 << 20);
        (0..SENT_MB).for_each(|_| input.write_all(&piece).unwrap());
        input
    });
    for _ in 0..SENT_MB {
        server.receive(1 << 20);
    }
    let input = sending.join().unwrap();
    for process in [&client, &server] {
        let peak = peak_memory(process);
        assert!(peak < 64 << 20, "{peak}");
    }
    drop(input);
    server.send(Vec::new());
    assert_eq!((client.end().0, server.end().0), (Some(0), Some(0)));
}

const SENT_MB: usize = 256;

/// The maximum of the resident memory of a process in bytes.
fn peak_memory(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.unwrap().trim().trim_end_matches(" kB");
    number.parse::<u64>().unwrap() << 10
}
