//! DELETE RKEY that were not answered in time, and which of them an answer is for
//! (docs/spec/llc.md#delete-rkey).

use std::time::Instant;

use smc_wire::types::Rkey;

use super::{LinkId, RmbId};

/// A DELETE RKEY without an answer in time.
#[derive(Debug)]
pub(super) struct StaleDelete {
    pub(super) rmb: RmbId,
    /// The link that it was sent on, and on which its answer would travel.
    pub(super) link: LinkId,
    pub(super) rkey: Rkey,
    /// Until when a late answer is expected.
    pub(super) until: Instant,
    /// As many answers without a key have arrived as there are requests up to this one. It is
    /// answered if none of them was omitted.
    pub(super) is_counted: bool,
}

/// Unanswered DELETE RKEY, in the order in which they were sent.
///
/// Answers that name no key arrive in the order of their requests, but the peer may omit one. Which
/// requests are answered is therefore known only when as many answers have arrived on a link as
/// requests were sent there. Until then none of these requests counts as answered.
#[derive(Debug, Default)]
pub(super) struct StaleDeletes {
    pub(super) entries: Vec<StaleDelete>,
}

impl StaleDeletes {
    pub(super) fn push(&mut self, delete: StaleDelete) {
        self.entries.push(delete);
    }

    /// An answer on a link that names its key: the RMB if the request is one of these.
    pub(super) fn take_named(
        &mut self,
        link: LinkId,
        is_named: impl Fn(Rkey) -> bool,
    ) -> Option<RmbId> {
        let mut entries = self.entries.iter();
        let at = entries.position(|entry| entry.link == link && is_named(entry.rkey))?;
        Some(self.entries.remove(at).rmb)
    }

    /// Counts an answer that names no key; false if as many had arrived before as there are
    /// requests here.
    pub(super) fn count_answer(&mut self, link: LinkId) -> bool {
        let mut entries = self.entries.iter_mut();
        let next = entries.find(|entry| entry.link == link && !entry.is_counted);
        next.map(|entry| entry.is_counted = true).is_some()
    }

    /// The RMBs of all requests on a link if there were as many answers, else none. No other
    /// request may be in progress there.
    pub(super) fn take_answered(&mut self, link: LinkId) -> Vec<RmbId> {
        let mut entries = self.entries.iter();
        if entries.any(|entry| entry.link == link && !entry.is_counted) {
            return Vec::new();
        }
        let (answered, left): (Vec<_>, _) = std::mem::take(&mut self.entries)
            .into_iter()
            .partition(|entry| entry.link == link);
        self.entries = left;
        answered.into_iter().map(|entry| entry.rmb).collect()
    }

    /// Whether a further answer on this link could be that of several requests.
    pub(super) fn is_ambiguous(&self, link: LinkId) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| entry.link == link && entry.is_counted)
    }

    /// A link is gone, and with it the answers.
    pub(super) fn clear_link(&mut self, link: LinkId) {
        self.entries.retain(|entry| entry.link != link);
    }

    pub(super) fn clear(&mut self) {
        self.entries.clear();
    }

    /// Removes the requests whose answers are not expected any more.
    pub(super) fn expire(&mut self, now: Instant) {
        let mut deadlines = self.deadlines().collect::<Vec<_>>().into_iter();
        self.entries
            .retain(|_| deadlines.next().is_none_or(|until| until > now));
    }

    /// When the next request expires.
    pub(super) fn due(&self) -> Option<Instant> {
        self.deadlines().min()
    }

    /// Deadline of each request. The requests of a link on which answers were counted expire with
    /// the last one, as the answers cannot be assigned to some of them only.
    fn deadlines(&self) -> impl Iterator<Item = Instant> {
        self.entries
            .iter()
            .map(|entry| match self.is_ambiguous(entry.link) {
                true => self.last_deadline(entry.link).unwrap_or(entry.until),
                false => entry.until,
            })
    }

    fn last_deadline(&self, link: LinkId) -> Option<Instant> {
        let entries = self.entries.iter().filter(|entry| entry.link == link);
        entries.map(|entry| entry.until).max()
    }
}
