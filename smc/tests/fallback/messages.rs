//! Handshake messages as the scripted peer writes and reads them.

use smc_core::wire::clc::{AcceptConfirm, Body, Decline, Frame, HEADER_LEN, Message, Proposal};
use smc_core::wire::types::{DeclineCode, OsType, Version};

/// A DECLINE of version 1.
pub(crate) fn decline_v1(code: DeclineCode) -> Vec<u8> {
    decline(&Decline::new(Version::V1, code, OsType::NONE))
}

/// A DECLINE of version 2.
pub(crate) fn decline_v2(code: DeclineCode) -> Vec<u8> {
    decline(&Decline::new(Version::V2, code, OsType::LINUX))
}

/// A DECLINE that calls the link groups out of sync.
pub(crate) fn out_of_sync() -> Vec<u8> {
    let decline = Decline::new(Version::V2, DeclineCode::SYNCERR, OsType::LINUX);
    assert!(decline.out_of_sync);
    self::decline(&decline)
}

fn decline(decline: &Decline) -> Vec<u8> {
    let mut buffer = vec![0; decline.encoded_len()];
    decline.emit(&mut buffer).unwrap();
    buffer
}

pub(crate) fn proposal(proposal: &Proposal) -> Vec<u8> {
    let mut buffer = vec![0; proposal.encoded_len()];
    proposal.emit(&mut buffer).unwrap();
    buffer
}

/// The bytes of an ACCEPT or CONFIRM.
pub(crate) fn bytes(message: &AcceptConfirm) -> Vec<u8> {
    let mut buffer = vec![0; message.encoded_len()];
    message.emit(&mut buffer).unwrap();
    buffer
}

/// The same message with its last byte, which belongs to the trailer, damaged.
pub(crate) fn without_trailer(mut bytes: Vec<u8>) -> Vec<u8> {
    *bytes.last_mut().unwrap() ^= 0xff;
    bytes
}

/// The same message announcing another length.
pub(crate) fn with_length(mut bytes: Vec<u8>, length: u16) -> Vec<u8> {
    bytes[5..7].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The length of the message that begins with this header.
pub(crate) fn length(header: &[u8; HEADER_LEN]) -> usize {
    Frame::peek(header)
        .expect("a CLC message")
        .expect("a whole header")
        .length()
}

/// The code of a DECLINE, and its version.
pub(crate) fn declined(message: &[u8]) -> (DeclineCode, Version) {
    match Message::parse(message).unwrap() {
        Message::Decline(decline) => (decline.diagnosis, decline.version),
        other => panic!("no DECLINE but {}", other.kind()),
    }
}

/// An SMC-D end in an ACCEPT or CONFIRM.
pub(crate) fn direct(message: &mut AcceptConfirm) -> &mut smc_core::wire::clc::DirectEnd {
    match &mut message.body {
        Body::D(end) => end,
        Body::R(_) => panic!("the message is for SMC-R"),
    }
}
