//! What a receiver of CLC messages has to tolerate.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use smc_wire::clc::{AcceptConfirm, Decline, Eyecatcher, Header, Message, Proposal};
use smc_wire::pretty::{self, Family};
use smc_wire::types::{OfferedTypes, OsType, Version};
use support::*;

/// Offsets of the last four bytes, for trailers.
fn with_trailer(bytes: &[u8], trailer: [u8; 4]) -> Vec<u8> {
    let mut changed = bytes.to_vec();
    let at = changed.len() - 4;
    changed[at..].copy_from_slice(&trailer);
    changed
}

/// Reserved fields and bits that the printer shows, because they are not zero.
fn reserved_fields(bytes: &[u8]) -> usize {
    let tree = pretty::tree(Family::Clc, bytes).to_string();
    tree.matches("reserved, not zero").count()
}

#[test]
fn either_eyecatcher_in_any_message() {
    for (name, text) in ALL_CLC {
        let bytes = hex(text);
        for eyecatcher in [Eyecatcher::Smcr, Eyecatcher::Smcd] {
            let mut changed = with_trailer(&bytes, eyecatcher.to_bytes());
            assert!(
                Message::parse(&changed).is_ok(),
                "{name} with trailer {eyecatcher:?}"
            );
            changed[..4].copy_from_slice(&eyecatcher.to_bytes());
            assert!(Message::parse(&changed).is_ok(), "{name}");
            let header = Header::parse(&changed).unwrap();
            assert_eq!(header.eyecatcher, eyecatcher, "{name}");
        }
    }
}

#[test]
fn version_3_is_processed_as_version_2() {
    for (name, text) in ALL_CLC {
        let bytes = hex(text);
        if bytes[7] >> 4 != 2 {
            continue;
        }
        let newer = with(&bytes, 7, 0x30 | (bytes[7] & 0x0f));
        assert!(Message::parse(&newer).is_ok(), "{name}");
        let header = Header::parse(&newer).unwrap();
        assert_eq!(header.version, Version::new(3).unwrap(), "{name}");
    }
    let newer = Proposal::parse(&with(&hex(P3), 7, 0x3f)).unwrap();
    assert_eq!(
        Proposal {
            version: Version::V2,
            ..newer
        },
        Proposal::parse(&hex(P3)).unwrap()
    );
    let newer = AcceptConfirm::parse(&with(&hex(A3), 7, 0x39)).unwrap();
    assert_eq!(newer, AcceptConfirm::parse(&hex(A3)).unwrap());
}

#[test]
fn reserved_bytes_of_a_proposal_are_shown_and_do_not_matter() {
    let mut bytes = hex(P3);
    // SMC-D area, IP area, v2 extension, SMC-D v2 extension, reserved bits of the release byte.
    let reserved = (60..80)
        .chain(85..87)
        .chain([90, 92, 93])
        .chain(116..128)
        .chain(192..208);
    for at in reserved {
        bytes[at] = 0xff;
    }
    bytes[91] |= 0x0e;
    assert_eq!(reserved_fields(&bytes), 7);
    assert_eq!(Proposal::parse(&bytes), Proposal::parse(&hex(P3)));
}

#[test]
fn reserved_bytes_of_an_accept_are_shown_and_do_not_matter() {
    let plain = hex(CAPTURED_ACCEPT);
    let mut bytes = plain.clone();
    for at in [51, 60]
        .into_iter()
        .chain(96..104)
        .chain(106..108)
        .chain(148..156)
    {
        bytes[at] = 0xff;
    }
    bytes[7] |= 0x04;
    bytes[104] |= 0x7f;
    assert_eq!(reserved_fields(&bytes), 7);
    assert_eq!(AcceptConfirm::parse(&bytes), AcceptConfirm::parse(&plain));
}

#[test]
fn version_1_type_bits_of_version_2_are_reserved() {
    let bytes = with(&hex(P1), 7, 0x1c);
    let proposal = Proposal::parse(&bytes).unwrap();
    assert_eq!(
        (proposal.v1, proposal.v2),
        (OfferedTypes::R, OfferedTypes::Neither)
    );
}

#[test]
fn a_version_1_proposal_may_leave_a_gap_before_its_ip_area() {
    let mut bytes = hex(P1);
    bytes.splice(40..40, [0; 8]);
    bytes[39] = 8;
    let proposal = Proposal::parse(&with_true_length(bytes)).unwrap();
    assert_eq!(proposal.smcd, None);
    assert_eq!(proposal, Proposal::parse(&hex(P1)).unwrap());
}

#[test]
fn a_misplaced_smc_d_v2_extension_is_absent_but_not_malformed() {
    // Offset 0 and offsets above 288 are answered with a DECLINE, so they have to be readable.
    for [hi, lo] in [[0, 0], [0x01, 0x21], [0xff, 0xff]] {
        let bytes = with(&with(&hex(P4), 86, hi), 87, lo);
        let proposal = Proposal::parse(&bytes).unwrap();
        assert!(proposal.v2.has_d());
        assert!(proposal.ext.unwrap().direct.is_none());
    }
}

#[test]
fn an_accept_may_be_longer_than_known() {
    for text in [
        A3,
        A4,
        CAPTURED_ACCEPT,
        CAPTURED_ACCEPT_REUSE,
        CAPTURED_CONFIRM_REUSE,
    ] {
        let bytes = with_excess(&hex(text), 16);
        let accept = AcceptConfirm::parse(&bytes).unwrap();
        assert_eq!(accept.encoded_len() + 16, bytes.len());
        assert_eq!(accept, AcceptConfirm::parse(&hex(text)).unwrap());
    }
}

#[test]
fn a_confirm_may_end_before_the_gid_list() {
    let mut bytes = hex(CAPTURED_CONFIRM);
    bytes.drain(156..176);
    let bytes = with_true_length(bytes);
    let confirm = AcceptConfirm::parse(&bytes).unwrap();
    assert_eq!(confirm.first_contact().unwrap().gids, None);
    let mut out = [0; 200];
    assert_eq!(confirm.emit(&mut out), Ok(160));
    assert_eq!(out[..160], bytes);
}

#[test]
fn reserved_fields_of_release_0_are_not_read() {
    // SMC-R has the bytes even in v2.0, SMC-D has an extended GID field on native fabrics too.
    let bytes = with(&hex(CAPTURED_ACCEPT), 105, 0x20);
    let accept = AcceptConfirm::parse(&bytes).unwrap();
    let parts = accept.first_contact().unwrap();
    assert_eq!((parts.max_conns, parts.max_links), (0, 0));
    assert!(parts.features.is_empty());
    let bytes = with(&hex(A4), 66, 0x77);
    assert_eq!(AcceptConfirm::parse(&bytes), AcceptConfirm::parse(&hex(A4)));
}

#[test]
fn a_decline_of_either_length_in_either_version() {
    let early_v2 = with(&hex(D1), 7, 0x28);
    let decline = Decline::parse(&early_v2).unwrap();
    assert_eq!((decline.version, decline.extra), (Version::V2, None));
    let mut out = [0; 44];
    assert_eq!(decline.emit(&mut out), Ok(28));
    assert_eq!(out[..28], early_v2);

    let long_v1 = with(&hex(D2), 7, 0x10);
    let decline = Decline::parse(&long_v1).unwrap();
    assert_eq!(
        (decline.version, decline.extra),
        (Version::V1, Some([0; 4]))
    );
}

#[test]
fn trailer_and_type_bits_of_a_decline_are_not_checked() {
    let expected = Decline::parse(&hex(D1)).unwrap();
    let bytes = with_trailer(&hex(D1), [0; 4]);
    assert_eq!(Decline::parse(&bytes), Ok(expected));
    for low_bits in 0..4 {
        let bytes = with(&hex(D1), 7, 0x18 | low_bits);
        assert_eq!(Decline::parse(&bytes), Ok(expected));
    }
}

#[test]
fn unknown_codes_survive() {
    let bytes = with(&with(&hex(D2), 16, 0xab), 20, 0x70);
    let decline = Decline::parse(&bytes).unwrap();
    assert_eq!(decline.diagnosis.to_string(), "0xab030008");
    assert_eq!(decline.os, OsType::new(7).unwrap());
    let mut out = [0; 44];
    decline.emit(&mut out).unwrap();
    assert_eq!(out[..], bytes);
}
