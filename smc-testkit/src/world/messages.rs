//! Handshake messages as the scripted peer writes and reads them.

#![allow(
    clippy::missing_panics_doc,
    reason = "a helper of a test fails the test"
)]

use smc_core::wire::clc::{
    AcceptConfirm, Body, Decline, DirectEnd, Frame, HEADER_LEN, Message, Proposal,
};
use smc_core::wire::types::{DeclineCode, OsType, Version};

/// A DECLINE of version 1.
#[must_use]
pub fn decline_v1(code: DeclineCode) -> Vec<u8> {
    decline(&Decline::new(Version::V1, code, OsType::NONE))
}

/// A DECLINE of version 2.
#[must_use]
pub fn decline_v2(code: DeclineCode) -> Vec<u8> {
    decline(&Decline::new(Version::V2, code, OsType::LINUX))
}

/// A DECLINE that calls the link groups out of sync.
#[must_use]
pub fn out_of_sync() -> Vec<u8> {
    let decline = Decline::new(Version::V2, DeclineCode::SYNCERR, OsType::LINUX);
    assert!(decline.out_of_sync);
    self::decline(&decline)
}

fn decline(decline: &Decline) -> Vec<u8> {
    let mut buffer = vec![0; decline.encoded_len()];
    decline.emit(&mut buffer).unwrap();
    buffer
}

/// The bytes of a PROPOSAL.
#[must_use]
pub fn proposal(proposal: &Proposal) -> Vec<u8> {
    let mut buffer = vec![0; proposal.encoded_len()];
    proposal.emit(&mut buffer).unwrap();
    buffer
}

/// The bytes of an ACCEPT or CONFIRM.
#[must_use]
pub fn bytes(message: &AcceptConfirm) -> Vec<u8> {
    let mut buffer = vec![0; message.encoded_len()];
    message.emit(&mut buffer).unwrap();
    buffer
}

/// The same message with its last byte, which belongs to the trailer, damaged.
#[must_use]
pub fn without_trailer(mut bytes: Vec<u8>) -> Vec<u8> {
    *bytes.last_mut().unwrap() ^= 0xff;
    bytes
}

/// The same message announcing another length.
#[must_use]
pub fn with_length(mut bytes: Vec<u8>, length: u16) -> Vec<u8> {
    bytes[5..7].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Reads exactly one message.
pub(super) async fn message(mut read: impl AsyncFnMut(&mut [u8]) -> usize) -> Vec<u8> {
    let mut message = exactly(HEADER_LEN, &mut read).await;
    let header = Frame::peek(&message);
    let header = header.expect("a CLC message").expect("a whole header");
    message.extend(exactly(header.length() - HEADER_LEN, read).await);
    message
}

/// Reads so many bytes.
pub(super) async fn exactly(
    count: usize,
    mut read: impl AsyncFnMut(&mut [u8]) -> usize,
) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut at = 0;
    while at < count {
        let count = read(&mut bytes[at..]).await;
        assert!(count > 0, "the stream ends after {:?}", &bytes[..at]);
        at += count;
    }
    bytes
}

/// The code of a DECLINE, and its version.
#[must_use]
pub fn declined(message: &[u8]) -> (DeclineCode, Version) {
    match Message::parse(message).unwrap() {
        Message::Decline(decline) => (decline.diagnosis, decline.version),
        other => panic!("no DECLINE but {}", other.kind()),
    }
}

/// An SMC-D end in an ACCEPT or CONFIRM.
pub fn direct(message: &mut AcceptConfirm) -> &mut DirectEnd {
    match &mut message.body {
        Body::D(end) => end,
        Body::R(_) => panic!("the message is for SMC-R"),
    }
}
