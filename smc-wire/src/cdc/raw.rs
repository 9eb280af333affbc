//! Layouts of both forms of CDC.

use zerocopy::network_endian::{U16, U32};

use super::{CdcR, ProducerFlags, StateFlags};
use crate::layout::Show::{self, Code, Cursor, Reserved};
use crate::layout::{BYTES, DEC, Field, HEX, layouts};

layouts! {
    /// The bytes of a CDC message of SMC-R that mean something.
    pub(crate) struct Message: 26 {
        kind as "type": u8 => TYPE,
        length: u8 => DEC,
        sequence: U16 => DEC,
        alert_token: U32 => HEX,
        reserved_8: [u8; 2] => Reserved,
        producer: [u8; 6] => Cursor,
        reserved_16: [u8; 2] => Reserved,
        consumer: [u8; 6] => Cursor,
        producer_flags: u8 => ProducerFlags::SHOW,
        state_flags: u8 => StateFlags::SHOW,
    }

    /// The whole message.
    pub(crate) struct Padded: 44 {
        message: Message => BYTES,
        reserved_26: [u8; 18] => Reserved,
    }

    /// CDC block of SMC-D, in the byte order of the machine.
    pub(crate) struct Block: 32 {
        kind as "type": u8 => TYPE,
        reserved_1: [u8; 7] => Reserved,
        producer: [u8; 6] => Cursor,
        unused_producer_flags: u8 => Reserved,
        unused_state_flags: u8 => Reserved,
        consumer: [u8; 6] => Cursor,
        producer_flags: u8 => ProducerFlags::SHOW,
        state_flags: u8 => StateFlags::SHOW,
        reserved_24: [u8; 8] => Reserved,
    }
}

const TYPE: Show = Code(|value| (value == u64::from(CdcR::TYPE)).then_some("CDC"));
