//! Every rule by which a CLC message is rejected, one scenario each.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use smc_wire::clc::{AcceptConfirm, Decline, Frame, Message, Proposal};
use smc_wire::{DecodeErrorKind as Kind, MessageKind};
use support::*;

/// The message is rejected for this field, at this offset, for this cause.
#[track_caller]
fn assert_rejected(bytes: &[u8], message: MessageKind, field: &str, offset: usize, kind: Kind) {
    let error = Message::parse(bytes).unwrap_err();
    assert_eq!(
        (error.message, error.field, error.offset),
        (message, field, offset),
        "{error}"
    );
    assert_eq!(error.kind, kind);
}

const fn value(expected: &'static str, got: u64) -> Kind {
    Kind::Value { expected, got }
}

const fn length(expected: usize, got: usize) -> Kind {
    Kind::Length { expected, got }
}

const fn truncated(needed: usize, got: usize) -> Kind {
    Kind::Truncated { needed, got }
}

const fn outside(end: usize, limit: usize) -> Kind {
    Kind::OutOfBounds { end, limit }
}

const fn above_8(got: usize) -> Kind {
    Kind::TooMany { max: 8, got }
}

mod header {
    use super::*;

    #[test]
    fn too_short() {
        let kind = truncated(8, 7);
        assert_rejected(&hex(P1)[..7], MessageKind::ClcHeader, "header", 0, kind);
    }

    #[test]
    fn unknown_eyecatcher() {
        let kind = Kind::Eyecatcher {
            got: [0xe2, 0xd4, 0xc3, 0xd8],
        };
        let bytes = with(&hex(P1), 3, 0xd8);
        assert_rejected(&bytes, MessageKind::ClcHeader, "eyecatcher", 0, kind);
    }

    #[test]
    fn unknown_type() {
        for code in [0, 5, 0xff] {
            let kind = value("1 to 4", code.into());
            let bytes = with(&hex(P1), 4, code);
            assert_rejected(&bytes, MessageKind::ClcHeader, "type", 4, kind);
        }
    }

    #[test]
    fn version_0() {
        let kind = value("1 or above", 0);
        let bytes = with(&hex(P1), 7, 0x00);
        assert_rejected(&bytes, MessageKind::ClcHeader, "version", 7, kind);
    }

    #[test]
    fn another_message_than_the_caller_reads() {
        assert!(Proposal::parse(&hex(A1)).is_err());
        assert!(AcceptConfirm::parse(&hex(P1)).is_err());
        let error = Decline::parse(&hex(A1)).unwrap_err();
        assert_eq!((error.message, error.field), (MessageKind::Decline, "type"));
        assert_eq!(error.kind, value("4", 2));
    }

    #[test]
    fn message_not_complete() {
        for (name, text) in ALL_CLC {
            let bytes = hex(text);
            let error = Message::parse(&bytes[..bytes.len() - 1]).unwrap_err();
            let kind = truncated(bytes.len(), bytes.len() - 1);
            assert_eq!(error.kind, kind, "{name}");
        }
    }

    #[test]
    fn bytes_behind_the_message() {
        for (name, text) in ALL_CLC {
            let mut bytes = hex(text);
            let expected = bytes.len();
            bytes.push(0);
            let error = Message::parse(&bytes).unwrap_err();
            assert_eq!(error.kind, length(expected, expected + 1), "{name}");
        }
    }

    #[test]
    fn length_beyond_what_the_type_allows() {
        let limit = |text: &str, length: u16| {
            let mut bytes = hex(text);
            bytes[5..7].copy_from_slice(&length.to_be_bytes());
            Frame::peek(&bytes).map_err(|error| error.kind)
        };
        let below = |minimum, got| Err(Kind::LengthBelow { minimum, got });
        let above = |maximum, got| Err(Kind::LengthAbove { maximum, got });
        assert_eq!(limit(P3, 51), below(52, 51));
        assert_eq!(limit(P3, 653), above(652, 653));
        assert_eq!(limit(A3, 47), below(48, 47));
        assert_eq!(limit(D2, 27), below(28, 27));
        assert_eq!(limit(D2, 45), above(44, 45));
        assert!(limit(A3, 0xffff).is_ok());
    }
}

mod proposal {
    use super::*;

    const MESSAGE: MessageKind = MessageKind::Proposal;

    #[test]
    fn unknown_trailer() {
        let bytes = with(&hex(P4), 223, 0);
        let kind = Kind::Trailer {
            got: [0xe2, 0xd4, 0xc3, 0],
        };
        assert_rejected(&bytes, MESSAGE, "trailer", 220, kind);
    }

    #[test]
    fn ip_area_offset_above_40() {
        for text in [P1, P3, P4] {
            let bytes = with(&hex(text), 39, 41);
            let kind = value("at most 40", 41);
            assert_rejected(&bytes, MESSAGE, "IP area offset", 38, kind);
        }
    }

    #[test]
    fn too_many_prefixes() {
        let kind = above_8(9);
        for (text, at) in [(P1, 47), (P3, 87)] {
            let bytes = with(&hex(text), at, 9);
            assert_rejected(&bytes, MESSAGE, "IPv6 prefix count", at, kind);
        }
    }

    #[test]
    fn prefix_count_is_judged_even_without_ip_area() {
        // Byte 47 belongs to the native ISM GID then.
        let bytes = with(&hex(P4), 47, 9);
        assert_rejected(&bytes, MESSAGE, "IPv6 prefix count", 47, above_8(9));
        // With offset 40 it is byte 87, the low byte of the SMC-D v2 offset.
        let bytes = with(&hex(P4), 39, 40);
        assert_rejected(&bytes, MESSAGE, "IPv6 prefix count", 87, above_8(0x40));
    }

    #[test]
    fn prefix_count_beyond_the_message() {
        // Nothing offered in either version: the message ends at 84.
        let mut bytes = hex(P5);
        bytes.drain(80..88);
        bytes[7] = 0x2a;
        let bytes = with_true_length(bytes);
        let kind = outside(88, 80);
        assert_rejected(&bytes, MESSAGE, "IPv6 prefix count", 87, kind);
        assert!(Message::parse(&with(&bytes, 39, 0)).is_ok());
    }

    #[test]
    fn version_1_offers_nothing() {
        let kind = value("an offer", 2);
        assert_rejected(&with(&hex(P1), 7, 0x12), MESSAGE, "v1 type", 7, kind);
    }

    #[test]
    fn version_1_length() {
        let bytes = with_excess(&hex(P1), 1);
        let kind = length(52, 53);
        assert_rejected(&bytes, MESSAGE, "length", 5, kind);
        let bytes = with(&hex(P2), 87, 2);
        let kind = length(126, 109);
        assert_rejected(&bytes, MESSAGE, "length", 5, kind);
    }

    #[test]
    fn smc_d_in_version_1_without_room_for_its_area() {
        let bytes = with(&hex(P3), 39, 0);
        let kind = value("40 with SMC-D", 0);
        assert_rejected(&bytes, MESSAGE, "IP area offset", 38, kind);
    }

    #[test]
    fn v2_extension_offset_out_of_range() {
        for offset in [0, 173] {
            let bytes = with(&hex(P4), 51, offset);
            let kind = value("1 to 172", offset.into());
            assert_rejected(&bytes, MESSAGE, "v2 extension offset", 50, kind);
        }
    }

    #[test]
    fn v2_extension_beyond_the_message() {
        // 52 + 172 + 40 bytes do not fit into 224.
        let bytes = with(&hex(P4), 51, 172);
        let kind = outside(264, 220);
        assert_rejected(&bytes, MESSAGE, "v2 extension", 224, kind);
    }

    #[test]
    fn too_many_ueids() {
        let kind = above_8(9);
        assert_rejected(&with(&hex(P3), 88, 9), MESSAGE, "UEID count", 88, kind);
    }

    #[test]
    fn too_many_gid_entries() {
        let kind = above_8(9);
        assert_rejected(&with(&hex(P3), 89, 9), MESSAGE, "GID entry count", 89, kind);
        // The count means nothing unless SMC-D is offered.
        assert!(Message::parse(&with(&hex(CAPTURED_PROPOSAL), 81, 9)).is_ok());
    }

    #[test]
    fn version_2_length() {
        let bytes = with_excess(&hex(P4), 2);
        let kind = length(224, 226);
        assert_rejected(&bytes, MESSAGE, "length", 5, kind);
        let bytes = with(&hex(P4), 80, 2);
        let kind = length(256, 224);
        assert_rejected(&bytes, MESSAGE, "length", 5, kind);
    }

    #[test]
    fn ueids_beyond_the_message() {
        // The head of the extension fits, the UEID behind it does not.
        let bytes = with(&hex(P4), 51, 120);
        // Its counts are taken from elsewhere: one UEID at 212, no entry.
        let bytes = with(&with(&bytes, 172, 1), 173, 2);
        let kind = outside(244, 220);
        assert_rejected(&bytes, MESSAGE, "UEIDs", 212, kind);
    }

    #[test]
    fn smc_d_v2_extension_beyond_the_message() {
        // Starts at 80 + 8 + 97 and would take 48 bytes.
        let bytes = with(&hex(P4), 87, 97);
        let kind = outside(233, 220);
        assert_rejected(&bytes, MESSAGE, "SMC-D v2 extension", 185, kind);
    }

    #[test]
    fn gid_entries_beyond_the_message() {
        // Starts at 80 + 8 + 65: the last entry would reach one byte into the trailer.
        let bytes = with(&hex(P4), 87, 65);
        let kind = outside(221, 220);
        assert_rejected(&bytes, MESSAGE, "GID entries", 201, kind);
    }
}

mod accept_and_confirm {
    use super::*;

    const MESSAGE: MessageKind = MessageKind::Accept;

    #[test]
    fn type_neither_smc_r_nor_smc_d() {
        for (text, step) in [(A1, MESSAGE), (CAPTURED_CONFIRM, MessageKind::Confirm)] {
            let bytes = hex(text);
            for bits in [2, 3] {
                let changed = with(&bytes, 7, (bytes[7] & 0xfc) | bits);
                let kind = value("0 or 1", bits.into());
                assert_rejected(&changed, step, "type of connection", 7, kind);
            }
        }
    }

    #[test]
    fn version_1_length() {
        let kind = length(68, 69);
        assert_rejected(&with_excess(&hex(A1), 1), MESSAGE, "length", 5, kind);
        let kind = length(48, 50);
        assert_rejected(&with_excess(&hex(A2), 2), MESSAGE, "length", 5, kind);
        // An SMC-D message with the type bits of SMC-R.
        let kind = length(68, 48);
        assert_rejected(&with(&hex(A2), 7, 0x18), MESSAGE, "length", 5, kind);
    }

    #[test]
    fn version_2_too_short() {
        let kind = Kind::LengthBelow {
            minimum: 108,
            got: 68,
        };
        assert_rejected(&with(&hex(A1), 7, 0x20), MESSAGE, "length", 5, kind);
        let kind = Kind::LengthBelow {
            minimum: 78,
            got: 48,
        };
        assert_rejected(&with(&hex(A2), 7, 0x21), MESSAGE, "length", 5, kind);
    }

    #[test]
    fn first_contact_without_its_parts() {
        let bytes = with(&hex(CAPTURED_ACCEPT_REUSE), 7, 0x28);
        let kind = outside(156, 104);
        assert_rejected(&bytes, MESSAGE, "first-contact parts", 104, kind);
        // SMC-D of release 1 with the parts of release 0.
        let bytes = with(&hex(A4), 75, 0x21);
        let kind = outside(126, 110);
        assert_rejected(&bytes, MESSAGE, "first-contact parts", 74, kind);
        // Not even those of release 0.
        let mut bytes = hex(A4);
        bytes.drain(109..110);
        let bytes = with_true_length(bytes);
        assert_rejected(
            &bytes,
            MESSAGE,
            "first-contact parts",
            74,
            outside(110, 109),
        );
    }

    #[test]
    fn too_many_gids() {
        let bytes = with(&hex(CAPTURED_CONFIRM), 156, 9);
        let kind = above_8(9);
        assert_rejected(&bytes, MessageKind::Confirm, "GID count", 156, kind);
    }

    #[test]
    fn gid_list_beyond_the_message() {
        let bytes = with(&hex(CAPTURED_CONFIRM), 156, 2);
        let kind = outside(192, 176);
        assert_rejected(&bytes, MessageKind::Confirm, "GID list", 160, kind);
    }

    #[test]
    fn unknown_trailer() {
        for text in [A1, A2, A3, A4, CAPTURED_ACCEPT] {
            let bytes = hex(text);
            let at = bytes.len() - 4;
            let changed = with(&bytes, at, 0);
            let got = [0, bytes[at + 1], bytes[at + 2], bytes[at + 3]];
            assert_rejected(&changed, MESSAGE, "trailer", at, Kind::Trailer { got });
        }
    }
}

mod decline {
    use super::*;

    #[test]
    fn length_neither_28_nor_44() {
        for count in [4, 15] {
            let bytes = with_excess(&hex(D1), count);
            let got = u64::try_from(28 + count).unwrap();
            let kind = value("28 or 44", got);
            assert_rejected(&bytes, MessageKind::Decline, "length", 5, kind);
        }
    }
}
