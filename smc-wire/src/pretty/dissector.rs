//! Position in the bytes of a message, and the visitor that gets its fields.

use zerocopy::FromBytes;

use super::{Group, Problem, Value, Visitor};
use crate::cdc::ByteOrder;
use crate::layout::{Bits, FieldType, Layout, Show, big_endian, hex_digits};
use crate::{DecodeError, DecodeErrorKind};

/// A position in a message; every step calls the visitor and returns `None` if the bytes end.
pub(super) struct Dissector<'a, 'v> {
    /// Everything, regardless of the limit.
    pub(super) bytes: &'a [u8],
    /// Where regions have to end, at most the number of bytes.
    limit: usize,
    pub(super) at: usize,
    index: Option<usize>,
    note: Option<&'static str>,
    missing: bool,
    /// Byte order of cursors and of unswapped counts, `None` if the message does not show it.
    pub(super) order: Option<ByteOrder>,
    visitor: &'v mut dyn Visitor,
}

impl<'a, 'v> Dissector<'a, 'v> {
    pub(super) fn new(bytes: &'a [u8], visitor: &'v mut dyn Visitor) -> Self {
        let limit = bytes.len();
        Self {
            bytes,
            limit,
            at: 0,
            index: None,
            note: None,
            missing: false,
            order: Some(ByteOrder::Big),
            visitor,
        }
    }

    /// Bytes up to the limit.
    pub(super) fn left(&self) -> usize {
        self.limit.saturating_sub(self.at)
    }

    /// Lets regions end earlier than the bytes do, or at their end again.
    pub(super) fn limit(&mut self, limit: usize) {
        self.limit = limit.min(self.bytes.len());
    }

    /// The next field or group is an element of a list.
    pub(super) fn element(&mut self, index: usize) -> &mut Self {
        self.index = Some(index);
        self
    }

    /// The next field carries a note.
    pub(super) fn note(&mut self, note: &'static str) -> &mut Self {
        self.note = Some(note);
        self
    }

    pub(super) fn problem(&mut self, problem: Problem) {
        self.visitor.problem(&problem);
    }

    /// Reports the error of a parser, unless it only repeats that bytes are missing.
    pub(super) fn verdict<T>(&mut self, result: Result<T, DecodeError>) {
        let Err(error) = result else { return };
        let repeats = self.missing && matches!(error.kind, DecodeErrorKind::Truncated { .. });
        if !repeats {
            self.problem(Problem::Rejected(error));
        }
    }

    /// Reports what is left as too much.
    pub(super) fn excess(&mut self) {
        let (offset, len) = (self.at, self.left());
        if len > 0 {
            self.problem(Problem::Excess { offset, len });
        }
    }

    /// Runs `inside` between `enter` and `leave`.
    pub(super) fn group<T>(
        &mut self,
        name: &'static str,
        inside: impl FnOnce(&mut Self) -> Option<T>,
    ) -> Option<T> {
        let index = self.index.take();
        self.visitor.enter(&Group {
            name,
            index,
            offset: self.at,
        });
        let result = inside(self);
        self.visitor.leave();
        result
    }

    /// Shows the fields of a layout, and gives it if all of it is there.
    pub(super) fn fields<T: Layout>(&mut self) -> Option<&'a T::Raw> {
        self.fields_from::<T>(self.at)
    }

    /// As [`fields`](Self::fields), for a layout that begins at `start` and whose fields before the
    /// present position were shown already.
    pub(super) fn fields_from<T: Layout>(&mut self, start: usize) -> Option<&'a T::Raw> {
        self.fields_until::<T>(start, T::LEN)?;
        T::Raw::ref_from_bytes(self.bytes.get(start..self.at)?).ok()
    }

    /// As [`fields_from`](Self::fields_from), for the first `len` bytes of the layout.
    pub(super) fn fields_until<T: Layout>(&mut self, start: usize, len: usize) -> Option<()> {
        for field in T::FIELDS.iter().take_while(|field| field.offset < len) {
            if start.saturating_add(field.offset) >= self.at {
                self.value(field.name, field.len, &field.show)?;
            }
        }
        Some(())
    }

    /// Shows the elements of a list, a group each.
    pub(super) fn elements<T: Layout>(&mut self, name: &'static str, count: usize) -> Option<()> {
        (0..count).try_for_each(|index| {
            self.element(index)
                .group(name, |w| w.fields::<T>().map(drop))
        })
    }

    /// Shows the elements of a list, a field each.
    pub(super) fn values<T: FieldType>(&mut self, name: &'static str, count: usize) -> Option<()> {
        let len = size_of::<T::Raw>();
        (0..count).try_for_each(|index| self.element(index).value(name, len, &T::SHOW).map(drop))
    }

    /// Shows one field, and gives its bytes.
    pub(super) fn value(
        &mut self,
        name: &'static str,
        len: usize,
        show: &Show,
    ) -> Option<&'a [u8]> {
        let bytes = self.take(name, len)?;
        let value = match show {
            Show::Reserved if bytes.iter().all(|byte| *byte == 0) => return Some(bytes),
            Show::Reserved => {
                self.note(RESERVED);
                Value::Bytes(bytes)
            }
            Show::Value(value) => value(bytes),
            Show::Code(name) => {
                let value = big_endian(bytes);
                Value::Code {
                    value,
                    digits: hex_digits(len),
                    name: name(value),
                }
            }
            Show::Bits(bits) => {
                self.bits(bytes, bits);
                return Some(bytes);
            }
            Show::Cursor => Value::Cursor(self.order?.cursor(bytes.try_into().ok()?)),
            Show::Unswapped => {
                if self.order == Some(ByteOrder::Little) {
                    self.note("little-endian");
                }
                match (self.order, bytes.try_into()) {
                    (Some(order), Ok(count)) => Value::Unsigned(order.u16(count).into()),
                    _ => {
                        self.note("byte order unknown");
                        Value::Bytes(bytes)
                    }
                }
            }
        };
        self.report(name, bytes, None, value);
        Some(bytes)
    }

    /// Takes `len` bytes; the visitor is called only if they are not there.
    pub(super) fn take(&mut self, name: &'static str, len: usize) -> Option<&'a [u8]> {
        let end = self.at.saturating_add(len);
        match self.bytes.get(self.at..end) {
            Some(bytes) if end <= self.limit => {
                self.at = end;
                Some(bytes)
            }
            _ => {
                self.missing = true;
                (self.index, self.note) = (None, None);
                let (offset, available) = (self.at, self.left());
                self.problem(Problem::Missing {
                    field: name,
                    offset,
                    needed: len,
                    available,
                });
                None
            }
        }
    }

    /// Reports the bytes just taken, or those bits of the byte just taken, as a field.
    fn report(&mut self, name: &'static str, bytes: &'a [u8], mask: Option<u8>, value: Value<'a>) {
        let offset = self.at.saturating_sub(bytes.len());
        let (index, note) = (self.index.take(), self.note.take());
        self.visitor.field(&super::Field {
            name,
            index,
            offset,
            bytes,
            mask,
            value,
            note,
        });
    }

    /// Bytes shown as they are; no bytes are no field.
    pub(super) fn raw(&mut self, name: &'static str, len: usize) -> Option<()> {
        let bytes = self.take(name, len)?;
        if bytes.is_empty() {
            (self.index, self.note) = (None, None);
        } else {
            self.report(name, bytes, None, Value::Bytes(bytes));
        }
        Some(())
    }

    /// A reserved field, reported only if it is not zero.
    pub(super) fn reserved(&mut self, name: &'static str, len: usize) -> Option<()> {
        self.value(name, len, &Show::Reserved).map(drop)
    }

    /// Shows fields of the byte just taken, and gives it.
    pub(super) fn bits(&mut self, taken: &'a [u8], bits: &[Bits]) -> Option<u8> {
        let byte = *taken.first()?;
        for &Bits { name, mask, show } in bits {
            let value = byte_field(byte, mask);
            let value = match show {
                Some(show) => show(value),
                None if value == 0 => continue,
                None => {
                    self.note(RESERVED);
                    let (value, digits) = (value.into(), 2);
                    Value::Hex { value, digits }
                }
            };
            self.report(name, taken, Some(mask), value);
        }
        Some(byte)
    }
}

const RESERVED: &str = "reserved, not zero";

/// The bits under a mask, moved down.
fn byte_field(byte: u8, mask: u8) -> u8 {
    (byte & mask)
        .checked_shr(mask.trailing_zeros())
        .unwrap_or(0)
}
