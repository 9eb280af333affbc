//! Any CLC message.

use super::frame;
use super::header::{ClcType, Header};
use super::{AcceptConfirmView, DeclineView, ProposalView};
use crate::error::DecodeError;

/// A received CLC message of any type, checked.
///
/// ```
/// use smc_wire::clc::Message;
///
/// let bytes = [
///     0xe2, 0xd4, 0xc3, 0xd9, 4, 0, 28, 0x18, // DECLINE, 28 bytes, version 1, out of sync
///     0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0xe2, 0xd4, 0xc3, 0xd9,
/// ];
/// let Message::Decline(decline) = Message::parse(&bytes)? else { unreachable!() };
/// assert_eq!(decline.to_repr().diagnosis.name(), Some("SYNCERR"));
/// # Ok::<(), smc_wire::DecodeError>(())
/// ```
#[derive(Debug, Clone, Copy)]
#[allow(
    clippy::exhaustive_enums,
    reason = "other types are fatal for the handshake"
)]
pub enum Message<'a> {
    /// PROPOSAL.
    Proposal(ProposalView<'a>),
    /// ACCEPT.
    Accept(AcceptConfirmView<'a>),
    /// CONFIRM.
    Confirm(AcceptConfirmView<'a>),
    /// DECLINE.
    Decline(DeclineView<'a>),
}

impl<'a> Message<'a> {
    /// Reads one message that takes up all of `bytes`.
    ///
    /// An ACCEPT or CONFIRM above the ceiling may also be given as its first
    /// [`Frame::keep`](super::Frame::keep) bytes.
    ///
    /// # Errors
    ///
    /// The bytes are not one well-formed message; see the `parse` function of each view.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::new(frame::exact(bytes)?, bytes)
    }

    /// Reads one message from the start of `bytes` and returns what follows it.
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse).
    pub fn parse_prefix(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), DecodeError> {
        let (header, message, rest) = frame::split(bytes)?;
        Ok((Self::new(header, message)?, rest))
    }

    fn new(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(match header.kind {
            ClcType::Proposal => Self::Proposal(ProposalView::new(header, bytes)?),
            ClcType::Accept => Self::Accept(AcceptConfirmView::new(header, bytes)?),
            ClcType::Confirm => Self::Confirm(AcceptConfirmView::new(header, bytes)?),
            ClcType::Decline => Self::Decline(DeclineView::new(header, bytes)?),
        })
    }

    /// The common header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        match self {
            Self::Proposal(view) => view.header(),
            Self::Accept(view) | Self::Confirm(view) => view.header(),
            Self::Decline(view) => view.header(),
        }
    }

    /// The bytes of the message.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        match self {
            Self::Proposal(view) => view.as_bytes(),
            Self::Accept(view) | Self::Confirm(view) => view.as_bytes(),
            Self::Decline(view) => view.as_bytes(),
        }
    }
}
