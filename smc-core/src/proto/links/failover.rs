//! Failed links, and the move of their connections (docs/spec/failover.md#link-failure).

use std::time::Instant;

use smc_wire::llc::DeleteLinkReason;

use super::flow::{DeferredRequest, Flow};
use super::link::LinkState;
use super::{
    FirstLinkError, GroupType, LinkDownCause, LinkGroup, LinkGroupOutput, LinkId, LinkInfo,
    NotAdded, Notice,
};
use crate::device::LinkFailure;
use crate::proto::after;

impl LinkGroup {
    /// A link failed; `None` if it does not answer TEST LINK.
    pub(super) fn fail_link(&mut self, now: Instant, link: LinkId, failure: Option<LinkFailure>) {
        let Some(info) = self.link(link) else {
            return;
        };
        self.long_messages.lost(&mut self.outputs, link);
        match info.state {
            LinkState::Active => {
                let cause = failure.map_or(LinkDownCause::Silent, LinkDownCause::Failed);
                self.notice(Notice::LinkDown { link, cause });
                if self.failover_target(&info, failure).is_none() {
                    let failure = failure.unwrap_or(LinkFailure::RetryExceeded);
                    return self.handle_links_lost(now, failure);
                }
                self.deactivate_link(now, link, failure);
                self.want_delete(now, link, DeleteLinkReason::PATH_LOST, true, false);
            }
            LinkState::Activating => self.activating_down(link),
            // Its connections have nothing more to do there.
            LinkState::Inactive => self.connections_moved(now, link),
            LinkState::Unused => {}
        }
    }

    fn activating_down(&mut self, link: LinkId) {
        match self.flow.take() {
            Some(Flow::ConfirmFirst(first)) if first.link == link => {
                if let Some(found) = self.find_link(link) {
                    // Only one state leads there.
                    let _inactive = found.info.state.deactivate();
                }
                if first.until.is_some() {
                    self.outputs
                        .push_back(LinkGroupOutput::FirstLink(Err(FirstLinkError::LinkDown)));
                }
            }
            Some(flow) if flow.new_link() == Some(link) => {
                self.add_failed(flow, NotAdded::LinkDown);
            }
            flow => self.flow = flow,
        }
    }

    /// Deactivates a link; its connections move to another one.
    pub(super) fn deactivate_link(
        &mut self,
        now: Instant,
        link: LinkId,
        failure: Option<LinkFailure>,
    ) {
        let until = after(now, self.config.timeouts.response);
        let Some(found) = self.find_link(link) else {
            return;
        };
        if found.info.state.deactivate().is_err() {
            return;
        }
        found.test_deadline = None;
        found.move_deadline = Some(until);
        let info = found.info;
        self.leaving.push((info, failure));
        self.report_links();
        self.outputs.push_back(LinkGroupOutput::Stop(link));
        self.reclassify(info.is_asymmetric);
        self.local_rmbs.resend(link);
        self.fail_flows_over(now, link);
    }

    /// Ends flows that were arranged over a link that is gone.
    fn fail_flows_over(&mut self, now: Instant, link: LinkId) {
        if let Some(DeferredRequest::Add { over, .. }) = &self.pending.deferred {
            if *over == link {
                self.pending.deferred = None;
            }
        }
        match self.flow.take() {
            Some(flow) if flow.is_arranged_over(link) => {
                self.add_failed(flow, NotAdded::LinkDown);
            }
            // Repeated on another link.
            Some(Flow::Delete(deletion)) if deletion.over == Some(link) => {
                self.start_delete(now, deletion);
            }
            Some(Flow::RequestAdd { over, .. }) if over == link => self.pending.request = true,
            flow => self.flow = flow,
        }
    }

    /// The connections have left an inactive link.
    pub(super) fn connections_moved(&mut self, now: Instant, link: LinkId) {
        let Some(found) = self.find_link(link) else {
            return;
        };
        if found.info.state == LinkState::Inactive && found.move_deadline.take().is_some() {
            self.resume_delete(now, link);
            self.sweep();
        }
    }

    /// Closes inactive links that are not needed any more.
    pub(super) fn sweep(&mut self) {
        let done: Vec<_> = self
            .links
            .iter()
            .filter(|link| link.info.state == LinkState::Inactive)
            .filter(|link| link.move_deadline.is_none() && !link.is_delete_pending)
            .map(|link| link.info.id)
            .collect();
        for link in done {
            self.close(link);
        }
    }

    /// Answer to [`LinkGroupOutput::Stop`]: nothing is sent or received on the link any more. Its
    /// connections move to the best link that is active now.
    pub fn handle_stopped(&mut self, link: LinkId) {
        let left = self.leaving.iter().position(|(info, _)| info.id == link);
        let Some((lost, failure)) = left.map(|at| self.leaving.swap_remove(at)) else {
            return;
        };
        // Without a better one, a link at the port that has failed, which may be usable again.
        let to = self.failover_target(&lost, failure);
        if let Some(to) = to.or_else(|| self.failover_target(&lost, None)) {
            self.outputs
                .push_back(LinkGroupOutput::Move { from: link, to });
        }
    }

    /// The link that takes the connections of another one. After a failure of a port or a device,
    /// links at the same port of the same device are not usable
    /// (docs/spec/failover.md#link-failure).
    pub(super) fn failover_target(
        &self,
        lost: &LinkInfo,
        failure: Option<LinkFailure>,
    ) -> Option<LinkId> {
        let helps = |other: &LinkInfo| match failure {
            Some(LinkFailure::PortDown | LinkFailure::Device(_)) => {
                !self.is_same_local(lost, other)
            }
            _ => true,
        };
        let others = || {
            self.active()
                .filter(|other| other.id != lost.id)
                .filter(|other| helps(other))
        };
        let best = others().find(|other| !other.is_asymmetric);
        best.or_else(|| others().next()).map(|other| other.id)
    }

    /// The relation of the remaining links.
    fn reclassify(&mut self, was_asymmetric: bool) {
        let active: Vec<_> = self.active().collect();
        let kind = match active.as_slice() {
            [] => GroupType::None,
            [last] => {
                let last = last.id;
                if let Some(link) = self.find_link(last) {
                    link.info.is_asymmetric = false;
                }
                GroupType::Single
            }
            _ if was_asymmetric => self.kind,
            [one, two, ..] => match (self.is_same_peer(one, two), self.is_same_local(one, two)) {
                (true, _) => GroupType::AsymmetricPeer,
                (false, true) => GroupType::AsymmetricLocal,
                (false, false) => GroupType::Symmetric,
            },
        };
        self.kind = kind;
    }

    pub(super) fn is_same_local(&self, one: &LinkInfo, two: &LinkInfo) -> bool {
        let mac = |info: &LinkInfo| info.local.map(|local| local.mac);
        one.device == two.device && mac(one) == mac(two)
    }

    pub(super) fn is_same_peer(&self, one: &LinkInfo, two: &LinkInfo) -> bool {
        match (one.peer, two.peer) {
            (Some(one), Some(two)) => self.is_same_peer_address(&one, &two),
            _ => false,
        }
    }
}
