//! DELETE LINK: takes down one link or the whole link group (RFC 7609 appendix A.3).

use core::fmt;

use zerocopy::IntoBytes;

use super::header::{ALL_LINKS, ORDERLY, emit_header};
use super::message::{emit_parts, layout};
use super::{Dialect, Header, MESSAGE_LEN, MessageType, Step, raw};
use crate::types::LinkNumber;
use crate::{DecodeError, EmitError};

/// A received DELETE LINK.
#[derive(Debug, Clone, Copy)]
pub struct DeleteLinkView<'a> {
    header: Header,
    raw: &'a raw::DeleteLink,
}

impl<'a> DeleteLinkView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            header,
            raw: layout(MessageType::DeleteLink, bytes)?,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The contents without reserved fields.
    #[must_use]
    pub const fn to_repr(&self) -> DeleteLink {
        DeleteLink {
            dialect: self.header.dialect(),
            step: self.header.step(),
            all: self.header.has(ALL_LINKS),
            orderly: self.header.has(ORDERLY),
            link: LinkNumber(self.raw.link),
            reason: DeleteLinkReason(self.raw.reason.get()),
        }
    }
}

/// Contents of DELETE LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteLink {
    /// Version and byte order.
    pub dialect: Dialect,
    /// Request or response.
    pub step: Step,
    /// The whole link group is terminated; nobody responds to that.
    pub all: bool,
    /// Connections have been moved away or are gone, nothing is lost.
    pub orderly: bool,
    /// The link to delete; [`LinkNumber::NONE`] together with [`all`](Self::all).
    pub link: LinkNumber,
    /// Why (request), or how it went (response).
    pub reason: DeleteLinkReason,
}

impl DeleteLink {
    /// A request to terminate the link group.
    #[must_use]
    pub const fn all(dialect: Dialect, orderly: bool, reason: DeleteLinkReason) -> Self {
        let (step, link) = (Step::Request, LinkNumber::NONE);
        Self {
            dialect,
            step,
            all: true,
            orderly,
            link,
            reason,
        }
    }

    /// The response to this request: [`DeleteLinkReason::DONE`] or
    /// [`DeleteLinkReason::UNKNOWN_LINK`], everything else as it came.
    #[must_use]
    pub const fn response(self, result: DeleteLinkReason) -> Self {
        Self {
            step: Step::Response,
            reason: result,
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
        const KIND: MessageType = MessageType::DeleteLink;
        let all = if self.all { ALL_LINKS } else { 0 };
        let orderly = if self.orderly { ORDERLY } else { 0 };
        let flags = self.step.flag() | all | orderly;
        let raw = raw::DeleteLink {
            header: emit_header(KIND, self.dialect, flags, 0, MESSAGE_LEN)?,
            link: self.link.0,
            reason: self.reason.0.into(),
            reserved: [0; 35],
        };
        emit_parts(KIND.kind(), buffer, &[raw.as_bytes()])
    }
}

/// Reason of a DELETE LINK request, result of a response; unknown values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeleteLinkReason(pub u32);

impl DeleteLinkReason {
    /// Response: done.
    pub const DONE: Self = Self(0);
    /// Request: the path is lost.
    pub const PATH_LOST: Self = Self(0x0001_0000);
    /// Request: the operator ends it.
    pub const OPERATOR: Self = Self(0x0002_0000);
    /// Request: the program ends it, for example an idle link group.
    pub const PROGRAM: Self = Self(0x0003_0000);
    /// Request: the peer violated the LLC protocol.
    pub const PROTOCOL_VIOLATION: Self = Self(0x0004_0000);
    /// Request: an asymmetric link is no longer needed.
    pub const ASYMMETRIC_UNNEEDED: Self = Self(0x0005_0000);
    /// Response: there is no link of that number.
    pub const UNKNOWN_LINK: Self = Self(0x0010_0000);
    /// Response: there is no such link group.
    pub const UNKNOWN_GROUP: Self = Self(0x0020_0000);

    /// What the value means, if it is one of those above.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::DONE => "done",
            Self::PATH_LOST => "path lost",
            Self::OPERATOR => "operator initiated termination",
            Self::PROGRAM => "program initiated termination",
            Self::PROTOCOL_VIOLATION => "LLC protocol violation",
            Self::ASYMMETRIC_UNNEEDED => "asymmetric link no longer needed",
            Self::UNKNOWN_LINK => "unknown link number",
            Self::UNKNOWN_GROUP => "unknown link group",
            _ => return None,
        })
    }
}

impl fmt::Display for DeleteLinkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#010x}", self.0)?;
        match self.name() {
            Some(name) => write!(f, " ({name})"),
            None => Ok(()),
        }
    }
}
