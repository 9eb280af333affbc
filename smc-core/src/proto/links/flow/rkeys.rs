//! CONFIRM RKEY and DELETE RKEY, ours and the peer's (docs/spec/llc.md#confirm-rkey and
//! docs/spec/llc.md#delete-rkey).

use std::time::Instant;

use smc_wire::Bounded;
use smc_wire::llc::{
    ConfirmRkey, DeleteRkey, DeleteRkeyErrors, LinkRtoken, MessageType, RkeyStep, Step, WireRkey,
};
use smc_wire::types::Rkey;

use crate::proto::group::DeviceIndex;
use crate::proto::links::group::after;
use crate::proto::links::rmbs::{Flight, Told, What};
use crate::proto::links::{
    DropReason, LinkGroup, LinkId, LinkInfo, Notice, Output, RkeyError, RmbId,
};

impl LinkGroup {
    /// Starts the next request about an RMB of ours, if it may.
    pub(super) fn start_rkey(&mut self, now: Instant) -> bool {
        let flights = &self.own.flights;
        if flights.len() >= self.config.rkeys_in_flight.max(1) || self.primary().is_none() {
            return false;
        }
        // One at a time, because its answer may name no key; and so that we know what came of it.
        let is_deleting = |flight: &Flight| matches!(flight.what, What::Deleting { .. });
        let is_mapping = |flight: &Flight| matches!(flight.what, What::Mapping(_));
        let can_delete = !self.own.deletes.is_empty() && !flights.iter().any(is_deleting);
        let can_confirm = !self.own.confirms.is_empty() && !flights.iter().any(is_mapping);
        if can_confirm && !(can_delete && self.own.was_confirm) {
            self.own.was_confirm = true;
            if let Some(rmb) = self.own.confirms.pop_front() {
                self.start_confirm(now, rmb);
            }
            return true;
        }
        if can_delete {
            self.own.was_confirm = false;
            if let Some(rmb) = self.own.deletes.pop_front() {
                self.start_delete_rkey(now, rmb);
            }
            return true;
        }
        false
    }

    fn start_confirm(&mut self, now: Instant, id: RmbId) {
        let Some(rmb) = self.own.rmbs.get(&id) else {
            return;
        };
        let mut missing: Vec<DeviceIndex> = Vec::new();
        for link in self.active() {
            if rmb.lacks(link.device) && !missing.contains(&link.device) {
                missing.push(link.device);
            }
        }
        if missing.is_empty() {
            return self.send_confirm_rkey(now, id);
        }
        for device in &missing {
            self.outputs.push_back(Output::Map {
                device: *device,
                rmbs: vec![id],
            });
        }
        self.own.flights.push(Flight {
            rmb: id,
            what: What::Mapping(missing),
            until: after(now, self.config.timeouts.work),
        });
    }

    fn send_confirm_rkey(&mut self, now: Instant, id: RmbId) {
        let Some(rmb) = self.own.rmbs.get_mut(&id) else {
            return;
        };
        let usable: Vec<_> = self
            .links
            .iter()
            .filter(|link| link.is_active())
            .filter_map(|link| Some((link.info, rmb.key(link.info.device)?)))
            .collect();
        // The handshake names the RMB by its key on this link. Told on another one only, the peer
        // would not find it.
        let wish = |(link, _): &&(LinkInfo, _)| link.id == rmb.link;
        let Some((link, key)) = usable.iter().find(wish) else {
            return self.confirm_ended(id, Err(RkeyError::NoKey));
        };
        let further = usable.iter().filter(|(other, _)| other.id != link.id);
        let further = Bounded::from_iter_lossy(further.map(|(other, key)| LinkRtoken {
            link: other.number,
            rkey: key.rkey,
            address: key.addr,
        }));
        let message = ConfirmRkey {
            dialect: self.terms.dialect,
            step: RkeyStep::Request,
            rkey: key.rkey,
            address: key.addr,
            further_links: u8::try_from(further.len()).unwrap_or(u8::MAX),
            further,
        };
        rmb.told = Told::Maybe;
        let what = What::Confirming {
            link: link.id,
            rkey: key.rkey,
            addr: key.addr,
        };
        let link = link.id;
        self.send(link, message.encoded_len(), |buffer| message.emit(buffer));
        self.own.flights.push(Flight {
            rmb: id,
            what,
            until: after(now, self.config.timeouts.response),
        });
    }

    /// CONFIRM RKEY has come to its end.
    fn confirm_ended(&mut self, id: RmbId, result: Result<(), RkeyError>) {
        let Some(rmb) = self.own.rmbs.get_mut(&id) else {
            return;
        };
        if result.is_ok() {
            rmb.told = Told::Yes;
        }
        if rmb.is_leaving {
            self.own.deletes.push_back(id);
        } else {
            self.outputs
                .push_back(Output::RkeyConfirmed { rmb: id, result });
        }
    }

    /// The keys of RMBs with a device have come; what was not named cannot be had.
    pub(in crate::proto::links) fn rkeys_mapped(&mut self, now: Instant, device: DeviceIndex) {
        let mut ready = Vec::new();
        for flight in &mut self.own.flights {
            if let What::Mapping(missing) = &mut flight.what {
                if missing.contains(&device) {
                    missing.retain(|other| *other != device);
                    ready.push((flight.rmb, missing.is_empty()));
                }
            }
        }
        for (id, is_complete) in ready {
            if let Some(rmb) = self.own.rmbs.get_mut(&id) {
                if rmb.key(device).is_none() {
                    rmb.unmapped.push(device);
                }
            }
            if is_complete {
                self.own.flights.retain(|flight| flight.rmb != id);
                self.mapping_ended(now, id);
            }
        }
    }

    fn mapping_ended(&mut self, now: Instant, id: RmbId) {
        match self.own.rmbs.get(&id) {
            Some(rmb) if rmb.is_leaving => self.confirm_ended(id, Err(RkeyError::NoTurn)),
            Some(_) => self.send_confirm_rkey(now, id),
            None => {}
        }
    }

    fn start_delete_rkey(&mut self, now: Instant, id: RmbId) {
        let Some(rmb) = self.own.rmbs.get(&id) else {
            return;
        };
        if rmb.told == Told::No {
            return self.delete_ended(id, true);
        }
        let usable = |link: LinkInfo| Some((link.id, rmb.key(link.device)?.rkey));
        let wish = self.active().find(|link| link.id == rmb.link);
        let found = wish
            .and_then(usable)
            .or_else(|| self.active().find_map(usable));
        let Some((link, rkey)) = found else {
            // Whatever link it could be written over is gone, but perhaps not for long.
            return self.delete_ended(id, false);
        };
        let keys = [WireRkey::from(rkey)];
        let message = DeleteRkey::request(self.terms.dialect, &keys);
        self.send(link, message.encoded_len(), |buffer| message.emit(buffer));
        self.own.flights.push(Flight {
            rmb: id,
            what: What::Deleting { link, rkey },
            until: after(now, self.config.timeouts.response),
        });
    }

    fn delete_ended(&mut self, rmb: RmbId, is_answered: bool) {
        self.own.rmbs.remove(&rmb);
        self.outputs
            .push_back(Output::RkeyDeleted { rmb, is_answered });
    }

    /// An RMB is out of use.
    pub(in crate::proto::links) fn leave(&mut self, id: RmbId) {
        let is_ended = self.end.is_some();
        let Some(rmb) = self.own.rmbs.get_mut(&id) else {
            let is_answered = true;
            return self.outputs.push_back(Output::RkeyDeleted {
                rmb: id,
                is_answered,
            });
        };
        if std::mem::replace(&mut rmb.is_leaving, true) || is_ended {
            // It is on its way, or goes with the group.
            return;
        }
        if self.own.flights.iter().any(|flight| flight.rmb == id) {
            // Deleted once we know what came of it.
            return;
        }
        let told = rmb.told;
        self.own.confirms.retain(|other| *other != id);
        match told {
            Told::No => self.delete_ended(id, true),
            Told::Maybe | Told::Yes => self.own.deletes.push_back(id),
        }
    }

    pub(in crate::proto::links) fn rkey_timeouts(&mut self, now: Instant) {
        while self.own.stale.front().is_some_and(|until| *until <= now) {
            self.own.stale.pop_front();
        }
        let own = &mut self.own;
        let (due, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut own.flights)
            .into_iter()
            .partition(|flight| flight.until <= now);
        own.flights = kept;
        for flight in due {
            match flight.what {
                What::Mapping(missing) => {
                    if let Some(rmb) = self.own.rmbs.get_mut(&flight.rmb) {
                        rmb.unmapped.extend(missing);
                    }
                    self.mapping_ended(now, flight.rmb);
                }
                What::Confirming { .. } => {
                    self.notice(Notice::Unanswered(MessageType::ConfirmRkey));
                    self.confirm_ended(flight.rmb, Err(RkeyError::TimedOut));
                }
                What::Deleting { .. } => {
                    self.notice(Notice::Unanswered(MessageType::DeleteRkey));
                    if self.terms.dialect.is_v2() {
                        let until = after(now, self.config.timeouts.turn);
                        self.own.stale.push_back(until);
                    }
                    self.delete_ended(flight.rmb, false);
                }
            }
        }
        self.turns_over(now);
    }

    /// Those that waited for their turn for too long.
    fn turns_over(&mut self, now: Instant) {
        let rmbs = &self.own.rmbs;
        let is_due = |id: &RmbId| rmbs.get(id).is_some_and(|rmb| rmb.turn <= now);
        if !self.own.confirms.iter().any(is_due) {
            return;
        }
        let (due, kept) = std::mem::take(&mut self.own.confirms)
            .into_iter()
            .partition::<Vec<_>, _>(is_due);
        self.own.confirms = kept.into();
        for id in due {
            self.confirm_ended(id, Err(RkeyError::NoTurn));
        }
    }

    /// When something of this file is due.
    pub(in crate::proto::links) fn rkeys_due(&self) -> Option<Instant> {
        let flights = self.own.flights.iter().map(|flight| flight.until);
        let turn = |id| Some(self.own.rmbs.get(id)?.turn);
        flights
            .chain(self.own.confirms.iter().filter_map(turn))
            .min()
    }

    /// CONFIRM RKEY. A request is answered at once, whatever else goes on.
    pub(in crate::proto::links) fn hear_confirm_rkey(
        &mut self,
        link: LinkId,
        message: &ConfirmRkey,
    ) {
        let result = match message.step {
            RkeyStep::Request => return self.answer_confirm_rkey(link, message),
            RkeyStep::Accepted => Ok(()),
            RkeyStep::Rejected { .. } => Err(RkeyError::Refused),
        };
        let at = self.own.flights.iter().position(|flight| {
            matches!(flight.what, What::Confirming { rkey, addr, .. }
                if rkey == message.rkey && addr == message.address)
        });
        match at {
            Some(at) => {
                let flight = self.own.flights.remove(at);
                self.confirm_ended(flight.rmb, result);
            }
            None => self.dropped(MessageType::ConfirmRkey, DropReason::Unexpected),
        }
    }

    fn answer_confirm_rkey(&mut self, link: LinkId, message: &ConfirmRkey) {
        let is_sane = message.further_links <= FURTHER_MAX;
        let entered = is_sane
            .then(|| self.rtokens.add(link, message.rkey, message.address).ok())
            .flatten();
        let step = match entered {
            Some(id) => {
                for further in &message.further {
                    let other = self.links().find(|other| other.number == further.link);
                    if let Some(other) = other.filter(|other| other.id != link) {
                        self.rtokens
                            .set(id, other.id, further.rkey, further.address);
                    }
                }
                RkeyStep::Accepted
            }
            None => RkeyStep::Rejected { retry: true },
        };
        let answer = message.response(step);
        self.send(link, answer.encoded_len(), |buffer| answer.emit(buffer));
    }

    /// DELETE RKEY. A request is answered at once, whatever else goes on.
    pub(in crate::proto::links) fn hear_delete_rkey(
        &mut self,
        link: LinkId,
        message: &DeleteRkey<'_>,
    ) {
        if message.step == Step::Request {
            return self.answer_delete_rkey(link, message);
        }
        let is_v2 = self.terms.dialect.is_v2();
        if is_v2 && self.own.stale.pop_front().is_some() {
            return self.dropped(MessageType::DeleteRkey, DropReason::Unexpected);
        }
        let named = |key: Rkey| message.rkeys.iter().any(|named| Rkey::from(*named) == key);
        let at = self.own.flights.iter().position(|flight| {
            // The answer of version 2 may name no key, but there is only one it can be for.
            matches!(flight.what, What::Deleting { rkey, .. } if is_v2 || named(rkey))
        });
        match at {
            Some(at) => {
                let flight = self.own.flights.remove(at);
                self.delete_ended(flight.rmb, true);
            }
            None => self.dropped(MessageType::DeleteRkey, DropReason::Unexpected),
        }
    }

    pub(in crate::proto::links) fn answer_delete_rkey(
        &mut self,
        link: LinkId,
        message: &DeleteRkey<'_>,
    ) {
        let keys = message.rkeys.iter().copied().map(Rkey::from);
        let known: Vec<_> = keys.map(|key| self.rtokens.delete(link, key)).collect();
        let dialect = message.dialect;
        let zeros = [WireRkey::default(); SHORT_RKEYS];
        let rkeys = match dialect.is_v2() {
            // Short, like the answers of Linux, even if there are more.
            true => zeros.get(..known.len()).unwrap_or(&zeros),
            false => message.rkeys,
        };
        let errors = DeleteRkeyErrors::from_known(dialect, known);
        let answer = DeleteRkey { rkeys, ..*message }.response(errors);
        // Also on the link of a group that ends.
        let _tag = self.post(link, answer.encoded_len(), |buffer| answer.emit(buffer));
    }
}

/// Most further links that CONFIRM RKEY may state (docs/spec/llc.md#confirm-rkey).
const FURTHER_MAX: u8 = 3;

/// Keys that fit into a DELETE RKEY of 44 bytes.
const SHORT_RKEYS: usize = 9;
