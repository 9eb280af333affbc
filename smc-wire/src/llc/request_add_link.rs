//! REQUEST ADD LINK: a v2 client asks for another link (SMC-R v2).

use zerocopy::IntoBytes;

use super::header::{HEADER_LEN, REJECTED, RESPONSE, emit_reason};
use super::{
    ByteOrder, Dialect, Header, MESSAGE_LEN, MessageType, RejectReason, Step, rtoken::list,
};
use crate::layout::Show::Reserved;
use crate::layout::{DEC, Layout, layouts};
use crate::types::RoceGid;
use crate::writer::wire_count;
use crate::{Bounded, DecodeError, EmitError};

/// Contents of REQUEST ADD LINK; v2 only.
///
/// The number of received GIDs is bounded by the received size, so that a wrong count never makes
/// an error. At most eight are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestAddLink {
    /// Byte order of the length field.
    pub order: ByteOrder,
    /// Request or response.
    pub step: RequestAddLinkStep,
}

layouts! {
    /// Fixed part of a message; GIDs follow.
    pub(crate) struct GidCount: 24 {
        reserved_4: [u8; 20] => Reserved,
        gid_count: u8 => DEC,
        reserved_25: [u8; 3] => Reserved,
    }
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
    /// Of the server, 44 bytes: no link will be added, whatever the fields contain.
    Response {
        /// Flag bit 0x40; Linux leaves it out.
        rejected: bool,
        /// Why; Linux sends none.
        reason: RejectReason,
    },
}

impl RequestAddLink {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<GidCount>(bytes)?;
        let step = match header.step() {
            Step::Request => {
                let gids: &[RoceGid] = list(rest, raw.gid_count.into());
                RequestAddLinkStep::Request {
                    gids: Bounded::from_iter_lossy(gids.iter().copied()),
                }
            }
            Step::Response => RequestAddLinkStep::Response {
                rejected: header.has(REJECTED),
                reason: header.reason(),
            },
        };
        let order = header.dialect().order();
        Ok(Self { order, step })
    }

    /// Bytes the message takes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match &self.step {
            RequestAddLinkStep::Request { gids } => size_of_val(gids.as_slice())
                .saturating_add(HEADER_LEN)
                .saturating_add(GidCount::LEN)
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
        let (flags, reason, gids) = match &self.step {
            RequestAddLinkStep::Request { gids } => (0, RejectReason::NONE, gids.as_slice()),
            RequestAddLinkStep::Response { rejected, reason } => {
                let flags = RESPONSE.mask | REJECTED.when(*rejected);
                (flags, *reason, &[][..])
            }
        };
        let raw = GidCount {
            reserved_4: [0; 20],
            gid_count: wire_count(gids.len()),
            reserved_25: [0; 3],
        };
        let (kind, dialect) = (MessageType::RequestAddLink, Dialect::V2(self.order));
        let body = [raw.as_bytes(), gids.as_bytes()];
        emit_reason(kind, dialect, (flags, reason), &body, buffer)
    }
}
