//! Files that cannot be read, and what becomes of the others.

use std::process::{Command, Stdio};

use crate::support::{
    CDC, Capture, PROPOSAL, bth, hex, messages, roce_v2, run_on, sides, smc, stderr, stdout,
    summary,
};

fn handshake() -> Capture {
    let (client, server) = sides();
    let mut capture = Capture::ethernet();
    capture
        .frame(&client.syn())
        .frame(&server.syn_ack(client))
        .frame(&client.data(0, &hex(PROPOSAL)));
    capture
}

#[test]
fn a_truncated_file_is_shown_as_far_as_it_goes() {
    let capture = handshake();
    let file = capture.bytes();
    let output = run_on(&file[..file.len() - 10], &["--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(summary(&messages(&output)), ["1 SYN", "2 SYN_ACK"]);
    assert!(stderr(&output).contains("the file ends within frame 3"));
}

#[test]
fn the_other_files_are_still_read() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| {
        directory
            .path()
            .join(name)
            .to_str()
            .expect("a path")
            .to_owned()
    };
    let (good, bad, missing) = (path("good.pcap"), path("bad.pcap"), path("missing.pcap"));
    std::fs::write(&good, handshake().bytes()).expect("a file");
    std::fs::write(&bad, "nothing").expect("a file");
    let output = smc(&["--json", &bad, &good, &missing, &good]);
    assert_eq!(output.status.code(), Some(1));
    let found = messages(&output);
    assert_eq!(found.len(), 6);
    assert!(found.iter().all(|message| message["file"] == good.as_str()));
    let errors = stderr(&output);
    assert_eq!(errors.lines().count(), 2, "{errors}");
    assert!(errors.contains("bad.pcap: cannot read: not a pcap"));
    assert!(errors.contains("missing.pcap: cannot read: No such file"));

    let text = stdout(&smc(&[&good, &good]));
    assert_eq!(text.matches(&format!("==> {good} <==\n")).count(), 2);
    assert!(!stdout(&smc(&[&good])).contains("==>"));
    let output = smc(&[directory.path().to_str().expect("a path")]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn the_name_of_a_file_does_nothing_to_a_terminal() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = |name: &str| {
        let path = directory.path().join(name);
        path.to_str().expect("a path").to_owned()
    };
    let (good, bad) = (path("good\x1b[2J\u{9b}.pcap"), path("bad\x1b[2J.pcap"));
    std::fs::write(&good, handshake().bytes()).expect("a file");
    for arguments in [&[&*good, &*bad][..], &["--json", &good, &bad]] {
        let output = smc(arguments);
        let (out, errors) = (stdout(&output), stderr(&output));
        assert!(out.contains("good") && errors.contains("bad"));
        let is_plain = |text: &str| text.chars().all(|char| !char.is_control() || char == '\n');
        assert!(is_plain(&out), "{out:?}");
        assert!(is_plain(&errors), "{errors:?}");
    }
    let found = messages(&smc(&["--json", &good]));
    assert_eq!(found[0]["file"], good.as_str());
}

#[test]
fn a_capture_of_something_else_is_fine() {
    let mut capture = Capture::ethernet();
    capture.frame(&[0; 60]).frame(&[]).frame(&[0xFF; 14]);
    assert!(capture.dissect().is_empty());
    assert!(Capture::ethernet().dissect().is_empty());
}

#[test]
fn frames_of_an_unknown_link_type() {
    let mut capture = Capture::new(105);
    capture.frame(&[0; 60]);
    let output = run_on(capture.bytes(), &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("cannot read: frames of link type 105"));
}

#[test]
fn standard_input() {
    let mut capture = handshake();
    capture.frame(&roce_v2(&bth(4, 0x11, 1, &hex(CDC))));
    let mut child = Command::new(env!("CARGO_BIN_EXE_smc"))
        .args(["dissect", "--json", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut stdin = child.stdin.take().expect("a pipe");
    let content = capture.bytes().to_vec();
    let writer = std::thread::spawn(move || {
        // In small pieces, as a live capture comes.
        for piece in content.chunks(7) {
            std::io::Write::write_all(&mut stdin, piece).expect("the program reads");
        }
    });
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("all was written");
    assert!(output.status.success());
    let found = messages(&output);
    assert_eq!(
        summary(&found),
        ["1 SYN", "2 SYN_ACK", "3 PROPOSAL", "4 CDC"]
    );
    assert_eq!(found[0]["file"], "-");
}

#[test]
fn a_closed_output_ends_the_program() {
    let mut capture = Capture::ethernet();
    for sequence in 0..2000 {
        capture.frame(&roce_v2(&bth(4, 0x11, sequence, &hex(CDC))));
    }
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("long.pcap");
    std::fs::write(&path, capture.bytes()).expect("a file");
    let mut child = Command::new(env!("CARGO_BIN_EXE_smc"))
        .args(["dissect", "--tree"])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(stderr(&output), "");
    assert!(output.status.success());
}

#[test]
fn without_arguments_there_is_help() {
    let output = smc(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("Usage: smc dissect"));
}
