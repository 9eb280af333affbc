//! CLC on TCP, in all the ways in which it can be cut into segments.

use crate::support::{ACCEPT, CONFIRM, Capture, DECLINE, PROPOSAL, Side, hex, sides};

/// Segments of `size` bytes.
fn segments(side: Side, stream: &[u8], size: usize) -> Vec<Vec<u8>> {
    let pieces = stream.chunks(size).enumerate();
    pieces
        .map(|(index, piece)| side.data(index * size, piece))
        .collect()
}

/// SYN and SYN/ACK.
fn opening() -> (Capture, Side, Side) {
    let (client, server) = sides();
    let mut capture = Capture::ethernet();
    capture.frame(&client.syn()).frame(&server.syn_ack(client));
    (capture, client, server)
}

#[test]
fn a_handshake_is_shown_with_its_addresses() {
    let (mut capture, client, server) = opening();
    capture
        .frame(&client.data(0, &hex(PROPOSAL)))
        .frame(&server.data(0, &hex(ACCEPT)))
        .frame(&client.data(156, &hex(CONFIRM)));
    let found = capture.dissect();
    let view: Vec<_> = found
        .iter()
        .map(|m| ["src", "dst", "family", "type"].map(|name| m[name].as_str().unwrap()))
        .collect();
    let (c, s) = (client.src, server.src);
    assert_eq!(
        view,
        [
            [c, s, "tcp-option", "SYN"],
            [s, c, "tcp-option", "SYN_ACK"],
            [c, s, "clc", "PROPOSAL"],
            [s, c, "clc", "ACCEPT"],
            [c, s, "clc", "CONFIRM"],
        ],
    );
    assert_eq!(found[2]["hex"], PROPOSAL);
    assert_eq!(found[2]["fields"]["version"], 2);
    assert_eq!(found[3]["fields"]["qp_number"], "0x000012");
    assert_eq!(found[4]["time"], "2023-11-14T22:13:20.000005Z");
}

#[test]
fn one_byte_per_segment() {
    let (mut capture, client, server) = opening();
    capture
        .frames(&segments(client, &hex(PROPOSAL), 1))
        .frames(&segments(server, &hex(ACCEPT), 1));
    assert_eq!(
        capture.summary(),
        ["1 SYN", "2 SYN_ACK", "158 PROPOSAL", "226 ACCEPT"]
    );
}

#[test]
fn several_messages_in_one_segment() {
    // This is unusual, but legal TCP.
    let (mut capture, client, _) = opening();
    let stream = [hex(PROPOSAL), hex(CONFIRM), hex(DECLINE), b"GET /".to_vec()].concat();
    capture.frame(&client.data(0, &stream));
    assert_eq!(
        capture.summary(),
        ["1 SYN", "2 SYN_ACK", "3 PROPOSAL", "3 CONFIRM", "3 DECLINE"],
    );
}

#[test]
fn segments_out_of_order() {
    let (mut capture, client, _) = opening();
    let mut pieces = segments(client, &[hex(PROPOSAL), hex(CONFIRM)].concat(), 20);
    pieces.reverse();
    pieces.swap(2, 9);
    capture.frames(&pieces);
    assert_eq!(
        capture.summary(),
        ["1 SYN", "2 SYN_ACK", "14 PROPOSAL", "14 CONFIRM"]
    );
}

#[test]
fn segments_repeated_and_overlapping() {
    let (mut capture, client, server) = opening();
    let proposal = hex(PROPOSAL);
    capture
        .frame(&client.data(0, &proposal[..100]))
        .frame(&client.data(0, &proposal[..100]))
        .frame(&client.data(50, &proposal[50..120]))
        .frame(&client.syn())
        .frame(&client.data(0, &proposal))
        .frame(&client.data(0, &proposal))
        .frame(&server.data(0, &hex(ACCEPT)))
        .frame(&server.data(0, &hex(ACCEPT)));
    assert_eq!(
        capture.summary(),
        ["1 SYN", "2 SYN_ACK", "6 SYN?", "7 PROPOSAL", "9 ACCEPT"]
    );
}

#[test]
fn sequence_numbers_wrap() {
    let (client, _) = sides();
    for isn in [u32::MAX, u32::MAX - 1, u32::MAX - 77, 0x7FFF_FFC0] {
        let client = Side { isn, ..client };
        let mut pieces = segments(client, &hex(PROPOSAL), 10);
        pieces.swap(7, 8);
        let mut capture = Capture::ethernet();
        capture.frame(&client.syn()).frames(&pieces);
        assert_eq!(capture.summary(), ["1 SYN", "17 PROPOSAL"]);
    }
}

#[test]
fn a_capture_that_begins_late() {
    let (client, server) = sides();
    let mut capture = Capture::ethernet();
    let accept = hex(ACCEPT);
    capture
        .frame(&server.data(30, &accept[30..]))
        .frame(&server.data(0, &accept[..30]))
        .frame(&client.data(156, &hex(CONFIRM)));
    assert_eq!(capture.summary(), ["2 ACCEPT", "3 CONFIRM"]);
}

#[test]
fn application_data_behind_a_decline_is_left_alone() {
    for data in [PROPOSAL, ACCEPT, DECLINE] {
        let (mut capture, client, server) = opening();
        capture
            .frame(&client.data(0, &hex(PROPOSAL)))
            .frame(&server.data(0, &[hex(DECLINE), hex(data)].concat()))
            .frame(&client.data(156, &hex(data)))
            .frame(&client.data(500, b"more"))
            .frame(&server.data(500, b"more"));
        let mut expected = vec!["1 SYN", "2 SYN_ACK", "3 PROPOSAL", "4 DECLINE"];
        // What the client sends now is not CLC, whatever it looks like; except for a DECLINE, which
        // may have crossed that of the server.
        if data == DECLINE {
            expected.push("5 DECLINE");
        }
        assert_eq!(capture.summary(), expected);
    }
}

#[test]
fn a_client_without_devices_declines_at_once() {
    let (mut capture, client, server) = opening();
    capture
        .frame(&client.data(0, &[hex(DECLINE), b"GET / HTTP/1.1".to_vec()].concat()))
        .frame(&server.data(0, &hex(ACCEPT)));
    assert_eq!(capture.summary(), ["1 SYN", "2 SYN_ACK", "3 DECLINE"]);
}

#[test]
fn a_proposal_captured_behind_its_answer() {
    let (mut capture, client, server) = opening();
    capture
        .frame(&server.data(0, &hex(DECLINE)))
        .frame(&client.data(0, &hex(PROPOSAL)));
    assert_eq!(
        capture.summary(),
        ["1 SYN", "2 SYN_ACK", "3 DECLINE", "4 PROPOSAL"]
    );
}

#[test]
fn a_decline_may_follow_the_confirm() {
    let (mut capture, client, server) = opening();
    capture
        .frame(&client.data(0, &hex(PROPOSAL)))
        .frame(&server.data(0, &hex(ACCEPT)))
        .frame(&client.data(156, &hex(CONFIRM)))
        .frame(&server.data(68, &hex(DECLINE)))
        .frame(&client.data(156 + 68, b"GET / HTTP/1.1"));
    assert_eq!(
        capture.summary()[2..],
        ["3 PROPOSAL", "4 ACCEPT", "5 CONFIRM", "6 DECLINE"],
    );
}

#[test]
fn other_protocols_are_not_clc() {
    let (mut capture, client, server) = opening();
    capture
        .frame(&client.data(0, b"GET / HTTP/1.1\r\n\r\n"))
        .frame(&client.data(18, &hex(PROPOSAL)))
        .frame(&server.data(0, &[0xE2, 0xD4, 0xC3]))
        .frame(&server.data(3, b"!"))
        .frame(&server.data(4, &hex(ACCEPT)));
    assert_eq!(capture.summary(), ["1 SYN", "2 SYN_ACK"]);
}

#[test]
fn a_message_that_the_capture_cuts_off_is_reported() {
    let (mut capture, client, server) = opening();
    capture
        .frame(&client.data(0, &hex(PROPOSAL)[..60]))
        .frame(&server.data(0, &hex(ACCEPT)[..6]));
    let found = capture.dissect();
    assert_eq!(
        crate::support::summary(&found)[2..],
        ["3 PROPOSAL!", "4 ACCEPT!"]
    );
    assert_eq!(
        found[2]["error"],
        "cut off: 60 of 156 bytes are in the capture"
    );
    assert_eq!(found[2]["fields"]["header"]["length"], 156);
    assert_eq!(
        found[3]["error"],
        "cut off: only 6 bytes are in the capture"
    );
}

#[test]
fn a_segment_that_is_not_in_the_capture() {
    let (mut capture, client, _) = opening();
    let proposal = hex(PROPOSAL);
    // Of the first message the end is missing, of the second the start, the third is whole.
    let stream = [proposal.clone(), hex(CONFIRM)].concat();
    capture
        .frame(&client.data(0, &stream[..100]))
        .frame(&client.data(156, &stream[156..]));
    assert_eq!(capture.summary()[2..], ["3 PROPOSAL!", "4 CONFIRM"]);
}

#[test]
fn frames_cut_at_the_snap_length() {
    let (mut capture, client, server) = opening();
    let headers = client.data(0, &[]).len();
    capture
        .cut(&client.data(0, &hex(PROPOSAL)), headers + 60)
        .cut(&server.data(0, &hex(ACCEPT)), headers + 60)
        .cut(&client.data(156, &hex(CONFIRM)), headers + 60)
        .cut(&client.data(224, &hex(DECLINE)), headers + 60);
    let found = capture.dissect();
    assert_eq!(
        crate::support::summary(&found)[2..],
        ["3 PROPOSAL!", "4 ACCEPT!", "5 CONFIRM!", "6 DECLINE"],
    );
    assert_eq!(
        found[3]["error"],
        "cut off: 60 of 68 bytes are in the capture"
    );
}

#[test]
fn the_same_ports_again() {
    let (client, server) = sides();
    let mut capture = Capture::ethernet();
    for round in 0..3u32 {
        let client = Side {
            isn: client.isn.wrapping_add(round * 0x4000_0000),
            ..client
        };
        let server = Side {
            isn: server.isn.wrapping_add(round * 0x5000_0000),
            ..server
        };
        capture
            .frame(&client.syn())
            .frame(&server.syn_ack(client))
            .frame(&client.data(0, &hex(PROPOSAL)))
            .frame(&server.data(0, &hex(DECLINE)))
            .frame(&client.data(156, b"GET / HTTP/1.1"))
            .frame(&server.data(28, b"HTTP/1.1 200 OK"));
    }
    assert_eq!(
        capture.summary(),
        [
            "1 SYN",
            "2 SYN_ACK",
            "3 PROPOSAL",
            "4 DECLINE",
            "7 SYN",
            "8 SYN_ACK",
            "9 PROPOSAL",
            "10 DECLINE",
            "13 SYN",
            "14 SYN_ACK",
            "15 PROPOSAL",
            "16 DECLINE",
        ],
    );
}

#[test]
fn a_syn_behind_its_data() {
    let (client, server) = sides();
    let mut capture = Capture::ethernet();
    capture
        .frame(&server.syn_ack(client))
        .frame(&client.data(80, &hex(PROPOSAL)[80..]))
        .frame(&client.syn())
        .frame(&client.data(0, &hex(PROPOSAL)[..80]))
        .frame(&server.data(0, &hex(ACCEPT)));
    assert_eq!(
        capture.summary(),
        ["1 SYN_ACK", "3 SYN", "4 PROPOSAL", "5 ACCEPT"]
    );
}

#[test]
fn headers_that_no_message_can_have() {
    let (mut capture, client, server) = opening();
    // A length below that of the header ends the search; an unknown type does not.
    capture
        .frame(&client.data(0, &hex("e2d4c3d9 01 0007 20 00000000")))
        .frame(&server.data(0, &hex("e2d4c3d9 09 000c 20 e2d4c3d9")))
        .frame(&server.data(12, &hex(ACCEPT)));
    let found = capture.dissect();
    assert_eq!(
        crate::support::summary(&found)[2..],
        ["3 PROPOSAL!", "4 UNKNOWN_0x09!", "5 ACCEPT"]
    );
}
