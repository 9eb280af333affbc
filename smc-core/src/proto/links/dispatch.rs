//! Dispatch of received messages to the flows, and construction of sent messages.

use std::time::Instant;

use smc_wire::EmitError;
use smc_wire::llc::{AddLinkClass, Class, Dialect, Header, Message, MessageType, detect_order};

use super::flow::Flow;
use super::link::LinkEntry;
use super::{DropReason, LinkGroup, LinkGroupOutput, LinkId, Notice, OpTag};
use crate::proto::Role;
use crate::proto::group::GroupLinks;

impl LinkGroup {
    /// Passes a received message to the flow that waits for it. Others are dropped: malformed and
    /// unknown ones, those that no flow waits for, and those of links that are not in use.
    pub(super) fn dispatch(&mut self, now: Instant, link: LinkId, message: &[u8]) {
        let is_usable = |link: &&mut LinkEntry| link.is_connected && link.info.state.is_usable();
        let kind = message
            .first()
            .and_then(|kind| MessageType::from_byte(*kind));
        let dropped = |why| Notice::Dropped { kind, why };
        let Some(found) = self.find_link(link).filter(is_usable) else {
            return self.notice(dropped(DropReason::LinkNotInUse));
        };
        found.last_received = now;
        found.test_deadline = None;
        let order = self.terms.dialect.order();
        let header = Header::parse(message, Some(order));
        let (Ok(header), Ok(parsed)) = (header, Message::parse_from(message, order)) else {
            return self.notice(dropped(DropReason::Malformed));
        };
        if header.dialect().is_v2() != self.terms.dialect.is_v2() {
            return self.notice(dropped(DropReason::Unknown));
        }
        self.learn_order(&header, message);
        match parsed {
            Message::ConfirmLink(message) => self.handle_confirm_link(now, link, message),
            Message::AddLink(message) => match (self.role, message.class) {
                (Role::Client, AddLinkClass::Request) => self.handle_offer(now, link, &message),
                (Role::Server, AddLinkClass::Request) => self.handle_add_link_request(link),
                (Role::Server, _) => self.handle_offer_answer(now, link, &message),
                (Role::Client, _) => self.notice(dropped(DropReason::Unexpected)),
            },
            Message::AddLinkCont(message) => match self.flow.take() {
                Some(Flow::AddServer(mut offer)) if offer.is_exchanging(link, &message) => {
                    let progress = self.offer_keys_received(&mut offer, &message);
                    self.continue_adding(now, Flow::AddServer(offer), progress);
                }
                Some(Flow::AddClient(mut join)) if join.is_exchanging(link, &message) => {
                    let progress = self.join_keys_received(&mut join, &message);
                    self.continue_adding(now, Flow::AddClient(join), progress);
                }
                flow => {
                    self.flow = flow;
                    self.notice(dropped(DropReason::Unexpected));
                }
            },
            Message::DeleteLink(message) => self.handle_delete_link(now, link, message),
            Message::RequestAddLink(message) => self.handle_request_add_link(link, &message),
            Message::ConfirmRkey(message) => self.handle_confirm_rkey(link, &message),
            Message::DeleteRkey(message) => self.handle_delete_rkey(now, link, &message),
            Message::TestLink(message) => self.handle_test_link(link, message),
            // The send queue of the link has taken them.
            Message::AnnounceCredits(_) if self.terms.has_credits => {}
            // With at most three links there is no CONFIRM RKEY CONT.
            Message::ConfirmRkeyCont(_) => self.notice(dropped(DropReason::Unexpected)),
            _ => self.notice(dropped(DropReason::Unknown)),
        }
    }

    /// Linux writes lengths in the byte order of its CPU. Responses that repeat a local
    /// request repeat its byte order too.
    fn learn_order(&mut self, header: &Header, message: &[u8]) {
        let is_own = header.class() == Class::Request
            || header.message_type() == Some(MessageType::ConfirmLink);
        if let (true, Dialect::V2(_), Some(order)) =
            (is_own, self.terms.dialect, detect_order(message))
        {
            self.terms.dialect = Dialect::V2(order);
        }
    }

    /// Sends a message on a link that is in use; on others, nothing.
    pub(super) fn send(
        &mut self,
        link: LinkId,
        len: usize,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
    ) {
        if self.link(link).is_some_and(|info| info.state.is_usable()) {
            // Whether it is sent at once or queued, its tag is not needed.
            let _tag = self.post(link, len, emit);
        }
    }

    /// Sends a message; `None` if it cannot be encoded.
    pub(super) fn post(
        &mut self,
        link: LinkId,
        len: usize,
        emit: impl FnOnce(&mut [u8]) -> Result<usize, EmitError>,
    ) -> Option<OpTag> {
        let mut message = vec![0; len];
        let len = emit(&mut message).ok()?;
        message.truncate(len);
        Some(self.long_messages.submit(&mut self.outputs, link, message))
    }

    /// Reports to the registry what has changed, until the group ends.
    pub(super) fn report_links(&mut self) {
        let links = GroupLinks {
            ends: self.active().filter_map(|link| link.peer).collect(),
            is_full: self.rtokens.is_full() || self.local_rmbs.is_full(),
            is_unresponsive: self.local_rmbs.is_unresponsive(),
        };
        if self.end.is_none() && self.reported != links {
            self.reported = links.clone();
            self.outputs.push_back(LinkGroupOutput::Links(links));
        }
    }
}
