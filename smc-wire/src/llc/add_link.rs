//! ADD LINK, ADD LINK CONT and REQUEST ADD LINK: another link for the link group (RFC 7609 appendix
//! A.3; continuation and REQUEST ADD LINK in v2).

use core::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::header::{HEADER_LEN, REJECTED, RESPONSE, emit, emit_reason};
use super::{ByteOrder, Class, Dialect, Header, MAX_RTOKENS, MESSAGE_LEN, MessageType};
use super::{Rtoken, WireRtoken, rtoken::list};
use crate::codes::{known_values, nibble};
use crate::layout::Show::{self, Reserved, Unswapped};
use crate::layout::{Bits, DEC, Layout, Raw, layouts, part};
use crate::types::{LinkNumber, Mac, MtuCode, Psn, Qpn, RoceGid};
use crate::writer::{invalid, wire_count};
use crate::{Bounded, DecodeError, DecodeErrorKind, EmitError, MessageKind};

part! {
    /// Contents of ADD LINK.
    ///
    /// Malformed, and to be dropped: a v2 request or positive response of 45 to 71 bytes, whose
    /// continuation is cut off.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AddLink<'a> {
        /// Version and byte order.
        pub dialect: Dialect,
        /// Request, or how it is answered.
        pub class: AddLinkClass,
    }
    40 bytes {
        /// MAC of the port the sender uses for the new link. In a rejection this and all that
        /// follows is repeated from the request.
        pub mac: Mac,
        zero reserved_10: [u8; 2],
        /// GID of the sender on the new link.
        pub gid: RoceGid,
        /// The sender's new queue pair.
        pub qpn as "qp_number": Qpn,
        /// Number of the new link, chosen by the server. In the hint of a v1 client this, the
        /// queue pair, the MTU and the PSN are zero.
        pub link as "link_number": LinkNumber,
        /// Path MTU; a response has the smaller one of both.
        pub mtu: MtuCode,
        /// First packet sequence number of the sender on the new queue pair.
        pub psn as "initial_psn": Psn,
        zero reserved_36: [u8; 8],
    }
    then {
        /// v2, in requests and positive responses only.
        pub extension: Option<AddLinkExtension<'a>>,
    }
}

/// The three forms of ADD LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "two bits on the wire")]
pub enum AddLinkClass {
    /// A server offers a link, or a v1 client hints that it would like one.
    Request,
    /// The client takes it.
    Accepted,
    /// The client refuses it.
    Rejected(RejectReason),
}

impl AddLinkClass {
    fn from_header(header: &Header) -> Self {
        match header.class() {
            Class::Request => Self::Request,
            Class::Response if header.has(REJECTED) => Self::Rejected(header.reason()),
            Class::Response => Self::Accepted,
        }
    }
}

part! {
    /// The v2 continuation of [`AddLink`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AddLinkExtension<'a> {
        /// The sender reaches the peer without a gateway.
        pub direct: bool,
        /// The count field. A sender states the length of [`rtokens`](Self::rtokens); only
        /// messages of other implementations state more.
        pub stated_count: u16,
    }
    28 bytes {
        given v2_flags: u8 => FLAGS,
        zero reserved_45: [u8; 1],
        /// The client GID that the server would like to use. Linux puts its own GID there.
        pub client_target_gid: RoceGid,
        zero reserved_62: [u8; 8],
        given rtoken_count: [u8; 2] => Unswapped,
    }
    then {
        /// The RMBs that the new link shall serve as well, at most [`MAX_RTOKENS`].
        pub rtokens: &'a [WireRtoken],
    }
}

/// The sender reaches the peer without a gateway.
const DIRECT: Bits = Bits::flag("v2_direct", 0x80);
const FLAGS: Show = Show::Bits(&[DIRECT, Bits::reserved("reserved_v2_flags", !DIRECT.mask)]);

impl<'a> AddLink<'a> {
    pub(super) fn parse(header: &Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<Self>(bytes)?;
        let (dialect, class) = (header.dialect(), AddLinkClass::from_header(header));
        let may_extend = dialect.is_v2() && !matches!(class, AddLinkClass::Rejected(_));
        let extension = if may_extend && !rest.is_empty() {
            Some(AddLinkExtension::parse(rest, dialect.order())?)
        } else {
            None
        };
        Ok(Self::from_raw(raw, dialect, class, extension))
    }

    /// The rejection of this request: its first 44 bytes with other flags.
    ///
    /// v2 peers running Linux lose the reason and never send one; send
    /// [`RejectReason::NONE`] to them.
    #[must_use]
    pub fn rejection(&self, reason: RejectReason) -> AddLink<'static> {
        AddLink::from_raw(
            &self.raw(),
            self.dialect,
            AddLinkClass::Rejected(reason),
            None,
        )
    }

    /// Bytes the message takes: 44, with a continuation 72 and 16 for each rtoken.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let extension = self.extension.map_or(0, |extension| {
            size_of_val(extension.rtokens).saturating_add(AddLinkExtension::LEN)
        });
        MESSAGE_LEN.saturating_add(extension)
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below [`encoded_len`](Self::encoded_len);
    /// [`EmitError::Invalid`] for a continuation in a rejection or in v1, and for more than
    /// [`MAX_RTOKENS`] rtokens or more than the count states.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::AddLink;
        let flags = match self.class {
            AddLinkClass::Request => (0, RejectReason::NONE),
            AddLinkClass::Accepted => (RESPONSE.mask, RejectReason::NONE),
            AddLinkClass::Rejected(reason) => (RESPONSE.mask | REJECTED.mask, reason),
        };
        let raw = self.raw();
        let Some(extension) = self.extension else {
            return emit_reason(KIND, self.dialect, flags, &[raw.as_bytes()], buffer);
        };
        let fail = |field, reason| Err(invalid(KIND.kind(), field, reason));
        if !self.dialect.is_v2() {
            return fail("v2 continuation", "does not exist in v1");
        }
        if matches!(self.class, AddLinkClass::Rejected(_)) {
            return fail("v2 continuation", "does not exist in a rejection");
        }
        if extension.rtokens.len() > MAX_RTOKENS {
            return fail("rtokens", "more than a receiver takes");
        }
        if extension.rtokens.len() > usize::from(extension.stated_count) {
            return fail("rtoken count", "less than the rtokens there are");
        }
        let count = self.dialect.order().u16_bytes(extension.stated_count);
        let more = extension.raw(DIRECT.when(extension.direct), count);
        let body = [
            raw.as_bytes(),
            more.as_bytes(),
            extension.rtokens.as_bytes(),
        ];
        emit_reason(KIND, self.dialect, flags, &body, buffer)
    }
}

impl<'a> AddLinkExtension<'a> {
    /// Linux states its connections as the count, of which there may be more than RMBs; hence the
    /// rtokens are as many as stated, as the received size holds, and as a receiver must take.
    fn parse(bytes: &'a [u8], order: ByteOrder) -> Result<Self, DecodeError> {
        let Ok((raw, rest)) = Raw::<Self>::ref_from_prefix(bytes) else {
            let needed = MESSAGE_LEN.saturating_add(Self::LEN);
            let got = MESSAGE_LEN.saturating_add(bytes.len());
            let cause = DecodeErrorKind::Truncated { needed, got };
            let (kind, field) = (MessageKind::AddLink, "v2 continuation");
            return Err(DecodeError::new(kind, field, MESSAGE_LEN, cause));
        };
        let count = order.u16(raw.rtoken_count);
        let rtokens = list(rest, usize::from(count).min(MAX_RTOKENS));
        let direct = raw.v2_flags & DIRECT.mask != 0;
        Ok(Self::from_raw(raw, direct, count, rtokens))
    }
}

part! {
    /// Contents of ADD LINK CONT, v1 only: the RMBs that the new link shall serve, two at a time.
    ///
    /// Server and client take turns until both have stated that nothing is left, at least once
    /// each.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct AddLinkCont {
        /// Request from the server, response from the client.
        pub class: Class,
    }
    4 bytes {
        /// The new link.
        pub link as "link_number": LinkNumber,
        /// Rtokens still to be sent, those of this message included.
        pub left as "rtokens_left": u8,
        zero reserved_6: [u8; 2],
    }
    then {
        /// The first of them.
        pub rtokens: Bounded<WireRtoken, 2>,
    }
}

impl AddLinkCont {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<Self>(bytes)?;
        let rtokens = list(rest, raw.left.into()).iter().copied();
        let rtokens = Bounded::from_iter_lossy(rtokens);
        Ok(Self::from_raw(raw, header.class(), rtokens))
    }

    /// The message that sends the first of the RMBs that are left.
    #[must_use]
    pub fn of(class: Class, link: LinkNumber, left: &[Rtoken]) -> Self {
        Self {
            class,
            link,
            left: u8::try_from(left.len()).unwrap_or(u8::MAX),
            rtokens: Bounded::from_iter_lossy(left.iter().copied().map(WireRtoken::from)),
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below 44 bytes; [`EmitError::Invalid`] if there are not as
    /// many rtokens as `left` asks for, which is two or the rest.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        const KIND: MessageType = MessageType::AddLinkCont;
        if self.rtokens.len() != usize::from(self.left).min(2) {
            let reason = "contradicts the rtokens there are";
            return Err(invalid(KIND.kind(), "rtokens left", reason));
        }
        let raw = self.raw();
        let body = [raw.as_bytes(), self.rtokens.as_slice().as_bytes()];
        emit(KIND, Dialect::V1, self.class.flag(), &body, buffer)
    }
}

/// Contents of REQUEST ADD LINK; v2 only.
///
/// The number of received GIDs is bounded by the received size, so that a wrong count never makes
/// an error. At most eight are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestAddLink {
    /// Byte order of the length field.
    pub order: ByteOrder,
    /// Request or response.
    pub class: RequestAddLinkClass,
}

layouts! {
    /// Fixed part of a message; GIDs follow.
    pub(crate) struct GidCount: 24 {
        reserved_4: [u8; 20] => Reserved,
        gid_count: u8 => DEC,
        reserved_25: [u8; 3] => Reserved,
    }
}

/// The two forms of REQUEST ADD LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "one bit on the wire")]
pub enum RequestAddLinkClass {
    /// Of the client, 28 bytes and 16 for each GID.
    Request {
        /// RoCEv2 GIDs of the client, that of the present link first; at least one.
        gids: Bounded<RoceGid, 8>,
    },
    /// Of the server, 44 bytes: no link will be added, whatever the fields contain.
    Response {
        /// Flag bit 0x40; Linux leaves it out.
        rejected: bool,
        /// Why; Linux sends none.
        reason: RejectReason,
    },
}

impl RequestAddLink {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<GidCount>(bytes)?;
        let class = match header.class() {
            Class::Request => {
                let gids: &[RoceGid] = list(rest, raw.gid_count.into());
                RequestAddLinkClass::Request {
                    gids: Bounded::from_iter_lossy(gids.iter().copied()),
                }
            }
            Class::Response => RequestAddLinkClass::Response {
                rejected: header.has(REJECTED),
                reason: header.reason(),
            },
        };
        let order = header.dialect().order();
        Ok(Self { order, class })
    }

    /// Bytes the message takes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        match &self.class {
            RequestAddLinkClass::Request { gids } => size_of_val(gids.as_slice())
                .saturating_add(HEADER_LEN)
                .saturating_add(GidCount::LEN)
                .max(MESSAGE_LEN),
            RequestAddLinkClass::Response { .. } => MESSAGE_LEN,
        }
    }

    /// Writes the message to the start of `buffer` and returns its length.
    ///
    /// # Errors
    ///
    /// [`EmitError::BufferTooSmall`] below [`encoded_len`](Self::encoded_len).
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, EmitError> {
        let (flags, reason, gids) = match &self.class {
            RequestAddLinkClass::Request { gids } => (0, RejectReason::NONE, gids.as_slice()),
            RequestAddLinkClass::Response { rejected, reason } => {
                let flags = RESPONSE.mask | REJECTED.when(*rejected);
                (flags, *reason, &[][..])
            }
        };
        let raw = GidCount {
            reserved_4: [0; 20],
            gid_count: wire_count(gids.len()),
            reserved_25: [0; 3],
        };
        let (kind, dialect) = (MessageType::RequestAddLink, Dialect::V2(self.order));
        let body = [raw.as_bytes(), gids.as_bytes()];
        emit_reason(kind, dialect, (flags, reason), &body, buffer)
    }
}

nibble! {
    /// Why a link was rejected (4 bits); unknown values are kept.
    RejectReason, code
}

known_values!(RejectReason {
    /// Not given, as by Linux in v2.
    NONE = 0 "not given",
    /// There is no alternate path.
    NO_ALTERNATE_PATH = 1 "no alternate path",
    /// The MTU code is invalid.
    INVALID_MTU = 2 "invalid MTU",
});

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#03x}", self.0),
        }
    }
}
