//! The posts of one link: how many are outstanding, and who waits.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::{Duration, Instant};

use hashbrown::HashSet;

use super::OpTag;
use crate::device::{OpId, SENDS_MAX};

/// The posts of one link.
///
/// A link takes [`SENDS_MAX`] posts before the first is completed; whoever comes then has to wait.
/// Messages of the link group go first, connections follow in the order in which they came.
///
/// `C` names a connection.
///
/// ```text
///   queue(message) ──▶ messages ──┐
///                                 ├─▶ next() ──▶ post ──▶ posted() ──▶ outstanding ──▶ completed()
///   wait(conn) ──▶ connections ───┘
/// ```
#[derive(Clone, Debug)]
pub struct SendSlots<C> {
    messages: VecDeque<(OpTag, Vec<u8>)>,
    connections: VecDeque<C>,
    waiting: HashSet<C>,
    outstanding: VecDeque<(OpId, Posted<C>)>,
    last: u64,
    /// Since when nothing has moved although somebody waits.
    stalled: Option<Instant>,
}

/// What was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a link carries two kinds of messages"
)]
pub enum Posted<C> {
    /// A message of the link group.
    Llc(OpTag),
    /// A message of a connection, with its data.
    Cdc(C),
}

/// Whose turn it is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a link carries two kinds of messages"
)]
pub enum Turn<C> {
    /// Post this message, then call [`SendSlots::posted`], or [`SendSlots::put_back`].
    Llc(OpTag, Vec<u8>),
    /// Let this connection post **one** message if it has any.
    Cdc(C),
}

/// So many messages wait that the peer must be flooding us; take the link down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("too many messages wait for the link")]
#[non_exhaustive]
pub struct Overflow;

/// Most messages that wait on one link: what a peer with all its RMBs can ask for, twice.
pub const WAITING_MAX: usize = 1024;

/// How long messages wait for room before the link has to be taken down
/// (docs/spec/link-groups.md#queue-pair).
pub const SLOT_PATIENCE: Duration = Duration::from_secs(10);

impl<C: Copy + Eq + Hash> Default for SendSlots<C> {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Copy + Eq + Hash> SendSlots<C> {
    /// Of a link on which nothing was posted yet.
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

    /// A message of the link group has to be posted ([`Output::Send`](super::Output::Send)).
    ///
    /// # Errors
    ///
    /// [`Overflow`] when [`WAITING_MAX`] messages wait already.
    pub fn queue(&mut self, now: Instant, tag: OpTag, message: Vec<u8>) -> Result<(), Overflow> {
        if self.messages.len() >= WAITING_MAX {
            return Err(Overflow);
        }
        self.messages.push_back((tag, message));
        self.stalled.get_or_insert(now);
        Ok(())
    }

    /// A connection has something to post. It may say so more than once, and gets one turn.
    pub fn wait(&mut self, conn: C) {
        if self.waiting.insert(conn) {
            self.connections.push_back(conn);
        }
    }

    /// A connection is no more, or was moved to another link.
    pub fn forget(&mut self, conn: C) {
        if self.waiting.remove(&conn) {
            self.connections.retain(|other| *other != conn);
        }
    }

    /// Whether there is room for a post, disregarding those that wait.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.outstanding.len() < SENDS_MAX
    }

    /// Whether a connection may post without a turn: there is room, and nobody waits.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.has_room() && self.messages.is_empty() && self.connections.is_empty()
    }

    /// Whose turn it is; `None` without room, and when nobody waits.
    ///
    /// A connection that has more to post than one message says [`wait`](Self::wait) again.
    pub fn next_turn(&mut self) -> Option<Turn<C>> {
        if !self.has_room() {
            return None;
        }
        if let Some((tag, message)) = self.messages.pop_front() {
            return Some(Turn::Llc(tag, message));
        }
        let conn = self.connections.pop_front()?;
        self.waiting.remove(&conn);
        Some(Turn::Cdc(conn))
    }

    /// The number under which the next post is reported; to be given to the device.
    #[must_use]
    pub const fn next_op(&self) -> OpId {
        OpId(self.last.wrapping_add(1))
    }

    /// The device took what was posted under [`next_op`](Self::next_op).
    pub fn posted(&mut self, now: Instant, what: Posted<C>) {
        let op = self.next_op();
        self.last = op.0;
        self.outstanding.push_back((op, what));
        self.moved(now);
    }

    /// The device had no room for a message: it keeps its turn.
    pub fn put_back(&mut self, now: Instant, tag: OpTag, message: Vec<u8>) {
        self.messages.push_front((tag, message));
        self.stalled.get_or_insert(now);
    }

    /// A post was completed. Completions come in the order of the posts, and one stands for all
    /// before it: everything that is completed now, the oldest first.
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
            self.moved(now);
        }
        done.into_iter()
    }

    /// Posts that are not completed.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.outstanding.len()
    }

    /// The newest post that is not completed.
    #[must_use]
    pub fn last_outstanding(&self) -> Option<OpId> {
        self.outstanding.back().map(|(op, _)| *op)
    }

    /// The link is down: everything that was not completed, the oldest first. Nothing waits any
    /// more.
    pub fn fail(&mut self) -> impl Iterator<Item = Posted<C>> + use<C> {
        let Self { outstanding, .. } = std::mem::take(self);
        outstanding.into_iter().map(|(_, what)| what)
    }

    /// When the link has to be taken down, unless something is completed before.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.stalled?.checked_add(SLOT_PATIENCE)
    }

    fn moved(&mut self, now: Instant) {
        self.stalled = (!self.messages.is_empty()).then_some(now);
    }
}
