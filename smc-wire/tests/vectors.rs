//! Every message of every capture decodes, re-encodes to the same bytes, and is there in the number
//! that the capture's description states.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod capture;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;

use smc_wire::cdc::{CdcR, ProducerFlags, StateFlags};
use smc_wire::clc::{Body, Frame, Message};
use smc_wire::cursor::{Cursor, Ring};
use smc_wire::llc::{self, AddLink, AddLinkClass, ByteOrder, Dialect};

use capture::{Capture, Found, captures};

#[test]
fn every_clc_message_survives_decoding_and_encoding() {
    let total = each(
        |capture| &capture.clc,
        |at, bytes| {
            let frame = Frame::peek(bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(frame.unwrap().length(), bytes.len(), "{at}");
            let message = Message::parse(bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(emit_clc(&message), bytes, "{at}: {message:?}");
        },
    );
    assert!(total > 200, "only {total} CLC messages found");
}

#[test]
fn every_llc_message_survives_decoding_and_encoding() {
    let total = each(
        |capture| &capture.llc,
        |at, bytes| {
            let message = llc::Message::parse(bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            let is_known = !matches!(message, llc::Message::Unknown(_));
            assert!(is_known, "{at}: {bytes:02x?}");
            let header = llc::Header::parse(bytes, None).unwrap();
            assert!(header.length_agrees(), "{at}");
            let mut buffer = [0xAA; llc::MAX_MESSAGE_LEN];
            assert_eq!(message.emit(&mut buffer), Ok(bytes.len()), "{at}");
            assert_eq!(message.encoded_len(), bytes.len(), "{at}");
            assert_eq!(buffer[..bytes.len()], *bytes, "{at}: {message:?}");
        },
    );
    assert!(total > 500, "only {total} LLC messages found");
}

#[test]
fn every_cdc_message_survives_decoding_and_encoding() {
    let total = each(
        |capture| &capture.cdc,
        |at, bytes| {
            let cdc = CdcR::parse(bytes).unwrap_or_else(|e| panic!("{at}: {e}"));
            assert_eq!(cdc.to_bytes()[..], *bytes, "{at}");
        },
    );
    assert!(total > 400, "only {total} CDC messages found");
}

#[test]
fn message_counts_are_those_of_the_descriptions() {
    let mut expected = expectations();
    for capture in captures() {
        let name = capture.name;
        let expected = expected
            .remove(name)
            .unwrap_or_else(|| panic!("{name} is not described"));
        assert_eq!(count(&capture), expected.counts, "{name}");
    }
    assert!(expected.is_empty(), "not there: {:?}", expected.keys());
}

/// The receive buffers of each capture: their size, and how many bytes were written to them
/// according to the CDC messages.
#[test]
fn producer_cursors_add_up_to_the_bytes_written() {
    let mut checked = 0;
    let expected = expectations();
    for capture in captures() {
        let rings = announced_rings(&capture);
        for rmb in &expected[capture.name].rmbs {
            let key = (rmb.owner, rmb.token);
            let at = format!("{}: token {:#x} of {}", capture.name, rmb.token, rmb.owner);
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
    for capture in captures() {
        let rings = announced_rings(&capture);
        let mut last: BTreeMap<(IpAddr, u32), CdcR> = BTreeMap::new();
        for found in &capture.cdc {
            let at = place(&capture, found);
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
    each(
        |capture| &capture.llc,
        |at, bytes| {
            let dialect = llc::Header::parse(bytes, None).unwrap().dialect();
            if dialect != Dialect::V1 {
                assert_eq!(dialect, Dialect::V2(ByteOrder::Little), "{at}");
                assert_eq!(llc::detect_order(bytes), Some(ByteOrder::Little));
                v2 += 1;
            }
        },
    );
    assert!(v2 > 500, "only {v2} messages");
}

/// Checks each message of one kind, given where it is, and gives their number.
fn each(of: fn(&Capture) -> &Vec<Found>, mut check: impl FnMut(&str, &[u8])) -> usize {
    let mut total = 0;
    for capture in captures() {
        for found in of(&capture) {
            check(&place(&capture, found), &found.bytes);
            total += 1;
        }
    }
    total
}

fn place(capture: &Capture, found: &Found) -> String {
    format!("{} frame {} {}", capture.name, found.frame, found.src)
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
    let text = include_str!("vectors/expected.txt");
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
            _ => panic!("malformed: {line}"),
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
        let suffix = match header.class() {
            llc::Class::Request => "",
            llc::Class::Response => "_response",
        };
        add(format!("{version}_{kind}{suffix}"));
        if let llc::Message::AddLink(AddLink {
            class: AddLinkClass::Rejected(_),
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
        assert_eq!(repr.kind.clc_type(), kind);
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
