//! CONFIRM RKEY and CONFIRM RKEY CONT: a new RMB and its keys on all links (RFC 7609 appendix
//! A.3).

use zerocopy::IntoBytes;

use super::header::{NEGATIVE, RESPONSE, RETRY, emit_header};
use super::message::{emit_parts, layout};
use super::{Dialect, Header, LinkRtoken, MESSAGE_LEN, MessageType, Step, raw};
use crate::types::{Rkey, RmbAddr};
use crate::{Bounded, DecodeError, EmitError};

/// A received CONFIRM RKEY.
#[derive(Debug, Clone, Copy)]
pub struct ConfirmRkeyView<'a> {
    header: Header,
    raw: &'a raw::ConfirmRkey,
}

impl<'a> ConfirmRkeyView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            header,
            raw: layout(MessageType::ConfirmRkey, bytes)?,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The contents without reserved fields and unused entries.
    #[must_use]
    pub fn to_repr(&self) -> ConfirmRkey {
        let valid = usize::from(self.raw.count);
        let further = self
            .raw
            .further
            .iter()
            .take(valid)
            .map(LinkRtoken::from_raw);
        ConfirmRkey {
            dialect: self.header.dialect(),
            step: RkeyStep::from_header(&self.header),
            rkey: Rkey(self.raw.rkey.get()),
            address: RmbAddr(self.raw.address.get()),
            further_links: self.raw.count,
            further: Bounded::from_iter_lossy(further),
        }
    }
}

/// Contents of CONFIRM RKEY.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmRkey {
    /// Version and byte order.
    pub dialect: Dialect,
    /// Request, or how it is answered.
    pub step: RkeyStep,
    /// Key of the new RMB on the link that carries the message.
    pub rkey: Rkey,
    /// Address of the new RMB there.
    pub address: RmbAddr,
    /// How many links there are besides that one. Those that do not fit here follow in
    /// CONFIRM RKEY CONT; Linux answers more than three negatively.
    pub further_links: u8,
    /// The RMB on the first two of those links.
    pub further: Bounded<LinkRtoken, 2>,
}

impl ConfirmRkey {
    /// The response to this request: the same body.
    #[must_use]
    pub const fn response(self, step: RkeyStep) -> Self {
        Self { step, ..self }
    }

    /// Bytes the message takes: 44.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        MESSAGE_LEN
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
            return Err(EmitError::Invalid {
                message: KIND.kind(),
                field: "further links",
                reason: "contradicts the rtokens there are",
            });
        }
        let raw = raw::ConfirmRkey {
            header: emit_header(KIND, self.dialect, self.step.flags(), 0, MESSAGE_LEN)?,
            count: self.further_links,
            rkey: self.rkey.0.into(),
            address: self.address.0.into(),
            further: padded(&self.further),
            reserved: 0,
        };
        emit_parts(KIND.kind(), buffer, &[raw.as_bytes()])
    }
}

/// A received CONFIRM RKEY CONT; v1 only.
#[derive(Debug, Clone, Copy)]
pub struct ConfirmRkeyContView<'a> {
    header: Header,
    raw: &'a raw::ConfirmRkeyCont,
}

impl<'a> ConfirmRkeyContView<'a> {
    pub(super) fn parse(header: Header, bytes: &'a [u8]) -> Result<Self, DecodeError> {
        Ok(Self {
            header,
            raw: layout(MessageType::ConfirmRkeyCont, bytes)?,
        })
    }

    /// The header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The contents without unused entries.
    #[must_use]
    pub fn to_repr(&self) -> ConfirmRkeyCont {
        let valid = usize::from(self.raw.left);
        let rtokens = self
            .raw
            .rtokens
            .iter()
            .take(valid)
            .map(LinkRtoken::from_raw);
        ConfirmRkeyCont {
            step: RkeyStep::from_header(&self.header),
            left: self.raw.left,
            rtokens: Bounded::from_iter_lossy(rtokens),
        }
    }
}

/// Contents of CONFIRM RKEY CONT, needed only with more than three links; Linux drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmRkeyCont {
    /// Request, or how it is answered.
    pub step: RkeyStep,
    /// Links still to be told of, those of this message included.
    pub left: u8,
    /// The RMB on the first of those links.
    pub rtokens: Bounded<LinkRtoken, 3>,
}

impl ConfirmRkeyCont {
    /// Bytes the message takes: 44.
    #[must_use]
    pub const fn encoded_len(&self) -> usize {
        MESSAGE_LEN
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
            return Err(EmitError::Invalid {
                message: KIND.kind(),
                field: "rtokens left",
                reason: "contradicts the rtokens there are",
            });
        }
        let raw = raw::ConfirmRkeyCont {
            header: emit_header(KIND, Dialect::V1, self.step.flags(), 0, MESSAGE_LEN)?,
            left: self.left,
            rtokens: padded(&self.rtokens),
        };
        emit_parts(KIND.kind(), buffer, &[raw.as_bytes()])
    }
}

/// The forms of the messages that announce keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "three bits on the wire")]
pub enum RkeyStep {
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

impl RkeyStep {
    fn from_header(header: &Header) -> Self {
        match header.step() {
            Step::Request => Self::Request,
            Step::Response if header.has(NEGATIVE) => Self::Rejected {
                retry: header.has(RETRY),
            },
            Step::Response => Self::Accepted,
        }
    }

    const fn flags(self) -> u8 {
        match self {
            Self::Request => 0,
            Self::Accepted => RESPONSE,
            Self::Rejected { retry: false } => RESPONSE | NEGATIVE,
            Self::Rejected { retry: true } => RESPONSE | NEGATIVE | RETRY,
        }
    }
}

/// The entries in wire form, unused ones zero.
fn padded<const N: usize>(rtokens: &Bounded<LinkRtoken, N>) -> [raw::LinkRtoken; N] {
    let mut padded = [LinkRtoken::default().to_raw(); N];
    for (to, from) in padded.iter_mut().zip(rtokens) {
        *to = from.to_raw();
    }
    padded
}
