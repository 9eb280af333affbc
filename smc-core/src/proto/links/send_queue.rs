//! Send queue of one link: its outstanding posts and the waiting ones.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

use hashbrown::HashSet;

use super::OpTag;
use crate::device::{OpId, SENDS_MAX};

/// The send queue of one link.
///
/// A link accepts [`SENDS_MAX`] posts before the first is completed; later ones wait. Messages of
/// the link group are sent first, connections follow in the order of their requests.
///
/// `C` identifies a connection.
///
/// ```text
///   queue_message ----> messages -----+
///                                     +-> next_post --> posted --> outstanding --> completed
///   queue_connection -> connections --+
/// ```
#[derive(Clone, Debug)]
pub struct SendQueue<C> {
    messages: VecDeque<(OpTag, Vec<u8>)>,
    connections: VecDeque<C>,
    waiting: HashSet<C>,
    pub(super) outstanding: VecDeque<(OpId, Posted<C>)>,
    last: u64,
    /// Since when nothing was posted or completed although messages wait.
    stalled: Option<Instant>,
}

/// A completed or outstanding post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted<C> {
    /// A message of the link group.
    Llc(OpTag),
    /// A message of a connection, with its data.
    Cdc(C),
}

/// The next post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPost<C> {
    /// Post this message, then call [`SendQueue::posted`], or [`SendQueue::requeue`].
    Llc(OpTag, Vec<u8>),
    /// Let this connection post **one** message if it has any.
    Cdc(C),
}

/// So many messages wait that the peer must be flooding this side; take the link down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many messages wait for the link")]
pub struct Overflow;

/// Most messages that wait on one link: twice what a peer with all its RMBs can cause.
pub const WAITING_MAX: usize = 1024;

/// How long messages wait for space before the link has to be taken down
/// (docs/spec/link-groups.md#queue-pair).
pub const SEND_QUEUE_TIMEOUT: Duration = Duration::from_secs(10);

impl<C: Copy + Eq + Hash> Default for SendQueue<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Copy + Eq + Hash> SendQueue<C> {
    /// The queue of a link on which nothing was posted yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            messages: VecDeque::new(),
            connections: VecDeque::new(),
            waiting: HashSet::new(),
            outstanding: VecDeque::new(),
            last: 0,
            stalled: None,
        }
    }

    /// A message of the link group has to be posted
    /// ([`LinkGroupOutput::Send`](super::LinkGroupOutput::Send)).
    ///
    /// # Errors
    ///
    /// [`Overflow`] when [`WAITING_MAX`] messages wait already.
    pub fn queue_message(
        &mut self,
        now: Instant,
        tag: OpTag,
        message: Vec<u8>,
    ) -> Result<(), Overflow> {
        if self.messages.len() >= WAITING_MAX {
            return Err(Overflow);
        }
        self.messages.push_back((tag, message));
        self.stalled.get_or_insert(now);
        Ok(())
    }

    /// A connection has a message to post. Repeated calls have no effect until it was served.
    pub fn queue_connection(&mut self, conn: C) {
        if self.waiting.insert(conn) {
            self.connections.push_back(conn);
        }
    }

    /// A connection was removed, or moved to another link.
    pub fn remove_connection(&mut self, conn: C) {
        if self.waiting.remove(&conn) {
            self.connections.retain(|other| *other != conn);
        }
    }

    /// Whether there is space for a post, regardless of waiting ones.
    #[must_use]
    pub fn has_capacity(&self) -> bool {
        self.outstanding.len() < SENDS_MAX
    }

    /// Whether a connection may post at once: there is space, and nothing waits.
    #[must_use]
    pub fn can_post_now(&self) -> bool {
        self.has_capacity() && self.messages.is_empty() && self.connections.is_empty()
    }

    /// The next post; `None` without space, and when nothing waits.
    ///
    /// A connection that has more than one message to post calls
    /// [`queue_connection`](Self::queue_connection) again.
    pub fn next_post(&mut self) -> Option<NextPost<C>> {
        if !self.has_capacity() {
            return None;
        }
        if let Some((tag, message)) = self.messages.pop_front() {
            return Some(NextPost::Llc(tag, message));
        }
        let conn = self.connections.pop_front()?;
        self.waiting.remove(&conn);
        Some(NextPost::Cdc(conn))
    }

    /// The number under which the next post is reported; pass it to the device.
    #[must_use]
    pub const fn next_op(&self) -> OpId {
        OpId(self.last.wrapping_add(1))
    }

    /// The device accepted the post with the number [`next_op`](Self::next_op).
    pub fn posted(&mut self, now: Instant, what: Posted<C>) {
        let op = self.next_op();
        self.last = op.0;
        self.outstanding.push_back((op, what));
        self.reset_stall_timer(now);
    }

    /// The device had no space for a message: it is first in the queue again.
    pub fn requeue(&mut self, now: Instant, tag: OpTag, message: Vec<u8>) {
        self.messages.push_front((tag, message));
        self.stalled.get_or_insert(now);
    }

    /// A post was completed. Completions arrive in the order of the posts, and one includes all
    /// before it: returns everything that is completed now, the oldest first.
    pub fn completed(
        &mut self,
        now: Instant,
        op: OpId,
    ) -> impl Iterator<Item = Posted<C>> + use<C> {
        let at = self.outstanding.iter().position(|(of, _)| *of == op);
        let count = at.map_or(0, |at| at.saturating_add(1));
        let done: Vec<_> = self
            .outstanding
            .drain(..count)
            .map(|(_, what)| what)
            .collect();
        if !done.is_empty() {
            self.reset_stall_timer(now);
        }
        done.into_iter()
    }

    /// The newest post that is not completed.
    #[must_use]
    pub fn last_outstanding(&self) -> Option<OpId> {
        self.outstanding.back().map(|(op, _)| *op)
    }

    /// The link is down: returns everything that was not completed, the oldest first. Nothing waits
    /// any more.
    pub fn fail(&mut self) -> impl Iterator<Item = Posted<C>> + use<C> {
        let Self { outstanding, .. } = std::mem::take(self);
        outstanding.into_iter().map(|(_, what)| what)
    }

    /// When the link has to be taken down, unless a post is completed before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.stalled?.checked_add(SEND_QUEUE_TIMEOUT)
    }

    fn reset_stall_timer(&mut self, now: Instant) {
        self.stalled = (!self.messages.is_empty()).then_some(now);
    }
}
