use std::string::ToString;
use std::vec::Vec;

use super::*;
use crate::cursor::Cursor;
use crate::error::{DecodeErrorKind as Kind, MessageKind};
use crate::pretty::{self, Family};
use crate::types::AlertToken;

fn token(token: u32) -> AlertToken {
    AlertToken::new(token).unwrap()
}

fn at(wrap: u16, count: u32) -> Cursor {
    Cursor { wrap, count }
}

/// The 26 significant bytes of a message, from hex digits with blanks.
fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b' ').collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| core::str::from_utf8(pair).unwrap());
    pairs
        .map(|pair| u8::from_str_radix(pair, 16).unwrap())
        .collect()
}

mod smc_r {
    use super::*;

    #[test]
    fn a_captured_message_as_text() {
        let bytes = hex("fe2c 0005 00000002 00000002000086a0 00000001000086a0 8040");
        let cdc = CdcR::parse(&bytes).unwrap();
        let text = "CDC seq 5 token 0x00000002 prod 2:34464 cons 1:34464 flags B C";
        assert_eq!(cdc.to_string(), text);
    }

    #[test]
    fn all_fields_at_their_offsets() {
        let cdc = CdcR {
            sequence: 0x0102,
            token: token(0x0304_0506),
            producer: at(0x0708, 0x090a_0b0c),
            consumer: at(0x0d0e, 0x0f10_1112),
            producer_flags: ProducerFlags::from_bits_retain(0xff),
            state_flags: StateFlags::from_bits_retain(0x1f),
        };
        let bytes = cdc.to_bytes();
        let text = "fe2c 0102 03040506 0000 0708 090a0b0c 0000 0d0e 0f101112 ff1f";
        assert_eq!(bytes[..26], hex(text));
        assert_eq!(bytes[26..], [0; 18]);
        assert_eq!(CdcR::parse(&bytes), Ok(cdc));
    }

    #[test]
    fn failover_validation_fills_only_sequence_and_token() {
        let mut expected = hex("fe2c 0009 00000007 0000000000000000 0000000000000000 0800");
        expected.resize(44, 0);
        assert_eq!(CdcR::failover(9, token(7)).to_bytes()[..], expected);
    }

    #[test]
    fn twenty_six_bytes_are_enough() {
        let bytes = CdcR::new(1, token(1)).to_bytes();
        assert!(CdcR::parse(&bytes[..26]).is_ok());
        let error = CdcR::parse(&bytes[..25]).unwrap_err();
        assert_eq!(error.message, MessageKind::CdcR);
        assert_eq!(
            error.kind,
            Kind::Truncated {
                needed: 26,
                got: 25
            }
        );
    }

    #[test]
    fn other_type_or_length_is_dropped() {
        let good = CdcR::new(1, token(1)).to_bytes();
        let mut bytes = good;
        bytes[0] = 0x22;
        let kind = Kind::Value {
            expected: "0xfe",
            got: 0x22,
        };
        assert_eq!(CdcR::parse(&bytes).unwrap_err().kind, kind);
        let mut bytes = good;
        bytes[1] = 43;
        let kind = Kind::Length {
            expected: 44,
            got: 43,
        };
        assert_eq!(CdcR::parse(&bytes).unwrap_err().kind, kind);
    }

    #[test]
    fn reserved_bytes_are_shown_and_do_not_matter() {
        let plain = CdcR::new(1, token(1)).to_bytes();
        let mut bytes = plain;
        for at in [8, 9, 16, 17].into_iter().chain(26..44) {
            bytes[at] = 0xff;
        }
        let tree = std::format!("{}", pretty::tree(Family::CdcR, &bytes));
        assert_eq!(tree.matches("reserved, not zero").count(), 3);
        assert_eq!(CdcR::parse(&bytes).unwrap().to_bytes(), plain);
    }

    #[test]
    fn a_token_of_zero_survives_decoding() {
        let cdc = CdcR::new(1, AlertToken::from_wire(0));
        assert!(CdcR::parse(&cdc.to_bytes()).unwrap().token.is_zero());
    }
}

mod smc_d {
    use super::*;

    /// Producer 1:16, consumer 0:0xF000, writer blocked.
    const LITTLE: &str = "fe000000000000000100100000000000000000f0000080000000000000000000";
    const BIG: &str = "fe00000000000000000100000010000000000000f00080000000000000000000";

    fn example() -> CdcD {
        CdcD {
            producer: at(1, 16),
            consumer: at(0, 0xf000),
            producer_flags: ProducerFlags::WRITER_BLOCKED,
            state_flags: StateFlags::empty(),
        }
    }

    #[test]
    fn blocks_of_either_byte_order() {
        for (text, order) in [(LITTLE, ByteOrder::Little), (BIG, ByteOrder::Big)] {
            let bytes = hex(text);
            assert_eq!(CdcD::parse(&bytes, order), Ok(example()));
            assert_eq!(example().to_bytes(order)[..], bytes);
        }
    }

    #[test]
    fn words_are_what_a_native_load_yields() {
        let block = example().to_bytes(ByteOrder::NATIVE);
        let load = |at: usize| u64::from_ne_bytes(block[at..at + 8].try_into().unwrap());
        let producer = ProducerWord::from_ne(load(ProducerWord::OFFSET));
        let consumer = ConsumerWord::from_ne(load(ConsumerWord::OFFSET));
        let of_words = CdcD {
            producer: producer.cursor,
            consumer: consumer.cursor,
            producer_flags: consumer.producer_flags,
            state_flags: consumer.state_flags,
        };
        assert_eq!(of_words, example());
        assert_eq!(producer.to_ne(), load(ProducerWord::OFFSET));
        assert_eq!(consumer.to_ne(), load(ConsumerWord::OFFSET));
    }

    #[test]
    fn a_zeroed_word_is_the_start() {
        assert_eq!(ProducerWord::from_ne(0), ProducerWord::default());
        assert_eq!(ConsumerWord::from_ne(0), ConsumerWord::default());
        assert_eq!(
            CdcD::from_bytes(&[0; 32], ByteOrder::NATIVE),
            CdcD::default()
        );
    }

    #[test]
    fn flags_of_the_producer_word_are_not_read() {
        let mut bytes = hex(LITTLE);
        bytes[14] = 0xff;
        bytes[15] = 0xff;
        bytes[0] = 0;
        assert_eq!(CdcD::parse(&bytes, ByteOrder::Little), Ok(example()));
    }

    #[test]
    fn unknown_flags_survive() {
        let mut bytes = hex(LITTLE);
        bytes[22] = 0x81;
        bytes[23] = 0x5f;
        let cdc = CdcD::parse(&bytes, ByteOrder::Little).unwrap();
        assert_eq!(cdc.producer_flags.to_string(), "B+0x01");
        assert_eq!(cdc.state_flags.to_string(), "C+0x1f");
        assert_eq!(cdc.to_bytes(ByteOrder::Little)[..], bytes);
    }

    #[test]
    fn too_short() {
        let error = CdcD::parse(&[0; 31], ByteOrder::Little).unwrap_err();
        assert_eq!(
            error.kind,
            Kind::Truncated {
                needed: 32,
                got: 31
            }
        );
    }
}
