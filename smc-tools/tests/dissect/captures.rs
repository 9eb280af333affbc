//! The captures of real kernels that come with the wire crate.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::{messages, smc, stderr, stdout, vectors};

/// The expected messages of each capture: name, `_v2` for LLC of version 2, an apostrophe for LLC
/// responses or a plus for as many requests as responses, and how many; [`names_of`] has some more. Of
/// CDC only those with flags other than `writer_blocked`; without the retransmissions of RDMA.
const EXPECTED: &[&str] = &[
    "a1-first-contact-echo handshake:1 links:1 CDC:2 DELETE_RKEY_v2+:2",
    "b1-two-in-sequence handshake:2 links:1 CDC:4 DELETE_RKEY_v2+:4 CONFIRM_RKEY_v2+:2",
    "b2-five-concurrent handshake:5 links:1 CONFIRM_RKEY_v2+:8 CDC:10 DELETE_RKEY_v2+:10",
    "b3-both-connect handshake:2 links:2 CDC:4 DELETE_RKEY_v2+:4",
    "c1-ring-wrap handshake:1 links:1 CDC:2 DELETE_RKEY_v2+:2",
    "c5-small-writes handshake:1 links:1 CDC:2 DELETE_RKEY_v2+:2",
    "d4-abort-unread-data-linger-0 handshake:1 links:1 CDC:2 DELETE_RKEY_v2+:2",
    "e2-urgent-inline-and-longer handshake:1 links:1 CDC:4 DELETE_RKEY_v2+:2",
    "f1-decline-no-common-eid PROPOSAL:1 DECLINE:1",
    "f3-decline-client-without-device DECLINE:1",
    "f5-client-is-plain-tcp",
    "f7-confirm-link-lost handshake:1 CONFIRM_LINK_v2:1 DELETE_LINK_v2:1 DECLINE:1",
    "f10-accept-lost PROPOSAL:1 ACCEPT:1",
    "h1-ipv6-no-smcr-v2 DECLINE:1",
    "j1-test-link handshake:1 links:1 TEST_LINK_v2+:4 CDC:2 DELETE_RKEY_v2+:2",
    "j2-test-link-unanswered handshake:1 links:1 TEST_LINK_v2:1",
    "k3-max-links-1-server handshake:1 CONFIRM_LINK_v2+:1 CDC:2 DELETE_RKEY_v2+:2",
    "l1-smcr-v1 handshake:2 CONFIRM_LINK+:1 ADD_LINK+:1 CONFIRM_RKEY+:2 CDC:4 DELETE_RKEY+:4",
    "l3-smcr-v1-ipv6 handshake:1 CONFIRM_LINK+:1 ADD_LINK+:1 CDC:2 DELETE_RKEY+:2",
    "l5-decline-v1-offered-v2-only PROPOSAL:1 DECLINE:1",
    "n1-client-host-off handshake:1 links:1 CDC:2 DELETE_RKEY_v2+:2 DELETE_LINK_v2:3",
    "n3-idle-link-group handshake:1 links:1 CDC:2 DELETE_RKEY_v2+:2 TEST_LINK_v2+:19 DELETE_LINK_v2:2",
    "n4-server-host-off-connection-open handshake:1 links:1 CDC:3 DELETE_LINK_v2:1",
    "p1-lossy-wire handshake:1 links:1 CDC:2 DELETE_RKEY_v2+:2",
    "r1-virtual-buffers handshake:2 links:1 CONFIRM_RKEY_v2+:2 CDC:4 DELETE_RKEY_v2+:4",
];

/// The messages of an item of the list.
fn names_of(item: &str) -> Vec<String> {
    match (item, item.strip_suffix('+')) {
        ("handshake", _) => ["PROPOSAL", "ACCEPT", "CONFIRM"].map(str::to_owned).into(),
        ("links", _) => [names_of("CONFIRM_LINK_v2+"), names_of("ADD_LINK_v2+")].concat(),
        (_, Some(kind)) => vec![kind.to_owned(), format!("{kind}'")],
        (kind, None) => vec![kind.to_owned()],
    }
}

/// Runs the program on a capture; it must find no fault with it.
fn dissect(name: &str) -> Vec<Value> {
    let path = vectors().join(format!("{name}.pcap"));
    let output = smc(&["--json", path.to_str().expect("a path")]);
    assert!(output.status.success(), "{name}: {}", stderr(&output));
    messages(&output)
}

/// All captures; none if they are not here.
fn names() -> Vec<String> {
    let Ok(directory) = std::fs::read_dir(vectors()) else {
        println!("skipped: there are no captures at {}", vectors().display());
        return Vec::new();
    };
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

/// How the list counts a message, if it does.
fn counted(message: &Value) -> Option<String> {
    let fields = &message["fields"];
    let kind = message["type"].as_str()?;
    if message["retransmission"] == true {
        return None;
    }
    match message["family"].as_str()? {
        "clc" => Some(kind.to_owned()),
        "llc" => {
            let version = if fields["version"] == 2 { "_v2" } else { "" };
            let response = if fields["response"] == true { "'" } else { "" };
            Some(format!("{kind}{version}{response}"))
        }
        "cdc" => {
            let flags = [
                "urgent_pending",
                "urgent_present",
                "update_requested",
                "failover_validation",
                "sending_done",
                "closed",
                "aborted",
            ];
            flags
                .iter()
                .any(|flag| fields[flag] == true)
                .then(|| kind.to_owned())
        }
        _ => None,
    }
}

#[test]
fn messages_are_those_of_the_list() {
    let there = names();
    for line in EXPECTED {
        let (name, expected) = line.split_once(' ').unwrap_or((line, ""));
        if !there.iter().any(|other| other == name) {
            println!("skipped: {name} is not here");
            continue;
        }
        let mut found: BTreeMap<String, usize> = BTreeMap::new();
        for message in dissect(name) {
            if let Some(kind) = counted(&message) {
                *found.entry(kind).or_default() += 1;
            }
        }
        let expected: BTreeMap<String, usize> = expected
            .split_whitespace()
            .map(|item| item.split_once(':').expect("a name and a number"))
            .flat_map(|(kinds, count)| {
                let count = count.parse().expect("a number");
                names_of(kinds).into_iter().map(move |kind| (kind, count))
            })
            .collect();
        assert_eq!(found, expected, "{name}");
    }
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
                    "fields"
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
                            .parse::<std::net::SocketAddr>()
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
    if !path.exists() {
        return println!("skipped: the capture is not here");
    }
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
