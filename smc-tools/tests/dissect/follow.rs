//! Captures that grow while they are read.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::running::Running;
use crate::support::{Capture, PROPOSAL, hex, messages, sides, smc, stderr, vectors};

/// The files of a capture with SYN, SYN/ACK and PROPOSAL, up to and with each of its frames.
fn handshake() -> [Vec<u8>; 4] {
    let (client, server) = sides();
    let mut capture = Capture::ethernet();
    let header = capture.bytes().to_vec();
    let frames = [
        client.syn(),
        server.syn_ack(client),
        client.data(0, &hex(PROPOSAL)),
    ];
    let [first, second, third] = frames.map(|frame| capture.frame(&frame).bytes().to_vec());
    [header, first, second, third]
}

/// The same as a pcapng file, up to and with each of its frames.
fn handshake_ng() -> [Vec<u8>; 4] {
    let block = |kind: u32, body: &[u8]| {
        let padded = body.len().next_multiple_of(4);
        let len = u32::try_from(12 + padded).expect("a short block");
        let mut block = [kind.to_le_bytes(), len.to_le_bytes()].concat();
        block.extend(body);
        block.resize(8 + padded, 0);
        block.extend(len.to_le_bytes());
        block
    };
    let mut section = 0x1A2B_3C4D_u32.to_le_bytes().to_vec();
    section.extend([1, 0, 0, 0]);
    section.extend([0xFF; 8]);
    let mut file = block(0x0A0D_0D0A, &section);
    file.extend(block(1, &[1, 0, 0, 0, 0, 0, 0, 0]));
    let header = file.clone();
    let (client, server) = sides();
    let frames = [
        client.syn(),
        server.syn_ack(client),
        client.data(0, &hex(PROPOSAL)),
    ];
    let [first, second, third] = frames.map(|frame| {
        let len = u32::try_from(frame.len()).expect("a short frame");
        let mut body = vec![0; 12];
        body.extend([len.to_le_bytes(), len.to_le_bytes()].concat());
        body.extend(frame);
        file.extend(block(6, &body));
        file.clone()
    });
    [header, first, second, third]
}

/// Opens a file to append to it.
fn append(path: &Path) -> File {
    let file = OpenOptions::new().append(true).open(path);
    file.expect("a file")
}

/// What a line states about a message: its frame, its addresses and its type.
fn is_line(line: &str, frame: u32, gist: &str) {
    let (number, message) = line.trim_start().split_once("  ").expect("a frame");
    assert_eq!(number, frame.to_string(), "{line}");
    let (addresses, message) = message.split_once(": ").expect("addresses");
    assert!(addresses.contains("10.0.0.2:40000"), "{line}");
    assert!(message.starts_with(gist), "{line}");
}

#[test]
fn a_file_that_grows_in_pieces_shows_each_message_when_its_last_byte_is_there() {
    for [header, first, second, third] in [handshake(), handshake_ng()] {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("growing");
        // The file ends in the middle of the second packet.
        let cut = second.len() - 30;
        std::fs::write(&path, &second[..cut]).expect("a file");
        let program = Running::start(&[Path::new("--follow"), &path]);
        is_line(&program.line(), 1, "SYN with the SMC option");
        let mut file = append(&path);
        file.write_all(&second[cut..]).expect("it grows");
        is_line(&program.line(), 2, "SYN_ACK with the SMC option");
        for piece in third[second.len()..].chunks(7) {
            file.write_all(piece).expect("it grows");
        }
        is_line(&program.line(), 3, "PROPOSAL v2.1 len 156");
        // A part of another frame is nothing wrong when the user ends it.
        file.write_all(&first[header.len()..first.len() - 10])
            .expect("it grows");
        let ended = program.end_by(Signal::SIGINT);
        assert!(ended.status.success(), "{:?}", ended.notes);
        assert_eq!(ended.lines, [""; 0]);
        let summary = format!("smc dissect: {}: frames: 3, messages: 3", path.display());
        assert_eq!(ended.notes, [summary]);
    }
}

#[test]
fn a_file_that_is_empty_at_first_is_read_from_its_header_on() {
    let [header, first, ..] = handshake();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("growing.pcap");
    let mut file = File::create(&path).expect("a file");
    let program = Running::start(&[Path::new("--follow"), Path::new("--json"), &path]);
    file.write_all(&header[..3]).expect("it grows");
    file.write_all(&header[3..]).expect("it grows");
    file.write_all(&first[header.len()..]).expect("it grows");
    let message: Value = serde_json::from_str(&program.line()).expect("an object");
    assert_eq!(message["type"], "SYN");
    assert_eq!(message["file"], path.to_str().expect("text"));
    let ended = program.end_by(Signal::SIGTERM);
    assert!(ended.status.success(), "{:?}", ended.notes);
    assert_eq!(ended.notes.len(), 1, "{:?}", ended.notes);
}

#[test]
fn a_message_that_is_there_in_part_is_reported_at_the_end() {
    let (client, _) = sides();
    let mut capture = Capture::ethernet();
    capture
        .frame(&client.syn())
        .frame(&client.data(0, &hex(PROPOSAL)[..60]));
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("growing.pcap");
    std::fs::write(&path, capture.bytes()).expect("a file");
    let program = Running::start(&[Path::new("--follow"), &path]);
    is_line(&program.line(), 1, "SYN with the SMC option");
    let ended = program.end_by(Signal::SIGINT);
    assert!(ended.status.success(), "{:?}", ended.notes);
    assert_eq!(ended.lines.len(), 1, "{:?}", ended.lines);
    let cut = "[cut off: 60 of 156 bytes are in the capture]";
    assert!(ended.lines[0].ends_with(cut), "{:?}", ended.lines);
}

#[test]
fn a_named_pipe_may_have_its_writer_later_and_ends_with_it() {
    let [_, first, second, third] = handshake();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("the program runs").success());
    let program = Running::start(&[Path::new("--follow"), &path]);
    let mut pipe = OpenOptions::new().write(true).open(&path).expect("a pipe");
    pipe.write_all(&second[..first.len() + 20])
        .expect("a reader");
    is_line(&program.line(), 1, "SYN with the SMC option");
    pipe.write_all(&second[first.len() + 20..])
        .expect("a reader");
    is_line(&program.line(), 2, "SYN_ACK with the SMC option");
    pipe.write_all(&third[second.len()..]).expect("a reader");
    drop(pipe);
    let ended = program.end();
    assert!(ended.status.success(), "{:?}", ended.notes);
    assert_eq!(ended.lines.len(), 1, "{:?}", ended.lines);
    is_line(&ended.lines[0], 3, "PROPOSAL");
}

#[test]
fn a_named_pipe_without_a_writer_can_be_interrupted() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("pipe");
    let made = Command::new("mkfifo").arg(&path).status();
    assert!(made.expect("the program runs").success());
    let [header, ..] = handshake();
    let program = Running::start(&[Path::new("--follow"), &path]);
    // Once the pipe is open for reading, the signal is the business of the program.
    let mut pipe = OpenOptions::new().write(true).open(&path).expect("a pipe");
    pipe.write_all(&header[..5]).expect("a reader");
    let ended = program.end_by(Signal::SIGINT);
    assert!(ended.status.success(), "{:?}", ended.notes);
    let summary = format!("smc dissect: {}: frames: 0, messages: 0", path.display());
    assert_eq!(ended.notes, [summary]);
}

#[test]
fn standard_input_shows_messages_before_it_ends() {
    let [_, first, second, third] = handshake();
    let mut program = Running::start(&["--follow", "-"]);
    let mut input = program.input();
    input.write_all(&first).expect("a reader");
    is_line(&program.line(), 1, "SYN with the SMC option");
    input.write_all(&second[first.len()..]).expect("a reader");
    is_line(&program.line(), 2, "SYN_ACK with the SMC option");
    // The writer ends within a frame, which is as wrong as in a file.
    let cut = third.len() - 10;
    input
        .write_all(&third[second.len()..cut])
        .expect("a reader");
    drop(input);
    let ended = program.end();
    assert_eq!(ended.status.code(), Some(1));
    let [failure, summary] = &ended.notes[..] else {
        panic!("{:?}", ended.notes);
    };
    assert!(
        failure.contains("the file ends within frame 3"),
        "{failure}"
    );
    assert_eq!(summary, "smc dissect: -: frames: 2, messages: 2");
}

#[test]
fn a_capture_that_is_followed_shows_the_same_messages_as_one_that_is_read() {
    for name in [
        "a1-first-contact-echo",
        "l3-smcr-v1-ipv6",
        "smcd-v2-loopback",
    ] {
        let path = vectors().join(format!("{name}.pcap"));
        let read = smc(&["--json", "--hex", path.to_str().expect("a path")]);
        let mut program = Running::start(&["--json", "--hex", "--follow", "-"]);
        let mut input = program.input();
        let content = std::fs::read(&path).expect("a capture");
        let writer = std::thread::spawn(move || {
            for piece in content.chunks(1000) {
                input.write_all(piece).expect("the program reads");
            }
        });
        let ended = program.end();
        writer.join().expect("all was written");
        assert!(ended.status.success(), "{:?}", ended.notes);
        let mut expected = messages(&read);
        for message in &mut expected {
            message["file"] = "-".into();
        }
        let found: Vec<Value> = ended
            .lines
            .iter()
            .map(|line| serde_json::from_str(line).expect("an object"))
            .collect();
        assert_eq!(found, expected, "{name}");
    }
}

#[test]
fn a_file_that_is_made_shorter_is_an_error() {
    let [_, first, ..] = handshake();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("growing.pcap");
    std::fs::write(&path, &first).expect("a file");
    let program = Running::start(&[Path::new("--follow"), &path]);
    is_line(&program.line(), 1, "SYN with the SMC option");
    File::create(&path).expect("an empty file");
    let ended = program.end();
    assert_eq!(ended.status.code(), Some(1));
    assert!(
        ended.notes[0].contains("the file was made shorter while it was followed"),
        "{:?}",
        ended.notes
    );
}

#[test]
fn a_closed_output_ends_it_while_nothing_comes() {
    let [_, first, ..] = handshake();
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("growing.pcap");
    std::fs::write(&path, &first).expect("a file");
    let (program, out) = Running::start_unread(&[Path::new("--follow"), &path]);
    drop(out);
    let ended = program.end();
    assert!(ended.status.success(), "{:?}", ended.notes);
    // Nothing but the summary.
    assert_eq!(ended.notes.len(), 1, "{:?}", ended.notes);
}

#[test]
fn a_file_that_is_not_there_and_several_files_are_refused() {
    let output = smc(&["--follow", "no such file"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("smc dissect: no such file: cannot read: No such file"));
    let output = smc(&["--follow", "a", "b"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--follow takes one FILE"));
}
