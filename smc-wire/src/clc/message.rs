//! Any CLC message.

use super::frame;
use super::header::{ClcType, Header};
use super::{AcceptConfirm, Decline, Extensions, Proposal, extension};
use crate::error::DecodeError;

/// A received CLC message of any type.
///
/// ```
/// use smc_wire::clc::Message;
///
/// let bytes = [
///     0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x18, // DECLINE, 28 bytes, version 1, out of sync
///     0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0xe2, 0xd4, 0xc3, 0xd9,
/// ];
/// let Message::Decline(decline) = Message::parse(&bytes)? else { unreachable!() };
/// assert_eq!(decline.diagnosis.name(), Some("SYNCERR"));
/// # Ok::<(), smc_wire::DecodeError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_enums,
    reason = "other types are fatal for the handshake"
)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is no allocator to box the larger one"
)]
pub enum Message {
    /// PROPOSAL.
    Proposal(Proposal),
    /// ACCEPT.
    Accept(AcceptConfirm),
    /// CONFIRM.
    Confirm(AcceptConfirm),
    /// DECLINE.
    Decline(Decline),
}

impl Message {
    /// Reads one message that takes up all of `bytes`.
    ///
    /// An ACCEPT or CONFIRM above the ceiling may also be given as its first
    /// [`Frame::keep`](super::Frame::keep) bytes.
    ///
    /// # Errors
    ///
    /// The bytes are not one well-formed message; see the `parse` function of each.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        Self::read(&frame::exact(bytes, Proposal::MAX_LEN)?, bytes, false)
    }

    /// Reads one message from the start of `bytes` and returns what follows it.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, &[u8]), DecodeError> {
        let (header, message, rest) = frame::split(bytes, Proposal::MAX_LEN)?;
        Ok((Self::read(&header, message, false)?, rest))
    }

    /// As [`parse`](Self::parse), with the extensions of the message
    /// (docs/spec/extensions.md#placement).
    ///
    /// Only a message that states [`Features`](crate::types::Features) has extensions. Any other
    /// one is read as by `parse`, whatever its reserved bytes are.
    ///
    /// # Errors
    ///
    /// Those of `parse`, and for extensions: a header of a region that does not agree with the
    /// region, a number that does not agree with the headers, an extension that is not complete, a
    /// known type twice or with another length, a continuation of nothing.
    pub fn parse_extended(bytes: &[u8]) -> Result<(Self, Extensions<'_>), DecodeError> {
        let header = frame::exact(bytes, Proposal::MAX_EXTENDED_LEN)?;
        Self::read_extended(&header, bytes)
    }

    /// As [`parse_extended`](Self::parse_extended), for the start of `bytes`; with what follows.
    pub(crate) fn parse_extended_prefix(
        bytes: &[u8],
    ) -> Result<(Self, Extensions<'_>, &[u8]), DecodeError> {
        let (header, message, rest) = frame::split(bytes, Proposal::MAX_EXTENDED_LEN)?;
        let (message, extensions) = Self::read_extended(&header, message)?;
        Ok((message, extensions, rest))
    }

    fn read_extended<'a>(
        header: &Header,
        bytes: &'a [u8],
    ) -> Result<(Self, Extensions<'a>), DecodeError> {
        let count = extension::area::count(header, bytes);
        let message = Self::read(header, bytes, count > 0)?;
        let area = match &message {
            Self::Proposal(message) => message.area(),
            Self::Accept(message) | Self::Confirm(message) => message.area(),
            Self::Decline(_) => None,
        };
        let extensions = match area {
            Some(area) if count > 0 => area.read(count, header, bytes)?,
            _ => Extensions::default(),
        };
        Ok((message, extensions))
    }

    fn read(header: &Header, bytes: &[u8], has_extensions: bool) -> Result<Self, DecodeError> {
        Ok(match header.kind {
            ClcType::Proposal => Self::Proposal(Proposal::read(header, bytes, has_extensions)?),
            ClcType::Accept => Self::Accept(AcceptConfirm::read(header, bytes)?),
            ClcType::Confirm => Self::Confirm(AcceptConfirm::read(header, bytes)?),
            ClcType::Decline => Self::Decline(Decline::read(header, bytes)?),
        })
    }

    /// The type.
    #[must_use]
    pub const fn kind(&self) -> ClcType {
        match self {
            Self::Proposal(_) => ClcType::Proposal,
            Self::Accept(_) => ClcType::Accept,
            Self::Confirm(_) => ClcType::Confirm,
            Self::Decline(_) => ClcType::Decline,
        }
    }
}
