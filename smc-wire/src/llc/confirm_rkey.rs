//! CONFIRM RKEY and CONFIRM RKEY CONT: a new RMB and its keys on all links (RFC 7609 appendix
//! A.3).

use zerocopy::IntoBytes;

use super::header::{NEGATIVE, RESPONSE, RETRY, emit};
use super::{Dialect, Header, LinkRtoken, MessageType, RejectReason, Step, raw};
use crate::types::{Rkey, RmbAddr};
use crate::writer::invalid;
use crate::{Bounded, DecodeError, EmitError};

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
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<raw::ConfirmRkey>(bytes)?;
        let further = raw::list(rest, raw.further_links.into());
        Ok(Self {
            dialect: header.dialect(),
            step: RkeyStep::from_header(header),
            rkey: Rkey(raw.rkey.get()),
            address: RmbAddr(raw.address.get()),
            further_links: raw.further_links,
            further: Bounded::from_iter_lossy(further.iter().map(LinkRtoken::from_raw)),
        })
    }

    /// The response to this request: the same body.
    #[must_use]
    pub const fn response(self, step: RkeyStep) -> Self {
        Self { step, ..self }
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
        let raw = raw::ConfirmRkey {
            further_links: self.further_links,
            rkey: self.rkey.0.into(),
            address: self.address.0.into(),
        };
        let (flags, reason) = (self.step.flags(), RejectReason::NONE);
        let further = wire_form(&self.further);
        let body = [raw.as_bytes(), further.as_bytes()];
        emit(KIND, self.dialect, flags, reason, &body, buffer)
    }
}

/// Contents of CONFIRM RKEY CONT, needed only with more than three links; Linux drops it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConfirmRkeyCont {
    /// Request, or how it is answered.
    pub step: RkeyStep,
    /// Links still to be announced, those of this message included.
    pub left: u8,
    /// The RMB on the first of those links.
    pub rtokens: Bounded<LinkRtoken, 3>,
}

impl ConfirmRkeyCont {
    pub(super) fn parse(header: &Header, bytes: &[u8]) -> Result<Self, DecodeError> {
        let (raw, rest) = header.body::<raw::ConfirmRkeyCont>(bytes)?;
        let rtokens = raw::list(rest, raw.rtokens_left.into());
        Ok(Self {
            step: RkeyStep::from_header(header),
            left: raw.rtokens_left,
            rtokens: Bounded::from_iter_lossy(rtokens.iter().map(LinkRtoken::from_raw)),
        })
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
        let rtokens = wire_form(&self.rtokens);
        let body = [&[self.left], rtokens.as_bytes()];
        let (flags, reason) = (self.step.flags(), RejectReason::NONE);
        emit(KIND, Dialect::V1, flags, reason, &body, buffer)
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
fn wire_form<const N: usize>(rtokens: &Bounded<LinkRtoken, N>) -> [raw::LinkRtoken; N] {
    let mut wire = [LinkRtoken::default().to_raw(); N];
    for (to, from) in wire.iter_mut().zip(rtokens) {
        *to = from.to_raw();
    }
    wire
}
