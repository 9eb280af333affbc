//! Any LLC message.

use super::{
    AddLink, AddLinkCont, AnnounceCredits, ByteOrder, ConfirmLink, ConfirmRkey, ConfirmRkeyCont,
    DeleteLink, DeleteRkey, Header, MESSAGE_LEN, MessageType, RequestAddLink, TestLink,
};
use crate::writer::Writer;
use crate::{DecodeError, EmitError, MessageKind};

/// The contents of a message without reserved fields; lists stay borrowed from the received bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message<'a> {
    /// CONFIRM LINK.
    ConfirmLink(ConfirmLink),
    /// ADD LINK.
    AddLink(AddLink<'a>),
    /// ADD LINK CONT.
    AddLinkCont(AddLinkCont),
    /// DELETE LINK.
    DeleteLink(DeleteLink),
    /// REQUEST ADD LINK.
    RequestAddLink(RequestAddLink),
    /// CONFIRM RKEY.
    ConfirmRkey(ConfirmRkey),
    /// CONFIRM RKEY CONT.
    ConfirmRkeyCont(ConfirmRkeyCont),
    /// TEST LINK.
    TestLink(TestLink),
    /// DELETE RKEY.
    DeleteRkey(DeleteRkey<'a>),
    /// ANNOUNCE CREDITS.
    AnnounceCredits(AnnounceCredits),
    /// A message whose type this crate does not know, CDC (`0xFE`) included, byte for byte;
    /// receivers drop it.
    Unknown(&'a [u8]),
}

impl<'a> Message<'a> {
    /// Reads one message, given as the receive completion delivered it.
    ///
    /// For a peer whose byte order is not known yet: the length field of the message itself
    /// decides, and big-endian is assumed if it does not.
    ///
    /// # Errors
    ///
    /// What a receiver has to drop: fewer than 44 bytes, a v1 length byte other than 44, and
    /// contents that contradict the size or the version, as documented with each message.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::parse_with(bytes, None)
    }

    /// As [`parse`](Self::parse), from a peer of known byte order.
    ///
    /// The order makes a difference only if the length field gives the size in both orders or in
    /// neither.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn parse_from(bytes: &'a [u8], order: ByteOrder) -> Result<Self, DecodeError> {
        Self::parse_with(bytes, Some(order))
    }

    fn parse_with(bytes: &'a [u8], order: Option<ByteOrder>) -> Result<Self, DecodeError> {
        let header = Header::parse(bytes, order)?;
        let Some(kind) = header.message_type() else {
            return Ok(Self::Unknown(bytes));
        };
        let header = &header;
        Ok(match kind {
            MessageType::ConfirmLink => Self::ConfirmLink(ConfirmLink::parse(header, bytes)?),
            MessageType::AddLink => Self::AddLink(AddLink::parse(header, bytes)?),
            MessageType::AddLinkCont => Self::AddLinkCont(AddLinkCont::parse(header, bytes)?),
            MessageType::DeleteLink => Self::DeleteLink(DeleteLink::parse(header, bytes)?),
            MessageType::RequestAddLink => {
                Self::RequestAddLink(RequestAddLink::parse(header, bytes)?)
            }
            MessageType::ConfirmRkey => Self::ConfirmRkey(ConfirmRkey::parse(header, bytes)?),
            MessageType::ConfirmRkeyCont => {
                Self::ConfirmRkeyCont(ConfirmRkeyCont::parse(header, bytes)?)
            }
            MessageType::TestLink => Self::TestLink(TestLink::parse(header, bytes)?),
            MessageType::DeleteRkey => Self::DeleteRkey(DeleteRkey::parse(header, bytes)?),
            MessageType::AnnounceCredits => {
                Self::AnnounceCredits(AnnounceCredits::parse(header, bytes)?)
            }
        })
    }

    /// Bytes the message takes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::AddLink(message) => message.encoded_len(),
            Self::RequestAddLink(message) => message.encoded_len(),
            Self::DeleteRkey(message) => message.encoded_len(),
            Self::Unknown(bytes) => bytes.len(),
            _ => MESSAGE_LEN,
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// The buffer is too small, or the message cannot be expressed in its dialect.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        match self {
            Self::ConfirmLink(message) => message.emit(buffer),
            Self::AddLink(message) => message.emit(buffer),
            Self::AddLinkCont(message) => message.emit(buffer),
            Self::DeleteLink(message) => message.emit(buffer),
            Self::RequestAddLink(message) => message.emit(buffer),
            Self::ConfirmRkey(message) => message.emit(buffer),
            Self::ConfirmRkeyCont(message) => message.emit(buffer),
            Self::TestLink(message) => message.emit(buffer),
            Self::DeleteRkey(message) => message.emit(buffer),
            Self::AnnounceCredits(message) => message.emit(buffer),
            Self::Unknown(bytes) => {
                Writer::new(MessageKind::LlcHeader, bytes.len(), buffer)?.put(*bytes)?;
                Ok(bytes.len())
            }
        }
    }
}

/// Messages that always have 44 bytes.
macro_rules! fixed_len {
    ($($message:ident)+) => {$(
        impl $message {
            /// Bytes the message takes: 44.
            #[must_use]
            pub const fn encoded_len(&self) -> usize {
                MESSAGE_LEN
            }
        }
    )+};
}

fixed_len!(ConfirmLink AddLinkCont DeleteLink ConfirmRkey ConfirmRkeyCont TestLink AnnounceCredits);
