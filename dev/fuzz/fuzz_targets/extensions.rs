//! Extensions: any bytes as a message, and as the end of one; what parses is emitted and parses
//! again to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_wire::clc::{Extensions, Frame, Message, Proposal, SmcdArea};
use smc_wire::types::{Features, Mac, Nonce, OfferedTypes, PeerId, RoceGid, Version};

fuzz_target!(|data: &[u8]| {
    message(data);
    // The first byte is the number of extensions, with the header of the region that has one.
    if let Some((number, extensions)) = data.split_first() {
        message(&proposal(*number, extensions));
    }
});

/// A PROPOSAL that offers nothing, with features and these extensions.
fn proposal(number: u8, extensions: &[u8]) -> Vec<u8> {
    let proposal = Proposal {
        version: Version::V2,
        v1: OfferedTypes::Neither,
        v2: OfferedTypes::Neither,
        peer_id: PeerId::ZERO,
        gid: RoceGid::ZERO,
        mac: Mac::ZERO,
        smcd: Some(SmcdArea::default().with_vendor_features(Features::all())),
        ip: None,
        ext: None,
    };
    let one = Extensions {
        nonce: Some(Nonce::ZERO),
        ..Extensions::default()
    };
    let mut bytes = vec![0; proposal.extended_len(&one)];
    proposal
        .emit_extended(&one, &mut bytes)
        .expect("features are there");
    bytes.splice(80..bytes.len() - 4, extensions.iter().copied());
    bytes[72] = number;
    let length = u16::try_from(bytes.len()).expect("inputs are shorter");
    bytes[5..7].copy_from_slice(&length.to_be_bytes());
    bytes
}

fn message(bytes: &[u8]) {
    let peeked = Frame::peek_extended(bytes);
    let Ok((message, extensions)) = Message::parse_extended(bytes) else {
        return;
    };
    let frame = peeked
        .expect("a message that parses can be peeked at")
        .expect("its header is there");
    assert!(frame.keep() <= bytes.len());
    if let Ok(plain) = Message::parse(bytes) {
        assert_eq!(plain, message);
    }
    for piece in extensions.early_data.iter().flat_map(|data| data.pieces()) {
        assert!(piece.len() <= bytes.len());
    }
    let mut buffer = [0; Proposal::MAX_EXTENDED_LEN];
    let emitted = match &message {
        Message::Proposal(repr) => (
            repr.emit_extended(&extensions, &mut buffer),
            repr.extended_len(&extensions),
        ),
        Message::Accept(repr) | Message::Confirm(repr) => (
            repr.emit_extended(&extensions, &mut buffer),
            repr.extended_len(&extensions),
        ),
        Message::Decline(_) => return,
    };
    if let (Ok(len), expected) = emitted {
        assert_eq!(len, expected);
        let again = Message::parse_extended(&buffer[..len]);
        assert_eq!(again, Ok((message, extensions)));
    }
}
