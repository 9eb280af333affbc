//! The CDC message of SMC-R.

use core::fmt;
use core::mem::offset_of;

use zerocopy::FromBytes;

use super::{ProducerFlags, StateFlags};
use crate::cursor::Cursor;
use crate::error::{DecodeError, MessageKind};
use crate::layout::Show::{self, Code, Reserved};
use crate::layout::{BYTES, DEC, Layout, Raw, layouts, part};
use crate::llc::MESSAGE_LEN;
use crate::types::AlertToken;
use crate::writer::wire_count;

part! {
    /// CDC message of SMC-R, 44 bytes (docs/spec/cdc.md#cdc-message; RFC 7609 appendix A.4).
    ///
    /// Emitting writes zeros into the reserved fields.
    ///
    /// ```
    /// use smc_wire::cdc::CdcR;
    /// use smc_wire::cursor::Cursor;
    /// use smc_wire::types::AlertToken;
    ///
    /// let cdc = CdcR {
    ///     producer: Cursor { wrap: 0, count: 1000 },
    ///     ..CdcR::new(1, AlertToken::new(7).unwrap())
    /// };
    /// assert_eq!(CdcR::parse(&cdc.to_bytes()), Ok(cdc));
    /// ```
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub struct CdcR {}
    26 bytes {
        given kind as "type": u8 => TYPE,
        given length: u8 => DEC,
        /// Counts the messages of a connection in one direction: 1 first, 65535 is followed by 0.
        pub sequence: u16,
        /// The token that the receiver of this message announced for the connection.
        pub token as "alert_token": AlertToken,
        zero reserved_8: [u8; 2],
        /// How far the sender has written into the receiver's RMB element (ring: the receiver's).
        pub producer: Cursor,
        zero reserved_16: [u8; 2],
        /// How far the sender has read in its own RMB element (ring: the sender's).
        pub consumer: Cursor,
        /// Byte 24.
        pub producer_flags: ProducerFlags,
        /// Byte 25.
        pub state_flags: StateFlags,
    }
}

layouts! {
    /// The whole message.
    pub(crate) struct Padded: 44 {
        message: Raw<CdcR> => BYTES,
        credits: u8 => DEC,
        reserved_27: [u8; 17] => Reserved,
    }
}

/// How the type byte is shown.
pub(super) const TYPE: Show = Code(|kind| (kind == CdcR::TYPE.into()).then_some("CDC"));

impl CdcR {
    /// Bytes on the wire: as many as an LLC message has.
    pub const LEN: usize = MESSAGE_LEN;
    /// The leading bytes that mean something; a receiver drops anything shorter.
    pub const SIGNIFICANT_LEN: usize = <Self as Layout>::LEN;
    /// The first byte, which distinguishes CDC from LLC messages on the same queue pair.
    pub const TYPE: u8 = 0xfe;

    /// A message with both cursors at the start and no flags.
    #[must_use]
    pub const fn new(sequence: u16, token: AlertToken) -> Self {
        Self {
            sequence,
            token,
            producer: Cursor::START,
            consumer: Cursor::START,
            producer_flags: ProducerFlags::empty(),
            state_flags: StateFlags::empty(),
        }
    }

    /// A failover validation: only sequence number and token are filled.
    ///
    /// `sequence` names a CDC that the peer must have received: as Linux does, the one before the
    /// last whose transmission completed on the old link (docs/spec/failover.md#validation).
    #[must_use]
    pub const fn failover(sequence: u16, token: AlertToken) -> Self {
        Self {
            producer_flags: ProducerFlags::FAILOVER_VALIDATION,
            ..Self::new(sequence, token)
        }
    }

    /// Reads a received message: checks the type byte, the length byte and that the 26 significant
    /// bytes are there.
    ///
    /// Cursors are not checked: their ring is not known here, see
    /// [`Ring::check`](crate::cursor::Ring::check).
    ///
    /// # Errors
    ///
    /// [`DecodeError`] for anything a receiver has to drop: fewer than 26 bytes, a type other than
    /// `0xFE`, a length byte other than 44.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        const MESSAGE: MessageKind = MessageKind::CdcR;
        const LENGTH_AT: usize = offset_of!(Raw<CdcR>, length);
        let Ok((raw, _)) = Raw::<Self>::ref_from_prefix(bytes) else {
            return Err(MESSAGE.truncated("message", Self::SIGNIFICANT_LEN, bytes.len()));
        };
        if raw.kind != Self::TYPE {
            return Err(MESSAGE.bad_value("type", 0, "0xfe", raw.kind));
        }
        if usize::from(raw.length) != Self::LEN {
            return Err(MESSAGE.bad_length("length", LENGTH_AT, Self::LEN, raw.length));
        }
        Ok(Self::from_raw(raw))
    }

    /// The 44 bytes of the message.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        zerocopy::transmute!(Padded {
            message: self.raw(Self::TYPE, wire_count(Self::LEN)),
            credits: 0,
            reserved_27: [0; 17],
        })
    }

    /// Receive credits that a message grants: they are of the link, and not of the connection
    /// (docs/spec/extensions.md#receive-credits). 0 without the feature, and in a message that is
    /// too short for them.
    #[must_use]
    pub fn credits(message: &[u8]) -> u8 {
        message
            .get(offset_of!(Padded, credits))
            .copied()
            .unwrap_or(0)
    }

    /// Has a message grant receive credits.
    ///
    /// ```
    /// use smc_wire::cdc::CdcR;
    /// use smc_wire::types::AlertToken;
    ///
    /// let mut message = CdcR::new(1, AlertToken::new(7).unwrap()).to_bytes();
    /// CdcR::set_credits(&mut message, 20);
    /// assert_eq!(CdcR::credits(&message), 20);
    /// ```
    pub const fn set_credits(message: &mut [u8; Self::LEN], credits: u8) {
        message[offset_of!(Padded, credits)] = credits;
    }
}

impl fmt::Display for CdcR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "CDC seq {} token {} prod {} cons {} flags {} {}",
            self.sequence,
            self.token,
            self.producer,
            self.consumer,
            self.producer_flags,
            self.state_flags
        )
    }
}
