//! Events of devices, timers and the registry for a link group.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Instant;

use smc_wire::cdc::CdcR;

use super::super::super::conn::ReceivedCdc;
use super::super::super::runtime::Timer;
use super::super::link_sender::LinkSender;
use super::RdmaLinkGroup;
use crate::device::{Inbound, LinkFailure, OpId};
use crate::mem::sync::Ordering;
use crate::proto::group::{DeviceIndex, GroupEndCause};
use crate::proto::links::{DropReason, LinkId, Posted};

impl RdmaLinkGroup {
    /// A link has received a message.
    pub(crate) fn handle_received(self: &Arc<Self>, link: LinkId, message: &Inbound) {
        let (bytes, now) = (message.as_bytes(), self.now());
        let Some(sender) = self.sender(link) else {
            return self.handle_message(link, None, bytes, now);
        };
        match sender.received(now, bytes) {
            Err(error) => self.give_up(link, LinkFailure::QueuePair(error.message())),
            Ok(may_post) => {
                self.handle_message(link, Some(&sender), bytes, now);
                if may_post {
                    self.pump(&sender);
                }
            }
        }
    }

    fn handle_message(
        self: &Arc<Self>,
        link: LinkId,
        sender: Option<&Arc<LinkSender>>,
        bytes: &[u8],
        now: Instant,
    ) {
        if bytes.first() != Some(&CdcR::TYPE) {
            self.log.received(link, bytes);
            let is_awaited = self.step(|state, now| {
                let was_awaited = state.machine.awaits_deletions();
                state.machine.handle_message(now, link, bytes);
                was_awaited && !state.machine.awaits_deletions()
            });
            if is_awaited {
                self.groups.notify_ended();
            }
            return;
        }
        match CdcR::parse(bytes) {
            Ok(cdc) => {
                if let Some(conn) = self.member(cdc.token) {
                    conn.handle_cdc(ReceivedCdc { cdc, link });
                    self.try_retire(&conn);
                }
            }
            // Malformed messages are dropped, as in the kernel.
            Err(_) => {
                let log = &self.log;
                log.span
                    .in_scope(|| log.dropped("CDC", DropReason::Malformed));
            }
        }
        if sender.is_some_and(|sender| sender.take_activity_due(now)) {
            self.step(|state, now| state.machine.handle_received(now, link));
        }
    }

    pub(crate) fn handle_completed(self: &Arc<Self>, link: LinkId, op: OpId) {
        let Some(sender) = self.sender(link) else {
            return;
        };
        let now = self.now();
        for done in sender.completed(now, op) {
            match done {
                Posted::Llc(tag) => {
                    self.step(|state, now| state.machine.handle_completed(now, link, tag));
                }
                Posted::Credits(_) => {}
                Posted::Cdc(token) => {
                    if let Some(conn) = self.member(token) {
                        conn.handle_completed(link);
                        self.try_retire(&conn);
                    }
                }
            }
        }
        self.pump(&sender);
    }

    /// The device reports that the queue pair sends and receives nothing any more.
    pub(crate) fn handle_link_down(self: &Arc<Self>, link: LinkId, cause: LinkFailure) {
        if let Some(sender) = self.sender(link) {
            sender.set_closed();
            sender.note_failure(cause);
        }
        self.give_up(link, cause);
        self.handle_stopped(link);
    }

    pub(super) fn give_up(self: &Arc<Self>, link: LinkId, cause: LinkFailure) {
        if let Some(sender) = self.sender(link) {
            sender.fail();
        }
        self.step(|state, now| state.machine.handle_link_down(now, link, cause));
    }

    /// A link is closed: its connections continue on another link.
    pub(crate) fn handle_stopped(self: &Arc<Self>, link: LinkId) {
        self.step(|state, _| state.machine.handle_stopped(link));
    }

    /// All links of a device are down.
    pub(crate) fn handle_device_gone(self: &Arc<Self>, device: DeviceIndex) {
        let links = self.links().into_iter();
        for link in links.filter(|link| link.device == device) {
            self.handle_link_down(link.id, LinkFailure::Device("device was removed"));
        }
    }

    /// Takes the local addresses that further links can have, at first and after a change.
    pub(crate) fn addresses_changed(self: &Arc<Self>) {
        let first = {
            let state = self.state.lock();
            let first = state.first_address.clone().zip(state.first_peer);
            first.map(|(like, peer)| (like, state.pnet_id, peer))
        };
        let Some((like, pnet_id, peer)) = first else {
            return;
        };
        let candidates = self.groups.candidates(&like, pnet_id, peer);
        self.step(|state, now| state.machine.handle_candidates(now, candidates));
    }

    // ---- Ending --------------------------------------------------------------------------------

    /// The registry has ended the group: ends its connections, each of which leaves it by itself,
    /// and then notifies the peer.
    pub(crate) fn end(self: &Arc<Self>, cause: GroupEndCause) {
        self.end_members(cause);
        let (is_orderly, reason) = cause.delete_link();
        self.step(|state, now| state.machine.end(now, is_orderly, reason));
    }

    pub(super) fn end_members(&self, cause: GroupEndCause) {
        for conn in self.members() {
            conn.handle_group_end(cause);
        }
    }

    pub(super) fn try_retire_all(self: &Arc<Self>) {
        for conn in self.members() {
            self.try_retire(&conn);
        }
    }

    /// Handles timeouts. Returns the next one.
    pub(super) fn handle_timeouts(self: &Arc<Self>) -> Option<Instant> {
        let now = self.now();
        let senders: Vec<_> = self.state.lock().senders.values().cloned().collect();
        let mut next = None;
        for sender in senders {
            match sender.handle_timeout(now) {
                Err(why) => self.give_up(sender.id, LinkFailure::QueuePair(why.message())),
                Ok(()) => next = next.into_iter().chain(sender.poll_timeout()).min(),
            }
        }
        let due = self.state.lock().machine.poll_timeout();
        if due.is_some_and(|at| at <= now) {
            self.step(|state, now| state.machine.handle_timeout(now));
        }
        let probe = self.probe_members(now);
        let due = self.state.lock().machine.poll_timeout();
        [next, probe, due].into_iter().flatten().min()
    }

    /// Probes the peers of connections that have moved and not ended. Returns the next probe.
    fn probe_members(&self, now: Instant) -> Option<Instant> {
        if !self.has_moved.load(Ordering::Relaxed) {
            return None;
        }
        let members = self.members();
        members
            .iter()
            .filter_map(|conn| conn.probe_if_due(now))
            .min()
    }
}

/// The task of a group.
pub(super) struct GroupTask(pub(super) Weak<RdmaLinkGroup>);

impl GroupTask {
    /// Runs the timers of the group until its end.
    pub(super) async fn run_timers(self) {
        let mut timer: Option<(Instant, Timer)> = None;
        poll_fn(|cx| {
            let Some(group) = self.0.upgrade() else {
                return Poll::Ready(());
            };
            loop {
                group.task.register(cx.waker());
                if group.has_ended() {
                    return Poll::Ready(());
                }
                let Some(at) = group.handle_timeouts() else {
                    return Poll::Pending;
                };
                if timer.as_ref().is_none_or(|(set, _)| *set != at) {
                    timer = Some((at, group.groups.runtime.timer(at)));
                }
                let is_due = |(_, timer): &mut (Instant, Timer)| timer.as_mut().poll(cx).is_ready();
                if !timer.as_mut().is_some_and(is_due) {
                    return Poll::Pending;
                }
                timer = None;
            }
        })
        .await;
    }
}

/// Also when the runtime ends, before or after the drivers are dropped.
impl Drop for GroupTask {
    fn drop(&mut self) {
        let Some(group) = self.0.upgrade() else {
            return;
        };
        group.has_task_ended.store(true, Ordering::SeqCst);
        group.groups.abandon_if_unused();
    }
}
