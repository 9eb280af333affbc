//! ADD LINK CONT: the RMBs that a new link shall serve, in v1 (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::emit;
use super::{Dialect, Header, MessageType, RejectReason, Rtoken, Step, WireRtoken, raw};
use crate::types::LinkNumber;
use crate::writer::invalid;
use crate::{Bounded, DecodeError, EmitError};

/// Contents of ADD LINK CONT, v1 only: the RMBs that the new link shall serve, two at a time.
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
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<raw::AddLinkCont>(bytes)?;
        let rtokens = raw::list(rest, raw.rtokens_left.into());
        Ok(Self {
            step: header.step(),
            link: LinkNumber(raw.link_number),
            left: raw.rtokens_left,
            rtokens: Bounded::from_iter_lossy(rtokens.iter().copied()),
        })
    }

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

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes; [`EmitError::Invalid`] if there are not as
    /// many rtokens as `left` asks for, which is two or the rest.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::AddLinkCont;
        if self.rtokens.len() != usize::from(self.left).min(2) {
            let reason = "contradicts the rtokens there are";
            return Err(invalid(KIND.kind(), "rtokens left", reason));
        }
        let raw = raw::AddLinkCont {
            link_number: self.link.0,
            rtokens_left: self.left,
            reserved_6: [0; 2],
        };
        let (flags, reason) = (self.step.flag(), RejectReason::NONE);
        let body = [raw.as_bytes(), self.rtokens.as_slice().as_bytes()];
        emit(KIND, Dialect::V1, flags, reason, &body, buffer)
    }
}
