//! Long-message gate: tags of sent messages, and at most one long message in flight.

use std::collections::VecDeque;

use smc_wire::llc::MESSAGE_LEN;

use super::{LinkGroupOutput, LinkId, OpTag};

type Outputs = VecDeque<LinkGroupOutput>;

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
    /// Sends a message, unless it has to wait.
    pub(super) fn submit(
        &mut self,
        outputs: &mut Outputs,
        link: LinkId,
        message: Vec<u8>,
    ) -> OpTag {
        self.last = self.last.wrapping_add(1);
        let tag = OpTag(self.last);
        if message.len() > MESSAGE_LEN {
            if self.in_flight.is_some() {
                // A message queued before belongs to a flow that has ended.
                self.queued = Some((link, tag, message));
                return tag;
            }
            self.in_flight = Some((link, tag));
        }
        outputs.push_back(LinkGroupOutput::Send { link, message, tag });
        tag
    }

    pub(super) fn completed(&mut self, outputs: &mut Outputs, tag: OpTag) {
        if self
            .in_flight
            .is_some_and(|(_, in_flight)| in_flight == tag)
        {
            self.answered(outputs);
        }
    }

    pub(super) fn answered(&mut self, outputs: &mut Outputs) {
        let queued = self.queued.take();
        self.in_flight = queued.as_ref().map(|(link, tag, _)| (*link, *tag));
        let queued =
            queued.map(|(link, tag, message)| LinkGroupOutput::Send { link, message, tag });
        outputs.extend(queued);
    }

    /// Messages sent on this link are lost.
    pub(super) fn lost(&mut self, outputs: &mut Outputs, link: LinkId) {
        self.queued.take_if(|(on, ..)| *on == link);
        if self.in_flight.is_some_and(|(on, _)| on == link) {
            self.answered(outputs);
        }
    }

    pub(super) fn clear(&mut self) {
        self.in_flight = None;
        self.queued = None;
    }
}
