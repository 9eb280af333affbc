//! ADD LINK CONT: the RMBs that a new link shall serve, in v1 (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::emit_header;
use super::message::{emit_parts, layout};
use super::{Dialect, Header, MESSAGE_LEN, MessageType, Rtoken, Step, WireRtoken, raw};
use crate::types::LinkNumber;
use crate::{Bounded, DecodeError, EmitError};

/// A received ADD LINK CONT; v1 only.
#[derive(Debug, Clone, Copy)]
pub struct AddLinkContView<'a> {
    header: Header,
    raw: &'a raw::AddLinkCont,
}

impl<'a> AddLinkContView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            header,
            raw: layout(MessageType::AddLinkCont, bytes)?,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The contents without reserved fields and unused entries.
    #[must_use]
    pub fn to_repr(&self) -> AddLinkCont {
        let valid = usize::from(self.raw.left);
        let rtokens = self.raw.rtokens.iter().take(valid).copied();
        AddLinkCont {
            step: self.header.step(),
            link: LinkNumber(self.raw.link),
            left: self.raw.left,
            rtokens: Bounded::from_iter_lossy(rtokens),
        }
    }
}

/// Contents of ADD LINK CONT: the RMBs that the new link shall serve, two at a time.
///
/// Server and client take turns until both have stated that nothing is left, at least once each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLinkCont {
    /// Request from the server, response from the client.
    pub step: Step,
    /// The new link.
    pub link: LinkNumber,
    /// Rtokens still to be sent, those of this message included.
    pub left: u8,
    /// The first of them.
    pub rtokens: Bounded<WireRtoken, 2>,
}

impl AddLinkCont {
    /// The message that sends the first of the RMBs that are left.
    #[must_use]
    pub fn of(step: Step, link: LinkNumber, left: &[Rtoken]) -> Self {
        Self {
            step,
            link,
            left: u8::try_from(left.len()).unwrap_or(u8::MAX),
            rtokens: Bounded::from_iter_lossy(left.iter().copied().map(WireRtoken::from)),
        }
    }

    /// Bytes the message takes: 44.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        MESSAGE_LEN
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes; [`EmitError::Invalid`] if there are not as
    /// many rtokens as `left` asks for, which is two or the rest.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::AddLinkCont;
        if self.rtokens.len() != usize::from(self.left).min(2) {
            return Err(EmitError::Invalid {
                message: KIND.kind(),
                field: "rtokens left",
                reason: "contradicts the rtokens there are",
            });
        }
        let mut rtokens = [WireRtoken::default(); 2];
        for (to, from) in rtokens.iter_mut().zip(&self.rtokens) {
            *to = *from;
        }
        let raw = raw::AddLinkCont {
            header: emit_header(KIND, Dialect::V1, self.step.flag(), 0, MESSAGE_LEN)?,
            link: self.link.0,
            left: self.left,
            reserved: [0; 2],
            rtokens,
            reserved2: [0; 4],
        };
        emit_parts(KIND.kind(), buffer, &[raw.as_bytes()])
    }
}
