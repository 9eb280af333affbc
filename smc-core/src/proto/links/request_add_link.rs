//! A client requests another link: REQUEST ADD LINK (v2), ADD LINK without RESP (v1)
//! (docs/spec/llc.md#request-add-link).

use std::time::Instant;

use smc_wire::Bounded;
use smc_wire::llc::{AddLink, AddLinkClass, MessageType, RequestAddLink, RequestAddLinkClass};
use smc_wire::types::{LinkNumber, MtuCode, Psn, Qpn};

use super::flow::{Flow, Trigger};
use super::{DropReason, GroupType, LinkGroup, LinkId};
use crate::proto::Role;
use crate::proto::after;

impl LinkGroup {
    /// A port came up.
    pub(super) fn want_link(&mut self) {
        let is_open = !matches!(
            self.kind,
            GroupType::None | GroupType::Symmetric | GroupType::AsymmetricPeer
        );
        let over = self.primary().filter(|_| is_open && self.is_established);
        let is_possible = over.is_some_and(|over| self.alternate(over).is_some());
        if !is_possible || self.max_links() <= 1 {
            return;
        }
        match self.role {
            Role::Server => {
                self.pending.add.get_or_insert(Trigger::PathAvailable);
            }
            Role::Client => self.pending.request = true,
        }
    }

    pub(super) fn start_request(&mut self, now: Instant) {
        let Some(over) = self.primary() else {
            return;
        };
        let local = self.link(over).and_then(|info| info.local);
        let alternate = self.alternate(over).map(|found| found.address.clone());
        let (Some(local), Some(alternate)) = (local, alternate) else {
            return;
        };
        if self.terms.dialect.is_v2() {
            let message = RequestAddLink {
                order: self.terms.dialect.order(),
                class: RequestAddLinkClass::Request {
                    gids: Bounded::from_iter_lossy([local.gid, alternate.gid]),
                },
            };
            self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
            let until = after(now, self.config.timeouts.response);
            self.flow = Some(Flow::RequestAdd { over, until });
        } else {
            // A hint, which is not answered.
            let message = AddLink {
                dialect: self.terms.dialect,
                class: AddLinkClass::Request,
                mac: alternate.mac,
                gid: alternate.gid,
                qpn: Qpn::default(),
                link: LinkNumber::NONE,
                mtu: MtuCode::default(),
                psn: Psn::default(),
                extension: None,
            };
            self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
        }
    }

    /// REQUEST ADD LINK.
    pub(super) fn handle_request_add_link(&mut self, over: LinkId, message: &RequestAddLink) {
        let is_established = self.is_established_link(over);
        match (self.role, &message.class, &mut self.flow) {
            // The ADD LINK that is about to be sent is the answer, unless it cannot be made.
            (Role::Server, RequestAddLinkClass::Request { .. }, Some(Flow::AddServer(offer)))
                if !offer.is_sent() =>
            {
                offer.trigger = Trigger::Requested(over);
            }
            // The ADD LINK in progress is the answer.
            (Role::Server, _, Some(Flow::ConfirmFirst(_) | Flow::AddServer(_))) => {}
            (Role::Server, RequestAddLinkClass::Request { .. }, _) if is_established => {
                self.pending.add = Some(Trigger::Requested(over));
            }
            (Role::Client, RequestAddLinkClass::Response { .. }, Some(Flow::RequestAdd { .. })) => {
                self.flow = None;
                self.long_messages.answered(&mut self.outputs);
            }
            _ => self.dropped(MessageType::RequestAddLink, DropReason::Unexpected),
        }
    }

    /// ADD LINK without RESP, to a server: the hint of a v1 client.
    pub(super) fn handle_add_link_request(&mut self, over: LinkId) {
        let is_adding = matches!(self.flow, Some(Flow::ConfirmFirst(_) | Flow::AddServer(_)));
        if !self.terms.dialect.is_v2() && !is_adding && self.is_established_link(over) {
            self.pending.add.get_or_insert(Trigger::PathAvailable);
        }
    }
}
