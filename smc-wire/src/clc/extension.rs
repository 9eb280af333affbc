//! Extensions: typed, length-prefixed parts at the end of PROPOSAL, ACCEPT and CONFIRM
//! (docs/spec/extensions.md).
//!
//! They are for peers that have stated [`Features`] before. No other peer gets them: Linux fails a
//! PROPOSAL that is longer than its regions.

pub(crate) mod area;
mod generic;

use zerocopy::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::cdc::CdcD;
use crate::clc::{DirectEnd, RdmaEnd};
use crate::codes::known_values;
use crate::error::{DecodeError, DecodeErrorKind, EmitError, MessageKind};
use crate::layout::{BYTES, DEC, FieldType, HEX, Raw, layouts};
use crate::size::SizeCode;
use crate::types::{AuthenticationCode, Chid, Features, LinkNumber, Nonce};
use crate::writer::{Writer, invalid, wire_length};
use area::Area;
pub use generic::ExtensionPayload;
use generic::{Located, Walk};
pub(crate) use generic::{RESERVED_LEN, varint};

/// Extensions of a PROPOSAL, ACCEPT or CONFIRM, each at most once
/// (docs/spec/extensions.md#types).
///
/// Reading skips types that are not known, and padding. Whether an extension is expected in a
/// message is a matter of negotiation and not checked.
///
/// ```
/// use smc_wire::clc::{Extensions, Message, Proposal, SmcdArea};
/// use smc_wire::types::{Features, Mac, OfferedTypes, PeerId, RoceGid, Version};
///
/// let proposal = Proposal {
///     version: Version::V2,
///     v1: OfferedTypes::Neither,
///     v2: OfferedTypes::Neither,
///     peer_id: PeerId::ZERO,
///     gid: RoceGid::ZERO,
///     mac: Mac::ZERO,
///     smcd: Some(SmcdArea::default().with_vendor_features(Features::EARLY_DATA)),
///     ip: None,
///     ext: None,
/// };
/// let extensions = Extensions {
///     early_data: Some(b"GET /".as_slice().into()),
///     ..Extensions::default()
/// };
/// let mut buffer = [0; 128];
/// let len = proposal.emit_extended(&extensions, &mut buffer)?;
///
/// let received = Message::parse_extended(&buffer[..len])?;
/// assert_eq!(received, (Message::Proposal(proposal), extensions));
/// // A receiver without extensions refuses the message.
/// assert!(Message::parse(&buffer[..len]).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extensions<'a> {
    /// Features in use on this connection. Required, and not empty, where the message has no vendor
    /// options: in ACCEPT and CONFIRM without first-contact parts.
    pub features: Option<Features>,
    /// Early CONFIRM for SMC-D: the client's end of the connection, as CONFIRM would have it.
    pub direct: Option<DirectEnd>,
    /// Early CONFIRM for SMC-R: the client's end of the connection, as CONFIRM would have it.
    pub rdma: Option<EarlyRdmaEnd>,
    /// Identifies the PROPOSAL, so that a replay of its early data is recognised.
    pub nonce: Option<Nonce>,
    /// Shows that ACCEPT or CONFIRM of a further connection, or an early CONFIRM, comes from the
    /// other end of the link group.
    pub authentication: Option<Authentication>,
    /// Early data: the first bytes of the stream, at most [`MAX_EARLY_DATA`](Self::MAX_EARLY_DATA).
    pub early_data: Option<ExtensionPayload<'a>>,
}

/// The client's end of an SMC-R connection over a link that exists already
/// (docs/spec/extensions.md#types).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyRdmaEnd {
    /// Queue pair, RMB and alert token on that link.
    pub end: RdmaEnd,
    /// The link.
    pub link: LinkNumber,
}

/// Authentication of an ACCEPT or CONFIRM, early or not (docs/spec/extensions.md#authentication).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Authentication {
    /// Counts the messages of the sender in the link group. No number occurs twice.
    pub number: u64,
    /// The code over this number and the sender's end.
    pub code: AuthenticationCode,
}

layouts! {
    /// The extension for authentication.
    pub(crate) struct AuthenticationRaw: 24 {
        number: U64 => DEC,
        code: AuthenticationCode => BYTES,
    }

    /// What the extension for SMC-D has behind a [`DirectEnd`].
    pub(crate) struct EarlyDirectTail: 10 {
        chid: U16 => Chid::SHOW,
        extended_gid: U64 => HEX,
    }

    /// What the extension for SMC-R has behind an [`RdmaEnd`].
    pub(crate) struct EarlyRdmaTail: 1 {
        link_number: u8 => LinkNumber::SHOW,
    }
}

/// Type of an extension, 15 bits (docs/spec/extensions.md#types).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ExtensionType(u16);

known_values!(ExtensionType {
    /// No meaning.
    PADDING = 0 "padding",
    /// More of the payload before.
    CONTINUATION = 1 "continuation",
    /// IP area of a PROPOSAL.
    IP_AREA = 2 "IP area",
    /// v2 extension of a PROPOSAL.
    V2_EXTENSION = 3 "v2 extension",
    /// First-contact parts.
    FIRST_CONTACT = 4 "first contact",
    /// GID list of a CONFIRM.
    GID_LIST = 5 "GID list",
    /// [`Extensions::features`].
    FEATURES = 0x7f00 "features",
    /// [`Extensions::direct`].
    EARLY_DIRECT = 0x7f01 "early CONFIRM, SMC-D",
    /// [`Extensions::rdma`].
    EARLY_RDMA = 0x7f02 "early CONFIRM, SMC-R",
    /// [`Extensions::early_data`].
    EARLY_DATA = 0x7f03 "early data",
    /// [`Extensions::nonce`].
    NONCE = 0x7f04 "nonce",
    /// [`Extensions::authentication`].
    AUTHENTICATION = 0x7f05 "authentication",
});

impl ExtensionType {
    pub(crate) const fn new(kind: u16) -> Self {
        Self(kind)
    }

    /// The number, 0..=0x7fff.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl<'a> Extensions<'a> {
    /// The most bytes of early data: what the ring of the smallest DMB element holds.
    pub const MAX_EARLY_DATA: usize = SizeCode::MIN.byte_len() - CdcD::LEN;

    /// Space for extensions at the end of a PROPOSAL, in bytes: the longest early data, and what
    /// else is known or may be added.
    pub(super) const MAX_LEN: usize = Self::MAX_EARLY_DATA + 512;

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    fn count(&self) -> usize {
        let mut count = 0_usize;
        let _ = self.try_each(&mut |_, _| {
            count = count.saturating_add(1);
            Ok(())
        });
        count
    }

    /// Length in bytes.
    pub(super) fn encoded_len(&self) -> usize {
        let mut all = 0_usize;
        let _ = self.try_each(&mut |kind, payload| {
            let len = payload.len();
            all = all
                .saturating_add(RESERVED_LEN)
                .saturating_add(varint::encoded_len(kind.get()))
                .saturating_add(varint::encoded_len(wire_length(len)))
                .saturating_add(len);
            Ok(())
        });
        all
    }

    /// Writes each extension as one header and its payload.
    pub(super) fn emit(&self, out: &mut Writer<'_>) -> Result<(), EmitError> {
        self.try_each(&mut |kind, payload| {
            out.put(&[0_u8; RESERVED_LEN])?;
            varint::put(kind.get(), out)?;
            varint::put(wire_length(payload.len()), out)?;
            payload.pieces().try_for_each(|piece| out.put(piece))
        })
    }

    /// Where a message with the given area has these extensions; `None` if there are none.
    pub(super) fn area(
        &self,
        message: MessageKind,
        area: Option<Area>,
    ) -> Result<Option<Area>, EmitError> {
        if self.is_empty() {
            return Ok(None);
        }
        let reason = "not possible in this form of the message";
        let area = area.ok_or_else(|| invalid(message, "extensions", reason))?;
        area.check(self)?;
        Ok(Some(area))
    }

    /// Whether the extensions can be written.
    fn check(&self, message: MessageKind) -> Result<(), EmitError> {
        let data_len = self.early_data.map_or(0, |data| data.len());
        if data_len > Self::MAX_EARLY_DATA {
            return Err(invalid(message, "early data", "more than 16352 bytes"));
        }
        self.direct.map_or(Ok(()), |end| end.check(message))
    }

    /// Calls `put` with type and payload of each extension, in the order of the wire.
    fn try_each(&self, put: &mut Put<'_>) -> Result<(), EmitError> {
        if let Some(features) = self.features {
            let options = U32::new(features.to_vendor_options());
            put(ExtensionType::FEATURES, options.as_bytes().into())?;
        }
        if let Some(end) = &self.direct {
            let early = EarlyDirectRaw::new(end);
            put(ExtensionType::EARLY_DIRECT, early.as_bytes().into())?;
        }
        if let Some(early) = &self.rdma {
            let early = EarlyRdmaRaw::new(early);
            put(ExtensionType::EARLY_RDMA, early.as_bytes().into())?;
        }
        if let Some(nonce) = &self.nonce {
            put(ExtensionType::NONCE, nonce.as_bytes().as_slice().into())?;
        }
        if let Some(authentication) = self.authentication {
            let raw = AuthenticationRaw {
                number: authentication.number.into(),
                code: authentication.code,
            };
            put(ExtensionType::AUTHENTICATION, raw.as_bytes().into())?;
        }
        match self.early_data {
            Some(data) => put(ExtensionType::EARLY_DATA, data),
            None => Ok(()),
        }
    }

    /// Reads the extensions that `walk` goes through.
    fn read(mut walk: Walk<'a>) -> Result<Self, DecodeError> {
        let mut extensions = Self::default();
        while let Some(found) = walk.next()? {
            if extensions.replace(&found)? {
                return Err(found.misplaced("each type once"));
            }
        }
        Ok(extensions)
    }

    /// Takes an extension, and returns whether there was one of its type.
    fn replace(&mut self, found: &Located<'a>) -> Result<bool, DecodeError> {
        Ok(match found.kind {
            ExtensionType::FEATURES => {
                let options = found.read::<U32>()?.get();
                let features = Features::from_vendor_options(options);
                self.features.replace(features).is_some()
            }
            ExtensionType::EARLY_DIRECT => {
                let end = found.read::<EarlyDirectRaw>()?.end();
                self.direct.replace(end).is_some()
            }
            ExtensionType::EARLY_RDMA => {
                let early = found.read::<EarlyRdmaRaw>()?.early_end();
                self.rdma.replace(early).is_some()
            }
            ExtensionType::NONCE => self.nonce.replace(found.read()?).is_some(),
            ExtensionType::AUTHENTICATION => {
                let AuthenticationRaw { number, code } = found.read()?;
                let number = number.get();
                let authentication = Authentication { number, code };
                self.authentication.replace(authentication).is_some()
            }
            ExtensionType::EARLY_DATA => {
                let (maximum, got) = (Self::MAX_EARLY_DATA, found.payload.len());
                if got > maximum {
                    return Err(found.error(DecodeErrorKind::LengthAbove { maximum, got }));
                }
                self.early_data.replace(found.payload).is_some()
            }
            _ => false,
        })
    }
}

/// Gets type and payload of an extension.
type Put<'p> = dyn FnMut(ExtensionType, ExtensionPayload<'_>) -> Result<(), EmitError> + 'p;

/// Payload of the extension for SMC-D.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EarlyDirectRaw {
    end: Raw<DirectEnd>,
    tail: EarlyDirectTail,
}

impl EarlyDirectRaw {
    fn new(end: &DirectEnd) -> Self {
        Self {
            end: end.write(),
            tail: EarlyDirectTail {
                chid: end.chid.0.into(),
                extended_gid: end.gid.lo().0.into(),
            },
        }
    }

    fn end(&self) -> DirectEnd {
        let EarlyDirectTail { chid, extended_gid } = self.tail;
        DirectEnd::read(&self.end, Chid(chid.get()), extended_gid.get())
    }
}

/// Payload of the extension for SMC-R.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct EarlyRdmaRaw {
    end: Raw<RdmaEnd>,
    tail: EarlyRdmaTail,
}

impl EarlyRdmaRaw {
    fn new(early: &EarlyRdmaEnd) -> Self {
        Self {
            end: early.end.write(),
            tail: EarlyRdmaTail {
                link_number: early.link.0,
            },
        }
    }

    fn early_end(&self) -> EarlyRdmaEnd {
        EarlyRdmaEnd {
            end: RdmaEnd::read(&self.end),
            link: LinkNumber(self.tail.link_number),
        }
    }
}

#[cfg(test)]
mod tests;
