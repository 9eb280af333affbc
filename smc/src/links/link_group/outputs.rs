//! The outputs of a link group's state machine.

use std::future::Future;
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

use smc_wire::types::RoceGid;

use super::super::super::device_driver::AfterDrain;
use super::super::link_sender::LinkSender;
use super::{NO_LINK, RdmaGroupState, RdmaLinkGroup, Retiring};
use crate::device::{
    DeviceError, LinkAddress, LinkFailure, PendingLink, ProtectionDomain, RdmaAddress, Route,
};
use crate::mem::sync::Ordering;
use crate::proto::group::{DeviceIndex, GroupEndCause};
use crate::proto::links::{FirstLinkError, LinkGroupOutput, LinkId, OpTag, RkeyError, RmbId};

impl RdmaLinkGroup {
    /// One mutation of the machine at the current time, and its outputs.
    pub(super) fn step<T>(
        self: &Arc<Self>,
        mutate: impl FnOnce(&mut RdmaGroupState, Instant) -> T,
    ) -> T {
        let now = self.now();
        let result = {
            let mut state = self.state.lock();
            let result = mutate(&mut state, now);
            // Before an answer to DELETE RKEY is sent.
            self.revocations
                .store(state.machine.revocations(), Ordering::Release);
            while let Some(output) = state.machine.poll_output() {
                state.outputs.push_back(output);
            }
            if state.is_applying {
                return result;
            }
            state.is_applying = true;
            result
        };
        loop {
            let output = {
                let mut state = self.state.lock();
                match state.outputs.pop_front() {
                    Some(output) => output,
                    None => {
                        state.is_applying = false;
                        break;
                    }
                }
            };
            self.log.span.in_scope(|| self.apply_output(output));
        }
        self.task.wake();
        result
    }

    fn apply_output(self: &Arc<Self>, output: LinkGroupOutput) {
        match output {
            LinkGroupOutput::Send { link, message, tag } => self.send(link, message, tag),
            LinkGroupOutput::Open {
                link,
                device,
                address,
            } => self.open_later(link, device, address),
            LinkGroupOutput::Connect { link, peer, route } => self.connect_later(link, peer, route),
            LinkGroupOutput::Map { device, rmbs } => self.map_later(device, rmbs),
            LinkGroupOutput::Links(links) => {
                if links.ends.len() > 1 {
                    self.members().iter().for_each(|conn| conn.reserve_byte());
                }
                self.groups
                    .update(|registry| registry.set_links(self.id, &links));
            }
            LinkGroupOutput::Stop(link) => self.stop_sending(link),
            LinkGroupOutput::Move { from, to } => self.move_members(from, to),
            LinkGroupOutput::Close(link) => self.close(link),
            LinkGroupOutput::FirstLink(result) => {
                let waker = self.state.lock().first_link.set(result);
                waker.into_iter().for_each(Waker::wake);
            }
            LinkGroupOutput::RkeyConfirmed { rmb, result } => {
                let mut state = self.state.lock();
                let answer = state.rkeys.get_mut(&rmb);
                let waker = answer.and_then(|answer| answer.set(result));
                drop(state);
                waker.into_iter().for_each(Waker::wake);
            }
            // Without an answer the peer may still write: the RMB stays registered, and unused.
            LinkGroupOutput::RkeyDeleted { rmb, is_answered } => {
                let mut state = self.state.lock();
                let retired = is_answered.then(|| state.retiring.remove(&rmb)).flatten();
                drop(state);
                if let Some(Retiring {
                    buffer,
                    dirty: Some(dirty),
                }) = retired
                {
                    self.pool.put(buffer, dirty);
                }
            }
            LinkGroupOutput::Terminate(cause) => self
                .groups
                .update(|registry| registry.terminate(self.id, cause)),
            LinkGroupOutput::Notice(notice) => self.log.notice(notice),
            LinkGroupOutput::Ended => {
                self.has_ended.store(true, Ordering::Release);
                let mut state = self.state.lock();
                let waker = state.first_link.set(Err(FirstLinkError::LinkDown));
                let answers = state.rkeys.values_mut();
                let wakers = answers.filter_map(|answer| answer.set(Err(RkeyError::Ended)));
                let wakers: Vec<_> = wakers.chain(waker).collect();
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                self.groups.remove_rdma(self.id);
                // Set-ups, and connections that have left the group.
                self.end_members(GroupEndCause::FirstContactFailed);
                self.try_retire_all();
            }
        }
    }

    fn send(self: &Arc<Self>, link: LinkId, message: Vec<u8>, tag: OpTag) {
        let Some(sender) = self.sender(link) else {
            return;
        };
        self.log.sends(link, &message);
        if sender.queue(self.now(), tag, message).is_err() {
            return self.give_up(link, LinkFailure::QueuePair("too many messages wait"));
        }
        self.pump(&sender);
    }

    /// Lets waiting connections post, as far as there is send capacity.
    pub(super) fn pump(self: &Arc<Self>, sender: &Arc<LinkSender>) {
        while let Some(token) = sender.next_turn(self.now()) {
            if self.member(token).is_some_and(|conn| !conn.take_turn()) {
                break;
            }
        }
        // Those that still wait have a timeout.
        if sender.is_starved() {
            self.task.wake();
        }
    }

    fn open_later(self: &Arc<Self>, link: LinkId, device: DeviceIndex, address: RdmaAddress) {
        self.spawn(async move |group| {
            let opened = group.open(device, &address).await;
            let unwanted = group.step(|state, now| {
                let result = opened.map(|pending| {
                    let local = pending.local();
                    state.pending.insert(link, (device, pending));
                    local
                });
                state.machine.handle_opened(now, link, result);
                // The link may have been removed meanwhile.
                match state.machine.link(link) {
                    Some(_) => None,
                    None => state.pending.remove(&link),
                }
            });
            drop(unwanted);
        });
    }

    /// Connects a further link, by a route of its own: `route` is that of the first one.
    fn connect_later(self: &Arc<Self>, link: LinkId, peer: LinkAddress, route: Route) {
        self.spawn(async move |group| {
            let own = group.pending_gid(link);
            let own = own.and_then(|own| group.groups.link_route(own, peer.gid));
            let route = own.unwrap_or(route);
            let result = group.connect(link, peer, route).await;
            group.step(|state, now| state.machine.handle_connected(now, link, result));
        });
    }

    fn map_later(self: &Arc<Self>, device: DeviceIndex, rmbs: Vec<RmbId>) {
        self.spawn(async move |group| {
            let mut keys = Vec::new();
            for conn in group.members() {
                let id = conn.rmb_id;
                if !rmbs.contains(&id) {
                    continue;
                }
                let Ok(domain) = group.domain(device).await else {
                    break;
                };
                let mapped = conn.rmb.register(device, &*domain).await;
                let staging = conn.staging.register(device, &*domain).await;
                if let (Ok(mr), Ok(_)) = (mapped, staging) {
                    keys.push((id, mr.rkey(), mr.addr()));
                }
            }
            group.step(|state, now| state.machine.handle_mapped(now, device, &keys));
        });
    }

    pub(super) fn spawn<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let work = self.log.span.instrument(work(Arc::clone(self)));
        self.groups.runtime.spawn(Box::pin(work));
    }

    fn pending_gid(&self, link: LinkId) -> Option<RoceGid> {
        let state = self.state.lock();
        let (_, pending) = state.pending.get(&link)?;
        Some(pending.local().gid)
    }

    pub(super) async fn open(
        &self,
        device: DeviceIndex,
        address: &RdmaAddress,
    ) -> Result<Box<dyn PendingLink>, DeviceError> {
        match self.try_open(device, address).await {
            // The device has none left, and a spare holds one.
            Err(DeviceError::Exhausted) if self.groups.spares.clear() => {
                self.try_open(device, address).await
            }
            opened => opened,
        }
    }

    async fn try_open(
        &self,
        device: DeviceIndex,
        address: &RdmaAddress,
    ) -> Result<Box<dyn PendingLink>, DeviceError> {
        self.domain(device).await?.open_link(address).await
    }

    /// The group's protection domain on a device.
    pub(super) async fn domain(
        &self,
        device: DeviceIndex,
    ) -> Result<Arc<dyn ProtectionDomain>, DeviceError> {
        let driver = self.driver(device).ok_or(NO_DEVICE)?;
        if let Some(domain) = self.state.lock().domains.get(&device) {
            return Ok(Arc::clone(domain));
        }
        let rdma = driver.device.operations().rdma().ok_or(NO_DEVICE)?;
        let domain = rdma.protection_domain().await?;
        // Another task may have been faster; all use the same one.
        let mut state = self.state.lock();
        Ok(Arc::clone(state.domains.entry(device).or_insert(domain)))
    }

    /// Connects a queue pair; its events are dispatched to this group from then on.
    pub(super) async fn connect(
        self: &Arc<Self>,
        link: LinkId,
        peer: LinkAddress,
        route: Route,
    ) -> Result<(), DeviceError> {
        let (device, pending) = self.state.lock().pending.remove(&link).ok_or(NO_LINK)?;
        let driver = self.driver(device).ok_or(NO_DEVICE)?;
        let qpn = pending.local().qpn;
        driver.links.lock().insert(qpn, Arc::downgrade(self), link);
        match pending.connect(peer, route).await {
            Ok(connected) => {
                let terms = self.state.lock().machine.terms();
                let sender = Arc::new(LinkSender::new(
                    link,
                    device,
                    connected,
                    &driver,
                    &terms,
                    self.now(),
                ));
                driver.counters.add_link(&sender);
                self.state.lock().senders.insert(link, sender);
                if self.link(link).is_none() {
                    // The link was removed meanwhile, before its sender was in the table.
                    self.close(link);
                    return Err(NO_LINK);
                }
                Ok(())
            }
            Err(error) => {
                driver.links.lock().remove(qpn, &Arc::downgrade(self), link);
                Err(error)
            }
        }
    }

    pub(super) fn close(self: &Arc<Self>, link: LinkId) {
        let (_pending, sender) = {
            let mut state = self.state.lock();
            (state.pending.remove(&link), state.senders.remove(&link))
        };
        if let Some(sender) = sender {
            sender.fail();
            self.close_sender(sender);
        }
    }

    fn close_sender(self: &Arc<Self>, sender: Arc<LinkSender>) {
        match self.groups.driver(sender.device) {
            Some(driver) => {
                driver.after_drain(AfterDrain::CloseLink(sender, Arc::downgrade(self)));
            }
            // The endpoint was dropped, and no events are dispatched any more.
            None => {
                sender.link.close();
                self.handle_stopped(sender.id);
            }
        }
    }

    /// Stops a link, whose connections will move to another one.
    fn stop_sending(self: &Arc<Self>, link: LinkId) {
        match self.sender(link).filter(|sender| !sender.is_closed()) {
            None => self.handle_stopped(link),
            Some(sender) => {
                sender.fail();
                self.close_sender(sender);
            }
        }
    }

    fn move_members(self: &Arc<Self>, from: LinkId, to: LinkId) {
        info!("failover", from = from, to = to);
        // There is one: `to` was active when the machine chose it, and a link that fails after that
        // keeps its sender until an output behind this one closes it.
        if let Some(target) = self.sender(to) {
            self.has_moved.store(true, Ordering::Relaxed);
            for conn in self.members() {
                conn.move_to(from, &target);
            }
            self.pump(&target);
        }
        self.step(|state, now| state.machine.handle_moved(now, from));
        self.try_retire_all();
    }
}

const NO_DEVICE: DeviceError = DeviceError::Gone("device was removed");
