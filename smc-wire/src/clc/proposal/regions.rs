//! Cutting a PROPOSAL into its regions.

use core::mem::offset_of;

use zerocopy::{FromBytes, Immutable, KnownLayout, Unaligned};

use super::{IpArea, MAX_ITEMS};
use crate::clc::header::{LENGTH_AT, TRAILER_LEN};
use crate::error::{DecodeError, DecodeErrorKind, MessageKind};
use crate::layout::Raw;

/// A message seen as regions that have to end before the trailer.
pub(super) struct Regions<'a> {
    bytes: &'a [u8],
    limit: usize,
    has_extensions: bool,
}

impl<'a> Regions<'a> {
    pub(super) fn new(bytes: &'a [u8], has_extensions: bool) -> Self {
        Self {
            bytes,
            limit: bytes.len().saturating_sub(TRAILER_LEN),
            has_extensions,
        }
    }

    /// A fixed part at `start`, and what follows it up to the trailer.
    pub(super) fn at<T>(
        &self,
        field: &'static str,
        start: usize,
    ) -> Result<(&'a T, &'a [u8]), DecodeError>
    where
        T: FromBytes + Immutable + KnownLayout + Unaligned,
    {
        let end = start.saturating_add(size_of::<T>());
        self.bytes
            .get(start..self.limit)
            .and_then(|tail| T::ref_from_prefix(tail).ok())
            .ok_or_else(|| self.outside(field, start, end))
    }

    /// `count` items at the start of `tail`, which is a rest that [`at`](Self::at) returned.
    pub(super) fn list<T>(
        &self,
        field: &'static str,
        tail: &'a [u8],
        count: usize,
    ) -> Result<&'a [T], DecodeError>
    where
        T: FromBytes + Immutable,
        [T]: KnownLayout<PointerMetadata = usize> + Unaligned,
    {
        match <[T]>::ref_from_prefix_with_elems(tail, count) {
            Ok((items, _)) => Ok(items),
            Err(_) => {
                let start = self.limit.saturating_sub(tail.len());
                let end = start.saturating_add(count.saturating_mul(size_of::<T>()));
                Err(self.outside(field, start, end))
            }
        }
    }

    /// The prefix count of an IP area that would start at `ip_start`.
    pub(super) fn prefix_count(&self, ip_start: usize) -> Result<usize, DecodeError> {
        const FIELD: &str = "IPv6 prefix count";
        let offset = ip_start.saturating_add(offset_of!(Raw<IpArea>, ipv6_prefix_count));
        let (count, _) = self.at::<u8>(FIELD, offset)?;
        check_count(FIELD, offset, *count)?;
        Ok(usize::from(*count))
    }

    /// Compares the length of the message with that of its regions, which extensions may follow.
    pub(super) fn check_length(&self, regions: usize) -> Result<(), DecodeError> {
        if regions == self.limit || self.has_extensions && regions < self.limit {
            return Ok(());
        }
        let expected = regions.saturating_add(TRAILER_LEN);
        Err(MessageKind::Proposal.bad_length("length", LENGTH_AT, expected, self.bytes.len()))
    }

    fn outside(&self, field: &'static str, start: usize, end: usize) -> DecodeError {
        let limit = self.limit;
        let kind = DecodeErrorKind::OutOfBounds { end, limit };
        DecodeError::new(MessageKind::Proposal, field, start, kind)
    }
}

pub(super) fn check_count(
    field: &'static str,
    offset: usize,
    count: u8,
) -> Result<(), DecodeError> {
    let (max, got) = (MAX_ITEMS, usize::from(count));
    if got <= max {
        return Ok(());
    }
    let kind = DecodeErrorKind::TooMany { max, got };
    Err(DecodeError::new(MessageKind::Proposal, field, offset, kind))
}

pub(super) fn bad_value(
    field: &'static str,
    offset: usize,
    expected: &'static str,
    got: usize,
) -> DecodeError {
    let got = u64::try_from(got).unwrap_or(u64::MAX);
    MessageKind::Proposal.bad_value(field, offset, expected, got)
}
