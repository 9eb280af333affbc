//! The LLC flows, one file each, and the rules of their order.
//!
//! ```text
//!             first -- offer (server) / join (client) -- delete -- request     one at a time
//!                 | excludes the start of                                      (Flow)
//!             rkeys: CONFIRM RKEY, DELETE RKEY, local                          local_rmbs.requests
//!             rkeys of the peer, TEST LINK, DELETE LINK for all links          at any time
//! ```
//!
//! A change of the links waits until no local rkey request is unanswered, and no further one begins
//! while a change is pending, so neither delays the other indefinitely. The peer's requests about
//! keys are always answered at once (docs/spec/llc.md#flows). Every flow has a deadline.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use smc_wire::llc::{DeleteLink, MessageType};

use super::add_link_client::{AddLinkClient, ClientStage, OfferedLink};
use super::add_link_server::{AddLinkServer, ServerStage};
use super::confirm_link::ConfirmFirst;
use super::delete_link::Deletion;
use super::{FirstLinkError, LinkGroup, LinkGroupOutput, LinkId, NotAdded, Notice};
use crate::proto::after;

/// The flow that changes the links now.
#[derive(Debug)]
pub(super) enum Flow {
    /// The first link is being confirmed.
    ConfirmFirst(ConfirmFirst),
    /// This side, the server, adds a link.
    AddServer(AddLinkServer),
    /// This side, the client, adds the link that the server offers.
    AddClient(AddLinkClient),
    /// This side, the server, sent DELETE LINK to the client, and waits for its answer.
    Delete(Deletion),
    /// This side, the client, requested a link.
    RequestAdd {
        /// On this link.
        over: LinkId,
        /// Deadline for the server's reaction.
        until: Instant,
    },
}

impl Flow {
    /// Its deadline; none while another component measures the time.
    pub(super) const fn until(&self) -> Option<Instant> {
        match self {
            Self::ConfirmFirst(first) => first.until,
            Self::AddServer(offer) => Some(offer.until),
            Self::AddClient(join) => Some(join.until),
            Self::Delete(deletion) => Some(deletion.until),
            Self::RequestAdd { until, .. } => Some(*until),
        }
    }

    /// The link that it adds.
    pub(super) const fn new_link(&self) -> Option<LinkId> {
        match self {
            Self::AddServer(offer) => Some(offer.link),
            Self::AddClient(join) => Some(join.link),
            _ => None,
        }
    }

    /// Whether it waits for RMBs to be registered with the device of the new link.
    pub(super) fn is_mapping(&self) -> bool {
        match self {
            Self::AddServer(offer) => offer.stage == ServerStage::Mapping,
            Self::AddClient(join) => join.stage == ClientStage::Mapping,
            _ => false,
        }
    }

    /// Whether it adds a link, which cannot be arranged without this one.
    pub(super) fn is_arranged_over(&self, link: LinkId) -> bool {
        match self {
            Self::AddServer(offer) => offer.over == link && offer.stage != ServerStage::Confirming,
            Self::AddClient(join) => join.over == link && join.stage != ClientStage::Confirming,
            _ => false,
        }
    }
}

/// The result of a step towards a new link: how long to wait for the next one, or why the link is
/// not added.
pub(super) type Progress = Result<Duration, NotAdded>;

/// Pending flows.
#[derive(Debug, Default)]
pub(super) struct PendingFlows {
    /// The server looks for another link.
    pub(super) add: Option<Trigger>,
    /// The client requests one.
    pub(super) request: bool,
    /// Links to be deleted. Each link is in this list once at most.
    pub(super) deletes: VecDeque<Deletion>,
    /// A request of the peer that was deferred; a second one is dropped.
    pub(super) deferred: Option<DeferredRequest>,
}

impl PendingFlows {
    fn is_empty(&self) -> bool {
        self.add.is_none() && !self.request && self.deletes.is_empty() && self.deferred.is_none()
    }
}

/// Why the server looks for another link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// First contact: the client expects a message.
    Established,
    /// A port came up, a link was deleted, or a v1 client suggests it.
    PathAvailable,
    /// REQUEST ADD LINK came over this link, and needs an answer.
    Requested(LinkId),
}

/// A request of the peer that waits until the present flow ends.
#[derive(Debug)]
pub(super) enum DeferredRequest {
    /// The server offers a link.
    Add {
        over: LinkId,
        offered: OfferedLink,
        /// When the server abandons it.
        expires: Instant,
    },
    /// A link is to be deleted.
    Delete { over: LinkId, request: DeleteLink },
}

impl LinkGroup {
    /// Starts what can be started now; call this last after every event.
    pub(super) fn advance(&mut self, now: Instant) {
        while self.end.is_none() && self.step(now) {}
        self.report_links();
    }

    /// Starts one thing. Each start removes an entry from a list, so this terminates.
    fn step(&mut self, now: Instant) -> bool {
        if self.flow.is_some() {
            return false;
        }
        if let Some(deletion) = self.pending.deletes.pop_front() {
            self.start_delete(now, deletion);
            return true;
        }
        match self.pending.deferred.take() {
            Some(DeferredRequest::Delete { over, request }) => {
                self.handle_delete_one(now, over, request);
                return true;
            }
            Some(DeferredRequest::Add { expires, .. }) if expires <= now => return true,
            Some(DeferredRequest::Add {
                over,
                offered,
                expires,
            }) if self.may_add_link() => {
                self.start_join(now, over, offered, expires);
                return true;
            }
            deferred => self.pending.deferred = deferred,
        }
        let may_add_link = self.may_add_link();
        if let Some(trigger) = self.pending.add.take_if(|_| may_add_link) {
            self.start_offer(now, trigger);
            return true;
        }
        if self.local_rmbs.requests.is_empty() && std::mem::take(&mut self.pending.request) {
            self.start_request(now);
            return true;
        }
        self.pending.is_empty() && self.start_rkey(now)
    }

    /// Whether a link can be opened: no RKEY is being confirmed or deleted, and no device still
    /// works on the link of a flow that has ended.
    pub(super) fn may_add_link(&self) -> bool {
        self.local_rmbs.requests.is_empty() && self.awaits_device.is_none()
    }

    /// A step towards a new link is done.
    pub(super) fn continue_adding(&mut self, now: Instant, mut flow: Flow, progress: Progress) {
        match (&mut flow, progress) {
            (_, Err(why)) => return self.add_failed(flow, why),
            (Flow::AddServer(offer), Ok(wait)) => offer.until = after(now, wait),
            (Flow::AddClient(join), Ok(wait)) => join.wait_until(after(now, wait)),
            _ => {}
        }
        self.flow = Some(flow);
    }

    /// The link of this flow is not added; the group stays unchanged.
    pub(super) fn add_failed(&mut self, flow: Flow, why: NotAdded) {
        match flow {
            Flow::AddServer(offer) => self.offer_failed(offer, why),
            Flow::AddClient(join) => self.join_failed(join, why),
            _ => {}
        }
    }

    /// The present flow has waited long enough.
    pub(super) fn flow_timeout(&mut self, now: Instant) {
        let due = self.flow.as_ref().and_then(Flow::until);
        if due.is_none_or(|until| until > now) {
            return;
        }
        match self.flow.take() {
            Some(Flow::ConfirmFirst(_)) => {
                let timed_out = Err(FirstLinkError::TimedOut);
                self.outputs
                    .push_back(LinkGroupOutput::FirstLink(timed_out));
            }
            Some(Flow::Delete(deletion)) => self.delete_timeout(now, deletion),
            Some(Flow::RequestAdd { .. }) => {
                self.notice(Notice::Unanswered(MessageType::RequestAddLink));
            }
            Some(flow) => self.add_failed(flow, NotAdded::TimedOut),
            None => {}
        }
    }
}
