//! Messages on their way out: their names, and that no two long ones are on their way at a time.

use smc_wire::llc::MESSAGE_LEN;

use super::{LinkId, OpTag, Output};

/// Linux has one place for what exceeds 44 bytes, for all links of a group together
/// (docs/spec/llc.md#delivery). Flows follow each other, so that at most one message has to wait
/// for its predecessor.
#[derive(Debug, Default)]
pub(super) struct Mail {
    last: u64,
    /// The long message that neither was completed nor answered.
    long: Option<(LinkId, OpTag)>,
    /// The next one.
    held: Option<(LinkId, OpTag, Vec<u8>)>,
}

impl Mail {
    pub(super) fn name(&mut self) -> OpTag {
        self.last = self.last.wrapping_add(1);
        OpTag(self.last)
    }

    /// Passes a message on, unless it has to wait.
    pub(super) fn pass(&mut self, link: LinkId, message: Vec<u8>, tag: OpTag) -> Option<Output> {
        if message.len() > MESSAGE_LEN {
            if self.long.is_some() {
                // What waited before belongs to a flow that has ended.
                self.held = Some((link, tag, message));
                return None;
            }
            self.long = Some((link, tag));
        }
        Some(Output::Send { link, message, tag })
    }

    pub(super) fn sent(&mut self, tag: OpTag) -> Option<Output> {
        match self.long {
            Some((_, long)) if long == tag => self.answered(),
            _ => None,
        }
    }

    pub(super) fn answered(&mut self) -> Option<Output> {
        self.long = None;
        let (link, tag, message) = self.held.take()?;
        self.pass(link, message, tag)
    }

    pub(super) fn lost(&mut self, link: LinkId) -> Option<Output> {
        if self.held.as_ref().is_some_and(|(on, ..)| *on == link) {
            self.held = None;
        }
        match self.long {
            Some((on, _)) if on == link => self.answered(),
            _ => None,
        }
    }

    pub(super) fn clear(&mut self) {
        self.long = None;
        self.held = None;
    }
}
