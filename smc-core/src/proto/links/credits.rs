//! Receive credits of a link (docs/spec/extensions.md#receive-credits).

use smc_wire::cdc::CdcR;
use smc_wire::llc::{Message, MessageType};
use thiserror::Error;

/// The credits of one link in both directions, where the ends have agreed on them.
///
/// A credit is a receive buffer at the other end. Each SEND takes one, and no message is sent
/// without one, so that none finds the receive queue empty (RNR). A receiver grants the credit
/// again when it has posted the buffer again.
///
/// The last credits are for LLC messages, and the very last one for a message that grants credits:
/// ends that have run out of them could not go on otherwise.
#[derive(Clone, Debug)]
pub struct Credits {
    /// SENDs that the peer has buffers for.
    available: u32,
    /// Credits that the peer has not used yet, those on the way to it included.
    granted: u32,
    /// Credits to be granted.
    owed: u32,
    /// Number of owed credits that are worth a message of their own.
    watermark: u32,
    /// None were granted yet: the peer does not know how many there are.
    is_new: bool,
}

/// A peer that does not keep to the credits: its link ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{}", self.message())]
pub enum CreditError {
    /// It has sent a message without a credit.
    Overdrawn,
    /// It grants more than [`CREDITS_MAX`].
    TooMany,
}

impl CreditError {
    /// What is wrong.
    #[must_use]
    pub const fn message(self) -> &'static str {
        match self {
            Self::Overdrawn => "peer sends without a receive credit",
            Self::TooMany => "peer grants more receive credits than are possible",
        }
    }
}

/// Credits that both ends have of each new link.
pub const INITIAL_CREDITS: u32 = 32;

/// Receive buffers that are never granted: for completions that are under way when the peer has
/// its credits back already.
const SPARE_RECEIVES: u32 = 16;

/// Most credits that an end can have.
pub const CREDITS_MAX: u32 = 1 << 14;

/// Credits that are left for LLC messages.
const FOR_LLC: u32 = 4;

/// Credits that are left for a message that grants credits.
const FOR_GRANTS: u32 = 1;

/// The credits that a received message grants, whatever it is.
#[must_use]
pub fn granted_credits(message: &[u8]) -> u32 {
    let Some(&kind) = message.first() else {
        return 0;
    };
    if kind == CdcR::TYPE {
        return CdcR::credits(message).into();
    }
    // Others are parsed where they are handled.
    if MessageType::from_byte(kind) != Some(MessageType::AnnounceCredits) {
        return 0;
    }
    match Message::parse(message) {
        Ok(Message::AnnounceCredits(announced)) => announced.credits.into(),
        _ => 0,
    }
}

impl Credits {
    /// Those of a new link, at which this side has so many receives posted.
    #[must_use]
    pub fn new(receives: u32) -> Self {
        let most = receives.saturating_sub(SPARE_RECEIVES);
        let most = most.clamp(INITIAL_CREDITS, CREDITS_MAX);
        Self {
            available: INITIAL_CREDITS,
            granted: INITIAL_CREDITS,
            owed: most.saturating_sub(INITIAL_CREDITS),
            is_new: most > INITIAL_CREDITS,
            watermark: most / 2,
        }
    }

    /// SENDs that can be made now.
    #[must_use]
    pub const fn available(&self) -> u32 {
        self.available
    }

    /// Whether a CDC message can be sent.
    #[must_use]
    pub const fn allows_cdc(&self) -> bool {
        self.available > FOR_LLC
    }

    /// Whether an LLC message can be sent.
    #[must_use]
    pub const fn allows_llc(&self) -> bool {
        self.available > FOR_GRANTS
    }

    /// What to grant by a message of its own, if that is due and can be sent.
    #[must_use]
    pub fn announcement(&self) -> Option<u16> {
        let is_worth_the_last = self.owed >= self.watermark && self.available > 0;
        let tells = self.is_new && self.owed > 0 && self.available > FOR_GRANTS;
        (is_worth_the_last || tells).then(|| self.grant(u16::MAX))
    }

    /// What the next CDC message grants.
    #[must_use]
    pub fn with_cdc(&self) -> u8 {
        self.grant(u8::MAX)
    }

    fn grant<N: TryFrom<u32> + Copy>(&self, most: N) -> N {
        N::try_from(self.owed).unwrap_or(most)
    }

    /// A message was sent, which grants so many credits.
    pub fn sent(&mut self, grants: u32) {
        self.available = self.available.saturating_sub(1);
        let grants = grants.min(self.owed);
        self.owed = self.owed.saturating_sub(grants);
        self.is_new &= grants == 0;
        self.granted = self.granted.saturating_add(grants);
    }

    /// A message was received, and its receive posted again; it grants so many credits.
    ///
    /// # Errors
    ///
    /// The peer had no credit for it, or grants too many.
    pub fn received(&mut self, grants: u32) -> Result<(), CreditError> {
        self.granted = self.granted.checked_sub(1).ok_or(CreditError::Overdrawn)?;
        self.owed = self.owed.saturating_add(1);
        let available = self.available.saturating_add(grants);
        if available > CREDITS_MAX {
            return Err(CreditError::TooMany);
        }
        self.available = available;
        Ok(())
    }
}
