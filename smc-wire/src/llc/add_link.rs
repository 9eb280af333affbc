//! ADD LINK: another link for the link group (RFC 7609 appendix A.3; continuation in v2).

use core::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::header::{REASON, REJECTED, RESPONSE, emit_header};
use super::message::{emit_parts, layout};
use super::order::{read_u16, write_u16};
use super::{
    ByteOrder, Dialect, Header, MAX_RTOKENS, MESSAGE_LEN, MessageType, Step, WireRtoken, raw,
};
use crate::types::{LinkNumber, Mac, MtuCode, Psn, Qpn, RoceGid};
use crate::{DecodeError, DecodeErrorKind, EmitError};

/// A received ADD LINK.
///
/// Malformed, and to be dropped: a v2 request or positive response of 45 to 71 bytes, whose
/// continuation is cut off.
#[derive(Debug, Clone, Copy)]
pub struct AddLinkView<'a> {
    header: Header,
    raw: &'a raw::AddLink,
    extension: Option<AddLinkExtensionView<'a>>,
}

impl<'a> AddLinkView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let raw = layout(MessageType::AddLink, bytes)?;
        let rest = bytes.get(MESSAGE_LEN..).unwrap_or_default();
        let carries_extension =
            !matches!(add_link_step(&header), AddLinkStep::Rejected(_)) && !rest.is_empty();
        let extension = match header.dialect() {
            Dialect::V2(order) if carries_extension => {
                Some(AddLinkExtensionView::parse(rest, order)?)
            }
            _ => None,
        };
        Ok(Self {
            header,
            raw,
            extension,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The v2 continuation; never present in v1 and in rejections.
    #[must_use]
    pub const fn extension(&self) -> Option<AddLinkExtensionView<'a>> {
        self.extension
    }

    /// The contents without reserved fields; rtokens stay borrowed.
    #[must_use]
    pub fn to_repr(&self) -> AddLink<'a> {
        AddLink {
            dialect: self.header.dialect(),
            step: add_link_step(&self.header),
            mac: self.raw.mac,
            gid: self.raw.gid,
            qpn: Qpn::from_be_bytes(self.raw.qpn),
            link: LinkNumber(self.raw.link),
            mtu: MtuCode::from_low_nibble(self.raw.mtu),
            psn: Psn::from_be_bytes(self.raw.psn),
            extension: self.extension.map(|extension| extension.to_repr()),
        }
    }
}

fn add_link_step(header: &Header) -> AddLinkStep {
    match header.step() {
        Step::Request => AddLinkStep::Request,
        Step::Response if header.has(REJECTED) => {
            AddLinkStep::Rejected(RejectReason::from_low_nibble(header.reason()))
        }
        Step::Response => AddLinkStep::Accepted,
    }
}

/// What follows the first 44 bytes of ADD LINK in v2.
#[derive(Debug, Clone, Copy)]
pub struct AddLinkExtensionView<'a> {
    raw: &'a raw::AddLinkExtension,
    order: ByteOrder,
    rest: &'a [u8],
}

impl<'a> AddLinkExtensionView<'a> {
    /// v2 flags: the sender reaches the peer without a gateway.
    const DIRECT: u8 = 0x80;

    fn parse(rest: &'a [u8], order: ByteOrder) -> Result<Self, DecodeError> {
        let Ok((raw, tail)) = raw::AddLinkExtension::ref_from_prefix(rest) else {
            let needed = MESSAGE_LEN.saturating_add(size_of::<raw::AddLinkExtension>());
            let got = MESSAGE_LEN.saturating_add(rest.len());
            return Err(DecodeError::new(
                MessageType::AddLink.kind(),
                "v2 continuation",
                MESSAGE_LEN,
                DecodeErrorKind::Truncated { needed, got },
            ));
        };
        Ok(Self {
            raw,
            order,
            rest: tail,
        })
    }

    /// The number of rtokens that the message states.
    ///
    /// Linux states its connections there, of which there may be more than RMBs, hence
    /// [`rtokens`](Self::rtokens) can be shorter.
    #[must_use]
    pub const fn stated_count(&self) -> u16 {
        read_u16(self.order, self.raw.count)
    }

    /// The rtokens: as many as stated, as the received size holds, and as a receiver must take.
    #[must_use]
    pub fn rtokens(&self) -> &'a [WireRtoken] {
        raw::list(self.rest, usize::from(self.stated_count()).min(MAX_RTOKENS))
    }

    /// The contents without reserved fields.
    #[must_use]
    pub fn to_repr(&self) -> AddLinkExtension<'a> {
        AddLinkExtension {
            direct: self.raw.flags & Self::DIRECT != 0,
            client_target_gid: self.raw.client_target_gid,
            stated_count: self.stated_count(),
            rtokens: self.rtokens(),
        }
    }
}

/// Contents of ADD LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLink<'a> {
    /// Version and byte order.
    pub dialect: Dialect,
    /// Request, or how it is answered.
    pub step: AddLinkStep,
    /// MAC of the port the sender uses for the new link. In a rejection this and all that follows
    /// is what the request said.
    pub mac: Mac,
    /// GID of the sender on the new link.
    pub gid: RoceGid,
    /// The sender's new queue pair.
    pub qpn: Qpn,
    /// Number of the new link, chosen by the server. In the hint of a v1 client this, the queue
    /// pair, the MTU and the PSN are zero.
    pub link: LinkNumber,
    /// Path MTU; a response has the smaller one of both.
    pub mtu: MtuCode,
    /// First packet sequence number of the sender on the new queue pair.
    pub psn: Psn,
    /// v2, in requests and positive responses only.
    pub extension: Option<AddLinkExtension<'a>>,
}

/// The three forms of ADD LINK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "two bits on the wire")]
pub enum AddLinkStep {
    /// A server offers a link, or a v1 client hints that it would like one.
    Request,
    /// The client takes it.
    Accepted,
    /// The client refuses it.
    Rejected(RejectReason),
}

/// The v2 continuation of [`AddLink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLinkExtension<'a> {
    /// The sender reaches the peer without a gateway.
    pub direct: bool,
    /// The client GID that the server would like to use. Linux puts its own GID there.
    pub client_target_gid: RoceGid,
    /// What the count field says. A sender states the length of [`rtokens`](Self::rtokens); only
    /// messages of other implementations state more.
    pub stated_count: u16,
    /// The RMBs that the new link shall serve as well, at most [`MAX_RTOKENS`].
    pub rtokens: &'a [WireRtoken],
}

impl AddLink<'_> {
    /// The rejection of this request: its first 44 bytes with other flags.
    ///
    /// v2 peers running Linux lose the reason and never send one; send
    /// [`RejectReason::NONE`] to them.
    #[must_use]
    pub fn rejection(&self, reason: RejectReason) -> AddLink<'static> {
        let Self {
            dialect,
            step: _,
            mac,
            gid,
            qpn,
            link,
            mtu,
            psn,
            extension: _,
        } = *self;
        let step = AddLinkStep::Rejected(reason);
        AddLink {
            dialect,
            step,
            mac,
            gid,
            qpn,
            link,
            mtu,
            psn,
            extension: None,
        }
    }

    /// Bytes the message takes: 44, with a continuation 72 and 16 for each rtoken.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        let extension = self.extension.map_or(0, |extension| {
            size_of_val(extension.rtokens).saturating_add(size_of::<raw::AddLinkExtension>())
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
        let invalid = |field, reason| EmitError::Invalid {
            message: KIND.kind(),
            field,
            reason,
        };
        let (flags, reason) = match self.step {
            AddLinkStep::Request => (0, RejectReason::NONE),
            AddLinkStep::Accepted => (RESPONSE, RejectReason::NONE),
            AddLinkStep::Rejected(reason) => (RESPONSE | REJECTED, reason),
        };
        let header = emit_header(KIND, self.dialect, flags, reason.code(), self.encoded_len())?;
        let raw = raw::AddLink {
            header,
            mac: self.mac,
            reserved: [0; 2],
            gid: self.gid,
            qpn: self.qpn.to_be_bytes(),
            link: self.link.0,
            mtu: self.mtu.code(),
            psn: self.psn.to_be_bytes(),
            reserved2: [0; 8],
        };
        let Some(extension) = self.extension else {
            return emit_parts(KIND.kind(), buffer, &[raw.as_bytes()]);
        };
        if !self.dialect.is_v2() {
            return Err(invalid("v2 continuation", "does not exist in v1"));
        }
        if matches!(self.step, AddLinkStep::Rejected(_)) {
            return Err(invalid("v2 continuation", "does not exist in a rejection"));
        }
        if extension.rtokens.len() > MAX_RTOKENS {
            return Err(invalid("rtokens", "more than a receiver takes"));
        }
        if extension.rtokens.len() > usize::from(extension.stated_count) {
            return Err(invalid("rtoken count", "less than the rtokens there are"));
        }
        let more = raw::AddLinkExtension {
            flags: if extension.direct {
                AddLinkExtensionView::DIRECT
            } else {
                0
            },
            reserved: 0,
            client_target_gid: extension.client_target_gid,
            reserved2: [0; 8],
            count: write_u16(self.dialect.order(), extension.stated_count),
        };
        let parts = [
            raw.as_bytes(),
            more.as_bytes(),
            extension.rtokens.as_bytes(),
        ];
        emit_parts(KIND.kind(), buffer, &parts)
    }
}

/// Why a link was rejected (4 bits); unknown values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RejectReason(u8);

impl RejectReason {
    /// Not given, as by Linux in v2.
    pub const NONE: Self = Self(0);
    /// There is no alternate path.
    pub const NO_ALTERNATE_PATH: Self = Self(1);
    /// The MTU code is invalid.
    pub const INVALID_MTU: Self = Self(2);

    /// The reason in the low four bits of a byte.
    #[must_use]
    pub const fn from_low_nibble(byte: u8) -> Self {
        Self(byte & REASON)
    }

    /// The code, 0..=15.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.0
    }

    /// What the code means, if it is one of those above.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::NONE => "not given",
            Self::NO_ALTERNATE_PATH => "no alternate path",
            Self::INVALID_MTU => "invalid MTU",
            _ => return None,
        })
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{:#03x}", self.0),
        }
    }
}
