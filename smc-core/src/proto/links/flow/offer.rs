//! ADD LINK as a server (docs/spec/llc.md#adding-as-server).

use std::time::Instant;

use smc_wire::llc::{
    AddLink, AddLinkCont, AddLinkExtension, AddLinkStep, DeleteLink, DeleteLinkReason, Dialect,
    MessageType, RequestAddLink, RequestAddLinkStep, Rtoken, Step, WireRtoken,
};
use smc_wire::types::{LinkNumber, MtuCode, Psn, Qpn};

use super::tokens::Telling;
use super::{Flow, Trigger};
use crate::device::{LinkAddress, RdmaAddress, Route};
use crate::proto::group::DeviceIndex;
use crate::proto::links::group::after;
use crate::proto::links::{DropReason, GroupType, LinkGroup, LinkId, NotAdded, Notice, Output};
use crate::proto::table::transitions;

transitions! {
    /// A server adds a link.
    ///
    /// ```text
    /// OPENING ─ MAPPING ─ OFFERED ─ CONNECTING ─┬─ TELLING ─┬─ CONFIRMING ─ CONFIRMED
    ///  queue     RMBs      ADD       the client's└── v2 ─────┘  CONFIRM
    ///  pair      there     LINK      end                         LINK
    /// ```
    pub(in crate::proto::links) enum OfferStage {
        /// The queue pair is being made.
        Opening = "OPENING",
        /// RMBs are being registered with its device.
        Mapping = "MAPPING",
        /// ADD LINK is sent.
        Offered = "OFFERED",
        /// The client accepted; the queue pair is being connected.
        Connecting = "CONNECTING",
        /// v1: ADD LINK CONT goes back and forth.
        Telling = "TELLING",
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
    connected_v1(Connecting => Telling);
    /// v2: the queue pair is connected, and the keys are known.
    connected_v2(Connecting => Confirming);
    /// v1: the keys are known.
    told(Telling => Confirming);
    /// The client confirmed the link.
    confirmed(Confirming => Confirmed);
}

/// A link that we add.
#[derive(Debug)]
pub(in crate::proto::links) struct Offer {
    pub(in crate::proto::links) link: LinkId,
    number: LinkNumber,
    /// The link over which it is arranged.
    pub(in crate::proto::links) over: LinkId,
    pub(in crate::proto::links) stage: OfferStage,
    pub(in crate::proto::links) until: Instant,
    /// What the group becomes.
    kind: GroupType,
    telling: Telling,
    pub(super) trigger: Trigger,
}

impl Offer {
    pub(in crate::proto::links) fn is_confirming(&self, link: LinkId) -> bool {
        self.link == link && self.stage == OfferStage::Confirming
    }

    pub(in crate::proto::links) fn is_mapping(&self) -> bool {
        self.stage == OfferStage::Mapping
    }

    pub(in crate::proto::links) fn is_telling(&self, over: LinkId, number: LinkNumber) -> bool {
        self.stage == OfferStage::Telling && self.is_meant(over, number)
    }

    /// Whether an answer is about it. One offer is out at a time, so its answer need not name the link.
    fn is_meant(&self, over: LinkId, number: LinkNumber) -> bool {
        self.over == over && [self.number, LinkNumber::NONE].contains(&number)
    }

    /// Whether the client knows of it.
    pub(super) fn is_said(&self) -> bool {
        !matches!(self.stage, OfferStage::Opening | OfferStage::Mapping)
    }

    /// Whether it can go on without the link over which it is arranged.
    pub(in crate::proto::links) fn stands_alone(&self) -> bool {
        self.stage == OfferStage::Confirming
    }
}

impl LinkGroup {
    pub(in crate::proto::links) fn start_offer(&mut self, now: Instant, trigger: Trigger) {
        let Some(over) = self.primary() else {
            return;
        };
        let Some((device, address, kind)) = self.port_for_offer(over) else {
            self.decline_to_offer(over, trigger);
            return;
        };
        let number = self.next_number();
        let link = self.new_link(now, device, number);
        self.flow = Some(Flow::Offer(Offer {
            link,
            number,
            over,
            stage: OfferStage::Opening,
            until: after(now, self.config.timeouts.work),
            kind,
            telling: Telling::default(),
            trigger,
        }));
        self.outputs.push_back(Output::Open {
            link,
            device,
            address,
        });
    }

    /// Steps 1 to 3: where to open a link, and what it would make of the group.
    fn port_for_offer(&self, over: LinkId) -> Option<(DeviceIndex, RdmaAddress, GroupType)> {
        if self.kind == GroupType::Single && self.max_links() <= 1 {
            return None;
        }
        let (port, kind) = match self.alternate(over) {
            Some(port) => (port, GroupType::Symmetric),
            None if self.config.same_device => (self.same_port(over)?, GroupType::AsymmetricLocal),
            None => return None,
        };
        self.has_slot(kind)
            .then(|| (port.device, port.address.clone(), kind))
    }

    /// There is nothing to offer: says so to those who wait for it.
    fn decline_to_offer(&mut self, over: LinkId, trigger: Trigger) {
        self.notice(Notice::NotAdded {
            number: LinkNumber::NONE,
            why: NotAdded::NoPort,
        });
        match trigger {
            Trigger::Requested(link) => self.answer_request(link),
            Trigger::Established if self.terms.max_links > 1 => self.send_hollow_offer(over),
            Trigger::Established | Trigger::Occasion => {}
        }
    }

    /// An ADD LINK that cannot be accepted, for clients that wait for one
    /// (docs/spec/llc.md#nothing-to-offer).
    fn send_hollow_offer(&mut self, over: LinkId) {
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
        self.send_add_link(over, AddLinkStep::Request, number, &address, &[]);
    }

    /// The 44-byte answer to REQUEST ADD LINK: no.
    fn answer_request(&mut self, over: LinkId) {
        let message = RequestAddLink {
            order: self.terms.dialect.order(),
            step: RequestAddLinkStep::Response {
                rejected: false,
                reason: Default::default(),
            },
        };
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }

    pub(in crate::proto::links) fn offer_opened(
        &mut self,
        now: Instant,
        mut offer: Offer,
        local: LinkAddress,
    ) {
        self.set_local(offer.link, local);
        if offer.stage.opened().is_err() {
            return self.offer_failed(offer, NotAdded::Device);
        }
        if self.map_for(offer.link) {
            offer.until = after(now, self.config.timeouts.work);
            self.flow = Some(Flow::Offer(offer));
        } else {
            self.offer_mapped(now, offer);
        }
    }

    pub(in crate::proto::links) fn offer_mapped(&mut self, now: Instant, mut offer: Offer) {
        let info = self.link(offer.link);
        let Some((local, device)) = info.and_then(|info| Some((info.local?, info.device))) else {
            return self.offer_failed(offer, NotAdded::Device);
        };
        if offer.stage.mapped().is_err() {
            return self.offer_failed(offer, NotAdded::Device);
        }
        let rtokens = self.rtokens_for(offer.over, device);
        self.send_add_link(
            offer.over,
            AddLinkStep::Request,
            offer.number,
            &local,
            &rtokens,
        );
        if self.terms.dialect == Dialect::V1 {
            offer.telling = Telling::new(rtokens);
        }
        offer.until = after(now, self.config.timeouts.response);
        self.flow = Some(Flow::Offer(offer));
    }

    /// ADD LINK with RESP.
    pub(in crate::proto::links) fn hear_offer_answer(
        &mut self,
        now: Instant,
        over: LinkId,
        answer: &AddLink<'_>,
    ) {
        let mut offer = match self.flow.take() {
            Some(Flow::Offer(offer))
                if offer.stage == OfferStage::Offered && offer.is_meant(over, answer.link) =>
            {
                offer
            }
            flow => {
                self.flow = flow;
                return self.hear_late_answer(answer);
            }
        };
        self.long_answered();
        if answer.step != AddLinkStep::Accepted {
            return self.offer_failed(offer, NotAdded::Rejected);
        }
        if answer.mtu.bytes().is_none() || offer.stage.accepted().is_err() {
            return self.offer_failed(offer, NotAdded::Violation);
        }
        let peer = LinkAddress {
            gid: answer.gid,
            mac: answer.mac,
            qpn: answer.qpn,
            psn: answer.psn,
            mtu: answer.mtu,
        };
        if self.kind == GroupType::Single && self.is_peer_port(over, &peer) {
            offer.kind = GroupType::AsymmetricPeer;
        }
        let rtokens = answer.extension.map_or(&[][..], |found| found.rtokens);
        self.hear_rtokens(over, offer.link, rtokens.iter().copied().map(Rtoken::from));
        self.connect(offer.link, peer);
        offer.until = after(now, self.config.timeouts.work);
        self.flow = Some(Flow::Offer(offer));
    }

    /// The last word of a client on an offer that we gave up, as it should be.
    fn hear_late_answer(&mut self, answer: &AddLink<'_>) {
        let is_rejection = matches!(answer.step, AddLinkStep::Rejected(_));
        if is_rejection && self.abandoned == Some(answer.link) {
            self.abandoned = None;
        } else {
            self.dropped(MessageType::AddLink, DropReason::Unexpected);
        }
    }

    pub(in crate::proto::links) fn offer_connected(&mut self, now: Instant, mut offer: Offer) {
        if self.terms.dialect.is_v2() {
            match offer.stage.connected_v2() {
                Ok(_) => self.confirm_offer(now, offer),
                Err(_) => self.offer_failed(offer, NotAdded::Device),
            }
            return;
        }
        if offer.stage.connected_v1().is_err() {
            return self.offer_failed(offer, NotAdded::Device);
        }
        self.tell_offer(now, offer);
    }

    fn tell_offer(&mut self, now: Instant, mut offer: Offer) {
        let message = offer.telling.say(Step::Request, offer.number);
        self.send(offer.over, message.encoded_len(), |buffer| {
            message.emit(buffer)
        });
        offer.until = after(now, self.config.timeouts.response);
        self.flow = Some(Flow::Offer(offer));
    }

    pub(in crate::proto::links) fn offer_told(
        &mut self,
        now: Instant,
        mut offer: Offer,
        message: &AddLinkCont,
    ) {
        let rtokens = message.rtokens.iter().copied().map(Rtoken::from);
        self.hear_rtokens(offer.over, offer.link, rtokens);
        if offer.telling.hear(message).is_none() {
            return self.offer_failed(offer, NotAdded::Violation);
        }
        if !offer.telling.is_done() {
            return self.tell_offer(now, offer);
        }
        match offer.stage.told() {
            Ok(_) => self.confirm_offer(now, offer),
            Err(_) => self.offer_failed(offer, NotAdded::Violation),
        }
    }

    fn confirm_offer(&mut self, now: Instant, mut offer: Offer) {
        self.send_confirm_link(offer.link, Step::Request);
        offer.until = after(now, self.config.timeouts.added_confirm);
        self.flow = Some(Flow::Offer(offer));
    }

    pub(in crate::proto::links) fn offer_confirmed(&mut self, now: Instant, offer: &Offer) {
        self.activate(now, offer.link, offer.kind);
        self.remove_asymmetric(now);
    }

    pub(in crate::proto::links) fn offer_timeout(&mut self, offer: Offer) {
        let why = match offer.stage {
            OfferStage::Offered | OfferStage::Telling | OfferStage::Confirming => {
                NotAdded::TimedOut
            }
            _ => NotAdded::Device,
        };
        self.offer_failed(offer, why);
    }

    /// The link comes to nothing; the group stays as it was.
    pub(in crate::proto::links) fn offer_failed(&mut self, offer: Offer, why: NotAdded) {
        self.notice(Notice::NotAdded {
            number: offer.number,
            why,
        });
        self.close(offer.link);
        if offer.is_said() && !matches!(why, NotAdded::Rejected | NotAdded::Deleted) {
            self.abandoned = Some(offer.number);
        }
        match (offer.stage, offer.trigger) {
            (OfferStage::Opening | OfferStage::Mapping, Trigger::Requested(link)) => {
                self.answer_request(link);
            }
            (OfferStage::Confirming, _) if why != NotAdded::Deleted => {
                // The client has it ready and would wait for longer.
                self.send_delete_lost(offer.over, offer.number);
            }
            _ => {}
        }
    }

    /// DELETE LINK for a link that did not come about.
    pub(in crate::proto::links) fn send_delete_lost(&mut self, over: LinkId, link: LinkNumber) {
        let message = DeleteLink {
            dialect: self.terms.dialect,
            step: Step::Request,
            all: false,
            orderly: false,
            link,
            reason: DeleteLinkReason::PATH_LOST,
        };
        let over = self.active_or(over);
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }

    /// ADD LINK about our end of a new link.
    pub(in crate::proto::links) fn send_add_link(
        &mut self,
        over: LinkId,
        step: AddLinkStep,
        number: LinkNumber,
        local: &LinkAddress,
        rtokens: &[Rtoken],
    ) {
        let wire: Vec<_> = rtokens.iter().copied().map(WireRtoken::from).collect();
        let extension = AddLinkExtension {
            direct: self.route == Route::Direct,
            // Ours, as Linux does; nobody reads it.
            client_target_gid: local.gid,
            stated_count: u16::try_from(wire.len()).unwrap_or(u16::MAX),
            rtokens: &wire,
        };
        let message = AddLink {
            dialect: self.terms.dialect,
            step,
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
