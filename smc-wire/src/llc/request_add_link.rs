//! REQUEST ADD LINK: a v2 client asks for another link (SMC-R v2).

use zerocopy::IntoBytes;

use super::header::{REJECTED, RESPONSE, emit_header};
use super::message::{emit_parts, layout};
use super::{ByteOrder, Dialect, Header, MESSAGE_LEN, MessageType, RejectReason, Step, raw};
use crate::types::RoceGid;
use crate::{Bounded, DecodeError, EmitError};

/// A received REQUEST ADD LINK.
///
/// The number of GIDs is bounded by the received size, so that a wrong count never makes an error.
#[derive(Debug, Clone, Copy)]
pub struct RequestAddLinkView<'a> {
    header: Header,
    raw: &'a raw::RequestAddLink,
    rest: &'a [u8],
}

impl<'a> RequestAddLinkView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let raw: &raw::RequestAddLink = layout(MessageType::RequestAddLink, bytes)?;
        let rest = bytes
            .get(size_of::<raw::RequestAddLink>()..)
            .unwrap_or_default();
        Ok(Self { header, raw, rest })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The number of GIDs that the message states, which may exceed those that are there.
    #[must_use]
    pub const fn stated_count(&self) -> u8 {
        self.raw.count
    }

    /// The client's GIDs, that of the present link first.
    #[must_use]
    pub fn gids(&self) -> &'a [RoceGid] {
        raw::list(self.rest, self.raw.count.into())
    }

    /// The contents without reserved fields; at most eight GIDs are taken.
    #[must_use]
    pub fn to_repr(&self) -> RequestAddLink {
        let step = match self.header.step() {
            Step::Request => RequestAddLinkStep::Request {
                gids: Bounded::from_iter_lossy(self.gids().iter().copied()),
            },
            Step::Response => RequestAddLinkStep::Response {
                rejected: self.header.has(REJECTED),
                reason: RejectReason::from_low_nibble(self.header.reason()),
            },
        };
        RequestAddLink {
            order: self.header.dialect().order(),
            step,
        }
    }
}

/// Contents of REQUEST ADD LINK; v2 only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestAddLink {
    /// Byte order of the length field.
    pub order: ByteOrder,
    /// Request or response.
    pub step: RequestAddLinkStep,
}

/// The two forms of REQUEST ADD LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "one bit on the wire")]
pub enum RequestAddLinkStep {
    /// Of the client, 28 bytes and 16 for each GID.
    Request {
        /// RoCEv2 GIDs of the client, that of the present link first; at least one.
        gids: Bounded<RoceGid, 8>,
    },
    /// Of the server, 44 bytes: no link will be added, whatever the fields say.
    Response {
        /// Flag bit 0x40; Linux leaves it out.
        rejected: bool,
        /// Why; Linux sends none.
        reason: RejectReason,
    },
}

impl RequestAddLink {
    /// Bytes the message takes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match &self.step {
            RequestAddLinkStep::Request { gids } => size_of_val(gids.as_slice())
                .saturating_add(size_of::<raw::RequestAddLink>())
                .max(MESSAGE_LEN),
            RequestAddLinkStep::Response { .. } => MESSAGE_LEN,
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below [`encoded_len`](Self::encoded_len).
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::RequestAddLink;
        /// Brings a message without GIDs to the least size.
        const PADDING: [u8; 16] = [0; 16];
        let (flags, reason, gids) = match &self.step {
            RequestAddLinkStep::Request { gids } => (0, 0, gids.as_slice()),
            RequestAddLinkStep::Response { rejected, reason } => {
                let rejected = if *rejected { REJECTED } else { 0 };
                (RESPONSE | rejected, reason.code(), [].as_slice())
            }
        };
        let dialect = Dialect::V2(self.order);
        let head = raw::RequestAddLink {
            header: emit_header(KIND, dialect, flags, reason, self.encoded_len())?,
            reserved: [0; 20],
            count: u8::try_from(gids.len()).unwrap_or(u8::MAX),
            reserved2: [0; 3],
        };
        let body = if gids.is_empty() {
            PADDING.as_slice()
        } else {
            gids.as_bytes()
        };
        emit_parts(KIND.kind(), buffer, &[head.as_bytes(), body])
    }
}
