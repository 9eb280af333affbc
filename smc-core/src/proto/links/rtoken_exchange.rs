//! The keys of all RMBs on a link that is being added (docs/spec/llc.md#keys-of-a-new-link).

use smc_wire::llc::{AddLinkCont, Class, Rtoken};
use smc_wire::types::LinkNumber;

use super::{LinkGroup, LinkId, NotAdded};
use crate::proto::group::DeviceIndex;

/// State of the ADD LINK CONT exchange of version 1.
#[derive(Debug, Default)]
pub(super) struct RtokenExchange {
    /// RMBs to announce.
    left: Vec<Rtoken>,
    /// Number of RMBs that the peer had left in its last message.
    peer_left: Option<u8>,
}

impl RtokenExchange {
    pub(super) const fn new(left: Vec<Rtoken>) -> Self {
        Self {
            left,
            peer_left: None,
        }
    }

    /// The next message; its contents count as announced.
    pub(super) fn next_message(&mut self, class: Class, link: LinkNumber) -> AddLinkCont {
        let message = AddLinkCont::of(class, link, &self.left);
        self.left.drain(..message.rtokens.len());
        message
    }

    /// A message of the peer, which has to make progress.
    pub(super) fn handle_message(&mut self, message: &AddLinkCont) -> Result<(), NotAdded> {
        let told = message.rtokens.len().try_into().unwrap_or(u8::MAX);
        let is_closer = self.peer_left.is_none_or(|before| message.left <= before);
        self.peer_left = Some(message.left.saturating_sub(told));
        is_closer.then_some(()).ok_or(NotAdded::Violation)
    }

    /// Whether both sides have nothing left to announce.
    pub(super) fn is_done(&self) -> bool {
        self.left.is_empty() && self.peer_left == Some(0)
    }
}

impl LinkGroup {
    /// The keys of local RMBs that the peer needs on a link of another device.
    pub(super) fn rtokens_for(&self, over: LinkId, new: DeviceIndex) -> Vec<Rtoken> {
        let device = self.link(over).map(|info| info.device);
        device.map_or_else(Vec::new, |over| self.local_rmbs.rtokens(over, new))
    }

    /// The peer's keys of its RMBs on a new link.
    pub(super) fn store_peer_rtokens(
        &mut self,
        over: LinkId,
        new: LinkId,
        rtokens: impl IntoIterator<Item = Rtoken>,
    ) {
        for rtoken in rtokens {
            if let Some(id) = self.rtokens.find(over, rtoken.rkey) {
                self.rtokens
                    .set(id, new, rtoken.new_rkey, rtoken.new_address);
            }
        }
    }
}
