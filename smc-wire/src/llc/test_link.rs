//! TEST LINK: checks whether the peer answers (RFC 7609 appendix A.3).

use zerocopy::IntoBytes;

use super::header::emit;
use super::{Dialect, Header, MessageType, Step};
use crate::layout::Show::Reserved;
use crate::layout::part;
use crate::{DecodeError, EmitError};

part! {
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
    }
    40 bytes {
        /// Chosen by the requester; Linux sends zeros and does not compare them.
        pub user_data: [u8; 16],
        /// Zero in a request; returned as received.
        pub reserved as "reserved_20": [u8; 24] => Reserved,
    }
}

impl TestLink {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, _) = header.body::<Self>(bytes)?;
        Ok(Self::from_raw(raw, header.dialect(), header.step()))
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
        const KIND: MessageType = MessageType::TestLink;
        let raw = self.raw();
        emit(
            KIND,
            self.dialect,
            self.step.flag(),
            &[raw.as_bytes()],
            buffer,
        )
    }
}
