//! CONFIRM LINK on the first link (docs/spec/llc.md#first-link).

use std::time::Instant;

use smc_wire::llc::{Class, ConfirmLink, MessageType};
use smc_wire::types::LinkAuthentication;

use super::flow::Flow;
use super::{DropReason, FirstLinkError, GroupType, LinkGroup, LinkGroupOutput, LinkId};
use crate::proto::Role;
use crate::proto::after;

/// The first link during its confirmation.
#[derive(Debug)]
pub(super) struct ConfirmFirst {
    pub(super) link: LinkId,
    /// None until the shell calls [`LinkGroup::confirm_link`].
    pub(super) until: Option<Instant>,
    /// The server's CONFIRM LINK, if it arrived before that call.
    pub(super) request: Option<ConfirmLink>,
}

impl LinkGroup {
    pub(super) fn start_first(&mut self, now: Instant) {
        let is_first = |flow: &mut Flow| matches!(flow, Flow::ConfirmFirst(_));
        let Some(Flow::ConfirmFirst(mut first)) = self.flow.take_if(is_first) else {
            // The link failed before, or is confirmed. Another flow goes on.
            self.outputs
                .push_back(LinkGroupOutput::FirstLink(Err(FirstLinkError::LinkDown)));
            return;
        };
        match (self.role, first.request.take()) {
            (Role::Server, _) => {
                first.until = Some(after(now, self.config.timeouts.response));
                let number = self.next_number();
                self.set_number(first.link, number);
                let share = self.authentication.as_ref().map(|it| it.request());
                let share = share.unwrap_or(LinkAuthentication::ZERO);
                self.send_confirm_link_with(first.link, Class::Request, share);
                self.flow = Some(Flow::ConfirmFirst(first));
            }
            (Role::Client, None) => {
                first.until = Some(after(now, self.config.timeouts.first_confirm));
                self.flow = Some(Flow::ConfirmFirst(first));
            }
            (Role::Client, Some(request)) => self.first_confirmed(now, &first, request),
        }
    }

    /// CONFIRM LINK, for whichever flow waits for it on this link.
    pub(super) fn handle_confirm_link(&mut self, now: Instant, link: LinkId, message: ConfirmLink) {
        let wanted = match self.role {
            Role::Client => Class::Request,
            Role::Server => Class::Response,
        };
        match self.flow.take() {
            flow if message.class != wanted => {
                self.flow = flow;
                self.dropped(MessageType::ConfirmLink, DropReason::Unexpected);
            }
            Some(Flow::ConfirmFirst(mut first)) if first.link == link => match first.until {
                Some(_) => self.first_confirmed(now, &first, message),
                None if self.role == Role::Client => {
                    first.request.get_or_insert(message);
                    self.flow = Some(Flow::ConfirmFirst(first));
                }
                // The request is not sent yet.
                None => {
                    self.flow = Some(Flow::ConfirmFirst(first));
                    self.dropped(MessageType::ConfirmLink, DropReason::Unexpected);
                }
            },
            Some(Flow::AddServer(offer)) if offer.is_confirming(link) => {
                self.offer_confirmed(now, &offer);
            }
            Some(Flow::AddClient(join)) if join.is_confirming(link) => {
                self.join_confirmed(now, &join)
            }
            flow => {
                self.flow = flow;
                self.dropped(MessageType::ConfirmLink, DropReason::Unexpected);
            }
        }
    }

    fn first_confirmed(&mut self, now: Instant, first: &ConfirmFirst, message: ConfirmLink) {
        let result = match message.no_eyecatcher {
            0 => Err(FirstLinkError::Eyecatchers),
            _ => self.authenticate_first(message.authentication),
        };
        if let Ok(response) = result {
            if self.role == Role::Client {
                self.set_number(first.link, message.link);
                self.send_confirm_link_with(first.link, Class::Response, response);
            }
            self.activate(now, first.link, GroupType::Single);
        }
        let result = result.map(|_| ());
        self.outputs.push_back(LinkGroupOutput::FirstLink(result));
    }

    /// Makes the key of the group with what the peer has sent, if the ends have agreed on one, and
    /// returns what a client responds.
    fn authenticate_first(
        &mut self,
        received: LinkAuthentication,
    ) -> Result<LinkAuthentication, FirstLinkError> {
        let Some(authentication) = &mut self.authentication else {
            return Ok(LinkAuthentication::ZERO);
        };
        let response = match self.role {
            Role::Client => authentication.respond(received),
            Role::Server => authentication
                .verify_response(received)
                .then_some(LinkAuthentication::ZERO),
        };
        response.ok_or(FirstLinkError::NotAuthentic)
    }

    /// CONFIRM LINK about the local end of a further link, on that link.
    pub(super) fn send_confirm_link(&mut self, link: LinkId, class: Class) {
        self.send_confirm_link_with(link, class, LinkAuthentication::ZERO);
    }

    fn send_confirm_link_with(
        &mut self,
        link: LinkId,
        class: Class,
        authentication: LinkAuthentication,
    ) {
        let Some(info) = self.link(link) else {
            return;
        };
        let Some(local) = info.local else {
            return;
        };
        let message = ConfirmLink {
            dialect: self.terms.dialect,
            class,
            no_eyecatcher: ConfirmLink::NO_EYECATCHER,
            mac: local.mac,
            gid: local.gid,
            qpn: local.qpn,
            link: info.number,
            user_id: self.user_id(info.number),
            max_links: self.terms.max_links,
            max_connections: self.terms.max_connections,
            authentication,
        };
        self.send(link, message.encoded_len(), |buffer| message.emit(buffer));
    }
}
