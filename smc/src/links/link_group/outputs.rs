//! The outputs of a link group's state machine.

use std::future::Future;
use std::sync::Arc;
use std::task::Waker;

use super::super::link_sender::LinkSender;
use super::{ENDPOINT_ENDS, NO_LINK, RdmaGroup, State};
use crate::device::{
    DeviceError, LinkAddress, LinkFailure, PendingLink, ProtectionDomain, RdmaAddress, Route,
};
use crate::error::CloseReason;
use crate::mem::sync::Ordering;
use crate::proto::group::{DeviceIndex, GroupEndCause, GroupKey};
use crate::proto::handshake::Role;
use crate::proto::links::{
    self, FirstLinkError, LinkGroupOutput, LinkId, LinkState, OpTag, RkeyError, RmbId,
};

impl RdmaGroup {
    /// One mutation of the machine, and its outputs.
    pub(super) fn step<T>(self: &Arc<Self>, mutate: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let mut state = self.lock();
            let result = mutate(&mut state);
            while let Some(output) = state.machine.poll_output() {
                state.outputs.push_back(output);
            }
            if state.busy {
                return result;
            }
            state.busy = true;
            result
        };
        loop {
            let output = {
                let mut state = self.lock();
                match state.outputs.pop_front() {
                    Some(output) => output,
                    None => {
                        state.busy = false;
                        break;
                    }
                }
            };
            self.apply_output(output);
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
            LinkGroupOutput::Activate(_) => {
                self.publish_links();
                if self.can_move() {
                    self.members().iter().for_each(|conn| conn.reserve_byte());
                }
            }
            LinkGroupOutput::Deactivate(_) => self.publish_links(),
            LinkGroupOutput::Move { from, to } => self.start_move(from, to),
            LinkGroupOutput::Close(link) => self.close(link),
            LinkGroupOutput::FirstLink(result) => {
                let waker = self.lock().first_link.set(result);
                waker.into_iter().for_each(Waker::wake);
            }
            LinkGroupOutput::RkeyConfirmed { rmb, result } => {
                let mut state = self.lock();
                let answer = state.rkeys.get_mut(&rmb);
                let waker = answer.and_then(|answer| answer.set(result));
                drop(state);
                waker.into_iter().for_each(Waker::wake);
            }
            // Without an answer the peer may still write: the RMB stays registered, and unused.
            LinkGroupOutput::RkeyDeleted { rmb, is_answered } => {
                let retired = self.lock_retired_if(rmb, is_answered);
                if let Some((buffer, dirty)) = retired {
                    self.pool.put(buffer, dirty);
                }
            }
            LinkGroupOutput::Full(is_full) => self.groups.set_full(self.id, is_full),
            LinkGroupOutput::Terminate(cause) => {
                self.abort_members(match cause {
                    links::TerminateCause::Local(ENDPOINT_ENDS) => CloseReason::Endpoint,
                    _ => CloseReason::Aborted,
                });
                let cause = match cause {
                    links::TerminateCause::LinksLost(_) => GroupEndCause::LinksDown,
                    links::TerminateCause::Peer(_) => GroupEndCause::PeerGone,
                    links::TerminateCause::Local(_) => GroupEndCause::Shutdown,
                };
                self.groups.terminate(self.id, cause);
            }
            LinkGroupOutput::Ended => {
                self.over.store(true, Ordering::Release);
                let mut state = self.lock();
                let waker = state.first_link.set(Err(FirstLinkError::LinkDown));
                let answers = state.rkeys.values_mut();
                let wakers = answers.filter_map(|answer| answer.set(Err(RkeyError::Ended)));
                let wakers: Vec<_> = wakers.chain(waker).collect();
                state.moving.clear();
                drop(state);
                wakers.into_iter().for_each(Waker::wake);
                self.groups.remove_rdma(self.id);
                self.abort_members(CloseReason::Aborted);
                self.retire_finished();
            }
        }
    }

    fn send(self: &Arc<Self>, link: LinkId, message: Vec<u8>, tag: OpTag) {
        let Some(sender) = self.sender(link) else {
            return;
        };
        if sender.queue(self.now(), tag, message).is_err() {
            return self.give_up(link, LinkFailure::QueuePair("too many messages wait"));
        }
        self.pump(&sender);
    }

    /// Lets waiting connections post, as far as there is send capacity.
    pub(super) fn pump(self: &Arc<Self>, sender: &Arc<LinkSender>) {
        while let Some(token) = sender.next_turn(self.now()) {
            let conn = self.lock_members().get(&token).cloned();
            if conn.is_some_and(|conn| !conn.take_turn()) {
                break;
            }
        }
    }

    fn open_later(self: &Arc<Self>, link: LinkId, device: DeviceIndex, address: RdmaAddress) {
        self.spawn(async move |group| {
            let opened = group.open(device, &address).await;
            let now = group.now();
            let unwanted = group.step(|state| {
                let mut unwanted = None;
                let result = opened.map(|pending| {
                    let local = pending.local();
                    if state.machine.link(link).is_some() {
                        state.pending.insert(link, (device, pending));
                    } else {
                        unwanted = Some(pending);
                    }
                    local
                });
                state.machine.handle_opened(now, link, result);
                unwanted
            });
            drop(unwanted);
        });
    }

    fn connect_later(self: &Arc<Self>, link: LinkId, peer: LinkAddress, route: Route) {
        self.spawn(async move |group| {
            let result = group.connect(link, peer, route).await;
            let now = group.now();
            group.step(|state| state.machine.handle_connected(now, link, result));
        });
    }

    fn map_later(self: &Arc<Self>, device: DeviceIndex, rmbs: Vec<RmbId>) {
        self.spawn(async move |group| {
            let mut keys = Vec::new();
            for conn in group.members() {
                let id = conn.rmb_id();
                if !rmbs.contains(&id) {
                    continue;
                }
                let Ok(domain) = group.domain(device).await else {
                    break;
                };
                let mapped = conn.rmb().register(device, &*domain).await;
                let staging = conn.staging().register(device, &*domain).await;
                if let (Ok(mr), Ok(_)) = (mapped, staging) {
                    keys.push((id, mr.rkey(), mr.addr()));
                }
            }
            let now = group.now();
            group.step(|state| state.machine.handle_mapped(now, device, &keys));
        });
    }

    fn spawn<F>(self: &Arc<Self>, work: impl FnOnce(Arc<Self>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let work = work(Arc::clone(self));
        self.groups.runtime().spawn(Box::pin(work));
    }

    pub(super) async fn open(
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
        if let Some(domain) = self.lock_domains().get(&device) {
            return Ok(Arc::clone(domain));
        }
        let rdma = driver.device().fabric().rdma().ok_or(NO_DEVICE)?;
        let domain = rdma.protection_domain().await?;
        // Another task may have been faster; all use the same one.
        let mut domains = self.lock_domains();
        Ok(Arc::clone(domains.entry(device).or_insert(domain)))
    }

    /// Connects a queue pair; its events are dispatched to this group from then on.
    pub(super) async fn connect(
        self: &Arc<Self>,
        link: LinkId,
        peer: LinkAddress,
        route: Route,
    ) -> Result<(), DeviceError> {
        let (device, pending) = self.lock().pending.remove(&link).ok_or(NO_LINK)?;
        let driver = self.driver(device).ok_or(NO_DEVICE)?;
        let qpn = pending.local().qpn;
        driver.add_link(qpn, self, link);
        match pending.connect(peer, route).await {
            Ok(connected) => {
                let sender = Arc::new(LinkSender::new(
                    link,
                    device,
                    connected,
                    &driver,
                    self.now(),
                ));
                self.lock_senders().insert(link, sender);
                if self.link(link).is_none() {
                    // The link was removed meanwhile, before its sender was in the table.
                    self.close(link);
                    return Err(NO_LINK);
                }
                Ok(())
            }
            Err(error) => {
                driver.remove_link(qpn);
                Err(error)
            }
        }
    }

    pub(super) fn close(self: &Arc<Self>, link: LinkId) {
        let pending = self.lock().pending.remove(&link);
        drop(pending);
        let sender = self.lock_senders().remove(&link);
        if let Some(sender) = sender {
            sender.fail();
            self.close_sender(sender);
        }
    }

    fn close_sender(self: &Arc<Self>, sender: Arc<LinkSender>) {
        match self.groups.driver(sender.device()) {
            Some(driver) => driver.close_link(sender, self),
            // The endpoint was dropped, and no events are dispatched any more.
            None => {
                sender.link().close();
                self.closed(sender.id());
            }
        }
    }

    /// Starts to move the connections of a link to another one.
    fn start_move(self: &Arc<Self>, from: LinkId, to: LinkId) {
        let sender = self.sender(from);
        match sender.filter(|sender| !sender.is_closed()) {
            None => self.move_members(from, to),
            Some(sender) => {
                sender.fail();
                self.lock().moving.push((from, to));
                self.close_sender(sender);
            }
        }
    }

    pub(super) fn move_members(self: &Arc<Self>, from: LinkId, to: LinkId) {
        let target = self.sender(to).filter(|sender| !sender.is_down());
        let target = target.or_else(|| {
            // The target has failed meanwhile.
            let mut links = self.links().into_iter();
            let other = links.find(|link| link.state == LinkState::Active && link.id != from)?;
            self.sender(other.id)
        });
        if let Some(target) = target {
            self.has_moved.store(true, Ordering::Relaxed);
            for conn in self.members() {
                conn.move_to(from, &target);
            }
            self.pump(&target);
        }
        let now = self.now();
        self.step(|state| state.machine.handle_moved(now, from));
        self.retire_finished();
    }

    /// Publishes the keys of active links to the registry.
    pub(super) fn publish_links(&self) {
        let ends: Vec<_> = {
            let mut state = self.lock();
            let active = state.machine.links();
            let active = active.filter(|link| link.state == LinkState::Active);
            let mut ends: Vec<_> = active.filter_map(|link| link.peer).collect();
            if self.role == Role::Client && !ends.is_empty() {
                let named = &mut state.named;
                named.retain(|end| !ends.contains(end));
                named.extend(&ends);
                while named.len() > NAMED_MAX {
                    named.pop_front();
                }
                ends = named.iter().copied().collect();
            }
            ends
        };
        let keys = ends.iter().filter_map(|end| link_key(&self.key, end));
        self.groups.set_keys(self.id, keys.collect());
    }
}

/// The registry key of a group by one of its links.
fn link_key(of: &GroupKey, end: &LinkAddress) -> Option<GroupKey> {
    let GroupKey::Rdma {
        role,
        version,
        peer,
        vlan,
        client,
        ..
    } = *of
    else {
        return None;
    };
    Some(GroupKey::Rdma {
        role,
        version,
        peer,
        gid: end.gid,
        mac: (!version.is_v2()).then_some(end.mac),
        vlan,
        client,
        qpn: (role == Role::Client).then_some(end.qpn),
    })
}

/// Maximum of links by which a server may name a group, including failed ones.
const NAMED_MAX: usize = 4;

const NO_DEVICE: DeviceError = DeviceError::Gone("device was removed");
