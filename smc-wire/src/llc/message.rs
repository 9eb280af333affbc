//! Any LLC message.

use super::{
    AddLink, AddLinkCont, AddLinkContView, AddLinkView, ByteOrder, ConfirmLink, ConfirmLinkView,
    ConfirmRkey, ConfirmRkeyCont, ConfirmRkeyContView, ConfirmRkeyView, DeleteLink, DeleteLinkView,
    DeleteRkey, DeleteRkeyView, Header, MessageType, RequestAddLink, RequestAddLinkView, TestLink,
    TestLinkView,
};
use crate::{DecodeError, EmitError, MessageKind};

/// A checked view of a received message.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Message<'a> {
    /// CONFIRM LINK.
    ConfirmLink(ConfirmLinkView<'a>),
    /// ADD LINK.
    AddLink(AddLinkView<'a>),
    /// ADD LINK CONT.
    AddLinkCont(AddLinkContView<'a>),
    /// DELETE LINK.
    DeleteLink(DeleteLinkView<'a>),
    /// REQUEST ADD LINK.
    RequestAddLink(RequestAddLinkView<'a>),
    /// CONFIRM RKEY.
    ConfirmRkey(ConfirmRkeyView<'a>),
    /// CONFIRM RKEY CONT.
    ConfirmRkeyCont(ConfirmRkeyContView<'a>),
    /// TEST LINK.
    TestLink(TestLinkView<'a>),
    /// DELETE RKEY.
    DeleteRkey(DeleteRkeyView<'a>),
    /// A type that this crate does not know; receivers drop it.
    Unknown(UnknownView<'a>),
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
    /// contents that contradict the size or the version, as documented with each view.
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
        Ok(match header.message_type() {
            Some(MessageType::ConfirmLink) => {
                Self::ConfirmLink(ConfirmLinkView::parse(header, bytes)?)
            }
            Some(MessageType::AddLink) => Self::AddLink(AddLinkView::parse(header, bytes)?),
            Some(MessageType::AddLinkCont) => {
                Self::AddLinkCont(AddLinkContView::parse(header, bytes)?)
            }
            Some(MessageType::DeleteLink) => {
                Self::DeleteLink(DeleteLinkView::parse(header, bytes)?)
            }
            Some(MessageType::RequestAddLink) => {
                Self::RequestAddLink(RequestAddLinkView::parse(header, bytes)?)
            }
            Some(MessageType::ConfirmRkey) => {
                Self::ConfirmRkey(ConfirmRkeyView::parse(header, bytes)?)
            }
            Some(MessageType::ConfirmRkeyCont) => {
                Self::ConfirmRkeyCont(ConfirmRkeyContView::parse(header, bytes)?)
            }
            Some(MessageType::TestLink) => Self::TestLink(TestLinkView::parse(header, bytes)?),
            Some(MessageType::DeleteRkey) => {
                Self::DeleteRkey(DeleteRkeyView::parse(header, bytes)?)
            }
            None => Self::Unknown(UnknownView { header, bytes }),
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        match self {
            Self::ConfirmLink(view) => view.header(),
            Self::AddLink(view) => view.header(),
            Self::AddLinkCont(view) => view.header(),
            Self::DeleteLink(view) => view.header(),
            Self::RequestAddLink(view) => view.header(),
            Self::ConfirmRkey(view) => view.header(),
            Self::ConfirmRkeyCont(view) => view.header(),
            Self::TestLink(view) => view.header(),
            Self::DeleteRkey(view) => view.header(),
            Self::Unknown(view) => view.header(),
        }
    }

    /// The contents without reserved fields; lists stay borrowed from the received bytes.
    #[must_use]
    pub fn to_repr(&self) -> Repr<'a> {
        match self {
            Self::ConfirmLink(view) => Repr::ConfirmLink(view.to_repr()),
            Self::AddLink(view) => Repr::AddLink(view.to_repr()),
            Self::AddLinkCont(view) => Repr::AddLinkCont(view.to_repr()),
            Self::DeleteLink(view) => Repr::DeleteLink(view.to_repr()),
            Self::RequestAddLink(view) => Repr::RequestAddLink(view.to_repr()),
            Self::ConfirmRkey(view) => Repr::ConfirmRkey(view.to_repr()),
            Self::ConfirmRkeyCont(view) => Repr::ConfirmRkeyCont(view.to_repr()),
            Self::TestLink(view) => Repr::TestLink(view.to_repr()),
            Self::DeleteRkey(view) => Repr::DeleteRkey(view.to_repr()),
            Self::Unknown(view) => Repr::Unknown(view.bytes),
        }
    }
}

/// A message whose type this crate does not know, CDC (`0xFE`) included.
#[derive(Debug, Clone, Copy)]
pub struct UnknownView<'a> {
    header: Header,
    bytes: &'a [u8],
}

impl<'a> UnknownView<'a> {
    /// The header; only its type byte and its size are sure to mean what they say.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The whole message.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }
}

/// The contents of any message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Repr<'a> {
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
    /// An unknown message, byte for byte.
    Unknown(&'a [u8]),
}

impl Repr<'_> {
    /// Bytes the message takes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match self {
            Self::AddLink(message) => message.encoded_len(),
            Self::RequestAddLink(message) => message.encoded_len(),
            Self::DeleteRkey(message) => message.encoded_len(),
            Self::Unknown(bytes) => bytes.len(),
            Self::ConfirmLink(_)
            | Self::AddLinkCont(_)
            | Self::DeleteLink(_)
            | Self::ConfirmRkey(_)
            | Self::ConfirmRkeyCont(_)
            | Self::TestLink(_) => super::MESSAGE_LEN,
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
            Self::Unknown(bytes) => emit_parts(MessageKind::LlcHeader, buffer, &[bytes]),
        }
    }
}

/// Copies the parts of a message one behind the other to the start of a buffer.
pub(super) fn emit_parts(
    message: MessageKind,
    buffer: &mut [u8],
    parts: &[&[u8]],
) -> Result<usize, EmitError> {
    let needed = parts
        .iter()
        .fold(0_usize, |sum, part| sum.saturating_add(part.len()));
    let got = buffer.len();
    if got < needed {
        return Err(EmitError::BufferTooSmall {
            message,
            needed,
            got,
        });
    }
    let mut rest = buffer;
    for part in parts {
        let Some((to, tail)) = rest.split_at_mut_checked(part.len()) else {
            break;
        };
        to.copy_from_slice(part);
        rest = tail;
    }
    Ok(needed)
}

/// The view's layout over the received bytes, or the error that a receiver would have met before.
pub(super) fn layout<T>(kind: MessageType, bytes: &[u8]) -> Result<&T, DecodeError>
where
    T: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout + zerocopy::Unaligned,
{
    super::raw::prefix(bytes).ok_or_else(|| {
        let cause = crate::DecodeErrorKind::Truncated {
            needed: size_of::<T>(),
            got: bytes.len(),
        };
        DecodeError::new(kind.kind(), "message", 0, cause)
    })
}
