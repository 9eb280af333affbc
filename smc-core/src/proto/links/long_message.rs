//! Long-message gate: tags of sent messages, and at most one long message in flight.

use smc_wire::llc::MESSAGE_LEN;

use super::{LinkGroupOutput, LinkId, OpTag};

/// Linux has one buffer for messages above 44 bytes, shared by all links of a group
/// (docs/spec/llc.md#delivery). Flows follow each other, so that at most one message waits for its
/// predecessor.
#[derive(Debug, Default)]
pub(super) struct LongMessageGate {
    last: u64,
    /// The long message that is neither completed nor answered.
    in_flight: Option<(LinkId, OpTag)>,
    /// The next long message.
    queued: Option<(LinkId, OpTag, Vec<u8>)>,
}

impl LongMessageGate {
    pub(super) fn next_tag(&mut self) -> OpTag {
        self.last = self.last.wrapping_add(1);
        OpTag(self.last)
    }

    /// Sends a message, unless it has to wait.
    pub(super) fn submit(
        &mut self,
        link: LinkId,
        message: Vec<u8>,
        tag: OpTag,
    ) -> Option<LinkGroupOutput> {
        if message.len() > MESSAGE_LEN {
            if self.in_flight.is_some() {
                // A message queued before belongs to a flow that has ended.
                self.queued = Some((link, tag, message));
                return None;
            }
            self.in_flight = Some((link, tag));
        }
        Some(LinkGroupOutput::Send { link, message, tag })
    }

    pub(super) fn sent(&mut self, tag: OpTag) -> Option<LinkGroupOutput> {
        match self.in_flight {
            Some((_, in_flight)) if in_flight == tag => self.answered(),
            _ => None,
        }
    }

    pub(super) fn answered(&mut self) -> Option<LinkGroupOutput> {
        self.in_flight = None;
        let (link, tag, message) = self.queued.take()?;
        self.submit(link, message, tag)
    }

    pub(super) fn lost(&mut self, link: LinkId) -> Option<LinkGroupOutput> {
        if self.queued.as_ref().is_some_and(|(on, ..)| *on == link) {
            self.queued = None;
        }
        match self.in_flight {
            Some((on, _)) if on == link => self.answered(),
            _ => None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.in_flight = None;
        self.queued = None;
    }
}
