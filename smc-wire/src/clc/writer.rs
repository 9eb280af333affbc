//! Writing a message piece by piece.

use zerocopy::{Immutable, IntoBytes};

use crate::error::{EmitError, MessageKind};

/// Appends wire structs to a caller's buffer.
pub(super) struct Writer<'a> {
    message: MessageKind,
    needed: usize,
    got: usize,
    rest: &'a mut [u8],
}

impl<'a> Writer<'a> {
    /// Starts a message of `needed` bytes, which must fit.
    pub(super) fn new(
        message: MessageKind,
        needed: usize,
        buffer: &'a mut [u8],
    ) -> Result<Self, EmitError> {
        let got = buffer.len();
        match buffer.get_mut(..needed) {
            Some(rest) => Ok(Self {
                message,
                needed,
                got,
                rest,
            }),
            None => Err(EmitError::BufferTooSmall {
                message,
                needed,
                got,
            }),
        }
    }

    /// Appends the bytes of `value`.
    pub(super) fn put<T>(&mut self, value: &T) -> Result<(), EmitError>
    where
        T: IntoBytes + Immutable + ?Sized,
    {
        let bytes = value.as_bytes();
        let rest = core::mem::take(&mut self.rest);
        let Some((head, tail)) = rest.split_at_mut_checked(bytes.len()) else {
            let Self {
                message,
                needed,
                got,
                ..
            } = *self;
            return Err(EmitError::BufferTooSmall {
                message,
                needed,
                got,
            });
        };
        head.copy_from_slice(bytes);
        self.rest = tail;
        Ok(())
    }
}

/// The error for fields that contradict each other.
pub(super) const fn invalid(
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
pub(super) fn wire_length(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}
