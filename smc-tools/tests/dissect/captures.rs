//! The captures of real kernels that come with the wire crate.

use std::net::SocketAddr;

use serde_json::Value;

use crate::support::{messages, smc, stderr, stdout, vectors};

/// Runs the program on a capture; it must find no fault with it.
fn dissect(name: &str) -> Vec<Value> {
    let path = vectors().join(format!("{name}.pcap"));
    let output = smc(&["--json", "--hex", path.to_str().expect("a path")]);
    assert!(output.status.success(), "{name}: {}", stderr(&output));
    messages(&output)
}

/// All captures.
fn names() -> Vec<String> {
    let directory = std::fs::read_dir(vectors()).expect("a folder of captures");
    let name = |path: std::path::PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    let mut names: Vec<_> = directory
        .filter_map(|entry| {
            name(entry.ok()?.path())?
                .strip_suffix(".pcap")
                .map(str::to_owned)
        })
        .collect();
    names.sort();
    names
}

/// A message as `messages.txt` has it: its family, frame, addresses and bytes.
fn listed(message: &Value) -> String {
    let text = |name: &str| message[name].as_str().expect("text");
    let address = |end: &str| {
        let end = text(end).split(" qp ").next().expect("a first part");
        match end.parse::<SocketAddr>() {
            Ok(address) => address.ip().to_string(),
            Err(_) => end.to_owned(),
        }
    };
    let (family, frame) = (text("family"), &message["frame"]);
    let (src, dst, hex) = (address("src"), address("dst"), text("hex"));
    format!("{family} {frame} {src} {dst} {hex}\n")
}

/// The list from which the tests of other crates take the messages. Set `SMC_WRITE_MESSAGES` to
/// write it anew.
#[test]
fn messages_are_those_of_the_list() {
    let mut found = String::new();
    for name in names() {
        found += &format!("capture {name}\n");
        let messages = dissect(&name).into_iter();
        found.extend(
            messages
                .filter(|message| message["retransmission"] == false)
                .map(|message| listed(&message)),
        );
    }
    let path = vectors().join("messages.txt");
    if std::env::var_os("SMC_WRITE_MESSAGES").is_some() {
        std::fs::write(&path, &found).expect("a list that can be written");
    }
    let expected = std::fs::read_to_string(&path).expect("a list");
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}

#[test]
fn every_message_of_every_capture_decodes() {
    for name in names() {
        let found = dissect(&name);
        assert!(!found.is_empty() || name.starts_with("f5"), "{name}");
        for message in &found {
            assert_eq!(message.get("error"), None, "{name}: {message}");
            assert_eq!(message.get("notes"), None, "{name}: {message}");
        }
        let frames: Vec<_> = found
            .iter()
            .map(|message| message["frame"].as_u64())
            .collect();
        assert!(frames.is_sorted(), "{name}: {frames:?}");
    }
}

#[test]
fn json_has_the_same_members_everywhere() {
    for name in names() {
        for message in dissect(&name) {
            let object = message.as_object().expect("an object");
            let members: Vec<_> = object.keys().map(String::as_str).collect();
            assert_eq!(
                members,
                [
                    "file",
                    "frame",
                    "time",
                    "src",
                    "dst",
                    "family",
                    "type",
                    "retransmission",
                    "fields",
                    "hex"
                ],
            );
            assert!(
                message["file"]
                    .as_str()
                    .is_some_and(|file| file.ends_with(".pcap"))
            );
            assert!(message["frame"].as_u64().is_some_and(|frame| frame > 0));
            assert!(
                message["time"]
                    .as_str()
                    .is_some_and(|time| time.ends_with('Z'))
            );
            assert!(message["retransmission"].is_boolean());
            assert!(
                message["fields"]
                    .as_object()
                    .is_some_and(|fields| !fields.is_empty())
            );
            let address = |end: &str| message[end].as_str().expect("text").to_owned();
            match message["family"].as_str().expect("text") {
                "tcp-option" | "clc" => {
                    for end in ["src", "dst"] {
                        address(end)
                            .parse::<SocketAddr>()
                            .expect("address and port");
                    }
                }
                "llc" | "cdc" => {
                    // All captures begin before the first CONFIRM LINK, so both ends are known.
                    for end in ["src", "dst"] {
                        let address = address(end);
                        let (ip, number) = address.split_once(" qp 0x").expect("a queue pair");
                        ip.parse::<std::net::IpAddr>().expect("an address");
                        u32::from_str_radix(number, 16).expect("a number");
                    }
                    if message["family"] == "llc" {
                        assert!(message["fields"]["version"].is_u64());
                        assert!(message["fields"]["response"].is_boolean());
                    }
                }
                other => panic!("family {other}"),
            }
        }
    }
}

#[test]
fn text_has_a_line_per_message() {
    for name in names() {
        let path = vectors().join(format!("{name}.pcap"));
        let output = smc(&[path.to_str().expect("a path")]);
        let found = dissect(&name);
        let text = stdout(&output);
        assert_eq!(text.lines().count(), found.len(), "{name}");
        for (line, message) in text.lines().zip(&found) {
            let part = |name: &str| message[name].as_str().expect("text").to_owned();
            let frame = message["frame"].as_u64().expect("a number");
            let start = format!("{frame:>5}  {} -> {}: ", part("src"), part("dst"));
            let rest = line.strip_prefix(&start).expect("frame and addresses");
            assert!(
                rest.starts_with(&part("type").replace('_', " ")) || rest.starts_with("SYN_ACK")
            );
        }
    }
}

#[test]
fn a_tree_and_a_dump_on_demand() {
    let path = vectors().join("f1-decline-no-common-eid.pcap");
    let output = smc(&[
        "--tree",
        "--hex",
        "--timestamps",
        path.to_str().expect("a path"),
    ]);
    let text = stdout(&output);
    assert!(text.contains(
        "2026-11-21T10:06:00.817104Z     6  10.9.0.1:5555 -> 10.9.0.2:46788: DECLINE v2"
    ));
    assert!(text.contains("diagnosis: 0x03030000 (NOSMCDEV)"));
    assert!(text.contains(
        "    0000  e2 d4 c3 d9 04 00 2c 20  a3 4f 52 54 00 00 00 01  ......, .ORT....\n"
    ));
}
