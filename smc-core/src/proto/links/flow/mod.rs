//! The LLC flows, one file each, and the rules by which they take turns.
//!
//! ```text
//!             first ── offer (server) / join (client) ── delete ── request     one at a time
//!                 │ excludes the start of                                      (Flow)
//!             rkeys: CONFIRM RKEY, DELETE RKEY of ours                         own.flights
//!             rkeys of the peer, TEST LINK, DELETE LINK for all links          at any time
//! ```
//!
//! A change of the links waits until no rkey request of ours is unanswered, and no further one
//! begins while a change is wanted, so neither starves the other. The peer's requests about keys
//! are answered at once, always (docs/spec/llc.md#flows). Every flow has a time at which it ends.

mod delete;
mod down;
mod end;
mod first;
mod join;
mod offer;
mod request;
mod rkeys;
mod test;
mod tokens;

use std::collections::VecDeque;
use std::time::Instant;

use smc_wire::llc::{DeleteLink, MessageType};

pub(super) use delete::Deletion;
pub(super) use end::End;
pub(super) use first::First;
pub(super) use join::{Join, Proposed};
pub(super) use offer::Offer;

#[cfg(test)]
pub(super) use join::JoinStage;
#[cfg(test)]
pub(super) use offer::OfferStage;

use super::{LinkGroup, LinkId, Notice};

/// What changes the links now.
#[derive(Debug)]
pub(super) enum Flow {
    /// The first link is being confirmed.
    First(First),
    /// We, the server, add a link.
    Offer(Offer),
    /// We, the client, add the link that the server offers.
    Join(Join),
    /// We, the server, told the client that a link goes, and wait for its answer.
    Delete(Deletion),
    /// We, the client, asked for a link.
    Request {
        /// On this link.
        over: LinkId,
        /// Until when the server should do something.
        until: Instant,
    },
}

impl Flow {
    /// When it stops waiting; none while others wait for something and count the time.
    pub(super) const fn until(&self) -> Option<Instant> {
        match self {
            Self::First(first) => first.until,
            Self::Offer(offer) => Some(offer.until),
            Self::Join(join) => Some(join.until),
            Self::Delete(deletion) => Some(deletion.until),
            Self::Request { until, .. } => Some(*until),
        }
    }
}

/// What waits for its turn.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    /// The server looks for another link.
    pub(super) add: Option<Trigger>,
    /// The client asks for one.
    pub(super) request: bool,
    /// Links of which the peer has to be told that they go. Each link is in here once at most.
    pub(super) deletes: VecDeque<Deletion>,
    /// What the peer wants and came in between; a second one is dropped.
    pub(super) aside: Option<Aside>,
}

impl Wanted {
    fn is_empty(&self) -> bool {
        self.add.is_none() && !self.request && self.deletes.is_empty() && self.aside.is_none()
    }
}

/// Why the server looks for another link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trigger {
    /// First contact: the client counts on hearing something.
    Established,
    /// A port came up, a link was deleted, or a v1 client suggests it.
    Occasion,
    /// REQUEST ADD LINK came over this link, and wants an answer.
    Requested(LinkId),
}

/// A request of the peer that waits until the present flow ends.
#[derive(Debug)]
pub(super) enum Aside {
    /// The server offers a link.
    Add {
        over: LinkId,
        proposed: Proposed,
        /// Then the server has given it up.
        until: Instant,
    },
    /// A link is to be deleted.
    Delete { over: LinkId, request: DeleteLink },
}

impl LinkGroup {
    /// Starts what can be started now; to be called last after everything that happens.
    pub(super) fn advance(&mut self, now: Instant) {
        while self.end.is_none() && self.step(now) {}
        self.tell_full();
    }

    /// Starts one thing. Each of them takes something off a list, so this comes to an end.
    fn step(&mut self, now: Instant) -> bool {
        if self.flow.is_some() {
            return false;
        }
        if let Some(deletion) = self.wanted.deletes.pop_front() {
            self.start_delete(now, deletion);
            return true;
        }
        match self.wanted.aside.take() {
            Some(Aside::Delete { over, request }) => {
                self.hear_delete(now, over, request);
                return true;
            }
            Some(Aside::Add { until, .. }) if until <= now => return true,
            Some(Aside::Add { over, proposed, .. }) if self.own.is_quiet() => {
                self.start_join(now, over, proposed);
                return true;
            }
            aside => self.wanted.aside = aside,
        }
        if self.own.is_quiet() {
            if let Some(trigger) = self.wanted.add.take() {
                self.start_offer(now, trigger);
                return true;
            }
            if std::mem::take(&mut self.wanted.request) {
                self.start_request(now);
                return true;
            }
        }
        self.wanted.is_empty() && self.start_rkey(now)
    }

    /// The present flow has waited long enough.
    pub(super) fn flow_timeout(&mut self, now: Instant) {
        let due = self.flow.as_ref().and_then(Flow::until);
        if due.is_none_or(|until| until > now) {
            return;
        }
        match self.flow.take() {
            Some(Flow::First(first)) => self.first_timeout(first),
            Some(Flow::Offer(offer)) => self.offer_timeout(offer),
            Some(Flow::Join(join)) => self.join_timeout(now, join),
            Some(Flow::Delete(deletion)) => self.delete_timeout(now, deletion),
            Some(Flow::Request { .. }) => {
                self.notice(Notice::Unanswered(MessageType::RequestAddLink));
            }
            None => {}
        }
    }
}
