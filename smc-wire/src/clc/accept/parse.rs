//! Reading ACCEPT and CONFIRM.

use zerocopy::FromBytes;

use super::{
    AcceptConfirm, AcceptKind, Body, DirectEnd, DirectV1, DirectV2, RdmaEnd, RdmaV2, Terms,
};
use crate::clc::header::{
    CONNECTION_TYPE, ClcType, FIRST_CONTACT, HEADER_LEN, Header, LAST_AT, LENGTH_AT, TRAILER_LEN,
    check_trailer,
};
use crate::clc::{FirstContact, frame};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::layout::Raw;
use crate::types::{Chid, Eid};

impl AcceptConfirm {
    /// Reads an ACCEPT or CONFIRM that takes up all of `bytes`, or the first
    /// [`MAX_KEEP`](Self::MAX_KEEP) bytes of one that is longer. The trailer of the latter goes
    /// unchecked.
    ///
    /// A message may be longer than its contents; what it has before the trailer that is not
    /// understood is ignored, as reserved fields are.
    ///
    /// # Errors
    ///
    /// A malformed header, another message, type bits other than SMC-R or SMC-D, a length that
    /// version 1 does not allow or that is too short for the parts, a GID list out of bounds, or
    /// a bad trailer. All of them end the handshake.
    pub fn parse(bytes: &[u8]) -> Result<Self, DecodeError> {
        let header = frame::exact_of(bytes, &[ClcType::Accept, ClcType::Confirm])?;
        Self::read(&header, bytes)
    }

    pub(in crate::clc) fn read(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let kind = match header.kind {
            ClcType::Confirm => AcceptKind::Confirm,
            _ => AcceptKind::Accept,
        };
        let is_rdma = match header.flags & CONNECTION_TYPE.mask {
            0 => true,
            1 => false,
            got => {
                let field = "type of connection";
                return Err(kind.message_kind().bad_value(field, LAST_AT, "0 or 1", got));
            }
        };
        check_length(header, kind, is_rdma)?;

        let is_whole = bytes.len() == usize::from(header.length);
        let limit = if is_whole {
            bytes.len().saturating_sub(TRAILER_LEN)
        } else {
            bytes.len()
        };
        let contents = bytes.get(HEADER_LEN..limit).unwrap_or_default();
        let fixed = if is_rdma {
            read_r(header, contents)
        } else {
            read_d(header, contents)
        };
        let (body, eid, rest) = fixed.ok_or_else(|| {
            let needed = header.length.into();
            kind.message_kind()
                .truncated("message", needed, bytes.len())
        })?;
        let is_first = FIRST_CONTACT.is_set(header.flags);
        let terms = match eid {
            None => Terms::V1 {
                first_contact: is_first,
            },
            Some(eid) if is_first => {
                let offset = limit.saturating_sub(rest.len());
                let parts = FirstContact::read(kind.message_kind(), is_rdma, offset, rest)?;
                let first_contact = Some(parts);
                Terms::V2 { eid, first_contact }
            }
            Some(eid) => Terms::V2 {
                eid,
                first_contact: None,
            },
        };
        if is_whole {
            check_trailer(kind.message_kind(), bytes)?;
        }
        Ok(Self { kind, terms, body })
    }
}

/// The fixed parts of a message: end, EID in version 2, and what follows.
type Fixed<'a> = (Body, Option<Eid>, &'a [u8]);

fn read_r<'a>(header: &Header, bytes: &'a [u8]) -> Option<Fixed<'a>> {
    let (raw, rest) = Raw::<RdmaEnd>::ref_from_prefix(bytes).ok()?;
    let end = Body::R(RdmaEnd::read(raw));
    if !header.version.is_v2() {
        return Some((end, None, rest));
    }
    let (v2, rest) = RdmaV2::ref_from_prefix(rest).ok()?;
    Some((end, Some(v2.eid), rest))
}

fn read_d<'a>(header: &Header, bytes: &'a [u8]) -> Option<Fixed<'a>> {
    let (raw, rest) = Raw::<DirectEnd>::ref_from_prefix(bytes).ok()?;
    if !header.version.is_v2() {
        let (_, rest) = DirectV1::ref_from_prefix(rest).ok()?;
        let end = DirectEnd::read(raw, Chid::NONE, 0);
        return Some((Body::D(end), None, rest));
    }
    let (v2, rest) = DirectV2::ref_from_prefix(rest).ok()?;
    let end = DirectEnd::read(raw, Chid(v2.chid.get()), v2.extended_gid.get());
    Some((Body::D(end), Some(v2.eid), rest))
}

/// Version 1 has one length per kind of SMC, version 2 a minimum.
fn check_length(header: &Header, kind: AcceptKind, is_rdma: bool) -> Result<(), DecodeError> {
    let got = usize::from(header.length);
    let expected = AcceptConfirm::fixed_len(header.version, is_rdma);
    let error = match header.version.is_v2() {
        false if got != expected => DecodeErrorKind::Length { expected, got },
        true if got < expected => DecodeErrorKind::LengthBelow {
            minimum: expected,
            got,
        },
        _ => return Ok(()),
    };
    Err(DecodeError::new(
        kind.message_kind(),
        "length",
        LENGTH_AT,
        error,
    ))
}
