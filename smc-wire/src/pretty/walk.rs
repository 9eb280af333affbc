//! The walker: a position in the bytes and a visitor to tell about it.

use core::net::{Ipv4Addr, Ipv6Addr};

use super::{Field, Group, Problem, Value, Visitor};
use crate::types::{Eid, Mac, PeerId, RoceGid};
use crate::{DecodeError, DecodeErrorKind};

/// A position in a message; every step tells the visitor and returns `None` if the bytes end.
pub(super) struct Walker<'a, 'v> {
    bytes: &'a [u8],
    /// Where regions have to end, at most the number of bytes.
    limit: usize,
    at: usize,
    index: Option<usize>,
    note: Option<&'static str>,
    missing: bool,
    visitor: &'v mut dyn Visitor,
}

impl<'a, 'v> Walker<'a, 'v> {
    pub(super) fn new(bytes: &'a [u8], visitor: &'v mut dyn Visitor) -> Self {
        let limit = bytes.len();
        Self {
            bytes,
            limit,
            at: 0,
            index: None,
            note: None,
            missing: false,
            visitor,
        }
    }

    /// Everything, regardless of the limit.
    pub(super) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// Bytes up to the limit.
    pub(super) fn left(&self) -> usize {
        self.limit.saturating_sub(self.at)
    }

    pub(super) fn seek(&mut self, at: usize) {
        self.at = at;
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

    /// Reports what a parser says, unless it only repeats that bytes are missing.
    pub(super) fn verdict<T>(&mut self, result: Result<T, DecodeError>) {
        let Err(error) = result else { return };
        let repeats = self.missing && matches!(error.kind, DecodeErrorKind::Truncated { .. });
        if !repeats {
            self.problem(Problem::Rejected(error));
        }
    }

    /// Runs `inside` between `enter` and `leave`.
    pub(super) fn group(
        &mut self,
        name: &'static str,
        inside: impl FnOnce(&mut Self) -> Option<()>,
    ) -> Option<()> {
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

    /// Takes `len` bytes without telling the visitor, except if they are not there.
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

    /// As [`take`](Self::take) for a known number of bytes.
    pub(super) fn array<const N: usize>(&mut self, name: &'static str) -> Option<[u8; N]> {
        self.take(name, N)?.try_into().ok()
    }

    /// Tells the visitor of a field that ends at the present position.
    fn tell(&mut self, name: &'static str, len: usize, value: Value<'a>) {
        let offset = self.at.saturating_sub(len);
        self.tell_at(name, offset, len, None, value);
    }

    fn tell_at(
        &mut self,
        name: &'static str,
        offset: usize,
        len: usize,
        mask: Option<u8>,
        value: Value<'a>,
    ) {
        let bytes = self
            .bytes
            .get(offset..offset.saturating_add(len))
            .unwrap_or_default();
        let (index, note) = (self.index.take(), self.note.take());
        self.visitor.field(&Field {
            name,
            index,
            offset,
            bytes,
            mask,
            value,
            note,
        });
    }

    /// A field of `N` bytes whose value is made from them.
    pub(super) fn with<const N: usize>(
        &mut self,
        name: &'static str,
        value: impl FnOnce([u8; N]) -> Value<'a>,
    ) -> Option<[u8; N]> {
        let array = self.array(name)?;
        self.tell(name, N, value(array));
        Some(array)
    }

    /// A big-endian number of up to eight bytes; `show` makes the value from it.
    pub(super) fn number<const N: usize>(
        &mut self,
        name: &'static str,
        show: impl FnOnce(u64) -> Value<'a>,
    ) -> Option<u64> {
        let value = be(self.array::<N>(name)?);
        self.tell(name, N, show(value));
        Some(value)
    }

    /// A big-endian number shown in decimal.
    pub(super) fn unsigned<const N: usize>(&mut self, name: &'static str) -> Option<u64> {
        self.number::<N>(name, Value::Unsigned)
    }

    /// A big-endian number shown in hex.
    pub(super) fn hex<const N: usize>(&mut self, name: &'static str) -> Option<u64> {
        let digits = u8::try_from(N).unwrap_or(u8::MAX).saturating_mul(2);
        self.number::<N>(name, |value| Value::Hex { value, digits })
    }

    pub(super) fn mac(&mut self, name: &'static str) -> Option<[u8; 6]> {
        self.with(name, |bytes| Value::Mac(Mac::new(bytes)))
    }

    pub(super) fn gid(&mut self, name: &'static str) -> Option<[u8; 16]> {
        self.with(name, |bytes| Value::Gid(RoceGid::new(bytes)))
    }

    pub(super) fn eid(&mut self, name: &'static str) -> Option<[u8; 32]> {
        self.with(name, |bytes| Value::Eid(Eid::from_bytes(bytes)))
    }

    pub(super) fn peer_id(&mut self, name: &'static str) -> Option<[u8; 8]> {
        self.with(name, |bytes| Value::PeerId(PeerId::from_bytes(bytes)))
    }

    pub(super) fn ipv4(&mut self, name: &'static str) -> Option<[u8; 4]> {
        self.with(name, |bytes| Value::Ipv4(Ipv4Addr::from(bytes)))
    }

    pub(super) fn ipv6(&mut self, name: &'static str) -> Option<[u8; 16]> {
        self.with(name, |bytes| Value::Ipv6(Ipv6Addr::from(bytes)))
    }

    /// Bytes shown as they are; nothing is told of no bytes.
    pub(super) fn raw(&mut self, name: &'static str, len: usize) -> Option<()> {
        let bytes = self.take(name, len)?;
        if bytes.is_empty() {
            (self.index, self.note) = (None, None);
        } else {
            self.tell(name, len, Value::Bytes(bytes));
        }
        Some(())
    }

    /// Padded text.
    pub(super) fn text(&mut self, name: &'static str, len: usize) -> Option<&'a [u8]> {
        let bytes = self.take(name, len)?;
        self.tell(name, len, Value::Text(bytes));
        Some(bytes)
    }

    /// A reserved field, told only if it is not zero.
    pub(super) fn reserved(&mut self, name: &'static str, len: usize) -> Option<()> {
        let bytes = self.take(name, len)?;
        if bytes.iter().any(|byte| *byte != 0) {
            self.note(RESERVED);
            self.tell(name, len, Value::Bytes(bytes));
        }
        Some(())
    }

    /// A field inside of the byte just taken.
    pub(super) fn bits(
        &mut self,
        name: &'static str,
        byte: u8,
        mask: u8,
        show: impl FnOnce(u8) -> Value<'a>,
    ) -> u8 {
        let value = byte_field(byte, mask);
        self.tell_at(name, self.at.saturating_sub(1), 1, Some(mask), show(value));
        value
    }

    /// One bit of the byte just taken.
    pub(super) fn flag(&mut self, name: &'static str, byte: u8, mask: u8) -> bool {
        self.bits(name, byte, mask, |value| Value::Flag(value != 0)) != 0
    }

    /// Reserved bits of the byte just taken, told only if they are not zero.
    pub(super) fn reserved_bits(&mut self, name: &'static str, byte: u8, mask: u8) {
        if byte & mask != 0 {
            self.note(RESERVED);
            let digits = 2;
            self.bits(name, byte, mask, |value| Value::Hex {
                value: value.into(),
                digits,
            });
        }
    }
}

const RESERVED: &str = "reserved, not zero";

/// Bytes as a big-endian number; the last eight of them if there are more.
pub(super) fn be<const N: usize>(bytes: [u8; N]) -> u64 {
    bytes
        .iter()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The bits under a mask, moved down.
fn byte_field(byte: u8, mask: u8) -> u8 {
    (byte & mask)
        .checked_shr(mask.trailing_zeros())
        .unwrap_or(0)
}
