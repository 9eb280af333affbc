//! The generic format: number, header and payload of extensions
//! (docs/spec/extensions.md#generic-format).

use core::fmt;

use zerocopy::network_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::ExtensionType;
use crate::clc::header::{LENGTH_AT, TRAILER_LEN};
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::writer::Writer;

/// Reserved bytes at the start of a header, which hold legacy fields where a region has a header.
pub(crate) const RESERVED_LEN: usize = 4;

/// Variable-length integers: one byte up to 127, two bytes up to 32767, both legal for any value
/// that they can hold.
pub(crate) mod varint {
    use super::{EmitError, U16, Writer};

    /// The largest value.
    pub(crate) const MAX: u16 = 0x7fff;
    /// The first bit of the form with two bytes.
    pub(crate) const LONG: u16 = 0x8000;

    /// The integer at the start of `bytes`, and what follows it.
    pub(crate) const fn split(bytes: &[u8]) -> Option<(u16, &[u8])> {
        match bytes {
            [value @ 0..=0x7f, rest @ ..] => Some((u16::from_be_bytes([0, *value]), rest)),
            [high, low, rest @ ..] => Some((u16::from_be_bytes([*high, *low]) & MAX, rest)),
            _ => None,
        }
    }

    /// Length in bytes of the shorter form.
    pub(crate) const fn encoded_len(value: u16) -> usize {
        if value < 0x80 { 1 } else { 2 }
    }

    /// Writes the shorter form of a value up to [`MAX`].
    pub(crate) fn put(value: u16, out: &mut Writer<'_>) -> Result<(), EmitError> {
        match u8::try_from(value) {
            Ok(short @ 0..=0x7f) => out.put(&short),
            _ => out.put(&U16::new(value | LONG)),
        }
    }
}

/// One header with its payload.
#[derive(Clone, Copy)]
pub(super) struct Extension<'a> {
    pub(super) kind: ExtensionType,
    pub(super) payload: &'a [u8],
}

/// What the bytes of an extension end before, and how many bytes of the extension it takes.
struct Incomplete {
    field: &'static str,
    offset: usize,
    len: usize,
}

impl<'a> Extension<'a> {
    /// The extension at the start of `bytes`, and what follows it.
    pub(super) fn split(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        Self::try_split(bytes).ok()
    }

    fn try_split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Incomplete> {
        const SHORTEST: usize = RESERVED_LEN + 2;
        let header = bytes.get(RESERVED_LEN..).unwrap_or_default();
        let integers = varint::split(header)
            .and_then(|(kind, rest)| varint::split(rest).map(|(len, rest)| (kind, len, rest)));
        let (kind, len, rest) = integers.ok_or_else(|| Incomplete {
            field: "extension header",
            offset: 0,
            len: SHORTEST.max(bytes.len().saturating_add(1)),
        })?;
        let len = usize::from(len);
        let Some((payload, rest)) = rest.split_at_checked(len) else {
            let (field, offset) = ("extension payload", bytes.len().saturating_sub(rest.len()));
            return Err(Incomplete { field, offset, len });
        };
        let kind = ExtensionType::new(kind);
        Ok((Self { kind, payload }, rest))
    }
}

/// An extension with its continuations, and where its header is.
pub(super) struct Located<'a> {
    message: MessageKind,
    offset: usize,
    pub(super) kind: ExtensionType,
    pub(super) payload: ExtensionPayload<'a>,
}

impl Located<'_> {
    /// The payload as a value of fixed length.
    pub(super) fn read<T>(&self) -> Result<T, DecodeError>
    where
        T: FromBytes + IntoBytes + Immutable,
    {
        let mut value = T::new_zeroed();
        let (expected, got) = (size_of::<T>(), self.payload.len());
        if got != expected {
            return Err(self.error(DecodeErrorKind::Length { expected, got }));
        }
        let from = self.payload.pieces().flatten();
        for (to, from) in value.as_mut_bytes().iter_mut().zip(from) {
            *to = *from;
        }
        Ok(value)
    }

    /// The payload is not what the type has.
    pub(super) fn error(&self, kind: DecodeErrorKind) -> DecodeError {
        let field = self.kind.name().unwrap_or("extension");
        DecodeError::new(self.message, field, self.offset, kind)
    }

    /// The type is not legal there.
    pub(super) fn misplaced(&self, expected: &'static str) -> DecodeError {
        let (field, got) = ("extension type", self.kind.get());
        self.message.bad_value(field, self.offset, expected, got)
    }
}

/// Goes through the extensions at the end of a message.
#[derive(Clone, Copy)]
pub(super) struct Walk<'a> {
    message: MessageKind,
    /// Where the extensions end: at the trailer.
    limit: usize,
    rest: &'a [u8],
    /// Headers to come.
    left: usize,
}

impl<'a> Walk<'a> {
    /// `left` extensions from `start` of a message up to its trailer, which is at `limit`.
    pub(super) fn new(
        message: MessageKind,
        bytes: &'a [u8],
        (start, limit): (usize, usize),
        left: usize,
    ) -> Self {
        let rest = bytes.get(start..limit).unwrap_or_default();
        Self {
            message,
            limit,
            rest,
            left,
        }
    }

    /// The next extension that is no continuation, or `None` at the trailer.
    pub(super) fn next(&mut self) -> Result<Option<Located<'a>>, DecodeError> {
        let offset = self.limit.saturating_sub(self.rest.len());
        let Some(Extension { kind, payload }) = self.next_header()? else {
            return Ok(None);
        };
        let behind = self.rest;
        if kind != ExtensionType::PADDING {
            self.skip_continuations();
        }
        let continued = behind.len().saturating_sub(self.rest.len());
        let found = Located {
            message: self.message,
            offset,
            kind,
            payload: ExtensionPayload {
                first: payload,
                continued: behind.get(..continued).unwrap_or_default(),
            },
        };
        match kind {
            ExtensionType::CONTINUATION => Err(found.misplaced("what can be continued before it")),
            _ => Ok(Some(found)),
        }
    }

    /// Stops at an error too, which the next call gives.
    fn skip_continuations(&mut self) {
        let mut ahead = *self;
        while let Ok(Some(next)) = ahead.next_header() {
            if next.kind != ExtensionType::CONTINUATION {
                break;
            }
            *self = ahead;
        }
    }

    fn next_header(&mut self) -> Result<Option<Extension<'a>>, DecodeError> {
        let (message, limit) = (self.message, self.limit);
        let offset = limit.saturating_sub(self.rest.len());
        let Some(left) = self.left.checked_sub(1) else {
            return match self.rest {
                [] => Ok(None),
                _ => {
                    let [expected, got] = [offset, limit].map(|at| at.saturating_add(TRAILER_LEN));
                    Err(message.bad_length("length", LENGTH_AT, expected, got))
                }
            };
        };
        let (extension, rest) = Extension::try_split(self.rest).map_err(|incomplete| {
            let offset = offset.saturating_add(incomplete.offset);
            let end = offset.saturating_add(incomplete.len);
            let kind = DecodeErrorKind::OutOfBounds { end, limit };
            DecodeError::new(message, incomplete.field, offset, kind)
        })?;
        (self.left, self.rest) = (left, rest);
        Ok(Some(extension))
    }
}

/// The payload of an extension, in one piece for each header: the first one and its continuations.
///
/// Payloads with the same bytes are equal, whatever their pieces.
#[derive(Clone, Copy, Default)]
pub struct ExtensionPayload<'a> {
    first: &'a [u8],
    /// Continuations, complete.
    continued: &'a [u8],
}

impl<'a> ExtensionPayload<'a> {
    /// The bytes, piece by piece.
    pub fn pieces(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.continued;
        let continuations = core::iter::from_fn(move || {
            let (extension, behind) = Extension::split(rest)?;
            rest = behind;
            Some(extension.payload)
        });
        core::iter::once(self.first).chain(continuations)
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pieces()
            .fold(0, |len, piece| len.saturating_add(piece.len()))
    }

    /// True if there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<'a> From<&'a [u8]> for ExtensionPayload<'a> {
    /// In one piece.
    fn from(bytes: &'a [u8]) -> Self {
        let continued = &[];
        Self {
            first: bytes,
            continued,
        }
    }
}

impl PartialEq for ExtensionPayload<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.pieces().flatten().eq(other.pieces().flatten())
    }
}

impl Eq for ExtensionPayload<'_> {}

impl fmt::Debug for ExtensionPayload<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.pieces()).finish()
    }
}
