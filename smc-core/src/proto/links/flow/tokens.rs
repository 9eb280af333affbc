//! The keys of all RMBs on a link that is being added (docs/spec/llc.md#keys-of-a-new-link).

use smc_wire::llc::{AddLinkCont, Rtoken, Step};
use smc_wire::types::LinkNumber;

use crate::proto::group::DeviceIndex;
use crate::proto::links::{LinkGroup, LinkId};

/// ADD LINK CONT: where the turn-taking of version 1 stands.
#[derive(Debug, Default)]
pub(in crate::proto::links) struct Telling {
    /// What we have to tell.
    left: Vec<Rtoken>,
    /// What the peer had to tell at its last turn.
    peer_left: Option<u8>,
}

impl Telling {
    pub(in crate::proto::links) const fn new(left: Vec<Rtoken>) -> Self {
        Self {
            left,
            peer_left: None,
        }
    }

    /// Our next message; what it says is told then.
    pub(in crate::proto::links) fn say(&mut self, step: Step, link: LinkNumber) -> AddLinkCont {
        let message = AddLinkCont::of(step, link, &self.left);
        self.left.drain(..message.rtokens.len());
        message
    }

    /// The peer's message. `None` if it does not come any closer to its end.
    pub(in crate::proto::links) fn hear(&mut self, message: &AddLinkCont) -> Option<()> {
        let told = u8::try_from(message.rtokens.len()).ok()?;
        let is_closer = self.peer_left.is_none_or(|before| message.left <= before);
        self.peer_left = Some(message.left.saturating_sub(told));
        is_closer.then_some(())
    }

    /// Whether nobody has anything to tell.
    pub(in crate::proto::links) fn is_done(&self) -> bool {
        self.left.is_empty() && self.peer_left == Some(0)
    }
}

impl LinkGroup {
    /// What the peer has to know of our RMBs to use them on a link of another device.
    pub(in crate::proto::links) fn rtokens_for(
        &self,
        over: LinkId,
        new: DeviceIndex,
    ) -> Vec<Rtoken> {
        let device = self.link(over).map(|info| info.device);
        device.map_or_else(Vec::new, |over| self.own.rtokens(over, new))
    }

    /// What the peer says about its RMBs on a new link.
    pub(in crate::proto::links) fn hear_rtokens(
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
