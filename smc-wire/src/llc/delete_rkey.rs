//! DELETE RKEY: RMBs that are no longer in use (RFC 7609 appendix A.3; longer lists in v2).

use core::fmt;

use zerocopy::IntoBytes;

use super::header::{NEGATIVE, emit_header};
use super::message::{emit_parts, layout};
use super::{Dialect, Header, MAX_RTOKENS, MESSAGE_LEN, MessageType, Step, WireRkey, raw};
use crate::{DecodeError, DecodeErrorKind, EmitError};

/// Offset of the first rkey.
const RKEYS_AT: usize = 8;
/// Most rkeys in v1.
const MAX_V1: usize = 8;

/// A received DELETE RKEY.
///
/// Malformed, and to be dropped: a v1 message that states more than eight rkeys. In v2 the list is
/// bounded by the received size.
#[derive(Debug, Clone, Copy)]
pub struct DeleteRkeyView<'a> {
    header: Header,
    raw: &'a raw::DeleteRkey,
    list: &'a [u8],
}

impl<'a> DeleteRkeyView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let raw: &raw::DeleteRkey = layout(MessageType::DeleteRkey, bytes)?;
        let count = usize::from(raw.count);
        if !header.dialect().is_v2() && count > MAX_V1 {
            let cause = DecodeErrorKind::TooMany {
                max: MAX_V1,
                got: count,
            };
            return Err(DecodeError::new(
                MessageType::DeleteRkey.kind(),
                "rkey count",
                4,
                cause,
            ));
        }
        let list = bytes.get(RKEYS_AT..).unwrap_or_default();
        Ok(Self { header, raw, list })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The number of rkeys that the message states.
    #[must_use]
    pub const fn stated_count(&self) -> u8 {
        self.raw.count
    }

    /// The rkeys listed, as valid on the link that carried the message.
    ///
    /// In a v2 response Linux sends zeros here; other peers may list those that failed.
    #[must_use]
    pub fn rkeys(&self) -> &'a [WireRkey] {
        raw::list(self.list, self.raw.count.into())
    }

    /// The contents without reserved fields and unused entries.
    #[must_use]
    pub fn to_repr(&self) -> DeleteRkey<'a> {
        let dialect = self.header.dialect();
        DeleteRkey {
            dialect,
            step: self.header.step(),
            negative: self.header.has(NEGATIVE),
            errors: if dialect.is_v2() {
                DeleteRkeyErrors::Count(self.raw.errors)
            } else {
                DeleteRkeyErrors::Mask(RkeyMask(self.raw.errors))
            },
            rkeys: self.rkeys(),
        }
    }
}

/// Contents of DELETE RKEY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteRkey<'a> {
    /// Version and byte order.
    pub dialect: Dialect,
    /// Request or response.
    pub step: Step,
    /// Response: some of the rkeys were not known.
    pub negative: bool,
    /// Response: which or how many of them. [`DeleteRkeyErrors::none`] otherwise.
    pub errors: DeleteRkeyErrors,
    /// The rkeys on the link that carries the message: up to 8 in v1, up to 255 in v2.
    pub rkeys: &'a [WireRkey],
}

impl<'a> DeleteRkey<'a> {
    /// A request.
    #[must_use]
    pub const fn request(dialect: Dialect, rkeys: &'a [WireRkey]) -> Self {
        let errors = DeleteRkeyErrors::none(dialect);
        Self {
            dialect,
            step: Step::Request,
            negative: false,
            errors,
            rkeys,
        }
    }

    /// The response to this request, given the positions of the rkeys that were not known.
    #[must_use]
    pub const fn response(self, unknown: DeleteRkeyErrors) -> Self {
        Self {
            step: Step::Response,
            negative: !unknown.is_none(),
            errors: unknown,
            ..self
        }
    }

    /// Bytes the message takes: 44, or 8 and 4 for each rkey if that is more.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        size_of_val(self.rkeys)
            .saturating_add(RKEYS_AT)
            .max(MESSAGE_LEN)
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below [`encoded_len`](Self::encoded_len);
    /// [`EmitError::Invalid`] for more rkeys than the version allows and for errors in the form of
    /// the other version.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::DeleteRkey;
        /// Brings a message with few rkeys to the least size.
        const PADDING: [u8; MESSAGE_LEN] = [0; MESSAGE_LEN];
        let invalid = |field, reason| EmitError::Invalid {
            message: KIND.kind(),
            field,
            reason,
        };
        let (max, errors) = match (self.dialect, self.errors) {
            (Dialect::V1, DeleteRkeyErrors::Mask(RkeyMask(mask))) => (MAX_V1, mask),
            (Dialect::V2(_), DeleteRkeyErrors::Count(count)) => (MAX_RTOKENS, count),
            _ => return Err(invalid("errors", "have the form of the other version")),
        };
        let count = match u8::try_from(self.rkeys.len()) {
            Ok(count) if self.rkeys.len() <= max => count,
            _ => return Err(invalid("rkeys", "more than the version allows")),
        };
        let negative = if self.negative { NEGATIVE } else { 0 };
        let len = self.encoded_len();
        let header = emit_header(KIND, self.dialect, self.step.flag() | negative, 0, len)?;
        let list = self.rkeys.as_bytes();
        let used = RKEYS_AT.saturating_add(list.len());
        let padding = PADDING.get(used..).unwrap_or_default();
        let parts = [header.as_bytes(), &[count, errors, 0, 0], list, padding];
        emit_parts(KIND.kind(), buffer, &parts)
    }
}

/// What byte 5 of a DELETE RKEY response says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "one form per version")]
pub enum DeleteRkeyErrors {
    /// v1: which rkeys were not known.
    Mask(RkeyMask),
    /// v2: how many were not known.
    Count(u8),
}

impl DeleteRkeyErrors {
    /// Nothing failed, in the form of a version.
    #[must_use]
    pub const fn none(dialect: Dialect) -> Self {
        if dialect.is_v2() {
            Self::Count(0)
        } else {
            Self::Mask(RkeyMask(0))
        }
    }

    /// In the form of a version, from one answer per rkey in the order of the request: was it
    /// known?
    #[must_use]
    pub fn from_known(dialect: Dialect, known: impl IntoIterator<Item = bool>) -> Self {
        let known = known.into_iter();
        if dialect.is_v2() {
            let unknown = known.filter(|known| !known).count();
            return Self::Count(u8::try_from(unknown).unwrap_or(u8::MAX));
        }
        let mut mask = RkeyMask::default();
        for (at, known) in known.enumerate() {
            if !known {
                mask.insert(at);
            }
        }
        Self::Mask(mask)
    }

    /// True if nothing failed.
    #[must_use]
    pub const fn is_none(self) -> bool {
        matches!(self, Self::Mask(RkeyMask(0)) | Self::Count(0))
    }

    /// How many rkeys were not known.
    #[must_use]
    pub fn count(self) -> usize {
        match self {
            Self::Mask(mask) => mask.iter().count(),
            Self::Count(count) => usize::from(count),
        }
    }
}

/// Positions of up to eight rkeys of a DELETE RKEY, the first one in the most significant bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RkeyMask(pub u8);

impl RkeyMask {
    /// Adds the rkey at a position; positions past the eighth have no bit and are ignored.
    pub fn insert(&mut self, at: usize) {
        self.0 |= Self::bit(at);
    }

    /// True if the rkey at this position is marked.
    #[must_use]
    pub fn contains(self, at: usize) -> bool {
        self.0 & Self::bit(at) != 0
    }

    /// The positions marked, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        (0..MAX_V1).filter(move |at| self.contains(*at))
    }

    fn bit(at: usize) -> u8 {
        u32::try_from(at)
            .ok()
            .and_then(|at| 0x80_u8.checked_shr(at))
            .unwrap_or(0)
    }
}

impl fmt::Display for RkeyMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#04x}", self.0)
    }
}
