//! The end of a link group (docs/spec/link-groups.md#end): DELETE LINK for all links.

use std::time::Instant;

use smc_wire::llc::{Class, DeleteLink, DeleteLinkReason, Header, Message};

use super::flow::Flow;
use super::link::LinkState;
use super::{FirstLinkError, GroupType, LinkGroup, LinkGroupOutput, LinkId, OpTag};
use crate::device::LinkFailure;
use crate::proto::Role;
use crate::proto::after;
use crate::proto::group::GroupEndCause;

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
    /// The registry has ended the group, and the shell its connections: notifies the peer (DELETE
    /// LINK for all links), unless that has ended the group too.
    pub fn end(&mut self, now: Instant, is_orderly: bool, reason: DeleteLinkReason) {
        let message = DeleteLink::all(self.terms.dialect, is_orderly, reason);
        let until = after(now, self.config.timeouts.delete_all);
        self.start_end(now, None, Some(message), until);
    }

    /// The peer ended the group. A server responds with the same message, although the peer may not
    /// receive it. So does a client if the server cannot know that the client received the message.
    pub(super) fn handle_delete_all(&mut self, now: Instant, reason: DeleteLinkReason) {
        let is_answered = self.role == Role::Server || self.may_be_misread();
        let message = DeleteLink::all(self.terms.dialect, true, reason);
        let until = after(now, self.config.timeouts.delete_all_answer);
        let cause = GroupEndCause::LinksDeleted(reason);
        self.start_end(now, Some(cause), is_answered.then_some(message), until);
    }

    /// The last link is lost.
    pub(super) fn handle_links_lost(&mut self, now: Instant, failure: LinkFailure) {
        self.start_end(now, Some(GroupEndCause::LinksLost(failure)), None, now);
    }

    /// `cause`: none if the registry has decided.
    fn start_end(
        &mut self,
        now: Instant,
        cause: Option<GroupEndCause>,
        message: Option<DeleteLink>,
        until: Instant,
    ) {
        if self.end.is_some() {
            return;
        }
        let is_repeated = cause.is_none() && self.may_be_misread();
        let over = self.link_for_last_message();
        self.stop();
        self.outputs.extend(cause.map(LinkGroupOutput::Terminate));
        let Some((message, link)) = message.zip(over) else {
            return self.finish();
        };
        if is_repeated {
            let next = now;
            self.end = Some(GroupEnd::AwaitPeer {
                message,
                link,
                next,
                until,
            });
            return self.send_delete_all(now);
        }
        match self.post(link, message.encoded_len(), |buffer| message.emit(buffer)) {
            Some(tag) => self.end = Some(GroupEnd::LastMessage { link, tag, until }),
            None => self.finish(),
        }
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
            Message::DeleteLink(message) if message.all && message.class == Class::Request => {
                self.finish()
            }
            Message::DeleteRkey(message) if message.class == Class::Request => {
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
            Some(Flow::AddServer(_) | Flow::AddClient(_) | Flow::RequestAdd { .. })
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
    fn stop(&mut self) {
        if let Some(Flow::ConfirmFirst(first)) = self.flow.take() {
            if first.until.is_some() {
                self.outputs
                    .push_back(LinkGroupOutput::FirstLink(Err(FirstLinkError::LinkDown)));
            }
        }
        self.pending = Default::default();
        self.long_messages.clear();
        self.leaving.clear();
        for link in self.links.iter_mut().filter(|link| link.is_active()) {
            // Only active links get here.
            let _inactive = link.info.state.deactivate();
        }
        self.local_rmbs.fail(&mut self.outputs);
        self.kind = GroupType::None;
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
