use std::vec::Vec;

use super::*;
use crate::error::DecodeErrorKind as Kind;

/// An integer in either form.
fn integer(bytes: &[u8]) -> Option<(u16, usize)> {
    varint::split(bytes).map(|(value, rest)| (value, bytes.len() - rest.len()))
}

/// The types and payloads of `left` extensions that begin at offset 2 and end before a trailer.
fn walk(extensions: &[u8], left: usize) -> Result<Vec<(u16, Vec<u8>)>, DecodeError> {
    let message = [&[0xee; 2], extensions, &[0xee; 4]].concat();
    let end = message.len() - 4;
    let mut walk = Walk::new(MessageKind::Proposal, &message, (2, end), left);
    let mut found = Vec::new();
    while let Some(next) = walk.next()? {
        let payload = next.payload.pieces().flatten().copied().collect();
        found.push((next.kind.get(), payload));
    }
    Ok(found)
}

#[track_caller]
fn refused(extensions: &[u8], left: usize, field: &str, offset: usize, kind: Kind) {
    let error = walk(extensions, left).unwrap_err();
    assert_eq!(
        (error.field, error.offset, error.kind),
        (field, offset, kind)
    );
}

#[test]
fn integers_of_one_and_two_bytes() {
    for (bytes, value) in [
        (&[0x00][..], Some((0, 1))),
        (&[0x7f], Some((127, 1))),
        (&[0x05, 0xff], Some((5, 1))),
        // Two bytes, most significant first, also for what one byte could hold.
        (&[0x80, 0x00], Some((0, 2))),
        (&[0x80, 0x05, 0xff], Some((5, 2))),
        (&[0x80, 0x80], Some((128, 2))),
        (&[0x81, 0x02], Some((258, 2))),
        (&[0xff, 0xff], Some((32767, 2))),
        (&[], None),
        (&[0x80], None),
    ] {
        assert_eq!(integer(bytes), value, "{bytes:02x?}");
    }
}

#[test]
fn the_shorter_form_is_written() {
    for (value, bytes) in [
        (0, &[0x00][..]),
        (127, &[0x7f]),
        (128, &[0x80, 0x80]),
        (0x7f01, &[0xff, 0x01]),
        (32767, &[0xff, 0xff]),
    ] {
        let mut buffer = [0; 2];
        let len = varint::encoded_len(value);
        let mut out = Writer::new(MessageKind::Proposal, len, &mut buffer).unwrap();
        varint::put(value, &mut out).unwrap();
        assert_eq!(&buffer[..len], bytes, "{value}");
    }
}

#[test]
fn extensions_follow_each_other() {
    // Reserved bytes, type, length, payload; type and length in either form.
    let bytes = [
        0, 0, 0, 0, 0x09, 2, 0xaa, 0xbb, //
        1, 2, 3, 4, 0x80, 0x09, 0x80, 1, 0xcc, //
        0, 0, 0, 0, 0xff, 0x04, 0,
    ];
    let expected = [
        (9, Vec::from([0xaa, 0xbb])),
        (9, Vec::from([0xcc])),
        (0x7f04, Vec::new()),
    ];
    assert_eq!(walk(&bytes, 3), Ok(expected.into()));
    assert_eq!(walk(&[], 0), Ok(Vec::new()));
}

#[test]
fn a_payload_continues() {
    let bytes = [
        0, 0, 0, 0, 9, 2, 1, 2, // begins
        0, 0, 0, 0, 1, 0, // goes on with nothing
        0, 0, 0, 0, 0x80, 1, 0x80, 1, 3, // ends
        0, 0, 0, 0, 0, 1, 0, // padding
        0, 0, 0, 0, 9, 0,
    ];
    let expected = [
        (9, Vec::from([1, 2, 3])),
        (0, Vec::from([0])),
        (9, Vec::new()),
    ];
    assert_eq!(walk(&bytes, 5), Ok(expected.into()));
}

#[test]
fn a_continuation_continues_something() {
    let kind = Kind::Value {
        expected: "what can be continued before it",
        got: 1,
    };
    let continuation = [0, 0, 0, 0, 1, 0];
    refused(&continuation, 1, "extension type", 2, kind);
    // Padding has no meaning that could go on.
    let padded = [0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 0];
    refused(&padded, 2, "extension type", 9, kind);
}

#[test]
fn extensions_end_at_the_trailer() {
    let outside = |end, limit| Kind::OutOfBounds { end, limit };
    let whole = [0, 0, 0, 0, 9, 2, 1, 2, 0, 0, 0, 0, 0x80, 1, 1, 3];
    assert!(walk(&whole, 2).is_ok());
    for len in 0..8 {
        let (field, offset, end) = match len {
            0..=5 => ("extension header", 2, 8),
            _ => ("extension payload", 8, 10),
        };
        refused(&whole[..len], 2, field, offset, outside(end, 2 + len));
    }
    // The second one has a header of seven bytes.
    refused(&whole[..14], 2, "extension header", 10, outside(17, 16));
    refused(&whole[..15], 2, "extension payload", 17, outside(18, 17));
    // Fewer than there are, and more.
    let length = |expected, got| Kind::Length { expected, got };
    refused(&whole, 1, "length", 5, length(14, 22));
    refused(&whole, 3, "extension header", 18, outside(24, 18));
}

#[test]
fn payloads_are_equal_whatever_their_pieces() {
    let split = [0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 1, 1, 3];
    let whole = ExtensionPayload::from(&[1, 2, 3][..]);
    let message = [&[0, 0, 0, 0, 9, 1, 1][..], &split].concat();
    let mut walk = Walk::new(MessageKind::Proposal, &message, (0, message.len()), 3);
    let pieces = walk.next().unwrap().unwrap().payload;
    assert_eq!((pieces, pieces.len()), (whole, 3));
    assert_eq!(pieces.pieces().collect::<Vec<_>>(), [[1], [2], [3]]);
    assert_ne!(pieces, ExtensionPayload::from(&[1, 2][..]));
    assert!(ExtensionPayload::default().is_empty());
}
