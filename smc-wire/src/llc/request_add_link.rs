//! REQUEST ADD LINK: a v2 client asks for another link (SMC-R v2).

use zerocopy::IntoBytes;

use super::header::{REJECTED, RESPONSE, emit_reason};
use super::{ByteOrder, Dialect, Header, MESSAGE_LEN, MessageType, RejectReason, Step, raw};
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
        let (raw, rest) = header.body::<raw::RequestAddLink>(bytes)?;
        let step = match header.step() {
            Step::Request => {
                let gids: &[RoceGid] = raw::list(rest, raw.gid_count.into());
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
                .saturating_add(size_of::<raw::Header>())
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
        let (flags, reason, gids) = match &self.step {
            RequestAddLinkStep::Request { gids } => (0, RejectReason::NONE, gids.as_slice()),
            RequestAddLinkStep::Response { rejected, reason } => {
                let flags = RESPONSE.mask | REJECTED.when(*rejected);
                (flags, *reason, &[][..])
            }
        };
        let raw = raw::RequestAddLink {
            reserved_4: [0; 20],
            gid_count: wire_count(gids.len()),
            reserved_25: [0; 3],
        };
        let (kind, dialect) = (MessageType::RequestAddLink, Dialect::V2(self.order));
        let body = [raw.as_bytes(), gids.as_bytes()];
        emit_reason(kind, dialect, (flags, reason), &body, buffer)
    }
}
