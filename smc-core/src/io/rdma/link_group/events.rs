//! What devices, timers and the registry tell a link group.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Instant;

use smc_wire::cdc::CdcR;
use smc_wire::llc::DeleteLinkReason;

use super::super::super::runtime::Timer;
use super::{ENDPOINT_ENDS, RdmaGroup};
use crate::device::{Inbound, LinkFailure, OpId};
use crate::error::{CloseReason, Error};
use crate::mem::sync::Ordering;
use crate::proto::group::{Cause, DeviceIndex};
use crate::proto::links::{LinkId, OpTag, Posted};

impl RdmaGroup {
    /// A link of this device has received a message.
    pub(crate) fn received(self: &Arc<Self>, here: DeviceIndex, link: LinkId, message: &Inbound) {
        let now = self.now();
        let bytes = message.as_bytes();
        if bytes.first() != Some(&CdcR::TYPE) {
            let is_awaited = self.step(|state| {
                let was_awaited = state.machine.awaits_deletions();
                state.machine.handle_message(now, link, bytes);
                was_awaited && !state.machine.awaits_deletions()
            });
            if is_awaited {
                self.groups.note_end();
            }
            return;
        }
        // What cannot be read is dropped, as in the kernel.
        if let Ok(cdc) = CdcR::parse(bytes) {
            let staged = self.lock_members().get(&cdc.token).cloned();
            if let Some(staged) = staged {
                staged.arrived(&cdc, here, link);
                if staged.can_go() {
                    self.retire(&staged);
                }
            }
        }
        if self.wire(link).is_some_and(|wire| wire.is_news(now)) {
            self.step(|state| state.machine.handle_received(now, link));
        }
    }

    pub(crate) fn sent(self: &Arc<Self>, link: LinkId, op: OpId) {
        let Some(wire) = self.wire(link) else { return };
        let now = self.now();
        for done in wire.completed(now, op) {
            match done {
                Posted::Llc(tag) => self.llc_sent(link, tag),
                Posted::Cdc(token) => {
                    let staged = self.lock_members().get(&token).cloned();
                    if let Some(staged) = staged {
                        staged.sent(link);
                        if staged.can_go() {
                            self.retire(&staged);
                        }
                    }
                }
            }
        }
        self.pump(&wire);
    }

    fn llc_sent(self: &Arc<Self>, link: LinkId, tag: OpTag) {
        let now = self.now();
        self.step(|state| state.machine.handle_sent(now, link, tag));
    }

    /// The device says so: the queue pair sends and receives nothing any more.
    pub(crate) fn link_down(self: &Arc<Self>, link: LinkId, cause: LinkFailure) {
        if let Some(wire) = self.wire(link) {
            wire.set_closed();
        }
        self.give_up(link, cause);
        self.closed(link);
    }

    pub(super) fn give_up(self: &Arc<Self>, link: LinkId, cause: LinkFailure) {
        if let Some(wire) = self.wire(link) {
            wire.fail();
        }
        let now = self.now();
        self.step(|state| state.machine.handle_link_down(now, link, cause));
    }

    /// A link is closed now: what was moved away from it goes on elsewhere.
    pub(crate) fn closed(self: &Arc<Self>, link: LinkId) {
        let to = {
            let mut state = self.lock();
            let at = state.moving.iter().position(|(from, _)| *from == link);
            at.map(|at| state.moving.swap_remove(at).1)
        };
        if let Some(to) = to {
            self.move_members(link, to);
        }
    }

    /// All links of a device are down.
    pub(crate) fn device_gone(self: &Arc<Self>, device: DeviceIndex) {
        let links: Vec<_> = self
            .links()
            .into_iter()
            .filter(|link| link.device == device)
            .map(|link| link.id)
            .collect();
        for link in links {
            self.link_down(link, LinkFailure::Device("device was removed"));
        }
    }

    /// Our addresses have changed.
    pub(crate) fn addresses_changed(self: &Arc<Self>) {
        let Some(like) = self.lock().like.clone() else {
            return;
        };
        let candidates = self.groups.candidates(&like);
        let now = self.now();
        self.step(|state| state.machine.handle_candidates(now, candidates));
    }

    // ---- Ending --------------------------------------------------------------------------------

    /// The registry has no such group any more.
    pub(crate) fn removed(self: &Arc<Self>, cause: Cause) {
        let now = self.now();
        self.step(|state| match cause {
            Cause::Idle => state.machine.shutdown(now, DeleteLinkReason::PROGRAM),
            Cause::Shutdown => state.machine.terminate(now, ENDPOINT_ENDS),
            _ => state.machine.terminate(now, DeleteLinkReason::PROGRAM),
        });
    }

    /// Ends all connections; each leaves the group by itself.
    pub(super) fn kill_members(self: &Arc<Self>, reason: CloseReason) {
        for staged in self.members() {
            match reason {
                CloseReason::Endpoint => staged.end(),
                reason => staged.kill(Error::Closed(reason)),
            }
        }
    }

    pub(super) fn retire_finished(self: &Arc<Self>) {
        for staged in self.members() {
            if staged.can_go() {
                self.retire(&staged);
            }
        }
    }

    /// Does what is due. Returns when something will be.
    pub(super) fn handle_timeouts(self: &Arc<Self>) -> Option<Instant> {
        let now = self.now();
        let wires: Vec<_> = self.lock_wires().values().cloned().collect();
        let mut next = None;
        for wire in wires {
            match wire.poll_timeout() {
                Some(at) if at <= now => {
                    self.give_up(wire.id(), LinkFailure::QueuePair("posts are not completed"));
                }
                at => next = next.into_iter().chain(at).min(),
            }
        }
        let due = self.lock().machine.poll_timeout();
        if due.is_some_and(|at| at <= now) {
            self.step(|state| state.machine.handle_timeout(now));
        }
        next.into_iter()
            .chain(self.lock().machine.poll_timeout())
            .chain(self.nudge_members(now))
            .min()
    }

    /// Connections that have moved, and are not over, ask their peers to push what they hold back.
    fn nudge_members(&self, now: Instant) -> Option<Instant> {
        if !self.has_moved.load(Ordering::Relaxed) {
            return None;
        }
        let members = self.members();
        members.iter().filter_map(|staged| staged.nudge(now)).min()
    }
}

/// The group's task: its timers, until it is over.
pub(super) async fn tend(group: Weak<RdmaGroup>) {
    let mut timer: Option<(Instant, Timer)> = None;
    poll_fn(|cx| {
        let Some(group) = group.upgrade() else {
            return Poll::Ready(());
        };
        loop {
            group.task.register(cx.waker());
            if group.is_over() {
                return Poll::Ready(());
            }
            let Some(at) = group.handle_timeouts() else {
                return Poll::Pending;
            };
            if timer.as_ref().is_none_or(|(set, _)| *set != at) {
                timer = Some((at, group.groups.runtime().timer(at)));
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
