//! CONFIRM LINK on the first link (docs/spec/llc.md#first-link).

use std::time::Instant;

use smc_wire::llc::{Class, ConfirmLink, MessageType};
use smc_wire::size::SizeCode;
use smc_wire::types::KeyShare;

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
                self.send_first_confirm_link(first.link, Class::Request);
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
        let result = self.check_first(&message);
        if result.is_ok() {
            if self.role == Role::Client {
                self.set_number(first.link, message.link);
                self.send_first_confirm_link(first.link, Class::Response);
            }
            self.activate(now, first.link, GroupType::Single);
        }
        self.outputs.push_back(LinkGroupOutput::FirstLink(result));
    }

    /// Checks the peer's CONFIRM LINK, and makes the key of the group if the ends have agreed on
    /// one.
    fn check_first(&mut self, message: &ConfirmLink) -> Result<(), FirstLinkError> {
        if message.no_eyecatcher == 0 {
            return Err(FirstLinkError::Eyecatchers);
        }
        let Some(authentication) = &mut self.authentication else {
            return Ok(());
        };
        if message.key_share.is_zero() || authentication.own_share().is_zero() {
            return Err(FirstLinkError::NoKeyShare);
        }
        if message.rmb_size != stated_size(self.rtokens.first_size()) {
            return Err(FirstLinkError::OtherSize);
        }
        authentication.set_peer_share(message.key_share);
        Ok(())
    }

    /// CONFIRM LINK on the first link.
    fn send_first_confirm_link(&mut self, link: LinkId, class: Class) {
        let share = self.authentication.as_ref().map(|it| it.own_share());
        let size = share.and(self.first_size);
        let share = share.unwrap_or(KeyShare::ZERO);
        self.send_confirm_link_with(link, class, share, stated_size(size));
    }

    /// CONFIRM LINK about the local end of a further link, on that link.
    pub(super) fn send_confirm_link(&mut self, link: LinkId, class: Class) {
        self.send_confirm_link_with(link, class, KeyShare::ZERO, stated_size(None));
    }

    fn send_confirm_link_with(
        &mut self,
        link: LinkId,
        class: Class,
        key_share: KeyShare,
        rmb_size: u8,
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
            key_share,
            rmb_size,
        };
        self.send(link, message.encoded_len(), |buffer| message.emit(buffer));
    }
}

/// The size of an RMB in CONFIRM LINK.
fn stated_size(size: Option<SizeCode>) -> u8 {
    size.map_or(0, |size| size.code().saturating_add(1))
}
