//! Posts whose completion is pending.

use std::collections::VecDeque;

use smc_wire::cdc::StateFlags;

use super::post::PostId;
use crate::device::SENDS_MAX;

/// Posts whose completion has not been reported, oldest first.
#[derive(Debug)]
pub(super) struct InFlight {
    pub(super) posts: VecDeque<Outstanding>,
    next: PostId,
    /// Number of posts with payload.
    payload: u32,
    /// Number of posts that are a CDC without payload.
    cdc_only: u32,
}

/// Kind of a post.
#[derive(Clone, Copy, Debug)]
pub(super) enum PostKind {
    /// Payload and a CDC.
    Payload(PostedCdc),
    /// A CDC without payload.
    CdcOnly(PostedCdc),
    /// A failover validation, whose completion has no effect.
    Validation,
}

/// Contents of a CDC that are needed after a failover.
#[derive(Clone, Copy, Debug)]
pub(super) struct PostedCdc {
    pub(super) sequence: u16,
    /// Bytes of the stream up to the producer cursor of the CDC.
    pub(super) posted: u64,
    pub(super) state: StateFlags,
}

impl InFlight {
    pub(super) fn new() -> Self {
        Self {
            posts: VecDeque::new(),
            next: PostId(1),
            payload: 0,
            cdc_only: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.posts.is_empty()
    }

    pub(super) fn has_payload(&self) -> bool {
        self.payload > 0
    }

    pub(super) fn is_full(&self) -> bool {
        self.posts.len() >= SENDS_MAX
    }

    pub(super) fn has_cdc_only(&self) -> bool {
        self.cdc_only > 0
    }

    pub(super) fn push(&mut self, kind: PostKind) -> PostId {
        let id = self.next;
        self.next = PostId(id.0.wrapping_add(1));
        self.posts.push_back(Outstanding { id, kind });
        if let Some(count) = self.count(kind) {
            *count = count.saturating_add(1);
        }
        id
    }

    /// Removes the newest post, if it is the given one.
    pub(super) fn remove_last(&mut self, id: PostId) -> bool {
        if self.posts.back().is_none_or(|post| post.id != id) {
            return false;
        }
        if let Some(post) = self.posts.pop_back() {
            self.uncount(post.kind);
        }
        true
    }

    /// Removes the posts that are completed together with the given one: all up to it. Calls `each`
    /// with the contents of their CDCs, the oldest first.
    ///
    /// An id that is not in flight has no effect.
    pub(super) fn complete(&mut self, id: PostId, mut each: impl FnMut(PostedCdc)) {
        if !self.posts.iter().any(|post| post.id == id) {
            return;
        }
        while let Some(post) = self.posts.pop_front() {
            self.uncount(post.kind);
            if let PostKind::Payload(cdc) | PostKind::CdcOnly(cdc) = post.kind {
                each(cdc);
            }
            if post.id == id {
                break;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.posts.clear();
        self.payload = 0;
        self.cdc_only = 0;
    }

    fn uncount(&mut self, kind: PostKind) {
        if let Some(count) = self.count(kind) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&mut self, kind: PostKind) -> Option<&mut u32> {
        match kind {
            PostKind::Payload(_) => Some(&mut self.payload),
            PostKind::CdcOnly(_) => Some(&mut self.cdc_only),
            PostKind::Validation => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Outstanding {
    id: PostId,
    kind: PostKind,
}
