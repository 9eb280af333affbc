//! Every message of every capture decodes, re-encodes to the same bytes, and is there in the number
//! that the capture's description states.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod capture;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::IpAddr;
use std::str::FromStr;

use smc_wire::cdc::{CdcR, ProducerFlags, StateFlags};
use smc_wire::clc::{Body, Frame, Message, Terms};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::llc::{self, AddLink, AddLinkStep, ByteOrder, Dialect};
use smc_wire::option;
use smc_wire::pretty::{self, Family, Problem, Visitor};

use capture::{Capture, Found, captures, vectors_dir};

#[test]
fn every_clc_message_survives_decoding_and_encoding() {
    let mut total = 0;
    for (name, path) in captures() {
        let capture = Capture::open(&path);
        for found in &capture.clc {
            total += 1;
            let at = place(&name, found);
            let frame = Frame::peek(&found.bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(
                frame.map(|frame| frame.length()),
                Some(found.bytes.len()),
                "{at}"
            );
            let message = Message::parse(&found.bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(emit_clc(&message), found.bytes, "{at}: {message:?}");
        }
    }
    assert!(total > 200, "only {total} CLC messages found");
}

#[test]
fn every_llc_message_survives_decoding_and_encoding() {
    let mut total = 0;
    for (name, path) in captures() {
        for found in &Capture::open(&path).llc {
            total += 1;
            let at = place(&name, found);
            let message = llc::Message::parse(&found.bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert!(
                !matches!(message, llc::Message::Unknown(_)),
                "{at}: {:02x?}",
                found.bytes
            );
            let header = llc::Header::parse(&found.bytes, None).unwrap();
            assert!(header.length_agrees(), "{at}");
            let mut buffer = [0xAA; llc::MAX_MESSAGE_LEN];
            let len = message
                .emit(&mut buffer)
                .unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(len, message.encoded_len(), "{at}");
            assert_eq!(buffer[..len], found.bytes[..], "{at}: {message:?}");
        }
    }
    assert!(total > 500, "only {total} LLC messages found");
}

#[test]
fn every_cdc_message_survives_decoding_and_encoding() {
    let mut total = 0;
    for (name, path) in captures() {
        for found in &Capture::open(&path).cdc {
            total += 1;
            let at = place(&name, found);
            let cdc = CdcR::parse(&found.bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(cdc.to_bytes()[..], found.bytes[..], "{at}");
        }
    }
    assert!(total > 400, "only {total} CDC messages found");
}

/// The option is in every SYN and SYN/ACK, except where the client is plain TCP.
#[test]
fn the_tcp_option_is_found_where_it_was_sent() {
    for (name, path) in captures() {
        let capture = Capture::open(&path);
        assert!(!capture.syn_options.is_empty(), "{name}");
        for syn in &capture.syn_options {
            let found = option::find(&syn.bytes);
            if name == "f5-client-is-plain-tcp" {
                assert!(found.is_none(), "{}", place(&name, syn));
            } else {
                let found = found.unwrap_or_else(|| panic!("{}: no option", place(&name, syn)));
                assert_eq!(found.as_bytes(), option::BYTES);
            }
        }
    }
}

#[test]
fn message_counts_are_those_of_the_descriptions() {
    let expected = expectations();
    let mut differences = String::new();
    for (name, path) in captures() {
        let Some(expected) = expected.get(&name) else {
            if verbose() {
                println!("{name}: not described, counts not compared");
            }
            continue;
        };
        let capture = Capture::open(&path);
        let counts = count(&capture);
        if verbose() {
            println!("{name}: {counts:?}, skipped {:?}", capture.skipped);
        }
        if counts != expected.counts {
            let _ = writeln!(
                differences,
                "{name}: {counts:?}, described {:?}",
                expected.counts
            );
        }
    }
    assert!(differences.is_empty(), "\n{differences}");
    assert_eq!(
        captures()
            .iter()
            .filter(|(name, _)| expected.contains_key(name))
            .count(),
        46
    );
}

/// The receive buffers of each capture: their size, and how many bytes were written to them
/// according to the CDC messages.
#[test]
fn producer_cursors_add_up_to_the_bytes_written() {
    let mut checked = 0;
    for (name, path) in captures() {
        let Some(expected) = expectations().remove(&name) else {
            continue;
        };
        let capture = Capture::open(&path);
        let rings = announced_rings(&capture);
        for rmb in &expected.rmbs {
            let key = (rmb.owner, rmb.token);
            let at = format!("{name}: token {:#x} of {}", rmb.token, rmb.owner);
            let ring = *rings
                .get(&key)
                .unwrap_or_else(|| panic!("{at} is not announced"));
            assert_eq!(ring.size(), rmb.kib * 1024, "{at}");
            assert_eq!(written(&capture, rmb, ring), rmb.bytes, "{at}");
            checked += 1;
        }
    }
    assert!(checked >= 100, "only {checked} receive buffers checked");
}

/// All cursors of a connection move forward, at most one ring at a time, and sequence numbers count
/// up.
#[test]
fn cursors_and_sequence_numbers_are_monotonic() {
    for (name, path) in captures() {
        let capture = Capture::open(&path);
        let rings = announced_rings(&capture);
        let mut last: BTreeMap<(IpAddr, u32), CdcR> = BTreeMap::new();
        for found in &capture.cdc {
            let at = place(&name, found);
            let cdc = CdcR::parse(&found.bytes).unwrap();
            if cdc
                .producer_flags
                .contains(ProducerFlags::FAILOVER_VALIDATION)
            {
                continue;
            }
            let key = (found.dst, cdc.token.get());
            let Some(ring) = rings.get(&key) else {
                continue;
            };
            let previous = last.insert(key, cdc);
            let known = previous.map_or(Cursor::START, |cdc| cdc.producer);
            ring.span(known, cdc.producer)
                .unwrap_or_else(|e| panic!("{at}: {e}"));
            if let Some(previous) = previous {
                assert_eq!(cdc.sequence, previous.sequence.wrapping_add(1), "{at}");
                assert!(!cdc.consumer.is_behind(previous.consumer), "{at}");
            } else {
                assert_eq!(cdc.sequence, 1, "{at}");
            }
        }
    }
}

/// These machines are little-endian, which every v2 message shows.
#[test]
fn the_byte_order_of_linux_on_x86_is_detected() {
    let mut v2 = 0;
    for (name, path) in captures() {
        for found in &Capture::open(&path).llc {
            let dialect = llc::Header::parse(&found.bytes, None).unwrap().dialect();
            if dialect != Dialect::V1 {
                assert_eq!(
                    dialect,
                    Dialect::V2(ByteOrder::Little),
                    "{}",
                    place(&name, found)
                );
                assert_eq!(llc::detect_order(&found.bytes), Some(ByteOrder::Little));
                v2 += 1;
            }
        }
    }
    assert!(v2 > 500, "only {v2} messages");
}

/// The bytes behind a DECLINE belong to the application: the test pattern of the side that
/// connected.
#[test]
fn application_data_after_a_fallback_is_untouched() {
    for name in [
        "f1-decline-no-common-eid",
        "f3-decline-client-without-device",
        "f7-confirm-link-lost",
    ] {
        let capture = Capture::open(&vectors_dir().join(name).with_extension("pcap"));
        assert_eq!(
            capture.application.len(),
            2,
            "{name}: echo, both directions"
        );
        for found in &capture.application {
            let pattern: Vec<u8> = (0..1000_u32).map(|i| pattern(i, 1)).collect();
            assert_eq!(found.bytes, pattern, "{}", place(name, found));
        }
    }
}

/// The printers accept every captured message without complaint.
#[test]
fn every_message_prints_without_problems() {
    struct Problems(Vec<Problem>, usize);
    impl Visitor for Problems {
        fn enter(&mut self, _: &pretty::Group) {}
        fn field(&mut self, field: &pretty::Field<'_>) {
            self.1 += field.bytes.len();
        }
        fn leave(&mut self) {}
        fn problem(&mut self, problem: &Problem) {
            self.0.push(*problem);
        }
    }
    for (name, path) in captures() {
        let capture = Capture::open(&path);
        let clc = capture.clc.iter().map(|found| (Family::Clc, found));
        let llc = capture.llc.iter().map(|found| (Family::Llc, found));
        let cdc = capture.cdc.iter().map(|found| (Family::CdcR, found));
        let tcp = capture
            .syn_options
            .iter()
            .map(|found| (Family::TcpOption, found));
        for (family, found) in clc.chain(llc).chain(cdc).chain(tcp) {
            let mut problems = Problems(Vec::new(), 0);
            pretty::describe(family, &found.bytes, &mut problems);
            assert_eq!(problems.0, [], "{}", place(&name, found));
            assert!(problems.1 > 5, "{}", place(&name, found));
            let line = pretty::line(family, &found.bytes).to_string();
            assert!(
                !line.contains("malformed"),
                "{}: {line}",
                place(&name, found)
            );
            assert!(!pretty::tree(family, &found.bytes).to_string().contains('!'));
            if verbose() {
                println!("{} {line}", place(&name, found));
            }
        }
    }
}

/// Set `SMC_WIRE_VERBOSE` to see every message, and the frames in which there was none.
fn verbose() -> bool {
    std::env::var_os("SMC_WIRE_VERBOSE").is_some()
}

fn place(name: &str, found: &Found) -> String {
    format!("{name} frame {} {}", found.frame, found.src)
}

/// Byte `i` of what the test programs sent.
fn pattern(i: u32, seed: u32) -> u8 {
    let value = 7 * i + 13 * (i >> 8) + seed;
    value.to_le_bytes()[0]
}

fn emit_clc(message: &Message) -> Vec<u8> {
    let mut buffer = [0xAA; 1024];
    let (expected, len) = match message {
        Message::Proposal(m) => (m.encoded_len(), m.emit(&mut buffer)),
        Message::Accept(m) | Message::Confirm(m) => (m.encoded_len(), m.emit(&mut buffer)),
        Message::Decline(m) => (m.encoded_len(), m.emit(&mut buffer)),
    };
    assert_eq!(len, Ok(expected));
    buffer[..expected].to_vec()
}

/// What `vectors/expected.txt` states about one capture.
#[derive(Debug, Default)]
struct Expected {
    counts: BTreeMap<String, usize>,
    rmbs: Vec<Rmb>,
}

/// A receive buffer in use by one connection.
#[derive(Debug)]
struct Rmb {
    owner: IpAddr,
    token: u32,
    kib: u32,
    bytes: u64,
}

fn expectations() -> BTreeMap<String, Expected> {
    let path = vectors_dir().join("expected.txt");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut all: BTreeMap<String, Expected> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [] => {}
            ["capture", name] => {
                current = name.to_owned();
                all.entry(current.clone()).or_default();
            }
            ["rmb", owner, token, kib, bytes] => {
                all.entry(current.clone()).or_default().rmbs.push(Rmb {
                    owner: IpAddr::from_str(owner).unwrap(),
                    token: u32::from_str_radix(token.trim_start_matches("0x"), 16).unwrap(),
                    kib: kib.parse().unwrap(),
                    bytes: bytes.parse().unwrap(),
                });
            }
            [label, count] => {
                let counts = &mut all.entry(current.clone()).or_default().counts;
                counts.insert(label.to_owned(), count.parse().unwrap());
            }
            _ => panic!("{}: {line}", path.display()),
        }
    }
    all
}

fn count(capture: &Capture) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    let mut add = |label: String| *counts.entry(label).or_insert(0) += 1;
    for found in &capture.clc {
        match Message::parse(&found.bytes).unwrap() {
            Message::Proposal(_) => add("proposal".into()),
            Message::Accept(view) => {
                add("accept".into());
                if view.is_first_contact() {
                    add("first_contact".into());
                }
            }
            Message::Confirm(_) => add("confirm".into()),
            Message::Decline(view) => {
                add("decline".into());
                add(format!("decline_{:#010x}", view.diagnosis.0));
            }
        }
    }
    for found in &capture.llc {
        let message = llc::Message::parse(&found.bytes).unwrap();
        let header = llc::Header::parse(&found.bytes, None).unwrap();
        let kind = header.message_type().unwrap();
        let kind = kind.to_string().to_lowercase().replace(' ', "_");
        let version = header.dialect();
        let suffix = match header.step() {
            llc::Step::Request => "",
            llc::Step::Response => "_response",
        };
        add(format!("{version}_{kind}{suffix}"));
        if let llc::Message::AddLink(AddLink {
            step: AddLinkStep::Rejected(_),
            ..
        }) = message
        {
            add("rejects".into());
        }
    }
    for found in &capture.cdc {
        let cdc = CdcR::parse(&found.bytes).unwrap();
        add("cdc".into());
        let state = [
            (StateFlags::SENDING_DONE, "cdc_done_writing"),
            (StateFlags::CLOSED, "cdc_closed"),
            (StateFlags::ABORTED, "cdc_abort"),
        ];
        for (flag, label) in state {
            if cdc.state_flags.contains(flag) {
                add(label.into());
            }
        }
        let producer = [
            (ProducerFlags::URGENT_PENDING, "cdc_urg_pending"),
            (ProducerFlags::URGENT_PRESENT, "cdc_urg_present"),
            (ProducerFlags::FAILOVER_VALIDATION, "cdc_failover"),
        ];
        for (flag, label) in producer {
            if cdc.producer_flags.contains(flag) {
                add(label.into());
            }
        }
    }
    counts
}

/// The ring that each host announced for each of its tokens.
fn announced_rings(capture: &Capture) -> BTreeMap<(IpAddr, u32), Ring> {
    let mut rings = BTreeMap::new();
    for found in &capture.clc {
        let message = Message::parse(&found.bytes).unwrap();
        let kind = message.kind();
        let (Message::Accept(repr) | Message::Confirm(repr)) = message else {
            continue;
        };
        assert_eq!(repr.step.clc_type(), kind);
        if let Terms::V2 { eid, .. } = repr.terms {
            assert!(eid.is_valid_ueid(), "{eid}");
        }
        let Body::R(end) = repr.body else { continue };
        // RoCE may use other addresses than the TCP connection, so both count.
        let roce = end.gid.ipv4().map(IpAddr::V4);
        let roce = roce.unwrap_or_else(|| IpAddr::V6(end.gid.ipv6()));
        for owner in [found.src, roce] {
            rings.insert((owner, end.token.get()), end.size.ring_r());
        }
    }
    rings
}

/// Bytes that the CDC messages to a receive buffer account for.
fn written(capture: &Capture, rmb: &Rmb, ring: Ring) -> u64 {
    let mut last = Cursor::START;
    let mut bytes = 0;
    for found in &capture.cdc {
        let cdc = CdcR::parse(&found.bytes).unwrap();
        if cdc.token.get() == rmb.token && host(found.dst) == host(rmb.owner) {
            bytes += u64::from(ring.span(last, cdc.producer).unwrap());
            last = cdc.producer;
        }
    }
    bytes
}

/// The number of a test host, which ends all of its addresses.
fn host(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    }
}
