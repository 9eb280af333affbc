//! ADD LINK as a client (docs/spec/llc.md#adding-as-client).

use std::time::Instant;

use smc_wire::llc::{AddLink, AddLinkClass, AddLinkCont, Class, MessageType, RejectReason, Rtoken};

use super::flow::{DeferredRequest, Flow, Progress};
use super::rtoken_exchange::RtokenExchange;
use super::{DropReason, GroupType, LinkGroup, LinkId, NotAdded, Notice, PortCandidate};
use crate::device::LinkAddress;
use crate::proto::after;
use crate::proto::table::transitions;

transitions! {
    /// A client adds the link that its server offers.
    ///
    /// ```text
    /// OPENING - CONNECTING - MAPPING -+- EXCHANGING -+- CONFIRMING - CONFIRMED
    ///  queue     the server's  RMBs   +---- v2 ------+   CONFIRM
    ///  pair      end           there                      LINK
    /// ```
    pub(super) enum ClientStage {
        /// The queue pair is being made.
        Opening = "OPENING",
        /// It is being connected.
        Connecting = "CONNECTING",
        /// RMBs are being registered with its device.
        Mapping = "MAPPING",
        /// v1: accepted; ADD LINK CONT goes back and forth.
        Exchanging = "EXCHANGING",
        /// Accepted; CONFIRM LINK has to come.
        Confirming = "CONFIRMING",
        /// The link is active.
        Confirmed = "CONFIRMED",
    }

    /// The queue pair is there.
    opened(Opening => Connecting);
    /// The queue pair is connected.
    connected(Connecting => Mapping);
    /// v1: the RMBs are registered.
    mapped_v1(Mapping => Exchanging);
    /// v2: the RMBs are registered, and the keys are known.
    mapped_v2(Mapping => Confirming);
    /// v1: the keys are known.
    exchanged(Exchanging => Confirming);
    /// The server confirmed the link.
    confirmed(Confirming => Confirmed);
}

/// The server's offer.
#[derive(Debug)]
pub(super) struct OfferedLink {
    /// The offer as a rejection, which repeats it.
    rejection: AddLink<'static>,
    /// v2: its keys.
    rtokens: Vec<Rtoken>,
}

impl OfferedLink {
    pub(super) fn new(offer: &AddLink<'_>) -> Self {
        let rtokens = offer.extension.map_or(&[][..], |found| found.rtokens);
        // Version 2 has no field for a reason.
        let reason = match offer.dialect.is_v2() {
            true => RejectReason::NONE,
            false if offer.mtu.bytes().is_none() => RejectReason::INVALID_MTU,
            false => RejectReason::NO_ALTERNATE_PATH,
        };
        Self {
            rejection: offer.rejection(reason),
            rtokens: rtokens.iter().copied().map(Rtoken::from).collect(),
        }
    }

    fn address(&self) -> LinkAddress {
        LinkAddress {
            gid: self.rejection.gid,
            mac: self.rejection.mac,
            qpn: self.rejection.qpn,
            psn: self.rejection.psn,
            mtu: self.rejection.mtu,
        }
    }
}

/// A link that is being added.
#[derive(Debug)]
pub(super) struct AddLinkClient {
    pub(super) link: LinkId,
    /// The link over which it is arranged.
    pub(super) over: LinkId,
    pub(super) stage: ClientStage,
    pub(super) until: Instant,
    /// When the server abandons it, if it is not accepted.
    expires: Instant,
    /// The local port of the new link.
    port: PortCandidate,
    /// The type of the group afterwards.
    kind: GroupType,
    offered: OfferedLink,
    exchange: RtokenExchange,
}

impl AddLinkClient {
    /// Waits for the next step: until the server abandons the link, if it is not accepted yet.
    pub(super) fn wait_until(&mut self, until: Instant) {
        self.until = match self.stage {
            ClientStage::Opening | ClientStage::Connecting | ClientStage::Mapping => {
                until.min(self.expires)
            }
            ClientStage::Exchanging | ClientStage::Confirming | ClientStage::Confirmed => until,
        };
    }

    pub(super) fn is_confirming(&self, link: LinkId) -> bool {
        self.link == link && self.stage == ClientStage::Confirming
    }

    pub(super) fn is_exchanging(&self, over: LinkId, message: &AddLinkCont) -> bool {
        let is_request =
            message.class == Class::Request && message.link == self.offered.rejection.link;
        self.stage == ClientStage::Exchanging && self.over == over && is_request
    }
}

impl LinkGroup {
    /// ADD LINK without RESP.
    pub(super) fn handle_offer(&mut self, now: Instant, over: LinkId, offer: &AddLink<'_>) {
        let offered = OfferedLink::new(offer);
        let expires = after(now, self.config.timeouts.response);
        if let Some(Flow::RequestAdd { .. }) = self.flow {
            self.flow = None;
            self.long_messages.answered(&mut self.outputs);
        }
        let is_idle = self.flow.is_none() && self.may_add_link() && self.pending.deferred.is_none();
        if is_idle {
            self.start_join(now, over, offered, expires);
        } else if self.pending.deferred.is_none() && self.is_established_link(over) {
            self.pending.deferred = Some(DeferredRequest::Add {
                over,
                offered,
                expires,
            });
        } else {
            self.dropped(MessageType::AddLink, DropReason::Busy);
        }
    }

    pub(super) fn start_join(
        &mut self,
        now: Instant,
        over: LinkId,
        offered: OfferedLink,
        expires: Instant,
    ) {
        if !self.is_established_link(over) {
            return self.dropped(MessageType::AddLink, DropReason::LinkNotInUse);
        }
        let Some((port, kind)) = self.port_for_join(over, &offered) else {
            self.notice(Notice::NotAdded {
                number: offered.rejection.link,
                why: NotAdded::NoPort,
            });
            return self.send_rejection(over, &offered);
        };
        let link = self.new_link(now, port.device, offered.rejection.link);
        self.flow = Some(Flow::AddClient(AddLinkClient {
            link,
            over,
            stage: ClientStage::Opening,
            until: after(now, self.config.timeouts.work).min(expires),
            expires,
            port: port.clone(),
            kind,
            offered,
            exchange: RtokenExchange::default(),
        }));
        self.open(link, port);
    }

    /// Steps 1 to 3: where to open the link, and the type of the group afterwards.
    fn port_for_join(
        &self,
        over: LinkId,
        offered: &OfferedLink,
    ) -> Option<(PortCandidate, GroupType)> {
        let offer = &offered.rejection;
        let is_taken = self.links().any(|link| link.number == offer.link);
        let is_limited = self.kind == GroupType::Single && self.max_links() <= 1;
        if offer.mtu.bytes().is_none() || is_taken || is_limited {
            return None;
        }
        let alternate = self.alternate(over);
        let (port, kind) = if self.is_peer_port(over, &offered.address()) {
            (alternate?, GroupType::AsymmetricPeer)
        } else {
            match alternate {
                Some(port) => (port, GroupType::Symmetric),
                None => (self.same_port(over)?, GroupType::AsymmetricLocal),
            }
        };
        self.has_slot(kind).then(|| (port.clone(), kind))
    }

    pub(super) fn join_opened(&mut self, join: &mut AddLinkClient, local: LinkAddress) -> Progress {
        self.set_local(join.link, local);
        join.stage.opened()?;
        self.connect(join.link, join.offered.address());
        Ok(self.config.timeouts.work)
    }

    pub(super) fn join_connected(&mut self, join: &mut AddLinkClient) -> Progress {
        join.stage.connected()?;
        match self.map_for(join.link) {
            true => Ok(self.config.timeouts.work),
            false => self.join_mapped(join),
        }
    }

    pub(super) fn join_mapped(&mut self, join: &mut AddLinkClient) -> Progress {
        let info = self.link(join.link).ok_or(NotAdded::Device)?;
        let local = info.local.ok_or(NotAdded::Device)?;
        let is_v2 = self.terms.dialect.is_v2();
        match is_v2 {
            true => join.stage.mapped_v2()?,
            false => join.stage.mapped_v1()?,
        };
        let local = LinkAddress {
            mtu: local.mtu.min(join.offered.rejection.mtu),
            ..local
        };
        let (over, number) = (join.over, join.offered.rejection.link);
        let rtokens = self.rtokens_for(over, info.device);
        self.send_add_link(over, AddLinkClass::Accepted, number, &local, &rtokens);
        let told = std::mem::take(&mut join.offered.rtokens);
        self.store_peer_rtokens(over, join.link, told);
        if is_v2 {
            return Ok(self.config.timeouts.added_confirm);
        }
        join.exchange = RtokenExchange::new(rtokens);
        Ok(self.config.timeouts.response)
    }

    pub(super) fn join_keys_received(
        &mut self,
        join: &mut AddLinkClient,
        message: &AddLinkCont,
    ) -> Progress {
        let over = join.over;
        let rtokens = message.rtokens.iter().copied().map(Rtoken::from);
        self.store_peer_rtokens(over, join.link, rtokens);
        join.exchange.handle_message(message)?;
        let answer = join.exchange.next_message(Class::Response, message.link);
        self.send(over, answer.encoded_len(), |buffer| answer.emit(buffer));
        if join.exchange.is_done() {
            join.stage.exchanged()?;
            return Ok(self.config.timeouts.added_confirm);
        }
        Ok(self.config.timeouts.response)
    }

    pub(super) fn join_confirmed(&mut self, now: Instant, join: &AddLinkClient) {
        self.send_confirm_link(join.link, Class::Response);
        self.activate(now, join.link, join.kind);
    }

    pub(super) fn join_failed(&mut self, join: AddLinkClient, why: NotAdded) {
        let number = join.offered.rejection.link;
        self.notice(Notice::NotAdded { number, why });
        self.close(join.link);
        self.port_failed(join.over, &join.port);
        match join.stage {
            // A rejection is final even after an acceptance, as in Linux.
            ClientStage::Confirming if why != NotAdded::Deleted => {
                self.send_delete_lost(join.over, number)
            }
            _ => self.send_rejection(join.over, &join.offered),
        }
    }

    fn send_rejection(&mut self, over: LinkId, offered: &OfferedLink) {
        let message = offered.rejection;
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }
}
