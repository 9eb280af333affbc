//! Messages in: which flow hears them. Messages out: how they are made.

use std::time::Instant;

use smc_wire::EmitError;
use smc_wire::llc::{AddLinkStep, Dialect, Header, Message, MessageType, Step, detect_order};

use super::flow::Flow;
use super::mail::Mail;
use super::{DropReason, LinkGroup, LinkId, Notice, OpTag, Output};
use crate::proto::handshake::Role;

impl LinkGroup {
    /// A message of the peer, for whatever waits for it.
    pub(super) fn hear(
        &mut self,
        now: Instant,
        link: LinkId,
        message: &[u8],
    ) -> Result<(), DropReason> {
        let found = self.find_link(link).ok_or(DropReason::NoLink)?;
        if !found.is_connected || !found.info.state.is_usable() {
            return Err(DropReason::NoLink);
        }
        found.heard = now;
        found.tested = None;
        let order = self.terms.dialect.order();
        let header = Header::parse(message, Some(order)).map_err(|_| DropReason::Malformed)?;
        let parsed = Message::parse_from(message, order).map_err(|_| DropReason::Malformed)?;
        if header.dialect().is_v2() != self.terms.dialect.is_v2() {
            return Err(DropReason::Unknown);
        }
        self.learn_order(&header, message);
        match parsed {
            Message::ConfirmLink(message) => self.hear_confirm_link(now, link, message),
            Message::AddLink(message) => match (self.role, message.step) {
                (Role::Client, AddLinkStep::Request) => self.hear_offer(now, link, &message),
                (Role::Server, AddLinkStep::Request) => self.hear_invitation(link),
                (Role::Server, _) => self.hear_offer_answer(now, link, &message),
                (Role::Client, _) => return Err(DropReason::Unexpected),
            },
            Message::AddLinkCont(message) => match self.flow.take() {
                Some(Flow::Offer(offer))
                    if offer.is_telling(link, message.link) && message.step == Step::Response =>
                {
                    self.offer_told(now, offer, &message);
                }
                Some(Flow::Join(join))
                    if join.is_telling(link, message.link) && message.step == Step::Request =>
                {
                    self.join_told(now, join, &message);
                }
                flow => {
                    self.flow = flow;
                    return Err(DropReason::Unexpected);
                }
            },
            Message::DeleteLink(message) => self.hear_delete_link(now, link, message),
            Message::RequestAddLink(message) => self.hear_request(link, &message),
            Message::ConfirmRkey(message) => self.hear_confirm_rkey(link, &message),
            Message::DeleteRkey(message) => self.hear_delete_rkey(link, &message),
            Message::TestLink(message) => self.hear_test(link, message),
            // More than three links do not exist.
            Message::ConfirmRkeyCont(_) => return Err(DropReason::Unexpected),
            _ => return Err(DropReason::Unknown),
        }
        Ok(())
    }

    /// Linux writes lengths in the order of its processor. Answers that repeat a request of ours
    /// repeat our order too.
    fn learn_order(&mut self, header: &Header, message: &[u8]) {
        let is_own = header.step() == Step::Request
            || header.message_type() == Some(MessageType::ConfirmLink);
        if let (true, Dialect::V2(_), Some(order)) =
            (is_own, self.terms.dialect, detect_order(message))
        {
            self.terms.dialect = Dialect::V2(order);
        }
    }

    /// Has a message posted on a link that is in use; none on others.
    pub(super) fn send(
        &mut self,
        link: LinkId,
        len: usize,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
    ) {
        if self.link(link).is_some_and(|info| info.state.is_usable()) {
            // Whether it was posted at once or is held back, its tag is of no interest.
            let _tag = self.post(link, len, emit);
        }
    }

    /// Has a message posted; `None` if it cannot be expressed.
    pub(super) fn post(
        &mut self,
        link: LinkId,
        len: usize,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
    ) -> Option<OpTag> {
        let mut message = vec![0; len];
        let len = emit(&mut message).ok()?;
        message.truncate(len);
        let tag = self.mail.name();
        if let Some(output) = self.mail.pass(link, message, tag) {
            self.outputs.push_back(output);
        }
        Some(tag)
    }

    /// The last long message was answered.
    pub(super) fn long_answered(&mut self) {
        self.flush_long(Mail::answered);
    }

    /// What was sent on a link is lost.
    pub(super) fn long_lost(&mut self, link: LinkId) {
        self.flush_long(|mail| mail.lost(link));
    }

    pub(super) fn long_forget(&mut self) {
        self.mail.clear();
    }

    pub(super) fn flush_long(&mut self, event: impl FnOnce(&mut Mail) -> Option<Output>) {
        if let Some(output) = event(&mut self.mail) {
            self.outputs.push_back(output);
        }
    }

    pub(super) fn notice(&mut self, notice: Notice) {
        self.outputs.push_back(Output::Notice(notice));
    }

    pub(super) fn dropped(&mut self, kind: MessageType, why: DropReason) {
        let kind = Some(kind);
        self.notice(Notice::Dropped { kind, why });
    }

    pub(super) fn tell_full(&mut self) {
        let is_full = self.rtokens.is_full();
        if self.was_full != is_full {
            self.was_full = is_full;
            self.outputs.push_back(Output::Full(is_full));
        }
    }
}
