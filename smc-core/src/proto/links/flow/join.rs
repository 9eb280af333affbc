//! ADD LINK as a client (docs/spec/llc.md#adding-as-client).

use std::time::Instant;

use smc_wire::llc::{AddLink, AddLinkCont, AddLinkStep, MessageType, RejectReason, Rtoken, Step};
use smc_wire::types::LinkNumber;

use super::tokens::Telling;
use super::{Aside, Flow};
use crate::device::{LinkAddress, RdmaAddress};
use crate::proto::group::DeviceIndex;
use crate::proto::links::group::after;
use crate::proto::links::{DropReason, GroupType, LinkGroup, LinkId, NotAdded, Notice, Output};
use crate::proto::table::transitions;

transitions! {
    /// A client adds the link that its server offers.
    ///
    /// ```text
    /// OPENING ─ CONNECTING ─ MAPPING ─┬─ TELLING ─┬─ CONFIRMING ─ CONFIRMED
    ///  queue     the server's  RMBs   └── v2 ─────┘   CONFIRM
    ///  pair      end           there                   LINK
    /// ```
    pub(in crate::proto::links) enum JoinStage {
        /// The queue pair is being made.
        Opening = "OPENING",
        /// It is being connected.
        Connecting = "CONNECTING",
        /// RMBs are being registered with its device.
        Mapping = "MAPPING",
        /// v1: accepted; ADD LINK CONT goes back and forth.
        Telling = "TELLING",
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
    mapped_v1(Mapping => Telling);
    /// v2: the RMBs are registered, and the keys are known.
    mapped_v2(Mapping => Confirming);
    /// v1: the keys are known.
    told(Telling => Confirming);
    /// The server confirmed the link.
    confirmed(Confirming => Confirmed);
}

/// What the server offers.
#[derive(Debug)]
pub(in crate::proto::links) struct Proposed {
    /// The offer as a rejection, which repeats it.
    rejection: AddLink<'static>,
    /// v2: its keys.
    rtokens: Vec<Rtoken>,
}

impl Proposed {
    pub(in crate::proto::links) fn new(offer: &AddLink<'_>) -> Self {
        let rtokens = offer.extension.map_or(&[][..], |found| found.rtokens);
        // Version 2 has no room for a reason.
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

/// A link that we take.
#[derive(Debug)]
pub(in crate::proto::links) struct Join {
    pub(in crate::proto::links) link: LinkId,
    /// The link over which it is arranged.
    pub(in crate::proto::links) over: LinkId,
    pub(in crate::proto::links) stage: JoinStage,
    pub(in crate::proto::links) until: Instant,
    /// What the group becomes.
    kind: GroupType,
    proposed: Proposed,
    telling: Telling,
}

impl Join {
    pub(in crate::proto::links) fn is_confirming(&self, link: LinkId) -> bool {
        self.link == link && self.stage == JoinStage::Confirming
    }

    pub(in crate::proto::links) fn is_mapping(&self) -> bool {
        self.stage == JoinStage::Mapping
    }

    pub(in crate::proto::links) fn is_telling(&self, over: LinkId, number: LinkNumber) -> bool {
        let offer = &self.proposed.rejection;
        self.stage == JoinStage::Telling && self.over == over && offer.link == number
    }

    /// Whether it can go on without the link over which it is arranged.
    pub(in crate::proto::links) fn stands_alone(&self) -> bool {
        self.stage == JoinStage::Confirming
    }
}

impl LinkGroup {
    /// ADD LINK without RESP.
    pub(in crate::proto::links) fn hear_offer(
        &mut self,
        now: Instant,
        over: LinkId,
        offer: &AddLink<'_>,
    ) {
        let proposed = Proposed::new(offer);
        if let Some(Flow::Request { .. }) = self.flow {
            self.flow = None;
            self.long_answered();
        }
        let is_idle = self.flow.is_none() && self.own.is_quiet() && self.wanted.aside.is_none();
        if is_idle {
            self.start_join(now, over, proposed);
        } else if self.wanted.aside.is_none() && self.is_established_link(over) {
            let until = after(now, self.config.timeouts.response);
            self.wanted.aside = Some(Aside::Add {
                over,
                proposed,
                until,
            });
        } else {
            self.dropped(MessageType::AddLink, DropReason::Busy);
        }
    }

    pub(in crate::proto::links) fn start_join(
        &mut self,
        now: Instant,
        over: LinkId,
        proposed: Proposed,
    ) {
        if !self.is_established_link(over) {
            return self.dropped(MessageType::AddLink, DropReason::NoLink);
        }
        let Some((device, address, kind)) = self.port_for_join(over, &proposed) else {
            self.notice(Notice::NotAdded {
                number: proposed.rejection.link,
                why: NotAdded::Refused,
            });
            return self.send_rejection(over, &proposed);
        };
        let link = self.new_link(now, device, proposed.rejection.link);
        self.flow = Some(Flow::Join(Join {
            link,
            over,
            stage: JoinStage::Opening,
            until: after(now, self.config.timeouts.work),
            kind,
            proposed,
            telling: Telling::default(),
        }));
        self.outputs.push_back(Output::Open {
            link,
            device,
            address,
        });
    }

    /// Steps 1 to 3: where to open the link, and what it would make of the group.
    fn port_for_join(
        &self,
        over: LinkId,
        proposed: &Proposed,
    ) -> Option<(DeviceIndex, RdmaAddress, GroupType)> {
        let offer = &proposed.rejection;
        let is_taken = self.links().any(|link| link.number == offer.link);
        let is_limited = self.kind == GroupType::Single && self.max_links() <= 1;
        if offer.mtu.bytes().is_none() || is_taken || is_limited {
            return None;
        }
        let alternate = self.alternate(over);
        let (port, kind) = if self.is_peer_port(over, &proposed.address()) {
            (alternate?, GroupType::AsymmetricPeer)
        } else {
            match alternate {
                Some(port) => (port, GroupType::Symmetric),
                None => (self.same_port(over)?, GroupType::AsymmetricLocal),
            }
        };
        self.has_slot(kind)
            .then(|| (port.device, port.address.clone(), kind))
    }

    pub(in crate::proto::links) fn join_opened(
        &mut self,
        now: Instant,
        mut join: Join,
        local: LinkAddress,
    ) {
        self.set_local(join.link, local);
        if join.stage.opened().is_err() {
            return self.join_failed(join, NotAdded::Device);
        }
        self.connect(join.link, join.proposed.address());
        join.until = after(now, self.config.timeouts.work);
        self.flow = Some(Flow::Join(join));
    }

    pub(in crate::proto::links) fn join_connected(&mut self, now: Instant, mut join: Join) {
        if join.stage.connected().is_err() {
            return self.join_failed(join, NotAdded::Device);
        }
        if self.map_for(join.link) {
            join.until = after(now, self.config.timeouts.work);
            self.flow = Some(Flow::Join(join));
        } else {
            self.join_mapped(now, join);
        }
    }

    pub(in crate::proto::links) fn join_mapped(&mut self, now: Instant, mut join: Join) {
        let info = self.link(join.link);
        let Some((local, device)) = info.and_then(|info| Some((info.local?, info.device))) else {
            return self.join_failed(join, NotAdded::Device);
        };
        let is_v2 = self.terms.dialect.is_v2();
        let timeouts = self.config.timeouts;
        let (moved, wait) = match is_v2 {
            true => (join.stage.mapped_v2(), timeouts.added_confirm),
            false => (join.stage.mapped_v1(), timeouts.response),
        };
        if moved.is_err() {
            return self.join_failed(join, NotAdded::Device);
        }
        let local = LinkAddress {
            mtu: local.mtu.min(join.proposed.rejection.mtu),
            ..local
        };
        let number = join.proposed.rejection.link;
        let rtokens = self.rtokens_for(join.over, device);
        self.send_add_link(join.over, AddLinkStep::Accepted, number, &local, &rtokens);
        let told = std::mem::take(&mut join.proposed.rtokens);
        self.hear_rtokens(join.over, join.link, told);
        if !is_v2 {
            join.telling = Telling::new(rtokens);
        }
        join.until = after(now, wait);
        self.flow = Some(Flow::Join(join));
    }

    pub(in crate::proto::links) fn join_told(
        &mut self,
        now: Instant,
        mut join: Join,
        message: &AddLinkCont,
    ) {
        let rtokens = message.rtokens.iter().copied().map(Rtoken::from);
        self.hear_rtokens(join.over, join.link, rtokens);
        if join.telling.hear(message).is_none() {
            return self.join_failed(join, NotAdded::Violation);
        }
        let answer = join.telling.say(Step::Response, message.link);
        self.send(join.over, answer.encoded_len(), |buffer| {
            answer.emit(buffer)
        });
        let timeouts = self.config.timeouts;
        let wait = if join.telling.is_done() && join.stage.told().is_ok() {
            timeouts.added_confirm
        } else {
            timeouts.response
        };
        join.until = after(now, wait);
        self.flow = Some(Flow::Join(join));
    }

    pub(in crate::proto::links) fn join_confirmed(&mut self, now: Instant, join: &Join) {
        self.send_confirm_link(join.link, Step::Response);
        self.activate(now, join.link, join.kind);
    }

    pub(in crate::proto::links) fn join_timeout(&mut self, _now: Instant, join: Join) {
        let why = match join.stage {
            JoinStage::Telling | JoinStage::Confirming => NotAdded::TimedOut,
            _ => NotAdded::Device,
        };
        self.join_failed(join, why);
    }

    /// The link comes to nothing; the group stays as it was.
    pub(in crate::proto::links) fn join_failed(&mut self, join: Join, why: NotAdded) {
        let number = join.proposed.rejection.link;
        self.notice(Notice::NotAdded { number, why });
        self.close(join.link);
        match join.stage {
            // A rejection is the last word even after we have accepted, as it is of Linux.
            JoinStage::Confirming if why != NotAdded::Deleted => {
                self.send_delete_lost(join.over, number)
            }
            _ => self.send_rejection(join.over, &join.proposed),
        }
    }

    fn send_rejection(&mut self, over: LinkId, proposed: &Proposed) {
        let message = proposed.rejection;
        self.send(over, message.encoded_len(), |buffer| message.emit(buffer));
    }
}
