//! Messages with extensions, and receivers with and without them.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use smc_wire::DecodeErrorKind as Kind;
use smc_wire::clc::{Authentication, Extensions, Frame, Message, Proposal};
use smc_wire::pretty::{self, Family};
use smc_wire::types::{AuthenticationCode, Features};
use support::*;

/// Checks bytes against message and extensions, both ways.
#[track_caller]
fn assert_both_ways(text: &str, message: &Message, extensions: Extensions<'_>) {
    let bytes = hex(text);
    let mut out = [0; 1024];
    let len = match message {
        Message::Proposal(m) => {
            assert_eq!(m.extended_len(&extensions), bytes.len());
            m.emit_extended(&extensions, &mut out).unwrap()
        }
        Message::Accept(m) | Message::Confirm(m) => {
            assert_eq!(m.extended_len(&extensions), bytes.len());
            m.emit_extended(&extensions, &mut out).unwrap()
        }
        Message::Decline(_) => panic!("DECLINE has no extensions"),
    };
    assert_eq!(out[..len], bytes);
    let received = Message::parse_extended(&bytes).unwrap();
    assert_eq!((&received.0, received.1), (message, extensions));
}

#[test]
fn a_proposal_with_early_confirm_and_early_data_for_smc_d() {
    let message = Message::Proposal(proposal_with(P4, AGREED));
    assert_both_ways(X1, &message, early_direct(b"GET /"));
}

#[test]
fn a_proposal_with_early_confirm_for_smc_r() {
    let message = Message::Proposal(proposal_with(P3, Features::EARLY_CONFIRM));
    assert_both_ways(X2, &message, early_rdma());
}

#[test]
fn first_contact_with_features_in_use() {
    let message = Message::Accept(accept_with(A3, AGREED));
    assert_both_ways(X3, &message, in_use());
    let message = Message::Confirm(accept_with(CAPTURED_CONFIRM, AGREED));
    assert_both_ways(X4, &message, in_use());
}

#[test]
fn a_reused_link_group_with_features_in_use() {
    let message = Message::Accept(accept_with(CAPTURED_ACCEPT_REUSE, AGREED));
    assert_both_ways(X5, &message, in_use());
}

#[test]
fn a_reused_link_group_with_authentication() {
    let message = Message::Accept(accept_with(CAPTURED_ACCEPT_REUSE, AGREED));
    let mut bytes = hex(X5);
    let code = std::array::from_fn(|at| at as u8);
    let extension = [
        &[0, 0, 0, 0, 0xff, 0x05, 24][..],
        &[0, 0, 0, 0, 0, 0, 1, 2],
        &code,
    ];
    let end = bytes.len() - 4;
    bytes.splice(end..end, extension.concat());
    bytes[101] = 2;
    let bytes = with_true_length(bytes);
    let extensions = Extensions {
        authentication: Some(Authentication {
            number: 0x102,
            code: AuthenticationCode::from_bytes(code),
        }),
        ..in_use()
    };
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    assert_both_ways(&text, &message, extensions);
    let line = pretty::line(Family::Clc, &bytes).to_string();
    let shown = "authentication 258 000102030405060708090a0b0c0d0e0f";
    assert!(line.ends_with(shown), "{line}");
}

#[test]
fn a_payload_may_come_in_pieces() {
    // The five bytes of data as "GE", nothing, and "T /", with padding around.
    let mut bytes = hex(X1);
    let padding = [0, 0, 0, 0, 0, 1, 0];
    let pieces = [
        &padding[..],
        &[0, 0, 0, 0, 0xff, 0x03, 0x80, 2, b'G', b'E'],
        &[0, 0, 0, 0, 0x80, 0x01, 0],
        &[0, 0, 0, 0, 1, 3, b'T', b' ', b'/'],
        &padding,
    ]
    .concat();
    bytes.splice(284..296, pieces);
    bytes[72] += 4;
    let bytes = with_true_length(bytes);
    let (_, extensions) = Message::parse_extended(&bytes).unwrap();
    assert_eq!(extensions, early_direct(b"GET /"));
    let data = extensions.early_data.unwrap();
    let expected: [&[u8]; 3] = [b"GE", b"", b"T /"];
    assert_eq!(data.pieces().collect::<Vec<_>>(), expected);
    assert_eq!(data.len(), 5);

    // The same for a payload of fixed length.
    let mut bytes = hex(X1);
    bytes.splice(276..276, [0, 0, 0, 0, 1, 8]);
    (bytes[267], bytes[72]) = (8, 7);
    let bytes = with_true_length(bytes);
    let (_, extensions) = Message::parse_extended(&bytes).unwrap();
    assert_eq!(extensions, early_direct(b"GET /"));
}

#[test]
fn unknown_extensions_are_skipped() {
    let mut bytes = hex(X5);
    let unknown = [0, 0, 0, 0, 0xff, 0xff, 2, 1, 2, 0, 0, 0, 0, 6, 0];
    bytes.splice(115..115, unknown);
    bytes[101] = 3;
    let bytes = with_true_length(bytes);
    let (_, extensions) = Message::parse_extended(&bytes).unwrap();
    assert_eq!(extensions, in_use());
}

#[test]
fn the_longest_message() {
    let data = [0x55; Extensions::MAX_EARLY_DATA];
    let extensions = early_direct(&data);
    let message = proposal_with(P4, AGREED);
    let mut out = vec![0; message.extended_len(&extensions)];
    assert!(out.len() <= Proposal::MAX_EXTENDED_LEN);
    assert_eq!(message.emit_extended(&extensions, &mut out), Ok(out.len()));
    let frame = Frame::peek_extended(&out).unwrap().unwrap();
    assert_eq!((frame.length(), frame.keep()), (out.len(), out.len()));
    let received = Message::parse_extended(&out).unwrap();
    assert_eq!(received, (Message::Proposal(message), extensions));

    let mut with_length = |length: usize| {
        out[5..7].copy_from_slice(&u16::try_from(length).unwrap().to_be_bytes());
        Frame::peek_extended(&out).map_err(|error| error.kind)
    };
    let (maximum, got) = (Proposal::MAX_EXTENDED_LEN, Proposal::MAX_EXTENDED_LEN + 1);
    assert!(with_length(maximum).is_ok());
    assert_eq!(with_length(got), Err(Kind::LengthAbove { maximum, got }));
}

mod receivers_without_extensions {
    use super::*;

    #[test]
    fn refuse_a_proposal_that_is_longer_than_its_regions() {
        for (text, expected) in [(X1, 224), (X2, 242)] {
            let bytes = hex(text);
            let got = bytes.len();
            let error = Message::parse(&bytes).unwrap_err();
            assert_eq!((error.field, error.offset), ("length", 5));
            assert_eq!(error.kind, Kind::Length { expected, got });
            assert_eq!(Proposal::parse(&bytes), Err(error));
        }
    }

    #[test]
    fn refuse_a_longer_proposal_by_its_header() {
        let data = [0; 400];
        let extensions = early_direct(&data);
        let message = proposal_with(P4, AGREED);
        let mut out = [0; 1024];
        let len = message.emit_extended(&extensions, &mut out).unwrap();
        let (maximum, got) = (652, len);
        let error = Frame::peek(&out).unwrap_err();
        assert_eq!(error.kind, Kind::LengthAbove { maximum, got });
        assert!(Frame::peek_extended(&out).is_ok());
    }

    #[test]
    fn read_the_regions_of_accept_and_confirm() {
        for text in [X3, X4, X5] {
            let bytes = hex(text);
            let (with, _) = Message::parse_extended(&bytes).unwrap();
            assert_eq!(Message::parse(&bytes), Ok(with));
        }
    }

    #[test]
    fn accept_a_proposal_with_headers_of_regions_alone() {
        // What can be sent to any peer: reserved bytes are not looked at.
        let mut bytes = hex(X1);
        bytes.drain(220..296);
        bytes[72] = 3;
        let bytes = with_true_length(bytes);
        let expected = Message::Proposal(proposal_with(P4, AGREED));
        assert_eq!(Message::parse(&bytes).as_ref(), Ok(&expected));
        let (message, extensions) = Message::parse_extended(&bytes).unwrap();
        assert_eq!((message, extensions), (expected, Extensions::default()));
    }
}

mod messages_without_features {
    use super::*;

    #[test]
    fn have_no_extensions_whatever_is_reserved() {
        let reserved: [(&str, Vec<usize>); 4] = [
            (P3, (60..80).chain([92, 93]).chain(116..128).collect()),
            (
                CAPTURED_CONFIRM,
                (96..104)
                    .chain([106, 107])
                    .chain(148..156)
                    .chain(144..148)
                    .collect(),
            ),
            (CAPTURED_ACCEPT_REUSE, (96..104).collect()),
            (A3, vec![26, 27, 76, 77]),
        ];
        for (text, reserved) in reserved {
            let mut bytes = hex(text);
            for at in reserved {
                bytes[at] = 0xff;
            }
            let expected = (Message::parse(&bytes).unwrap(), Extensions::default());
            assert_eq!(Message::parse_extended(&bytes), Ok(expected));
        }
    }

    #[test]
    fn have_no_tail() {
        let mut bytes = hex(X1);
        // Another OUI.
        bytes[52] = 0;
        let (expected, got) = (224, 300);
        let error = Message::parse_extended(&bytes).unwrap_err();
        assert_eq!(error.kind, Kind::Length { expected, got });
    }

    #[test]
    fn may_be_of_version_1() {
        // A PROPOSAL of version 1 reserves what version 2 has for the vendor.
        let mut bytes = hex(P2);
        let oui_and_options = [0x52, 0x53, 0x4d, 0x53, 0x46, 0, 0x0c, 0];
        bytes[52..60].copy_from_slice(&oui_and_options);
        bytes[72] = 1;
        let expected = (Message::parse(&bytes).unwrap(), Extensions::default());
        assert_eq!(Message::parse_extended(&bytes), Ok(expected));
        let longer = with_excess(&bytes, 6);
        assert_eq!(
            Message::parse_extended(&longer),
            Err(Message::parse(&longer).unwrap_err())
        );
    }

    #[test]
    fn may_be_of_release_0() {
        // First-contact parts of release 0 reserve the vendor options.
        let bytes = with(&hex(X4), 105, 0x20);
        let expected = (Message::parse(&bytes).unwrap(), Extensions::default());
        assert_eq!(Message::parse_extended(&bytes), Ok(expected));
        let tree = pretty::tree(Family::Clc, &bytes).to_string();
        assert!(!tree.contains("extension"), "{tree}");
    }

    #[test]
    fn may_have_bytes_that_are_not_known() {
        // Behind an ACCEPT of a reused group: not the extension with features.
        let other_type = [0, 0, 0, 0, 0xff, 0x01, 4, 0x53, 0x46, 0, 8];
        let other_magic = [0, 0, 0, 0, 0xff, 0x00, 4, 0x53, 0x47, 0, 8];
        for tail in [&[1, 2, 3][..], &other_type, &other_magic] {
            let mut bytes = hex(CAPTURED_ACCEPT_REUSE);
            bytes.splice(104..104, tail.iter().copied());
            bytes[101] = 1;
            let bytes = with_true_length(bytes);
            let expected = (Message::parse(&bytes).unwrap(), Extensions::default());
            assert_eq!(Message::parse_extended(&bytes), Ok(expected));
        }
    }
}

mod printer {
    use super::*;

    #[test]
    fn headers_and_extensions_in_a_tree() {
        let tree = pretty::tree(Family::Clc, &hex(X1)).to_string();
        let expected = "
   71  0006                 extension_count: 6
   77  00                   extension_type: 0x00 (padding)
   78  8000                 extension_length: 0
   80                     v2_extension
   80  01                   ueid_count: 1
   81  02                   gid_entry_count: 2
   83  10                   release: 1
   83  10                   seid_present: no
   84  03                   extension_type: 0x03 (v2 extension)
   85  1b                   extension_length: 27
   86  0040                 smcd_v2_offset: 64
";
        assert!(tree.contains(expected), "{tree}");
        let expected = "
  117  01                   continuation_type: 0x01 (continuation)
  118  8064                 continuation_length: 100
";
        assert!(tree.contains(expected), "{tree}");
        let expected = "
  220                     extensions[0]
  224  ff01                 type: 0x7f01 (early CONFIRM, SMC-D)
  226  22                   length: 34
  227  1111111111111111     gid: 0x1111111111111111
  235  00000000deadbeef     dmb_token: 0x00000000deadbeef
  243  00                   dmbe_index: 0
  244  20                   dmbe_size: 2 (65536 bytes)
  247  00010000             link_id: 0x00010000
  251  ffff                 chid: 0xffff (loopback)
  253  2222222222222222     extended_gid: 0x2222222222222222
  261                     extensions[1]
  265  ff04                 type: 0x7f04 (nonce)
  267  10                   length: 16
  268  1011121314151617…    payload: 101112131415161718191a1b1c1d1e1f
  284                     extensions[2]
  288  ff03                 type: 0x7f03 (early data)
  290  05                   length: 5
  291  474554202f           payload
  296  e2d4c3d9           trailer: 0xe2d4c3d9 (SMCR)
";
        assert!(tree.ends_with(expected), "{tree}");
    }

    #[test]
    fn extensions_in_a_line() {
        for (text, expected) in [
            (
                X1,
                "features [SINGLE_LINK | EARLY_CONFIRM | EARLY_DATA] early-dmb \
                 0x00000000deadbeef#0 nonce 101112131415161718191a1b1c1d1e1f early-data 5",
            ),
            (
                X2,
                "features [EARLY_CONFIRM] early-rmb 0xff4588c4c3870000#1 link 1",
            ),
            (X5, "eid SMCV2-TEST-EID in-use [EARLY_DATA]"),
        ] {
            let line = pretty::line(Family::Clc, &hex(text)).to_string();
            assert!(line.ends_with(expected), "{line}");
        }
    }

    #[test]
    fn nothing_is_wrong_with_any_of_them() {
        for (name, text) in ALL_EXTENDED {
            let tree = pretty::tree(Family::Clc, &hex(text)).to_string();
            assert!(
                !tree.contains('!') && !tree.contains("reserved"),
                "{name}: {tree}"
            );
        }
    }

    #[test]
    fn what_is_wrong_is_stated() {
        let bytes = with(&hex(X1), 226, 33);
        let tree = pretty::tree(Family::Clc, &bytes).to_string();
        assert!(
            tree.contains("receivers refuse this: PROPOSAL: early CONFIRM, SMC-D at offset 220"),
            "{tree}"
        );
    }
}
