//! Send queue of one link: its outstanding posts, the waiting ones, and its receive credits.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

use hashbrown::HashSet;

use super::{CreditError, Credits, OpTag};
use crate::device::{OpId, SENDS_MAX};

/// The send queue of one link.
///
/// A link accepts [`SENDS_MAX`] posts before the first is completed, and with [receive
/// credits](Credits) one for each; later ones wait. Messages of the link group are sent first, then
/// credits are granted if that is due, and connections follow in the order of their requests.
///
/// `C` identifies a connection.
///
/// ```text
///   queue_message ----> messages -----+
///   received ---------> credits ------+-> next_post --> posted --> outstanding --> completed
///   queue_connection -> connections --+
/// ```
#[derive(Clone, Debug)]
pub struct SendQueue<C> {
    messages: VecDeque<(OpTag, Vec<u8>)>,
    /// Connections that have had nothing to post for a while.
    sparse: VecDeque<C>,
    /// Connections that had more to post after their turn.
    backlogged: VecDeque<C>,
    /// All of these.
    waiting: HashSet<C>,
    /// The last turn was that of a sparse connection.
    was_sparse: bool,
    pub(super) outstanding: VecDeque<(OpId, Posted<C>)>,
    last: u64,
    /// Since when nothing was posted or completed although messages wait.
    stalled: Option<Instant>,
    /// `None`: the ends have not agreed on them.
    credits: Option<Credits>,
    /// Since when there has been no credit for a connection that waits.
    starved: Option<Instant>,
}

/// A completed or outstanding post.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Posted<C> {
    /// A message of the link group.
    Llc(OpTag),
    /// A message of a connection, with its data.
    Cdc(C),
    /// A message that grants so many receive credits.
    Credits(u16),
}

/// The next post.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextPost<C> {
    /// Post this message, then call [`SendQueue::posted`], or [`SendQueue::requeue`].
    Llc(OpTag, Vec<u8>),
    /// Let this connection post **one** message if it has any.
    Cdc(C),
    /// Grant so many receive credits, then call [`SendQueue::posted`].
    Credits(u16),
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
            sparse: VecDeque::new(),
            backlogged: VecDeque::new(),
            waiting: HashSet::new(),
            was_sparse: false,
            outstanding: VecDeque::new(),
            last: 0,
            stalled: None,
            credits: None,
            starved: None,
        }
    }

    /// The same of a link whose ends have agreed on receive credits.
    #[must_use]
    pub fn with_credits(credits: Credits) -> Self {
        Self {
            credits: Some(credits),
            ..Self::new()
        }
    }

    /// A message was received, which grants so many receive credits. Returns whether
    /// [`next_post`](Self::next_post) may have something that it did not have before.
    ///
    /// # Errors
    ///
    /// As [`Credits::received`]: the link has to be taken down.
    pub fn received(&mut self, now: Instant, grants: u32) -> Result<bool, CreditError> {
        let Some(credits) = &mut self.credits else {
            return Ok(false);
        };
        credits.received(grants)?;
        if grants > 0 {
            self.reset_stall_timer(now);
            self.starved = self.starved.filter(|_| !self.has_credit());
        }
        let waits = !self.messages.is_empty() || !self.waiting.is_empty();
        let is_due = self
            .credits
            .as_ref()
            .is_some_and(|credits| credits.announcement().is_some());
        Ok(is_due || (waits && grants > 0))
    }

    /// The receive credits that the next message of a connection has to grant.
    #[must_use]
    pub fn grants_with_cdc(&self) -> u8 {
        self.credits.as_ref().map_or(0, Credits::with_cdc)
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
            self.sparse.push_back(conn);
        }
    }

    /// As [`queue_connection`](Self::queue_connection), for a connection that has more to post
    /// after its turn. Of these and the others one after the other is served, so that a connection
    /// with few messages does not wait for all that have many.
    pub fn requeue_connection(&mut self, conn: C) {
        if self.waiting.insert(conn) {
            self.backlogged.push_back(conn);
        }
    }

    /// A connection was removed, or moved to another link.
    pub fn remove_connection(&mut self, conn: C) {
        if self.waiting.remove(&conn) {
            self.sparse.retain(|other| *other != conn);
            self.backlogged.retain(|other| *other != conn);
        }
    }

    /// Whether there is space for the post of a connection, regardless of waiting ones.
    #[must_use]
    pub fn has_capacity(&self) -> bool {
        self.has_space() && self.has_credit()
    }

    /// Whether the device has space for a post.
    #[must_use]
    pub fn has_space(&self) -> bool {
        self.outstanding.len() < SENDS_MAX
    }

    /// Whether there is a receive credit for a connection, or none is needed.
    fn has_credit(&self) -> bool {
        self.credits.as_ref().is_none_or(Credits::allows_cdc)
    }

    /// Whether a connection may post at once: there is space, and nothing waits.
    #[must_use]
    pub fn can_post_now(&self) -> bool {
        self.has_capacity() && self.messages.is_empty() && self.waiting.is_empty()
    }

    /// The next post; `None` without space, and when nothing waits.
    ///
    /// A connection that has more than one message to post calls
    /// [`requeue_connection`](Self::requeue_connection).
    pub fn next_post(&mut self) -> Option<NextPost<C>> {
        if !self.has_space() {
            return None;
        }
        let credits = self.credits.as_ref();
        if credits.is_none_or(Credits::allows_llc) {
            if let Some((tag, message)) = self.messages.pop_front() {
                return Some(NextPost::Llc(tag, message));
            }
        }
        if let Some(grants) = credits.and_then(Credits::announcement) {
            return Some(NextPost::Credits(grants));
        }
        if !self.has_credit() {
            return None;
        }
        let conn = self.next_connection()?;
        self.waiting.remove(&conn);
        Some(NextPost::Cdc(conn))
    }

    fn next_connection(&mut self) -> Option<C> {
        let is_sparse = self.backlogged.is_empty() || (!self.was_sparse && !self.sparse.is_empty());
        let queue = match is_sparse {
            true => &mut self.sparse,
            false => &mut self.backlogged,
        };
        let conn = queue.pop_front()?;
        self.was_sparse = is_sparse;
        Some(conn)
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
        if let Some(credits) = &mut self.credits {
            credits.sent(match &what {
                Posted::Llc(_) => 0,
                Posted::Cdc(_) => credits.with_cdc().into(),
                Posted::Credits(grants) => (*grants).into(),
            });
        }
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

    /// When the link has to be taken down, unless a post is completed before, or the peer grants
    /// receive credits.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        let starved = self.starved.filter(|_| !self.waiting.is_empty());
        let since = self.stalled.into_iter().chain(starved).min();
        since?.checked_add(SEND_QUEUE_TIMEOUT)
    }

    /// Whether a connection waits for receive credits. From the first such call on a
    /// [timeout](Self::poll_timeout) is running; to be called when a connection was queued, or a
    /// post completed.
    pub fn is_starved(&mut self, now: Instant) -> bool {
        let is_starved = !self.has_credit() && !self.waiting.is_empty();
        self.starved = is_starved.then(|| self.starved.unwrap_or(now));
        is_starved
    }

    fn reset_stall_timer(&mut self, now: Instant) {
        self.stalled = (!self.messages.is_empty()).then_some(now);
    }
}
