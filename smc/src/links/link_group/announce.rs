//! RMBs that are announced before a connection needs them.

use std::sync::Arc;

use smc_wire::size::SizeCode;

use super::RdmaLinkGroup;
use crate::mem::sync::Ordering;
use crate::proto::links::{LinkChoice, RmbId};

impl RdmaLinkGroup {
    /// Announces one more RMB of this size, if RMBs stay announced in this group. For connections
    /// that have found none: the RMBs of those before come back when their peers have closed, which
    /// may be later than the next connect. There come to be as many as are in use at a time, and
    /// one.
    ///
    /// One at a time, and not while half of the memory is used.
    pub(crate) fn announce_another(self: &Arc<Self>, size: SizeCode) {
        let memory = &self.groups.memory;
        let is_plenty = memory.used().saturating_add(size.byte_len()) <= memory.limit() / 2;
        let keeps_another = self.state.lock().machine.keeps_another();
        if !keeps_another || !is_plenty || self.is_announcing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.spawn(async move |group| {
            let in_progress = InProgress(group);
            // If that fails the next connection has an RMB announced by itself.
            in_progress.0.announce(size).await;
        });
    }

    async fn announce(self: &Arc<Self>, size: SizeCode) -> Option<()> {
        let link = self.link_for(LinkChoice::Assign)?.id;
        let buffer = self.pool.take_unannounced(size).ok()?;
        let domains = self.domains().await.ok()?;
        let keys = buffer.register_all(&domains).await.ok()?;
        let id = self.new_rmb_id();
        let announced = self.confirm_rkey(id, link, &keys).await;
        if announced.is_ok() && self.state.lock().machine.keep_rmb(id) {
            self.pool.put_announced(buffer, 0, id);
        } else {
            self.retire(buffer, None, id);
        }
        announced.ok()
    }

    pub(super) fn new_rmb_id(&self) -> RmbId {
        RmbId(self.next_rmb.fetch_add(1, Ordering::Relaxed))
    }
}

/// An RMB is being announced.
struct InProgress(Arc<RdmaLinkGroup>);

impl Drop for InProgress {
    fn drop(&mut self) {
        self.0.is_announcing.store(false, Ordering::Release);
    }
}
