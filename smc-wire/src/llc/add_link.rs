//! ADD LINK: another link for the link group (RFC 7609 appendix A.3; continuation in v2).

use core::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::header::{REJECTED, RESPONSE, emit, flag};
use super::order::{read_u16, write_u16};
use super::{Dialect, Header, MAX_RTOKENS, MESSAGE_LEN, MessageType, Step, WireRtoken, raw};
use crate::codes::{known_values, nibble};
use crate::types::{LinkNumber, Mac, MtuCode, Psn, Qpn, RoceGid};
use crate::writer::invalid;
use crate::{DecodeError, DecodeErrorKind, EmitError};

/// Contents of ADD LINK.
///
/// Malformed, and to be dropped: a v2 request or positive response of 45 to 71 bytes, whose
/// continuation is cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLink<'a> {
    /// Version and byte order.
    pub dialect: Dialect,
    /// Request, or how it is answered.
    pub step: AddLinkStep,
    /// MAC of the port the sender uses for the new link. In a rejection this and all that follows
    /// is repeated from the request.
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

impl AddLinkStep {
    fn from_header(header: &Header) -> Self {
        match header.step() {
            Step::Request => Self::Request,
            Step::Response if header.has(REJECTED) => Self::Rejected(header.reason()),
            Step::Response => Self::Accepted,
        }
    }
}

/// The v2 continuation of [`AddLink`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddLinkExtension<'a> {
    /// The sender reaches the peer without a gateway.
    pub direct: bool,
    /// The client GID that the server would like to use. Linux puts its own GID there.
    pub client_target_gid: RoceGid,
    /// The count field. A sender states the length of [`rtokens`](Self::rtokens); only
    /// messages of other implementations state more.
    pub stated_count: u16,
    /// The RMBs that the new link shall serve as well, at most [`MAX_RTOKENS`].
    pub rtokens: &'a [WireRtoken],
}

impl<'a> AddLink<'a> {
    pub(super) fn parse(header: &Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<raw::AddLink>(bytes)?;
        let (dialect, step) = (header.dialect(), AddLinkStep::from_header(header));
        let may_extend = dialect.is_v2() && !matches!(step, AddLinkStep::Rejected(_));
        let extension = if may_extend && !rest.is_empty() {
            Some(AddLinkExtension::parse(rest, dialect)?)
        } else {
            None
        };
        Ok(Self {
            dialect,
            step,
            mac: raw.mac,
            gid: raw.gid,
            qpn: Qpn::from_be_bytes(raw.qp_number),
            link: LinkNumber(raw.link_number),
            mtu: MtuCode::from_low_nibble(raw.mtu),
            psn: Psn::from_be_bytes(raw.initial_psn),
            extension,
        })
    }

    /// The rejection of this request: its first 44 bytes with other flags.
    ///
    /// v2 peers running Linux lose the reason and never send one; send
    /// [`RejectReason::NONE`] to them.
    #[must_use]
    pub fn rejection(&self, reason: RejectReason) -> AddLink<'static> {
        AddLink {
            dialect: self.dialect,
            step: AddLinkStep::Rejected(reason),
            mac: self.mac,
            gid: self.gid,
            qpn: self.qpn,
            link: self.link,
            mtu: self.mtu,
            psn: self.psn,
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
        let (flags, reason) = match self.step {
            AddLinkStep::Request => (0, RejectReason::NONE),
            AddLinkStep::Accepted => (RESPONSE, RejectReason::NONE),
            AddLinkStep::Rejected(reason) => (RESPONSE | REJECTED, reason),
        };
        let raw = raw::AddLink {
            mac: self.mac,
            reserved_10: [0; 2],
            gid: self.gid,
            qp_number: self.qpn.to_be_bytes(),
            link_number: self.link.0,
            mtu: self.mtu.code(),
            initial_psn: self.psn.to_be_bytes(),
            reserved_36: [0; 8],
        };
        let Some(extension) = self.extension else {
            return emit(KIND, self.dialect, flags, reason, &[raw.as_bytes()], buffer);
        };
        let fail = |field, reason| Err(invalid(KIND.kind(), field, reason));
        if !self.dialect.is_v2() {
            return fail("v2 continuation", "does not exist in v1");
        }
        if matches!(self.step, AddLinkStep::Rejected(_)) {
            return fail("v2 continuation", "does not exist in a rejection");
        }
        if extension.rtokens.len() > MAX_RTOKENS {
            return fail("rtokens", "more than a receiver takes");
        }
        if extension.rtokens.len() > usize::from(extension.stated_count) {
            return fail("rtoken count", "less than the rtokens there are");
        }
        let more = raw::AddLinkExtension {
            v2_flags: flag(extension.direct, raw::V2_DIRECT),
            reserved_45: 0,
            client_target_gid: extension.client_target_gid,
            reserved_62: [0; 8],
            rtoken_count: write_u16(self.dialect.order(), extension.stated_count),
        };
        let rtokens = extension.rtokens.as_bytes();
        let body = [raw.as_bytes(), more.as_bytes(), rtokens];
        emit(KIND, self.dialect, flags, reason, &body, buffer)
    }
}

impl<'a> AddLinkExtension<'a> {
    /// Linux states its connections as the count, of which there may be more than RMBs; hence the
    /// rtokens are as many as stated, as the received size holds, and as a receiver must take.
    fn parse(bytes: &'a [u8], dialect: Dialect) -> Result<Self, DecodeError> {
        let Ok((raw, rest)) = raw::AddLinkExtension::ref_from_prefix(bytes) else {
            let needed = MESSAGE_LEN.saturating_add(size_of::<raw::AddLinkExtension>());
            let got = MESSAGE_LEN.saturating_add(bytes.len());
            return Err(DecodeError::new(
                MessageType::AddLink.kind(),
                "v2 continuation",
                MESSAGE_LEN,
                DecodeErrorKind::Truncated { needed, got },
            ));
        };
        let stated_count = read_u16(dialect.order(), raw.rtoken_count);
        Ok(Self {
            direct: raw.v2_flags & raw::V2_DIRECT != 0,
            client_target_gid: raw.client_target_gid,
            stated_count,
            rtokens: raw::list(rest, usize::from(stated_count).min(MAX_RTOKENS)),
        })
    }
}

/// Why a link was rejected (4 bits); unknown values are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct RejectReason(u8);

nibble!(RejectReason, code);

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
