//! LLC and CDC on queue pairs.

use smc_wire::Bounded;
use smc_wire::llc::{AddLinkCont, Class, ConfirmRkeyCont, LinkRtoken, Message, RkeyClass, Rtoken};
use smc_wire::types::{LinkNumber, Rkey, RmbAddr};

use crate::support::{CDC, CONFIRM_LINK, Capture, bth, hex, roce_v2, run_on, stderr, stdout};

const SEND_FIRST: u8 = 0x00;
const SEND_MIDDLE: u8 = 0x01;
const SEND_LAST: u8 = 0x02;
const SEND_ONLY: u8 = 0x04;
const SEND_ONLY_IMMEDIATE: u8 = 0x05;
const WRITE_ONLY: u8 = 0x0A;
const SEND_ONLY_INVALIDATE: u8 = 0x17;

/// An LLC message of version 2 with `count` rtokens: ADD LINK, big endian.
fn add_link(count: u16) -> Vec<u8> {
    let len = 72 + 16 * count;
    let mut message = vec![0x22];
    message.extend(len.to_be_bytes());
    message.resize(70, 0);
    message.extend(count.to_be_bytes());
    message.resize(usize::from(len), 0x11);
    message
}

#[test]
fn messages_are_told_apart_by_their_first_byte() {
    let mut capture = Capture::ethernet();
    capture
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 1, &hex(CONFIRM_LINK))))
        .frame(&roce_v2(&bth(WRITE_ONLY, 0x11, 2, &[0xFE; 60])))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 3, &hex(CDC))));
    let found = capture.dissect();
    assert_eq!(crate::support::summary(&found), ["1 CONFIRM_LINK", "3 CDC"]);
    // CONFIRM LINK contains which queue pair sends.
    for message in &found {
        assert_eq!(message["src"], "10.0.0.2 qp 0x12");
        assert_eq!(message["dst"], "10.0.0.1 qp 0x11");
    }
    assert_eq!(found[0]["family"], "llc");
    assert_eq!(found[0]["fields"]["version"], 1);
    assert_eq!(found[0]["fields"]["response"], false);
    assert_eq!(found[1]["family"], "cdc");
    assert_eq!(found[1]["fields"]["producer"]["count"], 1000);
    assert_eq!(found[1]["hex"], CDC);
}

#[test]
fn immediate_data_and_invalidated_keys_are_not_payload() {
    for opcode in [SEND_ONLY_IMMEDIATE, SEND_ONLY_INVALIDATE] {
        let mut capture = Capture::ethernet();
        let payload = [&[0xAA; 4][..], &hex(CDC)].concat();
        capture.frame(&roce_v2(&bth(opcode, 0x11, 1, &payload)));
        let found = capture.dissect();
        assert_eq!(found[0]["hex"], CDC);
    }
}

#[test]
fn a_message_in_several_packets() {
    let message = add_link(200);
    let pieces: Vec<&[u8]> = message.chunks(1024).collect();
    let mut capture = Capture::ethernet();
    let last = pieces.len() - 1;
    for (index, piece) in pieces.iter().enumerate() {
        let opcode = match index {
            0 => SEND_FIRST,
            _ if index == last => SEND_LAST,
            _ => SEND_MIDDLE,
        };
        let sequence = 0x00FF_FFFE + u32::try_from(index).unwrap();
        capture.frame(&roce_v2(&bth(opcode, 0x11, sequence, piece)));
    }
    let found = capture.dissect();
    assert_eq!(crate::support::summary(&found), ["4 ADD_LINK"]);
    assert_eq!(found[0]["fields"]["v2_extension"]["rtoken_count"], 200);

    // Without one of the packets there is no message.
    let mut capture = Capture::ethernet();
    capture
        .frame(&roce_v2(&bth(SEND_FIRST, 0x11, 1, pieces[0])))
        .frame(&roce_v2(&bth(SEND_LAST, 0x11, 3, pieces[last])));
    assert!(capture.dissect().is_empty());
}

#[test]
fn retransmissions_are_marked() {
    let cdc = hex(CDC);
    let other = [&cdc[..3], &[2], &cdc[4..]].concat();
    let mut capture = Capture::ethernet();
    capture
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 7, &cdc)))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 8, &other)))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 7, &cdc)))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 8, &other)))
        // Another queue pair, and the same numbers with other contents.
        .frame(&roce_v2(&bth(SEND_ONLY, 0x12, 7, &cdc)))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 7, &other)));
    assert_eq!(
        capture.summary(),
        ["1 CDC", "2 CDC", "3 CDC?", "4 CDC?", "5 CDC", "6 CDC"]
    );
    let text = stdout(&run_on(capture.bytes(), &[]));
    assert_eq!(text.matches("[retransmission]").count(), 2);
}

#[test]
fn other_users_of_rdma_are_ignored() {
    let mut capture = Capture::ethernet();
    capture
        .frame(&roce_v2(&bth(SEND_ONLY, 0x20, 1, b"something else")))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x20, 2, &[0x01; 64])))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x20, 3, &[])))
        .frame(&roce_v2(&[SEND_ONLY, 0, 0]))
        .frame(&roce_v2(&[]));
    assert!(capture.dissect().is_empty());
}

#[test]
fn what_does_not_decode_is_reported_on_queue_pairs_of_smc() {
    let mut capture = Capture::ethernet();
    capture
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 1, &hex(CONFIRM_LINK))))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 2, &[0x05; 44])))
        .frame(&roce_v2(&bth(SEND_ONLY, 0x11, 3, &hex(CONFIRM_LINK)[..20])));
    let found = capture.dissect();
    assert_eq!(
        crate::support::summary(&found),
        ["1 CONFIRM_LINK", "2 UNKNOWN_0x05!", "3 CONFIRM_LINK!"],
    );
    assert_eq!(found[1]["error"], "no LLC message has the type 0x05");
}

#[test]
fn frames_cut_at_the_snap_length() {
    let frame = roce_v2(&bth(SEND_ONLY, 0x11, 1, &hex(CDC)));
    let mut capture = Capture::ethernet();
    // Without the invariant CRC, within the message, within the headers.
    capture
        .cut(&frame, frame.len() - 4)
        .cut(&frame, frame.len() - 14)
        .cut(&frame, 50);
    let found = capture.dissect();
    assert_eq!(crate::support::summary(&found), ["1 CDC", "2 CDC!"]);
    assert_eq!(
        found[1]["error"],
        "cut off: 34 of 44 bytes are in the capture"
    );
}

#[test]
fn roce_v1_has_its_own_ethertype() {
    let packet = bth(SEND_ONLY, 0x11, 1, &hex(CONFIRM_LINK));
    let mut frame = [[2; 6], [4; 6]].concat();
    frame.extend([0x89, 0x15, 0x60, 0, 0, 0]);
    frame.extend(u16::try_from(packet.len()).unwrap().to_be_bytes());
    frame.extend([0x1B, 1]);
    frame.extend(hex("fe80000000000000505400fffe000001"));
    frame.extend(hex("00000000000000000000ffff0a000001"));
    frame.extend(&packet);
    frame.extend([0; 7]);
    let mut capture = Capture::ethernet();
    capture
        .frame(&frame)
        .cut(&frame, frame.len() - 25)
        .cut(&frame, 30);
    let found = capture.dissect();
    assert_eq!(
        crate::support::summary(&found),
        ["1 CONFIRM_LINK", "2 CONFIRM_LINK!"]
    );
    assert_eq!(found[0]["src"], "fe80::5054:ff:fe00:1 qp 0x12");
    assert_eq!(found[0]["dst"], "10.0.0.1 qp 0x11");
}

/// The line that the program shows for a message in a capture, behind the addresses.
fn line_of(message: &Message<'_>) -> String {
    let mut bytes = [0; 44];
    let len = message.emit(&mut bytes).expect("a valid message");
    let mut capture = Capture::ethernet();
    capture.frame(&roce_v2(&bth(SEND_ONLY, 0x11, 1, &bytes[..len])));
    let output = run_on(capture.bytes(), &[]);
    assert!(output.status.success(), "{}", stderr(&output));
    let line = stdout(&output);
    let (_, gist) = line.trim_end().split_once("qp 0x11: ").expect("addresses");
    gist.to_owned()
}

#[test]
fn the_line_of_add_link_continuation_lists_its_rtokens() {
    let rtokens = [0x10, 0x20, 0x30].map(|key| Rtoken {
        rkey: Rkey(key),
        new_rkey: Rkey(key + 1),
        new_address: RmbAddr(0xFF45_0000_0000 + u64::from(key)),
    });
    // Two fit into a message; the third is for the next one.
    for (sent, listed) in [
        (&rtokens[..0], "left 0 rtokens []"),
        (
            &rtokens[..1],
            "left 1 rtokens [0x00000010:0x00000011@0x0000ff4500000010]",
        ),
        (
            &rtokens[..],
            "left 3 rtokens [0x00000010:0x00000011@0x0000ff4500000010 \
             0x00000020:0x00000021@0x0000ff4500000020]",
        ),
    ] {
        let message = AddLinkCont::of(Class::Request, LinkNumber(2), sent);
        assert_eq!(
            line_of(&Message::AddLinkCont(message)),
            format!("ADD LINK CONT v1 request link 2 {listed}")
        );
    }
}

#[test]
fn the_line_of_confirm_rkey_continuation_lists_its_rtokens() {
    let rtokens = [4, 5].map(|link| LinkRtoken {
        link: LinkNumber(link),
        rkey: Rkey(u32::from(link) << 8),
        address: RmbAddr(0x1_0000),
    });
    let message = ConfirmRkeyCont {
        class: RkeyClass::Request,
        left: 2,
        rtokens: Bounded::from_iter_lossy(rtokens),
    };
    assert_eq!(
        line_of(&Message::ConfirmRkeyCont(message)),
        "CONFIRM RKEY CONT v1 request left 2 rtokens \
         [4:0x00000400@0x0000000000010000 5:0x00000500@0x0000000000010000]"
    );
}
