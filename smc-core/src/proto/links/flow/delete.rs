//! DELETE LINK for a single link (docs/spec/llc.md#one-link), and the asymmetric link that is no
//! longer needed (docs/spec/llc.md#asymmetric-link).

use std::time::Instant;

use smc_wire::llc::{DeleteLink, DeleteLinkReason, MessageType, Step};
use smc_wire::types::LinkNumber;

use super::{Aside, Flow, Trigger};
use crate::proto::handshake::Role;
use crate::proto::links::group::after;
use crate::proto::links::link::LinkState;
use crate::proto::links::{DropReason, GroupType, LinkGroup, LinkId, NotAdded, Notice};

/// The peer has to be told that a link goes.
#[derive(Clone, Copy, Debug)]
pub(in crate::proto::links) struct Deletion {
    pub(in crate::proto::links) link: LinkId,
    pub(in crate::proto::links) number: LinkNumber,
    pub(in crate::proto::links) reason: DeleteLinkReason,
    pub(in crate::proto::links) is_orderly: bool,
    /// The link works: its connections leave it before the message is sent.
    pub(in crate::proto::links) is_draining: bool,
    /// Sent over this link.
    pub(in crate::proto::links) over: Option<LinkId>,
    /// Not sent: until when it waits for its turn (client) or for the connections (server). Sent:
    /// until when the client should answer.
    pub(in crate::proto::links) until: Instant,
}

impl LinkGroup {
    /// Tells the peer, now or when the present flow ends.
    pub(in crate::proto::links) fn want_delete(
        &mut self,
        now: Instant,
        link: LinkId,
        reason: DeleteLinkReason,
        is_orderly: bool,
        is_draining: bool,
    ) {
        let Some(found) = self.find_link(link) else {
            return;
        };
        found.is_named = true;
        let number = found.info.number;
        self.wanted.deletes.push_back(Deletion {
            link,
            number,
            reason,
            is_orderly,
            is_draining,
            over: None,
            until: after(now, self.config.timeouts.response),
        });
    }

    pub(in crate::proto::links) fn start_delete(&mut self, now: Instant, mut deletion: Deletion) {
        if self.role == Role::Client {
            // Nothing to wait for: what the server says about it is answered with "unknown".
            self.send_deletion(&deletion);
            return self.deleted(&deletion);
        }
        let is_left = self
            .find_link(deletion.link)
            .is_none_or(|link| link.leaving.is_none());
        if deletion.is_draining && !is_left {
            deletion.until = after(now, self.config.timeouts.response);
            self.flow = Some(Flow::Delete(deletion));
            return;
        }
        deletion.is_draining = false;
        deletion.over = self.send_deletion(&deletion);
        deletion.until = after(now, self.config.timeouts.response);
        self.flow = Some(Flow::Delete(deletion));
    }

    fn send_deletion(&mut self, deletion: &Deletion) -> Option<LinkId> {
        let over = self.primary()?;
        let message = DeleteLink {
            dialect: self.terms.dialect,
            step: Step::Request,
            all: false,
            orderly: deletion.is_orderly,
            link: deletion.number,
            reason: deletion.reason,
        };
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
        Some(over)
    }

    /// The connections have left a link, or should have.
    pub(in crate::proto::links) fn left(&mut self, now: Instant, link: LinkId) {
        match self.flow.take() {
            Some(Flow::Delete(deletion)) if deletion.link == link && deletion.is_draining => {
                self.start_delete(now, deletion);
            }
            flow => self.flow = flow,
        }
    }

    /// When a client has waited long enough.
    pub(in crate::proto::links) fn delete_due(&self) -> Option<Instant> {
        let first = self.wanted.deletes.front()?;
        (self.role == Role::Client).then_some(first.until)
    }

    /// A client that waited long enough for a flow to end tells the server all the same.
    pub(in crate::proto::links) fn delete_patience(&mut self, now: Instant) {
        if self.role != Role::Client {
            return;
        }
        while let Some(deletion) = self.wanted.deletes.front() {
            if deletion.until > now {
                return;
            }
            if let Some(deletion) = self.wanted.deletes.pop_front() {
                self.start_delete(now, deletion);
            }
        }
    }

    pub(in crate::proto::links) fn delete_timeout(&mut self, now: Instant, deletion: Deletion) {
        if deletion.is_draining {
            // The connections take too long; the message does not.
            if let Some(link) = self.find_link(deletion.link) {
                link.leaving = None;
            }
            return self.start_delete(now, deletion);
        }
        self.notice(Notice::Unanswered(MessageType::DeleteLink));
        self.deleted(&deletion);
    }

    /// The peer knows, or does not want to.
    fn deleted(&mut self, deletion: &Deletion) {
        if let Some(link) = self.find_link(deletion.link) {
            link.is_named = false;
        }
        self.sweep();
        let is_lonely = self.kind == GroupType::Single
            && deletion.reason != DeleteLinkReason::ASYMMETRIC_UNNEEDED;
        if self.role == Role::Server && is_lonely && self.is_established {
            self.wanted.add.get_or_insert(Trigger::Occasion);
        }
    }

    /// DELETE LINK about one link.
    pub(in crate::proto::links) fn hear_delete_link(
        &mut self,
        now: Instant,
        over: LinkId,
        message: DeleteLink,
    ) {
        match (message.step, message.all) {
            (Step::Request, true) => return self.hear_delete_all(now, over, message.reason),
            (Step::Response, _) => return self.hear_deleted(message),
            (Step::Request, false) => {}
        }
        if self.abandoned == Some(message.link) {
            self.abandoned = None;
        }
        match self.flow.take() {
            None => self.hear_delete(now, over, message),
            // It takes the place of what the flow waits for.
            Some(Flow::Offer(offer)) => {
                self.offer_failed(offer, NotAdded::Deleted);
                self.hear_delete(now, over, message);
            }
            Some(Flow::Join(join)) => {
                let is_new = self.link(join.link).map(|link| link.number) == Some(message.link);
                if is_new {
                    self.answer_delete(over, message, DeleteLinkReason::DONE);
                }
                self.join_failed(join, NotAdded::Deleted);
                if !is_new {
                    self.hear_delete(now, over, message);
                }
            }
            flow @ Some(Flow::First(_)) => {
                self.flow = flow;
                self.dropped(MessageType::DeleteLink, DropReason::Unexpected);
            }
            flow @ Some(Flow::Delete(_) | Flow::Request { .. }) => {
                self.flow = flow;
                if self.is_being_deleted(message.link) {
                    // What we send, or have sent, is the answer.
                    self.dropped(MessageType::DeleteLink, DropReason::Busy);
                } else if self.wanted.aside.is_none() {
                    let request = message;
                    self.wanted.aside = Some(Aside::Delete { over, request });
                } else {
                    self.dropped(MessageType::DeleteLink, DropReason::Busy);
                }
            }
        }
    }

    /// The same, with no flow in the way.
    pub(in crate::proto::links) fn hear_delete(
        &mut self,
        now: Instant,
        over: LinkId,
        request: DeleteLink,
    ) {
        let found = self
            .links()
            .find(|link| link.number == request.link && link.state == LinkState::Active);
        let Some(target) = found else {
            if self.is_being_deleted(request.link) {
                return self.dropped(MessageType::DeleteLink, DropReason::Busy);
            }
            return self.answer_delete(over, request, DeleteLinkReason::UNKNOWN_LINK);
        };
        let Some(to) = self.survivor(target.id, None) else {
            if self.role == Role::Client {
                self.answer_delete(over, request, DeleteLinkReason::DONE);
            }
            return self.hear_delete_all(now, over, request.reason);
        };
        if self.role == Role::Client {
            let over = if over == target.id { to } else { over };
            self.answer_delete(over, request, DeleteLinkReason::DONE);
        }
        self.take_down(now, target.id, to);
        if self.role == Role::Server {
            self.want_delete(now, target.id, request.reason, request.orderly, false);
        }
    }

    fn answer_delete(&mut self, over: LinkId, request: DeleteLink, result: DeleteLinkReason) {
        let message = request.response(result);
        let over = self.active_or(over);
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }

    /// DELETE LINK with RESP.
    fn hear_deleted(&mut self, message: DeleteLink) {
        match self.flow.take() {
            Some(Flow::Delete(deletion))
                if deletion.over.is_some() && deletion.number == message.link =>
            {
                self.deleted(&deletion);
            }
            flow => {
                self.flow = flow;
                self.dropped(MessageType::DeleteLink, DropReason::Unexpected);
            }
        }
    }

    /// Whether the peer is told, or about to be told, that this link goes, and we wait for it.
    fn is_being_deleted(&self, number: LinkNumber) -> bool {
        let mut links = self.links.iter();
        self.role == Role::Server && links.any(|link| link.is_named && link.info.number == number)
    }

    /// With two links that share nothing, the third is too many
    /// (docs/spec/llc.md#asymmetric-link).
    pub(in crate::proto::links) fn remove_asymmetric(&mut self, now: Instant) {
        if self.kind != GroupType::Symmetric {
            return;
        }
        let active: Vec<_> = self.active().collect();
        let surplus = active.iter().find(|link| {
            let others = || active.iter().filter(|other| other.id != link.id);
            others().any(|other| self.is_same_local(link, other))
                && others().any(|other| self.is_same_peer(link, other))
        });
        let Some(surplus) = surplus.map(|link| link.id) else {
            return;
        };
        if let Some(to) = self.survivor(surplus, None) {
            if let Some(link) = self.find_link(surplus) {
                link.info.is_asymmetric = true;
            }
            self.take_down(now, surplus, to);
            let reason = DeleteLinkReason::ASYMMETRIC_UNNEEDED;
            self.want_delete(now, surplus, reason, true, true);
        }
    }
}
