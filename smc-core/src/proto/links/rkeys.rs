//! CONFIRM RKEY and DELETE RKEY of both sides (docs/spec/llc.md#confirm-rkey and
//! docs/spec/llc.md#delete-rkey).

use std::time::Instant;

use smc_wire::Bounded;
use smc_wire::llc::{
    Class, ConfirmRkey, DeleteRkey, DeleteRkeyErrors, LinkRtoken, MessageType, RkeyClass, WireRkey,
};
use smc_wire::types::Rkey;

use super::rmbs::{RkeyRequest, RkeyWait, Rmb, RmbAnnouncement};
use super::stale_deletes::StaleDelete;
use super::{DropReason, LinkGroup, LinkGroupOutput, LinkId, LinkInfo, Notice, RkeyError, RmbId};
use crate::proto::after;
use crate::proto::group::DeviceIndex;

impl LinkGroup {
    /// Starts the next request about a local RMB, if allowed.
    pub(super) fn start_rkey(&mut self, now: Instant) -> bool {
        let requests = &self.local_rmbs.requests;
        // So that an RMB need not wait for the answer to DELETE RKEY of the connection before.
        let least = if self.terms.is_linux { 2 } else { 1 };
        if requests.len() >= self.config.rkeys_in_flight.max(least) || self.primary().is_none() {
            return false;
        }
        // One at a time, because its answer may name no key, so that the result is unambiguous.
        let is_deleting = |request: &RkeyRequest| matches!(request.wait, RkeyWait::Deleting { .. });
        let is_mapping = |request: &RkeyRequest| matches!(request.wait, RkeyWait::Mapping(_));
        let next_delete = match requests.iter().any(is_deleting) {
            true => None,
            false => self.next_delete(),
        };
        let can_confirm = !self.local_rmbs.confirms.is_empty() && !requests.iter().any(is_mapping);
        if can_confirm && !(next_delete.is_some() && self.local_rmbs.was_confirm) {
            self.local_rmbs.was_confirm = true;
            if let Some(rmb) = self.local_rmbs.confirms.pop_front() {
                self.start_confirm(now, rmb);
            }
            return true;
        }
        let Some(rmb) = next_delete.and_then(|at| self.local_rmbs.deletes.remove(at)) else {
            return false;
        };
        self.local_rmbs.was_confirm = false;
        self.start_delete_rkey(now, rmb);
        true
    }

    /// The first RMB that can be revoked now. Others wait because their request would travel on a
    /// link on which the next answer is ambiguous.
    fn next_delete(&self) -> Option<usize> {
        let can_start = |id: &RmbId| {
            let rmb = self.local_rmbs.rmbs.get(id);
            let found = rmb.filter(|rmb| rmb.announced != RmbAnnouncement::No);
            let found = found.and_then(|rmb| self.link_for_delete(rmb));
            found.is_none_or(|(link, _)| !self.local_rmbs.stale.is_ambiguous(link))
        };
        self.local_rmbs.deletes.iter().position(can_start)
    }

    /// The link over which an RMB is revoked, that of its connection if there is one, and the key.
    fn link_for_delete(&self, rmb: &Rmb) -> Option<(LinkId, Rkey)> {
        let usable = |link: LinkInfo| Some((link.id, rmb.key(link.device)?.rkey));
        let wish = self.active().find(|link| link.id == rmb.link);
        wish.and_then(usable)
            .or_else(|| self.active().find_map(usable))
    }

    fn start_confirm(&mut self, now: Instant, id: RmbId) {
        let Some(rmb) = self.local_rmbs.rmbs.get(&id) else {
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
            self.outputs.push_back(LinkGroupOutput::Map {
                device: *device,
                rmbs: vec![id],
            });
        }
        let until = after(now, self.config.timeouts.work);
        self.local_rmbs
            .request(id, RkeyWait::Mapping(missing), until);
    }

    fn send_confirm_rkey(&mut self, now: Instant, id: RmbId) {
        let Some(rmb) = self.local_rmbs.rmbs.get_mut(&id) else {
            return;
        };
        let usable: Vec<_> = self
            .links
            .iter()
            .filter(|link| link.is_active())
            .filter_map(|link| Some((link.info, rmb.key(link.info.device)?)))
            .collect();
        // The handshake names the RMB by its key on this link. If it were announced on another one
        // only, the peer would not find it.
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
            class: RkeyClass::Request,
            rkey: key.rkey,
            address: key.addr,
            further_links: u8::try_from(further.len()).unwrap_or(u8::MAX),
            further,
        };
        rmb.announced = RmbAnnouncement::Unconfirmed;
        let wait = RkeyWait::Confirming {
            link: link.id,
            rkey: key.rkey,
            addr: key.addr,
        };
        let link = link.id;
        self.send(link, message.encoded_len(), |buffer| message.emit(buffer));
        let until = after(now, self.config.timeouts.response);
        self.local_rmbs.request(id, wait, until);
    }

    /// CONFIRM RKEY has ended.
    fn confirm_ended(&mut self, id: RmbId, result: Result<(), RkeyError>) {
        let Some(rmb) = self.local_rmbs.rmbs.get_mut(&id) else {
            return;
        };
        if result.is_ok() {
            rmb.announced = RmbAnnouncement::Yes;
        }
        if rmb.is_released {
            self.local_rmbs.deletes.push_back(id);
        } else {
            self.outputs
                .push_back(LinkGroupOutput::RkeyConfirmed { rmb: id, result });
        }
    }

    /// The keys of RMBs with a device have arrived; an RMB that is missing cannot be registered.
    pub(super) fn rkeys_mapped(&mut self, now: Instant, device: DeviceIndex) {
        let mut ready = Vec::new();
        for request in &mut self.local_rmbs.requests {
            if let RkeyWait::Mapping(missing) = &mut request.wait {
                if missing.contains(&device) {
                    missing.retain(|other| *other != device);
                    ready.push((request.rmb, missing.is_empty()));
                }
            }
        }
        for (id, is_complete) in ready {
            if let Some(rmb) = self.local_rmbs.rmbs.get_mut(&id) {
                if rmb.key(device).is_none() {
                    rmb.unmapped.push(device);
                }
            }
            if is_complete {
                self.local_rmbs.requests.retain(|request| request.rmb != id);
                self.mapping_ended(now, id);
            }
        }
    }

    fn mapping_ended(&mut self, now: Instant, id: RmbId) {
        match self.local_rmbs.rmbs.get(&id) {
            Some(rmb) if rmb.is_released => self.confirm_ended(id, Err(RkeyError::NoTurn)),
            Some(_) => self.send_confirm_rkey(now, id),
            None => {}
        }
    }

    fn start_delete_rkey(&mut self, now: Instant, id: RmbId) {
        let Some(rmb) = self.local_rmbs.rmbs.get(&id) else {
            return;
        };
        if rmb.announced == RmbAnnouncement::No {
            return self.delete_ended(id, true);
        }
        let Some((link, rkey)) = self.link_for_delete(rmb) else {
            // No link to it is left, but a new one may come up.
            return self.delete_ended(id, false);
        };
        let keys = [WireRkey::from(rkey)];
        let message = DeleteRkey::request(self.terms.dialect, &keys);
        self.send(link, message.encoded_len(), |buffer| message.emit(buffer));
        let wait = RkeyWait::Deleting { link, rkey };
        let until = after(now, self.config.timeouts.response);
        self.local_rmbs.request(id, wait, until);
    }

    fn delete_ended(&mut self, rmb: RmbId, is_answered: bool) {
        self.local_rmbs.rmbs.remove(&rmb);
        self.outputs
            .push_back(LinkGroupOutput::RkeyDeleted { rmb, is_answered });
        self.report_links();
    }

    /// An RMB is out of use.
    pub(super) fn release_rmb(&mut self, id: RmbId) {
        let has_ended = self.end.is_some();
        let Some(rmb) = self.local_rmbs.rmbs.get_mut(&id) else {
            let is_answered = true;
            return self.outputs.push_back(LinkGroupOutput::RkeyDeleted {
                rmb: id,
                is_answered,
            });
        };
        if std::mem::replace(&mut rmb.is_released, true) || has_ended {
            // It is in progress, or ends with the group.
            return;
        }
        let mut requests = self.local_rmbs.requests.iter();
        if requests.any(|request| request.rmb == id) {
            // Deleted when the result of the request is known.
            return;
        }
        let announced = rmb.announced;
        self.local_rmbs.confirms.retain(|other| *other != id);
        match announced {
            RmbAnnouncement::No => self.delete_ended(id, true),
            RmbAnnouncement::Unconfirmed | RmbAnnouncement::Yes => {
                self.local_rmbs.deletes.push_back(id)
            }
        }
    }

    pub(super) fn rkey_timeouts(&mut self, now: Instant) {
        self.local_rmbs.stale.expire(now);
        let due = |request: &RkeyRequest| request.until <= now;
        for request in self.local_rmbs.take_requests(due) {
            match request.wait {
                RkeyWait::Mapping(missing) => {
                    if let Some(rmb) = self.local_rmbs.rmbs.get_mut(&request.rmb) {
                        rmb.unmapped.extend(missing);
                    }
                    self.mapping_ended(now, request.rmb);
                }
                RkeyWait::Confirming { .. } => {
                    self.notice(Notice::Unanswered(MessageType::ConfirmRkey));
                    self.confirm_ended(request.rmb, Err(RkeyError::TimedOut));
                }
                RkeyWait::Deleting { link, rkey } => {
                    self.notice(Notice::Unanswered(MessageType::DeleteRkey));
                    self.local_rmbs.stale.push(StaleDelete {
                        rmb: request.rmb,
                        link,
                        rkey,
                        until: after(now, self.config.timeouts.turn),
                        is_counted: false,
                    });
                    self.local_rmbs.undeleted = self.local_rmbs.undeleted.saturating_add(1);
                    self.delete_ended(request.rmb, false);
                }
            }
        }
        self.expire_turns(now);
    }

    /// Ends requests that waited for their turn for too long.
    fn expire_turns(&mut self, now: Instant) {
        let rmbs = &self.local_rmbs.rmbs;
        let is_due = |id: &RmbId| rmbs.get(id).is_some_and(|rmb| rmb.turn_deadline <= now);
        if !self.local_rmbs.confirms.iter().any(is_due) {
            return;
        }
        let (due, kept) = std::mem::take(&mut self.local_rmbs.confirms)
            .into_iter()
            .partition::<Vec<_>, _>(is_due);
        self.local_rmbs.confirms = kept.into();
        for id in due {
            self.confirm_ended(id, Err(RkeyError::NoTurn));
        }
    }

    /// The next deadline of this file.
    pub(super) fn rkeys_due(&self) -> Option<Instant> {
        let requests = self.local_rmbs.requests.iter().map(|request| request.until);
        let turn_deadline = |id| Some(self.local_rmbs.rmbs.get(id)?.turn_deadline);
        requests
            .chain(self.local_rmbs.confirms.iter().filter_map(turn_deadline))
            .chain(self.local_rmbs.stale.due())
            .min()
    }

    /// CONFIRM RKEY. A request is always answered at once.
    pub(super) fn handle_confirm_rkey(&mut self, link: LinkId, message: &ConfirmRkey) {
        let result = match message.class {
            RkeyClass::Request => return self.answer_confirm_rkey(link, message),
            RkeyClass::Accepted => Ok(()),
            RkeyClass::Rejected { .. } => Err(RkeyError::Refused),
        };
        let answered = self.local_rmbs.take_requests(|request| {
            matches!(request.wait, RkeyWait::Confirming { rkey, addr, .. }
                if rkey == message.rkey && addr == message.address)
        });
        if answered.is_empty() {
            self.dropped(MessageType::ConfirmRkey, DropReason::Unexpected);
        }
        for request in answered {
            self.confirm_ended(request.rmb, result);
        }
    }

    fn answer_confirm_rkey(&mut self, link: LinkId, message: &ConfirmRkey) {
        self.terms.confirms_rkeys = true;
        let is_sane = message.further_links <= FURTHER_MAX;
        let entered = is_sane
            .then(|| self.rtokens.add(link, message.rkey, message.address).ok())
            .flatten();
        let class = match entered {
            Some(id) => {
                for further in &message.further {
                    let other = self.links().find(|other| other.number == further.link);
                    if let Some(other) = other.filter(|other| other.id != link) {
                        self.rtokens
                            .set(id, other.id, further.rkey, further.address);
                    }
                }
                RkeyClass::Accepted
            }
            None => RkeyClass::Rejected { retry: true },
        };
        let answer = message.response(class);
        self.send(link, answer.encoded_len(), |buffer| answer.emit(buffer));
    }

    /// DELETE RKEY. A request is always answered at once.
    pub(super) fn handle_delete_rkey(
        &mut self,
        now: Instant,
        link: LinkId,
        message: &DeleteRkey<'_>,
    ) {
        match message.class {
            Class::Request => self.answer_delete_rkey(link, message),
            Class::Response => self.delete_answered(now, link, message.rkeys),
        }
    }

    /// An answer to DELETE RKEY. Of version 2 it may name no key.
    fn delete_answered(&mut self, now: Instant, link: LinkId, rkeys: &[WireRkey]) {
        let is_v2 = self.terms.dialect.is_v2();
        let is_unnamed = is_v2 && rkeys.iter().all(|key| *key == WireRkey::default());
        let is_named = |key: Rkey| rkeys.iter().any(|named| Rkey::from(*named) == key);
        let stale = &mut self.local_rmbs.stale;
        stale.expire(now);
        let mut late = Vec::new();
        let is_late = if is_unnamed {
            stale.count_answer(link)
        } else {
            late.extend(stale.take_named(link, is_named));
            !late.is_empty()
        };
        if !is_late {
            let in_time = self.local_rmbs.take_requests(|request| {
                matches!(request.wait, RkeyWait::Deleting { link: on, rkey }
                    if on == link && (is_unnamed || is_named(rkey)))
            });
            for request in in_time {
                self.delete_ended(request.rmb, true);
            }
        }
        if !self.local_rmbs.is_deleting_on(link) {
            late.extend(self.local_rmbs.stale.take_answered(link));
        }
        for rmb in late {
            self.local_rmbs.undeleted = self.local_rmbs.undeleted.saturating_sub(1);
            self.delete_ended(rmb, true);
        }
    }

    pub(super) fn answer_delete_rkey(&mut self, link: LinkId, message: &DeleteRkey<'_>) {
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
