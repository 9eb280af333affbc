//! The synthetic LLC messages and those of the worked examples, field by field and byte for byte.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod support;

use std::net::IpAddr;

use smc_wire::Bounded;
use smc_wire::llc::{
    AddLink, AddLinkClass, AddLinkCont, AddLinkExtension, AnnounceCredits, ByteOrder, Class,
    ConfirmLink, ConfirmRkey, ConfirmRkeyCont, DeleteLink, DeleteLinkReason, DeleteRkey,
    DeleteRkeyErrors, Dialect, Header, LinkRtoken, Message, RejectReason, RequestAddLink,
    RequestAddLinkClass, RkeyClass, Rtoken, TestLink, WireRkey, WireRtoken, detect_order,
};
use smc_wire::types::{
    LinkAuthentication, LinkNumber, LinkUid, Mac, MtuCode, Psn, Qpn, Rkey, RmbAddr, RoceGid,
};

use support::{hex, parsed};

const LINUX_V2: Dialect = Dialect::V2(ByteOrder::Little);

#[test]
fn add_link_rejection_v1_has_its_reason_in_byte_2() {
    let expected = AddLink {
        dialect: Dialect::V1,
        class: AddLinkClass::Rejected(RejectReason::NO_ALTERNATE_PATH),
        mac: Mac::new([2, 0, 0, 0, 0, 0xaa]),
        gid: gid("fe80::200:ff:fe00:aa"),
        qpn: qpn(0x123),
        link: LinkNumber(2),
        mtu: MtuCode::MTU_1024,
        psn: psn(0x0A_0B0C),
        extension: None,
    };
    assert_message(
        "022c01c00200000000aa0000fe80000000000000020000fffe0000aa
         00012302030a0b0c0000000000000000",
        Message::AddLink(expected),
    );
}

#[test]
fn add_link_cont_sends_two_of_three_rtokens() {
    let of = |rkey, new_rkey, new_address| Rtoken {
        rkey: Rkey(rkey),
        new_rkey: Rkey(new_rkey),
        new_address: RmbAddr(new_address),
    };
    let left = [
        of(0x1A2B, 0x3C4D, 0x1234_0000),
        of(0x1A2C, 0x3C4E, 0x1235_0000),
        of(0x1A2D, 0x3C4F, 0x1236_0000),
    ];
    let expected = AddLinkCont::of(Class::Request, LinkNumber(2), &left);
    assert_eq!(expected.left, 3);
    assert_eq!(expected.rtokens.len(), 2);
    assert_message(
        "032c00000203000000001a2b00003c4d000000001234000000001a2c
         00003c4e000000001235000000000000",
        Message::AddLinkCont(expected),
    );
}

#[test]
fn request_add_link_carries_the_gids_of_the_client() {
    let gids = ["192.0.2.1", "192.0.2.2"].map(gid);
    let expected = RequestAddLink {
        order: ByteOrder::Little,
        class: RequestAddLinkClass::Request {
            gids: Bounded::from_slice(&gids).unwrap(),
        },
    };
    assert_message(
        "253c00000000000000000000000000000000000000000000 02000000
         00000000000000000000ffffc0000201 00000000000000000000ffffc0000202",
        Message::RequestAddLink(expected),
    );
}

#[test]
fn announce_credits_has_a_number_behind_the_header() {
    let digits = "2a002c0001f40000000000000000000000000000
                  000000000000000000000000000000000000000000000000";
    let order = ByteOrder::Big;
    assert_message(
        digits,
        Message::AnnounceCredits(AnnounceCredits {
            order,
            credits: 500,
        }),
    );
}

#[test]
fn test_link_returns_the_whole_message() {
    let request = TestLink::request(
        Dialect::V1,
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
    );
    let digits = "072c0000000102030405060708090a0b0c0d0e0f
                  000000000000000000000000000000000000000000000000";
    assert_message(digits, Message::TestLink(request));

    let mut received = hex(digits);
    received[43] = 7;
    let test = parsed!(TestLink, received);
    let mut response = [0; 44];
    test.response().emit(&mut response).unwrap();
    received[3] = 0x80;
    assert_eq!(
        response[..],
        received[..],
        "also what a requester should not have sent"
    );
}

#[test]
fn confirm_rkey_names_two_further_links() {
    let further = [(2, 0x3C4D), (3, 0x5E6F)].map(|(link, rkey)| LinkRtoken {
        link: LinkNumber(link),
        rkey: Rkey(rkey),
        address: RmbAddr(0x1234_0000),
    });
    let expected = ConfirmRkey {
        dialect: Dialect::V1,
        class: RkeyClass::Request,
        rkey: Rkey(0x1A2B),
        address: RmbAddr(0x1234_0000),
        further_links: 2,
        further: Bounded::from_slice(&further).unwrap(),
    };
    assert_message(
        "062c00000200001a2b00000000123400000200003c4d000000001234
         00000300005e6f000000001234000000",
        Message::ConfirmRkey(expected),
    );
}

#[test]
fn delete_rkey_negative_response_marks_the_second_of_two() {
    let rkeys = [0x1A2B, 0x1A2C].map(|rkey| WireRkey::from(Rkey(rkey)));
    let errors = DeleteRkeyErrors::from_known(Dialect::V1, [true, false]);
    let expected = DeleteRkey::request(Dialect::V1, &rkeys).response(errors);
    assert!(expected.negative);
    assert_message(
        "092c00a00240000000001a2b00001a2c000000000000000000000000
         00000000000000000000000000000000",
        Message::DeleteRkey(expected),
    );
}

#[test]
fn delete_link_of_one_link() {
    let expected = DeleteLink {
        dialect: Dialect::V1,
        class: Class::Request,
        all: false,
        orderly: true,
        link: LinkNumber(2),
        reason: DeleteLinkReason::ASYMMETRIC_UNNEEDED,
    };
    assert_message(
        "042c0020020005000000000000000000000000000000000000000000
         00000000000000000000000000000000",
        Message::DeleteLink(expected),
    );
    assert_message(
        "042c00a0020010000000000000000000000000000000000000000000
         00000000000000000000000000000000",
        Message::DeleteLink(expected.response(DeleteLinkReason::UNKNOWN_LINK)),
    );
}

fn confirm_link() -> ConfirmLink {
    ConfirmLink {
        dialect: LINUX_V2,
        class: Class::Request,
        no_eyecatcher: ConfirmLink::NO_EYECATCHER,
        mac: mac(1),
        gid: gid("10.9.0.1"),
        qpn: qpn(0x11),
        link: LinkNumber(1),
        user_id: LinkUid(0x101),
        max_links: 2,
        max_connections: 255,
        authentication: LinkAuthentication::ZERO,
    }
}

/// As captured.
#[test]
fn confirm_link_of_linux() {
    let server = confirm_link();
    assert_message(
        "212c0003 525400000001 00000000000000000000ffff0a090001
         000011 01 00000101 02 ff 0000000000000000",
        Message::ConfirmLink(server),
    );
    let client = ConfirmLink {
        class: Class::Response,
        mac: mac(2),
        gid: gid("10.9.0.2"),
        ..server
    };
    assert_message(
        "212c0083 525400000002 00000000000000000000ffff0a090002
         000011 01 00000101 02 ff 0000000000000000",
        Message::ConfirmLink(client),
    );
}

/// docs/spec/extensions.md#authentication
#[test]
fn confirm_link_of_an_authenticated_group() {
    let message = ConfirmLink {
        authentication: LinkAuthentication::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]),
        ..confirm_link()
    };
    assert_message(
        "212c0003 525400000001 00000000000000000000ffff0a090001
         000011 01 00000101 02 ff 0102030405060708",
        Message::ConfirmLink(message),
    );
}

/// As captured.
#[test]
fn add_link_of_linux_and_its_rejection() {
    let rtokens = [WireRtoken::from(Rtoken {
        rkey: Rkey(0x3BB),
        new_rkey: Rkey(0x512),
        new_address: RmbAddr(0xFF45_9D13_8381_0000),
    })];
    let request = AddLink {
        dialect: LINUX_V2,
        class: AddLinkClass::Request,
        mac: mac(1),
        gid: gid("10.9.0.1"),
        qpn: qpn(0x12),
        link: LinkNumber(2),
        mtu: MtuCode::MTU_1024,
        psn: psn(0x3D_D5DC),
        extension: Some(AddLinkExtension {
            direct: true,
            client_target_gid: gid("10.9.0.1"),
            stated_count: 1,
            rtokens: &rtokens,
        }),
    };
    assert_message(
        "22580000 525400000001 0000 00000000000000000000ffff0a090001 000012 02
         03 3dd5dc 0000000000000000 80 00 00000000000000000000ffff0a090001
         0000000000000000 0100 000003bb 00000512 ff459d1383810000",
        Message::AddLink(request),
    );
    assert_message(
        "222c00c0 525400000001 0000 00000000000000000000ffff0a090001 000012 02
         03 3dd5dc 0000000000000000",
        Message::AddLink(request.rejection(RejectReason::NONE)),
    );
}

/// As captured: Linux answers with the rkeys zeroed.
#[test]
fn delete_rkey_of_linux() {
    let rkeys = [WireRkey::from(Rkey(0x3D5))];
    assert_message(
        "292c0000 01000000 000003d5 00000000 00000000 00000000
         00000000 00000000 00000000 00000000 00000000",
        Message::DeleteRkey(DeleteRkey::request(LINUX_V2, &rkeys)),
    );
    let zeroed = [WireRkey::default()];
    let response = DeleteRkey::request(LINUX_V2, &zeroed).response(DeleteRkeyErrors::Count(0));
    assert_message(
        "292c0080 01000000 00000000 00000000 00000000 00000000
         00000000 00000000 00000000 00000000 00000000",
        Message::DeleteRkey(response),
    );
}

/// As captured.
#[test]
fn confirm_rkey_of_linux() {
    let request = ConfirmRkey {
        dialect: LINUX_V2,
        class: RkeyClass::Request,
        rkey: Rkey(0x3BB),
        address: RmbAddr(0xFF45_9D13_8381_0000),
        further_links: 0,
        further: Bounded::new(),
    };
    let body =
        "00 000003bb ff459d1383810000 00000000000000000000000000 00000000000000000000000000 00";
    assert_message(&format!("262c0000{body}"), Message::ConfirmRkey(request));
    let accepted = request.response(RkeyClass::Accepted);
    assert_message(&format!("262c0080{body}"), Message::ConfirmRkey(accepted));
    let later = request.response(RkeyClass::Rejected { retry: true });
    assert_message(&format!("262c00b0{body}"), Message::ConfirmRkey(later));
}

/// As captured.
#[test]
fn delete_link_of_the_whole_group() {
    let body = "00 00020000 0000000000000000000000000000000000000000000000000000000000000000000000";
    let client = DeleteLink::all(LINUX_V2, false, DeleteLinkReason::OPERATOR);
    assert_message(&format!("242c0040{body}"), Message::DeleteLink(client));
    let server = DeleteLink::all(LINUX_V2, true, DeleteLinkReason::OPERATOR);
    assert_message(&format!("242c0060{body}"), Message::DeleteLink(server));
}

#[test]
fn confirm_rkey_cont_holds_three_links() {
    let rtokens = [4, 5, 6].map(|link| LinkRtoken {
        link: LinkNumber(link),
        rkey: Rkey(u32::from(link) << 8),
        address: RmbAddr(0x1_0000),
    });
    let expected = ConfirmRkeyCont {
        class: RkeyClass::Request,
        left: 3,
        rtokens: Bounded::from_slice(&rtokens).unwrap(),
    };
    assert_message(
        "082c000003 04000004000000000000010000 05000005000000000000010000
         06000006000000000000010000",
        Message::ConfirmRkeyCont(expected),
    );
}

#[test]
fn both_forms_of_a_request_add_link_response_are_understood() {
    let zeros = "00".repeat(40);
    let of = |rejected, reason| RequestAddLink {
        order: ByteOrder::Big,
        class: RequestAddLinkClass::Response { rejected, reason },
    };
    let linux = Message::RequestAddLink(of(false, RejectReason::NONE));
    assert_message(&format!("25002c80{zeros}"), linux);
    let documented = Message::RequestAddLink(of(true, RejectReason::NO_ALTERNATE_PATH));
    assert_message(&format!("25002cc1{zeros}"), documented);
}

#[test]
fn the_longest_add_link_and_delete_rkey_fit_into_a_receive_buffer() {
    let rtokens = [WireRtoken::default(); 255];
    let mut add_link = AddLink {
        dialect: Dialect::V2(ByteOrder::Big),
        class: AddLinkClass::Accepted,
        mac: Mac::ZERO,
        gid: RoceGid::ZERO,
        qpn: qpn(1),
        link: LinkNumber(1),
        mtu: MtuCode::MTU_4096,
        psn: psn(1),
        extension: None,
    };
    add_link.extension = Some(AddLinkExtension {
        direct: false,
        client_target_gid: RoceGid::ZERO,
        stated_count: 255,
        rtokens: &rtokens,
    });
    let bytes = emit(&Message::AddLink(add_link));
    assert_eq!(bytes.len(), 72 + 16 * 255);
    assert_eq!(Message::parse(&bytes).unwrap(), Message::AddLink(add_link));

    let rkeys = [WireRkey::from(Rkey(9)); 255];
    let delete = DeleteRkey::request(LINUX_V2, &rkeys);
    let bytes = emit(&Message::DeleteRkey(delete));
    assert_eq!(bytes.len(), 8 + 4 * 255);
    // 1028 is 0x0404: this length does not show the order.
    let received = Message::parse_from(&bytes, ByteOrder::Little).unwrap();
    assert_eq!(received, Message::DeleteRkey(delete));
}

#[test]
fn unknown_types_are_kept_as_they_are() {
    for kind in [0x05, 0x23, 0x28, 0x80, 0x8A, 0xFE, 0xFF, 0x0A, 0x31] {
        let mut bytes = [0x5A; 50];
        (bytes[0], bytes[1]) = (kind, 44);
        let message = Message::parse(&bytes).unwrap();
        assert_eq!(message, Message::Unknown(&bytes));
        assert_eq!(Header::parse(&bytes, None).unwrap().message_type(), None);
        assert_eq!(emit(&message), bytes);
    }
}

#[test]
fn the_order_comes_from_the_length_field_and_the_received_size() {
    let with = |kind, length: [u8; 2], size: usize| {
        let mut bytes = vec![0; size];
        (bytes[0], bytes[1], bytes[2]) = (kind, length[0], length[1]);
        bytes
    };
    let (little, big) = (Some(ByteOrder::Little), Some(ByteOrder::Big));
    for (kind, length, size, order, what) in [
        (0x21, [0x2C, 0], 44, little, "44 bytes"),
        (0x21, [0, 0x2C], 44, big, "44 bytes"),
        (0x22, [0x58, 0], 88, little, "88 bytes"),
        (0x21, [0x2C, 0], 60, None, "agrees in neither order"),
        (0x22, [8, 8], 0x0808, None, "agrees in both orders"),
        (0x01, [0x2C, 0], 44, None, "version 1"),
    ] {
        assert_eq!(detect_order(&with(kind, length, size)), order, "{what}");
    }
    assert_eq!(detect_order(&[0x21, 0x2C]), None);
}

/// A count read in the wrong order would be 256, and 0 after truncation to eight bits.
#[test]
fn rtokens_of_a_peer_of_the_other_order_are_not_lost() {
    for (order, length, count) in [
        (ByteOrder::Little, [0x58, 0], [1, 0]),
        (ByteOrder::Big, [0, 0x58], [0, 1]),
    ] {
        let mut bytes = [0; 88];
        bytes[0] = 0x22;
        bytes[1..3].copy_from_slice(&length);
        bytes[70..72].copy_from_slice(&count);
        bytes[75] = 0x77;
        let add_link = parsed!(AddLink, bytes);
        assert_eq!(add_link.dialect, Dialect::V2(order));
        let extension = add_link.extension.unwrap();
        assert_eq!(extension.stated_count, 1);
        assert_eq!(Rtoken::from(extension.rtokens[0]).rkey, Rkey(0x77));
    }
}

/// 124 rtokens make a length that reads alike in both orders.
#[test]
fn the_known_order_of_a_peer_decides_where_the_length_does_not() {
    let mut bytes = vec![0; 0x0808];
    bytes[..3].copy_from_slice(&[0x22, 8, 8]);
    bytes[70..72].copy_from_slice(&[3, 0]);
    for (order, count) in [(ByteOrder::Little, 3), (ByteOrder::Big, 124)] {
        let message = Message::parse_from(&bytes, order).unwrap();
        let header = Header::parse(&bytes, Some(order)).unwrap();
        assert_eq!(header.dialect(), Dialect::V2(order));
        assert!(header.length_agrees());
        let Message::AddLink(add_link) = message else {
            panic!()
        };
        assert_eq!(add_link.extension.unwrap().rtokens.len(), count);
    }
}

/// Linux states its connections, of which several may share an RMB.
#[test]
fn a_count_above_the_rtokens_there_are_is_kept_and_bounded() {
    let mut bytes = [0; 88];
    bytes[..3].copy_from_slice(&[0x22, 0x58, 0]);
    bytes[70] = 5;
    let add_link = parsed!(AddLink, bytes);
    let extension = add_link.extension.unwrap();
    assert_eq!((extension.stated_count, extension.rtokens.len()), (5, 1));
    assert_eq!(emit(&Message::AddLink(add_link)), bytes);
}

#[test]
fn a_length_field_that_fits_in_neither_order_is_no_reason_to_drop() {
    let mut bytes = [0; 44];
    bytes[..3].copy_from_slice(&[0x27, 0x12, 0x34]);
    assert!(Message::parse(&bytes).is_ok());
    let header = Header::parse(&bytes, None).unwrap();
    assert!(!header.length_agrees());
}

#[test]
fn unknown_rkeys_are_marked_from_the_top_or_counted() {
    let known = [false, true, true, true, true, true, true, false, false];
    let v1 = DeleteRkeyErrors::from_known(Dialect::V1, known);
    assert_eq!(v1, DeleteRkeyErrors::Mask(0x81));
    let v2 = DeleteRkeyErrors::from_known(LINUX_V2, known);
    assert_eq!(v2, DeleteRkeyErrors::Count(3));
    assert_eq!((v1.count(), v2.count()), (2, 3));
}

/// Parses to the expected contents, and back.
fn assert_message(digits: &str, expected: Message<'_>) {
    let bytes = hex(digits);
    let message = Message::parse(&bytes).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(message, expected);
    assert_eq!(expected.encoded_len(), bytes.len());
    assert_eq!(emit(&expected), bytes);
}

fn emit(repr: &Message<'_>) -> Vec<u8> {
    let mut buffer = vec![0xAA; repr.encoded_len()];
    assert_eq!(repr.emit(&mut buffer), Ok(buffer.len()));
    buffer
}

fn mac(last: u8) -> Mac {
    Mac::new([0x52, 0x54, 0, 0, 0, last])
}

fn gid(text: &str) -> RoceGid {
    match text.parse().unwrap() {
        IpAddr::V4(address) => address.into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn qpn(value: u32) -> Qpn {
    Qpn::new(value).unwrap()
}

fn psn(value: u32) -> Psn {
    Psn::new(value).unwrap()
}
