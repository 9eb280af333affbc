//! Writing a message piece by piece.

use zerocopy::{Immutable, IntoBytes};

use crate::error::{EmitError, MessageKind};

/// Appends parts of a message to a caller's buffer.
pub(crate) struct Writer<'a> {
    rest: &'a mut [u8],
    /// The error if a part does not fit.
    too_small: EmitError,
}

impl<'a> Writer<'a> {
    /// Starts a message of `needed` bytes, which must fit.
    pub(crate) fn new(
        message: MessageKind,
        needed: usize,
        buffer: &'a mut [u8],
    ) -> Result<Self, EmitError> {
        let too_small = EmitError::BufferTooSmall {
            message,
            needed,
            got: buffer.len(),
        };
        let rest = buffer.get_mut(..needed).ok_or(too_small)?;
        Ok(Self { rest, too_small })
    }

    /// Appends the bytes of `value`.
    pub(crate) fn put<T>(&mut self, value: &T) -> Result<(), EmitError>
    where
        T: IntoBytes + Immutable + ?Sized,
    {
        let bytes = value.as_bytes();
        let (to, rest) = core::mem::take(&mut self.rest)
            .split_at_mut_checked(bytes.len())
            .ok_or(self.too_small)?;
        to.copy_from_slice(bytes);
        self.rest = rest;
        Ok(())
    }

    /// Writes zeros up to the end of the message.
    pub(crate) fn pad(self) {
        self.rest.fill(0);
    }
}

/// The error for fields that contradict each other.
pub(crate) const fn invalid(
    message: MessageKind,
    field: &'static str,
    reason: &'static str,
) -> EmitError {
    EmitError::Invalid {
        message,
        field,
        reason,
    }
}

/// The length of a message as its header carries it.
///
/// Lengths follow from bounded lists and stay far below the limit of the field.
pub(crate) fn wire_length(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

/// A count field of a bounded list.
pub(crate) fn wire_count(count: usize) -> u8 {
    u8::try_from(count).unwrap_or(u8::MAX)
}
