//! The end of a link group (docs/spec/link-groups.md#end): DELETE LINK for all links.

use std::time::Instant;

use smc_wire::llc::{DeleteLink, DeleteLinkReason, Header, Message, Step};

use super::Flow;
use crate::proto::handshake::Role;
use crate::proto::links::group::after;
use crate::proto::links::link::LinkState;
use crate::proto::links::{Cause, FirstLinkError, GroupType, LinkGroup, LinkId, OpTag, Output};

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::proto::links) enum End {
    /// The last message is on its way.
    Farewell {
        link: LinkId,
        tag: OpTag,
        until: Instant,
    },
    /// It is said until the peer says it too, as that may be in the midst of another flow.
    Calling {
        message: DeleteLink,
        link: LinkId,
        /// When to say it again.
        next: Instant,
        until: Instant,
    },
    /// Nothing is left.
    Ended,
}

impl End {
    /// The link that is needed until then.
    pub(in crate::proto::links) const fn link(&self) -> Option<LinkId> {
        match self {
            Self::Farewell { link, .. } | Self::Calling { link, .. } => Some(*link),
            Self::Ended => None,
        }
    }

    /// When there is something to do.
    pub(in crate::proto::links) fn due(&self) -> Option<Instant> {
        match self {
            Self::Farewell { until, .. } => Some(*until),
            Self::Calling { next, until, .. } => Some(*next.min(until)),
            Self::Ended => None,
        }
    }
}

impl LinkGroup {
    /// We end it.
    pub(in crate::proto::links) fn end_with(
        &mut self,
        now: Instant,
        is_orderly: bool,
        reason: DeleteLinkReason,
    ) {
        if self.end.is_some() {
            return;
        }
        let cause = Cause::Local(reason);
        let message = DeleteLink::all(self.terms.dialect, is_orderly, reason);
        let until = after(now, self.config.timeouts.farewell);
        if !self.may_be_misheard() {
            return self.part(cause, Some(message), until);
        }
        let over = self.sendable();
        self.stop(cause);
        let Some(link) = over else {
            return self.finish();
        };
        self.end = Some(End::Calling {
            message,
            link,
            next: now,
            until,
        });
        self.call(now);
    }

    /// The peer ended it. A server says the same back, although the peer hears it by luck only. So
    /// does a client of which the server cannot know that it has heard.
    pub(in crate::proto::links) fn hear_delete_all(
        &mut self,
        now: Instant,
        _over: LinkId,
        reason: DeleteLinkReason,
    ) {
        let is_answered = self.role == Role::Server || self.may_be_misheard();
        let message = DeleteLink::all(self.terms.dialect, true, reason);
        let until = after(now, self.config.timeouts.farewell_answer);
        self.part(Cause::Peer(reason), is_answered.then_some(message), until);
    }

    /// A message while the group ends: the peer ends it too, or it first gives back its keys, for
    /// whose answer Linux would wait before it hears us.
    pub(in crate::proto::links) fn hear_at_end(&mut self, link: LinkId, message: &[u8]) {
        match self.end {
            Some(End::Calling { link: on, .. }) if on == link => {}
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
            Message::DeleteLink(said) if said.all && said.step == Step::Request => self.finish(),
            Message::DeleteRkey(said) if said.step == Step::Request => {
                self.answer_delete_rkey(link, &said);
            }
            _ => {}
        }
    }

    /// The end has waited long enough, for what it waits for.
    pub(in crate::proto::links) fn end_timeout(&mut self, now: Instant) {
        match self.end {
            Some(End::Farewell { until, .. } | End::Calling { until, .. }) if until <= now => {
                self.finish();
            }
            Some(End::Calling { next, .. }) if next <= now => self.call(now),
            _ => {}
        }
    }

    /// There is no link to say anything on.
    pub(in crate::proto::links) fn end_now(&mut self, cause: Cause) {
        if self.end.is_none() {
            self.stop(cause);
            self.finish();
        }
    }

    fn part(&mut self, cause: Cause, farewell: Option<DeleteLink>, until: Instant) {
        if self.end.is_some() {
            return;
        }
        let over = self.sendable();
        self.stop(cause);
        let sent = farewell.zip(over).and_then(|(message, link)| {
            let tag = self.post(link, message.encoded_len(), |buffer| message.emit(buffer));
            Some((link, tag?))
        });
        match sent {
            Some((link, tag)) => self.end = Some(End::Farewell { link, tag, until }),
            None => self.finish(),
        }
    }

    fn call(&mut self, now: Instant) {
        let again = after(now, self.config.timeouts.farewell_again);
        if let Some(End::Calling {
            message,
            link,
            next,
            ..
        }) = &mut self.end
        {
            *next = again;
            let (message, link) = (*message, *link);
            // Its completion says that it has arrived, which is not the question.
            let _tag = self.post(link, message.encoded_len(), |buffer| message.emit(buffer));
        }
    }

    /// Whether the peer may be in the midst of adding a link. Linux takes what comes then for the
    /// end of that link only, and nothing else until it has cleared up
    /// (docs/spec/llc.md#flows).
    const fn may_be_misheard(&self) -> bool {
        matches!(
            self.flow,
            Some(Flow::Offer(_) | Flow::Join(_) | Flow::Request { .. })
        ) || self.abandoned.is_some()
    }

    /// The link for the last message: an active one, or the first one of a server that has asked
    /// for its confirmation. A client has to be silent until then.
    fn sendable(&self) -> Option<LinkId> {
        let first = self.links.first()?;
        let is_asked = first.info.state == LinkState::Activating && first.info.number.0 != 0;
        let is_first = self.role == Role::Server && self.links.len() == 1 && is_asked;
        match self.primary() {
            None if is_first => Some(first.info.id),
            primary => primary,
        }
    }

    /// Everything under way comes to an end.
    fn stop(&mut self, cause: Cause) {
        if let Some(Flow::First(first)) = self.flow.take() {
            if first.until.is_some() {
                self.outputs
                    .push_back(Output::FirstLink(Err(FirstLinkError::LinkDown)));
            }
        }
        self.wanted = Default::default();
        self.long_forget();
        for link in &mut self.links {
            if link.info.state == LinkState::Active {
                let id = link.info.id;
                // Only active links get here.
                let _inactive = link.info.state.deactivate();
                self.outputs.push_back(Output::Deactivate(id));
            }
        }
        self.own.fail(&mut self.outputs);
        self.set_kind(GroupType::None);
        self.outputs.push_back(Output::Terminate(cause));
    }

    /// The last message is out, or need not be.
    pub(in crate::proto::links) fn finish(&mut self) {
        let links: Vec<_> = self.links().map(|link| link.id).collect();
        for link in links {
            self.close(link);
        }
        self.own.forget(&mut self.outputs);
        self.end = Some(End::Ended);
        self.outputs.push_back(Output::Ended);
    }
}
