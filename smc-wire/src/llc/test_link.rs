//! TEST LINK: are you there? (RFC 7609 appendix A.3)

use zerocopy::IntoBytes;

use super::header::emit_header;
use super::message::{emit_parts, layout};
use super::{Dialect, Header, MESSAGE_LEN, MessageType, Step, raw};
use crate::{DecodeError, EmitError};

/// A received TEST LINK.
#[derive(Debug, Clone, Copy)]
pub struct TestLinkView<'a> {
    header: Header,
    raw: &'a raw::TestLink,
}

impl<'a> TestLinkView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            header,
            raw: layout(MessageType::TestLink, bytes)?,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The contents without reserved fields.
    #[must_use]
    pub const fn to_repr(&self) -> TestLink {
        TestLink {
            dialect: self.header.dialect(),
            step: self.header.step(),
            user_data: self.raw.user_data,
            reserved: self.raw.reserved,
        }
    }
}

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

    /// Bytes the message takes: 44.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        MESSAGE_LEN
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::TestLink;
        let raw = raw::TestLink {
            header: emit_header(KIND, self.dialect, self.step.flag(), 0, MESSAGE_LEN)?,
            user_data: self.user_data,
            reserved: self.reserved,
        };
        emit_parts(KIND.kind(), buffer, &[raw.as_bytes()])
    }
}
