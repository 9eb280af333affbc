//! The end of a link group (docs/spec/link-groups.md#end): DELETE LINK for all links.

use std::time::Instant;

use smc_wire::llc::{DeleteLink, DeleteLinkReason, Header, Message, Step};

use super::flow::Flow;
use super::group::after;
use super::link::LinkState;
use super::{FirstLinkError, GroupType, LinkGroup, LinkGroupOutput, LinkId, OpTag, TerminateCause};
use crate::proto::handshake::Role;

/// Progress of the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupEnd {
    /// The last message is in flight.
    LastMessage {
        link: LinkId,
        tag: OpTag,
        until: Instant,
    },
    /// DELETE LINK is repeated until the peer sends it too, as the peer may be in another flow.
    AwaitPeer {
        message: DeleteLink,
        link: LinkId,
        /// Time of the next repetition.
        next: Instant,
        until: Instant,
    },
    /// Nothing is left.
    Ended,
}

impl GroupEnd {
    /// The link that is needed until then.
    pub(super) const fn link(&self) -> Option<LinkId> {
        match self {
            Self::LastMessage { link, .. } | Self::AwaitPeer { link, .. } => Some(*link),
            Self::Ended => None,
        }
    }

    /// When there is something to do.
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::LastMessage { until, .. } => Some(*until),
            Self::AwaitPeer { next, until, .. } => Some(*next.min(until)),
            Self::Ended => None,
        }
    }
}

impl LinkGroup {
    /// This side ends the group.
    pub(super) fn end_group(&mut self, now: Instant, is_orderly: bool, reason: DeleteLinkReason) {
        if self.end.is_some() {
            return;
        }
        let cause = TerminateCause::Local(reason);
        let message = DeleteLink::all(self.terms.dialect, is_orderly, reason);
        let until = after(now, self.config.timeouts.delete_all);
        if !self.may_be_misread() {
            return self.end_after(cause, Some(message), until);
        }
        let over = self.link_for_last_message();
        self.stop(cause);
        let Some(link) = over else {
            return self.finish();
        };
        self.end = Some(GroupEnd::AwaitPeer {
            message,
            link,
            next: now,
            until,
        });
        self.send_delete_all(now);
    }

    /// The peer ended the group. A server responds with the same message, although the peer may not
    /// receive it. So does a client if the server cannot know that the client received the message.
    pub(super) fn handle_delete_all(
        &mut self,
        now: Instant,
        _over: LinkId,
        reason: DeleteLinkReason,
    ) {
        let is_answered = self.role == Role::Server || self.may_be_misread();
        let message = DeleteLink::all(self.terms.dialect, true, reason);
        let until = after(now, self.config.timeouts.delete_all_answer);
        self.end_after(
            TerminateCause::Peer(reason),
            is_answered.then_some(message),
            until,
        );
    }

    /// A message while the group ends: the peer ends it too, or it first deletes its keys, and
    /// Linux would wait for that answer before it processes DELETE LINK.
    pub(super) fn handle_message_at_end(&mut self, link: LinkId, message: &[u8]) {
        match self.end {
            Some(GroupEnd::AwaitPeer { link: on, .. }) if on == link => {}
            _ => return,
        }
        let dialect = self.terms.dialect;
        let order = dialect.order();
        let (Ok(header), Ok(parsed)) = (
            Header::parse(message, Some(order)),
            Message::parse_from(message, order),
        ) else {
            return;
        };
        if header.dialect().is_v2() != dialect.is_v2() {
            return;
        }
        match parsed {
            Message::DeleteLink(message) if message.all && message.step == Step::Request => {
                self.finish()
            }
            Message::DeleteRkey(message) if message.step == Step::Request => {
                self.answer_delete_rkey(link, &message);
            }
            _ => {}
        }
    }

    /// A deadline of the end has expired.
    pub(super) fn end_timeout(&mut self, now: Instant) {
        match self.end {
            Some(GroupEnd::LastMessage { until, .. } | GroupEnd::AwaitPeer { until, .. })
                if until <= now =>
            {
                self.finish();
            }
            Some(GroupEnd::AwaitPeer { next, .. }) if next <= now => self.send_delete_all(now),
            _ => {}
        }
    }

    /// Ends the group when no message can be sent.
    pub(super) fn end_without_message(&mut self, cause: TerminateCause) {
        if self.end.is_none() {
            self.stop(cause);
            self.finish();
        }
    }

    fn end_after(
        &mut self,
        cause: TerminateCause,
        last_message: Option<DeleteLink>,
        until: Instant,
    ) {
        if self.end.is_some() {
            return;
        }
        let over = self.link_for_last_message();
        self.stop(cause);
        let sent = last_message.zip(over).and_then(|(message, link)| {
            let tag = self.post(link, message.encoded_len(), |buffer| message.emit(buffer));
            Some((link, tag?))
        });
        match sent {
            Some((link, tag)) => self.end = Some(GroupEnd::LastMessage { link, tag, until }),
            None => self.finish(),
        }
    }

    fn send_delete_all(&mut self, now: Instant) {
        let again = after(now, self.config.timeouts.delete_all_retry);
        if let Some(GroupEnd::AwaitPeer {
            message,
            link,
            next,
            ..
        }) = &mut self.end
        {
            *next = again;
            let (message, link) = (*message, *link);
            // Its completion only shows that it was delivered, not that it was processed.
            let _tag = self.post(link, message.encoded_len(), |buffer| message.emit(buffer));
        }
    }

    /// Whether the peer may be adding a link. Linux then takes DELETE LINK for the end of that link
    /// only, and processes nothing else until it has cleaned up (docs/spec/llc.md#flows).
    const fn may_be_misread(&self) -> bool {
        matches!(
            self.flow,
            Some(Flow::Offer(_) | Flow::Join(_) | Flow::Request { .. })
        ) || self.abandoned.is_some()
    }

    /// The link for the last message: an active one, or the first one of a server that has
    /// requested its confirmation. A client must not send until then.
    fn link_for_last_message(&self) -> Option<LinkId> {
        let first = self.links.first()?;
        let is_asked = first.info.state == LinkState::Activating && first.info.number.0 != 0;
        let is_first = self.role == Role::Server && self.links.len() == 1 && is_asked;
        match self.primary() {
            None if is_first => Some(first.info.id),
            primary => primary,
        }
    }

    /// Ends everything in progress.
    fn stop(&mut self, cause: TerminateCause) {
        if let Some(Flow::First(first)) = self.flow.take() {
            if first.until.is_some() {
                self.outputs
                    .push_back(LinkGroupOutput::FirstLink(Err(FirstLinkError::LinkDown)));
            }
        }
        self.pending = Default::default();
        self.clear_long_messages();
        for link in &mut self.links {
            if link.info.state == LinkState::Active {
                let id = link.info.id;
                // Only active links get here.
                let _inactive = link.info.state.deactivate();
                self.outputs.push_back(LinkGroupOutput::Deactivate(id));
            }
        }
        self.local_rmbs.fail(&mut self.outputs);
        self.kind = GroupType::None;
        self.outputs.push_back(LinkGroupOutput::Terminate(cause));
    }

    /// The last message was sent, or is not needed.
    pub(super) fn finish(&mut self) {
        let links: Vec<_> = self.links().map(|link| link.id).collect();
        for link in links {
            self.close(link);
        }
        self.local_rmbs.release_all(&mut self.outputs);
        self.end = Some(GroupEnd::Ended);
        self.outputs.push_back(LinkGroupOutput::Ended);
    }
}
