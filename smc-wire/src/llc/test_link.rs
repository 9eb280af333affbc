//! TEST LINK: checks whether the peer answers (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::emit;
use super::{Dialect, Header, MessageType, RejectReason, Step, raw};
use crate::{DecodeError, EmitError};

/// Contents of TEST LINK.
///
/// A response is the request with another [`step`](Self::step), reserved bytes and byte order
/// included, because the protocol asks for the whole message to be returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TestLink {
    /// Version and byte order; those of the requester in a response.
    pub dialect: Dialect,
    /// Request or response.
    pub step: Step,
    /// Chosen by the requester; Linux sends zeros and does not compare them.
    pub user_data: [u8; 16],
    /// Zero in a request; returned as received.
    pub reserved: [u8; 24],
}

impl TestLink {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, _) = header.body::<raw::TestLink>(bytes)?;
        Ok(Self {
            dialect: header.dialect(),
            step: header.step(),
            user_data: raw.user_data,
            reserved: raw.reserved_20,
        })
    }

    /// A request.
    #[must_use]
    pub const fn request(dialect: Dialect, user_data: [u8; 16]) -> Self {
        Self {
            dialect,
            step: Step::Request,
            user_data,
            reserved: [0; 24],
        }
    }

    /// The response to this request.
    #[must_use]
    pub const fn response(self) -> Self {
        Self {
            step: Step::Response,
            ..self
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let raw = raw::TestLink {
            user_data: self.user_data,
            reserved_20: self.reserved,
        };
        let (flags, reason) = (self.step.flag(), RejectReason::NONE);
        let body = [raw.as_bytes()];
        emit(
            MessageType::TestLink,
            self.dialect,
            flags,
            reason,
            &body,
            buffer,
        )
    }
}
