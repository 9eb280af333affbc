//! The end of a link group (behaviour 2.6): DELETE LINK for all links.

use std::time::Instant;

use smc_wire::llc::{DeleteLink, DeleteLinkReason};

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
    /// Nothing is left.
    Ended,
}

impl LinkGroup {
    /// We end it.
    pub(in crate::proto::links) fn end_with(
        &mut self,
        now: Instant,
        is_orderly: bool,
        reason: DeleteLinkReason,
    ) {
        let wait = self.config.timeouts.farewell;
        self.part(now, Cause::Local(reason), Some((is_orderly, reason)), wait);
    }

    /// The peer ended it. A server says the same back, although the peer hears it by luck only.
    pub(in crate::proto::links) fn hear_delete_all(
        &mut self,
        now: Instant,
        _over: LinkId,
        reason: DeleteLinkReason,
    ) {
        let farewell = (self.role == Role::Server).then_some((true, reason));
        let wait = self.config.timeouts.farewell_answer;
        self.part(now, Cause::Peer(reason), farewell, wait);
    }

    /// There is no link to say anything on.
    pub(in crate::proto::links) fn end_now(&mut self, cause: Cause) {
        if self.end.is_none() {
            self.stop(cause);
            self.finish();
        }
    }

    fn part(
        &mut self,
        now: Instant,
        cause: Cause,
        farewell: Option<(bool, DeleteLinkReason)>,
        wait: std::time::Duration,
    ) {
        if self.end.is_some() {
            return;
        }
        let over = self.sendable();
        let times = self.farewells();
        self.stop(cause);
        let sent = farewell.zip(over).and_then(|((is_orderly, reason), link)| {
            let message = DeleteLink::all(self.terms.dialect, is_orderly, reason);
            let tags = (0..times)
                .map(|_| self.post(link, message.encoded_len(), |buffer| message.emit(buffer)));
            Some((link, tags.last()??))
        });
        match sent {
            Some((link, tag)) => {
                let until = after(now, wait);
                self.end = Some(End::Farewell { link, tag, until });
            }
            None => self.finish(),
        }
    }

    /// How often to say it. Linux takes what comes while it waits for us to go on with a new link
    /// for the end of that link only, and keeps the next message until then (behaviour 3.2).
    const fn farewells(&self) -> usize {
        match self.flow {
            Some(Flow::Offer(_) | Flow::Join(_) | Flow::Request { .. }) => 2,
            _ => 1,
        }
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
