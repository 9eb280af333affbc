//! Capture from interfaces. Each scenario has a network namespace of its own, so that no packet but
//! its own is captured.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::resume_unwind;
use std::process::{self, Command};
use std::sync::mpsc::channel;
use std::thread;

use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use nix::unistd::gettid;
use serde_json::Value;
use smc_testkit::user::{is_root, run_as};

use crate::running::Running;
use crate::support::{ACCEPT, CONFIRM, PROPOSAL, hex, smc, stderr};

/// Runs a scenario in a network namespace of its own. Prints why not where that cannot be.
fn in_namespace(scenario: impl FnOnce() + Send + 'static) {
    if !is_root("make a network namespace and capture") {
        return;
    }
    // A namespace belongs to a thread, and to the processes that it starts.
    let run = thread::spawn(|| match unshare(CloneFlags::CLONE_NEWNET) {
        Ok(()) => scenario(),
        Err(why) => println!("skipped: why: no network namespace can be made: {why}"),
    });
    run.join().unwrap_or_else(|panic| resume_unwind(panic));
}

/// Changes the network of the namespace; false, and why, where there is no program for it.
fn ip(arguments: &str) -> bool {
    match Command::new("ip").args(arguments.split(' ')).output() {
        Ok(output) if output.status.success() => true,
        Ok(output) => {
            println!("skipped: why: ip {arguments}: {}", stderr(&output));
            false
        }
        Err(why) => {
            println!("skipped: why: no program `ip`: {why}");
            false
        }
    }
}

/// Starts to capture and waits until it does.
fn capture(arguments: &[&str]) -> Running {
    let program = Running::start(arguments);
    let note = program.note();
    assert!(note.ends_with(": capturing until Ctrl-C"), "{note}");
    program
}

/// Exchanges the bytes of a handshake over the loopback interface. Gives client and server.
fn exchange() -> (SocketAddr, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let server = listener.local_addr().expect("an address");
    let answers = thread::spawn(move || answer(&listener));
    let client = ask(server);
    answers.join().expect("a server");
    (client, server)
}

/// The client's part of a handshake, over TCP without SMC. Gives its address.
fn ask(server: SocketAddr) -> SocketAddr {
    let mut stream = TcpStream::connect(server).expect("a listener");
    stream.write_all(&hex(PROPOSAL)).expect("a server");
    let mut accept = hex(ACCEPT);
    stream.read_exact(&mut accept).expect("a server");
    stream.write_all(&hex(CONFIRM)).expect("a server");
    // The server has everything when it closes.
    assert_eq!(stream.read(&mut accept).expect("a server"), 0);
    stream.local_addr().expect("an address")
}

/// The server's part.
fn answer(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().expect("a client");
    let mut proposal = hex(PROPOSAL);
    stream.read_exact(&mut proposal).expect("a client");
    stream.write_all(&hex(ACCEPT)).expect("a client");
    let mut confirm = hex(CONFIRM);
    stream.read_exact(&mut confirm).expect("a client");
}

#[test]
fn a_handshake_on_the_loopback_interface_is_shown_message_by_message() {
    in_namespace(|| {
        if !ip("link set lo up") {
            return;
        }
        // All interfaces include this one.
        for interface in ["lo", "any"] {
            let program = capture(&["-i", interface]);
            let (client, server) = exchange();
            for gist in [
                format!("{client} -> {server}: PROPOSAL v2.1 len 156"),
                format!("{server} -> {client}: ACCEPT v1 len 68"),
                format!("{client} -> {server}: CONFIRM v1 len 68"),
            ] {
                let line = program.line();
                assert!(line.contains(&gist), "{line}, not {gist}");
            }
            let ended = program.end_by(Signal::SIGINT);
            assert!(ended.status.success(), "{:?}", ended.notes);
            assert_eq!(ended.lines, [""; 0]);
            let [summary] = &ended.notes[..] else {
                panic!("{:?}", ended.notes);
            };
            let start = format!("smc dissect: {interface}: frames: ");
            assert!(summary.starts_with(&start), "{summary}");
            assert!(summary.ends_with(", messages: 3"), "{summary}");
        }
    });
}

#[test]
fn captured_messages_have_the_same_members_as_those_of_files() {
    in_namespace(|| {
        if !ip("link set lo up") {
            return;
        }
        let program = capture(&["--json", "--hex", "--interface", "lo"]);
        let (client, server) = exchange();
        let found = [(); 3].map(|()| {
            let message = serde_json::from_str::<Value>(&program.line());
            message.expect("an object")
        });
        let ended = program.end_by(Signal::SIGTERM);
        assert!(ended.status.success(), "{:?}", ended.notes);
        for (message, (kind, bytes)) in found.iter().zip([
            ("PROPOSAL", PROPOSAL),
            ("ACCEPT", ACCEPT),
            ("CONFIRM", CONFIRM),
        ]) {
            assert_eq!(message["file"], "lo");
            assert_eq!(message["type"], kind);
            assert_eq!(message["hex"], bytes);
            assert_eq!(message["retransmission"], false);
            let time = message["time"].as_str().expect("text");
            assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
        }
        assert_eq!(found[1]["src"], server.to_string());
        assert_eq!(found[1]["dst"], client.to_string());
        let frames = found.each_ref().map(|message| message["frame"].as_u64());
        assert!(frames.is_sorted() && frames[0] > Some(1), "{frames:?}");
    });
}

#[test]
fn a_capture_of_one_interface_has_its_packets_in_both_directions_and_no_others() {
    in_namespace(|| {
        if !ip("link set lo up") {
            return;
        }
        let (to_first, from_second) = channel();
        let (to_second, from_first) = channel();
        // The other end of the link is in a second namespace, which lives as long as this thread.
        let second = thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("a second namespace");
            let namespace = format!("/proc/{}/task/{}/ns/net", process::id(), gettid());
            to_first.send(namespace).expect("the first thread");
            let Ok(()) = from_first.recv() else {
                return;
            };
            assert!(ip("addr add 10.99.0.2/24 dev there") && ip("link set there up"));
            let listener = TcpListener::bind("10.99.0.2:0").expect("a port");
            let address = listener.local_addr().expect("an address").to_string();
            to_first.send(address).expect("the first thread");
            answer(&listener);
        });
        let namespace = from_second.recv().expect("a namespace");
        let is_linked = ip(&format!(
            "link add here type veth peer name there netns {namespace}"
        ));
        if is_linked && ip("addr add 10.99.0.1/24 dev here") && ip("link set here up") {
            to_second.send(()).expect("the second thread");
            let server = from_second.recv().expect("an address").parse();
            let server = server.expect("an address");
            let program = capture(&["-i", "here"]);
            // What goes through the loopback interface is not for this one.
            exchange();
            let client = ask(server);
            for gist in [
                format!("{client} -> {server}: PROPOSAL"),
                format!("{server} -> {client}: ACCEPT"),
                format!("{client} -> {server}: CONFIRM"),
            ] {
                let line = program.line();
                assert!(line.contains(&gist), "{line}, not {gist}");
            }
            let ended = program.end_by(Signal::SIGINT);
            assert!(ended.status.success(), "{:?}", ended.notes);
            assert_eq!(ended.lines, [""; 0]);
        }
        drop(to_second);
        second.join().expect("the other end");
    });
}

#[test]
fn an_interface_that_is_down_is_an_error_that_tells_what_to_do() {
    in_namespace(|| {
        let output = smc(&["-i", "lo"]);
        assert_eq!(output.status.code(), Some(1));
        let error = stderr(&output);
        assert!(error.contains("ip link set lo up"), "{error}");
    });
}

#[test]
fn an_unknown_interface_is_an_error_that_lists_the_others() {
    let output = smc(&["-i", "no-such-one"]);
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("there is no such interface"), "{error}");
    assert!(error.contains("lo"), "{error}");
}

#[test]
fn a_user_without_the_capability_is_told_which_one_it_takes() {
    const OTHER_USER: u32 = 65_534;
    if !is_root("be another user") {
        return;
    }
    let tried = run_as(OTHER_USER, || {
        Command::new(env!("CARGO_BIN_EXE_smc"))
            .args(["dissect", "-i", "any"])
            .output()
    });
    let output = match tried.expect("root may be any user") {
        Ok(output) => output,
        Err(why) => {
            println!("skipped: why: another user cannot run the program: {why}");
            return;
        }
    };
    assert_eq!(output.status.code(), Some(1));
    let error = stderr(&output);
    assert!(error.contains("CAP_NET_RAW"), "{error}");
    assert!(error.contains("setcap cap_net_raw+ep"), "{error}");
}
