//! What a receiver drops, and what cannot be sent: one test per rule.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use smc_wire::llc::{
    AddLink, AddLinkClass, AddLinkCont, AddLinkExtension, ByteOrder, Class, ConfirmRkey,
    DeleteRkey, DeleteRkeyErrors, Dialect, MESSAGE_LEN, Message, RejectReason, RequestAddLinkClass,
    RkeyClass, TestLink, WireRkey, WireRtoken,
};
use smc_wire::types::{LinkNumber, Mac, MtuCode, Psn, Qpn, Rkey, RmbAddr, RoceGid};
use smc_wire::{Bounded, DecodeError, DecodeErrorKind, EmitError, MessageKind};

use support::parsed;

const V2: Dialect = Dialect::V2(ByteOrder::Little);

#[test]
fn fewer_than_44_bytes_are_dropped() {
    for kind in [0x01, 0x21, 0x22, 0x25, 0x07, 0x80] {
        for size in 0..MESSAGE_LEN {
            let mut bytes = vec![0; size];
            for (to, from) in bytes.iter_mut().zip([kind, 44, 0, 0]) {
                *to = from;
            }
            let expected = DecodeErrorKind::Truncated {
                needed: 44,
                got: size,
            };
            assert_eq!(
                rejection(&bytes),
                header_error("message", 0, expected),
                "{size}"
            );
        }
    }
}

#[test]
fn a_v1_length_byte_other_than_44_is_dropped() {
    for length in [0, 43, 45, 255] {
        let expected = DecodeErrorKind::Length {
            expected: 44,
            got: length.into(),
        };
        let bytes = message(0x01, [length, 0], 0, 44);
        assert_eq!(rejection(&bytes), header_error("length", 1, expected));
    }
}

#[test]
fn an_add_link_whose_v2_continuation_is_cut_off_is_dropped() {
    for size in 45_u8..72 {
        for flags in [0x00, 0x80] {
            let bytes = message(0x22, [size, 0], flags, size.into());
            let expected = DecodeErrorKind::Truncated {
                needed: 72,
                got: size.into(),
            };
            let error = rejection(&bytes);
            assert_eq!(error.message, MessageKind::AddLink);
            assert_eq!((error.field, error.offset), ("v2 continuation", 44));
            assert_eq!(error.kind, expected);
        }
        let rejected = message(0x22, [size, 0], 0xC0, size.into());
        assert!(
            Message::parse(&rejected).is_ok(),
            "rejections have no continuation"
        );
    }
}

#[test]
fn a_v1_delete_rkey_of_more_than_eight_rkeys_is_dropped() {
    let mut bytes = message(0x09, [44, 0], 0, 44);
    bytes[4] = 8;
    assert!(Message::parse(&bytes).is_ok());
    bytes[4] = 9;
    let error = rejection(&bytes);
    assert_eq!(error.message, MessageKind::DeleteRkey);
    assert_eq!(error.kind, DecodeErrorKind::TooMany { max: 8, got: 9 });
}

/// Counts that a receiver bounds by the received size instead of refusing the message.
#[test]
fn counts_beyond_the_received_size_are_cut() {
    let mut bytes = message(0x25, [60, 0], 0, 60);
    bytes[24] = 200;
    let request = parsed!(RequestAddLink, bytes);
    let RequestAddLinkClass::Request { gids } = request.class else {
        panic!()
    };
    assert_eq!(gids.len(), 2);

    let mut bytes = message(0x29, [44, 0], 0, 44);
    bytes[4] = 255;
    let parsed = parsed!(DeleteRkey, bytes);
    assert_eq!(parsed.rkeys.len(), 9);

    let mut bytes = message(0x22, [0x58, 0], 0, 88);
    (bytes[70], bytes[71]) = (0xFF, 0xFF);
    let parsed = parsed!(AddLink, bytes);
    assert_eq!(parsed.extension.unwrap().rtokens.len(), 1);

    let mut bytes = message(0x03, [44, 0], 0, 44);
    bytes[5] = 200;
    let parsed = parsed!(AddLinkCont, bytes);
    assert_eq!((parsed.left, parsed.rtokens.len()), (200, 2));

    let mut bytes = message(0x06, [44, 0], 0, 44);
    bytes[4] = 200;
    let parsed = parsed!(ConfirmRkey, bytes);
    assert_eq!((parsed.further_links, parsed.further.len()), (200, 2));
}

/// More than 255 rtokens never count, whatever the message states.
#[test]
fn at_most_255_rtokens_are_taken() {
    let mut bytes = message(0x22, 5000_u16.to_le_bytes(), 0, 5000);
    (bytes[70], bytes[71]) = (0x2C, 0x01);
    let parsed = parsed!(AddLink, bytes);
    assert_eq!(parsed.extension.unwrap().stated_count, 300);
    assert_eq!(parsed.extension.unwrap().rtokens.len(), 255);
}

/// A v2 ADD LINK of 44 bytes has no continuation; the state machine decides what that means.
#[test]
fn an_add_link_without_continuation_is_not_refused_here() {
    let bytes = message(0x22, [44, 0], 0, 44);
    let parsed = parsed!(AddLink, bytes);
    assert!(parsed.extension.is_none());
}

/// Receivers must not check reserved fields.
#[test]
fn reserved_bytes_do_not_matter() {
    for kind in [0x01, 0x02, 0x03, 0x04, 0x06, 0x07, 0x08, 0x09] {
        let mut bytes = vec![0xFF; 44];
        (bytes[0], bytes[1]) = (kind, 44);
        if kind == 0x09 {
            bytes[4] = 8;
        }
        assert!(Message::parse(&bytes).is_ok(), "{kind:#x}");
    }
    for kind in [0x21, 0x24, 0x26, 0x27, 0x29] {
        let mut bytes = vec![0xFF; 44];
        bytes[..3].copy_from_slice(&[kind, 44, 0]);
        assert!(Message::parse(&bytes).is_ok(), "{kind:#x}");
    }
}

#[test]
fn a_short_buffer_is_refused() {
    let mut buffer = [0; 43];
    let expected = EmitError::BufferTooSmall {
        message: MessageKind::TestLink,
        needed: 44,
        got: 43,
    };
    assert_eq!(
        TestLink::request(V2, [0; 16]).emit(&mut buffer),
        Err(expected)
    );
    assert_eq!(buffer, [0; 43], "and left alone");
}

#[test]
fn a_continuation_cannot_be_sent_in_v1() {
    let message = AddLink {
        dialect: Dialect::V1,
        ..add_link(&[])
    };
    assert_eq!(invalid(message.emit(&mut [0; 100])), "v2 continuation");
}

#[test]
fn a_continuation_cannot_be_sent_with_a_rejection() {
    let class = AddLinkClass::Rejected(RejectReason::NONE);
    let message = AddLink {
        class,
        ..add_link(&[])
    };
    assert_eq!(invalid(message.emit(&mut [0; 100])), "v2 continuation");
    assert_eq!(
        add_link(&[])
            .rejection(RejectReason::NONE)
            .emit(&mut [0; 44]),
        Ok(44)
    );
}

#[test]
fn more_than_255_rtokens_cannot_be_sent() {
    let rtokens = [WireRtoken::default(); 256];
    assert_eq!(invalid(add_link(&rtokens).emit(&mut [0; 5000])), "rtokens");
}

#[test]
fn a_count_below_the_rtokens_cannot_be_sent() {
    let rtokens = [WireRtoken::default(); 2];
    let mut message = add_link(&rtokens);
    message.extension.as_mut().unwrap().stated_count = 1;
    assert_eq!(invalid(message.emit(&mut [0; 200])), "rtoken count");
}

#[test]
fn counts_have_to_agree_with_short_lists() {
    let cont = AddLinkCont {
        class: Class::Request,
        link: LinkNumber(2),
        left: 2,
        rtokens: Bounded::from_slice(&[WireRtoken::default()]).unwrap(),
    };
    assert_eq!(invalid(cont.emit(&mut [0; 44])), "rtokens left");
    let rkey = ConfirmRkey {
        dialect: V2,
        class: RkeyClass::Request,
        rkey: Rkey(1),
        address: RmbAddr(2),
        further_links: 1,
        further: Bounded::new(),
    };
    assert_eq!(invalid(rkey.emit(&mut [0; 44])), "further links");
}

#[test]
fn nine_rkeys_need_v2() {
    let rkeys = [WireRkey::default(); 9];
    let v1 = DeleteRkey::request(Dialect::V1, &rkeys);
    assert_eq!(invalid(v1.emit(&mut [0; 100])), "rkeys");
    let v2 = DeleteRkey::request(V2, &rkeys);
    assert_eq!(v2.emit(&mut [0; 100]), Ok(44));
}

#[test]
fn the_error_form_of_the_other_version_cannot_be_sent() {
    let rkeys = [WireRkey::default()];
    let errors = DeleteRkeyErrors::Mask(0x80);
    let response = DeleteRkey::request(V2, &rkeys).response(errors);
    assert_eq!(invalid(response.emit(&mut [0; 100])), "errors");
}

fn add_link(rtokens: &[WireRtoken]) -> AddLink<'_> {
    AddLink {
        dialect: V2,
        class: AddLinkClass::Request,
        mac: Mac::ZERO,
        gid: RoceGid::ZERO,
        qpn: Qpn::default(),
        link: LinkNumber(2),
        mtu: MtuCode::MTU_1024,
        psn: Psn::default(),
        extension: Some(AddLinkExtension {
            direct: true,
            client_target_gid: RoceGid::ZERO,
            stated_count: u16::try_from(rtokens.len()).unwrap(),
            rtokens,
        }),
    }
}

fn message(kind: u8, length: [u8; 2], flags: u8, size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    bytes[..4].copy_from_slice(&[kind, length[0], length[1], flags]);
    bytes
}

fn rejection(bytes: &[u8]) -> DecodeError {
    match Message::parse(bytes) {
        Ok(message) => panic!("accepted: {message:?}"),
        Err(error) => error,
    }
}

fn header_error(field: &'static str, offset: usize, kind: DecodeErrorKind) -> DecodeError {
    DecodeError::new(MessageKind::LlcHeader, field, offset, kind)
}

/// The field that makes a message impossible to send.
fn invalid(result: Result<usize, EmitError>) -> &'static str {
    match result {
        Err(EmitError::Invalid { field, .. }) => field,
        other => panic!("{other:?}"),
    }
}
