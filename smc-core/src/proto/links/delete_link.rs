//! DELETE LINK for a single link (docs/spec/llc.md#one-link), and the asymmetric link that is no
//! longer needed (docs/spec/llc.md#asymmetric-link).

use std::time::Instant;

use smc_wire::llc::{Class, DeleteLink, DeleteLinkReason, MessageType};
use smc_wire::types::LinkNumber;

use super::flow::{DeferredRequest, Flow, Trigger};
use super::link::LinkState;
use super::{DropReason, GroupType, LinkDownCause, LinkGroup, LinkId, NotAdded, Notice};
use crate::proto::Role;
use crate::proto::after;

/// A pending or sent DELETE LINK.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deletion {
    pub(super) link: LinkId,
    pub(super) number: LinkNumber,
    pub(super) reason: DeleteLinkReason,
    pub(super) is_orderly: bool,
    /// The link works: its connections leave it before the message is sent.
    pub(super) awaits_moves: bool,
    /// Sent over this link.
    pub(super) over: Option<LinkId>,
    /// Not sent: until when it waits for its turn (client) or for the connections (server). Sent:
    /// deadline for the client's answer.
    pub(super) until: Instant,
}

impl LinkGroup {
    /// Sends it now or when the present flow ends.
    pub(super) fn want_delete(
        &mut self,
        now: Instant,
        link: LinkId,
        reason: DeleteLinkReason,
        is_orderly: bool,
        awaits_moves: bool,
    ) {
        let Some(found) = self.find_link(link) else {
            return;
        };
        found.is_delete_pending = true;
        let number = found.info.number;
        self.pending.deletes.push_back(Deletion {
            link,
            number,
            reason,
            is_orderly,
            awaits_moves,
            over: None,
            until: after(now, self.config.timeouts.response),
        });
    }

    pub(super) fn start_delete(&mut self, now: Instant, mut deletion: Deletion) {
        if self.role == Role::Client {
            // No wait: a later request of the server about the link is answered with "unknown".
            self.send_deletion(&deletion);
            return self.deleted(&deletion);
        }
        let is_left = self
            .find_link(deletion.link)
            .is_none_or(|link| link.move_deadline.is_none());
        if deletion.awaits_moves && !is_left {
            deletion.until = after(now, self.config.timeouts.response);
            self.flow = Some(Flow::Delete(deletion));
            return;
        }
        deletion.awaits_moves = false;
        deletion.over = self.send_deletion(&deletion);
        deletion.until = after(now, self.config.timeouts.response);
        self.flow = Some(Flow::Delete(deletion));
    }

    fn send_deletion(&mut self, deletion: &Deletion) -> Option<LinkId> {
        let over = self.primary()?;
        let message = DeleteLink {
            dialect: self.terms.dialect,
            class: Class::Request,
            all: false,
            orderly: deletion.is_orderly,
            link: deletion.number,
            reason: deletion.reason,
        };
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
        Some(over)
    }

    /// The connections have left a link, or its deadline has expired.
    pub(super) fn resume_delete(&mut self, now: Instant, link: LinkId) {
        match self.flow.take() {
            Some(Flow::Delete(deletion)) if deletion.link == link && deletion.awaits_moves => {
                self.start_delete(now, deletion);
            }
            flow => self.flow = flow,
        }
    }

    /// When a client sends without waiting any longer.
    pub(super) fn delete_due(&self) -> Option<Instant> {
        let first = self.pending.deletes.front()?;
        (self.role == Role::Client).then_some(first.until)
    }

    /// A client that waited long enough for a flow to end sends nevertheless.
    pub(super) fn send_overdue_deletes(&mut self, now: Instant) {
        if self.role != Role::Client {
            return;
        }
        while let Some(deletion) = self.pending.deletes.front() {
            if deletion.until > now {
                return;
            }
            if let Some(deletion) = self.pending.deletes.pop_front() {
                self.start_delete(now, deletion);
            }
        }
    }

    pub(super) fn delete_timeout(&mut self, now: Instant, deletion: Deletion) {
        if deletion.awaits_moves {
            // The connections take too long; the message is sent now.
            if let Some(link) = self.find_link(deletion.link) {
                link.move_deadline = None;
            }
            return self.start_delete(now, deletion);
        }
        self.notice(Notice::Unanswered(MessageType::DeleteLink));
        self.deleted(&deletion);
    }

    /// The peer knows it, or does not answer.
    fn deleted(&mut self, deletion: &Deletion) {
        if let Some(link) = self.find_link(deletion.link) {
            link.is_delete_pending = false;
        }
        self.sweep();
        let is_single = self.kind == GroupType::Single
            && deletion.reason != DeleteLinkReason::ASYMMETRIC_UNNEEDED;
        if self.role == Role::Server && is_single && self.is_established {
            self.pending.add.get_or_insert(Trigger::PathAvailable);
        }
    }

    /// DELETE LINK about one link.
    pub(super) fn handle_delete_link(&mut self, now: Instant, over: LinkId, message: DeleteLink) {
        match (message.class, message.all) {
            (Class::Request, true) => return self.handle_delete_all(now, message.reason),
            (Class::Response, _) => return self.handle_deleted(message),
            (Class::Request, false) => {}
        }
        if self.abandoned == Some(message.link) {
            self.abandoned = None;
        }
        match self.flow.take() {
            None => self.handle_delete_one(now, over, message),
            // That waits for the server, which would wait for the answer to this one.
            Some(flow @ Flow::RequestAdd { .. }) => {
                self.flow = Some(flow);
                self.handle_delete_one(now, over, message);
            }
            // It replaces the message for which the flow waits.
            Some(Flow::AddServer(offer)) => {
                self.offer_failed(offer, NotAdded::Deleted);
                self.handle_delete_one(now, over, message);
            }
            Some(Flow::AddClient(join)) => {
                let is_new = self.link(join.link).map(|link| link.number) == Some(message.link);
                if is_new {
                    self.answer_delete(over, message, DeleteLinkReason::DONE);
                }
                self.join_failed(join, NotAdded::Deleted);
                if !is_new {
                    self.handle_delete_one(now, over, message);
                }
            }
            flow @ Some(Flow::ConfirmFirst(_)) => {
                self.flow = flow;
                self.dropped(MessageType::DeleteLink, DropReason::Unexpected);
            }
            flow @ Some(Flow::Delete(_)) => {
                self.flow = flow;
                // The message about the link that is or was sent is the answer.
                if self.is_being_deleted(message.link) {
                    return;
                }
                if self.pending.deferred.is_some() {
                    return self.dropped(MessageType::DeleteLink, DropReason::Busy);
                }
                let request = message;
                self.pending.deferred = Some(DeferredRequest::Delete { over, request });
            }
        }
    }

    /// The same, without another flow in progress.
    pub(super) fn handle_delete_one(&mut self, now: Instant, over: LinkId, request: DeleteLink) {
        let found = self
            .links()
            .find(|link| link.number == request.link && link.state == LinkState::Active);
        let Some(target) = found else {
            if !self.is_being_deleted(request.link) {
                self.answer_delete(over, request, DeleteLinkReason::UNKNOWN_LINK);
            }
            return;
        };
        let Some(to) = self.failover_target(&target, None) else {
            if self.role == Role::Client {
                self.answer_delete(over, request, DeleteLinkReason::DONE);
            }
            return self.handle_delete_all(now, request.reason);
        };
        if self.role == Role::Client {
            let over = if over == target.id { to } else { over };
            self.answer_delete(over, request, DeleteLinkReason::DONE);
        }
        self.notice(Notice::LinkDown {
            link: target.id,
            cause: LinkDownCause::Deleted(request.reason),
        });
        self.deactivate_link(now, target.id, None);
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
    fn handle_deleted(&mut self, message: DeleteLink) {
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

    /// Whether the deletion of this link is pending or sent, and awaits an answer.
    fn is_being_deleted(&self, number: LinkNumber) -> bool {
        let mut links = self.links.iter();
        self.role == Role::Server
            && links.any(|link| link.is_delete_pending && link.info.number == number)
    }

    /// With two links that share nothing, the third is not needed
    /// (docs/spec/llc.md#asymmetric-link).
    pub(super) fn remove_asymmetric(&mut self, now: Instant) {
        if self.kind != GroupType::Symmetric {
            return;
        }
        let active: Vec<_> = self.active().collect();
        let surplus = active.iter().find(|link| {
            let others = || active.iter().filter(|other| other.id != link.id);
            others().any(|other| self.is_same_local(link, other))
                && others().any(|other| self.is_same_peer(link, other))
        });
        let surplus = surplus.map(|link| link.id);
        if let Some(link) = surplus.and_then(|surplus| self.find_link(surplus)) {
            let surplus = link.info.id;
            link.info.is_asymmetric = true;
            self.notice(Notice::LinkDown {
                link: surplus,
                cause: LinkDownCause::Unneeded,
            });
            self.deactivate_link(now, surplus, None);
            let reason = DeleteLinkReason::ASYMMETRIC_UNNEEDED;
            self.want_delete(now, surplus, reason, true, true);
        }
    }
}
