//! CONFIRM RKEY and CONFIRM RKEY CONT: a new RMB and its keys on all links; DELETE RKEY: RMBs that
//! are no longer in use (RFC 7609 appendix A.3; longer lists in v2).

use zerocopy::IntoBytes;

use super::header::{HEADER_LEN, NEGATIVE, RESPONSE, RETRY, emit};
use super::{
    Class, Dialect, Header, LinkRtoken, MAX_RTOKENS, MESSAGE_LEN, MessageType, WireRkey,
    rtoken::list,
};
use crate::layout::Show::Reserved;
use crate::layout::{DEC, HEX, Layout, Raw, layouts, part};
use crate::types::{Rkey, RmbAddr};
use crate::writer::{invalid, wire_count};
use crate::{Bounded, DecodeError, DecodeErrorKind, EmitError, MessageKind};

part! {
    /// Contents of CONFIRM RKEY.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ConfirmRkey {
        /// Version and byte order.
        pub dialect: Dialect,
        /// Request, or how it is answered.
        pub class: RkeyClass,
    }
    13 bytes {
        /// How many links there are besides the one that carries the message. Those that do not fit
        /// here follow in CONFIRM RKEY CONT; Linux answers more than three negatively.
        pub further_links: u8,
        /// Key of the new RMB on the link that carries the message.
        pub rkey: Rkey,
        /// Address of the new RMB there.
        pub address: RmbAddr,
    }
    then {
        /// The RMB on the first two of the further links.
        pub further: Bounded<LinkRtoken, 2>,
    }
}

impl ConfirmRkey {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<Self>(bytes)?;
        let further = list(rest, raw.further_links.into());
        let further = Bounded::from_iter_lossy(further.iter().map(LinkRtoken::from_raw));
        let (dialect, class) = (header.dialect(), RkeyClass::from_header(header));
        Ok(Self::from_raw(raw, dialect, class, further))
    }

    /// The response to this request: the same body.
    #[must_use]
    pub const fn response(self, class: RkeyClass) -> Self {
        Self { class, ..self }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes; [`EmitError::Invalid`] if `further` does not
    /// have the entries that `further_links` asks for, which is two or all.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::ConfirmRkey;
        if self.further.len() != usize::from(self.further_links).min(2) {
            let reason = "contradicts the rtokens there are";
            return Err(invalid(KIND.kind(), "further links", reason));
        }
        let (raw, further) = (self.raw(), wire_form(&self.further));
        let body = [raw.as_bytes(), further.as_bytes()];
        emit(KIND, self.dialect, self.class.flags(), &body, buffer)
    }
}

part! {
    /// Contents of CONFIRM RKEY CONT, needed only with more than three links; Linux drops it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ConfirmRkeyCont {
        /// Request, or how it is answered.
        pub class: RkeyClass,
    }
    1 bytes {
        /// Links still to be announced, those of this message included.
        pub left as "rtokens_left": u8,
    }
    then {
        /// The RMB on the first of the links that are left.
        pub rtokens: Bounded<LinkRtoken, 3>,
    }
}

impl ConfirmRkeyCont {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<Self>(bytes)?;
        let rtokens = list(rest, raw.left.into());
        let rtokens = Bounded::from_iter_lossy(rtokens.iter().map(LinkRtoken::from_raw));
        Ok(Self::from_raw(raw, RkeyClass::from_header(header), rtokens))
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes; [`EmitError::Invalid`] if there are not as
    /// many rtokens as `left` asks for, which is three or the rest.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::ConfirmRkeyCont;
        if self.rtokens.len() != usize::from(self.left).min(3) {
            let reason = "contradicts the rtokens there are";
            return Err(invalid(KIND.kind(), "rtokens left", reason));
        }
        let (raw, rtokens) = (self.raw(), wire_form(&self.rtokens));
        let body = [raw.as_bytes(), rtokens.as_bytes()];
        emit(KIND, Dialect::V1, self.class.flags(), &body, buffer)
    }
}

/// The forms of the messages that announce keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "three bits on the wire")]
pub enum RkeyClass {
    /// Here is a new RMB.
    Request,
    /// Noted.
    Accepted,
    /// Not noted.
    Rejected {
        /// Send the keys again as soon as the configuration change under way is finished; without
        /// this flag at the next natural occasion. Linux always sets it.
        retry: bool,
    },
}

impl RkeyClass {
    fn from_header(header: &Header) -> Self {
        match header.class() {
            Class::Request => Self::Request,
            Class::Response if header.has(NEGATIVE) => Self::Rejected {
                retry: header.has(RETRY),
            },
            Class::Response => Self::Accepted,
        }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Accepted => RESPONSE.mask,
            Self::Rejected { retry } => RESPONSE.mask | NEGATIVE.mask | RETRY.when(retry),
        }
    }
}

/// The entries in wire form, unused ones zero.
fn wire_form<const N: usize>(rtokens: &Bounded<LinkRtoken, N>) -> [Raw<LinkRtoken>; N] {
    let mut wire = [LinkRtoken::default().raw(); N];
    for (to, from) in wire.iter_mut().zip(rtokens) {
        *to = from.raw();
    }
    wire
}

/// Most rkeys in v1.
pub(crate) const MAX_V1: usize = 8;

/// Contents of DELETE RKEY.
///
/// Malformed, and to be dropped: a v1 message that states more than eight rkeys. In v2 the list is
/// bounded by the received size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeleteRkey<'a> {
    /// Version and byte order.
    pub dialect: Dialect,
    /// Request or response.
    pub class: Class,
    /// Response: some of the rkeys were not known.
    pub negative: bool,
    /// Response: which or how many of them. [`DeleteRkeyErrors::none`] otherwise.
    pub errors: DeleteRkeyErrors,
    /// The rkeys on the link that carries the message: up to 8 in v1, up to 255 in v2. In a v2
    /// response Linux sends zeros; other peers may list those that failed.
    pub rkeys: &'a [WireRkey],
}

layouts! {
    /// Fixed part of a v2 message; rkeys follow.
    pub(crate) struct RkeyCount: 4 {
        rkey_count: u8 => DEC,
        unknown_rkey_count: u8 => DEC,
        reserved_6: [u8; 2] => Reserved,
    }

    /// What v1 calls the same bytes.
    pub(crate) struct RkeyCountV1: 4 {
        rkey_count: u8 => DEC,
        unknown_rkey_mask: u8 => HEX,
        reserved_6: [u8; 2] => Reserved,
    }
}

impl<'a> DeleteRkey<'a> {
    pub(super) fn parse(header: &Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<RkeyCount>(bytes)?;
        let dialect = header.dialect();
        let (max, got) = (MAX_V1, usize::from(raw.rkey_count));
        if !dialect.is_v2() && got > max {
            let (kind, cause) = (
                MessageKind::DeleteRkey,
                DecodeErrorKind::TooMany { max, got },
            );
            return Err(DecodeError::new(kind, "rkey count", HEADER_LEN, cause));
        }
        let errors = match dialect {
            Dialect::V1 => DeleteRkeyErrors::Mask(raw.unknown_rkey_count),
            Dialect::V2(_) => DeleteRkeyErrors::Count(raw.unknown_rkey_count),
        };
        Ok(Self {
            dialect,
            class: header.class(),
            negative: header.has(NEGATIVE),
            errors,
            rkeys: list(rest, got),
        })
    }

    /// A request.
    #[must_use]
    pub const fn request(dialect: Dialect, rkeys: &'a [WireRkey]) -> Self {
        let errors = DeleteRkeyErrors::none(dialect);
        Self {
            dialect,
            class: Class::Request,
            negative: false,
            errors,
            rkeys,
        }
    }

    /// The response to this request, given the positions of the rkeys that were not known.
    #[must_use]
    pub const fn response(self, unknown: DeleteRkeyErrors) -> Self {
        Self {
            class: Class::Response,
            negative: !unknown.is_none(),
            errors: unknown,
            ..self
        }
    }

    /// Bytes the message takes: 44, or 8 and 4 for each rkey if that is more.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        size_of_val(self.rkeys)
            .saturating_add(HEADER_LEN)
            .saturating_add(RkeyCount::LEN)
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
        let (max, errors) = match (self.dialect, self.errors) {
            (Dialect::V1, DeleteRkeyErrors::Mask(mask)) => (MAX_V1, mask),
            (Dialect::V2(_), DeleteRkeyErrors::Count(count)) => (MAX_RTOKENS, count),
            _ => {
                let reason = "have the form of the other version";
                return Err(invalid(KIND.kind(), "errors", reason));
            }
        };
        if self.rkeys.len() > max {
            let reason = "more than the version allows";
            return Err(invalid(KIND.kind(), "rkeys", reason));
        }
        let flags = self.class.flag() | NEGATIVE.when(self.negative);
        let raw = RkeyCount {
            rkey_count: wire_count(self.rkeys.len()),
            unknown_rkey_count: errors,
            reserved_6: [0; 2],
        };
        let body = [raw.as_bytes(), self.rkeys.as_bytes()];
        emit(KIND, self.dialect, flags, &body, buffer)
    }
}

/// Byte 5 of a DELETE RKEY response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "one form per version")]
pub enum DeleteRkeyErrors {
    /// v1: which of the up to eight rkeys were not known, the first one in the most significant
    /// bit.
    Mask(u8),
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
            Self::Mask(0)
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
        let bits = (0..8).map(|at| 0x80_u8 >> at);
        let unknown = known.zip(bits).filter(|(known, _)| !known);
        Self::Mask(unknown.fold(0, |mask, (_, bit)| mask | bit))
    }

    /// True if nothing failed.
    #[must_use]
    pub const fn is_none(self) -> bool {
        matches!(self, Self::Mask(0) | Self::Count(0))
    }

    /// How many rkeys were not known.
    #[must_use]
    pub fn count(self) -> u32 {
        match self {
            Self::Mask(mask) => mask.count_ones(),
            Self::Count(count) => count.into(),
        }
    }
}
