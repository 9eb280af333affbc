//! Whatever a file contains, it is read without a panic, and all that is found can be shown.

use std::path::Path;

use clap::Parser;
use proptest::prelude::*;

use super::*;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn args(options: &[&str]) -> Args {
    let words = ["dissect", "file"].iter().chain(options);
    Cli::try_parse_from(words).expect("valid arguments").args
}

/// Reads a file and shows it in all ways; gives the number of messages.
fn show(file: &[u8]) -> usize {
    let all = [
        args(&["--json", "--hex"]),
        args(&["--tree", "--hex", "--timestamps"]),
    ];
    let mut count = 0;
    let mut out = Vec::new();
    let _ = read(file, &mut |message| {
        count += 1;
        all.iter()
            .try_for_each(|args| report::message(args, "file", &message, &mut out))
    });
    assert!(String::from_utf8(out).is_ok());
    count
}

/// A classic capture of these frames, of which all was captured but `missing` bytes.
fn capture(link: u32, frames: &[(Vec<u8>, usize)]) -> Vec<u8> {
    let mut file = 0xA1B2_C3D4_u32.to_le_bytes().to_vec();
    file.extend([2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0]);
    file.extend(link.to_le_bytes());
    for (frame, missing) in frames {
        let original = frame.len() + missing;
        for word in [0, 0, frame.len(), original] {
            file.extend(u32::try_from(word).unwrap().to_le_bytes());
        }
        file.extend(frame);
    }
    file
}

/// Some of the captures of real kernels.
fn vectors() -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../smc-wire/tests/vectors");
    [
        "a1-first-contact-echo",
        "f7-confirm-link-lost",
        "l3-smcr-v1-ipv6",
        "smcd-v2-loopback",
    ]
    .iter()
    .filter_map(|name| std::fs::read(directory.join(format!("{name}.pcap"))).ok())
    .collect()
}

/// Starts of files, so that the rest is not rejected at once.
const STARTS: [&[u8]; 5] = [
    b"",
    b"\xd4\xc3\xb2\xa1\x02\0\x04\0\0\0\0\0\0\0\0\0\0\0\x04\0\x01\0\0\0",
    b"\xa1\xb2\x3c\x4d\0\x02\0\x04\0\0\0\0\0\0\0\0\0\0\x04\0\0\0\0\x65",
    b"\x0a\x0d\x0d\x0a\x1c\0\0\0\x4d\x3c\x2b\x1a\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff\x1c\0\0\0",
    b"\x0a\x0d\x0d\x0a\0\0\0\x1c\x1a\x2b\x3c\x4d\0\x01\0\0\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\x1c",
];

/// Link types, known and unknown.
const LINKS: [u32; 9] = [0, 1, 12, 101, 108, 113, 228, 276, 105];

proptest! {
    #[test]
    fn any_file_is_survived(
        start in prop::sample::select(STARTS.as_slice()),
        rest in prop::collection::vec(any::<u8>(), 0..600),
    ) {
        show(&[start, &rest].concat());
    }

    #[test]
    fn any_block_is_survived(
        start in 3usize..5,
        blocks in prop::collection::vec(
            (prop_oneof![0u32..12, any::<u32>()], prop::collection::vec(any::<u8>(), 0..80)), 0..8,
        ),
    ) {
        let word = |value: u32| match start {
            3 => value.to_le_bytes(),
            _ => value.to_be_bytes(),
        };
        let mut file = STARTS[start].to_vec();
        for (kind, mut body) in blocks {
            body.resize(body.len().next_multiple_of(4), 0);
            let len = word(u32::try_from(body.len() + 12).unwrap());
            file.extend([&word(kind)[..], &len, &body, &len].concat());
        }
        show(&file);
    }

    #[test]
    fn any_frame_is_survived(
        link in prop::sample::select(LINKS.as_slice()),
        frames in prop::collection::vec(
            (prop::collection::vec(any::<u8>(), 0..200), 0usize..100), 0..8,
        ),
    ) {
        show(&capture(link, &frames));
    }

    /// IPv4 with TCP or RoCE in it, and anything behind that.
    #[test]
    fn any_payload_is_survived(
        packets in prop::collection::vec(
            (any::<bool>(), any::<[u8; 12]>(), prop::collection::vec(any::<u8>(), 0..120), 0usize..50),
            0..12,
        ),
    ) {
        let frames: Vec<_> = packets
            .into_iter()
            .map(|(is_tcp, noise, body, missing)| {
                let transport = match is_tcp {
                    // Few ports, so that segments meet; few sequence numbers, for the same reason.
                    true => {
                        let [port, sequence, flags, ..] = noise;
                        let eyecatcher: &[u8] = if flags & 4 != 0 {
                            &[0xE2, 0xD4, 0xC3, 0xD9]
                        } else {
                            &[]
                        };
                        let mut tcp = vec![0, port & 1, 0, 7, 0, 0, 0, sequence];
                        tcp.extend([0, 0, 0, 0, 0x50, flags & 0x12, 0, 0, 0, 0, 0, 0]);
                        [&tcp, eyecatcher, &body].concat()
                    }
                    false => {
                        let [opcode, flags, qp, psn, kind, ..] = noise;
                        let mut udp = vec![0, 1, 0x12, 0xB7, 0, 0, 0, 0];
                        udp.extend([opcode & 0x1F, flags & 0x70, 0, 0, 0, 0, 0, qp & 1]);
                        udp.extend([0, 0, 0, psn & 7, if kind & 1 == 0 { 0xFE } else { kind }, 44]);
                        let len = u16::try_from(udp.len() + body.len() + missing).unwrap();
                        udp[4..6].copy_from_slice(&len.to_be_bytes());
                        [udp, body].concat()
                    }
                };
                let len = u16::try_from(20 + transport.len() + missing).unwrap().to_be_bytes();
                let protocol = if is_tcp { 6 } else { 17 };
                let mut frame = vec![0x45, 0, len[0], len[1], 0, 0, 0, 0, 64, protocol, 0, 0];
                frame.extend([10, 0, 0, 1, 10, 0, 0, 2]);
                frame.extend(transport);
                (frame, missing)
            })
            .collect();
        show(&capture(101, &frames));
    }

    /// Real captures with some bytes changed, or cut short.
    #[test]
    fn damaged_captures_are_survived(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..20),
        keep in any::<prop::sample::Index>(),
    ) {
        let mut files = vectors();
        if files.is_empty() {
            return Ok(());
        }
        let mut file = files.swap_remove(which.index(files.len()));
        for (at, byte) in changes {
            let at = at.index(file.len());
            file[at] = byte;
        }
        show(&file);
        file.truncate(keep.index(file.len()));
        show(&file);
    }
}

#[test]
fn undamaged_captures_have_messages() {
    for file in vectors() {
        assert!(show(&file) > 6);
    }
}

#[test]
fn a_capture_full_of_the_shortest_messages_is_taken_apart_in_bounded_memory() {
    let header = [0xE2, 0xD4, 0xC3, 0xD9, 2, 0, 8, 0x20];
    let payload = header.repeat(180);
    let mut dissector = Dissector::default();
    let mut most = 0;
    let mut all = 0;
    let mut take = |found: &mut Vec<Message>| {
        most = most.max(found.len());
        all += found.drain(..).count();
    };
    for port in 1..=10_000 {
        // Behind a gap, so that nothing can be said of it before the end.
        for (sequence, payload) in [(0, &b""[..]), (1_000, &payload)] {
            let segment = link::Segment {
                src: ([10, 0, 0, 1], port).into(),
                dst: ([10, 0, 0, 2], 80).into(),
                sequence,
                acknowledgment: 0,
                syn: payload.is_empty(),
                ack: false,
                options: &[],
                payload,
                missing: 0,
            };
            let mark = Mark {
                frame: port.into(),
                time: None,
            };
            dissector
                .connections
                .segment(mark, &segment, &mut dissector.found);
            take(&mut dissector.found);
        }
    }
    while dissector.connections.finish_some(&mut dissector.found) {
        take(&mut dissector.found);
    }
    assert_eq!(all, 10_000 * 8);
    assert!(most <= 4096 * 8, "{most} messages at a time");
}
