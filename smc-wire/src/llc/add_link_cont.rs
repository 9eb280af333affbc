//! ADD LINK CONT: the RMBs that a new link shall serve, in v1 (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::emit;
use super::{Dialect, Header, MessageType, Rtoken, Step, WireRtoken, rtoken::list};
use crate::layout::part;
use crate::types::LinkNumber;
use crate::writer::invalid;
use crate::{Bounded, DecodeError, EmitError};

part! {
    /// Contents of ADD LINK CONT, v1 only: the RMBs that the new link shall serve, two at a time.
    ///
    /// Server and client take turns until both have stated that nothing is left, at least once
    /// each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AddLinkCont {
        /// Request from the server, response from the client.
        pub step: Step,
    }
    4 bytes {
        /// The new link.
        pub link as "link_number": LinkNumber,
        /// Rtokens still to be sent, those of this message included.
        pub left as "rtokens_left": u8,
        zero reserved_6: [u8; 2],
    }
    then {
        /// The first of them.
        pub rtokens: Bounded<WireRtoken, 2>,
    }
}

impl AddLinkCont {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<Self>(bytes)?;
        let rtokens = list(rest, raw.left.into()).iter().copied();
        let rtokens = Bounded::from_iter_lossy(rtokens);
        Ok(Self::from_raw(raw, header.step(), rtokens))
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
        let raw = self.raw();
        let body = [raw.as_bytes(), self.rtokens.as_slice().as_bytes()];
        emit(KIND, Dialect::V1, self.step.flag(), &body, buffer)
    }
}
