//! ACCEPT and CONFIRM: what was chosen, and one end of it.

mod parse;

use core::fmt;

use zerocopy::network_endian::{U16, U64};

use crate::clc::header::{ClcType, Eyecatcher, FIRST_CONTACT, HEADER_LEN, TRAILER_LEN, start};
use crate::clc::{Extensions, FirstContact};
use crate::error::{EmitError, MessageKind};
use crate::layout::Show::{self, Reserved};
use crate::layout::{Bits, FieldType, HEX, Layout, MTU_BITS, Raw, layouts, part, size_bits};
use crate::size::SizeCode;
use crate::types::{
    AlertToken, Chid, DmbToken, Eid, Gid, GroupId, Mac, MtuCode, PeerId, Psn, Qpn, Rkey, RmbAddr,
    RoceGid, Version,
};
use crate::writer::{Writer, invalid};

/// ACCEPT or CONFIRM: what was chosen and the sender's end of it
/// (docs/spec/clc.md#accept-and-confirm; RFC 7609 appendix A.2).
///
/// Both messages have one layout: the server describes its end in ACCEPT, the client its own in
/// CONFIRM. `terms` has the version, `body` the kind of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AcceptConfirm {
    /// Which of the two messages it is.
    pub kind: AcceptKind,
    /// Version and what depends on it.
    pub terms: Terms,
    /// The sender's end of the connection.
    pub body: Body,
}

impl AcceptConfirm {
    /// Least length in bytes of any form.
    pub const MIN_LEN: usize = Self::fixed_len(Version::V1, false);
    /// Length in bytes of the longest form known today: a first-contact CONFIRM with eight GIDs.
    pub const MAX_LEN: usize = Self::fixed_len(Version::V2, true) + FirstContact::MAX_LEN;
    /// Bytes to keep of a message that is longer than anything known.
    pub const MAX_KEEP: usize = 512;

    /// The version of the message, 1 or 2.
    #[must_use]
    pub const fn version(&self) -> Version {
        match self.terms {
            Terms::V1 { .. } => Version::V1,
            Terms::V2 { .. } => Version::V2,
        }
    }

    /// The first-contact flag.
    #[must_use]
    pub const fn is_first_contact(&self) -> bool {
        match &self.terms {
            Terms::V1 { first_contact } => *first_contact,
            Terms::V2 { first_contact, .. } => first_contact.is_some(),
        }
    }

    /// The first-contact parts (version 2).
    #[must_use]
    pub const fn first_contact(&self) -> Option<&FirstContact> {
        match &self.terms {
            Terms::V1 { .. } => None,
            Terms::V2 { first_contact, .. } => first_contact.as_ref(),
        }
    }

    /// The negotiated EID (version 2).
    #[must_use]
    pub const fn eid(&self) -> Option<Eid> {
        match self.terms {
            Terms::V1 { .. } => None,
            Terms::V2 { eid, .. } => Some(eid),
        }
    }

    /// Length of the message in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let is_rdma = self.body.is_rdma();
        let parts = self.first_contact();
        Self::fixed_len(self.version(), is_rdma)
            .saturating_add(parts.map_or(0, |parts| parts.encoded_len(is_rdma)))
    }

    /// Length without first-contact parts.
    const fn fixed_len(version: Version, is_rdma: bool) -> usize {
        const AROUND: usize = HEADER_LEN + TRAILER_LEN;
        match (version.is_v2(), is_rdma) {
            (false, true) => AROUND + RdmaEnd::LEN,
            (false, false) => AROUND + DirectEnd::LEN + DirectV1::LEN,
            (true, true) => AROUND + RdmaEnd::LEN + RdmaV2::LEN,
            (true, false) => AROUND + DirectEnd::LEN + DirectV2::LEN,
        }
    }

    /// Where the first-contact parts of version 2 begin.
    pub(super) const fn parts_at(is_rdma: bool) -> usize {
        Self::fixed_len(Version::V2, is_rdma).saturating_sub(TRAILER_LEN)
    }

    /// Length in bytes of the message with these extensions.
    #[must_use]
    pub fn extended_len(&self, extensions: &Extensions<'_>) -> usize {
        self.encoded_len().saturating_add(extensions.encoded_len())
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`], or [`EmitError::Invalid`] for what the chosen form cannot
    /// carry: a CHID or an extended GID in version 1, an extended GID on a native fabric, a GID
    /// list anywhere but in an SMC-R CONFIRM, fields of v2.1 with release v2.0.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        self.emit_extended(&Extensions::default(), buffer)
    }

    /// As [`emit`](Self::emit), with extensions for a peer that has stated
    /// [`Features`](crate::types::Features) before (docs/spec/extensions.md#placement). Without
    /// extensions it is the same as `emit`.
    ///
    /// # Errors
    ///
    /// Those of `emit`, and [`EmitError::Invalid`] if the message would have more than
    /// [`MAX_KEEP`](Self::MAX_KEEP) bytes, states no features, or is an SMC-R CONFIRM with
    /// first-contact parts and no GID list.
    pub fn emit_extended(
        &self,
        extensions: &Extensions<'_>,
        buffer: &mut [u8],
    ) -> Result<usize, EmitError> {
        self.check()?;
        let area = extensions.area(self.kind.message_kind(), self.area())?;
        let length = self.extended_len(extensions);
        let (eyecatcher, connection_type) = match self.body {
            Body::R(_) => (Eyecatcher::Smcr, 0),
            Body::D(_) => (Eyecatcher::Smcd, 1),
        };
        let flags = connection_type | FIRST_CONTACT.when(self.is_first_contact());
        let kind = (eyecatcher, self.kind.clc_type());
        let mut out = start(kind, (self.version(), flags), length, buffer)?;
        match &self.body {
            Body::R(end) => self.emit_r(end, &mut out)?,
            Body::D(end) => self.emit_d(end, &mut out)?,
        }
        if let Some(parts) = self.first_contact() {
            parts.emit(&mut out, self.body.is_rdma())?;
        }
        extensions.emit(&mut out)?;
        out.put(&eyecatcher.to_bytes())?;
        if let Some(area) = area {
            area.write(extensions, buffer);
        }
        Ok(length)
    }

    fn emit_r(&self, end: &RdmaEnd, out: &mut Writer<'_>) -> Result<(), EmitError> {
        out.put(&end.write())?;
        match self.eid() {
            Some(eid) => out.put(&RdmaV2 {
                eid,
                reserved_96: [0; 8],
            }),
            None => Ok(()),
        }
    }

    fn emit_d(&self, end: &DirectEnd, out: &mut Writer<'_>) -> Result<(), EmitError> {
        out.put(&end.write())?;
        match self.eid() {
            Some(eid) => out.put(&DirectV2 {
                chid: end.chid.0.into(),
                eid,
                extended_gid: end.gid.lo().0.into(),
            }),
            None => out.put(&DirectV1 {
                reserved_32: [0; 12],
            }),
        }
    }

    /// Whether the form that `terms` and `body` ask for can carry all fields.
    fn check(&self) -> Result<(), EmitError> {
        let message = self.kind.message_kind();
        if let Body::D(end) = &self.body {
            if !self.version().is_v2() && !end.chid.is_none() {
                return Err(invalid(message, "CHID", "not possible in version 1"));
            }
            end.check(message)?;
        }
        match self.first_contact() {
            Some(parts) => parts.check(self.kind, self.body.is_rdma()),
            None => Ok(()),
        }
    }
}

/// Which of the two messages an [`AcceptConfirm`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(
    clippy::exhaustive_enums,
    reason = "the layout is that of two messages"
)]
pub enum AcceptKind {
    /// Sent by the server (type 2).
    Accept,
    /// Sent by the client (type 3).
    Confirm,
}

impl AcceptKind {
    /// The type byte of the message.
    #[must_use]
    pub const fn clc_type(self) -> ClcType {
        match self {
            Self::Accept => ClcType::Accept,
            Self::Confirm => ClcType::Confirm,
        }
    }

    /// The message in the vocabulary of errors.
    #[must_use]
    pub const fn message_kind(self) -> MessageKind {
        self.clc_type().kind()
    }
}

impl fmt::Display for AcceptKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message_kind().name())
    }
}

/// The contents of an [`AcceptConfirm`] apart from the sender's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(
    clippy::exhaustive_enums,
    reason = "one variant per version of the protocol"
)]
#[allow(
    clippy::large_enum_variant,
    reason = "there is no allocator to box the larger one"
)]
pub enum Terms {
    /// Version 1.
    V1 {
        /// ACCEPT: the server made a new link group. Linux sets it in CONFIRM too, where it means
        /// nothing.
        first_contact: bool,
    },
    /// Version 2.
    V2 {
        /// The negotiated EID; CONFIRM repeats that of ACCEPT.
        eid: Eid,
        /// The first-contact parts, if the link group is new. Their presence is the first-contact
        /// flag.
        first_contact: Option<FirstContact>,
    },
}

/// The sender's end of the connection in an [`AcceptConfirm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "one variant per kind of SMC")]
pub enum Body {
    /// SMC-R.
    R(RdmaEnd),
    /// SMC-D.
    D(DirectEnd),
}

impl Body {
    /// True for SMC-R.
    #[must_use]
    pub const fn is_rdma(&self) -> bool {
        matches!(self, Self::R(_))
    }

    /// Size of the sender's receive buffer element.
    #[must_use]
    pub const fn size(&self) -> SizeCode {
        match self {
            Self::R(end) => end.size,
            Self::D(end) => end.size,
        }
    }
}

part! {
    /// One end of an SMC-R connection (docs/spec/clc.md#accept-and-confirm-for-smc-r).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RdmaEnd {
        /// Size of the element, and of its ring.
        pub size: SizeCode,
        /// Path MTU: the server's own in ACCEPT, the smaller of both in CONFIRM.
        pub mtu: MtuCode,
    }
    56 bytes {
        /// The sender's peer ID.
        pub peer_id: PeerId,
        /// The sender's GID for this link.
        pub gid: RoceGid,
        /// MAC of the sender's port.
        pub mac: Mac,
        /// The sender's queue pair.
        pub qpn as "qp_number": Qpn,
        /// Key of the sender's RMB on this link.
        pub rkey as "rmb_rkey": Rkey,
        /// 1-based number of the element in the RMB; Linux always uses 1.
        pub rmbe_index: u8,
        /// Token that the peer puts into every CDC of this connection; nonzero.
        pub token as "alert_token": AlertToken,
        given rmbe_size: u8 => RMBE_SIZE,
        zero reserved_51: [u8; 1],
        /// Address of byte 0 of the RMB.
        pub rmb_addr as "rmb_address": RmbAddr,
        zero reserved_60: [u8; 1],
        /// First packet sequence number the sender will use.
        pub psn as "initial_psn": Psn,
    }
}

impl RdmaEnd {
    pub(super) fn read(raw: &Raw<Self>) -> Self {
        let size = SizeCode::from_high_nibble(raw.rmbe_size);
        let mtu = MtuCode::from_low_nibble(raw.rmbe_size);
        Self::from_raw(raw, size, mtu)
    }

    pub(super) fn write(&self) -> Raw<Self> {
        self.raw(self.size.code() << 4 | self.mtu.code())
    }
}

const RMBE_SIZE: Show = Show::Bits(&[size_bits("rmbe_size"), MTU_BITS]);

part! {
    /// One end of an SMC-D connection (docs/spec/clc.md#accept-and-confirm-for-smc-d).
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct DirectEnd {
        /// GID of the sender's device. Only an emulated device of version 2 has an extended half.
        pub gid: Gid,
        /// Fabric of the chosen device; [`Chid::NONE`] in version 1, which does not carry it.
        pub chid: Chid,
        /// Size of the element; its ring is 32 bytes smaller.
        pub size: SizeCode,
    }
    24 bytes {
        given gid_high as "gid": U64 => HEX,
        /// Token of the sender's DMB.
        pub dmb as "dmb_token": DmbToken,
        /// 0-based number of the element in the DMB; Linux always uses 0.
        pub dmbe_index: u8,
        given dmbe_size: u8 => DMBE_SIZE,
        zero reserved_26: [u8; 2],
        /// The sender's identifier of the link group; opaque.
        pub group as "link_id": GroupId,
    }
}

impl DirectEnd {
    /// The end of a connection with the device of this fabric. The extended half of its GID is
    /// reserved unless the device is emulated.
    pub(super) fn read(raw: &Raw<Self>, chid: Chid, extended: u64) -> Self {
        let high = raw.gid_high.get();
        let gid = if chid.is_emulated() {
            Gid::new(high, extended)
        } else {
            Gid::native(high)
        };
        Self::from_raw(raw, gid, chid, SizeCode::from_high_nibble(raw.dmbe_size))
    }

    pub(super) fn write(&self) -> Raw<Self> {
        self.raw(self.gid.hi().0.into(), self.size.code() << 4)
    }

    /// Whether the fabric has GIDs of that length.
    pub(super) fn check(&self, message: MessageKind) -> Result<(), EmitError> {
        if self.gid.lo().0 == 0 || self.chid.is_emulated() {
            return Ok(());
        }
        Err(invalid(
            message,
            "extended GID",
            "only possible with an emulated device",
        ))
    }
}

const DMBE_SIZE: Show = Show::Bits(&[size_bits("dmbe_size"), Bits::reserved("reserved_25", 0x0f)]);

layouts! {
    /// What version 2 of SMC-R has before its first-contact parts.
    pub(crate) struct RdmaV2: 40 {
        eid: Eid => Eid::SHOW,
        reserved_96: [u8; 8] => Reserved,
    }

    /// What version 1 of SMC-D has before its trailer.
    pub(crate) struct DirectV1: 12 {
        reserved_32: [u8; 12] => Reserved,
    }

    /// What version 2 of SMC-D has before its first-contact parts.
    pub(crate) struct DirectV2: 42 {
        chid: U16 => Chid::SHOW,
        eid: Eid => Eid::SHOW,
        extended_gid: U64 => HEX,
    }
}
