//! CLC: any bytes at the start of a stream; what parses is emitted and parses again to the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use smc_wire::clc::{AcceptConfirm, Decline, Frame, Message, Proposal};

fuzz_target!(|data: &[u8]| {
    let peeked = Frame::peek(data);
    let Ok((message, rest)) = Message::parse_prefix(data) else {
        let _ = Message::parse(data);
        return;
    };
    let frame = peeked
        .expect("a message that parses can be peeked at")
        .expect("its header is there");
    assert_eq!(frame.length() + rest.len(), data.len());
    let mut buffer = [0; 1024];
    match message {
        Message::Proposal(repr) => {
            if let Ok(len) = repr.emit(&mut buffer) {
                assert_eq!(len, repr.encoded_len());
                assert_eq!(Proposal::parse(&buffer[..len]), Ok(repr));
            }
        }
        Message::Accept(repr) | Message::Confirm(repr) => {
            if let Ok(len) = repr.emit(&mut buffer) {
                assert_eq!(len, repr.encoded_len());
                assert_eq!(AcceptConfirm::parse(&buffer[..len]), Ok(repr));
            }
        }
        Message::Decline(repr) => {
            if let Ok(len) = repr.emit(&mut buffer) {
                assert_eq!(len, repr.encoded_len());
                assert_eq!(Decline::parse(&buffer[..len]), Ok(repr));
            }
        }
    }
});
