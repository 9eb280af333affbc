//! The capture reader finds the same messages however the frames were tagged, split, repeated and
//! mixed up on their way.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod capture;

use capture::{Capture, vectors_dir};

#[test]
fn vlan_tags_are_skipped() {
    let tagged = rewrite("b1-two-in-sequence", |frame| {
        let mut tagged = frame[..12].to_vec();
        tagged.extend([0x88, 0xA8, 0x00, 0x07, 0x81, 0x00, 0x20, 0x65]);
        tagged.extend(&frame[12..]);
        vec![tagged]
    });
    assert_same("b1-two-in-sequence", &tagged);
}

#[test]
fn repeated_frames_count_once() {
    let doubled = rewrite("b1-two-in-sequence", |frame| vec![frame.to_vec(); 2]);
    assert_same("b1-two-in-sequence", &doubled);
}

#[test]
fn tcp_segments_may_be_split_and_out_of_order() {
    for name in [
        "b1-two-in-sequence",
        "f1-decline-no-common-eid",
        "f7-confirm-link-lost",
    ] {
        let split = rewrite(name, |frame| {
            let Some((at, seq)) = tcp_payload(frame) else {
                return vec![frame.to_vec()];
            };
            let middle = at + (frame.len() - at) / 2;
            let mut first = frame[..middle].to_vec();
            let mut second = frame[..at].to_vec();
            second.extend(&frame[middle..]);
            let moved = u32::from_be_bytes(frame[seq..seq + 4].try_into().unwrap());
            let moved = moved.wrapping_add(u32::try_from(middle - at).unwrap());
            second[seq..seq + 4].copy_from_slice(&moved.to_be_bytes());
            for half in [&mut first, &mut second] {
                let length = u16::try_from(half.len() - ETHERNET).unwrap();
                half[ETHERNET + 2..ETHERNET + 4].copy_from_slice(&length.to_be_bytes());
            }
            // The end of the message comes first, and part of it once more.
            vec![second.clone(), first, second]
        });
        assert_same(name, &split);
    }
}

#[test]
fn padding_of_short_frames_is_no_payload() {
    let padded = rewrite("b1-two-in-sequence", |frame| {
        let mut padded = frame.to_vec();
        padded.extend([0xEE; 18]);
        vec![padded]
    });
    assert_same("b1-two-in-sequence", &padded);
}

/// A packet that overtakes a lost one is captured twice, the first time too early.
#[test]
fn queue_pair_messages_are_ordered_by_sequence_number() {
    let file = std::fs::read(vectors_dir().join("j1-test-link.pcap")).unwrap();
    let mut frames = frames(&file);
    let early: Vec<Vec<u8>> = frames
        .iter()
        .rev()
        .filter(|f| f[23] == 17)
        .cloned()
        .collect();
    let tail = frames.split_off(8);
    frames.extend(early);
    frames.extend(tail);
    let expected = Capture::from_bytes(&file);
    let found = Capture::from_bytes(&assemble(&file, &frames));
    let bytes = |list: &[capture::Found], from: &capture::Found| -> Vec<Vec<u8>> {
        list.iter()
            .filter(|f| f.src == from.src)
            .map(|f| f.bytes.clone())
            .collect()
    };
    for sender in &expected.llc {
        assert_eq!(bytes(&found.llc, sender), bytes(&expected.llc, sender));
        assert_eq!(bytes(&found.cdc, sender), bytes(&expected.cdc, sender));
    }
}

#[test]
fn a_capture_that_ends_early_is_read_as_far_as_it_goes() {
    let file = std::fs::read(vectors_dir().join("a1-first-contact-echo.pcap")).unwrap();
    for len in (24..file.len()).step_by(97) {
        let capture = Capture::from_bytes(&file[..len]);
        assert!(capture.clc.len() <= 3);
    }
}

const ETHERNET: usize = 14;

/// Replaces each frame of a capture by others.
fn rewrite(name: &str, change: impl Fn(&[u8]) -> Vec<Vec<u8>>) -> Vec<u8> {
    let file = std::fs::read(vectors_dir().join(name).with_extension("pcap")).unwrap();
    let changed: Vec<Vec<u8>> = frames(&file)
        .iter()
        .flat_map(|frame| change(frame))
        .collect();
    assemble(&file, &changed)
}

fn assert_same(name: &str, changed: &[u8]) {
    let expected = Capture::open(&vectors_dir().join(name).with_extension("pcap"));
    let found = Capture::from_bytes(changed);
    let bytes = |list: &[capture::Found]| -> Vec<Vec<u8>> {
        list.iter().map(|found| found.bytes.clone()).collect()
    };
    assert_eq!(bytes(&found.clc), bytes(&expected.clc), "{name}");
    assert_eq!(bytes(&found.llc), bytes(&expected.llc), "{name}");
    assert_eq!(bytes(&found.cdc), bytes(&expected.cdc), "{name}");
    assert_eq!(
        bytes(&found.application),
        bytes(&expected.application),
        "{name}"
    );
}

/// Where the payload and the sequence number of a TCP segment over IPv4 lie, if it has payload.
fn tcp_payload(frame: &[u8]) -> Option<(usize, usize)> {
    let is_tcp = frame[12..14] == [0x08, 0x00] && frame[23] == 6;
    let tcp = ETHERNET + usize::from(frame[ETHERNET] & 0x0F) * 4;
    let payload = tcp + usize::from(frame[tcp + 12] >> 4) * 4;
    (is_tcp && frame.len() > payload + 1).then_some((payload, tcp + 4))
}

fn frames(file: &[u8]) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let mut rest = &file[24..];
    while !rest.is_empty() {
        let length = u32::from_le_bytes(rest[8..12].try_into().unwrap());
        let (frame, tail) = rest[16..].split_at(usize::try_from(length).unwrap());
        frames.push(frame.to_vec());
        rest = tail;
    }
    frames
}

/// A capture file of these frames, big-endian unlike the original.
fn assemble(file: &[u8], frames: &[Vec<u8>]) -> Vec<u8> {
    let reversed = |range: std::ops::Range<usize>| file[range].iter().rev().copied();
    let mut out: Vec<u8> = reversed(0..4).collect();
    out.extend([0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0]);
    out.extend(reversed(20..24));
    for frame in frames {
        let length = u32::try_from(frame.len()).unwrap().to_be_bytes();
        out.extend([0; 8]);
        out.extend(length);
        out.extend(length);
        out.extend(frame);
    }
    out
}
