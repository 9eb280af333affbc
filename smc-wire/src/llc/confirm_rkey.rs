//! CONFIRM RKEY and CONFIRM RKEY CONT: a new RMB and its keys on all links (RFC 7609 appendix
//! A.3).

use zerocopy::IntoBytes;

use super::header::{NEGATIVE, RESPONSE, RETRY, emit};
use super::{Dialect, Header, LinkRtoken, MessageType, Step, rtoken::list};
use crate::layout::{Raw, part};
use crate::types::{Rkey, RmbAddr};
use crate::writer::invalid;
use crate::{Bounded, DecodeError, EmitError};

part! {
    /// Contents of CONFIRM RKEY.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ConfirmRkey {
        /// Version and byte order.
        pub dialect: Dialect,
        /// Request, or how it is answered.
        pub step: RkeyStep,
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
        let (dialect, step) = (header.dialect(), RkeyStep::from_header(header));
        Ok(Self::from_raw(raw, dialect, step, further))
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
        let (raw, further) = (self.raw(), wire_form(&self.further));
        let body = [raw.as_bytes(), further.as_bytes()];
        emit(KIND, self.dialect, self.step.flags(), &body, buffer)
    }
}

part! {
    /// Contents of CONFIRM RKEY CONT, needed only with more than three links; Linux drops it.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct ConfirmRkeyCont {
        /// Request, or how it is answered.
        pub step: RkeyStep,
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
        Ok(Self::from_raw(raw, RkeyStep::from_header(header), rtokens))
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
        emit(KIND, Dialect::V1, self.step.flags(), &body, buffer)
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
