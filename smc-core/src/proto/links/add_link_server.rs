//! ADD LINK as a server (docs/spec/llc.md#adding-as-server).

use std::time::Instant;

use smc_wire::llc::{
    AddLink, AddLinkClass, AddLinkCont, AddLinkExtension, Class, DeleteLink, DeleteLinkReason,
    Dialect, MessageType, RequestAddLink, RequestAddLinkClass, Rtoken, WireRtoken,
};
use smc_wire::types::{LinkNumber, MtuCode, Psn, Qpn};

use super::flow::{Flow, Progress, Trigger};
use super::rtoken_exchange::RtokenExchange;
use super::{DropReason, GroupType, LinkGroup, LinkId, NotAdded, Notice, PortCandidate};
use crate::device::{LinkAddress, Route};
use crate::proto::after;
use crate::proto::table::transitions;

transitions! {
    /// A server adds a link.
    ///
    /// ```text
    /// OPENING - MAPPING - OFFERED - CONNECTING -+- EXCHANGING -+- CONFIRMING - CONFIRMED
    ///  queue     RMBs      ADD       the client's+---- v2 ------+  CONFIRM
    ///  pair      there     LINK      end                            LINK
    /// ```
    pub(super) enum ServerStage {
        /// The queue pair is being made.
        Opening = "OPENING",
        /// RMBs are being registered with its device.
        Mapping = "MAPPING",
        /// ADD LINK is sent.
        Offered = "OFFERED",
        /// The client accepted; the queue pair is being connected.
        Connecting = "CONNECTING",
        /// v1: ADD LINK CONT goes back and forth.
        Exchanging = "EXCHANGING",
        /// CONFIRM LINK is sent.
        Confirming = "CONFIRMING",
        /// The link is active.
        Confirmed = "CONFIRMED",
    }

    /// The queue pair is there.
    opened(Opening => Mapping);
    /// The RMBs are registered.
    mapped(Mapping => Offered);
    /// The client takes it.
    accepted(Offered => Connecting);
    /// v1: the queue pair is connected.
    connected_v1(Connecting => Exchanging);
    /// v2: the queue pair is connected, and the keys are known.
    connected_v2(Connecting => Confirming);
    /// v1: the keys are known.
    exchanged(Exchanging => Confirming);
    /// The client confirmed the link.
    confirmed(Confirming => Confirmed);
}

/// A link that this side adds.
#[derive(Debug)]
pub(super) struct AddLinkServer {
    pub(super) link: LinkId,
    number: LinkNumber,
    /// The link over which it is arranged.
    pub(super) over: LinkId,
    pub(super) stage: ServerStage,
    pub(super) until: Instant,
    /// The local port of the new link.
    port: PortCandidate,
    /// The type of the group afterwards.
    kind: GroupType,
    exchange: RtokenExchange,
    pub(super) trigger: Trigger,
}

impl AddLinkServer {
    pub(super) fn is_confirming(&self, link: LinkId) -> bool {
        self.link == link && self.stage == ServerStage::Confirming
    }

    pub(super) fn is_exchanging(&self, over: LinkId, message: &AddLinkCont) -> bool {
        let is_answer = message.class == Class::Response && self.matches_answer(over, message.link);
        self.stage == ServerStage::Exchanging && is_answer
    }

    /// Whether an answer belongs to it. One offer is sent at a time, so its answer need not name
    /// the link.
    fn matches_answer(&self, over: LinkId, number: LinkNumber) -> bool {
        self.over == over && [self.number, LinkNumber::NONE].contains(&number)
    }

    /// Whether the client knows of it.
    pub(super) fn is_sent(&self) -> bool {
        !matches!(self.stage, ServerStage::Opening | ServerStage::Mapping)
    }
}

impl LinkGroup {
    pub(super) fn start_offer(&mut self, now: Instant, trigger: Trigger) {
        let Some(over) = self.primary() else {
            return;
        };
        let Some((port, kind)) = self.port_for_offer(over) else {
            self.decline_to_offer(over, trigger);
            return;
        };
        let number = self.next_number();
        let link = self.new_link(now, port.device, number);
        self.flow = Some(Flow::AddServer(AddLinkServer {
            link,
            number,
            over,
            stage: ServerStage::Opening,
            until: after(now, self.config.timeouts.work),
            port: port.clone(),
            kind,
            exchange: RtokenExchange::default(),
            trigger,
        }));
        self.open(link, port);
    }

    /// Steps 1 to 3: where to open a link, and the type of the group afterwards.
    fn port_for_offer(&self, over: LinkId) -> Option<(PortCandidate, GroupType)> {
        if self.kind == GroupType::Single && self.max_links() <= 1 {
            return None;
        }
        let (port, kind) = match self.alternate(over) {
            Some(port) => (port, GroupType::Symmetric),
            None if self.config.same_device => (self.same_port(over)?, GroupType::AsymmetricLocal),
            None => return None,
        };
        self.has_slot(kind).then(|| (port.clone(), kind))
    }

    /// There is nothing to offer: notifies a client that waits for an offer.
    fn decline_to_offer(&mut self, over: LinkId, trigger: Trigger) {
        self.notice(Notice::NotAdded {
            number: LinkNumber::NONE,
            why: NotAdded::NoPort,
        });
        match trigger {
            Trigger::Requested(link) => self.answer_request(link),
            Trigger::Established if self.terms.max_links > 1 => self.send_empty_offer(over),
            Trigger::Established | Trigger::PathAvailable => {}
        }
    }

    /// An ADD LINK that cannot be accepted, for clients that wait for one
    /// (docs/spec/llc.md#nothing-to-offer).
    fn send_empty_offer(&mut self, over: LinkId) {
        let Some(local) = self.link(over).and_then(|info| info.local) else {
            return;
        };
        let address = LinkAddress {
            qpn: Qpn::default(),
            psn: Psn::default(),
            mtu: MtuCode::default(),
            ..local
        };
        let number = self.next_number();
        self.send_add_link(over, AddLinkClass::Request, number, &address, &[]);
    }

    /// The negative 44-byte answer to REQUEST ADD LINK.
    fn answer_request(&mut self, over: LinkId) {
        let message = RequestAddLink {
            order: self.terms.dialect.order(),
            class: RequestAddLinkClass::Response {
                rejected: false,
                reason: Default::default(),
            },
        };
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }

    pub(super) fn offer_opened(
        &mut self,
        offer: &mut AddLinkServer,
        local: LinkAddress,
    ) -> Progress {
        self.set_local(offer.link, local);
        offer.stage.opened()?;
        match self.map_for(offer.link) {
            true => Ok(self.config.timeouts.work),
            false => self.offer_mapped(offer),
        }
    }

    pub(super) fn offer_mapped(&mut self, offer: &mut AddLinkServer) -> Progress {
        let info = self.link(offer.link).ok_or(NotAdded::Device)?;
        let local = info.local.ok_or(NotAdded::Device)?;
        offer.stage.mapped()?;
        let rtokens = self.rtokens_for(offer.over, info.device);
        let (over, number) = (offer.over, offer.number);
        self.send_add_link(over, AddLinkClass::Request, number, &local, &rtokens);
        if self.terms.dialect == Dialect::V1 {
            offer.exchange = RtokenExchange::new(rtokens);
        }
        Ok(self.config.timeouts.response)
    }

    /// ADD LINK with RESP.
    pub(super) fn handle_offer_answer(&mut self, now: Instant, over: LinkId, answer: &AddLink<'_>) {
        match self.flow.take() {
            Some(Flow::AddServer(mut offer))
                if offer.stage == ServerStage::Offered
                    && offer.matches_answer(over, answer.link) =>
            {
                self.long_messages.answered(&mut self.outputs);
                let progress = self.offer_answered(&mut offer, answer);
                self.continue_adding(now, Flow::AddServer(offer), progress);
            }
            flow => {
                self.flow = flow;
                let is_rejection = matches!(answer.class, AddLinkClass::Rejected(_));
                if is_rejection && self.abandoned == Some(answer.link) {
                    // The final answer of a client to an abandoned offer, as expected.
                    self.abandoned = None;
                } else if !is_rejection {
                    // A rejection answers an offer that cannot be accepted.
                    self.dropped(MessageType::AddLink, DropReason::Unexpected);
                }
            }
        }
    }

    fn offer_answered(&mut self, offer: &mut AddLinkServer, answer: &AddLink<'_>) -> Progress {
        if answer.class != AddLinkClass::Accepted {
            return Err(NotAdded::Rejected);
        }
        if answer.mtu.bytes().is_none() {
            return Err(NotAdded::Violation);
        }
        offer.stage.accepted()?;
        let peer = LinkAddress {
            gid: answer.gid,
            mac: answer.mac,
            qpn: answer.qpn,
            psn: answer.psn,
            mtu: answer.mtu,
        };
        if self.kind == GroupType::Single && self.is_peer_port(offer.over, &peer) {
            offer.kind = GroupType::AsymmetricPeer;
        }
        let rtokens = answer.extension.map_or(&[][..], |found| found.rtokens);
        let rtokens = rtokens.iter().copied().map(Rtoken::from);
        self.store_peer_rtokens(offer.over, offer.link, rtokens);
        self.connect(offer.link, peer);
        Ok(self.config.timeouts.work)
    }

    pub(super) fn offer_connected(&mut self, offer: &mut AddLinkServer) -> Progress {
        if self.terms.dialect.is_v2() {
            offer.stage.connected_v2()?;
            return self.confirm_offer(offer);
        }
        offer.stage.connected_v1()?;
        self.send_offer_keys(offer)
    }

    fn send_offer_keys(&mut self, offer: &mut AddLinkServer) -> Progress {
        let over = offer.over;
        let message = offer.exchange.next_message(Class::Request, offer.number);
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
        Ok(self.config.timeouts.response)
    }

    pub(super) fn offer_keys_received(
        &mut self,
        offer: &mut AddLinkServer,
        message: &AddLinkCont,
    ) -> Progress {
        let rtokens = message.rtokens.iter().copied().map(Rtoken::from);
        self.store_peer_rtokens(offer.over, offer.link, rtokens);
        offer.exchange.handle_message(message)?;
        if !offer.exchange.is_done() {
            return self.send_offer_keys(offer);
        }
        offer.stage.exchanged()?;
        self.confirm_offer(offer)
    }

    fn confirm_offer(&mut self, offer: &AddLinkServer) -> Progress {
        self.send_confirm_link(offer.link, Class::Request);
        Ok(self.config.timeouts.added_confirm)
    }

    pub(super) fn offer_confirmed(&mut self, now: Instant, offer: &AddLinkServer) {
        self.activate(now, offer.link, offer.kind);
        self.remove_asymmetric(now);
    }

    pub(super) fn offer_failed(&mut self, offer: AddLinkServer, why: NotAdded) {
        let number = offer.number;
        self.notice(Notice::NotAdded { number, why });
        self.close(offer.link);
        self.port_failed(offer.over, &offer.port);
        if offer.is_sent() && !matches!(why, NotAdded::Rejected | NotAdded::Deleted) {
            self.abandoned = Some(offer.number);
        }
        match (offer.stage, offer.trigger) {
            (ServerStage::Opening | ServerStage::Mapping, Trigger::Requested(link)) => {
                self.answer_request(link);
            }
            (ServerStage::Confirming, _) if why != NotAdded::Deleted => {
                // The client is ready and would wait for longer.
                self.send_delete_lost(offer.over, offer.number);
            }
            _ => {}
        }
    }

    /// DELETE LINK for a link that was not added.
    pub(super) fn send_delete_lost(&mut self, over: LinkId, link: LinkNumber) {
        let message = DeleteLink {
            dialect: self.terms.dialect,
            class: Class::Request,
            all: false,
            orderly: false,
            link,
            reason: DeleteLinkReason::PATH_LOST,
        };
        let over = self.active_or(over);
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }

    /// ADD LINK with the local end of a new link.
    pub(super) fn send_add_link(
        &mut self,
        over: LinkId,
        class: AddLinkClass,
        number: LinkNumber,
        local: &LinkAddress,
        rtokens: &[Rtoken],
    ) {
        let wire: Vec<_> = rtokens.iter().copied().map(WireRtoken::from).collect();
        let extension = AddLinkExtension {
            direct: self.route == Route::SameSubnet,
            // The local GID, as in Linux; it is not used by the peer.
            client_target_gid: local.gid,
            stated_count: u16::try_from(wire.len()).unwrap_or(u16::MAX),
            rtokens: &wire,
        };
        let message = AddLink {
            dialect: self.terms.dialect,
            class,
            mac: local.mac,
            gid: local.gid,
            qpn: local.qpn,
            link: number,
            mtu: local.mtu,
            psn: local.psn,
            extension: self.terms.dialect.is_v2().then_some(extension),
        };
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }
}
