//! Properties: what is written reads back, and no bytes make a parser panic.

#![allow(clippy::unwrap_used, reason = "a helper of a test fails the test")]

mod strategies;
mod support;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use smc_wire::cdc::{ByteOrder, CdcD, CdcR, ConsumerWord, ProducerFlags, ProducerWord, StateFlags};
use smc_wire::clc::{AcceptConfirm, Decline, Frame, Message, Proposal};
use smc_wire::cursor::Cursor;
use smc_wire::types::*;
use strategies::{accept_confirm, mutated, peer_id, proposal};
use support::ALL_CLC;

prop_compose! {
    fn decline()(
        version in 1..16_u8,
        out_of_sync: bool,
        peer_id in peer_id(),
        diagnosis: u32,
        os in 0..16_u8,
        extra in option::of(any::<[u32; 4]>()),
    ) -> Decline {
        Decline {
            version: Version::new(version).unwrap(),
            out_of_sync,
            peer_id,
            diagnosis: DeclineCode(diagnosis),
            os: OsType::new(os).unwrap(),
            extra,
        }
    }
}

prop_compose! {
    fn cursor()(wrap: u16, count: u32) -> Cursor {
        Cursor { wrap, count }
    }
}

/// Every parser gets the bytes; what it takes has to be writable again, or be refused by name.
fn parse_everything(bytes: &[u8]) {
    let mut out = [0; 1024];
    let _ = Frame::peek(bytes);
    if let Ok(message) = Message::parse(bytes) {
        match message {
            Message::Proposal(repr) => {
                if let Ok(length) = repr.emit(&mut out) {
                    assert_eq!(Proposal::parse(&out[..length]), Ok(repr));
                }
            }
            Message::Accept(repr) | Message::Confirm(repr) => {
                if let Ok(length) = repr.emit(&mut out) {
                    assert_eq!(AcceptConfirm::parse(&out[..length]), Ok(repr));
                }
            }
            Message::Decline(repr) => {
                let length = repr.emit(&mut out).unwrap();
                assert_eq!(Decline::parse(&out[..length]), Ok(repr));
            }
        }
    }
    if let Ok((message, rest)) = Message::parse_prefix(bytes) {
        let (whole, _) = bytes.split_at(bytes.len() - rest.len());
        assert_eq!(Message::parse(whole), Ok(message));
        let frame = Frame::peek(bytes).unwrap().unwrap();
        assert_eq!(frame.length(), whole.len());
    }
    if let Ok(cdc) = CdcR::parse(bytes) {
        assert_eq!(CdcR::parse(&cdc.to_bytes()), Ok(cdc));
    }
    for order in [ByteOrder::Little, ByteOrder::Big] {
        if let Ok(cdc) = CdcD::parse(bytes, order) {
            assert_eq!(CdcD::parse(&cdc.to_bytes(order), order), Ok(cdc));
        }
    }
    if let Some(found) = smc_wire::option::find(bytes) {
        assert!(bytes[found.offset..].starts_with(found.bytes));
    }
}

proptest! {
    #[test]
    fn proposals_read_back(proposal in proposal()) {
        let mut out = [0; 700];
        let length = proposal.emit(&mut out).unwrap();
        prop_assert_eq!(length, proposal.encoded_len());
        prop_assert!((Proposal::MIN_LEN..=Proposal::MAX_LEN).contains(&length));
        prop_assert_eq!(Proposal::parse(&out[..length]), Ok(proposal));
    }

    #[test]
    fn accepts_and_confirms_read_back(message in accept_confirm()) {
        let mut out = [0; 700];
        let length = message.emit(&mut out).unwrap();
        prop_assert_eq!(length, message.encoded_len());
        prop_assert!((AcceptConfirm::MIN_LEN..=AcceptConfirm::MAX_LEN).contains(&length));
        prop_assert_eq!(AcceptConfirm::parse(&out[..length]), Ok(message));
    }

    #[test]
    fn declines_read_back(decline in decline()) {
        let mut out = [0; 44];
        let length = decline.emit(&mut out).unwrap();
        prop_assert_eq!(length, decline.encoded_len());
        prop_assert_eq!(Decline::parse(&out[..length]), Ok(decline));
    }

    #[test]
    fn short_buffers_are_refused(message in accept_confirm(), proposal in proposal(), cut: usize) {
        let mut out = [0; 700];
        let length = message.encoded_len();
        prop_assert!(message.emit(&mut out[..cut % length]).is_err());
        let length = proposal.encoded_len();
        prop_assert!(proposal.emit(&mut out[..cut % length]).is_err());
    }

    #[test]
    fn cdc_messages_read_back(
        sequence: u16,
        token: u32,
        producer in cursor(),
        consumer in cursor(),
        producer_flags: u8,
        state_flags: u8,
    ) {
        let producer_flags = ProducerFlags::from_bits_retain(producer_flags);
        let state_flags = StateFlags::from_bits_retain(state_flags);
        let token = AlertToken::from_wire(token);
        let cdc = CdcR { sequence, token, producer, consumer, producer_flags, state_flags };
        prop_assert_eq!(CdcR::parse(&cdc.to_bytes()), Ok(cdc));

        let cdc = CdcD { producer, consumer, producer_flags, state_flags };
        for order in [ByteOrder::Little, ByteOrder::Big] {
            prop_assert_eq!(CdcD::parse(&cdc.to_bytes(order), order), Ok(cdc));
        }
        let word = ProducerWord { cursor: producer };
        prop_assert_eq!(ProducerWord::from_ne(word.to_ne()), word);
    }

    #[test]
    fn words_keep_all_their_bits(word: u64) {
        prop_assert_eq!(ConsumerWord::from_ne(word).to_ne(), word);
    }

    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..700)) {
        parse_everything(&bytes);
    }

    #[test]
    fn any_bytes_behind_a_header_are_survived(
        kind in 1..=4_u8,
        flags: u8,
        body in vec(any::<u8>(), 0..700),
    ) {
        let mut bytes = vec![0xe2, 0xd4, 0xc3, 0xd9, kind, 0, 0, flags];
        bytes.extend(body);
        bytes.extend([0xe2, 0xd4, 0xc3, 0xd9]);
        parse_everything(&support::with_true_length(bytes));
    }

    #[test]
    fn mutated_messages_are_survived(bytes in mutated(&ALL_CLC)) {
        parse_everything(&bytes);
    }

    #[test]
    fn mutated_lists_of_tcp_options_are_survived(
        bytes in vec(select(vec![0_u8, 1, 2, 6, 8, 254, 0xe2, 0xd4, 0xc3, 0xd9]), 0..40),
    ) {
        parse_everything(&bytes);
    }
}
