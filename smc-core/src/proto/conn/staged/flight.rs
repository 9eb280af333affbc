use std::collections::VecDeque;

use smc_wire::cdc::StateFlags;

use super::post::PostId;
use crate::device::SENDS_MAX;

/// Posts whose completion has not been reported, oldest first.
#[derive(Debug)]
pub(super) struct Flight {
    posts: VecDeque<Outstanding>,
    next: PostId,
    /// How many of them have payload.
    payload: u32,
    /// How many of them are a CDC alone.
    bare: u32,
}

/// What a post is.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// Payload and a CDC.
    Payload(Said),
    /// A CDC alone.
    Bare(Said),
    /// A failover validation, whose completion means nothing.
    Validation,
}

/// What a CDC says, as far as it counts after a failover.
#[derive(Clone, Copy, Debug)]
pub(super) struct Said {
    pub(super) sequence: u16,
    /// Bytes of the stream up to the producer cursor of the CDC.
    pub(super) sent: u64,
    pub(super) state: StateFlags,
}

impl Flight {
    pub(super) fn new() -> Self {
        Self {
            posts: VecDeque::new(),
            next: PostId(1),
            payload: 0,
            bare: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.posts.len()
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

    pub(super) fn has_bare(&self) -> bool {
        self.bare > 0
    }

    pub(super) fn push(&mut self, kind: Kind) -> PostId {
        let id = self.next;
        self.next = PostId(id.0.wrapping_add(1));
        self.posts.push_back(Outstanding { id, kind });
        if let Some(count) = self.count(kind) {
            *count = count.saturating_add(1);
        }
        id
    }

    /// Takes back the newest post, if it is the one named.
    pub(super) fn take_back(&mut self, id: PostId) -> bool {
        if self.posts.back().is_none_or(|post| post.id != id) {
            return false;
        }
        if let Some(post) = self.posts.pop_back() {
            self.count_off(post.kind);
        }
        true
    }

    /// Takes the posts that are completed when the one named is: all up to it. `each` gets what
    /// their CDCs said, the oldest first.
    ///
    /// Nothing happens for a name that is not in flight (any more).
    pub(super) fn complete(&mut self, id: PostId, mut each: impl FnMut(Said)) {
        if !self.posts.iter().any(|post| post.id == id) {
            return;
        }
        while let Some(post) = self.posts.pop_front() {
            self.count_off(post.kind);
            if let Kind::Payload(said) | Kind::Bare(said) = post.kind {
                each(said);
            }
            if post.id == id {
                break;
            }
        }
    }

    pub(super) fn clear(&mut self) {
        self.posts.clear();
        self.payload = 0;
        self.bare = 0;
    }

    fn count_off(&mut self, kind: Kind) {
        if let Some(count) = self.count(kind) {
            *count = count.saturating_sub(1);
        }
    }

    fn count(&mut self, kind: Kind) -> Option<&mut u32> {
        match kind {
            Kind::Payload(_) => Some(&mut self.payload),
            Kind::Bare(_) => Some(&mut self.bare),
            Kind::Validation => None,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    id: PostId,
    kind: Kind,
}
