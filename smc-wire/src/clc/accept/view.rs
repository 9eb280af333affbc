//! The borrowed form of ACCEPT and CONFIRM.

use zerocopy::FromBytes;

use super::repr::{AcceptConfirm, Body, DirectEnd, RdmaEnd, Step, Terms};
use crate::clc::first_contact::FirstContactView;
use crate::clc::header::{ClcType, Header, TRAILER_LEN, check_trailer};
use crate::clc::{FirstContact, frame, raw};
use crate::error::{DecodeError, DecodeErrorKind};
use crate::size::SizeCode;
use crate::types::{
    AlertToken, Chid, DmbToken, Eid, Gid, GroupId, MtuCode, Psn, Qpn, Rkey, RmbAddr,
};

/// A received ACCEPT or CONFIRM, checked (docs/spec/clc.md#accept-and-confirm).
///
/// A message may be longer than its contents; what it has before the trailer that is not
/// understood is [`excess`](Self::excess).
#[derive(Debug, Clone, Copy)]
pub struct AcceptConfirmView<'a> {
    header: Header,
    step: Step,
    bytes: &'a [u8],
    body: RawBody<'a>,
    first_contact: Option<FirstContactView<'a>>,
    excess: &'a [u8],
}

/// The fixed parts; version 2 adds a second one.
#[derive(Debug, Clone, Copy)]
enum RawBody<'a> {
    R {
        base: &'a raw::Rdma,
        v2: Option<&'a raw::RdmaV2>,
    },
    D {
        base: &'a raw::Direct,
        v2: Option<&'a raw::DirectV2>,
    },
}

/// Bits of the header that say which kind of SMC was chosen.
const TYPE_MASK: u8 = 0x03;

impl<'a> AcceptConfirmView<'a> {
    /// Reads an ACCEPT or CONFIRM that takes up all of `bytes`, or the first
    /// [`MAX_KEEP`](AcceptConfirm::MAX_KEEP) bytes of one that is longer. The trailer of the
    /// latter goes unchecked.
    ///
    /// # Errors
    ///
    /// A malformed header, another message, type bits other than SMC-R or SMC-D, a length that
    /// version 1 does not allow or that is too short for the parts, a GID list out of bounds, or
    /// a bad trailer. All of them end the handshake.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Self::new(
            frame::exact_of(bytes, &[ClcType::Accept, ClcType::Confirm])?,
            bytes,
        )
    }

    pub(in crate::clc) fn new(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let step = match header.kind {
            ClcType::Confirm => Step::Confirm,
            _ => Step::Accept,
        };
        let is_rdma = match header.flags & TYPE_MASK {
            0 => true,
            1 => false,
            got => {
                let kind = DecodeErrorKind::Value {
                    expected: "0 or 1",
                    got: got.into(),
                };
                return Err(DecodeError::new(step.kind(), "type of connection", 7, kind));
            }
        };
        check_length(&header, step, is_rdma)?;

        let is_whole = bytes.len() == usize::from(header.length);
        let limit = if is_whole {
            bytes.len().saturating_sub(TRAILER_LEN)
        } else {
            bytes.len()
        };
        let contents = bytes.get(..limit).unwrap_or_default();
        let (body, rest) = if is_rdma {
            RawBody::parse_r(&header, contents)
        } else {
            RawBody::parse_d(&header, contents)
        }
        .ok_or_else(|| {
            let kind = DecodeErrorKind::Truncated {
                needed: header.length.into(),
                got: bytes.len(),
            };
            DecodeError::new(step.kind(), "message", 0, kind)
        })?;
        let (first_contact, excess) = if header.version.is_v2() && header.first_contact() {
            let offset = limit.saturating_sub(rest.len());
            let (parts, rest) = FirstContactView::parse(step.kind(), is_rdma, offset, rest)?;
            (Some(parts), rest)
        } else {
            (None, rest)
        };
        if is_whole {
            check_trailer(step.kind(), bytes)?;
        }
        Ok(Self {
            header,
            step,
            bytes,
            body,
            first_contact,
            excess,
        })
    }

    /// The common header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The bytes of the message, or of what was kept of it.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Which of the two messages it is.
    #[must_use]
    pub const fn step(&self) -> Step {
        self.step
    }

    /// The first-contact flag. Means nothing in a version-1 CONFIRM.
    #[must_use]
    pub const fn is_first_contact(&self) -> bool {
        self.header.first_contact()
    }

    /// The negotiated EID (version 2).
    #[must_use]
    pub fn eid(&self) -> Option<Eid> {
        match self.body {
            RawBody::R { v2, .. } => v2.map(|v2| v2.eid),
            RawBody::D { v2, .. } => v2.map(|v2| v2.eid),
        }
    }

    /// The first-contact parts (version 2 with the first-contact flag).
    #[must_use]
    pub fn first_contact(&self) -> Option<FirstContact> {
        self.first_contact.map(|parts| parts.to_repr())
    }

    /// Bytes between the last part that is understood and the trailer.
    #[must_use]
    pub const fn excess(&self) -> &'a [u8] {
        self.excess
    }

    /// The sender's end of the connection.
    #[must_use]
    pub fn body(&self) -> Body {
        match self.body {
            RawBody::R { base, .. } => Body::R(rdma_end(base)),
            RawBody::D { base, v2 } => Body::D(direct_end(base, v2)),
        }
    }

    /// The contents without reserved fields and without [`excess`](Self::excess).
    #[must_use]
    pub fn to_repr(&self) -> AcceptConfirm {
        let terms = match self.eid() {
            None => Terms::V1 {
                first_contact: self.is_first_contact(),
            },
            Some(eid) => Terms::V2 {
                eid,
                first_contact: self.first_contact(),
            },
        };
        AcceptConfirm {
            step: self.step,
            terms,
            body: self.body(),
        }
    }
}

impl<'a> RawBody<'a> {
    fn parse_r(header: &Header, bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (base, rest) = raw::Rdma::ref_from_prefix(bytes).ok()?;
        if !header.version.is_v2() {
            return Some((Self::R { base, v2: None }, rest));
        }
        let (v2, rest) = raw::RdmaV2::ref_from_prefix(rest).ok()?;
        Some((Self::R { base, v2: Some(v2) }, rest))
    }

    fn parse_d(header: &Header, bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let (base, rest) = raw::Direct::ref_from_prefix(bytes).ok()?;
        if !header.version.is_v2() {
            let (_, rest) = raw::DirectV1::ref_from_prefix(rest).ok()?;
            return Some((Self::D { base, v2: None }, rest));
        }
        let (v2, rest) = raw::DirectV2::ref_from_prefix(rest).ok()?;
        Some((Self::D { base, v2: Some(v2) }, rest))
    }
}

fn rdma_end(raw: &raw::Rdma) -> RdmaEnd {
    RdmaEnd {
        peer_id: raw.peer_id,
        gid: raw.gid,
        mac: raw.mac,
        qpn: Qpn::from_be_bytes(raw.qpn),
        rkey: Rkey(raw.rkey.get()),
        rmbe_index: raw.rmbe_index,
        token: AlertToken::from_wire(raw.token.get()),
        size: SizeCode::from_high_nibble(raw.size_mtu),
        mtu: MtuCode::from_low_nibble(raw.size_mtu),
        rmb_addr: RmbAddr(raw.rmb_addr.get()),
        psn: Psn::from_be_bytes(raw.psn),
    }
}

fn direct_end(raw: &raw::Direct, v2: Option<&raw::DirectV2>) -> DirectEnd {
    let chid = v2.map_or(Chid::NONE, |v2| Chid(v2.chid.get()));
    // The extended half is reserved unless the device is emulated.
    let lo = v2
        .filter(|_| chid.is_emulated())
        .map_or(0, |v2| v2.extended_gid.get());
    DirectEnd {
        gid: Gid::new(raw.gid.get(), lo),
        chid,
        dmb: DmbToken(raw.dmb.get()),
        dmbe_index: raw.dmbe_index,
        size: SizeCode::from_high_nibble(raw.size),
        group: GroupId(raw.group),
    }
}

/// Version 1 has one length per kind of SMC, version 2 a minimum.
fn check_length(header: &Header, step: Step, is_rdma: bool) -> Result<(), DecodeError> {
    let got = usize::from(header.length);
    let (v1, v2) = match is_rdma {
        true => (AcceptConfirm::LEN_R_V1, AcceptConfirm::MIN_LEN_R_V2),
        false => (AcceptConfirm::LEN_D_V1, AcceptConfirm::MIN_LEN_D_V2),
    };
    let kind = match header.version.is_v2() {
        false if got != v1 => DecodeErrorKind::Length { expected: v1, got },
        true if got < v2 => DecodeErrorKind::LengthBelow { minimum: v2, got },
        _ => return Ok(()),
    };
    Err(DecodeError::new(step.kind(), "length", 5, kind))
}
